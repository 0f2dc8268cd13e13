//! CBC encryption followed by an HMAC over the result: the data channel of peers without AEAD.
//!
//! ```text
//! HMAC | IV 16 | CBC(head | payload | PKCS#7 padding)       the HMAC covers IV and ciphertext
//! HMAC | head | payload                                     `cipher none`
//! ```
//!
//! The `head` is the packet id, which is encrypted too. The HMAC is compared in constant time before anything is
//! decrypted, so that a forger learns nothing from the padding.

use std::fmt;

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::consts::U16;
use aes::cipher::{
    Block, BlockDecrypt, BlockDecryptMut, BlockEncrypt, BlockEncryptMut, InnerIvInit, KeyInit,
};
use aws_lc_rs::rand;
use zeroize::Zeroizing;

use crate::aead::AeadError;
use crate::{Digest, DirectionKey, HmacKey};

/// A block cipher in CBC mode, for peers without AEAD. All have blocks of 128 bits.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum BlockCipher {
    /// AES-128-CBC.
    Aes128Cbc,
    /// AES-192-CBC.
    Aes192Cbc,
    /// AES-256-CBC.
    Aes256Cbc,
}

impl BlockCipher {
    /// All block ciphers, strongest first.
    pub const ALL: [Self; 3] = [Self::Aes256Cbc, Self::Aes192Cbc, Self::Aes128Cbc];

    /// The length of a block, and of the initialization vector, in bytes.
    pub const BLOCK_LEN: usize = 16;

    /// Returns the name that OpenVPN and OpenSSL use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Cbc => "AES-128-CBC",
            Self::Aes192Cbc => "AES-192-CBC",
            Self::Aes256Cbc => "AES-256-CBC",
        }
    }

    /// Parses a name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.name().eq_ignore_ascii_case(name))
    }

    /// Returns the key length in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Cbc => 16,
            Self::Aes192Cbc => 24,
            Self::Aes256Cbc => 32,
        }
    }
}

impl fmt::Display for BlockCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The maximum number of bytes that an envelope adds to its payload, not counting the head: the longest HMAC, an IV and a block of padding.
pub const MAX_ADDED: usize = Digest::MAX_LEN + 2 * BlockCipher::BLOCK_LEN;

const IV_LEN: usize = BlockCipher::BLOCK_LEN;

/// Seals packets of one direction.
pub struct SealBlock {
    cipher: Option<(Encrypt, IvSource)>,
    mac: Option<HmacKey>,
}

/// Opens packets of one direction.
pub struct OpenBlock {
    cipher: Option<Decrypt>,
    mac: Option<HmacKey>,
}

enum Encrypt {
    Aes128(aes::Aes128Enc),
    Aes192(aes::Aes192Enc),
    Aes256(aes::Aes256Enc),
}

enum Decrypt {
    Aes128(aes::Aes128Dec),
    Aes192(aes::Aes192Dec),
    Aes256(aes::Aes256Dec),
}

/// A source of unpredictable initialization vectors: packet numbers encrypted under a key that is used for nothing else
/// (NIST SP 800-38A, appendix C).
struct IvSource(aes::Aes256Enc);

impl IvSource {
    fn new() -> Result<Self, AeadError> {
        let mut key = Zeroizing::new([0; 32]);
        rand::fill(key.as_mut_slice()).map_err(|_| AeadError)?;
        aes::Aes256Enc::new_from_slice(key.as_slice()).map(Self).map_err(|_| AeadError)
    }

    fn iv(&self, number: u64) -> [u8; IV_LEN] {
        let mut block = Block::<aes::Aes256Enc>::from(u128::from(number).to_be_bytes());
        self.0.encrypt_block(&mut block);
        block.into()
    }
}

impl Encrypt {
    fn new(cipher: BlockCipher, key: &[u8]) -> Result<Self, AeadError> {
        match cipher {
            BlockCipher::Aes128Cbc => aes::Aes128Enc::new_from_slice(key).map(Self::Aes128),
            BlockCipher::Aes192Cbc => aes::Aes192Enc::new_from_slice(key).map(Self::Aes192),
            BlockCipher::Aes256Cbc => aes::Aes256Enc::new_from_slice(key).map(Self::Aes256),
        }
        .map_err(|_| AeadError)
    }

