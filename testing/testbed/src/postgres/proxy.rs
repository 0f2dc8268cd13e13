//! A proxy between a node and its database that simulates faults of the link: lost notifications, slow responses, a
//! broken link.
//!
//! It reads the messages that the server sends, so nodes must connect without TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::failure::{Context, Result};
use crate::net::Namespace;

/// The longest message that is forwarded; PostgreSQL's own limit is a gibibyte.
const MESSAGE: usize = 64 << 20;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The current faults of the link.
#[derive(Debug, Default)]
pub struct Link {
    /// Whether notifications are dropped.
    pub mute: AtomicBool,
    /// The delay of each response of the server and each notification, in milliseconds.
    pub delay_ms: AtomicU64,
    /// Whether new connections are closed at once.
    pub closed: AtomicBool,
    /// The number of dropped notifications.
    pub muted: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
}

impl Link {
    /// Closes every existing connection.
    pub fn cut(&self) {
        for stream in self.lock().drain(..) {
            // The connection may have ended on its own.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proxy that listens inside a namespace and forwards all connections to a database. It ends on drop.
#[derive(Debug)]
pub struct Proxy {
    /// The faults of the link.
    pub link: Arc<Link>,
    end: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy that listens at `at` in this namespace and connects to `to` from there.
    ///
    /// # Errors
    /// The address is in use.
    pub fn start(namespace: &Namespace, at: SocketAddr, to: SocketAddr) -> Result<Self> {
        let (link, end) = (Arc::new(Link::default()), Arc::new(AtomicBool::new(false)));
        let (shared, over) = (Arc::clone(&link), Arc::clone(&end));
        let (ready, wait) = std::sync::mpsc::channel();
        namespace.thread(move || {
            let listener = TcpListener::bind(at).context(at)?;
            listener.set_nonblocking(true)?;
            let _ = ready.send(());
            while !over.load(Relaxed) {
                match listener.accept() {
                    Ok((client, _)) if !shared.closed.load(Relaxed) => pass(client, to, &shared),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        thread::sleep(POLL_INTERVAL);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            shared.cut();
            Ok(())
        })?;
        wait.recv_timeout(Duration::from_secs(5)).context("the proxy does not listen")?;
        Ok(Self { link, end })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        self.link.cut();
    }
}

/// Connects a client to the database. If either side ends, both connections are closed.
fn pass(client: TcpStream, to: SocketAddr, link: &Arc<Link>) {
    let joined = || -> std::io::Result<()> {
        client.set_nonblocking(false)?;
        let server = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            link.lock().push(stream.try_clone()?);
        }
        let (mut from, mut into) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut into);
            let _ = into.shutdown(Shutdown::Both);
        });
        let (client, link) = (client.try_clone()?, Arc::clone(link));
        thread::spawn(move || {
            let _ = answers(&server, &client, &link);
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        });
        Ok(())
    };
    if joined().is_err() {
        let _ = client.shutdown(Shutdown::Both);
    }
}

/// Forwards the server's messages, each of which consists of a letter, a length and the rest.
fn answers(mut server: &TcpStream, mut client: &TcpStream, link: &Link) -> std::io::Result<()> {
    loop {
        let mut head = [0; 5];
        server.read_exact(&mut head)?;
        let [letter, length @ ..] = head;
        let rest =
            usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX).saturating_sub(4);
        if rest > MESSAGE {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut message = head.to_vec();
        message.resize(head.len() + rest, 0);
        server.read_exact(message.get_mut(head.len()..).unwrap_or_default())?;
        let delay = link.delay_ms.load(Relaxed);
        // The delay applies once per response, not to each of its rows: ReadyForQuery ends a response.
        if delay > 0 && matches!(letter, b'Z' | b'A') {
            thread::sleep(Duration::from_millis(delay));
        }
        if letter == b'A' && link.mute.load(Relaxed) {
            link.muted.fetch_add(1, Relaxed);
            continue;
        }
        client.write_all(&message)?;
    }
}
