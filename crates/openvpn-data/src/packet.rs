//! OpenVPN's data packets in AEAD mode.
//!
//! ```text
//! DATA_V2:  opcode/key id 1 | peer-id 3 | packet id 4 | tag 16 | ciphertext    AAD: the first 8 bytes
//! DATA_V1:  opcode/key id 1 |             packet id 4 | tag 16 | ciphertext    AAD: the packet id
//! ```

use adit_crypto::aead::{SealKey, TAG_LEN};
use adit_crypto::epoch::EpochKey;
use adit_dataplane::SenderField;

/// Opcode of data packets without a peer-id.
pub const DATA_V1: u8 = 6;
/// Opcode of data packets with a peer-id.
pub const DATA_V2: u8 = 9;
/// The peer-id that means "none".
pub const NO_PEER_ID: u32 = 0x00ff_ffff;

/// The position of the peer-id in DATA_V2 packets. With it, the kernel can pass packets to the right worker. It is not
/// authenticated at that point: a forger chooses the worker that refuses the packets, but could also do so with the
/// source port.
pub const SENDER: SenderField =
    SenderField { lead: 0xf800_0000, value: (DATA_V2 as u32) << 27, sender: NO_PEER_ID };

const V1_AAD: usize = 1;
const V2_PREFIX: usize = 4;
const ID_LEN: usize = 4;
const EPOCH_ID_LEN: usize = 8;

/// The number of bytes that the longer of the two formats adds to a packet.
pub const OVERHEAD: usize = V2_PREFIX + ID_LEN + TAG_LEN;

/// The header of a data packet, from which its peer and key are found.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct DataHeader {
    /// The 5-bit opcode.
    pub opcode: u8,
    /// The 3-bit key id.
    pub key_id: u8,
    /// The peer-id of a DATA_V2 packet, unless it is [`NO_PEER_ID`].
    pub peer_id: Option<u32>,
}

impl DataHeader {
    /// Returns the length of the header on the wire.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        if self.opcode == DATA_V2 { V2_PREFIX } else { V1_AAD }
    }

    /// Parses the header of a datagram; `None` if it is too short.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let first = *datagram.first()?;
        let opcode = first >> 3;
        let peer_id = match opcode {
            DATA_V2 => {
                let word = u32::from_be_bytes(*datagram.first_chunk()?);
                Some(word & NO_PEER_ID).filter(|id| *id != NO_PEER_ID)
            }
            _ => None,
        };
        Some(Self { opcode, key_id: first & 7, peer_id })
    }
}

/// The parts of a sealed packet.
#[derive(Debug)]
pub struct SealedPacket<'a> {
    /// The packet id, for the replay window; also part of the nonce.
    pub packet_id: u32,
    /// The bytes that are authenticated but not encrypted.
    pub aad: &'a [u8],
    /// The authentication tag.
    pub tag: &'a [u8; TAG_LEN],
    /// The ciphertext, to be opened in place.
    pub text: &'a mut [u8],
}

/// Parses a data packet; returns `None` if it is too short or not a data packet.
#[inline]
pub fn parse(datagram: &mut [u8]) -> Option<SealedPacket<'_>> {
    let (start, end) = match datagram.first()? >> 3 {
        DATA_V2 => (0, V2_PREFIX + ID_LEN),
        DATA_V1 => (V1_AAD, V1_AAD + ID_LEN),
        _ => return None,
    };
    let (head, rest) = datagram.split_at_mut_checked(end)?;
    let (tag, text) = rest.split_first_chunk_mut::<TAG_LEN>()?;
    let aad: &[u8] = head.get(start..)?;
    let packet_id = u32::from_be_bytes(*aad.last_chunk()?);
    Some(SealedPacket { packet_id, aad, tag, text })
}

/// The parts of a packet in the epoch format.
#[derive(Debug)]
pub struct EpochSealed<'a> {
    /// The epoch (16 bits) and counter (48 bits), for the key, replay window and nonce.
    pub packet_id: u64,
    /// The bytes that are authenticated but not encrypted.
    pub aad: &'a [u8],
    /// The authentication tag.
    pub tag: &'a [u8; TAG_LEN],
    /// The ciphertext, to be opened in place.
    pub text: &'a mut [u8],
}

