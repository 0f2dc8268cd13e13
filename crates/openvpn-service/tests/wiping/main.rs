//! No secret of a session that has ended is left in the memory of its process. Alone in its process, because it
//! searches all of the writable memory, by /proc/self/mem.

mod devices;
mod pki;
mod points;
mod search;
mod server;
mod workers;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_runtime::ZeroizingAllocator;

/// As in `adit` itself.
#[global_allocator]
static ALLOCATOR: ZeroizingAllocator<System> = ZeroizingAllocator(System);

/// Keeps the tests of this file apart: a search's buffer holds copies of what another test has in use.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
