use std::net::IpAddr;

use adit_linux::tun::{TunDevice, TunOffloads, TunParts};

use super::apply::{ApplyOutcome, Host};
use super::dns::DnsInUse;
use super::plan::{Device, HostPlan};
use super::policy_routing::Capture;
use super::watch::HostEvent;
use crate::fault::Fault;
use crate::helper::{self, Answer, DeviceRequest, Helper, OpenedDevice, Request, Watcher};

/// The host's side of a tunnel. If there is a helper process, it makes the changes.
#[derive(Debug)]
pub enum HostHandle {
    /// This process makes the changes.
    Own(Box<Host>),
    /// The helper makes the changes.
    Helper(Box<Remote>),
}

/// This process's view of the helper's [`Host`].
#[derive(Debug)]
pub struct Remote {
    helper: &'static Helper,
    device: Option<String>,
    plan: Option<HostPlan>,
    /// Whether the kernel refused no part of the plan.
    is_whole: bool,
    _watcher: Watcher,
}

impl HostHandle {
    /// See [`Host::open`].
    ///
    /// # Errors
    /// See [`Host::open`].
    pub fn open(
        device: &Device,
        offloads: TunOffloads,
        queues: u16,
    ) -> Result<(Self, Option<TunDevice>), Fault> {
        let Some(helper) = helper::current() else {
            let (host, tun) = Host::open(device, offloads, queues.into())?;
            return Ok((Self::Own(Box::new(host)), tun));
        };
        let watcher = Watcher::start(helper)?;
        let TunOffloads { csum, tso, uso } = offloads;
        let offloads = [csum, tso, uso];
        let opening = DeviceRequest { device: device.clone(), offloads, queues };
        let (answer, descriptors) = helper.call(Request::Open(opening), &[])?;
        let Answer::Device(opened) = answer else { return Err(unexpected()) };
        let name = opened.as_ref().map(|opened| opened.name.clone());
        let tun = opened.map(|opened| {
            TunDevice::from_parts(opened.into(), descriptors)
                .map_err(|e| Fault::environment(format!("helper: device not taken over: {e}")))
        });
        let remote = Remote { helper, device: name, plan: None, is_whole: true, _watcher: watcher };
        Ok((Self::Helper(Box::new(remote)), tun.transpose()?))
    }

    /// Continues with a device of a former process. See [`Host::take_over`].
    ///
    /// # Errors
    /// See [`Host::take_over`].
    pub fn take_over(device: &Device, parts: &TunParts) -> Result<Self, Fault> {
        let Some(helper) = helper::current() else {
            return Ok(Self::Own(Box::new(Host::take_over(device, parts)?)));
        };
        let watcher = Watcher::start(helper)?;
        let opened = OpenedDevice::from(parts.clone());
        helper.call(Request::TakeOver(device.clone(), opened), &[])?;
        let device = Some(parts.name.clone());
        let remote = Remote { helper, device, plan: None, is_whole: true, _watcher: watcher };
        Ok(Self::Helper(Box::new(remote)))
    }

    /// See [`Host::leave`].
    pub async fn leave(self) {
        match self {
            Self::Own(host) => host.leave(),
            Self::Helper(remote) => remote.order(Request::Leave).await,
        }
    }

