//! The work that one authenticated client can cause on the control thread, counted per virtual
//! second and compared with the limits in `session::budget`. The hostile client here is built only
//! from the protocol's parts, so that no budget of our own client limits it.

use std::time::Duration;

use adit_engine::{Engine, Link, PeerId, Rate};
use adit_openvpn::client::ClientEvent;
use adit_openvpn::data_format::{Input, Notice, Outbox, Output};
use adit_openvpn::keys::{KeyMethod2, Randoms};
use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::server::{ServerCounters, ServerEvent};
use adit_openvpn::session::budget::{MOVES, PUSH_REPLIES, RENEGOTIATIONS, REPORTS};
use adit_openvpn::session::{Renegotiation, Settings};
use adit_openvpn::tls::{ClientTls, TlsSession};
use adit_openvpn::wrap::{WrapConfig, Wrapper};
use adit_sim::Impairment;

use crate::support::{self, World, client_config, client_tls, server_config};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const OURS: SessionId = SessionId([7; 8]);

/// A negotiation of the hostile client.
struct Negotiation {
    key_id: u8,
    tls: TlsSession,
    next_send: u32,
    next_receive: u32,
    /// Whether the server's reset has arrived, so that TLS output may be sent.
    answered: bool,
    keys_sent: bool,
    done: bool,
}

impl Negotiation {
    fn new(key_id: u8, tls: &ClientTls) -> Self {
        let tls = TlsSession::client(tls).expect("a session");
        let (next_send, next_receive) = (0, 0);
        let (answered, keys_sent, done) = (false, false, false);
        Self { key_id, tls, next_send, next_receive, answered, keys_sent, done }
    }
}

/// A client that sends any packet at any time, with a server and its clock.
struct Hostile {
    world: World,
    link: Link,
    server: Option<SessionId>,
    wrapper: Wrapper,
    tls: ClientTls,
    current: Negotiation,
    /// The number of completed TLS handshakes, each of which costs the server a signature and a
    /// chain check.
    handshakes: u64,
    /// The messages from the server.
    heard: Vec<String>,
}

impl Hostile {
    fn connect(stream: bool) -> Self {
        let mut config = server_config(Settings::default());
        config.push = (0..40).map(|n| format!("route 10.{n}.0.0 255.255.0.0")).collect();
        let address = ([198, 51, 100, 1], 4000).into();
        let tls = client_tls();
        let mut hostile = Self {
            world: World::new(config, 1),
            link: if stream {
                Link::stream(1, address)
            } else {
                Link::datagram(Default::default(), None, address)
            },
            server: None,
            wrapper: Wrapper::client(&WrapConfig::None).expect("a wrapping"),
            current: Negotiation::new(0, &tls),
            tls,
            handshakes: 0,
            heard: Vec::new(),
        };
        if stream {
            hostile.input(Input::LinkUp(hostile.link));
        }
        hostile.message(Opcode::HardResetClientV2, &[]);
        for _ in 0..100 {
            hostile.pass(MILLISECOND);
        }
        assert_eq!((hostile.world.server.clients().count(), hostile.handshakes), (1, 1));
        hostile.world.events.clear();
        hostile
    }

    /// Passes an input to the server, and processes all its outputs.
    fn input(&mut self, input: Input<'_>) {
        let mut out = Outbox::new();
        self.world.server.handle(self.world.now, input, &mut out);
        let mut frames = Vec::new();
        while let Some(output) = out.pop() {
            match output {
                Output::Send(_, frame) => frames.push(frame),
                Output::Plane(op) => drop(self.world.plane.apply(op)),
                Output::Event(event) => self.world.events.push(event),
                _ => {}
            }
        }
        frames.into_iter().for_each(|frame| self.receive(frame));
    }

