//! Holds fragments until their packet is complete, so that it can be evaluated as a whole. A rule on a port cannot
//! decide about a fragment that has no ports.
//!
//! ```text
//!   piece ──checks of its own──► its packet ──overlaps? ends?──► held ──all there?──► whole
//!                                   │ no                          │
//!                                   └► refused until its time is over ◄┘
//! ```
//!
//! A packet whose fragments overlap is dropped with all its later fragments, as RFC 5722 and RFC 8200 4.5 require for
//! IPv6; IPv4 is treated alike. Linux does the same for both families, but treats a fragment within another one as a
//! duplicate whatever its bytes; here only an exact repetition is a duplicate. In any case the receiver gets exactly the
//! bytes that were evaluated: the fragments are forwarded from here when the packet is complete.
//!
//! Time is injected; every bound is in [`Limits`], and every fragment that is not passed on is counted in
//! [`FragmentStats`]. Packets are found in ordered trees, in which senders cannot cause collisions.

mod partial_packet;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use adit_wire::VnetHeader;

use crate::Nanos;
use crate::packet::{Fragment, Ip, Packet};

use partial_packet::{PartialPacket, StoredFragment};

/// The cost of a fragment in addition to its bytes, so that small fragments are not free.
const PIECE_COST: usize = 128;

/// The limits of held fragments.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// The number of incomplete packets that are held, and also the number remembered as refused. The oldest of each is
    /// evicted.
    pub packets: usize,
    /// The number of bytes of held frames, plus 128 for each frame. The oldest packet is evicted.
    pub bytes: usize,
    /// The same limit for one source address (a /64 of IPv6).
    pub source_bytes: usize,
    /// The number of fragments of one packet.
    pub pieces: usize,
    /// The time in which a packet must be complete, from its first fragment on. Linux allows 30 s, RFC 8200 60 s.
    pub hold: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            packets: 1024,
            bytes: 2 << 20,
            source_bytes: 256 << 10,
            pieces: 64,
            hold: Duration::from_secs(30),
        }
    }
}

/// The result for a fragment.
#[derive(Debug)]
pub enum Outcome {
    /// The packet is not a fragment: evaluate it unchanged.
    NotAPiece,
    /// The fragment is held until its packet is complete.
    Held,
    /// The fragment is dropped.
    Dropped(FragmentDrop),
    /// The last missing fragment arrived. Evaluate the whole packet, then forward or drop the fragments.
    Whole(Assembled),
}

/// The reason why a fragment is dropped.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum FragmentDrop {
    /// It overlaps another fragment, so its packet is refused (RFC 5722).
    #[error("overlaps another piece")]
    Overlap,
    /// It is an exact repetition of another fragment. Its packet stays.
    #[error("repeats another piece")]
    Duplicate,
    /// Its packet was refused earlier, and the refusal has not expired.
    #[error("of a packet that was refused")]
    Refused,
    /// The whole packet would be longer than 65,535 bytes.
    #[error("reaches beyond the longest packet")]
    TooLong,
    /// It is empty.
    #[error("carries nothing")]
    Empty,
    /// More fragments follow, but its length is not a multiple of eight.
    #[error("not the last, and not a multiple of eight bytes long")]
    Uneven,
    /// It reaches beyond the last fragment, or there are two last fragments, so its packet is refused.
    #[error("contradicts another piece about where the packet ends")]
    Ends,
    /// Its packet has more fragments than [`Limits::pieces`], and is refused.
    #[error("too many pieces")]
    TooMany,
    /// Its source already uses [`Limits::source_bytes`]; its packet is refused, including the fragments held.
    #[error("too many bytes from one source")]
    SourceFull,
    /// It exceeds [`Limits::bytes`] on its own, or the limits allow no packets.
    #[error("no room")]
    Full,
    /// The device marks it as a super-packet or as lacking its checksum, which is impossible for a fragment.
    #[error("a piece with offloads")]
    Offload,
}

