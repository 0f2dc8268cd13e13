//! The kinds of scenario, and the axes that each has.

use serde::{Deserialize, Serialize};

use super::axis::Axis;

/// What a trial of a scenario does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Bulk in both directions by turns.
    Throughput,
    /// The highest rate of datagrams at no loss and at half a percent.
    Udp,
    /// Round trips, idle and under load.
    Latency,
    /// Bulk and round trips through a host that loses, reorders and delays.
    Loss,
    /// The same total rate over more and more clients.
    Growth,
    /// Clients that come, faster and faster.
    Connections,
    /// More clients than the server can take, then few.
    Overload,
    /// Bulk while the control channel is busy.
    Control,
    /// Round trips and bulk beside a peer that does its worst.
    Hostile,
    /// Memory after so many gigabytes.
    Volume,
    /// One stream through a database, and what it left there.
    Postgres,
    /// A steady rate through a database whose disk must not fill.
    Soak,
    /// Sealing and opening without I/O.
    InMemory,
    /// Handshakes of two engines without I/O.
    Handshakes,
    /// Instructions of the data path's pieces, counted by callgrind.
    Instructions,
}

/// What `adit-lab list` says of a kind, and what the schema allows.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// Which kind.
    pub kind: Kind,
    /// As it is written in a file.
    pub name: &'static str,
    /// In one line.
    pub what: &'static str,
    /// The axes that it has beside `subjects`; those of the first group are part of every point.
    pub axes: &'static [Axis],
}

use Axis::{
    Cipher, Clientele, Clients, Gigabytes, Hostile, Hosts, Idle, Link, Loss, Outer, Packet,
    Pattern, Piece, Rate, Sessions, Storm, Streams, TotalMbps, Workload,
};

/// All kinds.
pub const ALL: &[Description] = &[
    describe(
        Kind::Throughput,
        "throughput",
        "bulk from all clients at once, up and then down",
        &[Link, Clients, Streams, Workload, Cipher, Outer],
    ),
    describe(
        Kind::Udp,
        "udp",
        "datagrams on a fixed schedule: the highest rate at 0 and at 0.5 % loss, and their delay at half of it",
        &[Link, Clients, Packet, Cipher, Outer],
    ),
    describe(Kind::Latency, "latency", "round trips, idle and during bulk", &[Link, Cipher, Outer]),
    describe(
        Kind::Loss,
        "loss",
        "bulk and round trips through a host that loses or reorders packets",
        &[Pattern, Loss, Cipher, Outer],
    ),
    describe(
        Kind::Growth,
        "growth",
        "the same total rate over more and more clients: CPU and memory against their number",
        &[Clients, TotalMbps, Link],
    ),
    describe(
        Kind::Connections,
        "connections",
        "handshakes at a rising rate until the server refuses or delays",
        &[Sessions, Hosts, Clientele, Storm],
    ),
    describe(
        Kind::Overload,
        "overload",
        "half again as many handshakes as the server can take, then few: what it takes to recover",
        &[Sessions, Hosts],
    ),
    describe(
        Kind::Control,
        "control",
        "bulk while another client sends control messages and rekeys",
        &[Rate, Link],
    ),
    describe(
        Kind::Hostile,
        "hostile",
        "round trips and bulk of an honest client while a client or a stranger does its worst",
        &[Hostile, Rate, Link],
    ),
    describe(Kind::Volume, "volume", "memory after so many gigabytes", &[Gigabytes]),
    describe(
        Kind::Postgres,
        "postgres",
        "one iperf3 stream and idle round trips through a database, what they cost it, and whether its tables have every packet",
        &[Idle],
    ),
    describe(
        Kind::Soak,
        "soak",
        "a steady rate through a database that keeps 1 GB: whether its disk use stays bounded",
        &[TotalMbps],
    ),
    describe(Kind::InMemory, "in-memory", "sealing and opening without I/O", &[Cipher, Packet]),
    describe(Kind::Handshakes, "handshakes", "handshakes of two engines without I/O", &[]),
    describe(
        Kind::Instructions,
        "instructions",
        "instructions of the data path's pieces, counted by callgrind",
        &[Piece],
    ),
];

const fn describe(
    kind: Kind,
    name: &'static str,
    what: &'static str,
    axes: &'static [Axis],
) -> Description {
    Description { kind, name, what, axes }
}

impl Kind {
    /// Its description.
    pub fn description(self) -> &'static Description {
        // Every kind is in the table: the test below asks for each.
        ALL.iter().find(|description| description.kind == self).unwrap_or(&ALL[0])
    }

    /// Whether its subjects are those that pass packets through a database, which no other kind has.
    pub fn through_a_database(self) -> bool {
        matches!(self, Kind::Postgres | Kind::Soak)
    }

    /// Whether its trials need a tunnel, and so subjects; the others measure adit's own engines in this process.
    pub fn has_subjects(self) -> bool {
        !matches!(self, Kind::InMemory | Kind::Handshakes | Kind::Instructions)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.description().name)
    }
}
