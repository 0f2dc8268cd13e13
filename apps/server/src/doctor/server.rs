//! Checks of a managed server's port, address, network and keys.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use adit_engine::Transport;
use adit_pki::{Client, ClientState, Store};
use ipnet::IpNet;

use super::super::host_state::running;
use super::super::settings::{Listen, Settings};
use super::{Finding, Fix};
use adit_runtime::control::{self, Request, Response, SharedProfile};
use adit_runtime::netinfo;
use adit_runtime::paths::Paths;

/// A certificate is reported from this many days before its expiry.
const SOON_DAYS: u64 = 30;

/// The maximum number of names in a finding.
const MAX_NAMES: usize = 10;

pub(super) fn examine(paths: &Paths, settings: &Settings) -> Vec<Finding> {
    let runs = running(paths).is_some();
    let mut findings = Vec::new();
    for listen in &settings.listen {
        findings.push(port(*listen, runs));
    }
    findings.push(host(settings));
    if !runs {
        findings.push(network(settings));
    }
    findings.extend(permissions(paths));
    findings.push(certificates(paths));
    if settings.login.uses_certificate() {
        findings.extend(client_certificates(paths));
    }
    findings
}

/// Finds profiles that two devices use, as reported by the running server.
pub(super) fn shared_profiles(paths: &Paths) -> Vec<Finding> {
    let asked = control::request(&paths.control_socket(), &Request::Status);
    let Ok(Response::Status(report)) = asked else { return Vec::new() };
    let finding = |profile: &SharedProfile| {
        let [one, other] = &profile.addresses;
        let what = format!("two devices use the profile of {}: {one} and {other}", profile.name);
        Finding::warning("profiles", what).remedy(format!(
            "give each device its own profile: {}",
            paths.command("server client add NAME")
        ))
    };
    report.shared.iter().map(finding).collect()
}

pub(super) fn port(listen: Listen, runs: bool) -> Finding {
    if runs {
        return Finding::ok("port", format!("{listen} is ours: the server is running"));
    }
    let any: IpAddr = Ipv6Addr::UNSPECIFIED.into();
    let bind = |address: IpAddr| match listen.transport {
        Transport::Udp => UdpSocket::bind((address, listen.port)).map(drop),
        Transport::Tcp => TcpListener::bind((address, listen.port)).map(drop),
    };
    let bound = match listen.address {
        Some(address) => bind(address),
        None => bind(any).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Err(error),
            _ => bind(Ipv4Addr::UNSPECIFIED.into()),
        }),
    };
    match bound {
        Ok(_) => Finding::ok("port", format!("{listen} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let by = owner(listen).unwrap_or_else(|| "another program".into());
            Finding::problem("port", format!("{listen} is taken by {by}"))
                .remedy("stop that program, or set another port in `listen` in server.toml")
        }
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            Finding::problem("port", format!("{listen}: this machine has no such address")).remedy(
                "set an address of this machine in `listen` in server.toml, or only the port",
            )
        }
        Err(error) => Finding::problem("port", format!("{listen}: {error}")).remedy(
            "set another port in `listen` in server.toml, or run as root for ports below 1024",
        ),
    }
}

/// The state of a listening TCP socket in /proc/net/tcp. A connection may have the same port.
const LISTENS: &str = "0A";

/// Finds the process that owns a port, through the socket's inode.
fn owner(listen: Listen) -> Option<String> {
    let wanted = format!(":{:04X}", listen.port);
    let stream = listen.transport == Transport::Tcp;
    let inode = ["", "6"].iter().find_map(|family| {
        let file = format!("/proc/net/{}{family}", listen.protocol());
        fs::read_to_string(file).ok()?.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let local = fields.get(1)?;
            let listens = !stream || fields.get(3) == Some(&LISTENS);
            (listens && local.ends_with(&wanted)).then(|| fields.get(9).map(ToString::to_string))?
        })
    })?;
    let link = PathBuf::from(format!("socket:[{inode}]"));
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let pid = process.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|digit| digit.is_ascii_digit()) {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let mut links = descriptors.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        if links.any(|target| target == link) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (process {pid})", name.trim()));
        }
    }
    None
}

