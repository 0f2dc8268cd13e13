//! Serves metrics over HTTP/1.1, on a thread of its own.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as BlockingTcp;
use std::os::unix::net::UnixListener as BlockingUnix;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::compat;
use super::config::{Config, Endpoint, Names};
use super::samples::Format;
use super::scrape::{Head, OtherPeers, PeerSample, Peers, measure_report};
use crate::fault::Fault;
use crate::helper::files;

/// The number of requests served at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 8;
/// The maximum size of a request's head, in bytes. It has no body.
const MAX_HEAD: usize = 8192;
/// The maximum number of fields in a request's head.
const MAX_FIELDS: usize = 64;
/// The time in which a request's head must arrive.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// The time limit for a request and its response.
const CONNECTION_LIMIT: Duration = Duration::from_secs(30);
/// The time in which the control thread must answer a query.
const QUERY_LIMIT: Duration = Duration::from_secs(5);
/// The number of queries that may wait for the control thread.
const QUEUE_LIMIT: usize = 4;
/// The size of the thread's stack, in bytes.
const STACK: usize = 512 * 1024;

/// The content type of adit's own metrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of the older format, whose names need no suffixes.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A question of the metrics thread to the control thread.
#[derive(Debug)]
pub enum Query {
    /// Everything but the peers.
    Head(oneshot::Sender<Head>),
    /// The next peers after the one with this number, at most [`super::SLICE`].
    Peers(Option<u64>, oneshot::Sender<Vec<PeerSample>>),
}

/// An open socket for metrics; a unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    config: Config,
    socket: Option<Socket>,
}

#[derive(Debug)]
enum Socket {
    Unix(BlockingUnix),
    Tcp(BlockingTcp),
}

impl Listener {
    /// Opens the socket. Call it before privileges are dropped.
    ///
    /// # Errors
    /// The socket cannot be opened; the fault names the remedy.
    pub fn open(config: &Config) -> Result<Self, Fault> {
        let socket = match &config.listen {
            Endpoint::Unix(path) => Socket::Unix(files::control(path)?),
            Endpoint::Tcp(address) => Socket::Tcp(BlockingTcp::bind(address).map_err(|error| {
                let hint = match error.kind() {
                    io::ErrorKind::AddrInUse => "; choose another port",
                    io::ErrorKind::PermissionDenied => "; choose a port from 1024 on",
                    _ => "",
                };
                Fault::environment(format!("metrics on {address}: {error}{hint}"))
            })?),
        };
        Ok(Self { config: config.clone(), socket: Some(socket) })
    }

    /// Starts the thread. Call it after privileges have been dropped.
    ///
    /// # Errors
    /// The system allows no more threads or descriptors.
    pub fn serve(mut self) -> Result<Server, Fault> {
        let problem =
            |error: io::Error| Fault::environment(format!("metrics: not served: {error}"));
        let (queries, asked) = mpsc::channel(QUEUE_LIMIT);
        let (stop, stopped) = oneshot::channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(problem)?;
        let config = self.config.clone();
        let socket = self.socket.take();
        let thread = std::thread::Builder::new().name("metrics".into()).stack_size(STACK);
        let thread = thread.spawn(move || {
            let Some(socket) = socket else { return };
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    ended = accept(socket, Arc::new(Exporter::new(config, queries))) => {
                        let Err(error) = ended;
                        tracing::warn!("metrics: not served: {error}");
                    }
                }
            });
        });
        let thread = thread.map_err(problem)?;
        Ok(Server { _listener: self, asked, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = self.config.socket() {
            // If this fails, the next start replaces the dead socket.
            let _ = files::remove(path);
        }
    }
}

