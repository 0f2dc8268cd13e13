//! Messages between members in a session, except those about the roster and the paths:
//!
//! ```text
//! forward:     version 1 | kind 32 | to 32 | content 1 | bytes
//! forwarded:   version 1 | kind 33 | from 32 | content 1 | bytes
//! unreachable: version 1 | kind 34 | peer 32
//! accept:      version 1 | kind 35 | from 32 | number of ids 1 | id 3 *
//! taken:       version 1 | kind 36 | from 32
//! where:       version 1 | kind 37 | node 32
//! endpoint:    version 1 | kind 38 | endpoint
//! wanted:      version 1 | kind 39 | hash 32 | offset 4
//! policy:      version 1 | kind 40 | hash 32 | total 4 | offset 4 | piece
//! ping:        version 1 | kind 60 | nonce 8
//! pong:        version 1 | kind 61 | nonce 8
//! ```

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use std::fmt;

use zeroize::Zeroizing;

use crate::session::{KeyHash, MAX_CHANNELS};
use crate::wire::{DecodeError, Decoder, open_record, put_head};

/// The length of the longest record.
pub(super) const MAX_RECORD: usize = 4096;

/// The length of the longest part of a record before its text, packet or ids.
const MAX_FIXED: usize = 64;

/// The first record kind of this module. Path records and roster records have lower ones.
pub(super) const FIRST_KIND: u8 = 32;

/// A record between members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Asks a relay to forward this content.
    Forward { to: KeyHash, content: Content },
    /// From a relay: content from another member.
    Forwarded { from: KeyHash, content: Content },
    /// From a relay: it has no session with `peer`.
    Unreachable { peer: KeyHash },
    /// Asks a relay to forward packets from `from` with these ids, and to stop forwarding other ids. The sender chose the ids for its
    /// channels with `from`.
    Accept { from: KeyHash, ids: Vec<u32> },
    /// From a relay: it already forwards packets from `from` with one of the ids to another member.
    Taken { from: KeyHash },
    /// Asks for a node's endpoint.
    Where { node: KeyHash },
    /// An encoded [`super::Endpoint`], of the sender or of another node.
    Endpoint(Vec<u8>),
    /// Asks for a piece of the policy with this SHA-256.
    PolicyWanted { hash: [u8; 32], offset: u32 },
    /// A piece of a policy of `total` bytes; with `total` 0, the sender does not have it.
    Policy { hash: [u8; 32], total: u32, offset: u32, piece: Vec<u8> },
    /// Asks for a [`Record::Pong`].
    Ping { nonce: u64 },
    /// Answers a ping.
    Pong { nonce: u64 },
}

/// The content that a relay forwards.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// A control packet of the session between the two ends.
    Packet(Vec<u8>),
    /// A record of [`crate::path`].
    Path(Zeroizing<Vec<u8>>),
}

// Written by hand because path records contain secrets.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(bytes) => write!(f, "Packet({} bytes)", bytes.len()),
            Self::Path(bytes) => write!(f, "Path({} bytes)", bytes.len()),
        }
    }
}

impl Content {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, bytes) = match self {
            Self::Packet(bytes) => (0, bytes),
            Self::Path(bytes) => (1, &**bytes),
        };
        out.push(kind);
        out.extend(bytes);
    }

    fn read(mut from: Decoder<'_>) -> Result<Self, DecodeError> {
        match from.u8()? {
            0 => Ok(Self::Packet(from.rest().to_vec())),
            1 => Ok(Self::Path(Zeroizing::new(from.rest().to_vec()))),
            other => Err(DecodeError::Kind(other)),
        }
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Packet(bytes) => bytes.len(),
            Self::Path(bytes) => bytes.len(),
        }
    }
}

