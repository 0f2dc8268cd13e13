//! Epochs: the parts of a stream under one key. An epoch's record contains its position in the stream and the previous epoch. The sender
//! signs the record, and the secret is wrapped to each reader.
//!
//! ```text
//!   record:  "adit-pg2 epoch" | len tag | stream | sender | receiver | no | leaf | first_seq | audit | opened
//!            | 0, or 1 prev_no prev_last_seq prev_opened, or 2 prev_no prev_last_seq prev_opened prev_chain
//!            | durability | suite | generation of the network's key | settings | readers
//!            | (reader, SHA-256(enc | sealed)) each, ascending
//! ```

use adit_crypto::{CryptoError, sha256};
use adit_engine::{Random, UnixTime};

use super::bytes::{Decoder, Encoder};
use super::{KeyRing, NetworkKey, NodeKeys, NodePublic, Reader, SealPublic, wrap};
use crate::seal::EpochSecret;
use crate::{Audit, Durability, EpochNo, Generation, LeafNo, NodeId, Seq, StreamId};

const KIND: &[u8] = b"adit-pg2 epoch";
const SIGNED: &[u8] = b"adit-pg2 signed epoch";
const WRAPPED: &[u8] = b"adit-pg2 wrap";
const HASHED: &[u8] = b"adit-pg2 epoch hash";

/// The number of the scheme that wraps the secret: HPKE with X-Wing as in draft-connolly-cfrg-xwing-kem, HKDF-SHA256 and AES-256-GCM. The
/// KEM is not in RFC 9180's registry, so the record contains this number. Other numbers are refused.
const SUITE: u8 = 1;

/// The maximum number of readers of an epoch. The database enforces the same limit.
pub const MAX_READERS: usize = 4;

/// The length of an encapsulated key in bytes.
pub const ENC_LEN: usize = 1120;

/// The length of a sealed secret in bytes.
pub const SEALED_LEN: usize = 48;

/// The position of an epoch: the fields of its record other than the readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The network's tag.
    pub network: String,
    /// The number of the stream.
    pub stream: StreamId,
    /// The node that sends and signs.
    pub sender: NodeId,
    /// The node that receives.
    pub receiver: NodeId,
    /// The epoch's number. A reader accepts only increasing numbers.
    pub no: EpochNo,
    /// The leaf that contains its rows.
    pub leaf: LeafNo,
    /// The number of its first packet.
    pub first_seq: Seq,
    /// The columns that its rows contain in the clear.
    pub audit: Audit,
    /// The durability of its rows. A crash of the database may empty a volatile leaf.
    pub durability: Durability,
    /// The time of opening, by the sender's clock.
    pub opened: UnixTime,
    /// The serial number of the network's settings when it was opened.
    pub settings: i64,
    /// The end of the previous epoch, as far as the sender knew it.
    pub previous: Option<PreviousEpoch>,
    /// The generation of the network's key with which its secret is wrapped.
    pub generation: Generation,
}

/// The end of an epoch, as far as the sender knew it when it opened the next one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PreviousEpoch {
    /// The epoch's number.
    pub no: EpochNo,
    /// The last acknowledged packet. There may be more rows, because packets in flight are in doubt.
    pub last_seq: Seq,
    /// The chain's value at that packet, or [`EpochRecord::hash`] if no batch had been acknowledged. It is `None` if
    /// the sender was restarted and had not signed any part of that epoch, so that `last_seq` comes from the database.
    pub chain: Option<[u8; 32]>,
    /// The time when that epoch was opened, if the sender still knows it.
    pub opened: Option<UnixTime>,
}

/// A parsed record. It is trusted only after [`accept`] or [`check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// The fields of the record.
    pub epoch: Epoch,
    /// The readers and the hash of each one's wrap, ascending.
    pub readers: Vec<(NodeId, [u8; 32])>,
}

/// An epoch's secret for one reader: a row of the table `wrap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrap {
    /// The reader's number.
    pub reader: NodeId,
    /// The encapsulated key, [`ENC_LEN`] bytes.
    pub enc: Vec<u8>,
    /// The sealed secret, [`SEALED_LEN`] bytes.
    pub sealed: Vec<u8>,
}

