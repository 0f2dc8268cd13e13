//! Client and server engines over streams, which keep the order, lose no bytes, and may break at
//! any moment.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Engine, Link, Transport, auth};
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientConfig, ClientEvent};
use adit_openvpn::data_format::{Input, Notice, Outbox, Output};
use adit_openvpn::keys::{ServerKey, StaticKey};
use adit_openvpn::packet::{Control, Opcode, SessionId};
use adit_openvpn::server::{Disconnect, ServerEvent};
use adit_openvpn::session::{Renegotiation, Settings};
use adit_openvpn::wrap::{WrapConfig, Wrapper};
use adit_sim::Impairment;

use crate::support::{
    self, World, client_config, client_tls_named, foreign_client_tls, server_config,
};

const SECOND: Duration = Duration::from_secs(1);

fn by_tcp(settings: Settings) -> ClientConfig {
    let mut config = client_config(settings);
    config.remotes[0].target.transport = Transport::Tcp;
    config
}

fn delay(ms: u64) -> Impairment {
    Impairment { delay: Duration::from_millis(ms), ..Impairment::default() }
}

fn with(wrap: &WrapConfig) -> Settings {
    Settings { wrap: wrap.clone(), ..Settings::default() }
}

fn crypt() -> WrapConfig {
    WrapConfig::TlsCrypt { key: StaticKey::new([3; StaticKey::LEN]) }
}

fn crypt_v2() -> (WrapConfig, WrapConfig) {
    let key = ServerKey::new(&[42; ServerKey::LEN]);
    let client = key.client_key(StaticKey::new([3; StaticKey::LEN]), None).expect("a key");
    (WrapConfig::tls_crypt_v2_server(key), WrapConfig::TlsCryptV2Client { key: client })
}

/// Returns the server's and the client's half of every wrapping.
fn wrappings() -> Vec<(WrapConfig, WrapConfig)> {
    use adit_openvpn::keys::Direction::{Inverse, Normal};
    let auth = |direction| WrapConfig::TlsAuth {
        key: StaticKey::new([3; StaticKey::LEN]),
        direction,
        digest: adit_crypto::Digest::Sha1,
    };
    vec![
        (WrapConfig::None, WrapConfig::None),
        (auth(Some(Normal)), auth(Some(Inverse))),
        (crypt(), crypt()),
        crypt_v2(),
    ]
}

fn rekey_every(seconds: u64, settings: Settings) -> Settings {
    let renegotiation = Renegotiation {
        after: Duration::from_secs(seconds),
        earliest: Duration::from_secs(seconds),
        ..Renegotiation::default()
    };
    Settings { renegotiation, ..settings }
}

fn connected(seed: u64) -> (World, usize) {
    let mut w = World::new(server_config(Settings::default()), seed);
    let c = w.connect(by_tcp(Settings::default()), delay(10), seed);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    (w, c)
}

/// The stream of an unauthenticated sender without a client engine.
struct Stranger {
    link: Link,
}

/// Passes an unauthenticated input to the server. Returns the frames sent in reply, and whether the
/// stream was closed.
fn tell(w: &mut World, link: Link, input: Input<'_>) -> (Vec<Vec<u8>>, bool) {
    let mut out = Outbox::new();
    w.server.handle(w.now, input, &mut out);
    let (mut frames, mut ended) = (Vec::new(), false);
    while let Some(output) = out.pop() {
        match output {
            Output::Send(to, frame) if to == link => frames.push(frame),
            Output::Hangup(which) if which == link => ended = true,
            Output::Event(event) => w.events.push(event),
            Output::Plane(op) => drop(w.plane.apply(op)),
            other => panic!("{other:?}"),
        }
    }
    (frames, ended)
}

impl Stranger {
    /// Opens a stream. Returns `None` if the server closes it at once.
    fn open(w: &mut World, id: u64, address: SocketAddr) -> Option<Self> {
        let link = Link::stream(1_000_000 + id, address);
        let (frames, ended) = tell(w, link, Input::LinkUp(link));
        assert!(frames.is_empty(), "a server waits for the client's reset");
        (!ended).then_some(Self { link })
    }

