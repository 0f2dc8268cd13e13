//! Signals as a stream.

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::fault::Fault;
use crate::server::Signal;

/// The signals that end, restart or question a running program.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Stream,
    interrupt: Stream,
    hangup: Stream,
    user1: Stream,
    user2: Stream,
}

impl Signals {
    /// Takes them over from their default actions.
    pub(crate) fn new() -> Result<Self, Fault> {
        let open = |kind| {
            signal(kind).map_err(|e| Fault::environment(format!("cannot receive signals: {e}")))
        };
        Ok(Self {
            terminate: open(SignalKind::terminate())?,
            interrupt: open(SignalKind::interrupt())?,
            hangup: open(SignalKind::hangup())?,
            user1: open(SignalKind::user_defined1())?,
            user2: open(SignalKind::user_defined2())?,
        })
    }

    /// The next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            Some(()) = self.terminate.recv() => Signal::Terminate,
            Some(()) = self.interrupt.recv() => Signal::Interrupt,
            Some(()) = self.hangup.recv() => Signal::Hangup,
            Some(()) = self.user1.recv() => Signal::User1,
            Some(()) = self.user2.recv() => Signal::User2,
            else => std::future::pending().await,
        }
    }
}
