//! The callers' metadata of a frame, and their selection of flows.

use adit_wire::VnetHeader;

use crate::compile::IpRange;
use crate::evaluate::IfName;
use crate::packet::Layer;

/// The origin and destination of a frame, and the device's metadata about it.
#[derive(Copy, Clone, Debug)]
pub struct FrameContext {
    /// The layer at which the frame begins.
    pub layer: Layer,
    /// The VLAN tag next to the frame.
    pub vlan: Option<u16>,
    /// The header of a super-packet; all zeros for a plain one.
    pub vnet: VnetHeader,
    /// The interface by which it arrived.
    pub iif: IfName,
    /// The interface by which it will leave.
    pub oif: IfName,
    /// The tunnel peers of the frame.
    pub peers: Peers,
    /// Separates fragments that must not be combined: one for each direction or peer.
    pub zone: u32,
}

/// The tunnel peers that a frame comes from and goes to, with the numbers of
/// [`Firewall::set_peer`](super::Firewall::set_peer); `None` if it is none, or all.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Peers {
    /// The client that sent it.
    pub from: Option<u32>,
    /// The client that it goes to.
    pub to: Option<u32>,
}

/// The flows that [`Firewall::flush`](super::Firewall::flush) ends.
#[derive(Copy, Clone, Debug)]
pub enum Flush<'a> {
    /// All.
    All,
    /// Flows from or to these addresses.
    Addresses(&'a [IpRange]),
    /// Flows from or to a client, which has these addresses.
    Client(&'a str, &'a [IpRange]),
}
