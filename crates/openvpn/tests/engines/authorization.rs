//! The server's requests about clients: what a client gets before, between and after the responses, also in
//! renegotiations, and what clients without certificates and with tokens may do.

use std::time::Duration;

use adit_engine::auth::{Rejection, Response, TokenState};
use adit_engine::{Identity, UnixTime, auth};
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientAuth, ClientConfig, ClientEvent, Credentials};
use adit_openvpn::data_format::{Input, Notice, Outbox};
use adit_openvpn::keys::{Metadata, ServerKey, StaticKey, TokenKey};
use adit_openvpn::negotiate::{ControlMessage, FilterAction, PullFilter};
use adit_openvpn::server::auth_token::{SESSION_ID_LEN, Token, TokenPolicy};
use adit_openvpn::server::{ClientChecks, ExportedKey, ServerConfig, ServerEvent};
use adit_openvpn::session::{Renegotiation, Settings};
use adit_openvpn::tls::ClientCertificates;
use adit_openvpn::wrap::WrapConfig;
use adit_sim::Impairment;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::{
    World, client_config, client_tls_named, foreign_client_tls, nameless_client_tls, server_config,
    server_config_with, server_tls_with,
};

const SECOND: Duration = Duration::from_secs(1);

fn with(checks: ClientChecks) -> ServerConfig {
    ServerConfig { authorize: true, checks, ..server_config(Settings::default()) }
}

fn connect_too() -> ClientChecks {
    ClientChecks { connect: true, ..ClientChecks::default() }
}

/// A server with a single address for clients.
fn one_address() -> ServerConfig {
    let mut config = with(connect_too());
    let only = [10, 9, 0, 2].into();
    config.network4.as_mut().expect("a network").pool = Some((only, only));
    config
}

fn reauthorize() -> ClientChecks {
    ClientChecks { reauthorize: true, ..ClientChecks::default() }
}

fn join(w: &mut World, config: ClientConfig) -> usize {
    let c = w.connect(config, Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    c
}

fn named(name: &str) -> ClientConfig {
    ClientConfig { tls: client_tls_named(name), ..client_config(Settings::default()) }
}

/// A client that sends this user name and password.
fn login(username: &str, password: &str) -> ClientConfig {
    let credentials =
        Credentials { username: username.into(), password: password.to_owned().into() };
    ClientConfig { credentials: Some(credentials), ..client_config(Settings::default()) }
}

fn told(w: &World, words: &str) -> usize {
    let says = |e: &&ServerEvent| matches!(e, ServerEvent::Told { message, .. } if message.contains(words));
    w.events.iter().filter(says).count()
}

fn rekeyed(w: &World) -> usize {
    w.events.iter().filter(|e| matches!(e, ServerEvent::Rekeyed(..))).count()
}

fn restarts(w: &World, c: usize, words: &str) -> bool {
    w.clients[c]
        .events
        .iter()
        .any(|e| matches!(e, ClientEvent::Restarting(why) if why.to_string().contains(words)))
}

fn stopped(w: &World, c: usize) -> Option<&Reason> {
    w.clients[c].events.iter().find_map(|event| match event {
        ClientEvent::Stopped(why) => Some(why),
        _ => None,
    })
}

fn refused(w: &World, words: &str) -> bool {
    w.events.iter().any(|event| match event {
        ServerEvent::Refused(_, _, why) | ServerEvent::HandshakeFailed(_, why) => {
            why.to_string().contains(words)
        }
        _ => false,
    })
}

fn accept() -> Response {
    Response::Accept(auth::ClientParams::default())
}

fn answer(w: &mut World, response: Response) {
    let ticket = w.asked.pop().expect("a request waits");
    w.to_server(Input::AuthResponse(ticket, response));
}

/// Makes the server renegotiate with its only client.
fn renegotiate(w: &mut World) {
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let newest = rekeyed(w) as u8 % 8;
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, newest)));
}

fn say(w: &mut World, c: usize, message: &ControlMessage) -> bool {
    let mut out = Outbox::new();
    let said = w.clients[c].engine.say(w.now, message, &mut out);
    w.perform_client(c, out);
    said
}

