use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener as BlockingListener, UnixStream as BlockingStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::report::{Request, Response};
use crate::fault::Fault;
use crate::helper::files;
use crate::log;
use crate::metrics::is_metrics_socket;

/// The maximum length of a request or response in bytes, including its newline. A response with 10,000 peers fits.
pub const LINE_LIMIT: u64 = 16 << 20;

/// The maximum length of a request in bytes. A rule file with 10,000 rules and its includes fits. Only the owner of the
/// socket can send requests.
const REQUEST_LIMIT: u64 = 16 << 20;

/// The number of connections served at a time; further ones wait to be accepted.
pub const CONNECTION_LIMIT: usize = 16;

/// The number of requests that may wait for the control thread.
const QUEUE_LIMIT: usize = 16;

/// The number of connections that may wait to be accepted; the standard library uses the same number.
const BACKLOG: i32 = 128;

/// The time after which a connection without a request is closed.
const IDLE: Duration = Duration::from_secs(60);

/// The beginning of the answer to a request that cannot be parsed, for example because it is of a newer version.
const NO_REQUEST: &str = "not a request";

/// The time that a client of the socket waits for its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request, and the channel for its response.
pub type ControlRequest = (Request, oneshot::Sender<Response>);

/// An open control socket; removed when dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    requests: mpsc::Receiver<ControlRequest>,
    acceptor: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Opens the socket. Creates its directory, and replaces a socket that a killed process left behind.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        let listener = files::control(path)?;
        // The peer credentials that a connecting program sees are this process's, not those of the helper that
        // opened the socket.
        let _ = net::listen(&listener, BACKLOG);
        let listener =
            listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        let listener =
            listener.map_err(|e| Fault::environment(format!("the control socket: {e}")))?;
        let (tx, requests) = mpsc::channel(QUEUE_LIMIT);
        let acceptor = tokio::spawn(accept(listener, tx));
        Ok(Self { path: path.to_owned(), requests, acceptor })
    }

    /// Returns the name of the instance, which is the socket's without its extension.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Waits for the next request. Cancel-safe.
    pub async fn next(&mut self) -> ControlRequest {
        match self.requests.recv().await {
            Some(asked) => asked,
            // The acceptor lives as long as this value, so this cannot happen.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.acceptor.abort();
        // If this fails, the next start replaces the dead socket.
        let _ = files::remove(&self.path);
    }
}

/// Returns the kind of socket at a path, and how to choose another path.
fn kind_and_remedy(path: &Path) -> (&'static str, &'static str) {
    if is_metrics_socket(path) {
        ("metrics socket", "another path for metrics")
    } else {
        ("control socket", "another folder with --dir")
    }
}

/// Binds a control socket or a metrics socket, which only its owner can access.
pub fn bind(path: &Path) -> Result<BlockingListener, Fault> {
    let (kind, remedy) = kind_and_remedy(path);
    let problem = |what: &str, e: &io::Error| {
        Fault::environment(format!(
            "the {kind} {}: {what}: {e}; run as root or choose {remedy}",
            path.display()
        ))
    };
    if let Some(folder) = path.parent() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(|e| problem("its folder cannot be created", &e))?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Fault::operator(format!(
                "{} is in the way of the {kind}: remove it",
                path.display()
            )));
        }
        Ok(_) => {
            if let Ok(stream) = BlockingStream::connect(path) {
                return Err(in_use(path, listener_of(&stream)));
            }
            fs::remove_file(path).map_err(|e| problem("a stale one cannot be removed", &e))?;
        }
        Err(_) => {}
    }
    private_listener(path).map_err(|e| problem("cannot be opened", &e))
}

/// Binds a socket file that is private from the start, because the file gets the socket's mode when it is bound.
/// Changing the mode afterwards would leave a gap. Changing the umask would affect files that other threads create
/// meanwhile.
fn private_listener(path: &Path) -> io::Result<BlockingListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Returns the fault of a socket that another process uses.
fn in_use(path: &Path, holder: Option<u32>) -> Fault {
    let (kind, remedy) = kind_and_remedy(path);
    let path = path.display();
    let (who, way_out) = match holder {
        Some(pid) => (format!(" (process {pid})"), format!("end it with: kill {pid}")),
        None => (String::new(), "end it".into()),
    };
    Fault::operator(format!(
        "another adit{who} is already running with the {kind} {path}: {way_out}; or give this one {remedy}"
    ))
}

/// Returns the id of the process that listens at the other end.
pub fn listener_of(stream: &BlockingStream) -> Option<u32> {
    let credentials = net::sockopt::socket_peercred(stream).ok()?;
    u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
}

/// Returns whether a process was stopped by a signal (SIGSTOP, Ctrl-Z).
pub fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the state may contain any characters.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Returns the message for a process that does not answer, with the remedy.
pub fn silent(pid: Option<u32>) -> String {
    match pid {
        Some(pid) if is_stopped(pid) => {
            format!(
                "process {pid} does not answer: it is stopped; resume it with: kill -CONT {pid}"
            )
        }
        Some(pid) => format!("process {pid} does not answer"),
        None => "the process does not answer".into(),
    }
}

