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
    /// The sender's keys; `None`: they are not trusted, and signatures are not looked at.
    pub sender: Option<NodePublic>,
    /// The receiver.
    pub receiver: NodeId,
    /// The rows that may have expired; `None`: retention is not checked.
    pub retention: Option<Rc<Retention>>,
    /// The network's settings; `None`: they are not trusted, and epochs are not compared with them.
    pub settings: Option<Rc<History>>,
}

/// A row of the table `checkpoint`.
#[derive(Copy, Clone, Debug)]
pub struct CheckpointRow<'a> {
    /// Column `seq`.
    pub seq: Seq,
    /// Column `chain`.
    pub chain: &'a [u8],
    /// Column `signature`.
    pub signature: &'a [u8],
}

/// A row of the table `epoch`, with the wrap for this reader.
#[derive(Copy, Clone, Debug)]
pub struct EpochRow<'a> {
    /// Column `no`.
    pub no: EpochNo,
    /// Column `leaf`.
    pub leaf: LeafNo,
    /// Column `first_seq`.
    pub first_seq: Seq,
    /// Column `record`.
    pub record: &'a [u8],
    /// Column `signature`.
    pub signature: &'a [u8],
    /// The wrap that this reader opens.
    pub wrap: Option<&'a Wrap>,
    /// Its checkpoint.
    pub checkpoint: Option<CheckpointRow<'a>>,
    /// Column `record` of the next epoch of the stream: says at which row the chain will be asked for.
    pub next: Option<&'a [u8]>,
    /// The time at which its leaf was dropped, according to the database: no rows, no wraps.
    pub expired: Option<UnixTime>,
}

/// Counts of the rows and epochs that were checked.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Epochs whose rows are there.
    pub epochs: u64,
    /// Epochs whose rows have expired.
    pub expired: u64,
    /// Rows.
    pub rows: u64,
    /// Rows that were opened, and that the sender has signed through the chain.
    pub proven: u64,
    /// Rows that were opened and that follow the last signature in the chain.
    pub unsigned: u64,
    /// Volatile epochs without rows: a crash may have emptied them.
    pub emptied: u64,
    /// Findings.
    pub findings: u64,
}
