//! The readable part of the log: the network, its nodes, and the streams that this reader may open.

use std::collections::BTreeMap;
use std::rc::Rc;

use adit_postgres::key::epoch::EpochRecord;
use adit_postgres::key::settings::{History, SettingsPin};
use adit_postgres::key::{KeyRing, NodePublic, Reader};
use adit_postgres::{NodeId, StreamId};
use tokio_postgres::{Client, Row};

use super::pages::Source;
use super::{Keys, LogAccess};
use crate::admin::{check_version, open, statement_fault};
use crate::keys::{self, KeyFollower};
use crate::node::directory;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::fault::Fault;
use adit_runtime::log::clean;

const STREAMS: &str = "SELECT s.id, s.sender, f.name, s.receiver, t.name FROM adit.stream s \
    JOIN adit.node f ON f.id = s.sender JOIN adit.node t ON t.id = s.receiver ORDER BY s.id";

/// A stream that can be read.
#[derive(Clone, Debug)]
pub(super) struct LogStream {
    pub(super) id: StreamId,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) sender: Option<NodePublic>,
    pub(super) receiver: NodeId,
}

impl LogStream {
    /// Returns the node's name for messages.
    pub(super) fn name(&self) -> String {
        format!("{} > {}", self.from, self.to)
    }
}

/// The readable part of the log.
pub(super) struct View<'k> {
    pub(super) client: Client,
    /// The network's tag.
    pub(super) tag: String,
    /// The reader that opens packets, with the network's keys.
    pub(super) reader: Option<Reader<'k>>,
    pub(super) ring: Rc<Option<KeyRing>>,
    pub(super) source: Source,
    pub(super) log_streams: Vec<LogStream>,
    /// The trusted keys of the nodes.
    pub(super) nodes: BTreeMap<NodeId, NodePublic>,
    /// The network's settings, if its owner has signed them.
    pub(super) settings: Option<Rc<History>>,
    /// The reader's own public key as it appears in settings, if it is an auditor.
    pub(super) auditor: Option<Vec<u8>>,
    /// Warnings about data that the network's key does not authenticate.
    pub(super) doubts: Vec<String>,
    /// Warnings for the operator.
    pub(super) notes: Vec<String>,
}

impl<'k> View<'k> {
    /// Connects, and reads the nodes, streams and keys.
    pub(super) async fn open(access: &'k LogAccess, purpose: &str) -> Result<Self, Fault> {
        let client = open(&access.target, purpose).await?;
        // Use the same plan, with the index, for every leaf, regardless of its size.
        let settings = "SET search_path = pg_catalog; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";
        client.batch_execute(settings).await.map_err(|error| statement_fault(&error))?;
        let reader = match &access.keys {
            Keys::Node(node) => Some(node.secrets.keys.reader(node.settings.node)),
            Keys::Auditor(key) => Some(key.reader()),
            Keys::None => None,
        };
        let row =
            client.query_opt(directory::NETWORK, &[]).await.map_err(|error| missing(&error))?;
        let row = row.ok_or_else(no_network)?;
        let version = row.try_get(0).map_err(|_| no_network())?;
        check_version(version).map_err(Fault::operator)?;
        let tag = row.try_get::<_, String>(1).map_err(|_| no_network())?;
        let (ring, doubt) = keys_of(access, &client, &tag).await?;
        let source = match &access.keys {
            Keys::Node(_) => Source::Inboxes,
            Keys::Auditor(_) | Keys::None => Source::Leaves,
        };
        let mut view = Self {
            client,
            tag,
            reader,
            ring: Rc::new(ring),
            source,
            log_streams: Vec::new(),
            nodes: BTreeMap::new(),
            settings: None,
            auditor: match &access.keys {
                Keys::Auditor(key) => key.reader().public(),
                Keys::Node(_) | Keys::None => None,
            },
            doubts: doubt.into_iter().collect(),
            notes: Vec::new(),
        };
        view.network(&row);
        let names = view.nodes().await?;
        view.streams(access, &names).await?;
        view.settings(access).await?;
        if matches!(access.keys, Keys::None) {
            view.notes.push(
                "Without the auditor's key (--key FILE) nodes, records and packets are as the database shows them, without proof."
                    .into(),
            );
        }
        Ok(view)
    }

