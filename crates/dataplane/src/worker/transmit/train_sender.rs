//! Sends trains of sealed packets through a socket, and falls back to single datagrams.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use adit_engine::Link;
use adit_linux::udp::{MAX_SEGMENTS, SendScratch, Train, UdpSocket};

use super::EIO;
use crate::egress::{Arena, TrainSpan};
use crate::splice::{Spliced, joinable};
use crate::stats::{Downgrade, DropReason, Stats};

/// The maximum number of trains per `sendmmsg`.
pub(super) const TRAINS: usize = 64;

/// Linux errno values, the same on every architecture we build for.
const EINVAL: i32 = 22;
const EMSGSIZE: i32 = 90;

/// Sends trains to one address.
pub(super) struct TrainSender<'o> {
    socket: &'o UdpSocket,
    scratch: &'o mut SendScratch,
    /// A train without packets, with the addresses of all of them.
    empty: Train<'static>,
}

impl<'o> TrainSender<'o> {
    pub(super) fn new(socket: &'o UdpSocket, scratch: &'o mut SendScratch, link: Link) -> Self {
        let (to, from) = (link.remote(), link.local());
        let empty = Train { to, from, segment: 0, tos: None, payload: &[] };
        Self { socket, scratch, empty }
    }

    /// Gives all trains this type of service; `None` for the socket's own.
    pub(super) fn with_tos(mut self, tos: Option<u8>) -> Self {
        self.empty.tos = tos;
        self
    }