/// Neither of the two responses alone gives a client anything (CVE-2020-15078).
#[test]
fn nothing_is_sent_before_both_responses() {
    let mut w = World::new(with(connect_too()), 1);
    (w.slow_registry, w.slow_connect) = (true, true);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    let nothing = |w: &World| {
        told(w, "PUSH_REPLY") == 0 && w.plane.peers.is_empty() && w.server.clients().count() == 0
    };
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    w.run(20 * SECOND, |_| false);
    assert!(nothing(&w) && w.connecting.is_empty(), "{:?}", w.events);
    answer(&mut w, accept());
    assert!(w.run(10 * SECOND, |w| !w.connecting.is_empty()));
    w.run(20 * SECOND, |_| false);
    assert!(nothing(&w) && !w.is_up(c), "{:?}", w.events);
    answer(&mut w, accept());
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
}

/// `keying-material-exporter`: each session has a secret of its own, and without the directive there is none.
#[test]
fn a_secret_of_the_session_is_exported_on_request() {
    let exported = |checks: ClientChecks| -> Vec<_> {
        let mut w = World::new(with(checks), 1);
        for name in ["alice", "bob"] {
            join(&mut w, named(name));
        }
        w.connecting.iter().map(|asked| asked.identity.exported_key.clone()).collect()
    };
    assert_eq!(exported(connect_too()), [None, None]);
    let wanted = ExportedKey { label: "EXPORTER-test".into(), length: 40 };
    let keys = exported(ClientChecks { exported_key: Some(wanted), ..connect_too() });
    let [Some(one), Some(other)] = keys.as_slice() else { panic!("there are no secrets") };
    assert_eq!((one.len(), other.len()), (40, 40));
    assert_ne!(one, other);
}

#[test]
fn the_second_request_names_the_addresses_and_may_change_them() {
    let mut w = World::new(one_address(), 1);
    let mut grant =
        auth::ClientParams { push: vec!["route 10.78.0.0".into()], ..Default::default() };
    grant.ifconfig4 = Some(([10, 9, 0, 77].into(), [255, 255, 255, 0].into()));
    w.connect_reply = Some(Response::Accept(grant));
    join(&mut w, named("alice"));
    let asked = &w.connecting[0];
    assert_eq!(asked.ipv4, Some([10, 9, 0, 2].into()));
    assert_eq!(asked.netmask_or_far_end, Some([255, 255, 255, 0].into()));
    assert_eq!(asked.ipv6.map(|net| net.to_string()).as_deref(), Some("fd00::1000/64"));
    assert_eq!(asked.identity.common_name, "alice");
    assert_eq!(told(&w, "ifconfig 10.9.0.77 255.255.255.0"), 1, "{:?}", w.events);
    assert_eq!(told(&w, "route 10.78.0.0"), 1);
    // The address that was reserved first is free again.
    w.connect_reply = None;
    join(&mut w, named("bob"));
    assert_eq!(w.connecting[1].ipv4, Some([10, 9, 0, 2].into()));
}

/// Whether there is a second request or not, a client that is disabled gets no session, and its address is free again.
#[test]
fn a_disabled_client_is_refused_even_if_the_second_answer_accepts_it() {
    for checks in [ClientChecks::default(), connect_too()] {
        let asks = usize::from(checks.connect);
        let mut w = World::new(ServerConfig { checks, ..one_address() }, 1);
        let disabled = auth::ClientParams { disabled: true, ..Default::default() };
        w.reply = Response::Accept(disabled);
        let c = w.connect(named("alice"), Impairment::default(), 1);
        assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
        assert_eq!((w.connecting.len(), told(&w, "PUSH_REPLY")), (asks, 0));
        w.reply = Response::Accept(auth::ClientParams::default());
        join(&mut w, named("bob"));
    }
}

