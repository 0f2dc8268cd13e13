//! The questions of a client: whether its server is the right one, and its user name and password.

use adit_engine::auth::{CredentialsRequest, Rejection};
use adit_engine::{Identity, Instant, auth};

use super::{ClientEngine, Out, State};
use crate::client::challenge::parse_dynamic;
use crate::client::config::Credentials;
use crate::config::AuthRetry;
use crate::data_format::Output;
use crate::negotiate::{AdvanceTo, AuthFailed, PushedOptions};
use crate::reason::Reason;

/// A question that waits for its response.
#[derive(Copy, Clone, Debug)]
pub(super) struct Question {
    request: auth::RequestId,
    kind: QuestionKind,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum QuestionKind {
    /// Whether this is the right server. The key message waits for the response.
    Server,
    /// The password, before the server is dialled.
    Login,
    /// The password, for which the key message waits.
    KeyMessage,
}

impl ClientEngine {
    /// Returns whether a password must be asked for before it can be sent.
    pub(super) fn lacks_credentials(&self) -> bool {
        self.config.auth.ask && self.token.is_none() && self.config.credentials.is_none()
    }

    /// Forgets the user name and password, so that they are asked for before they are next sent.
    pub fn forget_login(&mut self) {
        if self.config.auth.ask {
            self.config.credentials = None;
        }
    }

    /// Sets `auth-retry`.
    pub fn set_auth_retry(&mut self, retry: AuthRetry) {
        self.config.auth.retry = retry;
    }

    /// Asks for the user name and password, and dials after the response.
    pub(super) fn ask_before_dialling(&mut self, out: &mut Out) {
        self.state = State::Asking;
        self.ask_credentials(QuestionKind::Login, out);
    }

    fn ask_credentials(&mut self, kind: QuestionKind, out: &mut Out) {
        let challenge =
            self.challenge.clone().or_else(|| self.config.auth.static_challenge.clone());
        let rejected = self.rejected.clone();
        let renegotiation = matches!(self.state, State::Up(_));
        let request = CredentialsRequest { challenge, rejected, renegotiation };
        self.ask(kind, auth::Request::Credentials(request), out);
    }

    fn ask(&mut self, kind: QuestionKind, question: auth::Request, out: &mut Out) {
        let request = auth::RequestId(self.next_request);
        self.next_request = self.next_request.wrapping_add(1);
        self.question = Some(Question { request, kind });
        out.push(Output::AuthRequest(request, question));
    }

    /// Processes a complete TLS handshake: verifies the server if that is configured, and sends the key message.
    pub(super) fn tls_ready(&mut self, out: &mut Out) -> Result<(), Reason> {
        if !self.config.auth.verify_server {
            return self.login(out);
        }
        let up = matches!(self.state, State::Up(_));
        let Some(control_channel) = self.state.control_channel() else { return Ok(()) };
        let (negotiation, link) = (control_channel.negotiation(), control_channel.link);
        let server = negotiation.tls().peer().cloned().unwrap_or_default();
        let identity = Identity {
            common_name: server.common_name,
            serial: server.serial,
            fingerprint: server.fingerprint,
            address: Some(link.remote().ip()),
            certificates: negotiation.tls().certificate_facts(),
            key_id: negotiation.key_id,
            renegotiation: up,
            local: link.local(),
            remote: Some(link.remote()),
            stream: link.is_stream(),
            tls: negotiation.tls().description(),
            ..Identity::default()
        };
        self.ask(QuestionKind::Server, auth::Request::VerifyServer(Box::new(identity)), out);
        Ok(())
    }

    /// Sends the key message, or first asks for the password.
    fn login(&mut self, out: &mut Out) -> Result<(), Reason> {
        if self.lacks_credentials() {
            self.ask_credentials(QuestionKind::KeyMessage, out);
            return Ok(());
        }
        self.send_keys()
    }

    /// Processes the response to a question. A response to an earlier question is ignored.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        request: auth::RequestId,
        response: auth::Response,
        out: &mut Out,
    ) {
        let current = |question: &mut Question| question.request == request;
        let pending = matches!(response, auth::Response::Pending { .. });
        let Some(Question { kind, .. }) =
            (!pending).then(|| self.question.take_if(current)).flatten()
        else {
            return;
        };
        let result = match (kind, response) {
            (QuestionKind::Server, auth::Response::Accept(_)) => self.login(out),
            (QuestionKind::Server, other) => Err(Reason::ServerRejected(log_text(other))),
            (_, auth::Response::Credentials { username, password }) => {
                self.config.credentials = Some(Credentials { username, password });
                (self.challenge, self.rejected) = (None, None);
                if kind == QuestionKind::Login {
                    return self.dial(out);
                }
                self.send_keys()
            }
            (_, other) => return self.stop(Reason::NoCredentials(log_text(other)), out),
        };
        self.settle(now, result, out);
    }

    /// Returns the user name and password for a key message, and forgets the password with `auth-nocache`.
    pub(super) fn take_login(&mut self) -> Credentials {
        let login = match (&self.token, &mut self.config.credentials) {
            (Some(token), _) => Some(token.clone()),
            (None, own) if self.config.auth.forget && self.config.auth.ask => own.take(),
            (None, own) => own.clone(),
        };
        let login = login.unwrap_or_else(|| Credentials {
            username: String::new(),
            password: Default::default(),
        });
        self.username.clone_from(&login.username);
        login
    }

    /// Uses a pushed `auth-token` instead of the password from now on. Returns it with its user name.
    pub(super) fn remember_token(&mut self, pushed: &PushedOptions) -> Option<Credentials> {
        let password = pushed.auth_token.clone()?;
        let username = pushed.auth_token_user.clone().unwrap_or_else(|| self.username.clone());
        let login = Credentials { username, password };
        if !login.username.is_empty() {
            self.token = Some(login.clone());
        }
        Some(login)
    }

    /// Processes a refusal for good. `auth-retry` decides what follows. After a dynamic challenge, the next attempt
    /// answers it.
    pub(super) fn auth_failed(&mut self, now: Instant, failed: AuthFailed, out: &mut Out) {
        // The server refused its token, but the configured credentials may still be valid.
        if self.token.take().is_some() {
            return self.lost(now, Reason::AuthTokenRefused(failed.reason), out);
        }
        let reason = Reason::AuthFailed(failed.reason.clone());
        let challenge = if failed.challenge { parse_dynamic(&failed.reason) } else { None };
        match self.config.auth.retry {
            AuthRetry::None => self.stop(reason, out),
            AuthRetry::NoInteract if challenge.is_none() => self.failed(now, reason, out),
            _ if !self.config.auth.ask => self.stop(reason, out),
            _ => {
                self.config.credentials = None;
                // Only the server that made a challenge knows the answer.
                let next = if challenge.is_some() { AdvanceTo::Stay } else { AdvanceTo::Address };
                (self.challenge, self.rejected) = (challenge, Some(failed.reason));
                self.failed_with(now, reason, next, None, out);
            }
        }
    }
}

/// Returns the text for the log of a response that does not accept.
fn log_text(response: auth::Response) -> String {
    match response {
        auth::Response::Reject(Rejection { log, .. }) | auth::Response::Later(log) => log,
        _ => "the response does not fit the request".into(),
    }
}
