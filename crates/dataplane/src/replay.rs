//! The replay window: RFC 6479's ring of bit blocks, as wide as configured.

/// The packet ids seen, back to a fixed distance from the newest.
///
/// An id `size` or more behind the newest is refused. Id 0 is never sent and always refused. The zero-filled
/// window accepts every other id.
///
/// ```
/// use adit_dataplane::{ReplayCheck, ReplayWindow};
///
/// let mut window = ReplayWindow::new(64);
/// window.accept(100);
/// assert_eq!(window.check(101), Some(ReplayCheck::Newest));
/// assert_eq!(window.check(99), Some(ReplayCheck::Late));
/// assert_eq!(window.check(100), None, "a repetition");
/// assert_eq!(window.check(36), None, "too old");
/// ```
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    newest: u64,
    size: u64,
    /// A power of two of blocks, one more than `size` needs, so the block that is being recycled is never inside the
    /// window.
    blocks: Box<[u64]>,
}

/// The position of an acceptable id.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum ReplayCheck {
    /// Beyond all ids so far.
    Newest,
    /// Late, but within the window and not seen.
    Late,
}

/// Widest window: 64 Ki packets take 8 KiB per key.
const MAX_SIZE: u32 = 65536;
const BLOCK: u64 = 64;

impl ReplayWindow {
    /// Creates an empty window of `size` packets (clamped to 1..=65536).
    pub fn new(size: u32) -> Self {
        let size = size.clamp(1, MAX_SIZE);
        let blocks = (size.div_ceil(64) as usize).saturating_add(1).next_power_of_two();
        Self { newest: 0, size: u64::from(size), blocks: vec![0; blocks].into() }
    }

    /// Creates a window of `size` packets in which all ids up to `newest` were seen.
    pub fn after(newest: u64, size: u32) -> Self {
        let mut window = Self::new(size);
        window.newest = newest;
        window.blocks.fill(u64::MAX);
        // The later ids of the newest one's block are new.
        let at = window.block_of(newest);
        if let Some(block) = window.blocks.get_mut(at) {
            *block = bit_of(newest) | bit_of(newest).wrapping_sub(1);
        }
        window
    }

    /// Returns the newest id seen; 0 if there was none.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Forgets all ids.
    pub fn clear(&mut self) {
        self.newest = 0;
        self.blocks.fill(0);
    }

    /// Returns the position of an id, or `None` if it was seen or is too old. Does not mark it, because the packet is not yet
    /// authenticated.
    #[inline]
    pub fn check(&self, id: u64) -> Option<ReplayCheck> {
        if id > self.newest {
            return Some(ReplayCheck::Newest);
        }
        if id == 0 || self.newest.wrapping_sub(id) >= self.size {
            return None;
        }
        let block = self.blocks.get(self.block_of(id))?;
        if block & bit_of(id) == 0 { Some(ReplayCheck::Late) } else { None }
    }

    /// Marks the id of an authentic packet as seen.
    #[inline]
    pub fn accept(&mut self, id: u64) {
        if id > self.newest {
            let (old, new) = (self.newest / BLOCK, id / BLOCK);
            // All blocks between the previous newest id and the new one belong to ids not seen yet.
            let fresh = new.wrapping_sub(old).min(self.blocks.len() as u64);
            for block in 0..fresh {
                let at = self.block_of(new.wrapping_sub(block).wrapping_mul(BLOCK));
                if let Some(block) = self.blocks.get_mut(at) {
                    *block = 0;
                }
            }
            self.newest = id;
        }
        let at = self.block_of(id);
        if let Some(block) = self.blocks.get_mut(at) {
            *block |= bit_of(id);
        }
    }

    #[inline]
    fn block_of(&self, id: u64) -> usize {
        (id / BLOCK) as usize & (self.blocks.len().wrapping_sub(1))
    }
}

#[inline]
fn bit_of(id: u64) -> u64 {
    1 << (id % BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn openvpns_distance() {
        let mut window = ReplayWindow::new(64);
        window.accept(100);
        assert_eq!(window.check(37), Some(ReplayCheck::Late));
        assert_eq!(window.check(36), None);
        assert_eq!(window.check(100), None);
        assert_eq!(window.check(101), Some(ReplayCheck::Newest));
        assert_eq!(window.check(0), None);
    }

    #[test]
    fn the_last_ids_work() {
        let mut window = ReplayWindow::new(64);
        window.accept(u64::from(u32::MAX));
        assert_eq!(window.check(u64::from(u32::MAX)), None);
        window.accept(u64::MAX);
        assert_eq!(window.check(u64::MAX), None);
        assert_eq!(window.check(u64::MAX - 1), Some(ReplayCheck::Late));
    }

    #[test]
    fn a_window_after_an_id_has_seen_all_before_it() {
        for newest in [0, 1, 63, 64, 100, 127, 128, 1 << 40] {
            let mut window = ReplayWindow::after(newest, 100);
            assert_eq!(window.newest(), newest);
            for id in newest.saturating_sub(200)..=newest {
                assert_eq!(window.check(id), None, "{id} up to {newest}");
            }
            window.accept(newest + 90);
            for id in newest + 1..newest + 90 {
                assert_eq!(window.check(id), Some(ReplayCheck::Late), "{id} after {newest}");
            }
            for id in newest.saturating_sub(9)..=newest {
                assert_eq!(window.check(id), None, "{id} up to {newest}");
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_set(
            size in prop_oneof![Just(1u32), Just(64), Just(65), 1u32..300],
            steps in proptest::collection::vec((0u8..4, 0u64..400), 1..400),
        ) {
            let mut window = ReplayWindow::new(size);
            let (mut seen, mut newest) = (HashSet::new(), 0u64);
            for (kind, delta) in steps {
                let id = match kind {
                    0 => newest + 1,
                    1 => newest.saturating_sub(delta),
                    2 => newest + delta,
                    _ => newest.saturating_sub(delta % 70),
                };
                let expected = if id == 0 || seen.contains(&id) {
                    None
                } else if id > newest {
                    Some(ReplayCheck::Newest)
                } else if newest - id >= u64::from(size) {
                    None
                } else {
                    Some(ReplayCheck::Late)
                };
                prop_assert_eq!(window.check(id), expected, "id {} newest {}", id, newest);
                if expected.is_some() {
                    window.accept(id);
                    seen.insert(id);
                    newest = newest.max(id);
                }
            }
        }
    }
}
