//! The control socket's messages for `adit filter`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A rule file with all files that it includes. The requesting process reads them, because the filtering process may no
/// longer have permission to do so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleFiles {
    /// The path of the file itself.
    pub name: String,
    /// The path and text of each file.
    pub texts: BTreeMap<String, String>,
}

/// The rules in force and their counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FilterReport {
    /// The name of the control socket.
    pub instance: String,
    /// The file that contains the rules.
    pub file: String,
    /// The time when the rules came into force, in seconds since 1970.
    pub since: u64,
    /// The number of replacements since the start.
    pub reloads: u64,
    /// All rules with their counters, in the language's own syntax.
    pub rules: String,
    /// The counters of single rules.
    pub counters: Vec<RuleCounter>,
    /// Connections.
    pub flows: FlowTotals,
    /// Dropped packets by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
    /// The addresses of the clients and groups that the rules name, by `@client:NAME` and `@group:NAME`.
    pub members: BTreeMap<String, Vec<String>>,
    /// The numbers of log lines and captured packets that were lost because there were too many.
    pub lost: BTreeMap<String, u64>,
    /// The elements that were added to sets at run time.
    #[serde(default)]
    pub elements: AddedElements,
    /// The single connections, if they were requested.
    pub list: Option<Vec<FlowReport>>,
}

/// The counts of elements that were added to sets at run time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedElements {
    /// The current number in all sets.
    pub now: u64,
    /// The maximum number.
    pub limit: u64,
    /// The number of changes that were refused because there was no room.
    pub refused: u64,
    /// The number of elements that expired, including those from the file.
    pub expired: u64,
}

/// The counters of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCounter {
    /// The rule's table, with its family.
    pub table: String,
    /// The rule's chain.
    pub chain: String,
    /// The rule's number in `adit filter`.
    pub handle: u32,
    /// The rule's line in the file.
    pub line: u32,
    /// The number of packets. A super-packet counts as the number of its segments.
    pub packets: u64,
    /// The number of bytes, counted from the network header.
    pub bytes: u64,
}

/// The totals of connection tracking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTotals {
    /// The current number of flows.
    pub now: u64,
    /// The maximum number of flows.
    pub limit: u64,
    /// The memory of the table in bytes.
    pub bytes: u64,
    /// The current numbers of flows by state.
    pub states: BTreeMap<String, u64>,
    /// The number of flows created since the start.
    pub entered: u64,
    /// The number of flows that timed out.
    pub expired: u64,
    /// The number of flows that were evicted in favour of others.
    pub evicted: u64,
    /// The number of evicted flows whose source had more than its share of the table.
    pub evicted_share: u64,
    /// The number of flows that ended on request, or because the current rules or clients would not accept them.
    pub withdrawn: u64,
    /// The number of new connections refused because the table was full.
    pub refused_full: u64,
    /// The number of new connections refused because their source had too many unanswered ones.
    pub refused_source: u64,
}

/// One connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowReport {
    /// `tcp`, `udp`, `icmp` or a number.
    pub protocol: String,
    /// The address and port of the originator.
    pub source: String,
    /// The address and port of the other end.
    pub destination: String,
    /// The VLANs of the flow, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<u16>,
    /// In a server, the names of the clients at both ends, where an empty name is an end that is not a client; absent
    /// if neither end is a client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<String>,
    /// The state of the flow.
    pub state: String,
    /// The age in seconds since the first packet.
    pub age_s: u64,
    /// The seconds until the flow expires if no further packet arrives.
    pub left_s: u64,
    /// The numbers of packets in both directions.
    pub packets: [u64; 2],
    /// The numbers of bytes in both directions.
    pub bytes: [u64; 2],
}

/// The packets of a capture since the last request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureBatch {
    /// The id of this capture for the next request.
    pub id: u64,
    /// The packets, oldest first.
    pub packets: Vec<CapturedPacket>,
    /// The number of packets that were lost since the capture began, because requests were too infrequent.
    pub lost: u64,
}

/// A captured packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedPacket {
    /// The time in nanoseconds since 1970.
    pub time: u64,
    /// The interface on which it arrived.
    pub iif: String,
    /// The interface on which it would have left.
    pub oif: String,
    /// The rule that logged the packet.
    pub rule: u32,
    /// The rule's `group`.
    pub group: u16,
    /// The rule's `prefix`.
    pub prefix: String,
    /// Whether the packet begins with an Ethernet header.
    pub ethernet: bool,
    /// The first bytes of the packet, in base64.
    pub bytes: String,
    /// The original length.
    pub length: u32,
}
