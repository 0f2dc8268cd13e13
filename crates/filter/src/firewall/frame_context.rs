//! What callers tell of a frame, and of flows.

use adit_wire::VnetHeader;

use crate::compile::IpRange;
use crate::evaluate::IfName;
use crate::packet::Layer;

/// Where a frame came from and will go, and the device's metadata about it.
#[derive(Copy, Clone, Debug)]
pub struct FrameContext {
    /// What the frame begins with.
    pub layer: Layer,
    /// The VLAN tag next to the frame.
    pub vlan: Option<u16>,
    /// Of a super-packet; all zeros for a plain one.
    pub vnet: VnetHeader,
    /// Where it came in.
    pub iif: IfName,
    /// Where it will go out.
    pub oif: IfName,
    /// Between which tunnel peers it goes.
    pub peers: Peers,
    /// Keeps pieces of packets apart that must not be put together: one for each direction or peer.
    pub zone: u32,
}

/// The tunnel peers that a frame comes from and goes to, as [`Firewall::set_peer`](super::Firewall::set_peer) knows them;
/// `None` where it is none, or all.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Peers {
    /// Where it comes from.
    pub from: Option<u32>,
    /// Where it goes to.
    pub to: Option<u32>,
}

/// Which flows [`Firewall::flush`](super::Firewall::flush) ends.
#[derive(Copy, Clone, Debug)]
pub enum Flush<'a> {
    /// All.
    All,
    /// Those from or to these addresses.
    Addresses(&'a [IpRange]),
    /// Those from or to a client, which has these addresses.
    Client(&'a str, &'a [IpRange]),
}
