//! The compression framing inside the encryption, and the two magic messages of OpenVPN's data
//! channel.

use adit_openvpn::data_format::{Framing, FramingError};

/// The content of a keepalive ping.
pub const PING: [u8; 16] = [
    0x2a, 0x18, 0x7b, 0xf3, 0x64, 0x1e, 0xb4, 0xcb, 0x07, 0xed, 0x2d, 0x0a, 0x98, 0x1f, 0xc7, 0x48,
];

/// The prefix of in-band control messages (OCC). The next byte is the message's kind.
pub const OCC: [u8; 16] = [
    0x28, 0x7f, 0x34, 0x6b, 0xd4, 0xef, 0x7a, 0x81, 0x2d, 0x56, 0xb8, 0xd3, 0xaf, 0xc5, 0x45, 0x9c,
];

/// The kind of message that requests the sizes of the largest datagrams received and sent. It may
/// be padded.
pub const OCC_MTU_REQUEST: u8 = 4;
/// The answer: two sizes, `u16` big-endian.
pub const OCC_MTU_REPLY: u8 = 5;

const LZO_STUB: u8 = 0xfa;
const SWAP_STUB: u8 = 0xfb;
const V2_ESCAPE: u8 = 0x50;
/// The byte that follows the escape.
const V2_PLAIN: u8 = 0;
const V2_LZ4: u8 = 1;
const V2_LZO: u8 = 2;
/// The byte before packets compressed with LZO.
const LZO: u8 = 0x66;
const LZ4: u8 = 0x69;

/// The maximum number of bytes that framing adds.
pub const MAX_ADDED: usize = 2;

/// The compression algorithm of a packet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Compression {
    /// An LZ4 block.
    Lz4,
    /// LZO1X.
    Lzo,
}

/// A received packet without its framing.
#[derive(Debug, Eq, PartialEq)]
pub enum UnframedPacket<'t> {
    /// The packet.
    Plain(&'t mut [u8]),
    /// The packet, compressed.
    Compressed(Compression, &'t mut [u8]),
}

/// Removes the framing of a received packet.
///
/// # Errors
/// The framing is not the negotiated one, or the packet is compressed in a way that was not
/// negotiated.
#[inline]
pub fn strip(framing: Framing, text: &mut [u8]) -> Result<UnframedPacket<'_>, FramingError> {
    match framing {
        Framing::None => Ok(UnframedPacket::Plain(text)),
        Framing::LzoStub => match text.split_first_mut() {
            Some((&mut LZO_STUB, packet)) => Ok(UnframedPacket::Plain(packet)),
            Some((&mut LZO, packet)) => Ok(UnframedPacket::Compressed(Compression::Lzo, packet)),
            Some((&mut LZ4, _)) => Err(FramingError::Compressed),
            _ => Err(FramingError::Framing),
        },
        Framing::SwapStub => {
            // The packet's first byte is at the end; an empty packet consists of only the stub.
            let (head, packet) = text.split_last_mut().ok_or(FramingError::Framing)?;
            let Some(first) = packet.first_mut() else {
                return match *head {
                    SWAP_STUB => Ok(UnframedPacket::Plain(packet)),
                    _ => Err(FramingError::Framing),
                };
            };
            match std::mem::replace(first, *head) {
                SWAP_STUB => Ok(UnframedPacket::Plain(packet)),
                LZ4 => Ok(UnframedPacket::Compressed(Compression::Lz4, packet)),
                LZO => Err(FramingError::Compressed),
                _ => Err(FramingError::Framing),
            }
        }
        Framing::StubV2 => match text {
            // Older peers use 0A as the escape.
            [V2_ESCAPE, V2_PLAIN | 0x0a, packet @ ..] => Ok(UnframedPacket::Plain(packet)),
            [V2_ESCAPE, V2_LZ4, packet @ ..] => {
                Ok(UnframedPacket::Compressed(Compression::Lz4, packet))
            }
            [V2_ESCAPE, V2_LZO, packet @ ..] => {
                Ok(UnframedPacket::Compressed(Compression::Lzo, packet))
            }
            [V2_ESCAPE, ..] => Err(FramingError::Compressed),
            _ => Ok(UnframedPacket::Plain(text)),
        },
    }
}

