//! The way out: packets wait per stream, are cut, sealed and handed out in batches that clock themselves on commits.
//!
//! ```text
//!   push ──► queue of its stream ──► batch (DRR over the streams, CoDel, cut, seal) ──► COPY, COMMIT ──► committed
//!                                      ▲                                                      └────────► lost
//!   wants: Resume ─► resumed ─► Open ─► opened: the stream's epoch and its key
//! ```
//!
//! The driver asks [`Sender::wants`] again after each call that changed something, and whenever the instant in
//! [`Want::Nothing`] has come. Each want is given once; it is answered by one call, or by [`Sender::lost`].

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use adit_engine::{Instant, UnixTime};
use adit_wire::ip::Ip;
use adit_wire::split::Segments;
use adit_wire::{Gso, VnetHeader};

use crate::limits::{BATCH_BYTES, PADDING, PEERS, SUPER_PACKET};
use crate::queue::{Dropped, Patience, Queues, Waiting, count, later};
use crate::row::copy::MAX_OVERHEAD;
use crate::seal::{ChainValue, Sealer, Unfit};
use crate::{EpochNo, LeafNo, NodeId, Seq, StreamId};

/// What a sender must know from the network's configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest IP packet in a row, bytes.
    pub packet_size: usize,
    /// A leaf is followed by the next after this many bytes of rows.
    pub leaf_bytes: u64,
    /// Or after this long.
    pub leaf_age: Duration,
}

/// What the driver should do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Take the stream's lock, ask `resume`, and answer with [`Sender::resumed`] or [`Sender::failed`].
    Resume {
        /// The stream.
        stream: StreamId,
        /// To whom it leads.
        receiver: NodeId,
    },
    /// Make an epoch's secret and record, call `open_epoch`, and answer with [`Sender::opened`] or [`Sender::failed`].
    Open(Opening),
    /// Call [`Sender::batch`].
    Batch,
    /// Wait for a packet, for the commit, or until this instant.
    Nothing(Option<Instant>),
}

/// An epoch to be opened: what its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The stream.
    pub stream: StreamId,
    /// To whom it leads.
    pub receiver: NodeId,
    /// The epoch's number: higher than any known; by the clock, so that it is also higher than those that a
    /// database forgot.
    pub epoch: EpochNo,
    /// The leaf: the newest, or a new one after it.
    pub leaf: LeafNo,
    /// The number of its first packet.
    pub first_seq: Seq,
    /// The epoch before.
    pub previous: Option<Previous>,
}

/// How the epoch before ended, as its writer or the database knew it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Previous {
    /// Its number.
    pub epoch: EpochNo,
    /// The last packet's.
    pub last_seq: Seq,
    /// The last value of its chain, if any is known.
    pub chain: Option<ChainValue>,
}

/// What the database's `resume` says.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Highest number in the newest leaf, or the one before it.
    pub last_seq: i64,
    /// Highest epoch, 0 if there is none.
    pub last_epoch: i32,
    /// Newest leaf, 0 if there is none.
    pub last_leaf: i32,
    /// The newest chain value.
    pub last_chain: Option<ChainValue>,
}

/// Rows of one stream in a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The stream.
    pub stream: StreamId,
    /// To whom it leads: whom to notify.
    pub receiver: NodeId,
    /// The leaf, and with the stream the table.
    pub leaf: LeafNo,
    /// How many rows.
    pub rows: usize,
    /// The rows in binary COPY format, without header and trailer.
    pub bytes: Vec<u8>,
}

/// What goes in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// One per stream.
    pub parts: Vec<Part>,
}

impl Batch {
    /// Rows of all parts; up to [`crate::limits::FEW_ROWS`] are better inserted than copied.
    pub fn rows(&self) -> usize {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.rows))
    }
}

/// What a sender has done.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sealed, rows.
    pub packets: u64,
    /// Their bytes as IP packets.
    pub bytes: u64,
    /// Batches committed.
    pub batches: u64,
    /// Rows whose commit is in doubt: the connection was lost.
    pub in_doubt: u64,
    /// Epochs opened.
    pub epochs: u64,
    /// Super-packets or packets dropped, by reason.
    pub dropped: Dropped,
    /// Memory of the queues now, bytes.
    pub queued: usize,
    /// How long a commit takes, smoothed.
    pub commit: Duration,
}

