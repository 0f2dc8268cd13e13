//! `adit server init`: creates settings and keys once, and does not change them later.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use adit_engine::Transport;
use adit_openvpn::keys::ServerKey;
use adit_pki::{ClientName, Endpoint, InitOptions, PkiError, Proto, Remote, Store};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::backup;
use super::doctor;
use super::settings::{
    Listen, Login, Nat, Reach, Settings, checked_filter, checked_host, checked_network,
    checked_network6,
};
use adit_runtime::fault::Fault;
use adit_runtime::netinfo;
use adit_runtime::paths::{Paths, write_whole};

/// The server certificate is replaced from this many days before its expiry. Profiles stay valid.
const RENEW_BEFORE_DAYS: u64 = 60;
const SERVER_DAYS: u32 = 3650;

/// The common name of the server's certificate. Profiles pin it.
const SERVER_NAME: &str = "adit-server";

/// The options of a new server. Defaults are chosen for the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewServer {
    /// `--listen`; empty: `udp/1194`.
    pub listen: Vec<Listen>,
    /// `--host`.
    pub host: Option<String>,
    /// `--network`.
    pub network: Option<Ipv4Net>,
    /// `--network6`.
    pub network6: Option<Ipv6Net>,
    /// `--full-tunnel`.
    pub full_tunnel: bool,
    /// `--route`.
    pub routes: Vec<IpNet>,
    /// `--dns`.
    pub dns: Vec<IpAddr>,
    /// `--nat`.
    pub nat: Option<Nat>,
    /// `--workers`.
    pub workers: Option<u16>,
    /// `--filter`, as an absolute path.
    pub filter: Option<PathBuf>,
}

/// The result of [`init`], or of its dry run.
#[derive(Clone, Debug)]
pub struct InitOutcome {
    /// The settings in force.
    pub settings: Settings,
    /// Whether `server.toml` is new.
    pub new_settings: bool,
    /// Whether the authority and the keys are new.
    pub new_pki: bool,
    /// Notes on the defaults that were chosen.
    pub notes: Vec<String>,
}

/// Creates missing settings and keys. With `dry_run` it only reports what it would create.
///
/// # Errors
/// Fails if an option is invalid or contradicts an existing `server.toml`, or a directory is not writable.
pub fn init(paths: &Paths, choices: &NewServer, dry_run: bool) -> Result<InitOutcome, Fault> {
    backup::check_complete(paths)?;
    let path = paths.settings_file();
    let mut notes = Vec::new();
    let new_settings = !path.exists();
    let settings = if new_settings {
        choose(choices, &mut notes)?
    } else {
        let settings = Settings::read(&path)?;
        refuse_difference(&settings, choices, &path)?;
        settings
    };
    let new_pki = !Store::exists(&paths.data);
    if !dry_run {
        paths.create()?;
        // Create the keys first, because settings without keys would look like a complete server.
        if new_pki {
            make_store(paths, &settings)?;
        } else if renew(paths)? {
            notes.push("the server has a new certificate; restart it or: adit reload".into());
        }
        if new_settings {
            write_whole(&path, 0o644, settings.to_toml().as_bytes())?;
        }
    }
    Ok(InitOutcome { settings, new_settings, new_pki, notes })
}

/// Completes the work of a killed command, and replaces a certificate that expires soon.
fn renew(paths: &Paths) -> Result<bool, Fault> {
    let mut store = Store::open(&paths.data).map_err(pki_fault)?;
    let now = SystemTime::now();
    store.repair(now).map_err(pki_fault)?;
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let due = seconds.saturating_add(RENEW_BEFORE_DAYS.saturating_mul(86_400));
    if store.server().server_expires > due {
        return Ok(false);
    }
    store.renew_server(SERVER_DAYS, now).map_err(pki_fault)?;
    Ok(true)
}

