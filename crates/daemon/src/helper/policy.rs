//! The helper's policy: the requests that the configuration permits.
//!
//! The helper derives it itself, as root, from the operator's files. The plan of a client that pulls options
//! cannot be known in advance: for it, the policy lists the parts that may come from the server.

mod pulled;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use adit_engine::Transport;
use adit_openvpn::config::{
    self, AskPass, ClientOptions, Files, LogTo, Options, PeerKeys, PeerOptions, Proxy, Role,
    ServerOptions, Source, UserPass, Wrap, client_file_name,
};

use self::pulled::Pulled;
use super::protocol::{BridgeDuty, DeviceRequest, Duty, NodeDuty, Request, SocketRequest};
use crate::connect;
use crate::fault::Fault;
use crate::host::{Device, HostPlan, Via};
use crate::managed_server::{HelperScope, Nat};
use crate::openvpn;
use crate::postgres;
use crate::worker_count::MAX_WORKERS;

/// Largest buffer of a socket, in bytes.
const BUFFER_LIMIT: usize = 1 << 30;

/// The requests that the configuration allows.
#[derive(Debug, Default)]
pub(super) struct Policy {
    device: Option<Device>,
    plans: Plans,
    readable: BTreeSet<PathBuf>,
    /// Folders with what names in them may be read.
    folders: BTreeMap<PathBuf, Names>,
    writable: BTreeSet<PathBuf>,
    replaceable: BTreeSet<PathBuf>,
    removable: BTreeSet<PathBuf>,
    /// Control sockets.
    control: BTreeSet<PathBuf>,
    sockets: Sockets,
    configured_mark: Option<u32>,
    /// Whether other servers may be kept reachable.
    remotes: bool,
    /// The `nat` of a managed server.
    managed: Option<Nat>,
    /// Whether it is a bridge, whose ports may be opened.
    ports: bool,
    /// Whether they may be switched off and on.
    switches: bool,
}

/// Which files of a folder.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Names {
    /// Those that can be a client's.
    Clients,
    /// All files in it.
    All,
}

#[derive(Debug, Default)]
enum Plans {
    /// None at all.
    #[default]
    None,
    /// This one.
    Exactly(Box<HostPlan>),
    /// One that follows from the configuration, given the far end's address.
    Configured(Box<Options>),
    /// One of a client.
    Pulled(Box<Pulled>),
    /// One of a node, with routes to other nodes.
    Node(Box<postgres::Bounds>),
}

/// Sockets that may be made.
#[derive(Debug, Default)]
struct Sockets {
    mark: Option<u32>,
    device: Option<String>,
    /// Where to listen.
    listen: Vec<(Transport, SocketAddr)>,
    /// Whether there is a server to dial, and from where.
    dial: bool,
    local: Option<IpAddr>,
    port: u16,
}

/// The configuration's files as they are read, with the content of pipes.
struct Recorded<'a> {
    piped: &'a [(PathBuf, Vec<u8>)],
    read: std::cell::RefCell<BTreeSet<PathBuf>>,
}

impl Files for Recorded<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if let Some((_, bytes)) = self.piped.iter().find(|(known, _)| known == path) {
            return Ok(bytes.clone());
        }
        self.read.borrow_mut().insert(path.to_owned());
        fs::read(path)
    }
}

