//! The boundary between the plane and a data format, which defines one protocol's packets.
//!
//! All dispatch is static: workers are compiled for one [`Format`]. A format with several kinds of keys selects the
//! kind once per burst or run ([`Sealer::run`]), so each kind has separately compiled loops.

use std::fmt::Debug;

use adit_engine::command::{PeerSpec, SpliceLabel};
use adit_engine::{DataFormat, Instant, SecretBytes};

use crate::replay::ReplayCheck;
use crate::scratch::Scratch;
use crate::stats::DropReason;

/// The data format of a protocol: headers, encapsulation and in-band messages. Its keys ([`FormatKey`]) do the
/// cryptography.
pub trait Format: Copy + Debug + Default + Send + Sync + 'static {
    /// The plain types that the protocol defines.
    type Types: DataFormat;
    /// A key in use.
    type Key: FormatKey<Types = Self::Types, Tx = Self::Tx>;
    /// The sender's state for one peer, under the peer's TX lock.
    type Tx: Debug + Default + Send;
    /// The incomplete packets of one peer.
    type Reassembly: Debug + Default + Send;
    /// The bytes added to each packet of a peer before it is sealed.
    type Encapsulation: Copy + Debug + Default;

    /// The maximum number of bytes by which a packet grows when it is sent, in all its fragments together.
    const MAX_GROWTH: usize;
    /// The content of a keepalive ping.
    const PING: &'static [u8];

    /// Classifies a datagram by its first bytes; `None` if it is too short.
    fn header(datagram: &[u8]) -> Option<Header>;

    /// Returns the encapsulation of a peer's packets; `None` if nothing is added.
    fn encapsulation(spec: &PeerSpec<Self::Types>) -> Option<Self::Encapsulation>;

    /// Returns whether packets to and from a peer may be fragmented.
    fn fragments(spec: &PeerSpec<Self::Types>) -> bool;

    /// Returns whether [`Format::decapsulate`] needs buffers for packets of a peer.
    fn needs_scratch(spec: &PeerSpec<Self::Types>) -> bool;

    /// Returns the maximum number of bytes by which a packet grows in all its fragments together, if sealing adds
    /// `overhead` to each.
    fn growth(encapsulation: Self::Encapsulation, overhead: usize) -> usize;

    /// Returns the bytes that encapsulation adds to an in-band message.
    fn message_growth(encapsulation: Self::Encapsulation) -> usize;

    /// Encapsulates a packet and passes the result, or each of its fragments, to `seal`. `scratch` is memory to reuse;
    /// sealing adds at most `overhead` bytes.
    ///
    /// # Errors
    /// The packet cannot be encapsulated, or `seal` failed.
    fn encapsulate(
        encapsulation: Self::Encapsulation,
        tx: &mut Self::Tx,
        packet: &[u8],
        overhead: usize,
        scratch: &mut Vec<u8>,
        seal: impl FnMut(&[u8]) -> Result<(), DropReason>,
    ) -> Result<(), DropReason>;

    /// Removes the encapsulation of an authenticated text. Returns `Ok(None)` for a fragment whose packet is still
    /// incomplete. `reassembly` is present if [`Format::fragments`] returns `true`.
    ///
    /// # Errors
    /// The text contains no packet.
    fn decapsulate<'a>(
        spec: &PeerSpec<Self::Types>,
        reassembly: Option<&mut Self::Reassembly>,
        origin: Origin,
        text: &'a mut [u8],
        scratch: &mut Scratch<'_, 'a>,
    ) -> Result<Option<&'a mut [u8]>, Rejected<Self::Types>>;

    /// Returns how many incomplete packets were dropped since the last call.
    fn take_lost(reassembly: &mut Self::Reassembly) -> usize;

    /// Separates in-band messages from packets.
    fn in_band(text: &[u8]) -> Option<InBand>;

    /// Returns the packet in a text that is no in-band message.
    #[inline(always)]
    fn packet(text: &mut [u8]) -> &mut [u8] {
        text
    }

    /// Returns the packet or frame in an in-band message to send: a control plane that routes packets itself sends them as messages. Empty if
    /// there is none.
    fn packet_to_send(message: &[u8]) -> &[u8] {
        message
    }

    /// Creates an in-band message of at least `len` bytes that requests the sizes of datagrams received and sent.
    fn size_request(len: usize) -> Vec<u8>;

    /// Creates the in-band answer to a size request.
    fn size_reply(received: u16, sent: u16) -> Vec<u8>;
}

/// The parsed header of a datagram.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Header {
    /// The contents of the datagram.
    pub kind: Kind,
    /// The number of bytes at the start that are equal in all datagrams of one run.
    pub len: usize,
}

impl Header {
    /// The header assumed for packets under a key without headers ([`FormatKey::is_headerless`]).
    pub(crate) const NONE: Self = Self { kind: Kind::Data { peer: None, key: 0 }, len: 0 };
}