impl Record {
    pub(super) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(self.room()));
        let room = out.capacity();
        match self {
            Self::Forward { to, content } => {
                put_head(32, &mut out);
                out.extend(to);
                content.put(&mut out);
            }
            Self::Forwarded { from, content } => {
                put_head(33, &mut out);
                out.extend(from);
                content.put(&mut out);
            }
            Self::Unreachable { peer } => {
                put_head(34, &mut out);
                out.extend(peer);
            }
            Self::Accept { from, ids } => {
                put_head(35, &mut out);
                out.extend(from);
                debug_assert!(ids.len() <= MAX_CHANNELS, "more ids than a session has channels");
                out.push(u8::try_from(ids.len()).unwrap_or(u8::MAX));
                for id in ids {
                    let [_, id @ ..] = id.to_be_bytes();
                    out.extend(id);
                }
            }
            Self::Taken { from } => {
                put_head(36, &mut out);
                out.extend(from);
            }
            Self::Where { node } => {
                put_head(37, &mut out);
                out.extend(node);
            }
            Self::Endpoint(bytes) => {
                put_head(38, &mut out);
                out.extend(bytes);
            }
            Self::PolicyWanted { hash, offset } => {
                put_head(39, &mut out);
                out.extend(hash);
                out.extend(offset.to_be_bytes());
            }
            Self::Policy { hash, total, offset, piece } => {
                put_head(40, &mut out);
                out.extend(hash);
                out.extend(total.to_be_bytes());
                out.extend(offset.to_be_bytes());
                out.extend(piece);
            }
            Self::Ping { nonce } => {
                put_head(60, &mut out);
                out.extend(nonce.to_be_bytes());
            }
            Self::Pong { nonce } => {
                put_head(61, &mut out);
                out.extend(nonce.to_be_bytes());
            }
        }
        debug_assert!(out.len() <= MAX_RECORD, "a record of {} bytes", out.len());
        debug_assert_eq!(out.capacity(), room, "growing leaves a copy of secrets behind");
        out
    }

    /// Returns a number of bytes that the record fits into. All of them are wiped afterwards, so there are not many more.
    fn room(&self) -> usize {
        let rest = match self {
            Self::Forward { content, .. } | Self::Forwarded { content, .. } => content.len(),
            Self::Endpoint(bytes) => bytes.len(),
            Self::Policy { piece, .. } => piece.len(),
            Self::Accept { ids, .. } => ids.len().saturating_mul(3),
            _ => 0,
        };
        rest.saturating_add(MAX_FIXED)
    }

    /// Decodes a record. Only the exact output of [`Self::encode`] is accepted.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut from) = open_record(bytes, MAX_RECORD)?;
        let record = match kind {
            32 => {
                let to = from.array()?;
                return Ok(Self::Forward { to, content: Content::read(from)? });
            }
            33 => {
                let sender = from.array()?;
                return Ok(Self::Forwarded { from: sender, content: Content::read(from)? });
            }
            34 => Self::Unreachable { peer: from.array()? },
            35 => {
                let (peer, count) = (from.array()?, from.u8()?);
                if usize::from(count) > MAX_CHANNELS {
                    return Err(DecodeError::Kind(count));
                }
                let mut ids = Vec::new();
                for _ in 0..count {
                    let [a, b, c] = from.array()?;
                    ids.push(u32::from_be_bytes([0, a, b, c]));
                }
                Self::Accept { from: peer, ids }
            }
            36 => Self::Taken { from: from.array()? },
            37 => Self::Where { node: from.array()? },
            38 => return Ok(Self::Endpoint(from.rest().to_vec())),
            39 => Self::PolicyWanted { hash: from.array()?, offset: from.u32()? },
            40 => {
                let (hash, total, offset) = (from.array()?, from.u32()?, from.u32()?);
                return Ok(Self::Policy { hash, total, offset, piece: from.rest().to_vec() });
            }
            60 => Self::Ping { nonce: from.u64()? },
            61 => Self::Pong { nonce: from.u64()? },
            kind => return Err(DecodeError::Kind(kind)),
        };
        from.end()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> Vec<Record> {
        let peer = [7; 32];
        vec![
            Record::Forward { to: peer, content: Content::Packet(vec![1, 2, 3]) },
            Record::Forwarded { from: peer, content: Content::Path(Zeroizing::new(vec![4, 5])) },
            Record::Unreachable { peer },
            Record::Accept { from: peer, ids: Vec::new() },
            Record::Accept { from: peer, ids: vec![0x00ff_fffe; MAX_CHANNELS] },
            Record::Taken { from: peer },
            Record::Where { node: peer },
            Record::Endpoint(vec![9; 100]),
            Record::PolicyWanted { hash: [8; 32], offset: 70_000 },
            Record::Policy { hash: [8; 32], total: 70_000, offset: 3, piece: vec![b'a'; 50] },
            Record::Ping { nonce: 7 },
            Record::Pong { nonce: u64::MAX },
        ]
    }

    #[test]
    fn records_are_decoded_as_they_were_encoded() {
        for record in records() {
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_truncated_record_is_refused_unless_its_last_field_is_open() {
        for record in records() {
            let bytes = record.encode();
            let open = match &record {
                Record::Forward { content, .. } | Record::Forwarded { content, .. } => {
                    content.len()
                }
                Record::Endpoint(endpoint) => endpoint.len(),
                Record::Policy { piece, .. } => piece.len(),
                _ => 0,
            };
            for len in 0..bytes.len() - open {
                assert!(Record::decode(&bytes[..len]).is_err(), "{record:?} {len}");
            }
        }
    }

    #[test]
    fn more_ids_than_channels_are_refused() {
        let mut bytes = Record::Accept { from: [7; 32], ids: vec![1; MAX_CHANNELS] }.encode();
        bytes[34] = 17;
        bytes.extend([0, 0, 1]);
        assert_eq!(Record::decode(&bytes), Err(DecodeError::Kind(17)));
    }

    proptest! {
        #[test]
        fn bytes_that_are_a_record_are_written_back_as_they_were(
            kind in 30..64_u8,
            rest in prop::collection::vec(any::<u8>(), 0..90),
        ) {
            let bytes = [&[1, kind][..], &rest].concat();
            if let Ok(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode().to_vec(), bytes);
            }
        }
    }
}
