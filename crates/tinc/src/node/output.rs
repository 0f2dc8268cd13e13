//! The outputs of a node: actions for its driver, and events.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::SocketId;

use crate::keys::PublicKey;
use crate::legacy::VersionError;
use crate::meta::{IdError, MessageError};
use crate::name::NodeName;
use crate::sptps;
use crate::subnet::{DEFAULT_WEIGHT, Subnet};

/// The number of a connection between neighbours. The node assigns it, and never uses it again.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// An action that a node requests from its driver, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Resolve the name of a host, and report with [`super::Node::resolved`].
    Resolve {
        /// The node at this host.
        node: NodeName,
        /// The name.
        host: String,
        /// The port of the addresses.
        port: u16,
    },
    /// Connect by TCP, and report with [`super::Node::connected`] or [`super::Node::closed`].
    Dial {
        /// The connection.
        connection: ConnectionId,
        /// The address.
        address: SocketAddr,
    },
    /// Send bytes on a connection.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Close a connection. It has no further outputs, and needs no [`super::Node::closed`].
    Close {
        /// The connection.
        connection: ConnectionId,
        /// The peer did not prove who it is: keep the socket open for a while and read nothing, so that it learns nothing and cannot try
        /// again at once.
        tarpit: bool,
    },
    /// Serve a node that accepts an invitation. The connection is no longer the node's.
    Join {
        /// The connection.
        connection: ConnectionId,
        /// The address of the joining node.
        address: SocketAddr,
        /// The key of the joining node for this connection alone.
        key: PublicKey,
        /// The bytes that followed its identification.
        rest: Vec<u8>,
    },
    /// Send a datagram.
    Datagram {
        /// The destination.
        to: SocketAddr,
        /// The socket to send it on. Without one, any of the destination's family will do, always the same.
        socket: Option<SocketId>,
        /// The datagram. [`super::Node::recycle`] takes the buffer back.
        bytes: Vec<u8>,
        /// Do not let it be fragmented, and report with [`super::Node::too_big`] if it does not fit.
        dont_fragment: bool,
        /// The type of service (IPv4) or traffic class (IPv6), if the datagram inherits that of the packet in it.
        tos: Option<u8>,
    },
    /// Send a record of a node that is carried; see [`super::Node::set_carried`].
    Record {
        /// The node.
        to: NodeName,
        /// The record's type, and its data. [`super::Node::recycle`] takes the buffer back.
        bytes: Vec<u8>,
    },
    /// Deliver a packet: an IP packet in router mode, otherwise an Ethernet frame.
    Packet {
        /// The node that sent it.
        from: NodeName,
        /// The packet. [`super::Node::recycle`] takes the buffer back.
        bytes: Vec<u8>,
    },
    /// Run the scripts for an event.
    Script(Script),
    /// Report an event.
    Event(Event),
}

/// An event for which scripts run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Script {
    /// A node became reachable or unreachable: `host-up`, `host-down`, `hosts/NAME-up`, `hosts/NAME-down`.
    Host {
        /// Whether it is reachable.
        up: bool,
        /// The node.
        node: NodeName,
        /// Its address, if known.
        address: Option<SocketAddr>,
    },
    /// A subnet became reachable or unreachable: `subnet-up`, `subnet-down`.
    Subnet {
        /// Whether it is reachable.
        up: bool,
        /// The node that has it.
        node: NodeName,
        /// The node's address; `None` for this node itself.
        address: Option<SocketAddr>,
        /// The subnet.
        subnet: Subnet,
    },
}

impl Script {
    /// Returns the paths of the scripts to run, below the configuration directory.
    pub fn paths(&self) -> Vec<String> {
        let suffix = |up: bool| if up { "up" } else { "down" };
        match self {
            Self::Host { up, node, .. } => {
                vec![format!("host-{}", suffix(*up)), format!("hosts/{node}-{}", suffix(*up))]
            }
            Self::Subnet { up, .. } => vec![format!("subnet-{}", suffix(*up))],
        }
    }

    /// Returns the variables of the environment that describe the event.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let (node, address) = match self {
            Self::Host { node, address, .. } | Self::Subnet { node, address, .. } => {
                (node, address)
            }
        };
        let mut variables = vec![("NODE", node.to_string())];
        if let Some(address) = address {
            variables.push(("REMOTEADDRESS", address.ip().to_string()));
            variables.push(("REMOTEPORT", address.port().to_string()));
        }
        if let Self::Subnet { subnet, .. } = self {
            let text = subnet.to_string();
            let (network, _) = text.split_once('#').unwrap_or((&text, ""));
            variables.push(("SUBNET", network.to_owned()));
            let weight = match subnet.weight() {
                DEFAULT_WEIGHT => String::new(),
                weight => weight.to_string(),
            };
            variables.push(("WEIGHT", weight));
        }
        variables
    }
}

