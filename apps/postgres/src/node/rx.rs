//! Carries packets from the database to the device.
//!
//! ```text
//!   notification ─┐                     ┌─► epochs of several streams ─► check ─► receiver
//!   count ────────┴─► queries, pipelined ─┴─► page of a stream ─► open, check ─► position ─► device
//! ```

use std::convert::Infallible;
use std::ops::Bound;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use adit_engine::Instant;
use adit_postgres::key::epoch::{self, EpochRecord, Expected, Wrap};
use adit_postgres::receiver::{Delivery, Epoch, Query, QueryScope, WakeUpMonitor};
use adit_postgres::seal::Opener;
use adit_postgres::{Seq, StreamId, sql};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio_postgres::{Client, Row};

use super::admit;
use super::connection::{Link, NotifyListener, within};
use super::db_error::DbError;
use super::directory::{self, Directory, Tables, VerifiedNode};
use super::health::Side;
use super::positions::PositionKind;
use super::reader::{Reader, aged_row};
use super::shared::{Forgeries, Shared, WARN_AGAIN, add};
use super::tx::sleep_until;
use crate::keys::{self, KeyFollower};
use adit_runtime::clock::{now, unix_time};
use adit_runtime::helper::files;
use adit_runtime::say;

/// The time limit for a page.
const LIMIT: Duration = Duration::from_secs(5);

/// How often the nodes are read again without a notification. The constant below applies after a notification. Any role in the database may
/// send one.
const NODES_AGAIN: Duration = Duration::from_secs(60);
const NODES_PAUSE: Duration = Duration::from_millis(200);

/// The maximum number of page queries in flight. A page has up to a megabyte.
const PAGES: usize = 8;

/// The maximum number of times that the nodes are read again at once because the network has a new key.
const KEYS_TRIES: u32 = 3;

/// The number of streams whose epochs are queried at once.
const EPOCHS: usize = 64;

/// Reads packets until the connection fails.
pub(super) async fn read(shared: &Shared) -> Result<Infallible, DbError> {
    shared.own_sessions().await?;
    let listener = Rc::new(NotifyListener::default());
    let link =
        Link::open(&shared.target, &shared.purpose("reader"), Some(Rc::clone(&listener))).await?;
    read_on(shared, &link, &listener).await.map_err(|cause| link.better_known_cause(cause))
}

async fn read_on(
    shared: &Shared,
    link: &Link,
    listener: &NotifyListener,
) -> Result<Infallible, DbError> {
    let channel = sql::channel(shared.me());
    within(LIMIT, async {
        Ok(link.client.batch_execute(&format!("LISTEN {channel}; LISTEN adit_nodes")).await?)
    })
    .await?;
    let reader = within(LIMIT, Reader::new(&link.client, shared.me())).await?;
    nodes(shared, &link.client).await?;
    for receiver in shared.receivers.borrow_mut().values_mut() {
        receiver.lost();
    }
    shared.health.borrow_mut().up(now(), Side::Reader);
    let mut round = Round {
        shared,
        reader: &reader,
        watch: WakeUpMonitor::new(now(), shared.random.borrow_mut().bytes()),
        under_way: FuturesUnordered::new(),
        pages: 0,
        last_asked: StreamId(0),
        delivery: Delivery::default(),
    };
    let mut looked = now();
    let mut look_again = looked + NODES_AGAIN;
    let mut named = shared.serial();
    loop {
        let keys_turn = shared.turn_keys();
        round.ask();
        if now() >= look_again {
            nodes(shared, &link.client).await?;
            looked = now();
            look_again = looked + NODES_AGAIN;
        }
        let due = round.deadline().into_iter().chain(keys_turn).fold(look_again, Instant::min);
        tokio::select! {
            Some(answer) = round.under_way.next() => {
                let answer = answer?;
                let newest = answer.settings();
                // The sender already has newer settings. Query them once.
                if newest > named.max(shared.serial()) {
                    named = newest;
                    nodes(shared, &link.client).await?;
                }
                round.take(answer);
            }
            () = listener.notified() => {}
            () = sleep_until(Some(due)) => {}
            cause = link.ended() => return Err(cause),
        }
        if round.listen(listener) {
            look_again = look_again.min(looked + NODES_PAUSE);
        }
    }
}

/// An answer from the database.
enum QueryResult {
    Epochs(Vec<StreamId>, Vec<Row>),
    Page(StreamId, Vec<Row>),
    Skip(StreamId, Option<i64>),
    /// The leaf does not exist.
    Gone(StreamId),
    /// The number of wake-ups that the database has counted.
    Count(i64),
}