/// Parses a data packet in the epoch format, `header 4 or 1 | packet id 8 | ciphertext | tag 16`; returns `None` if it
/// is too short or not a data packet.
#[inline]
pub fn parse_epoch(datagram: &mut [u8]) -> Option<EpochSealed<'_>> {
    let (start, end) = match datagram.first()? >> 3 {
        DATA_V2 => (0, V2_PREFIX + EPOCH_ID_LEN),
        DATA_V1 => (V1_AAD, V1_AAD + EPOCH_ID_LEN),
        _ => return None,
    };
    let (head, rest) = datagram.split_at_mut_checked(end)?;
    let (text, tag) = rest.split_last_chunk_mut::<TAG_LEN>()?;
    let aad: &[u8] = head.get(start..)?;
    let packet_id = u64::from_be_bytes(*aad.last_chunk()?);
    Some(EpochSealed { packet_id, aad, tag, text })
}

/// Returns the length of the header of a data packet: opcode and peer-id, if any.
#[inline]
pub fn header_len(datagram: &[u8]) -> usize {
    match datagram.first() {
        Some(first) if first >> 3 == DATA_V2 => V2_PREFIX,
        _ => V1_AAD,
    }
}

/// The bytes before the packet id in packets to one peer under one key.
#[derive(Copy, Clone, Debug)]
pub struct Prefix {
    bytes: [u8; V2_PREFIX],
    v2: bool,
}

impl Prefix {
    /// Creates a DATA_V2 header with a peer-id, or a DATA_V1 header without one.
    pub fn new(key_id: u8, wire_id: Option<u32>) -> Self {
        match wire_id {
            Some(id) => {
                let lead = u32::from(DATA_V2 << 3 | key_id & 7) << 24;
                Self { bytes: (lead | id & NO_PEER_ID).to_be_bytes(), v2: true }
            }
            None => Self { bytes: [DATA_V1 << 3 | key_id & 7, 0, 0, 0], v2: false },
        }
    }

    /// Returns the header's bytes.
    #[inline]
    pub fn head(&self) -> &[u8] {
        let len = if self.v2 { V2_PREFIX } else { V1_AAD };
        self.bytes.get(..len).unwrap_or(&self.bytes)
    }

    /// Seals `plain` in the epoch format into the start of `out`; returns the length, or `None` if `out` is too short
    /// or the crypto library reports an error.
    #[inline]
    pub fn seal_epoch(
        &self,
        key: &EpochKey,
        packet_id: u64,
        plain: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        let lead = self.head();
        let head_len = lead.len().checked_add(EPOCH_ID_LEN)?;
        let len = head_len.checked_add(plain.len())?.checked_add(TAG_LEN)?;
        let (head, rest) = out.get_mut(..len)?.split_at_mut_checked(head_len)?;
        let (text, tag) = rest.split_last_chunk_mut::<TAG_LEN>()?;
        let (start, id) = head.split_last_chunk_mut::<EPOCH_ID_LEN>()?;
        start.copy_from_slice(lead);
        *id = packet_id.to_be_bytes();
        // Without a peer-id the header is not authenticated, as in the previous format.
        let aad = if self.v2 { &*head } else { head.get(V1_AAD..)? };
        key.seal(packet_id, aad, plain, text, tag).ok().map(|()| len)
    }

    /// Returns the bytes that sealing adds to a packet.
    #[inline]
    pub fn overhead(&self) -> usize {
        if self.v2 { OVERHEAD } else { OVERHEAD - 3 }
    }

