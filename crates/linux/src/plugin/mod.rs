//! Plugins for openvpn: shared objects with the interface of `openvpn-plugin.h`, versions 1 to 3.
//!
//! A plugin runs with all rights of the process that loads it, and an error in it ends that process. So the process
//! holds no keys and does nothing else: it is the plugin host of `adit openvpn`. All calls are made from the thread
//! that loaded the plugin, one at a time, as in openvpn.
#![allow(unsafe_code)]

mod callbacks;
mod certificate;
mod error;
mod interface;
pub(crate) mod library;
mod returned;
mod signals;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use libc::{c_char, c_int, c_uint, c_void};

use self::callbacks::CALLBACKS;
use self::certificate::Crypto;
pub use self::error::PluginError;
use self::interface::{
    CallArguments, CallReturn, CallV1, CallV2, CallV3, Close, EndClient, NewClient, Number,
    OPENSSL, OpenArguments, OpenReturn, OpenV1, OpenV2, OpenV3, PLUGIN_VERSION, STRUCTURES,
    StringList, Strings,
};
use self::library::{Library, function};
pub use self::returned::{MAX_RETURNED, Returned};
pub use self::signals::outlive_signals;

/// Whether this build can load plugins. A static executable (musl) cannot load shared objects, and the functions with
/// variable arguments are written for two processors.
pub const SUPPORTED: bool =
    cfg!(all(not(target_env = "musl"), any(target_arch = "x86_64", target_arch = "aarch64")));

/// The maximum number of clients for which a plugin keeps memory of its own. Beyond it, the one that was used least
/// recently is released.
pub const MAX_CLIENTS: usize = 16_384;

/// The version of openvpn whose interface this is.
const OPENVPN: (&CStr, c_uint, c_uint, &CStr) = (c"2.6.14", 2, 6, c".14");

/// What a plugin is called for. The numbers are those of the interface.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The device has its addresses.
    Up = 0,
    /// The device is closed.
    Down = 1,
    /// Routes are set.
    RouteUp = 2,
    /// The peer's address is known or has changed.
    IpChange = 3,
    /// A certificate of the peer's chain was verified.
    TlsVerify = 4,
    /// The peer's user name and password.
    AuthUserPassVerify = 5,
    /// A client is authenticated; its configuration comes in a file.
    ClientConnect = 6,
    /// A client's session has ended.
    ClientDisconnect = 7,
    /// An address of a client was learned, changed or forgotten.
    LearnAddress = 8,
    /// A client is authenticated; its configuration comes in the returned list.
    ClientConnectV2 = 9,
    /// The handshake is complete.
    TlsFinal = 10,
    /// Routes are about to be removed.
    RoutePredown = 12,
    /// Asks again after a deferred [`Self::ClientConnect`].
    ClientConnectDefer = 13,
    /// Asks again after a deferred [`Self::ClientConnectV2`].
    ClientConnectDeferV2 = 14,
    /// A client answers a challenge.
    ClientCrResponse = 15,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::Up,
        Self::Down,
        Self::RouteUp,
        Self::IpChange,
        Self::TlsVerify,
        Self::AuthUserPassVerify,
        Self::ClientConnect,
        Self::ClientDisconnect,
        Self::LearnAddress,
        Self::ClientConnectV2,
        Self::TlsFinal,
        Self::RoutePredown,
        Self::ClientConnectDefer,
        Self::ClientConnectDeferV2,
        Self::ClientCrResponse,
    ];

    /// Returns the kind with a number of the interface.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Returns the number of the interface.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the bit in a mask of kinds.
    pub fn bit(self) -> u32 {
        1 << self.number()
    }

    /// Returns openvpn's name in its log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "PLUGIN_UP",
            Self::Down => "PLUGIN_DOWN",
            Self::RouteUp => "PLUGIN_ROUTE_UP",
            Self::IpChange => "PLUGIN_IPCHANGE",
            Self::TlsVerify => "PLUGIN_TLS_VERIFY",
            Self::AuthUserPassVerify => "PLUGIN_AUTH_USER_PASS_VERIFY",
            Self::ClientConnect => "PLUGIN_CLIENT_CONNECT",
            Self::ClientDisconnect => "PLUGIN_CLIENT_DISCONNECT",
            Self::LearnAddress => "PLUGIN_LEARN_ADDRESS",
            Self::ClientConnectV2 => "PLUGIN_CLIENT_CONNECT_V2",
            Self::TlsFinal => "PLUGIN_TLS_FINAL",
            Self::RoutePredown => "PLUGIN_ROUTE_PREDOWN",
            Self::ClientConnectDefer => "PLUGIN_CLIENT_CONNECT_DEFER",
            Self::ClientConnectDeferV2 => "PLUGIN_CLIENT_CONNECT_DEFER_V2",
            Self::ClientCrResponse => "PLUGIN_CLIENT_CRRESPONSE",
        }
    }
}

