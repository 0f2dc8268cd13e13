//! The meaning of a rule file: names are resolved, types checked, and values numeric. The parser produces it, the
//! compiler consumes it, and `adit filter show` prints it.
//!
//! Every value that a rule can compare is an unsigned number of at most 128 bits in network order: an address, a port,
//! a MAC address, an interface's name padded with zeros to 16 bytes, one bit for each connection state. A prefix or a
//! wildcard is a range of such numbers.

mod field;

use serde::{Deserialize, Serialize};

pub use field::{CtDirection, CtState, Field, Kind};

/// All tables of a file, in file order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ruleset {
    /// The tables.
    pub tables: Vec<Table>,
    /// Whether the file requests to be accepted although some chains, or all, are not reached from a hook.
    pub allow_unhooked: bool,
    /// The file's settings for the connection table.
    pub limits: FlowLimits,
}

/// The bounds of the connection table that a file sets.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct FlowLimits {
    /// The maximum number of flows.
    pub flows: Option<u32>,
    /// The number of flows that one source keeps in a full table.
    pub per_source: Option<u32>,
    /// The maximum number of flows without an answer from one source.
    pub unanswered_per_source: Option<u32>,
}

/// The packets that a table evaluates.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// IPv4 and IPv6.
    Inet,
    /// Ethernet frames with any payload.
    Bridge,
}

/// A table: a namespace of chains, sets and counters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Table {
    /// The packets that it evaluates.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Named and anonymous sets and verdict maps.
    pub sets: Vec<Set>,
    /// Chains, including base chains.
    pub chains: Vec<Chain>,
    /// Named counters.
    pub counters: Vec<NamedCounter>,
}

/// A counter that several rules may share.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedCounter {
    /// Its name.
    pub name: String,
    /// Its initial value.
    pub start: Count,
}

/// The value of a counter.
#[derive(Copy, Clone, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// The number of packets; a super-packet counts as the segments that it will be split into.
    pub packets: u64,
    /// The number of bytes from the network header on.
    pub bytes: u64,
}

/// The index of a set in [`Table::sets`].
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct SetId(pub usize);

/// The index of a chain in [`Table::chains`].
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct ChainId(pub usize);

/// The index of a named counter in [`Table::counters`].
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct CounterId(pub usize);

/// The members of a set, or the keys of a verdict map.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Set {
    /// Its name; `None` for a set within a rule.
    pub name: Option<String>,
    /// The kinds of its keys; more than one is a concatenation.
    pub key: Vec<Kind>,
    /// Whether its elements carry verdicts.
    pub map: bool,
    /// Whether elements may be ranges (`flags interval`).
    pub interval: bool,
    /// Whether overlapping elements are merged (`auto-merge`).
    pub auto_merge: bool,
    /// Whether its elements are only those of the file (`flags constant`).
    pub constant: bool,
    /// Whether elements may have timeouts (`flags timeout`).
    pub timeouts: bool,
    /// The timeout, in nanoseconds, of elements without their own.
    pub timeout: Option<u64>,
    /// The maximum number of elements.
    pub size: Option<u64>,
    /// The source of its members.
    pub members: Members,
    /// The comment, if it has one.
    pub comment: Option<String>,
}

/// The source of a set's members.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Members {
    /// The elements in the file.
    Fixed(Vec<Element>),
    /// The addresses of a connected client (`@client:NAME`), which the filter's driver sets.
    Client(String),
    /// The addresses of a node of a mesh (`@node:NAME`).
    Node(String),
    /// The addresses of all connected clients, or of all nodes, of a group (`@group:NAME`).
    Group(String),
}

impl Default for Members {
    fn default() -> Self {
        Self::Fixed(Vec::new())
    }
}

impl Members {
    /// The prefixes of names in rule files, as in `@client:NAME`.
    pub(crate) const KINDS: [&str; 3] = ["client", "node", "group"];

    /// Returns the named members of one of [`Self::KINDS`].
    pub(crate) fn named(kind: &str, name: String) -> Self {
        match kind {
            "client" => Self::Client(name),
            "node" => Self::Node(name),
            _ => Self::Group(name),
        }
    }

    /// Formats the name as in rule files; `None` for elements in the file.
    pub fn label(&self) -> Option<String> {
        let (kind, name) = match self {
            Self::Client(name) => ("client", name),
            Self::Node(name) => ("node", name),
            Self::Group(name) => ("group", name),
            Self::Fixed(_) => return None,
        };
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '@');
        let quote = if name.chars().all(plain) { "" } else { "\"" };
        Some(format!("@{kind}:{quote}{name}{quote}"))
    }
}

/// One element of a set.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Element {
    /// One range for each part of the key.
    pub key: Vec<Range>,
    /// The verdict, in a map.
    pub verdict: Option<RuleVerdict>,
    /// The remaining time of its membership, if that is limited.
    pub lifetime: Option<Box<Lifetime>>,
    /// The comment, if it has one.
    pub comment: Option<String>,
}

/// How long an element is a member.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct Lifetime {
    /// Nanoseconds from the time when it was added, or `None` for the set's timeout.
    pub timeout: Option<u64>,
    /// The remaining nanoseconds, if fewer than the timeout.
    pub expires: Option<u64>,
}

