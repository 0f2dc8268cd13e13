//! The state that the tasks of a node share. They take turns on one thread, so no borrow is held across an `await`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use adit_engine::{Instant, Random};
use adit_postgres::key::{KeyRing, NodeKeys};
use adit_postgres::receiver::{Position, Receiver};
use adit_postgres::routes::{Routes, removed_streams};
use adit_postgres::sender::{Config, SavedState, Sender};
use adit_postgres::{Durability, Generation, NodeId, StreamId, limits};
use adit_postgres_client::Target;
use adit_postgres_client::pooler::{self, ProbeError};
use tokio::sync::Notify;

use super::connection::within;
use super::db_error::DbError;
use super::device::Device;
use super::directory::{Directory, Pins};
use super::health::Health;
use super::positions::{PositionKind, Positions};
use crate::Settings;
use adit_runtime::clock::now;
use adit_runtime::metrics::Durations;
use adit_runtime::say;

/// The time limit for detecting whether sessions are shared.
const PROBE: Duration = Duration::from_secs(15);

/// The minimum and maximum time that a leaf is open.
const LEAF_AGE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30 * 86_400));

/// The state of a running node.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) target: Target,
    pub(super) keys: NodeKeys,
    pub(super) ring: RefCell<KeyRing>,
    /// The last logged reason why a key of the network was refused.
    pub(super) key_trouble: RefCell<Option<String>>,
    /// The path of the key ring.
    pub(super) ring_file: PathBuf,
    /// The generation that seals, and the oldest accepted one, as last set in the engines.
    pub(super) generations: Cell<(Generation, Generation)>,
    /// An id that distinguishes this process as the holder of a lock from other processes of the same node.
    pub(super) instance: String,
    pub(super) device: Device,
    pub(super) random: RefCell<Random>,
    pub(super) pins: RefCell<Pins>,
    pub(super) positions: RefCell<Positions>,
    pub(super) directory: RefCell<Option<Rc<Directory>>>,
    pub(super) routes: RefCell<Rc<Routes>>,
    /// The sender; `None` until the network is known.
    pub(super) sender: RefCell<Option<Sender>>,
    pub(super) receivers: RefCell<BTreeMap<StreamId, Receiver>>,
    /// Signals that there are packets to send.
    pub(super) work: Notify,
    /// Signals that the host's routes must be reconciled with the directory.
    pub(super) changed: Notify,
    /// Signals that a leaf was closed.
    pub(super) rotated: Notify,
    pub(super) health: RefCell<Health>,
    pub(super) counters: Counters,
    pub(super) forgeries: Cell<Forgeries>,
    /// The time of the last warning about numbers that this node never used.
    pub(super) numbers_warned: Cell<Option<Instant>>,
    /// Whether sessions are known to be this node's own.
    pub(super) own_sessions: tokio::sync::OnceCell<()>,
}

/// The minimum time between two warnings of forged rows.
pub(super) const WARN_AGAIN: Duration = Duration::from_secs(60);

/// The counters outside the engines.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The number of packets from the device before the network was known.
    pub(super) too_early: Cell<u64>,
    /// The number of packets that the device refused.
    pub(super) refused: Cell<u64>,
    pub(super) pages: Cell<u64>,
    pub(super) empty_pages: Cell<u64>,
    pub(super) notifications: Cell<u64>,
    /// The number of packets that were not delivered because the position file could not be written.
    pub(super) unwritten: Cell<u64>,
    /// The number of commits that failed or whose outcome is unknown.
    pub(super) failed_commits: Cell<u64>,
    /// The durations of successful commits.
    pub(super) commits: RefCell<Durations>,
}

/// The number of forged rows since the last warning, and the time of that warning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forgeries {
    pub(super) unreported: u64,
    pub(super) warned: Option<Instant>,
}

pub(super) fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get().saturating_add(more));
}

impl Shared {
    /// Returns this node's number.
    pub(super) fn me(&self) -> NodeId {
        self.settings.node
    }

    /// Checks once that no pooler shares sessions, because the settings of one session would affect others.
    pub(super) async fn own_sessions(&self) -> Result<(), DbError> {
        let look = || async {
            let shares = pooler::shares_sessions(&self.target).await;
            let shares = shares.map_err(|unknown| match unknown {
                ProbeError::Connect(fault) => DbError::new(fault.to_string()),
                ProbeError::Ask(error) => error.into(),
            })?;
            if shares { Err(DbError::new(pooler::WORDS)) } else { Ok(()) }
        };
        self.own_sessions.get_or_try_init(|| within(PROBE, look())).await.copied()
    }

    /// Returns the name for the database's list of sessions.
    pub(super) fn purpose(&self, what: &str) -> String {
        format!("{what} {} {}", self.settings.name, self.instance)
    }

    /// Returns the durability of this node's packets, from its own settings or else the network's.
    pub(super) fn durability(&self) -> Durability {
        let network = || Some(self.directory.borrow().as_ref()?.settings.current().durability);
        self.settings.durability.or_else(network).unwrap_or_default()
    }

