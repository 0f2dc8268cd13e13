//! Path messages that travel as records through a session with a relay or with the peer.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt;
use std::net::SocketAddr;

use zeroize::Zeroizing;

use super::candidate::{Candidate, MAX_CANDIDATES};
use super::nat::NatKind;
use super::probe::{MAX_PROBE, Tag};
use crate::wire::{DecodeError, Decoder, open_record, put_address, put_head};

/// The longest record.
pub const MAX_RECORD: usize = 1024;

/// A path message in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The sender's addresses, and when to probe.
    Offer(Box<Offer>),
    /// The address at which the sender sees the receiver.
    Observed(SocketAddr),
    /// A probe or an echo through a relay.
    Probe(Vec<u8>),
}

/// The sender's addresses and the secret of its probes.
#[derive(Clone, PartialEq, Eq)]
pub struct Offer {
    /// The number of the offer. It increases with each offer under one [`Tag`].
    pub sequence: u64,
    /// The tag of probes to the sender. A restarted node chooses a new one.
    pub tag: Tag,
    /// The sender's half of the keys that authenticate probes.
    pub secret: Zeroizing<[u8; 32]>,
    /// Whether this offer answers another.
    pub purpose: Purpose,
    /// The round trip from the sender to the relay, in milliseconds.
    pub relay_rtt_ms: u16,
    /// The NAT in front of the sender.
    pub nat: NatKind,
    /// The sender's addresses, at most [`MAX_CANDIDATES`].
    pub candidates: Vec<Candidate>,
}

/// The reason for an [`Offer`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The sender asks for the receiver's addresses.
    Ask,
    /// The sender answers an offer.
    Answer {
        /// The sequence number of the answered offer.
        to: u64,
        /// The time from sending this record until both sides send their first probes, in milliseconds.
        punch_in_ms: u16,
    },
}

impl Record {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Offer(offer) => {
                put_head(1, &mut out);
                offer.encode(&mut out);
            }
            Self::Observed(address) => {
                put_head(2, &mut out);
                put_address(*address, &mut out);
            }
            Self::Probe(bytes) => {
                put_head(3, &mut out);
                out.extend(bytes);
            }
        }
        debug_assert!(out.len() <= MAX_RECORD, "a record of {} bytes", out.len());
        out
    }

    /// Decodes a record. Only the exact output of [`Record::encode`] is accepted.
    ///
    /// # Errors
    /// Fails with the first deviation from the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut from) = open_record(bytes, MAX_RECORD)?;
        match kind {
            1 => Ok(Self::Offer(Box::new(Offer::decode(from)?))),
            2 => {
                let address = from.address()?;
                from.end()?;
                Ok(Self::Observed(address))
            }
            3 => {
                let probe = from.rest();
                if probe.len() > MAX_PROBE {
                    return Err(DecodeError::TooLong(probe.len()));
                }
                Ok(Self::Probe(probe.to_vec()))
            }
            kind => Err(DecodeError::Kind(kind)),
        }
    }
}

impl Offer {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.sequence.to_be_bytes());
        out.extend(self.tag.0);
        out.extend(self.secret.as_slice());
        match self.purpose {
            Purpose::Ask => out.push(0),
            Purpose::Answer { to, punch_in_ms } => {
                out.push(1);
                out.extend(to.to_be_bytes());
                out.extend(punch_in_ms.to_be_bytes());
            }
        }
        out.extend(self.relay_rtt_ms.to_be_bytes());
        out.push(self.nat.to_wire());
        debug_assert!(self.candidates.len() <= MAX_CANDIDATES, "too many candidates");
        out.push(u8::try_from(self.candidates.len()).unwrap_or(u8::MAX));
        self.candidates.iter().for_each(|candidate| candidate.encode(out));
    }

    fn decode(mut from: Decoder<'_>) -> Result<Self, DecodeError> {
        let sequence = from.u64()?;
        let tag = Tag(from.array()?);
        let secret = Zeroizing::new(from.array()?);
        let purpose = match from.u8()? {
            0 => Purpose::Ask,
            1 => Purpose::Answer { to: from.u64()?, punch_in_ms: from.u16()? },
            other => return Err(DecodeError::Kind(other)),
        };
        let relay_rtt_ms = from.u16()?;
        let nat = from.u8()?;
        let nat = NatKind::from_wire(nat).ok_or(DecodeError::Kind(nat))?;
        let count = usize::from(from.u8()?);
        if count > MAX_CANDIDATES {
            return Err(DecodeError::TooManyCandidates(count));
        }
        let mut candidates = Vec::with_capacity(count);
        for _ in 0..count {
            let candidate = Candidate::decode(&mut from)?;
            if candidates.contains(&candidate) {
                return Err(DecodeError::DuplicateCandidate);
            }
            candidates.push(candidate);
        }
        from.end()?;
        Ok(Self { sequence, tag, secret, purpose, relay_rtt_ms, nat, candidates })
    }
}

