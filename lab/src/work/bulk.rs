//! Bulk transfer over TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use adit_linux::clock::boottime;
use adit_linux::poll::{Events, Interest, Poller};
use adit_testbed::failure::Result;

use super::run::{SharedTrial, sleep_until, together};
use super::window::{FlowResult, judge};
use super::{Edge, Measured, Route, Window, sockets};

/// The size of a write and of the read buffer.
const PIECE: usize = 128 << 10;
/// The size of each flow's first write: short, so the last of a hundred flows starts soon after the first.
const FIRST: usize = 1 << 10;
/// The number of pieces that a flow may move in a row while the others are idle.
const ALONE: usize = 8;

/// Sends as much as possible over one TCP connection for each route, all at once, and counts the bytes that arrive in
/// the window. A flow that breaks or carries nothing makes the trial invalid.
///
/// # Errors
/// A connection is not established within 10 s, in which case the error names the flow, or `edge` fails.
pub fn tcp_bulk(
    routes: &[Route<'_>],
    window: &Window,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<Measured> {
    // The pairs outlive both threads, because an end that closes early would break the other.
    let pairs = sockets::connect(routes)?;
    let senders: Vec<&TcpStream> = pairs.iter().map(|pair| &pair.near).collect();
    let receivers: Vec<&TcpStream> = pairs.iter().map(|pair| &pair.far).collect();
    let accounts: Vec<FlowResult> =
        routes.iter().map(|route| FlowResult::new(&route.name)).collect();
    let sent = accounts.clone();
    let (frame, sent, mut received) = together(
        window,
        edge,
        |course| send(&senders, sent, course),
        |course| receive(&receivers, accounts, course),
    )?;
    for (account, sent) in received.iter_mut().zip(sent) {
        account.started = sent.started;
        account.broken = account.broken.take().or(sent.broken);
    }
    Ok(judge(&frame, &received))
}

/// Writes to every stream with buffer space until the window is over.
fn send(
    streams: &[&TcpStream],
    mut accounts: Vec<FlowResult>,
    course: &SharedTrial,
) -> Result<Vec<FlowResult>> {
    let piece = vec![0x5a; PIECE];
    let poller = watch(streams, Interest::WRITE)?;
    let mut events = Events::new();
    sleep_until(course.frame.start);
    for (mut stream, account) in streams.iter().copied().zip(&mut accounts) {
        // A connection that broke before the start returns the error again in the loop below.
        if stream.write(piece.get(..FIRST).unwrap_or(&piece)).is_ok() {
            account.sent(boottime());
        }
    }
    let in_a_row = if streams.len() == 1 { ALONE } else { 1 };
    loop {
        let now = boottime();
        if course.over(now) {
            return Ok(accounts);
        }
        poller.wait(&mut events, Some(course.timeout(now)))?;
        for event in events.iter() {
            let index = usize::try_from(event.token).unwrap_or(usize::MAX);
            let Some((stream, account)) = streams.get(index).zip(accounts.get_mut(index)) else {
                continue;
            };
            for _ in 0..in_a_row {
                match (&mut &**stream).write(&piece) {
                    Ok(length) => {
                        if account.started.is_none() {
                            account.sent(boottime());
                        }
                        if length < piece.len() {
                            break;
                        }
                    }
                    Err(error) if passing(error.kind()) => break,
                    Err(error) => {
                        account.broken = Some(error.to_string());
                        poller.remove(stream)?;
                        break;
                    }
                }
            }
        }
    }
}

/// Reads from all streams until the window is over.
fn receive(
    streams: &[&TcpStream],
    mut accounts: Vec<FlowResult>,
    course: &SharedTrial,
) -> Result<Vec<FlowResult>> {
    let mut room = vec![0; PIECE];
    let poller = watch(streams, Interest::READ)?;
    let mut events = Events::new();
    loop {
        let now = boottime();
        if course.over(now) {
            return Ok(accounts);
        }
        poller.wait(&mut events, Some(course.timeout(now)))?;
        for event in events.iter() {
            let index = usize::try_from(event.token).unwrap_or(usize::MAX);
            let Some((stream, account)) = streams.get(index).zip(accounts.get_mut(index)) else {
                continue;
            };
            match (&mut &**stream).read(&mut room) {
                Ok(0) => account.broken = Some("the connection was closed".into()),
                Ok(length) => {
                    account.arrived(&course.frame, boottime(), length as u64);
                }
                Err(error) if passing(error.kind()) => {}
                Err(error) => account.broken = Some(error.to_string()),
            }
            if account.broken.is_some() {
                poller.remove(stream)?;
            }
        }
    }
}

/// Returns an epoll set of all streams, by their index.
pub(super) fn watch(streams: &[&TcpStream], interest: Interest) -> Result<Poller> {
    let poller = Poller::new()?;
    for (token, stream) in (0..).zip(streams) {
        poller.add(stream, token, interest)?;
    }
    Ok(poller)
}

/// Returns whether the call can be repeated after the error.
pub(super) fn passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
