//! `adit postgres expire`.

use super::admin::{block_on, open, statement_fault};
use super::paths::Paths;
use super::settings::{Secrets, Settings};
use adit_postgres_client::Target;
use adit_runtime::fault::Fault;

/// What [`expire`] removed, and what remains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpireReport {
    /// The dropped leaf tables with their sizes in bytes.
    pub dropped: Vec<(String, u64)>,
    /// The number of remaining leaf tables.
    pub leaves: u64,
    /// The total size of the remaining leaf tables in bytes.
    pub bytes: u64,
}

/// Drops the leaves that exceed the network's retention, together with their keys.
///
/// # Errors
/// Fails if this host is in no network, or the database cannot be reached.
pub fn expire(paths: &Paths) -> Result<ExpireReport, Fault> {
    let target = owner_target(paths)?;
    block_on(async {
        let client = open(&target, "expire").await?;
        let rows = client.query("SELECT dropped_leaf, freed FROM adit.expire()", &[]).await;
        let rows = rows.map_err(|error| statement_fault(&error))?;
        let dropped = rows.iter().map(|row| Ok((row.try_get(0)?, size(row.try_get(1)?))));
        let dropped: Result<Vec<_>, tokio_postgres::Error> = dropped.collect();
        let left = client.query_one("SELECT leaves, bytes FROM adit.usage()", &[]).await;
        let left = left.and_then(|row| Ok((size(row.try_get(0)?), size(row.try_get(1)?))));
        let (leaves, bytes) = left.map_err(|error| statement_fault(&error))?;
        Ok(ExpireReport {
            dropped: dropped.map_err(|error| statement_fault(&error))?,
            leaves,
            bytes,
        })
    })
}

fn owner_target(paths: &Paths) -> Result<Target, Fault> {
    Settings::load(paths)?.target(&Secrets::load(paths)?)
}

fn size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}
