//! The nodes of the network, from rows of the database. The network's key authenticates them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use adit_engine::UnixTime;
use adit_postgres::key::settings::{
    History, MAX_SETTINGS, NetworkSettings, SettingsError, SettingsPin, SignedSettings,
};
use adit_postgres::key::{KeyRing, NetworkKey, NetworkRecord, NodePublic, NodeRecord};
use adit_postgres::routes::{Peer, StreamEnds, unambiguous};
use adit_postgres::{NodeId, StreamId, limits};
use futures_util::{StreamExt, TryStreamExt};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, Row};

use super::db_error::DbError;
pub(crate) use super::pins::Pins;
use crate::admin::check_version;

/// The maximum number of rows to read from a table, with room for forged rows.
const ROWS: i64 = 4 * limits::PEERS as i64;

pub(crate) const NETWORK: &str =
    "SELECT version, tag, network4::text, network6::text, leaf_space::text, mac FROM adit.network";

const SETTINGS: &str = "SELECT serial, made, packet_size, audit, durability, retention_bytes, \
    extract(epoch FROM retention_age)::bigint, auditor_key, previous, signature FROM adit.settings ORDER BY serial LIMIT $1";

/// Builds a query for rows of nodes, which [`node_record`] decodes.
macro_rules! nodes {
    ($which:literal) => {
        concat!(
            "SELECT id, name, address4::text, address6::text, subnets::text[], sign_key, seal_key, removed IS NOT NULL, mac \
             FROM adit.node WHERE mac IS NOT NULL ",
            $which
        )
    };
}

/// Queries all nodes, including removed ones, so that the others record the removal and keep it when the row is gone. The owner and the
/// current nodes come first.
const FIRST_NODES: &str = nodes!("ORDER BY id <> 1, removed IS NOT NULL, id LIMIT $1");

/// Queries all nodes, including removed ones, whose packets still exist.
pub(crate) const NODES: &str = nodes!("ORDER BY id");

/// Queries the node that currently has a name.
pub(crate) const NODE_CALLED: &str = nodes!("AND name = $1 AND removed IS NULL LIMIT 1");

const STREAMS: &str =
    "SELECT id, sender, receiver FROM adit.stream WHERE $1 IN (sender, receiver) LIMIT $2";

/// The authenticated state of the network in the database.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) network: NetworkRecord,
    /// The settings that the network's owner has signed.
    pub(crate) settings: Rc<History>,
    /// The reason why the settings in the database are not trusted. `settings` are then the previous ones.
    pub(crate) unsettled: Option<String>,
    pub(crate) nodes: Vec<VerifiedNode>,
    /// The nodes that are left out, by name, with the reasons.
    pub(crate) refused: BTreeMap<String, String>,
}

/// Another node, which the network's key authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedNode {
    pub(crate) record: NodeRecord,
    pub(crate) public: NodePublic,
    /// The stream from this node to that one.
    pub(crate) outgoing: StreamId,
    /// The stream from that node to this one.
    pub(crate) incoming: StreamId,
}

impl VerifiedNode {
    /// Returns the node's own addresses.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
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
    /// Returns the node that receives this stream.
    pub(super) fn receiver(&self, outgoing: StreamId) -> Option<&VerifiedNode> {
        self.nodes.iter().find(|node| node.outgoing == outgoing)
    }

    /// Returns the node that sends this stream.
    pub(super) fn sender(&self, incoming: StreamId) -> Option<&VerifiedNode> {
        self.nodes.iter().find(|node| node.incoming == incoming)
    }

    pub(super) fn peers(&self) -> Vec<Peer> {
        self.nodes.iter().map(VerifiedNode::peer).collect()
    }
}

/// The unverified contents of the tables.
pub(crate) struct Tables {
    network: Row,
    settings: Vec<Row>,
    nodes: Vec<Row>,
    streams: Vec<Row>,
}

impl Tables {
    /// Returns the network's tag as the database reports it.
    pub(crate) fn tag(&self) -> Option<String> {
        network_record(&self.network).map(|(record, _)| record.tag)
    }
}

/// Reads the tables.
pub(crate) async fn load(client: &Client, me: NodeId) -> Result<Tables, DbError> {
    let network = client.query_one(NETWORK, &[]).await?;
    check_version(network.try_get(0)?).map_err(DbError::new)?;
    let settings = settings_rows(client).await?;
    // The database may not respect the limit.
    let most = usize::try_from(ROWS).unwrap_or(usize::MAX);
    let nodes = client.query_raw(FIRST_NODES, [ROWS]).await?;
    let nodes = nodes.take(most).try_collect().await?;
    let of_me: [&(dyn ToSql + Sync); 2] = [&me.0, &ROWS];
    let streams = client.query_raw(STREAMS, of_me).await?;
    let streams = streams.take(most).try_collect().await?;
    Ok(Tables { network, settings, nodes, streams })
}

