//! Many nodes with their rosters, on virtual time. Sessions are reliable and ordered channels with a delay.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use adit_crypto::sha256;
use adit_crypto::sign::SigningKey;
use adit_engine::{Instant, Random, UnixTime};
use adit_mesh::path::standing_neighbours;
use adit_mesh::roster::{Action, Change, ChangeHash, Changes, Genesis, Label, NodeInfo, Roster};
use adit_mesh::session::{KeyHash, SessionNumber};
use adit_mesh::sync::RosterSync;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

const START: Instant = Instant::from_nanos(1_000_000_000_000);
const UNIX: UnixTime = UnixTime(1_800_000_000);

/// The room of a session's queue.
const ROOM: usize = 64 * 1024;

/// The number of relays in a mesh.
const RELAYS: usize = 4;

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

    /// Signs a change after everything in a set, which it becomes part of.
    pub(crate) fn write(&self, changes: &mut Changes, action: Action) -> Option<ChangeHash> {
        let body = changes.draft(self.hash, UNIX, action).ok()?;
        let change = Change::sign(changes.mesh(), &self.key, body).unwrap();
        let hash = change.hash();
        changes.insert(change).ok().map(|_| hash)
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
    Action::Admit { key: node_key(number), node: NodeInfo::named(name) }
}

pub(crate) struct Node {
    pub(crate) changes: Changes,
    sync: RosterSync,
    neighbours: BTreeSet<usize>,
    is_running: bool,
}

/// A record on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Transit {
    at: Instant,
    order: u64,
    from: usize,
    to: usize,
    connection: u64,
    record: Vec<u8>,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<Node>,
    seed: u64,
    transits: BinaryHeap<Reverse<Transit>>,
    order: u64,
    /// The sessions that exist, by the two nodes, each with a number of its own.
    sessions: BTreeMap<(usize, usize), u64>,
    /// All bytes of records.
    pub(crate) bytes: u64,
}

impl World {
    /// Creates nodes with these sets, and connects each with its standing neighbours.
    pub(crate) fn new(sets: Vec<Changes>, seed: u64) -> Self {
        let mesh = *sets[0].mesh();
        let keys: Vec<KeyHash> = (0..sets.len()).map(node_key).collect();
        let number: BTreeMap<KeyHash, usize> = keys.iter().copied().zip(0..).collect();
        let relays = &keys[..RELAYS.min(keys.len())];
        let mut nodes: Vec<Node> = sets.into_iter().map(Node::new).collect();
        for (at, key) in keys.iter().enumerate() {
            for neighbour in standing_neighbours(&mesh, key, &keys, relays, 0) {
                let other = number[&neighbour];
                nodes[at].neighbours.insert(other);
                nodes[other].neighbours.insert(at);
            }
        }
        let mut world = Self {
            now: START,
            nodes,
            seed,
            transits: BinaryHeap::new(),
            order: 0,
            sessions: BTreeMap::new(),
            bytes: 0,
        };
        (0..world.nodes.len()).for_each(|at| world.start(at));
        world
    }

    /// Starts a node that was stopped, with the changes that it has.
    pub(crate) fn start(&mut self, at: usize) {
        self.nodes[at].is_running = true;
        for other in self.nodes[at].neighbours.clone() {
            if self.nodes[other].is_running {
                self.connect(at, other);
            }
        }
    }

    /// Stops a node, which keeps its changes.
    pub(crate) fn stop(&mut self, at: usize) {
        for other in self.nodes[at].neighbours.clone() {
            self.disconnect(at, other);
        }
        self.nodes[at].is_running = false;
    }

    /// Ends all sessions between nodes with even and those with odd numbers.
    pub(crate) fn part(&mut self) {
        let across: Vec<(usize, usize)> =
            self.sessions.keys().copied().filter(|(one, other)| one % 2 != other % 2).collect();
        across.into_iter().for_each(|(one, other)| self.disconnect(one, other));
    }

    /// Connects all nodes again.
    pub(crate) fn heal(&mut self) {
        for at in 0..self.nodes.len() {
            for other in self.nodes[at].neighbours.clone() {
                if self.nodes[at].is_running && self.nodes[other].is_running {
                    self.connect(at, other);
                }
            }
        }
    }

    fn connect(&mut self, one: usize, other: usize) {
        let (low, high) = (one.min(other), one.max(other));
        if low == high || self.sessions.contains_key(&(low, high)) {
            return;
        }
        self.order += 1;
        self.sessions.insert((low, high), self.order);
        self.nodes[low].sync.connected(SessionNumber(high as u64));
        self.nodes[high].sync.connected(SessionNumber(low as u64));
        self.flush(low);
        self.flush(high);
    }

