//! The axes of scenarios and the values on them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::testbed::LinkMode;

/// Something that differs between the points of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// What the ends of the veth pair leave to each other.
    Link,
    /// Client hosts, each with a tunnel.
    Clients,
    /// Streams of each client.
    Streams,
    /// What the streams are.
    Workload,
    /// The data channel's cipher.
    Cipher,
    /// Which IP the tunnel's packets travel in.
    Outer,
    /// Sizes of the datagrams.
    Packet,
    /// How packets are lost.
    Pattern,
    /// How many of them, in percent.
    Loss,
    /// Control messages a second, or what a hostile peer does a second.
    Rate,
    /// Who does its worst.
    Hostile,
    /// Sessions of each host.
    Sessions,
    /// Hosts that clients come from.
    Hosts,
    /// What the clients are.
    Clientele,
    /// Whether they come for the first time.
    Storm,
    /// Mb/s of all clients together.
    TotalMbps,
    /// How much is carried.
    Gigabytes,
    /// Nodes beside the busy pair.
    Idle,
    /// A piece of the data path.
    Piece,
}

impl Axis {
    /// As it is written in a plan and in a point, and what may stand there.
    pub const fn described(self) -> (&'static str, &'static str) {
        match self {
            Axis::Link => ("link", "offload, wire-gro, wire"),
            Axis::Clients => ("clients", "1 to 250"),
            Axis::Streams => ("streams", "1 to 64 for each client"),
            Axis::Workload => ("workload", "tcp, iperf3, requests"),
            Axis::Cipher => ("cipher", "a data channel's cipher, such as AES-256-GCM"),
            Axis::Outer => ("outer", "ipv4, ipv6"),
            Axis::Packet => ("packet", "64 to 65000 bytes, imix, jumbo, super"),
            Axis::Pattern => ("pattern", "random, bursts, reorder"),
            Axis::Loss => ("loss", "0 to 100 percent"),
            Axis::Rate => ("rate", "control messages, or hostile acts, a second"),
            Axis::Hostile => ("hostile", "none, client, stranger"),
            Axis::Sessions => ("sessions", "1 to 20 for each host"),
            Axis::Hosts => ("hosts", "1 to 250"),
            Axis::Clientele => ("clientele", "engines, processes"),
            Axis::Storm => ("storm", "cold, reconnect"),
            Axis::TotalMbps => ("total-mbps", "Mb/s of all clients together"),
            Axis::Gigabytes => ("gigabytes", "how many, ascending"),
            Axis::Idle => ("idle", "0 to 10 nodes beside the busy pair"),
            Axis::Piece => ("piece", "a piece of the data path"),
        }
    }

    /// As it is written in a plan and in a point.
    pub const fn name(self) -> &'static str {
        self.described().0
    }
}

/// All parameters of a trial except its subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    /// What the ends of the veth pair leave to each other.
    pub link: LinkMode,
    /// Client hosts.
    pub clients: u16,
    /// Streams of each client.
    pub streams: u16,
    /// What the streams are.
    pub workload: Workload,
    /// The data channel's cipher.
    pub cipher: String,
    /// Which IP the tunnel's packets travel in.
    pub outer: Outer,
    /// Sizes of the datagrams.
    pub packet: Packet,
    /// How packets are lost.
    pub pattern: Pattern,
    /// How many of them, in percent.
    pub loss: f64,
    /// Control messages a second, or what a hostile peer does a second.
    pub rate: u32,
    /// Who does its worst.
    pub hostile: Hostile,
    /// Sessions of each host.
    pub sessions: u16,
    /// Hosts that clients come from.
    pub hosts: u16,
    /// What the clients are.
    pub clientele: Clientele,
    /// Whether they come for the first time.
    pub storm: Storm,
    /// Mb/s of all clients together.
    pub total_mbps: f64,
    /// How much is carried.
    pub gigabytes: u32,
    /// Nodes beside the busy pair.
    pub idle: u16,
    /// A piece of the data path.
    pub piece: String,
    /// How long flows run before they count.
    pub warmup: Duration,
    /// How long they count.
    pub length: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            link: LinkMode::Offload,
            clients: 1,
            streams: 1,
            workload: Workload::Tcp,
            cipher: "AES-256-GCM".to_owned(),
            outer: Outer::Ipv4,
            packet: Packet::Bytes(1400),
            pattern: Pattern::Random,
            loss: 0.0,
            rate: 0,
            hostile: Hostile::None,
            sessions: 2,
            hosts: 50,
            clientele: Clientele::Engines,
            storm: Storm::Cold,
            total_mbps: 200.0,
            gigabytes: 10,
            idle: 0,
            piece: String::new(),
            warmup: Duration::from_millis(500),
            length: Duration::from_secs(2),
        }
    }
}

