//! `adit server client ...`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::SystemTime;

use adit_openvpn::keys::{ServerKey, StaticKey};
use adit_pki::{
    Client, ClientName, ClientState, GroupName, IssuedClient, NewClient, PkiError, Store,
};
use serde::Serialize;
use zeroize::Zeroizing;

use super::backup;
pub use super::client_changes::{delete, note_on_networks, profile, rename, set};
use super::init::{pki_fault, remote};
use super::settings::{Login, Settings};
use super::usage::Usage;
use super::users;
use adit_runtime::clock::unix_time;
use adit_runtime::control::{self, PeerReport, Request, Response};
use adit_runtime::fault::Fault;
use adit_runtime::filter;
use adit_runtime::helper::files;
use adit_runtime::paths::Paths;

/// A client to be added or renewed.
#[derive(Clone, Debug, Default)]
pub struct ClientRequest {
    /// The name.
    pub name: String,
    /// The validity of the certificate in days, or `None` for the store's default.
    pub days: Option<u32>,
    /// The password that protects the private key in the profile.
    pub password: Option<Zeroizing<String>>,
    /// The fixed addresses inside the tunnel, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// Whether the server keeps the profile, with its private key.
    pub keep_profile: bool,
    /// The groups for the packet filter. For an existing client, an empty list leaves them unchanged.
    pub groups: Vec<String>,
}

/// A client with its sessions.
#[derive(Clone, Debug, Serialize)]
pub struct ClientOverview {
    /// The client's entry in the registry.
    #[serde(flatten)]
    pub client: Client,
    /// The bytes of its quota that it has used in the current period; absent without a quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Whether the server keeps its profile.
    pub profile_kept: bool,
    /// The client's current sessions.
    pub sessions: Vec<PeerReport>,
}

/// Opens the store of a created server.
///
/// # Errors
/// Fails if there is no store, or it cannot be read.
pub(super) fn open_store(paths: &Paths) -> Result<Store, Fault> {
    backup::check_complete(paths)?;
    Store::open_by(&paths.data, files::open).map_err(|error| match error {
        PkiError::NotInitialised(_) => Fault::operator(format!(
            "there is no server in {}; create it with: {}",
            paths.data.display(),
            paths.command("server init")
        )),
        other => pki_fault(other),
    })
}

/// Adds a client. Only the result contains the profile.
///
/// # Errors
/// Fails if the name is not allowed or already taken, the address is not free, or the store is not writable.
pub fn add(paths: &Paths, wanted: &ClientRequest) -> Result<IssuedClient, Fault> {
    let (store, new) = prepare(paths, wanted)?;
    let issued = store.add_client(&new, SystemTime::now()).map_err(pki_fault)?;
    if !wanted.addresses.is_empty() {
        // Make a running server reserve the address now. If no server runs, no client can get it.
        let _ = read_again(paths);
    }
    Ok(issued)
}

/// Gives a client a new certificate and profile. Sessions with the old certificate end.
///
/// # Errors
/// Fails if there is no such client, or the store is not writable.
pub fn renew(paths: &Paths, wanted: &ClientRequest) -> Result<(IssuedClient, usize), Fault> {
    let (store, new) = prepare(paths, wanted)?;
    let old = store.client(&wanted.name).map_err(pki_fault)?;
    let issued = store.renew_client(&new, SystemTime::now()).map_err(pki_fault)?;
    let kick = Request::Kick { name: None, serial: Some(old.serial), peer: None };
    let ended = notify_server(paths, &kick)?;
    Ok((issued, ended))
}

/// Checks whether a client of this name may be added, before asking for a password.
///
/// # Errors
/// Fails if the name is not allowed or already taken.
pub fn check_new(paths: &Paths, name: &str) -> Result<(), Fault> {
    let name: ClientName = name.parse().map_err(pki_fault)?;
    match open_store(paths)?.client(name.as_str()) {
        Ok(client) if client.state != ClientState::Revoked => {
            Err(pki_fault(PkiError::Exists(name.to_string())))
        }
        _ => Ok(()),
    }
}

