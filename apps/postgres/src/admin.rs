//! Code that the one-off commands share.

use std::future::Future;
use std::io::IsTerminal;

use adit_engine::Random;
use adit_linux::terminal;
use adit_postgres::key::NetworkRecord;
use adit_postgres::sql;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ipnet::IpNet;
use tokio_postgres::{Client, GenericClient};
use zeroize::Zeroizing;

use super::database::pooler::{self, ProbeError};
use super::database::{self, Target};
use super::node::directory;
use adit_runtime::fault::Fault;

/// The maximum length of a node's name.
const MAX_NAME: usize = 24;

/// Runs one command's work with the database.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start the event loop: {error}")))?;
    runtime.block_on(work)
}

/// Creates a generator seeded by the kernel.
pub(super) fn random() -> Result<Random, Fault> {
    adit_runtime::random::generator()
}

/// Generates a new password for a role, from 192 random bits.
pub(super) fn new_password(random: &mut Random) -> Zeroizing<String> {
    let bytes = Zeroizing::new(random.bytes::<24>());
    Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes.as_slice()))
}

/// Returns the SCRAM verifier that the database receives instead of a password.
pub(super) fn verifier(password: &str) -> String {
    postgres_protocol::password::scram_sha_256(password.as_bytes())
}

/// Connects as an operator. On a terminal, prompts for a password if the server requires one.
pub(super) async fn open(target: &Target, purpose: &str) -> Result<Client, Fault> {
    Ok(open_typed(target, purpose).await?.0)
}

/// Does the same as [`open`], and also returns the target with the password that was typed.
async fn open_typed(target: &Target, purpose: &str) -> Result<(Client, Target), Fault> {
    match database::open(target, purpose).await {
        Err(fault) if fault.asks_password && std::io::stdin().is_terminal() => {
            let prompt = format!("Password of {} for the database: ", target.user());
            let typed = terminal::ask_hidden(&prompt).map_err(|error| {
                Fault::environment(format!("cannot ask for the password: {error}"))
            })?;
            let target = target.clone().with_password(&typed);
            Ok((database::open(&target, purpose).await?, target))
        }
        other => Ok((other?, target.clone())),
    }
}

/// Does the same as [`open`], but refuses a pooler that shares sessions.
pub(super) async fn open_own(target: &Target, purpose: &str) -> Result<Client, Fault> {
    let (client, target) = open_typed(target, purpose).await?;
    refuse_pooler(pooler::shares_session(&client, &target).await)?;
    Ok(client)
}

/// Refuses a connection if a pooler `shares` its session with others.
pub(super) fn refuse_pooler(shares: Result<bool, ProbeError>) -> Result<(), Fault> {
    match shares {
        Ok(false) => Ok(()),
        Ok(true) => Err(Fault::operator(pooler::WORDS)),
        Err(ProbeError::Connect(fault)) => Err(fault.into()),
        Err(ProbeError::Ask(error)) => Err(statement_fault(&error)),
    }
}

/// Returns the fault for a statement that the database did not execute.
pub(super) fn statement_fault(error: &tokio_postgres::Error) -> Fault {
    let Some(said) = error.as_db_error() else {
        return Fault::environment(format!("the connection to the database has ended: {error}"));
    };
    let (message, code) = (said.message(), said.code().code());
    match code {
        // The operator gets the messages of the schema's own functions unchanged.
        "42501" | "23505" | "22023" | "54000" | "P0002" => {
            Fault::operator(format!("the database refuses: {message}"))
        }
        _ => Fault::environment(format!("the database says: {message} ({code})")),
    }
}

/// Returns the version of the network in the database, or `None` if there is no network.
pub(super) async fn version(client: &impl GenericClient) -> Result<Option<i32>, Fault> {
    let there = client
        .query_one(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'adit'), \
             EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE nspname = 'adit' AND relname = 'network')",
            &[],
        )
        .await
        .map_err(|error| statement_fault(&error))?;
    match (there.try_get(0), there.try_get(1)) {
        (Ok(true), Ok(false)) => Err(Fault::operator(
            "the database has a schema `adit` that is not a network's; choose another database (createdb NAME), or rename that \
             schema",
        )),
        (Ok(true), Ok(true)) => {
            let row = client.query_one("SELECT version FROM adit.network", &[]).await;
            let version =
                row.and_then(|row| row.try_get(0)).map_err(|error| statement_fault(&error))?;
            Ok(Some(version))
        }
        _ => Ok(None),
    }
}

/// Reads the network's row and its MAC, if this version of adit supports the network's version.
///
/// # Errors
/// Fails if the row does not exist, or another version of adit wrote it.
pub(super) async fn network(
    client: &impl GenericClient,
) -> Result<(NetworkRecord, Vec<u8>), Fault> {
    match version(client).await? {
        Some(sql::VERSION) => {}
        Some(other) => {
            return Err(Fault::operator(format!(
                "the network in the database is of version {other}, and this adit knows {}; use the adit that its other nodes \
                 use",
                sql::VERSION
            )));
        }
        None => {
            return Err(Fault::operator(
                "the database has no network; make one with: adit postgres init URL --network CIDR",
            ));
        }
    }
    let row =
        client.query_one(directory::NETWORK, &[]).await.map_err(|error| statement_fault(&error))?;
    directory::network_record(&row)
        .ok_or_else(|| Fault::operator("the network's row in the database makes no sense"))
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
        Err(Fault::operator("this machine's name will not do as a node's; name it: --name NAME"))
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

    #[test]
    fn a_password_is_long_and_never_the_same_and_its_verifier_says_nothing() {
        let mut random = random().unwrap();
        let (a, b) = (new_password(&mut random), new_password(&mut random));
        assert!(a.len() == 32 && *a != *b);
        let verifier = verifier(&a);
        assert!(verifier.starts_with("SCRAM-SHA-256$4096:") && !verifier.contains(&**a));
    }
}
