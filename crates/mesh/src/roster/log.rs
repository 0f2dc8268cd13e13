//! The file with a node's changes: append-only, one record per object.
//!
//! ```text
//! "adit-mesh-log/1\n" | record 0: the genesis | record 1: a change | ...
//! record: length 2 | check of number and length 2 | check of number and object 4 | object
//! ```
//!
//! A crash can leave the last record incomplete, or zeros after it. The reader drops and reports that tail, and neighbours send its changes
//! again. Any other deviation is an error that names the record. The checks detect damage; the objects are signed.
//!
//! This module does not read or write files.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use adit_crypto::sha256;

use super::chains::{Changes, InsertError, MAX_CHANGES};
use super::change::Change;
use super::genesis::Genesis;
use super::object::{MAX_OBJECT, ObjectError};
use crate::wire::Decoder;

const MAGIC: &[u8] = b"adit-mesh-log/1\n";

/// The beginning of the first line of every version, before its number.
const NAME: &[u8] = b"adit-mesh-log/";

/// The version of the file.
const VERSION: u32 = 1;

/// The length of a record's length and its check.
const LENGTH: usize = 4;

/// Encodes records in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEncoder {
    /// The number of the next record.
    next: u32,
}

/// The content of a file.
#[derive(Debug)]
pub struct Log {
    /// The changes.
    pub changes: Changes,
    /// Encodes further records.
    pub encoder: LogEncoder,
    /// The length of the valid part, to which the file is truncated before an append.
    pub valid_len: usize,
    /// The number of bytes after it, left by a crash.
    pub torn: usize,
}

/// The reason why bytes are not a log.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The file does not begin like a log.
    #[error("this is not a log of a mesh")]
    Magic,
    /// A later version of the program has written the file.
    #[error("written by a newer version of adit (log {0}, and this version knows {VERSION})")]
    Newer(u32),
    /// The first record is not complete.
    #[error("the log has no genesis")]
    NoGenesis,
    /// A record was altered.
    #[error("record {record} at byte {at} is damaged")]
    Damaged {
        /// The number of the record.
        record: u32,
        /// The position at which it begins.
        at: usize,
    },
    /// A record is not an object of this mesh.
    #[error("record {record}: {error}")]
    Object {
        /// The number of the record.
        record: u32,
        /// The fault.
        error: ObjectError,
    },
    /// A record is a change that cannot be in the set.
    #[error("record {record}: {error}")]
    Change {
        /// The number of the record.
        record: u32,
        /// The fault.
        error: InsertError,
    },
    /// The log has more records than a mesh can have changes.
    #[error("the log has more than {MAX_CHANGES} changes")]
    TooMany,
    /// The object is too long for a record.
    #[error("an object of {0} bytes is too long")]
    TooLong(usize),
}

impl LogEncoder {
    /// Returns an encoder, and the beginning of a new file with this genesis.
    ///
    /// # Errors
    /// Fails if a field of the genesis is outside its bounds.
    pub fn create(genesis: &Genesis) -> Result<(Self, Vec<u8>), LogError> {
        let genesis = genesis.encode().map_err(|error| LogError::Object { record: 0, error })?;
        let mut encoder = Self { next: 0 };
        let mut out = MAGIC.to_vec();
        out.extend(encoder.record(&genesis)?);
        Ok((encoder, out))
    }

    /// Returns the bytes that append a change.
    ///
    /// # Errors
    /// Fails if the log is full.
    pub fn append(&mut self, change: &Change) -> Result<Vec<u8>, LogError> {
        self.record(&change.encode())
    }

    fn record(&mut self, object: &[u8]) -> Result<Vec<u8>, LogError> {
        if usize::try_from(self.next).unwrap_or(usize::MAX) > MAX_CHANGES {
            return Err(LogError::TooMany);
        }
        let len = u16::try_from(object.len()).ok().filter(|_| object.len() <= MAX_OBJECT);
        let len = len.ok_or(LogError::TooLong(object.len()))?;
        let mut out = len.to_be_bytes().to_vec();
        out.extend(header_check(self.next, len));
        out.extend(object_check(self.next, object));
        out.extend(object);
        self.next = self.next.saturating_add(1);
        Ok(out)
    }
}