/// The end of a session, and of an attempt that was in a request, is reported once, before the next request of the
/// same name.
#[test]
fn each_end_after_a_request_is_reported_once() {
    let ended = |w: &World| -> Vec<u64> {
        let numbers = w.events.iter().filter_map(|event| match event {
            ServerEvent::Ending(session) => Some(*session),
            _ => None,
        });
        numbers.collect()
    };
    let mut w = World::new(with(connect_too()), 1);
    join(&mut w, named("alice"));
    join(&mut w, named("alice"));
    let session = |w: &World, at: usize| w.connecting[at].identity.session;
    assert_eq!(ended(&w), [session(&w, 0)], "the first was replaced");
    w.connect_reply = Some(Response::Reject("no".into()));
    let c = w.connect(named("bob"), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    w.run(20 * SECOND, |_| false);
    assert_eq!(ended(&w), [session(&w, 0), session(&w, 2)]);
    // Without the second request there is nothing to report.
    let mut w = World::new(with(ClientChecks::default()), 1);
    join(&mut w, named("alice"));
    join(&mut w, named("alice"));
    w.run(20 * SECOND, |_| false);
    assert_eq!(ended(&w), Vec::<u64>::new());
}

#[test]
fn a_client_that_may_not_connect_gives_its_addresses_back() {
    let mut w = World::new(one_address(), 1);
    w.connect_reply = Some(Response::Reject("no".into()));
    let c = w.connect(named("alice"), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    assert_eq!(told(&w, "PUSH_REPLY"), 0);
    // A handshake that ends while its request waits gives them back, too.
    w.connect_reply = None;
    w.slow_connect = true;
    let carol = w.connect(named("carol"), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.connecting.len() == 2));
    let mut out = Outbox::new();
    w.clients[carol].engine.shutdown(w.now, &mut out);
    w.perform_client(carol, out);
    w.run(70 * SECOND, |_| false);
    w.slow_connect = false;
    join(&mut w, named("bob"));
    let ipv4: Vec<_> = w.connecting.iter().map(|asked| asked.ipv4).collect();
    assert!(ipv4.iter().all(|ip| *ip == Some([10, 9, 0, 2].into())), "{ipv4:?}");
}

/// The limit holds although more clients than it allows wait for their second response.
#[test]
fn clients_that_wait_do_not_exceed_the_limit_together() {
    let mut w = World::new(ServerConfig { max_clients: 1, ..with(connect_too()) }, 1);
    w.slow_connect = true;
    let names = ["alice", "bob"];
    let c = names.map(|name| w.connect(named(name), Impairment::default(), 1));
    assert!(w.run(10 * SECOND, |w| w.asked.len() == 2));
    answer(&mut w, accept());
    answer(&mut w, accept());
    w.run(5 * SECOND, |_| false);
    assert_eq!(c.iter().filter(|c| w.is_up(**c)).count(), 1);
    assert!(refused(&w, "server is full"), "{:?}", w.events);
}

#[test]
fn a_request_describes_the_client() {
    let server = ServerKey::new(&[7; ServerKey::LEN]);
    let metadata = Metadata::User(b"tag".to_vec());
    let key = server.client_key(StaticKey::new([9; StaticKey::LEN]), Some(&metadata));
    let settings = Settings {
        wrap: WrapConfig::tls_crypt_v2_server(server),
        describe_certificates: true,
        ..Settings::default()
    };
    let config = ServerConfig { authorize: true, checks: reauthorize(), ..server_config(settings) };
    let mut w = World::new(config, 1);
    let wrap = WrapConfig::TlsCryptV2Client { key: key.expect("a key") };
    let settings = Settings { wrap, ..Settings::default() };
    join(&mut w, ClientConfig { settings: settings.clone(), ..login("alice", "secret") });
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| rekeyed(w) == 1));
    let [first, again] = &w.identities[..] else { panic!("{:?}", w.identities) };
    assert_eq!((first.username.as_deref(), w.password.as_deref()), (Some("alice"), Some("secret")));
    let [own, issuer] = &first.certificates[..] else { panic!("{:?}", first.certificates) };
    assert_eq!(own.attributes, [("CN".to_owned(), "client".to_owned())]);
    assert_eq!((own.subject.as_str(), issuer.subject.as_str()), ("CN=client", "CN=test CA"));
    assert_eq!(own.sha256.replace(':', ""), first.fingerprint);
    assert_eq!(own.serial_hex.replace(':', ""), first.serial);
    assert!(own.sha1.len() == 59 && !own.der.is_empty() && own.der != issuer.der);
    assert!(first.peer_info.iter().any(|(name, _)| name == "IV_VER"));
    assert_eq!(first.remote.map(|remote| remote.port()), Some(40_000));
    assert_eq!(
        first.tls_crypt_v2_metadata.as_ref().map(|m| (m.kind, m.content.as_slice())),
        Some((0, &b"tag"[..]))
    );
    assert!(!first.renegotiation && again.renegotiation);
    assert_eq!((first.session, first.key_id, again.key_id), (again.session, 0, 1));
    let session = first.session;
    join(&mut w, ClientConfig { settings, ..login("bob", "x") });
    assert_ne!(w.identities[2].session, session);
}

