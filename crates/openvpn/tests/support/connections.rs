//! Two ends over TCP, one of which listens while the other dials, and unauthenticated senders, in
//! virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Instant, Link};
use adit_openvpn::client::ClientEvent;
use adit_openvpn::data_format::{Command, Input, Outbox, Output};

use crate::points::{self, Config, End, Packet, Plane, Taken};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const DELAY: Duration = Duration::from_millis(10);
/// The index of the listening end. `D` is the dialling end.
pub(crate) const L: usize = 0;
pub(crate) const D: usize = 1;

pub(crate) struct Node {
    pub engine: Option<End>,
    pub plane: Plane,
    pub events: Vec<ClientEvent>,
    config: Config,
    /// All packets that it ever sent.
    pub sent: Vec<Packet>,
}

/// A connection with each end's link. An unauthenticated sender's connection has no engine at the
/// dialling end.
pub(crate) struct Connection {
    pub at: [Option<Link>; 2],
    /// The receiver, the time of arrival and the packet.
    flying: VecDeque<(usize, Instant, Packet)>,
}

pub(crate) struct World {
    pub now: Instant,
    pub nodes: [Node; 2],
    pub connections: BTreeMap<u64, Connection>,
    next: u64,
    /// The number of times that an end was created. Each time it gets a different random seed.
    lives: u8,
}

pub(crate) fn from(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 4000))
}

impl World {
    pub(crate) fn new(configs: [Config; 2]) -> Self {
        let nodes = configs.map(|config| Node {
            engine: Some(End::new(config.clone(), [7; 32], points::START)),
            plane: Plane::default(),
            events: Vec::new(),
            config,
            sent: Vec::new(),
        });
        Self { now: points::START, nodes, connections: BTreeMap::new(), next: 1, lives: 9 }
    }

    pub(crate) fn up_with(configs: [Config; 2]) -> Self {
        let mut w = Self::new(configs);
        assert!(w.run(5 * SECOND, |w| w.ups(L) == 1 && w.ups(D) == 1), "{:?}", w.nodes[L].events);
        w
    }

    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
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
            [engine, node.plane.deadline()]
        });
        let flying = self.connections.values().filter_map(|c| c.flying.front().map(|f| f.1));
        own.flatten().chain(flying).min()
    }

    fn step(&mut self) {
        for n in [L, D] {
            let due = |node: &Node| node.engine.as_ref().and_then(|e| e.deadline());
            if due(&self.nodes[n]).is_some_and(|at| at <= self.now) {
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

    pub(crate) fn deliver(&mut self, n: usize, id: u64, packet: &Packet) {
        let link = self.connections.get(&id).and_then(|connection| connection.at[n]);
        let (Some(link), Some(_)) = (link, &self.nodes[n].engine) else { return };
        let data = match packet {
            Packet::Control(bytes) => {
                return self.feed(n, Input::ControlPacket(link, &mut bytes.clone()));
            }
            Packet::Data(data) => data,
        };
        match self.nodes[n].plane.receive_on(self.now, link, data) {
            Taken::Notices(notices) => {
                notices.into_iter().for_each(|notice| self.feed(n, Input::Notice(notice)));
            }
            // The data plane closes such a stream too.
            Taken::Refused => self.cut(id),
            Taken::Elsewhere => {}
        }
    }

    fn send(&mut self, n: usize, link: Link, packet: Packet) {
        let at = self.now + DELAY;
        let found = self.connections.values_mut().find(|c| c.at[n] == Some(link));
        if let Some(connection) = found {
            connection.flying.push_back((1 - n, at, packet.clone()));
            self.nodes[n].sent.push(packet);
        }
    }

    /// Sends a packet from inside the tunnel.
    pub(crate) fn traffic(&mut self, n: usize) {
        if let Some((link, packet)) = self.nodes[n].plane.traffic(self.now) {
            self.send(n, link, packet);
        }
    }

    pub(crate) fn feed(&mut self, n: usize, input: Input<'_>) {
        let mut out = Outbox::new();
        let Some(engine) = &mut self.nodes[n].engine else { return };
        engine.engine().handle(self.now, input, &mut out);
        self.perform(n, out);
    }

    /// Changes the network of an end. With `stale`, the end's address is gone.
    pub(crate) fn path_changed(&mut self, n: usize, stale: bool) {
        let mut out = Outbox::new();
        let engine = self.nodes[n].engine.as_mut().expect("alive");
        engine.path_changed(self.now, stale, &mut out);
        self.perform(n, out);
    }

    pub(crate) fn perform(&mut self, n: usize, mut out: Outbox<ClientEvent>) {
        let mut dialled = false;
        while let Some(output) = out.pop() {
            match output {
                Output::Plane(op) => {
                    if let Command::SetLink(_, link) = &op {
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
                Output::Send(link, bytes) => self.send(n, link, Packet::Control(bytes)),
                Output::AuthRequest(..) => panic!("no question is expected"),
            }
        }
        if dialled {
            self.connect();
        }
    }

    /// Connects the dialling end, unless there is no listener.
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

    /// Connects an unauthenticated sender.
    pub(crate) fn stranger(&mut self, host: u8) -> u64 {
        let id = self.open(from(host), false);
        let link = self.connections[&id].at[L].expect("the listener's");
        self.feed(L, Input::LinkUp(link));
        id
    }

    /// Breaks a connection, for both ends.
    pub(crate) fn cut(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        for n in [L, D] {
            if let Some(link) = connection.at[n] {
                self.feed(n, Input::LinkDown(link));
            }
        }
    }

    /// Breaks a connection, and checks that another one replaces it at both ends.
    #[track_caller]
    pub(crate) fn breaks(&mut self, id: u64) {
        self.cut(id);
        assert!(self.connections.is_empty());
        let before = [self.ups(L), self.ups(D)];
        let up = self.run(5 * SECOND, |w| w.ups(L) > before[L] && w.ups(D) > before[D]);
        assert!(up, "{:?} {:?}", self.nodes[L].events, self.nodes[D].events);
        assert!(self.passes());
    }

    /// Kills an end. With `quietly`, the other end does not notice it.
    pub(crate) fn kill(&mut self, n: usize, quietly: bool) {
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

    pub(crate) fn revive(&mut self, n: usize) {
        self.lives += 1;
        let seed = [self.lives; 32];
        self.nodes[n].engine = Some(End::new(self.nodes[n].config.clone(), seed, self.now));
    }

    pub(crate) fn ups(&self, n: usize) -> usize {
        self.nodes[n].events.iter().filter(|e| matches!(e, ClientEvent::Up(_))).count()
    }

    pub(crate) fn restarts(&self, n: usize) -> usize {
        let restarting = |e: &&ClientEvent| matches!(e, ClientEvent::Restarting(_));
        self.nodes[n].events.iter().filter(restarting).count()
    }

    /// Returns whether a packet gets through in each direction now.
    pub(crate) fn passes(&mut self) -> bool {
        let before = [L, D].map(|n| self.nodes[n].plane.delivered.len());
        self.traffic(L);
        self.traffic(D);
        self.run(SECOND / 2, |_| false);
        [L, D].into_iter().all(|n| self.nodes[n].plane.delivered.len() > before[n])
    }

    /// Returns the connection that both ends use.
    pub(crate) fn common(&self) -> u64 {
        let both = |c: &Connection| c.at.iter().all(Option::is_some);
        *self.connections.iter().find(|(_, c)| both(c)).expect("one").0
    }
}