impl Log {
    /// Reads the content of a file.
    ///
    /// # Errors
    /// Fails if the file is damaged other than at its end, or if a record cannot be in it.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogError> {
        let mut rest = bytes
            .strip_prefix(MAGIC)
            .ok_or_else(|| newer(bytes).map_or(LogError::Magic, LogError::Newer))?;
        let mut encoder = LogEncoder { next: 0 };
        let mut changes = None;
        loop {
            let record = encoder.next;
            let at = bytes.len().saturating_sub(rest.len());
            let object = match next(record, rest) {
                Record::Whole(object, after) => {
                    rest = after;
                    object
                }
                Record::Damaged => return Err(LogError::Damaged { record, at }),
                Record::Torn => {
                    let changes = changes.ok_or(LogError::NoGenesis)?;
                    return Ok(Self { changes, encoder, valid_len: at, torn: rest.len() });
                }
            };
            encoder.next = record.saturating_add(1);
            let wrong = |error| LogError::Object { record, error };
            let Some(changes) = &mut changes else {
                let genesis = Genesis::decode(object).map_err(wrong)?;
                changes = Some(Changes::new(genesis).map_err(wrong)?);
                continue;
            };
            let change = Change::decode(changes.mesh(), object).map_err(wrong)?;
            changes.insert(change).map_err(|error| LogError::Change { record, error })?;
        }
    }
}

enum Record<'a> {
    /// The object, and the bytes after the record.
    Whole(&'a [u8], &'a [u8]),
    /// The file ends, or a crash left the rest.
    Torn,
    Damaged,
}

/// Reads the record at the start of these bytes.
fn next(record: u32, bytes: &[u8]) -> Record<'_> {
    let mut from = Decoder::new(bytes);
    let header = (from.array::<2>(), from.array::<2>(), from.array::<4>());
    let (Ok(len), Ok(header), Ok(check)) = header else { return Record::Torn };
    let len = u16::from_be_bytes(len);
    if header_check(record, len) != header {
        let zeros = bytes.iter().skip(LENGTH).all(|byte| *byte == 0);
        return if zeros { Record::Torn } else { Record::Damaged };
    }
    let Ok(object) = from.take(usize::from(len)) else { return Record::Torn };
    let after = from.rest();
    if object_check(record, object) == check {
        Record::Whole(object, after)
    } else if after.iter().all(|byte| *byte == 0) {
        Record::Torn
    } else {
        Record::Damaged
    }
}

/// Returns the version of a file that a later version of the program has written.
fn newer(bytes: &[u8]) -> Option<u32> {
    let line = bytes.strip_prefix(NAME)?.split(|byte| *byte == b'\n').next()?;
    let version: u32 = std::str::from_utf8(line).ok()?.parse().ok()?;
    (version > VERSION).then_some(version)
}

fn header_check(record: u32, len: u16) -> [u8; 2] {
    let digest = sha256(&[b"adit mesh log length 1", &record.to_be_bytes(), &len.to_be_bytes()]);
    digest.first_chunk().copied().unwrap_or_default()
}

