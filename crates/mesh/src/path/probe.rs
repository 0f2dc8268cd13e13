//! Probes and their echoes: datagrams that show whether a path carries packets to the peer and back.
//!
//! ```text
//! first byte (1)  version (1)  kind (1)  tag (8)  nonce (16)  body  MAC (16)
//! ```
//!
//! A probe shares its socket with sessions. Its first byte has an OpenVPN opcode that no mesh session uses, so the data plane treats it as
//! a control packet. The tag was chosen by the receiver, and selects the peer there. The body of an echo contains the observed source
//! address and the size of the probe; the body of an MTU probe is padding; a plain probe has none. The MAC covers everything before it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::net::SocketAddr;

use adit_crypto::{CryptoError, Digest, HmacKey};

use super::KeyHash;
use crate::wire::{DecodeError, Decoder, put_address};

/// The first byte of probes: opcode 11 (`P_CONTROL_WKC_V1`) and key id 7.
pub const FIRST_BYTE: u8 = (11 << 3) | 7;

const VERSION: u8 = 1;
const MAC_LEN: usize = 16;
const HEADER_LEN: usize = 3 + 8 + 16;

/// The length of a probe without padding.
pub const MIN_PROBE: usize = HEADER_LEN + MAC_LEN;

/// The longest probe or echo that is not an MTU probe, and therefore the longest that a relay forwards.
pub const MAX_PROBE: usize = MIN_PROBE + 19 + 2;

/// The longest MTU probe: the payload of a UDP datagram in a jumbo frame.
const MAX_MTU_PROBE: usize = 9000;

/// The random tag that selects the peer at the receiver of a probe. The receiver chose it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub [u8; 8]);

/// The number of a probe and random bytes that only its receiver can return.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Nonce {
    /// The number of the probe, for replay detection.
    pub number: u64,
    /// Random bytes.
    pub random: [u8; 8],
}

/// The content of a probe.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// Asks for an echo.
    Probe,
    /// Asks for an echo; padded to a size that the path may not carry.
    MtuProbe {
        /// The number of bytes of padding.
        padding: usize,
    },
    /// Answers a probe.
    Echo {
        /// The source address of the probe, or `None` if it came through a relay.
        seen: Option<SocketAddr>,
        /// The length of the probe.
        size: u16,
    },
}

/// A probe or an echo.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The receiver's tag.
    pub tag: Tag,
    /// The probe's nonce. Its echo repeats it.
    pub nonce: Nonce,
    /// The content.
    pub kind: ProbeKind,
}

/// The key that authenticates the probes of one direction.
#[derive(Debug)]
pub struct ProbeKey(HmacKey);

impl ProbeKey {
    /// Derives the key of probes from one node to another. Only nodes that have seen the offers of both can derive it.
    ///
    /// # Errors
    /// Fails if the crypto library refuses the key.
    pub fn derive(
        from: (&KeyHash, &[u8; 32]),
        to: (&KeyHash, &[u8; 32]),
    ) -> Result<Self, CryptoError> {
        let secrets = zeroize::Zeroizing::new([*from.1, *to.1].concat());
        let derivation = HmacKey::new(Digest::Sha256, &secrets)?;
        let key = derivation.sign(&[b"adit mesh probe 1", from.0, to.0]);
        Ok(Self(HmacKey::new(Digest::Sha256, key.as_bytes())?))
    }

    /// Encodes a probe and appends the MAC.
    pub fn seal(&self, probe: &Probe) -> Vec<u8> {
        let mut out = probe.encode();
        let mac = self.0.sign(&[&out]);
        out.extend(mac.as_bytes().iter().take(MAC_LEN));
        out
    }

    /// Decodes a probe with a valid MAC.
    pub fn open(&self, bytes: &[u8]) -> Option<Probe> {
        let (body, mac) = bytes.split_last_chunk::<MAC_LEN>()?;
        let expected = self.0.sign(&[body]);
        let expected = expected.as_bytes().first_chunk::<MAC_LEN>()?;
        if !adit_crypto::constant_time_eq(mac, expected) {
            return None;
        }
        Probe::decode(body).ok()
    }
}

impl Probe {
    /// Returns the tag of a datagram if it looks like a probe, so that the caller can find the peer.
    pub fn tag_of(datagram: &[u8]) -> Option<Tag> {
        let ([FIRST_BYTE, VERSION, _], rest) = datagram.split_first_chunk()? else { return None };
        rest.first_chunk().copied().map(Tag)
    }

    /// Encodes everything but the MAC.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_PROBE);
        out.extend([FIRST_BYTE, VERSION]);
        out.push(match self.kind {
            ProbeKind::Probe => 1,
            ProbeKind::MtuProbe { .. } => 2,
            ProbeKind::Echo { .. } => 3,
        });
        out.extend(self.tag.0);
        out.extend(self.nonce.number.to_be_bytes());
        out.extend(self.nonce.random);
        match self.kind {
            ProbeKind::Probe => {}
            ProbeKind::MtuProbe { padding } => {
                out.resize(out.len().saturating_add(padding.min(MAX_MTU_PROBE)), 0);
            }
            ProbeKind::Echo { seen, size } => {
                match seen {
                    Some(seen) => put_address(seen, &mut out),
                    None => out.push(0),
                }
                out.extend(size.to_be_bytes());
            }
        }
        out
    }

    /// Decodes everything but the MAC.
    ///
    /// # Errors
    /// Fails with the first deviation from the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(bytes);
        let [first, version, kind] = from.array()?;
        if first != FIRST_BYTE {
            return Err(DecodeError::Kind(first));
        }
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let tag = Tag(from.array()?);
        let nonce = Nonce { number: from.u64()?, random: from.array()? };
        let kind = match kind {
            1 => {
                from.end()?;
                ProbeKind::Probe
            }
            2 => {
                let padding = from.rest();
                if padding.len() > MAX_MTU_PROBE {
                    return Err(DecodeError::TooLong(padding.len()));
                }
                if padding.iter().any(|byte| *byte != 0) {
                    return Err(DecodeError::Padding);
                }
                ProbeKind::MtuProbe { padding: padding.len() }
            }
            3 => {
                let echo = ProbeKind::Echo { seen: from.optional_address()?, size: from.u16()? };
                from.end()?;
                echo
            }
            other => return Err(DecodeError::Kind(other)),
        };
        Ok(Self { tag, nonce, kind })
    }
}

