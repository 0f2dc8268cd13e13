//! Limits on flooded frames. One frame becomes as many datagrams as there are peers, and a peer that may send one may
//! send many.

use std::ops::Range;

use adit_engine::{Rate, VlanId};

/// The number of copies per second that all peers together, or the device, may cause: a fraction of what one core seals
/// and sends.
pub(crate) const TOTAL_COPIES: Rate = Rate::per_second(100_000);
/// The number of copies per second that one peer may cause, so that other peers get their share.
pub(crate) const PEER_COPIES: Rate = Rate::per_second(20_000);

/// The number of bytes of flooded frames that are kept in one turn.
const MAX_KEPT: usize = 128 << 10;

/// Whole frames to be flooded. They are copied because splitting destroys the frame that the device delivered, and
/// every peer needs it.
#[derive(Debug, Default)]
pub(crate) struct Floods {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
}

/// A frame that is kept.
#[derive(Debug)]
struct Frame {
    at: Range<usize>,
    vlan: Option<VlanId>,
}

/// Consecutive frames of one VLAN.
#[derive(Copy, Clone)]
pub(crate) struct FloodRun<'f> {
    bytes: &'f [u8],
    frames: &'f [Frame],
}

impl<'f> FloodRun<'f> {
    pub(crate) fn vlan(&self) -> Option<VlanId> {
        self.frames.first()?.vlan
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = &'f [u8]> {
        self.frames.iter().filter_map(move |frame| self.bytes.get(frame.at.clone()))
    }
}

impl Floods {
    /// Keeps one frame of a VLAN; returns `false` if there is no room.
    pub(crate) fn add(&mut self, frame: &[u8], vlan: Option<VlanId>) -> bool {
        if self.bytes.len().saturating_add(frame.len()) > MAX_KEPT {
            return false;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.frames.push(Frame { at: start..self.bytes.len(), vlan });
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }

    /// Returns the frames in order, those of one VLAN together.
    pub(crate) fn runs(&self) -> impl Iterator<Item = FloodRun<'_>> {
        let runs = self.frames.chunk_by(|a, b| a.vlan == b.vlan);
        runs.map(|frames| FloodRun { bytes: &self.bytes, frames })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_kept_up_to_the_bound() {
        let mut floods = Floods::default();
        let frames = [vec![1; 42], vec![2; 60_000], vec![], vec![3; 1514]];
        assert!(frames.iter().all(|frame| floods.add(frame, None)));
        assert!(!floods.add(&[4; MAX_KEPT - 60_000], None));
        assert!(floods.add(&[5], None), "what is shorter may still fit");
        let got: Vec<&[u8]> = floods.runs().flat_map(FloodRun::iter).collect();
        assert_eq!(got, [&frames[0][..], &frames[1], &frames[2], &frames[3], &[5]]);
        floods.clear();
        assert!(floods.is_empty() && floods.runs().next().is_none());
    }

    #[test]
    fn frames_are_divided_where_the_vlan_changes() {
        let mut floods = Floods::default();
        for (byte, vlan) in [(1, 7), (2, 7), (3, 9), (4, 7)] {
            floods.add(&[byte], VlanId::new(vlan));
        }
        let runs = floods.runs().map(|run| {
            (run.vlan().map(VlanId::get), run.len(), run.iter().flatten().copied().collect())
        });
        let expected = [(Some(7), 2, vec![1, 2]), (Some(9), 1, vec![3]), (Some(7), 1, vec![4])];
        assert_eq!(runs.collect::<Vec<_>>(), expected);
    }
}
