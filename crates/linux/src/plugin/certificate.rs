//! Certificates as OpenSSL's objects, for plugins of version 3 that verify certificates.
//!
//! OpenSSL is not linked. It is loaded only into the process that has such a plugin, in the version that the plugin has
//! loaded already, if any.

use std::ffi::CStr;
use std::ptr::NonNull;

use libc::{c_long, c_void};

use super::library::{Library, function};

/// The names of OpenSSL's library, newest first.
const NAMES: [&CStr; 2] = [c"libcrypto.so.3", c"libcrypto.so.1.1"];

type Parse = unsafe extern "C" fn(*mut *mut c_void, *mut *const u8, c_long) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);

/// OpenSSL's library.
#[derive(Debug)]
pub(super) struct Crypto {
    parse: Parse,
    free: Free,
    /// Keeps the functions valid.
    _library: Library,
}

/// A certificate in OpenSSL's memory.
#[derive(Debug)]
pub(super) struct Certificate<'a> {
    crypto: &'a Crypto,
    object: NonNull<c_void>,
}

impl Crypto {
    /// Loads the library.
    pub(super) fn load() -> Result<Self, String> {
        let now = libc::RTLD_NOW;
        let loaded =
            NAMES.iter().find_map(|name| Library::open(name, now | libc::RTLD_NOLOAD).ok());
        let library = match loaded {
            Some(library) => library,
            None => NAMES
                .iter()
                .find_map(|name| Library::open(name, now).ok())
                .ok_or("libcrypto.so.3 is not found: install OpenSSL's library (libssl3)")?,
        };
        let missing = "OpenSSL's library has no d2i_X509 or X509_free";
        let parse = function!(library, c"d2i_X509", Parse).ok_or(missing)?;
        let free = function!(library, c"X509_free", Free).ok_or(missing)?;
        Ok(Self { parse, free, _library: library })
    }

    /// Parses a certificate; `None` if OpenSSL does not accept it.
    pub(super) fn certificate(&self, der: &[u8]) -> Option<Certificate<'_>> {
        let length = c_long::try_from(der.len()).ok()?;
        let mut position = der.as_ptr();
        // SAFETY: `position` points to `length` readable bytes, and a null target makes the function allocate.
        let object = unsafe { (self.parse)(std::ptr::null_mut(), &raw mut position, length) };
        NonNull::new(object).map(|object| Certificate { crypto: self, object })
    }
}

impl Certificate<'_> {
    /// Returns OpenSSL's `X509 *`, which is valid as long as `self` exists.
    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.object.as_ptr()
    }
}

impl Drop for Certificate<'_> {
    fn drop(&mut self) {
        // SAFETY: the object came from `d2i_X509` of the same library and is freed once.
        unsafe { (self.crypto.free)(self.object.as_ptr()) };
    }
}
