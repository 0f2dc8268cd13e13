//! The host's second thread, which sends deferred answers, logs what plugins print, and ends the host when the network
//! process has ended. It never calls a plugin, so a plugin that blocks does not delay it.

use std::io::{self, PipeReader, Read};
use std::sync::Arc;
use std::time::Duration;

use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::process::open_process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};

use super::deferred::DeferredCalls;
use super::protocol::Message;

/// How often the files of deferred answers are read.
const INTERVAL: Duration = Duration::from_millis(100);

/// The maximum length of a line that a plugin prints. A longer one is split.
const MAX_LINE: usize = 1024;

/// How long plugins may take to close after the network process has ended. One that blocks would keep the host alive.
const FAREWELL: Duration = Duration::from_secs(10);

const OUTPUT: u64 = 1;
const ADDED: u64 = 2;
const ENDED: u64 = 3;

/// Redirects the output of plugins to a thread, and starts the thread.
pub(super) fn start(
    deferred: Arc<DeferredCalls>,
    send: fn(&Message),
    print: fn(String),
) -> io::Result<()> {
    let (output, writer) = io::pipe()?;
    let network_process = open_process(getppid().as_raw().unsigned_abs())?;
    let poller = Poller::new()?;
    poller.add(&network_process, ENDED, Interest::READ)?;
    poller.add(&output, OUTPUT, Interest::READ)?;
    poller.add(deferred.added(), ADDED, Interest::READ)?;
    let thread = std::thread::Builder::new().name("background".into());
    thread.spawn(move || {
        // The poller watches it as long as it is open.
        let _network_process = network_process;
        run(&poller, &deferred, output, send, print);
    })?;
    nix::unistd::dup2_stdout(&writer)?;
    nix::unistd::dup2_stderr(&writer)?;
    Ok(())
}

fn run(
    poller: &Poller,
    deferred: &DeferredCalls,
    mut output: PipeReader,
    send: fn(&Message),
    print: fn(String),
) {
    let (mut events, mut lines) = (Events::new(), Lines::default());
    loop {
        let timeout = (!deferred.is_empty()).then_some(INTERVAL);
        if poller.wait(&mut events, timeout).is_err() {
            return;
        }
        for event in events.iter() {
            if event.token == ENDED {
                // The process usually ends during this time.
                std::thread::sleep(FAREWELL);
                let _ = kill(Pid::this(), Signal::SIGKILL);
            }
            if event.token == ADDED {
                deferred.added().drain();
                continue;
            }
            let mut bytes = [0; 4096];
            // The pipe is readable, and only this thread reads it.
            let length = output.read(&mut bytes).unwrap_or(0);
            lines.add(bytes.get(..length).unwrap_or_default(), print);
        }
        deferred.take_answers().iter().for_each(send);
    }
}

/// Divides what plugins print into lines.
#[derive(Debug, Default)]
struct Lines {
    incomplete: Vec<u8>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8], mut print: impl FnMut(String)) {
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
