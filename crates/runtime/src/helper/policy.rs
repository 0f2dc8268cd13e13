//! The helper's policy: the requests that the configuration permits.
//!
//! A command's [`super::Duty`] derives the policy from the operator's files, as root, in the helper
//! itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use adit_engine::Transport;
use serde_json::Value;

use super::protocol::{DeviceRequest, Request, SocketRequest};
use crate::host::{Device, HostPlan};
use crate::programs::Setup;
use crate::worker_count::MAX_WORKERS;

/// The maximum buffer size of a socket in bytes.
const BUFFER_LIMIT: usize = 1 << 30;

/// The requests that the configuration permits. The default permits no request that names a file,
/// device or address.
#[derive(Debug, Default)]
pub struct Policy {
    /// The device that may be opened.
    pub device: Option<Device>,
    /// The plans that may be applied.
    pub plans: Option<Box<dyn PlanCheck>>,
    /// The files that may be read.
    pub readable: BTreeSet<PathBuf>,
    /// The directories that may be listed, each with a predicate for the names in it that may be
    /// read.
    pub folders: BTreeMap<PathBuf, fn(&str) -> bool>,
    /// The files that may be written.
    pub writable: BTreeSet<PathBuf>,
    /// The files that may be replaced atomically.
    pub replaceable: BTreeSet<PathBuf>,
    /// The files that may be removed.
    pub removable: BTreeSet<PathBuf>,
    /// Whether the device may pass between processes.
    pub hand_over: bool,
    /// The control sockets that may be opened.
    pub control: BTreeSet<PathBuf>,
    /// The sockets that may be created.
    pub sockets: Sockets,
    /// Whether further servers may be kept reachable.
    pub remotes: bool,
    /// The check of the requests that only this command has.
    pub own: Option<Box<dyn RequestCheck>>,
    /// The programs that the network process may run, if there are any.
    pub programs: Option<Setup>,
}

/// Checks whether the configuration permits a plan.
pub trait PlanCheck: fmt::Debug {
    /// Checks a plan.
    ///
    /// # Errors
    /// The reason why the configuration does not permit it.
    fn check(&self, plan: &HostPlan) -> Result<(), String>;
}

/// Permits exactly this plan.
impl PlanCheck for HostPlan {
    fn check(&self, plan: &HostPlan) -> Result<(), String> {
        if self == plan { Ok(()) } else { Err("plan: the settings have another".into()) }
    }
}

/// Checks whether the configuration permits a request that only one command has.
pub trait RequestCheck: fmt::Debug {
    /// Checks a request.
    ///
    /// # Errors
    /// The reason why the configuration does not permit it.
    fn check(&self, request: &Value) -> Result<(), String>;
}

/// The sockets that may be created.
#[derive(Debug, Default)]
pub struct Sockets {
    /// The mark that the configuration gives them.
    pub mark: Option<u32>,
    /// The mark that the helper chose instead.
    chosen_mark: Option<u32>,
    /// The device to which the configuration binds them.
    pub device: Option<String>,
    /// The addresses on which sockets may listen.
    pub listen: Vec<(Transport, SocketAddr)>,
    /// Whether sockets may dial a server.
    pub dial: bool,
    /// The local address for dialling.
    pub local: Option<IpAddr>,
    /// The local port for dialling.
    pub port: u16,
}