/// The probes of a peer that were already answered, by number.
///
/// The window is wider than the number of probes that a port search sends while a packet may still be on its way.
#[derive(Debug)]
pub struct ReplayWindow {
    /// The highest number so far, and a ring with one bit for each number below it.
    highest: u64,
    seen: [u64; Self::WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplayWindow {
    const WORDS: usize = 32;
    const LEN: u64 = 64 * Self::WORDS as u64;

    /// Creates a window that has seen no number.
    pub fn new() -> Self {
        Self { highest: 0, seen: [0; Self::WORDS] }
    }

    /// Records a number. Returns whether it is new, as far as the window remembers.
    pub fn accept(&mut self, number: u64) -> bool {
        if number == 0 || self.highest.saturating_sub(number) >= Self::LEN {
            return false;
        }
        if number.saturating_sub(self.highest) >= Self::LEN {
            self.seen = [0; Self::WORDS];
        } else if number > self.highest {
            for skipped in self.highest.saturating_add(1)..=number {
                *self.word(skipped) &= !Self::bit(skipped);
            }
        }
        self.highest = self.highest.max(number);
        let word = self.word(number);
        let first = *word & Self::bit(number) == 0;
        *word |= Self::bit(number);
        first
    }

    fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }

    // The index is taken modulo the length of the array.
    #[allow(clippy::indexing_slicing)]
    fn word(&mut self, number: u64) -> &mut u64 {
        &mut self.seen[(number / 64) as usize % Self::WORDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: (&KeyHash, &[u8; 32]) = (&[1; 32], &[11; 32]);
    const B: (&KeyHash, &[u8; 32]) = (&[2; 32], &[22; 32]);

    fn probes() -> [Probe; 5] {
        let nonce = Nonce { number: 5, random: [6; 8] };
        [
            ProbeKind::Probe,
            ProbeKind::MtuProbe { padding: 100 },
            ProbeKind::Echo { seen: Some("203.0.113.7:40001".parse().unwrap()), size: 43 },
            ProbeKind::Echo { seen: Some("[2001:db8::1]:1194".parse().unwrap()), size: 1452 },
            ProbeKind::Echo { seen: None, size: 43 },
        ]
        .map(|kind| Probe { tag: Tag([3; 8]), nonce, kind })
    }

    #[test]
    fn probes_are_decoded_as_they_were_encoded() {
        let key = ProbeKey::derive(A, B).unwrap();
        for probe in probes() {
            let bytes = key.seal(&probe);
            assert_eq!(Probe::tag_of(&bytes), Some(probe.tag));
            assert_eq!(key.open(&bytes), Some(probe));
            if !matches!(probe.kind, ProbeKind::MtuProbe { .. }) {
                assert!((MIN_PROBE..=MAX_PROBE).contains(&bytes.len()));
            }
        }
    }

    #[test]
    fn a_probe_opens_with_the_key_of_its_direction_alone() {
        let key = ProbeKey::derive(A, B).unwrap();
        let other_secret = (A.0, &[12; 32]);
        let others = [(B, A), (other_secret, B), (A, (&[4; 32], B.1))];
        for probe in probes() {
            let bytes = key.seal(&probe);
            for (from, to) in others {
                assert_eq!(ProbeKey::derive(from, to).unwrap().open(&bytes), None);
            }
            for at in 0..bytes.len() {
                let mut altered = bytes.clone();
                altered[at] ^= 1;
                assert_eq!(key.open(&altered), None, "byte {at}");
            }
        }
    }

    #[test]
    fn padding_is_zero_and_only_in_mtu_probes() {
        let mut probe = probes()[1].encode();
        *probe.last_mut().unwrap() = 1;
        assert_eq!(Probe::decode(&probe), Err(DecodeError::Padding));
        let mut probe = probes()[0].encode();
        probe.push(0);
        assert_eq!(Probe::decode(&probe), Err(DecodeError::TrailingBytes(1)));
    }

    #[test]
    fn the_replay_window_accepts_each_number_once() {
        let mut window = ReplayWindow::new();
        assert!(!window.accept(0));
        assert!(window.accept(1) && !window.accept(1));
        assert!(window.accept(ReplayWindow::LEN), "the highest that still remembers 1");
        assert!(!window.accept(1));
        assert!(window.accept(2) && !window.accept(2), "late");
        assert!(window.accept(ReplayWindow::LEN + 2));
        assert!(!window.accept(2), "too late, although its bit was not set again");
        assert!(window.accept(3));
        assert!(window.accept(u64::MAX) && !window.accept(u64::MAX) && !window.accept(3));
        assert!(window.accept(u64::MAX - 5));
    }
}
