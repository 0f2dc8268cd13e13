//! `adit postgres expire` and `adit postgres remove`.

use adit_postgres::key::NodeRecord;

use super::admin::{block_on, network, open, said};
use super::database::Target;
use super::member::Member;
use super::node::directory;
use super::paths::Paths;
use super::settings::{Secrets, Settings};
use adit_runtime::fault::Fault;

/// The packets that [`expire`] removed, and those that are left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Leaf tables that were dropped, and their bytes.
    pub dropped: Vec<(String, u64)>,
    /// Leaf tables that are left.
    pub leaves: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Drops the leaves beyond the network's retention, with the keys to them.
///
/// # Errors
/// This machine is in no network, or the database cannot be reached.
pub fn expire(paths: &Paths) -> Result<Expired, Fault> {
    let target = own(paths)?;
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

/// Takes the node called `name` out of the network, at once and for good. It keeps the network's key: [`super::rekey()`].
///
/// # Errors
/// There is no such node, or this machine's may not remove others.
pub fn remove(paths: &Paths, name: &str) -> Result<(), Fault> {
    let member = Member::load(paths)?;
    let target = member.target()?;
    let unknown = || {
        Fault::operator(format!(
            "the network has no node called {name:?}; its nodes: adit postgres peers"
        ))
    };
    block_on(async {
        let client = open(&target, "remove").await?;
        let row = client.query_opt(directory::NODE_CALLED, &[&name]).await;
        let row = row.map_err(|error| said(&error))?.ok_or_else(unknown)?;
        let (record, mac) = directory::node_record(&row)
            .ok_or_else(|| Fault::peer("the node's row in the database makes no sense"))?;
        // A row that the network's key does not vouch for stays one that no node believes.
        let (network, _) = network(&client).await?;
        let ring = member.ring(&client, &network.tag).await?;
        let genuine = record.verify(ring.newest(), &mac).is_ok();
        let record = NodeRecord { removed: true, ..record };
        let proof = genuine.then(|| record.mac(ring.newest())).transpose();
        let proof = proof.map_err(|error| Fault::ours(format!("{error}")))?;
        let proof = proof.as_ref().map(<[u8; 32]>::as_slice);
        let removed = client.execute("SELECT adit.remove($1, $2)", &[&record.id.0, &proof]).await;
        removed.map(drop).map_err(|error| match error.code().map(|code| code.code()) {
            Some("P0002") => unknown(),
            _ => said(&error),
        })
    })
}

fn own(paths: &Paths) -> Result<Target, Fault> {
    Target::of_node(&Settings::load(paths)?, &Secrets::load(paths)?)
}

fn size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}
