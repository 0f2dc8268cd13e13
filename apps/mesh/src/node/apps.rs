//! OpenVPN apps as leaves of this node: certificates, socket and profiles.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use adit_engine::{Instant, SocketId, UnixTime};
use adit_mesh::node::{AppsConfig, LeafError, NewLeaf, leaf_key};
use adit_mesh::roster::{Label, Layer};
use adit_openvpn::keys::{ServerKey, StaticKey};
use adit_openvpn::server::ServerEvent;
use adit_openvpn::tls::{
    ClientCertificates, CommonTlsOptions, Pem, RemoteCertTls, ServerTls, ServerTlsOptions,
    VerifyOptions,
};
use adit_openvpn::wrap::WrapConfig;
use adit_openvpn_service::EventLog;
use adit_pki::{ClientName, Issuer, NewProfile, Proto, Remote};
use adit_runtime::clock::now;
use adit_runtime::control::{MeshApp, MeshProfile};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::helper::files;
use adit_runtime::say;

use super::report::addresses_of;
use super::requests::labels;
use super::start::socket_options;
use super::{Running, names};
use crate::{Paths, short};

/// The time after which the node tries again to start the server.
const RETRY: Duration = Duration::from_secs(10);

/// The time allowed for sending the last packets of ended sessions.
const LAST_PACKETS: Duration = Duration::from_secs(1);

/// The number of addresses in a profile.
const MAX_REMOTES: usize = 4;

/// The default name of an app; a number follows if it is taken.
const NAME: &str = "phone";

/// The number of characters of an app's name in its certificate, before a random part.
const NAME_IN_CERTIFICATE: usize = 48;

/// This process's state of the server for apps.
#[derive(Debug)]
pub(super) struct AppServer {
    file: PathBuf,
    issuer: Option<Issuer>,
    log: EventLog,
    /// The reason why apps are not served although the roster requires it.
    problem: Option<String>,
    retry_at: Option<Instant>,
    /// A socket that is closed once the last packets have left.
    unused: Option<(SocketId, Instant)>,
}

impl AppServer {
    /// Reads the keys of an earlier run.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(super) fn open(paths: &Paths) -> Result<Self, Fault> {
        let file = paths.apps_file();
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => Some(zeroize::Zeroizing::new(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(file_fault("cannot read", &file, &error)),
        };
        let damaged = || {
            Fault::environment(format!(
                "{}: damaged; put back a copy, or remove it: then all OpenVPN apps need a new profile",
                file.display()
            ))
        };
        let issuer = text.map(|text| Issuer::parse(&text).ok_or_else(damaged)).transpose()?;
        let log = EventLog::default();
        Ok(Self { file, issuer, log, problem: None, retry_at: None, unused: None })
    }

    /// Returns the reason why apps are not served although the roster requires it.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    pub(super) fn log(&mut self, event: &ServerEvent) {
        self.log.log(now(), event);
    }

    /// Returns the keys, creating and storing them if necessary.
    fn issuer(&mut self) -> Result<&Issuer, Fault> {
        let issuer = match self.issuer.take() {
            Some(issuer) => issuer,
            None => {
                let mut random = adit_runtime::random::generator()?;
                let key = ServerKey::generate(|bytes| random.fill(bytes)).to_pem();
                let suffix = short(&adit_runtime::random::bytes::<4>()?);
                let name: ClientName = format!("gateway.{suffix}").parse().map_err(pki)?;
                let issuer = Issuer::generate(name, key, SystemTime::now()).map_err(pki)?;
                files::replace(&self.file, &issuer.to_text())
                    .map_err(|error| file_fault("cannot write", &self.file, &error))?;
                issuer
            }
        };
        Ok(self.issuer.insert(issuer))
    }

    /// Returns the keys for the server's sessions.
    fn tls(&mut self) -> Result<(ServerTls, WrapConfig), Fault> {
        let file = self.file.display().to_string();
        let issuer = self.issuer()?;
        let pem = |text: &str| Some(Pem::new(file.clone(), text.as_bytes().to_vec()));
        let common = CommonTlsOptions {
            ca: pem(issuer.ca()),
            cert: pem(issuer.cert()),
            key: pem(issuer.key()),
            verify: VerifyOptions {
                remote_cert_tls: Some(RemoteCertTls::Client),
                ..VerifyOptions::default()
            },
            ..CommonTlsOptions::default()
        };
        let options = ServerTlsOptions { common, client_certificates: ClientCertificates::Require };
        let tls = ServerTls::new(options).map_err(|error| Fault::operator(error.to_string()))?;
        Ok((tls, WrapConfig::tls_crypt_v2_server(server_key(issuer)?)))
    }
}

