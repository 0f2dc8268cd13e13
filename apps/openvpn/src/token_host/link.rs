//! The network process's connection to the token host.

use std::io;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_linux::channel::Received;
use adit_runtime::fault::Fault;
use adit_runtime::say;
use zeroize::Zeroizing;

use super::protocol::{MESSAGE_LIMIT, Message, NumberedRequest, Reply, Request};
use crate::host_process::HostProcess;

#[derive(Debug)]
pub(super) struct Link {
    host: HostProcess,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// The request whose reply did not come in time. No other request is made until it comes.
    overdue: Option<u64>,
    /// Why the host is gone.
    lost: Option<String>,
    /// Messages that were no reply to a request.
    dropped: u64,
}

impl Link {
    pub(super) fn start(command: Command) -> Result<Self, Fault> {
        let failed = |e: io::Error| Fault::environment(format!("token host: start failed: {e}"));
        let host = HostProcess::start(command, MESSAGE_LIMIT).map_err(failed)?;
        Ok(Self { host, state: Mutex::default() })
    }

    /// Makes a request and waits for the reply, but no longer than `limit`.
    pub(super) fn call(&self, request: Request, limit: Duration) -> Result<Reply, String> {
        let mut state = self.state();
        // The reply to an earlier request may have come in the meantime.
        self.receive(&mut state, None);
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        if state.overdue.is_some() {
            return Err(
                "the token still does not answer: remove it and insert it again, or start again"
                    .into(),
            );
        }
        state.last = state.last.wrapping_add(1);
        let id = state.last;
        let bytes = serde_json::to_vec(&NumberedRequest { id, request }).map(Zeroizing::new);
        let bytes = bytes.map_err(|e| format!("token host: {e}"))?;
        if bytes.len() > MESSAGE_LIMIT {
            return Err("token host: the request is too long".into());
        }
        // The host has replied to all earlier requests, so there is room.
        let sent = self.host.channel().send(&bytes, &[]);
        sent.map_err(|e| format!("token host: the request cannot be sent: {e}"))?;
        let until = Instant::now() + limit;
        loop {
            if let Some(reply) = self.receive(&mut state, Some(id)) {
                return Ok(reply);
            }
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            match self.host.wait(until.saturating_duration_since(Instant::now())) {
                Ok(false) => {}
                Ok(true) => {
                    // Its last lines may tell why.
                    if let Some(reply) = self.receive(&mut state, Some(id)) {
                        return Ok(reply);
                    }
                    lose(&mut state);
                }
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                    state.overdue = Some(id);
                    let seconds = limit.as_secs();
                    return Err(format!("the token did not answer within {seconds} s"));
                }
                Err(e) => return Err(format!("token host: {e}")),
            }
        }
    }

    /// Processes the messages that have arrived. Returns the reply to this request, if it is among them.
    fn receive(&self, state: &mut State, wanted: Option<u64>) -> Option<Reply> {
        loop {
            match self.host.channel().receive(MESSAGE_LIMIT) {
                Ok(Received::Message(bytes, _)) => match serde_json::from_slice(&bytes) {
                    Ok(Message::Line(text)) => say!(1, "PKCS#11: {text}"),
                    Ok(Message::Reply { id, reply }) if wanted == Some(id) => return Some(reply),
                    Ok(Message::Reply { id, .. }) if state.overdue == Some(id) => {
                        state.overdue = None;
                    }
                    Ok(Message::Reply { .. }) => state.dropped = state.dropped.saturating_add(1),
                    Err(e) => {
                        tracing::error!("token host: invalid message: {e}");
                        state.dropped = state.dropped.saturating_add(1);
                    }
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Ok(Received::End) => {
                    lose(state);
                    return None;
                }
                Err(e) => {
                    tracing::error!("token host: message lost: {e}");
                    lose(state);
                    return None;
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn process(&self) -> std::os::fd::OwnedFd {
        self.host.process().try_clone().unwrap()
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.state().lost.clone().map(Fault::environment)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let dropped = self.state().dropped;
        if dropped > 0 {
            tracing::warn!("token host: {dropped} messages dropped");
        }
    }
}

fn lose(state: &mut State) {
    state.lost.get_or_insert_with(|| {
        "token host: process ended: a PKCS#11 module has crashed: see the messages above, and start again".into()
    });
}
