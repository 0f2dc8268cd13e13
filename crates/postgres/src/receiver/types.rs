//! The queries and answers of a receiver.

use std::ops::Range;

use crate::row::Row;
use crate::seal::Opener;
use crate::{EpochNo, Generation, LeafNo, Seq, StreamId};

/// An epoch whose record and signature were found right, with its key. All of it from the record, none from the table's
/// columns but the age.
#[derive(Debug)]
pub struct Epoch {
    /// Its number.
    pub no: EpochNo,
    /// Its leaf.
    pub leaf: LeafNo,
    /// The number of its first packet.
    pub first_seq: Seq,
    /// The generation of the network's key that it is under.
    pub generation: Generation,
    /// The time since it was opened, by the database's clock alone.
    pub age_ms: u64,
    /// Opens its packets.
    pub open: Opener,
}

/// A row with its age.
#[derive(Copy, Clone, Debug)]
pub struct AgedRow<'a> {
    /// The row.
    pub row: Row<'a>,
    /// `statement_timestamp() - ts`: how old, by the database's clock alone; negative counts as 0.
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
        /// Only rows behind this one.
        after: Seq,
        /// Only rows up to this one.
        until: Seq,
        /// The maximum number of results.
        limit: u32,
        /// `ORDER BY seq DESC` instead of `ORDER BY seq`: a starting reader looks for the newest.
        newest_first: bool,
    },
    /// `SELECT max(seq)` of the rows with `seq > after` that are older than [`crate::limits::EXPIRED_MS`]: a backlog
    /// is not read row by row. Answer: [`super::Receiver::skipped`].
    Skip {
        /// The leaf.
        leaf: LeafNo,
        /// Only rows behind this one.
        after: Seq,
    },
}

/// The position of a reader: every packet up to it was delivered, skipped or lost, and is never delivered again.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The epoch that was read last.
    pub epoch: EpochNo,
    /// The last authentic packet in it.
    pub seq: Seq,
}

/// A notification: which stream has something new, and in which leaf.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The stream.
    pub stream: StreamId,
    /// The leaf.
    pub leaf: LeafNo,
}

impl Hint {
    /// Reads a payload `STREAM.LEAF`; both positive, without signs, spaces or leading zeros.
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

/// Packets to write to the device, in order, in one reused buffer.
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

    /// Forgets them and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }
}

/// Counters of a receiver.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets delivered.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pages read.
    pub pages: u64,
    /// Epochs taken.
    pub epochs: u64,
    /// Authentic rows that were too old to be delivered, as far as they were read individually.
    pub expired: u64,
    /// Rows that are not authentic, or belong to an epoch that is not.
    pub forged: u64,
    /// Rows behind the position: repeated, or in the wrong order.
    pub repeated: u64,
    /// Authentic packets whose inner source is not the sender's.
    pub wrong_source: u64,
    /// Authentic packets to another node.
    pub wrong_destination: u64,
    /// Numbers that were passed over unread, because rows behind them were too old already.
    pub skipped: u64,
    /// Numbers that are missing between two packets of an epoch.
    pub missing: u64,
    /// Rows of epochs under a former key of the network, after its grace.
    pub old_key: u64,
    /// Epochs older than the position, beyond what is kept, or under a former key of the network after its grace.
    pub epochs_refused: u64,
}
