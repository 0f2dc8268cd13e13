//! `adit postgres rekey`: gives the network a new key.
//!
//! The command is one transaction and writes nothing on this host. Its node takes the key from the database, like every
//! other node. So if the command is killed, either the old key or the new one is in force.

use adit_postgres::key::rekey::{self, Rekey};
use adit_postgres::key::{KeyRing, NetworkRecord, NodePublic, NodeRecord, SealPublic};
use adit_postgres::{NodeId, limits};
use tokio_postgres::Transaction;

use super::admin::{block_on, open, random, statement_fault};
use super::keys;
use super::member::Member;
use super::node::directory;
use super::paths::Paths;
use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;
use adit_runtime::log::clean;

const REKEY: &str = "SELECT adit.rekey($1, $2, $3, $4, $5, $6, $7, $8, $9)";

/// The outcome of [`rekey()`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RekeyReport {
    /// The generation of the new key, counted from 1.
    pub generation: i32,
    /// The names of the nodes that get the key.
    pub nodes: Vec<String>,
    /// Whether the auditor gets the key.
    pub auditor: bool,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// Gives the network a new key, as this host's node. The nodes take it from the database.
///
/// # Errors
/// Fails if this host is in no network or did not create it, a node is not trusted, or the database cannot be reached.
pub fn rekey(paths: &Paths) -> Result<RekeyReport, Fault> {
    let mut member = Member::load(paths)?;
    if member.settings.node != NodeId::OWNER {
        return Err(Fault::operator(
            "only the node that created the network may give it a new key: run rekey on the machine that ran init",
        ));
    }
    let target = member.target()?;
    block_on(async {
        let mut client = open(&target, "rekey").await?;
        let transaction = client.transaction().await.map_err(|error| statement_fault(&error))?;
        let began = transaction.query_one("SELECT adit.begin_rekey()", &[]).await;
        began.map_err(|error| statement_fault(&error))?;
        let done = make(&mut member, &transaction).await?;
        match transaction.commit().await {
            Ok(()) => Ok(done),
            Err(error) if error.as_db_error().is_some() => Err(statement_fault(&error)),
            Err(error) => Err(Fault::environment(format!(
                "the connection to the database ended at the last moment ({error}): the network has the former key or a new one; \
                 `{}` says which generation; run the command again if it is the former",
                paths.command("status")
            ))),
        }
    })
}

/// The rows of trusted nodes.
#[derive(Default)]
struct Nodes {
    all: Vec<NodeRecord>,
    members: Vec<(NodePublic, String)>,
    notes: Vec<String>,
}

async fn make(member: &mut Member, transaction: &Transaction<'_>) -> Result<RekeyReport, Fault> {
    let (network, ring) = member.network(transaction).await?;
    let settings = member.signed_settings(transaction, &network.tag).await?;
    let auditor = settings.current().auditor();
    let nodes = nodes(member, transaction, &ring).await?;
    let mut readers: Vec<(NodeId, &SealPublic)> =
        nodes.members.iter().map(|(public, _)| (public.id, &public.seal)).collect();
    readers.extend(auditor.iter().map(|auditor| (NodeId::AUDITOR, auditor)));
    let generation = ring.generation().next();
    let rekey = Rekey {
        network: network.tag.clone(),
        generation: generation.ok_or_else(|| Fault::ours("there is no generation left"))?,
        made: unix_time(),
        highest: nodes.all.iter().map(|record| record.id).max().unwrap_or(NodeId::OWNER),
    };
    let made = rekey::make(rekey, &member.secrets.keys, ring.newest(), &readers, &mut random()?);
    let made = made.map_err(|error| Fault::ours(format!("making a key: {error}")))?;
    store(transaction, &made, &network, &nodes).await?;
    Ok(RekeyReport {
        generation: made.key.generation().0,
        nodes: nodes.members.into_iter().map(|(_, name)| name).collect(),
        auditor: auditor.is_some(),
        notes: nodes.notes,
    })
}

/// Reads the nodes. A node that cannot be verified is an error, because it would be left out permanently.
async fn nodes(
    member: &mut Member,
    transaction: &Transaction<'_>,
    ring: &KeyRing,
) -> Result<Nodes, Fault> {
    let Member { public: own, pins, paths, .. } = member;
    let rows =
        transaction.query(directory::NODES, &[]).await.map_err(|error| statement_fault(&error))?;
    let mut nodes = Nodes::default();
    for row in &rows {
        let removed: bool = row.try_get(7).map_err(|error| statement_fault(&error))?;
        let name = clean(row.try_get::<_, &str>(1).unwrap_or_default());
        let believed = directory::node_record(row)
            .ok_or_else(|| "its row is not valid".to_owned())
            .and_then(|(record, mac)| {
                let public = record.verify(ring.newest(), &mac);
                let public = public.map_err(|error| error.to_string())?;
                if public.id == own.id {
                    keys::trusted(own, pins, &public)?;
                } else if !removed {
                    if ring.left_out(public.id) {
                        return Err("it was removed before".into());
                    }
                    pins.check(&record.name, public.id, public.fingerprint(), false)?;
                }
                Ok((record, public))
            });
        match believed {
            Ok((record, public)) => {
                if !removed {
                    nodes.members.push((public, name));
                }
                nodes.all.push(record);
            }
            Err(reason) if removed => {
                nodes.notes.push(format!("{name}, which was removed: {reason}: left as it is"));
            }
            Err(reason) => {
                return Err(Fault::peer(format!(
                    "node {name} is not trusted: {reason}; the network keeps its key. Remove the node ({} {name}) or clear \
                     that up first",
                    paths.command("remove --keep-key")
                )));
            }
        }
    }
    if !nodes.members.iter().any(|(public, _)| public.id == own.id) {
        return Err(Fault::peer("this node is not in the database's list of nodes"));
    }
    if nodes.members.len() > limits::PEERS {
        return Err(Fault::peer(format!("there are more than {} nodes", limits::PEERS)));
    }
    Ok(nodes)
}

/// Stores the record, the wraps and the MACs with the new key in the database.
async fn store(
    transaction: &Transaction<'_>,
    made: &rekey::RekeyRows,
    network: &NetworkRecord,
    nodes: &Nodes,
) -> Result<(), Fault> {
    let failed = |_| Fault::ours("cannot create keys: the cryptographic library failed");
    let readers: Vec<i32> = made.wraps.iter().map(|wrap| wrap.reader.0).collect();
    let encs: Vec<&[u8]> = made.wraps.iter().map(|wrap| wrap.enc.as_slice()).collect();
    let sealed: Vec<&[u8]> = made.wraps.iter().map(|wrap| wrap.sealed.as_slice()).collect();
    let ids: Vec<i32> = nodes.all.iter().map(|record| record.id.0).collect();
    let macs: Result<Vec<_>, _> = nodes.all.iter().map(|record| record.mac(&made.key)).collect();
    let macs = macs.map_err(failed)?;
    let macs: Vec<&[u8]> = macs.iter().map(<[u8; 32]>::as_slice).collect();
    let network_mac = network.mac(&made.key).map_err(failed)?;
    let stored = transaction
        .query_one(
            REKEY,
            &[
                &made.key.generation().0,
                &made.record,
                &made.signature.as_slice(),
                &readers,
                &encs,
                &sealed,
                &ids,
                &macs,
                &network_mac.as_slice(),
            ],
        )
        .await;
    stored.map(drop).map_err(|error| statement_fault(&error))
}