impl QueryResult {
    /// Returns the highest number of settings in a record.
    fn settings(&self) -> i64 {
        let Self::Epochs(_, rows) = self else { return 0 };
        let records = rows.iter().filter_map(|row| row.try_get::<_, &[u8]>(1).ok());
        let parsed = records.filter_map(|record| EpochRecord::parse(record).ok());
        parsed.map(|record| record.epoch.settings).max().unwrap_or(0)
    }
}

type QueryFuture<'a> = Pin<Box<dyn Future<Output = Result<QueryResult, DbError>> + 'a>>;

/// A round of queries to the database for all streams in parallel on one connection.
struct Round<'a> {
    shared: &'a Shared,
    reader: &'a Reader<'a>,
    watch: WakeUpMonitor,
    under_way: FuturesUnordered<QueryFuture<'a>>,
    /// The number of queries that return packets.
    pages: usize,
    /// The stream that was queried last. Later streams have their turn next.
    last_asked: StreamId,
    delivery: Delivery,
}

impl<'a> Round<'a> {
    /// Sends the queries that are due.
    fn ask(&mut self) {
        let (shared, reader) = (self.shared, self.reader);
        if self.watch.ask(now()) {
            let asked = async { Ok(QueryResult::Count(reader.count().await?)) };
            self.under_way.push(Box::pin(within(LIMIT, asked)));
        }
        let mut epochs = Vec::new();
        let mut limit = 0;
        let mut receivers = shared.receivers.borrow_mut();
        let behind = (Bound::Excluded(self.last_asked), Bound::Unbounded);
        let mut order: Vec<StreamId> = receivers.range(behind).map(|(id, _)| *id).collect();
        order.extend(receivers.range(..=self.last_asked).map(|(id, _)| *id));
        for stream in order {
            if self.pages >= PAGES || epochs.len() >= EPOCHS {
                break;
            }
            let Some(query) = receivers.get_mut(&stream).and_then(|r| r.query(now())) else {
                continue;
            };
            self.last_asked = stream;
            match query {
                Query::Epochs { after, limit: of_each } => {
                    limit = of_each;
                    epochs.push((stream, after));
                    continue;
                }
                Query::Page { .. } => self.under_way.push(Box::pin(async move {
                    match within(LIMIT, reader.page(stream, query)).await {
                        Ok(rows) => Ok(QueryResult::Page(stream, rows)),
                        Err(cause) if cause.no_table => Ok(QueryResult::Gone(stream)),
                        Err(cause) => Err(cause),
                    }
                })),
                Query::Skip { leaf, after } => self.under_way.push(Box::pin(async move {
                    match within(LIMIT, reader.skip(stream, leaf, after.0)).await {
                        Ok(newest) => Ok(QueryResult::Skip(stream, newest)),
                        Err(cause) if cause.no_table => Ok(QueryResult::Gone(stream)),
                        Err(cause) => Err(cause),
                    }
                })),
            }
            self.pages = self.pages.saturating_add(1);
        }
        if !epochs.is_empty() {
            let me = shared.me();
            self.under_way.push(Box::pin(async move {
                let rows = within(LIMIT, reader.epochs(&epochs, limit, me)).await?;
                Ok(QueryResult::Epochs(
                    epochs.into_iter().map(|(stream, _)| stream).collect(),
                    rows,
                ))
            }));
        }
    }

    /// Returns the time of the next query unless a notification arrives earlier.
    fn deadline(&self) -> Option<Instant> {
        let receivers = self.shared.receivers.borrow();
        let full = self.pages >= PAGES;
        let streams = receivers.values().filter_map(|r| r.deadline()).min().filter(|_| !full);
        streams.into_iter().chain(self.watch.deadline()).min()
    }

    fn take(&mut self, answer: QueryResult) {
        let shared = self.shared;
        if !matches!(answer, QueryResult::Epochs(..) | QueryResult::Count(_)) {
            self.pages = self.pages.saturating_sub(1);
        }
        match answer {
            QueryResult::Count(count) => self.check_streams(count),
            QueryResult::Epochs(streams, rows) => epochs(shared, &streams, &rows),
            QueryResult::Page(stream, rows) => {
                let forged = deliver(shared, stream, &rows, &mut self.delivery);
                warn_of_forgeries(shared, stream, forged);
            }
            QueryResult::Skip(stream, newest) => {
                if let Some(receiver) = shared.receivers.borrow_mut().get_mut(&stream) {
                    receiver.skipped(newest.map(Seq));
                    shared.remember(PositionKind::Received, stream, receiver.position());
                }
            }
            QueryResult::Gone(stream) => {
                if let Some(receiver) = shared.receivers.borrow_mut().get_mut(&stream) {
                    receiver.gone();
                }
            }
        }
    }