    /// Seals `plain` into the start of `out`; returns the length, or `None` if `out` is too short or the crypto library
    /// reports an error.
    #[inline(always)]
    pub fn seal(
        &self,
        key: &SealKey,
        packet_id: u32,
        plain: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        let len = self.overhead().checked_add(plain.len())?;
        let out = out.get_mut(..len)?;
        let text = if self.v2 {
            let (head, rest) = out.split_first_chunk_mut::<{ V2_PREFIX + ID_LEN }>()?;
            let (tag, text) = rest.split_first_chunk_mut::<TAG_LEN>()?;
            let wide = u64::from(u32::from_be_bytes(self.bytes)) << 32 | u64::from(packet_id);
            *head = wide.to_be_bytes();
            key.seal(packet_id, head, plain, text, tag)
        } else {
            let (head, rest) = out.split_first_mut()?;
            let (id, rest) = rest.split_first_chunk_mut::<ID_LEN>()?;
            let (tag, text) = rest.split_first_chunk_mut::<TAG_LEN>()?;
            *head = *self.bytes.first()?;
            *id = packet_id.to_be_bytes();
            key.seal(packet_id, id, plain, text, tag)
        };
        text.ok().map(|()| len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_crypto::aead::OpenKey;
    use adit_crypto::{Cipher, DirectionKey};
    use proptest::prelude::*;

    /// Returns the key of the reference implementation's test_ssl.c.
    fn vector_key() -> DirectionKey {
        let text = b"abcdefgh01234567ABCDEFGHjkuchenl";
        let at = |i: usize| text[i % 32] ^ i as u8;
        DirectionKey { cipher: std::array::from_fn(at), hmac: std::array::from_fn(|i| at(i + 64)) }
    }

    const PLAIN: &[u8] = b"The quick little fox jumps over the bureaucratic hurdles";

    #[test]
    fn the_reference_implementations_vector() {
        let key = SealKey::new(Cipher::Aes256Gcm, &vector_key()).unwrap();
        // Its header 07000017 would not occur in a DATA_V2 packet; only the AAD matters.
        let prefix = Prefix { bytes: [7, 0, 0, 0x17], v2: true };
        let mut out = [0u8; 100];
        let len = prefix.seal(&key, 1, PLAIN, &mut out).unwrap();
        assert_eq!(out[..8], [7, 0, 0, 0x17, 0, 0, 0, 1]);
        let tag: String = out[8..24].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(tag, "1fdd908f0e9dc25e79d832020d58e73f");
        assert_eq!(len, PLAIN.len() + OVERHEAD);
    }

    #[test]
    fn both_formats_open_what_they_sealed() {
        let seal = SealKey::new(Cipher::Aes256Gcm, &vector_key()).unwrap();
        let open = OpenKey::new(Cipher::Aes256Gcm, &vector_key()).unwrap();
        for (wire_id, opcode) in [(Some(0x123456), DATA_V2), (None, DATA_V1)] {
            let prefix = Prefix::new(5, wire_id);
            let mut out = [0u8; 100];
            let len = prefix.seal(&seal, 77, PLAIN, &mut out).unwrap();
            let datagram = &mut out[..len];
            let lead = DataHeader::parse(datagram).unwrap();
            assert_eq!(lead, DataHeader { opcode, key_id: 5, peer_id: wire_id });
            let sealed = parse(datagram).unwrap();
            assert_eq!(sealed.packet_id, 77);
            open.open(77, sealed.aad, sealed.tag, sealed.text).unwrap();
            assert_eq!(sealed.text, PLAIN);
        }
    }

    #[test]
    fn v1_authenticates_the_packet_id_only() {
        let seal = SealKey::new(Cipher::Aes256Gcm, &vector_key()).unwrap();
        let mut out = [0u8; 100];
        let len = Prefix::new(0, None).seal(&seal, 9, PLAIN, &mut out).unwrap();
        assert_eq!(parse(&mut out[..len]).unwrap().aad, [0, 0, 0, 9]);
    }

    #[test]
    fn too_small_a_buffer_is_refused() {
        let seal = SealKey::new(Cipher::Aes256Gcm, &vector_key()).unwrap();
        let mut out = [0u8; 79];
        assert_eq!(Prefix::new(0, Some(1)).seal(&seal, 1, PLAIN, &mut out), None);
    }

    #[test]
    fn the_peer_id_that_means_none_is_none() {
        assert_eq!(DataHeader::parse(&[DATA_V2 << 3, 0xff, 0xff, 0xff]).unwrap().peer_id, None);
        assert_eq!(DataHeader::parse(&[DATA_V2 << 3, 0, 0, 0]).unwrap().peer_id, Some(0));
        assert_eq!(DataHeader::parse(&[DATA_V2 << 3, 0, 0]), None);
        assert_eq!(DataHeader::parse(&[]), None);
    }

    proptest! {
        #[test]
        fn no_datagram_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = DataHeader::parse(&bytes);
            if let Some(sealed) = parse(&mut bytes) {
                prop_assert!(sealed.aad.len() == 4 || sealed.aad.len() == 8);
            }
        }
    }
}
