//! Code that the one-off commands share.

use adit_engine::Random;
use adit_postgres::key::NetworkRecord;
use adit_postgres::sql;
pub(super) use adit_postgres_client::operator::{
    block_on, has_schema, new_password, open, open_own, refuse_pooler, statement_fault, verifier,
};
use adit_runtime::fault::Fault;
use ipnet::IpNet;
use tokio_postgres::GenericClient;

use super::node::directory;

/// The maximum length of a node's name.
const MAX_NAME: usize = 24;

/// Creates a generator seeded by the kernel.
pub(super) fn random() -> Result<Random, Fault> {
    adit_runtime::random::generator()
}

/// Returns the version of the network in the database, or `None` if there is no network.
pub(super) async fn version(client: &impl GenericClient) -> Result<Option<i32>, Fault> {
    if !has_schema(client, "adit", "network", "a network's").await? {
        return Ok(None);
    }
    let row = client.query_one("SELECT version FROM adit.network", &[]).await;
    let version = row.and_then(|row| row.try_get(0)).map_err(|error| statement_fault(&error))?;
    Ok(Some(version))
}

/// Checks that this version of adit supports the version of a network.
///
/// # Errors
/// Another version of adit created or changed the network.
pub(super) fn check_version(version: i32) -> Result<(), String> {
    if version == sql::VERSION {
        return Ok(());
    }
    Err(format!(
        "the network in the database has version {version}, and this adit supports {}; use the adit that its other nodes use",
        sql::VERSION
    ))
}

/// Reads the network's row and its MAC, if this version of adit supports the network's version.
///
/// # Errors
/// Fails if the row does not exist, or another version of adit wrote it.
pub(super) async fn network(
    client: &impl GenericClient,
) -> Result<(NetworkRecord, Vec<u8>), Fault> {
    match version(client).await? {
        Some(version) => check_version(version).map_err(Fault::operator)?,
        None => {
            return Err(Fault::operator(
                "the database has no network; create one with: adit postgres init URL --network CIDR",
            ));
        }
    }
    let row =
        client.query_one(directory::NETWORK, &[]).await.map_err(|error| statement_fault(&error))?;
    directory::network_record(&row)
        .ok_or_else(|| Fault::operator("the network's row in the database is not valid"))
}

/// Returns the given name, or the valid part of the host name.
pub(super) fn node_name(given: Option<&str>) -> Result<String, Fault> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if let Some(name) = given {
        return if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed) {
            Ok(name.to_owned())
        } else {
            Err(Fault::operator(format!(
                "--name {name:?}: a node's name is 1 to {MAX_NAME} lower-case letters, digits and underscores"
            )))
        };
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().split('.').next().unwrap_or_default().to_ascii_lowercase();
    let name: String =
        host.chars().map(|c| if allowed(c) { c } else { '_' }).take(MAX_NAME).collect();
    if name.chars().any(|c| c.is_ascii_alphanumeric()) {
        Ok(name)
    } else {
        Err(Fault::operator("this machine's name cannot be a node's; choose one: --name NAME"))
    }
}

/// Formats networks for the database.
pub(super) fn cidrs(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(|net| net.trunc().to_string()).collect()
}

/// Returns the TUN device's name for a network.
pub(super) fn device(tag: &str) -> String {
    format!("adit-{tag}").chars().take(15).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_name_becomes_a_nodes() {
        assert_eq!(node_name(Some("hub_1")).unwrap(), "hub_1");
        for name in ["", "Hub", "a-b", "a'b", "abcdefghijklmnopqrstuvwxy"] {
            assert!(node_name(Some(name)).is_err(), "{name:?}");
        }
        assert!(node_name(None).is_ok_and(|name| node_name(Some(&name)).is_ok()));
        assert_eq!(device("abcdefghijklmnop"), "adit-abcdefghij");
    }
}
