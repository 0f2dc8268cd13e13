//! Calls whose answer follows later.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_linux::plugin::Kind;
use adit_linux::poll::EventFd;

use super::files::AnswerFiles;
use super::protocol::{CallRequest, Message, Outcome};

/// The maximum number of calls whose answer is outstanding. A further one is refused.
pub(super) const MAX_DEFERRED: usize = 1024;

/// A deferred call.
#[derive(Debug)]
pub(super) struct DeferredCall {
    pub(super) kind: Kind,
    /// The call as the plugins got it, with the names of the files.
    pub(super) request: Arc<CallRequest>,
    pub(super) files: AnswerFiles,
    /// The configuration that other plugins returned at once.
    pub(super) config: Vec<String>,
    /// Whether the network process knows the content of `auth_pending_file`.
    pub(super) pending_sent: bool,
}

/// All deferred calls by their numbers. Removing a call from the table entitles to answer it, so there is one answer.
#[derive(Debug)]
pub(super) struct DeferredCalls {
    calls: Mutex<HashMap<u64, DeferredCall>>,
    /// Signalled when a call is added.
    added: EventFd,
}

impl DeferredCalls {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { calls: Mutex::default(), added: EventFd::new()? })
    }

    /// Adds a call; returns it if there are too many.
    pub(super) fn add(&self, id: u64, call: DeferredCall) -> Result<(), DeferredCall> {
        let mut calls = self.calls();
        if calls.len() >= MAX_DEFERRED {
            return Err(call);
        }
        calls.insert(id, call);
        self.added.signal();
        Ok(())
    }

    /// Removes a call, to answer or to forget it.
    pub(super) fn remove(&self, id: u64) -> Option<DeferredCall> {
        self.calls().remove(&id)
    }

    /// Returns what the plugins got for a call.
    pub(super) fn request(&self, id: u64) -> Option<(Kind, Arc<CallRequest>)> {
        self.calls().get(&id).map(|call| (call.kind, Arc::clone(&call.request)))
    }

    /// Adds the names of the files with which a client's pending password check can be answered.
    pub(super) fn announce(&self, client: u64, env: &mut Vec<(String, String)>) {
        let calls = self.calls();
        let mut of_client = calls
            .values()
            .filter(|call| call.kind == Kind::AuthUserPassVerify && call.request.client == client);
        if let Some(call) = of_client.next() {
            call.files.announce(&mut Vec::new(), env);
        }
    }

    pub(super) fn added(&self) -> &EventFd {
        &self.added
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls().is_empty()
    }

    /// Returns the messages for calls that are answered or pending now.
    pub(super) fn take_answers(&self) -> Vec<Message> {
        let mut calls = self.calls();
        let mut messages = Vec::new();
        calls.retain(|id, call| {
            if let Some(outcome) = call.files.answer(&call.config) {
                messages.push(Message::Answer { id: *id, outcome });
                return false;
            }
            if call.pending_sent {
                return true;
            }
            match call.files.pending() {
                None => true,
                Some(Ok(pending)) => {
                    call.pending_sent = true;
                    messages.push(Message::Pending { id: *id, pending });
                    true
                }
                Some(Err(reason)) => {
                    let outcome = Outcome::refused(reason);
                    messages.push(Message::Answer { id: *id, outcome });
                    false
                }
            }
        });
        messages
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, DeferredCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn call(dir: &tempfile::TempDir, client: u64) -> DeferredCall {
        let files = AnswerFiles::create(Kind::AuthUserPassVerify, dir.path()).unwrap();
        let mut request = CallRequest { client, ..CallRequest::default() };
        files.announce(&mut request.args, &mut request.env);
        DeferredCall {
            kind: Kind::AuthUserPassVerify,
            request: Arc::new(request),
            files,
            config: Vec::new(),
            pending_sent: false,
        }
    }

    fn write(calls: &DeferredCalls, id: u64, name: &str, text: &str) {
        let (_, request) = calls.request(id).unwrap();
        let (_, path) = request.env.iter().find(|(other, _)| other == name).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_call_is_answered_once_after_one_request_for_time() {
        let dir = tempfile::tempdir().unwrap();
        let calls = DeferredCalls::new().unwrap();
        calls.add(7, call(&dir, 1)).unwrap();
        assert_eq!(calls.take_answers(), []);
        write(&calls, 7, "auth_pending_file", "9\nopenurl\nx\n");
        assert!(matches!(calls.take_answers()[..], [Message::Pending { id: 7, .. }]));
        assert_eq!(calls.take_answers(), []);
        write(&calls, 7, "auth_control_file", "1");
        let answer = Message::Answer { id: 7, outcome: Outcome::accepted() };
        assert_eq!(calls.take_answers(), [answer]);
        assert_eq!(calls.take_answers(), []);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_invalid_request_for_time_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let calls = DeferredCalls::new().unwrap();
        calls.add(7, call(&dir, 1)).unwrap();
        write(&calls, 7, "auth_pending_file", "soon\nopenurl\nx\n");
        let answers = calls.take_answers();
        assert!(matches!(
            answers[..],
            [Message::Answer { id: 7, outcome: Outcome::Refused { .. } }]
        ));
        assert!(calls.request(7).is_none());
    }

    #[test]
    fn a_forgotten_call_has_no_answer_and_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let calls = DeferredCalls::new().unwrap();
        calls.add(7, call(&dir, 1)).unwrap();
        write(&calls, 7, "auth_control_file", "1");
        drop(calls.remove(7));
        assert_eq!(calls.take_answers(), []);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn outstanding_calls_are_bounded() {
        let calls = DeferredCalls::new().unwrap();
        let nothing = || DeferredCall {
            kind: Kind::ClientConnectV2,
            request: Arc::default(),
            files: AnswerFiles::None,
            config: Vec::new(),
            pending_sent: false,
        };
        for id in 0..MAX_DEFERRED as u64 {
            calls.add(id, nothing()).unwrap();
        }
        assert!(calls.add(u64::MAX, nothing()).is_err());
        calls.remove(3);
        assert!(calls.add(u64::MAX, nothing()).is_ok());
    }

    #[test]
    fn a_challenges_answer_finds_the_files_of_its_own_client() {
        let dir = tempfile::tempdir().unwrap();
        let calls = DeferredCalls::new().unwrap();
        calls.add(7, call(&dir, 1)).unwrap();
        let mut env = Vec::new();
        calls.announce(2, &mut env);
        assert!(env.is_empty());
        calls.announce(1, &mut env);
        assert!(env.iter().any(|(name, _)| name == "auth_control_file"));
    }
}
