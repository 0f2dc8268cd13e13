//! Super-packets from the TUN device, and their destination peers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use adit_engine::{PeerId, VlanId};
use adit_linux::tun::TunQueue;
use adit_wire::VnetHeader;
use adit_wire::ip::Ip;
use arc_swap::Guard;

use super::frames::Frames;
use super::{EIO, filter};
use crate::ethernet::{outward, take_vlan};
use crate::filter_hook::FilterHook;
use crate::format::Format;
use crate::peer::Peer;
use crate::recursion::Own;
use crate::routes::Routes;
use crate::shared::Shared;
use crate::stats::DropReason;
use crate::tables::PeerTable;

/// Linux errno values, the same on every architecture we build for.
const EFAULT: i32 = 14;
const EBADFD: i32 = 77;

/// Reads super-packets and finds their peers.
pub(super) struct Reader<'r, F: Format> {
    pub(super) tun: &'r TunQueue,
    pub(super) packet: &'r mut [u8],
    /// The version of [`crate::tables::Tables`], like the two fields that follow.
    pub(super) version: u64,
    pub(super) peers: Guard<Arc<PeerTable<F>>>,
    pub(super) routes: Guard<Arc<Routes>>,
    /// The tunnel's own transport, whose packets must not enter the tunnel.
    pub(super) own: Guard<Option<Arc<Own>>>,
    pub(super) shared: &'r Shared<F>,
    pub(super) frames: &'r mut Frames<F>,
    pub(super) filter_hook: Option<&'r mut FilterHook>,
    /// Fragments that passed the filter, to be sent before the next read.
    pub(super) pieces: &'r mut VecDeque<(Option<VlanId>, Vec<u8>)>,
    pub(super) reads_left: usize,
    pub(super) bytes_left: usize,
    pub(super) alive: bool,
}

/// A super-packet in the reader's buffer.
pub(in crate::worker) struct Routed<F: Format> {
    pub(super) vnet: VnetHeader,
    pub(super) len: usize,
    /// The offset of its IP header.
    pub(super) l2: usize,
    pub(super) peer: Arc<Peer<F>>,
}

