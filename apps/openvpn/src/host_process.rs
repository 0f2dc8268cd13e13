//! Processes of this program that run foreign code, so that it is not in the process that faces the network: the plugin
//! host and the token host.
//!
//! Both ends of such a process are here: how the network process starts it and waits for it, and how it enters its own
//! duty and ends with the network process.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use adit_linux::channel::{Channel, Received};
use adit_linux::plugin;
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::privileges::{change_identity, find_group, find_user};
use adit_linux::process::{open_process, wait_for_end};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long one wait for a request takes, after which the host waits again.
const IDLE: Duration = Duration::from_secs(3600);

/// How long an answer waits for a network process that does not read.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the foreign code may take to close after the network process has ended. If it blocks, it would keep the host
/// alive.
const FAREWELL: Duration = Duration::from_secs(10);

/// The maximum length of a line that foreign code prints. A longer one is split.
const MAX_LINE: usize = 1024;

/// A host, as the network process sees it.
#[derive(Debug)]
pub(crate) struct HostProcess {
    channel: Channel,
    /// Not waited for: its end is noticed by its descriptor, and this process ends with it.
    _child: Child,
    /// Becomes readable when the host ends. A process that foreign code forked may keep the channel open.
    process: OwnedFd,
}

impl HostProcess {
    /// Starts a host, with a channel for messages of this size.
    pub(crate) fn start(mut command: Command, size: usize) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair(size)?;
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
        let process = open_process(child.id())?;
        // The command holds the other end of the channel.
        drop(command);
        Ok(Self { channel: ours, _child: child, process })
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(crate) fn process(&self) -> &OwnedFd {
        &self.process
    }

    /// Waits for a message or the end of the host, which it returns. `TimedOut` if neither comes in time.
    pub(crate) fn wait(&self, patience: Duration) -> io::Result<bool> {
        // A short wait suffices for the end, which is rare here.
        let step = patience.min(Duration::from_millis(100));
        match self.channel.wait(false, step) {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                if wait_for_end(&self.process, Duration::ZERO)? {
                    return Ok(true);
                }
                if patience.is_zero() { Err(e) } else { Ok(false) }
            }
            waited => waited.map(|()| false),
        }
    }
}

/// Runs a host as the whole of its process.
pub(crate) fn main(name: &str, run: fn() -> Result<(), String>) -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            let _ = writeln!(io::stderr(), "{name}: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Begins the duty of a host: takes the channel from the standard input, and survives the signals that a terminal or a
/// service manager sends to all processes of a program.
pub(crate) fn enter(name: &CStr) -> Result<Channel, String> {
    let channel = io::stdin().as_fd().try_clone_to_owned().and_then(Channel::from_fd);
    let channel = channel.map_err(|_| "this program is started by adit alone".to_owned())?;
    let failed = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    File::open("/dev/null")
        .and_then(|null| Ok(nix::unistd::dup2_stdin(null)?))
        .map_err(failed("cannot open /dev/null"))?;
    let _ = nix::sys::prctl::set_name(name);
    plugin::outlive_signals().map_err(failed("cannot catch signals"))?;
    Ok(channel)
}

/// Waits for the next request; `None` if the network process has ended.
pub(crate) fn next(channel: &Channel, limit: usize) -> Result<Option<Vec<u8>>, String> {
    loop {
        match channel.receive(limit) {
            Ok(Received::Message(bytes, _)) => return Ok(Some(bytes)),
            Ok(Received::End) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => match channel.wait(false, IDLE) {
                Err(e) if e.kind() != io::ErrorKind::TimedOut => return Err(e.to_string()),
                _ => {}
            },
            Err(e) => return Err(format!("request lost: {e}")),
        }
    }
}

/// Sends a message that must arrive, and waits for a network process that reads slowly.
pub(crate) fn send(channel: &Channel, bytes: &[u8]) {
    while let Err(e) = channel.send(bytes, &[]) {
        // If the network process is gone, the next request is the end.
        if e.kind() != io::ErrorKind::WouldBlock || channel.wait(true, PATIENCE).is_err() {
            return;
        }
    }
}

/// Becomes the configured user, in all threads. Without `user` and `group` the process stays what it is, as openvpn does.
pub(crate) fn become_user(user: Option<&str>, group: Option<&str>) -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let user = user.map(find_user).transpose().map_err(|e| e.to_string())?;
    let group = group.map(find_group).transpose().map_err(|e| e.to_string())?;
    change_identity(None, group, user.map(|(user, _)| user))
        .map_err(|e| format!("cannot change the user: {e}"))
}

/// Starts a thread that ends this process soon after the network process has ended, whatever the foreign code does. The
/// network process may have become another one in the meantime (`daemon`), so its end of the channel counts.
pub(crate) fn end_with_network_process(channel: &Channel) -> io::Result<()> {
    let poller = Poller::new()?;
    poller.add(channel, 0, Interest::NONE)?;
    // The poller watches the channel as long as a descriptor of it is open.
    let channel = channel.as_fd().try_clone_to_owned()?;
    let thread = std::thread::Builder::new().name("end".into());
    thread.spawn(move || {
        let _channel = channel;
        let mut events = Events::new();
        // Only a hang-up is an event.
        while poller.wait(&mut events, None).is_ok_and(|count| count == 0) {}
        std::thread::sleep(FAREWELL);
        let _ = kill(Pid::this(), Signal::SIGKILL);
    })?;
    Ok(())
}

/// Redirects what foreign code prints to a thread, which passes it on line by line.
pub(crate) fn capture_output(mut print: impl FnMut(String) + Send + 'static) -> io::Result<()> {
    let (mut output, writer) = io::pipe()?;
    let thread = std::thread::Builder::new().name("output".into());
    thread.spawn(move || {
        let (mut lines, mut bytes) = (Lines::default(), [0; 4096]);
        while let Ok(length) = output.read(&mut bytes) {
            lines.add(bytes.get(..length).unwrap_or_default(), &mut print);
        }
    })?;
    nix::unistd::dup2_stdout(&writer)?;
    nix::unistd::dup2_stderr(&writer)?;
    Ok(())
}

/// Divides what foreign code prints into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    incomplete: Vec<u8>,
}

impl Lines {
    pub(crate) fn add(&mut self, bytes: &[u8], mut print: impl FnMut(String)) {
        for byte in bytes {
            if *byte != b'\n' {
                self.incomplete.push(*byte);
            }
            if *byte == b'\n' || self.incomplete.len() >= MAX_LINE {
                let line = std::mem::take(&mut self.incomplete);
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if !line.is_empty() {
                    print(line);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_becomes_lines_of_bounded_length() {
        let (mut lines, mut printed) = (Lines::default(), Vec::new());
        for bytes in [&b"one\n\ntw"[..], b"o\r\nthr", &[b'e'; MAX_LINE], b"\xff\n"] {
            lines.add(bytes, |line| printed.push(line));
        }
        assert_eq!(printed[..2], ["one", "two"]);
        assert_eq!((printed[2].len(), printed[3].as_str()), (MAX_LINE, "eee\u{fffd}"));
        assert_eq!(printed.len(), 4);
    }
}
