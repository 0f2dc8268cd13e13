//! Carries packets from the device into the database.
//!
//! ```text
//!   device ──► push (route, queue) ──► work ──► actions: Resume, Open, Batch ──► commit, wake ──► committed
//! ```

use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use adit_engine::Instant;
use adit_postgres::key::epoch::{self, Epoch};
use adit_postgres::receiver::Position;
use adit_postgres::seal::Sealer;
use adit_postgres::sender::{
    Action, NewEpoch, OpenLeaf, ResumeOutcome, ResumeRow, Sender, UnsignedCheckpoint,
};
use adit_postgres::{Durability, NodeId, StreamId};
use adit_wire::ip::Ip;
use tokio::time::sleep;
use tokio_postgres::Client;

use super::connection::{Link, within};
use super::db_error::{DbError, StreamLimit};
use super::device::ReadBuffer;
use super::health::Side;
use super::positions::PositionKind;
use super::shared::{Shared, WARN_AGAIN, add};
use super::writer::Writer;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::fault::Fault;

/// The time limit of a commit. The connection is closed after it. By then, the packets have long been too old to be
/// delivered.
const COMMIT_LIMIT: Duration = Duration::from_secs(5);

/// The time limit of any other query on this connection.
const LIMIT: Duration = Duration::from_secs(5);

const RESUME: &str = "SELECT last_seq, last_epoch, last_leaf, leaf_durable, leaf_bytes, \
    (extract(epoch FROM leaf_age) * 1000)::bigint FROM adit.resume($1)";

const OPEN: &str = "SELECT adit.open_epoch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

const BEGIN_WRITING: &str = "SELECT held_by FROM adit.begin_writing()";

/// The number of attempts to take a lock on one connection. The constant below is the pause between them. The lock of a
/// killed process becomes free after a moment.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Queries the database's information about another session of this node's role.
const HOLDER: &str = "SELECT coalesce(application_name, ''), coalesce(host(client_addr), 'this machine') \
    FROM pg_stat_activity WHERE pid = $1";

/// Reads the device without ever waiting for the database.
pub(super) async fn drain(shared: Rc<Shared>) -> Result<Infallible, Fault> {
    let mut buffer = ReadBuffer::new();
    loop {
        let mut at = None;
        let read = shared
            .device
            .read(&mut buffer, |vnet, packet| {
                let at = *at.get_or_insert_with(now);
                match &mut *shared.sender.borrow_mut() {
                    Some(sender) => {
                        // Use the current routes, which may have changed while the device was silent.
                        let to = destination(packet);
                        let stream = to.and_then(|to| shared.routes.borrow().to(to));
                        sender.push(at, stream, vnet, packet);
                    }
                    None => add(&shared.counters.too_early, 1),
                }
            })
            .await;
        read.map_err(|error| {
            Fault::environment(format!("the device cannot be read any more: {error}"))
        })?;
        shared.work.notify_one();
        // Let the task that reads from the database run.
        tokio::task::yield_now().await;
    }
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    Ip::parse_super(packet).map(|ip| ip.destination)
}

/// Writes packets until the connection fails.
pub(super) async fn write(shared: &Shared) -> Result<Infallible, DbError> {
    shared.own_sessions().await?;
    let link = Link::open(&shared.target, &shared.purpose("writer"), None).await?;
    write_on(shared, &link).await.map_err(|cause| link.better_known_cause(cause))
}

async fn write_on(shared: &Shared, link: &Link) -> Result<Infallible, DbError> {
    let mut durability = shared.durability();
    let made = Writer::new(&link.client, shared.me(), durability);
    let mut writer = within(LIMIT, made).await?;
    within(LIMIT, begin_writing(shared, &link.client)).await?;
    shared.health.borrow_mut().up(now(), Side::Writer);
    loop {
        // The network's settings have changed, or are known now.
        if shared.durability() != durability {
            durability = shared.durability();
            let made = Writer::new(&link.client, shared.me(), durability);
            writer = within(LIMIT, made).await?;
        }
        let action = match &mut *shared.sender.borrow_mut() {
            Some(sender) => sender.next_action(now(), unix_time()),
            None => Action::Wait(None),
        };
        match action {
            Action::Resume { stream, receiver } => {
                resume(shared, &link.client, stream, receiver).await?;
            }
            Action::Open(opening) => open(shared, &link.client, &opening).await?,
            Action::Batch => batch(shared, &mut writer).await?,
            Action::Sign(unsigned) => sign(shared, &writer, &unsigned).await?,
            Action::Wait(until) => {
                tokio::select! {
                    () = shared.work.notified() => {}
                    () = sleep_until(until) => {}
                    cause = link.ended() => return Err(cause),
                }
            }
        }
    }
}

/// Sleeps until the given time, or forever without one.
pub(super) async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => sleep(until.since(now())).await,
        None => std::future::pending().await,
    }
}

