//! The reports of `adit postgres status` and `peers`, from the running node and from the database.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_postgres::{LeafNo, NodeId, StreamId};
use adit_postgres_client::Target;
use serde::Serialize;
use tokio::time::timeout;
use tokio_postgres::Client;

use super::member::Member;
use super::node::directory::{self, Directory, VerifiedNode};
use super::paths::Paths;
use super::settings::Settings;
use adit_runtime::control::{self, Request, Response, StatusReport};
use adit_runtime::fault::Fault;
use adit_runtime::log::clean;

/// The time limit for all queries to the database together.
const PATIENCE: Duration = Duration::from_secs(15);
/// How many of a sender's leaves are searched for a stream's newest row. The newest leaf may still be empty.
const LEAVES: usize = 2;

/// The status of a network from the perspective of this host's node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NetworkStatus {
    /// The network's name on this host.
    pub network: String,
    /// This node's name.
    pub node: String,
    /// This node's number.
    pub id: i32,
    /// This node's addresses.
    pub addresses: Vec<String>,
    /// The networks behind this node.
    pub subnets: Vec<String>,
    /// The report of the running node, or `None` if it does not run.
    pub running: Option<StatusReport>,
    /// The database, as a URL without user and password.
    pub url: String,
    /// The role of this node in the database.
    pub role: String,
    /// The reason why the database was not queried, or did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The report from the database.
    pub database: Option<DatabaseStatus>,
}

/// The report from the database, as far as the network's key authenticates it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DatabaseStatus {
    /// The version of PostgreSQL.
    pub version: String,
    /// The TLS version and cipher of the connection, or `None` without TLS.
    pub tls: Option<String>,
    /// The round-trip time of the shortest query to the database in microseconds.
    pub round_trip_us: u64,
    /// The serial number of the network's settings.
    pub settings: i64,
    /// `strict`, `relaxed` or `volatile`, for nodes without their own setting.
    pub durability: String,
    /// `full`, `headers`, `metadata` or `none`.
    pub audit: String,
    /// The maximum length of an IP packet in a row in bytes.
    pub packet_size: i32,
    /// The generation of the network's key, counted from 1.
    pub key_generation: i32,
    /// Whether an auditor can open everything.
    pub auditor: bool,
    /// The number of leaf tables.
    pub leaves: u64,
    /// The size of the leaf tables in bytes, including the records and wrapped keys of their epochs.
    pub bytes: u64,
    /// The part of this size that records and wrapped keys take, in bytes.
    pub key_bytes: u64,
    /// The maximum size of the leaf tables in bytes.
    pub retention_bytes: u64,
    /// The retention time of packets, in seconds.
    pub retention_age_s: u64,
    /// The other nodes.
    pub nodes: Vec<NodeStatus>,
    /// The nodes that are not trusted, by name, with the reasons.
    pub refused: BTreeMap<String, String>,
}

/// Another node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeStatus {
    /// The node's number.
    pub id: i32,
    /// The node's name.
    pub name: String,
    /// The node's addresses.
    pub addresses: Vec<String>,
    /// The networks behind the node.
    pub subnets: Vec<String>,
    /// The stream from this node to that node.
    pub sent: StreamStatus,
    /// The stream from that node to this node.
    pub received: StreamStatus,
}

/// A stream in the database.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StreamStatus {
    /// The stream's number.
    pub stream: i32,
    /// The newest leaf table; 0 if there is none.
    pub leaf: i32,
    /// The newest epoch; 0 if there is none.
    pub epoch: i32,
    /// The age of the newest epoch's key in seconds.
    pub epoch_age_s: Option<u64>,
    /// The number of the newest row; 0 if there is none.
    pub seq: i64,
    /// The age of the newest row in milliseconds, by the database's clock. A node cannot see the rows that it sent.
    pub age_ms: Option<u64>,
}

/// Queries the running node and the database.
///
/// # Errors
/// Fails if this host is in no such network, or its files cannot be read. It is not an error if the database or the
/// node does not answer.
pub fn collect(paths: &Paths) -> Result<NetworkStatus, Fault> {
    let settings = Settings::load(paths)?;
    let mut status = NetworkStatus {
        network: paths.name().to_owned(),
        node: settings.name.clone(),
        id: settings.node.0,
        addresses: settings.addresses.iter().map(ToString::to_string).collect(),
        subnets: settings.subnets.iter().map(ToString::to_string).collect(),
        running: running(&paths.control_socket())?,
        url: settings.database.clone(),
        role: settings.role.clone(),
        trouble: None,
        database: None,
    };
    let mut member = Member::with(settings, paths)?;
    let target = member.target()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Fault::environment(format!("cannot start the event loop: {error}")))?;
    let asked = runtime.block_on(async {
        timeout(PATIENCE, ask(&target, &mut member)).await.unwrap_or_else(|_| {
            Err(format!("the database did not answer within {} s", PATIENCE.as_secs()))
        })
    });
    match asked {
        Ok(database) => status.database = Some(database),
        Err(trouble) => status.trouble = Some(clean(&trouble)),
    }
    Ok(status)
}

/// Returns the report of the running node, or `None` if no node runs.
///
/// # Errors
/// Fails if a node runs but does not answer, or not to this user.
pub fn running(socket: &Path) -> Result<Option<StatusReport>, Fault> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    match control::request(socket, &Request::Status) {
        Ok(Response::Status(report)) => Ok(Some(*report)),
        Ok(Response::Error { message }) => Err(Fault::environment(message)),
        Ok(_) => Ok(None),
        Err(fault) => match std::os::unix::net::UnixStream::connect(socket) {
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(None),
            _ => Err(fault),
        },
    }
}

