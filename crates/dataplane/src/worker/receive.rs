//! From a socket to the TUN device.

use std::io::{self, IoSlice};
use std::iter;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use adit_engine::{Link, Notice, PeerId, SocketId, VlanId};
use adit_linux::tun::TunQueue;
use adit_linux::udp::{Received, UdpSocket};
use adit_wire::VnetHeader;
use adit_wire::merge::{MAX_PARTS, Write};
use adit_wire::vlan::Tagged;

use super::{Worker, filter};
use crate::filter_hook::Relayed;
use crate::format::Format;
use crate::ingress::{Datagrams, Ingress};
use crate::shared::Shared;
use crate::stats::{Downgrade, DropReason, Stats};

/// The maximum number of ICMP errors read in one turn; any left over cause another turn.
const MAX_SOCKET_ERRORS: usize = 64;
/// The maximum number of packets that can be reassembled or decompressed in one burst.
const MAX_SCRATCH_BUFFERS: usize = 1024;
/// The number of bytes that each buffer keeps for the next burst: more than most packets need.
const MAX_KEPT: usize = 2048;

impl<F: Format> Worker<F> {
    /// Receives one burst; if more is queued, the TUN device has its turn first.
    pub(super) fn socket_turn(&mut self, id: SocketId, socket: &Arc<UdpSocket>) {
        // An error means that nothing is queued, or belongs to an earlier send and is cleared by reading.
        if socket.recv_burst(&mut self.batch).is_ok() {
            self.burst(id);
        }
    }

    /// Reads the ICMP errors of a client's socket, which epoll would otherwise report forever. A listening socket does not
    /// request them.
    pub(super) fn socket_errors(&self, id: SocketId, socket: &UdpSocket) {
        let mut last = None;
        for _ in 0..MAX_SOCKET_ERRORS {
            match socket.take_error() {
                Ok(Some(error)) => last = Some(error),
                Ok(None) | Err(_) => break,
            }
        }
        // Each error answers a packet of ours, and the last is as informative as all of them.
        if let Some((error, errno)) =
            last.and_then(|last| Some((last.remote, last.error.raw_os_error()?)))
        {
            let link = Link::datagram(id, None, error);
            self.shared.upcalls.notice(&self.shared.stats, Notice::Unreachable(link, errno));
        }
    }

    fn burst(&mut self, socket: SocketId) {
        let mut batch = mem::take(&mut self.batch);
        let mut scratch = self.take_scratch();
        self.process_received(|ingress| {
            if !scratch.is_empty() {
                ingress.set_scratch(&mut scratch);
            }
            for Received { remote, local, segment, stride, data } in batch.runs_mut() {
                let link = Link::datagram(socket, local, remote);
                ingress.datagrams(&link, Datagrams::new(segment, stride, data), data);
            }
        });
        self.batch = batch;
        self.return_scratch(scratch);
    }

    /// Takes the buffers for reassembled and decompressed packets of one burst; empty if no peer has such packets.
    pub(super) fn take_scratch(&mut self) -> Vec<Vec<u8>> {
        let mut scratch = mem::take(&mut self.scratch);
        if self.shared.needs_scratch.load(Relaxed) {
            scratch.resize_with(MAX_SCRATCH_BUFFERS, Vec::new);
        }
        scratch
    }

    pub(super) fn return_scratch(&mut self, mut scratch: Vec<Vec<u8>>) {
        for buffer in scratch.iter_mut().take_while(|buffer| !buffer.is_empty()) {
            buffer.clear();
            buffer.shrink_to(MAX_KEPT);
        }
        self.scratch = scratch;
    }