fn choose(choices: &NewServer, notes: &mut Vec<String>) -> Result<Settings, Fault> {
    let mut random = adit_runtime::random::generator()?;
    let taken = netinfo::local_networks();
    let host = match &choices.host {
        Some(host) => checked_host(host).map_err(Fault::operator)?,
        None => guess_host(notes)?,
    };
    let network = match choices.network {
        Some(network) => checked_network(network).map_err(Fault::operator)?,
        None => netinfo::free_network4(&taken, &mut random).ok_or_else(|| {
            Fault::operator(
                "this machine has routes to all of 10.0.0.0/8; choose a network with \
                 --network, for example 172.27.31.0/24",
            )
        })?,
    };
    let network6 = match choices.network6 {
        Some(network) => Some(checked_network6(network).map_err(Fault::operator)?),
        None if !netinfo::has_ipv6() => {
            notes.push("no IPv6 inside the tunnel: it is disabled in this machine's kernel".into());
            None
        }
        None => netinfo::free_network6(&taken, &mut random),
    };
    let wanted = [Some(IpNet::V4(network)), network6.map(IpNet::V6)];
    for wanted in wanted.into_iter().flatten() {
        if let Some(other) = taken.iter().find(|other| netinfo::overlap(other, &wanted)) {
            return Err(Fault::operator(format!(
                "{wanted} overlaps {other}, which this machine already has; choose another, or omit --network to get a \
                 free one"
            )));
        }
    }
    let reach = if choices.full_tunnel {
        Reach::Full
    } else {
        Reach::Networks(choices.routes.iter().map(IpNet::trunc).collect())
    };
    let settings = Settings {
        listen: listen_or_free(choices, notes),
        host,
        network,
        network6,
        device: netinfo::free_device("adit"),
        reach,
        dns: choices.dns.clone(),
        nat: choices.nat.unwrap_or_default(),
        client_to_client: false,
        login: Login::default(),
        max_clients: 250,
        mtu: None,
        workers: choices.workers,
        user: None,
        filter: filter(choices, notes)?,
        pam_service: "adit".into(),
        on_event: None,
        events: None,
        oidc: None,
        metrics: None,
    };
    // Apply the same checks, with the same messages, as for an edited file.
    Settings::parse(&settings.to_toml(), Path::new("the command line"))
}

/// Checks the existing rule file, because the server must be able to start with it.
fn filter(choices: &NewServer, notes: &mut Vec<String>) -> Result<Option<PathBuf>, Fault> {
    let Some(path) = &choices.filter else { return Ok(None) };
    let path = checked_filter(&path.to_string_lossy()).map_err(Fault::operator)?;
    if path.exists() {
        let (files, ruleset) = adit_runtime::filter::read(&path)?;
        adit_runtime::filter::compile(&files.name, ruleset)?;
    } else {
        notes.push(format!(
            "there is no {} yet: the server does not start without it",
            path.display()
        ));
    }
    Ok(Some(path))
}

/// Returns the requested ports, or else 1194 or the next free port.
fn listen_or_free(choices: &NewServer, notes: &mut Vec<String>) -> Vec<Listen> {
    if !choices.listen.is_empty() {
        return choices.listen.clone();
    }
    let taken = |port: &u16| doctor::port_problem(Listen::udp(*port)).is_some();
    let port = PORTS.clone().find(|port| !taken(port)).unwrap_or(*PORTS.start());
    if port != *PORTS.start() {
        let why = doctor::port_problem(Listen::udp(*PORTS.start())).unwrap_or_default();
        notes.push(format!("{why}: this server listens on udp/{port}"));
    }
    vec![Listen::udp(port)]
}

/// The ports that are tried if none is requested.
const PORTS: RangeInclusive<u16> = 1194..=1294;

fn guess_host(notes: &mut Vec<String>) -> Result<String, Fault> {
    let Some(address) = netinfo::outside_address() else {
        return Err(Fault::operator(
            "this machine has no default route, so the address that clients dial cannot be guessed; give it: --host \
             vpn.example.net",
        ));
    };
    if netinfo::is_private(address) {
        notes.push(format!(
            "clients will dial {address}, a private address: nothing on the Internet reaches it. Forward \
             the port on the router, and give the router's name or address: --host vpn.example.net"
        ));
    } else {
        notes.push(format!(
            "clients will dial {address}, the address of this machine's default route; --host NAME chooses another"
        ));
    }
    Ok(address.to_string())
}

/// Refuses an option that would have no effect.
fn refuse_difference(settings: &Settings, choices: &NewServer, path: &Path) -> Result<(), Fault> {
    let reach_differs = match &settings.reach {
        Reach::Full => !choices.routes.is_empty(),
        Reach::Networks(routes) => {
            choices.full_tunnel || (!choices.routes.is_empty() && *routes != choices.routes)
        }
    };
    let differs = [
        ("--listen", !choices.listen.is_empty() && choices.listen != settings.listen),
        ("--host", choices.host.as_ref().is_some_and(|host| *host != settings.host)),
        ("--network", choices.network.is_some_and(|net| net.trunc() != settings.network)),
        ("--network6", choices.network6.is_some_and(|net| Some(net.trunc()) != settings.network6)),
        ("--full-tunnel or --route", reach_differs),
        ("--dns", !choices.dns.is_empty() && choices.dns != settings.dns),
        ("--nat", choices.nat.is_some_and(|nat| nat != settings.nat)),
        ("--workers", choices.workers.is_some() && choices.workers != settings.workers),
        ("--filter", choices.filter.is_some() && choices.filter != settings.filter),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        None => Ok(()),
        Some((option, _)) => Err(Fault::operator(format!(
            "{option} differs from {}, which exists; edit that file, then: adit reload",
            path.display()
        ))),
    }
}