    /// Returns the reader that opens packets, and its keys.
    pub(super) fn key(&self) -> Option<(Reader<'k>, &KeyRing)> {
        self.reader.zip(Option::as_ref(&self.ring))
    }

    fn network(&mut self, row: &Row) {
        let Some((_, ring)) = self.key() else { return };
        let verified =
            directory::network_record(row).map(|(record, mac)| record.verify(ring.newest(), &mac));
        match verified {
            Some(Ok(())) => {}
            Some(Err(error)) => self.doubts.push(format!("the network's row: {error}")),
            None => self.doubts.push("the network's row is not valid".into()),
        }
    }

    /// Returns whether an epoch is wrapped to an auditor other than this reader.
    pub(super) fn is_anothers(&self, record: &EpochRecord) -> bool {
        let Some((own, history)) = self.auditor.as_ref().zip(self.settings.as_ref()) else {
            return false;
        };
        let settings = history.at(record.epoch.settings);
        settings.is_some_and(|settings| settings.auditor_key.as_ref() != Some(own))
    }

    /// Reads the network's settings. A node knows which settings it has already seen, but an auditor does not.
    async fn settings(&mut self, access: &LogAccess) -> Result<(), Fault> {
        if self.reader.is_none() {
            return Ok(());
        }
        let rows = directory::settings_rows(&self.client)
            .await
            .map_err(|error| statement_fault(&error))?;
        let (own, seen): (_, Option<SettingsPin>) = match &access.keys {
            Keys::Node(node) => {
                let own = (node.public.id == NodeId::OWNER).then(|| node.public.clone());
                (own, node.pins.settings())
            }
            Keys::Auditor(_) | Keys::None => (None, None),
        };
        let owner = own.as_ref().or_else(|| self.nodes.get(&NodeId::OWNER));
        match directory::history(&self.tag, owner, &rows, seen) {
            Ok(history) => self.settings = Some(Rc::new(history)),
            Err(reason) => self.doubts.push(format!("the network's settings: {reason}")),
        }
        Ok(())
    }

    /// Reads the authenticated keys of the nodes. Returns the name to show for each node.
    async fn nodes(&mut self) -> Result<BTreeMap<NodeId, String>, Fault> {
        let rows = self
            .client
            .query(directory::NODES, &[])
            .await
            .map_err(|error| statement_fault(&error))?;
        let mut names = BTreeMap::new();
        for row in &rows {
            let Some((record, mac)) = directory::node_record(row) else {
                let name: String = row.try_get(1).unwrap_or_default();
                self.doubts.push(format!("node {}: its row is not valid", clean(&name)));
                continue;
            };
            let public = match self.key() {
                Some((_, ring)) => {
                    record.verify(ring.newest(), &mac).map_err(|error| error.to_string())
                }
                None => record.unproven().map_err(|error| error.to_string()),
            };
            match public {
                Ok(public) => drop(self.nodes.insert(record.id, public)),
                Err(error) => self.doubts.push(format!("node {}: {error}", clean(&record.name))),
            }
            names.insert(record.id, (clean(&record.name), record.removed));
        }
        Ok(told_apart(names))
    }

    async fn streams(
        &mut self,
        access: &LogAccess,
        names: &BTreeMap<NodeId, String>,
    ) -> Result<(), Fault> {
        let me = match &access.keys {
            Keys::Node(node) => Some(node.settings.node),
            Keys::Auditor(_) | Keys::None => None,
        };
        let rows =
            self.client.query(STREAMS, &[]).await.map_err(|error| statement_fault(&error))?;
        for row in &rows {
            let Some(log_stream) = log_stream(row, &self.nodes, names) else { continue };
            let wanted = me.is_none_or(|me| log_stream.receiver == me)
                && access.from.as_ref().is_none_or(|from| *from == log_stream.from)
                && access.to.as_ref().is_none_or(|to| *to == log_stream.to)
                && access.stream.is_none_or(|stream| stream == log_stream.id.0);
            if wanted {
                self.log_streams.push(log_stream);
            }
        }
        let picky = access.from.is_some() || access.to.is_some() || access.stream.is_some();
        if self.log_streams.is_empty() && picky {
            return Err(Fault::operator(if me.is_some() {
                "no such stream is addressed to this node, and a node can read no other; the auditor's role can (--url)"
            } else {
                "there is no such stream"
            }));
        }
        Ok(())
    }
}

