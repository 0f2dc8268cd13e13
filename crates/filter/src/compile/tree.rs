//! Finds the position of a number among sorted ones: a static tree of nodes of sixteen, compared
//! all at once.
//!
//! ```text
//!   levels[0]   s0                s16               s32 ...        at most one node
//!   levels[1]   s0 s1 s2 ... s15  s16 s17 ... s31   s32 ...        all numbers
//! ```
//!
//! Sixteen comparisons without a branch cost less than four that are guessed wrong, and a node of
//! 32-bit numbers is one cache line: 400,000 numbers lie five lines deep.

/// The number of entries in a node.
const NODE: usize = 16;

/// A type that can be searched for.
pub(crate) trait Key: Copy + Ord {
    const MIN: Self;
    const MAX: Self;
    /// Returns how many of a node's numbers are at most `value`.
    fn rank(node: &[Self; NODE], value: Self) -> usize;
}

impl Key for u32 {
    const MIN: Self = 0;
    const MAX: Self = Self::MAX;

    #[inline]
    fn rank(node: &[Self; NODE], value: Self) -> usize {
        // The sum is as wide as the numbers, so that the loop compiles to vector instructions.
        node.iter().fold(0u32, |sum, one| sum.wrapping_add(Self::from(*one <= value))) as usize
    }
}

impl Key for u128 {
    const MIN: Self = 0;
    const MAX: Self = Self::MAX;

    #[inline]
    fn rank(node: &[Self; NODE], value: Self) -> usize {
        node.partition_point(|one| *one <= value)
    }
}

/// Sorted numbers, the first of which is the smallest possible.
#[derive(Clone, Debug)]
pub(crate) struct Tree<K> {
    /// The levels from the root on, each padded to whole nodes.
    levels: Vec<Level<K>>,
}

#[derive(Clone, Debug)]
struct Level<K> {
    /// Whole nodes.
    nodes: Vec<[K; NODE]>,
    /// The index of the last number that is not padding.
    last: usize,
}

impl<K: Key> Tree<K> {
    /// Builds a tree of `starts`, which must be strictly ascending. If [`Key::MIN`] is missing, it
    /// is added, so that every number has an answer.
    pub(super) fn new(mut starts: Vec<K>) -> Self {
        if starts.first() != Some(&K::MIN) {
            starts.insert(0, K::MIN);
        }
        let mut levels = Vec::new();
        loop {
            let nodes: Vec<[K; NODE]> = starts
                .chunks(NODE)
                .map(|chunk| {
                    let mut node = [K::MAX; NODE];
                    node.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
                    node
                })
                .collect();
            let last = starts.len().saturating_sub(1);
            starts = starts.iter().step_by(NODE).copied().collect();
            let done = nodes.len() <= 1;
            levels.push(Level { nodes, last });
            if done {
                break;
            }
        }
        levels.reverse();
        Self { levels }
    }

    /// Returns the index of the last start that is at most `value`.
    #[inline]
    pub(super) fn find(&self, value: K) -> usize {
        let mut at = 0usize;
        for level in &self.levels {
            let Some(node) = level.nodes.get(at) else { return 0 };
            let within = K::rank(node, value).saturating_sub(1);
            // Padding counts only if `value` is the greatest number.
            at = at.wrapping_mul(NODE).wrapping_add(within).min(level.last);
        }
        at
    }

    /// Returns the number of bytes on the heap.
    pub(super) fn size(&self) -> usize {
        let numbers: usize =
            self.levels.iter().map(|level| level.nodes.len().saturating_mul(NODE)).sum();
        numbers.saturating_mul(size_of::<K>())
    }
}

/// A tree over numbers of up to 32 or up to 128 bits.
#[derive(Clone, Debug)]
pub(crate) enum AnyTree {
    Narrow(Tree<u32>),
    Wide(Tree<u128>),
}

impl AnyTree {
    /// Builds a tree for numbers of this many bits.
    pub(super) fn new(bits: u8, starts: Vec<u128>) -> Self {
        if bits <= 32 {
            Self::Narrow(Tree::new(starts.into_iter().map(|start| start as u32).collect()))
        } else {
            Self::Wide(Tree::new(starts))
        }
    }

    #[inline]
    pub(super) fn find(&self, value: u128) -> usize {
        match self {
            Self::Narrow(tree) => tree.find(value as u32),
            Self::Wide(tree) => tree.find(value),
        }
    }

    pub(super) fn size(&self) -> usize {
        match self {
            Self::Narrow(tree) => tree.size(),
            Self::Wide(tree) => tree.size(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive<K: Key>(starts: &[K], value: K) -> usize {
        starts.partition_point(|start| *start <= value) - 1
    }

    #[test]
    fn the_greatest_number_is_not_mistaken_for_padding() {
        for count in [1usize, 2, 15, 16, 17, 255, 256, 257, 5000] {
            let starts: Vec<u32> = (0..count as u32).map(|at| at * 3).collect();
            let tree = Tree::new(starts.clone());
            assert_eq!(tree.find(u32::MAX), count - 1, "{count}");
            assert_eq!(tree.find(0), 0);
            for (at, start) in starts.iter().enumerate() {
                assert_eq!(tree.find(start + 2), at, "{count}");
            }
        }
    }

    #[test]
    fn without_numbers_there_is_one_place() {
        assert_eq!(Tree::<u32>::new(Vec::new()).find(7), 0);
        assert_eq!(Tree::<u128>::new(Vec::new()).find(u128::MAX), 0);
    }

    proptest! {
        #[test]
        fn finds_what_a_sorted_list_finds(
            mut starts in prop::collection::vec(any::<u32>(), 0..700),
            values in prop::collection::vec(any::<u32>(), 20),
        ) {
            starts.push(0);
            starts.sort_unstable();
            starts.dedup();
            let wide: Vec<u128> = starts.iter().map(|one| u128::from(*one) << 70).collect();
            let (tree, wide_tree) = (Tree::new(starts.clone()), Tree::new(wide.clone()));
            let near = starts.iter().flat_map(|one| [*one, one.wrapping_sub(1)]);
            for value in values.into_iter().chain(near) {
                prop_assert_eq!(tree.find(value), naive(&starts, value));
                let value = u128::from(value) << 70;
                prop_assert_eq!(wide_tree.find(value), naive(&wide, value));
            }
        }
    }
}
