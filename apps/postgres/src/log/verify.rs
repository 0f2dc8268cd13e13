//! `adit postgres verify`.

use std::collections::BTreeMap;
use std::rc::Rc;

use adit_engine::UnixTime;
use adit_postgres::key::epoch::Wrap;
use adit_postgres::verify::{CheckpointRow, EpochRow, Retention, Stream, Summary, Verifier};
use adit_postgres::{EpochNo, LeafNo, Seq, StreamId, sql};
use tokio_postgres::{IsolationLevel, Row, Transaction};

use super::pages::{Leaf, is_gone};
use super::time::Micros;
use super::view::{LogStream, View};
use super::{Keys, LogAccess};
use crate::admin::{block_on, statement_fault};
use crate::fields::fields;
use crate::node::directory::Pins;
use crate::node::positions;
use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;
use adit_runtime::log::clean;
use adit_runtime::progress::Progress;

/// The maximum number of rows in memory. At their maximum length they take about 4 MB.
const ROWS: i32 = 512;
/// The maximum number of epochs in memory, each of about 2 kB.
const EPOCHS: i32 = 64;

/// Queries the epochs of a leaf, each with the record of the next epoch, which may be in another leaf.
const OF_LEAF: &str = "SELECT e.no, e.leaf, e.first_seq, e.record, e.signature, w.enc, w.sealed, c.seq, c.chain, c.signature, \
    (SELECT n.record FROM adit.epoch n WHERE n.stream = e.stream AND n.no > e.no ORDER BY n.no LIMIT 1) \
    FROM adit.epoch e LEFT JOIN adit.wrap w ON w.stream = e.stream AND w.epoch = e.no AND w.reader = $3 \
    LEFT JOIN adit.checkpoint c ON c.stream = e.stream AND c.epoch = e.no \
    WHERE e.stream = $1 AND e.leaf = $2 ORDER BY e.no";

const USED: &str = "SELECT bytes FROM adit.usage()";

/// The totals of a verification.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// The counts for all streams.
    pub all: Summary,
    /// The number of streams.
    pub streams: u64,
}

/// Verifies every readable row. Reports each finding in a line, and then the totals.
///
/// # Errors
/// Fails if the database cannot be queried.
pub fn verify(access: &LogAccess, say: &mut dyn FnMut(&str)) -> Result<VerifyReport, Fault> {
    block_on(async {
        let mut view = View::open(access, "verify").await?;
        let progress = Progress::new("verifying");
        let say = &mut |line: &str| progress.aside(|| say(line));
        let mut verified = VerifyReport::default();
        for doubt in &view.doubts {
            say(doubt);
            verified.all.findings += 1;
        }
        let own = LocalState::of(access)?;
        verified.all.findings += own.nodes(&view, say);
        let retention = retention(&view).await?;
        let log_streams = std::mem::take(&mut view.log_streams);
        for log_stream in &log_streams {
            let (summary, highest) =
                stream(&mut view, log_stream, retention.clone(), &progress, say).await?;
            verified.streams += 1;
            add(&mut verified.all, summary);
            verified.all.findings += own.stream(log_stream, highest, say);
        }
        if access.from.is_none() && access.to.is_none() && access.stream.is_none() {
            verified.all.findings += own.streams(&log_streams, say);
        }
        for note in &view.notes {
            say(note);
        }
        if verified.all.unsigned > 0 {
            say(
                "(A sender signs within a second; rows that were uncertain when a connection was lost stay unsigned. Readers of such a row could also have written it.)",
            );
        }
        Ok(verified)
    })
}

fn add(all: &mut Summary, one: Summary) {
    all.epochs += one.epochs;
    all.expired += one.expired;
    all.rows += one.rows;
    all.proven += one.proven;
    all.unsigned += one.unsigned;
    all.emptied += one.emptied;
    all.findings += one.findings;
}

/// The data in the files of this host's node; empty for an auditor.
#[derive(Default)]
struct LocalState<'e> {
    pins: Option<&'e Pins>,
    received: BTreeMap<StreamId, Seq>,
}

impl<'e> LocalState<'e> {
    /// Reads the node's files before the log. The log can only grow in the meantime.
    fn of(access: &'e LogAccess) -> Result<Self, Fault> {
        let Keys::Node(node) = &access.keys else { return Ok(Self::default()) };
        let paths = &node.paths;
        let received = positions::received(&paths.positions_file()).map_err(|error| {
            let file = paths.positions_file();
            Fault::environment(format!("cannot read {}: {error}", file.display()))
        })?;
        Ok(Self { pins: Some(&node.pins), received })
    }