fn server_key(issuer: &Issuer) -> Result<ServerKey, Fault> {
    ServerKey::parse(issuer.tls_crypt_v2_server_key())
        .map_err(|error| Fault::ours(format!("the key that wraps the apps' keys: {error}")))
}

fn pki(error: adit_pki::PkiError) -> Fault {
    Fault::environment(error.to_string())
}

impl Running {
    /// Starts or stops serving apps, according to the roster, and passes their addresses to the DNS
    /// server.
    pub(super) fn update_apps(&mut self) {
        let node = self.driver.engine();
        let own = node.key_hash();
        let carries_packets = node.changes().genesis().layer == Layer::Ip;
        let member = node.roster().member(&own);
        let wanted = carries_packets && member.is_some_and(|own| own.openvpn);
        let leaves: BTreeSet<IpAddr> =
            node.roster().leaves_of(&own).flat_map(addresses_of).collect();
        let serves = node.serves_apps();
        if let Some(names) = &self.names {
            names.set_apps(leaves);
        }
        if wanted == serves {
            return;
        }
        if wanted {
            let problem = self.start_apps().err().map(|fault| format!("no OpenVPN apps: {fault}"));
            if let Some(problem) = &problem
                && self.apps.problem.as_ref() != Some(problem)
            {
                tracing::warn!("{problem}");
            }
            self.apps.retry_at = problem.as_ref().map(|_| now() + RETRY);
            self.apps.problem = problem;
        } else if let Some(socket) = self.driver.act(|node, now, out| node.stop_apps(now, out)) {
            self.close_unused();
            self.apps.unused = Some((socket, now() + LAST_PACKETS));
            say!(1, "OpenVPN apps are no longer served");
        }
    }

    fn start_apps(&mut self) -> Result<(), Fault> {
        let (tls, wrap) = self.apps.tls()?;
        let socket = self.open_apps_socket()?;
        let node = self.driver.engine();
        let own = node.roster().member(&node.key_hash());
        let inside = own.filter(|_| self.names.is_some()).map(addresses_of);
        let has_ipv4 = self.conflict.is_none();
        let dns = inside.into_iter().flatten().filter(|ip| ip.is_ipv6() || has_ipv4).collect();
        let domain = names::domain(node.changes());
        let config = AppsConfig { socket, tls, wrap, dns, domain };
        let started = self.driver.act(|node, now, _| node.serve_apps(now, config));
        if let Err(error) = started {
            self.driver.close_sockets(&[socket]);
            return Err(Fault::ours(error.to_string()));
        }
        say!(1, "OpenVPN apps are served at UDP port {}", self.settings.openvpn_port);
        Ok(())
    }

    fn open_apps_socket(&mut self) -> Result<SocketId, Fault> {
        self.close_unused();
        let port = self.settings.openvpn_port;
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        for ip in any {
            let options = socket_options(SocketAddr::new(ip, port), self.mark);
            if let Some(socket) = self.driver.open_sockets(&options, 1).first() {
                return Ok(*socket);
            }
        }
        Err(Fault::environment(format!(
            "UDP port {port} cannot be opened: stop the program that uses it (`ss -ulpn 'sport = :{port}'` names it), or \
             choose another with openvpn-port in mesh.toml"
        )))
    }