// Written by hand to keep the secret out of logs.
impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer")
            .field("sequence", &self.sequence)
            .field("tag", &self.tag)
            .field("purpose", &self.purpose)
            .field("nat", &self.nat)
            .field("candidates", &self.candidates)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::CandidateKind;

    fn candidate(number: u8, kind: CandidateKind) -> Candidate {
        Candidate::new(SocketAddr::from(([192, 0, 2, number], 1194)), kind).unwrap()
    }

    fn offer(candidates: Vec<Candidate>) -> Offer {
        Offer {
            sequence: 7,
            tag: Tag([1; 8]),
            secret: Zeroizing::new([2; 32]),
            purpose: Purpose::Answer { to: 6, punch_in_ms: 40 },
            relay_rtt_ms: 30,
            nat: NatKind::Symmetric { sequential: true },
            candidates,
        }
    }

    fn records() -> Vec<Record> {
        let kinds = [
            CandidateKind::Own,
            CandidateKind::Mapped,
            CandidateKind::Observed,
            CandidateKind::Relay([9; 32]),
            CandidateKind::Stream,
        ];
        let mut candidates: Vec<_> =
            kinds.into_iter().zip(1..).map(|(kind, n)| candidate(n, kind)).collect();
        let v6 = "[2001:db8::1]:443".parse().unwrap();
        candidates.extend(Candidate::new(v6, CandidateKind::Own));
        vec![
            Record::Offer(Box::new(offer(candidates))),
            Record::Offer(Box::new(Offer { purpose: Purpose::Ask, ..offer(Vec::new()) })),
            Record::Observed("203.0.113.7:40001".parse().unwrap()),
            Record::Probe(vec![1, 2, 3]),
        ]
    }

    #[test]
    fn records_are_decoded_as_they_were_encoded() {
        for record in records() {
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Ok(record));
        }
    }

    #[test]
    fn no_part_of_a_record_is_a_record_and_nothing_may_follow_it() {
        for record in records() {
            let mut bytes = record.encode();
            if matches!(record, Record::Probe(_)) {
                continue;
            }
            for len in 0..bytes.len() {
                assert_eq!(Record::decode(&bytes[..len]), Err(DecodeError::Truncated), "{len}");
            }
            bytes.push(0);
            assert_eq!(Record::decode(&bytes), Err(DecodeError::TrailingBytes(1)));
        }
    }

    #[test]
    fn too_many_candidates_are_refused_and_as_many_as_allowed_are_not() {
        let candidates = |count: u8| {
            (1..=count).map(|n| candidate(n, CandidateKind::Relay([n; 32]))).collect::<Vec<_>>()
        };
        let most = u8::try_from(MAX_CANDIDATES).unwrap();
        let full = Record::Offer(Box::new(offer(candidates(most)))).encode();
        assert!(Record::decode(&full).is_ok());
        let mut more = full.clone();
        let count_at = full.len() - MAX_CANDIDATES * (1 + 7 + 32) - 1;
        assert_eq!(more[count_at], most);
        more[count_at] += 1;
        candidate(99, CandidateKind::Own).encode(&mut more);
        assert_eq!(Record::decode(&more), Err(DecodeError::TooManyCandidates(17)));
    }

    #[test]
    fn a_candidate_may_appear_once() {
        let twice = vec![candidate(1, CandidateKind::Own); 2];
        let bytes = Record::Offer(Box::new(offer(twice))).encode();
        assert_eq!(Record::decode(&bytes), Err(DecodeError::DuplicateCandidate));
    }

    #[test]
    fn other_versions_kinds_and_lengths_are_refused() {
        let bytes = Record::Observed("203.0.113.7:40001".parse().unwrap()).encode();
        let altered = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Record::decode(&bytes)
        };
        assert_eq!(altered(0, 2), Err(DecodeError::Version(2)));
        assert_eq!(altered(1, 4), Err(DecodeError::Kind(4)));
        assert_eq!(altered(2, 5), Err(DecodeError::Address));
        assert_eq!(altered(3, 127), Err(DecodeError::Address), "a loopback address");
        let long = Record::decode(&[1; MAX_RECORD + 1]);
        assert_eq!(long, Err(DecodeError::TooLong(MAX_RECORD + 1)));
        let probe = [&[1, 3][..], &[0; MAX_PROBE + 1]].concat();
        assert_eq!(Record::decode(&probe), Err(DecodeError::TooLong(MAX_PROBE + 1)));
    }

    #[test]
    fn the_secret_is_not_printed() {
        let record = Record::Offer(Box::new(offer(Vec::new())));
        assert!(!format!("{record:?}").contains("2, 2, 2"));
    }
}
