//! A client's user name and password: from its file or the terminal, with the answers to challenges.

use adit_engine::Identity;
use adit_engine::auth::{ChallengeKind, CredentialsRequest, Response};
use adit_openvpn::client::challenge::respond;
use adit_openvpn::client::{ClientAuth, Credentials};
use adit_openvpn::config::{ClientOptions, UserPass};

use super::key_files::{self, Ask, Terminal};
use adit_runtime::authorize::{Authorizer, PendingSender, ResponseFuture};
use adit_runtime::fault::Fault;

/// Answers a client's questions for its password, as `auth-user-pass` says.
#[derive(Clone, Debug)]
pub(crate) struct LoginSource {
    from: Option<UserPass>,
}

impl LoginSource {
    pub(crate) fn new(client: &ClientOptions) -> Self {
        Self { from: client.auth_user_pass.clone() }
    }

    /// Answers a question, which may take as long as a person does.
    fn answer(&self, request: &CredentialsRequest) -> Result<Credentials, Fault> {
        let Some(from) = &self.from else {
            return Err(Fault::operator("add auth-user-pass, or a certificate and its key"));
        };
        let Some(challenge) = &request.challenge else { return key_files::credentials(from) };
        match &challenge.kind {
            ChallengeKind::Static { .. } => Terminal.login_with_challenge(from, challenge),
            ChallengeKind::Dynamic { username, wants_response, .. } => {
                let response = if *wants_response {
                    key_files::ask_challenge(challenge)?
                } else {
                    Default::default()
                };
                let username = username.clone();
                Ok(Credentials { username, password: respond(challenge, "", &response) })
            }
        }
    }
}

impl Authorizer for LoginSource {
    fn authorize(&self, _identity: Box<Identity>, _pending: PendingSender) -> ResponseFuture {
        Box::pin(std::future::ready(Response::Reject(
            "this end is a client and authorizes no other".into(),
        )))
    }

    fn credentials(&self, request: CredentialsRequest) -> ResponseFuture {
        let this = self.clone();
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || this.answer(&request)).await {
                Ok(Ok(Credentials { username, password })) => {
                    Response::Credentials { username, password }
                }
                Ok(Err(fault)) => Response::Reject(fault.to_string().into()),
                Err(error) => Response::Reject(format!("the prompt failed: {error}").into()),
            }
        })
    }
}

/// Reads or asks for the user name and password before the process leaves its terminal.
pub(crate) fn first_login(
    client: &ClientOptions,
    ask: &mut dyn Ask,
) -> Result<Option<Credentials>, Fault> {
    let Some(from) = &client.auth_user_pass else { return Ok(None) };
    let login = match &client.static_challenge {
        Some(challenge) => ask.login_with_challenge(from, challenge),
        None => key_files::credentials_asking(from, ask),
    };
    login.map(Some)
}

/// Returns how the client authenticates.
pub(super) fn client_auth(client: &ClientOptions) -> ClientAuth {
    ClientAuth {
        ask: client.auth_user_pass.is_some(),
        verify_server: false,
        retry: client.auth_retry,
        // The terminal may be gone when the password is needed again.
        forget: client.auth_nocache && matches!(client.auth_user_pass, Some(UserPass::Source(_))),
        static_challenge: client.static_challenge.clone(),
    }
}

#[cfg(test)]
mod tests {
    use adit_engine::auth::Challenge;
    use adit_openvpn::config::Source;
    use zeroize::Zeroizing;

    use super::*;

    fn source(text: &str) -> LoginSource {
        let text = Zeroizing::new(text.to_owned());
        let source = Source::Inline { directive: "auth-user-pass", text };
        LoginSource { from: Some(UserPass::Source(source)) }
    }

    #[tokio::test]
    async fn a_file_is_read_for_each_question() {
        let source = source("alice\nsecret\n");
        for _ in 0..2 {
            match source.credentials(CredentialsRequest::default()).await {
                Response::Credentials { username, password } => {
                    assert_eq!((username.as_str(), password.as_str()), ("alice", "secret"));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_challenge_without_a_response_needs_no_terminal() {
        let kind = ChallengeKind::Dynamic {
            state: "id".into(),
            username: "bob".into(),
            wants_response: false,
        };
        let challenge = Some(Challenge { text: "wait".into(), echo: false, kind });
        let request = CredentialsRequest { challenge, ..CredentialsRequest::default() };
        match source("alice\nsecret\n").credentials(request).await {
            Response::Credentials { username, password } => {
                assert_eq!((username.as_str(), password.as_str()), ("bob", "CRV1::id::"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn without_a_source_the_remedy_is_named() {
        match (LoginSource { from: None }).credentials(CredentialsRequest::default()).await {
            Response::Reject(reason) => assert!(reason.log.contains("auth-user-pass")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_password_that_can_be_read_again_is_forgotten() {
        let client = |from| ClientOptions {
            auth_nocache: true,
            auth_user_pass: from,
            ..ClientOptions::default()
        };
        assert!(client_auth(&client(source("a\nb\n").from)).forget);
        assert!(!client_auth(&client(Some(UserPass::Prompt))).forget);
    }
}
