//! Changes of a registered client that need no new certificate.

use std::net::IpAddr;
use std::time::SystemTime;

use adit_pki::{Client, ClientChange, ClientName};
use ipnet::IpNet;
use zeroize::Zeroizing;

use super::clients::{check_addresses, done, not_yet, notify_server, open_store, reread};
use super::host_state::running;
use super::init::pki_fault;
use super::leases::Leases;
use super::settings::{Reach, Settings};
use super::sites::SiteRules;
use super::usage::Usage;
use adit_runtime::control::{self, Request};
use adit_runtime::fault::Fault;
use adit_runtime::netinfo;
use adit_runtime::paths::Paths;

/// Changes the settings of a client. A running server applies them at once; the client's session ends only if its fixed
/// address changes. Returns the number of sessions that ended.
///
/// # Errors
/// Fails if there is no such client, it is revoked, an address or network is not free, or the store is not writable.
pub fn set(paths: &Paths, name: &str, change: &ClientChange) -> Result<(Client, usize), Fault> {
    let settings = Settings::read(&paths.settings_file())?;
    let store = open_store(paths)?;
    let four = change.address4.flatten().map(IpAddr::V4);
    let six = change.address6.flatten().map(IpAddr::V6);
    let addresses: Vec<IpAddr> = four.into_iter().chain(six).collect();
    check_addresses(paths, name, &addresses, &settings)?;
    if let Some(networks) = &change.networks {
        let known = store.client(name).map_err(pki_fault)?.terms.networks;
        let networks: Vec<IpNet> = networks.iter().map(IpNet::trunc).collect();
        let new: Vec<IpNet> = networks.into_iter().filter(|net| !known.contains(net)).collect();
        let local = netinfo::local_networks_except(&settings.device);
        SiteRules::of(&settings).check(&new, &local)?;
    }
    let before = store.client(name).map_err(pki_fault)?;
    let client = store.change_client(name, change, SystemTime::now()).map_err(pki_fault)?;
    let moved = (before.address4, before.address6) != (client.address4, client.address6);
    reread(paths)?;
    let ended = if moved { kick_certificate(paths, &client)? } else { 0 };
    Ok((client, ended))
}

/// Returns a note if clients cannot reach the networks behind this client.
///
/// # Errors
/// Fails if the settings cannot be read.
pub fn note_on_networks(paths: &Paths, client: &Client) -> Result<Option<String>, Fault> {
    let settings = Settings::read(&paths.settings_file())?;
    let hidden = !client.terms.networks.is_empty()
        && !SiteRules::of(&settings).pushes()
        && settings.reach != Reach::Full;
    Ok(hidden.then(|| {
        "only this machine, and networks that route to it, reach the networks behind the client: to let other clients reach them, set \
         client-to-client = true in server.toml and restart"
            .to_owned()
    }))
}

/// Gives a client another name. Its certificate and profile stay valid. Its session ends, and begins again under the new name. Returns
/// the number of sessions that ended.
///
/// # Errors
/// Fails if there is no such client, it is revoked, the new name is not allowed or taken, or the store is not writable.
pub fn rename(paths: &Paths, name: &str, new: &str) -> Result<(Client, usize), Fault> {
    let new: ClientName = new.parse().map_err(pki_fault)?;
    let store = open_store(paths)?;
    let client = store.rename_client(name, &new, SystemTime::now()).map_err(pki_fault)?;
    reread(paths)?;
    let ended = kick_certificate(paths, &client)?;
    Ok((client, ended))
}

/// Removes a client with everything that the server knows about it, except that its certificates are revoked. Returns the number of
/// sessions that ended.
///
/// # Errors
/// Fails if there is no such client, it is the only one with which a user may log in, or the store is not writable.
pub fn delete(paths: &Paths, name: &str) -> Result<usize, Fault> {
    let store = open_store(paths)?;
    let client = store.delete_client(name, SystemTime::now()).map_err(pki_fault)?;
    if running(paths).is_some() {
        // The server forgets the lease and the quota when it reads the registry again.
        let kick = Request::Kick { name: None, serial: Some(client.serial), peer: None };
        return notify_server(paths, &kick);
    }
    let (leases, usage) = (Leases::open(paths), Usage::open(paths));
    let others = |known: &str| known != client.certificate_name().as_str();
    leases.saved.retain(others);
    usage.saved.retain(others);
    leases.saved.save();
    usage.saved.save();
    Ok(0)
}

/// Returns the profile of a client if the server keeps it.
///
/// # Errors
/// Fails if there is no such client, or the profile is not kept.
pub fn profile(paths: &Paths, name: &str) -> Result<Zeroizing<String>, Fault> {
    let kept = open_store(paths)?.kept_profile(name).map_err(pki_fault)?;
    kept.ok_or_else(|| {
        Fault::operator(format!(
            "the server does not keep the profile of {name}: only the client has its private key; a new certificate and profile: {}",
            paths.command(&format!("server client renew {name}"))
        ))
    })
}

/// Ends the session with a client's certificate. If no server runs, there is none.
fn kick_certificate(paths: &Paths, client: &Client) -> Result<usize, Fault> {
    if running(paths).is_none() {
        return Ok(0);
    }
    let kick = Request::Kick { name: None, serial: Some(client.serial.clone()), peer: None };
    control::request(&paths.control_socket(), &kick).and_then(done).map_err(not_yet)
}
