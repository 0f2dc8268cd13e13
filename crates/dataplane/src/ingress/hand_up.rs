//! Received packets and datagrams for a control plane that is a router itself.

use std::net::IpAddr;

use adit_engine::Link;
use adit_engine::command::SpliceLabel;
use adit_wire::ethernet::{Ethernet, Mac};
use adit_wire::mss;

use super::{Ingress, Run, RunLayout};
use crate::ethernet::{StationId, Switch};
use crate::format::Format;
use crate::hand_up::{HandUp, Unpeered, behind_tag};
use crate::stats::DropReason;

impl<'a, F: Format> Ingress<'a, '_, F> {
    /// Handles packets that belong to no session with this plane: hands them up, or relays them.
    #[inline(never)]
    pub(super) fn unknown(
        &mut self,
        link: &Link,
        wire_id: Option<u32>,
        layout: impl RunLayout,
        run: &'a mut [u8],
        reason: DropReason,
    ) {
        if self.shared.hand_up.get().is_some() {
            layout.packets(run).for_each(|packet| self.control(link, packet));
        } else {
            self.splice(link, wire_id.map(SpliceLabel::PeerId), layout, run, Some(reason));
        }
    }

    /// Passes an authentic packet to the TUN device if it is for this host, and otherwise to the control plane.
    #[inline]
    pub(super) fn deliver_or_hand_up(
        &mut self,
        run: &Run<'_, F>,
        hand_up: &HandUp,
        destination: IpAddr,
        packet: &'a mut [u8],
    ) {
        if !hand_up.all_to_device && self.local != Some(destination) {
            if self.routes.owner(destination) != Some(Unpeered::Host.owner()) {
                return self.shared.hand_up_packet(hand_up, run.peer.id, packet);
            }
            self.local = Some(destination);
        }
        mss::clamp(packet, run.spec.mtu.mss4, run.spec.mtu.mss6);
        if !self.shared.has_tun {
            return self.shared.stats.drop(DropReason::NoTun);
        }
        self.merger.push(packet);
    }

    /// Passes an authentic frame to the TAP device if its station is behind it, and otherwise to the control plane.
    pub(super) fn deliver_or_hand_up_frame(
        &mut self,
        run: &Run<'_, F>,
        hand_up: &HandUp,
        switch: &Switch,
        frame: &'a mut [u8],
    ) {
        let Some(header) = Ethernet::parse(frame) else {
            return self.shared.stats.drop(DropReason::NotEthernet);
        };
        if !hand_up.all_to_device && !self.is_own_station(switch, header.destination) {
            return self.shared.hand_up_packet(hand_up, run.peer.id, frame);
        }
        let l2 = header.ip(frame).unwrap_or(frame.len());
        let mtu = behind_tag(run.spec.mtu, l2);
        mss::clamp(frame.get_mut(l2..).unwrap_or_default(), mtu.mss4, mtu.mss6);
        if !self.shared.has_tun {
            return self.shared.stats.drop(DropReason::NoTun);
        }
        self.merger.push_behind(frame, l2);
    }

    /// Returns whether a station is behind this host's device. One table lookup per flow and burst.
    fn is_own_station(&mut self, switch: &Switch, mac: Mac) -> bool {
        let station = StationId::new(None, mac);
        let known = self.lazy.as_ref().and_then(|lazy| lazy.receiver);
        let owner = match known.filter(|(known, _)| *known == station) {
            Some((_, owner)) => owner,
            None => {
                let owner = switch.macs.owner(station);
                self.lazy.get_or_insert_default().receiver = Some((station, owner));
                owner
            }
        };
        owner == Some(Unpeered::Host.owner())
    }
}
