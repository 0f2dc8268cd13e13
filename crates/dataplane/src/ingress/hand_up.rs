//! Received packets and datagrams for a control plane that is a router itself.

use std::net::IpAddr;

use adit_engine::Link;
use adit_wire::mss;

use super::{Ingress, Run, RunLayout};
use crate::format::Format;
use crate::hand_up::{HandUp, Unpeered};
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
            self.splice(link, wire_id, layout, run, reason);
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
}