impl Wrap {
    pub(super) fn hash(&self) -> [u8; 32] {
        // The lengths are included, so that moving a byte from one field to the other gives a different hash.
        let len = u64::try_from(self.enc.len()).unwrap_or(u64::MAX).to_be_bytes();
        sha256(&[WRAPPED, &len, &self.enc, &self.sealed])
    }
}

/// The rows for the database, and the values that the sender keeps.
#[derive(Debug)]
pub struct OpenedEpoch {
    /// The column `record`.
    pub record: Vec<u8>,
    /// The column `signature`.
    pub signature: [u8; 64],
    /// The rows of `wrap`, in ascending order of readers.
    pub wraps: Vec<Wrap>,
    /// The secret from which the packets' keys are derived.
    pub secret: EpochSecret,
    /// The initial value of the chain.
    pub hash: [u8; 32],
}

/// The reason why an epoch cannot be opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpochOpenError {
    /// There is no reader, more than [`MAX_READERS`], or a duplicate.
    #[error("an epoch has 1 to 4 readers, each once")]
    Readers,
    /// A field has no canonical form.
    #[error(
        "a number of the epoch is out of range, its tag is not valid, or the key is of another generation"
    )]
    Field,
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// The reason why an epoch from the database is rejected.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpochError {
    /// The bytes are not a record.
    #[error("the record is not valid")]
    Malformed,
    /// The signature does not match, because another key signed the record or it was changed.
    #[error("the sender has not signed the record")]
    Signature,
    /// The record belongs to another network.
    #[error("the record is of another network")]
    Network,
    /// The record belongs to another stream.
    #[error("the record is of another stream")]
    Stream,
    /// The record contains another sender.
    #[error("the record names another sender")]
    Sender,
    /// The record contains another receiver.
    #[error("the record names another receiver")]
    Receiver,
    /// The record has no wrap for this reader.
    #[error("the epoch is not for this reader")]
    NotAReader,
    /// The wrap's hash differs from the one in the record.
    #[error("the wrapped secret is not the one that was signed")]
    Wrap,
    /// The network's key of this generation is not available or no longer accepted.
    #[error("the epoch uses a key of the network that this reader does not have")]
    Generation,
    /// The wrap does not open, because it was made with another key or for another network.
    #[error("the wrapped secret does not open with this key")]
    Key,
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// The values that a record must have to be accepted.
#[derive(Copy, Clone, Debug)]
pub struct Expected<'a> {
    /// The network's tag.
    pub network: &'a str,
    /// The stream in which the record was found.
    pub stream: StreamId,
    /// The sender of that stream.
    pub sender: &'a NodePublic,
    /// The receiver of that stream.
    pub receiver: NodeId,
}

impl Epoch {
    fn encode(&self) -> Option<Encoder> {
        let mut out = Encoder::new(KIND);
        out.tag(&self.network)?;
        out.i32(self.stream.0);
        out.i32(self.sender.0);
        out.i32(self.receiver.0);
        out.i32(self.no.0);
        out.i32(self.leaf.0);
        out.i64(self.first_seq.0);
        out.u8(audit_number(self.audit));
        out.u64(self.opened.0);
        match &self.previous {
            None => out.u8(0),
            Some(previous) => {
                out.u8(if previous.chain.is_some() { 2 } else { 1 });
                out.i32(previous.no.0);
                out.i64(previous.last_seq.0);
                out.u64(previous.opened.map_or(0, |opened| opened.0));
                out.fixed(previous.chain.as_ref().map_or(&[], |chain| chain));
            }
        }
        out.u8(durability_number(self.durability));
        out.u8(SUITE);
        out.i32(self.generation.0);
        out.i64(self.settings);
        self.in_range().then_some(out)
    }