/// All outgoing streams of a node.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    streams: BTreeMap<StreamId, Stream>,
    queues: Queues,
    /// The batch that is being committed.
    flight: Option<Flight>,
    /// Whose turn is over: the next batch, or look for something to open, begins behind it.
    last_served: StreamId,
    last_opened: StreamId,
    /// An epoch was wanted last: a batch comes first now.
    batch_first: bool,
    /// Buffers of batches before, of [`SPARE_BYTES`] at most.
    spare: Vec<Vec<u8>>,
    spare_parts: Vec<Part>,
    stats: Stats,
}

#[derive(Debug)]
struct Stream {
    receiver: NodeId,
    state: State,
    /// The highest epoch and number that were ever given out; no others are given but higher ones.
    given: (EpochNo, Seq),
    /// The last that this process knows to be committed.
    committed: Option<Previous>,
    leaf: Option<Leaf>,
    /// Refusals one after the other.
    failures: u32,
    /// Bytes that it may still have in this batch, and the part that it has; both count only while one is built.
    credit: usize,
    part: Option<usize>,
}

#[derive(Debug)]
enum State {
    /// Nothing is known of what the database has.
    Down,
    /// [`Want::Resume`] was given.
    Resuming,
    /// As the database says.
    Known(Resumed),
    /// [`Want::Open`] was given.
    Opening(Opening),
    Open {
        seal: Sealer,
        next: Seq,
        used_up: bool,
    },
    /// The database refused; try again then.
    Refused(Instant),
}

/// The newest leaf that this process has opened.
#[derive(Copy, Clone, Debug)]
struct Leaf {
    no: LeafNo,
    bytes: u64,
    opened: Instant,
    /// The database refused to go on in it.
    unfit: bool,
}

#[derive(Debug)]
struct Flight {
    since: Instant,
    rows: u64,
    streams: Vec<(StreamId, Previous)>,
}

/// Epochs are numbered by the clock from here, 2026-01-01, if that is more than the next number: a database that was
/// restored from a backup, and a sender that was started anew, know nothing of the numbers used since.
const CLOCK_ZERO: u64 = 1_767_225_600;

/// But a clock that is wrong leaves half of the numbers over.
const CLOCK_MAX: u64 = 1 << 30;

/// Pauses after a refusal, the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));

/// Memory kept for batches.
const SPARE_BYTES: usize = 4 * BATCH_BYTES;

/// Headers of a segment, at most; see [`adit_wire::split`].
const SEGMENT_HEADER: usize = 192;

impl Stream {
    /// The epoch after the one that is open, or after what the database says.
    fn opening(
        &self,
        now: Instant,
        unix: UnixTime,
        stream: StreamId,
        config: &Config,
        found: &Resumed,
    ) -> Option<Opening> {
        let Seq(given) = self.given.1;
        let first_seq = found.last_seq.max(given).max(0).checked_add(1)?;
        let clock = unix.0.saturating_sub(CLOCK_ZERO).min(CLOCK_MAX);
        let after = found.last_epoch.max(self.given.0.0).max(0).checked_add(1)?;
        let epoch = after.max(i32::try_from(clock).ok()?);
        let newest = found.last_leaf.max(0);
        let leaf = match self.leaf {
            Some(leaf) if leaf.no.0 == newest && !leaf.is_full(now, config) => newest,
            _ => newest.checked_add(1)?,
        };
        let previous = self.committed.or_else(|| {
            (found.last_epoch > 0).then_some(Previous {
                epoch: EpochNo(found.last_epoch),
                last_seq: Seq(found.last_seq),
                chain: found.last_chain,
            })
        });
        Some(Opening {
            stream,
            receiver: self.receiver,
            epoch: EpochNo(epoch),
            leaf: LeafNo(leaf),
            first_seq: Seq(first_seq),
            previous,
        })
    }

    fn is_sealing(&self) -> bool {
        matches!(self.state, State::Open { used_up: false, .. })
    }

    /// Whether the open epoch is to be followed by another.
    fn is_due(&self, now: Instant, config: &Config) -> bool {
        match self.state {
            State::Open { used_up, .. } => {
                used_up || self.leaf.is_none_or(|leaf| leaf.is_full(now, config))
            }
            _ => false,
        }
    }

