//! Sessions with records between two ends, packet by packet.

use std::time::Duration;

use adit_crypto::sign::SigningKey;
use adit_crypto::{Cipher, DirectionKey};
use adit_engine::command::Keepalive;
use adit_engine::{Instant, Link, PeerId, Random, UnixTime};
use adit_openvpn::Reason;
use adit_openvpn::data_format::{Command, Outbox, Output};
use adit_openvpn::keys::{DataKeys, StaticKey};
use adit_openvpn::records::{
    DataTerms, Dial, MAX_RECORD, RecordEvent, RecordListener, RecordSession, RecordSettings,
    RemoteEnd,
};
use adit_openvpn::tls::SelfSigned;

const UNIX: UnixTime = UnixTime(1_800_000_000);
const PROTOCOL: &[u8] = b"test/1";
const HAND_WINDOW: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);

fn settings() -> RecordSettings {
    RecordSettings {
        hand_window: HAND_WINDOW,
        rekey_after: HOUR,
        keepalive: Keepalive::default(),
        ethernet: false,
        tun_mtu: 1500,
        replay_window: 1024,
    }
}

fn end(seed: u8) -> SelfSigned {
    SelfSigned::new(&SigningKey::from_seed(&[seed; 32]).unwrap()).unwrap()
}

fn keys(session: &RecordSession) -> DataKeys {
    let mut key = DirectionKey { cipher: [0; 64], hmac: [0; 64] };
    session.export(b"EXPORTER-test", b"context", &mut key.cipher).unwrap();
    DataKeys { seal: key.clone(), open: key }
}

fn terms(session: &RecordSession) -> Vec<DataTerms> {
    let keys = keys(session);
    vec![DataTerms { peer: PeerId(1), wire_id: 2, cipher: Cipher::Aes256Gcm, keys }]
}

/// A client and a server with a perfect network between them.
struct World {
    now: Instant,
    random: Random,
    listener: RecordListener,
    client: Option<RecordSession>,
    server: Option<RecordSession>,
    outs: [Outbox<()>; 2],
    /// The events at each end.
    records: [Vec<Vec<u8>>; 2],
    ready: [Option<RemoteEnd>; 2],
    rekeys: [usize; 2],
    ended: [Option<Reason>; 2],
    closed: [bool; 2],
    /// The commands to the data planes in order, and `send` for each packet.
    log: [Vec<String>; 2],
    /// Whether the ends establish the session when it is ready.
    establish: bool,
    /// The path to each end.
    link: fn(usize) -> Link,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

fn link(end: usize) -> Link {
    Link::datagram(Default::default(), None, ([192, 0, 2, end as u8], 5000).into())
}

/// The same for a connection; each end has its own id for it.
fn stream(end: usize) -> Link {
    Link::stream(end as u64, link(end).remote())
}

impl World {
    fn new(wrap: u8, protocol: &[u8]) -> Self {
        Self::over(link, wrap, protocol)
    }

    fn over(link: fn(usize) -> Link, wrap: u8, protocol: &[u8]) -> Self {
        let mut random = Random::new([1; 32]);
        let now = Instant::from_nanos(1_000_000_000_000);
        let tls = end(2).server(&[PROTOCOL]).unwrap();
        let key = |byte| StaticKey::new([byte; StaticKey::LEN]);
        let listener = RecordListener::new(key(1), tls, &settings(), &mut random).unwrap();
        let mut outs = [Outbox::new(), Outbox::new()];
        let tls = end(1).client(end(2).key_hash(), protocol).unwrap();
        let dial = Dial { link: link(SERVER), wrap: key(wrap), tls, hello: b"client" };
        let out = &mut outs[CLIENT];
        let client =
            RecordSession::connect(now, UNIX, dial, &settings(), &mut random, out).unwrap();
        Self {
            now,
            random,
            listener,
            client: Some(client),
            server: None,
            outs,
            records: Default::default(),
            ready: Default::default(),
            rekeys: [0; 2],
            ended: Default::default(),
            closed: [false; 2],
            log: Default::default(),
            establish: true,
            link,
        }
    }

