//! The queries and answers of a receiver.

use std::ops::Range;

use crate::row::Row;
use crate::seal::Opener;
use crate::{EpochNo, Generation, LeafNo, Seq, StreamId};

/// An epoch with a valid record and signature, and its key. All fields come from the record, except the age, which
/// comes from the table.
#[derive(Debug)]
pub struct Epoch {
    /// The epoch's number.
    pub no: EpochNo,
    /// The epoch's leaf.
    pub leaf: LeafNo,
    /// The number of the epoch's first packet.
    pub first_seq: Seq,
    /// The generation of the network's key that it was opened under.
    pub generation: Generation,
    /// The time since it was opened, by the database's clock.
    pub age_ms: u64,
    /// The opener for the epoch's packets.
    pub open: Opener,
}

/// A row with its age.
#[derive(Copy, Clone, Debug)]
pub struct AgedRow<'a> {
    /// The row.
    pub row: Row<'a>,
    /// The row's age (`statement_timestamp() - ts`) by the database's clock. A negative value counts as 0.
    pub age_ms: i64,
}

/// A query to the database. One is outstanding at a time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// The stream's epochs with `no > after`, the newest `limit` of them (`ORDER BY no DESC LIMIT`), with their wraps
    /// for this node. Answer: [`super::Receiver::epochs`].
    Epochs {
        /// Returns only epochs after this one.
        after: EpochNo,
        /// The maximum number of results.
        limit: u32,
    },
    /// The rows with `seq > after AND seq <= until` of a leaf. Answer: [`super::Receiver::page`].
    Page {
        /// The leaf.
        leaf: LeafNo,
        /// Returns only rows after this one.
        after: Seq,
        /// Returns only rows up to this one.
        until: Seq,
        /// The maximum number of results.
        limit: u32,
        /// Whether to use `ORDER BY seq DESC` instead of `ORDER BY seq`, because a starting reader searches for the
        /// newest row.
        newest_first: bool,
    },
    /// `SELECT max(seq)` of the rows with `seq > after` that are older than [`crate::limits::EXPIRED_MS`], so that a
    /// backlog is not read row by row. Answer: [`super::Receiver::skipped`].
    Skip {
        /// The leaf.
        leaf: LeafNo,
        /// Considers only rows after this one.
        after: Seq,
    },
}

/// The position of a reader. Every packet up to it was delivered, skipped or lost, and is never delivered again.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The epoch that was read last.
    pub epoch: EpochNo,
    /// The last authentic packet in it.
    pub seq: Seq,
}

/// A notification about new rows in a leaf of a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The stream.
    pub stream: StreamId,
    /// The leaf.
    pub leaf: LeafNo,
}

impl Hint {
    /// Parses a payload `STREAM.LEAF`. Both numbers must be positive, without signs, spaces or leading zeros.
    pub fn parse(payload: &str) -> Option<Self> {
        let (stream, leaf) = payload.split_once('.')?;
        let number = |digits: &str| {
            let plain =
                digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
            if plain { digits.parse::<i32>().ok() } else { None }
        };
        Some(Self { stream: StreamId(number(stream)?), leaf: LeafNo(number(leaf)?) })
    }
}

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.stream, self.leaf)
    }
}

/// The packets to write to the device, in order, in one reused buffer.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    pub(super) bytes: Vec<u8>,
    pub(super) ranges: Vec<Range<usize>>,
}

impl Delivery {
    /// Returns the packets, for [`adit_wire::merge::Merger::push`].
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.ranges.iter().filter_map(|range| self.bytes.get(range.clone()))
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Removes all packets, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }
}

/// The counters of a receiver.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of delivered packets.
    pub packets: u64,
    /// The number of bytes in these packets.
    pub bytes: u64,
    /// The age of the oldest authentic row in the last page, in milliseconds by the database's clock; `None` before the first one.
    pub lag_ms: Option<u64>,
    /// The number of pages read.
    pub pages: u64,
    /// The number of accepted epochs.
    pub epochs: u64,
    /// The number of authentic rows that were read individually and too old to be delivered.
    pub expired: u64,
    /// The number of rows that are not authentic, or belong to an epoch that is not.
    pub forged: u64,
    /// The number of rows behind the position: repeated, or in the wrong order.
    pub repeated: u64,
    /// The number of authentic packets whose inner source does not belong to the sender.
    pub wrong_source: u64,
    /// The number of authentic packets for another node.
    pub wrong_destination: u64,
    /// The count of packet numbers that were skipped unread, because later rows were already too old.
    pub skipped: u64,
    /// The count of packet numbers that are missing between two packets of an epoch.
    pub missing: u64,
    /// The number of rows in epochs under an old key of the network after its grace period.
    pub old_key: u64,
    /// The number of epochs that are older than the position, exceed the limit, or use an old key of the network after
    /// its grace period.
    pub epochs_refused: u64,
}