    fn decode(from: &mut Decoder<'_>) -> Option<Self> {
        from.expect(KIND)?;
        let network = from.tag()?;
        let (stream, sender, receiver) = (from.i32()?, from.i32()?, from.i32()?);
        let (no, leaf, first_seq) = (from.i32()?, from.i32()?, from.i64()?);
        let audit = *Audit::ALL.get(usize::from(from.u8()?))?;
        let opened = UnixTime(from.u64()?);
        let previous = match from.u8()? {
            0 => None,
            kind @ (1 | 2) => Some(PreviousEpoch {
                no: EpochNo(from.i32()?),
                last_seq: Seq(from.i64()?),
                opened: Some(UnixTime(from.u64()?)).filter(|opened| opened.0 > 0),
                chain: if kind == 2 { Some(from.array()?) } else { None },
            }),
            _ => return None,
        };
        let durability = *Durability::ALL.get(usize::from(from.u8()?))?;
        if from.u8()? != SUITE {
            return None;
        }
        let generation = Generation(from.i32()?);
        let settings = from.i64()?;
        let epoch = Self {
            network,
            stream: StreamId(stream),
            sender: NodeId(sender),
            receiver: NodeId(receiver),
            no: EpochNo(no),
            leaf: LeafNo(leaf),
            first_seq: Seq(first_seq),
            audit,
            durability,
            opened,
            settings,
            previous,
            generation,
        };
        epoch.in_range().then_some(epoch)
    }

    fn in_range(&self) -> bool {
        let own = [self.stream.0, self.sender.0, self.receiver.0, self.no.0, self.leaf.0];
        own.iter().all(|number| *number > 0)
            && self.first_seq.0 > 0
            && self.generation >= Generation::FIRST
            && self.settings > 0
            && self.previous.is_none_or(|previous| {
                previous.no.0 > 0
                    && previous.no < self.no
                    && previous.last_seq.0 >= 0
                    && previous.last_seq < self.first_seq
            })
    }
}

impl EpochRecord {
    /// Encodes the record in its signed form.
    ///
    /// # Errors
    /// Fails if a field is out of range.
    pub fn encode(&self) -> Result<Vec<u8>, EpochOpenError> {
        let count = u8::try_from(self.readers.len()).map_err(|_| EpochOpenError::Readers)?;
        if !readers_fit(&self.readers) {
            return Err(EpochOpenError::Readers);
        }
        let mut out = self.epoch.encode().ok_or(EpochOpenError::Field)?;
        out.u8(count);
        out.wraps(&self.readers);
        Ok(out.done())
    }

    /// Parses a record strictly, so that encoding the result gives the same bytes.
    ///
    /// # Errors
    /// Returns [`EpochError::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, EpochError> {
        Self::decode(Decoder::new(bytes)).ok_or(EpochError::Malformed)
    }

    fn decode(mut from: Decoder<'_>) -> Option<Self> {
        let epoch = Epoch::decode(&mut from)?;
        let count = from.u8()?;
        let readers = from.wraps(usize::from(count))?;
        from.end()?;
        readers_fit(&readers).then_some(Self { epoch, readers })
    }

    /// Computes the initial value of the chain from the signed bytes and the signature.
    pub fn hash(record: &[u8], signature: &[u8]) -> [u8; 32] {
        let len = u64::try_from(record.len()).unwrap_or(u64::MAX).to_be_bytes();
        sha256(&[HASHED, &len, record, signature])
    }
}

fn readers_fit(readers: &[(NodeId, [u8; 32])]) -> bool {
    (1..=MAX_READERS).contains(&readers.len())
        && readers.iter().all(|(reader, _)| reader.0 >= 0)
        && readers.is_sorted_by(|(a, _), (b, _)| a < b)
}

fn audit_number(audit: Audit) -> u8 {
    match audit {
        Audit::Full => 0,
        Audit::Headers => 1,
        Audit::Metadata => 2,
        Audit::None => 3,
    }
}

fn durability_number(durability: Durability) -> u8 {
    match durability {
        Durability::Strict => 0,
        Durability::Relaxed => 1,
        Durability::Volatile => 2,
    }
}

