//! The database that serves as the node's directory. A task owns the connection, and the node's loop never waits for it.
//!
//! ```text
//!   node's loop ── requests, one at a time ──► task ──► database
//!               ◄── answers, news, state ────      ◄── notifications
//! ```

use std::collections::BTreeSet;
use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::time::Duration;

use adit_engine::Instant;
use adit_mesh::directory::{Answer, DirectorySync, Request};
use adit_mesh::node::Node;
use adit_mesh::roster::{Append, ChainSummary, ChangeHash, Entry, MAX_OBJECT};
use adit_mesh::session::{KeyHash, MeshId};
use adit_postgres_client::operator::statement_fault;
use adit_postgres_client::{Backoff, Connection, NewConnection, Target, connect};
use adit_runtime::clock::now;
use adit_runtime::control::MeshDirectory;
use adit_runtime::fault::Fault;
use adit_runtime::log::clean;
use adit_runtime::say;
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Client, Row};

use super::Running;
use crate::directory::{
    APPEND, DirectoryConfig, LISTEN, READ, READ_LIMIT, SUMMARY, SUMMARY_LIMIT, check_identity,
};

/// The number of events of the task that wait for the node's loop. The task waits for room, except that it drops notifications: the regular
/// reads find everything that they announce.
const MAX_EVENTS: usize = 8;

/// The maximum number of requests that wait for the task: the current one, and one that was meant for a connection that
/// has since ended.
const MAX_REQUESTS: usize = 2;

/// The time limit for connecting, including TLS and authentication.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The time limit for one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);

/// The duration of a connection after which the pauses start again with the shortest one.
const LASTED: Duration = Duration::from_secs(5);

/// The minimum time between two warnings that the directory lacks changes.
const WARNING_INTERVAL: Duration = Duration::from_secs(600);

/// The session's settings. No statement waits for long, and the database detects dead connections.
const SESSION: &str = "SET statement_timeout = '15s'; SET lock_timeout = '5s'; \
    SET idle_in_transaction_session_timeout = '5s'; SET search_path = pg_catalog, pg_temp; \
    SET client_min_messages = warning; SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
    SET tcp_keepalives_count = 3";

/// A report of the task.
#[derive(Debug)]
pub(super) enum DirectoryEvent {
    /// There is a connection with this number.
    Connected(u64),
    /// The database has new entries.
    News,
    /// The answer to the last request.
    Answer(Answer),
    /// The database refused an append, for this reason.
    Refused(String),
    /// There is no connection, for this reason.
    Disconnected(String),
}

/// A request, and the number of its connection.
type Asked = (u64, Request);

/// The directory of a running node.
pub(super) struct NodeDirectory {
    sync: DirectorySync,
    config: DirectoryConfig,
    requests: mpsc::Sender<Asked>,
    events: mpsc::Receiver<DirectoryEvent>,
    task: JoinHandle<()>,
    /// The number of the current connection, if any.
    connection: Option<u64>,
    since: Instant,
    problem: Option<String>,
    /// The number of changes that the last warning named, and its time.
    warned: Option<(usize, Instant)>,
    mismatches: u64,
}

impl NodeDirectory {
    /// Starts the task, if there is a database. Call it inside a `LocalSet`.
    ///
    /// # Errors
    /// The URL is wrong, or the kernel returned no random bytes.
    pub(super) fn start(
        config: Option<DirectoryConfig>,
        node: &Node,
    ) -> Result<Option<Self>, Fault> {
        let Some(config) = config else { return Ok(None) };
        let target = config.target()?;
        let (requests, asked) = mpsc::channel(MAX_REQUESTS);
        let (reports, events) = mpsc::channel(MAX_EVENTS);
        let seed = u64::from_be_bytes(adit_runtime::random::bytes()?);
        let task = Task { target, mesh: *node.changes().mesh(), asked, reports };
        Ok(Some(Self {
            sync: DirectorySync::new(now(), &node.key_hash(), node.changes()),
            config,
            requests,
            events,
            task: tokio::task::spawn_local(task.run(Backoff::new(seed))),
            connection: None,
            since: now(),
            problem: None,
            warned: None,
            mismatches: 0,
        }))
    }

    /// Passes the next request to the task.
    fn ask(&mut self, node: &Node) {
        let Some(number) = self.connection else { return };
        let signers: BTreeSet<KeyHash> =
            [Some(node.key_hash()), node.admin_key()].into_iter().flatten().collect();
        let Some(request) = self.sync.request(now(), node.changes(), &signers) else { return };
        let sent = self.requests.try_send((number, request));
        debug_assert!(
            !matches!(sent, Err(TrySendError::Full(_))),
            "more requests than one are open"
        );
        if sent.is_err() {
            self.sync.disconnected();
        }
    }

