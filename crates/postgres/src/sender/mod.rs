//! The sending side. Packets wait in a queue per stream, and are segmented, sealed and returned in batches. Each commit
//! triggers the next batch.
//!
//! ```text
//!   push ──► queue of its stream ──► batch (DRR over the streams, CoDel, cut, seal) ──► COPY, COMMIT ──► committed
//!                                      ▲                                                      └────────► lost
//!   actions: Resume ─► resumed ─► Open ─► opened: the stream's epoch and its key
//!          Sign ─► signed: how far the chain is vouched for
//! ```
//!
//! The driver calls [`Sender::next_action`] again after each call that changed something, and at the instant in
//! [`Action::Wait`]. Each action is returned once, and answered with one call or with [`Sender::lost`].

mod sealing;
mod stream;
mod types;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use adit_engine::{Instant, UnixTime};
use adit_wire::VnetHeader;

use self::sealing::{BatchSealer, cost};
use self::stream::{Leaves, State, Stream};
pub use self::types::{
    Action, Batch, BatchPart, Config, NewEpoch, OpenLeaf, PreviousEpoch, ResumeOutcome, ResumeRow,
    SavedState, Stats, UnsignedCheckpoint,
};
use crate::key::Checkpoint;
use crate::limits::{BATCH_BYTES, PEERS, SUPER_PACKET};
use crate::queue::{CodelParams, Queues, count, later};
use crate::seal::Sealer;
use crate::{EpochNo, LeafNo, NodeId, Seq, StreamId};

/// The maximum memory of buffers kept for batches.
const SPARE_BYTES: usize = 4 * BATCH_BYTES;

/// How long the first committed row waits before rows are signed. Together with the time for signing, this is less than a second.
const SIGN_AFTER: Duration = Duration::from_millis(750);

/// The outgoing streams of a node.
#[derive(Debug)]
pub struct Sender {
    leaves: Leaves,
    streams: BTreeMap<StreamId, Stream>,
    queues: Queues,
    /// The batch that is being committed.
    flight: Option<Flight>,
    /// Whether an [`Action::Sign`] is unanswered.
    signing: bool,
    /// The stream that was served last. The next batch, or the search for an epoch to open, begins after it.
    last_served: StreamId,
    last_opened: StreamId,
    /// Whether the last action was to open an epoch, so that a batch comes first now.
    batch_first: bool,
    /// The buffers of previous batches, with a total of at most [`SPARE_BYTES`].
    spare: Vec<Vec<u8>>,
    spare_parts: Vec<BatchPart>,
    stats: Stats,
}

#[derive(Debug)]
struct Flight {
    since: Instant,
    rows: u64,
    streams: Vec<(StreamId, EpochNo, Checkpoint)>,
}

