//! The receiving side. It reads one incoming stream from its leaves in order and never twice.
//!
//! ```text
//!   wake (notification), look (Watch) ─► query: Epochs, Page, Skip ─► epochs | page | skipped ─► packets
//! ```
//!
//! The driver calls [`Receiver::query`] after each call and at the [`Receiver::deadline`]. It runs the returned query,
//! and answers it with the method in the query's documentation, or with [`Receiver::gone`] or [`Receiver::lost`].

mod types;
mod wake_up_monitor;

use std::collections::VecDeque;
use std::time::Duration;

use adit_engine::{Instant, Random, Seed};
use adit_wire::ip::Ip;

pub use self::types::{AgedRow, Delivery, Epoch, Hint, Position, Query, Stats};
pub use self::wake_up_monitor::{QueryScope, WakeUpMonitor};
use crate::limits::{EPOCHS_AHEAD, EXPIRED_MS, FORGED_PAGES, PAGE_BYTES, PAGE_ROWS, SEQ_WINDOW};
use crate::queue::{count, later};
use crate::routes::Routes;
use crate::row::Row;
use crate::{EpochNo, Generation, LeafNo, Seq, StreamId};

/// One incoming stream of a node.
#[derive(Debug)]
pub struct Receiver {
    stream: StreamId,
    position: Position,
    /// The oldest key of the network that is accepted in new rows.
    oldest_key: Generation,
    /// The epoch that is being read, whose number is that of the position; `None` until one is known.
    reading: Option<Epoch>,
    /// The later epochs in ascending order; at most [`EPOCHS_AHEAD`].
    ahead: VecDeque<Epoch>,
    /// The row up to which a starting reader still searches for the newest authentic one.
    starting: Option<Seq>,
    /// The row after which the next page begins: the position, unless forged rows are being skipped.
    scan: Seq,
    /// The row up to which all packets are too old, according to the database.
    skipped_to: Option<Seq>,
    /// The number of pages without an authentic row since the last pause.
    forged_pages: u32,
    /// Whether a page had rows of unknown epochs, and the epochs have been queried since.
    unknown_asked: bool,
    /// Whether the leaf that is being read is missing.
    leaf_gone: bool,
    /// Whether a notification has arrived, and no authentic row since.
    woken: bool,
    wants: WantedQueries,
    asked: Option<Query>,
    /// The time when the stream is polled without a notification.
    poll: Instant,
    /// The time before which epochs are not queried again, because the last query found none.
    no_epochs_before: Instant,
    last_authentic: Option<Instant>,
    /// The approximate number of bytes of a row.
    row_bytes: usize,
    random: Random,
    stats: Stats,
}

/// The queries to send.
#[derive(Copy, Clone, Debug, Default)]
struct WantedQueries {
    epochs: bool,
    page: bool,
    skip: bool,
    /// Whether the next page is not limited to the window, because a gap is longer than the window.
    far: bool,
}

/// The result of reading a page.
#[derive(Debug, Default)]
struct PageSummary {
    rows: u32,
    bytes: usize,
    lowest: Option<Seq>,
    highest: Option<Seq>,
    authentic: u32,
    expired: u32,
    unknown: u64,
}

/// The result of checking a row.
enum RowCheck {
    /// The row is authentic, and this many bytes were appended.
    Authentic(usize),
    Repeated,
    Forged,
    /// The row's epoch uses a key of the network whose grace period is over.
    OldKey,
    /// The row's epoch is not known, or not known yet.
    Unknown,
}

/// The polling intervals of a stream with unfinished work, while packets arrive and after [`ACTIVE`] without packets.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
const ACTIVE: Duration = Duration::from_secs(2);

/// The polling interval of any other stream, for which notifications and [`WakeUpMonitor`] report new rows.
const QUIET: Duration = Duration::from_secs(3600);

/// The interval between two queries for epochs if the first found none.
const EPOCHS_PAUSE: Duration = Duration::from_millis(5);

/// How many rows a starting reader searches for the newest authentic one.
const NEWEST_ROWS: u32 = 64;

