//! Tests that no secret of an ended session is left in the memory of its process. The tests run alone in their process, because they search
//! all of its writable memory through /proc/self/mem.

mod devices;
mod pki;
mod points;
mod search;
mod server;
mod workers;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_runtime::ZeroizingAllocator;

/// The same allocator as in `adit`.
#[global_allocator]
static ALLOCATOR: ZeroizingAllocator<System> = ZeroizingAllocator(System);

/// Lets only one test of this file run at a time, because a search's buffer contains copies of secrets that another
/// test has in use.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
