//! `dev tap`: frames find their peer by MAC address.
//!
//! A server's plane is a switch. It learns which peer a station is behind from the frames that the peer sends, and
//! sends frames for the station only to that peer. Frames for a group or an unknown station are flooded to all peers,
//! at a limited rate. A client's plane has one peer, which gets every frame.
//!
//! As in the reference implementation, a station moves to the peer that last sent a frame from it, since stations do
//! roam. A client can therefore take over the frames for another client's station, as it could at any switch; it cannot
//! take over the device's own address.

mod flood;
mod macs;

use std::sync::Arc;

use adit_engine::TokenBucket;
use adit_wire::ethernet::{Ethernet, Mac};

pub(crate) use flood::{Floods, PEER_COPIES, TOTAL_COPIES};
pub(crate) use macs::Macs;
pub use macs::{MACS_PER_PEER, MAX_MACS, MacTotals};

use crate::format::Format;
use crate::peer::Peer;
use crate::stats::DropReason;
use crate::tables::PeerTable;

/// Additional state of a plane with a TAP device.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    /// The peer that each station is behind.
    pub macs: Macs,
    /// The limit on copies of frames from the device.
    pub from_device: TokenBucket,
    /// The limit on copies of frames that peers flood.
    pub from_peers: TokenBucket,
}

/// The destination of a frame from the device, and the offset of its IP packet (its end if it carries none).
#[derive(Debug)]
pub(crate) struct EgressFrame<F: Format> {
    /// The peer, or `None` for all peers.
    pub peer: Option<Arc<Peer<F>>>,
    pub l2: usize,
}

/// Looks up one frame of the device. `last` is the station looked up most recently.
pub(crate) fn outward<F: Format>(
    switch: &Switch,
    client: bool,
    peers: &PeerTable<F>,
    frame: &[u8],
    last: &mut Option<(Mac, Arc<Peer<F>>)>,
) -> Result<EgressFrame<F>, DropReason> {
    let header = Ethernet::parse(frame).ok_or(DropReason::NotEthernet)?;
    let l2 = header.ip(frame).unwrap_or(frame.len());
    if client {
        let peer = Some(peers.latest().cloned().ok_or(DropReason::NoRoute)?);
        return Ok(EgressFrame { peer, l2 });
    }
    if let Some((mac, peer)) = last
        && *mac == header.destination
    {
        return Ok(EgressFrame { peer: Some(Arc::clone(peer)), l2 });
    }
    let peer = switch.macs.owner(header.destination).and_then(|id| peers.get(id)).cloned();
    if let Some(peer) = &peer {
        *last = Some((header.destination, Arc::clone(peer)));
    }
    Ok(EgressFrame { peer, l2 })
}