    fn send(&self, w: &mut World, packet: &[u8]) -> (Vec<Vec<u8>>, bool) {
        tell(w, self.link, Input::ControlPacket(self.link, &mut packet.to_vec()))
    }

    fn leave(&self, w: &mut World) -> bool {
        tell(w, self.link, Input::LinkDown(self.link)).1
    }
}

fn address(n: u32) -> SocketAddr {
    let [a, b, c, d] = (0x0b00_0000 + n).to_be_bytes();
    SocketAddr::from(([a, b, c, d], 5000))
}

fn packet(wrap: &WrapConfig, change: impl FnOnce(&mut Control<'_>)) -> Vec<u8> {
    let opcode = match wrap {
        WrapConfig::TlsCryptV2Client { .. } => Opcode::HardResetClientV3,
        _ => Opcode::HardResetClientV2,
    };
    let mut control = Control {
        opcode,
        key_id: 0,
        session: SessionId(*b"stranger"),
        acks: Default::default(),
        remote: None,
        message: Some(0),
        payload: &[],
    };
    change(&mut control);
    let mut packet = Vec::new();
    let mut wrapper = Wrapper::client(wrap).expect("a client's wrapping");
    wrapper.seal(&control, adit_engine::UnixTime(1), &mut packet).expect("a packet");
    packet
}

fn reset(wrap: &WrapConfig) -> Vec<u8> {
    packet(wrap, |_| {})
}

#[test]
fn every_wrapping_connects_and_rekeys_from_both_ends() {
    for (n, (server, client)) in wrappings().into_iter().enumerate() {
        for (of_server, of_client) in [(30, 3600), (3600, 30)] {
            let config = server_config(rekey_every(of_server, with(&server)));
            let mut w = World::new(config, n as u64);
            let c = w.connect(by_tcp(rekey_every(of_client, with(&client))), delay(20), 5);
            assert!(w.run(SECOND, |w| w.is_up(c)), "wrapping {n}: {:?}", w.clients[c].events);
            w.clients[c].traffic = true;
            assert!(w.run(200 * SECOND, |w| w.rekeys(c) >= 3), "wrapping {n}");
            assert_eq!(w.ups(c), 1, "wrapping {n}");
            assert_eq!((w.plane.failed, w.clients[c].plane.failed), (0, 0), "no packet is lost");
            assert_eq!(w.server.pending_streams(), 0);
        }
    }
}

#[test]
fn over_a_stream_nothing_is_said_twice() {
    let mut w = World::new(server_config(Settings::default()), 1);
    // The path is slower than any retransmission timer.
    let c = w.connect(by_tcp(Settings::default()), delay(3000), 1);
    w.run(Duration::from_millis(2900), |_| false);
    assert_eq!(w.capture(c).len(), 1, "one reset");
    let c = w.connect(by_tcp(Settings::default()), delay(3000), 2);
    assert!(w.run(120 * SECOND, |w| w.is_up(c)));
    assert_eq!(w.server.counters().session_bad, 0);
}

#[test]
fn a_session_ends_with_its_stream_and_keeps_its_address_for_its_name() {
    let (mut w, c) = connected(1);
    let first = w.server.clients().next().expect("a client").ipv4;
    w.cut(c);
    assert_eq!(w.downs(), ["connection reset"]);
    assert!(w.plane.peers.is_empty());
    assert!(w.hung_up.iter().all(Link::is_stream) && w.hung_up.len() == 1);
    assert!(w.run(5 * SECOND, |w| w.ups(c) == 2), "{:?}", w.clients[c].events);
    assert_eq!(w.server.clients().next().expect("a client").ipv4, first);
    assert_eq!(w.server.clients().count(), 1);
}

#[test]
fn a_stream_that_breaks_at_any_moment_leaves_nothing_behind() {
    for (n, (server, client)) in wrappings().into_iter().enumerate() {
        for at in 0..60u64 {
            let mut w = World::new(server_config(with(&server)), at);
            let c = w.connect(by_tcp(with(&client)), delay(10), at);
            w.run(Duration::from_millis(at * 2), |_| false);
            w.cut(c);
            assert_eq!(w.server.handshakes(), 0, "wrapping {n} at {at}");
            assert_eq!(w.server.pending_streams(), 0, "wrapping {n} at {at}");
            assert!(w.plane.peers.is_empty() && w.plane.admitted.is_empty());
            let former = w.ups(c);
            assert!(w.run(10 * SECOND, |w| w.ups(c) > former), "wrapping {n} at {at}");
            assert_eq!(w.server.clients().count(), 1);
        }
    }
}

#[test]
fn a_silent_stream_is_hung_up_and_one_that_spoke_is_not() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let silent = Stranger::open(&mut w, 1, address(1)).expect("a stream");
    let spoke = Stranger::open(&mut w, 2, address(2)).expect("a stream");
    let (answers, ended) = spoke.send(&mut w, &reset(&WrapConfig::None));
    assert!(answers.len() == 1 && !ended);
    let (due, why) = w.server.deadline().expect("a deadline");
    assert_eq!((due.since(w.now), why), (10 * SECOND, "first packet of a stream"));
    w.run(10 * SECOND - Duration::from_nanos(1), |_| false);
    assert_eq!(w.server.counters().streams_silent, 0);
    w.run(Duration::from_nanos(2), |_| false);
    assert_eq!(w.hung_up, [silent.link]);
    assert_eq!(w.server.counters().streams_silent, 1);
    assert_eq!(w.server.pending_streams(), 1);
}

