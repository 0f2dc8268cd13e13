use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The state of a node of a network through a database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PostgresReport {
    /// The network's name on this host.
    pub network: String,
    /// This node's name.
    pub node: String,
    /// This node's number.
    pub id: i32,
    /// `strict`, `relaxed` or `volatile`: how durable a packet is before its peer can read it.
    pub durability: String,
    /// `full`, `headers`, `metadata` or `none`: the contents that the rows reveal.
    pub audit: String,
    /// The maximum length of an IP packet in a row, in bytes.
    pub packet_size: usize,
    /// The generation of the network's key, counted from 1.
    #[serde(default)]
    pub key_generation: i32,
    /// The serial number of the network's current settings; 0 before the network is known.
    pub settings: i64,
    /// The reason why the settings in the database are not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<String>,
    /// The connection that writes.
    pub writer: LinkReport,
    /// The connection that reads.
    pub reader: LinkReport,
    /// The memory of the queue in bytes, for packets that wait to be sealed and for buffers kept for later packets.
    pub queue_bytes: u64,
    /// The number of batches committed.
    pub batches: u64,
    /// The number of rows in these batches.
    pub rows: u64,
    /// The duration of a commit, smoothed, in microseconds.
    pub commit_us: u64,
    /// The number of pages read.
    pub pages: u64,
    /// The number of pages without rows.
    pub empty_pages: u64,
    /// The number of notifications received.
    pub notifications: u64,
    /// The other nodes.
    pub nodes: Vec<NodeReport>,
}

/// A connection to the database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Whether it is established.
    pub up: bool,
    /// The number of times that the connection has been opened.
    pub opened: u64,
    /// The reason why the connection is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Another node of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's number.
    pub id: i32,
    /// The node's name.
    pub name: String,
    /// The node's addresses.
    pub addresses: Vec<String>,
    /// The networks behind the node.
    pub subnets: Vec<String>,
    /// The reason why this node cannot communicate with that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The outgoing stream.
    pub sent: StreamReport,
    /// The incoming stream.
    pub received: StreamReport,
}

/// A stream of packets between two nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// The stream's number.
    pub stream: i32,
    /// The latest known leaf.
    pub leaf: i32,
    /// The key's number.
    pub epoch: i32,
    /// The number of the last packet.
    pub seq: i64,
    /// The number of packets.
    pub packets: u64,
    /// The number of bytes in these packets.
    pub bytes: u64,
    /// The numbers of dropped packets by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
}
