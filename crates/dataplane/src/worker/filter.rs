//! Evaluation of packets by the packet filter.

use std::iter;

use adit_engine::{PeerId, VlanId};
use adit_linux::tun::TunQueue;
use adit_wire::VnetHeader;
use adit_wire::ethernet::Ethernet;
use adit_wire::ip::Ip;
use adit_wire::merge::Merger;

use super::receive::{deliver, write_slices};
use super::transmit::Transmitter;
use crate::ethernet::StationId;
use crate::filter_hook::{self, Direction, FilterHook, HookVerdict, Injected, Relayed};
use crate::format::Format;
use crate::shared::Shared;
use crate::stats::DropReason;
use crate::tables::PeerTable;

/// Evaluates received packets, writes those that pass to the device, and retains in `relays` and `floods` the packets
/// that may be sent to other peers.
pub(super) fn evaluate_received<'a, F: Format>(
    filter_hook: &mut FilterHook,
    (shared, peers): (&Shared<F>, &PeerTable<F>),
    tun: Option<&TunQueue>,
    merged: &Merger<'a>,
    relays: &mut Vec<Relayed<'a>>,
    floods: Option<&mut Vec<(PeerId, &'a [u8])>>,
) {
    let stats = &shared.stats;
    let vlan_of = |peer| shared.vlan_of(peers, peer);
    // Evaluation holds locks, so all packets are evaluated before the first is written, which may take long.
    let mut exceptions: Vec<(usize, Vec<Vec<u8>>)> = Vec::new();
    let mut filter_burst = filter_hook.burst((shared.clock)());
    if tun.is_some() {
        for (at, write) in merged.writes().enumerate() {
            match filter_burst.evaluate_write(&write, vlan_of(PeerId(write.origin())), stats) {
                HookVerdict::Pass => {}
                HookVerdict::Consumed => exceptions.push((at, Vec::new())),
                HookVerdict::Fragments(pieces) => exceptions.push((at, pieces)),
            }
        }
    }
    let explicit = shared.relay.needs_rule();
    if !relays.is_empty() {
        filter_hook::evaluate_relayed(&mut filter_burst, relays, vlan_of, explicit, stats);
    }
    if let Some(floods) = floods
        && !floods.is_empty()
    {
        filter_hook::evaluate_floods(&mut filter_burst, floods, vlan_of, explicit, stats);
    }
    drop(filter_burst);
    let Some(tun) = tun else { return };
    let mut exceptions = exceptions.into_iter().peekable();
    for (at, write) in merged.writes().enumerate() {
        let tag = shared.device_tag(vlan_of(PeerId(write.origin())));
        match exceptions.next_if(|(exception, _)| *exception == at) {
            None => deliver(tun, stats, tag, &write),
            Some((_, pieces)) => {
                pieces.iter().for_each(|piece| write_plain(tun, shared, tag, piece));
            }
        }
    }
}

/// Writes one packet unchanged, or with this VLAN's tag.
fn write_plain<F: Format>(tun: &TunQueue, shared: &Shared<F>, tag: Option<VlanId>, packet: &[u8]) {
    let plain = VnetHeader::default().encode();
    match write_slices(tun, tag, &plain, packet, iter::empty()) {
        Ok(()) => shared.stats.own().tun_written.record(1),
        Err(_) => shared.stats.drop(DropReason::TunRefused),
    }
}

/// Evaluates a packet of the device for one peer, or for all. `Ok` means that it may be sent.
pub(super) fn evaluate_outgoing<F: Format>(
    filter_hook: &mut FilterHook,
    shared: &Shared<F>,
    tun: &TunQueue,
    (to, vlan): (Option<PeerId>, Option<VlanId>),
    (vnet, packet): (&VnetHeader, &[u8]),
) -> Result<(), Vec<Vec<u8>>> {
    let mut filter_burst = filter_hook.burst((shared.clock)());
    let course = (Direction::FromDevice(to), vlan);
    let verdict = filter_burst.evaluate(course, vnet, packet, false, &shared.stats);
    drop(filter_burst);
    // The replies are for this host, or for a host that it forwards for.
    let tag = shared.device_tag(vlan);
    let replies = filter_hook.injected.replies.drain(..);
    replies.for_each(|(_, answer)| write_plain(tun, shared, tag, &answer));
    match verdict {
        HookVerdict::Pass => Ok(()),
        HookVerdict::Consumed => Err(Vec::new()),
        HookVerdict::Fragments(pieces) => Err(pieces),
    }
}

impl<F: Format> Transmitter<F> {
    /// Sends the packets that the filter added: replies to rejected packets, and fragments.
    pub(super) fn send_injected(&mut self, injected: &mut Injected) {
        for (vlan, answer) in injected.replies.drain(..) {
            match self.owner(vlan, &answer) {
                Some(peer) => self.send_to(peer, &answer),
                None => self.shared.stats.drop(DropReason::NoRoute),
            }
        }
        for (peer, piece) in injected.fragments.drain(..) {
            self.send_to(peer, &piece);
        }
    }

    /// Finds the peer that a reply in this VLAN is for.
    fn owner(&self, vlan: Option<VlanId>, answer: &[u8]) -> Option<PeerId> {
        let tables = &self.shared.tables;
        if self.shared.client {
            return tables.peers.load().latest().map(|peer| peer.id);
        }
        match &self.shared.ethernet {
            None => tables.routes.load().owner(Ip::parse(answer)?.destination),
            Some(switch) => {
                let station = StationId::new(vlan, Ethernet::parse(answer)?.destination);
                switch.macs.owner(station)
            }
        }
    }
}