async fn batch(shared: &Shared, writer: &mut Writer<'_>) -> Result<(), DbError> {
    let with = |act: &mut dyn FnMut(&mut Sender)| {
        if let Some(sender) = &mut *shared.sender.borrow_mut() {
            act(sender);
        }
    };
    let mut next = None;
    with(&mut |sender| next = sender.batch(now()));
    let Some(batch) = next else { return Ok(()) };
    for part in &batch.parts {
        let given = shared.sender.borrow().as_ref().and_then(|sender| sender.given(part.stream));
        if let Some((epoch, seq)) = given {
            shared.remember(PositionKind::Sent, part.stream, Position { epoch, seq });
        }
    }
    let began = now();
    let committed = within(COMMIT_LIMIT, writer.commit(batch)).await;
    match &committed {
        Ok(_) => shared.counters.commits.borrow_mut().record(now().since(began)),
        Err(_) => add(&shared.counters.failed_commits, 1),
    }
    let mut done = Some(committed?);
    with(&mut |sender| {
        if let Some(batch) = done.take() {
            sender.committed(now(), batch);
        }
    });
    Ok(())
}

/// Signs everything committed since the last time. The signature is stored in the database first, so that this node's
/// file is never ahead of it.
async fn sign(
    shared: &Shared,
    writer: &Writer<'_>,
    unsigned: &[UnsignedCheckpoint],
) -> Result<(), DbError> {
    let signatures: Result<Vec<_>, _> =
        unsigned.iter().map(|one| one.checkpoint.sign(&shared.keys, &one.record_hash)).collect();
    let signatures = signatures.map_err(|_| DbError::new("the cryptographic library failed"))?;
    let streams: Vec<i32> = unsigned.iter().map(|one| one.stream.0).collect();
    let epochs: Vec<i32> = unsigned.iter().map(|one| one.epoch.0).collect();
    let seqs: Vec<i64> = unsigned.iter().map(|one| one.checkpoint.seq.0).collect();
    let chains: Vec<&[u8]> = unsigned.iter().map(|one| &one.checkpoint.chain[..]).collect();
    let signatures: Vec<&[u8]> = signatures.iter().map(<[u8; 64]>::as_slice).collect();
    within(LIMIT, writer.sign([&streams, &epochs, &seqs, &chains, &signatures])).await?;
    for one in unsigned {
        // If this fails, the next epoch's record after a restart covers less, and the checkpoint more.
        let _ = shared.positions.borrow_mut().sign(one.stream, one.epoch, one.checkpoint);
    }
    if let Some(sender) = &mut *shared.sender.borrow_mut() {
        sender.signed(now(), unsigned);
    }
    Ok(())
}

async fn resume(
    shared: &Shared,
    client: &Client,
    stream: StreamId,
    receiver: NodeId,
) -> Result<(), DbError> {
    let found = within(LIMIT, async {
        let row = client.query_one(RESUME, &[&receiver.0]).await?;
        let durable = shared.durability() != Durability::Volatile;
        let same = row.try_get::<_, Option<bool>>(3)? == Some(durable);
        let (bytes, age_ms): (Option<i64>, Option<i64>) = (row.try_get(4)?, row.try_get(5)?);
        let open_leaf = bytes.zip(age_ms).filter(|_| same).map(|(bytes, age_ms)| OpenLeaf {
            bytes: u64::try_from(bytes).unwrap_or(0),
            age: Duration::from_millis(u64::try_from(age_ms).unwrap_or(0)),
        });
        Ok(ResumeRow {
            last_seq: row.try_get::<_, Option<i64>>(0)?.unwrap_or(0),
            last_epoch: row.try_get::<_, Option<i32>>(1)?.unwrap_or(0),
            last_leaf: row.try_get::<_, Option<i32>>(2)?.unwrap_or(0),
            open_leaf,
        })
    })
    .await?;
    let belief = match &mut *shared.sender.borrow_mut() {
        Some(sender) => sender.resumed(stream, found),
        None => ResumeOutcome::Full,
    };
    warn_of_numbers(shared, stream, belief);
    Ok(())
}

/// Warns about numbers in the database that this node cannot have used, at most once in [`WARN_AGAIN`].
fn warn_of_numbers(shared: &Shared, stream: StreamId, belief: ResumeOutcome) {
    let consequence = match belief {
        ResumeOutcome::Full => return,
        ResumeOutcome::OwnNumbers => "it continues after its own",
        ResumeOutcome::Refused => "nothing is sent there until such rows are removed",
    };
    let at = now();
    if shared.numbers_warned.get().is_some_and(|last| at.since(last) < WARN_AGAIN) {
        return;
    }
    shared.numbers_warned.set(Some(at));
    let directory = shared.directory.borrow().clone();
    let receiver = directory.as_ref().and_then(|directory| directory.receiver(stream));
    let name = receiver.map_or("a former node", |receiver| receiver.record.name.as_str());
    tracing::warn!(
        "to node {name}: the database has numbers that this node never gave to its packets, {consequence}: a role with rights in the database adds or alters rows"
    );
}

