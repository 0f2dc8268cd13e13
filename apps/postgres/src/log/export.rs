//! `adit postgres export`.

use std::collections::VecDeque;
use std::io::Write;

use adit_filter::pcapng::{Captured, Link, Writer, family};
use adit_postgres::row::decode;
use adit_postgres::{LeafNo, Seq};
use tokio_postgres::Row;

use super::LogAccess;
use super::open::{OpenOutcome, Openers};
use super::pages::{Leaf, Span, TS, page};
use super::time::Micros;
use super::view::{LogStream, View};
use crate::admin::{block_on, statement_fault};
use crate::fields::fields;
use adit_runtime::fault::Fault;
use adit_runtime::progress::Progress;

/// The maximum number of rows in memory from all streams. At their maximum length they take about 16 MB.
const ROWS: usize = 2048;
/// The minimum number of rows in a page, regardless of the number of streams.
const LEAST_ROWS: usize = 8;
/// How many bytes are collected before they are written.
const WRITE: usize = 256 * 1024;

/// The packets to export.
#[derive(Copy, Clone, Debug)]
pub struct ExportOptions {
    /// The start of the export, in microseconds since 1970.
    pub since: i64,
    /// The end of the export, exclusive.
    pub until: i64,
}

/// The numbers of exported packets.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportReport {
    /// The number of complete packets that their senders provably wrote.
    pub proven: u64,
    /// The number of complete packets according to the database.
    pub claimed: u64,
    /// The number of sealed packets whose headers are known.
    pub headers: u64,
    /// The number of sealed packets without any known content.
    pub sealed: u64,
    /// The number of rows that differ from what their sender wrote.
    pub forged: u64,
    /// The number of leaves that expired while they were being read.
    pub expired: u64,
}

/// Writes the packets as a capture, ordered by time.
///
/// # Errors
/// Fails if the database cannot be queried, or writing to `out` fails.
pub fn export(
    access: &LogAccess,
    options: ExportOptions,
    out: &mut dyn Write,
    note: &mut dyn FnMut(&str),
) -> Result<ExportReport, Fault> {
    block_on(async {
        let view = View::open(access, "export").await?;
        for words in view.doubts.iter().chain(&view.notes) {
            note(words);
        }
        let progress = Progress::new("exporting");
        let rows = (ROWS / view.log_streams.len().max(1)).max(LEAST_ROWS);
        let mut streams = Vec::with_capacity(view.log_streams.len());
        for log_stream in &view.log_streams {
            let mut stream = Cursor::new(log_stream, options, rows);
            stream.fill(&view).await?;
            streams.push(stream);
        }
        Export::new(&view, out).run(&mut streams, &progress).await
    })
}

struct Export<'a, 'k> {
    view: &'a View<'k>,
    out: &'a mut dyn Write,
    writer: Writer,
    bytes: Vec<u8>,
    openers: Openers,
    packet: Vec<u8>,
    done: ExportReport,
}

impl<'a, 'k> Export<'a, 'k> {
    fn new(view: &'a View<'k>, out: &'a mut dyn Write) -> Self {
        let mut bytes = Vec::with_capacity(2 * WRITE);
        let writer = Writer::new("adit postgres export", &mut bytes);
        let (openers, packet) = (Openers::default(), Vec::new());
        Self { view, out, writer, bytes, openers, packet, done: ExportReport::default() }
    }

