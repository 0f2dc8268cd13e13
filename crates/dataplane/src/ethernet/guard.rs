//! Addresses that stations behind other peers may not use.

use adit_engine::PeerId;
use adit_wire::ethernet::Ethernet;
use adit_wire::neighbour::claimed;
use ipnet::IpNet;

use crate::routes::Routes;

/// Networks whose addresses belong to the peers that have routes to them.
#[derive(Debug)]
pub(crate) struct SourceGuard {
    networks: Vec<IpNet>,
}

impl SourceGuard {
    pub(crate) fn new(networks: Vec<IpNet>) -> Self {
        Self { networks }
    }

    /// Returns whether a peer may send a frame: the peer owns every guarded address that the frame claims for its sender.
    pub(crate) fn permits(
        &self,
        routes: &Routes,
        peer: PeerId,
        header: &Ethernet,
        frame: &[u8],
    ) -> bool {
        claimed(header, frame).into_iter().flatten().all(|address| {
            let is_guarded = self.networks.iter().any(|network| network.contains(&address));
            !is_guarded || routes.owner(address) == Some(peer)
        })
    }
}