#[test]
fn a_stream_must_be_authenticated_within_the_hand_window_of_its_beginning() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let stranger = Stranger::open(&mut w, 1, address(1)).expect("a stream");
    w.run(9 * SECOND, |_| false);
    stranger.send(&mut w, &reset(&WrapConfig::None));
    // Acknowledgements and other small packets do not prolong it.
    w.run(51 * SECOND - Duration::from_nanos(1), |_| false);
    assert!(w.hung_up.is_empty());
    w.run(Duration::from_nanos(2), |_| false);
    assert_eq!(w.hung_up, [stranger.link], "60 s after it was accepted, not after its reset");
    assert_eq!((w.server.handshakes(), w.server.pending_streams()), (0, 0));
}

#[test]
fn silent_streams_of_one_network_keep_no_other_network_out() {
    let mut w = World::new(server_config(Settings::default()), 1);
    // Open as many connections as possible, each of which sends too little for the data plane to
    // deliver a frame.
    let opened = (0..1000).filter(|&n| Stranger::open(&mut w, n, address(1)).is_some()).count();
    assert!((256..600).contains(&opened), "{opened}");
    let named = w.events.iter().filter(|e| matches!(e, ServerEvent::Accepted(_))).count();
    assert!(named < 10, "a flood does not fill the log: {named}");
    assert_eq!(w.server.counters().streams_refused, 1000 - opened as u64);
    assert_eq!(w.server.pending_streams(), opened);
    let c = w.connect(by_tcp(Settings::default()), delay(10), 2);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)), "a real client connects");
    w.run(10 * SECOND, |_| false);
    assert_eq!(w.server.pending_streams(), 0);
    assert_eq!(w.server.counters().streams_silent, opened as u64);
    assert!(Stranger::open(&mut w, 2000, address(1)).is_some(), "its places are free again");
}

#[test]
fn an_ipv6_network_is_a_64() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let of = |host: u64, net: u64| -> SocketAddr {
        let bits = (0x2001_0db8_0000_0000_u64 + net) as u128;
        (std::net::Ipv6Addr::from(bits << 64 | u128::from(host)), 5000).into()
    };
    let opened = (0..1000).filter(|&n| Stranger::open(&mut w, n, of(n, 0)).is_some()).count();
    assert!(opened < 600, "{opened}");
    assert!(Stranger::open(&mut w, 2000, of(1, 1)).is_some());
}

#[test]
fn streams_without_a_session_are_bounded_in_all() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let opened =
        (0..10_000).filter(|&n| Stranger::open(&mut w, n, address(n as u32)).is_some()).count();
    assert_eq!(opened, 4096);
    assert_eq!(w.server.counters().streams_refused, 10_000 - 4096);
}