/// A choice of words, written in kebab case.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$word_doc])* #[serde(rename = $word)] $variant,)+ }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $word,)+ })
            }
        }
    };
}

words! {
    /// What the streams are.
    Workload {
        /// TCP as fast as it goes, by the lab's own generator.
        Tcp = "tcp",
        /// The same by iperf3: one stream of one client.
        Iperf3 = "iperf3",
        /// Requests and answers of 16 KiB.
        Requests = "requests",
    }
}

words! {
    /// Which IP the tunnel's packets travel in.
    Outer {
        /// IPv4.
        Ipv4 = "ipv4",
        /// IPv6.
        Ipv6 = "ipv6",
    }
}

words! {
    /// How packets are lost.
    Pattern {
        /// Each by itself.
        Random = "random",
        /// Ten at a time on average.
        Bursts = "bursts",
        /// Not at all: the share is held back by up to 5 ms and overtaken.
        Reorder = "reorder",
    }
}

words! {
    /// Who does its worst.
    Hostile {
        /// No attacker: the control.
        None = "none",
        /// A client with a certificate.
        Client = "client",
        /// A peer with the shared wrapping key at most.
        Unauthenticated = "stranger",
    }
}

words! {
    /// What the clients are.
    Clientele {
        /// Client engines in one process, so that their cost is not taken for the server's.
        Engines = "engines",
        /// Processes of the subject's own client.
        Processes = "processes",
    }
}

words! {
    /// Whether clients come for the first time.
    Storm {
        /// They do.
        Cold = "cold",
        /// They all had a session, and lost it at one instant.
        Reconnect = "reconnect",
    }
}

/// Sizes of datagrams, as IP packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PacketText", into = "String")]
pub enum Packet {
    /// All of this size in bytes.
    Bytes(u16),
    /// The usual mixture of small, middling and large ones.
    Imix,
    /// Larger than any Ethernet frame.
    Jumbo,
    /// A super-packet of 64 KiB, as the kernel hands over a TCP stream; in memory only.
    Super,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a size in bytes, \"imix\", \"jumbo\" or \"super\"")]
enum PacketText {
    Number(u16),
    Word(String),
}

impl TryFrom<PacketText> for Packet {
    type Error = String;

    fn try_from(text: PacketText) -> Result<Packet, String> {
        match text {
            PacketText::Number(bytes) => bytes.to_string().parse(),
            PacketText::Word(word) => word.parse(),
        }
    }
}

impl FromStr for Packet {
    type Err = String;

    fn from_str(text: &str) -> Result<Packet, String> {
        match text {
            "imix" => Ok(Packet::Imix),
            "jumbo" => Ok(Packet::Jumbo),
            "super" => Ok(Packet::Super),
            _ => match text.parse() {
                Ok(bytes) if (64..=65_000).contains(&bytes) => Ok(Packet::Bytes(bytes)),
                _ => Err(format!(
                    "{text:?} is no size of packets; write 64 to 65000, imix, jumbo or super"
                )),
            },
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Packet::Bytes(bytes) => write!(f, "{bytes}"),
            Packet::Imix => f.write_str("imix"),
            Packet::Jumbo => f.write_str("jumbo"),
            Packet::Super => f.write_str("super"),
        }
    }
}

impl From<Packet> for String {
    fn from(packet: Packet) -> String {
        packet.to_string()
    }
}
