//! Giving memory back to the kernel.
#![allow(unsafe_code)]

/// Gives the pages of a buffer back whose contents are not needed any more; new ones come when they are touched.
/// Afterwards each byte is zero or what it was before.
pub fn release(buffer: &mut [u8]) {
    // SAFETY: it has no precondition.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
    if !page.is_power_of_two() {
        return;
    }
    let before = buffer.as_ptr().align_offset(page);
    let Some(pages) = buffer.get_mut(before..) else { return };
    let len = pages.len() & !(page - 1);
    if len > 0 {
        // SAFETY: whole pages within a slice that is borrowed exclusively. What is read from them afterwards is
        // zeros, for memory of the heap, which is private and backed by no file: bytes are bytes. A failure (the
        // pages are locked) leaves them as they are.
        unsafe { libc::madvise(pages.as_mut_ptr().cast(), len, libc::MADV_DONTNEED) };
    }
}

/// Has the allocator give back what was freed. It keeps that for the next allocations otherwise, for good where
/// something in use lies behind it.
pub fn trim() {
    empty_thread_cache();
    #[cfg(target_env = "gnu")]
    // SAFETY: it has no precondition; what is in use stays where it is.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Has all threads that start from now on allocate in one place, the only one of which [`trim`] gives back the end, too.
/// Of the others the allocator keeps as much as was ever in use at once.
pub fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it has no precondition; memory that was allocated elsewhere before stays there.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

/// Returns to the allocator what it keeps for the calling thread: some freed blocks of every small size, which lie
/// wherever they were last in use, so that a quarter of a megabyte of them keeps half a megabyte of pages.
pub fn empty_thread_cache() {
    #[cfg(target_env = "gnu")]
    {
        // Taken out of this thread's cache, and freed into that of another one, which ends.
        let blocks: Vec<Vec<u8>> = (0..CACHE_DEPTH)
            .flat_map(|_| (0..CACHE_SIZES).map(|size| Vec::with_capacity(24 + 16 * size)))
            .collect();
        let end = move || drop(blocks);
        let thread = std::thread::Builder::new().name("trim".into()).stack_size(64 << 10);
        // Where no thread can start they are freed here: nothing is lost, nor gained.
        if let Ok(thread) = thread.spawn(end) {
            let _ = thread.join();
        }
    }
}

/// Bytes of the heap that are in use, by all threads, with what is kept for the calling one given back before; `None`
/// where the C library does not say. For tests of what stays in use: no other thread may allocate meanwhile.
pub fn in_use() -> Option<usize> {
    // What the first pass itself allocates and frees lies in the cache afterwards.
    (0..3).for_each(|_| empty_thread_cache());
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it has no precondition.
        let info = unsafe { libc::mallinfo2() };
        Some(info.uordblks.saturating_add(info.hblkhd))
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Sizes that the C library keeps for a thread: 24 bytes, and 16 more each.
#[cfg(target_env = "gnu")]
const CACHE_SIZES: usize = 64;
/// Blocks of one size at most: 7 up to 2.41, 16 since.
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
        // Too small for mappings of their own.
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
