//! `dev tap`: frames find their peer by MAC address.
//!
//! A server's plane is a switch. It learns which peer a station is behind from the frames that the peer sends, and
//! sends frames for the station only to that peer. Frames for a group or an unknown station are flooded to all peers,
//! at a limited rate. A client's plane has one peer, which gets every frame.
//!
//! In a mesh, every node's plane is a switch, and sends what its device delivers to the other nodes. Frames of peers go
//! only to the device, so no frame goes around in a circle, and [`SourceGuard`] checks their addresses.
//!
//! With VLANs ([`vlans`]), the switch knows each station in its VLAN, and a frame reaches only the peers of its VLAN.
//!
//! As in the reference implementation, a station moves to the peer that last sent a frame from it, because stations do roam. A client can
//! therefore take over the frames for another client's station, as it could at any switch; it cannot take over the device's own address.

mod flood;
mod guard;
mod macs;
mod questions;
mod vlans;

use std::sync::{Arc, OnceLock};

use adit_engine::{Instant, PeerId, TokenBucket, VlanId, Vlans};
use adit_wire::ethernet::Ethernet;

pub(crate) use flood::{Floods, PEER_COPIES, TOTAL_COPIES};
pub(crate) use guard::SourceGuard;
pub use macs::{MACS_PER_PEER, MAX_MACS, MacTotals};
pub(crate) use macs::{Macs, StationId};
pub(crate) use questions::StationQuestions;
pub(crate) use vlans::{OnDevice, take_vlan};

use crate::format::Format;
use crate::hand_up::Unpeered;
use crate::peer::Peer;
use crate::routes::Routes;
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
    /// The addresses that only their owners may use. If it is set, peers without routes neither send nor get frames.
    pub guard: OnceLock<SourceGuard>,
    /// If it is set, the control plane must allow each station.
    pub questions: OnceLock<StationQuestions>,
    /// If it is set, frames are sorted into VLANs.
    pub vlans: OnceLock<Vlans>,
}

impl Switch {
    /// Returns whether a peer may send and get frames.
    pub(crate) fn is_open(&self, routes: &Routes, peer: PeerId) -> bool {
        self.guard.get().is_none() || routes.has_any(peer)
    }

    /// Forgets a peer's stations.
    pub(crate) fn remove(&self, peer: PeerId) {
        self.macs.remove(peer);
        if let Some(questions) = self.questions.get() {
            questions.remove(peer);
        }
    }

    /// Processes the control plane's answer about a station. `alive` returns whether the peer is still in the table of
    /// peers and may send frames.
    pub(crate) fn answer(
        &self,
        station: StationId,
        peer: PeerId,
        allowed: bool,
        now: Instant,
        alive: impl Fn() -> bool,
    ) {
        let Some(questions) = self.questions.get() else { return };
        // A station for which there is no room is like one that was refused.
        let allowed = allowed && self.macs.claim(station, peer, now, alive).is_ok();
        questions.answer(station.mac(), peer, allowed, now);
    }

    /// Returns the peers that get the flooded frames of a VLAN.
    pub(crate) fn receivers<'t, F: Format>(
        &self,
        peers: &'t PeerTable<F>,
        routes: &Routes,
        vlan: Option<VlanId>,
    ) -> impl Iterator<Item = &'t Arc<Peer<F>>> {
        peers.ends().filter(move |peer| peer.vlan == vlan && self.is_open(routes, peer.id))
    }
}

/// The destination of a frame from the device, and the offset of its IP packet (its end if it carries none).
#[derive(Debug)]
pub(crate) struct EgressFrame<F: Format> {
    /// The peer, or `None` for all peers.
    pub peer: Option<Arc<Peer<F>>>,
    pub l2: usize,
}

/// The station that the last frame went to, and its peer.
pub(crate) type LastStation<F> = Option<(StationId, Arc<Peer<F>>)>;

/// Looks up one frame of the device, which belongs to this VLAN. `last` is the station looked up most recently.
pub(crate) fn outward<F: Format>(
    switch: &Switch,
    client: bool,
    peers: &PeerTable<F>,
    (frame, vlan): (&[u8], Option<VlanId>),
    last: &mut LastStation<F>,
) -> Result<EgressFrame<F>, DropReason> {
    let header = Ethernet::parse(frame).ok_or(DropReason::NotEthernet)?;
    let l2 = header.ip(frame).unwrap_or(frame.len());
    if client {
        let peer = Some(peers.latest().cloned().ok_or(DropReason::NoRoute)?);
        return Ok(EgressFrame { peer, l2 });
    }
    let station = StationId::new(vlan, header.destination);
    if let Some((known, peer)) = last
        && *known == station
    {
        return Ok(EgressFrame { peer: Some(Arc::clone(peer)), l2 });
    }
    let peer = switch.macs.owner(station).and_then(|id| peers.get(id)).cloned();
    if let Some(peer) = &peer {
        *last = Some((station, Arc::clone(peer)));
    }
    Ok(EgressFrame { peer, l2 })
}

/// Looks up one frame of the device for a control plane that knows all stations. Without a peer, the frame is the control plane's: it is for many
/// nodes, or its sender or receiver is not known. `sender` is the station of this host that sent the last frame.
pub(crate) fn outward_of_known<F: Format>(
    switch: &Switch,
    peers: &PeerTable<F>,
    frame: &[u8],
    (last, sender): (&mut LastStation<F>, &mut Option<StationId>),
    clock: fn() -> Instant,
) -> Result<EgressFrame<F>, DropReason> {
    let EgressFrame { peer, l2 } = outward(switch, false, peers, (frame, None), last)?;
    let source = Ethernet::parse(frame).ok_or(DropReason::NotEthernet)?.source;
    let source = StationId::new(None, source);
    if *sender != Some(source) {
        let is_own = switch.macs.heard(source, Unpeered::Host.owner(), clock());
        *sender = is_own.then_some(source);
    }
    let peer = peer.filter(|_| *sender == Some(source));
    Ok(EgressFrame { peer, l2 })
}

/// Returns the channel to a peer's end for the packet of a frame.
pub(crate) fn channel<F: Format>(
    peers: &PeerTable<F>,
    peer: Arc<Peer<F>>,
    packet: &[u8],
) -> Arc<Peer<F>> {
    let end = peers.slot(peer.id).filter(|end| end.is_divided());
    end.map_or(peer, |end| Arc::clone(end.channel(packet)))
}