    fn session(&mut self, end: usize) -> Option<&mut RecordSession> {
        if end == CLIENT { self.client.as_mut() } else { self.server.as_mut() }
    }

    fn handle(&mut self, end: usize, result: Result<Vec<RecordEvent>, Reason>) {
        let mut result = result;
        for event in std::mem::replace(&mut result, Ok(Vec::new())).unwrap_or_else(|reason| {
            self.ended[end] = Some(reason);
            Vec::new()
        }) {
            let (now, establish) = (self.now, self.establish);
            let session = if end == CLIENT { &mut self.client } else { &mut self.server };
            let (session, out) = (session.as_mut().unwrap(), &mut self.outs[end]);
            match event {
                RecordEvent::Ready(remote) => {
                    self.ready[end] = Some(remote);
                    if establish {
                        let terms = terms(session);
                        session.establish(now, b"server", terms, &mut self.random, out).unwrap();
                    }
                }
                RecordEvent::KeysReady => {
                    self.rekeys[end] += 1;
                    let keys = vec![keys(session)];
                    session.rekey(now, keys, &mut self.random, out).unwrap();
                }
                RecordEvent::Record(record) => self.records[end].push(record.to_vec()),
                RecordEvent::Closed => self.closed[end] = true,
            }
        }
    }

    /// Delivers all packets until none is left.
    fn deliver(&mut self) {
        loop {
            let mut idle = true;
            for from in [CLIENT, SERVER] {
                while let Some(output) = self.outs[from].pop() {
                    idle = false;
                    match output {
                        Output::Send(_, mut packet) => {
                            self.log[from].push("send".into());
                            self.receive(1 - from, &mut packet);
                        }
                        Output::Plane(Command::InstallKey(_, slot, _)) => {
                            self.log[from].push(format!("install {slot:?}"));
                        }
                        Output::Plane(Command::AddPeer(..)) => self.log[from].push("add".into()),
                        Output::Plane(Command::DelPeer(_)) => self.log[from].push("remove".into()),
                        _ => {}
                    }
                }
            }
            if idle {
                return;
            }
        }
    }

    fn receive(&mut self, end: usize, packet: &mut [u8]) {
        let now = self.now;
        let session = if end == CLIENT { &mut self.client } else { &mut self.server };
        let out = &mut self.outs[end];
        let result = match session {
            Some(session) => session.packet(now, packet, out),
            None => {
                let (listener, from) = (&mut self.listener, (self.link)(CLIENT));
                let begun = if from.is_stream() {
                    let times = (UNIX, now);
                    listener.first_of_stream(now, times, from, packet, &mut self.random, out)
                } else {
                    listener.packet(now, UNIX, from, packet, out)
                };
                let Some((session, events)) = begun else { return };
                self.server = Some(session);
                Ok(events)
            }
        };
        self.handle(end, result);
    }

    /// Advances the time, and runs the timers of both ends.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.deliver();
            let deadlines = [CLIENT, SERVER].map(|end| {
                let ended = self.ended[end].is_some();
                let deadline = self.session(end).and_then(|session| session.deadline());
                deadline.filter(|_| !ended).map(|(at, _)| at)
            });
            let Some(at) = deadlines.into_iter().flatten().min().filter(|at| *at <= until) else {
                break;
            };
            self.now = self.now.max(at);
            for end in [CLIENT, SERVER] {
                if deadlines[end].is_some_and(|at| at <= self.now) {
                    let now = self.now;
                    let session = if end == CLIENT { &mut self.client } else { &mut self.server };
                    let result = session.as_mut().unwrap().tick(now, &mut self.outs[end]);
                    self.handle(end, result);
                }
            }
        }
        self.now = until;
    }

    fn send(&mut self, end: usize, record: &[u8]) -> bool {
        let now = self.now;
        let session = if end == CLIENT { &mut self.client } else { &mut self.server };
        session.as_mut().unwrap().send(now, record, &mut self.outs[end]).unwrap()
    }
}

