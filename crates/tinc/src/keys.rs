//! The keys by which nodes know each other, and the files in which tinc stores them.
//!
//! They are Ed25519 keys. tinc stores a private key in its expanded form, the clamped scalar and the prefix for nonces that
//! RFC 8032 derives from a seed; the seed itself is lost. So this module signs with expanded keys.

use std::fmt;
use std::str::FromStr;

use adit_crypto::{Digest, hash, sign};
use adit_engine::Random;
use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::{EdwardsPoint, Scalar};
use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use ed25519_dalek::{Sha512, VerifyingKey};
use zeroize::Zeroizing;

use crate::base64;

/// Length of a public key, bytes.
pub const PUBLIC_LEN: usize = 32;

/// Length of a public key as text, characters.
pub const PUBLIC_TEXT_LEN: usize = 43;

/// Length of an expanded private key, bytes: the scalar, and the prefix.
pub const EXPANDED_LEN: usize = 64;

/// Length of a signature, bytes.
pub const SIGNATURE_LEN: usize = 64;

/// Length of the content of a private key file, bytes: the expanded key, and the public key.
const FILE_LEN: usize = EXPANDED_LEN + PUBLIC_LEN;

/// Number of bytes in each line of a file's block. A reader accepts any.
const LINE: usize = 48;

const PRIVATE_KIND: &str = "ED25519 PRIVATE KEY";
const PUBLIC_KIND: &str = "ED25519 PUBLIC KEY";

/// The reason why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The file has no block of the wanted kind.
    #[error("the file has no '-----BEGIN {0}-----' line")]
    NoBlock(&'static str),
    /// The block has no last line.
    #[error("the key's block has no '-----END {0}-----' line")]
    Unterminated(&'static str),
    /// A line of the block is not base64.
    #[error("line {0} of the key's block is not base64")]
    Line(usize),
    /// The block is too short or too long.
    #[error("the key's block has {actual} bytes instead of {expected}")]
    Length {
        /// The number of bytes of a valid block.
        expected: usize,
        /// The number of bytes found.
        actual: usize,
    },
    /// The two halves of a private key file do not belong to each other.
    #[error("the public key in the file is not the private key's")]
    Mismatch,
    /// The text of a public key has the wrong length or characters.
    #[error("a public key is {PUBLIC_TEXT_LEN} letters, digits, '+' and '/'")]
    PublicText,
    /// The bytes are no point of the curve, or one for which anybody can sign.
    #[error("the bytes are not an Ed25519 public key")]
    NotAKey,
}

/// A node's public key.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; PUBLIC_LEN]);

impl PublicKey {
    /// Creates a key from its bytes.
    ///
    /// # Errors
    /// Fails if the bytes are no point of the curve, or a point of small order.
    pub fn new(bytes: [u8; PUBLIC_LEN]) -> Result<Self, KeyError> {
        let point = CompressedEdwardsY(bytes).decompress();
        let usable = point.is_some_and(|point| !point.is_small_order());
        usable.then_some(Self(bytes)).ok_or(KeyError::NotAKey)
    }

    /// Reads the first block with a public key in a file, such as a host file.
    ///
    /// # Errors
    /// Fails if there is none, or if it is damaged.
    pub fn from_file(text: &str) -> Result<Self, KeyError> {
        let bytes = read_block(text, PUBLIC_KIND, PUBLIC_LEN)?;
        let bytes = bytes.as_slice().try_into().map_err(|_| KeyError::NotAKey)?;
        Self::new(bytes)
    }

    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8; PUBLIC_LEN] {
        &self.0
    }

    /// Returns whether `signature` is this key's signature of `message`.
    #[must_use]
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        sign::verify(&self.0, message, signature)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.len() != PUBLIC_TEXT_LEN {
            return Err(KeyError::PublicText);
        }
        let bytes = base64::decode(text.as_bytes()).ok_or(KeyError::PublicText)?;
        let bytes = bytes.as_slice().try_into().map_err(|_| KeyError::PublicText)?;
        Self::new(bytes)
    }
}

/// Writes the 43 characters of a host file's `Ed25519PublicKey`.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64::encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A node's private key.
pub struct PrivateKey {
    expanded: Zeroizing<[u8; EXPANDED_LEN]>,
    public: PublicKey,
}

