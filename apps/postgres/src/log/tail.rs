//! `adit postgres tail`.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_postgres::row::{Columns, columns, decode};
use adit_postgres::{Audit, LeafNo, Seq};
use time::OffsetDateTime;
use time::macros::format_description;
use tokio_postgres::Row;

use super::LogAccess;
use super::export::time_of;
use super::open::{OpenOutcome, Openers};
use super::pages::{Leaf, Span, last, page};
use super::time::Micros;
use super::view::{LogStream, View};
use crate::admin::{block_on, statement_fault};
use crate::fields::fields;
use adit_runtime::fault::Fault;

/// The number of rows in a page.
const ROWS: i64 = 64;
/// The maximum number of lines for packets that arrived before the start.
pub(super) const MAX_LINES: u32 = 10_000;
/// The pause between queries when no packets arrive.
const PAUSE: Duration = Duration::from_millis(500);

/// The options of `tail`.
#[derive(Copy, Clone, Debug)]
pub struct TailOptions {
    /// The number of packets to print from the end of all streams; at most `MAX_LINES`.
    pub lines: u32,
    /// Whether to continue with packets that arrive later.
    pub follow: bool,
}

/// Prints a line for each packet. With `follow`, it ends when its output is closed.
///
/// # Errors
/// Fails if the database cannot be queried, or writing to `out` fails.
pub fn tail(
    access: &LogAccess,
    options: TailOptions,
    out: &mut dyn Write,
    note: &mut dyn FnMut(&str),
) -> Result<(), Fault> {
    block_on(async {
        let view = View::open(access, "tail").await?;
        for words in view.doubts.iter().chain(&view.notes) {
            note(words);
        }
        let mut tail = Tail { view: &view, openers: Openers::default(), out };
        match tail.run(options).await {
            Err(Stop::Closed) => Ok(()),
            Err(Stop::Fault(fault)) => Err(fault),
            Ok(()) => Ok(()),
        }
    })
}

enum Stop {
    /// The output is closed.
    Closed,
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

struct Tail<'a, 'k> {
    view: &'a View<'k>,
    openers: Openers,
    out: &'a mut dyn Write,
}

/// The position up to which a stream has been read.
struct Cursor<'a> {
    log_stream: &'a LogStream,
    leaf: LeafNo,
    after: Seq,
}

impl Tail<'_, '_> {
    async fn run(&mut self, options: TailOptions) -> Result<(), Stop> {
        let lines = options.lines.min(MAX_LINES);
        let mut cursors = Vec::with_capacity(self.view.log_streams.len());
        let mut newest: Vec<(&LogStream, Row)> = Vec::new();
        for log_stream in &self.view.log_streams {
            let (cursor, rows) = self.begin(log_stream, lines.into()).await?;
            cursors.push(cursor);
            newest.extend(rows.into_iter().map(|row| (log_stream, row)));
            self.keep_newest(&mut newest, lines);
        }
        for (log_stream, row) in &newest {
            self.line(log_stream, row).await?;
        }
        drop(newest);
        if !options.follow {
            return Ok(());
        }
        loop {
            let mut came = Vec::new();
            for cursor in &mut cursors {
                self.more(cursor, &mut came).await?;
            }
            if came.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
            came.sort_by_key(|(_, row)| time_of(row));
            for (log_stream, row) in &came {
                self.line(log_stream, row).await?;
            }
        }
    }

    fn keep_newest(&self, rows: &mut Vec<(&LogStream, Row)>, lines: u32) {
        rows.sort_by_key(|(_, row)| time_of(row));
        let surplus = rows.len().saturating_sub(usize::try_from(lines).unwrap_or(usize::MAX));
        rows.drain(..surplus);
    }