/// What takes time in every handshake is done only where something asks for it.
#[test]
fn certificates_are_described_only_if_something_reads_them() {
    for describe_certificates in [false, true] {
        let settings = Settings { describe_certificates, ..Settings::default() };
        let checks = ClientChecks { reauthorize: true, ..connect_too() };
        let config = ServerConfig { authorize: true, checks, ..server_config(settings.clone()) };
        let mut w = World::new(config, 1);
        let c = join(&mut w, client_config(settings));
        renegotiate(&mut w);
        assert!(w.run(10 * SECOND, |w| rekeyed(w) == 1));
        let known = |identity: &Identity| {
            assert!(!identity.fingerprint.is_empty() && identity.common_name == "client");
            identity.certificates.len()
        };
        let wanted = if describe_certificates { 2 } else { 0 };
        assert_eq!(w.identities.iter().map(known).collect::<Vec<_>>(), [wanted; 2]);
        assert_eq!(known(&w.connecting[0].identity), wanted);
        let of_server = w.clients[c].events.iter().find_map(|event| match event {
            ClientEvent::Authenticated { certificates, .. } => Some(certificates.len()),
            _ => None,
        });
        assert_eq!(of_server, Some(wanted));
    }
}

/// While the request about a renegotiation waits, packets pass under the former key, and the next key is unknown to the
/// data plane.
#[test]
fn a_slow_check_in_a_renegotiation_interrupts_nothing() {
    let mut w = World::new(with(reauthorize()), 1);
    let c = join(&mut w, login("alice", "secret"));
    w.clients[c].traffic = true;
    w.slow_registry = true;
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    w.run(30 * SECOND, |_| false);
    assert_eq!((rekeyed(&w), w.rekeys(c)), (0, 1), "only the client has the next key");
    assert_eq!(w.plane.failed + w.clients[c].plane.failed, 0);
    // Another renegotiation has to wait for the response.
    renegotiate(&mut w);
    w.run(5 * SECOND, |_| false);
    assert_eq!((w.asked.len(), w.identities.len()), (1, 2));
    answer(&mut w, accept());
    assert!(w.run(10 * SECOND, |w| rekeyed(w) == 1));
    w.run(60 * SECOND, |_| false);
    assert_eq!(w.plane.failed + w.clients[c].plane.failed, 0);
    assert_eq!((w.ups(c), w.downs().len()), (1, 0));
}

#[test]
fn a_rejection_in_a_renegotiation_ends_the_session_and_no_later_response_helps() {
    let mut w = World::new(with(reauthorize()), 1);
    let c = join(&mut w, login("alice", "secret"));
    w.slow_registry = true;
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    let ticket = w.asked[0];
    w.to_server(Input::AuthResponse(ticket, Response::Reject("disabled".into())));
    w.to_server(Input::AuthResponse(ticket, accept()));
    w.run(5 * SECOND, |_| false);
    assert_eq!(w.downs(), ["disabled"]);
    assert!(w.plane.peers.is_empty() && rekeyed(&w) == 0);
    assert_eq!(told(&w, "AUTH_FAILED"), 1);
    assert_eq!(stopped(&w, c), Some(&Reason::AuthFailed(String::new())));
}

#[test]
fn a_renegotiation_without_a_response_ends_the_session() {
    let mut w = World::new(with(reauthorize()), 1);
    let c = join(&mut w, login("alice", "secret"));
    w.slow_registry = true;
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    assert!(!w.run(55 * SECOND, |w| !w.downs().is_empty()));
    assert!(w.run(10 * SECOND, |w| !w.downs().is_empty()));
    assert!(w.downs()[0].contains("authorization took longer"), "{:?}", w.downs());
    assert!(restarts(&w, c, "restart"), "it may come back: {:?}", w.clients[c].events);
}