    fn disconnect(&mut self, one: usize, other: usize) {
        let (low, high) = (one.min(other), one.max(other));
        if self.sessions.remove(&(low, high)).is_some() {
            self.nodes[low].sync.disconnected(SessionNumber(high as u64));
            self.nodes[high].sync.disconnected(SessionNumber(low as u64));
        }
    }

    /// Lets a signer write a change at a node. Returns whether it could.
    pub(crate) fn write(&mut self, at: usize, signer: &Signer, action: Action) -> bool {
        let node = &mut self.nodes[at];
        let Some(hash) = signer.write(&mut node.changes, action) else { return false };
        node.sync.push(&[hash]);
        self.flush(at);
        true
    }

    /// Gives a node changes that it did not get from a neighbour.
    pub(crate) fn receive(&mut self, at: usize, received: Vec<Change>) {
        let Node { changes, sync, .. } = &mut self.nodes[at];
        let mut added = Vec::new();
        for change in received {
            changes.insert_into(change, &mut added).unwrap();
        }
        sync.push(&added);
        self.flush(at);
    }

    /// Lets all nodes compare digests, as they do every five minutes.
    pub(crate) fn compare(&mut self) {
        for at in 0..self.nodes.len() {
            self.nodes[at].sync.compare();
            self.flush(at);
        }
    }

    /// Sends bytes that are no valid change to a neighbour of a node.
    pub(crate) fn send_forged(&mut self, from: usize, forged: &[u8]) {
        let mut record = vec![1, 18];
        record.extend(u16::try_from(forged.len()).unwrap().to_be_bytes());
        record.extend(forged);
        if let Some(to) = self.nodes[from].neighbours.first().copied() {
            self.send(from, to, record);
        }
    }

    /// Sends everything that a node has to say.
    fn flush(&mut self, at: usize) {
        for to in self.nodes[at].neighbours.clone() {
            let session = SessionNumber(to as u64);
            let Node { changes, sync, .. } = &mut self.nodes[at];
            let mut records = Vec::new();
            while let Some(record) = sync.next_record(session, changes, ROOM) {
                records.push(record);
            }
            records.into_iter().for_each(|record| self.send(at, to, record));
        }
    }

    fn send(&mut self, from: usize, to: usize, record: Vec<u8>) {
        let pair = (from.min(to), from.max(to));
        let Some(connection) = self.sessions.get(&pair).copied() else { return };
        self.order += 1;
        self.bytes += record.len() as u64;
        let at = self.now + self.delay(pair);
        let order = self.order;
        self.transits.push(Reverse(Transit { at, order, from, to, connection, record }));
    }

    /// Returns the one-way delay between two nodes: 5 to 150 ms.
    fn delay(&self, (low, high): (usize, usize)) -> Duration {
        let hash = sha256(&[&self.seed.to_be_bytes(), &low.to_be_bytes(), &high.to_be_bytes()]);
        MS * (5 + u32::from(hash[0]) * 145 / 255)
    }

    /// Delivers records until nothing is on its way, or until `limit` is over. Returns whether it is quiet.
    pub(crate) fn run(&mut self, limit: Duration) -> bool {
        self.run_until(limit, |_| false);
        self.transits.is_empty()
    }

    /// Delivers records until `done`, for at most `limit`. Returns whether it was done.
    pub(crate) fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            match self.transits.peek() {
                Some(Reverse(next)) if next.at <= end => self.step(),
                _ => {
                    self.now = end;
                    return done(self);
                }
            }
        }
        true
    }

    fn step(&mut self) {
        let Some(Reverse(transit)) = self.transits.pop() else { return };
        self.now = self.now.max(transit.at);
        let Transit { from, to, connection, record, .. } = transit;
        if self.sessions.get(&(from.min(to), from.max(to))) != Some(&connection) {
            return;
        }
        let Node { changes, sync, .. } = &mut self.nodes[to];
        let taken = sync.record(self.now, SessionNumber(from as u64), &record, changes);
        if taken.is_err() {
            self.disconnect(from, to);
        }
        self.flush(to);
    }

    pub(crate) fn roster(&self, at: usize) -> Roster {
        Roster::evaluate(&self.nodes[at].changes)
    }

    pub(crate) fn invalid(&self) -> u64 {
        self.nodes.iter().map(|node| node.sync.counters().invalid).sum()
    }

    pub(crate) fn is_running(&self, at: usize) -> bool {
        self.nodes[at].is_running
    }
}

impl Node {
    fn new(changes: Changes) -> Self {
        Self {
            changes,
            sync: RosterSync::default(),
            neighbours: BTreeSet::new(),
            is_running: false,
        }
    }
}

/// Returns one of the numbers below `count`.
pub(crate) fn pick(random: &mut Random, count: usize) -> usize {
    random.below(u32::try_from(count).unwrap()) as usize
}