    /// Returns the serial number of the network's current settings, or 0 before the network is known.
    pub(super) fn serial(&self) -> i64 {
        let directory = self.directory.borrow();
        directory.as_ref().map_or(0, |directory| directory.settings.current().serial)
    }

    /// Applies a new state of the network. Nodes that have joined get streams, nodes that have left lose theirs, and changed settings end
    /// the epochs.
    pub(super) fn update_directory(&self, directory: Directory) {
        let (addresses, subnets): (Vec<_>, _) = (
            self.settings.addresses.iter().map(ipnet::IpNet::addr).collect(),
            &self.settings.subnets,
        );
        let peers = directory.peers();
        let routes = Routes::new(&addresses, subnets, &peers);
        *self.routes.borrow_mut() = Rc::new(routes);
        let mut sender = self.sender.borrow_mut();
        let sender = sender.get_or_insert_with(|| Sender::new(self.config(&directory)));
        let mut receivers = self.receivers.borrow_mut();
        let former = self.directory.borrow().clone();
        if let Some(former) = former.as_ref().filter(|former| former.settings != directory.settings)
        {
            self.renew(sender, former, &directory);
        }
        let former = former.map(|former| former.peers());
        let (outgoing, incoming) = removed_streams(&former.unwrap_or_default(), &peers);
        outgoing.into_iter().for_each(|stream| sender.remove(stream));
        receivers.retain(|stream, _| !incoming.contains(stream));
        let positions = self.positions.borrow();
        for node in &directory.nodes {
            let Position { epoch, seq } = positions.get(PositionKind::Sent, node.outgoing);
            let kept = SavedState { given: (epoch, seq), signed: positions.signed(node.outgoing) };
            sender.add(node.outgoing, node.record.id, kept);
            receivers.entry(node.incoming).or_insert_with(|| {
                let position = positions.get(PositionKind::Received, node.incoming);
                let seed: [u8; 32] = self.random.borrow_mut().bytes();
                let mut receiver = Receiver::new(now(), node.incoming, position, seed);
                receiver.retire(self.generations.get().1);
                receiver
            });
        }
        *self.directory.borrow_mut() = Some(Rc::new(directory));
        self.changed.notify_one();
        self.work.notify_one();
    }

    /// Ends the epochs under old settings. A leaf that would be kept too long, or has another durability, is closed
    /// too.
    fn renew(&self, sender: &mut Sender, former: &Directory, directory: &Directory) {
        let (old, new) = (self.config(former), self.config(directory));
        let volatile = |directory: &Directory| {
            let network = directory.settings.current().durability;
            self.settings.durability.unwrap_or(network) == Durability::Volatile
        };
        let new_leaf = new.leaf_bytes < old.leaf_bytes
            || new.leaf_age < old.leaf_age
            || volatile(former) != volatile(directory);
        sender.reconfigure(new, new_leaf);
    }

    /// Ends all epochs, because one was opened under old settings.
    pub(super) fn renew_epochs(&self) {
        let directory = self.directory.borrow().clone();
        if let (Some(sender), Some(directory)) = (&mut *self.sender.borrow_mut(), directory) {
            sender.reconfigure(self.config(&directory), false);
        }
    }

    fn config(&self, directory: &Directory) -> Config {
        let network = directory.settings.current();
        let bytes = u64::try_from(network.retention_bytes).unwrap_or(0) / limits::LEAVES;
        let age = network.retention_age / u32::try_from(limits::LEAVES).unwrap_or(u32::MAX);
        Config {
            packet_size: self.settings.packet_size(Some(network)),
            leaf_bytes: bytes.max(limits::LEAF_BYTES_MIN),
            leaf_age: age.clamp(LEAF_AGE.0, LEAF_AGE.1),
        }
    }

    /// Sets the network's keys for sealing and accepting in the engines, if they have changed. Returns the time of the
    /// next change.
    pub(super) fn turn_keys(&self) -> Option<Instant> {
        let (ring, at) = (self.ring.borrow(), now());
        let (sealing, oldest) = (ring.sealing(at).generation(), ring.oldest_accepted(at));
        let before = self.generations.replace((sealing, oldest));
        if before.0 != sealing {
            if let Some(sender) = &mut *self.sender.borrow_mut() {
                sender.renew();
            }
            self.work.notify_one();
            say!(1, "network key: generation {sealing} seals sent packets");
        }
        if before.1 != oldest {
            self.receivers.borrow_mut().values_mut().for_each(|receiver| receiver.retire(oldest));
            say!(1, "network key: rows under generations before {oldest} are refused from now on");
        }
        ring.deadline(at)
    }

    /// Returns a seed for pauses.
    pub(super) fn pause_seed(&self) -> u64 {
        u64::from_ne_bytes(self.random.borrow_mut().bytes())
    }

    /// Records the position of a stream, and returns whether that succeeded.
    pub(super) fn remember(&self, way: PositionKind, stream: StreamId, position: Position) -> bool {
        self.positions.borrow_mut().set(way, stream, position).is_ok()
    }
}