    fn receive(&mut self, mut frame: Vec<u8>) {
        let control = self.wrapper.open(&mut frame).expect("a packet");
        self.server = Some(control.session);
        let now = &mut self.current;
        let Some(id) = control.message else { return };
        if control.key_id != now.key_id || id != now.next_receive {
            return;
        }
        now.next_receive += 1;
        match control.opcode {
            Opcode::ControlV1 => now.tls.feed(control.payload).expect("TLS goes on"),
            _ => now.answered = true,
        }
        while let Some(message) = now.tls.read().expect("a record") {
            if now.done {
                self.heard.push(String::from_utf8_lossy(&message).into_owned());
            } else {
                now.done = true;
                self.handshakes += 1;
            }
        }
        self.send(Opcode::AckV1, None, Some(id), &[]);
        self.speak();
    }

    /// Sends the pending TLS output.
    fn speak(&mut self) {
        let now = &mut self.current;
        if !now.tls.is_handshaking() && !now.keys_sent {
            now.keys_sent = true;
            let keys = KeyMethod2 {
                pre_master: Some(zeroize::Zeroizing::new([5; 48])),
                randoms: Randoms { random1: [1; 32], random2: [2; 32] },
                options: "V4".into(),
                username: String::new(),
                password: Default::default(),
                peer_info: "IV_VER=2.6.0\nIV_PROTO=6\nIV_CIPHERS=AES-256-GCM\n".into(),
            };
            now.tls.write(&keys.encode().expect("a message")).expect("TLS is open");
        }
        while self.current.answered && self.current.tls.wants_write() {
            let payload = self.current.tls.pull(1100);
            self.message(Opcode::ControlV1, &payload);
        }
    }

    fn message(&mut self, opcode: Opcode, payload: &[u8]) {
        let id = self.current.next_send;
        self.current.next_send += 1;
        self.send(opcode, Some(id), None, payload);
    }

    fn send(&mut self, opcode: Opcode, message: Option<u32>, ack: Option<u32>, payload: &[u8]) {
        // Each packet acknowledges the server's first reset, because until the third packet the
        // server keeps no state about us.
        let first = (self.server.is_some() && self.current.key_id == 0).then_some(0);
        let acks = ack.or(first).and_then(|id| Acks::from_slice(&[id])).unwrap_or_default();
        let remote = self.server;
        let key_id = self.current.key_id;
        let control = Control { opcode, key_id, session: OURS, acks, remote, message, payload };
        let mut frame = Vec::new();
        self.wrapper.seal(&control, adit_engine::UnixTime(1), &mut frame).expect("a packet");
        self.input(Input::ControlPacket(self.link, &mut frame));
    }

    fn renegotiate(&mut self) {
        self.current = Negotiation::new(self.current.key_id % 7 + 1, &self.tls);
        self.message(Opcode::SoftResetV1, &[]);
    }

    /// Sends a record of control messages.
    fn record(&mut self, record: &[u8]) {
        self.current.tls.write(record).expect("TLS is open");
        self.speak();
    }

    fn pass(&mut self, time: Duration) {
        self.world.now = self.world.now + time;
        if self.world.server.deadline().is_some_and(|(at, _)| at <= self.world.now) {
            self.input(Input::Tick);
        }
        let deadline = self.world.server.deadline().map(|(at, _)| at);
        assert!(deadline.is_none_or(|at| at > self.world.now), "the engine does not rest");
    }

    fn count(&self, which: impl Fn(&ServerEvent) -> bool) -> u64 {
        self.world.events.iter().filter(|event| which(event)).count() as u64
    }

    fn counters(&self) -> ServerCounters {
        self.world.server.counters()
    }

    fn still_has_its_session(&self) {
        assert_eq!(self.world.downs(), [""; 0]);
        assert_eq!(self.world.server.clients().count(), 1);
    }
}

fn within(count: u64, rate: Rate, span: Duration) {
    let most = rate.most_in(span);
    assert!(count <= most, "{count} in {span:?} and not {most}");
    assert!(count + 2 >= most, "only {count} in {span:?} of {most}: what is in budget is served");
}

