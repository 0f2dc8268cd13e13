//! Packets and datagrams that no peer takes, handed to a control plane with a path of its own for them.
//!
//! A control plane that asks for this ([`crate::Plane::hand_up`]) is a router itself: the plane carries what it can, and everything else goes the
//! long way. Peers may then send packets from any source address, because the control plane's protocol trusts them with that.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_engine::command::InnerMtu;
use adit_engine::{Instant, PeerId};
use adit_wire::VnetHeader;
use adit_wire::ethernet::{HEADER_LEN, Mac};
use adit_wire::split::Segments;
use ipnet::IpNet;

use crate::control::Plane;
use crate::ethernet::StationId;
use crate::format::Format;
use crate::shared::Shared;
use crate::stats::DropReason;

/// The maximum number of packets that wait for the control plane.
const MAX_PACKETS: usize = 1024;
/// The maximum number of bytes in them.
const MAX_BYTES: usize = 4 << 20;
/// The maximum number of peers that wait to be reported.
const MAX_UNREADABLE: usize = 256;

/// Where packets go that have no peer.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Unpeered {
    /// This host: packets of peers go to the device, and packets of the device to the control plane.
    Host,
    /// The control plane.
    Control,
}

impl Unpeered {
    /// Returns the owner of the routes, which is no peer's id.
    pub(crate) fn owner(self) -> PeerId {
        match self {
            Self::Host => PeerId(u32::MAX),
            Self::Control => PeerId(u32::MAX - 1),
        }
    }
}

/// Something that the plane does not handle.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HandedUp {
    /// A packet of the device.
    FromDevice(Vec<u8>),
    /// A packet of a peer that is not for this host.
    FromPeer(PeerId, Vec<u8>),
    /// A peer's address sends datagrams that fail authentication.
    Unreadable(PeerId),
}

/// The queue to the control plane.
#[derive(Debug)]
pub(crate) struct HandUp {
    /// All packets of peers go to the device.
    pub all_to_device: bool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    packets: VecDeque<(Option<PeerId>, Vec<u8>)>,
    bytes: usize,
    unreadable: Vec<PeerId>,
}