#[test]
fn resets_of_one_network_over_streams_are_limited() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let mut begun = 0;
    for n in 0..2000 {
        let Some(stranger) = Stranger::open(&mut w, n, address(1)) else { continue };
        begun += usize::from(!stranger.send(&mut w, &reset(&WrapConfig::None)).1);
        // Disconnecting frees its place, but does not refund its cost.
        stranger.leave(&mut w);
    }
    assert!((400..600).contains(&begun), "{begun}");
    assert_eq!(w.server.counters().starts_limited, 2000 - begun as u64);
    let other = Stranger::open(&mut w, 5000, address(2)).expect("a stream");
    assert!(!other.send(&mut w, &reset(&WrapConfig::None)).1, "another network has its own");
}

#[test]
fn a_flood_of_forged_datagrams_does_not_keep_the_streams_of_that_network_out() {
    let mut w = World::new(server_config(Settings::default()), 1);
    for _ in 0..5000 {
        w.stranger(address(1), &reset(&WrapConfig::None));
    }
    assert!(w.server.counters().resets_limited > 4000);
    let same = Stranger::open(&mut w, 1, address(1)).expect("a stream");
    assert!(!same.send(&mut w, &reset(&WrapConfig::None)).1);
}

#[test]
fn a_stream_that_does_not_begin_with_a_good_reset_is_hung_up() {
    for (server, client) in wrappings() {
        let good = reset(&client);
        let mut others: Vec<Vec<u8>> = vec![
            // These are a later message, an acknowledging one, another key id, an answer, and a
            // packet that is not a control packet.
            packet(&client, |c| c.message = Some(1)),
            packet(&client, |c| {
                c.acks = adit_openvpn::packet::Acks::from_slice(&[0]).expect("one fits");
                c.remote = Some(SessionId([9; 8]));
            }),
            packet(&client, |c| c.key_id = 1),
            packet(&client, |c| c.opcode = Opcode::ControlV1),
            packet(&client, |c| c.opcode = Opcode::SoftResetV1),
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            vec![0xff; 1500],
            Vec::new(),
        ];
        if !matches!(client, WrapConfig::None) {
            let mut altered = good.clone();
            altered[12] ^= 1;
            others.push(altered);
        }
        for (n, other) in others.iter().enumerate() {
            let mut w = World::new(server_config(with(&server)), 1);
            let stranger = Stranger::open(&mut w, 1, address(1)).expect("a stream");
            let (answers, ended) = stranger.send(&mut w, other);
            assert!(answers.is_empty() && ended, "{server:?} {n}");
            assert_eq!(w.server.counters().streams_bad, 1, "{server:?} {n}");
            assert_eq!((w.server.handshakes(), w.server.pending_streams()), (0, 0));
            assert!(stranger.send(&mut w, &good).0.is_empty(), "it is over");
        }
        let mut w = World::new(server_config(with(&server)), 1);
        let stranger = Stranger::open(&mut w, 1, address(1)).expect("a stream");
        let (answers, ended) = stranger.send(&mut w, &good);
        assert!(answers.len() == 1 && !ended, "{server:?}");
    }
}

#[test]
fn what_does_not_belong_into_a_stream_ends_it_whatever_the_wrapping() {
    for (server, client) in wrappings() {
        let wrapped = !matches!(client, WrapConfig::None);
        let mut kinds: Vec<(&str, Vec<u8>)> = vec![
            ("noise", vec![0xff; 100]),
            ("another session", packet(&client, |c| c.session = SessionId([9; 8]))),
        ];
        if wrapped {
            kinds.push(("not authentic", vec![Opcode::ControlV1.number() << 3; 100]));
        }
        for (kind, mut bytes) in kinds {
            let mut w = World::new(server_config(with(&server)), 1);
            let c = w.connect(by_tcp(with(&client)), delay(10), 1);
            assert!(w.run(5 * SECOND, |w| w.is_up(c)));
            if kind == "not authentic" {
                bytes[1..9].copy_from_slice(&w.session_ids.0);
            }
            let link = w.server_link(c);
            w.to_server(Input::ControlPacket(link, &mut bytes));
            assert_eq!(w.hung_up, [link], "{kind} under {client:?}");
            assert_eq!(w.server.clients().count(), 0);
            assert!(w.downs()[0].contains("out of step"), "{:?}", w.downs());
        }
    }
}

