//! Who is in the network: the rows of the database, as far as the network's key vouches for them.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use adit_postgres::key::{
    Fingerprint, NetworkKey, NetworkRecord, NodePublic, NodeRecord, SealPublic,
};
use adit_postgres::routes::{Ends, Peer, unambiguous};
use adit_postgres::{NodeId, StreamId, limits};
use futures_util::{StreamExt, TryStreamExt};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::cause::Cause;
use crate::fault::Fault;
use crate::helper::files;

/// Rows of the tables that are looked at: some may be made up.
const ROWS: i64 = 4 * limits::PEERS as i64;

pub(in crate::postgres) const NETWORK: &str = "SELECT version, tag, network4::text, network6::text, packet_size, audit, durability, \
    retention_bytes, extract(epoch FROM retention_age)::bigint, leaf_space::text, auditor_key, mac FROM adit.network";

const NODES: &str = "SELECT id, name, address4::text, address6::text, subnets::text[], sign_key, seal_key, mac \
    FROM adit.node WHERE mac IS NOT NULL AND removed IS NULL ORDER BY id LIMIT $1";

const STREAMS: &str =
    "SELECT id, sender, receiver FROM adit.stream WHERE $1 IN (sender, receiver) LIMIT $2";

/// The network as the database shows it and its key confirms.
#[derive(Clone, Debug)]
pub(in crate::postgres) struct Directory {
    pub(in crate::postgres) network: NetworkRecord,
    pub(in crate::postgres) auditor: Option<SealPublic>,
    pub(in crate::postgres) nodes: Vec<Known>,
    /// Nodes that are left out, by name, and why.
    pub(in crate::postgres) refused: BTreeMap<String, String>,
}

/// Another node, vouched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::postgres) struct Known {
    pub(in crate::postgres) record: NodeRecord,
    pub(in crate::postgres) public: NodePublic,
    /// What this node sends there.
    pub(in crate::postgres) outgoing: StreamId,
    /// What comes from there.
    pub(in crate::postgres) incoming: StreamId,
}

impl Known {
    /// Its own addresses.
    pub(in crate::postgres) fn addresses(&self) -> Vec<IpAddr> {
        let v4 = self.record.address4.map(|net| IpAddr::V4(net.addr()));
        let v6 = self.record.address6.map(|net| IpAddr::V6(net.addr()));
        v4.into_iter().chain(v6).collect()
    }

    pub(super) fn peer(&self) -> Peer {
        Peer {
            node: self.record.id,
            outgoing: self.outgoing,
            incoming: self.incoming,
            addresses: self.addresses(),
            subnets: self.record.subnets.clone(),
        }
    }
}

impl Directory {
    /// The node that receives that stream.
    pub(super) fn receiver(&self, outgoing: StreamId) -> Option<&Known> {
        self.nodes.iter().find(|node| node.outgoing == outgoing)
    }

    /// The node that sends that stream.
    pub(super) fn sender(&self, incoming: StreamId) -> Option<&Known> {
        self.nodes.iter().find(|node| node.incoming == incoming)
    }

    pub(super) fn peers(&self) -> Vec<Peer> {
        self.nodes.iter().map(Known::peer).collect()
    }
}

/// The tables as they are.
pub(in crate::postgres) struct Tables {
    network: Row,
    nodes: Vec<Row>,
    streams: Vec<Row>,
}

/// Reads the tables.
pub(in crate::postgres) async fn load(client: &Client, me: NodeId) -> Result<Tables, Cause> {
    let network = client.query_one(NETWORK, &[]).await?;
    // A limit is the database's to keep, or not.
    let most = usize::try_from(ROWS).unwrap_or(usize::MAX);
    let nodes = client.query_raw(NODES, [ROWS]).await?;
    let nodes = nodes.take(most).try_collect().await?;
    let of_me: [&(dyn ToSql + Sync); 2] = [&me.0, &ROWS];
    let streams = client.query_raw(STREAMS, of_me).await?;
    let streams = streams.take(most).try_collect().await?;
    Ok(Tables { network, nodes, streams })
}