    /// Checks that the pinned nodes exist with their pinned keys. Returns the number of those that do not.
    fn nodes(&self, view: &View<'_>, say: &mut dyn FnMut(&str)) -> u64 {
        let mut findings = 0;
        for (id, keys, name) in self.pins.into_iter().flat_map(Pins::all) {
            let wrong = match view.nodes.get(&id) {
                Some(public) if public.fingerprint() == keys => continue,
                Some(_) => "has other keys than those that this node first saw",
                None => "was seen by this node and is not in the database",
            };
            say(&format!("node {} (number {id}) {wrong}", clean(name)));
            findings += 1;
        }
        findings
    }

    /// Checks that the database still contains the packets that the node received.
    fn stream(
        &self,
        log_stream: &LogStream,
        highest: Option<Seq>,
        say: &mut dyn FnMut(&str),
    ) -> u64 {
        let (Some(received), Some(highest)) = (self.received.get(&log_stream.id), highest) else {
            return 0;
        };
        if *received <= highest {
            return 0;
        }
        let name = log_stream.name();
        say(&format!("{name}: this node received row {received}, and the log ends at {highest}"));
        1
    }

    /// Checks that each stream that this node has received exists. Returns the number of missing streams.
    fn streams(&self, log_streams: &[LogStream], say: &mut dyn FnMut(&str)) -> u64 {
        let gone = self.received.iter().filter(|(stream, seq)| {
            seq.0 > 0 && !log_streams.iter().any(|log_stream| log_stream.id == **stream)
        });
        let mut findings = 0;
        for (stream, seq) in gone {
            say(&format!(
                "stream {stream}: this node received row {seq}, and the stream is not in the database"
            ));
            findings += 1;
        }
        findings
    }
}

/// Returns the retention that the network's owner has signed, under which rows may have expired.
async fn retention(view: &View<'_>) -> Result<Option<Rc<Retention>>, Fault> {
    let Some(history) = &view.settings else { return Ok(None) };
    let used = view.client.query_one(USED, &[]).await.and_then(|row| row.try_get::<_, i64>(0));
    let used = used.map_err(|error| statement_fault(&error))?;
    let used = u64::try_from(used).unwrap_or(0);
    Ok(Some(Rc::new(Retention::of(history, unix_time(), used))))
}

async fn stream(
    view: &mut View<'_>,
    log_stream: &LogStream,
    retention: Option<Rc<Retention>>,
    progress: &Progress,
    say: &mut dyn FnMut(&str),
) -> Result<(Summary, Option<Seq>), Fault> {
    let about = Stream {
        network: view.tag.clone(),
        id: log_stream.id,
        sender: log_stream.sender.clone(),
        receiver: log_stream.receiver,
        retention,
        settings: view.settings.clone(),
    };
    let ring = Rc::clone(&view.ring);
    let key = view.reader.zip(Option::as_ref(&ring));
    let mut verification = StreamVerification {
        log_stream,
        verifier: Verifier::new(about, key),
        reader: key.map(|(reader, _)| reader.id().0),
        extra: 0,
        progress,
    };
    let mut at = LeafNo(0);
    while let Some(leaf) = verification.leaf(view, at, say).await? {
        at = leaf;
    }
    verification.verifier.finish();
    verification.tell(say);
    let mut summary = verification.verifier.summary();
    summary.findings += verification.extra;
    say(&line(log_stream, &summary));
    Ok((summary, verification.verifier.highest()))
}

fn line(log_stream: &LogStream, summary: &Summary) -> String {
    let Summary { epochs, expired, rows, proven, unsigned, emptied, findings } = *summary;
    let found = match findings {
        0 => "nothing found".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    let count = |count: u64, what: &str| match count {
        0 => String::new(),
        count => format!(", {count} {what}"),
    };
    let unsigned = count(unsigned, "not signed");
    let gone = count(expired, "more expired") + &count(emptied, "emptied by a crash");
    format!(
        "{} (stream {}): {rows} {}, {proven} proven to be the sender's{unsigned}, in {epochs} {}{gone}: {found}",
        log_stream.name(),
        log_stream.id,
        if rows == 1 { "row" } else { "rows" },
        if epochs == 1 { "epoch" } else { "epochs" }
    )
}

/// The verification of one stream, in progress.
struct StreamVerification<'a> {
    log_stream: &'a LogStream,
    verifier: Verifier<'a>,
    reader: Option<i32>,
    /// The number of findings that the verifier does not count.
    extra: u64,
    progress: &'a Progress,
}