/// Returns a world with an established session.
fn established() -> World {
    let mut w = World::new(1, PROTOCOL);
    w.run(Duration::from_secs(1));
    assert!(w.client.as_ref().unwrap().is_established());
    assert!(w.server.as_ref().unwrap().is_established());
    w
}

#[test]
fn each_end_learns_key_protocol_and_hello_of_the_other() {
    let w = established();
    let remote = |key, hello: &[u8]| {
        Some(RemoteEnd { key, protocol: PROTOCOL.to_vec(), hello: hello.to_vec() })
    };
    assert_eq!(w.ready[CLIENT], remote(end(2).key_hash(), b"server"));
    assert_eq!(w.ready[SERVER], remote(end(1).key_hash(), b"client"));
}

#[test]
fn over_a_stream_a_session_begins_with_the_reset_and_nothing_is_sent_twice() {
    let mut w = World::over(stream, 1, PROTOCOL);
    w.run(Duration::from_secs(1));
    assert!(w.ready.iter().all(Option::is_some), "{:?}", w.ended);
    let sent = w.log.each_ref().map(|log| log.iter().filter(|line| *line == "send").count());
    w.run(HAND_WINDOW * 2);
    let later = w.log.each_ref().map(|log| log.iter().filter(|line| *line == "send").count());
    assert_eq!(sent, later);
    assert!(w.send(CLIENT, b"record") && w.send(SERVER, b"answer"));
    w.run(HOUR * 2);
    assert_eq!(w.records, [vec![b"answer".to_vec()], vec![b"record".to_vec()]]);
    assert!(w.rekeys[CLIENT] >= 1 && w.rekeys[CLIENT] == w.rekeys[SERVER], "{:?}", w.rekeys);
    assert_eq!(w.ended, [None, None]);
}

#[test]
fn over_a_stream_a_sender_without_the_wrapping_key_or_without_a_reset_begins_nothing() {
    let mut w = World::over(stream, 9, PROTOCOL);
    w.run(Duration::from_secs(1));
    assert!(w.server.is_none() && w.log[SERVER].is_empty());
    assert_eq!((w.listener.refused(), w.listener.handshakes()), (1, 0));
    let mut out = Outbox::<()>::new();
    for mut packet in [vec![4 << 3; 60], vec![7 << 3, 1, 2], Vec::new()] {
        let (now, random) = (w.now, &mut w.random);
        let from = stream(CLIENT);
        let begun =
            w.listener.first_of_stream(now, (UNIX, now), from, &mut packet, random, &mut out);
        assert!(begun.is_none() && out.is_empty());
    }
    assert_eq!((w.listener.refused(), w.listener.handshakes()), (4, 0));
}

#[test]
fn a_stream_has_the_hand_window_from_its_beginning() {
    let mut w = World::over(stream, 1, PROTOCOL);
    w.establish = false;
    w.run(HAND_WINDOW - Duration::from_secs(1));
    assert!(w.ended[SERVER].is_none());
    w.run(Duration::from_secs(2));
    assert_eq!(w.ended[SERVER], Some(Reason::HandshakeTimeout));
}

#[test]
fn a_server_has_the_key_before_the_client_can_use_it() {
    let mut w = World::new(1, PROTOCOL);
    w.establish = false;
    w.run(Duration::from_secs(1));
    assert!(w.ready[SERVER].is_some(), "the server knows who it is");
    assert!(w.ready[CLIENT].is_none(), "and the client not that it was let in");
    assert!(!w.log[CLIENT].contains(&"add".to_owned()), "{:?}", w.log);
    w.establish = true;
    w.log = Default::default();
    let (now, terms) = (w.now, terms(w.server.as_ref().unwrap()));
    let server = w.server.as_mut().unwrap();
    server.establish(now, b"server", terms, &mut w.random, &mut w.outs[SERVER]).unwrap();
    w.deliver();
    assert_eq!(w.log[SERVER][..3], ["add", "install Primary", "send"]);
    assert!(w.ready[CLIENT].is_some());
}