/// Keeps what the key vouches for. `pins` learns nodes that were never seen before.
pub(in crate::postgres) fn believe(
    tables: &Tables,
    me: NodeId,
    key: &NetworkKey,
    pins: &mut Pins,
) -> Result<Directory, Cause> {
    let (network, mac) = network_record(&tables.network)
        .ok_or_else(|| Cause::new("the network's row in the database makes no sense"))?;
    let auditor = network.verify(key, &mac).map_err(|error| {
        Cause::new(format!("the network's row in the database is not believed: {error}"))
    })?;
    let mut directory = Directory { network, auditor, nodes: Vec::new(), refused: BTreeMap::new() };
    let ends = unambiguous(me, tables.streams.iter().filter_map(ends));
    let stream = |from: NodeId, to: NodeId| {
        ends.iter().find(|(_, a, b)| (*a, *b) == (from, to)).map(|(id, _, _)| *id)
    };
    let mut taken = Taken::by(&directory.network);
    let records: Vec<_> = tables.nodes.iter().filter_map(node_record).collect();
    let own = records.iter().find(|(record, _)| record.id == me);
    own.iter().for_each(|(record, _)| taken.add(&record.subnets));
    for (record, mac) in records {
        if record.id == me {
            continue;
        }
        let name = crate::log::clean(&record.name);
        let public = match record.verify(key, &mac) {
            Ok(public) => public,
            Err(error) => {
                directory.refused.insert(name, error.to_string());
                continue;
            }
        };
        if let Err(reason) = pins.check(&record.name, public.id, public.fingerprint()) {
            directory.refused.insert(name, reason);
            continue;
        }
        if let Some(reason) = taken.refuses(&record.subnets) {
            directory.refused.insert(name, reason);
            continue;
        }
        // Both ends of registration are one transaction: without streams it is a row that was altered.
        match (stream(me, record.id), stream(record.id, me)) {
            (Some(outgoing), Some(incoming)) if directory.nodes.len() < limits::PEERS => {
                taken.add(&record.subnets);
                directory.nodes.push(Known { record, public, outgoing, incoming });
            }
            (Some(_), Some(_)) => {
                directory
                    .refused
                    .insert(name, format!("there are more than {} nodes", limits::PEERS));
            }
            _ => {
                directory.refused.insert(name, "no streams lead to and from it".into());
            }
        }
    }
    Ok(directory)
}

/// What lies behind somebody already. The schema sees to it that nothing is claimed twice; but any node has the network's key, and
/// with the database's help could vouch for a node that has a part of another's network, which would take its packets.
struct Taken(Vec<IpNet>);

impl Taken {
    fn by(network: &NetworkRecord) -> Self {
        let v4 = network.network4.map(IpNet::V4);
        Self(v4.into_iter().chain(network.network6.map(IpNet::V6)).collect())
    }

    fn add(&mut self, subnets: &[IpNet]) {
        self.0.extend(subnets);
    }

    fn refuses(&self, subnets: &[IpNet]) -> Option<String> {
        let overlap = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
        let subnet = subnets.iter().find(|a| self.0.iter().any(|b| overlap(a, b)))?;
        Some(format!(
            "{subnet} behind it is also another's: the node with the lower number keeps it"
        ))
    }
}

fn ends(row: &Row) -> Option<Ends> {
    let number = |at| row.try_get::<_, i32>(at).ok();
    let ends = (StreamId(number(0)?), NodeId(number(1)?), NodeId(number(2)?));
    (StreamId::between(ends.1, ends.2) == Some(ends.0)).then_some(ends)
}

/// The network's row and its MAC; `None` if its values make no sense.
pub(in crate::postgres) fn network_record(row: &Row) -> Option<(NetworkRecord, Vec<u8>)> {
    fn maybe<T: FromStr>(text: Option<&str>) -> Option<Option<T>> {
        text.map(str::parse).transpose().ok()
    }
    let word = |at: usize| row.try_get::<_, &str>(at).ok();
    let record = NetworkRecord {
        version: row.try_get(0).ok()?,
        tag: row.try_get(1).ok()?,
        network4: maybe(row.try_get(2).ok()?)?,
        network6: maybe(row.try_get(3).ok()?)?,
        packet_size: row.try_get(4).ok()?,
        audit: word(5)?.parse().ok()?,
        durability: word(6)?.parse().ok()?,
        retention_bytes: row.try_get(7).ok()?,
        retention_age: Duration::from_secs(u64::try_from(row.try_get::<_, i64>(8).ok()?).ok()?),
        leaf_space: row.try_get(9).ok()?,
        auditor_key: row.try_get(10).ok()?,
    };
    Some((record, row.try_get(11).ok()?))
}

/// Likewise a node's.
pub(in crate::postgres) fn node_record(row: &Row) -> Option<(NodeRecord, Vec<u8>)> {
    let text = |at| row.try_get::<_, Option<String>>(at).ok().flatten();
    let net = |at| text(at).and_then(|text| address(&text));
    let subnets: Vec<String> = row.try_get(4).ok()?;
    let record = NodeRecord {
        id: NodeId(row.try_get(0).ok()?),
        name: text(1)?,
        address4: net(2).and_then(v4),
        address6: net(3).and_then(v6),
        subnets: subnets.iter().map(|text| address(text)).collect::<Option<_>>()?,
        sign_key: row.try_get(5).ok()?,
        seal_key: row.try_get(6).ok()?,
    };
    Some((record, row.try_get(7).ok()?))
}