/// Checks whether clients that dial `host` reach this host.
fn host(settings: &Settings) -> Finding {
    let first = settings.listen.first().copied().unwrap_or(Listen::udp(1194));
    let (port, name) = (first.port, first.protocol().to_ascii_uppercase());
    let ours: Vec<IpAddr> = nix::ifaddrs::getifaddrs()
        .into_iter()
        .flatten()
        .filter_map(|interface| {
            let address = interface.address?;
            let four = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            four.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .collect();
    let host = &settings.host;
    let addresses: Vec<IpAddr> = match (host.as_str(), port).to_socket_addrs() {
        Ok(found) => found.map(|address: SocketAddr| address.ip()).collect(),
        Err(error) => {
            return Finding::problem("host", format!("{host}, which clients dial: {error}"))
                .remedy(format!(
                    "create the DNS name {host}, or write an address into `host` in server.toml"
                ));
        }
    };
    if let Some(private) = addresses.iter().find(|a| netinfo::is_private(**a)) {
        let inside = ours.iter().find(|a| *a == private).unwrap_or(private);
        return Finding::warning(
            "host",
            format!(
                "{private}, which clients dial, is a private address: only this site reaches it"
            ),
        )
        .remedy(format!("on the router: forward {name} port {port} to {inside}"))
        .remedy("and set `host` in server.toml to the router's public name or address");
    }
    if addresses.iter().any(|address| ours.contains(address)) {
        return Finding::ok("host", format!("{host} leads to this machine"));
    }
    let here = netinfo::outside_address().map_or("this machine".into(), |a| a.to_string());
    Finding::warning("host", format!("{host} leads to no address of this machine: NAT in front"))
        .remedy(format!("let the router forward {name} port {port} to {here}"))
}

fn network(settings: &Settings) -> Finding {
    let mut wanted = vec![IpNet::V4(settings.network)];
    wanted.extend(settings.network6.map(IpNet::V6));
    let local = netinfo::local_networks();
    for network in &wanted {
        if let Some(other) = local.iter().find(|other| netinfo::overlap(other, network)) {
            return Finding::problem(
                "network",
                format!("the tunnel's network {network} overlaps {other}, which this machine has"),
            )
            .remedy("set another network in `network` or `network6` in server.toml");
        }
    }
    Finding::ok("network", "the tunnel's networks are free on this machine")
}

/// Names the clients whose certificates have expired or expire soon.
fn client_certificates(paths: &Paths) -> Option<Finding> {
    let clients = Store::open(&paths.data).and_then(|store| store.clients()).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let due = now.saturating_add(SOON_DAYS.saturating_mul(86_400));
    let mut soon: Vec<&Client> = clients
        .iter()
        .filter(|client| client.state == ClientState::Active && client.expires < due)
        .collect();
    soon.sort_by_key(|client| client.expires);
    let first = soon.first()?;
    let days = first.expires.saturating_sub(now) / 86_400;
    let mut names: Vec<String> =
        soon.iter().take(MAX_NAMES).map(|client| client.name.to_string()).collect();
    if let Some(more) = soon.len().checked_sub(MAX_NAMES).filter(|more| *more > 0) {
        names.push(format!("and {more} more"));
    }
    let what = format!(
        "certificates of clients that have expired or end within {SOON_DAYS} days, the first in {days}: {}",
        names.join(", ")
    );
    let remedy =
        format!("{} (a new profile for the client)", paths.command("server client renew NAME"));
    Some(Finding::warning("clients", what).remedy(remedy))
}

/// Checks the certificates of the authority and the server.
fn certificates(paths: &Paths) -> Finding {
    let store = match Store::open(&paths.data) {
        Ok(store) => store,
        Err(error) => {
            return Finding::problem("certificate", error.to_string())
                .remedy(paths.command("server init"));
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let days = |end: u64| end.saturating_sub(now) / 86_400;
    let (server, ca) = (days(store.server().server_expires), days(store.server().ca_expires));
    if ca < SOON_DAYS {
        return Finding::problem("certificate", format!("the authority ends in {ca} days")).remedy(
            "create a new server in another folder, and give every client its new profile",
        );
    }
    if server < SOON_DAYS {
        let what = format!("the server's certificate ends in {server} days");
        let finding = if server == 0 {
            Finding::problem("certificate", what)
        } else {
            Finding::warning("certificate", what)
        };
        return finding.remedy(format!("{} (profiles stay valid)", paths.command("server init")));
    }
    Finding::ok("certificate", format!("the server's certificate has {server} days left"))
}

/// Checks that only the owner can read the keys.
fn permissions(paths: &Paths) -> Option<Finding> {
    let meta = fs::metadata(&paths.data).ok()?;
    let shown = paths.data.display();
    if meta.permissions().mode() & 0o077 != 0 {
        return Some(
            Finding::problem(
                "keys",
                format!("{shown} contains keys and is accessible to other users"),
            )
            .remedy(format!("chmod 700 {shown}"))
            .fix(Fix::Mode(paths.data.clone(), 0o700)),
        );
    }
    if meta.uid() != 0 && nix::unistd::geteuid().is_root() {
        return Some(
            Finding::warning("keys", format!("{shown} belongs to the user {}", meta.uid()))
                .remedy(format!("chown -R root: {shown}")),
        );
    }
    Some(Finding::ok("keys", format!("{shown} is not accessible to other users")))
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use crate::clients::{self, ClientRequest};

    #[test]
    fn names_who_has_the_port() {
        let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = |address: SocketAddr, transport| Listen {
            address: Some(address.ip()),
            port: address.port(),
            transport,
        };
        let stream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let finding = port(at(stream.local_addr().unwrap(), Transport::Tcp), false);
        assert!(finding.what.contains(&format!("{}", std::process::id())), "{}", finding.what);
        let listen = at(taken.local_addr().unwrap(), Transport::Udp);
        let finding = port(listen, false);
        assert_eq!(finding.level, Level::Problem);
        let me = format!("(process {})", std::process::id());
        assert!(finding.what.contains(&me), "{}", finding.what);
        drop(taken);
        // A program that another test starts has a copy of the socket until its exec.
        adit_testbed::test_process::until("the port is free", || {
            port(listen, false).level == Level::Fine
        });
    }

    #[test]
    fn clients_to_renew_are_named_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, _) = crate::testing::server(&dir);
        let add = |name: &str, days: Option<u32>| {
            let wanted = ClientRequest { name: name.into(), days, ..ClientRequest::default() };
            clients::add(&paths, &wanted).unwrap();
        };
        add("later", None);
        assert!(client_certificates(&paths).is_none());
        (0..11).for_each(|n| add(&format!("soon{n}"), Some(20)));
        add("first", Some(3));
        let finding = client_certificates(&paths).unwrap();
        assert!(finding.what.contains(": first, soon0"), "{}", finding.what);
        assert!(finding.what.contains("and 2 more") && !finding.what.contains("later"));
        clients::revoke(&paths, "first").unwrap();
        assert!(!client_certificates(&paths).unwrap().what.contains("first,"));
    }

    #[test]
    fn open_keys_are_closed() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        paths.create().unwrap();
        fs::set_permissions(&paths.data, PermissionsExt::from_mode(0o755)).unwrap();
        let finding = permissions(&paths).unwrap();
        assert_eq!(finding.level, Level::Problem);
        assert_eq!(finding.repair(), Some(true));
        assert_eq!(permissions(&paths).unwrap().level, Level::Fine);
    }
}
