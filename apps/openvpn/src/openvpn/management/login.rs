//! A client's password, when it is needed again (`management-query-passwords`).

use std::future::ready;
use std::sync::atomic::Ordering;

use adit_engine::Identity;
use adit_engine::auth::{ChallengeKind, CredentialsRequest, Response};
use adit_runtime::authorize::{Authorizer, PendingSender, ResponseFuture};

use super::Handle;
use super::question::{Answer, Question};

/// Asks the management client for a client's user name and password.
pub(crate) struct ManagementLogin(pub(super) Handle);

impl Authorizer for ManagementLogin {
    fn authorize(&self, _: Box<Identity>, _: PendingSender) -> ResponseFuture {
        Box::pin(ready(Response::Reject("this end is a client and authorizes no other".into())))
    }

    fn credentials(&self, request: CredentialsRequest) -> ResponseFuture {
        let handle = self.0.clone();
        // A management client answers a dynamic challenge by itself, because the refusal contained it.
        let challenge = request.challenge.as_ref().and_then(|challenge| {
            let fixed = matches!(challenge.kind, ChallengeKind::Static { .. });
            fixed.then(|| (challenge.echo, challenge.text.clone()))
        });
        Box::pin(async move {
            // As in openvpn, a restart holds before it asks for a password.
            if !request.renegotiation && handle.holds() {
                handle.answer(Question::Hold(0)).await;
                handle.0.held.store(true, Ordering::Relaxed);
            }
            let (kind, password_only) = ("Auth".to_owned(), false);
            match handle.answer(Question::Login { kind, password_only, challenge }).await {
                Some(Answer::Login { username, password }) => {
                    Response::Credentials { username, password }
                }
                _ => Response::Reject("the management client gave no password".into()),
            }
        })
    }
}