/// Returns the network's keys of this reader, including later ones from the database. A node trusts these by its pins.
/// An auditor has no pins and trusts the rows of the database. If the newest key is missing, also returns the reason.
async fn keys_of(
    access: &LogAccess,
    client: &Client,
    tag: &str,
) -> Result<(Option<KeyRing>, Option<String>), Fault> {
    match &access.keys {
        Keys::None => Ok((None, None)),
        Keys::Auditor(key) => {
            let (reader, mut ring) = (key.reader(), KeyRing::from(key.network().clone()));
            let found = keys::newer(client, ring.generation(), reader.id()).await;
            let found = found.map_err(|error| statement_fault(&error))?;
            let follower = KeyFollower { reader, network: tag, now: now(), unix: unix_time() };
            let followed = follower.follow(&found, &mut ring, &|_| Ok(()));
            Ok((Some(ring), followed.err()))
        }
        Keys::Node(node) => {
            let (ring, followed) = node.follow(client, tag).await?;
            Ok((Some(ring), followed.err()))
        }
    }
}

/// Returns a unique name for each node: its name, or `NAME#NUMBER` if it was removed and another node has the same name.
fn told_apart(names: BTreeMap<NodeId, (String, bool)>) -> BTreeMap<NodeId, String> {
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, _) in names.values() {
        let count = count.entry(name).or_default();
        *count = count.saturating_add(1);
    }
    let named = |(id, (name, removed)): (&NodeId, &(String, bool))| {
        let shared = count.get(name.as_str()).is_some_and(|count| *count > 1);
        let name = if *removed && shared { format!("{name}#{id}") } else { name.clone() };
        (*id, name)
    };
    names.iter().map(named).collect()
}

fn log_stream(
    row: &Row,
    nodes: &BTreeMap<NodeId, NodePublic>,
    names: &BTreeMap<NodeId, String>,
) -> Option<LogStream> {
    let (sender, receiver) = (NodeId(row.try_get(1).ok()?), NodeId(row.try_get(3).ok()?));
    let name = |id: NodeId, at| {
        let named = || row.try_get::<_, String>(at).ok().map(|name| clean(&name));
        names.get(&id).cloned().or_else(named)
    };
    Some(LogStream {
        id: StreamId(row.try_get(0).ok()?),
        from: name(sender, 2)?,
        to: name(receiver, 4)?,
        sender: nodes.get(&sender).cloned(),
        receiver,
    })
}

fn no_network() -> Fault {
    Fault::operator("there is no network in this database")
}

/// Returns the fault for a log that does not exist or that this role may not read.
fn missing(error: &tokio_postgres::Error) -> Fault {
    match error.code().map(|code| code.code()) {
        Some("42P01" | "3F000") => no_network(),
        Some("42501") => Fault::operator(
            "this role may not read the network; as an administrator: GRANT adit_TAG_auditors TO it",
        ),
        _ => statement_fault(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_node_is_told_apart_from_another_of_its_name() {
        let node = |id, name: &str, removed| (NodeId(id), (name.to_owned(), removed));
        let names = [
            node(1, "hub", false),
            node(2, "a", true),
            node(3, "b", true),
            node(4, "a", true),
            node(5, "a", false),
        ];
        let called = told_apart(names.into());
        let called: Vec<&str> = called.values().map(String::as_str).collect();
        assert_eq!(called, ["hub", "a#2", "b", "a#4", "a"]);
    }
}
