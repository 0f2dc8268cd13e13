//! `adit filter show`, `reload`, `flush`, `element` and `capture`: each sends requests to a running process.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_filter::pcapng::{Captured, Link, Writer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::read;
use crate::clock::unix_time_nanos;
use crate::control::{self, CaptureBatch, FilterReport, Request, Response};
use crate::fault::Fault;

/// How often a capture requests packets.
const EVERY: Duration = Duration::from_millis(100);

/// Queries the filter's state. `name` is that of a control socket. Without one, there must be exactly one process with
/// a filter in the directory.
///
/// # Errors
/// Fails if there is no such process, or there are several.
pub fn show(run: &Path, name: Option<&str>, flows: bool) -> Result<FilterReport, Fault> {
    find(run, name, Request::FilterShow { flows, brief: false }).map(|(_, report)| report)
}

/// Replaces the rules of a running process with those of `file`, or of its current rule file. This process reads the
/// rules and sends them.
///
/// # Errors
/// Returns the errors in the rules, with file, line and column. In this case the old rules stay in force.
pub fn reload(run: &Path, name: Option<&str>, file: Option<&Path>) -> Result<FilterReport, Fault> {
    let (socket, report) = find(run, name, BRIEF)?;
    let path = match file {
        Some(file) => std::path::absolute(file)
            .map_err(|e| Fault::operator(format!("{}: {e}", file.display())))?,
        None => PathBuf::from(&report.file),
    };
    let (files, ruleset) = read(&path)?;
    super::compile(&files.name, ruleset)?;
    match control::request(&socket, &Request::FilterReload { files: Some(files) })? {
        Response::Done { .. } => find(run, name, BRIEF).map(|(_, report)| report),
        Response::Error { message } => Err(Fault::operator(message)),
        _ => Err(another()),
    }
}

/// Ends the connections of a client, of an address or network, or all connections in a running process. Returns the
/// name of the process and the number of connections.
///
/// # Errors
/// Fails if there is no such process, no such client, or no such address.
pub fn flush(
    run: &Path,
    name: Option<&str>,
    client: Option<&str>,
    address: Option<&str>,
) -> Result<(String, usize), Fault> {
    let (client, address) = (client.map(str::to_owned), address.map(str::to_owned));
    ask(run, name, &Request::FilterFlush { client, address })
}

/// Adds elements to a set of a running process, or deletes them, either all or none. Returns the name of the process
/// and the number of changed elements.
///
/// # Errors
/// Fails if there is no such process or set, or an element is wrong.
pub fn element(
    run: &Path,
    name: Option<&str>,
    delete: bool,
    text: &str,
) -> Result<(String, usize), Fault> {
    ask(run, name, &Request::FilterElement { delete, text: text.to_owned() })
}

/// Sends a request that is answered with a number to a running process. Returns the name of the process and the number.
fn ask(run: &Path, name: Option<&str>, request: &Request) -> Result<(String, usize), Fault> {
    let (socket, report) = find(run, name, BRIEF)?;
    match control::request(&socket, request)? {
        Response::Done { count } => Ok((report.instance, count)),
        Response::Error { message } => Err(Fault::operator(message)),
        _ => Err(another()),
    }
}

/// Writes the packets of `log group` rules to `out` as pcapng, until Ctrl-C, SIGTERM, or until the reader closes `out`.
/// If `group` is given, writes only its packets. Returns the numbers of written and lost packets.
///
/// # Errors
/// Fails if there is no such process, it ended, or writing to `out` failed.
pub fn capture(
    run: &Path,
    name: Option<&str>,
    group: Option<u16>,
    out: &mut dyn Write,
) -> Result<(u64, u64), Fault> {
    let (socket, _) = find(run, name, BRIEF)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start: {error}")))?;
    let mut capture = Running { socket, group, id: None, written: 0, lost: 0, writer: None };
    runtime.block_on(capture.run(out))?;
    Ok((capture.written, capture.lost))
}

struct Running {
    socket: PathBuf,
    group: Option<u16>,
    id: Option<u64>,
    written: u64,
    lost: u64,
    writer: Option<Writer>,
}