/// The mask of all kinds.
const KNOWN: u32 = {
    let mut mask = 0;
    let mut index = 0;
    while index < Kind::ALL.len() {
        mask |= 1 << Kind::ALL[index] as u8;
        index += 1;
    }
    mask
};

/// The bit of `OPENVPN_PLUGIN_ENABLE_PF`, which openvpn 2.6 no longer has.
const PACKET_FILTER: u32 = 1 << 11;

/// The severity of a plugin's log message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// An error.
    Error,
    /// A warning.
    Warning,
    /// Information.
    Note,
    /// Information for debugging.
    Debug,
}

/// Sets the function that receives the log messages of plugins. Only the first call has an effect. The function may be
/// called in a process that a plugin forked, so it must not take locks.
pub fn log_to(sink: fn(LogLevel, &str)) {
    callbacks::log_to(sink);
}

/// The point of the program's start at which a plugin wants to be opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InitPoint {
    /// Before the configuration is read, before the process goes to the background, or after that: as root.
    BeforeUserChange,
    /// After the process has changed its user.
    AfterUserChange,
}

/// The result of a call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Accepted or done.
    Success,
    /// Refused, or failed.
    Error,
    /// The answer follows later.
    Deferred,
}

/// A loaded plugin that has not been opened.
#[derive(Debug)]
pub struct Module {
    open: Open,
    call: Call,
    close: Close,
    new_client: Option<NewClient>,
    end_client: Option<EndClient>,
    init_point: InitPoint,
    /// Keeps the functions valid.
    _library: Library,
}

#[derive(Copy, Clone, Debug)]
enum Open {
    V1(OpenV1),
    V2(OpenV2),
    V3(OpenV3),
}

#[derive(Copy, Clone, Debug)]
enum Call {
    V1(CallV1),
    V2(CallV2),
    V3(CallV3),
}

impl Module {
    /// Loads a plugin, which runs the initialization functions of the object. The newest version of each function is
    /// used.
    ///
    /// # Errors
    /// The object cannot be loaded, or is not a plugin that this version can use.
    pub fn load(path: &Path) -> Result<Self, PluginError> {
        if !SUPPORTED {
            return Err(PluginError::Unsupported);
        }
        let path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| PluginError::Load("its name contains a zero byte".into()))?;
        let library = Library::open(&path, libc::RTLD_NOW).map_err(PluginError::Load)?;
        if let Some(required) =
            function!(library, c"openvpn_plugin_min_version_required_v1", Number)
        {
            // SAFETY: the function takes no arguments.
            let version = unsafe { required() };
            if version > PLUGIN_VERSION {
                return Err(PluginError::Newer(version));
            }
        }
        let open = function!(library, c"openvpn_plugin_open_v3", OpenV3)
            .map(Open::V3)
            .or_else(|| function!(library, c"openvpn_plugin_open_v2", OpenV2).map(Open::V2))
            .or_else(|| function!(library, c"openvpn_plugin_open_v1", OpenV1).map(Open::V1))
            .ok_or(PluginError::Missing("openvpn_plugin_open_v1, v2 or v3"))?;
        let call = function!(library, c"openvpn_plugin_func_v3", CallV3)
            .map(Call::V3)
            .or_else(|| function!(library, c"openvpn_plugin_func_v2", CallV2).map(Call::V2))
            .or_else(|| function!(library, c"openvpn_plugin_func_v1", CallV1).map(Call::V1))
            .ok_or(PluginError::Missing("openvpn_plugin_func_v1, v2 or v3"))?;
        let close = function!(library, c"openvpn_plugin_close_v1", Close)
            .ok_or(PluginError::Missing("openvpn_plugin_close_v1"))?;
        Ok(Self {
            open,
            call,
            close,
            new_client: function!(library, c"openvpn_plugin_client_constructor_v1", NewClient),
            end_client: function!(library, c"openvpn_plugin_client_destructor_v1", EndClient),
            init_point: init_point(&library)?,
            _library: library,
        })
    }

    /// Returns the point of the start at which the plugin wants to be opened.
    pub fn init_point(&self) -> InitPoint {
        self.init_point
    }

    /// Opens the plugin with its arguments, of which the first is its path. Returns the list that it returns, too.
    ///
    /// # Errors
    /// The plugin failed, or wants calls that do not exist.
    pub fn open(
        self,
        args: &[String],
        env: &[(String, String)],
    ) -> Result<(Plugin, Vec<Returned>), PluginError> {
        let (args, env) = (CStrings::new(args), CStrings::variables(env));
        let mut list: *mut StringList = ptr::null_mut();
        let (handle, mask) = match self.open {
            Open::V1(open) => {
                let mut mask: c_uint = KNOWN;
                // SAFETY: the arrays are NULL-terminated and outlive the call, the mask is writable.
                let handle = unsafe { open(&raw mut mask, args.as_ptr(), env.as_ptr()) };
                (handle, mask)
            }
            Open::V2(open) => {
                let mut mask: c_uint = KNOWN;
                // SAFETY: as above; the list is writable.
                let handle =
                    unsafe { open(&raw mut mask, args.as_ptr(), env.as_ptr(), &raw mut list) };
                (handle, mask)
            }
            Open::V3(open) => {
                let arguments = OpenArguments {
                    type_mask: KNOWN.cast_signed(),
                    argv: args.as_ptr(),
                    envp: env.as_ptr(),
                    callbacks: &raw const CALLBACKS,
                    ssl_api: OPENSSL,
                    version: OPENVPN.0.as_ptr(),
                    version_major: OPENVPN.1,
                    version_minor: OPENVPN.2,
                    version_patch: OPENVPN.3.as_ptr(),
                };
                let mut answer = OpenReturn {
                    type_mask: 0,
                    handle: ptr::null_mut(),
                    return_list: &raw mut list,
                };
                // SAFETY: both structures have the documented layout and outlive the call.
                let status = unsafe { open(STRUCTURES, &raw const arguments, &raw mut answer) };
                let handle = if status == 0 { answer.handle } else { ptr::null_mut() };
                (handle, answer.type_mask.cast_unsigned())
            }
        };
        // SAFETY: the list is null or comes from the plugin, which hands it over.
        let returned = unsafe { returned::take(list) };
        if handle.is_null() {
            return Err(PluginError::Open);
        }
        let plugin = Plugin {
            handle,
            mask,
            clients: HashMap::new(),
            calls: 0,
            crypto: None,
            module: self,
            _args: args,
        };
        plugin.ready(returned)
    }
}

