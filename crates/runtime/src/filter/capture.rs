//! Captures the packets of `log group` rules for a program that requests them repeatedly.

use adit_filter::Nanos;
use adit_filter::firewall::{Firewall, LogRecord};
use adit_filter::packet::Layer;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::log_line;
use crate::clock::{now, unix_time_nanos};
use crate::control::{CaptureBatch, CapturedPacket};

/// The maximum number of packets that wait for the next request, and of their bytes.
const MAX_WAITING: usize = 8192;
const MAX_BYTES: usize = 8 << 20;
/// The time without a request after which a capture ends, in nanoseconds.
const PATIENCE: u64 = 10_000_000_000;

/// The capture in progress; at most one at a time.
#[derive(Debug, Default)]
pub(super) struct Capture {
    running: Option<Running>,
    next_id: u64,
}

#[derive(Debug)]
struct Running {
    id: u64,
    asked: Nanos,
    waiting: Vec<LogRecord>,
    bytes: usize,
    lost: u64,
    /// The number of packets that the queue had lost before the capture began.
    lost_before: u64,
}

impl Capture {
    /// Keeps a record until the next request.
    pub(super) fn keep(&mut self, record: LogRecord) {
        let Some(running) = &mut self.running else { return };
        let bytes = running.bytes.saturating_add(record.bytes.len());
        if running.waiting.len() >= MAX_WAITING || bytes > MAX_BYTES {
            running.lost = running.lost.saturating_add(1);
            return;
        }
        running.bytes = bytes;
        running.waiting.push(record);
    }

    /// Answers a request for packets.
    ///
    /// # Errors
    /// Fails if another program is capturing, or this capture has ended.
    pub(super) fn asked(
        &mut self,
        firewall: &Firewall,
        id: Option<u64>,
        end: bool,
        moment: Nanos,
    ) -> Result<CaptureBatch, String> {
        if id.is_none() && self.running.is_some() {
            return Err("a capture is already running: end that one first".into());
        }
        let Some(id) = id else { return Ok(self.begin(firewall, moment)) };
        let Some(running) = self.running.as_mut().filter(|running| running.id == id) else {
            return Err("this capture has ended: nothing asked about it for too long".into());
        };
        running.asked = moment;
        running.bytes = 0;
        let records = std::mem::take(&mut running.waiting);
        let queue = firewall.logs().lost().saturating_sub(running.lost_before);
        let lost = running.lost.saturating_add(queue);
        if end {
            self.end(firewall);
        }
        // The current wall-clock time of the monotonic clock's zero.
        let zero = unix_time_nanos().saturating_sub(now().as_nanos());
        let packets = records.iter().map(|record| packet(record, zero)).collect();
        Ok(CaptureBatch { id, packets, lost })
    }

    fn begin(&mut self, firewall: &Firewall, moment: Nanos) -> CaptureBatch {
        self.next_id = self.next_id.saturating_add(1);
        let id = self.next_id;
        let lost_before = firewall.logs().lost();
        firewall.logs().add_reader();
        self.running = Some(Running {
            id,
            asked: moment,
            waiting: Vec::new(),
            bytes: 0,
            lost: 0,
            lost_before,
        });
        CaptureBatch { id, ..CaptureBatch::default() }
    }

    fn end(&mut self, firewall: &Firewall) {
        if self.running.take().is_some() {
            firewall.logs().remove_reader();
        }
    }

    /// Ends a capture whose reader is gone.
    pub(super) fn expire(&mut self, firewall: &Firewall, moment: Nanos) {
        let over = |running: &Running| moment.0.saturating_sub(running.asked.0) > PATIENCE;
        if self.running.as_ref().is_some_and(over) {
            self.end(firewall);
        }
    }
}

fn packet(record: &LogRecord, zero: u64) -> CapturedPacket {
    let bytes = log_line::on_the_wire(record);
    let added = bytes.len().saturating_sub(record.bytes.len());
    CapturedPacket {
        time: zero.saturating_add(record.at.0),
        iif: log_line::name(record.iif),
        oif: log_line::name(record.oif),
        rule: record.rule,
        group: record.group.unwrap_or_default(),
        prefix: record.prefix.to_string(),
        ethernet: record.layer == Layer::Ethernet,
        bytes: STANDARD.encode(&bytes),
        length: u32::try_from(record.length.saturating_add(added)).unwrap_or(u32::MAX),
    }
}