/// Checks whether the profile can be written to this file. This happens before the certificate is issued, because only
/// the profile contains the key.
///
/// # Errors
/// Fails if the file exists, or its directory does not.
pub fn check_target(path: &Path) -> Result<(), Fault> {
    if path.symlink_metadata().is_ok() {
        return Err(Fault::operator(format!(
            "{} exists and is kept; move it away, or name another file with --output",
            path.display()
        )));
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => Err(Fault::operator(format!(
            "there is no folder {}; create it, or name another file with --output",
            folder.display()
        ))),
        _ => Ok(()),
    }
}

fn prepare(paths: &Paths, wanted: &ClientRequest) -> Result<(Store, NewClient), Fault> {
    let name: ClientName = wanted.name.parse().map_err(pki_fault)?;
    let settings = Settings::read(&paths.settings_file())?;
    let mut store = open_store(paths)?;
    let (address4, address6) = fixed_addresses(&wanted.addresses)?;
    check_addresses(paths, &wanted.name, &wanted.addresses, &settings)?;
    refresh_remote(&mut store, &settings)?;
    let mut new = NewClient::new(name, client_key(&store)?);
    new.days = wanted.days;
    new.password = wanted.password.clone();
    (new.address4, new.address6) = (address4, address6);
    new.keep_profile = wanted.keep_profile;
    new.groups = group_names(&wanted.groups)?;
    new.options = users::profile_lines(settings.login, &store, &wanted.name)?;
    Ok((store, new))
}

/// Writes the current host and ports into new profiles.
pub(super) fn refresh_remote(store: &mut Store, settings: &Settings) -> Result<(), Fault> {
    if store.server().remote != remote(settings) {
        store.set_remote(remote(settings)).map_err(pki_fault)?;
    }
    Ok(())
}

pub(super) fn group_names(names: &[String]) -> Result<Vec<GroupName>, Fault> {
    names.iter().map(|name| name.parse().map_err(pki_fault)).collect()
}

/// Puts a client into exactly these groups. A running server applies the change at once.
///
/// # Errors
/// Fails if there is no such client, it is revoked, a group name is not allowed, or there are too many groups.
pub fn set_groups(paths: &Paths, name: &str, groups: &[String]) -> Result<Client, Fault> {
    let store = open_store(paths)?;
    let client =
        store.set_groups(name, &group_names(groups)?, SystemTime::now()).map_err(pki_fault)?;
    reread(paths)?;
    Ok(client)
}

/// Makes a running server read the registry again.
pub(super) fn reread(paths: &Paths) -> Result<(), Fault> {
    if super::host_state::running(paths).is_none() {
        return Ok(());
    }
    read_again(paths).map(drop).map_err(not_yet)
}

/// Requests a running server to read its files again.
pub(super) fn read_again(paths: &Paths) -> Result<usize, Fault> {
    let ask = |request| control::request(&paths.control_socket(), &request);
    let answer = match ask(Request::ReloadClients)? {
        // The server was started before the program was upgraded.
        Response::Error { message } if message.starts_with("not a request") => {
            ask(Request::Reload)?
        }
        answer => answer,
    };
    done(answer)
}

pub(super) fn done(response: Response) -> Result<usize, Fault> {
    match response {
        Response::Done { count } => Ok(count),
        Response::Error { message } => Err(Fault::environment(message)),
        _ => Err(Fault::ours("the control socket's answer is of another kind")),
    }
}

/// Returns the fixed address of each family.
///
/// # Errors
/// Fails if there are two of one family.
pub fn fixed_addresses(
    addresses: &[IpAddr],
) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>), Fault> {
    let (mut four, mut six) = (None, None);
    for address in addresses {
        let second = match address {
            IpAddr::V4(address) => four.replace(*address).is_some(),
            IpAddr::V6(address) => six.replace(*address).is_some(),
        };
        if second {
            return Err(Fault::operator(
                "a client has at most one fixed IPv4 address and one fixed IPv6 address",
            ));
        }
    }
    Ok((four, six))
}

/// Checks that a client can have these fixed addresses, and that no other client has one of them now.
pub(super) fn check_addresses(
    paths: &Paths,
    name: &str,
    addresses: &[IpAddr],
    settings: &Settings,
) -> Result<(), Fault> {
    for address in addresses {
        match address {
            IpAddr::V4(address) => check_address4(*address, settings)?,
            IpAddr::V6(address) => check_address6(*address, settings)?,
        }
    }
    if addresses.is_empty() {
        return Ok(());
    }
    let others = peers(paths).into_iter().filter(|peer| peer.name != name);
    for peer in others {
        let taken = addresses.iter().find(|address| peer.tunnel.contains(&address.to_string()));
        if let Some(address) = taken {
            return Err(Fault::operator(format!(
                "{} currently has the address {address}; choose another",
                peer.name
            )));
        }
    }
    Ok(())
}