impl Sender {
    /// Creates a sender without streams.
    pub fn new(config: Config) -> Self {
        Self {
            leaves: Leaves { config, newest: None, refused: None },
            streams: BTreeMap::new(),
            queues: Queues::new(),
            flight: None,
            signing: false,
            last_served: StreamId(0),
            last_opened: StreamId(0),
            batch_first: false,
            spare: Vec::new(),
            spare_parts: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Adds the stream to `receiver`. `kept` is the stream's saved state from before the process started
    /// ([`Self::given`], [`Self::signed`]), or zeros. Numbers up to it are not used again. Does nothing if the stream
    /// exists or there are [`PEERS`] streams.
    pub fn add(&mut self, stream: StreamId, receiver: NodeId, kept: SavedState) {
        if self.streams.len() >= PEERS || self.streams.contains_key(&stream) {
            return;
        }
        self.queues.add(stream);
        let new = Stream {
            receiver,
            state: State::Down,
            given: kept.given,
            written: kept.given.0,
            kept: kept.signed,
            committed: None,
            record_hash: [0; 32],
            unsigned: None,
            failures: 0,
            credit: 0,
            part: None,
        };
        self.streams.insert(stream, new);
    }

    /// Removes a stream and its queued packets.
    pub fn remove(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
        self.queues.remove(stream);
    }

    /// Copies a packet from the device into a queue. `stream` is the stream to its destination, or `None` if no node
    /// owns the destination.
    pub fn push(
        &mut self,
        now: Instant,
        stream: Option<StreamId>,
        vnet: VnetHeader,
        packet: &[u8],
    ) {
        match stream {
            None => count(&mut self.queues.dropped.no_route),
            // The packet would not fit into any batch.
            Some(_) if cost(&vnet, packet.len()) > BATCH_BYTES => {
                count(&mut self.queues.dropped.malformed);
            }
            Some(stream) => self.queues.push(now, stream, vnet, packet),
        }
    }

    /// Handles a new key of the network. Every open epoch ends, and the next packet of its stream waits for a new
    /// epoch.
    pub fn renew(&mut self) {
        for stream in self.streams.values_mut() {
            if let State::Open { used_up, .. } = &mut stream.state {
                *used_up = true;
            }
        }
    }

    /// Returns the next action. [`Action::Resume`] and [`Action::Open`] are returned once each, with a batch between
    /// two of them if one can be sent. So a stream that is not open yet does not delay the others.
    pub fn next_action(&mut self, now: Instant, unix: UnixTime) -> Action {
        self.queues.age(now);
        let batch = self.flight.is_none()
            && self
                .streams
                .iter()
                .any(|(id, stream)| stream.is_sealing(&self.leaves) && self.queues.is_waiting(*id));
        let mut until = self.unsigned_until();
        if until.is_some_and(|until| until <= now) {
            return self.sign();
        }
        if batch && self.batch_first {
            return Action::Batch;
        }
        let behind = (Bound::Excluded(self.last_opened), Bound::Unbounded);
        let order = self.streams.range(behind).chain(self.streams.range(..=self.last_opened));
        for id in order.map(|(id, _)| *id).collect::<Vec<_>>() {
            match self.stream_action(now, unix, id) {
                Action::Wait(None) | Action::Batch => {}
                Action::Wait(Some(at)) => until = Some(until.map_or(at, |until| until.min(at))),
                action => {
                    (self.last_opened, self.batch_first) = (id, true);
                    return action;
                }
            }
        }
        if batch { Action::Batch } else { Action::Wait(until) }
    }

    /// Returns when the first committed row must be signed.
    fn unsigned_until(&self) -> Option<Instant> {
        let since = self.streams.values().filter_map(|stream| stream.unsigned).min();
        since.filter(|_| !self.signing).map(|since| later(since, SIGN_AFTER))
    }

    /// Returns all unsigned checkpoints at once, because signing them takes one round trip.
    fn sign(&mut self) -> Action {
        self.signing = true;
        Action::Sign(self.streams.iter().filter_map(|(id, stream)| stream.to_sign(*id)).collect())
    }

    /// Answers [`Action::Sign`] after the signatures have been stored in the database.
    pub fn signed(&mut self, now: Instant, signed: &[UnsignedCheckpoint]) {
        self.signing = false;
        for UnsignedCheckpoint { stream, epoch, checkpoint, .. } in signed {
            let Some(stream) = self.streams.get_mut(stream) else { continue };
            let Some(last) = stream.committed.filter(|last| last.epoch == *epoch) else { continue };
            stream.unsigned = (last.last_seq > checkpoint.seq).then_some(now);
        }
    }

    /// Returns the action that one stream needs to open an epoch, or the time until which it waits.
    fn stream_action(&mut self, now: Instant, unix: UnixTime, id: StreamId) -> Action {
        let waiting = self.queues.is_waiting(id);
        let flying = self
            .flight
            .as_ref()
            .is_some_and(|flight| flight.streams.iter().any(|(other, ..)| *other == id));
        let Some(stream) = self.streams.get_mut(&id) else { return Action::Wait(None) };
        let found = match &stream.state {
            State::Down if waiting => {
                stream.state = State::Resuming;
                return Action::Resume { stream: id, receiver: stream.receiver };
            }
            State::Refused(until) if *until > now => {
                return Action::Wait(waiting.then_some(*until));
            }
            State::Refused(_) if waiting => {
                stream.state = State::Resuming;
                return Action::Resume { stream: id, receiver: stream.receiver };
            }
            State::Known(found) => *found,
            // While rows are in flight, the end of the epoch is unknown, so no new record can be written.
            State::Open { .. } if flying => return Action::Wait(None),
            // The first stream whose leaf is full begins the next leaf. The others follow when they have packets.
            State::Open { used_up, leaf, .. } => {
                let newest = self.leaves.newest.filter(|newest| newest.no == *leaf);
                let full = newest.is_some() && self.leaves.is_full(now);
                if !full && !(waiting && (*used_up || newest.is_none())) {
                    let written = newest.filter(|leaf| leaf.bytes > 0);
                    return Action::Wait(written.map(|leaf| leaf.due));
                }
                stream.own_knowledge(&self.leaves)
            }
            State::Down | State::Refused(_) | State::Resuming | State::Opening(..) => {
                return Action::Wait(None);
            }
        };
        let opening = stream.opening(now, unix, id, &self.leaves, &found);
        let Some((opening, continued)) = opening else {
            stream.refuse(now);
            return Action::Wait(None);
        };
        // Reserve the number now, because until the database answers it is unknown whether the epoch was stored.
        stream.given.0 = opening.epoch;
        stream.state = State::Opening(opening.clone(), continued);
        Action::Open(opening)
    }

    /// Answers [`Action::Resume`]. Returns which of the database's numbers are trusted.
    pub fn resumed(&mut self, stream: StreamId, found: ResumeRow) -> ResumeOutcome {
        let Some(stream) = self.streams.get_mut(&stream) else { return ResumeOutcome::Full };
        if matches!(stream.state, State::Resuming) {
            stream.state = State::Known(found);
        }
        match stream.plausible_state(&self.leaves, &found) {
            Some(believed) if believed == found => ResumeOutcome::Full,
            Some(_) => ResumeOutcome::OwnNumbers,
            None => ResumeOutcome::Refused,
        }
    }

    /// Answers [`Action::Open`] after the epoch has been stored in the database. `seal` has its key.
    pub fn opened(&mut self, now: Instant, stream: StreamId, seal: Sealer) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        let State::Opening(opening, continued) = &stream.state else { return };
        let last_seq = Seq(opening.first_seq.0.saturating_sub(1));
        if seal.epoch() != opening.epoch {
            return stream.refuse(now);
        }
        self.leaves.opened(now, opening.leaf, *continued);
        // The record authenticates the previous epoch.
        (stream.record_hash, stream.unsigned) = (seal.record_hash(), None);
        stream.committed = Some(PreviousEpoch {
            epoch: opening.epoch,
            last_seq,
            chain: Some(seal.chain_value()),
            opened: Some(opening.opened),
        });
        stream.failures = 0;
        let (next, leaf) = (opening.first_seq, opening.leaf);
        stream.state = State::Open { seal, next, used_up: false, leaf };
        count(&mut self.stats.epochs);
    }

    /// Handles a refused [`Action::Resume`] or [`Action::Open`] on a connection that stays open. The stream is tried
    /// again later, beginning with `resume`, in a new leaf.
    pub fn failed(&mut self, now: Instant, stream: StreamId) {
        if let Some(Stream { state: State::Opening(opening, continued), .. }) =
            self.streams.get(&stream)
        {
            self.leaves.refuse(opening.leaf, continued.is_some());
        }
        self.delayed(now, stream);
    }

    /// Does the same as [`Self::failed`], but for a reason other than the leaf, so the stream is tried again later in
    /// the same leaf.
    pub fn delayed(&mut self, now: Instant, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream)
            && matches!(stream.state, State::Resuming | State::Opening(..))
        {
            stream.refuse(now);
        }
    }

