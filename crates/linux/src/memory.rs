//! Releasing memory to the kernel.
#![allow(unsafe_code)]

/// Releases the pages of a buffer whose contents are no longer needed. The kernel supplies new ones on the next access.
///
/// Afterwards, each byte is zero or has its previous value.
pub fn release(buffer: &mut [u8]) {
    // SAFETY: sysconf has no precondition.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
    if !page.is_power_of_two() {
        return;
    }
    let before = buffer.as_ptr().align_offset(page);
    let Some(pages) = buffer.get_mut(before..) else { return };
    let len = pages.len() & !(page - 1);
    if len > 0 {
        // SAFETY: the range is whole pages of a slice that is borrowed exclusively. Heap memory is private and anonymous,
        // so the pages read as zeros afterwards, which are valid bytes. On failure (locked pages) they keep their contents.
        unsafe { libc::madvise(pages.as_mut_ptr().cast(), len, libc::MADV_DONTNEED) };
    }
}

/// Returns freed heap memory to the kernel. The allocator would otherwise keep it for later allocations, and
/// permanently if a block that is still in use follows it.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no precondition; blocks in use do not move.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Restricts glibc to one malloc arena for threads started later. [`trim`] can release only the top of the main arena.
pub fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt has no precondition; memory that was allocated from another arena stays there.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

/// Returns the heap bytes in use by all threads, or `None` if the C library does not report them.
///
/// For tests of memory that stays in use: no other thread may allocate meanwhile. The calling thread's cache is emptied first: glibc counts
/// cached blocks as used.
pub fn in_use() -> Option<usize> {
    #[cfg(target_env = "gnu")]
    {
        // The first pass leaves its own blocks in the cache.
        (0..3).for_each(|_| empty_thread_cache());
        // SAFETY: mallinfo2 has no precondition.
        let info = unsafe { libc::mallinfo2() };
        Some(info.uordblks.saturating_add(info.hblkhd))
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Moves the blocks that glibc caches for the calling thread to the cache of a thread that then ends. This frees them.
#[cfg(target_env = "gnu")]
fn empty_thread_cache() {
    let blocks: Vec<Vec<u8>> = (0..CACHE_DEPTH)
        .flat_map(|_| (0..CACHE_SIZES).map(|size| Vec::with_capacity(24 + 16 * size)))
        .collect();
    let end = move || drop(blocks);
    let thread = std::thread::Builder::new().name("trim".into()).stack_size(64 << 10);
    // If no thread can be started, the blocks are freed here and the figure is less exact.
    if let Ok(thread) = thread.spawn(end) {
        let _ = thread.join();
    }
}

/// Block sizes that glibc caches for a thread: 24 bytes, increasing in steps of 16.
#[cfg(target_env = "gnu")]
const CACHE_SIZES: usize = 64;
/// Largest number of cached blocks of one size: 7 up to glibc 2.41, 16 since.
#[cfg(target_env = "gnu")]
const CACHE_DEPTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::usage;

    #[test]
    fn a_released_buffer_takes_no_memory_and_can_be_used_again() {
        const SIZE: usize = 64 << 20;
        let mut buffer = vec![7_u8; SIZE];
        let full = usage().unwrap().rss;
        release(&mut buffer[100..]);
        let released = usage().unwrap().rss;
        assert!(released + (SIZE as u64) / 2 < full, "{full} {released}");
        assert!(buffer[..100].iter().all(|byte| *byte == 7), "what was not released stays");
        assert!(buffer.iter().all(|byte| [0, 7].contains(byte)));
        buffer.fill(9);
        assert!(buffer.iter().all(|byte| *byte == 9));
        release(&mut buffer[..10]);
        release(&mut []);
        assert!(buffer.iter().all(|byte| *byte == 9), "no whole page");
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_was_freed_below_something_in_use_is_given_back() {
        // Too small to be mapped separately.
        let mut blocks: Vec<Box<[u8]>> = (0..1000).map(|_| vec![1; 64 << 10].into()).collect();
        let last = blocks.pop();
        let full = usage().unwrap().rss;
        drop(blocks);
        trim();
        let trimmed = usage().unwrap().rss;
        assert!(trimmed + (32 << 20) < full, "{full} {trimmed}");
        drop(last);
    }
}
