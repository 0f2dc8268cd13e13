//! The metadata that callers pass with a frame, and their selection of flows.

use adit_wire::VnetHeader;

use crate::compile::IpRange;
use crate::evaluate::IfName;
use crate::packet::Layer;

/// The origin and destination of a frame, and its metadata from the device.
#[derive(Copy, Clone, Debug)]
pub struct FrameContext {
    /// The layer at which the frame begins.
    pub layer: Layer,
    /// The VLAN tag next to the frame.
    pub vlan: Option<u16>,
    /// The header of a super-packet; all zeros for an ordinary packet.
    pub vnet: VnetHeader,
    /// The interface on which the frame arrived.
    pub iif: IfName,
    /// The interface on which the frame will leave.
    pub oif: IfName,
    /// The tunnel peers of the frame.
    pub peers: Peers,
    /// Separates fragments that must not be combined: one zone for each direction or peer.
    pub zone: u32,
}

/// The tunnel peers that a frame comes from and goes to, with the numbers of
/// [`Firewall::set_peer`](super::Firewall::set_peer); `None` means no peer or all peers.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Peers {
    /// The peer that sent the frame.
    pub from: Option<u32>,
    /// The peer that the frame goes to.
    pub to: Option<u32>,
}

/// The flows that [`Firewall::flush`](super::Firewall::flush) ends.
#[derive(Copy, Clone, Debug)]
pub enum Flush<'a> {
    /// All flows.
    All,
    /// Flows from or to these addresses.
    Addresses(&'a [IpRange]),
    /// Flows from or to a client, with the addresses that it has.
    Client(&'a str, &'a [IpRange]),
}
