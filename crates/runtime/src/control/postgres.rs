use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The state of a node of a network in a database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PostgresReport {
    /// The network's name on this machine.
    pub network: String,
    /// This node's name.
    pub node: String,
    /// This node's number.
    pub id: i32,
    /// `strict`, `relaxed` or `volatile`: what has happened to a packet before its peer can read it.
    pub durability: String,
    /// `full`, `headers`, `metadata` or `none`: what the rows reveal.
    pub audit: String,
    /// Longest IP packet in a row, bytes.
    pub packet_size: usize,
    /// Generation of the network's key, counted from 1.
    #[serde(default)]
    pub key_generation: i32,
    /// The serial number of the network's settings in force; 0 before the network is known.
    pub settings: i64,
    /// The reason why the settings in the database are not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<String>,
    /// The connection that writes.
    pub writer: LinkReport,
    /// The connection that reads.
    pub reader: LinkReport,
    /// The memory of the queue in bytes: packets that wait to be sealed, and buffers kept for later packets.
    pub queue_bytes: u64,
    /// Batches committed.
    pub batches: u64,
    /// Rows in these.
    pub rows: u64,
    /// The duration of a commit, smoothed, in microseconds.
    pub commit_us: u64,
    /// Pages read.
    pub pages: u64,
    /// The number of pages without rows.
    pub empty_pages: u64,
    /// Notifications heard.
    pub notifications: u64,
    /// The other nodes.
    pub nodes: Vec<NodeReport>,
}

/// A connection to the database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Whether it is established.
    pub up: bool,
    /// The number of times it has been opened.
    pub opened: u64,
    /// The reason why it is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Another node of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its number.
    pub id: i32,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The networks behind it.
    pub subnets: Vec<String>,
    /// Why this node cannot communicate with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The outgoing stream.
    pub sent: StreamReport,
    /// The incoming stream.
    pub received: StreamReport,
}

/// A stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Its number.
    pub stream: i32,
    /// The newest leaf known.
    pub leaf: i32,
    /// The key's number.
    pub epoch: i32,
    /// The last packet's number.
    pub seq: i64,
    /// Packets.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Packets dropped, by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
}
