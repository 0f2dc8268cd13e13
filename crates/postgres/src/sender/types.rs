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
    /// The maximum length of an IP packet in a row in bytes.
    pub packet_size: usize,
    /// The total size of rows in bytes at which a leaf is closed.
    pub leaf_bytes: u64,
    /// The age at which a leaf is closed.
    pub leaf_age: Duration,
}

/// The next action of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call the database's `resume`, and answer with [`super::Sender::resumed`] or [`super::Sender::failed`].
    Resume {
        /// The stream.
        stream: StreamId,
        /// The receiver of the stream.
        receiver: NodeId,
    },
    /// Create an epoch's secret and record, call `open_epoch`, and answer with [`super::Sender::opened`],
    /// [`super::Sender::failed`] or [`super::Sender::delayed`].
    Open(NewEpoch),
    /// Call [`super::Sender::batch`].
    Batch,
    /// Sign these checkpoints, store the signatures in the database, and answer with [`super::Sender::signed`].
    Sign(Vec<UnsignedCheckpoint>),
    /// Wait for a packet, for the commit, or until this instant.
    Wait(Option<Instant>),
}

/// An acknowledged position in a stream that the sender has not signed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsignedCheckpoint {
    /// The stream.
    pub stream: StreamId,
    /// The epoch.
    pub epoch: EpochNo,
    /// The SHA-256 of the epoch's record and signature.
    pub record_hash: [u8; 32],
    /// The checkpoint to sign.
    pub checkpoint: Checkpoint,
}

/// The state of a sender that is kept over a restart.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedState {
    /// The last epoch with rows, and the last used packet number.
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
    /// The epoch's number, higher than any known one. It is based on the clock, so that it is also higher than those that a restored
    /// database has lost.
    pub epoch: EpochNo,
    /// The leaf: the newest one, or a new one after it.
    pub leaf: LeafNo,
    /// The number of its first packet.
    pub first_seq: Seq,
    /// The time of opening, by this host's clock.
    pub opened: UnixTime,
    /// The previous epoch.
    pub previous: Option<PreviousEpoch>,
}

/// The end of the previous epoch, as far as its writer or the database knew it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PreviousEpoch {
    /// The epoch's number.
    pub epoch: EpochNo,
    /// The number of its last packet.
    pub last_seq: Seq,
    /// The last value of its chain, if this sender itself knows it. A value from the database must not be signed.
    pub chain: Option<ChainValue>,
    /// The time when it was opened, if known.
    pub opened: Option<UnixTime>,
}

/// The extent to which the numbers in a [`ResumeRow`] are trusted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ResumeOutcome {
    /// The stream continues after them.
    Full,
    /// Some numbers are implausibly high, so the stream continues after its own numbers.
    OwnNumbers,
    /// Some numbers are implausibly high and the stream has no own numbers, so it tries again later.
    Refused,
}

/// The result of the database's `resume`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeRow {
    /// The highest packet number in the newest leaf or the one before it.
    pub last_seq: i64,
    /// The highest epoch; 0 if there is none.
    pub last_epoch: i32,
    /// The newest leaf; 0 if there is none.
    pub last_leaf: i32,
    /// The newest leaf, if it has room for more rows.
    pub open_leaf: Option<OpenLeaf>,
}

/// A leaf that another process of this node has begun but not closed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct OpenLeaf {
    /// The approximate total size of its rows in bytes.
    pub bytes: u64,
    /// The time since it was opened.
    pub age: Duration,
}

/// The rows of one stream in a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchPart {
    /// The stream.
    pub stream: StreamId,
    /// The receiver of the stream, to be notified.
    pub receiver: NodeId,
    /// The leaf. It determines the table together with the stream.
    pub leaf: LeafNo,
    /// The number of rows.
    pub rows: usize,
    /// The rows in binary COPY format, without header and trailer.
    pub bytes: Vec<u8>,
}

/// The rows of one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The parts, one per stream.
    pub parts: Vec<BatchPart>,
}

impl Batch {
    /// Returns the number of rows in all parts. Up to [`crate::limits::FEW_ROWS`] are better inserted than copied.
    pub fn rows(&self) -> usize {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.rows))
    }
}

/// The counters of a sender.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of sealed packets, and so of rows.
    pub packets: u64,
    /// The total length of these IP packets in bytes.
    pub bytes: u64,
    /// The number of committed batches.
    pub batches: u64,
    /// The number of rows whose commit is in doubt because the connection was lost.
    pub in_doubt: u64,
    /// The number of opened epochs.
    pub epochs: u64,
    /// The numbers of dropped super-packets and packets, by reason.
    pub dropped: DropCounts,
    /// The current memory of the queues in bytes.
    pub queued: usize,
    /// The duration of a commit, smoothed.
    pub commit: Duration,
}
