//! The framing of records inside TLS:
//!
//! ```text
//! version 1 | length 3 | payload
//! ```
//!
//! A record may span TLS messages, and a TLS message may contain many records.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::fmt;

use zeroize::Zeroizing;

/// The maximum length of a record in bytes, with room for 64 KiB of data and the caller's header.
pub const MAX_RECORD: usize = 65 * 1024;
/// The version of the framing.
const VERSION: u8 = 1;
/// The length of the version and the length field.
pub(crate) const HEADER: usize = 4;

/// A received record. It is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Record(Zeroizing<Vec<u8>>);

impl Record {
    pub(super) fn new(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self(bytes)
    }
}

impl std::ops::Deref for Record {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

// Implemented by hand because records may contain secrets.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} bytes)", self.0.len())
    }
}

/// The reason why bytes are not records, or a record cannot be sent.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RecordError {
    /// The version is unknown.
    #[error("a record of the unknown version {0}")]
    Version(u8),
    /// The record is empty, or longer than [`MAX_RECORD`].
    #[error("a record of {0} bytes")]
    Length(usize),
}

/// Splits a stream of bytes into records.
#[derive(Default)]
pub struct RecordReader {
    /// The beginning of a record, with its header.
    partial: Zeroizing<Vec<u8>>,
}

impl RecordReader {
    /// Reads the next bytes, and returns the records that they complete. An error is final: the
    /// stream has no further records.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn read(&mut self, bytes: &[u8]) -> Result<Vec<Zeroizing<Vec<u8>>>, RecordError> {
        self.partial.extend_from_slice(bytes);
        let mut records = Vec::new();
        let mut rest = self.partial.as_slice();
        while let Some(length) = length(rest)?
            && let Some((record, after)) = rest.split_at_checked(HEADER.saturating_add(length))
        {
            let record = record.get(HEADER..).unwrap_or_default();
            records.push(Zeroizing::new(record.to_vec()));
            rest = after;
        }
        if !records.is_empty() {
            self.partial = Zeroizing::new(rest.to_vec());
        }
        Ok(records)
    }

    /// Returns the number of bytes held for an incomplete record.
    pub fn held(&self) -> usize {
        self.partial.len()
    }
}

/// Frames a record.
///
/// # Errors
/// [`RecordError::Length`].
pub(crate) fn frame(payload: &[u8]) -> Result<Zeroizing<Vec<u8>>, RecordError> {
    check_length(payload.len())?;
    let length = u32::try_from(payload.len()).map_err(|_| RecordError::Length(payload.len()))?;
    let [_, length @ ..] = length.to_be_bytes();
    Ok(Zeroizing::new([&[VERSION][..], &length, payload].concat()))
}

/// Returns the length of the record that begins here, once its header is complete.
fn length(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    match bytes {
        [version, ..] if *version != VERSION => Err(RecordError::Version(*version)),
        [_, a, b, c, ..] => {
            let length = u32::from_be_bytes([0, *a, *b, *c]);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            check_length(length)?;
            Ok(Some(length))
        }
        _ => Ok(None),
    }
}

fn check_length(length: usize) -> Result<(), RecordError> {
    if (1..=MAX_RECORD).contains(&length) { Ok(()) } else { Err(RecordError::Length(length)) }
}

/// Reads the bytes as records, for the fuzzer, and checks that reading in portions gives the same
/// result.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let Some((&portion, bytes)) = bytes.split_first() else { return };
    let (mut reader, mut records, mut failed) = (RecordReader::default(), Vec::new(), None);
    for part in bytes.chunks(usize::from(portion).max(1)) {
        match reader.read(part) {
            Ok(more) => records.extend(more),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
        assert!(reader.held() <= MAX_RECORD.saturating_add(HEADER), "an incomplete record");
    }
    match (failed, RecordReader::default().read(bytes)) {
        (None, Ok(at_once)) => assert_eq!(records, at_once),
        (failed, at_once) => assert_eq!(failed, at_once.err()),
    }
    let framed = records.iter().flat_map(|record| frame(record).unwrap_or_default().to_vec());
    assert!(bytes.starts_with(&framed.collect::<Vec<u8>>()), "records are written as they were");
}

#[cfg(test)]
#[allow(clippy::expect_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn records_are_split_wherever_the_messages_are_cut() {
        let sent = [vec![7], vec![1; 300], vec![2; MAX_RECORD], b"end".to_vec()];
        let stream: Vec<u8> =
            sent.iter().flat_map(|record| frame(record).expect("it fits").to_vec()).collect();
        for portion in [1, 2, 3, 5, 1000, MAX_RECORD, stream.len()] {
            let mut reader = RecordReader::default();
            let parts = stream.chunks(portion).map(|part| reader.read(part).expect("records"));
            let got: Vec<_> = parts.flatten().map(|record| record.to_vec()).collect();
            assert!(got == sent, "in portions of {portion} bytes");
            assert_eq!(reader.held(), 0);
        }
    }

    #[test]
    fn a_bad_header_is_refused_before_its_record_arrives() {
        let read = |bytes: &[u8]| RecordReader::default().read(bytes).err();
        assert_eq!(read(&[2]), Some(RecordError::Version(2)));
        assert_eq!(read(&[1, 0, 0, 0]), Some(RecordError::Length(0)));
        assert_eq!(read(&[1, 0, 0, 1]), None);
        let [_, length @ ..] = (MAX_RECORD as u32 + 1).to_be_bytes();
        let too_long = [&[1][..], &length].concat();
        assert_eq!(read(&too_long), Some(RecordError::Length(MAX_RECORD + 1)));
        assert_eq!(frame(&[]).err(), Some(RecordError::Length(0)));
        assert_eq!(
            frame(&vec![0; MAX_RECORD + 1]).err(),
            Some(RecordError::Length(MAX_RECORD + 1))
        );
    }
}