/// Queries the database. Does not record pins of other nodes: only the running node may do this.
async fn ask(target: &Target, member: &mut Member) -> Result<DatabaseStatus, String> {
    let client = adit_postgres_client::open(target, "status")
        .await
        .map_err(|fault| Fault::from(fault).to_string())?;
    let me = member.settings.node;
    let tables = directory::load(&client, me).await.map_err(|cause| cause.message)?;
    let tag = tables.tag().unwrap_or_default();
    let ring = member.ring(&client, &tag).await.map_err(|fault| fault.to_string())?;
    let directory = directory::verify(&tables, &member.public, &ring, &mut member.pins, None);
    let directory = directory.map_err(|cause| cause.message)?;
    let status = answers(&client, &directory).await.map_err(|error| error.to_string())?;
    Ok(DatabaseStatus { key_generation: ring.generation().0, ..status })
}

async fn answers(
    client: &Client,
    directory: &Directory,
) -> Result<DatabaseStatus, tokio_postgres::Error> {
    let asked = Instant::now();
    client.simple_query("").await?;
    let round_trip = asked.elapsed();
    let about = "SELECT current_setting('server_version'), (SELECT version || ' ' || cipher FROM pg_stat_ssl WHERE pid = \
                 pg_backend_pid() AND ssl), leaves, bytes, keys FROM adit.usage()";
    let about = client.query_one(about, &[]).await?;
    let network = directory.settings.current();
    let mut status = DatabaseStatus {
        version: clean(about.try_get(0)?),
        tls: about.try_get::<_, Option<&str>>(1)?.map(clean),
        round_trip_us: u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX),
        settings: network.serial,
        durability: network.durability.to_string(),
        audit: network.audit.to_string(),
        packet_size: network.packet_size,
        key_generation: 0,
        auditor: network.auditor_key.is_some(),
        leaves: count(about.try_get(2)?),
        bytes: count(about.try_get(3)?),
        key_bytes: count(about.try_get(4)?),
        retention_bytes: count(network.retention_bytes),
        retention_age_s: network.retention_age.as_secs(),
        nodes: Vec::new(),
        refused: directory.refused.clone(),
    };
    let leaves = leaves(client).await?;
    let epochs = epochs(client).await?;
    for node in &directory.nodes {
        status.nodes.push(one(client, node, &leaves, &epochs).await?);
    }
    Ok(status)
}

/// The number and the age in seconds of the newest epoch of each stream.
type Epochs = BTreeMap<StreamId, (i32, i64)>;
/// The leaves of each sender, newest first.
type Leaves = BTreeMap<NodeId, Vec<LeafNo>>;

async fn leaves(client: &Client) -> Result<Leaves, tokio_postgres::Error> {
    let newest = "SELECT sender, no FROM (SELECT sender, no, row_number() OVER (PARTITION BY sender ORDER BY no DESC) AS nth \
                  FROM adit.leaf WHERE dropped IS NULL) l WHERE nth <= $1 ORDER BY sender, no DESC";
    let mut leaves = Leaves::new();
    for row in client.query(newest, &[&i64::try_from(LEAVES).unwrap_or(1)]).await? {
        leaves.entry(NodeId(row.try_get(0)?)).or_default().push(LeafNo(row.try_get(1)?));
    }
    Ok(leaves)
}

async fn epochs(client: &Client) -> Result<Epochs, tokio_postgres::Error> {
    let newest = "SELECT DISTINCT ON (stream) stream, no, extract(epoch FROM statement_timestamp() - opened)::bigint \
                  FROM adit.epoch ORDER BY stream, no DESC";
    let rows = client.query(newest, &[]).await?;
    rows.iter()
        .map(|row| Ok((StreamId(row.try_get(0)?), (row.try_get(1)?, row.try_get(2)?))))
        .collect()
}

async fn one(
    client: &Client,
    node: &VerifiedNode,
    leaves: &Leaves,
    epochs: &Epochs,
) -> Result<NodeStatus, tokio_postgres::Error> {
    let begin = |stream: StreamId| {
        let epoch = epochs.get(&stream);
        let leaf = leaves.get(&stream.sender()).and_then(|leaves| leaves.first());
        StreamStatus {
            stream: stream.0,
            leaf: leaf.map_or(0, |leaf| leaf.0),
            epoch: epoch.map_or(0, |(no, _)| *no),
            epoch_age_s: epoch.map(|(_, age)| count(*age)),
            ..StreamStatus::default()
        }
    };
    let mut status = NodeStatus {
        id: node.record.id.0,
        name: node.record.name.clone(),
        addresses: node.addresses().iter().map(ToString::to_string).collect(),
        subnets: node.record.subnets.iter().map(ToString::to_string).collect(),
        sent: begin(node.outgoing),
        received: begin(node.incoming),
    };
    let resumed =
        client.query_one("SELECT last_seq FROM adit.resume($1)", &[&node.record.id.0]).await?;
    status.sent.seq = resumed.try_get::<_, Option<i64>>(0)?.unwrap_or(0);
    for leaf in leaves.get(&node.record.id).into_iter().flatten() {
        let newest = format!(
            "SELECT seq, (extract(epoch FROM statement_timestamp() - ts) * 1000)::bigint \
             FROM adit.newest($1, {leaf}, 0, 9223372036854775807, NULL, 1)"
        );
        // A leaf may be dropped at any time.
        let Ok(Some(row)) = client.query_opt(&newest, &[&node.incoming.0]).await else { continue };
        status.received.seq = row.try_get(0)?;
        status.received.age_ms = Some(count(row.try_get(1)?));
        break;
    }
    Ok(status)
}

fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_run_is_no_fault() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("postgres-vpn.sock");
        assert_eq!(running(&socket).unwrap(), None, "nothing there");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert_eq!(running(&socket).unwrap(), None, "left behind by a killed one");
    }
}