fn check_address6(address: Ipv6Addr, settings: &Settings) -> Result<(), Fault> {
    let Some(network) = settings.network6 else {
        return Err(Fault::operator(format!(
            "{address}: the tunnel carries no IPv6; set network6 in server.toml, and restart"
        )));
    };
    let server = u128::from(network.network()).saturating_add(1);
    if network.contains(&address) && u128::from(address) > server {
        return Ok(());
    }
    Err(Fault::operator(format!(
        "{address} is not a client's address in {network}; choose one from {} on",
        Ipv6Addr::from(server.saturating_add(1))
    )))
}

fn check_address4(address: Ipv4Addr, settings: &Settings) -> Result<(), Fault> {
    let network = settings.network;
    let usable = network.contains(&address)
        && address != network.network()
        && address != network.broadcast()
        && Some(address) != network.hosts().next();
    if usable {
        return Ok(());
    }
    let mut hosts = network.hosts().skip(1);
    let first = hosts.next().unwrap_or(network.addr());
    let last = hosts.last().unwrap_or(first);
    Err(Fault::operator(format!(
        "{address} is not a client's address in {network}; choose one from {first} to {last}"
    )))
}

/// Creates a tls-crypt-v2 key for a client or user.
pub(super) fn client_key(store: &Store) -> Result<Zeroizing<String>, Fault> {
    let server = server_key(store)?;
    let mut random = adit_runtime::random::generator()?;
    let kc = StaticKey::generate(|bytes| random.fill(bytes));
    let key = server
        .client_key(kc, None)
        .map_err(|error| Fault::ours(format!("cannot wrap a client's key: {error}")))?;
    Ok(key.to_pem())
}

/// Loads the key that unwraps the clients' keys.
pub(super) fn server_key(store: &Store) -> Result<ServerKey, Fault> {
    let path = store.files().tls_crypt_v2;
    let text = store.tls_crypt_v2_server_key().map_err(pki_fault)?;
    ServerKey::parse(&text).map_err(|error| Fault::operator(format!("{}: {error}", path.display())))
}

/// Returns the clients and groups that a filter's rules can contain.
///
/// # Errors
/// Fails if there is no registry here, or it cannot be read.
pub fn names(paths: &Paths) -> Result<filter::KnownNames, Fault> {
    let login = Settings::read(&paths.settings_file()).map(|settings| settings.login);
    known(&open_store(paths)?, login.unwrap_or_default())
}

/// Returns every client in the registry, without querying a running server for its sessions.
///
/// # Errors
/// Fails if there is no registry here, or it cannot be read.
pub fn registered(paths: &Paths) -> Result<Vec<Client>, Fault> {
    open_store(paths)?.clients().map_err(pki_fault)
}

pub(super) fn known(store: &Store, login: Login) -> Result<filter::KnownNames, Fault> {
    let by_certificate = login.uses_certificate();
    let clients = if by_certificate { store.clients().map_err(pki_fault)? } else { Vec::new() };
    let living = clients.iter().filter(|client| client.state != ClientState::Revoked);
    let mut known = filter::KnownNames::default();
    for client in living {
        known.clients.push(client.name.to_string());
        known.groups.extend(client.groups.iter().map(ToString::to_string));
    }
    for user in store.users().map_err(pki_fault)? {
        if !by_certificate {
            known.clients.push(user.name.to_string());
        }
        known.groups.extend(user.groups.iter().map(ToString::to_string));
    }
    Ok(known)
}

/// Returns the `remote` lines of a profile for these settings.
pub fn endpoints(settings: &Settings) -> Vec<String> {
    remote(settings).lines()
}

/// Returns the clients whose profiles contain another host or other ports than the settings. Leaves out clients that
/// were added before this was recorded.
pub(super) fn outdated(store: &Store, settings: &Settings) -> Result<Vec<String>, Fault> {
    let now = remote(settings);
    let clients = store.clients().map_err(pki_fault)?;
    let old = clients.iter().filter(|client| {
        client.state != ClientState::Revoked && client.remote.as_ref().is_some_and(|r| *r != now)
    });
    Ok(old.map(|client| client.name.to_string()).collect())
}

