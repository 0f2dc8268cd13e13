//! From streams to the TUN device, and from the device and other peers to streams.

use std::io;
use std::mem;
use std::sync::{Arc, PoisonError};

use adit_engine::command::PeerSpec;
use adit_linux::poll::Event;

use super::Worker;
use super::transmit::{State, Transmitter};
use crate::egress::Arena;
use crate::format::Format;
use crate::key::Key;
use crate::peer::{MAX_PENDING_MESSAGES, Peer, Tx};
use crate::shared::{Shared, seal_message};
use crate::splice::Spliced;
use crate::stats::DropReason;
pub(super) use crate::stream::TOKEN;
use crate::stream::frames::LENGTH;
use crate::stream::{DrainResult, RESERVE, Stream, StreamEnd};
use crate::upcall::MAX_CONTROL;

/// The maximum number of bytes received at once: as many as fit a core's L2 cache together with the results. There is
/// one buffer per worker, however many streams it serves.
const BUFFER: usize = 256 << 10;
/// The maximum number of bytes sealed before they are sent: more would not be faster, but would add delay when the
/// socket is full.
const BURST: usize = 128 << 10;
/// The size that an ordinary super-packet adds to a burst.
const SUPER_PACKET: usize = 72 << 10;

/// The way in which the packets of one burst are sent.
pub(super) enum TxPath {
    Datagrams,
    Stream(Arc<Stream>),
    /// The stream has ended.
    Gone,
}

impl TxPath {
    #[inline]
    pub(super) fn of<F: Format>(shared: &Shared<F>, spec: &PeerSpec<F::Types>) -> Self {
        if !spec.link.is_stream() {
            return Self::Datagrams;
        }
        match shared.tables.streams.of(&spec.link) {
            Some(stream) => Self::Stream(stream),
            None => Self::Gone,
        }
    }

    /// Prepares a key for the packets sealed next.
    #[inline]
    pub(super) fn begin<F: Format>(&self, key: Option<&Key<F>>, tx: &mut Tx<F>) {
        if let (Self::Stream(stream), Some(key)) = (self, key) {
            key.begin_stream(tx, stream.id);
        }
    }

    /// Returns the reason why a packet must not be sealed: on a stream, a packet that has an id must be sent. A client
    /// stops reading the TUN device instead.
    #[inline]
    pub(super) fn refusal(&self, client: bool, len: usize) -> Option<DropReason> {
        match self {
            Self::Datagrams => None,
            Self::Stream(stream) if client || stream.has_room(len) => None,
            Self::Stream(_) => Some(DropReason::StreamFull),
            Self::Gone => Some(DropReason::NoSocket),
        }
    }

    /// Returns whether the sealed packets should be sent before more are sealed.
    #[inline]
    pub(super) fn is_due(&self, arena: &Arena) -> bool {
        matches!(self, Self::Stream(_)) && arena.len().saturating_add(SUPER_PACKET) > BURST
    }
}

impl<F: Format> Transmitter<F> {
    /// Returns whether a client's stream still has queued packets.
    pub(super) fn waits_for_stream(&mut self) -> bool {
        let State::Full(stream) = &self.state else { return false };
        if stream.is_full() {
            return true;
        }
        self.state = State::Idle;
        false
    }

    /// Sends the sealed packets. Packets that the socket does not accept are queued in the stream. The queue stays
    /// within its bounds, because packets were sealed only while it had room.
    pub(super) fn flush_stream(&mut self, peer: &Peer<F>, stream: &Arc<Stream>) {
        let Self { shared, arena, state, .. } = self;
        shared.send_sealed(peer, stream, arena, shared.client);
        // While a super-packet is parked, the device is not read anyway.
        if shared.client && stream.is_full() && !matches!(state, State::Parked(_)) {
            *state = State::Full(Arc::clone(stream));
        }
    }
}

impl<F: Format> Shared<F> {
    /// Sends the arena's packets and empties it.
    fn send_sealed(&self, peer: &Peer<F>, stream: &Stream, arena: &mut Arena, hold: bool) {
        let (count, mut bytes) = (arena.datagrams(), 0);
        for span in arena.spans() {
            let packets = arena.bytes(span);
            bytes += packets.len() as u64;
            stream.send_data(packets, span.count, hold);
        }
        self.stats.own().sent.record(count);
        peer.sent((self.clock)(), count as u64, bytes);
        arena.clear();
    }

