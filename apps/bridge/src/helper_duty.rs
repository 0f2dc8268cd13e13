//! The helper of a bridge. It opens the ports; the network process forwards the frames.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;

use adit_bridge::{Port, PortSpec, Side};
use adit_linux::privileges::Profile;
use adit_linux::tun::{TunDevice, TunOffloads, TunParts};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{
    Answer, AnswerWithFds, Duty, DutyKind, OpenedDevice, Policy, Problem, RequestCheck,
};
use adit_runtime::metrics::Config as MetricsConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ports::PortOpener;

/// The helper of `adit bridge`; its arguments are the `BridgeDuty`.
pub const BRIDGE: DutyKind = DutyKind {
    name: "bridge",
    read: |arguments| {
        Ok(Box::new(BridgeHelper { duty: serde_json::from_value(arguments)?, opener: None }))
    },
};

/// A bridge's command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BridgeDuty {
    /// The ports, as written on the command line.
    pub(crate) ports: [String; 2],
    /// The rule file.
    pub(crate) rules: Option<PathBuf>,
    /// The number of queues of each port.
    pub(crate) workers: u16,
    /// The MTU of TAPs that the bridge creates.
    pub(crate) mtu: Option<u32>,
    /// Whether the host's stack also receives the frames that arrive on the ports.
    pub(crate) share_with_host: bool,
    /// Whether a port is disabled while the other has no link.
    pub(crate) carry_link: bool,
    /// The control socket.
    pub(crate) control: PathBuf,
    /// Where metrics are served.
    pub(crate) metrics: Option<MetricsConfig>,
}

/// A request that only a bridge has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum PortRequest {
    /// Open both ports.
    OpenBoth,
    /// Open a port that had disappeared, if it exists again.
    OpenAgain(PortSide),
    /// Enable or disable a port, for a bridge that carries the state of links.
    Switch {
        /// The port.
        side: PortSide,
        /// Whether to enable the port.
        on: bool,
    },
}

/// A port of a bridge.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PortSide {
    /// The first port.
    A,
    /// The second port.
    B,
}

/// The opened ports. A packet socket counts as a queue without flow queues.
pub(crate) type OpenedPorts = Vec<OpenedDevice>;

struct BridgeHelper {
    duty: BridgeDuty,
    /// The opener. It opens the ports again.
    opener: Option<PortOpener>,
}

impl Duty for BridgeHelper {
    fn profile(&self) -> Profile {
        Profile::Bridge
    }

    fn policy(&self, _: &[(PathBuf, Vec<u8>)], _: u32) -> Result<Policy, Fault> {
        let mut policy = Policy {
            control: [self.duty.control.clone()].into(),
            own: Some(Box::new(PortCheck { switches: self.duty.carry_link })),
            ..Policy::default()
        };
        if let Some(path) = &self.duty.rules {
            policy.add_rules(path);
        }
        policy.add_metrics(self.duty.metrics.as_ref());
        Ok(policy)
    }

    fn carry_out(
        &mut self,
        request: Value,
        _: u32,
    ) -> Pin<Box<dyn Future<Output = Result<AnswerWithFds, Problem>> + '_>> {
        let request = read(&request).map_err(Problem::Refused);
        Box::pin(async {
            match request? {
                PortRequest::OpenBoth => self.open_both().await,
                PortRequest::OpenAgain(side) => {
                    hand_over(self.opener()?.open_again(side.into()).await?.as_slice())
                }
                PortRequest::Switch { side, on } => {
                    self.opener()?.switch(side.into(), on).await?;
                    Ok((Answer::Done, Vec::new()))
                }
            }
        })
    }
}

impl BridgeHelper {
    async fn open_both(&mut self) -> Result<AnswerWithFds, Problem> {
        // Close the ports of the previous opener, because they would be in use.
        self.opener = None;
        let mut opener = PortOpener::new(&self.duty)?;
        let both = opener.open_both().await?;
        self.opener = Some(opener);
        hand_over(&both)
    }

    fn opener(&mut self) -> Result<&mut PortOpener, Problem> {
        self.opener.as_mut().ok_or_else(|| Problem::Refused("no ports are open".into()))
    }
}

/// Checks whether the command line permits a request about ports.
#[derive(Debug)]
struct PortCheck {
    /// Whether ports may be disabled and enabled.
    switches: bool,
}

impl RequestCheck for PortCheck {
    fn check(&self, request: &Value) -> Result<(), String> {
        match read(request)? {
            PortRequest::OpenBoth | PortRequest::OpenAgain(_) => Ok(()),
            PortRequest::Switch { .. } if self.switches => Ok(()),
            PortRequest::Switch { .. } => {
                Err("port: the configuration does not carry the state of links".into())
            }
        }
    }
}

fn read(request: &Value) -> Result<PortRequest, String> {
    PortRequest::deserialize(request).map_err(|e| format!("port: {e}"))
}

/// Prepares ports for the network process. They are closed here after they have been sent.
fn hand_over(opened: &[Port]) -> Result<AnswerWithFds, Problem> {
    let (mut ports, mut descriptors) = (OpenedPorts::new(), Vec::new());
    for port in opened {
        let (device, own) = parts(port).map_err(|e| Problem::of(&e))?;
        ports.push(device);
        descriptors.extend(own);
    }
    Ok((Answer::own(&ports)?, descriptors))
}

/// Splits a port into its description and its descriptors.
///
/// # Errors
/// Fails if no descriptor is free.
fn parts(port: &Port) -> io::Result<(OpenedDevice, Vec<OwnedFd>)> {
    let TunOffloads { csum, tso, uso } = port.offloads;
    let opened = OpenedDevice {
        name: port.name.clone(),
        index: port.index,
        offloads: [csum, tso, uso],
        flow_queues: vec![0; port.queues.len()],
    };
    let descriptors = port.queues.iter().map(|queue| queue.as_fd().try_clone_to_owned());
    Ok((opened, descriptors.collect::<io::Result<_>>()?))
}

/// Reassembles a port. Takes its descriptors from the front.
///
/// # Errors
/// Fails if the parts and descriptors do not match.
pub(crate) fn take_over(
    spec: &PortSpec,
    opened: OpenedDevice,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> io::Result<Port> {
    let OpenedDevice { name, index, offloads: [csum, tso, uso], flow_queues } = opened;
    let own: Vec<OwnedFd> = descriptors.take(flow_queues.len()).collect();
    if own.len() != flow_queues.len() || own.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the port's descriptors are not the expected ones",
        ));
    }
    match spec {
        PortSpec::Existing(_) => {
            Ok(Port::of_sockets(name, index, own.into_iter().map(Into::into).collect()))
        }
        PortSpec::Tap(_) => {
            let offloads = TunOffloads { csum, tso, uso };
            TunDevice::from_parts(TunParts { name, ifindex: index, offloads, flow_queues }, own)
                .map(Port::from)
        }
    }
}

impl From<Side> for PortSide {
    fn from(side: Side) -> Self {
        match side {
            Side::A => Self::A,
            Side::B => Self::B,
        }
    }
}

impl From<PortSide> for Side {
    fn from(side: PortSide) -> Self {
        match side {
            PortSide::A => Self::A,
            PortSide::B => Self::B,
        }
    }
}

#[cfg(test)]
mod tests;