    /// Returns the next batch, or `None` if one is in flight or nothing can be sent.
    pub fn batch(&mut self, now: Instant) -> Option<Batch> {
        if self.flight.is_some() {
            return None;
        }
        self.batch_first = false;
        let mut batch = Batch { parts: std::mem::take(&mut self.spare_parts) };
        self.fill(now, &mut batch);
        let mut streams = Vec::with_capacity(batch.parts.len());
        let mut rows = 0_u64;
        batch.parts.retain_mut(|part| {
            let Some(stream) = self.streams.get_mut(&part.stream) else { return false };
            let State::Open { seal, next, .. } = &mut stream.state else { return false };
            let Some(chain) = seal.end_batch(&mut part.bytes) else {
                // None of its packets could be sealed.
                keep(&mut self.spare, std::mem::take(&mut part.bytes));
                return false;
            };
            let last_seq = Seq(next.0.saturating_sub(1));
            streams.push((part.stream, seal.epoch(), Checkpoint { seq: last_seq, chain }));
            if let Some(leaf) = &mut self.leaves.newest {
                leaf.bytes = leaf.bytes.saturating_add(part.bytes.len() as u64);
            }
            rows = rows.saturating_add(part.rows as u64);
            true
        });
        if batch.parts.is_empty() {
            self.spare_parts = batch.parts;
            return None;
        }
        self.flight = Some(Flight { since: now, rows, streams });
        Some(batch)
    }