    fn close_unused(&mut self) {
        if let Some((socket, _)) = self.apps.unused.take() {
            self.driver.close_sockets(&[socket]);
        }
    }

    pub(super) fn tick_apps(&mut self) {
        self.apps.log.tick(now());
        if self.apps.unused.is_some_and(|(_, at)| at <= now()) {
            self.close_unused();
        }
        if self.apps.retry_at.is_some_and(|at| at <= now()) {
            self.apps.retry_at = None;
            self.update_apps();
        }
    }

    /// Makes an app a leaf of this node, and creates its profile.
    pub(super) fn invite_app(&mut self, app: MeshApp) -> Result<MeshProfile, Fault> {
        self.check_roles(false, true)?;
        let own = self.own_gateway(app.full_tunnel)?;
        let name = self.app_name(app.name.as_deref())?;
        let groups = labels(&app.groups)?;
        let remotes = self.remotes()?;
        let mut random = adit_runtime::random::generator()?;
        let issuer = self.apps.issuer()?;
        let key = StaticKey::generate(|bytes| random.fill(bytes));
        let wrapped = server_key(issuer)?
            .client_key(key, None)
            .map_err(|error| Fault::ours(format!("cannot wrap an app's key: {error}")))?
            .to_pem();
        let full: &[&str] = if app.full_tunnel { &["redirect-gateway def1 ipv6"] } else { &[] };
        let new = NewProfile {
            name: in_certificate(&name)?,
            remotes: &remotes,
            tls_crypt_v2_client_key: &wrapped,
            options: full,
        };
        let issued = issuer.profile(&new, SystemTime::now()).map_err(pki)?;
        let leaf = NewLeaf {
            name: name.clone(),
            groups,
            range: self.range(),
            fingerprint: issued.fingerprint.clone(),
            not_after: UnixTime(issued.expires),
        };
        self.driver.act(|node, now, out| node.admit_leaf(now, leaf, out)).map_err(refused)?;
        let node = self.driver.engine();
        let key = leaf_key(node.changes().mesh(), &issued.fingerprint);
        let member = node.roster().member(&key);
        Ok(MeshProfile {
            name: name.to_string(),
            addresses: member.map(addresses_of).unwrap_or_default(),
            gateway: own,
            remotes: remotes.iter().map(|it| format!("{} udp/{}", it.host, it.port)).collect(),
            not_after: issued.expires,
            profile: issued.profile.text().to_owned(),
        })
    }

    /// Returns the name of this node, if it serves apps.
    fn own_gateway(&self, full_tunnel: bool) -> Result<String, Fault> {
        let node = self.driver.engine();
        let own = node.key_hash();
        let name = self.name(&own);
        let member = node.roster().member(&own);
        if !member.is_some_and(|own| own.openvpn) {
            return Err(Fault::operator(format!(
                "this node serves no OpenVPN apps; to make it their gateway: sudo adit mesh set {name} --openvpn-gateway on"
            )));
        }
        if full_tunnel && !member.is_some_and(|own| own.gateway) {
            return Err(Fault::operator(format!(
                "{name} is no gateway to the internet, which --full-tunnel needs; to make it one: sudo adit mesh set {name} \
                 --gateway on"
            )));
        }
        match self.apps.problem() {
            Some(problem) => Err(Fault::environment(problem.to_owned())),
            None => Ok(name),
        }
    }

    fn app_name(&self, chosen: Option<&str>) -> Result<Label, Fault> {
        let label = |name: &str| {
            Label::new(name).ok_or_else(|| {
                Fault::operator(format!(
                    "{name:?} is not a name for an app: lower-case letters, digits and inner hyphens"
                ))
            })
        };
        if let Some(name) = chosen {
            return label(name);
        }
        let roster = self.driver.engine().roster();
        let names = (1..).map(|n| if n == 1 { NAME.to_owned() } else { format!("{NAME}{n}") });
        for name in names {
            let name = label(&name)?;
            if roster.by_name(&name).is_none() {
                return Ok(name);
            }
        }
        Err(Fault::ours("no name is free"))
    }

