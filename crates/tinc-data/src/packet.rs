//! Datagrams and the records in them.

use adit_tinc::aead::{Key, TAG_LEN};
use adit_tinc::name::NodeId;

/// Length of the identifiers of destination and source.
pub const IDS: usize = 2 * NodeId::LEN;

/// Length of the sequence number.
const SEQNO: usize = 4;

/// The number of bytes by which a datagram is longer than the IP packet in it.
pub const OVERHEAD: usize = IDS + SEQNO + 1 + TAG_LEN;

pub use adit_tinc::node::{FRAME, PACKET};

/// Replaces the type before a received frame, so that its text differs from that of a message. No type has this value.
const FRAME_TEXT: u8 = 0x50;

/// The identifiers before the records to one node.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Ids([u8; IDS]);

impl Ids {
    /// Creates those of datagrams to a destination: [`NodeId::DIRECT`] if they are sent to it directly.
    pub fn between(destination: NodeId, source: NodeId) -> Self {
        let mut ids = [0; IDS];
        for (to, from) in ids.iter_mut().zip(destination.0.into_iter().chain(source.0)) {
            *to = from;
        }
        Self(ids)
    }

    /// Returns whether a datagram begins with them.
    #[inline]
    pub fn precede(&self, datagram: &[u8]) -> bool {
        datagram.starts_with(&self.0)
    }
}

/// The kind of packets in a session. Records of other types are messages.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Packets {
    /// IP packets, in router mode.
    #[default]
    Ip,
    /// Ethernet frames, in switch mode.
    Frames,
}

impl Packets {
    /// Returns the type of their records.
    pub fn record_type(self) -> u8 {
        match self {
            Self::Ip => PACKET,
            Self::Frames => FRAME,
        }
    }
}

/// Returns whether the text of a received record is that of a packet. Otherwise it is a message: a record with its type before the data.
#[inline]
pub fn is_packet(text: &[u8]) -> bool {
    is_ip(text) || text.first() == Some(&FRAME_TEXT)
}

/// Returns the packet in a text for which [`is_packet`] returned `true`.
#[inline]
pub fn packet(text: &mut [u8]) -> &mut [u8] {
    match text {
        [FRAME_TEXT, frame @ ..] => frame,
        other => other,
    }
}

/// Returns whether a text is an IP packet. Otherwise it is a record with its type before the data. No type has these values.
#[inline]
pub fn is_ip(text: &[u8]) -> bool {
    text.first().is_some_and(|first| matches!(first >> 4, 4 | 6))
}

/// Seals a packet of type `kind`, or without one a message, which begins with its type, into the start of `out`. Returns the length of the datagram,
/// or `None` if `out` is too short or the cryptographic library fails.
#[inline]
pub fn seal(
    ids: &Ids,
    key: &Key,
    seqno: u32,
    (kind, text): (Option<u8>, &[u8]),
    out: &mut [u8],
) -> Option<usize> {
    let start = usize::from(kind.is_some());
    let body = start.checked_add(text.len())?;
    let len = body.checked_add(IDS + SEQNO + TAG_LEN)?;
    let (head, rest) = out.get_mut(..len)?.split_first_chunk_mut::<IDS>()?;
    let (number, rest) = rest.split_first_chunk_mut::<SEQNO>()?;
    let (record, tag) = rest.split_last_chunk_mut::<TAG_LEN>()?;
    *head = ids.0;
    *number = seqno.to_be_bytes();
    let (place, data) = record.split_at_mut_checked(start)?;
    place.fill(kind.unwrap_or(PACKET));
    data.copy_from_slice(text);
    *tag = key.seal(seqno, record).ok()?;
    Some(len)
}

/// The parts of a datagram.
#[derive(Debug, Eq, PartialEq)]
pub struct Sealed<'d> {
    /// The sequence number.
    pub seqno: u32,
    /// The ciphertext of the type and the data: at least one byte.
    pub record: &'d mut [u8],
    /// The tag.
    pub tag: &'d [u8; TAG_LEN],
}

/// Parses a datagram behind its identifiers; `None` if it is too short.
#[inline]
pub fn parse(datagram: &mut [u8]) -> Option<Sealed<'_>> {
    let (_, rest) = datagram.split_first_chunk_mut::<IDS>()?;
    let (seqno, rest) = rest.split_first_chunk_mut::<SEQNO>()?;
    let (record, tag) = rest.split_last_chunk_mut::<TAG_LEN>()?;
    let seqno = u32::from_be_bytes(*seqno);
    (!record.is_empty()).then_some(Sealed { seqno, record, tag })
}

