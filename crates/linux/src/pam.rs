//! Logins by PAM, the host's pluggable authentication.
//!
//! Modules of PAM are foreign code that may block, crash and change the process, so a process does nothing else than one
//! login. The library is loaded when it is needed: a program that is linked with it does not start without it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;

use zeroize::Zeroizing;

use crate::plugin::library::{Library, function};

/// Whether this build can load PAM. A static executable (musl) cannot load shared objects.
pub const SUPPORTED: bool = cfg!(not(target_env = "musl"));

/// The library's name, with the version of its interface.
const LIBRARY: &CStr = c"libpam.so.0";

/// The maximum number of messages in one call of the conversation, as in the library.
const MAX_MESSAGES: c_int = 32;

const SUCCESS: c_int = 0;
const BUFFER_ERROR: c_int = 5;
const CONVERSATION_ERROR: c_int = 19;
/// The host the user comes from.
const REMOTE_HOST: c_int = 4;
/// An empty password is no password.
const DISALLOW_NULL: c_int = 1;
const ASK_HIDDEN: c_int = 1;
const ASK_SHOWN: c_int = 2;
/// The results that say nothing about the user: a module or a function of it is missing, a service error, no memory, no
/// connection to the users' database, no conversation, an abort. All others refuse the user, even "system error", which
/// `pam_exec` returns if its program refuses.
const UNDECIDED: [c_int; 8] = [1, 2, 3, BUFFER_ERROR, 9, CONVERSATION_ERROR, 26, 28];

/// The reason why a login failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PamError {
    /// PAM refuses the user, with its reason.
    Refused(String),
    /// PAM cannot decide.
    Failed(String),
}

impl fmt::Display for PamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for PamError {}

#[repr(C)]
struct Message {
    style: c_int,
    text: *const c_char,
}

#[repr(C)]
struct Response {
    text: *mut c_char,
    /// Unused.
    code: c_int,
}

type Converse =
    unsafe extern "C" fn(c_int, *mut *const Message, *mut *mut Response, *mut c_void) -> c_int;

#[repr(C)]
struct Conversation {
    converse: Converse,
    data: *mut c_void,
}

type Start = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const Conversation,
    *mut *mut c_void,
) -> c_int;
type SetItem = unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int;
type Check = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type Describe = unsafe extern "C" fn(*mut c_void, c_int) -> *const c_char;

/// The user's answers.
struct Answers {
    user: CString,
    password: Zeroizing<Vec<u8>>,
}

