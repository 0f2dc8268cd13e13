//! What different threads write lies on different cache lines, or each write of one would slow the others down.

use std::ops::Deref;

/// Alone on its cache lines: two, because processors fetch neighbours in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub T);

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