impl PrivateKey {
    /// Generates a new key.
    pub fn generate(random: &mut Random) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        random.fill(&mut *seed);
        Self::from_seed(&seed)
    }

    /// Creates a key from a seed of 32 random bytes.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let expanded = expand(seed);
        let public = PublicKey(public_bytes(&expanded));
        Self { expanded, public }
    }

    /// Reads the key in a file in tinc's format, usually named `ed25519_key.priv`.
    ///
    /// # Errors
    /// Fails if the file has no such key, or if the key is damaged.
    pub fn from_file(text: &str) -> Result<Self, KeyError> {
        let bytes = read_block(text, PRIVATE_KIND, FILE_LEN)?;
        let wrong = KeyError::Length { expected: FILE_LEN, actual: bytes.len() };
        let Some((expanded, public)) = bytes.split_first_chunk::<EXPANDED_LEN>() else {
            return Err(wrong);
        };
        let expanded = Zeroizing::new(*expanded);
        let public = PublicKey::new(public.try_into().map_err(|_| wrong)?)?;
        // A signature with another public key would reveal the private key.
        if public_bytes(&expanded) != public.0 {
            return Err(KeyError::Mismatch);
        }
        Ok(Self { expanded, public })
    }

    /// Returns the content of a file in tinc's format.
    pub fn to_file(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_LEN));
        bytes.extend_from_slice(&*self.expanded);
        bytes.extend_from_slice(&self.public.0);
        // Long enough that the text is never moved.
        let mut text = Zeroizing::new(String::with_capacity(4 * FILE_LEN));
        text.push_str(&format!("-----BEGIN {PRIVATE_KIND}-----\n"));
        for line in bytes.chunks(LINE) {
            text.push_str(&Zeroizing::new(base64::encode(line)));
            text.push('\n');
        }
        text.push_str(&format!("-----END {PRIVATE_KIND}-----\n"));
        text
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs a message. The same message always gets the same signature.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        let key = ExpandedSecretKey::from_bytes(&self.expanded);
        let public = VerifyingKey::from(&key);
        raw_sign::<Sha512>(&key, message, &public).to_bytes()
    }
}

// Written by hand so that keys never reach a log.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({})", self.public)
    }
}

/// Expands a seed: SHA-512, whose first half becomes a clamped scalar.
pub(crate) fn expand(seed: &[u8; 32]) -> Zeroizing<[u8; EXPANDED_LEN]> {
    let digest = hash(Digest::Sha512, &[seed]);
    let mut expanded = Zeroizing::new([0; EXPANDED_LEN]);
    for (to, from) in expanded.iter_mut().zip(digest.as_bytes()) {
        *to = *from;
    }
    if let Some([first, .., last]) = expanded.first_chunk_mut::<32>() {
        *first &= 248;
        *last &= 63;
        *last |= 64;
    }
    expanded
}

/// Computes the public key of an expanded private key.
pub(crate) fn public_bytes(expanded: &[u8; EXPANDED_LEN]) -> [u8; PUBLIC_LEN] {
    let mut scalar = Zeroizing::new([0; 32]);
    for (to, from) in scalar.iter_mut().zip(expanded) {
        *to = *from;
    }
    EdwardsPoint::mul_base(&Scalar::from_bytes_mod_order(*scalar)).compress().to_bytes()
}

