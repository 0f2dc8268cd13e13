//! The ports in the bridge's network process. This process or its helper opens them.

use std::os::fd::OwnedFd;

use adit_bridge::routed::Mac;
use adit_bridge::{Port, PortSpec, Side};
use adit_linux::net::{Link, Net};

use super::ports::{PortOpener, open_net, specs};
use crate::helper_duty::{BridgeDuty, OpenedPorts, PortRequest, take_over};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{self, Helper, OpenedDevice, Request};

/// The router's own address and MTU on a port.
pub(super) struct Station {
    pub mac: Mac,
    pub mtu: u32,
}

/// The ports of one bridge.
pub(super) struct Ports {
    specs: [PortSpec; 2],
    /// The netlink connection, only for queries that need no privileges.
    net: Net,
    opener: PortSource,
}

/// The process that opens the ports.
enum PortSource {
    /// This process.
    Own(Box<PortOpener>),
    /// The helper.
    Helper(&'static Helper),
}

impl Ports {
    /// Creates the ports in the process's network namespace. Call it inside a runtime.
    pub(crate) fn new(duty: &BridgeDuty) -> Result<Self, Fault> {
        let opener = match helper::current() {
            Some(helper) => PortSource::Helper(helper),
            None => PortSource::Own(Box::new(PortOpener::new(duty)?)),
        };
        Ok(Self { specs: specs(duty)?, net: open_net()?, opener })
    }

    /// Returns the configuration of a port.
    pub(crate) fn spec(&self, side: Side) -> &PortSpec {
        let [a, b] = &self.specs;
        match side {
            Side::A => a,
            Side::B => b,
        }
    }

    /// Opens both ports, after checks.
    pub(crate) async fn open_both(&mut self) -> Result<[Port; 2], Fault> {
        let helper = match &mut self.opener {
            PortSource::Own(opener) => return opener.open_both().await,
            PortSource::Helper(helper) => helper,
        };
        let (answer, descriptors) = helper.ask(Request::own(&PortRequest::OpenBoth)?).await?;
        let mut descriptors = descriptors.into_iter();
        let opened: OpenedPorts = answer.into_own()?;
        let Ok([a, b]) = <[OpenedDevice; 2]>::try_from(opened) else { return Err(unexpected()) };
        Ok([
            self.take_over(Side::A, a, &mut descriptors)?,
            self.take_over(Side::B, b, &mut descriptors)?,
        ])
    }

    /// Opens a port that had disappeared. Returns `None` while it does not exist.
    pub(crate) async fn open_again(&mut self, side: Side) -> Result<Option<Port>, Fault> {
        let helper = match &mut self.opener {
            PortSource::Own(opener) => return opener.open_again(side).await,
            PortSource::Helper(helper) => helper,
        };
        let request = Request::own(&PortRequest::OpenAgain(side.into()))?;
        let (answer, descriptors) = helper.ask(request).await?;
        let opened = answer.into_own::<OpenedPorts>()?.into_iter().next();
        let mut descriptors = descriptors.into_iter();
        opened.map(|opened| self.take_over(side, opened, &mut descriptors)).transpose()
    }

    /// Enables or disables a port.
    pub(crate) async fn switch(&self, side: Side, on: bool) -> Result<(), Fault> {
        match &self.opener {
            PortSource::Own(opener) => opener.switch(side, on).await,
            PortSource::Helper(helper) => {
                let request = Request::own(&PortRequest::Switch { side: side.into(), on })?;
                helper.ask(request).await.map(drop)?;
                Ok(())
            }
        }
    }

    fn take_over(
        &self,
        side: Side,
        opened: OpenedDevice,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Port, Fault> {
        take_over(self.spec(side), opened, descriptors)
            .map_err(|e| Fault::environment(format!("helper: port not taken over: {e}")))
    }

    /// Returns the current state of a port's interface, or `None` if it is gone.
    pub(crate) async fn link(&self, side: Side) -> Option<Link> {
        self.net.link(self.spec(side).name()).await.ok()
    }

    /// Returns the router's own station on an open port. On an interface it has the interface's address. A TAP's
    /// address belongs to the host at its other end, so the router's differs in the last bit.
    pub(crate) async fn station(&self, side: Side, port: &Port) -> Result<Station, Fault> {
        let link = self.net.link(&port.name).await;
        let link = link.map_err(|e| Fault::environment(e.to_string()))?;
        let Some(mut mac) = link.mac else {
            return Err(Fault::environment(format!("{} has no hardware address", port.name)));
        };
        if let (PortSpec::Tap(_), [.., last]) = (self.spec(side), &mut mac) {
            *last ^= 1;
        }
        Ok(Station { mac: Mac(mac), mtu: link.mtu })
    }

    /// Waits until the helper has ended. Without it, no port can be opened again, and the host's stack receives the
    /// ports' frames. Cancel-safe.
    pub(crate) async fn lost(&self) -> Fault {
        match &self.opener {
            PortSource::Own(_) => std::future::pending().await,
            PortSource::Helper(helper) => helper.lost().await,
        }
    }
}

fn unexpected() -> Fault {
    Fault::ours("helper: invalid answer")
}
