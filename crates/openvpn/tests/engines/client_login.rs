//! A client's questions: whether its server is the right one, and its user name and password, with challenges and
//! tokens.

use std::time::Duration;

use adit_engine::auth;
use adit_engine::auth::{
    Challenge, ChallengeKind, CredentialsRequest, Rejection, Request, Response,
};
use adit_openvpn::Reason;
use adit_openvpn::client::challenge::respond;
use adit_openvpn::client::{ClientAuth, ClientConfig, ClientEvent, Credentials};
use adit_openvpn::config::AuthRetry;
use adit_openvpn::data_format::{Input, Notice};
use adit_openvpn::server::ServerConfig;
use adit_openvpn::session::Settings;
use adit_sim::Impairment;

use crate::support::{World, client_config, server_config};

const SECOND: Duration = Duration::from_secs(1);

fn registry() -> ServerConfig {
    ServerConfig { authorize: true, ..server_config(Settings::default()) }
}

fn asking(auth: ClientAuth) -> ClientConfig {
    let auth = ClientAuth { ask: true, ..auth };
    ClientConfig { auth, ..client_config(Settings::default()) }
}

fn with_password(auth: ClientAuth) -> ClientConfig {
    let credentials =
        Credentials { username: "alice".into(), password: "secret".to_owned().into() };
    ClientConfig { credentials: Some(credentials), ..asking(auth) }
}

/// Takes the client's question for its password.
fn question(w: &mut World, c: usize) -> (auth::RequestId, CredentialsRequest) {
    assert!(w.run(30 * SECOND, |w| !w.clients[c].requests.is_empty()), "{:?}", w.clients[c].events);
    match w.clients[c].requests.remove(0) {
        (id, Request::Credentials(request)) => (id, request),
        (_, other) => panic!("{other:?}"),
    }
}

fn reply(w: &mut World, c: usize, id: auth::RequestId, username: &str, password: &str) {
    let password = password.to_owned().into();
    let response = Response::Credentials { username: username.into(), password };
    w.to_client(c, Input::AuthResponse(id, response));
}

fn stopped(w: &World, c: usize) -> Option<&Reason> {
    w.clients[c].events.iter().find_map(|event| match event {
        ClientEvent::Stopped(why) => Some(why),
        _ => None,
    })
}

fn renegotiate(w: &mut World) {
    let peer = *w.plane.peers.keys().next().expect("a peer");
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
}

/// A server with a valid certificate that the check does not know must not learn the password.
#[test]
fn the_server_is_verified_before_it_learns_the_password() {
    let auth = ClientAuth { verify_server: true, ..ClientAuth::default() };
    let mut w = World::new(registry(), 1);
    let c = w.connect(with_password(auth), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| !w.clients[c].requests.is_empty()));
    w.run(10 * SECOND, |_| false);
    assert!(w.identities.is_empty(), "no password was sent");
    let (id, request) = w.clients[c].requests.remove(0);
    let Request::VerifyServer(server) = request else { panic!("{request:?}") };
    assert_eq!((server.common_name.as_str(), server.certificates.len()), ("server", 2));
    w.to_client(c, Input::AuthResponse(id, Response::Reject("a stranger".into())));
    let refused = |e: &ClientEvent| matches!(e, ClientEvent::Restarting(Reason::ServerRejected(why)) if why == "a stranger");
    assert!(w.clients[c].events.iter().any(refused), "{:?}", w.clients[c].events);
    w.run(SECOND / 2, |_| false);
    assert!(w.identities.is_empty() && !w.is_up(c));
    // The next attempt asks again, and the answer to the first question is worth nothing.
    assert!(w.run(30 * SECOND, |w| !w.clients[c].requests.is_empty()));
    w.to_client(c, Input::AuthResponse(id, Response::Accept(Default::default())));
    w.run(SECOND, |_| false);
    assert!(w.identities.is_empty());
    let (id, _) = w.clients[c].requests.remove(0);
    w.to_client(c, Input::AuthResponse(id, Response::Accept(Default::default())));
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    assert_eq!(w.password.as_deref(), Some("secret"));
    // It is verified in each renegotiation.
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| !w.clients[c].requests.is_empty()));
    let (id, request) = w.clients[c].requests.remove(0);
    assert!(matches!(request, Request::VerifyServer(server) if server.renegotiation));
    w.to_client(c, Input::AuthResponse(id, Response::Accept(Default::default())));
    assert!(w.run(10 * SECOND, |w| w.rekeys(c) == 1));
}