async fn accept(listener: UnixListener, requests: mpsc::Sender<ControlRequest>) {
    let paths = Arc::new(Semaphore::new(CONNECTION_LIMIT));
    loop {
        let Ok(place) = Arc::clone(&paths).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let requests = requests.clone();
                tokio::spawn(async move {
                    // A program that disconnects early misses only its answer.
                    let _ = serve(stream, requests).await;
                    drop(place);
                });
            }
            // Descriptors may have run out, for example. Wait, to avoid a busy loop.
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn serve(stream: UnixStream, requests: mpsc::Sender<ControlRequest>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = tokio::io::BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut read).take(REQUEST_LIMIT);
        match tokio::time::timeout(IDLE, limited.read_until(b'\n', &mut line)).await {
            Ok(Ok(1..)) if line.ends_with(b"\n") => {}
            _ => return Ok(()),
        }
        let response = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => ask(&requests, request).await,
            Err(e) => Response::Error { message: format!("{NO_REQUEST}: {e}") },
        };
        let mut answer = serde_json::to_vec(&response).map_err(io::Error::other)?;
        answer.push(b'\n');
        tokio::time::timeout(IDLE, write.write_all(&answer)).await??;
    }
}

async fn ask(requests: &mpsc::Sender<ControlRequest>, request: Request) -> Response {
    let (tx, rx) = oneshot::channel();
    let answered = async {
        requests.send((request, tx)).await.ok()?;
        rx.await.ok()
    };
    match tokio::time::timeout(PATIENCE, answered).await {
        Ok(Some(response)) => response,
        _ => Response::Error { message: "the process is ending".into() },
    }
}

/// Sends a request to a running process. Blocks for up to ten seconds.
///
/// # Errors
/// Fails if no process listens there, access is denied, or the response is invalid.
pub fn request(path: &Path, request: &Request) -> Result<Response, Fault> {
    let stream = BlockingStream::connect(path).map_err(|e| {
        let hint = match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "nothing runs there",
            io::ErrorKind::PermissionDenied => "run as root",
            _ => "check that it is running",
        };
        Fault::environment(format!("{}: {e}: {hint}", path.display()))
    })?;
    let pid = listener_of(&stream);
    let answer = exchange(stream, request, PATIENCE);
    match (version_mismatch(&answer, pid), answer) {
        (Some(message), Ok(_)) => Ok(Response::Error { message }),
        (Some(message), Err(_)) => {
            Err(Fault::environment(format!("{}: {message}", path.display())))
        }
        (None, Ok(response)) => Ok(response),
        (None, Err(e)) => Err(Fault::environment(match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent(pid),
            _ => format!("{}: no answer: {e}", path.display()),
        })),
    }
}

/// Returns a sentence if the process at the other end is of another version: it does not know the request, or its answer is of another kind. `pid`
/// names the process in it.
pub fn version_mismatch(answer: &io::Result<Response>, pid: Option<u32>) -> Option<String> {
    // A process that ends before it has answered has another fault.
    let is_unknown = |e: &serde_json::Error| !e.is_eof();
    let what = match answer {
        Ok(Response::Error { message }) if message.starts_with(NO_REQUEST) => {
            format!("{NO_REQUEST} of its version")
        }
        Err(e) if e.get_ref().and_then(|e| e.downcast_ref()).is_some_and(is_unknown) => {
            "the answer is not of this version".to_owned()
        }
        _ => return None,
    };
    Some(format!("{what}: {}", other_version(pid)))
}

/// Describes a process that runs another version of this program, with the remedy.
fn other_version(pid: Option<u32>) -> String {
    let process = pid.map_or_else(|| "the process".into(), |pid| format!("process {pid}"));
    let own = env!("CARGO_PKG_VERSION");
    format!("{process} does not run the version of this program ({own}); restart it")
}

/// Sends a request and reads the response.
pub fn exchange(
    mut stream: BlockingStream,
    request: &Request,
    patience: Duration,
) -> io::Result<Response> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(LINE_LIMIT).read_until(b'\n', &mut answer)?;
    read_response(&answer)
}

/// Reads a response. It may come from another user's process and be printed on a terminal, so control characters other
/// than line feeds and tabs are escaped.
pub(super) fn read_response(answer: &[u8]) -> io::Result<Response> {
    let mut value: Value = serde_json::from_slice(answer).map_err(io::Error::other)?;
    make_printable(&mut value);
    serde_json::from_value(value).map_err(io::Error::other)
}

