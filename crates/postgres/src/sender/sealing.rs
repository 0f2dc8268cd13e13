//! Segments and seals super-packets into rows.

use adit_wire::ip::Ip;
use adit_wire::split::Segments;
use adit_wire::{Gso, VnetHeader};

use super::{BatchPart, Stats};
use crate::Seq;
use crate::limits::PADDING;
use crate::queue::{DropCounts, Waiting, count};
use crate::row::copy::MAX_OVERHEAD;
use crate::seal::{SealError, Sealer};

/// The maximum length of a segment's headers; see [`adit_wire::split`].
const SEGMENT_HEADER: usize = 192;
/// The context in which packets are sealed into a part of a batch.
pub(super) struct BatchSealer<'a> {
    pub(super) seal: &'a mut Sealer,
    pub(super) next: &'a mut Seq,
    pub(super) given: &'a mut Seq,
    pub(super) used_up: &'a mut bool,
    pub(super) part: &'a mut BatchPart,
    pub(super) packet_size: usize,
}

impl BatchSealer<'_> {
    /// Segments a super-packet and seals the segments.
    pub(super) fn all(
        &mut self,
        waiting: &mut Waiting,
        stats: &mut Stats,
        dropped: &mut DropCounts,
    ) {
        let Ok(mut segments) = Segments::new(&waiting.vnet, &mut waiting.bytes) else {
            return count(&mut dropped.malformed);
        };
        while let Some(segment) = segments.next() {
            let whole = Ip::parse(segment).is_some_and(|ip| ip.total_len == segment.len());
            if !whole || segment.len() > self.packet_size {
                count(&mut dropped.malformed);
                continue;
            }
            match self.one(segment) {
                Ok(()) => {
                    count(&mut stats.packets);
                    stats.bytes = stats.bytes.saturating_add(segment.len() as u64);
                }
                Err(SealError::TooLong | SealError::NotIp) => count(&mut dropped.malformed),
                // A new epoch with another key is needed.
                Err(SealError::OutOfOrder | SealError::Exhausted | SealError::Library) => {
                    *self.used_up = true;
                    return count(&mut dropped.closed);
                }
            }
        }
    }

    fn one(&mut self, packet: &[u8]) -> Result<(), SealError> {
        let after = self.next.0.checked_add(1).ok_or(SealError::Exhausted)?;
        self.seal.seal_into(*self.next, packet, &mut self.part.bytes)?;
        *self.given = *self.next;
        *self.next = Seq(after);
        self.part.rows = self.part.rows.saturating_add(1);
        Ok(())
    }
}

/// Returns the maximum size in bytes of the rows of a super-packet.
pub(super) fn cost(vnet: &VnetHeader, len: usize) -> usize {
    let segments = match vnet.gso {
        Gso::None => 1,
        _ => len.div_ceil(usize::from(vnet.gso_size).max(1)),
    };
    len.saturating_add(segments.saturating_mul(SEGMENT_HEADER + MAX_OVERHEAD + PADDING))
}
