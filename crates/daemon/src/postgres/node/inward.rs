//! From the database to the device.
//!
//! ```text
//!   notification, poll ──► query of a stream ──► page ──► open, check ──► position ──► device
//! ```

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use adit_postgres::key::epoch::{self, EpochRecord, Expected, Wrap};
use adit_postgres::key::{Fingerprint, SealPublic};
use adit_postgres::receiver::{Delivery, Epoch, Query};
use adit_postgres::seal::Opener;
use adit_postgres::{Audit, EpochNo, Seq, StreamId, sql};
use tokio_postgres::{Client, Row};

use super::cause::Cause;
use super::directory::{self, Known};
use super::health::Side;
use super::link::{Bell, Link, within};
use super::outward::sleep_until;
use super::positions::Way;
use super::reader::{Reader, dated};
use super::shared::{Shared, add};
use crate::clock::now;

/// How long a page may take.
const LIMIT: Duration = Duration::from_secs(5);

/// How often the nodes are read again without a notification; and between two times because of one, which anybody in the
/// database may send.
const NODES_AGAIN: Duration = Duration::from_secs(60);
const NODES_PAUSE: Duration = Duration::from_millis(200);

const EPOCHS: &str = "SELECT e.record, e.signature, w.enc, w.sealed, \
    (extract(epoch FROM statement_timestamp() - e.opened) * 1000)::bigint \
    FROM adit.epoch e JOIN adit.wrap w ON w.stream = e.stream AND w.epoch = e.no AND w.reader = $4 \
    WHERE e.stream = $1 AND e.no > $2 ORDER BY e.no DESC LIMIT $3";

/// Reads until the connection fails.
pub(super) async fn read(shared: &Shared) -> Result<Infallible, Cause> {
    let bell = Rc::new(Bell::default());
    let link =
        Link::open(&shared.target, &shared.purpose("reader"), Some(Rc::clone(&bell))).await?;
    read_on(shared, &link, &bell).await.map_err(|cause| link.why(cause))
}

async fn read_on(shared: &Shared, link: &Link, bell: &Bell) -> Result<Infallible, Cause> {
    let channel = sql::channel(shared.me());
    within(LIMIT, async {
        Ok(link.client.batch_execute(&format!("LISTEN {channel}; LISTEN adit_nodes")).await?)
    })
    .await?;
    let mut reader = within(LIMIT, Reader::new(&link.client)).await?;
    nodes(shared, &link.client).await?;
    for receiver in shared.receivers.borrow_mut().values_mut() {
        receiver.lost();
    }
    shared.health.borrow_mut().up(now(), Side::Reader);
    let mut delivery = Delivery::default();
    let mut looked = now();
    let mut look_again = looked + NODES_AGAIN;
    loop {
        let mut asked = false;
        let streams: Vec<StreamId> = shared.receivers.borrow().keys().copied().collect();
        for stream in streams {
            asked |= ask(shared, &mut reader, &link.client, stream, &mut delivery).await?;
        }
        if now() >= look_again {
            nodes(shared, &link.client).await?;
            looked = now();
            look_again = looked + NODES_AGAIN;
        }
        if !asked {
            let due = shared.receivers.borrow().values().filter_map(|r| r.deadline()).min();
            let due = due.map_or(look_again, |due| due.min(look_again));
            tokio::select! {
                () = bell.rung() => {}
                () = sleep_until(Some(due)) => {}
                cause = link.ended() => return Err(cause),
            }
        }
        if listen(shared, bell) {
            look_again = look_again.min(looked + NODES_PAUSE);
        }
    }
}

/// Passes on what the notifications said. Whether nodes have come or gone.
fn listen(shared: &Shared, bell: &Bell) -> bool {
    let woken = bell.take();
    shared.counters.notifications.set(bell.count());
    let mut receivers = shared.receivers.borrow_mut();
    for (stream, leaf) in woken.streams {
        if let Some(receiver) = receivers.get_mut(&stream) {
            receiver.wake(leaf);
        }
    }
    if woken.all {
        receivers.values_mut().for_each(|receiver| receiver.lost());
    }
    woken.nodes
}

/// Reads the nodes again and takes them over.
async fn nodes(shared: &Shared, client: &Client) -> Result<(), Cause> {
    let tables = within(LIMIT, directory::load(client, shared.me())).await?;
    let pins = &mut *shared.pins.borrow_mut();
    let directory = directory::believe(&tables, shared.me(), &shared.network_key, pins)?;
    if let Err(fault) = pins.save() {
        tracing::warn!("{fault}");
    }
    let settings = &shared.settings;
    agreed(
        (settings.audit, settings.auditor),
        (directory.network.audit, directory.auditor.as_ref().map(SealPublic::fingerprint)),
    )?;
    shared.adopt(directory);
    Ok(())
}

/// Whether the network still says what this node has joined for. Any node could vouch for another policy or auditor, since all
/// have the network's key.
fn agreed(
    (audit, auditor): (Audit, Option<Fingerprint>),
    (audit_found, auditor_found): (Audit, Option<Fingerprint>),
) -> Result<(), Cause> {
    if audit != audit_found {
        return Err(Cause::new(format!(
            "the network's audit policy is {audit_found}, and node.toml says {audit}: nothing is sent or read"
        )));
    }
    if auditor != auditor_found {
        return Err(Cause::new(
            "the network has another auditor than node.toml says: nothing is sent or read",
        ));
    }
    Ok(())
}

