//! The helper process of `adit openvpn` and `adit connect`, and the requests that a configuration permits the network
//! process to make.
//!
//! The plan of a client that pulls options cannot be known in advance, so the policy lists the parts that may come from
//! the server (`pulled.rs`).

mod pulled;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use adit_openvpn::config::{
    self, AskPass, ClientOptions, ExternalCert, Files, LogTo, ManagementPlace, Options, PeerKeys,
    PeerOptions, Proxy, Role, ServerOptions, Source, UserPass, Wrap, client_file_name,
};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{Duty, DutyKind, PlanCheck, Policy};
use adit_runtime::host::{HostPlan, Via};
use adit_runtime::metrics::Config as MetricsConfig;

use self::pulled::PullPolicy;
use crate::config_files::look_up;
use crate::connect::{self, ConnectOptions};
use crate::openvpn;

/// The helper of `adit openvpn`; its arguments are the command line.
pub const OPENVPN: DutyKind = DutyKind {
    name: "openvpn",
    read: |arguments| {
        let (arguments, names) = serde_json::from_value(arguments)?;
        Ok(Box::new(OpenvpnDuty { arguments, names }))
    },
};

/// The helper of `adit connect`; its arguments are the [`ConnectOptions`].
pub const CONNECT: DutyKind = DutyKind {
    name: "connect",
    read: |arguments| Ok(Box::new(ConnectDuty(serde_json::from_value(arguments)?))),
};

struct OpenvpnDuty {
    arguments: Vec<String>,
    /// The addresses of names in routes, as the network process found them.
    names: BTreeMap<String, Vec<Ipv4Addr>>,
}

impl Duty for OpenvpnDuty {
    fn policy(&self, piped: &[(PathBuf, Vec<u8>)], parent: u32) -> Result<Policy, Fault> {
        let files = FileRecorder { piped, names: Some(&self.names), read: Default::default() };
        let options = config::parse(&self.arguments, &files)
            .map_err(|e| Fault::operator(format!("Options error: {e}")))?;
        let metrics = openvpn::metrics(&options)?;
        policy(options, files, openvpn::control_socket(parent), metrics.as_ref())
    }
}

struct ConnectDuty(ConnectOptions);

impl Duty for ConnectDuty {
    fn policy(&self, piped: &[(PathBuf, Vec<u8>)], _: u32) -> Result<Policy, Fault> {
        let files = FileRecorder { piped, names: None, read: Default::default() };
        let options = connect::options(&self.0, &files)?;
        policy(options, files, connect::control_socket(&self.0), self.0.metrics.as_ref())
    }
}

/// Returns the files and folders that a profile names, and the profile itself.
///
/// # Errors
/// The profile is wrong.
pub(crate) fn named_files(wanted: &ConnectOptions) -> Result<BTreeSet<PathBuf>, Fault> {
    let files = FileRecorder { piped: &[], names: None, read: Default::default() };
    let options = connect::options(wanted, &files)?;
    let Policy { mut readable, writable, folders, .. } =
        policy(options, files, PathBuf::new(), None)?;
    readable.extend(writable);
    readable.extend(folders.into_keys());
    Ok(readable)
}

/// Returns the helper's policy for a configuration.
fn policy(
    options: Options,
    files: FileRecorder<'_>,
    control: PathBuf,
    metrics: Option<&MetricsConfig>,
) -> Result<Policy, Fault> {
    let mut policy = Policy {
        readable: files.read.into_inner(),
        control: [control].into(),
        device: Some(openvpn::device(&options)),
        programs: openvpn::scripts::setup(&options),
        ..Policy::default()
    };
    policy.add_metrics(metrics);
    let mut scope = Scope { policy };
    scope.add_sockets(&options);
    scope.add_files(&options);
    let plans: Box<dyn PlanCheck> = match &options.role {
        Role::Client(client) => {
            scope.add_client(client, &options)?;
            Box::new(PullPolicy::new(&options, client))
        }
        Role::Server(server) => {
            scope.add_server(server, &options)?;
            Box::new(Configured(options))
        }
        Role::Peer(peer) => {
            scope.add_peer(peer, &options)?;
            Box::new(Configured(options))
        }
    };
    Ok(Policy { plans: Some(plans), ..scope.policy })
}

/// A plan that follows from the configuration, given the far end's address.
#[derive(Debug)]
struct Configured(Options);

impl PlanCheck for Configured {
    fn check(&self, plan: &HostPlan) -> Result<(), String> {
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
            openvpn::configured_plan(&self.0, remote)
                .is_ok_and(|wanted| wanted == *plan || wanted.before_routes() == *plan)
        };
        if guesses.any(follows) {
            Ok(())
        } else {
            Err("plan: it does not follow from the configuration".into())
        }
    }
}

