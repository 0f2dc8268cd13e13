//! Giving memory back to the kernel.
#![allow(unsafe_code)]

/// Gives the pages of a buffer back whose contents nobody needs any more; they come anew when they are touched.
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
    #[cfg(target_env = "gnu")]
    // SAFETY: it has no precondition; what is in use stays where it is.
    unsafe {
        libc::malloc_trim(0)
    };
}

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