/// Returns the data to which a wrap is bound: the epoch and the reader. The hashes of wraps in the record cannot be
/// included.
fn wrap_info(epoch: Encoder, reader: NodeId) -> Vec<u8> {
    let mut info = epoch;
    info.fixed(WRAPPED);
    info.i32(reader.0);
    info.done()
}

/// Opens an epoch. Creates a new secret, wraps it to the readers, and signs the record as the sender.
///
/// # Errors
/// Fails if the readers or a field are invalid, or the library fails.
pub fn open(
    epoch: Epoch,
    keys: &NodeKeys,
    network: &NetworkKey,
    readers: &[(NodeId, &SealPublic)],
    random: &mut Random,
) -> Result<OpenedEpoch, EpochOpenError> {
    if epoch.generation != network.generation() {
        return Err(EpochOpenError::Field);
    }
    let psk = network.wrap_key()?;
    let secret = EpochSecret::new(random.bytes());
    let mut wraps = Vec::with_capacity(readers.len());
    for (reader, key) in readers {
        let info = wrap_info(epoch.encode().ok_or(EpochOpenError::Field)?, *reader);
        let (enc, sealed) =
            wrap::wrap(secret.expose(), key.as_bytes(), &psk, &info, random).ok_or(CryptoError)?;
        wraps.push(Wrap { reader: *reader, enc, sealed });
    }
    wraps.sort_by_key(|wrap| wrap.reader);
    let readers = wraps.iter().map(|wrap| (wrap.reader, wrap.hash())).collect();
    let record = EpochRecord { epoch, readers }.encode()?;
    let signature = keys.signing().sign(&[SIGNED, &record].concat())?;
    let hash = EpochRecord::hash(&record, &signature);
    Ok(OpenedEpoch { record, signature, wraps, secret, hash })
}

/// Checks that the sender signed the record for this stream.
///
/// # Errors
/// Each check has its own error.
pub fn check(
    expected: &Expected<'_>,
    record: &[u8],
    signature: &[u8],
) -> Result<EpochRecord, EpochError> {
    if !expected.sender.signed(&[SIGNED, record].concat(), signature) {
        return Err(EpochError::Signature);
    }
    let parsed = EpochRecord::parse(record)?;
    let epoch = &parsed.epoch;
    if epoch.network != expected.network {
        return Err(EpochError::Network);
    }
    if epoch.stream != expected.stream {
        return Err(EpochError::Stream);
    }
    if epoch.sender != expected.sender.id {
        return Err(EpochError::Sender);
    }
    if epoch.receiver != expected.receiver {
        return Err(EpochError::Receiver);
    }
    Ok(parsed)
}

/// Calls [`check`], and then opens the reader's wrap that came with the record from the database.
///
/// The columns `no`, `leaf` and `first_seq` next to the record are not signed, so use the returned record instead. The
/// caller must check that the epoch's number is greater than the last, because otherwise it is a repetition. Any key of
/// the ring opens the wrap. The receiver decides whether new rows may still be under that key.
///
/// # Errors
/// Each check has its own error.
pub fn accept(
    reader: Reader<'_>,
    ring: &KeyRing,
    expected: &Expected<'_>,
    record: &[u8],
    signature: &[u8],
    wrap: &Wrap,
) -> Result<(EpochRecord, EpochSecret), EpochError> {
    let parsed = check(expected, record, signature)?;
    let named =
        parsed.readers.iter().find(|(id, _)| *id == reader.id).ok_or(EpochError::NotAReader)?;
    if named.1 != wrap.hash() {
        return Err(EpochError::Wrap);
    }
    let info = wrap_info(parsed.epoch.encode().ok_or(EpochError::Malformed)?, reader.id);
    let psk = ring.get(parsed.epoch.generation).ok_or(EpochError::Generation)?.wrap_key()?;
    let secret = wrap::unwrap(reader.seal.as_bytes(), &psk, &info, &wrap.enc, &wrap.sealed)
        .ok_or(EpochError::Key)?;
    let secret = secret.as_slice().try_into().map_err(|_| EpochError::Key)?;
    Ok((parsed, EpochSecret::new(secret)))
}