    /// Fills the batch with deficit round robin over the streams with an open epoch, until no packet waits or the next
    /// packet does not fit.
    fn fill(&mut self, now: Instant, batch: &mut Batch) {
        let params = CodelParams::for_commits_of(self.stats.commit);
        let behind = (Bound::Excluded(self.last_served), Bound::Unbounded);
        let order = self.streams.range(behind).chain(self.streams.range(..=self.last_served));
        let ready = |(id, stream): &(&StreamId, &Stream)| {
            stream.is_sealing(&self.leaves) && self.queues.is_waiting(**id)
        };
        let mut order: Vec<StreamId> = order.filter(ready).map(|(id, _)| *id).collect();
        for stream in self.streams.values_mut() {
            (stream.credit, stream.part) = (0, None);
        }
        let mut room = BATCH_BYTES;
        while !order.is_empty() {
            let mut full = false;
            order.retain(|id| {
                if full {
                    return true;
                }
                self.last_served = *id;
                let Some(stream) = self.streams.get_mut(id) else { return false };
                stream.credit = stream.credit.saturating_add(SUPER_PACKET);
                while let Some((vnet, len)) = self.queues.drop_expired(now, *id, params) {
                    if len > stream.credit {
                        return true;
                    }
                    if cost(&vnet, len) > room {
                        full = true;
                        return true;
                    }
                    let State::Open { seal, next, used_up: used_up @ false, .. } =
                        &mut stream.state
                    else {
                        break;
                    };
                    let Some(mut waiting) = self.queues.pop(*id) else { break };
                    stream.credit = stream.credit.saturating_sub(len);
                    let index = *stream.part.get_or_insert_with(|| {
                        let leaf = self.leaves.newest.map_or(LeafNo(0), |leaf| leaf.no);
                        let bytes = self.spare.pop().unwrap_or_default();
                        batch.parts.push(BatchPart {
                            stream: *id,
                            receiver: stream.receiver,
                            leaf,
                            rows: 0,
                            bytes,
                        });
                        batch.parts.len().saturating_sub(1)
                    });
                    let Some(part) = batch.parts.get_mut(index) else { break };
                    let before = part.bytes.len();
                    let mut sealing = BatchSealer {
                        seal,
                        next,
                        given: &mut stream.given.1,
                        used_up,
                        part,
                        packet_size: self.leaves.config.packet_size,
                    };
                    sealing.all(&mut waiting, &mut self.stats, &mut self.queues.dropped);
                    room = room.saturating_sub(part.bytes.len().saturating_sub(before));
                    self.queues.recycle(waiting);
                }
                false
            });
            if full {
                return;
            }
        }
    }

    /// Handles the commit of the batch in flight. The caller returns the batch, whose buffers are reused.
    pub fn committed(&mut self, now: Instant, mut batch: Batch) {
        for part in batch.parts.drain(..) {
            keep(&mut self.spare, part.bytes);
        }
        self.spare_parts = batch.parts;
        let Some(flight) = self.flight.take() else { return };
        for (id, epoch, Checkpoint { seq, chain }) in flight.streams {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if let Some(last) = stream.committed.as_mut().filter(|last| last.epoch == epoch) {
                (last.last_seq, last.chain) = (seq, Some(chain));
                stream.unsigned.get_or_insert(now);
            }
        }
        count(&mut self.stats.batches);
        let took = now.since(flight.since);
        let before = self.stats.commit;
        self.stats.commit = if before.is_zero() {
            took
        } else {
            before.saturating_mul(7).saturating_add(took).div_f64(8.0)
        };
    }

    /// Handles a lost connection or a refused batch. Packets in flight are in doubt and are not sent again. All epochs
    /// end, every action is void, and every stream with packets must resume.
    pub fn lost(&mut self) {
        self.signing = false;
        if let Some(flight) = self.flight.take() {
            self.stats.in_doubt = self.stats.in_doubt.saturating_add(flight.rows);
        }
        for stream in self.streams.values_mut() {
            // It is unknown whether this leaf was the cause. A different leaf is safe.
            if let State::Opening(opening, continued) = &stream.state {
                self.leaves.refuse(opening.leaf, continued.is_some());
            }
            stream.state = State::Down;
            stream.failures = 0;
        }
    }

    /// Applies changed settings of the network. Every open epoch ends, and later packets go into epochs under the new
    /// settings. With `new_leaf`, these are in a new leaf.
    pub fn reconfigure(&mut self, config: Config, new_leaf: bool) {
        self.leaves.config = config;
        if let Some(leaf) = self.leaves.newest.as_mut().filter(|_| new_leaf) {
            leaf.unfit = true;
        }
        self.renew();
    }

    /// Returns the last epoch and packet number of a stream, which the caller saves for [`Self::add`] after a restart,
    /// preferably when an epoch was opened.
    pub fn given(&self, stream: StreamId) -> Option<(EpochNo, Seq)> {
        self.streams.get(&stream).map(|stream| stream.given)
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        Stats { dropped: self.queues.dropped, queued: self.queues.memory(), ..self.stats }
    }
}

/// Keeps a batch's buffer for the next batch.
fn keep(spare: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    let kept = spare.iter().fold(0_usize, |sum, buffer| sum.saturating_add(buffer.capacity()));
    if kept.saturating_add(buffer.capacity()) <= SPARE_BYTES && spare.len() < PEERS {
        buffer.clear();
        spare.push(buffer);
    }
}