#[test]
fn a_client_asks_for_its_password_before_it_dials() {
    let mut w = World::new(registry(), 1);
    let kind = ChallengeKind::Static { concatenate: false };
    let challenge = Challenge { text: "PIN".into(), echo: true, kind };
    let auth = ClientAuth { static_challenge: Some(challenge.clone()), ..ClientAuth::default() };
    let c = w.connect(asking(auth), Impairment::default(), 1);
    let (id, request) = question(&mut w, c);
    w.run(60 * SECOND, |_| false);
    assert!(w.clients[c].dialled.is_empty(), "a person may take long");
    assert_eq!(request.challenge, Some(challenge.clone()));
    reply(&mut w, c, id, "alice", &respond(&challenge, "secret", "123"));
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    assert_eq!(w.password.as_deref(), Some("SCRV1:c2VjcmV0:MTIz"));
}

#[test]
fn nobody_who_answers_ends_the_client() {
    let mut w = World::new(registry(), 1);
    let c = w.connect(asking(ClientAuth::default()), Impairment::default(), 1);
    let (id, _) = question(&mut w, c);
    w.to_client(c, Input::AuthResponse(id, Response::Reject("no terminal".into())));
    assert_eq!(stopped(&w, c), Some(&Reason::NoCredentials("no terminal".into())));
}

#[test]
fn a_password_that_is_not_kept_is_asked_for_again() {
    let auth = || ClientAuth { forget: true, ..ClientAuth::default() };
    let mut w = World::new(registry(), 1);
    let c = w.connect(with_password(auth()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    renegotiate(&mut w);
    let (id, request) = question(&mut w, c);
    assert!(request.renegotiation && w.rekeys(c) == 0);
    reply(&mut w, c, id, "alice", "secret");
    assert!(w.run(10 * SECOND, |w| w.rekeys(c) == 1));
    // A token makes the password unnecessary.
    let mut config = registry();
    config.push.push("auth-token abc".into());
    let mut w = World::new(config, 1);
    let c = w.connect(with_password(auth()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| w.rekeys(c) == 1));
    assert!(w.clients[c].requests.is_empty());
}

#[test]
fn a_dynamic_challenge_is_answered_by_the_next_attempt() {
    let auth = ClientAuth { retry: AuthRetry::Interact, ..ClientAuth::default() };
    let mut w = World::new(registry(), 1);
    let text = "CRV1:R,E:Om01u7Fh:YWxpY2U=:Enter the code";
    w.reply = Response::Reject(Rejection::with_text("second factor", text));
    let c = w.connect(with_password(auth), Impairment::default(), 1);
    let (id, request) = question(&mut w, c);
    assert_eq!(w.password.as_deref(), Some("secret"));
    assert_eq!(request.rejected.as_deref(), Some(text));
    let challenge = request.challenge.expect("a challenge");
    assert_eq!(challenge.text, "Enter the code");
    w.reply = Response::Accept(Default::default());
    reply(&mut w, c, id, "alice", &respond(&challenge, "", "8675309"));
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    assert_eq!(w.password.as_deref(), Some("CRV1::Om01u7Fh::8675309"));
}

#[test]
fn auth_retry_decides_what_follows_a_refusal() {
    let world = |retry| {
        let mut w = World::new(registry(), 1);
        w.reply = Response::Reject("no".into());
        let auth = ClientAuth { retry, ..ClientAuth::default() };
        let c = w.connect(with_password(auth), Impairment::default(), 1);
        w.run(20 * SECOND, |_| false);
        (w, c)
    };
    let (w, c) = world(AuthRetry::None);
    assert_eq!(stopped(&w, c), Some(&Reason::AuthFailed(String::new())));
    assert_eq!((w.identities.len(), w.clients[c].requests.len()), (1, 0));
    let (w, c) = world(AuthRetry::NoInteract);
    assert!(w.identities.len() > 2 && w.clients[c].requests.is_empty(), "the same password");
    let (mut w, c) = world(AuthRetry::Interact);
    assert_eq!(w.identities.len(), 1, "another password is needed");
    let (id, request) = question(&mut w, c);
    assert_eq!((request.rejected.as_deref(), request.challenge), (Some(""), None));
    w.reply = Response::Accept(Default::default());
    reply(&mut w, c, id, "alice", "better");
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    assert_eq!(w.password.as_deref(), Some("better"));
}

/// A client without anyone to ask does not wait forever.
#[test]
fn without_anyone_to_ask_a_refusal_ends_the_client() {
    let mut w = World::new(registry(), 1);
    w.reply = Response::Reject("no".into());
    let mut config = with_password(ClientAuth { retry: AuthRetry::Interact, ..Default::default() });
    config.auth.ask = false;
    let c = w.connect(config, Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
}
