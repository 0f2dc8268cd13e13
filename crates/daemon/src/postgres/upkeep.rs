//! `adit postgres expire` and `adit postgres remove`.

use super::admin::{block_on, open, said};
use super::database::Target;
use super::places::Places;
use super::settings::{Secrets, Settings};
use crate::fault::Fault;
use crate::managed::Outcome;

/// What [`expire`] did, and what is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Leaf tables that were dropped, and their bytes.
    pub dropped: Vec<(String, u64)>,
    /// Leaf tables that are left.
    pub leaves: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Drops what lies beyond the network's retention, with the keys to it.
///
/// # Errors
/// This machine is in no network, or the database cannot be reached.
pub fn expire(places: &Places) -> Outcome<Expired> {
    let target = own(places)?;
    block_on(async {
        let client = open(&target, "expire").await?;
        let rows = client.query("SELECT dropped_leaf, freed FROM adit.expire()", &[]).await;
        let rows = rows.map_err(|error| said(&error))?;
        let dropped = rows.iter().map(|row| Ok((row.try_get(0)?, size(row.try_get(1)?))));
        let dropped: Result<Vec<_>, tokio_postgres::Error> = dropped.collect();
        let left = client.query_one("SELECT leaves, bytes FROM adit.usage()", &[]).await;
        let left = left.and_then(|row| Ok((size(row.try_get(0)?), size(row.try_get(1)?))));
        let (leaves, bytes) = left.map_err(|error| said(&error))?;
        Ok(Expired { dropped: dropped.map_err(|error| said(&error))?, leaves, bytes })
    })
}

/// Takes the node called `name` out of the network, at once and for good.
///
/// # Errors
/// There is no such node, or this machine's may not remove others.
pub fn remove(places: &Places, name: &str) -> Outcome<()> {
    let target = own(places)?;
    block_on(async {
        let client = open(&target, "remove").await?;
        let removed = client.execute("SELECT adit.remove($1)", &[&name]).await;
        removed.map(drop).map_err(|error| match error.code().map(|code| code.code()) {
            Some("P0002") => Fault::operator(format!(
                "the network has no node called {name:?}; its nodes: adit postgres peers"
            )),
            _ => said(&error),
        })
    })
}

fn own(places: &Places) -> Outcome<Target> {
    Target::of_node(&Settings::load(places)?, &Secrets::load(places)?)
}

fn size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}