/// An event of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a connection with a neighbour.
    Connected {
        /// The neighbour.
        node: NodeName,
        /// Its TCP address.
        address: SocketAddr,
        /// The time since the connection was accepted or dialled.
        took: Duration,
    },
    /// A connection ended, or was refused.
    Disconnected {
        /// The neighbour, as far as it is known.
        node: Option<NodeName>,
        /// Its TCP address.
        address: SocketAddr,
        /// The reason.
        reason: CloseReason,
    },
    /// A node became reachable or unreachable.
    Reachable {
        /// The node.
        node: NodeName,
        /// Whether it is reachable.
        reachable: bool,
    },
    /// There is a session for packets with a node.
    SessionEstablished(NodeName),
    /// A session has new keys.
    KeysRenewed(NodeName),
    /// A session failed, and starts again.
    SessionRestarted(NodeName),
    /// The handshake of a session failed for a reason that does not pass with time. Reported at most once in ten seconds for each node.
    HandshakeFailed {
        /// The node.
        node: NodeName,
        /// The reason.
        error: sptps::Error,
    },
    /// Datagrams reach a node, and it this one.
    UdpConfirmed {
        /// The node.
        node: NodeName,
        /// Its UDP address.
        address: SocketAddr,
    },
    /// Datagrams no longer reach a node. Packets go over TCP.
    UdpLost(NodeName),
    /// The path MTU to a node was found.
    MtuFixed {
        /// The node.
        node: NodeName,
        /// The length of the largest packet, bytes.
        mtu: u16,
    },
    /// A node sent its public key through the net. Nothing but the net vouches for it: store it in the node's host file.
    KeyLearned {
        /// The node.
        node: NodeName,
        /// Its key.
        key: PublicKey,
    },
    /// Another node seems to have this node's name.
    NameConflict,
    /// Two nodes have the same identifier in datagrams. The second one is refused.
    IdCollision {
        /// The known node.
        known: NodeName,
        /// The refused node.
        refused: NodeName,
    },
    /// A neighbour sent or passed on a line that is invalid. Reported at most once a minute for each neighbour.
    LineRefused {
        /// The neighbour.
        node: NodeName,
        /// The reason.
        error: MessageError,
    },
    /// A neighbour exceeds a limit.
    Excess {
        /// The neighbour.
        node: NodeName,
        /// The limit.
        excess: super::limits::Excess,
    },
}

/// The reason why a connection ends or is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer or the network closed it, or dialling failed.
    #[error("the connection was closed")]
    Closed,
    /// The peer's first line is not an identification.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] sptps::Error),
    /// The peer sent something that is not a message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The versions of both nodes, or their keys, allow no session.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// The peer has this node's name.
    #[error("the peer has this node's own name")]
    OwnName,
    /// There is no host file for the peer.
    #[error("there is no host file for {0}")]
    UnknownNode(NodeName),
    /// The dialled address belongs to another node.
    #[error("{0} answered in place of {1}")]
    OtherNode(NodeName, NodeName),
    /// A program that controls the node came by TCP.
    #[error("control programs must use the control socket")]
    Control,
    /// A message came before its time, or after it.
    #[error("the peer sent a message out of turn")]
    OutOfTurn,
    /// The peer's record does not have the announced length.
    #[error("a packet of {actual} bytes was announced with {announced}")]
    PacketLength {
        /// The announced length.
        announced: u16,
        /// The length.
        actual: usize,
    },
    /// The handshake took too long.
    #[error("the handshake took longer than PingTimeout")]
    HandshakeTimeout,
    /// The peer did not answer a PING.
    #[error("no PONG came within PingTimeout")]
    NoPong,
    /// The peer connected a second time.
    #[error("a newer connection with the same node replaced it")]
    Replaced,
    /// Both nodes connected at the same time, and the other connection remains.
    #[error("both nodes connected at once, and the other connection remains")]
    Simultaneous,
    /// The peer asked for it.
    #[error("the peer asked to close the connection")]
    TermReq,
    /// The peer does not read.
    #[error("the peer does not read: more than {most} bytes wait for it", most = super::MAX_QUEUE)]
    QueueFull,
    /// The operator asked for it.
    #[error("closed on request")]
    Requested,
    /// The host file changed or vanished.
    #[error("the host file changed")]
    HostChanged,
    /// The machine was suspended.
    #[error("the machine was suspended")]
    Suspended,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Specification 15.5.
    #[test]
    fn scripts_get_their_environment() {
        let address = "192.0.2.1:655".parse().ok();
        let node: NodeName = "bob".parse().unwrap();
        let subnet = |text: &str| Script::Subnet {
            up: false,
            node: node.clone(),
            address,
            subnet: text.parse().unwrap(),
        };
        let host = Script::Host { up: true, node: node.clone(), address };
        assert_eq!(host.paths(), ["host-up", "hosts/bob-up"]);
        let pairs = |pairs: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
        };
        let common = [("NODE", "bob"), ("REMOTEADDRESS", "192.0.2.1"), ("REMOTEPORT", "655")];
        assert_eq!(host.environment(), pairs(&common));
        assert_eq!(subnet("10.0.0.0/8").paths(), ["subnet-down"]);
        let with =
            |network, weight| [&common[..], &[("SUBNET", network), ("WEIGHT", weight)]].concat();
        assert_eq!(subnet("10.0.0.0/8").environment(), pairs(&with("10.0.0.0/8", "")));
        assert_eq!(subnet("10.0.0.1#7").environment(), pairs(&with("10.0.0.1", "7")));
    }
}
