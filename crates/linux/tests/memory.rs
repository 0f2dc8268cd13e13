//! Tests of heap accounting. They run in their own process, because they count the allocations of all threads.
#![cfg(target_env = "gnu")]

use adit_linux::memory;

#[test]
fn bytes_in_use_are_counted_and_freed_ones_are_not() {
    memory::share_one_arena();
    let kept = vec![1_u8; 5000];
    let during = memory::in_use().unwrap();
    drop(kept);
    let after = memory::in_use().unwrap();
    assert!(during >= after + 4500, "{during} {after}");
    // Blocks in the thread's cache count as free.
    let small: Vec<Vec<u8>> = (0..64 * 7).map(|n| vec![1; 24 + 16 * (n % 64)]).collect();
    let during = memory::in_use().unwrap();
    drop(small);
    let after = memory::in_use().unwrap();
    assert!(during >= after + (200 << 10), "{during} {after}");
}