/// Waits until this session is the only one that writes the node's streams.
async fn begin_writing(shared: &Shared, client: &Client) -> Result<(), DbError> {
    let mut cause = DbError::closed();
    for _ in 0..LOCK_TRIES {
        let row = client.query_one(BEGIN_WRITING, &[]).await?;
        let Some(pid) = row.try_get(0)? else { return Ok(()) };
        cause = writer_conflict(shared, client, pid).await?;
        sleep(LOCK_PAUSE).await;
    }
    Err(cause)
}

/// Reports which session of this node's role writes. Ends a dead connection of this process that the database has not
/// detected yet.
async fn writer_conflict(shared: &Shared, client: &Client, pid: i32) -> Result<DbError, DbError> {
    let Some(row) = client.query_opt(HOLDER, &[&pid]).await? else {
        return Ok(DbError::new("another session writes this node's streams: waiting for its end"));
    };
    let (name, from): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
    let (name, from) = (adit_runtime::log::clean(name), adit_runtime::log::clean(from));
    if name.contains(&shared.instance) {
        client.query("SELECT pg_terminate_backend($1)", &[&pid]).await?;
        return Ok(DbError::new(
            "a former connection of this node is still there and does not end",
        ));
    }
    Ok(DbError::new(format!(
        "another process is this node, from {from} ({name}): this one waits until it has ended"
    )))
}

async fn open(shared: &Shared, client: &Client, opening: &NewEpoch) -> Result<(), DbError> {
    let directory = shared.directory.borrow().clone();
    let Some((directory, receiver)) = directory
        .as_ref()
        .and_then(|directory| Some((directory, directory.receiver(opening.stream)?)))
        .filter(|(_, receiver)| receiver.record.id == opening.receiver)
    else {
        if let Some(sender) = &mut *shared.sender.borrow_mut() {
            sender.delayed(now(), opening.stream);
        }
        return Ok(());
    };
    let (settings, network) = (&shared.settings, directory.settings.current());
    let durability = settings.durability.unwrap_or(network.durability);
    let key = shared.ring.borrow().sealing(now()).clone();
    let epoch = Epoch {
        network: directory.network.tag.clone(),
        stream: opening.stream,
        sender: settings.node,
        receiver: opening.receiver,
        no: opening.epoch,
        leaf: opening.leaf,
        first_seq: opening.first_seq,
        audit: network.audit,
        durability,
        opened: opening.opened,
        settings: network.serial,
        previous: opening.previous.map(|previous| epoch::PreviousEpoch {
            no: previous.epoch,
            last_seq: previous.last_seq,
            chain: previous.chain,
            opened: previous.opened,
        }),
        generation: key.generation(),
    };
    let mine =
        shared.keys.public(settings.node).map_err(|error| DbError::new(error.to_string()))?;
    let mut readers = vec![(opening.receiver, &receiver.public.seal), (settings.node, &mine.seal)];
    let auditor = network.auditor();
    readers.extend(auditor.iter().map(|auditor| (NodeId::AUDITOR, auditor)));
    let opened = {
        let random = &mut *shared.random.borrow_mut();
        epoch::open(epoch, &shared.keys, &key, &readers, random)
    };
    let opened =
        opened.map_err(|error| DbError::new(format!("no epoch can be opened: {error}")))?;
    let sealer =
        Sealer::new(&opened.secret, network.audit, opening.stream, opening.epoch, opened.hash);
    let sealer = sealer.map_err(|_| DbError::new("the cryptographic library failed"))?;
    let readers: Vec<i32> = opened.wraps.iter().map(|wrap| wrap.reader.0).collect();
    let encs: Vec<&[u8]> = opened.wraps.iter().map(|wrap| wrap.enc.as_slice()).collect();
    let sealed: Vec<&[u8]> = opened.wraps.iter().map(|wrap| wrap.sealed.as_slice()).collect();
    let durable = durability != Durability::Volatile;
    let asked = within(LIMIT, async {
        client
            .query_one(
                OPEN,
                &[
                    &opening.stream.0,
                    &opening.epoch.0,
                    &opening.leaf.0,
                    &opening.first_seq.0,
                    &durable,
                    &opened.record,
                    &opened.signature.as_slice(),
                    &readers,
                    &encs,
                    &sealed,
                ],
            )
            .await?;
        Ok(())
    })
    .await;
    if let Err(cause) = asked {
        let Some(bound) = cause.bound else { return Err(cause) };
        tracing::debug!("stream {}: no epoch opened: {}", opening.stream, cause.message);
        if let Some(sender) = &mut *shared.sender.borrow_mut() {
            match bound {
                StreamLimit::Leaf => sender.failed(now(), opening.stream),
                StreamLimit::Time => sender.delayed(now(), opening.stream),
            }
        }
        return Ok(());
    }
    tracing::debug!(
        "stream {} epoch {} opened in leaf {}",
        opening.stream,
        opening.epoch,
        opening.leaf
    );
    shared.rotated.notify_one();
    if let Some(sender) = &mut *shared.sender.borrow_mut() {
        sender.opened(now(), opening.stream, sealer);
        // The network's key was replaced during the query.
        if shared.generations.get().0 != key.generation() {
            sender.renew();
        }
    }
    // The settings changed during the query.
    if shared.serial() != network.serial {
        shared.renew_epochs();
    }
    Ok(())
}
