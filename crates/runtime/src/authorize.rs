//! Responses to an engine's authorization requests.

use std::future::Future;
use std::pin::Pin;

use adit_engine::{Identity, auth};

/// A response that may take some time.
pub type ResponseFuture = Pin<Box<dyn Future<Output = auth::Response> + Send>>;

/// Authorizes peers that have been authenticated.
///
/// It may be slow (a script, a database), because the driver serves all other peers meanwhile. Blocking work belongs in
/// `tokio::task::spawn_blocking`.
pub trait Authorizer: Send + Sync {
    /// Decides on one peer.
    fn authorize(&self, identity: Identity) -> ResponseFuture;
}

/// Accepts every peer whose certificate was verified: the policy of a server without further checks.
#[derive(Copy, Clone, Debug, Default)]
pub struct CertificateOnly;

impl Authorizer for CertificateOnly {
    fn authorize(&self, _identity: Identity) -> ResponseFuture {
        Box::pin(async { auth::Response::Accept(auth::ClientParams::default()) })
    }
}

/// Responds to any kind of request.
pub fn answer(authorizer: &dyn Authorizer, request: auth::Request) -> ResponseFuture {
    match request {
        auth::Request::Authorize(identity) => authorizer.authorize(identity),
    }
}