impl StreamVerification<'_> {
    fn tell(&mut self, say: &mut dyn FnMut(&str)) {
        for finding in self.verifier.take_findings() {
            say(&format!("{}: {finding}", self.log_stream.name()));
        }
    }

    /// Verifies the leaf after `before` in one snapshot, and returns its number. No other session can drop it in the
    /// meantime.
    async fn leaf(
        &mut self,
        view: &mut View<'_>,
        before: LeafNo,
        say: &mut dyn FnMut(&str),
    ) -> Result<Option<LeafNo>, Fault> {
        let source = view.source;
        let snapshot = view.client.build_transaction().read_only(true);
        let snapshot = snapshot.isolation_level(IsolationLevel::RepeatableRead).start().await;
        let snapshot = snapshot.map_err(|error| statement_fault(&error))?;
        let Some(leaf) = Leaf::after(&snapshot, self.log_stream.id, before).await? else {
            return Ok(None);
        };
        let statement = format!(
            "SELECT {} FROM {} WHERE stream = $1 ORDER BY seq",
            sql::SENT_COLUMNS,
            source.of(self.log_stream.id, leaf.no)
        );
        if leaf.dropped.is_none() {
            match snapshot.bind(&statement, &[&self.log_stream.id.0]).await {
                Ok(rows) => {
                    self.rows(&snapshot, leaf.no, &rows, say).await?;
                    return Ok(Some(leaf.no));
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(statement_fault(&error)),
            }
            drop(snapshot);
            return self.check_missing_table(view, before, leaf.no, say).await;
        }
        self.expired(&snapshot, leaf, say).await?;
        Ok(Some(leaf.no))
    }

    /// Handles a missing table. It has just expired, or another role dropped it.
    async fn check_missing_table(
        &mut self,
        view: &mut View<'_>,
        before: LeafNo,
        no: LeafNo,
        say: &mut dyn FnMut(&str),
    ) -> Result<Option<LeafNo>, Fault> {
        let snapshot = view.client.transaction().await.map_err(|error| statement_fault(&error))?;
        let leaf = Leaf::after(&snapshot, self.log_stream.id, before).await?;
        let Some(leaf) = leaf.filter(|leaf| leaf.no == no) else { return Ok(Some(no)) };
        let standby = "SELECT pg_catalog.pg_is_in_recovery()";
        let standby = snapshot.query_one(standby, &[]).await.and_then(|row| row.try_get(0));
        if !leaf.durable && standby.map_err(|error| statement_fault(&error))? {
            say(&format!(
                "{}: leaf {no} is not on a standby (durability volatile): not checked",
                self.log_stream.name()
            ));
        } else if let (None, Some(first_seq)) = (leaf.dropped, leaf.first_seq) {
            say(&format!(
                "{}: leaf {no} with the rows from {first_seq} on is missing, and it has not expired",
                self.log_stream.name()
            ));
            self.extra += 1;
        }
        self.expired(&snapshot, leaf, say).await?;
        Ok(Some(no))
    }

    async fn expired(
        &mut self,
        snapshot: &Transaction<'_>,
        leaf: Leaf,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), Fault> {
        let mut epochs = Epochs::of(self, snapshot, leaf.no).await?;
        while let Some(epoch) = epochs.next(snapshot).await? {
            epoch.show(&mut self.verifier, Some(leaf.dropped.map_or_else(unix_time, unix)));
            self.tell(say);
        }
        if let (Some(dropped), Some(first_seq)) = (leaf.dropped, leaf.first_seq) {
            say(&format!(
                "{}: leaf {} with the rows from {first_seq} on has expired ({}): not checked",
                self.log_stream.name(),
                leaf.no,
                super::tail::time(dropped)
            ));
        }
        Ok(())
    }

    async fn rows(
        &mut self,
        snapshot: &Transaction<'_>,
        leaf: LeafNo,
        portal: &tokio_postgres::Portal,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), Fault> {
        let mut epochs = Epochs::of(self, snapshot, leaf).await?;
        let mut next = epochs.next(snapshot).await?;
        loop {
            let rows = snapshot
                .query_portal(portal, ROWS)
                .await
                .map_err(|error| statement_fault(&error))?;
            for row in &rows {
                let seq = row.try_get::<_, i64>(0).unwrap_or(i64::MIN);
                while let Some(epoch) = next.take_if(|epoch| epoch.first_seq.0 <= seq) {
                    epoch.show(&mut self.verifier, None);
                    next = epochs.next(snapshot).await?;
                }
                self.verifier.values(fields(row));
            }
            self.progress.set(|| {
                format!(
                    "verifying {}: {} rows",
                    self.log_stream.name(),
                    self.verifier.summary().rows
                )
            });
            self.tell(say);
            if rows.is_empty() {
                break;
            }
        }
        while let Some(epoch) = next {
            epoch.show(&mut self.verifier, None);
            self.tell(say);
            next = epochs.next(snapshot).await?;
        }
        Ok(())
    }
}

