//! The functions that a plugin may call: logging, wiping, base64.

use std::ffi::CStr;
use std::io;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use libc::{c_char, c_int, c_void};
use zeroize::Zeroize as _;

use super::LogLevel;
use super::interface::{Callbacks, LOG_DEBUG, LOG_ERRNO, LOG_ERROR, LOG_WARNING};

/// The functions as plugins get them.
pub(super) static CALLBACKS: Callbacks = Callbacks { log, vlog, wipe, encode, decode };

/// The destination of log messages.
pub(super) type Sink = fn(LogLevel, &str);

static SINK: OnceLock<Sink> = OnceLock::new();

/// The maximum length of a log message in bytes; the rest is cut off.
const MAX_MESSAGE: usize = 2048;

/// Sets the destination of log messages, once.
pub(super) fn log_to(sink: Sink) {
    let _ = SINK.set(sink);
}

unsafe extern "C" {
    /// The C library's function. On the processors of [`super::SUPPORTED`], a `va_list` argument is passed as a pointer.
    fn vsnprintf(
        buffer: *mut c_char,
        size: usize,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int;
}

/// Takes variable arguments, builds a `va_list` from them as the System V ABI prescribes, and calls [`vlog`].
///
/// # Safety
/// As [`vlog`], with arguments that fit the format.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn log(flags: c_int, name: *const c_char, format: *const c_char) {
    core::arch::naked_asm!(
        // The register save area is at 0 (six general registers, then eight vector registers), the va_list at 176.
        "sub rsp, 216",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        // al is the number of vector registers that carry arguments.
        "test al, al",
        "je 2f",
        "movaps [rsp + 48], xmm0",
        "movaps [rsp + 64], xmm1",
        "movaps [rsp + 80], xmm2",
        "movaps [rsp + 96], xmm3",
        "movaps [rsp + 112], xmm4",
        "movaps [rsp + 128], xmm5",
        "movaps [rsp + 144], xmm6",
        "movaps [rsp + 160], xmm7",
        "2:",
        // Three general registers hold named arguments.
        "mov dword ptr [rsp + 176], 24",
        "mov dword ptr [rsp + 180], 48",
        "lea rax, [rsp + 224]",
        "mov [rsp + 184], rax",
        "mov [rsp + 192], rsp",
        "lea rcx, [rsp + 176]",
        "call {vlog}",
        "add rsp, 216",
        "ret",
        vlog = sym vlog,
    )
}

/// Takes variable arguments, builds a `va_list` from them as the procedure call standard prescribes, and calls [`vlog`].
///
/// # Safety
/// As [`vlog`], with arguments that fit the format.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn log(flags: c_int, name: *const c_char, format: *const c_char) {
    core::arch::naked_asm!(
        // The frame record is at 0, the general registers at 16, the vector registers at 80, the va_list at 208.
        "stp x29, x30, [sp, #-240]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "stp q0, q1, [sp, #80]",
        "stp q2, q3, [sp, #112]",
        "stp q4, q5, [sp, #144]",
        "stp q6, q7, [sp, #176]",
        "add x9, sp, #240",
        "str x9, [sp, #208]",
        "add x9, sp, #80",
        "str x9, [sp, #216]",
        "add x9, sp, #208",
        "str x9, [sp, #224]",
        // Five of eight general registers and all vector registers may hold variable arguments.
        "mov w9, #-40",
        "str w9, [sp, #232]",
        "mov w9, #-128",
        "str w9, [sp, #236]",
        "add x3, sp, #208",
        "bl {vlog}",
        "ldp x29, x30, [sp], #240",
        "ret",
        vlog = sym vlog,
    )
}

/// Not called: no plugin is loaded on this processor.
///
/// # Safety
/// None is needed.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn log(_: c_int, _: *const c_char, _: *const c_char) {}