/// The counters of the reassembler since its start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct FragmentStats {
    /// The number of fragments that were held.
    pub held: u64,
    /// The number of packets that became complete.
    pub whole: u64,
    /// See [`FragmentDrop::Overlap`]. This counter and those down to `offload` count fragments.
    pub overlap: u64,
    /// See [`FragmentDrop::Duplicate`].
    pub duplicate: u64,
    /// See [`FragmentDrop::Refused`].
    pub refused: u64,
    /// See [`FragmentDrop::TooLong`].
    pub too_long: u64,
    /// See [`FragmentDrop::Empty`].
    pub empty: u64,
    /// See [`FragmentDrop::Uneven`].
    pub uneven: u64,
    /// See [`FragmentDrop::Ends`].
    pub ends: u64,
    /// See [`FragmentDrop::TooMany`].
    pub too_many: u64,
    /// See [`FragmentDrop::SourceFull`].
    pub source_full: u64,
    /// See [`FragmentDrop::Full`].
    pub full: u64,
    /// See [`FragmentDrop::Offload`].
    pub offload: u64,
    /// The number of packets that were not completed in time.
    pub late: u64,
    /// The number of packets that were evicted for newer ones.
    pub evicted: u64,
    /// The number of packets held now.
    pub packets: usize,
    /// The number of bytes held now, as [`Limits::bytes`] counts them.
    pub bytes: usize,
}

/// A packet whose fragments are complete.
#[derive(Debug, Default)]
pub struct Assembled {
    whole: Vec<u8>,
    pieces: Vec<StoredFragment>,
    beside: Option<u16>,
}

impl Assembled {
    /// Returns the packet as before fragmentation, after the link header of its first fragment.
    pub fn whole(&self) -> &[u8] {
        &self.whole
    }

    /// Returns the original fragments, in the order of their offsets. None of them needs offloads.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| piece.frame.as_slice())
    }

    /// Returns the VLAN tag next to the fragment that arrived last; any tags next to the other fragments have the same
    /// id.
    pub fn vlan_beside(&self) -> Option<u16> {
        self.beside
    }
}

/// The properties that all fragments of a packet share (RFC 791, RFC 8200 4.5).
#[derive(Copy, Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    zone: u32,
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// IPv4 only: fragments of IPv6 need not agree on it.
    protocol: u8,
    /// Both stations: rules evaluate the stations of the first fragment, so all fragments must have the same ones.
    stations: Option<(u64, u64)>,
    /// The ids of the tags next to the frame and in it; fragments of different networks are never mixed.
    vlans: [Option<u16>; 3],
}

impl Key {
    fn of(packet: &Packet<'_>, ip: &Ip, fragment: &Fragment, zone: u32) -> Self {
        let id_at = |at: usize| {
            let inside = at.saturating_add(4) <= ip.at;
            let tag = packet.bytes.get(at..).and_then(|rest| rest.first_chunk());
            tag.filter(|_| inside).map(|tag| u16::from_be_bytes(*tag) & 0xfff)
        };
        let beside = packet.ether.filter(|ether| ether.beside).and_then(|ether| ether.vlan);
        let vlans = match packet.ether {
            Some(_) => [beside.map(|tag| tag & 0xfff), id_at(14), id_at(18)],
            None => [None; 3],
        };
        let protocol = if ip.source.is_ipv4() { ip.protocol } else { 0 };
        Self {
            zone,
            source: ip.source,
            destination: ip.destination,
            id: fragment.id,
            protocol,
            stations: packet.ether.map(|ether| (ether.source, ether.destination)),
            vlans,
        }
    }

    /// Returns the source that is charged: many addresses in one network do not get a larger share.
    fn source(&self) -> (u32, IpAddr) {
        let network = match self.source {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) & !u128::from(u64::MAX)).into()),
        };
        (self.zone, network)
    }
}

