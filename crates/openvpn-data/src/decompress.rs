//! Decompression of packets, with bounded output.

pub use super::framing::Compression;

/// Decompresses a packet into `into`, whose memory is reused. Returns `None` if the input is malformed or expands to more than `most`
/// bytes, because a few bytes can expand to megabytes.
pub fn decompress<'o>(
    compression: Compression,
    text: &[u8],
    most: u16,
    into: &'o mut Vec<u8>,
) -> Option<&'o mut [u8]> {
    into.resize(usize::from(most), 0);
    let written = match compression {
        Compression::Lz4 => lz4_flex::block::decompress_into(text, into).ok(),
        Compression::Lzo => lzokay::decompress::decompress(text, into).ok(),
    };
    into.get_mut(..written?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 512 zeros, compressed by LZO1X.
    const ZEROS: [u8; 10] = [0x12, 0, 0x20, 0, 0xdf, 0, 0, 0x11, 0, 0];
    /// A literal `a` and a match of 1 + 4 + 15 + 255 * n + 229 bytes, and five literals, in LZ4's block format.
    const RUN: [u8; 12] = [0x1f, b'a', 1, 0, 255, 226, 0x50, b'b', b'c', b'd', b'e', b'f'];

    #[test]
    fn both_formats_come_back() {
        let mut memory = Vec::new();
        let zeros = decompress(Compression::Lzo, &ZEROS, 512, &mut memory).unwrap();
        assert_eq!(zeros, [0; 512]);
        let run = decompress(Compression::Lz4, &RUN, 1500, &mut memory).unwrap();
        assert_eq!(run.len(), 1 + 4 + 15 + 255 + 226 + 5);
        assert!(run.ends_with(b"aabcdef"));
        // The previous contents of the memory do not show.
        let again = decompress(Compression::Lzo, &ZEROS, 600, &mut memory).unwrap();
        assert_eq!(again, [0; 512]);
    }

    #[test]
    fn a_bomb_ends_at_the_bound() {
        let mut memory = Vec::new();
        assert!(decompress(Compression::Lzo, &ZEROS, 511, &mut memory).is_none());
        let mut bomb = vec![0x1f, b'a', 1, 0];
        bomb.extend([255; 60_000]);
        bomb.extend(&RUN[5..]);
        assert!(decompress(Compression::Lz4, &bomb, 1500, &mut memory).is_none());
        let mut bomb = vec![0x12, 0, 0x20];
        bomb.extend([0; 60_000]);
        bomb.extend(&ZEROS[4..]);
        assert!(decompress(Compression::Lzo, &bomb, 1500, &mut memory).is_none());
        assert_eq!(memory.len(), 1500);
    }

    proptest! {
        #[test]
        fn garbage_is_no_packet_and_never_too_long(
            text in proptest::collection::vec(any::<u8>(), 0..200), most in 0_u16..2000,
        ) {
            for packed in [Compression::Lz4, Compression::Lzo] {
                let mut memory = Vec::new();
                let len = decompress(packed, &text, most, &mut memory).map_or(0, |packet| packet.len());
                prop_assert!(len <= usize::from(most) && memory.len() == usize::from(most));
            }
        }
    }
}
