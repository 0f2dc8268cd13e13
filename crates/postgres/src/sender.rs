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

use adit_engine::{Instant, UnixTime};
use adit_wire::VnetHeader;

use crate::queue::Dropped;
use crate::seal::{ChainValue, Sealer};
use crate::{EpochNo, LeafNo, NodeId, Seq, StreamId};

/// What a sender must know from the network's configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest IP packet in a row, bytes.
    pub packet_size: usize,
    /// A leaf is followed by the next after this many bytes of rows.
    pub leaf_bytes: u64,
    /// Or after this long.
    pub leaf_age: std::time::Duration,
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
    pub commit: std::time::Duration,
}

/// All outgoing streams of a node.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    stats: Stats,
    seals: Vec<Sealer>,
}

impl Sender {
    /// Without any stream.
    pub fn new(config: Config) -> Self {
        Self { config, stats: Stats::default(), seals: Vec::new() }
    }

    /// Adds the stream to `receiver`. `given` is where it had come before the process started, as far as somebody kept
    /// it, else zeros: numbers up to it are not given again. Nothing happens if the stream is there already or there
    /// are [`crate::limits::PEERS`] of them.
    pub fn add(&mut self, _stream: StreamId, _receiver: NodeId, _given: (EpochNo, Seq)) {}

    /// Forgets a stream and what waits in it.
    pub fn remove(&mut self, _stream: StreamId) {}

    /// Takes a packet from the device, copied as it is; `None` for the stream: nobody owns its destination.
    pub fn push(
        &mut self,
        _now: Instant,
        _stream: Option<StreamId>,
        _vnet: VnetHeader,
        _packet: &[u8],
    ) {
        self.stats.dropped.no_route = self.stats.dropped.no_route.saturating_add(1);
    }

    /// What to do next. Given once, but [`Want::Batch`] and [`Want::Nothing`].
    pub fn wants(&mut self, _now: Instant, _unix: UnixTime) -> Want {
        Want::Nothing(None)
    }

    /// Answer to [`Want::Resume`].
    pub fn resumed(&mut self, _now: Instant, _stream: StreamId, _found: Resumed) {}

    /// Answer to [`Want::Open`]: the epoch is in the database, `seal` has its key.
    pub fn opened(&mut self, _now: Instant, _stream: StreamId, seal: Sealer) {
        self.seals = vec![seal];
    }

    /// The database refused a [`Want::Resume`] or [`Want::Open`], and the connection goes on: the stream is tried again
    /// later, from `resume` on, in a new leaf.
    pub fn failed(&mut self, _now: Instant, _stream: StreamId) {}

    /// The next batch; `None` if one is in flight or nothing can be sent.
    pub fn batch(&mut self, _now: Instant) -> Option<Batch> {
        None
    }

    /// The batch in flight is committed. Give it back: its buffers are used again.
    pub fn committed(&mut self, _now: Instant, _batch: Batch) {}

    /// The connection is lost, or a batch refused: what was in flight is in doubt and is not sent again; all epochs end,
    /// every want is void, and every stream with packets must resume.
    pub fn lost(&mut self, _now: Instant) {}

    /// The last epoch and number given out in a stream: to be kept for [`Self::add`] after a restart.
    pub fn given(&self, _stream: StreamId) -> Option<(EpochNo, Seq)> {
        None
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let _ = self.config;
        self.stats
    }
}
