//! Frames received from peers.

use adit_engine::{Notice, PeerId};
use adit_wire::ethernet::{Ethernet, HEADER_LEN, Mac};
use adit_wire::mss;
use adit_wire::vlan::Tag;

use super::{Ingress, Run};
use crate::ethernet::{OnDevice, StationId, StationQuestions, Switch};
use crate::filter_hook::Relayed;
use crate::format::Format;
use crate::relay::Relay;
use crate::stats::DropReason;

/// Whether a frame is flooded to the other peers, in addition to the device.
enum Flood {
    No,
    Yes,
}

impl<'a, F: Format> Ingress<'a, '_, F> {
    /// Delivers an authentic frame to the TAP device, to another peer, or to all.
    // Not inlined, so the caller's loop stays small for packets of a TUN device.
    #[inline(never)]
    pub(super) fn deliver_frame(&mut self, run: &Run<'_, F>, switch: &Switch, frame: &'a mut [u8]) {
        if let Some(hand_up) = self.shared.hand_up.get() {
            return self.deliver_or_hand_up_frame(run, hand_up, switch, frame);
        }
        let stats = &self.shared.stats;
        let Some(header) = Ethernet::parse(frame) else {
            return stats.drop(DropReason::NotEthernet);
        };
        let Some(device) = self.on_device(run, &header, frame) else {
            return stats.drop(DropReason::WrongVlan);
        };
        let l2 = header.ip(frame).unwrap_or(frame.len());
        if let Some(packet) = frame.get_mut(l2..) {
            mss::clamp(packet, run.spec.mtu.mss4, run.spec.mtu.mss6);
        }
        let frame: &'a [u8] = frame;
        if let Some(guard) = switch.guard.get()
            && !guard.permits(self.routes, run.peer.first, &header, frame)
        {
            return stats.drop(DropReason::SourceSpoofed);
        }
        let mut flooded = false;
        if !self.shared.client {
            if let Err(reason) = self.learn(run, switch, header.source) {
                return stats.drop(reason);
            }
            match self.relay_frame(run, switch, header.destination, frame) {
                Some(Flood::No) => {}
                Some(Flood::Yes) => {
                    flooded = true;
                    self.lazy.get_or_insert_default().floods.push((run.peer.first, frame));
                }
                None => return,
            }
        }
        if !self.shared.has_tun {
            return self.shared.stats.drop(DropReason::NoTun);
        }
        match device {
            OnDevice::Plain | OnDevice::Tagged(_) => self.merger.push_behind(frame, l2),
            OnDevice::Nowhere if flooded => {}
            OnDevice::Nowhere => self.shared.stats.drop(DropReason::WrongVlan),
        }
    }

    /// Returns how the device carries a frame of a peer; `None` if the frame has a tag with a VLAN, which peers may not
    /// choose.
    #[inline]
    fn on_device(&self, run: &Run<'_, F>, header: &Ethernet, frame: &[u8]) -> Option<OnDevice> {
        let Some(vlan) = run.peer.vlan else { return Some(OnDevice::Plain) };
        let is_tagged = || Tag::of(frame).is_some_and(|tag| tag.vlan() != 0);
        if header.header_len != HEADER_LEN && is_tagged() {
            return None;
        }
        Some(self.shared.vlans().map_or(OnDevice::Plain, |vlans| OnDevice::of(vlans, vlan)))
    }

    /// Records which peer the sending station is behind. One table lookup per flow and burst.
    fn learn(&mut self, run: &Run<'_, F>, switch: &Switch, source: Mac) -> Result<(), DropReason> {
        let id = run.peer.first;
        if self.lazy.as_ref().is_some_and(|lazy| lazy.sender == Some((id, source))) {
            return Ok(());
        }
        if !switch.is_open(self.routes, id) {
            return Err(DropReason::SourceSpoofed);
        }
        let tables = &self.shared.tables;
        let alive = || {
            let peers = tables.peers.load();
            peers.get(run.peer.id).is_some_and(|known| std::ptr::eq(&**known, &**run.peer))
                && switch.is_open(&tables.routes.load(), id)
        };
        if let Some(questions) = switch.questions.get() {
            self.ask(switch, questions, (id, StationId::new(run.peer.vlan, source)), alive)?;
        } else {
            let station = StationId::new(run.peer.vlan, source);
            switch.macs.claim(station, id, self.now, alive)?;
        }
        self.lazy.get_or_insert_default().sender = Some((id, source));
        Ok(())
    }

    /// Returns `Ok` if the control plane has allowed the station behind this peer, and otherwise asks about it.
    fn ask(
        &self,
        switch: &Switch,
        questions: &StationQuestions,
        (id, station): (PeerId, StationId),
        alive: impl Fn() -> bool,
    ) -> Result<(), DropReason> {
        let source = station.mac();
        if switch.macs.heard(station, id, self.now) {
            return Ok(());
        }
        if !switch.macs.is_permitted(source) {
            return Err(DropReason::SourceSpoofed);
        }
        if questions.ask(source, id, self.now, alive) {
            let heard = Notice::StationHeard(id, source.0);
            self.shared.upcalls.notice(&self.shared.stats, heard);
        }
        Err(DropReason::MacNotAllowed)
    }

    /// Relays a frame to other peers; returns `None` if the device must not get it.
    fn relay_frame(
        &mut self,
        run: &Run<'_, F>,
        switch: &Switch,
        destination: Mac,
        frame: &'a [u8],
    ) -> Option<Flood> {
        let relay = self.shared.relay;
        if relay == Relay::Kernel {
            return Some(Flood::No);
        }
        if destination.is_group() {
            let direct = self.shared.may_relay();
            return Some(if direct { Flood::Yes } else { Flood::No });
        }
        let station = StationId::new(run.peer.vlan, destination);
        let owner = match self.lazy.as_ref().and_then(|lazy| lazy.receiver) {
            Some((known, owner)) if known == station => owner,
            _ => {
                let owner = switch.macs.owner(station);
                self.lazy.get_or_insert_default().receiver = Some((station, owner));
                owner
            }
        };
        match owner {
            // The destination is the device, a station behind it, or unknown, so the other peers do
            // not get the frame.
            None => return Some(Flood::No),
            // As in a switch, the frame is not sent back to its origin.
            Some(owner) if owner == run.peer.first => self.shared.stats.drop(DropReason::SamePeer),
            Some(to) if self.shared.may_relay() => {
                self.relays.push(Relayed { from: run.peer.first, to, packet: frame });
            }
            Some(_) => self.shared.stats.drop(DropReason::PeerToPeer),
        }
        None
    }
}