fn init_point(library: &Library) -> Result<InitPoint, PluginError> {
    let name = c"openvpn_plugin_select_initialization_point_v1";
    let Some(select) = function!(library, name, Number) else {
        return Ok(InitPoint::BeforeUserChange);
    };
    // SAFETY: the function takes no arguments.
    match unsafe { select() } {
        1..=3 => Ok(InitPoint::BeforeUserChange),
        4 => Ok(InitPoint::AfterUserChange),
        other => Err(PluginError::InitPoint(other)),
    }
}

/// An open plugin. It is closed when it is dropped.
#[derive(Debug)]
pub struct Plugin {
    handle: *mut c_void,
    mask: u32,
    /// The plugin's memory for each client, and the call that used it last.
    clients: HashMap<u64, (*mut c_void, u64)>,
    calls: u64,
    /// OpenSSL, if the plugin gets certificates.
    crypto: Option<Crypto>,
    module: Module,
    /// The arguments of the open function. Plugins such as openvpn-plugin-down-root keep pointers to them.
    _args: CStrings,
}

/// The arguments of a call.
#[derive(Copy, Clone, Debug)]
pub struct CallInput<'a> {
    /// The plugin's path, then the arguments that a script would get.
    pub args: &'a [String],
    /// The environment that a script would get.
    pub env: &'a [(String, String)],
    /// The number of the client, for the plugin's memory. 0 is the tunnel itself.
    pub client: u64,
    /// The certificate's depth in its chain and its DER, for [`Kind::TlsVerify`].
    pub certificate: Option<(u8, &'a [u8])>,
}

/// The results of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOutput {
    /// The plugin's verdict.
    pub status: Status,
    /// The number that the plugin returned, for the log.
    pub code: i32,
    /// The list that the plugin returned; `None` if it was too long or endless.
    pub list: Option<Vec<Returned>>,
}

impl Plugin {
    /// Checks what the plugin wants to be called for.
    fn ready(
        mut self,
        returned: Option<Vec<Returned>>,
    ) -> Result<(Self, Vec<Returned>), PluginError> {
        if self.mask & PACKET_FILTER != 0 {
            return Err(PluginError::PacketFilter);
        }
        if self.mask & !KNOWN != 0 {
            return Err(PluginError::Unknown(self.mask & !KNOWN));
        }
        if self.wants(Kind::TlsVerify) && matches!(self.module.call, Call::V3(_)) {
            self.crypto = Some(Crypto::load().map_err(PluginError::Crypto)?);
        }
        let returned = returned.ok_or(PluginError::OpenList)?;
        Ok((self, returned))
    }

    /// Returns whether the plugin wants these calls.
    pub fn wants(&self, kind: Kind) -> bool {
        self.mask & kind.bit() != 0
    }

