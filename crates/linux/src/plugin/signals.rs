//! Signals that the plugin host outlives.

use std::io;

use libc::c_int;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Catches the signals that a terminal or a service manager sends to all processes of a program, because the host ends
/// with the network process. They are caught rather than ignored, because programs that a plugin starts would inherit
/// ignored signals. Interrupted system calls continue.
///
/// # Errors
/// The kernel refuses a handler.
pub fn outlive_signals() -> io::Result<()> {
    extern "C" fn nothing(_: c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        // SAFETY: the handler does nothing, so it is safe at any point of the program.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}
