//! Seals a packet into a row.

use adit_crypto::CryptoError;
use adit_crypto::aead::CounterKey;
use adit_wire::ip::Ip;

use super::{Chain, ChainValue, EpochSecret, aad};
use crate::limits::{EPOCH_PACKETS, PACKET_RANGE, PADDING};
use crate::row::{CHAIN_LEN, TAG_LEN, columns, copy};
use crate::{Audit, EpochNo, Seq, StreamId};

/// The reason why a packet was not sealed. Nothing was written, and its number is still free.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The row would not fit into a page.
    #[error("the packet is longer than a row may hold")]
    TooLong,
    /// Policy `none` pads packets, and the receiver could not distinguish the packet from its padding.
    #[error("not an IP packet")]
    NotIp,
    /// The number does not follow the last one.
    #[error("rows are numbered one after the other")]
    OutOfOrder,
    /// The key has reached its limit, so a new epoch must be opened.
    #[error("this epoch's key is used up")]
    Exhausted,
    /// The cryptographic library failed. The fault is ours or the host's.
    #[error("the cryptographic library failed")]
    Library,
}

/// Seals the packets of one epoch of a stream into rows of a COPY.
#[derive(Debug)]
pub struct Sealer {
    key: CounterKey,
    chain: Chain,
    record_hash: [u8; 32],
    audit: Audit,
    stream: StreamId,
    epoch: EpochNo,
    last: Option<Seq>,
    pub(super) left: u64,
    /// The length of the last row's payload, if that row can get the chain's value.
    payload_len: Option<usize>,
}

impl Sealer {
    /// Creates a sealer for an epoch that was just opened. `record_hash` is the SHA-256 of its record and signature.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn new(
        secret: &EpochSecret,
        audit: Audit,
        stream: StreamId,
        epoch: EpochNo,
        record_hash: [u8; 32],
    ) -> Result<Self, CryptoError> {
        Ok(Self {
            key: secret.packet_key(audit, &record_hash)?,
            chain: Chain::new(secret, audit, stream, epoch, record_hash)?,
            record_hash,
            audit,
            stream,
            epoch,
            last: None,
            left: EPOCH_PACKETS,
            payload_len: None,
        })
    }

    /// Appends one complete row of a COPY to `out`, which has at most [`copy::MAX_OVERHEAD`] bytes more than the packet
    /// and its padding. `seq` must be the last number plus one, so that no number is used twice with the key.
    ///
    /// # Errors
    /// See [`SealError`]. After an error, `out` is unchanged.
    pub fn seal_into(
        &mut self,
        seq: Seq,
        packet: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        if self.last.is_some_and(|Seq(last)| last.checked_add(1) != Some(seq.0)) {
            return Err(SealError::OutOfOrder);
        }
        let counter = u64::try_from(seq.0).map_err(|_| SealError::OutOfOrder)?;
        let left = self.left.checked_sub(1).ok_or(SealError::Exhausted)?;
        if packet.len() > *PACKET_RANGE.end() {
            return Err(SealError::TooLong);
        }
        let payload_len = self.payload_len(packet)?;

        let columns = columns(self.audit, packet);
        let start = out.len();
        out.reserve(copy::MAX_OVERHEAD.saturating_add(payload_len).saturating_add(aad::LEN));
        copy::head(out, seq, self.stream, self.epoch, &columns);
        let tag_at = out.len().saturating_add(4);
        copy::field(out, Some([0; TAG_LEN]));
        copy::field::<CHAIN_LEN>(out, None);
        out.extend_from_slice(&(payload_len as u32).to_be_bytes());
        let payload_at = out.len();
        // Copying and sealing in place costs no more than filling with zeros and sealing out of place.
        out.extend_from_slice(packet);
        let end = payload_at.saturating_add(payload_len);
        out.resize(end, 0);

        let aad = aad::of(self.audit, self.stream, self.epoch, seq, &columns);
        let tag = if self.audit == Audit::Full {
            out.extend_from_slice(&aad);
            let tag = self.key.seal(counter, out.get(payload_at..).unwrap_or_default(), &mut []);
            out.truncate(end);
            tag
        } else {
            self.key.seal(counter, &aad, out.get_mut(payload_at..).unwrap_or_default())
        };
        let place = out.get_mut(tag_at..).and_then(|rest| rest.first_chunk_mut());
        let (Ok(tag), Some(place)) = (tag, place) else {
            out.truncate(start);
            return Err(SealError::Library);
        };
        *place = tag;
        let payload = out.get(payload_at..end).unwrap_or_default();
        self.chain.add_row(seq, &aad, payload, &tag);
        (self.last, self.left, self.payload_len) = (Some(seq), left, Some(payload_len));
        Ok(())
    }

    fn payload_len(&self, packet: &[u8]) -> Result<usize, SealError> {
        match self.audit {
            Audit::None if Ip::parse(packet).is_none() => Err(SealError::NotIp),
            Audit::None => packet.len().checked_next_multiple_of(PADDING).ok_or(SealError::TooLong),
            Audit::Full | Audit::Headers | Audit::Metadata => Ok(packet.len()),
        }
    }

    /// Ends the batch and writes the chain's value into its last row, which must be at the end of `out`. Returns the
    /// value. If no row was sealed since the last batch, does nothing and returns `None`.
    pub fn end_batch(&mut self, out: &mut Vec<u8>) -> Option<ChainValue> {
        let payload_len = self.payload_len.take()?;
        let value = self.chain.close()?;
        // The lengths of the chain's field and of the payload precede the payload.
        let field_at = out.len().checked_sub(payload_len.checked_add(8)?)?;
        let rest = field_at.checked_add(4)?..out.len();
        out.extend_from_slice(&[0; CHAIN_LEN]);
        out.copy_within(rest, field_at.checked_add(4 + CHAIN_LEN)?);
        let (len, behind) = out.get_mut(field_at..)?.split_first_chunk_mut()?;
        *len = (CHAIN_LEN as u32).to_be_bytes();
        *behind.first_chunk_mut()? = value;
        Some(value)
    }

    /// Returns the number of the last row.
    #[must_use]
    pub fn last(&self) -> Option<Seq> {
        self.last
    }

    /// Returns the value of the chain after the last finished batch, for the next epoch's record.
    #[must_use]
    pub fn chain_value(&self) -> ChainValue {
        self.chain.value()
    }

    /// Returns the SHA-256 of the epoch's record and signature, to which checkpoints are bound.
    #[must_use]
    pub fn record_hash(&self) -> [u8; 32] {
        self.record_hash
    }

    /// Returns the number of the epoch.
    #[must_use]
    pub fn epoch(&self) -> EpochNo {
        self.epoch
    }
}