    fn set_state(&mut self, connection: Option<u64>, problem: Option<String>) {
        if self.connection.is_some() != connection.is_some() {
            self.since = now();
        }
        (self.connection, self.problem) = (connection, problem);
    }

    fn connected(&mut self, number: u64) {
        self.set_state(Some(number), None);
        self.sync.connected(now());
        say!(1, "directory: connected to {}", self.config.database);
    }

    fn disconnected(&mut self, reason: &str) {
        let reason = clean(reason);
        if self.problem.as_ref() != Some(&reason) {
            tracing::warn!("directory: {reason}; the node continues with its own file");
        }
        self.set_state(None, Some(reason));
        self.sync.disconnected();
    }

    fn refused(&mut self, reason: &str) {
        let reason = clean(reason);
        if self.problem.as_ref() != Some(&reason) {
            tracing::warn!("directory: {reason}");
        }
        self.problem = Some(reason);
    }

    /// Warns of changes that the directory withholds, and reports when they appear.
    fn warn(&mut self, node: &Node) {
        let mismatches = self.sync.counters().mismatches;
        if mismatches != std::mem::replace(&mut self.mismatches, mismatches) {
            tracing::warn!("directory: entries are gone or replaced; everything is read again");
        }
        match (self.sync.lacks(now(), node.changes()), self.warned) {
            (None, _) | (Some(0), None) => {}
            (Some(0), Some(_)) => {
                say!(1, "directory: complete again");
                self.warned = None;
            }
            (Some(lacks), warned) => {
                let is_due = warned.is_none_or(|(before, at)| {
                    lacks > before && now().since(at) >= WARNING_INTERVAL
                });
                if is_due {
                    tracing::warn!("directory: {}", lacks_text(lacks));
                    self.warned = Some((lacks, now()));
                }
            }
        }
    }

    fn report(&self, node: &Node) -> MeshDirectory {
        let (counters, lacks) = (self.sync.counters(), self.sync.lacks(now(), node.changes()));
        let state = match (self.connection, lacks) {
            (None, _) => "not-reachable",
            (Some(_), None) => "reading",
            (Some(_), Some(_)) => "connected",
        };
        MeshDirectory {
            database: self.config.database.clone(),
            role: self.config.role.clone(),
            state: state.into(),
            since_s: now().since(self.since).as_secs(),
            problem: self.problem.clone(),
            entries: self.sync.rows(),
            changes: node.changes().len(),
            lacks,
            conflicts: self.sync.conflicts(node.changes()),
            invalid_entries: self.sync.invalid_rows(),
            received: counters.received,
            appended: counters.appended,
            withheld: counters.withheld,
            mismatches: counters.mismatches,
            invalid: counters.invalid,
            refused: counters.refused,
        }
    }
}

impl Drop for NodeDirectory {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits for the next event of the directory, or forever if there is none.
pub(super) async fn next_event(directory: &mut Option<NodeDirectory>) -> DirectoryEvent {
    if let Some(directory) = directory
        && let Some(event) = directory.events.recv().await
    {
        return event;
    }
    std::future::pending().await
}

impl Running {
    pub(super) fn directory_event(&mut self, event: DirectoryEvent) {
        let Some(directory) = &mut self.directory else { return };
        match event {
            DirectoryEvent::Connected(number) => directory.connected(number),
            DirectoryEvent::News => directory.sync.news(now()),
            DirectoryEvent::Disconnected(reason) => directory.disconnected(&reason),
            DirectoryEvent::Refused(reason) => {
                directory.refused(&reason);
                self.directory_answer(Answer::Refused);
            }
            DirectoryEvent::Answer(answer) => {
                if answer == Answer::Appended(Append::Added) {
                    directory.problem = None;
                }
                self.directory_answer(answer);
            }
        }
        self.ask_directory();
    }

    fn directory_answer(&mut self, answer: Answer) {
        let Some(directory) = &mut self.directory else { return };
        let changes = directory.sync.answer(now(), answer, self.driver.engine().changes());
        directory.warn(self.driver.engine());
        if !changes.is_empty() {
            self.driver.act(|node, now, out| node.receive(now, changes, out));
        }
    }