impl Receiver {
    /// Creates a reader that had reached `position` when the process last stopped (zeros if unknown). `seed` is only
    /// for the jitter of its polls.
    pub fn new(now: Instant, stream: StreamId, position: Position, seed: impl Into<Seed>) -> Self {
        Self {
            stream,
            position,
            oldest_key: Generation::FIRST,
            reading: None,
            ahead: VecDeque::new(),
            starting: Some(Seq(i64::MAX)),
            scan: position.seq,
            skipped_to: None,
            forged_pages: 0,
            unknown_asked: false,
            leaf_gone: false,
            woken: false,
            wants: WantedQueries { epochs: true, page: true, ..WantedQueries::default() },
            asked: None,
            poll: now,
            no_epochs_before: now,
            last_authentic: None,
            row_bytes: PAGE_BYTES / 128,
            random: Random::new(seed),
            stats: Stats::default(),
        }
    }

    /// Handles a notification about new data in `leaf`, which any role may have sent.
    pub fn wake(&mut self, leaf: LeafNo) {
        let known = self.reading.iter().chain(&self.ahead).any(|epoch| epoch.leaf == leaf);
        self.wants.epochs |= !known || self.leaf_gone;
        self.wants.page = true;
        self.woken = true;
    }

    /// From now on, rejects rows of epochs under the network's keys before `oldest`, whose grace period has ended.
    pub fn retire(&mut self, oldest: Generation) {
        self.oldest_key = self.oldest_key.max(oldest);
    }

    /// Checks the stream, which may have new rows without a notification.
    pub fn recheck(&mut self, now: Instant) {
        let far = !self.is_active(now);
        self.woken &= !far;
        self.wants = WantedQueries { epochs: true, page: true, far, ..self.wants };
        self.poll = self.next_poll(now);
    }

    /// Returns the next query, or `None` while a query is outstanding or nothing is due.
    pub fn query(&mut self, now: Instant) -> Option<Query> {
        if self.asked.is_some() {
            return None;
        }
        if self.woken {
            self.poll = self.poll.min(self.next_poll(now));
        }
        if now >= self.poll {
            self.recheck(now);
        }
        let query = self.next_query(now)?;
        match query {
            Query::Epochs { .. } => self.wants.epochs = false,
            Query::Page { .. } => (self.wants.page, self.wants.far) = (false, false),
            Query::Skip { .. } => self.wants.skip = false,
        }
        self.asked = Some(query);
        Some(query)
    }

    fn next_query(&self, now: Instant) -> Option<Query> {
        if self.wants.epochs && now >= self.no_epochs_before {
            let newest = self.ahead.back().or(self.reading.as_ref()).map(|epoch| epoch.no);
            // Before the first page, the key of the position's epoch is also needed.
            let after = newest.unwrap_or(EpochNo(self.position.epoch.0.saturating_sub(1)));
            return Some(Query::Epochs { after, limit: EPOCHS_AHEAD as u32 });
        }
        let leaf = self.reading.as_ref()?.leaf;
        // There are rows of an unknown epoch, so query the epochs first.
        if self.leaf_gone || (self.unknown_asked && self.wants.epochs) {
            return None;
        }
        if let Some(until) = self.starting {
            let (after, limit) = (self.position.seq, NEWEST_ROWS);
            let page = Query::Page { leaf, after, until, limit, newest_first: true };
            return self.wants.page.then_some(page);
        }
        if self.wants.skip {
            return Some(Query::Skip { leaf, after: self.scan });
        }
        let far = if self.wants.far { i64::MAX } else { SEQ_WINDOW };
        let from = self.skipped_to.unwrap_or(self.position.seq);
        let until = Seq(from.0.saturating_add(far));
        let rows =
            u32::try_from(PAGE_BYTES.checked_div(self.row_bytes).unwrap_or(0)).unwrap_or(u32::MAX);
        let limit = rows.clamp(*PAGE_ROWS.start(), *PAGE_ROWS.end());
        let page = Query::Page { leaf, after: self.scan, until, limit, newest_first: false };
        self.wants.page.then_some(page)
    }

    /// Returns whether packets have arrived recently.
    pub fn is_active(&self, now: Instant) -> bool {
        self.last_authentic.is_some_and(|last| now.since(last) < ACTIVE)
    }

    /// Returns whether forged rows are being skipped, the start has not been found yet, or a notification has led to
    /// nothing.
    fn is_unfinished(&self) -> bool {
        self.woken || self.starting.is_some() || self.scan != self.position.seq
    }

    fn next_poll(&mut self, now: Instant) -> Instant {
        let interval = match self.is_unfinished() {
            true if self.is_active(now) => POLL.0,
            true => POLL.1,
            false => QUIET,
        };
        later(now, jittered(&mut self.random, interval))
    }