/// Asks one question of a stream. Whether there was one.
async fn ask(
    shared: &Shared,
    reader: &mut Reader<'_>,
    client: &Client,
    stream: StreamId,
    delivery: &mut Delivery,
) -> Result<bool, Cause> {
    let query = shared.receivers.borrow_mut().get_mut(&stream).and_then(|r| r.query(now()));
    let Some(query) = query else { return Ok(false) };
    match query {
        Query::Epochs { after, limit } => epochs(shared, client, stream, after, limit).await?,
        Query::Page { .. } => match within(LIMIT, reader.page(stream, query)).await {
            Ok(rows) => deliver(shared, stream, &rows, delivery),
            Err(cause) if cause.no_table => gone(shared, stream),
            Err(cause) => return Err(cause),
        },
        Query::Skip { leaf, after } => {
            match within(LIMIT, reader.skip(stream, leaf, after.0)).await {
                Ok(newest) => {
                    if let Some(receiver) = shared.receivers.borrow_mut().get_mut(&stream) {
                        receiver.skipped(newest.map(Seq));
                        shared.remember(Way::Received, stream, receiver.position());
                    }
                }
                Err(cause) if cause.no_table => gone(shared, stream),
                Err(cause) => return Err(cause),
            }
        }
    }
    Ok(true)
}

fn gone(shared: &Shared, stream: StreamId) {
    if let Some(receiver) = shared.receivers.borrow_mut().get_mut(&stream) {
        receiver.gone();
    }
}

/// Opens a page and hands it to the device. The position goes first: after `kill -9` in between packets are lost, which
/// networks do, and none comes twice. Without it nothing is delivered.
fn deliver(shared: &Shared, stream: StreamId, rows: &[Row], delivery: &mut Delivery) {
    let counters = &shared.counters;
    add(&counters.pages, 1);
    if rows.is_empty() {
        add(&counters.empty_pages, 1);
    }
    let routes = Rc::clone(&*shared.routes.borrow());
    delivery.clear();
    if let Some(receiver) = shared.receivers.borrow_mut().get_mut(&stream) {
        receiver.page(now(), rows.iter().filter_map(dated), &routes, delivery);
        if !shared.remember(Way::Received, stream, receiver.position()) {
            if counters.unwritten.get() == 0 {
                tracing::warn!(
                    "the file of positions cannot be written: nothing is delivered until it can"
                );
            }
            add(&counters.unwritten, delivery.len() as u64);
            delivery.clear();
        }
    }
    let delivered = shared.device.write(delivery.packets());
    add(&counters.refused, delivered.refused);
}

async fn epochs(
    shared: &Shared,
    client: &Client,
    stream: StreamId,
    after: EpochNo,
    limit: u32,
) -> Result<(), Cause> {
    let me = shared.me().0;
    let limit = i64::from(limit);
    let rows = within(LIMIT, async {
        Ok(client.query(EPOCHS, &[&stream.0, &after.0, &limit, &me]).await?)
    })
    .await?;
    let directory = shared.directory.borrow().clone();
    let Some((directory, sender)) =
        directory.as_ref().and_then(|directory| Some((directory, directory.sender(stream)?)))
    else {
        // Who has just been removed. The reader waits for an answer all the same; and it has not been told that there is nothing.
        if let Some(receiver) = shared.receivers.borrow_mut().get_mut(&stream) {
            receiver.epochs(now(), [], 1);
        }
        return Ok(());
    };
    let found: Vec<_> = rows
        .iter()
        .filter_map(|row| match take(shared, &directory.network.tag, sender, stream, row) {
            Ok(epoch) => Some(epoch),
            Err(reason) => {
                tracing::debug!("an epoch of stream {stream} is refused: {reason}");
                None
            }
        })
        .collect();
    let refused = rows.len().saturating_sub(found.len()) as u64;
    if let Some(receiver) = shared.receivers.borrow_mut().get_mut(&stream) {
        receiver.epochs(now(), found, refused);
    }
    Ok(())
}

fn take(
    shared: &Shared,
    network: &str,
    sender: &Known,
    stream: StreamId,
    row: &Row,
) -> Result<Epoch, String> {
    let bytes = |at| row.try_get::<_, &[u8]>(at).map_err(|error| error.to_string());
    let (record, signature) = (bytes(0)?, bytes(1)?);
    let wrap = Wrap { reader: shared.me(), enc: bytes(2)?.to_vec(), sealed: bytes(3)?.to_vec() };
    let age_ms: i64 = row.try_get(4).map_err(|error| error.to_string())?;
    let expected = Expected { network, stream, sender: &sender.public, receiver: shared.me() };
    let reader = shared.keys.reader(shared.me());
    let accepted = epoch::accept(reader, &shared.network_key, &expected, record, signature, &wrap);
    let (EpochRecord { epoch, .. }, secret) = accepted.map_err(|refused| refused.to_string())?;
    if epoch.audit != shared.settings.audit {
        return Err(format!("its audit policy is {}", epoch.audit));
    }
    let hash = EpochRecord::hash(record, signature);
    let opener = Opener::new(&secret, epoch.audit, stream, epoch.no, hash);
    Ok(Epoch {
        no: epoch.no,
        leaf: epoch.leaf,
        first_seq: epoch.first_seq,
        age_ms: u64::try_from(age_ms).unwrap_or(0),
        open: opener.map_err(|_| "the cryptographic library failed".to_owned())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_policy_or_auditor_than_was_agreed_on_is_refused() {
        let key = |byte| Some(Fingerprint([byte; 32]));
        assert_eq!(agreed((Audit::Headers, key(1)), (Audit::Headers, key(1))), Ok(()));
        assert_eq!(agreed((Audit::None, None), (Audit::None, None)), Ok(()));
        assert!(agreed((Audit::None, key(1)), (Audit::Full, key(1))).is_err());
        for (wanted, found) in [(None, key(1)), (key(1), None), (key(1), key(2))] {
            assert!(agreed((Audit::Full, wanted), (Audit::Full, found)).is_err());
        }
    }
}