/// Checks a user's password, and whether the account may be used now. It blocks for as long as the modules of the service
/// do. `host` is the address that the user comes from.
///
/// # Errors
/// PAM refuses the user, or cannot decide.
pub fn authenticate(service: &str, user: &str, password: &str, host: &str) -> Result<(), PamError> {
    let failed = |why: String| PamError::Failed(why);
    if !SUPPORTED {
        return Err(failed("a static program cannot load PAM".into()));
    }
    let text =
        |text: &str| CString::new(text).map_err(|_| PamError::Refused("a value has a NUL".into()));
    let (service, user, host) = (text(service)?, text(user)?, text(host)?);
    if password.contains('\0') {
        return Err(PamError::Refused("the password has a NUL".into()));
    }
    let library = Library::open(LIBRARY, libc::RTLD_NOW | libc::RTLD_GLOBAL)
        .map_err(|why| failed(format!("PAM is not installed: {why}")))?;
    let missing = || failed("the PAM library lacks a function".into());
    let start = function!(library, c"pam_start", Start).ok_or_else(missing)?;
    let set_item = function!(library, c"pam_set_item", SetItem).ok_or_else(missing)?;
    let authenticate = function!(library, c"pam_authenticate", Check).ok_or_else(missing)?;
    let account = function!(library, c"pam_acct_mgmt", Check).ok_or_else(missing)?;
    let end = function!(library, c"pam_end", Check).ok_or_else(missing)?;
    let describe = function!(library, c"pam_strerror", Describe).ok_or_else(missing)?;

    let mut bytes = Zeroizing::new(Vec::with_capacity(password.len() + 1));
    bytes.extend_from_slice(password.as_bytes());
    bytes.push(0);
    let mut answers = Answers { user: user.clone(), password: bytes };
    let conversation =
        Conversation { converse, data: ptr::from_mut(&mut answers).cast::<c_void>() };
    let mut handle = ptr::null_mut();
    // SAFETY: the strings and the conversation live until `pam_end`, and the handle is written before it is used.
    let mut code =
        unsafe { start(service.as_ptr(), user.as_ptr(), &raw const conversation, &raw mut handle) };
    if code != SUCCESS {
        return Err(failed(format!("pam_start: error {code}")));
    }
    if !host.is_empty() {
        // SAFETY: the handle is open, and the item is a C string, which the library copies.
        code = unsafe { set_item(handle, REMOTE_HOST, host.as_ptr().cast()) };
    }
    for step in [authenticate, account] {
        if code == SUCCESS {
            // SAFETY: the handle is open. The modules are trusted with this process.
            code = unsafe { step(handle, DISALLOW_NULL) };
        }
    }
    // SAFETY: the handle is open, and the result is null or a C string that is copied at once.
    let why = unsafe {
        let text = describe(handle, code);
        if text.is_null() {
            format!("error {code}")
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    };
    // SAFETY: the handle is open, and is not used after this.
    unsafe { end(handle, code) };
    match code {
        SUCCESS => Ok(()),
        code if UNDECIDED.contains(&code) => Err(PamError::Failed(why)),
        _ => Err(PamError::Refused(why)),
    }
}

/// Answers the questions of modules: hidden ones with the password, others with the user's name. The library frees the
/// answers.
unsafe extern "C" fn converse(
    count: c_int,
    messages: *mut *const Message,
    responses: *mut *mut Response,
    data: *mut c_void,
) -> c_int {
    if !(1..=MAX_MESSAGES).contains(&count)
        || messages.is_null()
        || responses.is_null()
        || data.is_null()
    {
        return CONVERSATION_ERROR;
    }
    let count = usize::try_from(count).unwrap_or_default();
    // SAFETY: `data` is the pointer of `authenticate`, whose answers live until the end of PAM.
    let answers = unsafe { &*data.cast::<Answers>() };
    // SAFETY: an array of zeroes is a valid array of responses without texts. PAM frees it and its texts.
    let all = unsafe { libc::calloc(count, size_of::<Response>()) }.cast::<Response>();
    if all.is_null() {
        return BUFFER_ERROR;
    }
    for index in 0..count {
        // SAFETY: there are `count` pointers to messages, and as many responses.
        let style = unsafe { (**messages.add(index)).style };
        let answer = match style {
            ASK_HIDDEN => answers.password.as_ptr().cast::<c_char>(),
            ASK_SHOWN => answers.user.as_ptr(),
            _ => continue,
        };
        // SAFETY: the answer is a C string, and the response is inside the array.
        unsafe { (*all.add(index)).text = libc::strdup(answer) };
    }
    // SAFETY: the library passes a valid place for the result.
    unsafe { *responses = all };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_a_nul_do_not_reach_the_library() {
        for (service, user, password) in [("a\0b", "u", "p"), ("a", "u\0", "p"), ("a", "u", "p\0")]
        {
            let refused = authenticate(service, user, password, "");
            assert!(matches!(refused, Err(PamError::Refused(_) | PamError::Failed(_))));
        }
    }

    #[test]
    fn hidden_questions_get_the_password_and_others_the_name() {
        let mut answers =
            Answers { user: c"alice".to_owned(), password: Zeroizing::new(b"secret\0".to_vec()) };
        let message = |style| Message { style, text: c"?".as_ptr() };
        let messages = [message(ASK_HIDDEN), message(ASK_SHOWN), message(4)];
        let mut pointers: Vec<*const Message> = messages.iter().map(ptr::from_ref).collect();
        let mut responses = ptr::null_mut();
        let data = ptr::from_mut(&mut answers).cast::<c_void>();
        // SAFETY: all pointers are valid, and the count is that of the messages.
        let code = unsafe { converse(3, pointers.as_mut_ptr(), &raw mut responses, data) };
        assert_eq!(code, SUCCESS);
        // SAFETY: there are three responses, which are freed here as the library does it.
        unsafe {
            assert_eq!(CStr::from_ptr((*responses).text), c"secret");
            assert_eq!(CStr::from_ptr((*responses.add(1)).text), c"alice");
            assert!((*responses.add(2)).text.is_null());
            libc::free((*responses).text.cast());
            libc::free((*responses.add(1)).text.cast());
            libc::free(responses.cast());
        }
        for count in [0, -1, MAX_MESSAGES + 1] {
            // SAFETY: a wrong count is refused before anything is read.
            let code = unsafe { converse(count, pointers.as_mut_ptr(), &raw mut responses, data) };
            assert_eq!(code, CONVERSATION_ERROR);
        }
    }
}