    /// Encrypts the first `len` bytes of `buffer` in place and returns the length of the ciphertext.
    fn apply(&self, iv: &[u8; IV_LEN], buffer: &mut [u8], len: usize) -> Option<usize> {
        fn run<C: aes::cipher::BlockCipher + BlockEncrypt<BlockSize = U16>>(
            cipher: &C,
            iv: &[u8; IV_LEN],
            buffer: &mut [u8],
            len: usize,
        ) -> Option<usize> {
            let cbc = cbc::Encryptor::<&C>::inner_iv_init(cipher, iv.into());
            cbc.encrypt_padded_mut::<Pkcs7>(buffer, len).ok().map(|text| text.len())
        }
        match self {
            Self::Aes128(cipher) => run(cipher, iv, buffer, len),
            Self::Aes192(cipher) => run(cipher, iv, buffer, len),
            Self::Aes256(cipher) => run(cipher, iv, buffer, len),
        }
    }
}

impl Decrypt {
    fn new(cipher: BlockCipher, key: &[u8]) -> Result<Self, AeadError> {
        match cipher {
            BlockCipher::Aes128Cbc => aes::Aes128Dec::new_from_slice(key).map(Self::Aes128),
            BlockCipher::Aes192Cbc => aes::Aes192Dec::new_from_slice(key).map(Self::Aes192),
            BlockCipher::Aes256Cbc => aes::Aes256Dec::new_from_slice(key).map(Self::Aes256),
        }
        .map_err(|_| AeadError)
    }

    /// Decrypts in place and returns the length of the text without its padding.
    fn apply(&self, iv: &[u8; IV_LEN], text: &mut [u8]) -> Option<usize> {
        fn run<C: aes::cipher::BlockCipher + BlockDecrypt<BlockSize = U16>>(
            cipher: &C,
            iv: &[u8; IV_LEN],
            text: &mut [u8],
        ) -> Option<usize> {
            let cbc = cbc::Decryptor::<&C>::inner_iv_init(cipher, iv.into());
            cbc.decrypt_padded_mut::<Pkcs7>(text).ok().map(|plain| plain.len())
        }
        match self {
            Self::Aes128(cipher) => run(cipher, iv, text),
            Self::Aes192(cipher) => run(cipher, iv, text),
            Self::Aes256(cipher) => run(cipher, iv, text),
        }
    }
}

fn cipher_key(cipher: BlockCipher, half: &DirectionKey) -> Result<&[u8], AeadError> {
    half.cipher.get(..cipher.key_len()).ok_or(AeadError)
}

fn mac_key(digest: Option<Digest>, half: &DirectionKey) -> Result<Option<HmacKey>, AeadError> {
    let Some(digest) = digest else { return Ok(None) };
    let key = half.hmac.get(..digest.output_len()).ok_or(AeadError)?;
    HmacKey::new(digest, key).map(Some).map_err(|_| AeadError)
}

fn mac_len(mac: &Option<HmacKey>) -> usize {
    mac.as_ref().map_or(0, |key| key.digest().output_len())
}

impl SealBlock {
    /// Creates a key; cipher and digest take the leading bytes of `half` that they need.
    ///
    /// # Errors
    /// [`AeadError`], for example if no random numbers are available.
    pub fn new(
        cipher: Option<BlockCipher>,
        digest: Option<Digest>,
        half: &DirectionKey,
    ) -> Result<Self, AeadError> {
        let cipher = match cipher {
            Some(cipher) => {
                Some((Encrypt::new(cipher, cipher_key(cipher, half)?)?, IvSource::new()?))
            }
            None => None,
        };
        Ok(Self { cipher, mac: mac_key(digest, half)? })
    }

    /// Returns the maximum number of bytes that sealing adds to head and payload.
    pub fn overhead(&self) -> usize {
        mac_len(&self.mac) + self.cipher.as_ref().map_or(0, |_| 2 * BlockCipher::BLOCK_LEN)
    }