    /// Sends at most [`TRAINS`] trains; returns how many were sent, and the error of the next.
    pub(super) fn trains(
        &mut self,
        arena: &Arena,
        spans: &[TrainSpan],
    ) -> (usize, Option<io::Error>) {
        let mut trains: [Train<'_>; TRAINS] = [self.empty; TRAINS];
        for (train, span) in trains.iter_mut().zip(spans) {
            let segment = u16::try_from(span.segment).unwrap_or(0);
            *train = Train { segment, payload: arena.bytes(span), ..self.empty };
        }
        self.send_all(trains.get(..spans.len().min(TRAINS)).unwrap_or(&[]))
    }

    /// Sends trains of sealed packets, and counts those that cannot be sent. Packets that arrived one by one are copied to `joined` and
    /// leave as one train: sending a train costs little more than sending one packet.
    pub(super) fn splice(
        &mut self,
        stats: &Stats,
        mut spliced: &[Spliced<'_>],
        joined: &mut Vec<u8>,
    ) {
        while !spliced.is_empty() {
            let gso = stats.gates.udp_gso.load(Relaxed);
            let pieces = if gso { joinable(spliced) } else { 1 };
            let apart = |at: &usize| !gso || joinable(spliced.get(*at..).unwrap_or(&[])) < 2;
            let count = match pieces {
                1 => 1 + (1..spliced.len().min(TRAINS)).take_while(apart).count(),
                pieces => pieces,
            };
            let (now, later) = spliced.split_at_checked(count).unwrap_or((spliced, &[]));
            if pieces < 2 || !self.splice_joined(stats, now, joined) {
                self.splice_apart(stats, now);
            }
            spliced = later;
        }
    }

    /// Sends trains as one. Returns false if that is not possible: their packets may need to be fragmented.
    fn splice_joined(
        &mut self,
        stats: &Stats,
        pieces: &[Spliced<'_>],
        joined: &mut Vec<u8>,
    ) -> bool {
        joined.clear();
        pieces.iter().for_each(|one| joined.extend_from_slice(one.packets));
        let count = pieces.iter().map(Spliced::count).sum();
        let segment = pieces.first().and_then(|one| u16::try_from(one.segment).ok()).unwrap_or(0);
        match self.send_all(&[Train { segment, payload: joined, ..self.empty }]) {
            (_, None) => stats.own().spliced.record(count),
            (_, Some(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                stats.drop_many(DropReason::SocketFull, count);
            }
            _ => return false,
        }
        true
    }

    /// Sends trains, at most [`TRAINS`], as they arrived.
    fn splice_apart(&mut self, stats: &Stats, mut spliced: &[Spliced<'_>]) {
        while let Some((first, others)) = spliced.split_first() {
            let gso = stats.gates.udp_gso.load(Relaxed);
            let mut trains: [Train<'_>; TRAINS] = [self.empty; TRAINS];
            let mut together = 0;
            let whole = spliced.iter().take_while(|train| gso || train.count() == 1);
            for (train, one) in trains.iter_mut().zip(whole) {
                let segment = u16::try_from(one.segment).unwrap_or(0);
                *train = Train { segment, payload: one.packets, ..self.empty };
                together += 1;
            }
            let (sent, failure) = self.send_all(trains.get(..together).unwrap_or(&[]));
            spliced.iter().take(sent).for_each(|train| stats.own().spliced.record(train.count()));
            if sent > 0 {
                spliced = spliced.get(sent..).unwrap_or(&[]);
                continue;
            }
            spliced = others;
            match failure {
                Some(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stats.drop_many(DropReason::SocketFull, first.count());
                }
                Some(error) if error.raw_os_error() == Some(EMSGSIZE) => {
                    // The last packet of a train may be shorter than the others, and fit.
                    let tail = first.packets.chunks_exact(first.segment.max(1)).remainder();
                    let long = first.count().saturating_sub(usize::from(!tail.is_empty()));
                    // Count them first, because the receiver of the last packet may read the counter at once.
                    stats.drop_many(DropReason::RelayTooLong, long);
                    self.splice_singly(stats, tail, tail.len(), DropReason::RelayTooLong);
                }
                Some(_) if first.count() == 1 => stats.drop(DropReason::SendFailed),
                failure => {
                    let (packets, segment) = (first.packets, first.segment);
                    let sent = self.splice_singly(stats, packets, segment, DropReason::SendFailed);
                    let device = failure.is_some_and(|error| error.raw_os_error() == Some(EIO));
                    if device && sent > 0 {
                        stats.gates.downgrade(Downgrade::GsoDevice);
                    }
                }
            }
        }
    }

    /// Sends spliced datagrams one by one, and returns how many were sent. The others are counted under `reason`, unless the socket is full.
    fn splice_singly(
        &mut self,
        stats: &Stats,
        bytes: &[u8],
        segment: usize,
        reason: DropReason,
    ) -> usize {
        let (sent, full) = self.singles(bytes, segment);
        (0..sent).for_each(|_| stats.own().spliced.record(1));
        let lost = bytes.len().div_ceil(segment.max(1)).saturating_sub(sent);
        stats.drop_many(if full { DropReason::SocketFull } else { reason }, lost);
        sent
    }

    /// Sends the datagrams of one train one by one; returns how many were sent, and whether the socket was full.
    pub(super) fn singles(&mut self, bytes: &[u8], segment: usize) -> (usize, bool) {
        let mut trains: [Train<'_>; MAX_SEGMENTS] = [self.empty; MAX_SEGMENTS];
        let mut count = 0;
        for (train, payload) in trains.iter_mut().zip(bytes.chunks(segment.max(1))) {
            *train = Train { payload, ..self.empty };
            count += 1;
        }
        let (sent, failure) = self.send_all(trains.get(..count).unwrap_or(&[]));
        (sent, failure.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock))
    }

    fn send_all(&mut self, trains: &[Train<'_>]) -> (usize, Option<io::Error>) {
        if trains.is_empty() {
            return (0, None);
        }
        match self.socket.send_trains(trains, self.scratch) {
            Ok(()) => (trains.len(), None),
            Err(stop) => (stop.sent, Some(stop.error)),
        }
    }
}

/// The reason why a train was refused.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum SendFailure {
    /// The socket or the interface is full.
    Full,
    /// Its datagrams exceed the path MTU: send these, and any of at least their length, singly.
    Oversize,
    /// The device does not support GSO.
    Device,
    /// One of the previous two.
    Invalid,
    /// The destination cannot be reached.
    Fatal,
}

impl SendFailure {
    pub(super) fn of(error: &io::Error, datagrams: usize) -> Self {
        if error.kind() == io::ErrorKind::WouldBlock {
            return Self::Full;
        }
        match error.raw_os_error() {
            _ if datagrams < 2 => Self::Fatal,
            Some(EMSGSIZE) => Self::Oversize,
            Some(EIO) => Self::Device,
            Some(EINVAL) => Self::Invalid,
            _ => Self::Fatal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_cannot_do_gso_ends_it() {
        let of =
            |errno, datagrams| SendFailure::of(&io::Error::from_raw_os_error(errno), datagrams);
        assert_eq!(of(EMSGSIZE, 40), SendFailure::Oversize);
        assert_eq!(of(EIO, 40), SendFailure::Device);
        assert_eq!(of(EINVAL, 40), SendFailure::Invalid);
        for errno in [EMSGSIZE, EIO, EINVAL] {
            assert_eq!(of(errno, 1), SendFailure::Fatal, "a single datagram has no other way");
        }
        let (eagain, enetunreach, enobufs) = (11, 101, 105);
        assert_eq!(of(eagain, 1), SendFailure::Full);
        assert_eq!(
            of(enobufs, 1),
            SendFailure::Fatal,
            "dropped: waiting for the socket would not help"
        );
        assert_eq!(of(enetunreach, 40), SendFailure::Fatal);
    }
}