/// Reads the first block of a kind. Each line is encoded on its own. Text outside the block is ignored.
fn read_block(
    text: &str,
    kind: &'static str,
    expected: usize,
) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let begin = format!("-----BEGIN {kind}-----");
    let end = format!("-----END {kind}-----");
    let mut lines = text.lines().skip_while(|line| line.trim_end() != begin);
    lines.next().ok_or(KeyError::NoBlock(kind))?;
    // Long enough that a secret is never moved.
    let mut bytes = Zeroizing::new(Vec::with_capacity(expected));
    for (line, number) in lines.zip(1..) {
        let line = line.trim_end();
        if line == end {
            return match bytes.len() {
                actual if actual == expected => Ok(bytes),
                actual => Err(KeyError::Length { expected, actual }),
            };
        }
        let run = base64::decode(line.as_bytes()).ok_or(KeyError::Line(number))?;
        let actual = bytes.len().saturating_add(run.len());
        if actual > expected {
            return Err(KeyError::Length { expected, actual });
        }
        bytes.extend_from_slice(&run);
    }
    Err(KeyError::Unterminated(kind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{alice, bob, hex};

    const ALICE_FILE: &str = "-----BEGIN ED25519 PRIVATE KEY-----\n\
        Yhub7Xn+OxSQPYU4tlu9s6qGXMgUGGltbGsdAjovz7Ws6pCLzTNpa4oTYwcRIXWb\n\
        V5ozdDbr0um+Io4XT5r0SpIij3NdJEfl9L12twjudJnynlwvdQpEbMPdIGAtP8GX\n\
        -----END ED25519 PRIVATE KEY-----\n";

    #[test]
    fn the_vectors_of_the_specification() {
        let vectors = [
            (
                alice(),
                "58e86efb75fa4e2c410f46e16de9f6acae1a1703528651b69bc176c088bef36e
                 b17a2a2cf3d4a41a8e4e18cc45c8656d558eceddb0adb46bfa088a5f53bed252",
                "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
                "Ki44dTXCxXZ/StdL8obXyp8ZJ8bHUKxGzTHiBQ7DvxF",
            ),
            (
                bob(),
                "a83c626bc9c38c8c201878ebb1d5b0b50ac40e8986c78793db1d4ef369fca14e
                 67bdb50c138aad8fe3e6539e54f54e10f9a32399529a732be3d2243b867f6acc",
                "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394",
                "BmzdOgafX8lVjSlZDzkfMvcjKGJtufjodZ/Db9YyzSJ",
            ),
        ];
        for (key, expanded, public, text) in vectors {
            assert_eq!(key.expanded.as_slice(), hex(expanded));
            assert_eq!(key.public().as_bytes().as_slice(), hex(public));
            assert_eq!(key.public().to_string(), text);
            assert_eq!(text.parse(), Ok(key.public()));
            assert_eq!(format!("{key:?}"), format!("PrivateKey({text})"));
        }
        assert_eq!(*alice().to_file(), ALICE_FILE);
    }

    /// An expanded key makes the signatures of the seed that it comes from.
    #[test]
    fn signatures_are_those_of_ed25519() {
        let other = sign::SigningKey::from_seed(&[1; 32]).unwrap();
        assert_eq!(alice().sign(b"message"), other.sign(b"message").unwrap());
        assert!(alice().public().verify(b"message", &alice().sign(b"message")));
        assert!(!alice().public().verify(b"other", &alice().sign(b"message")));
        assert!(!alice().public().verify(b"message", &bob().sign(b"message")));
        assert!(!alice().public().verify(b"message", &alice().sign(b"message")[..63]));
    }

    #[test]
    fn a_file_is_read_line_by_line_and_other_text_in_it_ignored() {
        let lines: Vec<&str> = ALICE_FILE.lines().collect();
        // Each of the three runs ends within a group of four characters.
        let bytes = read_block(ALICE_FILE, PRIVATE_KIND, FILE_LEN).unwrap();
        let runs = [&bytes[..1], &bytes[1..51], &bytes[51..]].map(base64::encode);
        let text = format!(
            "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\nold\n{}\r\n{}\n{}\r\n{}\n{} \nmore\n",
            lines[0], runs[0], runs[1], runs[2], lines[3]
        );
        assert_eq!(PrivateKey::from_file(&text).unwrap().public(), alice().public());
        let public = base64::encode(bob().public().as_bytes());
        let host = format!(
            "Subnet = 10.0.0.0/8\n-----BEGIN {PUBLIC_KIND}-----\n{public}\n-----END {PUBLIC_KIND}-----\n"
        );
        assert_eq!(PublicKey::from_file(&host), Ok(bob().public()));
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_reason() {
        let read = |text: &str| PrivateKey::from_file(text).unwrap_err();
        assert_eq!(read(""), KeyError::NoBlock(PRIVATE_KIND));
        assert_eq!(read(&ALICE_FILE.replace("END", "ENDE")), KeyError::Line(3));
        let open = ALICE_FILE.lines().take(3).collect::<Vec<_>>().join("\n");
        assert_eq!(read(&open), KeyError::Unterminated(PRIVATE_KIND));
        let short = ALICE_FILE.replace("P8GX\n", "P8G\n");
        assert_eq!(read(&short), KeyError::Length { expected: 96, actual: 95 });
        let long = ALICE_FILE.replace("P8GX\n", "P8GX\nAA\n");
        assert_eq!(read(&long), KeyError::Length { expected: 96, actual: 97 });
        let mixed = [&alice().expanded[..], bob().public().as_bytes()].concat();
        let lines: String =
            mixed.chunks(LINE).map(|line| format!("{}\n", base64::encode(line))).collect();
        let mixed =
            format!("-----BEGIN {PRIVATE_KIND}-----\n{lines}-----END {PRIVATE_KIND}-----\n");
        assert_eq!(read(&mixed), KeyError::Mismatch);
    }

    #[test]
    fn what_is_not_a_public_key_is_refused() {
        let text = alice().public().to_string();
        let parse = |text: &str| text.parse::<PublicKey>().unwrap_err();
        assert_eq!(parse(&text[1..]), KeyError::PublicText);
        assert_eq!(parse(&format!("{text}A")), KeyError::PublicText);
        assert_eq!(parse(&text.replace('/', "=")), KeyError::PublicText);
        // No point of the curve has y = 2; the point with y = 1 is the neutral element.
        let with_y = |y| std::array::from_fn(|index| if index == 0 { y } else { 0 });
        assert_eq!(PublicKey::new(with_y(2)), Err(KeyError::NotAKey));
        assert_eq!(PublicKey::new(with_y(1)), Err(KeyError::NotAKey));
    }

    proptest! {
        #[test]
        fn a_file_gives_its_key_again(seed: [u8; 32]) {
            let key = PrivateKey::from_seed(&seed);
            let read = PrivateKey::from_file(&key.to_file()).unwrap();
            prop_assert_eq!(read.public(), key.public());
            prop_assert_eq!(read.sign(b"message"), key.sign(b"message"));
        }

        #[test]
        fn no_file_panics(text: String) {
            let _ = PrivateKey::from_file(&format!("-----BEGIN {PRIVATE_KIND}-----\n{text}"));
            let _ = PublicKey::from_file(&format!("-----BEGIN {PUBLIC_KIND}-----\n{text}"));
            let _ = text.parse::<PublicKey>();
        }
    }
}