    /// Checks streams whose wake-ups may have been lost.
    fn check_streams(&mut self, count: i64) {
        let at = now();
        let mut receivers = self.shared.receivers.borrow_mut();
        let active = receivers.values().any(|receiver| receiver.is_active(at));
        let look = self.watch.answer(at, count, active);
        for receiver in receivers.values_mut() {
            if look == QueryScope::All || (look == QueryScope::Active && receiver.is_active(at)) {
                receiver.recheck(at);
            }
        }
    }

    /// Processes the notifications. Returns whether nodes have joined or left.
    fn listen(&mut self, listener: &NotifyListener) -> bool {
        let notifications = listener.take();
        self.shared.counters.notifications.set(listener.count());
        let mut receivers = self.shared.receivers.borrow_mut();
        for (stream, leaf, times) in notifications.streams {
            if let Some(receiver) = receivers.get_mut(&stream) {
                receiver.wake(leaf);
                self.watch.received(now(), times);
            }
        }
        notifications.nodes
    }
}

/// Reads the nodes again, applies the changes, and admits invited nodes.
async fn nodes(shared: &Shared, client: &Client) -> Result<(), DbError> {
    let mut tables = within(LIMIT, directory::load(client, shared.me())).await?;
    // If there is a new key, the rows were verified with the previous one.
    let mut refused = None;
    for _ in 0..KEYS_TRIES {
        let before = shared.ring.borrow().generation();
        refused = follow(shared, client, &tables).await?;
        if shared.ring.borrow().generation() == before {
            break;
        }
        tables = within(LIMIT, directory::load(client, shared.me())).await?;
    }
    if let Some(reason) = refused.as_ref().filter(|_| *shared.key_trouble.borrow() != refused) {
        tracing::warn!("{reason}");
    }
    shared.key_trouble.replace(refused.clone());
    take_over(shared, &tables).map_err(|cause| refused.map_or(cause, DbError::new))?;
    within(LIMIT, admit::answer(shared, client)).await
}

/// Accepts the network's new keys and saves them. Returns the reason if the node still lacks the newest one.
async fn follow(
    shared: &Shared,
    client: &Client,
    tables: &Tables,
) -> Result<Option<String>, DbError> {
    let known = shared.ring.borrow().generation();
    let found = within(LIMIT, async { Ok(keys::newer(client, known, shared.me()).await?) }).await?;
    let own = shared.keys.public(shared.me()).map_err(|error| DbError::new(error.to_string()))?;
    let tag = tables.tag().unwrap_or_default();
    let reader = shared.keys.reader(shared.me());
    let follower = KeyFollower { reader, network: &tag, now: now(), unix: unix_time() };
    let mut ring = shared.ring.borrow().clone();
    let followed = {
        let pins = shared.pins.borrow();
        follower.follow(&found, &mut ring, &|owner| keys::trusted(&own, &pins, owner))
    };
    if ring.generation() > known {
        // Write the file first. If that fails, the node gets the key from the database again at the next start.
        if let Err(error) = files::replace(&shared.ring_file, ring.to_text().as_bytes()) {
            tracing::warn!("network key: {} not written: {error}", shared.ring_file.display());
        }
        say!(1, "network key: generation {} replaces {known}", ring.generation());
        *shared.ring.borrow_mut() = ring;
        shared.turn_keys();
    }
    Ok(followed.err())
}

fn take_over(shared: &Shared, tables: &Tables) -> Result<(), DbError> {
    let own = shared.keys.public(shared.me()).map_err(|error| DbError::new(error.to_string()))?;
    let former = shared.directory.borrow().as_ref().map(|former| Rc::clone(&former.settings));
    let pins = &mut *shared.pins.borrow_mut();
    let ring = shared.ring.borrow();
    let directory = directory::verify(tables, &own, &ring, pins, former.as_ref())?;
    drop(ring);
    if let Err(fault) = pins.save() {
        tracing::warn!("{fault}");
    }
    shared.update_directory(directory);
    Ok(())
}

/// Warns at a limited rate about forged rows. They mean that an unauthorized role writes to the database. The limit outlives the
/// connection, so an attacker cannot cause more warnings by ending connections.
fn warn_of_forgeries(shared: &Shared, stream: StreamId, forged: u64) {
    let at = now();
    let Forgeries { unreported, warned } = shared.forgeries.get();
    let unreported = unreported.saturating_add(forged);
    shared.forgeries.set(Forgeries { unreported, warned });
    if unreported == 0 || warned.is_some_and(|last| at.since(last) < WARN_AGAIN) {
        return;
    }
    let directory = shared.directory.borrow().clone();
    let sender = directory.as_ref().and_then(|directory| directory.sender(stream));
    let name = sender.map_or("a former node", |sender| sender.record.name.as_str());
    tracing::warn!(
        "node {name}: {unreported} forged rows dropped, of this stream or others: a role with rights in the database adds or alters rows"
    );
    shared.forgeries.set(Forgeries { unreported: 0, warned: Some(at) });
}

