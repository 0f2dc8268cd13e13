//! The base64 of tinc, which takes the bits of each byte from the least significant one.
//!
//! It is not RFC 4648: three bytes are one little-endian number, whose lowest six bits are the first character. There is no
//! padding. A decoder accepts two alphabets at once, the usual one and the one for URLs.

use std::sync::LazyLock;

use data_encoding::{BitOrder, Encoding, Specification};
use zeroize::Zeroizing;

const LETTERS_AND_DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

static STANDARD: LazyLock<Encoding> = LazyLock::new(|| encoding("+/", "-_"));
static URL: LazyLock<Encoding> = LazyLock::new(|| encoding("-_", "+/"));

/// Creates the encoding that writes the characters in `last` for 62 and 63, and also reads those in `also`.
fn encoding(last: &str, also: &str) -> Encoding {
    let mut specification = Specification::new();
    specification.symbols.push_str(LETTERS_AND_DIGITS);
    specification.symbols.push_str(last);
    specification.bit_order = BitOrder::LeastSignificantFirst;
    // tinc ignores the surplus bits of the last character, and accepts files in which they are set.
    specification.check_trailing_bits = false;
    specification.translate.from.push_str(also);
    specification.translate.to.push_str(last);
    specification.encoding().expect("the alphabet has 64 different characters")
}

/// Encodes bytes for messages and files.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Encodes bytes for invitations: with `-` and `_` in place of `+` and `/`.
pub fn encode_url(bytes: &[u8]) -> String {
    URL.encode(bytes)
}

/// Decodes a text in either alphabet. Returns `None` if it contains another character, or ends within a byte.
pub fn decode(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    STANDARD.decode(text).ok().map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_vectors_of_the_specification() {
        let vectors: [(&[u8], &str); 5] = [
            (b"", ""),
            (&[0x48], "IB"),
            (&[0, 1, 2], "AEgA"),
            (&[0xff, 0xff, 0xfe], "//v/"),
            (b"hello tinc", "oVGbs9GI0lmbjB"),
        ];
        for (bytes, text) in vectors {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text.as_bytes()).unwrap().as_slice(), bytes);
        }
        assert_eq!(encode_url(&[0xff, 0xff, 0xfe]), "__v_");
        assert_eq!(decode(b"_/v_").unwrap().as_slice(), [0xff, 0xff, 0xfe]);
    }

    #[test]
    fn a_foreign_character_or_half_a_byte_is_refused() {
        for bad in ["A=", "AA==", "A A", "AEg\n", "\u{e4}A", "A", "AEgAA"] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn surplus_bits_of_the_last_character_are_ignored() {
        assert_eq!(decode(b"I/").unwrap().as_slice(), [0xc8]);
        assert_eq!(decode(b"IB"), decode(b"IF"));
    }

    proptest! {
        #[test]
        fn every_text_decodes_to_its_bytes(bytes: Vec<u8>) {
            prop_assert_eq!(&*decode(encode(&bytes).as_bytes()).unwrap(), &bytes);
            prop_assert_eq!(&*decode(encode_url(&bytes).as_bytes()).unwrap(), &bytes);
        }

        #[test]
        fn no_text_panics(text: Vec<u8>) {
            let _ = decode(&text);
        }
    }
}
