//! A trivial data format, to test the plane without any real protocol. It protects nothing.
//!
//! ```text
//! kind 1 | key id 1 | peer 2 | packet id 4 | sum 4 | text, each byte combined with the key's
//! ```

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_dataplane::format::{
    Format, FormatKey, Header, InBand, Kind, Opened, Opener, Origin, Rejected, Seal, SealBurst,
    Sealer,
};
use adit_dataplane::{DropReason, ReplayWindow, Scratch};
use adit_engine::DataFormat;
use adit_engine::command::PeerSpec;

/// Kind of a data packet.
pub(crate) const DATA: u8 = 1;
/// Kind of a control packet.
pub(crate) const CONTROL: u8 = 2;
/// The number of bytes before the text.
pub(crate) const OVERHEAD: usize = 12;
/// The number of bytes at the start that are equal in all packets of one peer under one key.
const LEAD: usize = 4;
const PING: &[u8] = b"ping";
/// The first bytes of every in-band message except a ping.
const MESSAGE: &[u8] = b"message";
const SIZE_REQUEST: &[u8] = b"message: sizes?";

/// The trivial format.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Trivial;

impl DataFormat for Trivial {
    /// The peer in the packets.
    type Layout = u16;
    type Key = PlainKey;
    type Violation = Infallible;

    fn key_id(key: &PlainKey) -> u8 {
        key.id
    }
}

/// A key to install: one byte for each direction.
#[derive(Debug)]
pub(crate) struct PlainKey {
    /// The id in packets.
    pub id: u8,
    /// The value combined with each byte that is sent.
    pub seal: u8,
    /// The value combined with each byte that is received.
    pub open: u8,
    /// The number of packets after which the key is close to its limit; 0: none.
    pub limit: u64,
}

impl fmt::Display for PlainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {}", self.limit)
    }
}

impl Format for Trivial {
    type Types = Self;
    type Key = Key;
    type Tx = ();
    type Reassembly = ();
    type Encapsulation = ();

    const MAX_GROWTH: usize = OVERHEAD;
    const PING: &'static [u8] = PING;

    fn header(datagram: &[u8]) -> Option<Header> {
        let kind = match *datagram.first()? {
            DATA => {
                let [_, key, high, low] = *datagram.first_chunk::<LEAD>()?;
                let peer = u16::from_be_bytes([high, low]);
                Kind::Data { peer: Some(peer.into()), key }
            }
            CONTROL => Kind::Control,
            _ => Kind::Unknown,
        };
        let len = if let Kind::Data { .. } = kind { LEAD } else { 1 };
        Some(Header { kind, len })
    }

    fn encapsulation(_: &PeerSpec<Self>) -> Option<()> {
        None
    }

    fn fragments(_: &PeerSpec<Self>) -> bool {
        false
    }

    fn needs_scratch(_: &PeerSpec<Self>) -> bool {
        false
    }

    fn growth((): (), overhead: usize) -> usize {
        overhead
    }

    fn message_growth((): ()) -> usize {
        0
    }

    fn encapsulate(
        (): (),
        (): &mut (),
        packet: &[u8],
        _: usize,
        _: &mut Vec<u8>,
        mut seal: impl FnMut(&[u8]) -> Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        seal(packet)
    }

    fn decapsulate<'a>(
        _: &PeerSpec<Self>,
        _: Option<&mut ()>,
        _: Origin,
        text: &'a mut [u8],
        _: &mut Scratch<'_, 'a>,
    ) -> Result<Option<&'a mut [u8]>, Rejected<Self>> {
        Ok(Some(text))
    }

    fn take_lost((): &mut ()) -> usize {
        0
    }

    fn in_band(text: &[u8]) -> Option<InBand> {
        match text {
            PING => Some(InBand::Ping),
            _ if text.starts_with(SIZE_REQUEST) => Some(InBand::SizeRequest),
            _ if text.starts_with(MESSAGE) => Some(InBand::Message),
            _ => None,
        }
    }

    fn size_request(len: usize) -> Vec<u8> {
        let mut message = SIZE_REQUEST.to_vec();
        message.resize(len.max(message.len()), 0);
        message
    }

    fn size_reply(received: u16, sent: u16) -> Vec<u8> {
        [MESSAGE, &received.to_be_bytes(), &sent.to_be_bytes()].concat()
    }
}

/// A key: one byte for each direction.
#[derive(Debug)]
pub(crate) struct Key {
    id: u8,
    seal: u8,
    open: u8,
    /// The id of the next packet to seal; the last one is never used.
    pub next_id: AtomicU32,
    /// The number of packets in both directions.
    packets: AtomicU64,
    /// The number of packets after which the key is close to its limit; 0: none.
    limit: u64,
    window: Mutex<ReplayWindow>,
}

