//! Delivers signals through a channel.

use std::fs;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::background::SupervisorEnd;
use crate::fault::Fault;

/// How SIGHUP is understood.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Terminal {
    /// A person started the program at a terminal, and sees its output there. It ends when the terminal is closed.
    Foreground,
    /// The program was started from a terminal, but its input and output are elsewhere.
    Controlling,
    /// There is no terminal, or the program was to outlive it (nohup(1)).
    None,
}

static TERMINAL: OnceLock<Terminal> = OnceLock::new();

/// Makes the program end when its terminal is closed. Without this call, SIGHUP always means the same. Call it before signals are
/// taken over.
pub fn end_with_terminal() {
    let _ = TERMINAL.set(terminal(
        ignores_hangup(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
        io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal(),
        has_terminal(&stat()),
    ));
}

fn terminal(ignores_hangup: bool, is_shown: bool, has_terminal: Option<bool>) -> Terminal {
    match has_terminal {
        _ if ignores_hangup => Terminal::None,
        _ if is_shown => Terminal::Foreground,
        Some(true) => Terminal::Controlling,
        _ => Terminal::None,
    }
}

fn stat() -> String {
    fs::read_to_string("/proc/self/stat").unwrap_or_default()
}

/// Returns whether a process has a controlling terminal (proc_pid_stat(5), field 7), or `None` if that is unknown.
fn has_terminal(stat: &str) -> Option<bool> {
    // The name in parentheses may contain any characters. The fourth field after it is the terminal's.
    let number = stat.rsplit_once(')')?.1.split_whitespace().nth(4)?;
    Some(number != "0")
}

/// Returns whether a process ignores SIGHUP (signal 1) as proc_pid_status(5) shows it.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

/// Interprets SIGHUP.
fn hangup() -> Signal {
    match TERMINAL.get() {
        Some(Terminal::Foreground) => Signal::Terminate,
        Some(Terminal::Controlling) if has_terminal(&stat()) == Some(false) => Signal::Terminate,
        _ => Signal::Hangup,
    }
}

/// A signal that ends, restarts or queries a running program.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGHUP.
    Hangup,
    /// SIGUSR1.
    User1,
    /// SIGUSR2.
    User2,
}

/// The number of signals that can wait in the channel. Beyond it, equal signals are merged as usual.
const WAITING: usize = 8;

/// The signals that end, restart or query a running program.
///
/// A separate task waits for them, because polling five streams after each packet costs more than most packets do.
#[derive(Debug)]
pub struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    /// Takes the signals over from their default actions. The end of the supervisor that started this process counts as SIGTERM. Call it inside a tokio runtime.
    pub fn new() -> Result<Self, Fault> {
        let open = |kind| {
            signal(kind).map_err(|e| Fault::environment(format!("cannot receive signals: {e}")))
        };
        let mut terminate = open(SignalKind::terminate())?;
        let mut interrupt = open(SignalKind::interrupt())?;
        let mut hangup = open(SignalKind::hangup())?;
        let mut user1 = open(SignalKind::user_defined1())?;
        let mut user2 = open(SignalKind::user_defined2())?;
        let mut supervisor = SupervisorEnd::watch()
            .map_err(|e| Fault::environment(format!("cannot watch the supervisor: {e}")))?;
        let (taken, waiting) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            loop {
                let signal = tokio::select! {
                    () = taken.closed() => return,
                    Some(()) = terminate.recv() => Signal::Terminate,
                    Some(()) = interrupt.recv() => Signal::Interrupt,
                    Some(()) = hangup.recv() => self::hangup(),
                    Some(()) = user1.recv() => Signal::User1,
                    Some(()) = user2.recv() => Signal::User2,
                    () = supervisor.ended() => Signal::Terminate,
                    else => return,
                };
                if taken.send(signal).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self(waiting))
    }

    /// Creates a receiver without signals, for tests.
    pub fn none() -> Self {
        Self(mpsc::channel(1).1)
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_at_a_terminal_ends_with_it_and_others_do_not() {
        let is = Some(true);
        assert_eq!(terminal(false, true, is), Terminal::Foreground);
        assert_eq!(terminal(false, false, is), Terminal::Controlling);
        assert_eq!(terminal(true, true, is), Terminal::None, "nohup");
        assert_eq!(terminal(false, false, Some(false)), Terminal::None, "a service");
        assert_eq!(terminal(false, false, None), Terminal::None);
    }

    #[test]
    fn the_terminal_and_the_ignored_signal_are_read_from_proc() {
        assert_eq!(has_terminal("7 (a) b) S 1 7 7 34816 7 0"), Some(true));
        assert_eq!(has_terminal("7 (adit) S 1 7 7 0 -1 0"), Some(false));
        assert_eq!(has_terminal(""), None);
        assert!(has_terminal(&stat()).is_some());
        assert!(ignores_hangup("SigBlk:\t0\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\n") && !ignores_hangup(""));
    }
}
