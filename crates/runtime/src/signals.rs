//! Delivers signals through a channel.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::fault::Fault;

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
    /// Takes the signals over from their default actions. Call it inside a tokio runtime.
    pub fn new() -> Result<Self, Fault> {
        let open = |kind| {
            signal(kind).map_err(|e| Fault::environment(format!("cannot receive signals: {e}")))
        };
        let mut terminate = open(SignalKind::terminate())?;
        let mut interrupt = open(SignalKind::interrupt())?;
        let mut hangup = open(SignalKind::hangup())?;
        let mut user1 = open(SignalKind::user_defined1())?;
        let mut user2 = open(SignalKind::user_defined2())?;
        let (taken, waiting) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            loop {
                let signal = tokio::select! {
                    () = taken.closed() => return,
                    Some(()) = terminate.recv() => Signal::Terminate,
                    Some(()) = interrupt.recv() => Signal::Interrupt,
                    Some(()) = hangup.recv() => Signal::Hangup,
                    Some(()) = user1.recv() => Signal::User1,
                    Some(()) = user2.recv() => Signal::User2,
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
