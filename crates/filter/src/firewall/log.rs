//! Records of `log` statements, until a reader takes them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::{FrameContext, lock};
use crate::Nanos;
use crate::evaluate::{IfName, LogSink};
use crate::packet::{Layer, Packet};
use crate::ruleset::Log;

/// Records that may wait.
const MAX_RECORDS: usize = 4096;
/// Bytes of packets that may wait.
const MAX_BYTES: usize = 4 << 20;
/// Bytes kept for a line of the log, where no `snaplen` is stated: all headers.
const LINE_BYTES: usize = 128;

/// A packet that a rule logged.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// When it was evaluated.
    pub at: Nanos,
    /// Handle of the rule.
    pub rule: u32,
    /// What the rule says to write before it.
    pub prefix: Arc<str>,
    /// For whom; `None`: for the log.
    pub group: Option<u16>,
    /// What `bytes` begin with.
    pub layer: Layer,
    /// The VLAN tag next to the frame.
    pub vlan: Option<u16>,
    /// Where it came in.
    pub iif: IfName,
    /// Where it was to go out.
    pub oif: IfName,
    /// How long the frame was.
    pub length: usize,
    /// As much of it as the rule wants.
    pub bytes: Box<[u8]>,
}

/// Records that wait to be taken. What finds no room is counted and lost: evaluation never waits for it.
#[derive(Default)]
pub struct LogQueue {
    waiting: Mutex<Waiting>,
    lost: AtomicU64,
    /// How many want the records of groups.
    readers: AtomicUsize,
    /// There are rules that write to the log, and a reader that takes the lines.
    lines: AtomicBool,
    wake: Mutex<Option<Wake>>,
}

type Wake = Box<dyn Fn() + Send>;

#[derive(Default)]
struct Waiting {
    records: VecDeque<LogRecord>,
    bytes: usize,
}

impl LogQueue {
    /// Calls `wake` when something waits that no one knows of yet. From now on lines are kept.
    pub fn on_record(&self, wake: impl Fn() + Send + 'static) {
        *lock(&self.wake) = Some(Box::new(wake));
        self.lines.store(true, Relaxed);
    }

    /// A reader wants what rules log to groups. Without a reader it is not kept.
    pub fn add_reader(&self) {
        self.readers.fetch_add(1, Relaxed);
    }

    /// Whether anybody does: who evaluates headers alone must then give whole packets.
    pub fn has_readers(&self) -> bool {
        self.readers.load(Relaxed) > 0
    }

    /// The reverse of [`LogQueue::add_reader`].
    pub fn remove_reader(&self) {
        let _ = self.readers.fetch_update(Relaxed, Relaxed, |readers| readers.checked_sub(1));
    }

    /// Takes what waits.
    pub fn take(&self) -> Vec<LogRecord> {
        let mut waiting = lock(&self.waiting);
        waiting.bytes = 0;
        std::mem::take(&mut waiting.records).into()
    }

    /// Records that found no room.
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

/// Writes down the packets of one burst.
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
