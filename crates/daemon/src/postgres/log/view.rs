//! What can be seen: the network, its nodes, and the streams that these eyes may read.

use std::collections::BTreeMap;

use adit_postgres::key::{NetworkKey, NetworkRecord, NodePublic, Reader};
use adit_postgres::{NodeId, StreamId};
use tokio_postgres::{Client, Row};

use super::pages::Source;
use super::{Eyes, Keys};
use crate::fault::Fault;
use crate::log::clean;
use crate::managed::Outcome;
use crate::postgres::admin::{open, said};
use crate::postgres::node::directory;

/// Those who have left too: what they sent is still there.
const NODES: &str = "SELECT id, name, address4::text, address6::text, subnets::text[], sign_key, seal_key, mac \
    FROM adit.node WHERE mac IS NOT NULL ORDER BY id";

const STREAMS: &str = "SELECT s.id, s.sender, f.name, s.receiver, t.name FROM adit.stream s \
    JOIN adit.node f ON f.id = s.sender JOIN adit.node t ON t.id = s.receiver ORDER BY s.id";

/// A stream that can be read.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) id: StreamId,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) sender: Option<NodePublic>,
    pub(super) receiver: NodeId,
}

impl Way {
    /// For people.
    pub(super) fn name(&self) -> String {
        format!("{} > {}", self.from, self.to)
    }
}

/// What these eyes see.
pub(super) struct View<'k> {
    pub(super) client: Client,
    /// The network's tag.
    pub(super) tag: String,
    pub(super) key: Option<(Reader<'k>, &'k NetworkKey)>,
    pub(super) source: Source,
    pub(super) ways: Vec<Way>,
    /// Every node's keys, as far as they are believed.
    pub(super) nodes: BTreeMap<NodeId, NodePublic>,
    /// The network's row, if its key vouches for it.
    pub(super) network: Option<NetworkRecord>,
    /// What the network's key does not vouch for, in words.
    pub(super) doubts: Vec<String>,
    /// What is to be said beside.
    pub(super) notes: Vec<String>,
}

impl<'k> View<'k> {
    /// Connects, and looks around.
    pub(super) async fn open(eyes: &'k Eyes, purpose: &str) -> Outcome<Self> {
        let client = open(&eyes.target, purpose).await?;
        // One plan for every leaf, however full: along its index.
        let settings = "SET search_path = pg_catalog; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";
        client.batch_execute(settings).await.map_err(|error| said(&error))?;
        let key = match &eyes.keys {
            Keys::Node(node) => Some((node.1.keys.reader(node.0.node), &node.1.network_key)),
            Keys::Auditor(key) => Some((key.reader(), key.network())),
            Keys::None => None,
        };
        let row =
            client.query_opt(directory::NETWORK, &[]).await.map_err(|error| missing(&error))?;
        let row = row.ok_or_else(no_network)?;
        let tag = row.try_get::<_, String>(1).map_err(|_| no_network())?;
        let source = match &eyes.keys {
            Keys::Node(_) => Source::Inboxes,
            Keys::Auditor(_) | Keys::None => Source::Leaves,
        };
        let mut view = Self {
            client,
            tag,
            key,
            source,
            ways: Vec::new(),
            nodes: BTreeMap::new(),
            network: None,
            doubts: Vec::new(),
            notes: Vec::new(),
        };
        view.network(&row);
        let nodes = view.nodes().await?;
        view.streams(eyes, &nodes).await?;
        view.nodes = nodes;
        if matches!(eyes.keys, Keys::None) {
            view.notes.push(
                "Without the auditor's key (--key FILE) nodes, records and packets are what the database says they are."
                    .into(),
            );
        }
        Ok(view)
    }

    fn network(&mut self, row: &Row) {
        let Some((_, key)) = self.key else { return };
        let verified = directory::network_record(row)
            .map(|(record, mac)| record.verify(key, &mac).map(|_| record));
        match verified {
            Some(Ok(record)) => self.network = Some(record),
            Some(Err(error)) => self.doubts.push(format!("the network's row: {error}")),
            None => self.doubts.push("the network's row makes no sense".into()),
        }
    }

    /// Everybody's keys, as far as somebody vouches for them.
    async fn nodes(&mut self) -> Outcome<BTreeMap<NodeId, NodePublic>> {
        let rows = self.client.query(NODES, &[]).await.map_err(|error| said(&error))?;
        let mut nodes = BTreeMap::new();
        for row in &rows {
            let Some((record, mac)) = directory::node_record(row) else {
                let name: String = row.try_get(1).unwrap_or_default();
                self.doubts.push(format!("node {}: its row makes no sense", clean(&name)));
                continue;
            };
            let public = match self.key {
                Some((_, key)) => record.verify(key, &mac).map_err(|error| error.to_string()),
                None => record.unproven().map_err(|error| error.to_string()),
            };
            match public {
                Ok(public) => {
                    nodes.insert(record.id, public);
                }
                Err(error) => self.doubts.push(format!("node {}: {error}", clean(&record.name))),
            }
        }
        Ok(nodes)
    }

    async fn streams(&mut self, eyes: &Eyes, nodes: &BTreeMap<NodeId, NodePublic>) -> Outcome<()> {
        let me = match &eyes.keys {
            Keys::Node(node) => Some(node.0.node),
            Keys::Auditor(_) | Keys::None => None,
        };
        let rows = self.client.query(STREAMS, &[]).await.map_err(|error| said(&error))?;
        for row in &rows {
            let Some(way) = way(row, nodes) else { continue };
            let wanted = me.is_none_or(|me| way.receiver == me)
                && eyes.from.as_ref().is_none_or(|from| *from == way.from)
                && eyes.to.as_ref().is_none_or(|to| *to == way.to)
                && eyes.stream.is_none_or(|stream| stream == way.id.0);
            if wanted {
                self.ways.push(way);
            }
        }
        let picky = eyes.from.is_some() || eyes.to.is_some() || eyes.stream.is_some();
        if self.ways.is_empty() && picky {
            return Err(Fault::operator(if me.is_some() {
                "no such stream is addressed to this node, and a node reads no other: the auditor's role does (--url)"
            } else {
                "there is no such stream"
            }));
        }
        Ok(())
    }
}

fn way(row: &Row, nodes: &BTreeMap<NodeId, NodePublic>) -> Option<Way> {
    let name = |at| row.try_get::<_, String>(at).ok().map(|name| clean(&name));
    let sender = NodeId(row.try_get(1).ok()?);
    Some(Way {
        id: StreamId(row.try_get(0).ok()?),
        from: name(2)?,
        to: name(4)?,
        sender: nodes.get(&sender).cloned(),
        receiver: NodeId(row.try_get(3).ok()?),
    })
}

fn no_network() -> Fault {
    Fault::operator("there is no network in this database")
}

/// Nothing there, or nothing for this role.
fn missing(error: &tokio_postgres::Error) -> Fault {
    match error.code().map(|code| code.code()) {
        Some("42P01" | "3F000") => no_network(),
        Some("42501") => Fault::operator(
            "this role may not read the network: as an administrator, GRANT adit_TAG_auditors TO it",
        ),
        _ => said(error),
    }
}
