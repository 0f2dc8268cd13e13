//! Programs at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};

use nix::fcntl::OFlag;

use super::until;

/// Arguments of setsid(1) for a program that takes the terminal and ends with it, even if the tests run under nohup(1).
pub(crate) const TAKE_TERMINAL: [&str; 3] = ["--ctty", "env", "--default-signal=HUP"];

/// A terminal, and a program in its foreground.
#[derive(Debug)]
pub(crate) struct Terminal {
    pub(crate) ours: File,
    pub(crate) child: Child,
    pub(crate) shown: String,
}

impl Terminal {
    /// Starts setsid(1) or a program below it, which takes the terminal.
    pub(crate) fn start(mut command: Command) -> Self {
        // No other program that a test starts may inherit it, because the terminal is open until the last copy is closed.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let ours = nix::pty::posix_openpt(flags).unwrap();
        nix::pty::grantpt(&ours).unwrap();
        nix::pty::unlockpt(&ours).unwrap();
        let path = nix::pty::ptsname_r(&ours).unwrap();
        let mut open = File::options();
        let slave =
            open.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(path).unwrap();
        let theirs = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(theirs()).stdout(theirs()).stderr(theirs());
        let child = command.spawn().unwrap();
        Self { ours: OwnedFd::from(ours).into(), child, shown: String::new() }
    }

    /// Reads until the terminal shows a text.
    pub(crate) fn expect(&mut self, text: &str) {
        while !self.shown.contains(text) {
            let mut bytes = [0; 1024];
            let count = self.ours.read(&mut bytes).unwrap_or(0);
            assert!(count > 0, "no {text:?}, but: {}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }

    pub(crate) fn answer(&mut self, question: &str, answer: &str) {
        self.expect(question);
        writeln!(self.ours, "{answer}").unwrap();
    }

    /// Closes the terminal, and returns the exit code of the program.
    pub(crate) fn close(self) -> Option<i32> {
        let Self { ours, child, shown } = self;
        drop(ours);
        Self::end(child, &shown)
    }

    /// Closes the terminal after the program has ended, and returns its exit code.
    pub(crate) fn finish(self) -> Option<i32> {
        Self::end(self.child, &self.shown)
    }

    fn end(mut child: Child, shown: &str) -> Option<i32> {
        until("the program ends", || child.try_wait().unwrap().is_some());
        let status = child.wait().unwrap();
        assert!(status.code().is_some(), "{status}: {shown}");
        status.code()
    }
}