    /// Answers [`Query::Epochs`] with the epochs whose record, signature and wrap were valid, in any order. `refused`
    /// is the number of other epochs.
    pub fn epochs(&mut self, now: Instant, found: impl IntoIterator<Item = Epoch>, refused: u64) {
        if !matches!(self.asked, Some(Query::Epochs { .. })) {
            return;
        }
        self.asked = None;
        self.stats.epochs_refused = self.stats.epochs_refused.saturating_add(refused);
        let mut found: Vec<Epoch> = found.into_iter().collect();
        let all = found.len();
        found.retain(|epoch| epoch.generation >= self.oldest_key);
        let retired = all.saturating_sub(found.len()) as u64;
        self.stats.epochs_refused = self.stats.epochs_refused.saturating_add(retired);
        found.sort_by_key(|epoch| epoch.no);
        // When the reader starts, it reads only the newest existing epoch, and delivers none of its packets.
        let first = self.starting.is_some() && self.reading.is_none();
        if first && found.is_empty() && refused == 0 {
            self.starting = None;
        }
        let mut news = false;
        for epoch in found {
            let newest = self.ahead.back().or(self.reading.as_ref());
            // The first epoch may be that of the position. All others must be newer than any known one.
            let newer =
                newest.map_or(epoch.no >= self.position.epoch, |newest| epoch.no > newest.no);
            if !newer || epoch.first_seq.0 < 1 {
                count(&mut self.stats.epochs_refused);
                continue;
            }
            news = true;
            count(&mut self.stats.epochs);
            self.take(epoch, first);
        }
        if !news {
            self.no_epochs_before = later(now, EPOCHS_PAUSE);
        }
        self.poll = self.poll.min(self.next_poll(now));
        if news {
            self.wants.page = true;
        }
    }

    fn take(&mut self, epoch: Epoch, first: bool) {
        let all_before_is_expired = epoch.age_ms > EXPIRED_MS;
        self.ahead.push_back(epoch);
        if self.ahead.len() > EPOCHS_AHEAD {
            self.ahead.pop_front();
            count(&mut self.stats.epochs_refused);
        }
        if self.reading.is_none() || self.leaf_gone || first || all_before_is_expired {
            let unread = self.reading.is_some() && !self.leaf_gone && self.starting.is_none();
            let from = self.position.seq;
            while self.advance() {}
            if unread {
                let rows = self.position.seq.0.saturating_sub(from.0);
                let rows = u64::try_from(rows).unwrap_or(0);
                self.stats.skipped = self.stats.skipped.saturating_add(rows);
            }
        }
    }

    /// Advances to the next epoch, if one is known.
    fn advance(&mut self) -> bool {
        let Some(next) = self.ahead.pop_front() else { return false };
        let behind = Seq(next.first_seq.0.saturating_sub(1));
        let seq =
            if next.no == self.position.epoch { self.position.seq.max(behind) } else { behind };
        self.position = Position { epoch: next.no, seq };
        (self.scan, self.skipped_to) = (seq, None);
        self.reading = Some(next);
        if let Some(until) = &mut self.starting {
            *until = Seq(i64::MAX);
        }
        self.leaf_gone = false;
        self.wants.page = true;
        self.wants.skip = false;
        true
    }

