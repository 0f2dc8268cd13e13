//! The host's second thread, which sends deferred answers, logs what plugins print, and ends the host when the network
//! process has ended. It never calls a plugin, so a plugin that blocks does not delay it.

use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use adit_linux::channel::Channel;
use adit_linux::poll::{Events, Interest, Poller};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::deferred::DeferredCalls;
use super::protocol::Message;
use crate::host_process::Lines;

/// How often the files of deferred answers are read.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long plugins may take to close after the network process has ended. One that blocks would keep the host alive.
const FAREWELL: Duration = Duration::from_secs(10);

const OUTPUT: u64 = 1;
const ADDED: u64 = 2;
const ENDED: u64 = 3;

/// Redirects the output of plugins to a thread, and starts the thread.
pub(super) fn start(
    channel: &Channel,
    deferred: Arc<DeferredCalls>,
    send: fn(&Message),
    print: fn(String),
) -> io::Result<()> {
    let (output, writer) = io::pipe()?;
    let poller = Poller::new()?;
    // The network process may become another one later (`daemon`), so its end of the channel counts: only a hang-up is
    // an event.
    poller.add(channel, ENDED, Interest::NONE)?;
    let channel = channel.as_fd().try_clone_to_owned()?;
    poller.add(&output, OUTPUT, Interest::READ)?;
    poller.add(deferred.added(), ADDED, Interest::READ)?;
    let thread = std::thread::Builder::new().name("background".into());
    thread.spawn(move || {
        // The poller watches it as long as it is open.
        let _channel = channel;
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