    /// Seals `head` and `payload` into the start of `out` and returns the envelope's length, or `None` if `out` is too
    /// short. `number` must differ for each packet, because the initialization vector is derived from it.
    pub fn seal(&self, number: u64, head: &[u8], payload: &[u8], out: &mut [u8]) -> Option<usize> {
        let (mac, body) = out.split_at_mut_checked(mac_len(&self.mac))?;
        let start = if self.cipher.is_some() { IV_LEN } else { 0 };
        let (lead, text) = body.split_at_mut_checked(start)?;
        let plain_len = head.len().checked_add(payload.len())?;
        text.get_mut(..head.len())?.copy_from_slice(head);
        text.get_mut(head.len()..plain_len)?.copy_from_slice(payload);
        let text_len = match &self.cipher {
            Some((cipher, ivs)) => {
                let iv = ivs.iv(number);
                lead.copy_from_slice(&iv);
                cipher.apply(&iv, text, plain_len)?
            }
            None => plain_len,
        };
        let end = start.checked_add(text_len)?;
        if let Some(key) = &self.mac {
            mac.copy_from_slice(key.sign(&[body.get(..end)?]).as_bytes());
        }
        mac.len().checked_add(end)
    }
}

impl OpenBlock {
    /// Creates a key; cipher and digest take the leading bytes of `half` that they need.
    ///
    /// # Errors
    /// [`AeadError`]
    pub fn new(
        cipher: Option<BlockCipher>,
        digest: Option<Digest>,
        half: &DirectionKey,
    ) -> Result<Self, AeadError> {
        let cipher = match cipher {
            Some(cipher) => Some(Decrypt::new(cipher, cipher_key(cipher, half)?)?),
            None => None,
        };
        Ok(Self { cipher, mac: mac_key(digest, half)? })
    }

    /// Verifies an envelope, decrypts it in place and returns head and payload.
    ///
    /// # Errors
    /// [`AeadError`] for every reason: a wrong HMAC cannot be distinguished from wrong padding.
    pub fn open<'p>(&self, envelope: &'p mut [u8]) -> Result<&'p mut [u8], AeadError> {
        let (mac, body) = envelope.split_at_mut_checked(mac_len(&self.mac)).ok_or(AeadError)?;
        if self.mac.as_ref().is_some_and(|key| !key.verify(&[body], mac)) {
            return Err(AeadError);
        }
        let Some(cipher) = &self.cipher else { return Ok(body) };
        let (iv, text) = body.split_first_chunk_mut::<IV_LEN>().ok_or(AeadError)?;
        let len = cipher.apply(iv, text).ok_or(AeadError)?;
        text.get_mut(..len).ok_or(AeadError)
    }
}

// Written by hand so that keys never reach a log.
impl fmt::Debug for SealBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealBlock(..)")
    }
}

