//! Tests of the full-screen view of `adit top`.

use std::fs;
use std::io::Write;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use crate::world::ADIT;
use crate::world::terminal::{TAKE_TERMINAL, Terminal};

/// The end of the alternate screen (xterm's control sequences).
const LEAVE_SCREEN: &str = "\x1b[?1049l";

#[test]
fn the_terminal_is_restored_after_a_key_a_signal_and_an_error() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("vpn")).unwrap();
    let ends =
        [("q", None), ("\x03", None), ("", Some(Signal::SIGTERM)), ("", Some(Signal::SIGINT))];
    for end in ends {
        let mut terminal = start(&folder);
        let ours = terminal.ours.try_clone().unwrap();
        let cooked = LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG;
        let flags = || tcgetattr(&ours).unwrap().local_flags & cooked;
        assert_eq!(flags(), LocalFlags::empty(), "{end:?}");
        let (keys, signal) = end;
        terminal.ours.write_all(keys.as_bytes()).unwrap();
        if let Some(signal) = signal {
            kill(Pid::from_raw(terminal.child.id().try_into().unwrap()), signal).unwrap();
        }
        terminal.expect(LEAVE_SCREEN);
        assert_eq!(terminal.finish(), Some(0), "{end:?}");
        assert_eq!(flags(), cooked, "{end:?}");
    }
    // The control sockets cannot be listed any more.
    let mut terminal = start(&folder);
    fs::write(folder.path().join("vpn/run"), "").unwrap();
    terminal.expect(LEAVE_SCREEN);
    terminal.expect("cannot read");
    assert_ne!(terminal.finish(), Some(0));
}

#[test]
fn a_closed_terminal_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("vpn")).unwrap();
    assert_eq!(start(&folder).close(), Some(0));
}

/// Starts `adit top` at a terminal of 80 columns, and waits for its last line.
fn start(folder: &tempfile::TempDir) -> Terminal {
    let mut command = Command::new("setsid");
    let shell = ["sh", "-c", "stty rows 24 cols 80 && exec \"$0\" top --dir vpn", ADIT];
    command.args(TAKE_TERMINAL).args(shell);
    command.env("TERM", "xterm").current_dir(folder);
    let mut terminal = Terminal::start(command);
    terminal.expect("quit");
    terminal
}
