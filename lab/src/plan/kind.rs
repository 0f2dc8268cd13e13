//! The kinds of scenario, and the axes that each has.

use serde::{Deserialize, Serialize};

use super::axis::Axis;

/// What `adit-lab list` says of a kind, and what the schema allows.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// Which kind.
    pub kind: Kind,
    /// As it is written in a file.
    pub name: &'static str,
    /// In one line.
    pub what: &'static str,
    /// The axes that it has besides `subjects`; those of the first group are part of every point.
    pub axes: &'static [Axis],
}

/// Defines the kinds: how plans write each, what `adit-lab list` says of it, and its axes.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal: $what:literal, [$($axis:ident),*];)+) => {
        /// What a trial of a scenario does.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Kind {
            $($(#[$doc])* $kind,)+
        }

        /// All kinds.
        pub const ALL: &[Description] = &[
            $(Description { kind: Kind::$kind, name: $name, what: $what, axes: &[$(Axis::$axis),*] },)+
        ];
    };
}

kinds! {
    /// Bulk in both directions by turns.
    Throughput "throughput":
        "bulk from all clients at once, up and then down",
        [Link, Clients, Streams, Workload, Cipher, Outer];
    /// The highest rate of datagrams at no loss and at half a percent.
    Udp "udp":
        "datagrams on a fixed schedule: the highest rate at 0 and at 0.5 % loss, and their delay at half of it",
        [Link, Clients, Packet, Cipher, Outer];
    /// Round trips, idle and under load.
    Latency "latency": "round trips, idle and during bulk", [Link, Cipher, Outer];
    /// Bulk and round trips through a host that loses, reorders and delays.
    Loss "loss": "bulk and round trips through a host that loses or reorders packets", [Pattern, Loss, Cipher, Outer];
    /// The same total rate over more and more clients.
    Growth "growth":
        "the same total rate over more and more clients: CPU and memory against their number",
        [Clients, TotalMbps, Link];
    /// Clients that come, faster and faster.
    Connections "connections":
        "handshakes at a rising rate until the server refuses or delays",
        [Sessions, Hosts, Clientele, Storm];
    /// More clients than the server can take, then few.
    Overload "overload":
        "half again as many handshakes as the server can take, then few: what it takes to recover",
        [Sessions, Hosts];
    /// Bulk while the control channel is busy.
    Control "control": "bulk while another client sends control messages and rekeys", [Rate, Link];
    /// Round trips and bulk beside a peer that does its worst.
    Hostile "hostile":
        "round trips and bulk of an honest client while a client or a stranger does its worst",
        [Hostile, Rate, Link];
    /// Memory after this many gigabytes.
    Volume "volume": "memory after so many gigabytes", [Gigabytes];
    /// One stream through a database, and what it left there.
    Postgres "postgres":
        "one iperf3 stream and idle round trips through a database, what they cost it, and whether its tables have every packet",
        [Idle];
    /// A steady rate through a database whose disk must not fill.
    Soak "soak": "a steady rate through a database that keeps 1 GB: whether its disk use stays bounded", [TotalMbps];
    /// Sealing and opening without I/O.
    InMemory "in-memory": "sealing and opening without I/O", [Cipher, Packet];
    /// Handshakes of two engines without I/O.
    Handshakes "handshakes": "handshakes of two engines without I/O", [];
    /// Instructions of the data path's pieces, counted by callgrind.
    Instructions "instructions": "instructions of the data path's pieces, counted by callgrind", [Piece];
}

impl Kind {
    /// Returns its description.
    pub fn description(self) -> &'static Description {
        // The table is in the order of the enum.
        &ALL[self as usize]
    }

    /// Returns whether its subjects are those that pass packets through a database, which no other kind has.
    pub fn through_a_database(self) -> bool {
        matches!(self, Self::Postgres | Self::Soak)
    }

    /// Returns whether its trials need a tunnel, and so subjects; the others measure adit's own engines in this
    /// process.
    pub fn has_subjects(self) -> bool {
        !matches!(self, Self::InMemory | Self::Handshakes | Self::Instructions)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.description().name)
    }
}
