//! The axes of scenarios and the values on them.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::Kind;
use super::check::{Mistake, all_between, spread};
use crate::record::Point;
use crate::subject::Subject;
use crate::testbed::{LinkMode, MOST_IDLE};

/// The values that a plan gives for an axis.
pub(super) type Values<T> = Option<Spanned<Vec<T>>>;

/// Defines the axes. Each row has the name of the axis in the code, its setting with the default, and its form in a
/// plan: the name, the values in words, and the bounds of numbers.
macro_rules! axes {
    ($(
        $(#[$doc:meta])*
        $axis:ident $field:ident: $type:ty = $default:expr, $name:literal = $values:literal $(in $bounds:expr)?;
    )+) => {
        /// A parameter that differs between the points of a scenario.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Axis {
            $($(#[$doc])* $axis,)+
        }

        impl Axis {
            /// Returns the name of the axis in plans and points, and the values that it allows.
            pub const fn described(self) -> (&'static str, &'static str) {
                match self {
                    $(Axis::$axis => ($name, $values),)+
                }
            }
        }

        /// All parameters of a trial except its subject.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        pub struct Settings {
            $($(#[$doc])* pub $field: $type,)+
            /// How long flows run before they are measured.
            pub warmup: Duration,
            /// How long they are measured.
            pub length: Duration,
        }

        impl Default for Settings {
            fn default() -> Self {
                Settings {
                    $($field: $default,)+
                    warmup: Duration::from_millis(500),
                    length: Duration::from_secs(2),
                }
            }
        }

        /// One `[[scenario]]` table.
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub(super) struct ScenarioFile {
            pub(super) name: Option<Spanned<String>>,
            pub(super) kind: Spanned<Kind>,
            pub(super) rounds: Option<Spanned<u32>>,
            pub(super) seconds: Option<Spanned<f64>>,
            pub(super) warmup: Option<Spanned<f64>>,
            pub(super) subjects: Values<Subject>,
            $(pub(super) $field: Values<$type>,)+
        }

        impl ScenarioFile {
            /// Returns the line of each axis that is given, and whether it has at least one value.
            pub(super) fn given(&self) -> Vec<(Axis, Range<usize>, bool)> {
                let mut given = Vec::new();
                $(if let Some(values) = &self.$field {
                    given.push((Axis::$axis, values.span(), values.get_ref().is_empty()));
                })+
                given
            }

            /// Returns every combination of the values on the axes, with the other settings as in `base`.
            pub(super) fn points(&self, base: Settings) -> Result<Vec<(Point, Settings)>, Mistake> {
                let mut all = vec![(Point::default(), base)];
                $(
                    $(all_between(&self.$field, $bounds, Axis::$axis)?;)?
                    spread(&mut all, Axis::$axis, &self.$field, |settings, value| {
                        settings.$field = value;
                    });
                )+
                Ok(all)
            }
        }
    };
}

axes! {
    /// The offloads that the ends of the veth pair leave to each other.
    Link link: LinkMode = LinkMode::Offload, "link" = "offload, wire-gro, wire";
    /// Client hosts, each with a tunnel.
    Clients clients: u16 = 1, "clients" = "1 to 250" in 1..=250;
    /// The number of streams of each client.
    Streams streams: u16 = 1, "streams" = "1 to 64 for each client" in 1..=64;
    /// The kind of traffic.
    Workload workload: Workload = Workload::Tcp, "workload" = "tcp, iperf3, requests";
    /// The data channel's cipher.
    Cipher cipher: String = "AES-256-GCM".to_owned(), "cipher" = "a data channel's cipher, such as AES-256-GCM";
    /// The IP version of the packets that carry the tunnel.
    Outer outer: Outer = Outer::Ipv4, "outer" = "ipv4, ipv6";
    /// Sizes of the datagrams.
    Packet packet: Packet = Packet::Bytes(1400), "packet" = "64 to 65000 bytes, imix, jumbo, super";
    /// The pattern of packet loss.
    Pattern pattern: Pattern = Pattern::Random, "pattern" = "random, bursts, reorder";
    /// The share of lost packets, in percent.
    Loss loss: f64 = 0.0, "loss" = "0 to 100 percent" in 0.0..=100.0;
    /// Control messages, management commands, scrapes or the actions of a hostile peer a second.
    Rate rate: u32 = 0, "rate" = "control messages, commands or hostile acts, a second" in 0..=10_000;
    /// The hostile peer.
    Hostile hostile: Hostile = Hostile::None, "hostile" = "none, client, stranger";
    /// The number of sessions of each host.
    Sessions sessions: u16 = 2, "sessions" = "1 to 20 for each host" in 1..=20;
    /// The number of hosts of the clients.
    Hosts hosts: u16 = 50, "hosts" = "1 to 250" in 1..=250;
    /// The kind of client.
    Clientele clientele: Clientele = Clientele::Engines, "clientele" = "engines, processes";
    /// Whether the clients connect for the first time.
    Storm storm: Storm = Storm::Cold, "storm" = "cold, reconnect";
    /// The rate of all clients together, in Mb/s.
    TotalMbps total_mbps: f64 = 200.0, "total-mbps" = "Mb/s of all clients together" in 0.1..=1e6;
    /// The amount of data that is transferred.
    Gigabytes gigabytes: u32 = 10, "gigabytes" = "how many, ascending" in 1..=10_000;
    /// The number of nodes besides the busy pair.
    Idle idle: u16 = 0, "idle" = "0 to 10 nodes in addition to the busy pair" in 0..=MOST_IDLE;
    /// A piece of the data path.
    Piece piece: String = String::new(), "piece" = "a piece of the data path";
}

impl Axis {
    /// Returns the name of the axis in plans and points.
    pub const fn name(self) -> &'static str {
        self.described().0
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
    /// The kind of traffic.
    Workload {
        /// Unthrottled TCP, by the lab's own generator.
        Tcp = "tcp",
        /// Unthrottled TCP by iperf3, with one stream of one client.
        Iperf3 = "iperf3",
        /// Requests and answers of 16 KiB.
        Requests = "requests",
    }
}

words! {
    /// The IP version of the packets that carry the tunnel.
    Outer {
        /// IPv4.
        Ipv4 = "ipv4",
        /// IPv6.
        Ipv6 = "ipv6",
    }
}

words! {
    /// The pattern of packet loss.
    Pattern {
        /// Each packet independently.
        Random = "random",
        /// In bursts of ten packets on average.
        Bursts = "bursts",
        /// No loss; the share is held back by up to 5 ms and overtaken.
        Reorder = "reorder",
    }
}

words! {
    /// The hostile peer.
    Hostile {
        /// No attacker (the control).
        None = "none",
        /// A client with a certificate.
        Client = "client",
        /// A peer that has at most the shared wrapping key.
        Unauthenticated = "stranger",
    }
}

words! {
    /// The kind of client.
    Clientele {
        /// Client engines in one process, so that their cost is not taken for the server's.
        Engines = "engines",
        /// Processes of the subject's own client.
        Processes = "processes",
    }
}

words! {
    /// Whether clients connect for the first time.
    Storm {
        /// They connect for the first time.
        Cold = "cold",
        /// They all had a session, and lost it at the same instant.
        Reconnect = "reconnect",
    }
}

/// Sizes of datagrams, as IP packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PacketText", into = "String")]
pub enum Packet {
    /// All datagrams have this size in bytes.
    Bytes(u16),
    /// The usual mixture of small, medium and large packets.
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

    fn try_from(text: PacketText) -> Result<Self, String> {
        match text {
            PacketText::Number(bytes) => bytes.to_string().parse(),
            PacketText::Word(word) => word.parse(),
        }
    }
}

impl FromStr for Packet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "imix" => Ok(Self::Imix),
            "jumbo" => Ok(Self::Jumbo),
            "super" => Ok(Self::Super),
            _ => match text.parse() {
                Ok(bytes) if (64..=65_000).contains(&bytes) => Ok(Self::Bytes(bytes)),
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
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Imix => f.write_str("imix"),
            Self::Jumbo => f.write_str("jumbo"),
            Self::Super => f.write_str("super"),
        }
    }
}

impl From<Packet> for String {
    fn from(packet: Packet) -> Self {
        packet.to_string()
    }
}
