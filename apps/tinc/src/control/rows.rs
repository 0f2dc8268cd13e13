//! The rows of lists, as words of a line.
//!
//! A row's `Display` is what a daemon sends after the type. Programs that read them split at blanks, so no field may contain any.

use std::fmt;
use std::str::{FromStr, SplitAsciiWhitespace};

use serde::Serialize;

/// The reason why a line is no row.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BadRow(&'static str);

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the daemon's line has no valid {}", self.0)
    }
}

/// The words of a line.
struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn text(&mut self, what: &'static str) -> Result<String, BadRow> {
        self.0.next().map(str::to_owned).ok_or(BadRow(what))
    }

    fn number<T: FromStr>(&mut self, what: &'static str) -> Result<T, BadRow> {
        self.0.next().and_then(|word| word.parse().ok()).ok_or(BadRow(what))
    }

    fn hex(&mut self, what: &'static str) -> Result<u32, BadRow> {
        self.0.next().and_then(|word| u32::from_str_radix(word, 16).ok()).ok_or(BadRow(what))
    }

    /// Reads `HOST port PORT`.
    fn address(&mut self) -> Result<Endpoint, BadRow> {
        let host = self.text("host")?;
        if self.0.next() != Some("port") {
            return Err(BadRow("port"));
        }
        Ok(Endpoint { host, port: self.text("port")? })
    }
}

fn words(line: &str) -> Words<'_> {
    Words(line.split_ascii_whitespace())
}

/// An address, as text. It may be `MYSELF` or `unknown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// The host.
    pub host: String,
    /// The port.
    pub port: String,
}

impl Endpoint {
    /// The host of the daemon's own row.
    pub const MYSELF: &str = "MYSELF";
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.host, self.port)
    }
}

/// Bits of [`NodeRow::status`].
pub mod status {
    /// There is a session with the node.
    pub const VALID_KEY: u32 = 1 << 1;
    /// A session is being negotiated.
    pub const WAITING_FOR_KEY: u32 = 1 << 2;
    /// The search for reachable nodes found it.
    pub const VISITED: u32 = 1 << 3;
    /// The node is reachable.
    pub const REACHABLE: u32 = 1 << 4;
    /// No datagrams are sent to the node itself.
    pub const INDIRECT: u32 = 1 << 5;
    /// The node speaks the protocol of tinc 1.1.
    pub const SPTPS: u32 = 1 << 6;
    /// Datagrams reach the node.
    pub const UDP_CONFIRMED: u32 = 1 << 7;
    /// Of a connection: it is established.
    pub const ACTIVE: u32 = 1 << 8;
    /// Of a connection: it is one to the control socket.
    pub const CONTROL: u32 = 1 << 9;
}

/// Bits of the options of a node or an edge.
pub mod options {
    /// Only neighbours send to the node directly.
    pub const INDIRECT: u32 = 1;
    /// Packets go over TCP alone.
    pub const TCP_ONLY: u32 = 1 << 1;
    /// The path MTU is discovered.
    pub const PMTU_DISCOVERY: u32 = 1 << 2;
    /// The MSS of TCP connections is lowered.
    pub const CLAMP_MSS: u32 = 1 << 3;
}

/// Counters of one direction.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // The fields are those of tinc's line.
pub struct NodeRow {
    pub name: String,
    pub id: String,
    pub address: Endpoint,
    pub cipher: i32,
    pub digest: i32,
    pub mac_length: i32,
    pub compression: i32,
    pub options: u32,
    pub status: u32,
    /// The neighbour on the way, or `-`.
    pub next_hop: String,
    /// The node that datagrams are sent to, or `-`.
    pub via: String,
    /// The number of edges on the way, or -1.
    pub distance: i32,
    pub mtu: i32,
    pub min_mtu: i32,
    pub max_mtu: i32,
    /// When the node became reachable or unreachable, in seconds since 1970; 0: never.
    pub last_change: i64,
    /// The round trip in microseconds, or -1.
    pub rtt: i64,
    pub received: Count,
    pub sent: Count,
}

impl NodeRow {
    /// Returns whether a bit of the status is set.
    pub fn has(&self, bit: u32) -> bool {
        self.status & bit != 0
    }

    /// Returns whether the node is reachable.
    pub fn is_reachable(&self) -> bool {
        self.has(status::REACHABLE)
    }
}

impl FromStr for NodeRow {
    type Err = BadRow;

    fn from_str(line: &str) -> Result<Self, BadRow> {
        let mut words = words(line);
        Ok(Self {
            name: words.text("name")?,
            id: words.text("id")?,
            address: words.address()?,
            cipher: words.number("cipher")?,
            digest: words.number("digest")?,
            mac_length: words.number("MAC length")?,
            compression: words.number("compression")?,
            options: words.hex("options")?,
            status: words.hex("status")?,
            next_hop: words.text("next hop")?,
            via: words.text("via")?,
            distance: words.number("distance")?,
            mtu: words.number("MTU")?,
            min_mtu: words.number("MTU")?,
            max_mtu: words.number("MTU")?,
            last_change: words.number("time")?,
            rtt: words.number("round trip")?,
            received: Count { packets: words.number("counter")?, bytes: words.number("counter")? },
            sent: Count { packets: words.number("counter")?, bytes: words.number("counter")? },
        })
    }
}

