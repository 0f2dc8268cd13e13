//! The chain over a stream's batches.

use adit_crypto::{CryptoError, HmacKey, HmacStream, constant_time_eq};

use super::{EpochSecret, aad};
use crate::row::{CHAIN_LEN, Columns, TAG_LEN};
use crate::{Audit, EpochNo, Seq, StreamId};

/// The chain value in a batch's last row.
pub type ChainValue = [u8; CHAIN_LEN];

/// The chain of an epoch. Each value is an HMAC-SHA256 over the previous value, the number of the batch's first row,
/// the full content of every row (stream, epoch, number, columns, payload and tag), and the number of the last row. The
/// value before an epoch's first batch is the hash of its record and signature.
///
/// The tag alone would not be sufficient. AES-GCM does not commit to its input, so a reader of the epoch can make
/// another row with the same tag. SHA-256 commits to its input, even for a holder of the key.
#[derive(Debug)]
pub struct Chain {
    key: HmacKey,
    audit: Audit,
    stream: StreamId,
    epoch: EpochNo,
    value: ChainValue,
    batch: Option<Batch>,
}

#[derive(Debug)]
struct Batch {
    mac: HmacStream,
    last: Seq,
    rows: usize,
}

impl Chain {
    /// Creates the chain of an epoch in its initial state.
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
        let key = secret.chain_key(&record_hash)?;
        Ok(Self { key, audit, stream, epoch, value: record_hash, batch: None })
    }

    /// Adds the next row of the batch.
    pub fn add(&mut self, seq: Seq, columns: &Columns, payload: &[u8], tag: &[u8; TAG_LEN]) {
        let aad = aad::of(self.audit, self.stream, self.epoch, seq, columns);
        self.add_row(seq, &aad, payload, tag);
    }

    /// Does the same as [`Self::add`], with authenticated data that the caller has already encoded.
    pub(super) fn add_row(
        &mut self,
        seq: Seq,
        aad: &[u8; aad::LEN],
        payload: &[u8],
        tag: &[u8; TAG_LEN],
    ) {
        let batch = self.batch.get_or_insert_with(|| {
            let mut mac = self.key.start();
            mac.update(&self.value);
            mac.update(&seq.0.to_be_bytes());
            Batch { mac, last: seq, rows: 0 }
        });
        // The other fields have a fixed length.
        let len = u64::try_from(payload.len()).unwrap_or(u64::MAX).to_be_bytes();
        batch.mac.update(aad);
        batch.mac.update(&len);
        batch.mac.update(payload);
        batch.mac.update(tag);
        batch.last = seq;
        batch.rows = batch.rows.saturating_add(1);
    }

    /// Ends the batch and returns the value for its last row, or `None` if it has no rows.
    pub fn close(&mut self) -> Option<ChainValue> {
        let Batch { mut mac, last, .. } = self.batch.take()?;
        mac.update(&last.0.to_be_bytes());
        self.value = *mac.finish().as_bytes().first_chunk()?;
        Some(self.value)
    }

    /// Ends the batch and returns whether its value is `claimed`. Continues with the claimed value if it has the right
    /// length, so that one altered batch causes one finding.
    #[must_use]
    pub fn check(&mut self, claimed: &[u8]) -> bool {
        let right = self.close().is_some_and(|value| constant_time_eq(&value, claimed));
        if let Ok(claimed) = claimed.try_into() {
            self.value = claimed;
        }
        right
    }

    /// Returns the value of the last closed batch, or the initial value.
    #[must_use]
    pub fn value(&self) -> ChainValue {
        self.value
    }

    /// Returns the number of rows since the last batch was closed.
    #[must_use]
    pub fn open_rows(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.rows)
    }
}