#[test]
fn a_client_that_renegotiates_without_a_pause_is_slowed_down_and_keeps_its_session() {
    for stream in [false, true] {
        let mut h = Hostile::connect(stream);
        let (begun, span) = (h.handshakes, 20 * SECOND);
        for _ in 0..span.as_millis() {
            if h.current.done {
                h.renegotiate();
            } else if !stream && !h.current.answered {
                // Send the same reset again, at line rate.
                h.current.next_send = 0;
                h.message(Opcode::SoftResetV1, &[]);
            }
            h.pass(MILLISECOND);
        }
        // Each handshake costs a signature by the server and a check of the client's chain.
        within(h.handshakes - begun, RENEGOTIATIONS, span);
        within(h.count(|e| matches!(e, ServerEvent::Reverified(..))), RENEGOTIATIONS, span);
        within(h.count(|e| matches!(e, ServerEvent::Rekeyed(..))), RENEGOTIATIONS, span);
        assert!(h.counters().delayed >= 15, "{:?}", h.counters());
        h.still_has_its_session();
    }
}

#[test]
fn a_record_of_thousands_of_messages_makes_a_handful_of_events() {
    for message in ["x\0", "CR_RESPONSE,x\0", "\u{1}\0"] {
        let mut h = Hostile::connect(false);
        let record = message.repeat(16_000 / message.len());
        let span = 10 * SECOND;
        for _ in 0..span.as_millis() / 10 {
            h.record(record.as_bytes());
            h.pass(10 * MILLISECOND);
        }
        within(h.world.events.len() as u64, REPORTS, span);
        assert!(h.counters().messages_excess > 0);
        h.still_has_its_session();
    }
}

#[test]
fn push_requests_without_end_get_few_answers_and_the_last_one_gets_its_own() {
    for stream in [false, true] {
        let mut h = Hostile::connect(stream);
        let reply = |h: &Hostile| h.count(|e| matches!(e, ServerEvent::Told { .. }));
        // The first request and the unrequested reply cross.
        h.record(b"PUSH_REQUEST\0");
        assert_eq!(reply(&h), 0);
        h.record(b"PUSH_REQUEST\0");
        let bundles = reply(&h);
        assert!(bundles >= 1);
        let span = 10 * SECOND;
        for _ in 0..span.as_millis() / 100 {
            h.record("PUSH_REQUEST\0".repeat(1000).as_bytes());
            h.pass(100 * MILLISECOND);
        }
        let most = bundles * PUSH_REPLIES.most_in(span);
        assert!((most / 2..=most).contains(&reply(&h)), "{} of {most}", reply(&h));
        // The last request is delayed but still answered, although no other packet follows.
        let (answered, before) = (h.heard.len(), reply(&h));
        h.record(b"PUSH_REQUEST\0");
        assert_eq!(reply(&h), before);
        h.pass(PUSH_REPLIES.every());
        assert_eq!(reply(&h), before + bundles);
        assert!(h.heard.len() > answered && h.heard.last().is_some_and(|m| m.contains("route")));
        h.still_has_its_session();
    }
}

#[test]
fn of_moves_without_end_the_engine_follows_few_and_then_the_last() {
    let mut h = Hostile::connect(false);
    let peer = h.world.server.clients().next().expect("a client").peer;
    let at = |port| Link::datagram(Default::default(), None, ([198, 51, 100, 1], port).into());
    let span = 10 * SECOND;
    for n in 0..10_000u16 {
        h.input(Input::Notice(Notice::Floated(peer, at(5000 + n % 2))));
        if n == 9_999 {
            h.input(Input::Notice(Notice::Floated(peer, at(6000))));
        }
        h.pass(MILLISECOND);
    }
    within(h.count(|e| matches!(e, ServerEvent::Floated(..))), MOVES, span);
    h.pass(SECOND);
    assert_eq!(h.world.server.clients().next().expect("a client").link, at(6000));
    assert_eq!(h.world.plane.admitted.len(), 1);
    // The client continues from its new address, and its control packets are accepted.
    h.link = at(6000);
    h.renegotiate();
    h.pass(SECOND);
    assert!(h.current.done);
    h.still_has_its_session();
}