impl HandUp {
    pub(crate) fn new(all_to_device: bool) -> Self {
        Self { all_to_device, waiting: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a packet; returns `false` if there is no room.
    fn push(&self, from: Option<PeerId>, packet: &[u8]) -> bool {
        let mut waiting = self.lock();
        let bytes = waiting.bytes.saturating_add(packet.len());
        let fits = waiting.packets.len() < MAX_PACKETS && bytes <= MAX_BYTES;
        if fits {
            waiting.bytes = bytes;
            waiting.packets.push_back((from, packet.to_vec()));
        }
        fits
    }

    /// Queues a report about a peer. One report of each peer waits.
    fn push_unreadable(&self, peer: PeerId) {
        let unreadable = &mut self.lock().unreadable;
        if unreadable.len() < MAX_UNREADABLE && !unreadable.contains(&peer) {
            unreadable.push(peer);
        }
    }

    /// Takes everything that waits.
    pub(crate) fn drain(&self, mut take: impl FnMut(HandedUp)) {
        let Waiting { packets, unreadable, .. } = std::mem::take(&mut *self.lock());
        for (from, packet) in packets {
            take(match from {
                Some(peer) => HandedUp::FromPeer(peer, packet),
                None => HandedUp::FromDevice(packet),
            });
        }
        unreadable.into_iter().for_each(|peer| take(HandedUp::Unreadable(peer)));
    }
}

impl<F: Format> Plane<F> {
    /// Hands everything that no peer takes to the control plane, which gets it from [`Plane::take_handed_up`]: packets of the device without a
    /// route, for a peer without a key, or longer than [`adit_engine::command::InnerMtu::largest`] of their peer; and packets of peers that are not
    /// for this host ([`Plane::set_unpeered_routes`]), unless `all_to_device` is set. Datagrams without a peer or key arrive as control packets.
    /// Peers may send packets from all source addresses.
    ///
    /// With a TAP device, the control plane knows all stations ([`Plane::set_stations`]), and the plane learns none. Also handed up are frames for
    /// groups and unknown stations, and those of the device from stations that are not this host's. [`adit_engine::command::InnerMtu::largest`] then
    /// limits whole frames, and the MSS in a frame with a VLAN tag is lowered by the tag's length more than in one without.
    pub fn hand_up(&self, all_to_device: bool) {
        // A second call changes nothing.
        let _ = self.shared.hand_up.set(HandUp::new(all_to_device));
    }

    /// Takes what was handed up. The descriptor of the upcalls is signalled when there is something: drain the upcalls first.
    pub fn take_handed_up(&self, take: impl FnMut(HandedUp)) {
        if let Some(hand_up) = self.shared.hand_up.get() {
            hand_up.drain(take);
        }
    }

    /// Replaces the prefixes that belong to this host or to the control plane.
    pub fn set_unpeered_routes(&self, owner: Unpeered, prefixes: &[IpNet]) {
        self.shared.tables.set_routes(owner.owner(), prefixes);
    }

    /// With a TAP device: replaces the stations behind a peer, or behind this host's device. Each station is behind one of them: the last one set.
    /// Stations beyond [`crate::MAX_MACS`] remain unknown.
    pub fn set_stations(&self, peer: Option<PeerId>, stations: &[[u8; 6]]) {
        let Shared { ethernet, tables, clock, .. } = &*self.shared;
        let Some(switch) = ethernet else { return };
        if peer.is_none_or(|id| tables.peers.load().get(id).is_some()) {
            let owner = peer.unwrap_or(Unpeered::Host.owner());
            let ids = stations.iter().map(|mac| StationId::new(None, Mac(*mac)));
            switch.macs.assign(owner, ids, clock());
        }
    }

    /// Returns when a station behind this host's device last sent a frame that was not handed up, or was set; `None` if there is no such station.
    pub fn station_heard(&self, mac: [u8; 6]) -> Option<Instant> {
        let switch = self.shared.ethernet.as_ref()?;
        switch.macs.last_heard(StationId::new(None, Mac(mac)), Unpeered::Host.owner())
    }

    /// Returns the length of the longest datagram that was received from a peer and authenticated.
    pub fn longest_received(&self, id: PeerId) -> Option<u16> {
        let peers = self.shared.tables.peers.load();
        peers.get(id).map(|peer| peer.longest_received.load(Relaxed))
    }
}

/// Returns the limits inside of a frame whose IP packet begins at `l2`: those of a frame without a VLAN tag, less the tag.
pub(crate) fn behind_tag(mtu: InnerMtu, l2: usize) -> InnerMtu {
    let tag = u16::try_from(l2.saturating_sub(HEADER_LEN)).unwrap_or(u16::MAX);
    // 0 is no limit.
    let less = |mss: u16| if mss == 0 { 0 } else { mss.saturating_sub(tag).max(1) };
    InnerMtu { mss4: less(mtu.mss4), mss6: less(mtu.mss6), ..mtu }
}

impl<F: Format> Shared<F> {
    /// Hands up a packet of a peer.
    #[cold]
    pub(crate) fn hand_up_packet(&self, hand_up: &HandUp, from: PeerId, packet: &[u8]) {
        if hand_up.push(Some(from), packet) {
            self.upcalls.raise();
        } else {
            self.stats.drop(DropReason::HandUpFull);
        }
    }

    /// Hands up the packets of a super-packet of the device, behind the first `l2` bytes of a frame. Returns `false` if the control plane did not ask for them.
    #[cold]
    pub(crate) fn hand_up_segments(
        &self,
        vnet: &VnetHeader,
        (packet, l2): (&mut [u8], usize),
    ) -> bool {
        let Some(hand_up) = self.hand_up.get() else { return false };
        match Segments::behind(vnet, packet, l2) {
            Ok(segments) => self.hand_up_rest(hand_up, segments),
            Err(_) => self.stats.drop(DropReason::TunMalformed),
        }
        true
    }

    /// Hands up the packets that are left of a super-packet of the device.
    #[cold]
    pub(crate) fn hand_up_rest(&self, hand_up: &HandUp, mut segments: Segments<'_>) {
        while let Some(segment) = segments.next() {
            if !hand_up.push(None, segment) {
                self.stats.drop(DropReason::HandUpFull);
            }
        }
        self.upcalls.raise();
    }

    /// Reports a datagram from a peer's address that failed authentication.
    #[cold]
    pub(crate) fn report_unreadable(&self, peer: PeerId) {
        if let Some(hand_up) = self.hand_up.get() {
            hand_up.push_unreadable(peer);
            self.upcalls.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_has_two_bounds() {
        let hand_up = HandUp::new(false);
        for _ in 0..MAX_PACKETS {
            assert!(hand_up.push(None, &[1]));
        }
        assert!(!hand_up.push(None, &[1]));
        let mut taken = 0;
        hand_up.drain(|_| taken += 1);
        assert_eq!(taken, MAX_PACKETS);
        let long = vec![0; MAX_BYTES / 4];
        let queued = (0..9).filter(|_| hand_up.push(Some(PeerId(3)), &long)).count();
        assert_eq!(queued, 4);
        hand_up.drain(|one| assert!(matches!(one, HandedUp::FromPeer(PeerId(3), _))));
        assert!(hand_up.push(None, &long), "taken bytes no longer count");
    }

    #[test]
    fn a_peer_is_reported_once_until_it_is_taken() {
        let hand_up = HandUp::new(false);
        for round in 0..3 {
            for _ in 0..2 * MAX_UNREADABLE {
                hand_up.push_unreadable(PeerId(7));
            }
            let mut taken = Vec::new();
            hand_up.drain(|one| taken.push(one));
            assert_eq!(taken, [HandedUp::Unreadable(PeerId(7))], "{round}");
        }
        (0..1000).for_each(|peer| hand_up.push_unreadable(PeerId(peer)));
        let mut taken = 0;
        hand_up.drain(|_| taken += 1);
        assert_eq!(taken, MAX_UNREADABLE);
    }
}
