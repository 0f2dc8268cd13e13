//! Responses to an engine's authorization requests.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use adit_engine::{Identity, auth};
use tokio::sync::mpsc;

/// A response that may take some time.
pub type ResponseFuture = Pin<Box<dyn Future<Output = auth::Response> + Send>>;

/// A response to a request, on its way to the engine.
pub(crate) type AnsweredRequest = (auth::RequestId, auth::Response);

/// Extends the time of a request while its response is prepared.
#[derive(Clone, Debug)]
pub struct PendingSender {
    request: auth::RequestId,
    answers: mpsc::Sender<AnsweredRequest>,
}

impl PendingSender {
    pub(crate) fn new(request: auth::RequestId, answers: mpsc::Sender<AnsweredRequest>) -> Self {
        Self { request, answers }
    }

    /// Creates a sender whose extensions go nowhere, for requests that cannot be extended and for tests.
    pub fn none() -> Self {
        Self { request: auth::RequestId(u64::MAX), answers: mpsc::channel(1).0 }
    }

    /// Creates a sender and the receiver of its extensions, for tests.
    pub fn for_tests() -> (Self, mpsc::Receiver<(auth::RequestId, auth::Response)>) {
        let (answers, receiver) = mpsc::channel(16);
        (Self { request: auth::RequestId(0), answers }, receiver)
    }

    /// Tells the peer that the decision takes up to `timeout` longer, with a text for its user. Returns false if the
    /// request is no longer open or too many messages wait.
    pub fn send(&self, timeout: Duration, info: Option<String>) -> bool {
        let response = auth::Response::Pending { timeout, info };
        self.answers.try_send((self.request, response)).is_ok()
    }
}

/// Authorizes peers that have been authenticated.
///
/// It may be slow (a script, a database, a person), because the driver serves all other peers meanwhile. Blocking work
/// belongs in `tokio::task::spawn_blocking`.
pub trait Authorizer: Send + Sync {
    /// Decides whether a peer may have a session or keep it. Until the future returns, `pending` extends the time.
    fn authorize(&self, identity: Box<Identity>, pending: PendingSender) -> ResponseFuture;

    /// Decides with which parameters an authorized peer connects.
    fn connect(&self, connecting: Box<auth::Connecting>) -> ResponseFuture {
        Box::pin(std::future::ready(auth::Response::Accept(connecting.params)))
    }

    /// Decides whether a peer that is not authenticated yet may begin a handshake with its tls-crypt-v2 key.
    fn verify_key(&self, identity: Box<Identity>) -> ResponseFuture {
        drop(identity);
        Box::pin(std::future::ready(auth::Response::Accept(auth::ClientParams::default())))
    }

    /// Decides whether a station behind a connected peer may send frames.
    fn learn(&self, station: auth::Station) -> ResponseFuture {
        let _ = station;
        Box::pin(std::future::ready(auth::Response::Accept(auth::ClientParams::default())))
    }

    /// Decides whether a client's server is the right one.
    fn verify_server(&self, identity: Box<Identity>) -> ResponseFuture {
        drop(identity);
        Box::pin(std::future::ready(auth::Response::Accept(auth::ClientParams::default())))
    }

    /// Returns a client's user name and password.
    fn credentials(&self, request: auth::CredentialsRequest) -> ResponseFuture {
        drop(request);
        let text = "there is no user name and password, and no way to ask for them";
        Box::pin(std::future::ready(auth::Response::Reject(text.into())))
    }

    /// Takes a client's response to a challenge that was sent while its request is pending (CR_RESPONSE). The text is
    /// usually base64, but not verified.
    fn challenge_response(&self, session: u64, text: String) {
        let _ = (session, text);
    }
}

/// Accepts every peer whose certificate was verified: the policy of a server without further checks.
#[derive(Copy, Clone, Debug, Default)]
pub struct CertificateOnly;

impl Authorizer for CertificateOnly {
    fn authorize(&self, _identity: Box<Identity>, _pending: PendingSender) -> ResponseFuture {
        Box::pin(async { auth::Response::Accept(auth::ClientParams::default()) })
    }
}

/// Responds to any kind of request.
pub fn answer(
    authorizer: &dyn Authorizer,
    request: auth::Request,
    pending: PendingSender,
) -> ResponseFuture {
    match request {
        auth::Request::VerifyKey(identity) => authorizer.verify_key(identity),
        auth::Request::Authorize(identity) => authorizer.authorize(identity, pending),
        auth::Request::Connect(connecting) => authorizer.connect(connecting),
        auth::Request::Learn(station) => authorizer.learn(station),
        auth::Request::VerifyServer(identity) => authorizer.verify_server(identity),
        auth::Request::Credentials(request) => authorizer.credentials(request),
    }
}
