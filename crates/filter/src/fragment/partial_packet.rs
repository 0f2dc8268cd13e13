use adit_wire::checksum::Sum;
use adit_wire::{Gso, VnetHeader};

use crate::Nanos;
use crate::packet::{Fragment, Ip, Packet, extension};

use super::{FragmentDrop, PIECE_COST};

/// The maximum length of an IPv4 packet and of the payload of an IPv6 packet.
const LONGEST: usize = 65_535;
/// The length of the IPv6 header. Its length field excludes it.
const V6_LEN: usize = adit_wire::ip::V6_LEN;

/// One fragment.
#[derive(Debug)]
pub(super) struct StoredFragment {
    /// The original frame.
    pub(super) frame: Vec<u8>,
    /// The offset of its IP header.
    at: usize,
    /// The offset of its part of the packet within the frame.
    data: usize,
    /// The position of that part in the packet.
    start: usize,
    /// The end of that part in the packet.
    end: usize,
    more: bool,
}

impl StoredFragment {
    /// Copies a valid fragment.
    pub(super) fn new(
        packet: &Packet<'_>,
        ip: &Ip,
        fragment: &Fragment,
        vnet: &VnetHeader,
    ) -> Result<Self, FragmentDrop> {
        if vnet.needs_csum || vnet.gso != Gso::None {
            return Err(FragmentDrop::Offload);
        }
        let len = packet.bytes.len().saturating_sub(fragment.data);
        if len == 0 {
            return Err(FragmentDrop::Empty);
        }
        if fragment.more && !len.is_multiple_of(8) {
            return Err(FragmentDrop::Uneven);
        }
        let start = usize::try_from(fragment.offset).map_err(|_| FragmentDrop::TooLong)?;
        let end = start.saturating_add(len);
        let headers = if ip.source.is_ipv4() {
            fragment.data.saturating_sub(ip.at)
        } else {
            unfragmentable(ip.at, fragment.data)
        };
        if headers.saturating_add(end) > LONGEST {
            return Err(FragmentDrop::TooLong);
        }
        let frame = packet.bytes.to_vec();
        Ok(Self { frame, at: ip.at, data: fragment.data, start, end, more: fragment.more })
    }

    pub(super) fn cost(&self) -> usize {
        self.frame.len().saturating_add(PIECE_COST)
    }

    fn part(&self) -> Option<&[u8]> {
        self.frame.get(self.data..)
    }
}

/// Returns the length of the extension headers before IPv6's fragment header.
fn unfragmentable(at: usize, data: usize) -> usize {
    data.saturating_sub(extension::FRAGMENT_LEN).saturating_sub(at).saturating_sub(V6_LEN)
}

/// The fragments of a packet so far.
#[derive(Debug)]
pub(super) struct PartialPacket {
    /// Its number in order of age.
    pub(super) number: u64,
    /// The time when it expires.
    pub(super) deadline: Nanos,
    /// No further fragments of it are accepted.
    pub(super) refused: bool,
    /// The fragments in the order of their offsets; they never overlap.
    pub(super) pieces: Vec<StoredFragment>,
}

impl PartialPacket {
    pub(super) fn new(number: u64, deadline: Nanos) -> Self {
        Self { number, deadline, refused: false, pieces: Vec::new() }
    }

    pub(super) fn cost(&self) -> usize {
        self.pieces.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.cost()))
    }

    /// Checks whether a fragment fits among the held fragments.
    pub(super) fn admits(&self, new: &StoredFragment, limit: usize) -> Result<(), FragmentDrop> {
        for old in &self.pieces {
            if new.start < old.end && old.start < new.end {
                let same = (new.start, new.end, new.more) == (old.start, old.end, old.more)
                    && new.part() == old.part();
                return Err(if same { FragmentDrop::Duplicate } else { FragmentDrop::Overlap });
            }
        }
        // Without overlaps, all fragments precede the last one, which is the only one without the flag for more
        // fragments.
        let contradicts = |old: &StoredFragment| {
            (!old.more && new.start >= old.end) || (!new.more && old.start >= new.end)
        };
        if self.pieces.iter().any(contradicts) {
            return Err(FragmentDrop::Ends);
        }
        if self.pieces.len() >= limit { Err(FragmentDrop::TooMany) } else { Ok(()) }
    }

    /// Inserts a fragment that was admitted. Returns whether the packet is now complete.
    pub(super) fn insert(&mut self, piece: StoredFragment) -> bool {
        let at = self.pieces.partition_point(|other| other.start < piece.start);
        self.pieces.insert(at, piece);
        let mut reached = 0;
        for piece in &self.pieces {
            if piece.start != reached {
                return false;
            }
            reached = piece.end;
        }
        self.pieces.last().is_some_and(|last| !last.more)
    }

    /// Writes the packet as it was before fragmentation; returns `None` if it would be too long, which is possible if
    /// the first fragment has longer headers than the others.
    pub(super) fn whole(&self, out: &mut Vec<u8>) -> Option<()> {
        let first = self.pieces.first()?;
        let headers = first.frame.get(..first.data)?;
        let v4 = first.frame.get(first.at)? >> 4 == 4;
        let kept = if v4 { first.data } else { first.data.checked_sub(extension::FRAGMENT_LEN)? };
        out.extend_from_slice(headers.get(..kept)?);
        for piece in &self.pieces {
            out.extend_from_slice(piece.part()?);
        }
        let total = out.len().checked_sub(first.at)?;
        let header = out.get_mut(first.at..kept)?;
        if v4 { mend_v4(header, total) } else { mend_v6(header, total, headers.get(kept..)?) }
    }
}

fn mend_v4(header: &mut [u8], total: usize) -> Option<()> {
    let total = u16::try_from(total).ok()?.to_be_bytes();
    header.get_mut(2..4)?.copy_from_slice(&total);
    // Keep only the flag "don't fragment".
    let flags = header.get(6)? & 0x40;
    header.get_mut(6..8)?.copy_from_slice(&[flags, 0]);
    header.get_mut(10..12)?.fill(0);
    let sum = Sum::new().bytes(header).finish().to_be_bytes();
    header.get_mut(10..12)?.copy_from_slice(&sum);
    Some(())
}

/// Completes `header`, which ends where the fragment header `cut` was.
fn mend_v6(header: &mut [u8], total: usize, cut: &[u8]) -> Option<()> {
    let payload = u16::try_from(total.checked_sub(V6_LEN)?).ok()?.to_be_bytes();
    header.get_mut(4..6)?.copy_from_slice(&payload);
    // The header that announced the fragment header now announces the next one.
    let (mut announcing, mut kind, mut at) = (6, *header.get(6)?, V6_LEN);
    while at < header.len() {
        let (next, units) = (*header.get(at)?, usize::from(*header.get(at.checked_add(1)?)?));
        let len = match kind {
            extension::AUTHENTICATION => units.checked_add(2)?.checked_mul(4)?,
            _ => units.checked_add(1)?.checked_mul(8)?,
        };
        (announcing, kind, at) = (at, next, at.checked_add(len)?);
    }
    *header.get_mut(announcing)? = *cut.first()?;
    Some(())
}