impl fmt::Display for NodeRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, id, address, cipher, digest, mac_length, compression, .. } = self;
        let Self { options, status, next_hop, via, distance, mtu, min_mtu, max_mtu, .. } = self;
        let Self { last_change, rtt, received, sent, .. } = self;
        write!(
            f,
            "{name} {id} {address} {cipher} {digest} {mac_length} {compression} {options:x} "
        )?;
        write!(
            f,
            "{status:x} {next_hop} {via} {distance} {mtu} {min_mtu} {max_mtu} {last_change} "
        )?;
        write!(f, "{rtt} {} {} {} {}", received.packets, received.bytes, sent.packets, sent.bytes)
    }
}

/// An edge: one direction of a connection between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // The fields are those of tinc's line.
pub struct EdgeRow {
    pub from: String,
    pub to: String,
    /// Where the first node sees the second one.
    pub address: Endpoint,
    /// The first node's own end.
    pub local: Endpoint,
    pub options: u32,
    pub weight: i32,
}

impl FromStr for EdgeRow {
    type Err = BadRow;

    fn from_str(line: &str) -> Result<Self, BadRow> {
        let mut words = words(line);
        Ok(Self {
            from: words.text("name")?,
            to: words.text("name")?,
            address: words.address()?,
            local: words.address()?,
            options: words.hex("options")?,
            weight: words.number("weight")?,
        })
    }
}

impl fmt::Display for EdgeRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, address, local, options, weight } = self;
        write!(f, "{from} {to} {address} {local} {options:x} {weight}")
    }
}

/// A subnet and the node that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // The fields are those of tinc's line.
pub struct SubnetRow {
    pub subnet: String,
    /// The node, or `(broadcast)`.
    pub owner: String,
}

impl FromStr for SubnetRow {
    type Err = BadRow;

    fn from_str(line: &str) -> Result<Self, BadRow> {
        let mut words = words(line);
        Ok(Self { subnet: words.text("subnet")?, owner: words.text("owner")? })
    }
}

impl fmt::Display for SubnetRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.subnet, self.owner)
    }
}

/// A connection with a neighbour, or with a program that controls the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // The fields are those of tinc's line.
pub struct ConnectionRow {
    /// The neighbour, `<control>`, or `<unknown>`.
    pub name: String,
    pub address: Endpoint,
    pub options: u32,
    pub socket: i32,
    pub status: u32,
}

impl FromStr for ConnectionRow {
    type Err = BadRow;

    fn from_str(line: &str) -> Result<Self, BadRow> {
        let mut words = words(line);
        Ok(Self {
            name: words.text("name")?,
            address: words.address()?,
            options: words.hex("options")?,
            socket: words.number("socket")?,
            status: words.hex("status")?,
        })
    }
}

impl fmt::Display for ConnectionRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, address, options, socket, status } = self;
        write!(f, "{name} {address} {options:x} {socket} {status:x}")
    }
}

/// The counters of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // The fields are those of tinc's line.
pub struct TrafficRow {
    pub name: String,
    pub received: Count,
    pub sent: Count,
}

impl FromStr for TrafficRow {
    type Err = BadRow;

    fn from_str(line: &str) -> Result<Self, BadRow> {
        let mut words = words(line);
        Ok(Self {
            name: words.text("name")?,
            received: Count { packets: words.number("counter")?, bytes: words.number("counter")? },
            sent: Count { packets: words.number("counter")?, bytes: words.number("counter")? },
        })
    }
}

impl fmt::Display for TrafficRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, received, sent } = self;
        write!(f, "{name} {} {} ", received.packets, received.bytes)?;
        write!(f, "{} {}", sent.packets, sent.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of tinc 1.1pre18.
    const NODE: &str = "bob 0416a26ba554 127.0.0.1 port 6552 0 0 0 0 700000c 8da bob bob 1 1518 18 1518 1795699757 261 2 36 0 0";
    const EDGE: &str = "a b 127.0.0.1 port 6552 127.0.0.1 port 6551 700000c 2";
    const SUBNET: &str = "224.0.0.0/4 (broadcast)";
    const CONNECTION: &str = "<control> localhost port unix 0 11 200";
    const TRAFFIC: &str = "alice 1 2 3 4";

    fn again<T: FromStr<Err = BadRow> + fmt::Display>(line: &str) {
        assert_eq!(line.parse::<T>().unwrap().to_string(), line);
        let words: Vec<&str> = line.split(' ').collect();
        for count in 0..words.len() {
            assert!(words[..count].join(" ").parse::<T>().is_err(), "{count} words");
        }
        // Later versions may add words.
        assert!(format!("{line} more").parse::<T>().is_ok());
    }

    #[test]
    fn a_row_of_tinc_is_read_and_written() {
        again::<NodeRow>(NODE);
        again::<EdgeRow>(EDGE);
        again::<SubnetRow>(SUBNET);
        again::<ConnectionRow>(CONNECTION);
        again::<TrafficRow>(TRAFFIC);
    }

    #[test]
    fn the_bits_of_a_node_are_tincs() {
        let row: NodeRow = NODE.parse().unwrap();
        for bit in [status::VALID_KEY, status::REACHABLE, status::SPTPS, status::UDP_CONFIRMED] {
            assert!(row.has(bit));
        }
        assert!(!row.has(status::INDIRECT) && !row.has(status::WAITING_FOR_KEY));
        assert_eq!((row.rtt, row.min_mtu, row.received.bytes), (261, 18, 36));
    }
}