/// Frames an outgoing packet into `out`. Returns `None` if `out` is too short.
pub fn frame<'o>(framing: Framing, packet: &[u8], out: &'o mut [u8]) -> Option<&'o [u8]> {
    let (before, body, after): (&[u8], &[u8], &[u8]) = match (framing, packet) {
        (Framing::LzoStub, _) => (&[LZO_STUB], packet, &[]),
        (Framing::SwapStub, [_, rest @ ..]) => (&[SWAP_STUB], rest, packet.get(..1)?),
        (Framing::StubV2, [V2_ESCAPE, ..]) => (&[V2_ESCAPE, 0], packet, &[]),
        _ => (&[], packet, &[]),
    };
    let mut len = 0usize;
    for part in [before, body, after] {
        let end = len.checked_add(part.len())?;
        out.get_mut(len..end)?.copy_from_slice(part);
        len = end;
    }
    out.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_forms_on_the_wire() {
        let mut out = [0u8; 8];
        assert_eq!(frame(Framing::LzoStub, b"abc", &mut out), Some(&b"\xfaabc"[..]));
        assert_eq!(frame(Framing::SwapStub, b"abc", &mut out), Some(&b"\xfbbca"[..]));
        assert_eq!(frame(Framing::StubV2, b"abc", &mut out), Some(&b"abc"[..]));
        assert_eq!(frame(Framing::StubV2, b"\x50bc", &mut out), Some(&b"\x50\x00\x50bc"[..]));
        assert_eq!(frame(Framing::None, b"123456789", &mut out), None);
    }

    fn plain(framing: Framing, mut text: Vec<u8>) -> Result<Vec<u8>, FramingError> {
        match strip(framing, &mut text)? {
            UnframedPacket::Plain(packet) => Ok(packet.to_vec()),
            UnframedPacket::Compressed(..) => panic!("packed"),
        }
    }

    #[test]
    fn compressed_packets_are_told_apart() {
        let packed = |framing, mut text: Vec<u8>| match strip(framing, &mut text) {
            Ok(UnframedPacket::Compressed(packed, packet)) => Some((packed, packet.to_vec())),
            _ => None,
        };
        use Compression::{Lz4, Lzo};
        assert_eq!(packed(Framing::LzoStub, vec![0x66, 1, 2]), Some((Lzo, vec![1, 2])));
        assert_eq!(packed(Framing::SwapStub, vec![0x69, 2, 1]), Some((Lz4, vec![1, 2])));
        assert_eq!(packed(Framing::StubV2, vec![0x50, 1, 2]), Some((Lz4, vec![2])));
        assert_eq!(packed(Framing::StubV2, vec![0x50, 2, 2]), Some((Lzo, vec![2])));
    }

    #[test]
    fn unframed_packets_are_refused() {
        let compressed = Err(FramingError::Compressed);
        assert_eq!(plain(Framing::LzoStub, vec![0x69, 1, 2]), compressed);
        assert_eq!(plain(Framing::SwapStub, vec![0x66, 1, 2]), compressed);
        assert_eq!(plain(Framing::StubV2, vec![0x50, 3, 2]), compressed);
        let other = Err(FramingError::Framing);
        assert_eq!(plain(Framing::LzoStub, vec![]), other);
        assert_eq!(plain(Framing::LzoStub, vec![0x45, 1, 2]), other);
        assert_eq!(plain(Framing::SwapStub, vec![0x45, 1, 2]), other);
        assert_eq!(plain(Framing::SwapStub, vec![]), other);
        assert_eq!(plain(Framing::StubV2, vec![0x50, 0x0a, 2]), Ok(vec![2]));
        assert_eq!(plain(Framing::SwapStub, vec![0xfb]), Ok(vec![]));
    }

    proptest! {
        #[test]
        fn what_is_framed_can_be_stripped(
            packet in proptest::collection::vec(any::<u8>(), 1..50), kind in 0usize..4,
        ) {
            let framing =
                [Framing::None, Framing::LzoStub, Framing::SwapStub, Framing::StubV2][kind];
            let mut out = [0u8; 64];
            let framed = frame(framing, &packet, &mut out).unwrap().to_vec();
            prop_assert!(framed.len() <= packet.len() + MAX_ADDED);
            prop_assert_eq!(plain(framing, framed), Ok(packet));
        }

        #[test]
        fn nothing_received_panics(
            mut text in proptest::collection::vec(any::<u8>(), 0..20), kind in 0usize..4,
        ) {
            let framing =
                [Framing::None, Framing::LzoStub, Framing::SwapStub, Framing::StubV2][kind];
            let _ = strip(framing, &mut text);
        }
    }
}
