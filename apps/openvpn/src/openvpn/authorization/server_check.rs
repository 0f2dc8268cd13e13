//! A client's check of its server.

use std::sync::Arc;

use adit_engine::Identity;
use adit_engine::auth::CredentialsRequest;
use adit_runtime::authorize::{Authorizer, PendingSender, ResponseFuture};

use super::Chain;

/// A client's authorizer that checks the server's certificates with a chain, before another one is asked for the
/// password.
pub(crate) struct ServerCheck {
    /// The checks of the server.
    pub(crate) chain: Chain,
    /// The source of passwords.
    pub(crate) login: Arc<dyn Authorizer>,
}

impl Authorizer for ServerCheck {
    fn authorize(&self, identity: Box<Identity>, pending: PendingSender) -> ResponseFuture {
        self.login.authorize(identity, pending)
    }

    fn verify_server(&self, identity: Box<Identity>) -> ResponseFuture {
        self.chain.verify_server(identity)
    }

    fn credentials(&self, request: CredentialsRequest) -> ResponseFuture {
        self.login.credentials(request)
    }
}
