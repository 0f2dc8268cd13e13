//! A static key over TCP, on virtual time: an end that listens, one that dials, and strangers.

#[allow(dead_code)]
#[path = "support/points.rs"]
mod points;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use adit_crypto::{BlockCipher, Digest};
use adit_engine::verbs::{BlockSuite, Keepalive};
use adit_engine::{
    Engine, Input, Instant, Link, Notice, Op, Outbox, Output, PeerId, Target, Transport,
};
use adit_openvpn::client::{ClientEvent, Remote};
use adit_openvpn::keys::{Direction, StaticKey};
use adit_openvpn::p2p::{Ends, Reach, StaticConfig, StaticEngine};
use adit_openvpn::session::Settings;
use points::{Data, Packet, Plane, Taken};

const SECOND: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_millis(10);
const PEER: PeerId = PeerId(0);
/// The end that listens, and the one that dials.
const L: usize = 0;
const D: usize = 1;

struct Node {
    engine: Option<StaticEngine>,
    plane: Plane,
    events: Vec<ClientEvent>,
    config: StaticConfig,
    /// What it ever sent, with the connection.
    sent: Vec<Data>,
}

/// A connection: what either end calls it; a stranger's has no engine at the dialling end.
struct Connection {
    at: [Option<Link>; 2],
    /// To whom, when, and what.
    flying: VecDeque<(usize, Instant, Data)>,
}

struct World {
    now: Instant,
    nodes: [Node; 2],
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

fn listener() -> StaticConfig {
    let mut reach = Reach::new(Vec::new());
    reach.accepts = Some(Vec::new());
    config(Direction::Normal, reach)
}

fn dialler() -> StaticConfig {
    let target = Target {
        host: "peer.example".into(),
        port: 1194,
        transport: Transport::Tcp,
        family: Default::default(),
    };
    config(Direction::Inverse, Reach::new(vec![Remote { target }]))
}

fn config(direction: Direction, reach: Reach) -> StaticConfig {
    let keepalive = Keepalive { interval: 2 * SECOND, timeout: 10 * SECOND };
    StaticConfig {
        settings: Settings { keepalive, ..Settings::default() },
        key: StaticKey::new(std::array::from_fn(|n| n as u8)),
        direction: Some(direction),
        suite: BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha256) },
        reach,
        ends: Ends::default(),
    }
}

fn from(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 4000))
}

impl World {
    fn new(configs: [StaticConfig; 2]) -> Self {
        let nodes = configs.map(|config| Node {
            engine: Some(StaticEngine::new(config.clone())),
            plane: Plane::default(),
            events: Vec::new(),
            config,
            sent: Vec::new(),
        });
        Self { now: points::START, nodes, connections: BTreeMap::new(), next: 1 }
    }

    fn up() -> Self {
        Self::up_with([listener(), dialler()])
    }

    fn up_with(configs: [StaticConfig; 2]) -> Self {
        let mut w = Self::new(configs);
        assert!(w.run(5 * SECOND, |w| w.ups(L) == 1 && w.ups(D) == 1), "{:?}", w.nodes[L].events);
        w
    }

    fn run(&mut self, limit: Duration, mut done: impl FnMut(&World) -> bool) -> bool {
        let end = self.now + limit;
        let mut idle = 0;
        loop {
            self.step();
            if done(self) {
                return true;
            }
            match self.soonest().filter(|at| *at <= end) {
                Some(at) => {
                    idle = if at > self.now { 0 } else { idle + 1 };
                    assert!(idle < 1000, "time stands still");
                    self.now = at.max(self.now);
                }
                None => {
                    self.now = end;
                    return false;
                }
            }
        }
    }

    fn soonest(&self) -> Option<Instant> {
        let alive = self.nodes.iter().filter(|node| node.engine.is_some());
        let own = alive.flat_map(|node| {
            let engine = node.engine.as_ref().and_then(|engine| engine.deadline());
            [engine.map(|(at, _)| at), node.plane.deadline()]
        });
        let flying = self.connections.values().filter_map(|c| c.flying.front().map(|f| f.1));
        own.flatten().chain(flying).min()
    }