/// The values from `first` to `last`, both included; they are equal for a single value.
#[derive(Copy, Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Range {
    /// The lowest value.
    pub first: u128,
    /// The highest value.
    pub last: u128,
}

impl Range {
    /// Creates a range of a single value.
    pub const fn single(value: u128) -> Self {
        Self { first: value, last: value }
    }

    /// Returns whether `value` is in the range.
    pub const fn contains(self, value: u128) -> bool {
        self.first <= value && value <= self.last
    }
}

/// A chain of rules.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// The hook through which packets enter the chain, or `None` for a chain that others jump to.
    pub base: Option<Base>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
    /// The comment, if it has one.
    pub comment: Option<String>,
}

/// The properties of a base chain. The hook is always `forward`: traffic that passes through.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Base {
    /// Base chains are evaluated in ascending order; those of equal priority in the order of the file.
    pub priority: i32,
    /// The verdict on packets that no rule decided about: accept or drop.
    pub policy: Policy,
}

/// A base chain's verdict on packets that no rule decided about.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Policy {
    /// The next base chain continues.
    Accept,
    /// The packet is dropped.
    Drop,
}

/// One rule. Its statements are executed from left to right until one does not match or decides.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    /// Its number in `adit filter`, unique in a file.
    pub handle: u32,
    /// The line of the file on which it starts, from 1.
    pub line: u32,
    /// Its statements.
    pub statements: Vec<Statement>,
    /// The comment, if it has one.
    pub comment: Option<String>,
}

/// A part of a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Statement {
    /// Continues only if the packet matches.
    Match(Match),
    /// Counts the packet.
    Counter(Counter),
    /// Continues only within (or beyond) a rate.
    Limit(Limit),
    /// Logs the packet.
    Log(Log),
    /// Decides.
    Verdict(RuleVerdict),
    /// Looks up the key in a map and applies the verdict; continues if there is none.
    VerdictMap {
        /// The fields that are looked up.
        key: Vec<Field>,
        /// The map that they are looked up in.
        map: SetId,
    },
    /// Drops the packet and notifies its sender.
    Reject(Reject),
}

/// A comparison. A packet that lacks one of the fields does not match, negated or not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Match {
    /// The compared fields; more than one is a concatenation.
    pub key: Vec<Field>,
    /// The values to compare with.
    pub test: Test,
    /// `!=`
    pub negate: bool,
}

/// The values that a field is compared with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Test {
    /// The value is in a range; `<`, `>` and prefixes are ranges too. There is one range for each part of the key.
    Within(Vec<Range>),
    /// The value is a member of a set.
    Set(SetId),
    /// `field & mask == value`; for a single field.
    Masked {
        /// The bits to compare.
        mask: u128,
        /// Their value.
        value: u128,
    },
    /// `field & mask != 0`: one of the bits is set (`ct state established,related`, `tcp flags syn`).
    AnyOf(u128),
}

/// The counter of a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Counter {
    /// The rule's own counter.
    Own(Count),
    /// A named counter of the table.
    Named(CounterId),
}

/// `limit rate`: a separate token bucket for each rule.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Limit {
    /// Matches beyond the rate instead of within it.
    pub over: bool,
    /// The amount per `per`.
    pub rate: u64,
    /// Nanoseconds: a second, minute, hour, day or week.
    pub per: u64,
    /// The burst beyond the rate; nftables' default is 5 packets, 0 bytes.
    pub burst: u64,
    /// Whether bytes are counted instead of packets.
    pub bytes: bool,
}

/// The parameters of a `log` statement.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Log {
    /// The text before the line.
    pub prefix: String,
    /// With a group, packets go to `adit filter capture`; without one, a line goes to the log.
    pub group: Option<u16>,
    /// The number of bytes kept of the packet; 0 for all.
    pub snaplen: u32,
}

/// The verdict of a rule.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum RuleVerdict {
    /// This base chain accepts the packet.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Evaluation continues with the next rule.
    Continue,
    /// Continues after the jump to this chain; in a base chain, applies its policy.
    Return,
    /// Continues in that chain, which can return here.
    Jump(ChainId),
    /// Continues in that chain, and does not return here.
    Goto(ChainId),
}

/// The way in which a sender is notified.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Reject {
    /// A TCP reset; only TCP matches.
    TcpReset,
    /// ICMP destination unreachable with this code; only IPv4 matches.
    Icmp(u8),
    /// ICMPv6 destination unreachable with this code; only IPv6 matches.
    Icmpv6(u8),
    /// ICMP or ICMPv6, depending on the packet's family.
    Icmpx(Icmpx),
}

/// Reasons that exist in both families. Plain `reject` is `PortUnreachable`.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Icmpx {
    /// IPv4 code 0, IPv6 code 0.
    NoRoute,
    /// IPv4 code 3, IPv6 code 4.
    PortUnreachable,
    /// IPv4 code 1, IPv6 code 3.
    HostUnreachable,
    /// IPv4 code 13, IPv6 code 1.
    AdminProhibited,
}