impl<F: Format> Reader<'_, F> {
    /// Returns the next super-packet that has a peer; `None` when the device is empty or the turn is over.
    pub(super) fn next(&mut self) -> Option<Routed<F>> {
        while let Some((vlan, piece)) = self.pieces.pop_front() {
            if let Some(place) = self.packet.get_mut(..piece.len()) {
                place.copy_from_slice(&piece);
                let plain = VnetHeader::default();
                if let routed @ Some(_) = self.routed(plain, piece.len(), vlan) {
                    return routed;
                }
            }
        }
        while self.reads_left > 0 && self.bytes_left > 0 {
            self.reads_left -= 1;
            let mut vnet = [0; VnetHeader::LEN];
            let len = match self.tun.read(&mut vnet, self.packet) {
                Ok(len) => len,
                Err(error) => match error.raw_os_error() {
                    _ if error.kind() == io::ErrorKind::WouldBlock => {
                        self.reads_left = 0;
                        return None;
                    }
                    Some(EIO | EFAULT | EBADFD) => {
                        (self.alive, self.reads_left) = (false, 0);
                        return None;
                    }
                    // The device cannot describe this packet, so it is lost.
                    _ => {
                        self.shared.stats.drop(DropReason::TunMalformed);
                        continue;
                    }
                },
            };
            self.bytes_left = self.bytes_left.saturating_sub(len);
            self.refresh_tables();
            let mut vnet = VnetHeader::decode(&vnet);
            let (vlan, len) = match self.take_vlan(&mut vnet, len) {
                Ok(taken) => taken,
                Err(reason) => {
                    self.shared.stats.drop(reason);
                    continue;
                }
            };
            // A packet without a peer is dropped for that reason and must not start a connection.
            let to = if self.filter_hook.is_some() { self.receiver(len, vlan).ok() } else { None };
            if let (Some(to), Some(filter_hook)) = (to, &mut self.filter_hook) {
                let packet = self.packet.get(..len).unwrap_or(&[]);
                match filter::evaluate_outgoing(
                    filter_hook,
                    self.shared,
                    self.tun,
                    (to, vlan),
                    (&vnet, packet),
                ) {
                    Ok(()) => {}
                    Err(pieces) if pieces.is_empty() => continue,
                    Err(pieces) => {
                        self.pieces.extend(pieces.into_iter().map(|piece| (vlan, piece)));
                        return self.next();
                    }
                }
            }
            if let routed @ Some(_) = self.routed(vnet, len, vlan) {
                return routed;
            }
        }
        None
    }

    /// Takes the VLAN from the frame in the buffer; returns it, and the length of the frame without it. A TUN device has
    /// packets without VLANs.
    #[inline]
    fn take_vlan(
        &mut self,
        vnet: &mut VnetHeader,
        len: usize,
    ) -> Result<(Option<VlanId>, usize), DropReason> {
        let Some(vlans) = self.shared.vlans() else { return Ok((None, len)) };
        let frame = self.packet.get_mut(..len).unwrap_or(&mut []);
        let (vlan, len) = take_vlan(vlans, vnet, frame)?;
        Ok((Some(vlan), len))
    }

    /// Finds the peer of the packet in the buffer.
    fn routed(&mut self, vnet: VnetHeader, len: usize, vlan: Option<VlanId>) -> Option<Routed<F>> {
        let routed = match &self.shared.ethernet {
            None => self.route(len).map(|peer| Some((peer, 0))),
            Some(switch) => self.route_frame(switch, &vnet, (len, vlan)),
        };
        match routed {
            Ok(Some((peer, l2))) => return Some(Routed { vnet, len, l2, peer }),
            Ok(None) => {}
            Err(reason) => self.refused(reason, &vnet, len),
        }
        None
    }

    /// Counts the packet in the buffer, which has no peer, or hands it up.
    #[cold]
    fn refused(&mut self, reason: DropReason, vnet: &VnetHeader, len: usize) {
        let unrouted = matches!(reason, DropReason::NoRoute | DropReason::LocalScope);
        let packet = self.packet.get_mut(..len).unwrap_or(&mut []);
        if !unrouted || !self.shared.hand_up_segments(vnet, (packet, 0)) {
            self.shared.stats.drop(reason);
        }
    }

    /// Finds the peer that a packet or frame is for; `None` means all peers.
    fn receiver(&mut self, len: usize, vlan: Option<VlanId>) -> Result<Option<PeerId>, DropReason> {
        let Some(switch) = &self.shared.ethernet else {
            return self.route(len).map(|peer| Some(peer.first));
        };
        let frame = self.packet.get(..len).unwrap_or(&[]);
        let last = &mut self.frames.last;
        let to = outward(switch, self.shared.client, &self.peers, (frame, vlan), last)?;
        Ok(to.peer.map(|peer| peer.id))
    }

    fn route(&self, len: usize) -> Result<Arc<Peer<F>>, DropReason> {
        let packet = self.packet.get(..len).unwrap_or(&[]);
        let ip = Ip::parse(packet).ok_or(DropReason::NotIp)?;
        let to = ip.destination;
        if self.own.as_deref().is_some_and(|own| own.owns(&ip, packet)) {
            return Err(DropReason::Recursive);
        }
        let owner = self.routes.owner(to).and_then(|owner| self.peers.slot(owner));
        owner.map(|owner| owner.channel(packet).clone()).ok_or_else(|| self.shared.unrouted(to))
    }

    /// Returns whether a frame contains a packet of the transport that carries this tunnel.
    pub(super) fn is_own(&self, len: usize, l2: usize) -> bool {
        let packet = self.packet.get(l2..len).unwrap_or(&[]);
        self.own
            .as_deref()
            .is_some_and(|own| Ip::parse(packet).is_some_and(|ip| own.owns(&ip, packet)))
    }

    /// Reloads the tables if they changed. A packet may be for a peer that was added since the turn began, which can be
    /// long ago on a busy machine.
    #[inline]
    fn refresh_tables(&mut self) {
        let tables = &self.shared.tables;
        if tables.version() != self.version {
            (self.version, self.peers, self.routes) = tables.current();
            self.frames.forget();
        }
    }
}