/// The `remote` lines that profiles must contain, and the clients whose profiles are out of date.
#[derive(Clone, Debug, Serialize)]
pub struct Remotes {
    /// The lines.
    pub lines: Vec<String>,
    /// The clients whose profiles contain other lines.
    pub outdated: Vec<String>,
}

/// Returns the lines that profiles need now. `done` are clients whose profiles have been updated.
///
/// # Errors
/// Fails if there is no such client, or the store cannot be read or written.
pub fn remotes(paths: &Paths, done: &[String]) -> Result<Remotes, Fault> {
    let settings = Settings::read(&paths.settings_file())?;
    let store = open_store(paths)?;
    for name in done {
        store.set_client_remote(name, remote(&settings), SystemTime::now()).map_err(pki_fault)?;
    }
    Ok(Remotes { lines: endpoints(&settings), outdated: outdated(&store, &settings)? })
}

/// Returns every client with its current sessions.
///
/// # Errors
/// Fails if the store cannot be read.
pub fn list(paths: &Paths) -> Result<Vec<ClientOverview>, Fault> {
    let store = open_store(paths)?;
    let clients = store.clients().map_err(pki_fault)?;
    let usage = Usage::open(paths);
    let mut sessions: HashMap<String, Vec<PeerReport>> = HashMap::new();
    for peer in peers(paths) {
        sessions.entry(peer.name.clone()).or_default().push(peer);
    }
    Ok(clients
        .into_iter()
        .map(|client| {
            let sessions = sessions.remove(client.name.as_str()).unwrap_or_default();
            overview(&store, &usage, client, sessions)
        })
        .collect())
}

/// Returns one client.
///
/// # Errors
/// Fails if there is no such client.
pub fn show(paths: &Paths, name: &str) -> Result<ClientOverview, Fault> {
    let store = open_store(paths)?;
    let client = store.client(name).map_err(pki_fault)?;
    let sessions = peers(paths).into_iter().filter(|peer| peer.name == name).collect();
    Ok(overview(&store, &Usage::open(paths), client, sessions))
}

fn overview(
    store: &Store,
    usage: &Usage,
    client: Client,
    sessions: Vec<PeerReport>,
) -> ClientOverview {
    let (name, now) = (client.certificate_name().as_str(), unix_time().0);
    let used = client.terms.quota.map(|quota| usage.used(name, quota, now));
    let profile_kept = store.keeps_profile(&client);
    ClientOverview { used, profile_kept, client, sessions }
}

/// Returns the sessions of the running server, or none if it does not run or refuses the query.
pub(super) fn peers(paths: &Paths) -> Vec<PeerReport> {
    match control::request(&paths.control_socket(), &Request::Status) {
        Ok(Response::Status(report)) => report.peers,
        _ => Vec::new(),
    }
}

/// Revokes a client's certificate permanently and ends its sessions. Returns the number of sessions.
///
/// # Errors
/// Fails if there is no such client, or the store is not writable.
pub fn revoke(paths: &Paths, name: &str) -> Result<usize, Fault> {
    open_store(paths)?.revoke_client(name, SystemTime::now()).map_err(pki_fault)?;
    end_sessions(paths, name)
}

/// Disables a client and ends its sessions. Returns the number of sessions.
///
/// # Errors
/// Fails if there is no such client, it is revoked, or the store is not writable.
pub fn disable(paths: &Paths, name: &str) -> Result<usize, Fault> {
    open_store(paths)?.set_enabled(name, false, SystemTime::now()).map_err(pki_fault)?;
    end_sessions(paths, name)
}

/// Enables a disabled client.
///
/// # Errors
/// Fails if there is no such client, it is revoked, or the store is not writable.
pub fn enable(paths: &Paths, name: &str) -> Result<(), Fault> {
    open_store(paths)?.set_enabled(name, true, SystemTime::now()).map_err(pki_fault)?;
    Ok(())
}

/// Ends a client's sessions. Returns the number of sessions.
///
/// # Errors
/// Fails if there is no such client, or no server runs.
pub fn kick(paths: &Paths, name: &str) -> Result<usize, Fault> {
    open_store(paths)?.client(name).map_err(pki_fault)?;
    if super::host_state::running(paths).is_none() {
        return Err(Fault::environment(format!(
            "no server is running here; start it with: {}",
            paths.command("server run")
        )));
    }
    end_sessions(paths, name)
}

