//! Many nodes with their rosters, in virtual time. A session is a reliable and ordered channel with a delay, which exists only while both
//! ends have each other in their rosters. A node dials the standing neighbours that follow from its own roster, and others when it has a
//! packet for them.
//!
//! The model leaves out bandwidth, loss, and the content of handshakes.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;
use std::time::Duration;

use adit_crypto::sha256;
use adit_crypto::sign::SigningKey;
use adit_engine::{Instant, Random, UnixTime};
use adit_mesh::path::standing_neighbours;
use adit_mesh::roster::{
    Action, Change, ChangeHash, Changes, Genesis, Label, Layer, NodeInfo, Roster,
};
use adit_mesh::session::{KeyHash, SessionNumber};
use adit_mesh::sync::RosterSync;

use crate::model::{self, Naive};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

const START: Instant = Instant::from_nanos(1_000_000_000_000);
const UNIX: UnixTime = UnixTime(1_800_000_000);

/// The capacity of a session's queue.
const ROOM: usize = 64 * 1024;

/// The number of relays in a mesh: its first nodes.
pub(crate) const RELAYS: usize = 4;

/// The time without an answer after which a node tries again, plus a pause that doubles up to a maximum.
const ANSWER: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How often nodes compare digests and choose their neighbours again.
const COMPARE: Duration = Duration::from_secs(300);

/// The time after which a session that is not a standing one ends.
const IDLE: Duration = Duration::from_secs(10);

/// In meshes of at most this size, each node chooses its neighbours after each change; in larger ones only after losing one.
const SMALL: usize = 100;

/// The number of evaluated sets kept for the next node with the same changes.
const VIEWS: usize = 64;

/// A key that signs changes.
pub(crate) struct Signer {
    key: SigningKey,
    pub(crate) hash: KeyHash,
}

impl Signer {
    pub(crate) fn new(seed: u8) -> Self {
        let key = SigningKey::from_seed(&[seed; 32]).unwrap();
        let hash = key.public_hash();
        Self { key, hash }
    }

    /// Signs a change after everything in a set, and adds it to the set.
    pub(crate) fn write(&self, changes: &mut Changes, action: Action) -> Option<ChangeHash> {
        let change = self.sign(changes, changes.mesh(), action)?;
        let hash = change.hash();
        changes.insert(change).ok().map(|_| hash)
    }

    fn sign(&self, changes: &Changes, mesh: &[u8; 16], action: Action) -> Option<Change> {
        let body = changes.draft(self.hash, UNIX, action).ok()?;
        Some(Change::sign(mesh, &self.key, body).unwrap())
    }
}

/// Returns the set of a mesh with these admins.
pub(crate) fn mesh(admins: &[&Signer]) -> Changes {
    let genesis = Genesis {
        name: Label::new("home").unwrap(),
        admins: admins.iter().map(|admin| admin.hash).collect(),
        threshold: 1,
        ranges: vec!["100.64.0.0/10".parse().unwrap()],
        random: [7; 32],
        layer: Layer::Ip,
    };
    Changes::new(genesis).unwrap()
}

/// Returns the key of the node with this number.
pub(crate) fn node_key(number: usize) -> KeyHash {
    sha256(&[b"node", &number.to_be_bytes()])
}

/// Returns the admission of the node with this number.
pub(crate) fn admit(number: usize) -> Action {
    let name = Label::new(&format!("node{number}")).unwrap();
    let node = NodeInfo { relay: number < RELAYS, ..NodeInfo::named(name) };
    Action::Admit { key: node_key(number), node }
}

/// The behaviour of a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conduct {
    Honest,
    /// It forwards nothing, and claims to have the same changes as its neighbours.
    Withholds,
    /// It continues after its removal, and dials and accepts every node.
    Defiant,
}

/// The results of evaluating a set of changes.
struct View {
    roster: Roster,
    members: Vec<KeyHash>,
    relays: Vec<KeyHash>,
    naive: OnceCell<Naive>,
}