/// Opens a page and passes its packets to the device. The position is saved first, so that after `kill -9` in between,
/// packets are lost, as in any network, but none is delivered twice. If saving fails, no packets are delivered. Returns
/// the number of forged rows.
fn deliver(shared: &Shared, stream: StreamId, rows: &[Row], delivery: &mut Delivery) -> u64 {
    let counters = &shared.counters;
    let mut forged = 0;
    add(&counters.pages, 1);
    if rows.is_empty() {
        add(&counters.empty_pages, 1);
    }
    let routes = Rc::clone(&*shared.routes.borrow());
    delivery.clear();
    if let Some(receiver) = shared.receivers.borrow_mut().get_mut(&stream) {
        let before = receiver.stats().forged;
        receiver.page(now(), rows.iter().filter_map(aged_row), &routes, delivery);
        forged = receiver.stats().forged.saturating_sub(before);
        if !shared.remember(PositionKind::Received, stream, receiver.position()) {
            if counters.unwritten.get() == 0 {
                tracing::warn!(
                    "the file of positions cannot be written: nothing is delivered until then"
                );
            }
            add(&counters.unwritten, delivery.len() as u64);
            delivery.clear();
        }
    }
    let delivered = shared.device.write(delivery.packets());
    add(&counters.refused, delivered.refused);
    forged
}

/// Passes the found epochs to their streams.
fn epochs(shared: &Shared, streams: &[StreamId], rows: &[Row]) {
    let directory = shared.directory.borrow().clone();
    for stream in streams {
        let of_stream = || {
            let is = |row: &&Row| row.try_get::<_, i32>(0).is_ok_and(|id| id == stream.0);
            rows.iter().filter(is)
        };
        let sender = directory.as_ref().and_then(|d| Some((d, d.sender(*stream)?)));
        let (found, refused) = match sender {
            // The node has just been removed. Answer the query anyway, but not with "no epochs".
            None => (Vec::new(), 1),
            Some((directory, sender)) => {
                let found: Vec<_> = of_stream()
                    .filter_map(|row| accepted(shared, directory, sender, *stream, row))
                    .collect();
                let refused = of_stream().count().saturating_sub(found.len()) as u64;
                (found, refused)
            }
        };
        if let Some(receiver) = shared.receivers.borrow_mut().get_mut(stream) {
            receiver.epochs(now(), found, refused);
        }
    }
}

fn accepted(
    shared: &Shared,
    directory: &Directory,
    sender: &VerifiedNode,
    stream: StreamId,
    row: &Row,
) -> Option<Epoch> {
    take(shared, directory, sender, stream, row)
        .inspect_err(|reason| tracing::debug!("stream {stream}: epoch refused: {reason}"))
        .ok()
}

fn take(
    shared: &Shared,
    directory: &Directory,
    sender: &VerifiedNode,
    stream: StreamId,
    row: &Row,
) -> Result<Epoch, String> {
    let bytes = |at| row.try_get::<_, &[u8]>(at).map_err(|error| error.to_string());
    let (record, signature) = (bytes(1)?, bytes(2)?);
    let wrap = Wrap { reader: shared.me(), enc: bytes(3)?.to_vec(), sealed: bytes(4)?.to_vec() };
    let age_ms: i64 = row.try_get(5).map_err(|error| error.to_string())?;
    let network = &directory.network.tag;
    let expected = Expected { network, stream, sender: &sender.public, receiver: shared.me() };
    let reader = shared.keys.reader(shared.me());
    let ring = shared.ring.borrow();
    let accepted = epoch::accept(reader, &ring, &expected, record, signature, &wrap);
    let (EpochRecord { epoch, .. }, secret) = accepted.map_err(|refused| refused.to_string())?;
    let Some(settings) = directory.settings.at(epoch.settings) else {
        return Err(format!("the network has no settings {}", epoch.settings));
    };
    if epoch.audit != settings.audit {
        return Err(format!(
            "its audit policy is {}, but settings {} have another",
            epoch.audit, epoch.settings
        ));
    }
    let hash = EpochRecord::hash(record, signature);
    let opener = Opener::new(&secret, epoch.audit, stream, epoch.no, hash);
    Ok(Epoch {
        no: epoch.no,
        leaf: epoch.leaf,
        first_seq: epoch.first_seq,
        generation: epoch.generation,
        age_ms: u64::try_from(age_ms).unwrap_or(0),
        open: opener.map_err(|_| "the cryptographic library failed".to_owned())?,
    })
}