/// The running metrics thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    _listener: Listener,
    asked: mpsc::Receiver<Query>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Waits for the next query. Cancel-safe.
    pub async fn next(&mut self) -> Query {
        match self.asked.recv().await {
            Some(query) => query,
            // The thread has ended. The program does not depend on it.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.asked.close();
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        // The port must be free for the next start.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers requests for metrics.
struct Exporter {
    config: Config,
    queries: mpsc::Sender<Query>,
    /// Locked during a scrape, so that there is one at a time.
    other: Mutex<OtherPeers>,
}

impl Exporter {
    fn new(config: Config, queries: mpsc::Sender<Query>) -> Self {
        Self { config, queries, other: Mutex::default() }
    }

    /// Asks the control thread.
    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Option<T> {
        let (tx, rx) = oneshot::channel();
        let answered = async {
            self.queries.send(query(tx)).await.ok()?;
            rx.await.ok()
        };
        timeout(QUERY_LIMIT, answered).await.ok().flatten()
    }

    /// Collects all metrics and formats them; `None` if the control thread does not answer.
    async fn scrape(&self, format: Format) -> Option<String> {
        let mut other = self.other.lock().await;
        let Head { report, mut samples } = self.ask(Query::Head).await?;
        let mut peers = Peers::default();
        let mut after = None;
        loop {
            let slice = self.ask(|reply| Query::Peers(after, reply)).await?;
            let Some(last) = slice.last() else { break };
            // A number that does not increase would never end.
            if after.is_some_and(|after| last.id <= after) {
                break;
            }
            after = Some(last.id);
            peers.add(slice, self.config.peers as usize);
        }
        if self.config.names == Names::Openvpn {
            return Some(compat::text(&report, &peers));
        }
        measure_report(&mut samples, &report);
        peers.measure(&mut samples, &report, &mut other);
        Some(samples.text_as(format))
    }

    /// Returns the format of a response: OpenMetrics, unless the request accepts only the older one.
    fn format(&self, request: &Request<Incoming>) -> Format {
        let accepted = request.headers().get_all(ACCEPT).iter();
        let accepted: Vec<&str> = accepted.filter_map(|value| value.to_str().ok()).collect();
        let names = |kind: &str| accepted.iter().any(|value| value.contains(kind));
        let plain = names("text/plain") && !names("application/openmetrics-text");
        if plain || self.config.names == Names::Openvpn {
            Format::Prometheus
        } else {
            Format::OpenMetrics
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let format = self.format(&request);
        let (status, kind, text) = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/metrics") => match self.scrape(format).await {
                Some(text) if format == Format::Prometheus => (StatusCode::OK, PROMETHEUS, text),
                Some(text) => (StatusCode::OK, OPENMETRICS, text),
                None => {
                    let text = "the process does not answer\n".to_owned();
                    (StatusCode::SERVICE_UNAVAILABLE, PROMETHEUS, text)
                }
            },
            (&Method::GET | &Method::HEAD, _) => {
                (StatusCode::NOT_FOUND, PROMETHEUS, "the metrics are at /metrics\n".to_owned())
            }
            _ => (StatusCode::METHOD_NOT_ALLOWED, PROMETHEUS, "only GET is supported\n".to_owned()),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }

    /// Serves one request.
    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(async |request| Ok::<_, Infallible>(self.respond(request).await));
        let served = http1::Builder::new()
            .keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_FIELDS)
            .serve_connection(TokioIo::new(stream), service);
        // A scraper that disconnects early misses only its response.
        let _ = timeout(CONNECTION_LIMIT, served).await;
    }
}

async fn accept(socket: Socket, exporter: Arc<Exporter>) -> io::Result<Infallible> {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let place = async || Arc::clone(&places).acquire_owned().await.map_err(io::Error::other);
    match socket {
        Socket::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            loop {
                let place = place().await?;
                let Ok((stream, _)) = listener.accept().await else {
                    pause().await;
                    continue;
                };
                let exporter = Arc::clone(&exporter);
                tokio::spawn(async move {
                    exporter.serve(stream).await;
                    drop(place);
                });
            }
        }
        Socket::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            loop {
                let place = place().await?;
                let Ok((stream, from)) = listener.accept().await else {
                    pause().await;
                    continue;
                };
                if !exporter.config.allows(from.ip()) {
                    tracing::debug!("metrics: {from}: refused: not in allow");
                    continue;
                }
                let exporter = Arc::clone(&exporter);
                tokio::spawn(async move {
                    exporter.serve(stream).await;
                    drop(place);
                });
            }
        }
    }
}

/// Descriptors may have run out, for example. Waits, to avoid a busy loop.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[cfg(test)]
mod tests;
