//! Evaluation of packets by the packet filter.

use std::iter;

use adit_engine::PeerId;
use adit_linux::tun::TunQueue;
use adit_wire::VnetHeader;
use adit_wire::ethernet::Ethernet;
use adit_wire::ip::Ip;
use adit_wire::merge::Merger;

use super::receive::{deliver, write_slices};
use super::transmit::Transmitter;
use crate::filter_hook::{self, Direction, FilterHook, HookVerdict, Injected, Relayed};
use crate::format::Format;
use crate::shared::Shared;
use crate::stats::DropReason;

/// Evaluates received packets, writes those that pass to the device, and retains in `relays` and `floods` the packets
/// that may be sent to other peers.
pub(super) fn evaluate_received<'a, F: Format>(
    filter_hook: &mut FilterHook,
    shared: &Shared<F>,
    tun: Option<&TunQueue>,
    merged: &Merger<'a>,
    relays: &mut Vec<Relayed<'a>>,
    floods: Option<&mut Vec<(PeerId, &'a [u8])>>,
) {
    let stats = &shared.stats;
    // Evaluation holds locks, so all packets are evaluated before the first is written, which may take long.
    let mut exceptions: Vec<(usize, Vec<Vec<u8>>)> = Vec::new();
    let mut filter_burst = filter_hook.burst((shared.clock)());
    if tun.is_some() {
        for (at, write) in merged.writes().enumerate() {
            match filter_burst.evaluate_write(&write, stats) {
                HookVerdict::Pass => {}
                HookVerdict::Consumed => exceptions.push((at, Vec::new())),
                HookVerdict::Fragments(pieces) => exceptions.push((at, pieces)),
            }
        }
    }
    let explicit = shared.relay.needs_rule();
    if !relays.is_empty() {
        filter_hook::evaluate_relayed(&mut filter_burst, relays, explicit, stats);
    }
    if let Some(floods) = floods
        && !floods.is_empty()
    {
        filter_hook::evaluate_floods(&mut filter_burst, floods, explicit, stats);
    }
    drop(filter_burst);
    let Some(tun) = tun else { return };
    let mut exceptions = exceptions.into_iter().peekable();
    for (at, write) in merged.writes().enumerate() {
        match exceptions.next_if(|(exception, _)| *exception == at) {
            None => deliver(tun, stats, &write),
            Some((_, pieces)) => pieces.iter().for_each(|piece| write_plain(tun, shared, piece)),
        }
    }
}

/// Writes one packet unchanged.
pub(super) fn write_plain<F: Format>(tun: &TunQueue, shared: &Shared<F>, packet: &[u8]) {
    let plain = VnetHeader::default().encode();
    match write_slices(tun, &plain, packet, iter::empty()) {
        Ok(()) => shared.stats.own().tun_written.record(1),
        Err(_) => shared.stats.drop(DropReason::TunRefused),
    }
}

/// Evaluates a packet of the device for one peer, or for all. `Ok` means that it may be sent.
pub(super) fn evaluate_outgoing<F: Format>(
    filter_hook: &mut FilterHook,
    shared: &Shared<F>,
    tun: &TunQueue,
    to: Option<PeerId>,
    (vnet, packet): (&VnetHeader, &[u8]),
) -> Result<(), Vec<Vec<u8>>> {
    let mut filter_burst = filter_hook.burst((shared.clock)());
    let verdict =
        filter_burst.evaluate(Direction::FromDevice(to), vnet, packet, false, &shared.stats);
    drop(filter_burst);
    // The replies are for this host, or for a host that it forwards for.
    filter_hook.injected.replies.drain(..).for_each(|answer| write_plain(tun, shared, &answer));
    match verdict {
        HookVerdict::Pass => Ok(()),
        HookVerdict::Consumed => Err(Vec::new()),
        HookVerdict::Fragments(pieces) => Err(pieces),
    }
}

impl<F: Format> Transmitter<F> {
    /// Sends the packets that the filter added: replies to rejected packets, and fragments.
    pub(super) fn send_injected(&mut self, injected: &mut Injected) {
        for answer in injected.replies.drain(..) {
            match self.owner(&answer) {
                Some(peer) => self.send_to(peer, &answer),
                None => self.shared.stats.drop(DropReason::NoRoute),
            }
        }
        for (peer, piece) in injected.fragments.drain(..) {
            self.send_to(peer, &piece);
        }
    }

    /// Finds the peer that a reply is for.
    fn owner(&self, answer: &[u8]) -> Option<PeerId> {
        let tables = &self.shared.tables;
        if self.shared.client {
            return tables.peers.load().latest().map(|peer| peer.id);
        }
        match &self.shared.ethernet {
            None => tables.routes.load().owner(Ip::parse(answer)?.destination),
            Some(switch) => switch.macs.owner(Ethernet::parse(answer)?.destination),
        }
    }
}