/// Formats a message and passes it on. A message without a plugin's name is dropped, as in openvpn.
///
/// # Safety
/// `name` and `format` are null or C strings, and `arguments` is a `va_list` that fits the format.
unsafe extern "C" fn vlog(
    flags: c_int,
    name: *const c_char,
    format: *const c_char,
    arguments: *mut c_void,
) {
    // Read it before any other call can change it.
    let errno = io::Error::last_os_error();
    let Some(sink) = SINK.get() else { return };
    if name.is_null() || format.is_null() {
        return;
    }
    let mut buffer = [0_u8; MAX_MESSAGE];
    // SAFETY: the buffer has the given size; the caller vouches for the format and its arguments.
    let length = unsafe { vsnprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, arguments) };
    let Ok(text) = CStr::from_bytes_until_nul(&buffer) else { return };
    if length < 0 {
        return;
    }
    // SAFETY: the caller passes a C string, and it is not null.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let mut line = format!("PLUGIN {name}: {}", text.to_string_lossy().trim_end());
    if flags & LOG_ERRNO != 0 {
        line.push_str(&format!(": {errno}"));
    }
    let level = if flags & LOG_ERROR != 0 {
        LogLevel::Error
    } else if flags & LOG_WARNING != 0 {
        LogLevel::Warning
    } else if flags & LOG_DEBUG != 0 {
        LogLevel::Debug
    } else {
        LogLevel::Note
    };
    let line: String = line.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    sink(level, &line);
}

/// Overwrites memory with zeroes, which the compiler does not optimize away.
///
/// # Safety
/// `data` is null or points to `length` writable bytes.
unsafe extern "C" fn wipe(data: *mut c_void, length: usize) {
    if data.is_null() || isize::try_from(length).is_err() {
        return;
    }
    // SAFETY: the caller passes this many writable bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), length) };
    bytes.zeroize();
}

/// Encodes bytes into a string from `malloc`. Returns its length, or -1.
///
/// # Safety
/// `data` points to `length` readable bytes, and `text` to a pointer.
unsafe extern "C" fn encode(data: *const c_void, length: c_int, text: *mut *mut c_char) -> c_int {
    let Ok(size) = usize::try_from(length) else { return -1 };
    if data.is_null() || text.is_null() {
        return -1;
    }
    // SAFETY: the caller passes this many readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    let mut encoded = STANDARD.encode(bytes).into_bytes();
    encoded.push(0);
    // SAFETY: malloc has no preconditions.
    let copy = unsafe { libc::malloc(encoded.len()) };
    if copy.is_null() {
        encoded.zeroize();
        return -1;
    }
    // SAFETY: `copy` has room for all of `encoded`, and a new allocation does not overlap it; `text` is writable.
    unsafe {
        std::ptr::copy_nonoverlapping(encoded.as_ptr(), copy.cast::<u8>(), encoded.len());
        *text = copy.cast();
    }
    let length = c_int::try_from(encoded.len().saturating_sub(1)).unwrap_or(-1);
    encoded.zeroize();
    length
}

/// Decodes a string into a buffer. Returns the number of bytes, or -1 if the text is invalid or the buffer too small.
///
/// # Safety
/// `text` is a C string, and `data` points to `size` writable bytes.
unsafe extern "C" fn decode(text: *const c_char, data: *mut c_void, size: c_int) -> c_int {
    if text.is_null() || data.is_null() {
        return -1;
    }
    // SAFETY: the caller passes a C string.
    let text = unsafe { CStr::from_ptr(text) };
    let Ok(mut bytes) = STANDARD.decode(text.to_bytes()) else { return -1 };
    let length = match c_int::try_from(bytes.len()) {
        Ok(length) if length <= size => length,
        _ => {
            bytes.zeroize();
            return -1;
        }
    };
    // SAFETY: the buffer has `size` bytes, which is at least the length; it does not overlap the new vector.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast::<u8>(), bytes.len()) };
    bytes.zeroize();
    length
}