    /// Appends changes that are new in the node's file.
    pub(super) fn changes_added(&mut self, added: &[ChangeHash]) {
        if let Some(directory) = &mut self.directory {
            directory.sync.added(now(), added, self.driver.engine().changes());
        }
        self.ask_directory();
    }

    pub(super) fn directory_tick(&mut self) {
        if let Some(directory) = &mut self.directory {
            directory.warn(self.driver.engine());
        }
        self.ask_directory();
    }

    /// Compares the directory with the entries that it showed before, at an operator's request.
    pub(super) fn check_directory(&mut self) {
        if let Some(directory) = &mut self.directory {
            directory.sync.check(now());
        }
        self.ask_directory();
    }

    fn ask_directory(&mut self) {
        if let Some(directory) = &mut self.directory {
            directory.ask(self.driver.engine());
        }
    }

    pub(super) fn directory_report(&self) -> Option<MeshDirectory> {
        self.directory.as_ref().map(|directory| directory.report(self.driver.engine()))
    }

    pub(super) fn directory_warnings(&self) -> Vec<String> {
        let Some(report) = self.directory_report() else { return Vec::new() };
        let mut warnings = Vec::new();
        if let Some(problem) = report.problem {
            warnings.push(format!("directory: {problem}"));
        }
        if let Some(lacks) = report.lacks.filter(|lacks| *lacks > 0) {
            warnings.push(lacks_text(lacks));
        }
        if report.invalid_entries > 0 {
            warnings.push(format!(
                "the directory has {} entries that are not valid changes; its owner removes them: adit mesh directory \
                 postgres URL --init",
                report.invalid_entries
            ));
        }
        warnings
    }
}

fn lacks_text(lacks: usize) -> String {
    format!(
        "the directory lacks {lacks} changes that neighbours have; this node appends its own again; for the others, use: adit mesh \
         directory postgres URL --init"
    )
}

/// The task with the connection.
struct Task {
    target: Target,
    mesh: MeshId,
    asked: mpsc::Receiver<Asked>,
    reports: mpsc::Sender<DirectoryEvent>,
}

/// Ends a connection's task together with the connection.
struct Driver(JoinHandle<String>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Task {
    /// Keeps the node connected until it ends.
    async fn run(mut self, mut backoff: Backoff) {
        for number in 1.. {
            let began = now();
            let reason = self.connection(number).await;
            if now().since(began) >= LASTED {
                backoff.reset();
            }
            if self.reports.send(DirectoryEvent::Disconnected(reason)).await.is_err() {
                return;
            }
            sleep(backoff.pause()).await;
        }
    }

    /// Serves one connection. Returns the reason for its end.
    async fn connection(&mut self, number: u64) -> String {
        let opened = match timeout(CONNECT_LIMIT, connect(&self.target, "mesh directory")).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(fault)) => return fault.to_string(),
            Err(_) => return "the database does not answer".into(),
        };
        let NewConnection { client, connection } = opened;
        let news = Arc::new(Notify::new());
        let mut driver = Driver(tokio::spawn(drive(connection, Arc::clone(&news))));
        let begun = async {
            let of = |error: tokio_postgres::Error| statement_fault(&error);
            client.batch_execute(SESSION).await.map_err(of)?;
            check_identity(&client, &self.mesh).await?;
            client.batch_execute(LISTEN).await.map_err(of)
        };
        match timeout(CONNECT_LIMIT, begun).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => return fault.to_string(),
            Err(_) => return "the database does not answer".into(),
        }
        // Drop requests for the previous connection.
        while self.asked.try_recv().is_ok() {}
        if self.reports.send(DirectoryEvent::Connected(number)).await.is_err() {
            return String::new();
        }
        loop {
            let request = tokio::select! {
                ended = &mut driver.0 => {
                    return ended.unwrap_or_else(|_| "the connection to the database has ended".into());
                }
                request = self.asked.recv() => request,
                () = news.notified() => {
                    // If the queue is full, the node's loop is about to read anyway.
                    let _ = self.reports.try_send(DirectoryEvent::News);
                    continue;
                }
            };
            let event = match request {
                None => return String::new(),
                // The request was for a connection that has ended.
                Some((other, _)) if other != number => continue,
                Some((_, request)) => match timeout(REQUEST_LIMIT, perform(&client, request)).await
                {
                    Ok(Ok(event)) => event,
                    Ok(Err(fault)) => return fault.to_string(),
                    Err(_) => return "the database did not answer in time".into(),
                },
            };
            if self.reports.send(event).await.is_err() {
                return String::new();
            }
        }
    }
}

