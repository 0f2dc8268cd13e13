//! The inputs and outputs of a sender.

use std::time::Duration;

use adit_engine::{Instant, UnixTime};

use crate::key::Checkpoint;
use crate::queue::DropCounts;
use crate::seal::ChainValue;
use crate::{EpochNo, LeafNo, NodeId, Seq, StreamId};

/// The parts of the network's configuration that a sender needs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest IP packet in a row in bytes.
    pub packet_size: usize,
    /// The size of its rows in bytes after which a leaf is followed by the next.
    pub leaf_bytes: u64,
    /// The age after which a leaf is followed by the next.
    pub leaf_age: Duration,
}

/// The next action of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask `resume`, and answer with [`super::Sender::resumed`] or [`super::Sender::failed`].
    Resume {
        /// The stream.
        stream: StreamId,
        /// The receiver of the stream.
        receiver: NodeId,
    },
    /// Make an epoch's secret and record, call `open_epoch`, and answer with [`super::Sender::opened`],
    /// [`super::Sender::failed`] or [`super::Sender::delayed`].
    Open(NewEpoch),
    /// Call [`super::Sender::batch`].
    Batch,
    /// Sign these, put the signatures into the database, and answer with [`super::Sender::signed`].
    Sign(Vec<UnsignedCheckpoint>),
    /// Wait for a packet, for the commit, or until this instant.
    Wait(Option<Instant>),
}

/// An acknowledged end of a stream that its sender has not signed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsignedCheckpoint {
    /// The stream.
    pub stream: StreamId,
    /// Its epoch.
    pub epoch: EpochNo,
    /// SHA-256 of that epoch's record and signature.
    pub record_hash: [u8; 32],
    /// The checkpoint to sign.
    pub checkpoint: Checkpoint,
}

/// The state of a sender that is kept over a restart.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedState {
    /// The last epoch with rows, and the last packet number given.
    pub given: (EpochNo, Seq),
    /// The last checkpoint and its epoch.
    pub signed: Option<(EpochNo, Checkpoint)>,
}

/// The fields of the record of an epoch to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEpoch {
    /// The stream.
    pub stream: StreamId,
    /// The receiver of the stream.
    pub receiver: NodeId,
    /// The epoch's number: higher than any known; by the clock, so that it is also higher than those that a
    /// database forgot.
    pub epoch: EpochNo,
    /// The leaf: the newest, or a new one after it.
    pub leaf: LeafNo,
    /// The number of its first packet.
    pub first_seq: Seq,
    /// The time of opening, by this machine's clock.
    pub opened: UnixTime,
    /// The previous epoch.
    pub previous: Option<PreviousEpoch>,
}

/// The end of the previous epoch, as its writer or the database knew it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PreviousEpoch {
    /// The epoch's number.
    pub epoch: EpochNo,
    /// The number of its last packet.
    pub last_seq: Seq,
    /// The last value of its chain, if this sender knows it by itself: what the database reports is not to be signed.
    pub chain: Option<ChainValue>,
    /// The time when it was opened, if that is known.
    pub opened: Option<UnixTime>,
}

/// How far the numbers in a [`ResumeRow`] are trusted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ResumeOutcome {
    /// The stream continues after them.
    Full,
    /// Some are so high that no sender can have given them: the stream continues after its own numbers.
    OwnNumbers,
    /// Some are so high, and the stream has no numbers of its own: it asks again later.
    Refused,
}

/// The result of the database's `resume`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeRow {
    /// Highest number in the newest leaf, or the one before it.
    pub last_seq: i64,
    /// Highest epoch, 0 if there is none.
    pub last_epoch: i32,
    /// Newest leaf, 0 if there is none.
    pub last_leaf: i32,
    /// The newest leaf, if it has room for more rows.
    pub open_leaf: Option<OpenLeaf>,
}

/// A leaf that another process of this node has begun and not ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct OpenLeaf {
    /// Bytes of its rows, about.
    pub bytes: u64,
    /// The time since it was opened.
    pub age: Duration,
}

/// Rows of one stream in a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchPart {
    /// The stream.
    pub stream: StreamId,
    /// The receiver of the stream, which is notified.
    pub receiver: NodeId,
    /// The leaf, and with the stream the table.
    pub leaf: LeafNo,
    /// The number of rows.
    pub rows: usize,
    /// The rows in binary COPY format, without header and trailer.
    pub bytes: Vec<u8>,
}

/// The rows of one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// One part per stream.
    pub parts: Vec<BatchPart>,
}

impl Batch {
    /// Returns the rows of all parts; up to [`crate::limits::FEW_ROWS`] are better inserted than copied.
    pub fn rows(&self) -> usize {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.rows))
    }
}

/// Counters of a sender.
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
    pub dropped: DropCounts,
    /// Memory of the queues now, bytes.
    pub queued: usize,
    /// The duration of a commit, smoothed.
    pub commit: Duration,
}