#[test]
fn a_replayed_packet_ends_the_stream_it_is_in() {
    let mut w = World::new(server_config(with(&crypt())), 1);
    let c = w.connect(by_tcp(with(&crypt())), delay(10), 1);
    w.tick_client(c);
    let first = w.capture(c).remove(0);
    let link = w.server_link(c);
    w.to_server(Input::ControlPacket(link, &mut first.clone()));
    assert_eq!(w.server.handshakes(), 1);
    w.to_server(Input::ControlPacket(link, &mut first.clone()));
    assert_eq!((w.server.handshakes(), w.hung_up.len()), (0, 1));
}

#[test]
fn a_stranger_cannot_end_the_session_of_another_stream() {
    let (mut w, c) = connected(1);
    let [session, peer] = [w.session_ids.0, w.session_ids.1];
    // The attacker knows the session ids and the address, and has a stream with the same port
    // number.
    let copy = packet(&WrapConfig::None, |c| c.session = SessionId(session));
    let own = w.clients[c].address;
    let stranger = Stranger::open(&mut w, 1, own).expect("a stream");
    stranger.send(&mut w, &copy);
    let rest = packet(&WrapConfig::None, |c| {
        c.session = SessionId(session);
        c.opcode = Opcode::ControlV1;
        c.acks = adit_openvpn::packet::Acks::from_slice(&[0]).expect("one fits");
        c.remote = Some(SessionId(peer));
        c.message = Some(7);
    });
    stranger.send(&mut w, &rest);
    stranger.leave(&mut w);
    // Datagrams from the same address cannot affect the session either.
    w.stranger(w.clients[c].address, &copy);
    w.stranger(w.clients[c].address, &rest);
    assert_eq!(w.server.clients().count(), 1);
    assert!(w.downs().is_empty());
    w.run(30 * SECOND, |_| false);
    assert_eq!((w.ups(c), w.downs().len()), (1, 0));
}

/// CVE-2023-46850, CVE-2026-12996: tests which session is replaced, and when. The test over
/// datagrams is in vulnerabilities.rs.
#[test]
fn a_session_is_replaced_only_by_one_that_is_authenticated() {
    let mut config = server_config(Settings::default());
    config.authorize = true;
    let mut w = World::new(config, 1);
    let first = w.connect(by_tcp(Settings::default()), delay(10), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(first)));
    w.slow_registry = true;
    let second = w.connect(by_tcp(Settings::default()), delay(10), 2);
    assert!(w.run(5 * SECOND, |w| !w.asked.is_empty()));
    assert!(w.downs().is_empty(), "TLS is done, and still the old one goes on");
    let ticket = w.asked[0];
    w.to_server(Input::AuthResponse(ticket, auth::Response::Reject("no".into())));
    w.run(5 * SECOND, |_| false);
    assert!(w.downs().is_empty() && w.server.clients().count() == 1);
    assert!(!w.is_up(second));
    // A client has the same certificate, and this time it is authorized.
    w.slow_registry = false;
    let third = w.connect(by_tcp(Settings::default()), delay(10), 3);
    let old = w.server_link(first);
    assert!(w.run(5 * SECOND, |w| w.is_up(third)));
    assert_eq!(w.downs(), ["replaced by a new session of the same name"]);
    // The client gets the reason before its stream ends.
    assert!(w.run(5 * SECOND, |w| w.hung_up.contains(&old)));
    assert_eq!(w.server.clients().count(), 1);
}

#[test]
fn a_foreign_certificate_gets_nothing_and_replaces_nothing() {
    let (mut w, c) = connected(1);
    let mut config = by_tcp(Settings::default());
    config.tls = foreign_client_tls("client");
    let foreign = w.connect(config, delay(10), 2);
    w.run(5 * SECOND, |_| false);
    assert!(!w.is_up(foreign));
    assert_eq!((w.ups(c), w.downs().len(), w.server.clients().count()), (1, 0, 1));
    let link = w.server_link(c);
    assert!(!w.hung_up.contains(&link) && !w.hung_up.is_empty());
}