/// Makes all strings printable. The parser bounds the nesting of a value.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => log::clean_lines(text),
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(fields) => {
            let named = std::mem::take(fields).into_iter().map(|(mut name, mut value)| {
                log::clean_lines(&mut name);
                make_printable(&mut value);
                (name, value)
            });
            *fields = named.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the control sockets in a directory, sorted by name. A missing directory contains none.
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut sockets: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()))
        .map(|entry| entry.path())
        .filter(|path| !is_metrics_socket(path))
        .collect();
    sockets.sort();
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_request_is_answered_and_the_socket_is_the_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/server.sock");
        let mut server = Server::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let client = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || request(&path, &Request::Reload))
        };
        let (asked, answer) = server.next().await;
        assert_eq!(asked, Request::Reload);
        answer.send(Response::Done { count: 0 }).unwrap();
        assert_eq!(client.await.unwrap().unwrap(), Response::Done { count: 0 });
        assert_eq!(list(path.parent().unwrap()).unwrap(), std::slice::from_ref(&path));
        drop(server);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_not_a_request_is_told_so_and_an_endless_line_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _server = Server::open(&path).unwrap();
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(b"{\"do\":\"explode\"}\n").await.unwrap();
        let mut reader = tokio::io::BufReader::new(&mut stream);
        let mut line = String::new();
        reader.read_line(&mut line).await.unwrap();
        assert!(line.starts_with("{\"error\":{\"message\":\"not a request"), "{line}");
        let endless = vec![b'x'; REQUEST_LIMIT as usize + 1];
        let _ = stream.write_all(&endless).await;
        let mut rest = Vec::new();
        // A closed connection is an end of file, or a reset if there was unread data.
        assert!(matches!(stream.read_to_end(&mut rest).await, Ok(0) | Err(_)));
    }

    #[test]
    fn an_answer_cannot_write_to_the_terminal_what_it_likes() {
        let answer = concat!(
            r#"{"status":{"version":"1","role":"server\u001b[2J","instance":"a\n\tb","state":"\u009b2J\u202e","#,
            r#""pid":1,"started":1,"uptime_s":1,"endpoints":["\u0007"],"tun":null,"peers":[],"#,
            r#""drops":{"\u001b]0;x":1},"trains":{"sent":{"1":2},"received":{}},"offloads":{},"#,
            r#""certificate":null}}"#
        );
        let Response::Status(report) = read_response(answer.as_bytes()).unwrap() else {
            panic!("another answer");
        };
        assert_eq!((report.role.as_str(), report.instance.as_str()), ("server\\x1b[2J", "a\n\tb"));
        assert_eq!(
            (report.state.as_str(), report.endpoints[0].as_str()),
            ("\\u{9b}2J\\u{202e}", "\\x07")
        );
        assert_eq!(report.drops.into_iter().collect::<Vec<_>>(), [("\\x1b]0;x".to_owned(), 1)]);
        assert_eq!(report.trains.sent.into_iter().collect::<Vec<_>>(), [(1, 2)]);
        let deep = "[".repeat(100_000);
        assert!(read_response(deep.as_bytes()).is_err());
    }

    #[test]
    fn another_version_at_the_other_end_is_named_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = BlockingListener::bind(&path).unwrap();
        let answer = |line: &'static str| {
            let listener = listener.try_clone().unwrap();
            let other = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                BufReader::new(&stream).read_until(b'\n', &mut Vec::new()).unwrap();
                stream.write_all(line.as_bytes()).unwrap();
            });
            let response = request(&path, &Request::Reload);
            other.join().unwrap();
            response
        };
        let newer = answer("{\"of-tomorrow\":{}}\n").unwrap_err().to_string();
        let older = answer("{\"error\":{\"message\":\"not a request: unknown variant\"}}\n");
        let Ok(Response::Error { message: older }) = older else { panic!("{older:?}") };
        assert!(older.starts_with(NO_REQUEST));
        let remedy = format!("process {} does not run the version", std::process::id());
        for text in [newer, older] {
            assert!(text.contains(&remedy) && text.contains("restart it"), "{text}");
        }
        // It has ended in the middle of its answer.
        let ended = answer("{\"done\":").unwrap_err().to_string();
        assert!(ended.contains("no answer") && !ended.contains("version"), "{ended}");
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = Server::open(&path).unwrap();
        let refused = Server::open(&path).unwrap_err();
        let me = format!("another adit (process {}) is already running", std::process::id());
        assert!(refused.to_string().starts_with(&me), "{refused}");
        drop(live);
    }

    #[test]
    fn a_busy_metrics_socket_is_called_so() {
        let dir = tempfile::tempdir().unwrap();
        for (name, hint) in
            [("a.metrics", "another path for metrics"), ("a.sock", "another folder with --dir")]
        {
            let path = dir.path().join(name);
            let _live = bind(&path).unwrap();
            let refused = bind(&path).unwrap_err().to_string();
            assert_eq!(refused.contains("with the metrics socket"), name == "a.metrics");
            assert!(refused.ends_with(hint), "{refused}");
        }
    }
}