fn end_sessions(paths: &Paths, name: &str) -> Result<usize, Fault> {
    let kick = Request::Kick { name: Some(name.to_owned()), serial: None, peer: None };
    notify_server(paths, &kick)
}

/// Makes a running server read the registry and revocation list again and end sessions. If no server runs, there are no
/// sessions.
pub(super) fn notify_server(paths: &Paths, kick: &Request) -> Result<usize, Fault> {
    if super::host_state::running(paths).is_none() {
        return Ok(0);
    }
    let kicked = control::request(&paths.control_socket(), kick).and_then(done);
    let reloaded = read_again(paths);
    // The registry changed before the kick, so the client cannot return before the reload. A failed reload must
    // be reported, but the sessions have ended.
    let count = kicked.map_err(not_yet)?;
    reloaded.map_err(not_yet)?;
    Ok(count)
}

pub(super) fn not_yet(fault: Fault) -> Fault {
    Fault::environment(format!(
        "it is registered, but the running server did not apply it: {fault}; restart it"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::authorizer::RegistryAuthorizer;
    use super::super::init::{NewServer, init};
    use super::super::leases::Leases;
    use super::super::settings::Login;
    use super::*;

    fn server(dir: &tempfile::TempDir) -> Paths {
        let paths = Paths::new(Some(&dir.path().join("vpn"))).unwrap();
        let choices = NewServer {
            host: Some("vpn.example.net".into()),
            // Otherwise `init` would search for a free port, and another test might find the same one.
            listen: vec!["udp/1194".parse().unwrap()],
            network: Some("10.199.31.0/24".parse().unwrap()),
            ..NewServer::default()
        };
        init(&paths, &choices, false).unwrap();
        paths
    }

    fn wanted(name: &str) -> ClientRequest {
        ClientRequest { name: name.into(), ..ClientRequest::default() }
    }

    #[test]
    fn a_client_lives_through_all_its_states() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let issued = add(&paths, &wanted("laptop")).unwrap();
        assert!(issued.profile.text().contains("remote vpn.example.net 1194"));
        assert!(issued.profile.text().contains("<tls-crypt-v2>"));
        assert!(add(&paths, &wanted("laptop")).unwrap_err().to_string().contains("renew"));

        assert_eq!(disable(&paths, "laptop").unwrap(), 0);
        assert_eq!(show(&paths, "laptop").unwrap().client.state, ClientState::Disabled);
        enable(&paths, "laptop").unwrap();
        let (renewed, _) = renew(&paths, &wanted("laptop")).unwrap();
        assert_ne!(renewed.client.serial, issued.client.serial);
        revoke(&paths, "laptop").unwrap();
        assert_eq!(list(&paths).unwrap()[0].client.state, ClientState::Revoked);
        assert!(enable(&paths, "laptop").is_err());
        add(&paths, &wanted("laptop")).unwrap();
    }

    #[test]
    fn groups_are_registered_and_change() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let staff =
            ClientRequest { groups: vec!["staff".into(), "ops".into()], ..wanted("laptop") };
        add(&paths, &staff).unwrap();
        let groups = || {
            let client = show(&paths, "laptop").unwrap().client;
            client.groups.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(groups(), ["staff", "ops"]);
        set_groups(&paths, "laptop", &["guests".into()]).unwrap();
        assert_eq!(groups(), ["guests"]);
        let store = open_store(&paths).unwrap();
        let authority = RegistryAuthorizer::new(store, &paths, Login::Certificate).unwrap();
        assert_eq!(authority.groups("laptop", None), ["guests"]);
        assert!(authority.groups("nobody", None).is_empty());
        set_groups(&paths, "laptop", &[]).unwrap();
        assert!(groups().is_empty() && authority.groups("laptop", None).is_empty());
        for bad in ["", "a b", "../x", "@x"] {
            assert!(set_groups(&paths, "laptop", &[bad.into()]).is_err(), "{bad:?}");
        }
        assert!(set_groups(&paths, "nobody", &["staff".into()]).is_err());
    }

    #[test]
    fn a_fixed_ipv6_address_lies_in_the_network_and_is_not_the_servers() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let with = |address: &str| ClientRequest {
            addresses: vec![address.parse().unwrap()],
            ..wanted("a")
        };
        let file = paths.settings_file();
        let text = std::fs::read_to_string(&file).unwrap();
        let rest: Vec<&str> = text.lines().filter(|l| !l.starts_with("network6")).collect();
        let set = |lines: &str| std::fs::write(&file, rest.join("\n") + lines).unwrap();
        set("\n");
        let fault = add(&paths, &with("fd12::9")).unwrap_err().to_string();
        assert!(fault.contains("carries no IPv6"), "{fault}");
        set("\nnetwork6 = \"fd12::/64\"\n");
        for bad in ["fd12::", "fd12::1", "fd13::9"] {
            let fault = add(&paths, &with(bad)).unwrap_err().to_string();
            assert!(fault.contains("from fd12::2 on"), "{fault}");
        }
        add(&paths, &with("fd12::9")).unwrap();
        let two = ["fd12::7", "fd12::8"].map(|address| address.parse().unwrap());
        assert!(fixed_addresses(&two).is_err());
    }

    #[test]
    fn a_profile_that_is_not_kept_cannot_be_printed() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        add(&paths, &wanted("a")).unwrap();
        let fault = profile(&paths, "a").unwrap_err().to_string();
        assert!(fault.contains("only the client has") && fault.contains("renew a"), "{fault}");
        let kept = ClientRequest { keep_profile: true, ..wanted("b") };
        let issued = add(&paths, &kept).unwrap();
        assert_eq!(profile(&paths, "b").unwrap().as_str(), issued.profile.text());
        assert!(show(&paths, "b").unwrap().profile_kept);
    }

    #[test]
    fn of_a_deleted_client_nothing_remains_beside_the_registry() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        add(&paths, &wanted("a")).unwrap();
        std::fs::write(Leases::file(&paths), r#"{"a":"10.199.31.2","b":"10.199.31.3"}"#).unwrap();
        let usage = r#"{"a":{"since":1,"bytes":5},"b":{"since":1,"bytes":5}}"#;
        std::fs::write(Usage::file(&paths), usage).unwrap();
        rename(&paths, "a", "c").unwrap();
        delete(&paths, "c").unwrap();
        for file in [Leases::file(&paths), Usage::file(&paths)] {
            let text = std::fs::read_to_string(file).unwrap();
            assert!(!text.contains("\"a\"") && text.contains("\"b\""), "{text}");
        }
    }

    #[test]
    fn two_clients_have_two_wrapping_keys() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let key = |name: &str| {
            let text = add(&paths, &wanted(name)).unwrap().profile.text().to_owned();
            text.split("<tls-crypt-v2>").nth(1).unwrap().to_owned()
        };
        assert_ne!(key("a"), key("b"));
    }

    #[test]
    fn names_cannot_leave_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        for name in ["", "../x", "a/b", "a b", ".x", "-x", "a\nb", "a..b", &"n".repeat(65)] {
            let fault = add(&paths, &wanted(name)).unwrap_err();
            assert_eq!(fault.exit_code(), std::process::ExitCode::from(2), "{name:?}");
            assert!(show(&paths, name).is_err());
        }
    }

    #[test]
    fn a_fixed_address_lies_in_the_network_and_is_not_the_servers() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let with = |name: &str, address: &str| ClientRequest {
            addresses: vec![address.parse().unwrap()],
            ..wanted(name)
        };
        for bad in ["10.199.31.0", "10.199.31.1", "10.199.31.255", "10.199.32.5", "0.0.0.0"] {
            let fault = add(&paths, &with("a", bad)).unwrap_err().to_string();
            assert!(fault.contains("10.199.31.2 to 10.199.31.254"), "{fault}");
        }
        add(&paths, &with("a", "10.199.31.9")).unwrap();
        assert!(add(&paths, &with("b", "10.199.31.9")).is_err());
    }

    #[test]
    fn an_existing_file_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("laptop.ovpn");
        check_target(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        assert!(check_target(&path).is_err());
        assert!(check_target(&dir.path().join("none/laptop.ovpn")).is_err());
    }

    #[test]
    fn without_a_server_the_remedy_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let fault = list(&paths).unwrap_err().to_string();
        assert!(fault.contains("adit server init --dir"), "{fault}");
    }
}