    /// Repeatedly writes the oldest of the streams' next packets, until no stream has any left.
    async fn run(
        mut self,
        streams: &mut [Cursor<'_>],
        progress: &Progress,
    ) -> Result<ExportReport, Fault> {
        loop {
            let oldest = streams.iter_mut().filter_map(|stream| Some((stream.next()?, stream)));
            let Some((_, stream)) = oldest.min_by_key(|(time, _)| *time) else { break };
            let (log_stream, row) = (stream.log_stream, stream.rows.pop_front());
            if let Some(row) = row {
                self.row(log_stream, &row).await?;
            }
            if stream.rows.is_empty() {
                let packets = self.done.proven + self.done.claimed + self.done.headers;
                progress.set(|| format!("exporting: {packets} packets"));
                stream.fill(self.view).await?;
            }
            if self.bytes.len() >= WRITE {
                self.write()?;
            }
        }
        self.write()?;
        self.out.flush().map_err(|error| write_fault(&error))?;
        self.done.expired = streams.iter().map(|stream| stream.expired).sum();
        Ok(self.done)
    }

    fn write(&mut self) -> Result<(), Fault> {
        self.out.write_all(&self.bytes).map_err(|error| write_fault(&error))?;
        self.bytes.clear();
        Ok(())
    }

    async fn row(&mut self, log_stream: &LogStream, row: &Row) -> Result<(), Fault> {
        let Ok(parsed) = decode::row(fields(row)) else {
            self.done.forged += 1;
            return Ok(());
        };
        self.packet.clear();
        let seen =
            self.openers.open_packet(self.view, log_stream, &parsed, &mut self.packet).await?;
        let whole = u32::try_from(self.packet.len()).unwrap_or(u32::MAX);
        let (length, comment) = match seen {
            OpenOutcome::Proven => (whole, ""),
            OpenOutcome::Claimed => (whole, "not proven: exported without a key"),
            OpenOutcome::Headers { length } => {
                (length, "headers from the log's columns; the packet is sealed")
            }
            OpenOutcome::Sealed | OpenOutcome::Forged => (0, ""),
        };
        let count = match seen {
            OpenOutcome::Proven => &mut self.done.proven,
            OpenOutcome::Claimed => &mut self.done.claimed,
            OpenOutcome::Headers { .. } => &mut self.done.headers,
            OpenOutcome::Sealed => &mut self.done.sealed,
            OpenOutcome::Forged => &mut self.done.forged,
        };
        *count += 1;
        if matches!(seen, OpenOutcome::Sealed | OpenOutcome::Forged) {
            return Ok(());
        }
        let name = format!("{}>{}", log_stream.from, log_stream.to);
        let family = family(&self.packet);
        self.packet.splice(0..0, family);
        let time = time_of(row).0;
        self.writer.packet(
            &Captured {
                time: u64::try_from(time).unwrap_or(0).saturating_mul(1000),
                interface: &name,
                link: Link::Null,
                bytes: &self.packet,
                length: length.saturating_add(4),
                comment,
            },
            &mut self.bytes,
        );
        Ok(())
    }
}

fn write_fault(error: &std::io::Error) -> Fault {
    Fault::environment(format!("writing the capture: {error}"))
}

pub(super) fn time_of(row: &Row) -> Micros {
    row.try_get(TS).unwrap_or(Micros::FIRST)
}

/// The position up to which a stream has been read.
struct Cursor<'a> {
    log_stream: &'a LogStream,
    options: ExportOptions,
    limit: usize,
    rows: VecDeque<Row>,
    leaf: Option<LeafNo>,
    after: Seq,
    /// The newest leaf that was searched for.
    before: LeafNo,
    expired: u64,
}

impl<'a> Cursor<'a> {
    fn new(log_stream: &'a LogStream, options: ExportOptions, limit: usize) -> Self {
        Self {
            log_stream,
            options,
            limit,
            rows: VecDeque::new(),
            leaf: None,
            after: Seq(i64::MIN),
            before: LeafNo(0),
            expired: 0,
        }
    }

    fn next(&self) -> Option<Micros> {
        self.rows.front().map(time_of)
    }

    /// Reads the next page, if any leaf has one.
    async fn fill(&mut self, view: &View<'_>) -> Result<(), Fault> {
        while self.rows.is_empty() {
            let Some(no) = self.leaf else {
                if !self.next_leaf(view).await? {
                    return Ok(());
                }
                continue;
            };
            let span = Span {
                after: self.after,
                since: Micros(self.options.since),
                until: Micros(self.options.until),
                limit: i64::try_from(self.limit).unwrap_or(i64::MAX),
            };
            match page(view, self.log_stream.id, no, span).await? {
                None => {
                    self.expired += 1;
                    self.leaf = None;
                }
                Some(rows) => {
                    if rows.len() < self.limit {
                        self.leaf = None;
                    }
                    if let Some(row) = rows.last() {
                        self.after =
                            Seq(row.try_get(0).map_err(|error| statement_fault(&error))?);
                    }
                    self.rows = rows.into();
                }
            }
        }
        Ok(())
    }

    /// Advances to the next leaf that may have rows from the requested time. Returns whether there
    /// is one.
    async fn next_leaf(&mut self, view: &View<'_>) -> Result<bool, Fault> {
        let (since, until) = (Micros(self.options.since), Micros(self.options.until));
        while let Some(leaf) = Leaf::after(&view.client, self.log_stream.id, self.before).await? {
            self.before = leaf.no;
            let outside = leaf.closed.is_some_and(|closed| closed < since) || leaf.opened >= until;
            if leaf.dropped.is_none() && !outside {
                (self.leaf, self.after) = (Some(leaf.no), Seq(i64::MIN));
                return Ok(true);
            }
        }
        Ok(false)
    }
}