    /// Passes received packets to `feed`, and delivers the results.
    pub(super) fn process_received<'b, T>(
        &mut self,
        feed: impl FnOnce(&mut Ingress<'b, '_, F>) -> T,
    ) -> T {
        let Self { shared, tun, merger, relays, transmitter, filter_hook, .. } = self;
        let shared: &Shared<F> = shared;
        // Loaded after the receive, so that a key installed before these packets arrived is found.
        let (peers, routes) = (shared.tables.peers.load(), shared.tables.routes.load());
        let gates = &shared.stats.gates;
        let (tso, uso) = (gates.tun_tso.load(Relaxed), gates.tun_uso.load(Relaxed));
        let mut ingress = Ingress::new(
            shared,
            &peers,
            &routes,
            (shared.clock)(),
            mem::take(merger).recycle(tso, uso),
            recycle(mem::take(relays)),
        );
        let fed = feed(&mut ingress);
        let Ingress { merger: merged, relays: mut passed, mut lazy, .. } = ingress;
        match (filter_hook, tun) {
            (Some(filter_hook), tun) => {
                let floods = lazy.as_mut().map(|lazy| &mut lazy.floods);
                let tun = tun.as_ref().map(|tun| &*tun.queue);
                let tables = (shared, &**peers);
                filter::evaluate_received(filter_hook, tables, tun, &merged, &mut passed, floods);
                transmitter.send_injected(&mut filter_hook.injected);
            }
            (None, Some(tun)) => {
                for write in merged.writes() {
                    let vlan = shared.vlan_of(&peers, PeerId(write.origin()));
                    deliver(&tun.queue, &shared.stats, shared.device_tag(vlan), &write);
                }
            }
            (None, None) => {}
        }
        if !passed.is_empty() {
            transmitter.relay(&passed);
        }
        if let Some(lazy) = &mut lazy
            && !lazy.spliced.is_empty()
        {
            // Data of one peer and acknowledgements of another arrive mixed.
            lazy.spliced.sort_by_key(|one| one.to);
            transmitter.splice(&lazy.spliced);
        }
        if let Some(lazy) = &lazy
            && !lazy.floods.is_empty()
        {
            transmitter.relay_to_all(&lazy.floods);
        }
        *merger = merged.recycle(tso, uso);
        *relays = recycle(passed);
        if let Some(lazy) = &lazy
            && !lazy.size_requests.is_empty()
        {
            transmitter.report_sizes(&lazy.size_requests);
        }
        fed
    }
}

/// Writes one packet or super-packet, with this VLAN's tag if there is one. If the device refuses a super-packet but accepts its packets, super-packets of
/// that kind are switched off.
pub(super) fn deliver(tun: &TunQueue, stats: &Stats, tag: Option<VlanId>, write: &Write<'_, '_>) {
    if write_slices(tun, tag, write.vnet(), write.header(), write.bodies()).is_ok() {
        return stats.own().tun_written.record(write.count());
    }
    if write.count() == 1 {
        return stats.drop(DropReason::TunRefused);
    }
    let plain = VnetHeader::default().encode();
    let mut taken = 0;
    for packet in write.packets() {
        match write_slices(tun, tag, &plain, packet, iter::empty()) {
            Ok(()) => taken += 1,
            Err(_) => stats.drop(DropReason::TunRefused),
        }
        stats.own().tun_written.record(1);
    }
    if taken > 0 {
        let udp = VnetHeader::decode(write.vnet()).gso == adit_wire::Gso::UdpL4;
        let why = if udp { Downgrade::UsoRefused } else { Downgrade::TsoRefused };
        stats.gates.downgrade(why);
    }
}

/// Writes a packet whose parts are contiguous, with this VLAN's tag if there is one. The first part that is not empty
/// contains the headers.
pub(super) fn write_slices<'a>(
    tun: &TunQueue,
    tag: Option<VlanId>,
    vnet: &'a [u8; VnetHeader::LEN],
    header: &'a [u8],
    bodies: impl Iterator<Item = &'a [u8]>,
) -> io::Result<()> {
    let mut parts = iter::once(header).chain(bodies).filter(|part| !part.is_empty());
    let Some(vlan) = tag else { return write_parts(tun, vnet, &[], parts) };
    let first = parts.next().unwrap_or(&[]);
    // A frame of a peer has a whole header.
    let tagged = Tagged::new(&VnetHeader::decode(vnet), first, vlan.get())
        .ok_or(io::ErrorKind::InvalidData)?;
    let rest = first.get(tagged.rest..).unwrap_or(&[]);
    write_parts(tun, &tagged.vnet.encode(), &tagged.start, iter::once(rest).chain(parts))
}

fn write_parts<'p, 'a: 'p>(
    tun: &TunQueue,
    vnet: &'p [u8],
    start: &'p [u8],
    parts: impl Iterator<Item = &'a [u8]>,
) -> io::Result<()> {
    let mut slices = [IoSlice::new(&[]); MAX_PARTS + 3];
    let head = [vnet, start].into_iter().filter(|part| !part.is_empty());
    let mut count = 0;
    for (slice, part) in slices.iter_mut().zip(head.chain(parts.map(|part| -> &'p [u8] { part }))) {
        *slice = IoSlice::new(part);
        count += 1;
    }
    tun.write(slices.get(..count).unwrap_or(&[])).map(|_| ())
}

/// Keeps the memory of an emptied list for packets of another burst.
fn recycle<'b>(mut relays: Vec<Relayed<'_>>) -> Vec<Relayed<'b>> {
    relays.clear();
    relays.into_iter().map_while(|_| None).collect()
}
