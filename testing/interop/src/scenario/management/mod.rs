//! The management interface: the same conversation with openvpn and with adit, and clients of it that misbehave.

mod client;
mod client_auth;
mod controller;
mod keys;
mod server;
mod sockets;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::case::SETUP_LIMIT;
use crate::failure::{Context, Result, ensure};
use crate::wait::{ScaledInstant, until};

pub(super) use client::{challenge, client, query_remote, up_down};
pub(super) use client_auth::{client_auth, renegotiation};
pub(super) use controller::{over_tcp, over_udp};
pub(super) use keys::{external_key, key_password};
pub(super) use server::{client_that_does_not_read, many_commands, server};
pub(super) use sockets::{password, program_that_listens};

const SOON: Duration = Duration::from_secs(20);

/// A management client.
pub(super) struct Talk {
    stream: UnixStream,
    bytes: Vec<u8>,
    lines: VecDeque<String>,
    /// All lines in order.
    transcript: Vec<String>,
}

impl Talk {
    /// Connects as soon as the program listens.
    pub(super) fn connect(path: &Path) -> Result<Self> {
        let mut stream = None;
        until("the management interface listens", SETUP_LIMIT, || {
            stream = UnixStream::connect(path).ok();
            Ok(stream.is_some())
        })?;
        let stream = stream.context("no management interface")?;
        stream.set_read_timeout(Some(Duration::from_millis(50)))?;
        Ok(Self { stream, bytes: Vec::new(), lines: VecDeque::new(), transcript: Vec::new() })
    }

    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        self.transcript.push(format!("< {line}"));
        Ok(writeln!(self.stream, "{line}")?)
    }

    /// Reads what has arrived.
    fn read(&mut self) -> Result<()> {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err("the management interface closed the connection".into()),
            Ok(count) => self.bytes.extend_from_slice(&bytes[..count]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e.into()),
        }
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.transcript.push(line.clone());
            self.lines.push_back(line);
        }
        Ok(())
    }

    /// Waits for a line that begins with `start`, and returns it. Earlier lines are skipped.
    pub(super) fn wait(&mut self, start: &str) -> Result<String> {
        self.wait_any(&[start])
    }

    /// Waits for a line that begins with one of these texts, and returns it. Earlier lines are skipped.
    fn wait_any(&mut self, starts: &[&str]) -> Result<String> {
        let limit = ScaledInstant::now() + SOON;
        loop {
            while let Some(line) = self.lines.pop_front() {
                if starts.iter().any(|start| line.starts_with(start)) {
                    return Ok(line);
                }
            }
            ensure(ScaledInstant::now() < limit, || {
                format!("{} was expected:\n{}", starts.join(" or "), self.transcript.join("\n"))
            })?;
            self.read()?;
        }
    }

    /// Waits for the state with this name.
    pub(super) fn wait_state(&mut self, name: &str) -> Result<String> {
        loop {
            let line = self.wait(">STATE:")?;
            if line.split(',').nth(1) == Some(name) {
                return Ok(line);
            }
        }
    }

    /// Sends a command and returns its reply: one line, or lines up to END.
    pub(super) fn ask(&mut self, command: &str) -> Result<Vec<String>> {
        self.lines.clear();
        self.send(command)?;
        let mut reply = Vec::new();
        loop {
            let limit = ScaledInstant::now() + SOON;
            while self.lines.is_empty() {
                ensure(ScaledInstant::now() < limit, || {
                    format!("no reply to {command}:\n{}", self.transcript.join("\n"))
                })?;
                self.read()?;
            }
            let Some(line) = self.lines.pop_front() else { continue };
            // Notifications come at any time.
            if line.starts_with('>') {
                continue;
            }
            let first = reply.is_empty();
            let last = line == "END"
                || (first && (line.starts_with("SUCCESS:") || line.starts_with("ERROR:")));
            reply.push(line);
            if last {
                return Ok(reply);
            }
        }
    }
}

/// What a conversation showed, with everything that differs from run to run left out.
pub(super) type Shown = Vec<String>;

/// Replaces numbers that are times, counters or ports.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut digits = String::new();
    for c in line.chars().chain([' ']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        // Shorter numbers are parts of names and addresses, and flags.
        if digits.len() >= 4 && digits != "1194" {
            text.push('#');
        } else {
            text.push_str(&digits);
        }
        digits.clear();
        text.push(c);
    }
    text.trim_end().to_owned()
}

/// Replaces all numbers of a line after its name.
fn counters(line: &str) -> String {
    let numbers = |c: char| c.is_ascii_digit();
    line.split(numbers).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
}

pub(super) fn lines(command: &str, reply: Vec<String>) -> Shown {
    let shown = reply.iter().map(|line| plain(line));
    std::iter::once(format!("< {command}")).chain(shown).collect()
}

/// Compares what openvpn and adit showed.
pub(super) fn same(of_openvpn: &Shown, of_adit: &Shown) -> Result<()> {
    ensure(of_openvpn == of_adit, || {
        let rows = of_openvpn.len().max(of_adit.len());
        let line = |shown: &Shown, at: usize| shown.get(at).cloned().unwrap_or_default();
        let differs = |at: &usize| line(of_openvpn, *at) != line(of_adit, *at);
        let rows: Vec<String> = (0..rows)
            .filter(differs)
            .map(|at| format!("openvpn: {}\nadit:    {}", line(of_openvpn, at), line(of_adit, at)))
            .collect();
        rows.join("\n")
    })
}

/// Commands whose replies depend on nothing.
const PLAIN: [&str; 24] = [
    "nonsense",
    "bytecount",
    "bytecount 0",
    "log",
    "log maybe",
    "state maybe",
    "echo off",
    "hold",
    "hold maybe",
    "hold release",
    "signal SIGKILL",
    "signal",
    "verb 4",
    "verb",
    "verb 99",
    "mute 40",
    "mute",
    "mute 0",
    "net",
    "username Auth x",
    "password Auth x",
    "needok a ok",
    "needstr a b",
    "env-filter 2",
];

/// Returns the names of the states in order.
fn states(talk: &Talk) -> Vec<String> {
    let states = talk.transcript.iter().filter(|line| line.starts_with(">STATE:"));
    states.map(|line| line.split(',').nth(1).unwrap_or_default().to_owned()).collect()
}

/// Returns the numbers of the connected clients.
fn clients(talk: &mut Talk) -> Result<Vec<String>> {
    let status = talk.ask("status 2")?;
    let rows = status.iter().filter_map(|line| line.strip_prefix("CLIENT_LIST,"));
    Ok(rows.filter_map(|row| Some(row.split(',').nth(9)?.to_owned())).collect())
}