impl Policy {
    /// Reads the configuration.
    ///
    /// # Errors
    /// It is wrong.
    pub(super) fn derive(
        duty: &Duty,
        piped: &[(PathBuf, Vec<u8>)],
        parent: u32,
    ) -> Result<Self, Fault> {
        let files = Recorded { piped, read: Default::default() };
        let options = match duty {
            Duty::Openvpn(args) => config::parse(args, &files)
                .map_err(|e| Fault::operator(format!("Options error: {e}")))?,
            Duty::Connect(wanted) => connect::options(wanted, &files)?,
            Duty::Server(dir) => return Self::managed(dir.as_deref()),
            Duty::Bridge(duty) => return Ok(Self::bridge(duty)),
            Duty::Postgres(duty) => return Self::node(duty),
        };
        let mut policy = Self { readable: files.read.into_inner(), ..Self::default() };
        policy.control.insert(match duty {
            Duty::Connect(wanted) => connect::control_socket(wanted),
            _ => openvpn::control_socket(parent),
        });
        policy.device = Some(openvpn::device(&options));
        policy.add_sockets(&options);
        policy.add_files(&options);
        match &options.role {
            Role::Client(client) => {
                policy.add_client(client, &options)?;
                policy.plans = Plans::Pulled(Box::new(Pulled::new(&options, client)));
            }
            Role::Server(server) => {
                policy.add_server(server, &options)?;
                policy.plans = Plans::Configured(Box::new(options));
            }
            Role::Peer(peer) => {
                policy.add_peer(peer, &options)?;
                policy.plans = Plans::Configured(Box::new(options));
            }
        }
        Ok(policy)
    }

    /// Of a managed server. The authority's key is not among its files.
    fn managed(dir: Option<&Path>) -> Result<Self, Fault> {
        let bounds = HelperScope::of(dir)?;
        let mut policy = Self {
            device: Some(bounds.plan.device.clone()),
            plans: Plans::Exactly(Box::new(bounds.plan)),
            readable: bounds.readable.into_iter().collect(),
            replaceable: [bounds.leases].into(),
            control: [bounds.control].into(),
            managed: Some(bounds.nat),
            ..Self::default()
        };
        policy.sockets.listen = bounds.listen;
        if let Some(path) = &bounds.filter {
            policy.add_rules(path);
        }
        Ok(policy)
    }

    /// Of a bridge: its ports, its rules and its control socket.
    fn bridge(duty: &BridgeDuty) -> Self {
        let control = [duty.control.clone()].into();
        let mut policy =
            Self { control, ports: true, switches: duty.carry_link, ..Self::default() };
        if let Some(path) = &duty.rules {
            policy.add_rules(path);
        }
        policy
    }

    /// Of a node. Its own keys are not among its files: they are read before.
    fn node(duty: &NodeDuty) -> Result<Self, Fault> {
        let bounds = postgres::Bounds::of(duty)?;
        Ok(Self {
            device: Some(bounds.device().clone()),
            readable: bounds.readable().into_iter().collect(),
            replaceable: [bounds.pins(), bounds.ring()].into(),
            control: [bounds.control()].into(),
            plans: Plans::Node(Box::new(bounds)),
            ..Self::default()
        })
    }