/// Polls a connection until it ends. Returns the reason for its end.
async fn drive(mut connection: Connection, news: Arc<Notify>) -> String {
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        match message {
            Ok(AsyncMessage::Notification(_)) => news.notify_one(),
            Ok(_) => {}
            Err(error) => return statement_fault(&error).to_string(),
        }
    }
    "the database closed the connection".into()
}

/// Sends a request to the database.
async fn perform(client: &Client, request: Request) -> Result<DirectoryEvent, Fault> {
    let of = |error: tokio_postgres::Error| statement_fault(&error);
    let answer = match request {
        Request::Read { after } => {
            let after = i64::try_from(after).unwrap_or(i64::MAX);
            Answer::Entries(rows(client, READ, [after, READ_LIMIT], entry).await?)
        }
        Request::Summarize { upto } => {
            let upto = i64::try_from(upto).unwrap_or(i64::MAX);
            Answer::Summary(rows(client, SUMMARY, [upto, SUMMARY_LIMIT], summary).await?)
        }
        Request::Append { signer, number, bytes, .. } => {
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [&signer.as_slice(), &i64::from(number), &bytes];
            match client.query_one(APPEND, &parameters).await {
                Ok(row) => Answer::Appended(appended(&row)?),
                // The function's own checks refused it. Any other error ends the connection.
                Err(error) if is_refusal(&error) => {
                    let reason = statement_fault(&error).to_string();
                    return Ok(DirectoryEvent::Refused(reason));
                }
                Err(error) => return Err(of(error)),
            }
        }
    };
    Ok(DirectoryEvent::Answer(answer))
}

/// Returns the rows of a statement. Its last parameter is their maximum number. A hostile database may send more, so rows are converted as
/// they arrive, and surplus ones are dropped.
async fn rows<T>(
    client: &Client,
    statement: &str,
    parameters: [i64; 2],
    convert: fn(&Row) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let [_, limit] = parameters;
    let of = |error: tokio_postgres::Error| statement_fault(&error);
    let rows = client.query_raw(statement, parameters).await.map_err(of)?;
    let rows = rows.take(usize::try_from(limit).unwrap_or_default());
    rows.map_err(of).and_then(|row| ready(convert(&row))).try_collect().await
}

/// Returns whether the schema raised this error.
fn is_refusal(error: &tokio_postgres::Error) -> bool {
    let code = error.as_db_error().map(|error| error.code().code().to_owned());
    matches!(code.as_deref(), Some("42501" | "22023" | "54000" | "53400"))
}

fn nonsense() -> Fault {
    Fault::peer("the database's answer is not valid")
}

fn key_hash(row: &Row, column: usize) -> Result<KeyHash, Fault> {
    let bytes: &[u8] = row.try_get(column).map_err(|_| nonsense())?;
    KeyHash::try_from(bytes).map_err(|_| nonsense())
}

fn entry(row: &Row) -> Result<Entry, Fault> {
    let place: i64 = row.try_get(0).map_err(|_| nonsense())?;
    let number: i64 = row.try_get(2).map_err(|_| nonsense())?;
    let bytes: &[u8] = row.try_get(3).map_err(|_| nonsense())?;
    Ok(Entry {
        place: u64::try_from(place).map_err(|_| nonsense())?,
        signer: key_hash(row, 1)?,
        number: u32::try_from(number).map_err(|_| nonsense())?,
        // A longer row is not a change; do not store it.
        bytes: bytes.get(..MAX_OBJECT.saturating_add(1)).unwrap_or(bytes).to_vec(),
    })
}

fn summary(row: &Row) -> Result<ChainSummary, Fault> {
    let count: i64 = row.try_get(1).map_err(|_| nonsense())?;
    let count = u64::try_from(count).map_err(|_| nonsense())?;
    Ok(ChainSummary { signer: key_hash(row, 0)?, count, digest: key_hash(row, 2)? })
}

fn appended(row: &Row) -> Result<Append, Fault> {
    let result: &str = row.try_get(0).map_err(|_| nonsense())?;
    let other: Option<&[u8]> = row.try_get(1).map_err(|_| nonsense())?;
    match (result, other) {
        ("added", _) => Ok(Append::Added),
        ("known", _) => Ok(Append::Known),
        ("gap", _) => Ok(Append::Gap),
        ("conflict", Some(other)) => Ok(Append::Conflict(other.to_vec())),
        _ => Err(nonsense()),
    }
}

#[cfg(test)]
mod tests;