    /// Returns the addresses at which apps reach this machine: only the public ones, if there are
    /// any.
    fn remotes(&self) -> Result<Vec<Remote>, Fault> {
        let port = self.settings.openvpn_port;
        let remote = |host: String| Remote { host, port, proto: Proto::Udp, further: Vec::new() };
        if let Some(host) = &self.settings.openvpn_host {
            return Ok(vec![remote(host.clone())]);
        }
        let known = self.driver.engine().candidate_addresses(now());
        let hosts = hosts(&known.iter().map(SocketAddr::ip).collect::<Vec<_>>());
        if hosts.is_empty() {
            return Err(Fault::environment(
                "this machine has no address that an app can reach: set one with openvpn-host in mesh.toml",
            ));
        }
        Ok(hosts.into_iter().map(|ip| remote(ip.to_string())).collect())
    }
}

/// Returns the addresses for a profile: the public ones, or all if there are none.
fn hosts(known: &[IpAddr]) -> Vec<IpAddr> {
    let mut seen = BTreeSet::new();
    let mut hosts: Vec<IpAddr> =
        known.iter().map(IpAddr::to_canonical).filter(|ip| seen.insert(*ip)).collect();
    if hosts.iter().any(|ip| !adit_mesh::path::is_private(*ip)) {
        hosts.retain(|ip| !adit_mesh::path::is_private(*ip));
    }
    hosts.truncate(MAX_REMOTES);
    hosts
}

/// Returns the common name for an app's certificate. Each certificate gets a different one, because a session replaces an older one with
/// the same name.
fn in_certificate(name: &Label) -> Result<ClientName, Fault> {
    let suffix = short(&adit_runtime::random::bytes::<4>()?);
    let beginning: String = name.as_str().chars().take(NAME_IN_CERTIFICATE).collect();
    format!("{beginning}.{suffix}").parse().map_err(pki)
}

fn refused(error: LeafError) -> Fault {
    Fault::operator(error.to_string())
}

#[cfg(test)]
mod expiry_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_the_public_addresses_and_others_only_without_them() {
        let of = |texts: &[&str]| {
            let known: Vec<IpAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
            hosts(&known).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(&["11.0.0.1", "192.168.7.1", "11.0.0.1"]), ["11.0.0.1"]);
        assert_eq!(of(&["192.168.7.1", "10.0.0.1"]), ["192.168.7.1", "10.0.0.1"]);
        assert_eq!(of(&["::ffff:11.0.0.1"]), ["11.0.0.1"]);
        let many: Vec<String> = (1..9).map(|n| format!("11.0.0.{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(of(&many).len(), MAX_REMOTES);
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn each_certificate_has_a_name_of_its_own_that_fits() {
        let longest = Label::new(&"a".repeat(63)).unwrap();
        let [one, other] = [(); 2].map(|()| in_certificate(&longest).unwrap());
        assert!(one != other && one.as_str().starts_with("aaaa"));
    }

    #[test]
    fn the_keys_are_read_as_they_were_written_and_a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        paths.create().unwrap();
        let mut first = AppServer::open(&paths).unwrap();
        let ca = first.issuer().unwrap().ca().to_owned();
        first.tls().unwrap();
        let mut again = AppServer::open(&paths).unwrap();
        assert_eq!(again.issuer().unwrap().ca(), ca);
        std::fs::write(paths.apps_file(), "{").unwrap();
        let damaged = AppServer::open(&paths).unwrap_err().to_string();
        assert!(damaged.contains("damaged") && damaged.contains("new profile"), "{damaged}");
    }
}