/// Reads the network's settings, with one row more than the maximum, so that an excess is noticed.
pub(crate) async fn settings_rows(
    client: &impl GenericClient,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let most = MAX_SETTINGS.saturating_add(1);
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    client.query_raw(SETTINGS, [limit]).await?.take(most).try_collect().await
}

/// Checks rows of settings. `owner` is the node that created the network, if its row is trusted.
pub(crate) fn history(
    tag: &str,
    owner: Option<&NodePublic>,
    rows: &[Row],
    seen: Option<SettingsPin>,
) -> Result<History, String> {
    let owner = owner.ok_or("the row of the node that created the network is not trusted")?;
    let rows: Option<Vec<_>> = rows.iter().map(settings_record).collect();
    let rows = rows.ok_or("a row is not valid")?;
    History::verify(tag, owner, &rows, seen).map_err(|error| match error {
        SettingsError::Older { .. } | SettingsError::Changed { .. } => format!(
            "{error}; if the database was restored from a backup, remove the line \"settings\" from the file `pins` of each node"
        ),
        error => error.to_string(),
    })
}

/// Returns the data that the network's key and the owner's signature authenticate. Adds new nodes, removals, and the
/// newest settings to `pins`. If the settings in the database are not trusted, keeps the `former` ones. `own` is this
/// node.
pub(crate) fn verify(
    tables: &Tables,
    own: &NodePublic,
    ring: &KeyRing,
    pins: &mut Pins,
    former: Option<&Rc<History>>,
) -> Result<Directory, DbError> {
    let (me, key) = (own.id, ring.newest());
    let (network, mac) = network_record(&tables.network)
        .ok_or_else(|| DbError::new("the network's row in the database is not valid"))?;
    network.verify(key, &mac).map_err(|error| {
        DbError::new(format!("the network's row in the database is not trusted: {error}"))
    })?;
    let records: Vec<_> = tables.nodes.iter().filter_map(node_record).collect();
    let owner = owner(&records, own, key, pins);
    let (settings, unsettled) =
        match history(&network.tag, owner.as_ref(), &tables.settings, pins.settings()) {
            Ok(history) => (pins.update_settings(history, former), None),
            Err(reason) => {
                let words = format!("network settings: not trusted: {reason}");
                let Some(former) = former else { return Err(DbError::new(words)) };
                (Rc::clone(former), Some(words))
            }
        };
    let (nodes, refused) = (Vec::new(), BTreeMap::new());
    let mut directory = Directory { network, settings, unsettled, nodes, refused };
    let ends = unambiguous(me, tables.streams.iter().filter_map(ends));
    let stream = |from: NodeId, to: NodeId| {
        ends.iter().find(|(_, a, b)| (*a, *b) == (from, to)).map(|(id, _, _)| *id)
    };
    let mut taken = ClaimedSubnets::by(&directory.network);
    let row = records.iter().find(|(record, _)| record.id == me);
    row.iter().for_each(|(record, _)| taken.add(&record.subnets));
    for (record, mac) in records {
        if record.id == me {
            continue;
        }
        let name = adit_runtime::log::clean(&record.name);
        let public = match trusted(&record, &mac, key, pins) {
            Ok(_) if record.removed => continue,
            Ok(public) => public,
            Err(reason) => {
                directory.refused.insert(name, reason);
                continue;
            }
        };
        if ring.left_out(public.id) {
            directory.refused.insert(name, "it was removed before the network got its key".into());
            continue;
        }
        if let Some(reason) = taken.refuses(&record.subnets) {
            directory.refused.insert(name, reason);
            continue;
        }
        // Registration creates the node and its streams in one transaction, so a row without streams was altered.
        match (stream(me, record.id), stream(record.id, me)) {
            (Some(outgoing), Some(incoming)) if directory.nodes.len() < limits::PEERS => {
                taken.add(&record.subnets);
                directory.nodes.push(VerifiedNode { record, public, outgoing, incoming });
            }
            (Some(_), Some(_)) => {
                directory
                    .refused
                    .insert(name, format!("there are more than {} nodes", limits::PEERS));
            }
            _ => {
                directory.refused.insert(name, "it has no streams".into());
            }
        }
    }
    Ok(directory)
}