    fn step(&mut self) {
        for n in [L, D] {
            let due = |node: &Node| node.engine.as_ref().and_then(|e| e.deadline());
            if due(&self.nodes[n]).is_some_and(|(at, _)| at <= self.now) {
                self.feed(n, Input::Tick);
            }
            if self.nodes[n].engine.is_some() {
                let (notices, pings) = self.nodes[n].plane.sweep(self.now);
                pings.into_iter().for_each(|(link, packet)| self.send(n, link, packet));
                notices.into_iter().for_each(|notice| self.feed(n, Input::Notice(notice)));
            }
        }
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            while let Some(connection) = self.connections.get_mut(&id)
                && connection.flying.front().is_some_and(|(_, at, _)| *at <= self.now)
                && let Some((n, _, data)) = connection.flying.pop_front()
            {
                self.deliver(n, id, &data);
            }
        }
    }

    fn deliver(&mut self, n: usize, id: u64, data: &Data) {
        let link = self.connections.get(&id).and_then(|connection| connection.at[n]);
        let (Some(link), Some(_)) = (link, &self.nodes[n].engine) else { return };
        match self.nodes[n].plane.receive_on(self.now, link, data) {
            Taken::Notices(notices) => {
                notices.into_iter().for_each(|notice| self.feed(n, Input::Notice(notice)))
            }
            // As the data plane does it on a stream.
            Taken::Refused => self.cut(id),
            Taken::Elsewhere => {}
        }
    }

    fn send(&mut self, n: usize, link: Link, packet: Packet) {
        let Packet::Data(data) = packet else { panic!("there is no control channel") };
        let at = self.now + DELAY;
        let found = self.connections.values_mut().find(|c| c.at[n] == Some(link));
        if let Some(connection) = found {
            connection.flying.push_back((1 - n, at, data.clone()));
            self.nodes[n].sent.push(data);
        }
    }

    /// A packet from the inside.
    fn traffic(&mut self, n: usize) {
        if let Some((link, packet)) = self.nodes[n].plane.seal(self.now, PEER, Vec::new()) {
            self.send(n, link, packet);
        }
    }

    fn feed(&mut self, n: usize, input: Input<'_>) {
        let mut out = Outbox::new();
        let Some(engine) = &mut self.nodes[n].engine else { return };
        engine.handle(self.now, input, &mut out);
        self.perform(n, out);
    }

    fn perform(&mut self, n: usize, mut out: Outbox<ClientEvent>) {
        let mut dialled = false;
        while let Some(output) = out.pop() {
            match output {
                Output::Plane(op) => {
                    if let Op::SetLink(_, link) = &op {
                        assert!(link.is_stream(), "nothing here is a datagram's");
                    }
                    let (notice, sent) = self.nodes[n].plane.apply(self.now, op);
                    assert!(notice.is_none() || self.nodes[n].engine.is_some());
                    if let Some((link, packet)) = sent {
                        self.send(n, link, packet);
                    }
                }
                Output::Dial(_) => dialled = true,
                Output::Event(event) => self.nodes[n].events.push(event),
                Output::Hangup(link) => {
                    let id = link.stream_id().expect("a stream");
                    if let Some(connection) = self.connections.remove(&id)
                        && let Some(far) = connection.at[1 - n]
                    {
                        self.feed(1 - n, Input::LinkDown(far));
                    }
                }
                Output::Send(..) | Output::Ask(..) => panic!("there is no control channel"),
            }
        }
        if dialled {
            self.connect();
        }
    }

    /// The end that dials gets through, or nobody listens.
    fn connect(&mut self) {
        if self.nodes[L].engine.is_none() {
            return self.feed(D, Input::DialFailed("Connection refused".into()));
        }
        let id = self.open(from(9), true);
        let [near, far] = self.connections[&id].at.map(|link| link.expect("both"));
        self.feed(L, Input::LinkUp(near));
        self.feed(D, Input::LinkUp(far));
    }

    fn open(&mut self, from: SocketAddr, both: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        let far = both.then(|| Link::stream(id, SocketAddr::from(([192, 0, 2, 1], 1194))));
        let at = [Some(Link::stream(id, from)), far];
        self.connections.insert(id, Connection { at, flying: VecDeque::new() });
        id
    }

    /// Somebody else connects.
    fn stranger(&mut self, host: u8) -> u64 {
        let id = self.open(from(host), false);
        let link = self.connections[&id].at[L].expect("the listener's");
        self.feed(L, Input::LinkUp(link));
        id
    }

    /// A connection breaks, for both ends.
    fn cut(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        for n in [L, D] {
            if let Some(link) = connection.at[n] {
                self.feed(n, Input::LinkDown(link));
            }
        }
    }

    /// An end dies; `quietly`: the other does not hear it.
    fn kill(&mut self, n: usize, quietly: bool) {
        self.nodes[n].engine = None;
        self.nodes[n].plane = Plane::default();
        if !quietly {
            self.connections.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| {
                self.cut(id);
            });
        }
        for connection in self.connections.values_mut() {
            connection.at[n] = None;
        }
    }

    fn revive(&mut self, n: usize) {
        self.nodes[n].engine = Some(StaticEngine::new(self.nodes[n].config.clone()));
    }

    fn ups(&self, n: usize) -> usize {
        self.nodes[n].events.iter().filter(|e| matches!(e, ClientEvent::Up(_))).count()
    }

    fn restarts(&self, n: usize) -> usize {
        let restarting = |e: &&ClientEvent| matches!(e, ClientEvent::Restarting(_));
        self.nodes[n].events.iter().filter(restarting).count()
    }

    /// Whether a packet gets through in each direction now.
    fn passes(&mut self) -> bool {
        let before = [L, D].map(|n| self.nodes[n].plane.delivered.len());
        self.traffic(L);
        self.traffic(D);
        self.run(SECOND / 2, |_| false);
        [L, D].into_iter().all(|n| self.nodes[n].plane.delivered.len() > before[n])
    }

    /// The connection that both ends have.
    fn common(&self) -> u64 {
        let both = |c: &Connection| c.at.iter().all(Option::is_some);
        *self.connections.iter().find(|(_, c)| both(c)).expect("one").0
    }
}