#[test]
fn both_transports_share_names_addresses_and_places() {
    let mut config = server_config(Settings::default());
    config.max_clients = 2;
    let mut w = World::new(config, 1);
    let named = |name, mut config: ClientConfig| {
        config.tls = client_tls_named(name);
        config
    };
    let udp = w.connect(named("alice", client_config(Settings::default())), delay(10), 1);
    let tcp = w.connect(named("bob", by_tcp(Settings::default())), delay(10), 2);
    assert!(w.run(5 * SECOND, |w| w.is_up(udp) && w.is_up(tcp)));
    let mut inner: Vec<_> = w.server.clients().filter_map(|info| info.ipv4).collect();
    inner.dedup();
    assert_eq!(inner.len(), 2);
    let third = w.connect(named("carol", by_tcp(Settings::default())), delay(10), 3);
    w.run(3 * SECOND, |_| false);
    assert!(!w.is_up(third), "max-clients counts both");
    // A client with the same name over the other transport replaces the session.
    let alice = w.connect(named("alice", by_tcp(Settings::default())), delay(10), 4);
    assert!(w.run(5 * SECOND, |w| w.is_up(alice)));
    assert_eq!(w.downs(), ["replaced by a new session of the same name"]);
    assert_eq!(w.server.clients().count(), 2);
}

#[test]
fn a_refusal_is_heard_before_the_stream_ends() {
    let mut config = server_config(Settings::default());
    config.authorize = true;
    let mut w = World::new(config, 1);
    w.reply = auth::Response::Reject("no".into());
    let c = w.connect(by_tcp(Settings::default()), delay(10), 1);
    let refused = |w: &World| {
        let failed = |e: &ClientEvent| matches!(e, ClientEvent::Stopped(Reason::AuthFailed(_)));
        w.clients[c].events.iter().any(failed)
    };
    assert!(w.run(5 * SECOND, refused), "{:?}", w.clients[c].events);
    w.run(6 * SECOND, |_| false);
    assert_eq!((w.server.handshakes(), w.server.pending_streams()), (0, 0));
}

#[test]
fn a_kicked_client_hears_why_and_its_stream_ends() {
    let (mut w, c) = connected(1);
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let mut out = Outbox::new();
    w.server.kick(w.now, peer, Disconnect::Halt, "kicked", &mut out);
    w.perform_server(out);
    assert_eq!(w.hung_up.len(), 1);
    w.run(SECOND, |_| false);
    let halted = |e: &ClientEvent| matches!(e, ClientEvent::Stopped(Reason::Halted(_)));
    assert!(w.clients[c].events.iter().any(halted), "{:?}", w.clients[c].events);
}

#[test]
fn a_client_that_leaves_closes_its_stream_and_sends_no_exit_notice() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let settings = Settings { exit_notify: Some(3), ..Settings::default() };
    let c = w.connect(by_tcp(settings), delay(10), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    let mut out = Outbox::new();
    let now = w.now;
    w.clients[c].engine.shutdown(now, &mut out);
    w.perform_client(c, out);
    assert!(w.clients[c].plane.sent_data.is_empty());
    let stopped = |e: &ClientEvent| matches!(e, ClientEvent::Stopped(Reason::EndRequested));
    assert!(w.clients[c].events.iter().any(stopped), "at once");
    w.run(SECOND, |_| false);
    assert_eq!(w.downs(), ["connection reset"]);
}

