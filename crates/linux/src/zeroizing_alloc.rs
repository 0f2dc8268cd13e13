//! An allocator that zeroizes freed memory.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};

/// Largest block that is zeroized, in bytes. Secrets and TLS buffers are far smaller; larger blocks are tables and packet
/// buffers, where zeroizing would touch pages that were never used.
pub const MAX_ZEROIZED_LEN: usize = 128 << 10;

/// An allocator on top of another allocator that zeroizes each block before it is freed.
///
/// It covers data that self-zeroizing types do not: copies of secrets that libraries make, such as the plaintext of TLS
/// records.
#[derive(Debug, Default)]
pub struct ZeroizingAllocator<A>(pub A);

// SAFETY: each call goes to the other allocator with the same arguments, or to the default methods of the trait, which
// call these. A block is only overwritten before it is freed, after its owner has given it up.
unsafe impl<A: GlobalAlloc> GlobalAlloc for ZeroizingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps this method's contract, which is the same.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() <= MAX_ZEROIZED_LEN {
            // SAFETY: the block has this many bytes, and is no longer in use.
            unsafe { libc::explicit_bzero(block.cast(), layout.size()) };
        }
        // SAFETY: as above.
        unsafe { self.0.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() > MAX_ZEROIZED_LEN {
            // SAFETY: as above.
            return unsafe { self.0.realloc(block, layout, size) };
        }
        // The other allocator might move the block and free the old one without zeroizing it.
        // SAFETY: the caller vouches for size and alignment; both blocks are at least as long as the copied range, and
        // distinct, since the old one is freed only afterwards.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::sync::Mutex;

    use super::*;

    /// The first bytes of the block that was freed last.
    static FREED: Mutex<[u8; 16]> = Mutex::new([1; 16]);

    struct Watching;

    // SAFETY: it is the system's allocator, and reads a block before it frees it.
    unsafe impl GlobalAlloc for Watching {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's contract is the same as this method's.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            let mut freed = FREED.lock().unwrap();
            // SAFETY: the tests' blocks have at least 16 bytes, all written to.
            unsafe { std::ptr::copy_nonoverlapping(block, freed.as_mut_ptr(), 16) };
            // SAFETY: the caller's contract is the same as this method's.
            unsafe { System.dealloc(block, layout) }
        }
    }

    #[test]
    fn blocks_are_wiped_when_they_are_freed_and_when_they_grow() {
        let allocator = ZeroizingAllocator(Watching);
        let layout = Layout::from_size_align(64, 8).unwrap();
        // SAFETY: the blocks are written only within their size, and are freed once with the layout that they were
        // allocated with.
        unsafe {
            let block = allocator.alloc(layout);
            std::ptr::write_bytes(block, 7, 64);
            let grown = allocator.realloc(block, layout, 128);
            assert_eq!(std::slice::from_raw_parts(grown, 64), [7; 64]);
            assert_eq!(*FREED.lock().unwrap(), [0; 16], "the former block");
            *FREED.lock().unwrap() = [1; 16];
            std::ptr::write_bytes(grown, 7, 128);
            allocator.dealloc(grown, Layout::from_size_align(128, 8).unwrap());
            assert_eq!(*FREED.lock().unwrap(), [0; 16]);
        }
    }
}