pub(crate) struct Node {
    key: KeyHash,
    pub(crate) changes: Changes,
    sync: RosterSync,
    /// The evaluation of the changes, unless they have changed since.
    view: Option<Rc<View>>,
    standing: BTreeSet<usize>,
    /// The roster and the hour for which the neighbours were chosen.
    chosen_for: Option<(Rc<View>, u64)>,
    /// The nodes that it has a session with.
    peers: BTreeSet<usize>,
    /// The nodes that it dials.
    attempts: BTreeSet<usize>,
    is_running: bool,
    conduct: Conduct,
    /// Its part of a divided network.
    island: usize,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Instant,
    order: u64,
    what: What,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Record {
        from: usize,
        to: usize,
        connection: u64,
        record: Vec<u8>,
    },
    Packet {
        from: usize,
        to: usize,
        connection: u64,
    },
    /// An attempt to connect. An attempt for a packet is not repeated.
    Dial {
        from: usize,
        to: usize,
        failures: u32,
        for_packet: bool,
    },
    Established {
        from: usize,
        to: usize,
        failures: u32,
        for_packet: bool,
    },
    Idle {
        one: usize,
        other: usize,
        connection: u64,
    },
    Compare(usize),
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<Node>,
    seed: u64,
    random: Random,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    by_key: BTreeMap<KeyHash, usize>,
    views: BTreeMap<[u8; 32], Rc<View>>,
    /// The existing sessions by their two nodes, each with a number.
    sessions: BTreeMap<(usize, usize), u64>,
    /// All changes signed with signers' keys.
    authentic: BTreeSet<ChangeHash>,
    /// The last time at which a set of changes grew.
    changed_at: Instant,
    /// The total length of all records.
    pub(crate) bytes: u64,
    /// The number of packets that arrived.
    pub(crate) packets: u64,
    /// Whether to check the affected nodes' sessions after each event.
    pub(crate) is_checked: bool,
}

impl World {
    /// Creates nodes with these sets, without starting them.
    pub(crate) fn new(sets: Vec<Changes>, seed: u64) -> Self {
        let mut world = Self {
            now: START,
            nodes: Vec::new(),
            seed,
            random: seeded(seed),
            events: BinaryHeap::new(),
            order: 0,
            by_key: BTreeMap::new(),
            views: BTreeMap::new(),
            sessions: BTreeMap::new(),
            authentic: BTreeSet::new(),
            changed_at: START,
            bytes: 0,
            packets: 0,
            is_checked: true,
        };
        for set in sets {
            world.authentic.extend(set.in_causal_order().iter().map(|change| change.hash()));
            world.add(set);
        }
        world
    }

    fn add(&mut self, changes: Changes) {
        let key = node_key(self.nodes.len());
        self.by_key.insert(key, self.nodes.len());
        self.nodes.push(Node {
            key,
            changes,
            sync: RosterSync::default(),
            view: None,
            standing: BTreeSet::new(),
            chosen_for: None,
            peers: BTreeSet::new(),
            attempts: BTreeSet::new(),
            is_running: false,
            conduct: Conduct::Honest,
            island: 0,
        });
    }

    pub(crate) fn start_all(&mut self) {
        (0..self.nodes.len()).for_each(|at| self.start(at));
    }

    /// Starts a node that was stopped, with the changes that it has.
    pub(crate) fn start(&mut self, at: usize) {
        self.nodes[at].is_running = true;
        self.put_into_effect(at);
        self.choose(at);
        let phase = MS * self.random.below(300_000);
        self.push(phase, What::Compare(at));
    }

    /// Stops a node, which keeps its changes.
    pub(crate) fn stop(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.is_running = false;
        node.standing.clear();
        node.chosen_for = None;
        for other in node.peers.clone() {
            self.disconnect(at, other);
        }
    }

    pub(crate) fn set_conduct(&mut self, at: usize, conduct: Conduct) {
        self.nodes[at].conduct = conduct;
    }

    /// Divides the network into two parts, at random.
    pub(crate) fn part(&mut self) {
        let islands: Vec<usize> =
            (0..self.nodes.len()).map(|_| pick(&mut self.random, 2)).collect();
        self.divide(|at| islands[at]);
    }