    /// Answers [`Query::Page`], and appends the packets to deliver to `out`.
    pub fn page<'a>(
        &mut self,
        now: Instant,
        rows: impl IntoIterator<Item = AgedRow<'a>>,
        routes: &Routes,
        out: &mut Delivery,
    ) {
        let Some(Query::Page { leaf, until, limit, newest_first, .. }) = self.asked else {
            return;
        };
        self.asked = None;
        count(&mut self.stats.pages);
        let mut seen = PageSummary::default();
        for dated in rows.into_iter().take(limit as usize) {
            let row = &dated.row;
            seen.rows = seen.rows.saturating_add(1);
            seen.bytes = seen.bytes.saturating_add(row.payload.len());

            seen.lowest = Some(seen.lowest.map_or(row.seq, |lowest| lowest.min(row.seq)));
            seen.highest = Some(seen.highest.map_or(row.seq, |highest| highest.max(row.seq)));
            let start = out.bytes.len();
            match self.check_row(leaf, row, &mut out.bytes) {
                RowCheck::Authentic(len) => {
                    seen.authentic = seen.authentic.saturating_add(1);
                    if newest_first {
                        out.bytes.truncate(start);
                        break;
                    }
                    if seen.authentic == 1 {
                        self.stats.lag_ms = Some(u64::try_from(dated.age_ms).unwrap_or(0));
                    }
                    if dated.age_ms > EXPIRED_MS as i64 {
                        seen.expired = seen.expired.saturating_add(1);
                        count(&mut self.stats.expired);
                        out.bytes.truncate(start);
                    } else {
                        self.deliver(start, len, routes, out);
                    }
                }
                RowCheck::Repeated if newest_first => {}
                RowCheck::Repeated => count(&mut self.stats.repeated),
                RowCheck::Forged => count(&mut self.stats.forged),
                RowCheck::OldKey => count(&mut self.stats.old_key),
                RowCheck::Unknown => count(&mut seen.unknown),
            }
        }
        if seen.authentic > 0 {
            self.last_authentic = Some(now);
            self.woken = false;
        }
        if newest_first {
            self.started(&seen, limit, until);
        } else {
            self.page_done(now, &seen, limit, until);
        }
    }

    /// Opens a row unless it is behind the position, and moves the position to it.
    fn check_row(&mut self, leaf: LeafNo, row: &Row<'_>, out: &mut Vec<u8>) -> RowCheck {
        let Some(reading) = &self.reading else { return RowCheck::Forged };
        if row.epoch < reading.no {
            return RowCheck::Repeated;
        }
        if row.epoch == reading.no {
            if row.seq <= self.position.seq {
                return RowCheck::Repeated;
            }
            if reading.generation < self.oldest_key {
                return RowCheck::OldKey;
            }
            let Ok(len) = reading.open.open(row, out) else { return RowCheck::Forged };
            self.move_to(row.seq, self.position.seq);
            return RowCheck::Authentic(len);
        }
        let Some(index) = self.ahead.iter().position(|epoch| epoch.no == row.epoch) else {
            return RowCheck::Unknown;
        };
        let Some(next) = self.ahead.get(index) else { return RowCheck::Unknown };
        // A row of a later leaf would make the reader skip all earlier rows in that leaf.
        if next.leaf != leaf {
            return RowCheck::Forged;
        }
        if next.generation < self.oldest_key {
            return RowCheck::OldKey;
        }
        let Ok(len) = next.open.open(row, out) else { return RowCheck::Forged };
        let behind = Seq(next.first_seq.0.saturating_sub(1));
        for _ in 0..=index {
            self.advance();
        }
        self.move_to(row.seq, behind);
        RowCheck::Authentic(len)
    }

    fn move_to(&mut self, seq: Seq, from: Seq) {
        let between = seq.0.saturating_sub(from.0).saturating_sub(1);
        let between = u64::try_from(between).unwrap_or(0);
        if self.starting.is_some() {
            // This reader does not deliver packets from before its start.
        } else if self.skipped_to.take().is_some() {
            self.stats.skipped = self.stats.skipped.saturating_add(between);
        } else {
            self.stats.missing = self.stats.missing.saturating_add(between);
        }
        self.position.seq = seq;
    }

    /// Delivers an authentic packet if its sender and this node own its addresses. The holder of one node's keys cannot
    /// send with another node's addresses.
    fn deliver(&mut self, start: usize, len: usize, routes: &Routes, out: &mut Delivery) {
        let packet = out.bytes.get(start..).and_then(|rest| rest.get(..len)).unwrap_or_default();
        let verdict = match Ip::parse(packet) {
            None => Err(&mut self.stats.forged),
            Some(ip) if !routes.may_come(self.stream, ip.source) => {
                Err(&mut self.stats.wrong_source)
            }
            Some(ip) if !routes.is_mine(ip.destination) => Err(&mut self.stats.wrong_destination),
            Some(ip) => Ok(ip.total_len),
        };
        match verdict {
            Ok(len) => {
                let end = start.saturating_add(len);
                out.bytes.truncate(end);
                out.ranges.push(start..end);
                count(&mut self.stats.packets);
                self.stats.bytes = self.stats.bytes.saturating_add(len as u64);
            }
            Err(counter) => {
                count(counter);
                out.bytes.truncate(start);
            }
        }
    }

    /// Processes a page of the newest rows, in which the first authentic row is the newest.
    fn started(&mut self, seen: &PageSummary, limit: u32, until: Seq) {
        self.wants.page = true;
        self.scan = self.position.seq;
        match seen.lowest {
            Some(lowest) if seen.authentic == 0 && seen.rows >= limit => {
                self.stats.forged = self.stats.forged.saturating_add(seen.unknown);
                // The lowest number may have more rows, so query it again, unless it is the only one in the page.
                let below = if lowest < until { lowest } else { Seq(lowest.0.saturating_sub(1)) };
                self.starting = Some(below);
                self.pause_if_forged();
            }
            _ => (self.starting, self.forged_pages) = (None, 0),
        }
    }

    /// Decides the next step after a page.
    fn page_done(&mut self, now: Instant, seen: &PageSummary, limit: u32, until: Seq) {
        if let Some(average) = seen.bytes.checked_div(seen.rows as usize) {
            self.row_bytes = average.max(1);
        }
        let full = seen.rows >= limit;
        if seen.unknown > 0 && !self.unknown_asked {
            self.unknown_asked = true;
            (self.wants.epochs, self.wants.page) = (true, true);
            self.scan = self.position.seq;
            return;
        }
        self.stats.forged = self.stats.forged.saturating_add(seen.unknown);
        self.unknown_asked = false;
        self.skipped_to = None;
        if seen.authentic > 0 {
            self.scan = self.position.seq;
            self.forged_pages = 0;
            self.wants.page |= full;
            self.wants.skip |= full && seen.expired == seen.authentic;
        } else if full {
            // The highest number may have more rows than this page holds.
            let highest = seen.highest.unwrap_or(self.scan).min(until);
            let before = Seq(highest.0.saturating_sub(1));
            self.scan = if before > self.scan { before } else { highest };
            self.wants.page = true;
            self.pause_if_forged();
        } else {
            self.scan = self.position.seq;
            self.forged_pages = 0;
        }
        // The next epoch was known when the page was queried, and the sender had ended this one before opening it.
        if !full {
            self.advance();
        }
        self.poll = self.poll.min(self.next_poll(now));
    }

    /// Pauses the stream if forged rows arrive, so that other streams' packets are read first.
    fn pause_if_forged(&mut self) {
        self.forged_pages = self.forged_pages.saturating_add(1);
        if self.forged_pages >= FORGED_PAGES {
            self.forged_pages = 0;
            self.wants.page = false;
        }
    }

    /// Answers [`Query::Skip`].
    pub fn skipped(&mut self, newest: Option<Seq>) {
        if !matches!(self.asked, Some(Query::Skip { .. })) {
            return;
        }
        self.asked = None;
        self.wants.page = true;
        // The next page begins with that row. If it is authentic, the position moves.
        if let Some(newest) = newest.filter(|newest| *newest > self.scan) {
            self.scan = Seq(newest.0.saturating_sub(1));
            self.skipped_to = Some(newest);
        }
    }

    /// Handles a missing leaf (`undefined_table`) in a [`Query::Page`] or [`Query::Skip`].
    pub fn gone(&mut self) {
        if let Some(Query::Page { .. } | Query::Skip { .. }) = self.asked {
            self.asked = None;
            self.wants.skip = false;
            self.leaf_gone = true;
            // No more rows of the epoch can arrive, and a later epoch has arrived.
            self.starting = None;
            self.advance();
            self.wants.epochs = true;
        }
    }

    /// Handles a query that failed or will not be answered because the connection is lost. Call it when a connection is
    /// established again. The stream is checked at once.
    pub fn lost(&mut self) {
        self.asked = None;
        self.wants = WantedQueries { epochs: true, page: true, ..WantedQueries::default() };
        (self.scan, self.skipped_to) = (self.position.seq, None);
        (self.forged_pages, self.unknown_asked) = (0, false);
    }

    /// Returns the latest time to call [`Self::query`]. A time in the past means at once. Returns `None` while a query is outstanding.
    pub fn deadline(&self) -> Option<Instant> {
        if self.asked.is_some() {
            return None;
        }
        if self.next_query(self.no_epochs_before.max(self.poll)).is_none() {
            return Some(self.poll);
        }
        let epochs_only = self.next_query(Instant::default()).is_none();
        Some(if epochs_only { self.no_epochs_before.min(self.poll) } else { Instant::default() })
    }

    /// Returns the current position. Write it to a file after each page, before delivering the page's packets.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

/// Returns a random duration between 3/4 and 5/4 of the interval.
fn jittered(random: &mut Random, interval: Duration) -> Duration {
    let quarter = interval.checked_div(4).unwrap_or(interval);
    let jitter = quarter.mul_f64(f64::from(random.below(2049)) / 1024.0);
    quarter.saturating_mul(3).saturating_add(jitter)
}