#[test]
fn a_connection_is_up_once_something_authentic_came() {
    let mut w = World::up();
    assert!(w.passes());
    w.run(100 * SECOND, |_| false);
    assert_eq!((w.restarts(L), w.restarts(D)), (0, 0));
    // Also without pings, by the word with which the end that dials begins.
    let quiet = |mut config: StaticConfig| {
        config.settings.keepalive = Keepalive::default();
        config
    };
    let mut w = World::up_with([quiet(listener()), quiet(dialler())]);
    assert!(w.passes());
}

#[test]
fn a_connection_that_breaks_at_any_moment_is_made_again() {
    for millis in 0..150 {
        let mut w = World::new([listener(), dialler()]);
        w.run(Duration::from_millis(millis), |_| false);
        for _ in 0..5 {
            let id = *w.connections.keys().next_back().expect("dialled");
            w.traffic(D);
            w.run(Duration::from_millis(millis % 17), |_| false);
            w.cut(id);
            assert!(w.connections.is_empty());
            let before = [w.ups(L), w.ups(D)];
            let up = w.run(5 * SECOND, |w| w.ups(L) > before[L] && w.ups(D) > before[D]);
            assert!(up, "{millis}: {:?} {:?}", w.nodes[L].events, w.nodes[D].events);
            assert!(w.passes());
        }
    }
}

#[test]
fn either_end_may_die_and_come_back() {
    for (n, quietly) in [(D, false), (D, true), (L, false)] {
        let mut w = World::up();
        w.kill(n, quietly);
        w.run(3 * SECOND, |_| false);
        w.revive(n);
        let again = w.run(5 * SECOND, |w| w.nodes[n].engine.is_some() && w.ups(n) == 2);
        assert!(again, "{n} {quietly}: {:?}", w.nodes[n].events);
        assert!(w.passes(), "{n} {quietly}");
        let silence = |e: &ClientEvent| matches!(e, ClientEvent::Restarting(why) if why.contains("ping-restart"));
        assert!(!w.nodes[1 - n].events.iter().any(silence), "nobody waited for silence");
        // The other end, where it hears nothing of the death, is at its place all the time.
        assert_eq!(w.restarts(1 - n) == 0, quietly, "{n} {quietly}: {:?}", w.nodes[1 - n].events);
        assert_eq!(w.connections.len(), 1, "the former one is hung up on");
    }
}

#[test]
fn an_end_that_dies_in_silence_is_missed() {
    let mut w = World::up();
    w.kill(D, true);
    assert!(w.run(15 * SECOND, |w| w.restarts(L) == 1));
    w.run(60 * SECOND, |_| false);
    assert_eq!(w.restarts(L), 1, "until somebody comes there is nobody to miss");
}

#[test]
fn no_second_connection_ends_an_authenticated_one() {
    let mut w = World::up();
    let peers = w.common();
    let captured = w.nodes[D].sent.clone();
    for n in 0..200_u8 {
        let id = w.stranger(n);
        match n % 4 {
            0 => {}
            1 => w.cut(id),
            // Of another key, and of the right one but an old packet.
            2 => w.deliver(L, id, &w.nodes[L].sent[0].clone()),
            _ => w.deliver(L, id, &captured[usize::from(n) % captured.len()].clone()),
        }
        assert!(w.connections.contains_key(&peers), "{n}");
        assert!(w.connections.len() < 20, "strangers are bounded");
    }
    assert!(w.passes());
    w.run(70 * SECOND, |_| false);
    assert_eq!(w.connections.len(), 1, "nobody waits for ever");
    assert_eq!([w.ups(L), w.ups(D), w.restarts(L), w.restarts(D)], [1, 1, 0, 0]);
    assert!(w.passes());
}

