//! What a rule file means: names resolved, types checked, values as numbers. The language makes it,
//! the compiler takes it, `adit filter show` prints it.
//!
//! Every value that a rule can compare is an unsigned number of at most 128 bits in network order:
//! an address, a port, a MAC, an interface's name padded with zeros to 16 bytes, one bit for each
//! connection state. A prefix or a wildcard is a range of such numbers.

mod field;

pub use field::{CtDirection, CtState, Field, Kind};

/// All tables of a file, in the order in which they were written.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ruleset {
    /// The tables.
    pub tables: Vec<Table>,
    /// Whether the file asks to be taken although no hook leads to some chain, or to any.
    pub allow_unhooked: bool,
    /// What the file says of the table of connections.
    pub limits: FlowLimits,
}

/// Bounds of the table of connections, where a file states them.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct FlowLimits {
    /// Flows at most.
    pub flows: Option<u32>,
    /// Flows that one source keeps in a full table.
    pub per_source: Option<u32>,
    /// Flows without an answer that one source may have.
    pub unanswered_per_source: Option<u32>,
}

/// Which packets a table sees.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// IPv4 and IPv6.
    Inet,
    /// Ethernet frames, whatever they carry.
    Bridge,
}

/// A table: a namespace of chains, sets and counters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Table {
    /// Which packets it sees.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Named and anonymous sets and verdict maps.
    pub sets: Vec<Set>,
    /// Chains, base chains among them.
    pub chains: Vec<Chain>,
    /// Named counters.
    pub counters: Vec<NamedCounter>,
}

/// A counter that several rules may share.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedCounter {
    /// Its name.
    pub name: String,
    /// Its value at the start.
    pub start: Count,
}

/// What a counter holds.
#[derive(Copy, Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Count {
    /// Packets; a super-packet counts as the segments that it will be cut into.
    pub packets: u64,
    /// Bytes from the network header on.
    pub bytes: u64,
}

/// A set in its table: an index into [`Table::sets`].
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct SetId(pub usize);

/// A chain in its table: an index into [`Table::chains`].
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct ChainId(pub usize);

/// A named counter in its table: an index into [`Table::counters`].
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct CounterId(pub usize);

/// Members of a set, or the domain of a verdict map.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Set {
    /// Its name; `None` for one that is written in a rule.
    pub name: Option<String>,
    /// What its keys are made of; more than one is a concatenation.
    pub key: Vec<Kind>,
    /// Whether its elements carry verdicts.
    pub map: bool,
    /// Whether elements may be ranges (`flags interval`).
    pub interval: bool,
    /// Whether elements that overlap become one (`auto-merge`).
    pub auto_merge: bool,
    /// Whether its elements stay as the file states them (`flags constant`).
    pub constant: bool,
    /// Whether elements may have timeouts (`flags timeout`).
    pub timeouts: bool,
    /// Nanoseconds: the timeout of elements that state none.
    pub timeout: Option<u64>,
    /// Elements at most.
    pub size: Option<u64>,
    /// Where its members come from.
    pub members: Members,
    /// The comment, if it has one.
    pub comment: Option<String>,
}

/// Where a set's members come from.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Members {
    /// They are written in the file.
    Fixed(Vec<Element>),
    /// The addresses of a connected client (`@client:NAME`), as the filter's driver says.
    Client(String),
    /// The addresses of all connected clients of a group (`@group:NAME`).
    Group(String),
}

impl Default for Members {
    fn default() -> Self {
        Self::Fixed(Vec::new())
    }
}

/// One element of a set.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Element {
    /// One range for each part of the key.
    pub key: Vec<Range>,
    /// The verdict, in a map.
    pub verdict: Option<RuleVerdict>,
    /// How long it is a member, if not for ever.
    pub lifetime: Option<Box<Lifetime>>,
    /// The comment, if it has one.
    pub comment: Option<String>,
}

/// How long an element is a member.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct Lifetime {
    /// Nanoseconds from the moment at which it was added; `None`: the set's.
    pub timeout: Option<u64>,
    /// Nanoseconds that are left, if they are not all.
    pub expires: Option<u64>,
}