impl Running {
    async fn run(&mut self, out: &mut dyn Write) -> Result<(), Fault> {
        use tokio::signal::unix::{SignalKind, signal};
        let broken = |e: io::Error| Fault::environment(format!("cannot wait for signals: {e}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(broken)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
        let mut bytes = Vec::new();
        self.writer = Some(Writer::new(&format!("adit {}", env!("CARGO_PKG_VERSION")), &mut bytes));
        self.ask(false, &mut bytes)?;
        // Write the header at once, so that a reader of the pipe sees that the capture runs.
        let mut open = put(out, &mut bytes)?;
        let mut ticks = tokio::time::interval(EVERY);
        while open {
            tokio::select! {
                biased;
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                _ = ticks.tick() => {
                    self.ask(false, &mut bytes)?;
                    open = put(out, &mut bytes)?;
                }
            }
        }
        self.ask(true, &mut bytes)?;
        if let (Some(writer), true) = (&mut self.writer, self.lost > 0) {
            writer.lost(unix_time_nanos(), self.lost, &mut bytes);
        }
        if open {
            put(out, &mut bytes)?;
        }
        Ok(())
    }

    fn ask(&mut self, end: bool, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        let request = Request::FilterCapture { id: self.id, end };
        match control::request(&self.socket, &request)? {
            Response::Capture(batch) => {
                self.take(&batch, bytes);
                Ok(())
            }
            Response::Error { message } => Err(Fault::environment(message)),
            _ => Err(another()),
        }
    }

    fn take(&mut self, batch: &CaptureBatch, bytes: &mut Vec<u8>) {
        self.id = Some(batch.id);
        self.lost = batch.lost;
        let Some(writer) = &mut self.writer else { return };
        let wanted = |group| self.group.is_none_or(|wanted| wanted == group);
        for packet in batch.packets.iter().filter(|packet| wanted(packet.group)) {
            let prefix = packet.prefix.trim_end();
            let space = if prefix.is_empty() { "" } else { " " };
            let comment = format!("{prefix}{space}(rule {}, to {})", packet.rule, packet.oif);
            // Data that is not base64 did not come from adit. Write an empty packet instead.
            let data = STANDARD.decode(&packet.bytes).unwrap_or_default();
            let captured = Captured {
                time: packet.time,
                interface: &packet.iif,
                link: if packet.ethernet { Link::Ethernet } else { Link::Raw },
                bytes: &data,
                length: packet.length,
                comment: &comment,
            };
            writer.packet(&captured, bytes);
            self.written = self.written.saturating_add(1);
        }
    }
}

/// Writes and clears `bytes`. Returns `false` if the reader is gone.
fn put(out: &mut dyn Write, bytes: &mut Vec<u8>) -> Result<bool, Fault> {
    let written = out.write_all(bytes).and_then(|()| out.flush());
    bytes.clear();
    match written {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Fault::environment(format!("cannot write the capture: {e}"))),
    }
}

/// The request for only the identity of a filter.
const BRIEF: Request = Request::FilterShow { flows: false, brief: true };

fn find(
    run: &Path,
    name: Option<&str>,
    request: Request,
) -> Result<(PathBuf, FilterReport), Fault> {
    if let Some(name) = name {
        let socket = run.join(format!("{name}.sock"));
        return match control::request(&socket, &request)? {
            Response::Filter(report) => Ok((socket, *report)),
            Response::Error { message } => Err(Fault::operator(format!("{name}: {message}"))),
            _ => Err(another()),
        };
    }
    let sockets = control::list(run).map_err(|error| {
        Fault::environment(format!("cannot read {}: {error}; run as root", run.display()))
    })?;
    let mut found = Vec::new();
    for socket in sockets {
        // Skip the socket of a killed process, or of one without a filter.
        if let Ok(Response::Filter(report)) = control::request(&socket, &request) {
            found.push((socket, *report));
        }
    }
    match found.len() {
        0 => Err(Fault::environment(format!(
            "nothing with a filter runs here ({}): a server has one with filter FILE in its \
             configuration, a bridge with --rules FILE",
            run.display()
        ))),
        1 => Ok(found.remove(0)),
        _ => {
            let names: Vec<String> = found.iter().map(|(socket, _)| stem(socket)).collect();
            Err(Fault::operator(format!("there are several; choose one of: {}", names.join(", "))))
        }
    }
}

fn stem(socket: &Path) -> String {
    socket.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn another() -> Fault {
    Fault::ours("the control socket's answer is of another kind")
}