/// Verifies the node in a row. The network's key must authenticate it, and it must not contradict the pins.
fn trusted(
    record: &NodeRecord,
    mac: &[u8],
    key: &NetworkKey,
    pins: &mut Pins,
) -> Result<NodePublic, String> {
    let public = record.verify(key, mac).map_err(|error| error.to_string())?;
    pins.check(&record.name, public.id, public.fingerprint(), record.removed)?;
    Ok(public)
}

/// Returns the node that created the network, or `None` if its row is not authentic. Its signatures are valid even if
/// it was removed, or if its keys are the pinned ones but its row was otherwise altered.
fn owner(
    records: &[(NodeRecord, Vec<u8>)],
    own: &NodePublic,
    key: &NetworkKey,
    pins: &mut Pins,
) -> Option<NodePublic> {
    if own.id == NodeId::OWNER {
        return Some(own.clone());
    }
    let (record, mac) = records.iter().find(|(record, _)| record.id == NodeId::OWNER)?;
    let pinned = |public: &NodePublic| pins.keys(public.id) == Some(public.fingerprint());
    let by_pin = record.unproven().ok().filter(pinned);
    by_pin.or_else(|| trusted(record, mac, key, pins).ok())
}

/// The subnets that already belong to a node. The schema prevents duplicates. But any node has the network's key, and
/// together with the database could authenticate a node with a part of another's network, which would take that
/// network's packets.
struct ClaimedSubnets(Vec<IpNet>);

impl ClaimedSubnets {
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
            "{subnet} behind it also belongs to another node: the one with the lower number keeps it"
        ))
    }
}

fn ends(row: &Row) -> Option<StreamEnds> {
    let number = |at| row.try_get::<_, i32>(at).ok();
    let ends = (StreamId(number(0)?), NodeId(number(1)?), NodeId(number(2)?));
    (StreamId::between(ends.1, ends.2) == Some(ends.0)).then_some(ends)
}

/// Decodes the network's row and its MAC. Returns `None` if a value is invalid.
pub(crate) fn network_record(row: &Row) -> Option<(NetworkRecord, Vec<u8>)> {
    fn parse_optional<T: FromStr>(text: Option<&str>) -> Option<Option<T>> {
        text.map(str::parse).transpose().ok()
    }
    let record = NetworkRecord {
        version: row.try_get(0).ok()?,
        tag: row.try_get(1).ok()?,
        network4: parse_optional(row.try_get(2).ok()?)?,
        network6: parse_optional(row.try_get(3).ok()?)?,
        leaf_space: row.try_get(4).ok()?,
    };
    Some((record, row.try_get(5).ok()?))
}

/// Decodes a row of settings and its signature. Returns `None` if a value is invalid.
pub(crate) fn settings_record(row: &Row) -> Option<SignedSettings> {
    let number = |at: usize| row.try_get::<_, i64>(at).ok();
    let word = |at: usize| row.try_get::<_, &str>(at).ok();
    let settings = NetworkSettings {
        serial: number(0)?,
        made: UnixTime(u64::try_from(number(1)?).ok()?),
        packet_size: row.try_get(2).ok()?,
        audit: word(3)?.parse().ok()?,
        durability: word(4)?.parse().ok()?,
        retention_bytes: number(5)?,
        retention_age: Duration::from_secs(u64::try_from(number(6)?).ok()?),
        auditor_key: row.try_get(7).ok()?,
        previous: row.try_get::<_, &[u8]>(8).ok()?.try_into().ok()?,
    };
    Some(SignedSettings { settings, signature: row.try_get(9).ok()? })
}

/// Decodes a node's row and its MAC. Returns `None` if a value is invalid.
pub(crate) fn node_record(row: &Row) -> Option<(NodeRecord, Vec<u8>)> {
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
        removed: row.try_get(7).ok()?,
    };
    Some((record, row.try_get(8).ok()?))
}

/// Parses an `inet` or `cidr` as the database formats it. A single address has no prefix length.
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
    fn no_node_claims_a_part_of_anothers_subnet() {
        let nets = |nets: &[&str]| nets.iter().map(|n| n.parse().unwrap()).collect::<Vec<IpNet>>();
        let mut taken = ClaimedSubnets(nets(&["10.9.0.0/24", "fd09::/64"]));
        assert_eq!(taken.refuses(&nets(&["192.168.0.0/16", "fd10::/64"])), None);
        taken.add(&nets(&["192.168.0.0/16"]));
        for wrong in
            ["192.168.7.0/24", "192.168.0.0/16", "192.0.0.0/8", "10.9.0.7/32", "fd09::7/128"]
        {
            let said = taken.refuses(&nets(&["172.16.0.0/12", wrong])).unwrap_or_default();
            assert!(said.starts_with(wrong), "{wrong}: {said}");
        }
    }
}