#[test]
fn records_of_all_sizes_arrive_in_order_in_both_directions() {
    let mut w = established();
    let records: Vec<Vec<u8>> = (0..40_u8)
        .map(|n| vec![n; if n == 7 { MAX_RECORD } else { 1 + 400 * usize::from(n) }])
        .collect();
    for end in [CLIENT, SERVER] {
        for chunk in records.chunks(5) {
            assert!(chunk.iter().all(|record| w.send(end, record)));
            w.run(Duration::from_secs(1));
        }
        assert!(w.records[1 - end] == records);
    }
}

#[test]
fn what_waits_is_bounded() {
    let mut w = World::new(1, PROTOCOL);
    let sent = (0..100).take_while(|_| w.send(CLIENT, &[1; 60_000])).count();
    assert_eq!(sent, 4);
    w.run(Duration::from_secs(5));
    assert_eq!(w.records[SERVER].len(), 4, "and then arrives");
    assert!(w.send(CLIENT, &[1; 60_000]));
}

#[test]
fn a_rekey_replaces_the_keys_and_records_stay_in_order() {
    let mut w = established();
    w.log = Default::default();
    let mut sent = Vec::new();
    for n in 0..80_u8 {
        w.run(HOUR / 40);
        sent.push(vec![n; 2000]);
        assert!(w.send(CLIENT, &[n; 2000]));
    }
    w.run(Duration::from_secs(60));
    assert!(w.records[SERVER] == sent);
    assert!(w.rekeys[CLIENT] >= 2 && w.rekeys == [w.rekeys[CLIENT]; 2], "{:?}", w.rekeys);
    for log in &w.log {
        assert_eq!(log.iter().filter(|line| line.starts_with("install")).count(), w.rekeys[CLIENT]);
    }
    assert_eq!(w.ended, [None, None]);
}

#[test]
fn a_sender_without_the_wrapping_key_gets_no_answer() {
    let mut w = World::new(9, PROTOCOL);
    w.run(HAND_WINDOW);
    assert!(w.log[SERVER].is_empty() && w.server.is_none(), "{:?}", w.log[SERVER]);
    assert!(w.listener.refused() > 1);
    assert_eq!(w.ended[CLIENT], Some(Reason::HandshakeTimeout));
}

#[test]
fn a_client_of_another_protocol_is_not_let_in() {
    let mut w = World::new(1, b"other/1");
    w.run(HAND_WINDOW);
    assert!(matches!(w.ended[SERVER], Some(Reason::Tls(_))), "{:?}", w.ended);
    assert_eq!(w.ready, [None, None]);
}

#[test]
fn a_closed_session_ends_at_the_other_end_and_leaves_no_peer() {
    let mut w = established();
    let now = w.now;
    w.server.as_mut().unwrap().close(now, &mut w.outs[SERVER]);
    w.deliver();
    assert!(w.closed[CLIENT]);
    assert_eq!(w.log[SERVER].last().map(String::as_str), Some("remove"));
}

#[test]
fn handshakes_are_counted_until_they_are_finished() {
    let mut w = established();
    assert_eq!(w.listener.handshakes(), 1);
    w.listener.finished(link(CLIENT), true);
    assert_eq!(w.listener.handshakes(), 0);
}

#[test]
fn nothing_secret_is_printed() {
    let w = established();
    let text = format!("{:?} {:?} {:?}", w.client, w.listener, terms(w.client.as_ref().unwrap()));
    assert!(text.contains("DataKeys(..)") && !text.contains("[1, 1, 1"), "{text}");
}