/// Returns the server address for profiles.
pub(super) fn remote(settings: &Settings) -> Remote {
    let paths = |transport| {
        settings
            .listen
            .iter()
            .filter(move |l| l.transport == transport)
            .map(|l| (l.transport, l.port))
    };
    // UDP comes first, regardless of the order in the settings.
    let mut ends: Vec<Endpoint> = Vec::new();
    for (transport, port) in paths(Transport::Udp).chain(paths(Transport::Tcp)) {
        let proto = match transport {
            Transport::Udp => Proto::Udp,
            Transport::Tcp => Proto::Tcp,
        };
        if !ends.contains(&Endpoint { port, proto }) {
            ends.push(Endpoint { port, proto });
        }
    }
    let first = if ends.is_empty() { Endpoint::default() } else { ends.remove(0) };
    Remote { host: settings.host.clone(), port: first.port, proto: first.proto, further: ends }
}

fn make_store(paths: &Paths, settings: &Settings) -> Result<(), Fault> {
    let mut random = adit_runtime::random::generator()?;
    let name: ClientName = SERVER_NAME.parse().map_err(pki_fault)?;
    let key = ServerKey::generate(|bytes| random.fill(bytes)).to_pem();
    let options = InitOptions::new(name, remote(settings), key);
    Store::init(&paths.data, &options, SystemTime::now()).map_err(pki_fault)?;
    Ok(())
}

/// Converts the error of a store into a fault.
pub(super) fn pki_fault(error: PkiError) -> Fault {
    let text = error.to_string();
    match error {
        PkiError::Io { .. } | PkiError::Damaged(..) => Fault::environment(text),
        PkiError::Crypto(_) => Fault::ours(text),
        _ => Fault::operator(text),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use adit_runtime::fault::Blame;

    fn here(dir: &tempfile::TempDir) -> Paths {
        Paths::new(Some(&dir.path().join("vpn"))).unwrap()
    }

    fn choices() -> NewServer {
        NewServer {
            host: Some("vpn.example.net".into()),
            network: Some("10.199.31.0/24".parse().unwrap()),
            ..NewServer::default()
        }
    }

    #[test]
    fn repeating_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let paths = here(&dir);
        let first = init(&paths, &choices(), false).unwrap();
        assert!(first.new_settings && first.new_pki);
        let text = fs::read_to_string(paths.settings_file()).unwrap();
        let store = Store::open(&paths.data).unwrap();
        let crl = fs::read(store.files().ca).unwrap();

        for again in [NewServer::default(), choices()] {
            let second = init(&paths, &again, false).unwrap();
            assert!(!second.new_settings && !second.new_pki);
            assert_eq!(second.settings, first.settings);
        }
        assert_eq!(fs::read_to_string(paths.settings_file()).unwrap(), text);
        assert_eq!(fs::read(Store::open(&paths.data).unwrap().files().ca).unwrap(), crl);
    }

    #[test]
    fn a_server_certificate_about_to_end_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let paths = here(&dir);
        init(&paths, &choices(), false).unwrap();
        let mut store = Store::open(&paths.data).unwrap();
        store.renew_server(10, SystemTime::now()).unwrap();
        let soon = store.server().server_expires;
        let again = init(&paths, &choices(), false).unwrap();
        assert!(again.notes.iter().any(|note| note.contains("new certificate")));
        assert!(Store::open(&paths.data).unwrap().server().server_expires > soon);
        assert!(init(&paths, &choices(), false).unwrap().notes.is_empty());
    }

    #[test]
    fn a_dry_run_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let paths = here(&dir);
        let would = init(&paths, &choices(), true).unwrap();
        assert!(would.new_settings && would.new_pki);
        assert_eq!(would.settings.host, "vpn.example.net");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_option_that_would_be_ignored_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = here(&dir);
        init(&paths, &choices(), false).unwrap();
        for (other, option) in [
            (NewServer { host: Some("elsewhere".into()), ..NewServer::default() }, "--host"),
            (NewServer { full_tunnel: true, ..NewServer::default() }, "--full-tunnel"),
            (NewServer { nat: Some(Nat::Off), ..NewServer::default() }, "--nat"),
            (NewServer { filter: Some("/x.nft".into()), ..NewServer::default() }, "--filter"),
            (
                NewServer { network6: Some("fd00::/64".parse().unwrap()), ..NewServer::default() },
                "--network6",
            ),
        ] {
            let fault = init(&paths, &other, false).unwrap_err();
            assert_eq!(fault.blame(), Blame::Operator);
            assert!(fault.to_string().starts_with(option), "{fault}");
        }
    }

    #[test]
    fn what_cannot_be_chosen_is_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let paths = here(&dir);
        for (bad, said) in [
            (NewServer { host: Some("a b".into()), ..choices() }, "host"),
            (NewServer { network: Some("10.0.0.0/30".parse().unwrap()), ..choices() }, "between"),
            (NewServer { network: Some("127.0.0.0/24".parse().unwrap()), ..choices() }, "overlaps"),
        ] {
            let fault = init(&paths, &bad, false).unwrap_err();
            assert_eq!(fault.blame(), Blame::Operator);
            assert!(fault.to_string().contains(said), "{fault}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
