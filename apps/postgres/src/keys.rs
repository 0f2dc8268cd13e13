//! Follows the network's keys. Reads the records of rekeys from the database, checks them in order, and adds the valid
//! keys to a ring. Only a running node writes the ring to disk.

use adit_engine::{Instant, UnixTime};
use adit_postgres::key::epoch::Wrap;
use adit_postgres::key::{KeyRing, NodePublic, Reader, SealPublic, rekey};
use adit_postgres::{Generation, NodeId, limits};
use futures_util::{StreamExt, TryStreamExt};
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};

use super::node::directory::Pins;

/// Queries the records with the owner's keys in the database. The pins determine whether these are valid.
const NEWER: &str = "SELECT r.record, r.signature, w.enc, w.sealed, n.sign_key, n.seal_key \
    FROM adit.rekey r JOIN adit.node n ON n.id = $4 \
    LEFT JOIN adit.rekey_wrap w ON w.generation = r.generation AND w.reader = $2 \
    WHERE r.generation > $1 ORDER BY r.generation LIMIT $3";

const GENERATION: &str = "SELECT generation FROM adit.network";

/// The database's records of keys after a generation.
pub(super) struct KeyRecords {
    rows: Vec<Row>,
    /// The generation of the newest key, as the database states it.
    generation: Generation,
}

/// Reads the records after `known`, with the wraps for `reader`.
pub(super) async fn newer(
    client: &impl GenericClient,
    known: Generation,
    reader: NodeId,
) -> Result<KeyRecords, tokio_postgres::Error> {
    let generation = client.query_one(GENERATION, &[]).await?.try_get(0)?;
    // The database may not respect the limit.
    let most = limits::GENERATIONS as i64;
    let of: [&(dyn ToSql + Sync); 4] = [&known.0, &reader.0, &most, &NodeId::OWNER.0];
    let rows = client.query_raw(NEWER, of).await?;
    let rows = rows.take(limits::GENERATIONS).try_collect().await?;
    Ok(KeyRecords { rows, generation: Generation(generation) })
}

/// A node or an auditor that follows changes of the key.
pub(super) struct KeyFollower<'a> {
    pub(super) reader: Reader<'a>,
    /// The network's tag.
    pub(super) network: &'a str,
    pub(super) now: Instant,
    pub(super) unix: UnixTime,
}

impl KeyFollower<'_> {
    /// Adds the valid keys among those that were found. `trust` returns whether the owner's keys are trusted.
    ///
    /// # Errors
    /// Returns the reason why the ring lacks the newest key.
    pub(super) fn follow(
        &self,
        found: &KeyRecords,
        ring: &mut KeyRing,
        trust: &dyn Fn(&NodePublic) -> Result<(), String>,
    ) -> Result<(), String> {
        for row in &found.rows {
            let next = ring.generation().0.saturating_add(1);
            self.one(row, ring, trust).map_err(|reason| {
                format!("the network's key of generation {next} is not accepted: {reason}")
            })?;
        }
        let (newest, own) = (found.generation, ring.generation());
        if newest > own {
            return Err(format!(
                "the network has a key of generation {newest} and this node has {own}: the database has no record that leads there"
            ));
        }
        Ok(())
    }

    fn one(
        &self,
        row: &Row,
        ring: &mut KeyRing,
        trust: &dyn Fn(&NodePublic) -> Result<(), String>,
    ) -> Result<(), String> {
        let read = KeyRow::read(row).map_err(|error| error.to_string())?;
        let owner = read.owner().ok_or("the keys of the network's owner are not valid")?;
        trust(&owner)?;
        let wrap = read.wrap(self.reader.id());
        let signed = (&read.record[..], &read.signature[..]);
        let accepted =
            rekey::accept(self.reader, ring, self.network, &owner, signed, wrap.as_ref());
        let renewal = accepted.map_err(|refused| refused.to_string())?;
        ring.take(self.now, self.unix, renewal);
        Ok(())
    }
}

/// A row of [`NEWER`].
struct KeyRow {
    record: Vec<u8>,
    signature: Vec<u8>,
    enc: Option<Vec<u8>>,
    sealed: Option<Vec<u8>>,
    sign_key: Option<Vec<u8>>,
    seal_key: Option<Vec<u8>>,
}

impl KeyRow {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            record: row.try_get(0)?,
            signature: row.try_get(1)?,
            enc: row.try_get(2)?,
            sealed: row.try_get(3)?,
            sign_key: row.try_get(4)?,
            seal_key: row.try_get(5)?,
        })
    }

    fn owner(&self) -> Option<NodePublic> {
        let sign = self.sign_key.as_deref()?.try_into().ok()?;
        let seal = SealPublic::from_bytes(self.seal_key.as_deref()?).ok()?;
        Some(NodePublic { id: NodeId::OWNER, sign, seal })
    }

    fn wrap(&self, reader: NodeId) -> Option<Wrap> {
        let (enc, sealed) = (self.enc.clone()?, self.sealed.clone()?);
        Some(Wrap { reader, enc, sealed })
    }
}

/// Checks whether a node may trust these keys of another: they must be its own or in its pins.
pub(super) fn trusted(own: &NodePublic, pins: &Pins, other: &NodePublic) -> Result<(), String> {
    match other.id == own.id {
        true if other == own => Ok(()),
        true => Err("the database has other keys of this node than its own".into()),
        false => pins.trust(other),
    }
}