    /// Reads the last rows of a stream's newest leaf, and the position after them.
    async fn begin<'w>(
        &self,
        log_stream: &'w LogStream,
        lines: i64,
    ) -> Result<(Cursor<'w>, Vec<Row>), Stop> {
        let mut cursor = Cursor { log_stream, leaf: LeafNo(0), after: Seq(i64::MIN) };
        let Some(leaf) = Leaf::newest(&self.view.client, log_stream.id).await? else {
            return Ok((cursor, Vec::new()));
        };
        cursor.leaf = leaf.no;
        // One row is needed to know the position of the stream.
        let rows = last(self.view, log_stream.id, leaf.no, lines.max(1)).await?;
        let mut rows = rows.unwrap_or_default();
        if let Some(row) = rows.first() {
            cursor.after = Seq(row.try_get(0).map_err(|error| statement_fault(&error))?);
        }
        rows.truncate(usize::try_from(lines).unwrap_or(usize::MAX));
        Ok((cursor, rows))
    }

    /// Reads the packets that have arrived in a stream since then.
    async fn more<'w>(
        &self,
        cursor: &mut Cursor<'w>,
        came: &mut Vec<(&'w LogStream, Row)>,
    ) -> Result<(), Stop> {
        let client = &self.view.client;
        let span =
            Span { after: cursor.after, since: Micros::FIRST, until: Micros::LAST, limit: ROWS };
        let rows = match cursor.leaf {
            LeafNo(0) => Vec::new(),
            leaf => page(self.view, cursor.log_stream.id, leaf, span).await?.unwrap_or_default(),
        };
        if let Some(row) = rows.last() {
            cursor.after = Seq(row.try_get(0).map_err(|error| statement_fault(&error))?);
        } else if let Some(next) = Leaf::after(client, cursor.log_stream.id, cursor.leaf).await? {
            (cursor.leaf, cursor.after) = (next.no, Seq(i64::MIN));
        }
        came.extend(rows.into_iter().map(|row| (cursor.log_stream, row)));
        Ok(())
    }

    async fn line(&mut self, log_stream: &LogStream, row: &Row) -> Result<(), Stop> {
        let mut packet = Vec::new();
        let words = match decode::row(fields(row)) {
            Err(_) => "not a row of a packet".to_owned(),
            Ok(parsed) => {
                let seen =
                    self.openers.open_packet(self.view, log_stream, &parsed, &mut packet).await?;
                match seen {
                    OpenOutcome::Proven | OpenOutcome::Claimed => {
                        words(&columns(Audit::Headers, &packet))
                    }
                    OpenOutcome::Headers { .. } | OpenOutcome::Sealed => words(&parsed.columns),
                    OpenOutcome::Forged => "forged: not what its sender wrote".to_owned(),
                }
            }
        };
        let line = format!("{}  {}  {words}\n", time(time_of(row)), log_stream.name());
        let written = self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Stop::Closed,
            _ => Fault::environment(format!("writing: {error}")).into(),
        })
    }
}

/// Formats a time in UTC with milliseconds.
pub(super) fn time(at: Micros) -> String {
    let format =
        format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3]Z");
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1000)
        .ok()
        .and_then(|time| time.format(&format).ok())
        .unwrap_or_else(|| "-".into())
}

/// Formats the known parts of `10.9.0.1:443 > 10.9.0.2:50000 TCP [SA] 1400 bytes`.
fn words(columns: &Columns) -> String {
    let mut words = match (columns.src, columns.dst) {
        (Some(src), Some(dst)) => {
            let icmp = matches!(columns.proto, Some(1 | 58));
            let end = |address: IpAddr, port: Option<i32>| match port
                .and_then(|port| u16::try_from(port).ok())
            {
                Some(port) if !icmp => SocketAddr::new(address, port).to_string(),
                _ => address.to_string(),
            };
            format!("{} > {} ", end(src, columns.sport), end(dst, columns.dport))
        }
        _ => String::new(),
    };
    match columns.proto {
        Some(6) => words.push_str("TCP "),
        Some(17) => words.push_str("UDP "),
        Some(1) => words.push_str("ICMP "),
        Some(58) => words.push_str("ICMPv6 "),
        Some(132) => words.push_str("SCTP "),
        Some(other) => words.push_str(&format!("protocol {other} ")),
        None => words.push_str("sealed "),
    }
    if let Some(flags) = columns.flags {
        let names = "FSRPAUEC".chars().enumerate();
        let set: String =
            names.filter(|(bit, _)| (flags >> bit) & 1 == 1).map(|(_, name)| name).collect();
        words.push_str(&format!("[{set}] "));
    }
    match columns.len {
        Some(len) => words.push_str(&format!("{len} bytes")),
        None => words.push_str("of unknown length"),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_as_much_as_is_known() {
        let tcp = Columns {
            len: Some(60),
            sport: Some(443),
            dport: Some(50_000),
            proto: Some(6),
            flags: Some(0x12),
            src: "10.9.0.1".parse().ok(),
            dst: "10.9.0.2".parse().ok(),
        };
        assert_eq!(words(&tcp), "10.9.0.1:443 > 10.9.0.2:50000 TCP [SA] 60 bytes");
        let ping = Columns {
            proto: Some(58),
            sport: None,
            dport: Some(0x8000),
            flags: None,
            src: "fd00::1".parse().ok(),
            dst: "fd00::2".parse().ok(),
            len: Some(104),
        };
        assert_eq!(words(&ping), "fd00::1 > fd00::2 ICMPv6 104 bytes");
        assert_eq!(
            words(&Columns { proto: Some(47), ..ping }),
            "fd00::1 > [fd00::2]:32768 protocol 47 104 bytes"
        );
        assert_eq!(words(&Columns { len: Some(1400), ..Columns::default() }), "sealed 1400 bytes");
        assert_eq!(words(&Columns::default()), "sealed of unknown length");
    }

    #[test]
    fn times_are_written_to_the_millisecond() {
        assert_eq!(time(Micros(1_700_000_000_123_456)), "2023-11-14 22:13:20.123Z");
        assert_eq!(time(Micros::LAST), "-");
    }
}
