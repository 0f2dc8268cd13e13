//! The protocol of the control socket, which programs such as `tinc dump` speak with a daemon.
//!
//! A client sends `0 ^COOKIE 0`, where the cookie is in the daemon's pid file. The daemon answers `0 NAME 17.7` and `4 0 PID`. Requests are
//! `18 TYPE ...`. The rows of a list are lines `18 TYPE ...`, and its end is `18 TYPE`; other requests are answered by `18 TYPE CODE`.
//!
//! [`client`] is the end of the commands, [`server`] that of the daemon.

pub mod client;
pub mod rows;
pub mod server;

/// The number that requests and answers begin with.
const CONTROL: &str = "18";

/// Length of the longest line, bytes.
pub const MAX_LINE: usize = 8192;

/// Length of a cookie, characters.
pub const COOKIE_LEN: usize = 64;

/// The type of a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Ends the daemon.
    Stop = 0,
    /// Makes the daemon read its files again.
    Reload = 1,
    /// Lists the nodes.
    Nodes = 3,
    /// Lists the edges.
    Edges = 4,
    /// Lists the subnets.
    Subnets = 5,
    /// Lists the connections.
    Connections = 6,
    /// Forgets unreachable nodes.
    Purge = 8,
    /// Sets the debug level.
    Debug = 9,
    /// Connects again at once.
    Retry = 10,
    /// Ends the connection with a node.
    Disconnect = 12,
    /// Lists the counters of each node.
    Traffic = 13,
    /// Sends copies of packets.
    Pcap = 14,
    /// Sends log lines.
    Log = 15,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Stop,
        Self::Reload,
        Self::Nodes,
        Self::Edges,
        Self::Subnets,
        Self::Connections,
        Self::Purge,
        Self::Debug,
        Self::Retry,
        Self::Disconnect,
        Self::Traffic,
        Self::Pcap,
        Self::Log,
    ];

    /// Returns the number on the wire.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the type with a number.
    pub fn of(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| i32::from(kind.number()) == number)
    }
}
