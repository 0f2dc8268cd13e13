//! A queue for the records of `log` statements.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::{FrameContext, lock};
use crate::Nanos;
use crate::evaluate::{IfName, LogSink};
use crate::packet::{Layer, Packet};
use crate::ruleset::Log;

/// The maximum number of queued records.
const MAX_RECORDS: usize = 4096;
/// The maximum number of queued bytes of packets.
const MAX_BYTES: usize = 4 << 20;
/// The number of bytes kept for a line of the log if no `snaplen` is specified: all headers.
const LINE_BYTES: usize = 128;

/// A packet that a rule logged.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// The time of the packet's evaluation.
    pub at: Nanos,
    /// The handle of the rule.
    pub rule: u32,
    /// The prefix of the rule.
    pub prefix: Arc<str>,
    /// The group, or `None` for the log.
    pub group: Option<u16>,
    /// The layer at which `bytes` begin.
    pub layer: Layer,
    /// The VLAN tag next to the frame.
    pub vlan: Option<u16>,
    /// The interface on which the packet arrived.
    pub iif: IfName,
    /// The interface on which the packet would leave.
    pub oif: IfName,
    /// The length of the frame.
    pub length: usize,
    /// As many bytes of the frame as the rule requires.
    pub bytes: Box<[u8]>,
}

/// The queue of records for readers. A record that does not fit is counted and lost: evaluation never waits.
#[derive(Default)]
pub struct LogQueue {
    waiting: Mutex<QueuedRecords>,
    lost: AtomicU64,
    /// The number of readers of groups.
    readers: AtomicUsize,
    /// Whether rules write to the log and a reader takes the lines.
    lines: AtomicBool,
    wake: Mutex<Option<Wake>>,
}

type Wake = Box<dyn Fn() + Send>;

#[derive(Default)]
struct QueuedRecords {
    records: VecDeque<LogRecord>,
    bytes: usize,
}

impl LogQueue {
    /// Sets a function to call when the first new record is queued. From now on lines are kept.
    pub fn on_record(&self, wake: impl Fn() + Send + 'static) {
        *lock(&self.wake) = Some(Box::new(wake));
        self.lines.store(true, Relaxed);
    }

    /// Adds a reader of the packets that rules log to groups. Without a reader they are not kept.
    pub fn add_reader(&self) {
        self.readers.fetch_add(1, Relaxed);
    }

    /// Returns whether there are readers. If so, a caller that evaluates only headers must pass whole packets.
    pub fn has_readers(&self) -> bool {
        self.readers.load(Relaxed) > 0
    }

    /// Removes a reader; see [`LogQueue::add_reader`].
    pub fn remove_reader(&self) {
        let _ = self.readers.fetch_update(Relaxed, Relaxed, |readers| readers.checked_sub(1));
    }

    /// Takes all records.
    pub fn take(&self) -> Vec<LogRecord> {
        let mut waiting = lock(&self.waiting);
        waiting.bytes = 0;
        std::mem::take(&mut waiting.records).into()
    }

    /// Returns the number of records that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    fn wants(&self, group: Option<u16>) -> bool {
        match group {
            Some(_) => self.readers.load(Relaxed) > 0,
            None => self.lines.load(Relaxed),
        }
    }

    fn put(&self, record: LogRecord) {
        let mut waiting = lock(&self.waiting);
        let bytes = waiting.bytes.saturating_add(record.bytes.len());
        if waiting.records.len() >= MAX_RECORDS || bytes > MAX_BYTES {
            self.lost.fetch_add(1, Relaxed);
            return;
        }
        let first = waiting.records.is_empty();
        waiting.bytes = bytes;
        waiting.records.push_back(record);
        drop(waiting);
        if first && let Some(wake) = &*lock(&self.wake) {
            wake();
        }
    }
}

impl fmt::Debug for LogQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = lock(&self.waiting).records.len();
        f.debug_struct("LogQueue").field("waiting", &waiting).finish_non_exhaustive()
    }
}

/// Writes the packets of one burst to the queue.
pub(super) struct Writer<'a> {
    pub queue: &'a LogQueue,
    pub now: Nanos,
    pub frame_context: &'a FrameContext,
}

impl LogSink for Writer<'_> {
    #[cold]
    fn log(&mut self, rule: u32, log: &Log, packet: &Packet<'_>) {
        if !self.queue.wants(log.group) {
            return;
        }
        let all = packet.bytes;
        let keep = match (log.snaplen, log.group) {
            (0, None) => LINE_BYTES,
            (0, Some(_)) => all.len(),
            (len, _) => len as usize,
        };
        self.queue.put(LogRecord {
            at: self.now,
            rule,
            prefix: log.prefix.as_str().into(),
            group: log.group,
            layer: self.frame_context.layer,
            vlan: self.frame_context.vlan,
            iif: self.frame_context.iif,
            oif: self.frame_context.oif,
            length: all.len(),
            bytes: all.get(..keep).unwrap_or(all).into(),
        });
    }
}