#[test]
fn a_pending_decision_extends_the_time_and_is_told() {
    let mut w = World::new(with(ClientChecks::default()), 1);
    w.slow_registry = true;
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    let ticket = w.asked[0];
    let info = Some("WEB_AUTH::https://sso.example/x\ny".to_owned());
    w.to_server(Input::AuthResponse(ticket, Response::Pending { timeout: 300 * SECOND, info }));
    w.run(5 * SECOND, |_| false);
    let events = &w.clients[c].events;
    let pending =
        |e: &ClientEvent| matches!(e, ClientEvent::AuthPending(at) if *at == 300 * SECOND);
    assert!(events.iter().any(pending), "{events:?}");
    let text = "WEB_AUTH::https://sso.example/x_y";
    assert!(events.iter().any(|e| matches!(e, ClientEvent::ServerInfo(info) if info == text)));
    w.run(200 * SECOND, |_| false);
    assert!(w.plane.peers.is_empty() && told(&w, "PUSH_REPLY") == 0, "it is not accepted yet");
    answer(&mut w, accept());
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    assert_eq!(w.clients[c].dialled.len(), 1, "one attempt");
}

/// The extension is at most the hand-window or half of the time between renegotiations.
#[test]
fn a_pending_decision_is_not_waited_for_without_end() {
    for (after, longest) in [(3600, 1800), (100, 60)] {
        let renegotiation = Renegotiation { after: after * SECOND, ..Renegotiation::default() };
        let settings = Settings { renegotiation, ..Settings::default() };
        let mut w = World::new(ServerConfig { authorize: true, ..server_config(settings) }, 1);
        w.slow_registry = true;
        let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
        assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
        let ticket = w.asked[0];
        w.to_server(Input::AuthResponse(
            ticket,
            Response::Pending { timeout: 100_000 * SECOND, info: None },
        ));
        let began = w.now;
        // The client goes away without a word.
        let mut out = Outbox::new();
        w.clients[c].engine.shutdown(w.now, &mut out);
        w.perform_client(c, out);
        assert!(w.run(4000 * SECOND, |w| refused(w, "authorization took longer")));
        assert_eq!(w.now.since(began), longest * SECOND);
        w.to_server(Input::AuthResponse(ticket, accept()));
        assert!(w.plane.peers.is_empty());
    }
}