    /// What `resume` would say, were it asked: this process knows.
    fn own_knowledge(&self) -> Resumed {
        Resumed {
            last_seq: self.given.1.0,
            last_epoch: self.given.0.0,
            last_leaf: self.leaf.map_or(0, |leaf| leaf.no.0),
            last_chain: None,
        }
    }
}

impl Leaf {
    fn is_full(&self, now: Instant, config: &Config) -> bool {
        let old = now.since(self.opened) >= config.leaf_age;
        self.unfit || (self.bytes > 0 && (self.bytes >= config.leaf_bytes || old))
    }
}

impl Sender {
    /// Without any stream.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            streams: BTreeMap::new(),
            queues: Queues::new(),
            flight: None,
            last_served: StreamId(0),
            last_opened: StreamId(0),
            batch_first: false,
            spare: Vec::new(),
            spare_parts: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Adds the stream to `receiver`. `given` is where it had come before the process started, as far as somebody kept
    /// it ([`Self::given`]), else zeros: numbers up to it are not given again. Nothing happens if the stream is there
    /// already or there are [`PEERS`] of them.
    pub fn add(&mut self, stream: StreamId, receiver: NodeId, given: (EpochNo, Seq)) {
        if self.streams.len() >= PEERS || self.streams.contains_key(&stream) {
            return;
        }
        self.queues.add(stream);
        let (state, committed, leaf) = (State::Down, None, None);
        let new =
            Stream { receiver, state, given, committed, leaf, failures: 0, credit: 0, part: None };
        self.streams.insert(stream, new);
    }

    /// Forgets a stream and what waits in it.
    pub fn remove(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
        self.queues.remove(stream);
    }

    /// Takes a packet from the device, copied as it is. `stream` is where it goes, `None` if nobody owns its destination.
    pub fn push(
        &mut self,
        now: Instant,
        stream: Option<StreamId>,
        vnet: VnetHeader,
        packet: &[u8],
    ) {
        match stream {
            None => count(&mut self.queues.dropped.no_route),
            // It would not fit into any batch.
            Some(_) if cost(&vnet, packet.len()) > BATCH_BYTES => {
                count(&mut self.queues.dropped.malformed)
            }
            Some(stream) => self.queues.push(now, stream, vnet, packet),
        }
    }

    /// What to do next. [`Want::Resume`] and [`Want::Open`] are given once each, and a batch that can be sent comes between
    /// two of them: a stream that is not open yet holds up no other.
    pub fn wants(&mut self, now: Instant, unix: UnixTime) -> Want {
        self.queues.age(now);
        let batch = self.flight.is_none()
            && self
                .streams
                .iter()
                .any(|(id, stream)| stream.is_sealing() && self.queues.is_waiting(*id));
        if batch && self.batch_first {
            return Want::Batch;
        }
        let mut until: Option<Instant> = None;
        let behind = (Bound::Excluded(self.last_opened), Bound::Unbounded);
        let order = self.streams.range(behind).chain(self.streams.range(..=self.last_opened));
        for id in order.map(|(id, _)| *id).collect::<Vec<_>>() {
            match self.wants_of(now, unix, id) {
                Want::Nothing(None) | Want::Batch => {}
                Want::Nothing(Some(at)) => until = Some(until.map_or(at, |until| until.min(at))),
                want => {
                    (self.last_opened, self.batch_first) = (id, true);
                    return want;
                }
            }
        }
        if batch { Want::Batch } else { Want::Nothing(until) }
    }

    /// What one stream wants to be opened, or until when it waits for that.
    fn wants_of(&mut self, now: Instant, unix: UnixTime, id: StreamId) -> Want {
        let waiting = self.queues.is_waiting(id);
        let flying = self
            .flight
            .as_ref()
            .is_some_and(|flight| flight.streams.iter().any(|(other, _)| *other == id));
        let Some(stream) = self.streams.get_mut(&id) else { return Want::Nothing(None) };
        let found = match &stream.state {
            State::Down if waiting => {
                stream.state = State::Resuming;
                return Want::Resume { stream: id, receiver: stream.receiver };
            }
            State::Refused(until) if *until > now => {
                return Want::Nothing(waiting.then_some(*until));
            }
            State::Refused(_) if waiting => {
                stream.state = State::Resuming;
                return Want::Resume { stream: id, receiver: stream.receiver };
            }
            State::Known(found) => *found,
            // Not while its rows are in doubt: the record tells how the epoch before ended.
            State::Open { .. } if !flying && stream.is_due(now, &self.config) => {
                stream.own_knowledge()
            }
            State::Open { .. } => {
                let written = stream.leaf.filter(|leaf| leaf.bytes > 0 && !flying);
                return Want::Nothing(written.map(|leaf| later(leaf.opened, self.config.leaf_age)));
            }
            State::Down | State::Refused(_) | State::Resuming | State::Opening(_) => {
                return Want::Nothing(None);
            }
        };
        let Some(opening) = stream.opening(now, unix, id, &self.config, &found) else {
            stream.refuse(now);
            return Want::Nothing(None);
        };
        // From now on: whether the database will have it is not known before it answers.
        stream.given.0 = opening.epoch;
        stream.state = State::Opening(opening.clone());
        Want::Open(opening)
    }