/// All kinds of work at once for ten seconds stay within the sum of the limits.
#[test]
fn one_client_makes_no_more_events_than_its_budgets_add_up_to() {
    let mut h = Hostile::connect(false);
    let peer = h.world.server.clients().next().expect("a client").peer;
    h.record(b"PUSH_REQUEST\0PUSH_REQUEST\0");
    let bundles = h.world.events.len() as u64;
    h.world.events.clear();
    let span = 10 * SECOND;
    let home = h.link;
    let away = Link::datagram(Default::default(), None, ([198, 51, 100, 1], 9).into());
    for n in 0..span.as_millis() {
        if h.current.done {
            h.record("y\0PUSH_REQUEST\0".repeat(1000).as_bytes());
            h.renegotiate();
        }
        let link = if n % 2 == 0 { away } else { home };
        h.input(Input::Notice(Notice::Floated(peer, link)));
        // The address that the server uses for the client.
        h.link = h.world.server.clients().next().expect("a client").link;
        h.pass(MILLISECOND);
    }
    let most = 2 * RENEGOTIATIONS.most_in(span)
        + bundles * PUSH_REPLIES.most_in(span)
        + MOVES.most_in(span)
        + REPORTS.most_in(span);
    assert!(h.world.events.len() as u64 <= most, "{} and not {most}", h.world.events.len());
    h.still_has_its_session();
}

/// `reneg-bytes` is far too small for the path, so each key is at its limit as soon as it is
/// installed, at one end or at both.
#[test]
fn reneg_bytes_at_full_speed_stays_within_the_budget_and_loses_no_session() {
    // The shorter the hand-window, the sooner a new key is used. Here one key may follow another
    // within 200 ms.
    let small = || Settings {
        renegotiation: Renegotiation { bytes: 1, ..Default::default() },
        hand_window: Duration::from_millis(200),
        ..Settings::default()
    };
    for (server, client, stream) in
        [(true, false, false), (false, true, false), (true, true, false), (true, true, true)]
    {
        let mut w = World::new(server_config(small()), 1);
        let mut config = client_config(small());
        if stream {
            config.remotes[0].target.transport = adit_engine::Transport::Tcp;
        }
        let delay = Impairment { delay: Duration::from_millis(5), ..Impairment::default() };
        let c = w.connect(config, delay, 1);
        assert!(w.run(5 * SECOND, |w| w.is_up(c)));
        w.clients[c].traffic = true;
        let span = 60 * SECOND;
        for _ in 0..span.as_millis() / 10 {
            for (id, key_id) in keys(&w.plane.peers).into_iter().filter(|_| server) {
                w.to_server(Input::Notice(Notice::KeyNearLimit(id, key_id)));
            }
            for (id, key_id) in keys(&w.clients[c].plane.peers).into_iter().filter(|_| client) {
                w.to_client(c, Input::Notice(Notice::KeyNearLimit(id, key_id)));
            }
            w.run(10 * MILLISECOND, |_| false);
        }
        let rekeys = w.rekeys(c) as u64;
        assert!(rekeys <= RENEGOTIATIONS.most_in(span), "{rekeys}");
        assert!(rekeys >= 25, "{rekeys}: server {server}, client {client}, stream {stream}");
        assert_eq!((w.ups(c), w.downs().len(), w.plane.failed), (1, 0, 0));
        let lost = |e: &ClientEvent| matches!(e, ClientEvent::Restarting(_));
        assert!(!w.clients[c].events.iter().any(lost));
    }
}

/// Returns the newest key of each peer.
fn keys(peers: &std::collections::HashMap<PeerId, support::Peer>) -> Vec<(PeerId, u8)> {
    let newest = |peer: &support::Peer| {
        peer.secondary.iter().chain(&peer.primary).map(|key| key.key_id).collect::<Vec<_>>()
    };
    peers.iter().flat_map(|(&id, peer)| newest(peer).into_iter().map(move |k| (id, k))).collect()
}
