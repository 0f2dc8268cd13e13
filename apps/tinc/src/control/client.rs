//! The commands' end of the control socket.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::Duration;

use adit_runtime::fault::Fault;
use rustix::process::{Pid, test_kill_process};

use super::{CONTROL, Kind, MAX_LINE};
use crate::console::reason;
use crate::net::Net;

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of rows that a list may have.
const MAX_ROWS: usize = 1 << 20;

/// The content of a pid file.
#[derive(Clone, PartialEq, Eq)]
pub struct PidFile {
    /// The daemon's process id.
    pub pid: i32,
    cookie: String,
}

// Written by hand so that the cookie never reaches a log.
impl fmt::Debug for PidFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PidFile({})", self.pid)
    }
}

impl PidFile {
    /// Reads `PID COOKIE HOST port PORT`.
    ///
    /// # Errors
    /// Fails if there is no such file, as when no daemon runs.
    pub fn read(net: &Net) -> Result<Self, Fault> {
        let path = net.pid_file.display();
        let text = std::fs::read_to_string(&net.pid_file).map_err(|error| {
            Fault::operator(format!("Could not open pid file {path}: {}", reason(&error)))
        })?;
        let mut words = text.split_ascii_whitespace();
        let pid = words.next().and_then(|word| word.parse().ok()).filter(|pid| *pid > 0);
        let cookie = words.next().filter(|cookie| cookie.len() <= MAX_LINE / 2);
        match (pid, cookie) {
            (Some(pid), Some(cookie)) => Ok(Self { pid, cookie: cookie.to_owned() }),
            _ => Err(Fault::operator(format!("Could not parse pid file {path}"))),
        }
    }

    /// Returns whether the daemon runs.
    pub fn is_alive(&self) -> bool {
        Pid::from_raw(self.pid)
            .is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
    }
}

/// A connection to a daemon.
pub struct Client {
    stream: BufReader<UnixStream>,
    /// The daemon's process id.
    pub pid: i32,
    /// The name of its node.
    pub name: String,
}

impl Client {
    /// Connects to the daemon of a net.
    ///
    /// # Errors
    /// Fails if no daemon runs, or if it refuses the connection.
    pub fn connect(net: &Net) -> Result<Self, Fault> {
        let file = PidFile::read(net)?;
        if !file.is_alive() {
            return Err(Fault::operator(format!(
                "Could not find tincd running at pid {}",
                file.pid
            )));
        }
        let path = net.socket();
        let shown = path.display();
        let stream = UnixStream::connect(&path).map_err(|error| {
            Fault::environment(format!("Cannot connect to UNIX socket {shown}: {}", reason(&error)))
        })?;
        let limited = stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        limited.map_err(|error| lost(&error))?;
        let mut client =
            Self { stream: BufReader::new(stream), pid: file.pid, name: String::new() };
        client.send(&format!("0 ^{} 0", file.cookie))?;
        let greeting = client.line()?;
        let mut words = greeting.split(' ');
        let (Some("0"), Some(name), Some(_)) = (words.next(), words.next(), words.next()) else {
            return Err(Fault::peer("Cannot read greeting from control socket"));
        };
        client.name = name.to_owned();
        let version = client.line()?;
        if !version.starts_with("4 0 ") {
            return Err(Fault::peer("Could not fully establish control socket connection"));
        }
        Ok(client)
    }

    fn send(&mut self, line: &str) -> Result<(), Fault> {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).map_err(|error| {
            Fault::peer(format!("Lost connection to tinc daemon: {}", reason(&error)))
        })
    }

    fn line(&mut self) -> Result<String, Fault> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(MAX_LINE as u64);
        limited.read_until(b'\n', &mut line).map_err(|error| lost(&error))?;
        if line.pop() != Some(b'\n') {
            return Err(Fault::peer("Lost connection to tinc daemon"));
        }
        String::from_utf8(line)
            .map_err(|_| Fault::peer("The tinc daemon sent a line that is not text"))
    }

    /// Reads an answer to a request of this type. Returns the words after the type.
    fn answer(&mut self, kind: Kind) -> Result<String, Fault> {
        let line = self.line()?;
        let mut words = line.splitn(3, ' ');
        let number = kind.number().to_string();
        match (words.next(), words.next()) {
            (Some(CONTROL), Some(word)) if word == number => {
                Ok(words.next().unwrap_or_default().to_owned())
            }
            (Some(CONTROL), Some("-1")) => {
                Err(Fault::peer("The tinc daemon does not support this request"))
            }
            _ => Err(Fault::peer("Invalid reply from tinc daemon")),
        }
    }

    /// Sends a request, and returns the code in the answer.
    ///
    /// # Errors
    /// Fails if the daemon does not answer.
    pub fn call(&mut self, kind: Kind, argument: &str) -> Result<i32, Fault> {
        self.send(format!("{CONTROL} {} {argument}", kind.number()).trim_end())?;
        let code = self.answer(kind)?;
        code.trim().parse().map_err(|_| Fault::peer("Invalid reply from tinc daemon"))
    }

    /// Requests a list.
    ///
    /// # Errors
    /// Fails if the daemon does not answer, or if a row is not one.
    pub fn list<T>(&mut self, kind: Kind) -> Result<Vec<T>, Fault>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        self.send(&format!("{CONTROL} {}", kind.number()))?;
        let mut rows = Vec::new();
        loop {
            let row = self.answer(kind)?;
            if row.is_empty() {
                return Ok(rows);
            }
            if rows.len() >= MAX_ROWS {
                return Err(Fault::peer(format!("The tinc daemon sent more than {MAX_ROWS} rows")));
            }
            rows.push(row.parse().map_err(|error| Fault::peer(format!("{error}")))?);
        }
    }

    /// Requests a stream of packets or log lines, and passes each to `item` until that returns `false` or the daemon ends.
    ///
    /// # Errors
    /// Fails if the daemon sends something else.
    pub fn follow(
        &mut self,
        kind: Kind,
        argument: &str,
        mut item: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Fault> {
        self.send(format!("{CONTROL} {} {argument}", kind.number()).trim_end())?;
        // Nothing may happen for a long time.
        self.stream.get_ref().set_read_timeout(None).map_err(|error| lost(&error))?;
        loop {
            if self.stream.fill_buf().map_err(|error| lost(&error))?.is_empty() {
                return Ok(());
            }
            let length: u16 = self
                .answer(kind)?
                .trim()
                .parse()
                .map_err(|_| Fault::peer("Invalid reply from tinc daemon"))?;
            let mut bytes = vec![0; usize::from(length)];
            self.stream.read_exact(&mut bytes).map_err(|error| lost(&error))?;
            if !item(&bytes) {
                return Ok(());
            }
        }
    }

    /// Waits until the daemon has ended its side of the connection, as it does when it stops.
    pub fn wait_for_end(mut self) {
        let _ = self.stream.get_ref().shutdown(Shutdown::Write);
        let _ = std::io::copy(&mut self.stream, &mut std::io::sink());
    }
}

fn lost(error: &std::io::Error) -> Fault {
    Fault::peer(format!("Lost connection to tinc daemon: {}", reason(error)))
}

/// Makes a running daemon read its files again.
///
/// # Errors
/// Fails if no daemon runs, or if it refuses.
pub fn reload(net: &Net) -> Result<(), Fault> {
    done(Client::connect(net)?.call(Kind::Reload, "")?, "Could not reload configuration.")
}

/// Checks the code of an answer.
///
/// # Errors
/// Fails with `problem` if the code is not 0.
pub fn done(code: i32, problem: &str) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault::operator(problem)) }
}