    /// A filter's rules, with the files that they include.
    fn add_rules(&mut self, path: &Path) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.readable.extend(crate::filter::sources(&path));
        self.readable.insert(path);
    }

    fn add_sockets(&mut self, options: &Options) {
        self.sockets.mark = options.socket.mark;
        self.configured_mark = options.socket.mark;
        self.sockets.device.clone_from(&options.socket.device);
    }

    fn add_wrap(&mut self, wrap: &Wrap) {
        match wrap {
            Wrap::None => {}
            Wrap::TlsAuth { key, .. } | Wrap::TlsCrypt(key) => self.readable_source(Some(key)),
            Wrap::TlsCryptV2 { key, shared, .. } => {
                self.readable_source(Some(key));
                if let Some(shared) = shared {
                    self.add_wrap(shared);
                }
            }
        }
    }

    fn add_files(&mut self, options: &Options) {
        let tls = &options.tls;
        self.readable_source(tls.ca.as_ref());
        self.readable_source(tls.crl.as_ref());
        if let Some(identity) = &tls.identity {
            self.readable_source(Some(&identity.cert));
            self.readable_source(Some(&identity.key));
            self.readable_source(identity.extra.as_ref());
        }
        if let Some(AskPass::File(path)) = &tls.askpass {
            self.readable.insert(path.clone());
        }
        if let Some(folder) = &tls.ca_path {
            self.folders.insert(folder.clone(), Names::All);
        }
        self.add_wrap(&options.wrap);
        if let LogTo::File(path) | LogTo::Append(path) = &options.log.to {
            self.writable.insert(path.clone());
        }
        if let Some(status) = &options.status {
            self.writable.insert(status.path.clone());
        }
        if let Some(path) = &options.process.pid_file {
            // At the end it is removed by its whole name, if it still is this process's own.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            self.readable.insert(path.clone());
            self.removable.insert(path);
        }
    }

    fn readable_source(&mut self, source: Option<&Source>) {
        if let Some(Source::File(path)) = source {
            self.readable.insert(path.clone());
        }
    }

    fn readable_login(&mut self, login: Option<&UserPass>) {
        if let Some(UserPass::Source(source)) = login {
            self.readable_source(Some(source));
        }
    }

    fn add_dialling(&mut self, proxies: &[Proxy], options: &Options) -> Result<(), Fault> {
        self.remotes = true;
        self.sockets.dial = true;
        (self.sockets.local, self.sockets.port) = openvpn::dialled_from(options)?;
        for proxy in proxies {
            self.readable_login(match proxy {
                Proxy::Http(http) => http.login.as_ref(),
                Proxy::Socks(socks) => socks.login.as_ref(),
            });
        }
        Ok(())
    }

    fn add_client(&mut self, client: &ClientOptions, options: &Options) -> Result<(), Fault> {
        self.readable_login(client.auth_user_pass.as_ref());
        self.add_dialling(&client.proxies, options)
    }

    fn add_server(&mut self, server: &ServerOptions, options: &Options) -> Result<(), Fault> {
        self.add_listeners(options)?;
        if let Some(folder) = &server.client_config_dir {
            self.readable.insert(folder.clone());
            self.folders.insert(folder.clone(), Names::Clients);
        }
        if let Some(persist) = &server.pool_persist {
            self.readable.insert(persist.path.clone());
            if !persist.every.is_zero() {
                self.writable.insert(persist.path.clone());
                self.replaceable.insert(persist.path.clone());
            }
        }
        if let Some(path) = &server.filter {
            self.add_rules(path);
        }
        Ok(())
    }

    fn add_peer(&mut self, peer: &PeerOptions, options: &Options) -> Result<(), Fault> {
        if let PeerKeys::Static { key, .. } = &peer.keys {
            self.readable_source(Some(key));
        }
        if peer.remotes.is_empty() {
            return self.add_listeners(options);
        }
        self.add_dialling(&peer.proxies, options)
    }

    fn add_listeners(&mut self, options: &Options) -> Result<(), Fault> {
        let listeners = openvpn::listeners(options)?;
        self.sockets.listen = listeners.iter().map(|l| (l.transport, l.bind)).collect();
        Ok(())
    }

    /// Whether a request is one that the configuration asks for.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, request: &Request) -> Result<(), String> {
        match request {
            Request::Begin { .. } => Err("begin: the configuration is known already".into()),
            Request::Reload | Request::Undo | Request::Close => Ok(()),
            Request::Prepare { .. } | Request::Capture => Ok(()),
            Request::PrepareServer | Request::Masquerade(_) => self.check_managed(request),
            Request::OpenPorts | Request::OpenPort(_) => match self.ports {
                true => Ok(()),
                false => Err("port: the configuration is not one of a bridge".into()),
            },
            Request::SwitchPort { .. } => match self.switches {
                true => Ok(()),
                false => Err("port: the configuration carries no state of links".into()),
            },
            Request::Open(opening) => self.check_device(opening),
            Request::Apply(plan) | Request::Change(plan) => self.check_plan(plan),
            Request::KeepReachable(address) => self.check_remote(*address),
            Request::Read(path) => match self.may_read(path) {
                true => Ok(()),
                false => Err(format!("read {}: the configuration does not name it", shown(path))),
            },
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

    /// Files created under an earlier configuration may still be removed.
    pub(super) fn inherit(&mut self, former: &Self) {
        for path in &former.removable {
            self.readable.insert(path.clone());
            self.removable.insert(path.clone());
        }
    }

    /// The mark of the configuration.
    pub(super) fn mark(&self) -> Option<u32> {
        self.configured_mark
    }

    /// Sockets may have this mark, which the helper chose, instead of the configuration's.
    pub(super) fn allow_mark(&mut self, mark: Option<u32>) {
        self.sockets.mark = mark.or(self.configured_mark);
    }

    fn check_managed(&self, request: &Request) -> Result<(), String> {
        match (self.managed, request) {
            (None, _) => Err("server: the configuration is not one of a managed server".into()),
            (Some(own), Request::Masquerade(nat)) if own != *nat => {
                Err(format!("masquerade: {nat:?} is not the configured nat"))
            }
            (Some(_), _) => Ok(()),
        }
    }

    fn check_device(&self, opening: &DeviceRequest) -> Result<(), String> {
        let DeviceRequest { device, offloads: _, queues } = opening;
        if self.device.as_ref() != Some(device) {
            return Err(format!("device {device:?}: the configuration has another"));
        }
        match (1..=MAX_WORKERS).contains(queues) {
            true => Ok(()),
            false => Err(format!("device: {queues} queues")),
        }
    }

    fn check_plan(&self, plan: &HostPlan) -> Result<(), String> {
        match &self.plans {
            Plans::None => Err("plan: the configuration has none".into()),
            Plans::Exactly(wanted) if **wanted == *plan => Ok(()),
            Plans::Exactly(_) => Err("plan: the settings have another".into()),
            Plans::Configured(options) => {
                // `remote_host` in a route is an address that may not occur elsewhere in the plan.
                let hosts = plan.routes.iter().flat_map(|route| {
                    let via = match route.via {
                        Via::Gateway(gateway) => Some(gateway),
                        Via::Tunnel(_) | Via::Outside => None,
                    };
                    [Some(route.net.addr()), via]
                });
                let hosts = hosts.flatten().map(|host| SocketAddr::new(host, 0)).map(Some);
                let mut guesses = [plan.remote, None].into_iter().chain(hosts);
                let follows = |remote| {
                    openvpn::configured_plan(options, remote).is_ok_and(|wanted| wanted == *plan)
                };
                match guesses.any(follows) {
                    true => Ok(()),
                    false => Err("plan: it does not follow from the configuration".into()),
                }
            }
            Plans::Pulled(pulled) => pulled.check(plan),
            Plans::Node(bounds) => bounds.check(plan),
        }
    }

    fn check_remote(&self, address: IpAddr) -> Result<(), String> {
        match self.remotes && is_host(address) {
            true => Ok(()),
            false => Err(format!("keep reachable: {address} is no server's address")),
        }
    }

    fn may_read(&self, path: &Path) -> bool {
        if self.readable.contains(path) {
            return true;
        }
        // A name without folders, so that nothing leads out again.
        let Some((folder, name)) = path.parent().zip(path.file_name().and_then(|n| n.to_str()))
        else {
            return false;
        };
        if folder.join(name) != path {
            return false;
        }
        match self.folders.get(folder) {
            Some(Names::All) => true,
            Some(Names::Clients) => client_file_name(name).is_some(),
            None => false,
        }
    }

    /// A policy with one of everything.
    pub(super) fn for_fuzzing() -> Self {
        Self {
            device: Some(Device::Tun(None)),
            readable: ["/a".into()].into(),
            folders: [("/c".into(), Names::Clients)].into(),
            writable: ["/w".into()].into(),
            replaceable: ["/r".into()].into(),
            removable: ["/p".into()].into(),
            control: ["/s".into()].into(),
            remotes: true,
            ports: true,
            managed: Some(Nat::Auto),
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
        if *mark != self.mark && mark.is_some() {
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
        match self.dial
            && *count == 1
            && chosen
            && local
            && (dialled || transport == Transport::Udp)
        {
            true => Ok(()),
            false => Err(format!("socket: {bind} is not an address of the configuration")),
        }
    }
}

/// An address that one machine can have.
fn is_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast()
}

fn shown(path: &Path) -> String {
    crate::log::clean(&path.to_string_lossy())
}

#[cfg(test)]
mod tests;
