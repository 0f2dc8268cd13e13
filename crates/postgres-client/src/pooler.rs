//! Detects a pooler in transaction mode: it runs a connection's transactions in sessions that others use too.
//!
//! A server's process serves one connection until the connection ends. A pooler reuses the process of a finished
//! transaction for the next transaction of any connection. To detect this, a second connection begins a transaction and
//! keeps it open, and the first one queries its process again.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, Error, SimpleQueryMessage};

use super::connect::open;
use super::connect_fault::ConnectFault;
use super::target::Target;

/// The message about a pooler.
pub const WORDS: &str = "the database is behind a pooler that gives each transaction another session, but adit needs its \
                         own sessions (LISTEN, locks, prepared statements): set pool_mode = session in PgBouncer for this \
                         database and its nodes' roles, or connect to PostgreSQL itself";

/// If a pooler's only process is busy with the other connection's transaction, this connection must wait.
const WAIT: Duration = Duration::from_secs(2);

/// The number of rounds. One round detects a pooler that assigns the last free process, or processes in turn. A busy
/// pooler may need more.
const ROUNDS: u32 = 3;

/// The reason why the probe could not determine whether sessions are shared.
pub enum ProbeError {
    /// There is no second connection.
    Connect(ConnectFault),
    /// The database did not answer.
    Ask(Error),
}

/// Returns whether this target shares sessions between connections. Opens two connections, and closes them afterwards.
pub async fn shares_sessions(target: &Target) -> Result<bool, ProbeError> {
    let first = open(target, "probe").await.map_err(ProbeError::Connect)?;
    shares_session(&first, target).await
}

/// Returns whether the session of a connection to this target is shared with others. Opens a second connection.
pub async fn shares_session(first: &Client, target: &Target) -> Result<bool, ProbeError> {
    let second = open(target, "probe").await.map_err(ProbeError::Connect)?;
    for _ in 0..ROUNDS {
        if round(first, &second).await.map_err(ProbeError::Ask)? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn round(first: &Client, second: &Client) -> Result<bool, Error> {
    let own = process(first).await?;
    if process(first).await? != own {
        return Ok(true);
    }
    for (holding, asking) in [(second, first), (first, second)] {
        holding.simple_query("BEGIN").await?;
        let held = process(holding).await?;
        let asked = timeout(WAIT, process(asking)).await;
        holding.simple_query("ROLLBACK").await?;
        match asked {
            // This connection waits until the other's transaction ends. If the server answers later, it is only slow.
            Err(_) => return Ok(process(asking).await.is_ok()),
            Ok(asked) => {
                let asked = asked?;
                let (of_first, of_second) =
                    if std::ptr::eq(holding, first) { (held, asked) } else { (asked, held) };
                if of_first == of_second || of_first != own {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// Returns the server process that answers, without using a prepared statement.
async fn process(client: &Client) -> Result<Option<String>, Error> {
    let messages = client.simple_query("SELECT pg_catalog.pg_backend_pid()").await?;
    Ok(messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}