fn object_check(record: u32, object: &[u8]) -> [u8; 4] {
    let digest = sha256(&[b"adit mesh log object 1", &record.to_be_bytes(), object]);
    digest.first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::Body;
    use crate::roster::testing::{NOW, Signer, admit, genesis, write};

    /// Returns a log of the genesis and three changes, and the position of each record.
    fn log() -> (Changes, Vec<u8>, Vec<usize>) {
        let admin = [Signer::new(1)];
        let mut changes = Changes::new(genesis(&admin, 1)).unwrap();
        (1..=3).for_each(|n| drop(write(&mut changes, &admin[0], admit(n)).to_vec()));
        let (mut encoder, mut bytes) = LogEncoder::create(changes.genesis()).unwrap();
        let mut starts = vec![MAGIC.len()];
        for change in changes.in_causal_order() {
            starts.push(bytes.len());
            bytes.extend(encoder.append(change).unwrap());
        }
        starts.push(bytes.len());
        (changes, bytes, starts)
    }

    #[test]
    fn a_log_reads_back_and_continues() {
        let (changes, bytes, _) = log();
        let mut read = Log::decode(&bytes).unwrap();
        assert_eq!(read.changes.digest(), changes.digest());
        assert_eq!((read.valid_len, read.torn), (bytes.len(), 0));
        let admin = Signer::new(1);
        let hash = write(&mut read.changes, &admin, admit(4));
        let change = read.changes.get(&hash).unwrap();
        let longer = [&bytes[..], &read.encoder.append(change).unwrap()].concat();
        assert_eq!(Log::decode(&longer).unwrap().changes.len(), 4);
    }

    #[test]
    fn a_torn_tail_is_dropped_and_reported() {
        let (changes, bytes, starts) = log();
        for end in starts[1]..bytes.len() {
            let whole = *starts.iter().rfind(|start| **start <= end).unwrap();
            for zeros in [0, 1, 100, 5000] {
                let torn = [&bytes[..end], &vec![0; zeros]].concat();
                let read = Log::decode(&torn).unwrap();
                assert_eq!((read.valid_len, read.torn), (whole, torn.len() - whole), "{end}");
                assert!(read.changes.len() < changes.len());
            }
        }
        for end in MAGIC.len()..starts[1] {
            assert_eq!(Log::decode(&bytes[..end]).unwrap_err(), LogError::NoGenesis);
        }
    }

    #[test]
    fn a_log_of_a_later_version_is_told_from_another_file() {
        let (_, bytes, _) = log();
        let with = |first: &[u8]| [first, &bytes[MAGIC.len()..]].concat();
        for (first, expected) in [
            (&b"adit-mesh-log/2\n"[..], LogError::Newer(2)),
            (b"adit-mesh-log/10\n", LogError::Newer(10)),
            (b"adit-mesh-log/0\n", LogError::Magic),
            (b"adit-mesh-log/x\n", LogError::Magic),
            (b"", LogError::Magic),
        ] {
            assert_eq!(Log::decode(&with(first)).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_changed_byte_in_the_middle_is_an_error_that_names_the_record() {
        let (_, bytes, starts) = log();
        for at in 0..starts[3] {
            for bit in [1, 0x80] {
                let mut altered = bytes.clone();
                altered[at] ^= bit;
                let expected = match starts.iter().rposition(|start| *start <= at) {
                    None => LogError::Magic,
                    Some(record) => LogError::Damaged { record: record as u32, at: starts[record] },
                };
                assert_eq!(Log::decode(&altered).unwrap_err(), expected, "byte {at}");
            }
        }
    }

    #[test]
    fn a_record_has_its_place() {
        let (_, bytes, starts) = log();
        let record = |n: usize| &bytes[starts[n]..starts[n + 1]];
        let start = &bytes[..starts[1]];
        let damaged = |record, at| LogError::Damaged { record, at };
        let swapped = [start, record(2), record(1), record(3)].concat();
        assert_eq!(Log::decode(&swapped).unwrap_err(), damaged(1, starts[1]));
        let missing = [start, record(1), record(3)].concat();
        assert_eq!(Log::decode(&missing).unwrap_err(), damaged(2, starts[2]));
    }

    #[test]
    fn records_of_other_objects_are_refused() {
        let (changes, bytes, starts) = log();
        let admin = Signer::new(1);
        let with = |object: &[u8]| {
            let mut encoder = LogEncoder { next: 1 };
            let record = encoder.record(object).unwrap();
            Log::decode(&[&bytes[..starts[1]], &record, &[1]].concat()).unwrap_err()
        };
        let body = changes.draft(admin.hash, NOW, admit(9)).unwrap();
        let elsewhere = admin.sign(&[9; 16], body.clone()).encode();
        let error = ObjectError::Signature;
        assert_eq!(with(&elsewhere), LogError::Object { record: 1, error });
        let stranger = Signer::new(2);
        let first = changes.draft(stranger.hash, NOW, admit(9)).unwrap();
        let body = Body { heads: [].into(), ..first };
        let error = InsertError::Signer;
        let refused = with(&stranger.sign(changes.mesh(), body).encode());
        assert_eq!(refused, LogError::Change { record: 1, error });
        let long = LogEncoder { next: 0 }.record(&[0; MAX_OBJECT + 1]);
        assert_eq!(long, Err(LogError::TooLong(MAX_OBJECT + 1)));
        let full = LogEncoder { next: MAX_CHANGES as u32 + 1 }.record(&[0]);
        assert_eq!(full, Err(LogError::TooMany));
    }
}