/// Holds fragments until their packet is complete.
#[derive(Debug)]
pub struct Reassembler {
    limits: Limits,
    packets: BTreeMap<Key, PartialPacket>,
    /// The entries of `packets` that are held, by age.
    held: BTreeMap<u64, Key>,
    /// The entries that are refused, by age.
    refused: BTreeMap<u64, Key>,
    /// The bytes held for each source; zeros are not stored.
    sources: BTreeMap<(u32, IpAddr), usize>,
    bytes: usize,
    next: u64,
    stats: FragmentStats,
}

impl Reassembler {
    /// Creates an empty reassembler, which allocates nothing before the first fragment.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            packets: BTreeMap::new(),
            held: BTreeMap::new(),
            refused: BTreeMap::new(),
            sources: BTreeMap::new(),
            bytes: 0,
            next: 0,
            stats: FragmentStats::default(),
        }
    }

    /// Processes a fragment. `zone` separates fragments that must not be mixed: directions, peers.
    pub fn push(
        &mut self,
        packet: &Packet<'_>,
        vnet: &VnetHeader,
        zone: u32,
        now: Nanos,
    ) -> Outcome {
        let Some((ip, fragment)) = packet.ip().and_then(|ip| Some((ip, ip.fragment?))) else {
            return Outcome::NotAPiece;
        };
        self.expire(now);
        let key = Key::of(packet, ip, &fragment, zone);
        let taken = StoredFragment::new(packet, ip, &fragment, vnet)
            .and_then(|piece| self.take(key, piece, now))
            .and_then(|all| if all { self.assemble(&key, packet).map(Some) } else { Ok(None) });
        match taken {
            Ok(Some(assembled)) => {
                add(&mut self.stats.whole);
                Outcome::Whole(assembled)
            }
            Ok(None) => Outcome::Held,
            Err(why) => {
                add(self.stats.of(why));
                Outcome::Dropped(why)
            }
        }
    }

    /// Removes expired packets. [`Reassembler::push`] does so too; this method is for times without fragments.
    pub fn expire(&mut self, now: Nanos) {
        while let Some(key) = self.over(&self.held, now) {
            self.forget(&key);
            add(&mut self.stats.late);
        }
        while let Some(key) = self.over(&self.refused, now) {
            self.forget(&key);
        }
    }

    /// Returns its counters and contents.
    pub fn stats(&self) -> FragmentStats {
        FragmentStats { packets: self.held.len(), bytes: self.bytes, ..self.stats }
    }

    /// Returns the oldest entry of `order` if it has expired.
    fn over(&self, order: &BTreeMap<u64, Key>, now: Nanos) -> Option<Key> {
        let (_, key) = order.first_key_value()?;
        let over = self.packets.get(key).is_none_or(|packet| packet.deadline <= now);
        over.then_some(*key)
    }

    /// Inserts a fragment. Returns whether its packet is now complete.
    fn take(&mut self, key: Key, piece: StoredFragment, now: Nanos) -> Result<bool, FragmentDrop> {
        if let Some(packet) = self.packets.get(&key) {
            if packet.refused {
                return Err(FragmentDrop::Refused);
            }
            packet.admits(&piece, self.limits.pieces).inspect_err(|why| {
                if *why != FragmentDrop::Duplicate {
                    self.refuse(&key);
                }
            })?;
        }
        let cost = piece.cost();
        let from_source = self.sources.get(&key.source()).copied().unwrap_or(0);
        if from_source.saturating_add(cost) > self.limits.source_bytes {
            self.refuse(&key);
            return Err(FragmentDrop::SourceFull);
        }
        self.make_room(&key, cost)?;
        let number = self.next;
        let deadline = now.after(self.limits.hold);
        let packet =
            self.packets.entry(key).or_insert_with(|| PartialPacket::new(number, deadline));
        if packet.number == number {
            self.next = self.next.saturating_add(1);
            self.held.insert(number, key);
        }
        let whole = packet.insert(piece);
        self.bytes = self.bytes.saturating_add(cost);
        let from_source = self.sources.entry(key.source()).or_default();
        *from_source = from_source.saturating_add(cost);
        add(&mut self.stats.held);
        Ok(whole)
    }

    /// Evicts the oldest packets until `cost` more bytes fit, and one more packet if `key` is new.
    fn make_room(&mut self, key: &Key, cost: usize) -> Result<(), FragmentDrop> {
        let packet = self.packets.get(key);
        let own = packet.map_or(0, PartialPacket::cost);
        if own.saturating_add(cost) > self.limits.bytes || self.limits.packets == 0 {
            self.refuse(key);
            return Err(FragmentDrop::Full);
        }
        let new = usize::from(packet.is_none());
        while self.bytes.saturating_add(cost) > self.limits.bytes
            || self.held.len().saturating_add(new) > self.limits.packets
        {
            let oldest = self.held.values().find(|oldest| *oldest != key).copied();
            self.forget(&oldest.ok_or(FragmentDrop::Full)?);
            add(&mut self.stats.evicted);
        }
        Ok(())
    }

    /// Drops the held fragments of a packet, and all later ones until the packet expires.
    fn refuse(&mut self, key: &Key) {
        let Some(mut packet) = self.forget(key) else { return };
        while self.refused.len() >= self.limits.packets {
            let Some(oldest) = self.refused.first_key_value().map(|(_, key)| *key) else { return };
            self.forget(&oldest);
        }
        packet.refused = true;
        packet.pieces = Vec::new();
        self.refused.insert(packet.number, *key);
        self.packets.insert(*key, packet);
    }

    /// Removes a packet, and its bytes from the totals.
    fn forget(&mut self, key: &Key) -> Option<PartialPacket> {
        let Some(packet) = self.packets.remove(key) else {
            // Impossible, because every number belongs to a packet. If it happened, the packet must not stay forever.
            self.held.retain(|_, held| held != key);
            self.refused.retain(|_, refused| refused != key);
            return None;
        };
        let order = if packet.refused { &mut self.refused } else { &mut self.held };
        order.remove(&packet.number);
        let cost = packet.cost();
        self.bytes = self.bytes.saturating_sub(cost);
        if let Some(from_source) = self.sources.get_mut(&key.source()) {
            *from_source = from_source.saturating_sub(cost);
            if *from_source == 0 {
                self.sources.remove(&key.source());
            }
        }
        Some(packet)
    }

    /// Assembles a packet whose fragments are complete.
    fn assemble(&mut self, key: &Key, last: &Packet<'_>) -> Result<Assembled, FragmentDrop> {
        let mut whole = Vec::new();
        let made = self.packets.get(key).and_then(|packet| packet.whole(&mut whole));
        if made.is_none() {
            self.refuse(key);
            return Err(FragmentDrop::TooLong);
        }
        let pieces = self.forget(key).map(|packet| packet.pieces).unwrap_or_default();
        let beside = last.ether.filter(|ether| ether.beside).and_then(|at| at.vlan);
        Ok(Assembled { whole, pieces, beside })
    }
}

impl FragmentStats {
    fn of(&mut self, why: FragmentDrop) -> &mut u64 {
        match why {
            FragmentDrop::Overlap => &mut self.overlap,
            FragmentDrop::Duplicate => &mut self.duplicate,
            FragmentDrop::Refused => &mut self.refused,
            FragmentDrop::TooLong => &mut self.too_long,
            FragmentDrop::Empty => &mut self.empty,
            FragmentDrop::Uneven => &mut self.uneven,
            FragmentDrop::Ends => &mut self.ends,
            FragmentDrop::TooMany => &mut self.too_many,
            FragmentDrop::SourceFull => &mut self.source_full,
            FragmentDrop::Full => &mut self.full,
            FragmentDrop::Offload => &mut self.offload,
        }
    }
}

fn add(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}
