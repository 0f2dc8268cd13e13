//! The verifier's input, and its summary.

use std::rc::Rc;

use adit_engine::UnixTime;

use super::Retention;
use crate::key::NodePublic;
use crate::key::epoch::Wrap;
use crate::key::settings::History;
use crate::{EpochNo, LeafNo, NodeId, Seq, StreamId};

/// The stream and its nodes.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The network's tag.
    pub network: String,
    /// Its number.
    pub id: StreamId,
    /// The sender's keys, or `None` if they are not trusted. Signatures are then not checked.
    pub sender: Option<NodePublic>,
    /// The receiver.
    pub receiver: NodeId,
    /// The rows that may have expired, or `None` if retention is not checked.
    pub retention: Option<Rc<Retention>>,
    /// The network's settings, or `None` if they are not trusted. Epochs are then not compared with them.
    pub settings: Option<Rc<History>>,
}

/// A row of the table `checkpoint`.
#[derive(Copy, Clone, Debug)]
pub struct CheckpointRow<'a> {
    /// The column `seq`.
    pub seq: Seq,
    /// The column `chain`.
    pub chain: &'a [u8],
    /// The column `signature`.
    pub signature: &'a [u8],
}

/// A row of the table `epoch`, with the wrap for this reader.
#[derive(Copy, Clone, Debug)]
pub struct EpochRow<'a> {
    /// The column `no`.
    pub no: EpochNo,
    /// The column `leaf`.
    pub leaf: LeafNo,
    /// The column `first_seq`.
    pub first_seq: Seq,
    /// The column `record`.
    pub record: &'a [u8],
    /// The column `signature`.
    pub signature: &'a [u8],
    /// The wrap that this reader opens.
    pub wrap: Option<&'a Wrap>,
    /// The epoch's checkpoint.
    pub checkpoint: Option<CheckpointRow<'a>>,
    /// The column `record` of the stream's next epoch, which states at which row the chain's value is needed.
    pub next: Option<&'a [u8]>,
    /// The time when its leaf was dropped, according to the database. In this case there are no rows or wraps.
    pub expired: Option<UnixTime>,
}

/// Counts of the rows and epochs that were checked.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of epochs whose rows exist.
    pub epochs: u64,
    /// The number of epochs whose rows have expired.
    pub expired: u64,
    /// The number of rows.
    pub rows: u64,
    /// The number of rows that were opened, and that the sender has signed through the chain.
    pub proven: u64,
    /// The number of rows that were opened, and that follow the last signature in the chain.
    pub unsigned: u64,
    /// The number of volatile epochs without rows. A crash may have emptied them.
    pub emptied: u64,
    /// The number of findings.
    pub findings: u64,
}
