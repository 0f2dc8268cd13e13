//! Requests and responses.

use std::io::{Read, Write};
use std::net::TcpStream;

use adit_linux::clock::boottime;
use adit_linux::poll::{Events, Interest};
use adit_testbed::failure::{Result, ensure};

use super::bulk::{passing, watch};
use super::run::{SharedTrial, sleep_until, together};
use super::window::{FlowResult, judge};
use super::{Edge, Measured, Route, Times, Window, sockets};
use crate::record::Latency;

/// Sends requests over one TCP connection for each route: a request of `size` bytes, a response of `size` bytes, and so
/// on, one outstanding at a time. This is a closed loop. A slow path receives fewer requests, so the times (from the
/// first byte of the request to the last of the response) show how long a response takes, not how long a client with a
/// fixed schedule would wait; [`super::udp_open_loop`] measures that. The `count` of the times is the number of
/// responses completed in the window; the flows' bytes are those of the responses.
///
/// # Errors
/// As [`super::tcp_bulk`].
pub fn requests(
    routes: &[Route<'_>],
    window: &Window,
    size: usize,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<(Measured, Latency)> {
    ensure(size > 0, || "a request needs at least 1 byte".to_owned())?;
    let pairs = sockets::connect(routes)?;
    let accounts: Vec<FlowResult> =
        routes.iter().map(|route| FlowResult::new(&route.name)).collect();
    let side = |pick: fn(&sockets::TcpPair) -> &TcpStream, turn: Turn| {
        let streams: Vec<&TcpStream> = pairs.iter().map(pick).collect();
        Side { streams, accounts: accounts.clone(), size, first: turn, times: Times::new() }
    };
    let asking = side(|pair| &pair.near, Turn::Speak(size));
    let answering = side(|pair| &pair.far, Turn::Listen(size));
    let (frame, mut asking, answering) =
        together(window, edge, |course| asking.run(course), |course| answering.run(course))?;
    for (account, other) in asking.accounts.iter_mut().zip(answering.accounts) {
        account.broken = account.broken.take().or(other.broken);
    }
    Ok((judge(&frame, &asking.accounts), asking.times.latency(0)))
}

/// The direction of the bytes that a connection waits for, and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Speak(usize),
    Listen(usize),
}

/// One end of all connections. Both ends send and receive in turn, and differ only in which one begins.
struct Side<'a> {
    streams: Vec<&'a TcpStream>,
    accounts: Vec<FlowResult>,
    size: usize,
    first: Turn,
    /// The times from the first byte sent to the end of the response, for responses completed in the window.
    times: Times,
}

/// The state of one connection.
struct ConnectionState {
    turn: Turn,
    /// The time when it began to send, until the response is complete.
    began: Option<u64>,
    interest: Interest,
}

impl Side<'_> {
    fn run(mut self, course: &SharedTrial) -> Result<Self> {
        let mut buffer = vec![0x5a; self.size];
        let begins = matches!(self.first, Turn::Speak(_));
        let interest = if begins { Interest::NONE } else { Interest::READ };
        let poller = watch(&self.streams, interest)?;
        let talk = |_: &&TcpStream| ConnectionState { turn: self.first, began: None, interest };
        let mut talks: Vec<ConnectionState> = self.streams.iter().map(talk).collect();
        let mut events = Events::new();
        if begins {
            sleep_until(course.frame.start);
        }
        // The end that begins has nothing to wait for.
        let mut ready: Vec<usize> = if begins { (0..talks.len()).collect() } else { Vec::new() };
        while !course.over(boottime()) {
            for index in ready.drain(..) {
                let both = self.streams.get(index).copied().zip(talks.get_mut(index));
                let Some((stream, talk)) = both else { continue };
                if let Err(error) = self.talk(index, stream, talk, &mut buffer, course) {
                    if let Some(account) = self.accounts.get_mut(index) {
                        account.broken = Some(error.to_string());
                    }
                    poller.remove(&stream)?;
                    continue;
                }
                let interest = match talk.turn {
                    Turn::Speak(_) => Interest::WRITE,
                    Turn::Listen(_) => Interest::READ,
                };
                if interest != talk.interest {
                    poller.modify(&stream, index as u64, interest)?;
                    talk.interest = interest;
                }
            }
            poller.wait(&mut events, Some(course.timeout(boottime())))?;
            let tokens = events.iter().map(|event| usize::try_from(event.token));
            ready.extend(tokens.flatten());
        }
        Ok(self)
    }

    /// Sends and receives until the connection's buffer is full or there is nothing to read.
    fn talk(
        &mut self,
        index: usize,
        mut stream: &TcpStream,
        talk: &mut ConnectionState,
        buffer: &mut [u8],
        course: &SharedTrial,
    ) -> std::io::Result<()> {
        let Some(account) = self.accounts.get_mut(index) else { return Ok(()) };
        loop {
            let (Turn::Speak(left) | Turn::Listen(left)) = talk.turn;
            let piece = buffer.get_mut(..left).unwrap_or_default();
            let speaking = matches!(talk.turn, Turn::Speak(_));
            if speaking {
                account.sent(*talk.began.get_or_insert_with(boottime));
            }
            let moved = if speaking { stream.write(piece) } else { stream.read(piece) };
            let moved = match moved {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(moved) => moved,
                Err(error) if passing(error.kind()) => return Ok(()),
                Err(error) => return Err(error),
            };
            let left = left - moved;
            talk.turn = match (speaking, left) {
                (true, 0) => Turn::Listen(self.size),
                (true, left) => Turn::Speak(left),
                (false, 0) => Turn::Speak(self.size),
                (false, left) => Turn::Listen(left),
            };
            if speaking {
                continue;
            }
            let now = boottime();
            let counts = account.arrived(&course.frame, now, moved as u64);
            if left == 0 {
                let began = talk.began.take();
                if let Some(began) = began.filter(|_| counts) {
                    self.times.record(now.saturating_sub(began));
                }
            }
            if course.over(now) {
                return Ok(());
            }
        }
    }
}