fn unix(micros: Micros) -> UnixTime {
    UnixTime(u64::try_from(micros.0 / 1_000_000).unwrap_or(0))
}

/// The epochs of a leaf, in order.
struct Epochs {
    portal: tokio_postgres::Portal,
    page: std::vec::IntoIter<Row>,
    reader: Option<i32>,
}

impl Epochs {
    async fn of(
        verification: &StreamVerification<'_>,
        snapshot: &Transaction<'_>,
        leaf: LeafNo,
    ) -> Result<Self, Fault> {
        let reader = verification.reader;
        // No node has the number -1.
        let wrapped_to = reader.unwrap_or(-1);
        let portal =
            snapshot.bind(OF_LEAF, &[&verification.log_stream.id.0, &leaf.0, &wrapped_to]).await;
        Ok(Self {
            portal: portal.map_err(|error| statement_fault(&error))?,
            page: Vec::new().into_iter(),
            reader,
        })
    }

    async fn next(&mut self, snapshot: &Transaction<'_>) -> Result<Option<StoredEpoch>, Fault> {
        if self.page.len() == 0 {
            let page = snapshot.query_portal(&self.portal, EPOCHS).await;
            self.page = page.map_err(|error| statement_fault(&error))?.into_iter();
        }
        let row = self.page.next();
        row.map(|row| StoredEpoch::read(&row, self.reader).map_err(|error| statement_fault(&error)))
            .transpose()
    }
}

struct StoredEpoch {
    no: EpochNo,
    leaf: LeafNo,
    first_seq: Seq,
    record: Vec<u8>,
    signature: Vec<u8>,
    wrap: Option<Wrap>,
    checkpoint: Option<(Seq, Vec<u8>, Vec<u8>)>,
    next: Option<Vec<u8>>,
}

impl StoredEpoch {
    fn read(row: &Row, reader: Option<i32>) -> Result<Self, tokio_postgres::Error> {
        let (enc, sealed) = (row.try_get::<_, Option<Vec<u8>>>(5)?, row.try_get(6)?);
        let wrap = match (reader, enc, sealed) {
            (Some(reader), Some(enc), Some(sealed)) => {
                Some(Wrap { reader: adit_postgres::NodeId(reader), enc, sealed })
            }
            _ => None,
        };
        let checkpoint = match (row.try_get(7)?, row.try_get(8)?, row.try_get(9)?) {
            (Some(seq), Some(chain), Some(signature)) => Some((Seq(seq), chain, signature)),
            _ => None,
        };
        Ok(Self {
            no: EpochNo(row.try_get(0)?),
            leaf: LeafNo(row.try_get(1)?),
            first_seq: Seq(row.try_get(2)?),
            record: row.try_get(3)?,
            signature: row.try_get(4)?,
            wrap,
            checkpoint,
            next: row.try_get(10)?,
        })
    }

    fn show(&self, verifier: &mut Verifier<'_>, expired: Option<UnixTime>) {
        verifier.epoch(&EpochRow {
            no: self.no,
            leaf: self.leaf,
            first_seq: self.first_seq,
            record: &self.record,
            signature: &self.signature,
            wrap: self.wrap.as_ref(),
            checkpoint: self.checkpoint.as_ref().map(|(seq, chain, signature)| CheckpointRow {
                seq: *seq,
                chain,
                signature,
            }),
            next: self.next.as_deref(),
            expired,
        });
    }
}