/// The contents of a datagram.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A packet of the data plane.
    Data {
        /// The peer, if the header names one.
        peer: Option<u32>,
        /// The id of the key.
        key: u8,
    },
    /// A packet of the control plane.
    Control,
    /// A packet between two other nodes: to be relayed if a splice applies to it, and otherwise one of the control plane.
    Transit(SpliceLabel),
    /// A kind that the protocol does not define.
    Unknown,
}

/// An in-band message.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum InBand {
    /// A keepalive ping.
    Ping,
    /// A request for the sizes of datagrams. The plane answers it.
    SizeRequest,
    /// A message for the control plane.
    Message,
}

/// The packet in which a text arrived: separates fragments of one packet from those of another.
#[derive(Copy, Clone, Debug)]
pub struct Origin {
    /// The key of the peer that opened it.
    pub key: u64,
    /// Its packet id under that key.
    pub packet_id: u64,
    /// The time of arrival.
    pub now: Instant,
}

/// The reason why an authenticated text contains no packet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Rejected<T: DataFormat> {
    /// The reason to count.
    pub reason: DropReason,
    /// The violation to report, once per peer.
    pub violation: Option<T::Violation>,
}

impl<T: DataFormat> From<DropReason> for Rejected<T> {
    fn from(reason: DropReason) -> Self {
        Self { reason, violation: None }
    }
}

/// A key in use, shared by both directions: cryptography, packet ids, replay window and limits.
pub trait FormatKey: Debug + Send + Sync + Sized {
    /// The same as [`Format::Types`].
    type Types: DataFormat;
    /// The same as [`Format::Tx`].
    type Tx;
    /// Seals one burst. The sealer writes its state back when it is dropped.
    type Sealer<'k>: Sealer + Debug
    where
        Self: 'k;
    /// Opens one run; may hold the lock of the replay window.
    type Opener<'k>: Opener
    where
        Self: 'k;

    /// Prepares a key for use; `None` if the crypto library refuses it.
    fn new(key: &<Self::Types as DataFormat>::Key, replay_window: u32) -> Option<Self>;

    /// Returns the id of the key in packets.
    fn id(&self) -> u8;

    /// Returns whether packets under this key have no header, so every datagram from the peer's address is a data packet.
    fn is_headerless(&self) -> bool;

    /// Returns whether a run, found by the peer's address and the key's id, is meant for this key. Of a run that is not, a plane that hands up
    /// ([`crate::Plane::hand_up`]) makes control packets.
    #[inline]
    fn accepts(&self, run: &[u8]) -> bool {
        let _ = run;
        true
    }

    /// Starts to seal one burst. Called only under the peer's TX lock, so that packet ids are assigned in the order of
    /// sending.
    fn sealer(&self, spec: &PeerSpec<Self::Types>) -> Self::Sealer<'_>;

    /// Starts to open one run.
    fn opener(&self) -> Self::Opener<'_>;

    /// Prepares for packets on a stream, under the peer's TX lock.
    fn begin_stream(&self, tx: &mut Self::Tx, stream: u64);

    /// Counts authentic packets of a run; `bytes` is their size on the wire.
    fn count_opened(&self, packets: u64, bytes: u64);

    /// Returns whether the key is close to one of its limits.
    fn near_limit(&self) -> bool;

    /// Returns the key with its packet ids, so that another process can continue with it; `None` if it cannot. Nothing
    /// may be sealed under it any more.
    fn save(&self) -> Option<SecretBytes> {
        None
    }

    /// Continues a key of another process. Packet ids up to the newest one received count as received. `None` if the
    /// state is not valid.
    fn resume(saved: &SecretBytes, replay_window: u32) -> Option<Self> {
        let _ = (saved, replay_window);
        None
    }
}

/// Seals packets under a key of any kind.
pub trait Sealer {
    /// Returns the maximum number of bytes that sealing adds.
    fn overhead(&self) -> usize;

    /// From now on, in-band messages are sealed. Until then, packets are.
    fn begin_messages(&mut self) {}

    /// Runs `burst` with the sealer of this kind of key.
    fn run<B: SealBurst>(&mut self, burst: B) -> B::Output;
}

/// Code that seals packets and is compiled once for each kind of key.
pub trait SealBurst {
    /// The result type.
    type Output;

    /// Seals packets with `sealer`.
    fn run(self, sealer: &mut impl Seal) -> Self::Output;
}

/// Seals packets under a key of one kind.
pub trait Seal {
    /// Returns the maximum number of bytes that sealing adds.
    fn overhead(&self) -> usize;

    /// Seals one packet into the start of `out` under the next packet id; returns its length.
    ///
    /// # Errors
    /// The key is exhausted, or `out` is too short.
    fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason>;
}

/// The content of a datagram: its position in the replay window, its packet id and the plaintext.
pub type Opened<'p> = (ReplayCheck, u64, &'p mut [u8]);

/// Opens packets under a key.
pub trait Opener {
    /// Opens one datagram in place, unless it was seen before.
    ///
    /// # Errors
    /// The reason why the datagram is dropped.
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason>;
}