impl FormatKey for Key {
    type Types = Trivial;
    type Tx = ();
    type Sealer<'k> = KeySealer<'k>;
    type Opener<'k> = KeyOpener<'k>;

    fn new(key: &PlainKey, replay_window: u32) -> Option<Self> {
        Some(Self {
            id: key.id,
            seal: key.seal,
            open: key.open,
            next_id: AtomicU32::new(1),
            packets: AtomicU64::new(0),
            limit: key.limit,
            window: Mutex::new(ReplayWindow::new(replay_window)),
        })
    }

    fn id(&self) -> u8 {
        self.id
    }

    fn is_headerless(&self) -> bool {
        false
    }

    fn sealer(&self, spec: &PeerSpec<Trivial>) -> KeySealer<'_> {
        KeySealer { key: self, peer: spec.layout }
    }

    fn opener(&self) -> KeyOpener<'_> {
        KeyOpener { key: self, window: self.window.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    fn begin_stream(&self, (): &mut (), _: u64) {}

    fn count_opened(&self, packets: u64, _: u64) {
        self.packets.fetch_add(packets, Relaxed);
    }

    fn near_limit(&self) -> bool {
        self.limit != 0 && self.packets.load(Relaxed) >= self.limit
    }
}

/// Seals packets under one key.
#[derive(Debug)]
pub(crate) struct KeySealer<'k> {
    key: &'k Key,
    peer: u16,
}

impl Sealer for KeySealer<'_> {
    fn overhead(&self) -> usize {
        OVERHEAD
    }

    fn run<B: SealBurst>(&mut self, burst: B) -> B::Output {
        burst.run(self)
    }
}

impl Seal for KeySealer<'_> {
    fn overhead(&self) -> usize {
        OVERHEAD
    }

    fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason> {
        let id = self.key.next_id.load(Relaxed);
        if id == u32::MAX {
            return Err(DropReason::KeyExhausted);
        }
        self.key.next_id.store(id + 1, Relaxed);
        self.key.packets.fetch_add(1, Relaxed);
        let len = plain.len() + OVERHEAD;
        let out = out.get_mut(..len).ok_or(DropReason::TunMalformed)?;
        out[..2].copy_from_slice(&[DATA, self.key.id]);
        out[2..4].copy_from_slice(&self.peer.to_be_bytes());
        out[4..8].copy_from_slice(&id.to_be_bytes());
        out[8..12].copy_from_slice(&sum(self.key.seal, id, plain).to_be_bytes());
        out[OVERHEAD..].copy_from_slice(plain);
        combine(self.key.seal, &mut out[OVERHEAD..]);
        Ok(len)
    }
}

/// Opens packets under one key.
#[derive(Debug)]
pub(crate) struct KeyOpener<'k> {
    key: &'k Key,
    window: MutexGuard<'k, ReplayWindow>,
}

impl Opener for KeyOpener<'_> {
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason> {
        let (head, text) = datagram.split_first_chunk_mut::<OVERHEAD>().ok_or(DropReason::Short)?;
        let [_, _, _, _, id @ .., s0, s1, s2, s3] = *head;
        let id = u32::from_be_bytes(id);
        let replay = self.window.check(id.into()).ok_or(DropReason::Replayed)?;
        combine(self.key.open, text);
        if sum(self.key.open, id, text) != u32::from_be_bytes([s0, s1, s2, s3]) {
            return Err(DropReason::BadTag);
        }
        self.window.accept(id.into());
        Ok((replay, id.into(), text))
    }
}

/// Combines each byte of a text with the key's. Words at a time, because tests are compiled without optimisation.
fn combine(key: u8, text: &mut [u8]) {
    let (words, rest) = text.as_chunks_mut();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ u64::from_ne_bytes([key; 8])).to_ne_bytes();
    }
    for byte in rest {
        *byte ^= key;
    }
}

/// Returns a checksum over key, packet id and text.
fn sum(key: u8, id: u32, text: &[u8]) -> u32 {
    let start = id.rotate_left(8) ^ u32::from(key);
    let (words, rest) = text.as_chunks();
    let mut sum = u64::from(start);
    for word in words {
        sum = sum.rotate_left(5) ^ u64::from_be_bytes(*word);
    }
    for byte in rest {
        sum = sum.rotate_left(5) ^ u64::from(*byte);
    }
    (sum ^ (sum >> 32)) as u32
}
