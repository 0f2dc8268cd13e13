//! Buffers for packets that are reassembled or decompressed.

use std::slice;

use crate::ingress::LazyState;
use crate::stats::DropReason;

/// The unused buffers of one burst. They live as long as the packets in them.
#[derive(Default)]
pub(crate) struct Buffers<'a> {
    unused: slice::IterMut<'a, Vec<u8>>,
    /// The first unused buffer.
    spare: Option<&'a mut Vec<u8>>,
}

impl<'a> Buffers<'a> {
    pub(crate) fn new(memory: &'a mut [Vec<u8>]) -> Self {
        Self { unused: memory.iter_mut(), spare: None }
    }
}

/// Provides buffers for packets that are reassembled or decompressed.
pub struct Scratch<'l, 'a>(pub(crate) &'l mut Option<Box<LazyState<'a>>>);

impl std::fmt::Debug for Scratch<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl<'a> Scratch<'_, 'a> {
    /// Takes a buffer.
    ///
    /// # Errors
    /// No buffer is left in this burst.
    pub fn take(&mut self) -> Result<&'a mut Vec<u8>, DropReason> {
        let buffers = &mut self.0.get_or_insert_default().buffers;
        let buffer = buffers.spare.take().or_else(|| buffers.unused.next());
        buffer.ok_or(DropReason::FragmentsFull)
    }

    /// Returns a buffer that holds no packet.
    pub fn give_back(&mut self, buffer: &'a mut Vec<u8>) {
        self.0.get_or_insert_default().buffers.spare = Some(buffer);
    }
}
