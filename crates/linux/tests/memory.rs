//! What the allocator gives back. Alone in its process: it looks at what all threads take.
#![cfg(target_env = "gnu")]

use adit_linux::memory;
use adit_linux::process::usage;

/// Sizes and blocks of each that the C library keeps for a thread.
const SIZES: usize = 64;
const BLOCKS: usize = 7;
/// Too small for a mapping of its own.
const LARGE: usize = 20_000;

#[test]
fn blocks_in_a_threads_cache_keep_no_pages_and_count_as_free() {
    memory::share_one_arena();
    // Each small block lies between large ones.
    let mut small: Vec<Vec<u8>> = Vec::new();
    let mut large: Vec<Vec<u8>> = Vec::new();
    for size in 0..SIZES {
        for _ in 0..BLOCKS {
            small.push(vec![1; 24 + 16 * size]);
            large.push(vec![1; LARGE]);
        }
    }
    let full = usage().unwrap().rss;
    drop(large);
    drop(small);
    memory::trim();
    let given_back = full.saturating_sub(usage().unwrap().rss);
    // The small ones are a quarter of a megabyte; in the cache they would keep a page or two each.
    let all = (SIZES * BLOCKS * LARGE) as u64;
    assert!(given_back + (512 << 10) > all, "{given_back} of {all}");

    // And what is in use is counted.
    let kept = vec![1_u8; 5000];
    let during = memory::in_use().unwrap();
    drop(kept);
    let after = memory::in_use().unwrap();
    assert!(during >= after + 4500, "{during} {after}");
}
