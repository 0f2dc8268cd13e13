//! Frames of a TAP device, and flooding.

use std::sync::Arc;

use adit_engine::{PeerId, VlanId};
use adit_wire::VnetHeader;
use adit_wire::split::Segments;

use super::{Destination, Reader, SUPER_PACKET, Transmitter, TxPath};
use crate::ethernet::{
    EgressFrame, Floods, PEER_COPIES, StationId, Switch, TOTAL_COPIES, channel, outward,
    outward_of_known,
};
use crate::format::Format;
use crate::peer::Peer;
use crate::stats::DropReason;
use crate::tables::PeerTable;

/// Additional state of a reader of a TAP device.
#[derive(Debug, Default)]
pub(super) struct Frames<F: Format> {
    /// The station looked up last in this turn, and the peer that it is behind.
    pub(super) last: Option<(StationId, Arc<Peer<F>>)>,
    /// The station that sent the last frame of this turn, if it is this host's.
    sender: Option<StationId>,
    pub(super) floods: Floods,
}

/// The peer that a frame is for, and where its IP packet starts.
type FramePeer<F> = (Arc<Peer<F>>, usize);

impl<F: Format> Frames<F> {
    /// Forgets the stations looked up.
    pub(super) fn forget(&mut self) {
        (self.last, self.sender) = (None, None);
    }
}

impl<F: Format> Reader<'_, F> {
    /// Finds the peer of a frame that only a known station may send, for a control plane that is a switch itself. Other frames are handed up.
    fn route_or_hand_up(
        &mut self,
        switch: &Switch,
        vnet: &VnetHeader,
        len: usize,
    ) -> Result<Option<FramePeer<F>>, DropReason> {
        let frame = self.packet.get_mut(..len).unwrap_or(&mut []);
        let Frames { last, sender, .. } = &mut *self.frames;
        let EgressFrame { peer, l2 } =
            outward_of_known(switch, &self.peers, frame, (last, sender), self.shared.clock)?;
        match peer {
            Some(peer) => {
                let packet = frame.get(l2..).unwrap_or(&[]);
                Ok(Some((channel(&self.peers, peer, packet), l2)))
            }
            None => {
                let _ = self.shared.hand_up_segments(vnet, (frame, l2));
                Ok(None)
            }
        }
    }

    /// Finds the peer of a frame in this VLAN. A frame to flood is kept until the end of the turn, because a peer's lock may be
    /// held.
    pub(super) fn route_frame(
        &mut self,
        switch: &Switch,
        vnet: &VnetHeader,
        (len, vlan): (usize, Option<VlanId>),
    ) -> Result<Option<FramePeer<F>>, DropReason> {
        if self.shared.hand_up.get().is_some() {
            return self.route_or_hand_up(switch, vnet, len);
        }
        let frame = self.packet.get(..len).unwrap_or(&[]);
        let last = &mut self.frames.last;
        let EgressFrame { peer, l2 } =
            outward(switch, self.shared.client, &self.peers, (frame, vlan), last)?;
        if self.is_own(len, l2) {
            return Err(DropReason::Recursive);
        }
        let frame = self.packet.get_mut(..len).unwrap_or(&mut []);
        match peer {
            Some(peer) => {
                let packet = frame.get(l2..).unwrap_or(&[]);
                Ok(Some((channel(&self.peers, peer, packet), l2)))
            }
            None => {
                self.shared.report_wanted(&self.routes, frame);
                let mut segments =
                    Segments::behind(vnet, frame, l2).map_err(|_| DropReason::TunMalformed)?;
                let stats = &self.shared.stats;
                while let Some(segment) = segments.next() {
                    if !self.frames.floods.add(segment, vlan) {
                        stats.drop(DropReason::FloodLimited);
                    }
                }
                Ok(None)
            }
        }
    }
}

impl<F: Format> Transmitter<F> {
    /// Floods frames of the device to all peers of their VLAN, within the rate limit.
    pub(super) fn flood(&mut self, floods: &Floods, peers: &PeerTable<F>, switch: &Switch) {
        let shared = self.shared.clone();
        let routes = shared.tables.routes.load();
        for run in floods.runs() {
            let receivers = || switch.receivers(peers, &routes, run.vlan());
            let copies = run.len().saturating_mul(receivers().count());
            if !switch.from_device.take((shared.clock)(), copies, TOTAL_COPIES) {
                shared.stats.drop_many(DropReason::FloodLimited, run.len());
                continue;
            }
            for peer in receivers() {
                self.copy_to(peer, run.iter(), run.len());
            }
        }
    }

    /// Floods frames of peers to all of their VLAN but their senders, within the rate limits.
    pub(crate) fn relay_to_all(&mut self, floods: &[(PeerId, &[u8])]) {
        let shared = self.shared.clone();
        let Some(switch) = &shared.ethernet else { return };
        let (peers, now) = (shared.tables.peers.load(), (shared.clock)());
        let routes = shared.tables.routes.load();
        for run in floods.chunk_by(|a, b| a.0 == b.0) {
            let Some(sender) = run.first().and_then(|(id, _)| peers.get(*id)) else { continue };
            let receivers = || switch.receivers(&peers, &routes, sender.vlan);
            let copies = run.len().saturating_mul(receivers().count().saturating_sub(1));
            if !sender.floods().take(now, copies, PEER_COPIES)
                || !switch.from_peers.take(now, copies, TOTAL_COPIES)
            {
                shared.stats.drop_many(DropReason::FloodLimited, run.len());
                continue;
            }
            for peer in receivers().filter(|peer| peer.id != sender.id) {
                self.copy_to(peer, run.iter().map(|(_, frame)| *frame), run.len());
            }
        }
    }

    /// Seals and sends these packets to one peer.
    pub(super) fn copy_to<'f>(
        &mut self,
        peer: &Arc<Peer<F>>,
        frames: impl Iterator<Item = &'f [u8]>,
        count: usize,
    ) {
        let shared = self.shared.clone();
        let mut tx = peer.lock_tx();
        let (keys, spec) = (peer.keys.load(), peer.settings.load());
        let Some(key) = &keys.primary else {
            return shared.stats.drop_many(DropReason::NoKey, count);
        };
        let shape = self.shape(&spec);
        let tx_path = TxPath::of(&shared, &spec);
        tx_path.begin(Some(key), &mut tx);
        let to = Destination { peer, spec: &spec, tx_path: &tx_path };
        for frame in frames {
            if self.arena.room() < SUPER_PACKET || tx_path.is_due(&self.arena) {
                self.flush(to, &mut tx);
            }
            if let Some(reason) = to.refusal(&shared, frame.len()) {
                shared.stats.drop(reason);
                continue;
            }
            let mut sealer = key.sealer(&mut tx, &spec);
            if let Some(Err(reason)) = self.arena.message(&mut sealer, frame, &shape) {
                shared.stats.drop(reason);
            }
        }
        self.flush(to, &mut tx);
        drop(tx);
        self.shared.notify_near_limit(peer, key);
    }
}
