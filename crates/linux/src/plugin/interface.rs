//! The structures and function types of openvpn's plugin interface, versions 1 to 3.

use libc::{c_char, c_int, c_uint, c_void};

/// The version of the plugin interface that openvpn 2.6 provides.
pub(super) const PLUGIN_VERSION: c_int = 3;

/// The version of the structures for `openvpn_plugin_open_v3` and `openvpn_plugin_func_v3`.
pub(super) const STRUCTURES: c_int = 5;

/// The value of `ssl_api` for OpenSSL.
pub(super) const OPENSSL: c_int = 1;

/// The flags of a log message.
pub(super) const LOG_ERROR: c_int = 1 << 0;
pub(super) const LOG_WARNING: c_int = 1 << 1;
pub(super) const LOG_DEBUG: c_int = 1 << 3;
pub(super) const LOG_ERRNO: c_int = 1 << 8;

/// A list that a plugin returns. The plugin allocates all of it with `malloc`.
#[repr(C)]
pub(super) struct StringList {
    pub(super) next: *mut Self,
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
}

/// A NULL-terminated array of strings.
pub(super) type Strings = *const *const c_char;

/// Declared without the variable arguments, because Rust cannot define such a function: see `callbacks`.
pub(super) type Log = unsafe extern "C" fn(c_int, *const c_char, *const c_char);
pub(super) type VaLog = unsafe extern "C" fn(c_int, *const c_char, *const c_char, *mut c_void);
pub(super) type Wipe = unsafe extern "C" fn(*mut c_void, usize);
pub(super) type Encode = unsafe extern "C" fn(*const c_void, c_int, *mut *mut c_char) -> c_int;
pub(super) type Decode = unsafe extern "C" fn(*const c_char, *mut c_void, c_int) -> c_int;

/// The functions of the host that a plugin may call.
#[repr(C)]
pub(super) struct Callbacks {
    pub(super) log: Log,
    pub(super) vlog: VaLog,
    pub(super) wipe: Wipe,
    pub(super) encode: Encode,
    pub(super) decode: Decode,
}

/// The arguments of `openvpn_plugin_open_v3`.
#[repr(C)]
pub(super) struct OpenArguments {
    pub(super) type_mask: c_int,
    pub(super) argv: Strings,
    pub(super) envp: Strings,
    pub(super) callbacks: *const Callbacks,
    pub(super) ssl_api: c_int,
    pub(super) version: *const c_char,
    pub(super) version_major: c_uint,
    pub(super) version_minor: c_uint,
    pub(super) version_patch: *const c_char,
}

/// The results of `openvpn_plugin_open_v3`.
#[repr(C)]
pub(super) struct OpenReturn {
    pub(super) type_mask: c_int,
    pub(super) handle: *mut c_void,
    pub(super) return_list: *mut *mut StringList,
}

/// The arguments of `openvpn_plugin_func_v3`.
#[repr(C)]
pub(super) struct CallArguments {
    pub(super) kind: c_int,
    pub(super) argv: Strings,
    pub(super) envp: Strings,
    pub(super) handle: *mut c_void,
    pub(super) client: *mut c_void,
    pub(super) certificate_depth: c_int,
    pub(super) certificate: *mut c_void,
}

/// The results of `openvpn_plugin_func_v3`.
#[repr(C)]
pub(super) struct CallReturn {
    pub(super) return_list: *mut *mut StringList,
}

pub(super) type OpenV1 = unsafe extern "C" fn(*mut c_uint, Strings, Strings) -> *mut c_void;
pub(super) type OpenV2 =
    unsafe extern "C" fn(*mut c_uint, Strings, Strings, *mut *mut StringList) -> *mut c_void;
pub(super) type OpenV3 =
    unsafe extern "C" fn(c_int, *const OpenArguments, *mut OpenReturn) -> c_int;
pub(super) type CallV1 = unsafe extern "C" fn(*mut c_void, c_int, Strings, Strings) -> c_int;
pub(super) type CallV2 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    Strings,
    Strings,
    *mut c_void,
    *mut *mut StringList,
) -> c_int;
pub(super) type CallV3 =
    unsafe extern "C" fn(c_int, *const CallArguments, *mut CallReturn) -> c_int;
pub(super) type Close = unsafe extern "C" fn(*mut c_void);
pub(super) type NewClient = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
pub(super) type EndClient = unsafe extern "C" fn(*mut c_void, *mut c_void);
pub(super) type Number = unsafe extern "C" fn() -> c_int;