fn responses(w: &World) -> Vec<&str> {
    let texts = w.events.iter().filter_map(|event| match event {
        ServerEvent::ChallengeResponse { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn responses_to_challenges_arrive_before_and_during_a_session_but_not_in_a_flood() {
    let mut w = World::new(with(ClientChecks::default()), 1);
    w.slow_registry = true;
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(!say(&mut w, c, &ControlMessage::ChallengeResponse("early".into())));
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    w.run(SECOND, |_| false);
    assert!(say(&mut w, c, &ControlMessage::ChallengeResponse("MTIz".into())));
    w.run(SECOND, |_| false);
    assert_eq!(responses(&w), ["MTIz"]);
    let session = w.identities[0].session;
    let of = |e: &ServerEvent| matches!(e, ServerEvent::ChallengeResponse { session: s, .. } if *s == session);
    assert!(w.events.iter().any(of));
    answer(&mut w, accept());
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    let before = w.server.counters().messages_excess;
    for _ in 0..16 {
        say(&mut w, c, &ControlMessage::ChallengeResponse("again".into()));
    }
    w.run(SECOND, |_| false);
    assert!((2..8).contains(&responses(&w).len()), "{:?}", responses(&w));
    assert!(w.server.counters().messages_excess > before);
}

#[test]
fn a_rejection_has_a_text_for_the_log_and_one_for_the_client() {
    let mut w = World::new(with(ClientChecks::default()), 1);
    w.reply = Response::Reject(Rejection::with_text("the database says no", "try\r\nlater"));
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    assert_eq!(stopped(&w, c), Some(&Reason::AuthFailed("try__later".into())));
    assert!(refused(&w, "the database says no"));
    // An answer to another question gives nothing.
    w.reply = Response::Credentials { username: "a".into(), password: Default::default() };
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    assert!(w.plane.peers.is_empty());
}

#[test]
fn a_server_of_user_names_refuses_clients_without_one() {
    let checks = ClientChecks { require_username: true, ..ClientChecks::default() };
    let mut w = World::new(with(checks), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    assert!(refused(&w, "no user name") && w.identities.is_empty(), "no question was asked");
    join(&mut w, login("alice", "secret"));
}

fn without_certificates(mode: ClientCertificates, by_user: bool) -> ServerConfig {
    let checks = ClientChecks { username_as_common_name: by_user, ..connect_too() };
    let tls = server_tls_with(mode);
    ServerConfig { authorize: true, checks, ..server_config_with(Settings::default(), tls) }
}

fn names(w: &World) -> Vec<&str> {
    let mut names: Vec<&str> =
        w.server.clients().map(|info| info.identity.common_name.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn without_certificates_the_user_name_is_the_name() {
    for mode in [ClientCertificates::None, ClientCertificates::Optional] {
        let mut w = World::new(without_certificates(mode, true), 1);
        let nameless = |config| ClientConfig { tls: nameless_client_tls(), ..config };
        join(&mut w, nameless(login("alice", "secret")));
        join(&mut w, nameless(login("bob", "secret")));
        assert_eq!(names(&w), ["alice", "bob"]);
        assert_eq!(
            (w.identities[0].common_name.as_str(), w.identities[0].certificates.len()),
            ("", 0)
        );
        assert_eq!(w.connecting[0].identity.common_name, "alice");
        let leased: Vec<&str> = w.server.leases().map(|(name, _)| name).collect();
        assert!(leased.contains(&"alice") && leased.contains(&"bob"), "{leased:?}");
        // Another session of the same user replaces the first one.
        join(&mut w, nameless(login("alice", "secret")));
        w.run(SECOND, |_| false);
        assert_eq!(names(&w), ["alice", "bob"]);
        let long = w.connect(nameless(login(&"x".repeat(129), "x")), Impairment::default(), 1);
        assert!(w.run(10 * SECOND, |w| stopped(w, long).is_some()));
        w.run(10 * SECOND, |_| false);
        // Programs that count failed logins need the event of a client without a certificate, too.
        let reported = |event: &ServerEvent| matches!(event, ServerEvent::Refused(_, _, why) if why.to_string().contains("too long to be a common name"));
        assert_eq!(w.events.iter().filter(|event| reported(event)).count(), 1);
    }
}

#[test]
fn clients_without_any_name_do_not_replace_each_other() {
    let mut w = World::new(without_certificates(ClientCertificates::None, false), 1);
    for _ in 0..3 {
        let tls = nameless_client_tls();
        join(&mut w, ClientConfig { tls, ..client_config(Settings::default()) });
    }
    assert_eq!(names(&w), ["", "", ""]);
    assert_eq!(w.server.leases().count(), 0, "no name gets these addresses again");
}

/// An optional certificate that is not good is not the same as none.
#[test]
fn an_optional_certificate_is_verified() {
    let mut w = World::new(without_certificates(ClientCertificates::Optional, false), 1);
    join(&mut w, named("alice"));
    assert_eq!(w.identities[0].common_name, "alice");
    let tls = foreign_client_tls("alice");
    let c = w.connect(ClientConfig { tls, ..login("alice", "secret") }, Impairment::default(), 1);
    w.run(20 * SECOND, |_| false);
    assert!(!w.is_up(c) && w.identities.len() == 1);
    // A client that had one when it was authorized needs it in renegotiations, too.
    w.clients[0].engine.set_tls(nameless_client_tls());
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| !w.downs().is_empty()));
    assert!(w.downs()[0].contains("another identity"), "{:?}", w.downs());
}

#[test]
fn a_client_without_a_certificate_is_refused_where_one_is_required() {
    let mut w = World::new(without_certificates(ClientCertificates::Require, true), 1);
    let config = ClientConfig { tls: nameless_client_tls(), ..login("alice", "secret") };
    let c = w.connect(config, Impairment::default(), 1);
    w.run(20 * SECOND, |_| false);
    assert!(!w.is_up(c) && w.identities.is_empty());
}

/// The authorization has found the user. The client may send that name in renegotiations, or none as before, but no other.
#[test]
fn a_user_found_by_the_authorization_is_the_sessions_user() {
    let token = |name: &str| {
        let name = STANDARD.encode(name);
        vec![format!("auth-token-user {name}"), "auth-token SESS_ID_x".to_owned()]
    };
    let users = |w: &World| -> Vec<Option<String>> {
        let up = w.events.iter().filter_map(|event| match event {
            ServerEvent::ClientUp(info) => Some(info.username.clone()),
            _ => None,
        });
        up.collect()
    };
    for (push, stays) in [(token("alice"), true), (Vec::new(), true), (token("bob"), false)] {
        let mut w = World::new(with(ClientChecks::default()), 1);
        let username = Some("alice".to_owned());
        w.reply = Response::Accept(auth::ClientParams {
            push,
            session: Some(Box::new(auth::SessionParams { username, ..Default::default() })),
            ..auth::ClientParams::default()
        });
        join(&mut w, client_config(Settings::default()));
        assert_eq!(users(&w), [Some("alice".to_owned())]);
        let before = rekeyed(&w);
        renegotiate(&mut w);
        w.run(20 * SECOND, |_| false);
        assert_eq!(rekeyed(&w) > before, stays, "{:?}", w.events);
        let other = w.downs().iter().any(|why| why.contains("another identity"));
        assert_eq!(other, !stays, "{:?}", w.downs());
    }
}

#[test]
fn options_that_differ_matter_only_with_opt_verify() {
    let other = || {
        let settings = Settings { tun_mtu: 1400, ..Settings::default() };
        client_config(settings)
    };
    let mut w = World::new(with(ClientChecks::default()), 1);
    join(&mut w, other());
    let checks = ClientChecks { verify_options: true, ..ClientChecks::default() };
    let mut w = World::new(with(checks), 1);
    join(&mut w, client_config(Settings::default()));
    let c = w.connect(other(), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    assert!(refused(&w, "the client's tun-mtu differs"), "{:?}", w.events);
}

fn policy() -> TokenPolicy {
    TokenPolicy {
        key: TokenKey::new(&[5; TokenKey::LEN]),
        lifetime: None,
        renewal: 3600 * SECOND,
        external: false,
    }
}

fn issuing(policy: TokenPolicy) -> ServerConfig {
    with(ClientChecks { tokens: Some(policy), ..reauthorize() })
}

fn token(initial: u64, renewed: u64, username: &str) -> String {
    let (initial, renewed) = (UnixTime(initial), UnixTime(renewed));
    let token = Token { session: [3; SESSION_ID_LEN], initial, renewed };
    token.encode(&policy().key, username).expect("a token").to_string()
}

/// The wall clock of the simulated server when it starts.
const STARTED: u64 = 1_800_000_000;

#[test]
fn a_token_replaces_the_password_in_renegotiations_and_reconnects() {
    let mut w = World::new(issuing(policy()), 1);
    let c = join(&mut w, login("alice", "secret"));
    assert_eq!(w.password.as_deref(), Some("secret"));
    assert_eq!(w.identities[0].token.as_ref().map(|token| token.state), Some(TokenState::Initial));
    assert!(told(&w, "auth-token") > 0 && told(&w, "SESS_ID_AT_") == 0, "not in the log");
    // Front ends get it.
    let tokens = |w: &World| -> Vec<String> {
        let events = w.clients[c].events.iter();
        let token = |event: &ClientEvent| match event {
            ClientEvent::Token(login) => Some(login.password.to_string()),
            _ => None,
        };
        events.filter_map(token).collect()
    };
    assert!(tokens(&w).len() == 1 && tokens(&w)[0].starts_with("SESS_ID_AT_"));
    assert!(!format!("{:?}", w.clients[c].events).contains("SESS_ID_AT_"), "not in the log");
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| rekeyed(w) == 1));
    assert!(w.run(10 * SECOND, |w| tokens(w).len() == 2), "a renewed one");
    let again = &w.identities[1];
    assert!(again.has_valid_token() && again.password.is_none(), "{again:?}");
    assert_eq!(told(&w, "PUSH_REPLY,auth-token"), 1, "a renewed one");
    // After a restart of the session, the token of the same session continues.
    let mut out = Outbox::new();
    w.clients[c].engine.restart(w.now, &mut out);
    w.perform_client(c, out);
    assert!(w.run(20 * SECOND, |w| w.ups(c) == 2), "{:?}", w.clients[c].events);
    let last = w.identities.last().expect("a request");
    assert!(last.has_valid_token() && !last.renegotiation);
    let id = |n: usize| w.identities[n].token.as_ref().map(|token| token.session_id.clone());
    assert_eq!(id(1), id(2));
}

/// Each token is wrong in one respect. No other check is asked about its owner.
#[test]
fn tokens_of_others_and_old_ones_are_refused() {
    let forged = |username: &str| {
        let key = TokenKey::new(&[6; TokenKey::LEN]);
        let (initial, renewed) = (UnixTime(STARTED), UnixTime(STARTED));
        let token = Token { session: [3; SESSION_ID_LEN], initial, renewed };
        token.encode(&key, username).expect("a token").to_string()
    };
    for (username, password, why) in [
        ("bob", token(STARTED, STARTED, "alice"), "not valid for this user"),
        ("alice", token(STARTED, STARTED, ""), "not valid for this user"),
        ("alice", forged("alice"), "not valid for this user"),
        ("alice", "SESS_ID_AT_".to_owned(), "not valid for this user"),
        ("alice", token(STARTED - 7200, STARTED - 7200, "alice"), "expired"),
        ("alice", token(STARTED + 600, STARTED + 600, "alice"), "expired"),
    ] {
        let mut w = World::new(issuing(policy()), 1);
        let c = w.connect(login(username, &password), Impairment::default(), 1);
        assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()), "{password}");
        assert!(refused(&w, why) && w.identities.is_empty(), "{password}: {:?}", w.events);
        assert!(w.plane.peers.is_empty());
    }
    let mut w = World::new(issuing(policy()), 1);
    join(&mut w, login("alice", &token(STARTED, STARTED, "alice")));
}

#[test]
fn with_external_auth_the_other_checks_decide_about_tokens() {
    let external = TokenPolicy { external: true, ..policy() };
    let mut w = World::new(issuing(external), 1);
    let old = token(STARTED - 7200, STARTED - 7200, "alice");
    w.reply = Response::Reject("expired".into());
    let c = w.connect(login("alice", &old), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    let state = |w: &World| w.identities.last()?.token.as_ref().map(|token| token.state);
    assert_eq!(state(&w), Some(TokenState::Expired));
    w.reply = accept();
    let good = token(STARTED, STARTED, "alice");
    join(&mut w, login("alice", &good));
    assert_eq!(state(&w), Some(TokenState::Authenticated));
    assert_eq!(w.password.as_deref(), Some(good.as_str()), "the checks see it");
    assert!(!w.identities.last().expect("a request").has_valid_token());
}

#[test]
fn a_token_that_is_not_renewed_gives_way_to_the_password() {
    let short = TokenPolicy { renewal: 10 * SECOND, ..policy() };
    let mut w = World::new(issuing(short), 1);
    let c = join(&mut w, login("alice", "secret"));
    w.run(65 * SECOND, |_| false);
    assert_eq!(told(&w, "PUSH_REPLY,auth-token"), 6, "every 10 s");
    // For an hour the client cannot reach the server.
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let mut out = Outbox::new();
    w.server.kick(w.now, peer, adit_openvpn::server::Disconnect::Restart, "away", &mut out);
    w.perform_server(out);
    w.now = w.now + 3600 * SECOND;
    assert!(w.run(60 * SECOND, |w| w.ups(c) == 2), "{:?}", w.clients[c].events);
    assert!(restarts(&w, c, "AUTH_FAILED (auth-token): SESSION"), "{:?}", w.clients[c].events);
    assert_eq!(w.password.as_deref(), Some("secret"));
}

/// A stolen token cannot continue another session of the same user.
#[test]
fn a_token_of_another_session_is_refused_in_a_renegotiation() {
    let mut w = World::new(issuing(policy()), 1);
    let mut config = login("alice", "secret");
    config.auth = ClientAuth { ask: true, forget: true, ..ClientAuth::default() };
    config.pull_filters.filters.push(PullFilter::new(FilterAction::Ignore, "auth-token"));
    let c = join(&mut w, config);
    renegotiate(&mut w);
    assert!(w.run(10 * SECOND, |w| !w.clients[c].requests.is_empty()));
    let (request, _) = w.clients[c].requests.pop().expect("it asks for the password");
    let password = token(STARTED, STARTED, "alice").into();
    let stolen = Response::Credentials { username: "alice".into(), password };
    w.to_client(c, Input::AuthResponse(request, stolen));
    assert!(w.run(10 * SECOND, |w| !w.downs().is_empty()), "{:?}", w.events);
    assert!(w.downs()[0].contains("not valid for this user"), "{:?}", w.downs());
    assert_eq!((rekeyed(&w), w.identities.len()), (0, 1), "no further question was asked");
}