#[test]
fn a_client_goes_on_to_the_next_server_and_backs_off() {
    let mut w = World::new(server_config(Settings::default()), 1);
    w.no_streams = true;
    let mut config = by_tcp(Settings::default());
    let mut second = config.remotes[0].clone();
    second.target.port = 443;
    config.remotes.push(second);
    let c = w.connect(config, delay(10), 1);
    w.run(60 * SECOND, |_| false);
    let ports: Vec<_> = w.clients[c].dialled.iter().map(|target| target.port).collect();
    assert_eq!(ports[..4], [1194, 443, 1194, 443]);
    // The first wait is 1 s, and each round doubles it.
    assert!((8..14).contains(&ports.len()), "{ports:?}");
    w.no_streams = false;
    assert!(w.run(120 * SECOND, |w| w.is_up(c)));
    let last = w.clients[c].dialled.last().expect("it dialled").port;
    let dialled = w.clients[c].dialled.len();
    w.cut(c);
    assert!(w.run(5 * SECOND, |w| w.ups(c) == 2), "soon after a session");
    assert_eq!(w.clients[c].dialled.len(), dialled + 1);
    assert_ne!(w.clients[c].dialled.last().expect("it dialled").port, last, "the next server");
}

#[test]
fn a_client_does_not_hear_what_comes_by_another_stream() {
    let (mut w, c) = connected(1);
    let mut reset = packet(&WrapConfig::None, |c| c.opcode = Opcode::HardResetServerV2);
    let former = Link::stream(99, support::server_address());
    w.to_client(c, Input::ControlPacket(former, &mut reset));
    w.to_client(c, Input::LinkDown(former));
    assert_eq!(w.clients[c].engine.dropped(), 1);
    let restarted = w.clients[c].events.iter().any(|e| matches!(e, ClientEvent::Restarting(_)));
    assert!(!restarted);
    // On its own stream the same packet means that the ends are out of step.
    let link = w.client_link(c);
    w.to_client(c, Input::ControlPacket(link, &mut reset));
    let restarted = w.clients[c].events.iter().any(|e| matches!(e, ClientEvent::Restarting(_)));
    assert!(restarted);
}

#[test]
fn a_stream_never_moves() {
    let (mut w, c) = connected(1);
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let own = w.server_link(c);
    let elsewhere = Link::datagram(Default::default(), None, address(7));
    w.to_server(Input::Notice(Notice::Floated(peer, elsewhere)));
    assert_eq!(w.server.clients().next().map(|info| info.link), Some(own));
    assert!(!w.events.iter().any(|event| matches!(event, ServerEvent::Floated(..))));
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), delay(10), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    let peer = *w.plane.peers.keys().next().expect("a peer");
    w.to_server(Input::Notice(Notice::Floated(peer, Link::stream(5, address(7)))));
    assert!(!w.events.iter().any(|event| matches!(event, ServerEvent::Floated(..))));
}

#[test]
fn a_hundred_clients_come_by_both_transports_and_again_after_all_streams_broke() {
    let mut config = server_config(Settings::default());
    config.duplicate_cn = true;
    config.max_clients = 200;
    let mut w = World::new(config, 11);
    for n in 0..100 {
        let config = match n % 2 {
            0 => by_tcp(Settings::default()),
            _ => client_config(Settings::default()),
        };
        w.connect(config, delay(10), n);
    }
    assert!(w.run(60 * SECOND, |w| (0..100).all(|c| w.is_up(c))));
    assert_eq!((w.plane.peers.len(), w.server.handshakes()), (100, 0));
    (0..100).step_by(2).for_each(|c| w.cut(c));
    assert_eq!(w.plane.peers.len(), 50);
    assert!(w.run(60 * SECOND, |w| (0..100).step_by(2).all(|c| w.ups(c) == 2)));
    assert_eq!((w.plane.peers.len(), w.server.pending_streams()), (100, 0));
}

#[test]
fn a_stream_whose_address_is_gone_is_replaced_at_once_and_another_is_kept() {
    let (mut w, c) = connected(11);
    let changed = |w: &mut World, stale| {
        let mut out = Outbox::new();
        w.clients[c].engine.path_changed(w.now, stale, &mut out);
        w.perform_client(c, out);
    };
    changed(&mut w, false);
    assert!(!w.run(5 * SECOND, |w| w.ups(c) == 2));
    changed(&mut w, true);
    assert!(w.run(SECOND, |w| w.ups(c) == 2), "{:?}", w.clients[c].events);
}
