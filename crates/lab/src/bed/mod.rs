//! Where a trial runs: hosts (network namespaces) and the cables between them.

mod relay;

use std::fmt;
use std::net::IpAddr;

use adit_interop::failure::Result;
use adit_interop::net::Namespace;
use adit_sim::Impairment;
use serde::{Deserialize, Serialize};

pub use relay::{Relay, RelayCounters};

/// What the ends of the cables leave to each other.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum LinkMode {
    /// As veth comes: super-packets cross the cable whole.
    Offload,
    /// Every packet crosses alone, and the receiver's kernel merges them again: a network card with GRO.
    WireGro,
    /// Every packet crosses alone and stays alone.
    Wire,
}

impl fmt::Display for LinkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkMode::Offload => "offload",
            LinkMode::WireGro => "wire-gro",
            LinkMode::Wire => "wire",
        })
    }
}

/// Packets that the kernel dropped so far, all namespaces together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// Datagrams at full socket buffers, on the way in and on the way out, IPv4 and IPv6.
    pub sockets: u64,
    /// Packets at TUN devices.
    pub tun: u64,
    /// Packets at the cables' ends.
    pub cables: u64,
}

/// A server and its clients, joined by cables.
#[derive(Debug)]
pub struct Bed {
    relay: Option<Relay>,
    mode: LinkMode,
    /// Where the server runs.
    pub server: Namespace,
    /// Where the clients run, at least one.
    pub clients: Vec<Namespace>,
}

impl Bed {
    /// One client and one cable.
    ///
    /// # Errors
    /// The kernel or `ip` refused, with what it said.
    pub fn pair(mode: LinkMode) -> Result<Bed> {
        let _ = mode;
        Err("not built yet".into())
    }

    /// Up to 250 clients' hosts and a server's at one switch, through which clients do not see each other.
    ///
    /// # Errors
    /// As [`Bed::pair`].
    pub fn star(clients: u16, mode: LinkMode) -> Result<Bed> {
        let _ = (clients, mode);
        Err("not built yet".into())
    }

    /// One client, a [`Relay`] that impairs, the server. `impairment` is that from the client, then that from the server.
    /// The mode is [`LinkMode::Wire`].
    ///
    /// # Errors
    /// As [`Bed::pair`].
    pub fn line(impairment: [Impairment; 2], seed: u64) -> Result<Bed> {
        let _ = (impairment, seed);
        Err("not built yet".into())
    }

    /// What the cables' ends leave to each other.
    #[must_use]
    pub fn mode(&self) -> LinkMode {
        self.mode
    }

    /// The server's address outside of any tunnel.
    #[must_use]
    pub fn server_outer(&self, v6: bool) -> IpAddr {
        let _ = v6;
        IpAddr::from([192, 0, 2, 1])
    }

    /// A client's address outside of any tunnel.
    #[must_use]
    pub fn client_outer(&self, client: usize, v6: bool) -> IpAddr {
        let _ = (client, v6);
        IpAddr::from([192, 0, 2, 2])
    }

    /// The largest frame that leaves the first client's host while `while_running` sends, in bytes with the Ethernet header.
    /// Only the first few thousand frames are looked at.
    ///
    /// # Errors
    /// `tcpdump` failed, no frame was seen, or what `while_running` says.
    pub fn largest_frame(&self, while_running: impl FnOnce() -> Result<()>) -> Result<u64> {
        while_running()?;
        Err("not built yet".into())
    }

    /// Whether a largest frame of this many bytes is possible in this bed's mode.
    ///
    /// # Errors
    /// It is not: the label would lie, and how.
    pub fn check_mode(&self, largest: u64) -> std::result::Result<(), String> {
        let _ = largest;
        Err("not built yet".into())
    }

    /// The middle host of a [`Bed::line`].
    #[must_use]
    pub fn relay(&self) -> Option<&Relay> {
        self.relay.as_ref()
    }

    /// What the kernel dropped so far.
    ///
    /// # Errors
    /// The counters could not be read.
    pub fn drops(&self) -> Result<Drops> {
        Err("not built yet".into())
    }
}
