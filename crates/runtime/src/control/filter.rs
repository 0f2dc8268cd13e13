//! Control socket messages of `adit filter`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A rule file with everything that it includes, read by the requesting process: the filtering process may no
/// longer have permission to read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleFiles {
    /// The path of the file itself.
    pub name: String,
    /// Path and text of each file.
    pub texts: BTreeMap<String, String>,
}

/// The rules in force and their counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FilterReport {
    /// Name of the control socket.
    pub instance: String,
    /// The file that the rules are from.
    pub file: String,
    /// The time when the rules came into force, in seconds since 1970.
    pub since: u64,
    /// The number of replacements since the start.
    pub reloads: u64,
    /// All rules with their counters, in the language's own syntax.
    pub rules: String,
    /// Counters of single rules.
    pub counters: Vec<RuleCounter>,
    /// Connections.
    pub flows: FlowTotals,
    /// Dropped packets by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
    /// The addresses of the clients and groups that the rules name, by `@client:NAME` and `@group:NAME`.
    pub members: BTreeMap<String, Vec<String>>,
    /// Log lines and captured packets that were lost because there were too many.
    pub lost: BTreeMap<String, u64>,
    /// Elements that were added to sets at run time.
    #[serde(default)]
    pub elements: AddedElements,
    /// Single connections, if they were requested.
    pub list: Option<Vec<FlowReport>>,
}

/// Elements that were added to sets at run time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedElements {
    /// The current number, in all sets.
    pub now: u64,
    /// The maximum.
    pub limit: u64,
    /// Changes that were refused because there was no room.
    pub refused: u64,
    /// Elements that expired, including those of the file.
    pub expired: u64,
}

/// The counters of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCounter {
    /// Its table, with the family.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// Its number in `adit filter`.
    pub handle: u32,
    /// Its line in the file.
    pub line: u32,
    /// Packets. A super-packet counts as the number of its segments.
    pub packets: u64,
    /// Bytes, counted from the network header.
    pub bytes: u64,
}

/// Connection tracking as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTotals {
    /// The current number.
    pub now: u64,
    /// The maximum.
    pub limit: u64,
    /// Memory of the table.
    pub bytes: u64,
    /// The current numbers, by state.
    pub states: BTreeMap<String, u64>,
    /// Since the start.
    pub entered: u64,
    /// Their time was over.
    pub expired: u64,
    /// Flows that were evicted in favour of others.
    pub evicted: u64,
    /// Evicted flows whose source had more than its share of the table.
    pub evicted_share: u64,
    /// Flows that ended on request, or because the rules or clients in force would not accept them.
    pub withdrawn: u64,
    /// New connections refused because the table was full.
    pub refused_full: u64,
    /// New connections refused because their source had too many unanswered ones.
    pub refused_source: u64,
}

/// One connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowReport {
    /// `tcp`, `udp`, `icmp` or a number.
    pub protocol: String,
    /// Address and port of its originator.
    pub source: String,
    /// Address and port of the other end.
    pub destination: String,
    /// The VLANs of the flow, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<u16>,
    /// In a server, the names of the clients at both ends; empty for an end that is not a client. Absent if neither is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<String>,
    /// The state of the flow.
    pub state: String,
    /// Seconds since its first packet.
    pub age_s: u64,
    /// Seconds until the flow expires if no further packet arrives.
    pub left_s: u64,
    /// Packets there and back.
    pub packets: [u64; 2],
    /// Bytes there and back.
    pub bytes: [u64; 2],
}

/// The packets of a capture since the last request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureBatch {
    /// Names this capture in the next question.
    pub id: u64,
    /// Oldest first.
    pub packets: Vec<CapturedPacket>,
    /// Packets that were lost since the capture began, because requests were too infrequent.
    pub lost: u64,
}

/// A captured packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedPacket {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The interface on which it arrived.
    pub iif: String,
    /// The interface on which it was to leave.
    pub oif: String,
    /// The rule that logged it.
    pub rule: u32,
    /// The rule's `group`.
    pub group: u16,
    /// The rule's `prefix`.
    pub prefix: String,
    /// Whether it begins with an Ethernet header.
    pub ethernet: bool,
    /// Its first bytes, in base64.
    pub bytes: String,
    /// Its original length.
    pub length: u32,
}