impl fmt::Debug for OpenBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenBlock(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn half(seed: u8) -> DirectionKey {
        DirectionKey { cipher: [seed; 64], hmac: [seed ^ 0x5a; 64] }
    }

    fn suites() -> impl Iterator<Item = (Option<BlockCipher>, Option<Digest>)> {
        let ciphers = BlockCipher::ALL.map(Some).into_iter().chain([None]);
        ciphers.flat_map(|c| Digest::ALL.map(Some).into_iter().chain([None]).map(move |d| (c, d)))
    }

    fn sealed(cipher: Option<BlockCipher>, digest: Option<Digest>, plain: &[u8]) -> Vec<u8> {
        let seal = SealBlock::new(cipher, digest, &half(3)).unwrap();
        let mut out = vec![0; plain.len() + 4 + seal.overhead()];
        let len = seal.seal(7, b"head", plain, &mut out).unwrap();
        out.truncate(len);
        out
    }

    /// Encrypts with CBC block by block as specified, using the other library.
    fn cbc_by_aws(key: &[u8; 32], iv: &[u8], plain: &[u8]) -> Vec<u8> {
        use aws_lc_rs::cipher::{
            AES_256, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey,
        };
        let key = UnboundCipherKey::new(&AES_256, key).unwrap();
        let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).unwrap();
        let iv = aws_lc_rs::iv::FixedLength::<16>::try_from(iv).unwrap();
        let mut text = plain.to_vec();
        key.less_safe_encrypt(&mut text, EncryptionContext::Iv128(iv)).unwrap();
        text
    }

    #[test]
    fn the_layout_is_mac_iv_ciphertext_and_agrees_with_another_implementation() {
        let out = sealed(Some(BlockCipher::Aes256Cbc), Some(Digest::Sha256), b"payload");
        let (mac, body) = out.split_at(32);
        let (iv, text) = body.split_at(16);
        assert_eq!(text, cbc_by_aws(&[3; 32], iv, b"headpayload"));
        let key = HmacKey::new(Digest::Sha256, &[3 ^ 0x5a; 32]).unwrap();
        assert!(key.verify(&[body], mac));
    }

    #[test]
    fn no_two_packets_and_no_two_keys_share_a_vector() {
        let make = || SealBlock::new(Some(BlockCipher::Aes128Cbc), None, &half(1)).unwrap();
        let (one, other) = (make(), make());
        let iv = |seal: &SealBlock, number| {
            let mut out = [0; 64];
            seal.seal(number, b"", b"x", &mut out).unwrap();
            out[..16].to_vec()
        };
        let all = [iv(&one, 1), iv(&one, 2), iv(&other, 1), iv(&other, 2)];
        for (at, first) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(first));
        }
    }

    #[test]
    fn a_wrong_mac_and_wrong_padding_are_refused_alike() {
        // Whole blocks of ciphertext under the right HMAC, with invalid padding. Only the key's owner can make such a
        // packet, and learns nothing from it.
        let digest = Digest::Sha256;
        let open = OpenBlock::new(Some(BlockCipher::Aes256Cbc), Some(digest), &half(3)).unwrap();
        let mac = HmacKey::new(digest, &[3 ^ 0x5a; 32]).unwrap();
        let raw = aes::Aes256Enc::new_from_slice(&[3; 32]).unwrap();
        for last in [0u8, 17, 255] {
            let mut block = [9; 16];
            block[15] = last;
            let mut text = Block::<aes::Aes256Enc>::from(block);
            raw.encrypt_block(&mut text);
            let body = [[0u8; 16].as_slice(), &text].concat();
            let mut packet = [mac.sign(&[&body]).as_bytes(), &body].concat();
            assert_eq!(open.open(&mut packet).map(|_| ()), Err(AeadError), "{last}");
        }
        let mut packet = sealed(Some(BlockCipher::Aes256Cbc), Some(digest), b"payload");
        packet[0] ^= 1;
        assert_eq!(open.open(&mut packet).map(|_| ()), Err(AeadError));
    }

    #[test]
    fn too_small_a_buffer_is_refused() {
        for (cipher, digest) in suites() {
            let whole = sealed(cipher, digest, b"payload").len();
            let seal = SealBlock::new(cipher, digest, &half(3)).unwrap();
            for len in 0..whole {
                assert_eq!(seal.seal(1, b"head", b"payload", &mut vec![0; len]), None);
            }
            assert!(whole <= 11 + seal.overhead() && seal.overhead() <= MAX_ADDED);
        }
    }

    proptest! {
        #[test]
        fn every_suite_opens_what_it_sealed_and_refuses_what_was_touched(
            plain in proptest::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            for (cipher, digest) in suites() {
                let open = OpenBlock::new(cipher, digest, &half(3)).unwrap();
                let mut packet = sealed(cipher, digest, &plain);
                let mut touched = packet.clone();
                let want = [b"head", plain.as_slice()].concat();
                prop_assert_eq!(&*open.open(&mut packet).unwrap(), want.as_slice());
                if digest.is_some() {
                    let at = at.index(touched.len());
                    touched[at] ^= 1 << bit;
                    prop_assert!(open.open(&mut touched).is_err());
                }
            }
        }

        #[test]
        fn no_envelope_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for (cipher, digest) in suites() {
                let open = OpenBlock::new(cipher, digest, &half(3)).unwrap();
                let _ = open.open(&mut bytes);
            }
        }
    }
}
