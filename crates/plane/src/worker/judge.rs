//! Where a worker asks the packet filter.

use std::iter;

use adit_engine::PeerId;
use adit_linux::tun::TunQueue;
use adit_wire::VnetHeader;
use adit_wire::ethernet::Ethernet;
use adit_wire::ip::Ip;
use adit_wire::merge::Merger;

use super::receive::{deliver, write_slices};
use super::transmit::Transmitter;
use crate::control::Relay;
use crate::guard::{self, Extra, Guard, Judged, Relayed, Way};
use crate::shared::Shared;
use crate::stats::DropReason;

/// Judges what was received and writes to the device what may go there; leaves in `relays` and `floods`
/// what may go to other peers.
pub(super) fn received<'a>(
    guard: &mut Guard,
    shared: &Shared,
    tun: Option<&TunQueue>,
    merged: &Merger<'a>,
    relays: &mut Vec<Relayed<'a>>,
    floods: Option<&mut Vec<(PeerId, &'a [u8])>>,
) {
    let stats = &shared.stats;
    // All are judged before the first is written, which may take its time: judging holds locks.
    let mut exceptions: Vec<(usize, Vec<Vec<u8>>)> = Vec::new();
    let mut watch = guard.burst((shared.clock)());
    if tun.is_some() {
        for (at, write) in merged.writes().enumerate() {
            match watch.inward(&write, stats) {
                Judged::Pass => {}
                Judged::Gone => exceptions.push((at, Vec::new())),
                Judged::Pieces(pieces) => exceptions.push((at, pieces)),
            }
        }
    }
    let explicit = shared.relay != Relay::Direct;
    if !relays.is_empty() {
        guard::between(&mut watch, relays, explicit, stats);
    }
    if let Some(floods) = floods
        && !floods.is_empty()
    {
        guard::to_all(&mut watch, floods, explicit, stats);
    }
    drop(watch);
    let Some(tun) = tun else { return };
    let mut exceptions = exceptions.into_iter().peekable();
    for (at, write) in merged.writes().enumerate() {
        match exceptions.next_if(|(exception, _)| *exception == at) {
            None => deliver(tun, stats, &write),
            Some((_, pieces)) => pieces.iter().for_each(|piece| write_plain(tun, shared, piece)),
        }
    }
}

/// Writes one packet as it is.
pub(super) fn write_plain(tun: &TunQueue, shared: &Shared, packet: &[u8]) {
    let plain = VnetHeader::default().encode();
    match write_slices(tun, &plain, packet, iter::empty()) {
        Ok(()) => shared.stats.own().tun_written.record(1),
        Err(_) => shared.stats.drop(DropReason::TunRefused),
    }
}

/// Judges what the device handed out for a peer, or for all. `Ok`: it may be sent.
pub(super) fn outward(
    guard: &mut Guard,
    shared: &Shared,
    tun: &TunQueue,
    to: Option<PeerId>,
    (vnet, packet): (&VnetHeader, &[u8]),
) -> Result<(), Vec<Vec<u8>>> {
    let mut watch = guard.burst((shared.clock)());
    let judged = watch.judge(Way::Outward(to), vnet, packet, false, &shared.stats);
    drop(watch);
    // To the machine itself, or to whom it forwards for.
    guard.extra.answers.drain(..).for_each(|answer| write_plain(tun, shared, &answer));
    match judged {
        Judged::Pass => Ok(()),
        Judged::Gone => Err(Vec::new()),
        Judged::Pieces(pieces) => Err(pieces),
    }
}

impl Transmitter {
    /// Sends what judging brought besides: answers to those who were refused, and packets in pieces.
    pub(super) fn send_extra(&mut self, extra: &mut Extra) {
        for answer in extra.answers.drain(..) {
            match self.owner(&answer) {
                Some(peer) => self.send_to(peer, &answer),
                None => self.shared.stats.drop(DropReason::NoRoute),
            }
        }
        for (peer, piece) in extra.pieces.drain(..) {
            self.send_to(peer, &piece);
        }
    }

    /// The peer that an answer is for.
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
