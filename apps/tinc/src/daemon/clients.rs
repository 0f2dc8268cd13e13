//! The connections of programs to tinc's control socket.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use adit_runtime::fault::Fault;
use adit_tinc::name::NodeName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::followers::{ClientSender, LogFollowers, PacketFollowers};
use crate::conf_file::cannot_write;
use crate::control::server::{Cookie, MAX_SESSIONS, Request, Session};

/// The number of events that wait for the loop.
const WAITING: usize = 16;

/// The number of bytes that wait for a client that does not read. It is closed beyond.
const MAX_BACKLOG: usize = 64 << 20;

/// The number of a client.
pub(super) type ClientId = u64;

/// Bytes of a client; none if it ended.
type Received = (ClientId, Vec<u8>);

struct Client {
    session: Session,
    sender: ClientSender,
    reader: AbortHandle,
}

/// The clients.
pub(super) struct Clients {
    listener: UnixListener,
    cookie: Cookie,
    name: NodeName,
    open: HashMap<ClientId, Client>,
    next: ClientId,
    events: (mpsc::Sender<Received>, mpsc::Receiver<Received>),
    /// Those that follow the log.
    log: Arc<LogFollowers>,
    /// Those that follow the packets.
    packets: Arc<PacketFollowers>,
}

/// An event of a client.
pub(super) enum ClientEvent {
    /// It connected.
    Accepted(UnixStream),
    /// It sent bytes; none if it ended.
    Bytes(ClientId, Vec<u8>),
}

impl Clients {
    /// Opens the socket. Call it before privileges are dropped, inside a runtime.
    pub(super) fn open(
        path: &Path,
        cookie: Cookie,
        name: NodeName,
        (log, packets): (Arc<LogFollowers>, Arc<PacketFollowers>),
    ) -> Result<Self, Fault> {
        // Left by a daemon that was killed.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot_write(path, &error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(|error| cannot_write(path, &error))?;
        // The cookie is required as well, so it does not matter who connected before this.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .map_err(|error| cannot_write(path, &error))?;
        let events = mpsc::channel(WAITING);
        Ok(Self { listener, cookie, name, open: HashMap::new(), next: 0, events, log, packets })
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> ClientEvent {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.open.len() < MAX_SESSIONS => {
                    if let Ok((stream, _)) = accepted {
                        return ClientEvent::Accepted(stream);
                    }
                }
                Some((id, bytes)) = self.events.1.recv() => return ClientEvent::Bytes(id, bytes),
            }
        }
    }

    /// Returns the number of clients.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Takes an event, and returns the requests in it.
    pub(super) fn take(&mut self, event: ClientEvent) -> Vec<(ClientId, Request)> {
        match event {
            ClientEvent::Accepted(stream) => {
                let id = self.next;
                self.next = self.next.wrapping_add(1);
                let (read, write) = stream.into_split();
                let reader = tokio::spawn(read_all(id, read, self.events.0.clone())).abort_handle();
                let (writer, answers) = mpsc::unbounded_channel();
                let backlog = Arc::new(AtomicUsize::new(0));
                tokio::spawn(write_all(write, answers, Arc::clone(&backlog)));
                let (session, sender) = (Session::default(), ClientSender { writer, backlog });
                self.open.insert(id, Client { session, sender, reader });
                Vec::new()
            }
            ClientEvent::Bytes(id, bytes) if bytes.is_empty() => {
                self.close(id);
                Vec::new()
            }
            ClientEvent::Bytes(id, bytes) => self.requests(id, &bytes),
        }
    }

    fn requests(&mut self, id: ClientId, bytes: &[u8]) -> Vec<(ClientId, Request)> {
        let Some(client) = self.open.get_mut(&id) else { return Vec::new() };
        let mut found = Vec::new();
        let mut out = Vec::new();
        let mut input = bytes;
        loop {
            match client.session.receive(input, &self.cookie, &self.name, &mut out) {
                Ok(requests) => found.extend(requests.into_iter().map(|request| (id, request))),
                Err(error) => {
                    tracing::debug!("control socket: {error}");
                    self.close(id);
                    return found;
                }
            }
            input = &[];
            if !client.session.has_more() {
                break;
            }
        }
        if !out.is_empty() {
            self.send(id, out);
        }
        found
    }

    /// Sends bytes to a client.
    pub(super) fn send(&mut self, id: ClientId, bytes: Vec<u8>) {
        let Some(client) = self.open.get(&id) else { return };
        if !client.sender.send(bytes, MAX_BACKLOG) {
            self.close(id);
        }
    }

    /// Sends a client the lines of the log from now on.
    pub(super) fn follow_log(&self, id: ClientId, level: Option<u8>) {
        if let Some(client) = self.open.get(&id) {
            self.log.add(id, level, client.sender.clone());
        }
    }

    /// Sends a client copies of the packets from now on.
    pub(super) fn follow_packets(&self, id: ClientId, length: u16) {
        if let Some(client) = self.open.get(&id) {
            self.packets.add(id, length, client.sender.clone());
        }
    }

    /// Returns the numbers of log lines and of packets that were dropped because a client did not read.
    pub(super) fn dropped(&self) -> (u64, u64) {
        (self.log.dropped(), self.packets.dropped())
    }

    /// Tells the clients that follow the log the new debug level of the daemon.
    pub(super) fn set_level(&self, level: u8) {
        self.log.set_level(level);
    }

    fn close(&mut self, id: ClientId) {
        if let Some(client) = self.open.remove(&id) {
            client.reader.abort();
            self.log.remove(id);
            self.packets.remove(id);
        }
    }
}

async fn read_all(id: ClientId, mut stream: OwnedReadHalf, tx: mpsc::Sender<Received>) {
    loop {
        let mut bytes = vec![0; 4096];
        let len = stream.read(&mut bytes).await.unwrap_or(0);
        bytes.truncate(len);
        if tx.send((id, bytes)).await.is_err() || len == 0 {
            return;
        }
    }
}

async fn write_all(
    mut stream: OwnedWriteHalf,
    mut answers: mpsc::UnboundedReceiver<Vec<u8>>,
    backlog: Arc<AtomicUsize>,
) {
    while let Some(bytes) = answers.recv().await {
        let written = stream.write_all(&bytes).await;
        backlog.fetch_sub(bytes.len(), Relaxed);
        if written.is_err() {
            return;
        }
    }
}