#[test]
fn a_stranger_that_came_first_does_not_keep_the_peer_out() {
    for strangers in [1, 3, 40] {
        let mut w = World::new([listener(), dialler()]);
        let dialler = w.nodes[D].engine.take();
        w.run(SECOND, |_| false);
        let first = w.stranger(50);
        for n in 1..strangers {
            w.stranger(50 + n);
        }
        w.nodes[D].engine = dialler;
        assert!(w.run(2 * SECOND, |w| w.ups(L) == 1 && w.ups(D) == 1), "{strangers}");
        assert!(!w.connections.contains_key(&first), "its place was taken");
        assert!(w.passes());
    }
}

/// Two that wait for each other's first word: the one that came behind a stranger gets its turn.
#[test]
fn a_silent_stranger_holds_a_silent_peer_up_for_a_minute_at_most() {
    let mut config = listener();
    config.settings.keepalive = Keepalive::default();
    let mut w = World::new([config, dialler()]);
    w.nodes[D].engine = None;
    w.run(SECOND, |_| false);
    let stranger = w.stranger(50);
    w.run(100 * SECOND, |_| false);
    assert!(w.connections.contains_key(&stranger), "alone it may stay");
    let silent = w.stranger(51);
    w.run(SECOND, |_| false);
    assert!(!w.connections.contains_key(&stranger));
    assert_eq!(w.nodes[L].plane.link(PEER), w.connections[&silent].at[L]);
}

#[test]
fn a_captured_packet_is_never_delivered_on_a_new_connection() {
    let mut w = World::up();
    for _ in 0..5 {
        assert!(w.passes());
    }
    let captured = w.nodes[D].sent.clone();
    let replay = |w: &mut World| {
        for data in &captured {
            let before = w.nodes[L].plane.delivered.len();
            let ups = w.ups(L);
            let id = w.stranger(77);
            w.deliver(L, id, data);
            w.run(DELAY, |_| false);
            assert_eq!((w.nodes[L].plane.delivered.len(), w.ups(L)), (before, ups));
            assert!(!w.connections.contains_key(&id), "it is hung up on");
        }
    };
    replay(&mut w);
    // While nobody is there, when the peer is missed, and when it is back.
    w.kill(D, false);
    replay(&mut w);
    w.run(30 * SECOND, |_| false);
    replay(&mut w);
    w.revive(D);
    assert!(w.run(5 * SECOND, |w| w.ups(L) == 2));
    replay(&mut w);
    assert!(w.passes());
}

#[test]
fn who_may_not_connect_is_hung_up_on() {
    let mut choosy = listener();
    choosy.reach.accepts = Some(vec![from(9).ip()]);
    let mut w = World::up_with([choosy, dialler()]);
    let id = w.stranger(10);
    assert!(!w.connections.contains_key(&id));
    let engine = w.nodes[L].engine.as_ref().expect("alive");
    assert_eq!(engine.dropped(), 1);
    assert!(w.passes());
}

#[test]
fn notices_that_come_late_do_not_name_a_connection_that_is_gone() {
    let mut w = World::up();
    let link = w.nodes[L].plane.link(PEER);
    let gone = Link::stream(999, from(3));
    w.feed(L, Input::Notice(Notice::Floated(PEER, gone)));
    assert_eq!(w.nodes[L].plane.link(PEER), link);
    w.cut(w.common());
    let ups = w.ups(L);
    w.feed(L, Input::Notice(Notice::PeerHeard(PEER)));
    assert_eq!(w.ups(L), ups, "nobody is connected");
    assert!(w.run(5 * SECOND, |w| w.ups(L) > ups));
}

#[test]
fn an_end_that_leaves_hangs_up_and_says_nothing_more() {
    let leaving = |mut config: StaticConfig| {
        config.settings.exit_notify = Some(3);
        config
    };
    for n in [L, D] {
        let mut w = World::up_with([leaving(listener()), leaving(dialler())]);
        w.stranger(50);
        let mut out = Outbox::new();
        let now = w.now;
        w.nodes[n].engine.as_mut().expect("alive").shutdown(now, &mut out);
        w.perform(n, out);
        let stopped = |e: &ClientEvent| matches!(e, ClientEvent::Stopped(_));
        assert!(w.nodes[n].events.iter().any(stopped));
        assert_eq!(w.connections.len(), usize::from(n == D), "the stranger is the listener's");
        assert_eq!(w.restarts(1 - n), 1);
    }
}