/// Values from `first` to `last`, both included; a single value has both equal.
#[derive(Copy, Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Range {
    /// The lowest value.
    pub first: u128,
    /// The highest value.
    pub last: u128,
}

impl Range {
    /// A single value.
    pub const fn single(value: u128) -> Self {
        Self { first: value, last: value }
    }

    /// Returns whether `value` is within.
    pub const fn contains(self, value: u128) -> bool {
        self.first <= value && value <= self.last
    }
}

/// A chain of rules.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Where packets enter it; `None` for one that others jump to.
    pub base: Option<Base>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
    /// The comment, if it has one.
    pub comment: Option<String>,
}

/// What makes a chain a base chain. The hook is always `forward`: what passes through.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Base {
    /// Base chains are visited in ascending order; those of equal priority as they were written.
    pub priority: i32,
    /// The verdict on what no rule decided: accept or drop.
    pub policy: Policy,
}

/// A base chain's verdict on what no rule decided.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Policy {
    /// The next base chain goes on.
    Accept,
    /// The packet ends here.
    Drop,
}

/// One rule: its statements are carried out from left to right until one does not match or decides.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    /// What `adit filter` calls it; unique in a file.
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
    /// Goes on only if the packet matches.
    Match(Match),
    /// Counts the packet.
    Counter(Counter),
    /// Goes on only within a rate.
    Limit(Limit),
    /// Writes the packet down.
    Log(Log),
    /// Decides.
    Verdict(RuleVerdict),
    /// Looks the key up in a map and does what is found there; goes on if nothing is.
    VerdictMap {
        /// The fields that are looked up.
        key: Vec<Field>,
        /// A map.
        map: SetId,
    },
    /// Drops the packet and tells its sender.
    Reject(Reject),
}

/// A comparison. A packet that lacks one of the fields does not match, negated or not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Match {
    /// What is compared; more than one is a concatenation.
    pub key: Vec<Field>,
    /// With what.
    pub test: Test,
    /// `!=`
    pub negate: bool,
}

/// What a field is compared with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Test {
    /// Is within; `<`, `>` and prefixes are ranges too. One range for each part of the key.
    Within(Vec<Range>),
    /// Is a member.
    Set(SetId),
    /// `field & mask == value`; for a single field.
    Masked {
        /// The bits that count.
        mask: u128,
        /// What they must be.
        value: u128,
    },
    /// `field & mask != 0`: one of the bits is set (`ct state established,related`, `tcp flags syn`).
    AnyOf(u128),
}

/// What a rule counts into.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Counter {
    /// The rule's own.
    Own(Count),
    /// One that the table names.
    Named(CounterId),
}

/// `limit rate`: a token bucket of its own for each rule.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Limit {
    /// Matches beyond the rate instead of within it.
    pub over: bool,
    /// How much per `per`.
    pub rate: u64,
    /// Nanoseconds: a second, minute, hour, day or week.
    pub per: u64,
    /// What may come at once beyond the rate; nftables' default is 5 packets, 0 bytes.
    pub burst: u64,
    /// Counts bytes instead of packets.
    pub bytes: bool,
}

/// `log`
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Log {
    /// The text before the line.
    pub prefix: String,
    /// With one, packets go to `adit filter capture`; without, a line goes to the log.
    pub group: Option<u16>,
    /// Bytes of the packet that are kept; 0 for all.
    pub snaplen: u32,
}

/// What happens with a packet.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum RuleVerdict {
    /// This base chain lets it pass.
    Accept,
    /// It ends here.
    Drop,
    /// The next rule goes on.
    Continue,
    /// Back to behind the jump; in a base chain, its policy.
    Return,
    /// Goes on there, and comes back.
    Jump(ChainId),
    /// Goes on there, and does not come back here.
    Goto(ChainId),
}

/// How a sender is notified.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Reject {
    /// With a TCP reset; only what is TCP matches.
    TcpReset,
    /// ICMP destination unreachable with this code; only IPv4 matches.
    Icmp(u8),
    /// ICMPv6 destination unreachable with this code; only IPv6 matches.
    Icmpv6(u8),
    /// Either, by the packet's family.
    Icmpx(Icmpx),
}

/// Reasons that both families know. Plain `reject` is `PortUnreachable`.
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
