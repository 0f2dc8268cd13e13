//! The kinds of scenario, and the axes that each has.

use serde::{Deserialize, Serialize};

use super::axis::Axis;

/// A kind of scenario, as `adit-lab list` prints it and the schema allows it.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// The kind that is described.
    pub kind: Kind,
    /// Its name in a plan file.
    pub name: &'static str,
    /// A description in one line.
    pub what: &'static str,
    /// The axes of the kind besides `subjects`. Axes of the first group are part of every point.
    pub axes: &'static [Axis],
}

/// Defines the kinds: the name of each in plans, its description in `adit-lab list`, and its axes.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal: $what:literal, [$($axis:ident),*];)+) => {
        /// The kind of a scenario. It determines what its trials do.
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
    /// Bulk traffic in both directions in turn.
    Throughput "throughput":
        "bulk from all clients at once, up and then down",
        [Link, Clients, Streams, Workload, Cipher, Outer];
    /// The highest rate of datagrams without loss and with half a percent of loss.
    Udp "udp":
        "datagrams on a fixed schedule: the highest rate at 0 and at 0.5 % loss, and their delay at half of it",
        [Link, Clients, Packet, Cipher, Outer];
    /// Round trips, idle and under load.
    Latency "latency": "round trips, idle and during bulk", [Link, Cipher, Outer];
    /// Bulk traffic and round trips through a host that loses, reorders and delays packets.
    Loss "loss": "bulk and round trips through a host that loses or reorders packets", [Pattern, Loss, Cipher, Outer];
    /// The same total rate over an increasing number of clients.
    Growth "growth":
        "the same total rate over more and more clients: CPU and memory against their number",
        [Clients, TotalMbps, Link];
    /// Clients that connect at an increasing rate.
    Connections "connections":
        "handshakes at a rising rate until the server refuses or delays",
        [Sessions, Hosts, Clientele, Storm];
    /// More clients than the server can handle, then few.
    Overload "overload":
        "half again as many handshakes as the server can take, then few: what it takes to recover",
        [Sessions, Hosts];
    /// Bulk traffic while the control channel is busy.
    Control "control": "bulk while another client sends control messages and rekeys", [Rate, Link];
    /// Bulk traffic while a management client polls the server.
    Management "management":
        "bulk while a management client sends commands to the server, in turn with bulk alone", [Rate, Link];
    /// Bulk traffic while the server's metrics are scraped.
    Scrape "scrape":
        "bulk while the server's metrics are scraped, in turn with bulk alone", [Rate, Link];
    /// Round trips and bulk traffic next to a hostile peer.
    Hostile "hostile":
        "round trips and bulk of an honest client while a client or a stranger does its worst",
        [Hostile, Rate, Link];
    /// Bulk traffic between two members of a mesh, directly and through a relay.
    Relay "relay":
        "bulk between two members of a mesh: on their direct path, and then through a third one that relays",
        [Link];
    /// Memory use after this many gigabytes.
    Volume "volume": "memory after so many gigabytes", [Gigabytes];
    /// One stream through a database, and the rows that it left.
    Postgres "postgres":
        "one iperf3 stream and idle round trips through a database, what they cost it, and whether its tables have every packet",
        [Idle];
    /// A steady rate through a database whose disk must not fill up.
    Soak "soak": "a steady rate through a database that keeps 1 GB: whether its disk use stays bounded", [TotalMbps];
    /// Sealing and opening without I/O.
    InMemory "in-memory": "sealing and opening without I/O", [Cipher, Packet];
    /// Handshakes of two engines without I/O.
    Handshakes "handshakes": "handshakes of two engines without I/O", [];
    /// Instructions of the data path's pieces, counted by callgrind.
    Instructions "instructions": "instructions of the data path's pieces, counted by callgrind", [Piece];
}

impl Kind {
    /// Returns the description of the kind.
    pub fn description(self) -> &'static Description {
        // The table is in the order of the enum.
        &ALL[self as usize]
    }

    /// Returns whether its subjects send packets through a database.
    pub fn through_a_database(self) -> bool {
        matches!(self, Self::Postgres | Self::Soak)
    }

    /// Returns whether its trials need a tunnel, and so subjects; the other kinds measure adit's engines in this
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