    /// Divides the network into parts with these numbers.
    pub(crate) fn divide(&mut self, island: impl Fn(usize) -> usize) {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.island = island(at);
        }
        let is_cut = |(one, other): &(usize, usize)| island(*one) != island(*other);
        let cut: Vec<_> = self.sessions.keys().copied().filter(is_cut).collect();
        cut.into_iter().for_each(|(one, other)| self.disconnect(one, other));
    }

    /// Reunites the network.
    pub(crate) fn heal(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.island = 0);
    }

    /// Chooses the standing neighbours of a node, and dials those without a session.
    fn choose(&mut self, at: usize) {
        let view = self.view(at);
        let hour = self.now.as_nanos() / 3_600_000_000_000;
        let node = &mut self.nodes[at];
        let is_same = |(of, when): &(Rc<View>, u64)| Rc::ptr_eq(of, &view) && *when == hour;
        if !node.chosen_for.as_ref().is_some_and(is_same) {
            let mesh = node.changes.mesh();
            let chosen = standing_neighbours(mesh, &node.key, &view.members, &view.relays, hour);
            node.standing = chosen.iter().filter_map(|key| self.by_key.get(key)).copied().collect();
            node.chosen_for = Some((view, hour));
        }
        for other in node.standing.clone() {
            self.dial(at, other, Duration::ZERO);
        }
    }

    fn dial(&mut self, from: usize, to: usize, after: Duration) {
        let node = &mut self.nodes[from];
        if !node.peers.contains(&to) && node.attempts.insert(to) {
            self.push(after, What::Dial { from, to, failures: 0, for_packet: false });
        }
    }

    /// Returns whether a node completes a handshake with another one.
    fn accepts(&mut self, at: usize, other: usize) -> bool {
        let key = self.nodes[other].key;
        self.nodes[at].is_running
            && (self.nodes[at].conduct == Conduct::Defiant
                || self.view(at).roster.member(&key).is_some())
    }

    fn is_possible(&mut self, one: usize, other: usize) -> bool {
        self.nodes[one].island == self.nodes[other].island
            && self.accepts(one, other)
            && self.accepts(other, one)
    }

    fn dial_due(&mut self, from: usize, to: usize, failures: u32, for_packet: bool) {
        let node = &mut self.nodes[from];
        if !node.is_running
            || node.peers.contains(&to)
            || !(for_packet || node.standing.contains(&to))
        {
            node.attempts.remove(&to);
        } else if self.is_possible(from, to) {
            // The cookie exchange and the TLS handshake.
            let after = self.delay(from, to) * 4;
            self.push(after, What::Established { from, to, failures, for_packet });
        } else {
            self.failed(from, to, failures, for_packet);
        }
    }

    fn failed(&mut self, from: usize, to: usize, failures: u32, for_packet: bool) {
        if for_packet {
            self.nodes[from].attempts.remove(&to);
            return;
        }
        let failures = failures + 1;
        let pause = (SHORTEST_PAUSE * 2_u32.saturating_pow(failures.min(8))).min(LONGEST_PAUSE);
        let after = ANSWER + pause + MS * self.random.below(500);
        self.push(after, What::Dial { from, to, failures, for_packet });
    }

    fn established(&mut self, from: usize, to: usize, failures: u32, for_packet: bool) {
        if !self.nodes[from].peers.contains(&to) && !self.is_possible(from, to) {
            self.failed(from, to, failures, for_packet);
            return;
        }
        self.nodes[from].attempts.remove(&to);
        if !self.nodes[from].peers.insert(to) {
            return;
        }
        self.nodes[to].peers.insert(from);
        self.order += 1;
        let connection = self.order;
        self.sessions.insert((from.min(to), from.max(to)), connection);
        for (at, other) in [(from, to), (to, from)] {
            self.nodes[at].sync.connected(SessionNumber(other as u64));
            self.flush(at);
        }
        if for_packet {
            self.push(IDLE, What::Idle { one: from, other: to, connection });
            self.send_packet(from, to, connection);
        }
    }

    fn disconnect(&mut self, one: usize, other: usize) {
        if self.sessions.remove(&(one.min(other), one.max(other))).is_none() {
            return;
        }
        for (at, other) in [(one, other), (other, one)] {
            let node = &mut self.nodes[at];
            node.peers.remove(&other);
            node.sync.disconnected(SessionNumber(other as u64));
            if node.standing.contains(&other) {
                self.dial(at, other, ANSWER);
            }
        }
    }

    /// Sends a packet to another node if there is a session; otherwise begins one.
    pub(crate) fn packet(&mut self, from: usize, to: usize) {
        if !self.nodes[from].is_running || from == to {
            return;
        }
        match self.sessions.get(&(from.min(to), from.max(to))).copied() {
            Some(connection) => self.send_packet(from, to, connection),
            None if self.accepts(from, to) && self.nodes[from].attempts.insert(to) => {
                let what = What::Dial { from, to, failures: 0, for_packet: true };
                self.push(Duration::ZERO, what);
            }
            None => {}
        }
    }

    fn send_packet(&mut self, from: usize, to: usize, connection: u64) {
        self.check(from);
        self.push(self.delay(from, to), What::Packet { from, to, connection });
    }

    /// Makes a signer sign a change on a node. Returns whether it could.
    pub(crate) fn write(&mut self, at: usize, signer: &Signer, action: Action) -> bool {
        let node = &mut self.nodes[at];
        let Some(hash) = signer.write(&mut node.changes, action) else { return false };
        self.authentic.insert(hash);
        node.sync.push(&[hash]);
        node.view = None;
        self.flush(at);
        self.put_into_effect(at);
        true
    }

    /// Gives a node changes that it did not get from a neighbour.
    pub(crate) fn receive(&mut self, at: usize, received: Vec<Change>) {
        let Node { changes, sync, view, .. } = &mut self.nodes[at];
        let mut added = Vec::new();
        for change in received {
            changes.insert_into(change, &mut added).unwrap();
        }
        sync.push(&added);
        *view = None;
        self.flush(at);
        self.put_into_effect(at);
    }

    /// Makes a signer admit a new node at its own node; the new one may start with a copy of that node's set.
    pub(crate) fn admit(&mut self, at: usize, signer: &Signer, runs: bool) {
        let number = self.nodes.len();
        let written = self.write(at, signer, admit(number));
        self.add(self.nodes[at].changes.clone());
        self.nodes[number].island = self.nodes[at].island;
        if written && runs {
            self.start(number);
        }
    }

    /// Sends an invalid change to all neighbours of a node.
    pub(crate) fn send_forged(&mut self, from: usize) {
        let forged = self.forged(from);
        let mut record = vec![1, 18];
        record.extend(u16::try_from(forged.len()).unwrap().to_be_bytes());
        record.extend(forged);
        for to in self.nodes[from].peers.clone() {
            self.send(from, to, record.clone());
        }
    }

    fn forged(&mut self, at: usize) -> Vec<u8> {
        let changes = &self.nodes[at].changes;
        let stranger = Signer::new(99);
        let (action, mesh) = (admit(5000 + pick(&mut self.random, 1000)), changes.mesh());
        match self.random.below(4) {
            0 => self.random.bytes::<200>().to_vec(),
            1 => {
                let all = changes.in_causal_order();
                let mut forged = all[pick(&mut self.random, all.len())].encode();
                let bit = pick(&mut self.random, forged.len() * 8);
                forged[bit / 8] ^= 1 << (bit % 8);
                forged
            }
            // Signed by a key without a right.
            2 => stranger.sign(changes, mesh, action).unwrap().encode(),
            // Signed by an admin, for another mesh.
            _ => Signer::new(1)
                .sign(changes, &[9; 16], action)
                .map_or(vec![7; 300], |it| it.encode()),
        }
    }

    /// Sends all records that a node has queued.
    fn flush(&mut self, at: usize) {
        for to in self.nodes[at].peers.clone() {
            self.flush_to(at, to);
        }
    }

    fn flush_to(&mut self, at: usize, to: usize) {
        if self.nodes[at].conduct == Conduct::Withholds {
            return;
        }
        let session = SessionNumber(to as u64);
        loop {
            let Node { changes, sync, .. } = &mut self.nodes[at];
            let Some(record) = sync.next_record(session, changes, ROOM) else { return };
            self.send(at, to, record);
        }
    }

    fn send(&mut self, from: usize, to: usize, record: Vec<u8>) {
        let pair = (from.min(to), from.max(to));
        let Some(connection) = self.sessions.get(&pair).copied() else { return };
        self.bytes += record.len() as u64;
        self.push(self.delay(from, to), What::Record { from, to, connection, record });
    }

    /// Returns the one-way delay between two nodes: 5 to 150 ms.
    fn delay(&self, one: usize, other: usize) -> Duration {
        let (low, high) = (one.min(other), one.max(other));
        let hash = sha256(&[&self.seed.to_be_bytes(), &low.to_be_bytes(), &high.to_be_bytes()]);
        MS * (5 + u32::from(hash[0]) * 145 / 255)
    }

    fn push(&mut self, after: Duration, what: What) {
        self.order += 1;
        let (at, order) = (self.now + after, self.order);
        self.events.push(Reverse(Event { at, order, what }));
    }

    /// Runs for a time.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.events.peek().is_some_and(|Reverse(next)| next.at <= end) {
            self.step();
        }
        self.now = end;
    }

    fn step(&mut self) {
        let Some(Reverse(event)) = self.events.pop() else { return };
        self.now = self.now.max(event.at);
        match event.what {
            What::Record { from, to, connection, record } => {
                if self.is_current(from, to, connection) {
                    self.record(from, to, &record);
                    self.check(to);
                }
            }
            What::Packet { from, to, connection } => {
                if self.is_current(from, to, connection) {
                    self.packets += 1;
                    self.check(to);
                }
            }
            What::Dial { from, to, failures, for_packet } => {
                self.dial_due(from, to, failures, for_packet);
            }
            What::Established { from, to, failures, for_packet } => {
                self.established(from, to, failures, for_packet);
                self.check(from);
                self.check(to);
            }
            What::Idle { one, other, connection } => {
                let stands = self.nodes[one].standing.contains(&other)
                    || self.nodes[other].standing.contains(&one);
                if !stands && self.is_current(one, other, connection) {
                    self.disconnect(one, other);
                }
            }
            What::Compare(at) => {
                if self.nodes[at].is_running {
                    self.nodes[at].sync.compare();
                    self.flush(at);
                    self.choose(at);
                    self.push(COMPARE, What::Compare(at));
                }
            }
        }
    }

    fn is_current(&self, from: usize, to: usize, connection: u64) -> bool {
        self.sessions.get(&(from.min(to), from.max(to))) == Some(&connection)
    }

    fn record(&mut self, from: usize, to: usize, record: &[u8]) {
        let node = &mut self.nodes[to];
        if node.conduct == Conduct::Withholds && record.get(1) == Some(&16) {
            // Echo the neighbour's own digest.
            return self.send(to, from, record.to_vec());
        }
        let session = SessionNumber(from as u64);
        let Ok(added) = node.sync.record(self.now, session, record, &mut node.changes) else {
            return self.disconnect(from, to);
        };
        if added.is_empty() {
            return self.flush_to(to, from);
        }
        self.flush(to);
        self.changed_at = self.now;
        let node = &mut self.nodes[to];
        node.view = None;
        let admits = |hash| {
            node.changes.get(hash).is_some_and(|it| matches!(it.action(), Action::Admit { .. }))
        };
        let heads = node.changes.heads();
        let forks = heads.windows(2).any(|two| two[0].signer == two[1].signer);
        let only_admits = added.iter().all(admits) && !forks;
        if self.nodes.len() <= SMALL || !only_admits {
            self.put_into_effect(to);
        }
    }

    /// Ends a node's sessions with nodes that are not members in its roster, and all its sessions if it is not a member itself.
    fn put_into_effect(&mut self, at: usize) {
        if self.nodes[at].conduct == Conduct::Defiant || !self.nodes[at].is_running {
            return;
        }
        let view = self.view(at);
        if view.roster.member(&self.nodes[at].key).is_none() {
            return self.stop(at);
        }
        let is_member =
            |w: &Self, other: &usize| view.roster.member(&w.nodes[*other].key).is_some();
        for other in self.nodes[at].peers.clone() {
            if !is_member(self, &other) {
                self.disconnect(at, other);
            }
        }
        let lost_one = !self.nodes[at].standing.iter().all(|other| is_member(self, other));
        if lost_one || self.nodes.len() <= SMALL {
            self.choose(at);
        }
    }

    fn view(&mut self, at: usize) -> Rc<View> {
        if let Some(view) = &self.nodes[at].view {
            return Rc::clone(view);
        }
        let changes = &self.nodes[at].changes;
        let new = || Rc::new(View::new(changes));
        let view = Rc::clone(self.views.entry(changes.digest()).or_insert_with(new));
        self.nodes[at].view = Some(Rc::clone(&view));
        if self.views.len() > VIEWS {
            self.views.retain(|_, view| Rc::strong_count(view) > 1);
        }
        view
    }

    /// Asserts that a node has no session with any node that it knows to be revoked.
    fn check(&mut self, at: usize) {
        let node = &self.nodes[at];
        if !self.is_checked || node.conduct == Conduct::Defiant || !node.is_running {
            return;
        }
        let view = self.view(at);
        let naive = self.naive(at, &view);
        for other in &self.nodes[at].peers {
            let key = &self.nodes[*other].key;
            assert!(!naive.revoked.contains(key), "seed {}: {at} talks to {other}", self.seed);
        }
    }

    fn naive<'v>(&self, at: usize, view: &'v View) -> &'v Naive {
        let changes = &self.nodes[at].changes;
        view.naive.get_or_init(|| model::evaluate(changes, changes.genesis().admins[0]))
    }

    /// Asserts that a node's roster equals the model's, and that signers signed all of its changes.
    pub(crate) fn assert_model(&mut self, at: usize, what: &str) {
        let view = self.view(at);
        let naive = self.naive(at, &view);
        let members: BTreeSet<KeyHash> = view.members.iter().copied().collect();
        assert_eq!(members, naive.members, "{what}: node {at}");
        assert_eq!(*view.roster.revoked(), naive.revoked, "{what}: node {at}");
        let all = self.nodes[at].changes.in_causal_order();
        let forged = all.iter().filter(|change| !self.authentic.contains(&change.hash()));
        assert_eq!(forged.count(), 0, "{what}: node {at} has changes that no signer signed");
    }

    /// Returns whether a node runs, follows the rules, and is a member in the first node's roster.
    pub(crate) fn is_good(&mut self, at: usize) -> bool {
        let node = &self.nodes[at];
        node.is_running && node.conduct == Conduct::Honest && {
            let key = node.key;
            self.is_member(0, &key)
        }
    }

    /// Returns whether all honest nodes have the same set as the first one.
    pub(crate) fn is_settled(&mut self) -> bool {
        let digest = self.nodes[0].changes.digest();
        let nodes = 0..self.nodes.len();
        nodes.into_iter().all(|at| !self.is_good(at) || self.nodes[at].changes.digest() == digest)
    }

    /// Returns the time from the beginning until the last set of changes grew.
    pub(crate) fn settled_after(&self) -> Duration {
        self.changed_at.since(START)
    }

    /// Runs until [`Self::is_settled`], for at most this number of seconds. Returns whether it settled.
    pub(crate) fn settle(&mut self, seconds: u32) -> bool {
        for _ in 0..seconds {
            self.run(SECOND);
            if self.is_settled() {
                return true;
            }
        }
        false
    }

    pub(crate) fn is_member(&mut self, at: usize, key: &KeyHash) -> bool {
        self.view(at).roster.member(key).is_some()
    }

    pub(crate) fn invalid(&self) -> u64 {
        self.nodes.iter().map(|node| node.sync.counters().invalid).sum()
    }

    pub(crate) fn is_running(&self, at: usize) -> bool {
        self.nodes[at].is_running
    }
}

impl View {
    fn new(changes: &Changes) -> Self {
        let roster = Roster::evaluate(changes);
        let members = roster.members().map(|member| member.key).collect();
        let relays =
            roster.members().filter(|member| member.relay).map(|member| member.key).collect();
        Self { roster, members, relays, naive: OnceCell::new() }
    }
}

/// Returns one of the numbers below `count`.
pub(crate) fn pick(random: &mut Random, count: usize) -> usize {
    random.below(u32::try_from(count).unwrap()) as usize
}

/// Returns a separate generator for a scenario.
pub(crate) fn seeded(seed: u64) -> Random {
    let mut bytes = [0x5a; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    Random::new(bytes)
}
