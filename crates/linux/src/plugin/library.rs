//! Shared objects that are loaded at run time.

use std::ffi::CStr;
use std::ptr::NonNull;

use libc::{c_int, c_void};

/// A loaded shared object. It is unloaded when it is dropped.
#[derive(Debug)]
pub(crate) struct Library(NonNull<c_void>);

impl Library {
    /// Loads an object, which runs its initialization functions. The error is that of the dynamic linker.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Result<Self, String> {
        // SAFETY: the path is a C string. The operator names the object and vouches for its code.
        let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
        NonNull::new(handle).map(Self).ok_or_else(last_error)
    }

    /// Returns the address of a symbol, which is a function.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open as long as `self` exists, and the name is a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and this is its only use after which it is closed.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// Returns a function of a library as the given type of function pointer.
macro_rules! function {
    ($library:expr, $name:expr, $type:ty) => {
        $library.symbol($name).map(|address| {
            // SAFETY: the symbol has this type in the documented interface; all function pointers have the size of data
            // pointers on Linux.
            unsafe { std::mem::transmute::<*mut libc::c_void, $type>(address.as_ptr()) }
        })
    };
}
pub(crate) use function;

fn last_error() -> String {
    // SAFETY: dlerror returns null or a C string that is valid until this thread's next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".into();
    }
    // SAFETY: see above; it is copied at once.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
