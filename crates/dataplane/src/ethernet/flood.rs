//! Limits on flooded frames. One frame becomes as many datagrams as there are peers, and a peer that may send one may
//! send many.

use adit_engine::Rate;

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
    /// The end of each frame.
    ends: Vec<usize>,
}

impl Floods {
    /// Keeps one frame; returns `false` if there is no room.
    pub(crate) fn add(&mut self, frame: &[u8]) -> bool {
        if self.bytes.len().saturating_add(frame.len()) > MAX_KEPT {
            return false;
        }
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).filter_map(|(start, end)| self.bytes.get(*start..*end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_kept_up_to_the_bound() {
        let mut floods = Floods::default();
        let frames = [vec![1; 42], vec![2; 60_000], vec![], vec![3; 1514]];
        assert!(frames.iter().all(|frame| floods.add(frame)));
        assert!(!floods.add(&[4; MAX_KEPT - 60_000]));
        assert!(floods.add(&[5]), "what is shorter may still fit");
        let got: Vec<&[u8]> = floods.iter().collect();
        assert_eq!(got, [&frames[0][..], &frames[1], &frames[2], &frames[3], &[5]]);
        floods.clear();
        assert!(floods.is_empty() && floods.iter().next().is_none());
    }
}
