//! The lists that plugins return.

use std::ffi::CStr;

use libc::{c_char, c_void};

use super::interface::StringList;

/// The maximum number of entries of a list.
const MAX_ENTRIES: usize = 4096;

/// The maximum size of a list: the bytes of all names and values.
pub const MAX_RETURNED: usize = 128 << 10;

/// An entry of a list that a plugin returned. Invalid UTF-8 is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The name, such as `config`.
    pub name: String,
    /// The value.
    pub value: String,
}

/// Copies and frees a list. Returns `None` if it has more than [`MAX_ENTRIES`] or [`MAX_RETURNED`] bytes; one with too
/// many entries is not freed, because it may be a circle.
///
/// # Safety
/// The pointer is null or that of a list whose parts a plugin allocated with `malloc` and no longer uses.
pub(super) unsafe fn take(list: *mut StringList) -> Option<Vec<Returned>> {
    let mut nodes = Vec::new();
    let mut next = list;
    while !next.is_null() {
        if nodes.len() >= MAX_ENTRIES {
            return None;
        }
        nodes.push(next);
        // SAFETY: the pointer is not null, so it is that of a valid entry.
        next = unsafe { (*next).next };
    }
    let mut left = MAX_RETURNED;
    let mut entries = Some(Vec::new());
    for node in nodes {
        // SAFETY: the entry is valid, and each is visited once, because the list ends.
        let StringList { name, value, .. } = unsafe { node.read() };
        // SAFETY: both are null or C strings.
        let (texts, length) = unsafe {
            (Returned { name: text(name), value: text(value) }, length(name) + length(value))
        };
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => entries = None,
        }
        if let Some(entries) = &mut entries {
            entries.push(texts);
        }
        // SAFETY: the plugin allocated all three with malloc and hands them over; free accepts null.
        unsafe {
            libc::free(name.cast::<c_void>());
            libc::free(value.cast::<c_void>());
            libc::free(node.cast::<c_void>());
        }
    }
    entries
}

/// # Safety
/// The pointer is null or that of a C string.
unsafe fn length(string: *const c_char) -> usize {
    if string.is_null() {
        return 0;
    }
    // SAFETY: it is a C string.
    unsafe { CStr::from_ptr(string) }.count_bytes()
}

/// # Safety
/// The pointer is null or that of a C string.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: it is a C string. A longer one than all of a list may have is not copied whole.
    let bytes = unsafe { CStr::from_ptr(string) }.to_bytes();
    let bytes = bytes.get(..MAX_RETURNED).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}