    /// Returns the device's name.
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Own(host) => host.device(),
            Self::Helper(remote) => remote.device.as_deref(),
        }
    }

    /// Returns the plan in force.
    pub fn plan(&self) -> Option<&HostPlan> {
        match self {
            Self::Own(host) => host.plan(),
            Self::Helper(remote) => remote.plan.as_ref(),
        }
    }

    /// See [`Host::apply`].
    ///
    /// # Errors
    /// See [`Host::apply`].
    pub async fn apply(&mut self, plan: &HostPlan) -> Result<ApplyOutcome, Fault> {
        match self {
            Self::Own(host) => host.apply(plan).await,
            Self::Helper(remote) => remote.put(Request::Apply(Box::new(plan.clone())), plan).await,
        }
    }

    /// See [`Host::change`].
    ///
    /// # Errors
    /// See [`Host::change`].
    pub async fn change(&mut self, plan: &HostPlan) -> Result<ApplyOutcome, Fault> {
        match self {
            Self::Own(host) => host.change(plan).await,
            Self::Helper(remote) => remote.put(Request::Change(Box::new(plan.clone())), plan).await,
        }
    }

    /// See [`Host::undo`].
    pub async fn undo(&mut self) {
        match self {
            Self::Own(host) => host.undo().await,
            Self::Helper(remote) => {
                remote.plan = None;
                remote.order(Request::Undo).await;
            }
        }
    }

    /// See [`Host::close`].
    pub async fn close(self) {
        match self {
            Self::Own(host) => host.close().await,
            Self::Helper(remote) => remote.order(Request::Close).await,
        }
    }

    /// See [`Host::prepare`].
    pub async fn prepare(&mut self, own: Option<u32>, may_mark: bool) -> Option<u32> {
        match self {
            Self::Own(host) => host.prepare(own, may_mark).await,
            Self::Helper(remote) => match remote.helper.ask(Request::Prepare { may_mark }).await {
                Ok((Answer::Mark(mark), _)) => mark,
                Ok(_) => own,
                Err(problem) => {
                    tracing::warn!("{}", Fault::from(problem));
                    own
                }
            },
        }
    }

    /// See [`Host::capture`].
    pub async fn capture(&self) -> Capture {
        match self {
            Self::Own(host) => host.capture(),
            Self::Helper(remote) => match remote.helper.ask(Request::Capture).await {
                Ok((Answer::Capture(capture), _)) => capture,
                Ok(_) | Err(_) => Capture::default(),
            },
        }
    }

    /// See [`Host::keep_reachable`].
    pub async fn keep_reachable(&mut self, address: IpAddr) {
        match self {
            Self::Own(host) => host.keep_reachable(address).await,
            Self::Helper(remote) => remote.order(Request::KeepReachable(address)).await,
        }
    }

    /// See [`Host::event`].
    ///
    /// # Errors
    /// Fails if the helper is gone, because the tunnel cannot continue without it.
    pub async fn event(&mut self) -> Result<HostEvent, Fault> {
        match self {
            Self::Own(host) => Ok(host.event().await),
            Self::Helper(remote) => tokio::select! {
                fault = remote.helper.lost() => Err(fault),
                event = remote.helper.event() => Ok(event),
            },
        }
    }

    /// See [`Host::dns_in_use`].
    pub fn dns_in_use(&self) -> DnsInUse {
        match self {
            Self::Own(host) => host.dns_in_use().clone(),
            Self::Helper(remote) => remote.helper.dns_in_use(),
        }
    }

    /// See [`Host::clean_up_dns`]. The helper does this when it opens the device.
    pub async fn clean_up_dns(&self) {
        if let Self::Own(host) = self {
            host.clean_up_dns().await;
        }
    }

    /// Waits until the helper is gone; the tunnel cannot continue without it. Cancel-safe.
    pub async fn lost(&self) -> Fault {
        match self {
            Self::Own(_) => std::future::pending().await,
            Self::Helper(remote) => remote.helper.lost().await,
        }
    }
}

impl Remote {
    async fn put(&mut self, request: Request, plan: &HostPlan) -> Result<ApplyOutcome, Fault> {
        // Applying the same plan again retries its refused parts.
        if self.plan.as_ref() == Some(plan) && self.is_whole {
            return Ok(ApplyOutcome::Same);
        }
        match self.helper.ask(request).await? {
            (Answer::Applied(applied), _) => {
                self.is_whole =
                    !matches!(&applied, ApplyOutcome::Changed(notes) if !notes.is_empty());
                self.plan = Some(plan.clone());
                Ok(applied)
            }
            _ => Err(unexpected()),
        }
    }

    /// Sends a request whose answer contains no data.
    async fn order(&self, request: Request) {
        if let Err(problem) = self.helper.ask(request).await {
            tracing::warn!("{}", Fault::from(problem));
        }
    }
}

fn unexpected() -> Fault {
    Fault::ours("helper: invalid answer")
}