    /// Answer to [`Want::Resume`].
    pub fn resumed(&mut self, stream: StreamId, found: Resumed) {
        if let Some(stream) = self.streams.get_mut(&stream)
            && matches!(stream.state, State::Resuming)
        {
            stream.state = State::Known(found);
        }
    }

    /// Answer to [`Want::Open`]: the epoch is in the database, `seal` has its key.
    pub fn opened(&mut self, now: Instant, stream: StreamId, seal: Sealer) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        let State::Opening(opening) = &stream.state else { return };
        let last_seq = Seq(opening.first_seq.0.saturating_sub(1));
        if seal.epoch() != opening.epoch {
            return stream.refuse(now);
        }
        if stream.leaf.is_none_or(|leaf| leaf.no != opening.leaf) {
            stream.leaf = Some(Leaf { no: opening.leaf, bytes: 0, opened: now, unfit: false });
        }
        stream.committed =
            Some(Previous { epoch: opening.epoch, last_seq, chain: Some(seal.chain_value()) });
        stream.failures = 0;
        stream.state = State::Open { seal, next: opening.first_seq, used_up: false };
        count(&mut self.stats.epochs);
    }

    /// The database refused a [`Want::Resume`] or [`Want::Open`], and the connection goes on: the stream is tried again
    /// later, from `resume` on, in a new leaf.
    pub fn failed(&mut self, now: Instant, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream)
            && matches!(stream.state, State::Resuming | State::Opening(_))
        {
            stream.refuse(now);
        }
    }

    /// The next batch; `None` if one is in flight or nothing can be sent.
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
                // Nothing in it was fit.
                keep(&mut self.spare, std::mem::take(&mut part.bytes));
                return false;
            };
            let last_seq = Seq(next.0.saturating_sub(1));
            streams.push((
                part.stream,
                Previous { epoch: seal.epoch(), last_seq, chain: Some(chain) },
            ));
            if let Some(leaf) = &mut stream.leaf {
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

    /// Deficit round robin over the streams with an open epoch, until nothing waits or the next does not fit.
    fn fill(&mut self, now: Instant, batch: &mut Batch) {
        let patience = Patience::for_commits_of(self.stats.commit);
        let behind = (Bound::Excluded(self.last_served), Bound::Unbounded);
        let order = self.streams.range(behind).chain(self.streams.range(..=self.last_served));
        let ready = |(id, stream): &(&StreamId, &Stream)| {
            stream.is_sealing() && self.queues.is_waiting(**id)
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
                while let Some((vnet, len)) = self.queues.settle(now, *id, patience) {
                    if len > stream.credit {
                        return true;
                    }
                    if cost(&vnet, len) > room {
                        full = true;
                        return true;
                    }
                    let State::Open { seal, next, used_up: used_up @ false } = &mut stream.state
                    else {
                        break;
                    };
                    let Some(mut waiting) = self.queues.pop(*id) else { break };
                    stream.credit = stream.credit.saturating_sub(len);
                    let index = *stream.part.get_or_insert_with(|| {
                        let leaf = stream.leaf.map_or(LeafNo(0), |leaf| leaf.no);
                        let bytes = self.spare.pop().unwrap_or_default();
                        batch.parts.push(Part {
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
                    let mut sealing = Sealing {
                        seal,
                        next,
                        given: &mut stream.given.1,
                        used_up,
                        part,
                        packet_size: self.config.packet_size,
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

    /// The batch in flight is committed. Give it back: its buffers are used again.
    pub fn committed(&mut self, now: Instant, mut batch: Batch) {
        for part in batch.parts.drain(..) {
            keep(&mut self.spare, part.bytes);
        }
        self.spare_parts = batch.parts;
        let Some(flight) = self.flight.take() else { return };
        for (id, last) in flight.streams {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if stream.committed.is_some_and(|before| before.epoch == last.epoch) {
                stream.committed = Some(last);
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

    /// The connection is lost, or a batch was refused: what was in flight is in doubt and is not sent again; all epochs end,
    /// every want is void, and every stream with packets must resume.
    pub fn lost(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.stats.in_doubt = self.stats.in_doubt.saturating_add(flight.rows);
        }
        for stream in self.streams.values_mut() {
            // Whether it was about this leaf is not known; another one is safe.
            if let (State::Opening(_), Some(leaf)) = (&stream.state, &mut stream.leaf) {
                leaf.unfit = true;
            }
            stream.state = State::Down;
            stream.failures = 0;
        }
    }

    /// The last epoch and number given out in a stream: to be kept for [`Self::add`] after a restart, best when an epoch was
    /// opened.
    pub fn given(&self, stream: StreamId) -> Option<(EpochNo, Seq)> {
        self.streams.get(&stream).map(|stream| stream.given)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        Stats { dropped: self.queues.dropped, queued: self.queues.memory(), ..self.stats }
    }
}

impl Stream {
    /// To be tried again later, in a new leaf: the refusal may be about this one.
    fn refuse(&mut self, now: Instant) {
        let doubled = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let pause = RETRY.0.saturating_mul(doubled).min(RETRY.1);
        self.failures = self.failures.saturating_add(1).min(16);
        if let Some(leaf) = &mut self.leaf {
            leaf.unfit = true;
        }
        self.state = State::Refused(later(now, pause));
    }
}

/// A packet on its way into a part.
struct Sealing<'a> {
    seal: &'a mut Sealer,
    next: &'a mut Seq,
    given: &'a mut Seq,
    used_up: &'a mut bool,
    part: &'a mut Part,
    packet_size: usize,
}

impl Sealing<'_> {
    /// Cuts a super-packet and seals what comes out.
    fn all(&mut self, waiting: &mut Waiting, stats: &mut Stats, dropped: &mut Dropped) {
        let Ok(mut segments) = Segments::new(&waiting.vnet, &mut waiting.bytes) else {
            return count(&mut dropped.malformed);
        };
        while let Some(segment) = segments.next() {
            let whole = Ip::parse(segment).is_some_and(|ip| ip.total_len == segment.len());
            if !whole || segment.len() > self.packet_size {
                count(&mut dropped.malformed);
                continue;
            }
            match self.one(segment) {
                Ok(()) => {
                    count(&mut stats.packets);
                    stats.bytes = stats.bytes.saturating_add(segment.len() as u64);
                }
                Err(Unfit::TooLong | Unfit::NotIp) => count(&mut dropped.malformed),
                // The next epoch has another key.
                Err(Unfit::OutOfOrder | Unfit::Exhausted | Unfit::Library) => {
                    *self.used_up = true;
                    return count(&mut dropped.closed);
                }
            }
        }
    }

    fn one(&mut self, packet: &[u8]) -> Result<(), Unfit> {
        let after = self.next.0.checked_add(1).ok_or(Unfit::Exhausted)?;
        self.seal.seal_into(*self.next, packet, &mut self.part.bytes)?;
        *self.given = *self.next;
        *self.next = Seq(after);
        self.part.rows = self.part.rows.saturating_add(1);
        Ok(())
    }
}

/// Bytes that the rows of a super-packet take, at most.
fn cost(vnet: &VnetHeader, len: usize) -> usize {
    let segments = match vnet.gso {
        Gso::None => 1,
        _ => len.div_ceil(usize::from(vnet.gso_size).max(1)),
    };
    len.saturating_add(segments.saturating_mul(SEGMENT_HEADER + MAX_OVERHEAD + PADDING))
}

/// Keeps a batch's buffer for the next.
fn keep(spare: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    let kept = spare.iter().fold(0_usize, |sum, buffer| sum.saturating_add(buffer.capacity()));
    if kept.saturating_add(buffer.capacity()) <= SPARE_BYTES && spare.len() < PEERS {
        buffer.clear();
        spare.push(buffer);
    }
}
