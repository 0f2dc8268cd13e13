use serde::{Deserialize, Serialize};

/// The state of a node of a tinc net.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TincReport {
    /// The net's name on this host; absent for the net without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<String>,
    /// This node's name.
    pub node: String,
    /// `router`, `switch` or `hub`.
    pub mode: String,
    /// The device; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Whether another node seems to have this node's name.
    pub name_conflict: bool,
    /// The number of keys that were learned over the net since the start, on first use.
    pub learned_keys: u64,
    /// The other nodes.
    pub nodes: Vec<TincNode>,
}

/// Another node of a tinc net.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TincNode {
    /// The name.
    pub name: String,
    /// Whether it is reachable.
    pub reachable: bool,
    /// When it became reachable or unreachable, in seconds since 1970; 0: never.
    pub since: u64,
    /// The way of packets: `udp`, `tcp`, `relay`, `legacy` for a node of tinc 1.0, whose packets each node on the way can read, or `none`.
    pub path: String,
    /// The node that relays the packets, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The UDP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The subnets that it announces.
    pub subnets: Vec<String>,
    /// The cipher of the session for packets, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// The round trip in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// The number of packets received.
    pub rx_packets: u64,
    /// The number of bytes received.
    pub rx_bytes: u64,
    /// The number of packets sent.
    pub tx_packets: u64,
    /// The number of bytes sent.
    pub tx_bytes: u64,
}
