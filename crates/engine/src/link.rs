use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The socket of the driver on which a datagram arrived.
#[derive(
    Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize,
)]
pub struct SocketId(pub u16);

/// The way to a peer: the source of a packet and the destination of its answer.
///
/// For datagrams, it consists of the socket, the local address to which the packet was sent (a server with several
/// addresses must answer from the same one) and the remote address. For streams, it is an id. Engines treat it as a key
/// and read only the remote address.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Link {
    path: Path,
    remote: SocketAddr,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
enum Path {
    Datagram { socket: SocketId, local: Option<IpAddr> },
    Stream { id: u64 },
}

impl Link {
    /// Creates a datagram path. IPv4-mapped IPv6 addresses are reduced to IPv4, so each remote address maps to a single
    /// key.
    pub fn datagram(socket: SocketId, local: Option<IpAddr>, remote: SocketAddr) -> Self {
        // Rebuild the address only if it is mapped, because a link-local address needs its scope.
        let remote = match remote.ip().to_canonical() {
            IpAddr::V4(v4) => SocketAddr::from((v4, remote.port())),
            IpAddr::V6(_) => remote,
        };
        let local = local.map(|ip| ip.to_canonical());
        Self { path: Path::Datagram { socket, local }, remote }
    }

    /// Creates the link of a stream; the driver assigns `id`.
    pub fn stream(id: u64, remote: SocketAddr) -> Self {
        Self { path: Path::Stream { id }, remote }
    }

    /// Returns the peer's address.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns the socket of a datagram path.
    pub fn socket(&self) -> Option<SocketId> {
        match self.path {
            Path::Datagram { socket, .. } => Some(socket),
            Path::Stream { .. } => None,
        }
    }

    /// Returns the local address of a datagram path, where the socket reports it.
    pub fn local(&self) -> Option<IpAddr> {
        match self.path {
            Path::Datagram { local, .. } => local,
            Path::Stream { .. } => None,
        }
    }

    /// Returns the id of a stream.
    pub fn stream_id(&self) -> Option<u64> {
        match self.path {
            Path::Stream { id } => Some(id),
            Path::Datagram { .. } => None,
        }
    }

    /// Returns whether the underlying transport delivers in order and without loss.
    pub fn is_stream(&self) -> bool {
        matches!(self.path, Path::Stream { .. })
    }
}

/// The transport to a peer.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Hash)]
pub enum Transport {
    /// Datagrams.
    #[default]
    Udp,
    /// A stream with length-prefixed frames.
    Tcp,
}

/// Address families to which a name may resolve.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Hash)]
pub enum Family {
    /// Either, in the resolver's order.
    #[default]
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// A peer to dial. The driver resolves the name. Dialling the same target again tries the next of its addresses.
#[derive(Clone, Debug, Default, Eq, PartialEq, Hash)]
pub struct Target {
    /// Host name or address literal.
    pub host: String,
    /// Port.
    pub port: u16,
    /// UDP or TCP.
    pub transport: Transport,
    /// Allowed address families.
    pub family: Family,
    /// The driver's proxy through which to reach it, counted from 0.
    pub proxy: Option<u8>,
    /// The timeout for connecting and for the first answer, where it differs from the default.
    pub wait: Option<Duration>,
}
