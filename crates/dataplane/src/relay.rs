//! The treatment of packets from one peer to another.

use adit_engine::PeerId;

/// The treatment of packets from one peer to another.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Relay {
    /// All packets go to the TUN device; the kernel's routes and firewall decide.
    #[default]
    Kernel,
    /// Packets are relayed inside the plane (`client-to-client`).
    Direct,
    /// Packets are dropped and counted.
    Deny,
    /// Packets from or to a peer with at least this id, a client of this host, are relayed inside the plane. All others go to the TUN
    /// device, as with [`Self::Kernel`]. A client's destinations without a route are reported like those of the device.
    Clients(PeerId),
}

impl Relay {
    /// Returns whether a peer is a client of this host, for which packets are relayed.
    pub(crate) fn is_client(self, peer: PeerId) -> bool {
        matches!(self, Self::Clients(first) if peer >= first)
    }

    /// Returns whether packets between two peers stay inside the plane.
    pub(crate) fn is_inside(self, from: PeerId, to: PeerId) -> bool {
        match self {
            Self::Kernel => false,
            Self::Direct | Self::Deny => true,
            Self::Clients(_) => self.is_client(from) || self.is_client(to),
        }
    }

    /// Returns whether only a rule, not a chain's policy, can accept packets between peers.
    pub(crate) fn needs_rule(self) -> bool {
        matches!(self, Self::Kernel | Self::Deny)
    }
}
