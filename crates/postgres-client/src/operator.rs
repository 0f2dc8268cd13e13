//! Code that one-off commands share.

use std::future::Future;
use std::io::IsTerminal;

use adit_engine::Random;
use adit_linux::terminal;
use adit_runtime::fault::Fault;
use adit_runtime::progress::Progress;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio_postgres::{Client, GenericClient};
use zeroize::Zeroizing;

use super::connect;
use super::pooler::{self, ProbeError};
use super::target::Target;

/// Runs one command's work with the database.
///
/// # Errors
/// Fails as the work does.
pub fn block_on<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start the event loop: {error}")))?;
    runtime.block_on(work)
}

/// Generates a new password for a role, from 192 random bits.
pub fn new_password(random: &mut Random) -> Zeroizing<String> {
    let bytes = Zeroizing::new(random.bytes::<24>());
    Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes.as_slice()))
}

/// Returns the SCRAM verifier that the database receives instead of a password.
pub fn verifier(password: &str) -> String {
    postgres_protocol::password::scram_sha_256(password.as_bytes())
}

/// Connects as an operator. On a terminal, prompts for a password if the server requires one.
///
/// # Errors
/// Returns the reason why there is no connection.
pub async fn open(target: &Target, purpose: &str) -> Result<Client, Fault> {
    Ok(open_typed(target, purpose).await?.0)
}

/// Does the same as [`open`], and also returns the target with the password that was typed.
///
/// # Errors
/// As [`open`].
pub async fn open_typed(target: &Target, purpose: &str) -> Result<(Client, Target), Fault> {
    // The progress ends before the question.
    let connect = async |target: &Target| {
        let _progress = Progress::new("connecting to the database");
        connect::open(target, purpose).await
    };
    match connect(target).await {
        Err(fault) if fault.asks_password && std::io::stdin().is_terminal() => {
            let prompt = format!("Password of {} for the database: ", target.user());
            let typed = terminal::ask_hidden(&prompt).map_err(|error| {
                Fault::environment(format!("cannot read the password: {error}"))
            })?;
            let target = target.clone().with_password(&typed);
            Ok((connect(&target).await?, target))
        }
        other => Ok((other?, target.clone())),
    }
}

/// Does the same as [`open`], but refuses a pooler that shares sessions.
///
/// # Errors
/// As [`open`], or if there is such a pooler.
pub async fn open_own(target: &Target, purpose: &str) -> Result<Client, Fault> {
    let (client, target) = open_typed(target, purpose).await?;
    refuse_pooler(pooler::shares_session(&client, &target).await)?;
    Ok(client)
}

/// Refuses a connection if a pooler `shares` its session with others.
///
/// # Errors
/// Fails if it does, or if that is not known.
pub fn refuse_pooler(shares: Result<bool, ProbeError>) -> Result<(), Fault> {
    match shares {
        Ok(false) => Ok(()),
        Ok(true) => Err(Fault::operator(pooler::WORDS)),
        Err(ProbeError::Connect(fault)) => Err(fault.into()),
        Err(ProbeError::Ask(error)) => Err(statement_fault(&error)),
    }
}

/// Returns whether a database has our schema of this name, with this table. `what` describes it in errors, such as "a mesh's directory".
///
/// # Errors
/// The database refuses, or has another schema of this name.
pub async fn has_schema(
    client: &impl GenericClient,
    schema: &str,
    table: &str,
    what: &str,
) -> Result<bool, Fault> {
    let asked = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1), \
        EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE nspname = $1 AND relname = $2)";
    let row = client.query_one(asked, &[&schema, &table]).await;
    let found = row.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    match found.map_err(|error| statement_fault(&error))? {
        (true, false) => Err(Fault::operator(format!(
            "the database has a schema {schema} that is not {what}: choose another database (createdb NAME), or rename that \
             schema"
        ))),
        (is_there, _) => Ok(is_there),
    }
}

/// Returns the fault for a statement that the database did not execute.
pub fn statement_fault(error: &tokio_postgres::Error) -> Fault {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_long_and_never_the_same_and_its_verifier_says_nothing() {
        let mut random = adit_runtime::random::generator().unwrap();
        let (a, b) = (new_password(&mut random), new_password(&mut random));
        assert!(a.len() == 32 && *a != *b);
        let verifier = verifier(&a);
        assert!(verifier.starts_with("SCRAM-SHA-256$4096:") && !verifier.contains(&**a));
    }
}
