//! Opens a row and restores its packet.

use adit_crypto::CryptoError;
use adit_crypto::aead::CounterKey;
use adit_wire::ip::Ip;

use super::{EpochSecret, aad};
use crate::limits::{PACKET_RANGE, PADDING};
use crate::row::{Columns, Row, columns};
use crate::{Audit, EpochNo, StreamId};

/// The reason why a row is not delivered.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The row belongs to another stream or epoch.
    #[error("a row of another stream or epoch")]
    Misplaced,
    /// The row is longer than any packet.
    #[error("longer than any packet")]
    TooLong,
    /// The packet, the number or a column is not what the sender wrote.
    #[error("not what the sender wrote")]
    Forged,
    /// The sender wrote the row, but its columns describe another packet, so the log would be wrong.
    #[error("the columns are not this packet's")]
    Untrue,
}

/// Opens the rows of one epoch of a stream. The reader must check their order.
#[derive(Debug)]
pub struct Opener {
    key: CounterKey,
    audit: Audit,
    stream: StreamId,
    epoch: EpochNo,
}

impl Opener {
    /// Creates an opener for an epoch with a verified record. `record_hash` is the SHA-256 of the record and signature.
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
        Ok(Self { key: secret.packet_key(audit, &record_hash)?, audit, stream, epoch })
    }

    /// Appends the packet to `out` and returns its length in bytes.
    ///
    /// # Errors
    /// See [`OpenError`]. After an error, `out` is unchanged.
    pub fn open(&self, row: &Row<'_>, out: &mut Vec<u8>) -> Result<usize, OpenError> {
        if (row.stream, row.epoch) != (self.stream, self.epoch) {
            return Err(OpenError::Misplaced);
        }
        if row.payload.len() > PACKET_RANGE.end().saturating_add(PADDING) {
            return Err(OpenError::TooLong);
        }
        let start = out.len();
        let opened = self.open_at(start, row, out);
        out.truncate(start.saturating_add(opened.unwrap_or(0)));
        opened
    }

    fn open_at(&self, start: usize, row: &Row<'_>, out: &mut Vec<u8>) -> Result<usize, OpenError> {
        let counter = u64::try_from(row.seq.0).map_err(|_| OpenError::Forged)?;
        let tag = row.tag.try_into().map_err(|_| OpenError::Forged)?;
        let aad = aad::of(self.audit, self.stream, self.epoch, row.seq, &row.columns);
        out.extend_from_slice(row.payload);
        let opened = if self.audit == Audit::Full {
            out.extend_from_slice(&aad);
            self.key.open(counter, out.get(start..).unwrap_or_default(), tag, &mut [])
        } else {
            self.key.open(counter, &aad, tag, out.get_mut(start..).unwrap_or_default())
        };
        opened.map_err(|_| OpenError::Forged)?;

        let packet =
            out.get(start..).and_then(|all| all.get(..row.payload.len())).unwrap_or_default();
        let packet = match self.audit {
            Audit::None => {
                let len = Ip::parse(packet).ok_or(OpenError::Untrue)?.total_len;
                packet.get(..len).unwrap_or_default()
            }
            Audit::Full | Audit::Headers | Audit::Metadata => packet,
        };
        if columns(self.audit, packet) != row.columns {
            return Err(OpenError::Untrue);
        }
        Ok(packet.len())
    }

    /// Returns the columns that the sender wrote, if only columns were altered. This explains why [`Self::open`]
    /// refuses a row.
    #[must_use]
    pub fn authentic_columns(&self, row: &Row<'_>) -> Option<Columns> {
        let mut packet = row.payload.to_vec();
        if self.audit != Audit::Full {
            // Encryption in counter mode is its own inverse. The result is trusted only if the row opens with it below.
            let counter = u64::try_from(row.seq.0).ok()?;
            self.key.seal(counter, &[], &mut packet).ok()?;
        }
        let columns = columns(self.audit, &packet);
        self.open(&Row { columns, ..*row }, &mut Vec::with_capacity(packet.len())).ok()?;
        Some(columns)
    }
}