/// Reads the configuration's files and records them, with the contents of pipes.
struct FileRecorder<'a> {
    piped: &'a [(PathBuf, Vec<u8>)],
    names: Option<&'a BTreeMap<String, Vec<Ipv4Addr>>>,
    read: std::cell::RefCell<BTreeSet<PathBuf>>,
}

impl Files for FileRecorder<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if let Some((_, bytes)) = self.piped.iter().find(|(known, _)| known == path) {
            return Ok(bytes.clone());
        }
        self.read.borrow_mut().insert(path.to_owned());
        fs::read(path)
    }

    fn look_up(&self, name: &str) -> io::Result<Vec<Ipv4Addr>> {
        match self.names.and_then(|names| names.get(name)) {
            Some(known) => Ok(known.clone()),
            None => look_up(name),
        }
    }
}

/// A policy under construction.
struct Scope {
    policy: Policy,
}

impl Scope {
    fn add_sockets(&mut self, options: &Options) {
        self.policy.sockets.mark = options.socket.mark;
        self.policy.sockets.device.clone_from(&options.socket.device);
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
        if let Some(directory) = &tls.crl_directory {
            let is_number = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
            self.policy.readable.insert(directory.clone());
            self.policy.folders.insert(directory.clone(), is_number);
        }
        if let Some(pkcs12) = &tls.pkcs12 {
            self.readable_source(Some(&pkcs12.file));
            self.readable_source(pkcs12.extra.as_ref());
        }
        if let Some(identity) = &tls.identity {
            self.readable_source(Some(&identity.cert));
            self.readable_source(Some(&identity.key));
            self.readable_source(identity.extra.as_ref());
        }
        if let Some(external) = &tls.external_key {
            if let ExternalCert::Source(cert) = &external.cert {
                self.readable_source(Some(cert));
            }
            self.readable_source(external.extra.as_ref());
        }
        if let Some(pkcs11) = &tls.pkcs11 {
            self.readable_source(pkcs11.extra.as_ref());
        }
        if let Some(AskPass::File(path)) = &tls.askpass {
            self.policy.readable.insert(path.clone());
        }
        if let Some(folder) = &tls.ca_path {
            self.policy.folders.insert(folder.clone(), |_| true);
        }
        self.add_wrap(&options.wrap);
        if let LogTo::File(path) | LogTo::Append(path) = &options.log.to {
            self.policy.writable.insert(path.clone());
        }
        if let Some(status) = &options.status {
            self.policy.writable.insert(status.path.clone());
        }
        if let Some(management) = &options.management
            && let ManagementPlace::Unix(path) = &management.place
            && !management.connects
        {
            // The network process opens it while it is root, and removes it at the end.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            self.policy.removable.insert(path);
        }
        if let Some(path) = &options.process.pid_file {
            // On exit it is removed by its absolute path if it still belongs to this process.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            self.policy.readable.insert(path.clone());
            self.policy.removable.insert(path);
        }
    }

    fn readable_source(&mut self, source: Option<&Source>) {
        if let Some(Source::File(path)) = source {
            self.policy.readable.insert(path.clone());
        }
    }

    fn readable_login(&mut self, login: Option<&UserPass>) {
        if let Some(UserPass::Source(source)) = login {
            self.readable_source(Some(source));
        }
    }

    fn add_dialling(&mut self, proxies: &[Proxy], options: &Options) -> Result<(), Fault> {
        self.policy.remotes = true;
        self.policy.sockets.dial = true;
        (self.policy.sockets.local, self.policy.sockets.port) = openvpn::dialled_from(options)?;
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
        self.add_dialling(&client.dial.proxies, options)
    }

    fn add_server(&mut self, server: &ServerOptions, options: &Options) -> Result<(), Fault> {
        self.add_listeners(options)?;
        self.policy.hand_over = true;
        if let Some(folder) = &server.client_config_dir {
            self.policy.readable.insert(folder.clone());
            self.policy.folders.insert(folder.clone(), |name| client_file_name(name).is_some());
        }
        if let Some(persist) = &server.pool_persist {
            self.policy.readable.insert(persist.path.clone());
            if !persist.every.is_zero() {
                self.policy.writable.insert(persist.path.clone());
                self.policy.replaceable.insert(persist.path.clone());
            }
        }
        self.readable_source(server.token_secret.as_ref());
        if let Some(path) = &server.filter {
            self.policy.add_rules(path);
        }
        Ok(())
    }

    fn add_peer(&mut self, peer: &PeerOptions, options: &Options) -> Result<(), Fault> {
        if let PeerKeys::Static { key, .. } = &peer.keys {
            self.readable_source(Some(key));
        }
        if peer.dial.remotes.is_empty() {
            return self.add_listeners(options);
        }
        self.add_dialling(&peer.dial.proxies, options)
    }

    fn add_listeners(&mut self, options: &Options) -> Result<(), Fault> {
        let listeners = openvpn::listeners(options)?;
        self.policy.sockets.listen = listeners.iter().map(|l| (l.transport, l.bind)).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