impl Policy {
    /// Allows a filter's rules to be read, with the files that they include.
    pub fn add_rules(&mut self, path: &Path) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.readable.extend(crate::filter::sources(&path));
        self.readable.insert(path);
    }

    /// Allows the unix socket for metrics to be opened.
    pub fn add_metrics(&mut self, metrics: Option<&crate::metrics::Config>) {
        self.control.extend(metrics.and_then(crate::metrics::Config::socket).map(Path::to_owned));
    }

    /// Checks whether the configuration permits a request.
    ///
    /// # Errors
    /// The reason why the configuration does not permit it.
    pub fn check(&self, request: &Request) -> Result<(), String> {
        match request {
            Request::Begin { .. } => Err("begin: the configuration is known already".into()),
            Request::Reload | Request::Undo | Request::Close => Ok(()),
            Request::Prepare { .. } | Request::Capture => Ok(()),
            Request::TakeOver(..) | Request::Leave if !self.hand_over => {
                Err("hand over: this command does not".into())
            }
            Request::Leave => Ok(()),
            Request::TakeOver(device, _) if self.device.as_ref() == Some(device) => Ok(()),
            Request::TakeOver(device, _) => {
                Err(format!("device {device:?}: the configuration has another"))
            }
            Request::Own(request) => match &self.own {
                Some(own) => own.check(request),
                None => Err("the command has no requests of its own".into()),
            },
            Request::Open(opening) => self.check_device(opening),
            Request::Apply(plan) | Request::Change(plan) => self.check_plan(plan),
            Request::KeepReachable(address) => self.check_remote(*address),
            Request::Read(path) => {
                if self.may_read(path) {
                    Ok(())
                } else {
                    Err(format!("read {}: the configuration does not name it", shown(path)))
                }
            }
            Request::List(path) if self.folders.contains_key(path) => Ok(()),
            Request::Write { path, .. } if self.writable.contains(path) => Ok(()),
            Request::Replace(path) | Request::Commit(path) if self.replaceable.contains(path) => {
                Ok(())
            }
            Request::Remove(path) if self.removable.contains(path) => Ok(()),
            Request::Control(path) if self.control.contains(path) => Ok(()),
            Request::Remove(path) if self.control.contains(path) => Ok(()),
            Request::List(path)
            | Request::Write { path, .. }
            | Request::Replace(path)
            | Request::Commit(path)
            | Request::Control(path)
            | Request::Remove(path) => {
                Err(format!("file {}: the configuration does not name it for that", shown(path)))
            }
            Request::Datagrams(wish) => self.sockets.check(Transport::Udp, wish, false),
            Request::Listen(wish) => self.sockets.check(Transport::Tcp, wish, false),
            Request::Stream(wish) => self.sockets.check(Transport::Tcp, wish, true),
        }
    }

    /// Takes over the previous policy, because files that were created under an earlier
    /// configuration may still be removed.
    pub(super) fn inherit(&mut self, former: &Self) {
        for path in &former.removable {
            self.readable.insert(path.clone());
            self.removable.insert(path.clone());
        }
    }

    /// Returns the configured mark.
    pub(super) fn mark(&self) -> Option<u32> {
        self.sockets.mark
    }

    /// Allows sockets to have this mark, which the helper chose, instead of the configuration's.
    pub(super) fn allow_mark(&mut self, mark: Option<u32>) {
        self.sockets.chosen_mark = mark;
    }

    fn check_device(&self, opening: &DeviceRequest) -> Result<(), String> {
        let DeviceRequest { device, offloads: _, queues } = opening;
        if self.device.as_ref() != Some(device) {
            return Err(format!("device {device:?}: the configuration has another"));
        }
        if (1..=MAX_WORKERS).contains(queues) {
            Ok(())
        } else {
            Err(format!("device: {queues} queues"))
        }
    }

    fn check_plan(&self, plan: &HostPlan) -> Result<(), String> {
        match &self.plans {
            Some(plans) => plans.check(plan),
            None => Err("plan: the configuration has none".into()),
        }
    }

    fn check_remote(&self, address: IpAddr) -> Result<(), String> {
        if self.remotes && is_host(address) {
            Ok(())
        } else {
            Err(format!("keep reachable: {address} is no server's address"))
        }
    }

    fn may_read(&self, path: &Path) -> bool {
        if self.readable.contains(path) {
            return true;
        }
        // The name has a single component, so it cannot lead out of the directory.
        let Some((folder, name)) = path.parent().zip(path.file_name().and_then(|n| n.to_str()))
        else {
            return false;
        };
        if folder.join(name) != path {
            return false;
        }
        self.folders.get(folder).is_some_and(|may_read| may_read(name))
    }

    /// Returns a policy that permits one of everything, for the fuzzer.
    pub(super) fn for_fuzzing() -> Self {
        Self {
            device: Some(Device::Tun(None)),
            readable: ["/a".into()].into(),
            folders: [("/c".into(), (|name| name.is_ascii()) as fn(&str) -> bool)].into(),
            writable: ["/w".into()].into(),
            replaceable: ["/r".into()].into(),
            removable: ["/p".into()].into(),
            control: ["/s".into()].into(),
            remotes: true,
            ..Self::default()
        }
    }
}

impl Sockets {
    fn check(
        &self,
        transport: Transport,
        wish: &SocketRequest,
        dialled: bool,
    ) -> Result<(), String> {
        let SocketRequest { bind, bound, v6only: _, count, mark, device, buffers, icmp_errors: _ } =
            wish;
        if *mark != self.chosen_mark.or(self.mark) && mark.is_some() {
            return Err(format!("socket: the mark {mark:?} is not the configuration's"));
        }
        if device.is_some() && *device != self.device {
            return Err(format!("socket: the device {device:?} is not the configuration's"));
        }
        if !(1..=MAX_WORKERS).contains(count) {
            return Err(format!("socket: {count} of them"));
        }
        let large = |size: &Option<usize>| size.is_some_and(|size| size > BUFFER_LIMIT);
        if large(&buffers.0) || large(&buffers.1) {
            return Err("socket: a buffer beyond reason".into());
        }
        if !dialled && self.listen.contains(&(transport, *bind)) {
            return Ok(());
        }
        let chosen = bind.port() == 0 || (*bound && bind.port() == self.port);
        let local =
            bind.ip().is_unspecified() || bind.ip().is_loopback() || Some(bind.ip()) == self.local;
        if self.dial && *count == 1 && chosen && local && (dialled || transport == Transport::Udp) {
            Ok(())
        } else {
            Err(format!("socket: {bind} is not an address of the configuration"))
        }
    }
}

/// Returns whether a single host can have this address.
pub fn is_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast()
}

fn shown(path: &Path) -> String {
    crate::log::clean(&path.to_string_lossy())
}