    /// Sends sealed packets, unchanged, to a peer that is on a stream.
    pub(super) fn splice_to_stream(&self, stream: &Stream, spliced: &[Spliced<'_>]) {
        for train in spliced {
            let count = train.count();
            if !stream.has_room(train.packets.len()) {
                self.stats.drop_many(DropReason::StreamFull, count);
                continue;
            }
            let mut framed = Vec::with_capacity(train.packets.len().saturating_add(count * LENGTH));
            for packet in train.packets.chunks(train.segment.max(1)) {
                let Ok(len) = u16::try_from(packet.len()) else {
                    return self.stats.drop_many(DropReason::TooLong, count);
                };
                framed.extend_from_slice(&len.to_be_bytes());
                framed.extend_from_slice(packet);
            }
            stream.send_data(&framed, count, false);
            self.stats.own().spliced.record(count);
        }
    }

    /// Does the same as [`Shared::send_message`], to a peer that is on a stream.
    pub(crate) fn send_on_stream(
        &self,
        peer: &Peer<F>,
        tx: &mut Tx<F>,
        message: &[u8],
        arena: &mut Arena,
    ) -> Result<(), DropReason> {
        let spec = peer.settings.load();
        let stream = self.tables.streams.of(&spec.link).ok_or(DropReason::NoSocket)?;
        // Control messages may exceed the limit for packets.
        let limit = stream.options.queue_limit as usize;
        if stream.backlog() >= limit.saturating_add(RESERVE + MAX_PENDING_MESSAGES) {
            return Err(DropReason::StreamFull);
        }
        let keys = peer.keys.load();
        let key = keys.primary.as_ref().ok_or(DropReason::NoKey)?;
        key.begin_stream(tx, stream.id);
        seal_message(key, &spec, tx, message, arena)?;
        self.send_sealed(peer, &stream, arena, false);
        peer.count_in_band(message.len());
        self.notify_near_limit(peer, key);
        Ok(())
    }
}

impl<F: Format> Worker<F> {
    /// Handles an event of a stream that this worker owns, unless the stream ended meanwhile.
    pub(super) fn stream_event(&mut self, id: u64, event: Event) {
        let Some(stream) = self.shared.tables.streams.get(id) else { return };
        if event.writable
            && let DrainResult::All { held } = stream.drain()
        {
            self.resume_reading();
            if held && self.shared.wake.len() > 1 {
                self.shared.wake_all();
            }
        }
        if event.readable {
            self.stream_turn(&stream);
        }
    }

    /// Receives queued bytes, up to a buffer; if there are more, others have their turn first.
    fn stream_turn(&mut self, stream: &Arc<Stream>) {
        let mut buffer = mem::take(&mut self.stream_buffer);
        buffer.resize(BUFFER, 0);
        if let Err(why) = self.receive_from(stream, &mut buffer) {
            self.end_stream(stream, why);
        }
        self.stream_buffer = buffer;
    }

    fn receive_from(&mut self, stream: &Stream, buffer: &mut [u8]) -> Result<(), StreamEnd> {
        let mut rx = stream.rx.lock().unwrap_or_else(PoisonError::into_inner);
        let received = match stream.receive(&rx, buffer) {
            Ok(received) => received,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(()),
                    io::ErrorKind::UnexpectedEof => Err(StreamEnd::Closed),
                    _ => Err(StreamEnd::Failed(error.raw_os_error().unwrap_or(0))),
                };
            }
        };
        let shared = &self.shared;
        rx.known = rx.known || shared.client || shared.tables.is_known(&stream.link);
        // An unauthenticated peer may send control packets only.
        let max = if rx.known { stream.options.max_frame.into() } else { MAX_CONTROL };
        let data = buffer.get_mut(..received).unwrap_or(&mut []);
        let mut scratch = self.take_scratch();
        let taken = self.process_received(|ingress| {
            if !scratch.is_empty() {
                ingress.set_scratch(&mut scratch);
            }
            ingress.unauthenticated = rx.unauthenticated;
            let taken = ingress.stream(&stream.link, max, data);
            rx.unauthenticated = ingress.unauthenticated;
            taken
        });
        self.return_scratch(scratch);
        let taken = taken?;
        rx.keep(buffer.get(taken..received).unwrap_or(&[]));
        Ok(())
    }

    fn end_stream(&mut self, stream: &Stream, why: StreamEnd) {
        let Shared { tables, upcalls, .. } = &*self.shared;
        stream.end();
        // Otherwise the control plane has closed it at the same moment.
        if tables.streams.remove(stream.id).is_some() {
            let known = stream.rx.lock().unwrap_or_else(PoisonError::into_inner).known;
            tables.dismiss(&stream.link);
            upcalls.stream_ended(stream.link, why, known);
        }
        self.update_interest();
        if self.shared.wake.len() > 1 {
            // Other workers may be waiting for space in this stream.
            self.shared.wake_all();
        }
    }
}