/// As the database writes `inet` and `cidr`: a whole address without the length of its prefix.
fn address(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn v4(net: IpNet) -> Option<Ipv4Net> {
    match net {
        IpNet::V4(net) => Some(net),
        IpNet::V6(_) => None,
    }
}

fn v6(net: IpNet) -> Option<Ipv6Net> {
    match net {
        IpNet::V4(_) => None,
        IpNet::V6(net) => Some(net),
    }
}

/// The keys of nodes that were seen before, in a file of lines `ID FINGERPRINT NAME`.
#[derive(Debug)]
pub(in crate::postgres) struct Pins {
    path: PathBuf,
    known: BTreeMap<NodeId, (Fingerprint, String)>,
    changed: bool,
}

impl Pins {
    /// Reads the file; there need be none.
    pub(in crate::postgres) fn load(path: &Path) -> Result<Self, Fault> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(Fault::environment(format!("cannot read {}: {error}", path.display())));
            }
        };
        let mut known = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let pin = parse_pin(line).ok_or_else(|| {
                Fault::operator(format!(
                    "{} line {}: not a number, a fingerprint and a name; remove the line to learn the node anew",
                    path.display(),
                    at + 1
                ))
            })?;
            known.insert(pin.0, pin.1);
        }
        Ok(Self { path: path.to_owned(), known, changed: false })
    }

    /// The nodes that were seen, with their keys and names.
    pub(in crate::postgres) fn all(&self) -> impl Iterator<Item = (NodeId, Fingerprint, &str)> {
        self.known.iter().map(|(id, (keys, name))| (*id, *keys, name.as_str()))
    }

    /// Whether the node has the keys that it had the first time; that time is this one if there was none.
    fn check(&mut self, name: &str, id: NodeId, keys: Fingerprint) -> Result<(), String> {
        match self.known.get(&id) {
            Some((known, _)) if *known == keys => Ok(()),
            Some((known, _)) => Err(format!(
                "its keys have changed since this node first saw it ({known} then, {keys} now); if that was you, remove \
                 its line from {}",
                self.path.display()
            )),
            None => {
                if self.known.len() < 4 * limits::PEERS {
                    self.known.insert(id, (keys, name.to_owned()));
                    self.changed = true;
                }
                Ok(())
            }
        }
    }

    /// Writes what was learnt.
    pub(super) fn save(&mut self) -> Result<(), Fault> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let line =
            |(id, (keys, name)): (&NodeId, &(Fingerprint, String))| format!("{id} {keys} {name}\n");
        let text: String = self.known.iter().map(line).collect();
        files::replace(&self.path, text.as_bytes()).map_err(|error| {
            Fault::environment(format!("cannot write {}: {error}", self.path.display()))
        })
    }
}

fn parse_pin(line: &str) -> Option<(NodeId, (Fingerprint, String))> {
    let mut words = line.split_ascii_whitespace();
    let id = NodeId(words.next()?.parse().ok()?);
    let keys = words.next()?.parse().ok()?;
    let name = words.next()?.to_owned();
    words.next().is_none().then_some((id, (keys, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_database_writes_them() {
        for (text, net) in [
            ("10.9.0.1/24", "10.9.0.1/24"),
            ("10.9.0.1", "10.9.0.1/32"),
            ("fd00::1", "fd00::1/128"),
            ("fd00::/64", "fd00::/64"),
        ] {
            assert_eq!(address(text), Some(net.parse().unwrap()), "{text}");
        }
        assert_eq!(address("10.9.0"), None);
    }

    #[test]
    fn nobody_stands_for_a_part_of_what_lies_behind_another() {
        let nets = |nets: &[&str]| nets.iter().map(|n| n.parse().unwrap()).collect::<Vec<IpNet>>();
        let mut taken = Taken(nets(&["10.9.0.0/24", "fd09::/64"]));
        assert_eq!(taken.refuses(&nets(&["192.168.0.0/16", "fd10::/64"])), None);
        taken.add(&nets(&["192.168.0.0/16"]));
        for wrong in
            ["192.168.7.0/24", "192.168.0.0/16", "192.0.0.0/8", "10.9.0.7/32", "fd09::7/128"]
        {
            let said = taken.refuses(&nets(&["172.16.0.0/12", wrong])).unwrap_or_default();
            assert!(said.starts_with(wrong), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_node_is_pinned_when_it_is_first_seen_and_refused_with_other_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pins");
        let mut pins = Pins::load(&path).unwrap();
        let keys = |byte| Fingerprint([byte; 32]);
        assert_eq!(pins.check("a", NodeId(2), keys(1)), Ok(()));
        pins.save().unwrap();
        let mut pins = Pins::load(&path).unwrap();
        assert_eq!(pins.check("a", NodeId(2), keys(1)), Ok(()));
        let refused = pins.check("a", NodeId(2), keys(2)).unwrap_err();
        assert!(refused.contains("keys have changed") && refused.contains("pins"), "{refused}");
        assert_eq!(pins.check("b", NodeId(3), keys(2)), Ok(()));
    }

    #[test]
    fn a_damaged_line_is_named_and_not_taken_for_a_node_never_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pins");
        fs::write(&path, "2 00 a\n").unwrap();
        assert!(Pins::load(&path).unwrap_err().to_string().contains("pins line 1: "));
    }
}
