//! A connection of the running node. It has time limits for everything that could hang, a separate task that polls it, and a collection of
//! its notifications.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use adit_postgres::receiver::Hint;
use adit_postgres::{LeafNo, StreamId};
use adit_postgres_client::{Connection, NewConnection, Target, connect};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Notification};

use super::db_error::DbError;

/// The time limit for connecting, including TLS and authentication.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The maximum number of streams whose wake-ups are distinguished. Others must be forged, and are ignored.
const STREAMS: usize = 4096;

/// The session settings. No statement waits for long. The database detects dead connections too, because a connection holds the locks that
/// determine which session writes a stream.
const SESSION: &str = "SET statement_timeout = '5s'; SET lock_timeout = '2s'; \
    SET idle_in_transaction_session_timeout = '5s'; SET search_path = adit, pg_temp; \
    SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3; \
    SET tcp_user_timeout = '4s'; SET client_min_messages = warning; SET timezone = 'UTC'; \
    SET extra_float_digits = 1; SET jit = off";

/// The content of the notifications since the last call of [`NotifyListener::take`].
#[derive(Debug, Default)]
pub(super) struct NotifyListener {
    /// The newest leaf and the number of notifications for each stream.
    notifications: RefCell<BTreeMap<StreamId, (LeafNo, u32)>>,
    nodes: Cell<bool>,
    count: Cell<u64>,
    wakeup: Notify,
}

/// The notifications that a [`NotifyListener`] received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Notifications {
    /// The streams, each with its newest reported leaf and the number of notifications. Any role in the database may
    /// send any values.
    pub(super) streams: Vec<(StreamId, LeafNo, u32)>,
    /// Whether nodes have joined or left.
    pub(super) nodes: bool,
}

impl NotifyListener {
    /// Waits until [`Self::take`] has something to return.
    pub(super) async fn notified(&self) {
        self.wakeup.notified().await;
    }

    pub(super) fn take(&self) -> Notifications {
        Notifications {
            streams: std::mem::take(&mut *self.notifications.borrow_mut())
                .into_iter()
                .map(|(stream, (leaf, times))| (stream, leaf, times))
                .collect(),
            nodes: self.nodes.take(),
        }
    }

    /// Returns the number of notifications so far.
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    fn notify(&self, channel: &str, payload: &str) {
        self.count.set(self.count.get().saturating_add(1));
        if channel == "adit_nodes" {
            self.nodes.set(true);
        } else {
            let mut notifications = self.notifications.borrow_mut();
            // A malformed or surplus notification is not counted as received, so the database's own count shows that
            // one may be missing.
            if let Some(Hint { stream, leaf }) = Hint::parse(payload)
                && (notifications.len() < STREAMS || notifications.contains_key(&stream))
            {
                let (newest, times) = notifications.entry(stream).or_insert((leaf, 0));
                (*newest, *times) = (leaf.max(*newest), times.saturating_add(1));
            }
        }
        self.wakeup.notify_one();
    }
}

/// An open connection. It is closed when it is dropped.
pub(super) struct Link {
    pub(super) client: Client,
    end: Rc<End>,
    driver: JoinHandle<()>,
}

/// The state of a connection's end.
#[derive(Default)]
struct End {
    cause: RefCell<Option<DbError>>,
    told: Notify,
}

impl Link {
    /// Connects, and passes notifications to `listener`. Call it inside a `LocalSet`.
    pub(super) async fn open(
        target: &Target,
        purpose: &str,
        listener: Option<Rc<NotifyListener>>,
    ) -> Result<Self, DbError> {
        let opened = match timeout(CONNECT_LIMIT, connect(target, purpose)).await {
            Ok(opened) => opened.map_err(|fault| DbError::new(fault.to_string()))?,
            Err(_) => return Err(DbError::new("the database does not answer")),
        };
        let NewConnection { client, connection } = opened;
        let end = Rc::new(End::default());
        let driver = tokio::task::spawn_local(drive(connection, listener, Rc::clone(&end)));
        let link = Self { client, end, driver };
        within(CONNECT_LIMIT, async { Ok(link.client.batch_execute(SESSION).await?) }).await?;
        Ok(link)
    }

    /// Waits until the connection has ended.
    pub(super) async fn ended(&self) -> DbError {
        while !self.client.is_closed() {
            self.end.told.notified().await;
        }
        DbError::closed()
    }

    /// Returns the more specific of two causes. A statement that fails with its connection does not know why the connection ended.
    pub(super) fn better_known_cause(&self, cause: DbError) -> DbError {
        let end = self.end.cause.borrow().clone();
        end.filter(|_| cause == DbError::closed()).unwrap_or(cause)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Abort the task, because with a dead connection it would wait until the kernel gives up.
        self.driver.abort();
    }
}

async fn drive(mut connection: Connection, listener: Option<Rc<NotifyListener>>, end: Rc<End>) {
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        match message {
            Ok(AsyncMessage::Notification(note)) => ring(listener.as_deref(), &note),
            Ok(_) => {}
            Err(error) => {
                *end.cause.borrow_mut() = Some(error.into());
                break;
            }
        }
    }
    // This notifies tasks that wait for an answer on the connection.
    drop(connection);
    end.told.notify_one();
}

fn ring(listener: Option<&NotifyListener>, note: &Notification) {
    if let Some(listener) = listener {
        listener.notify(note.channel(), note.payload());
    }
}

/// Runs work with a time limit.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, DbError>>,
) -> Result<T, DbError> {
    match timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(DbError::new("the database did not answer in time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_of_a_stream_become_one_with_the_newest_leaf() {
        let listener = NotifyListener::default();
        for payload in ["7.1", "7.3", "7.2", "9.1"] {
            listener.notify("adit_2", payload);
        }
        let notifications = listener.take();
        assert_eq!(
            notifications.streams,
            [(StreamId(7), LeafNo(3), 3), (StreamId(9), LeafNo(1), 1)]
        );
        assert!(!notifications.nodes);
        assert_eq!(listener.take(), Notifications::default());
    }

    #[test]
    fn nonsense_wakes_nothing_and_floods_take_no_memory() {
        let listener = NotifyListener::default();
        listener.notify("adit_2", "hello");
        assert_eq!(listener.take(), Notifications::default());
        for stream in 0..3 * STREAMS {
            listener.notify("adit_2", &format!("{}.1", stream + 1));
        }
        let notifications = listener.take();
        assert_eq!(notifications.streams.len(), STREAMS);
        listener.notify("adit_nodes", "");
        assert!(listener.take().nodes);
    }
}