    /// Returns the mask of the calls that the plugin wants.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Calls the plugin, and waits as long as it takes. A certificate that OpenSSL does not accept is an error.
    pub fn call(&mut self, kind: Kind, input: &CallInput<'_>) -> CallOutput {
        let (args, env) = (CStrings::new(input.args), CStrings::variables(input.env));
        let client = self.client(input.client);
        let parsed = match (&self.crypto, input.certificate) {
            (Some(crypto), Some((depth, der))) => match crypto.certificate(der) {
                Some(certificate) => Some((depth, certificate)),
                None => {
                    return CallOutput { status: Status::Error, code: 1, list: Some(Vec::new()) };
                }
            },
            _ => None,
        };
        let number = c_int::from(kind.number());
        let mut list: *mut StringList = ptr::null_mut();
        let code = match self.module.call {
            // SAFETY: the handle is that of this plugin; the arrays are NULL-terminated and outlive the call.
            Call::V1(call) => unsafe { call(self.handle, number, args.as_ptr(), env.as_ptr()) },
            // SAFETY: as above; the client's memory is the plugin's own or null, the list is writable.
            Call::V2(call) => unsafe {
                call(self.handle, number, args.as_ptr(), env.as_ptr(), client, &raw mut list)
            },
            Call::V3(call) => {
                let arguments = CallArguments {
                    kind: number,
                    argv: args.as_ptr(),
                    envp: env.as_ptr(),
                    handle: self.handle,
                    client,
                    certificate_depth: parsed.as_ref().map_or(0, |(depth, _)| c_int::from(*depth)),
                    certificate: parsed
                        .as_ref()
                        .map_or(ptr::null_mut(), |(_, certificate)| certificate.as_ptr()),
                };
                let mut answer = CallReturn { return_list: &raw mut list };
                // SAFETY: both structures have the documented layout and outlive the call.
                unsafe { call(STRUCTURES, &raw const arguments, &raw mut answer) }
            }
        };
        let status = match code {
            0 => Status::Success,
            2 => Status::Deferred,
            _ => Status::Error,
        };
        // SAFETY: the list is null or comes from the plugin, which hands it over.
        CallOutput { status, code, list: unsafe { returned::take(list) } }
    }

    /// Releases the plugin's memory for a client.
    pub fn end_client(&mut self, client: u64) {
        let Some((memory, _)) = self.clients.remove(&client) else { return };
        if let Some(end) = self.module.end_client {
            // SAFETY: the memory came from this plugin's constructor and is released once.
            unsafe { end(self.handle, memory) };
        }
    }

    /// Returns the plugin's memory for a client, which its constructor allocates at the first call.
    fn client(&mut self, client: u64) -> *mut c_void {
        let Some(new) = self.module.new_client else { return ptr::null_mut() };
        self.calls = self.calls.wrapping_add(1);
        if let Some((memory, last)) = self.clients.get_mut(&client) {
            *last = self.calls;
            return *memory;
        }
        if self.clients.len() >= MAX_CLIENTS {
            let oldest = self.clients.iter().min_by_key(|(_, (_, last))| *last);
            if let Some(oldest) = oldest.map(|(client, _)| *client) {
                self.end_client(oldest);
            }
        }
        // SAFETY: the handle is that of this plugin.
        let memory = unsafe { new(self.handle) };
        self.clients.insert(client, (memory, self.calls));
        memory
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let clients: Vec<u64> = self.clients.keys().copied().collect();
        clients.into_iter().for_each(|client| self.end_client(client));
        // SAFETY: the handle is open, and this is its last use.
        unsafe { (self.module.close)(self.handle) };
    }
}

/// A NULL-terminated array of C strings, and the strings.
#[derive(Debug)]
struct CStrings {
    /// Keeps the strings.
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl CStrings {
    fn new(values: &[String]) -> Self {
        Self::of(values.iter().map(|value| c_string(value.as_bytes().to_vec())).collect())
    }

    /// Formats variables as NAME=VALUE.
    fn variables(variables: &[(String, String)]) -> Self {
        let strings = variables.iter().map(|(name, value)| {
            let mut text =
                Vec::with_capacity(name.len().saturating_add(value.len()).saturating_add(2));
            text.extend_from_slice(name.as_bytes());
            text.push(b'=');
            text.extend_from_slice(value.as_bytes());
            c_string(text)
        });
        Self::of(strings.collect())
    }

    fn of(strings: Vec<CString>) -> Self {
        let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(ptr::null());
        Self { _strings: strings, pointers }
    }

    fn as_ptr(&self) -> Strings {
        self.pointers.as_ptr()
    }
}

/// Converts text to a C string. A zero byte, which would cut it off, becomes an underscore.
fn c_string(mut text: Vec<u8>) -> CString {
    text.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'_');
    CString::new(text).unwrap_or_default()
}