/// Returns the text of an opened record: a packet ([`is_packet`]), or otherwise the record with its type. `None` if its type looks like a packet.
#[inline]
pub fn text(packets: Packets, record: &mut [u8]) -> Option<&mut [u8]> {
    let start = match (packets, &mut *record) {
        (Packets::Ip, [PACKET, packet @ ..]) if is_ip(packet) => 1,
        (Packets::Frames, [kind, ..]) if *kind == FRAME => {
            *kind = FRAME_TEXT;
            0
        }
        (_, other) if is_packet(other) => return None,
        _ => 0,
    };
    record.get_mut(start..)
}

#[cfg(test)]
mod tests {
    use adit_tinc::aead::Cipher;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_packet_is_that_of_the_specification() {
        // The vector of the AEAD in section 20: key 00 to 1f, number 2, the record `00 "hello"`, here as a message.
        let bytes = std::array::from_fn(|at| at as u8);
        let key = Key::new(Cipher::ChaCha20Poly1305, bytes).unwrap();
        let mut out = [0; 64];
        let ids = Ids::between(NodeId::DIRECT, NodeId([1, 2, 3, 4, 5, 6]));
        let len = seal(&ids, &key, 2, (None, b"\0hello"), &mut out).unwrap();
        let expected = [
            0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 2, 0x4d, 0xa2, 0xd5, 0x9b, 0x66, 0x12,
            0xbb, 0x89, 0xf9, 0x3d, 0xa1, 0xd7, 0x8a, 0x1c, 0x38, 0x57, 0x2b, 0x26, 0x12, 0x5f,
            0xa8, 0x8e,
        ];
        assert_eq!(out[..len], expected);
        let parsed = parse(&mut out[..len]).unwrap();
        assert_eq!(parsed.seqno, 2);
        key.open(2, parsed.record, parsed.tag).unwrap();
        assert_eq!(parsed.record, b"\0hello");
    }

    #[test]
    fn a_buffer_that_is_too_short_is_refused() {
        let ids = Ids::between(NodeId([2; 6]), NodeId([1; 6]));
        let key = Key::new(Cipher::Aes256Gcm, [7; 32]).unwrap();
        for (kind, len) in [(Some(PACKET), 20 + OVERHEAD), (None, 20 + OVERHEAD - 1)] {
            let sealed = |room| seal(&ids, &key, 1, (kind, &[4; 20]), &mut vec![0; room]);
            assert_eq!(sealed(len - 1), None);
            assert_eq!(sealed(len), Some(len));
            assert_eq!(sealed(len + 9), Some(len));
        }
    }

    #[test]
    fn the_text_of_a_frame_differs_from_that_of_each_message() {
        let framed = |record: &mut [u8]| text(Packets::Frames, record).map(|text| text.to_vec());
        // Frames to these stations begin like the records of a probe, a packet and a handshake, and like an IP packet.
        for first in [4, 0, 2, 128, 0x45, 0x60, FRAME_TEXT] {
            let mut frame = framed(&mut [FRAME, first, 7]).unwrap();
            assert!(is_packet(&frame), "{first}");
            assert_eq!(packet(&mut frame), [first, 7]);
        }
        for kind in [0, 1, 3, 4, 128] {
            let message = framed(&mut [kind, FRAME_TEXT, 7]).unwrap();
            assert_eq!((message[0], is_packet(&message)), (kind, false));
        }
        assert_eq!(framed(&mut [FRAME_TEXT, 1]), None, "a type that would pass as a frame");
        assert_eq!(framed(&mut [0x45, 1]), None);
        assert_eq!(text(Packets::Ip, &mut [FRAME_TEXT, 1]), None);
        let in_router_mode = text(Packets::Ip, &mut [FRAME, 1, 2]).unwrap().to_vec();
        assert!(!is_packet(&in_router_mode), "the node decides about frames in router mode");
    }

    #[test]
    fn the_text_of_a_record_is_unambiguous() {
        let of = |record: &'static [u8]| {
            text(Packets::Ip, &mut record.to_vec()).map(|text| text.to_vec())
        };
        assert_eq!(of(&[0, 0x45, 1]).unwrap(), [0x45, 1]);
        assert_eq!(of(&[0, 0x60]).unwrap(), [0x60]);
        assert_eq!(of(&[4, 0, 0]).unwrap(), [4, 0, 0], "a probe");
        assert_eq!(of(&[0, 0x55]).unwrap(), [0, 0x55], "no IP packet");
        assert_eq!(of(&[0]).unwrap(), [0]);
        assert_eq!(of(&[128, 1]).unwrap(), [128, 1]);
        for kind in (0x40..0x50).chain(0x60..0x70) {
            assert_eq!(text(Packets::Ip, &mut [kind, 0x45]), None, "{kind}");
        }
    }

    proptest! {
        #[test]
        fn no_datagram_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let len = bytes.len();
            let parsed = parse(&mut bytes);
            prop_assert_eq!(parsed.is_some(), len >= OVERHEAD);
            if let Some(Sealed { record, .. }) = parsed {
                let _ = text(if len % 2 == 0 { Packets::Ip } else { Packets::Frames }, record);
            }
        }
    }
}
