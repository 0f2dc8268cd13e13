use std::fmt;

use aws_lc_rs::{constant_time, digest, hmac};
use hmac_md5::{Hmac, KeyInit as _, Mac as _};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::CryptoError;

// The RustCrypto `hmac` crate is used for MD5 only, which aws-lc-rs does not offer.
use ::hmac as hmac_md5;

/// A message digest, as named by `auth` and used by tls-auth, tls-crypt and the PRF.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Digest {
    /// MD5, 16 bytes: old tls-auth configurations and the TLS 1.0 PRF.
    Md5,
    /// SHA-1, 20 bytes: OpenVPN's default for `auth`.
    Sha1,
    /// SHA-224, 28 bytes.
    Sha224,
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-384, 48 bytes.
    Sha384,
    /// SHA-512, 64 bytes.
    Sha512,
}

impl Digest {
    /// All digests.
    pub const ALL: [Self; 6] =
        [Self::Md5, Self::Sha1, Self::Sha224, Self::Sha256, Self::Sha384, Self::Sha512];

    /// The length of the longest output, in bytes.
    pub const MAX_LEN: usize = 64;

    /// Returns the name that OpenVPN prints and puts into its options string.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Md5 => "MD5",
            Self::Sha1 => "SHA1",
            Self::Sha224 => "SHA224",
            Self::Sha256 => "SHA256",
            Self::Sha384 => "SHA384",
            Self::Sha512 => "SHA512",
        }
    }

    /// Parses a name, ignoring case, in any of OpenSSL's spellings (`SHA256`, `SHA-256`, `SHA2-256`, `RSA-SHA256`).
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("RSA-").unwrap_or(&name);
        Self::ALL.into_iter().find(|digest| {
            let own = digest.name();
            let Some(bits) = own.strip_prefix("SHA") else { return name == own };
            let rest = name.strip_prefix("SHA");
            name == own
                || rest.and_then(|rest| rest.strip_prefix('-')) == Some(bits)
                || (bits != "1" && rest.and_then(|rest| rest.strip_prefix("2-")) == Some(bits))
        })
    }

    /// Returns the output length in bytes: also the length of OpenVPN's HMAC keys for this digest.
    pub const fn output_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha224 => 28,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    fn aws(self) -> Option<hmac::Algorithm> {
        match self {
            Self::Md5 => None,
            Self::Sha1 => Some(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
            Self::Sha224 => Some(hmac::HMAC_SHA224),
            Self::Sha256 => Some(hmac::HMAC_SHA256),
            Self::Sha384 => Some(hmac::HMAC_SHA384),
            Self::Sha512 => Some(hmac::HMAC_SHA512),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Computes SHA-256 of the concatenated `parts`.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// Computes a digest of the concatenated `parts`. The result is wiped on drop, because HTTP authentication hashes passwords.
pub fn hash(digest: Digest, parts: &[&[u8]]) -> Mac {
    let algorithm = match digest {
        Digest::Md5 => {
            let mut context = md5::Md5::default();
            parts.iter().for_each(|part| md5::Digest::update(&mut context, part));
            return Mac::new(&md5::Digest::finalize(context));
        }
        Digest::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        Digest::Sha224 => &digest::SHA224,
        Digest::Sha256 => &digest::SHA256,
        Digest::Sha384 => &digest::SHA384,
        Digest::Sha512 => &digest::SHA512,
    };
    let mut context = digest::Context::new(algorithm);
    parts.iter().for_each(|part| context.update(part));
    Mac::new(context.finish().as_ref())
}

/// Returns whether two byte strings are equal, in a time that depends only on their lengths.
pub fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(a, b).is_ok()
}

/// A message authentication code. It is wiped on drop, because keys are derived from such codes.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Mac {
    bytes: [u8; Digest::MAX_LEN],
    len: usize,
}

impl Mac {
    fn new(bytes: &[u8]) -> Self {
        let mut mac = Self { bytes: [0; Digest::MAX_LEN], len: bytes.len().min(Digest::MAX_LEN) };
        for (to, from) in mac.bytes.iter_mut().zip(bytes) {
            *to = *from;
        }
        mac
    }

    /// Returns the code as [`Digest::output_len`] bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

// Written by hand because the code of an unsent message is secret.
impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mac({} bytes)", self.len)
    }
}

/// A key for HMAC.
#[derive(Clone)]
pub struct HmacKey {
    digest: Digest,
    key: KeyKind,
}

#[derive(Clone)]
enum KeyKind {
    Md5(Box<Hmac<md5::Md5>>),
    Aws(Box<hmac::Key>),
}

impl HmacKey {
    /// Creates a key of any length.
    ///
    /// # Errors
    /// None in practice: HMAC accepts keys of every length.
    pub fn new(digest: Digest, key: &[u8]) -> Result<Self, CryptoError> {
        let key = match digest.aws() {
            Some(algorithm) => KeyKind::Aws(Box::new(hmac::Key::new(algorithm, key))),
            None => KeyKind::Md5(Box::new(Hmac::new_from_slice(key).map_err(|_| CryptoError)?)),
        };
        Ok(Self { digest, key })
    }

    /// Returns the digest that the key uses.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Computes the code of the concatenated `parts`.
    pub fn sign(&self, parts: &[&[u8]]) -> Mac {
        match &self.key {
            KeyKind::Aws(key) => {
                let mut context = hmac::Context::with_key(key);
                for part in parts {
                    context.update(part);
                }
                Mac::new(context.sign().as_ref())
            }
            KeyKind::Md5(start) => {
                let mut context = start.as_ref().clone();
                for part in parts {
                    context.update(part);
                }
                Mac::new(&context.finalize().into_bytes())
            }
        }
    }

    /// Starts the code of a message that arrives in parts.
    pub fn start(&self) -> HmacStream {
        HmacStream(match &self.key {
            KeyKind::Aws(key) => StreamKind::Aws(Box::new(hmac::Context::with_key(key))),
            KeyKind::Md5(start) => StreamKind::Md5(start.clone()),
        })
    }

    /// Returns whether `mac` is the complete code of the concatenated `parts`, in constant time.
    #[must_use]
    pub fn verify(&self, parts: &[&[u8]], mac: &[u8]) -> bool {
        constant_time_eq(self.sign(parts).as_bytes(), mac)
    }
}

/// An HMAC computed incrementally; created by [`HmacKey::start`].
pub struct HmacStream(StreamKind);

enum StreamKind {
    Md5(Box<Hmac<md5::Md5>>),
    Aws(Box<hmac::Context>),
}

impl HmacStream {
    /// Adds a part of the message.
    pub fn update(&mut self, part: &[u8]) {
        match &mut self.0 {
            StreamKind::Aws(context) => context.update(part),
            StreamKind::Md5(context) => context.update(part),
        }
    }

    /// Returns the code of the whole message.
    pub fn finish(self) -> Mac {
        match self.0 {
            StreamKind::Aws(context) => Mac::new(context.sign().as_ref()),
            StreamKind::Md5(context) => Mac::new(&context.finalize().into_bytes()),
        }
    }
}

// Written by hand so that keys never reach a log.
impl fmt::Debug for HmacStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacStream(..)")
    }
}

// Written by hand so that keys never reach a log.
impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HmacKey({})", self.digest)
    }
}

/// Computes an HMAC over the concatenated `parts` in one step.
///
/// # Errors
/// As [`HmacKey::new`].
pub fn hmac(digest: Digest, key: &[u8], parts: &[&[u8]]) -> Result<Mac, CryptoError> {
    // aws-lc wipes its copy of the key on drop; for MD5 the state is the only copy.
    Ok(HmacKey::new(digest, key)?.sign(parts))
}

/// Applies HKDF-Expand of RFC 5869 with SHA-256; `out` is at most 8160 bytes.
///
/// # Errors
/// `out` is too long.
pub fn hkdf_expand_sha256(prk: &[u8], info: &[&[u8]], out: &mut [u8]) -> Result<(), CryptoError> {
    let key = HmacKey::new(Digest::Sha256, prk)?;
    let mut block = Zeroizing::new(Vec::new());
    for (index, chunk) in out.chunks_mut(32).enumerate() {
        let counter = index.checked_add(1).and_then(|n| u8::try_from(n).ok()).ok_or(CryptoError)?;
        let counter = [counter];
        let mut parts: Vec<&[u8]> = vec![&block];
        parts.extend_from_slice(info);
        parts.push(&counter);
        let mac = key.sign(&parts);
        for (to, from) in chunk.iter_mut().zip(mac.as_bytes()) {
            *to = *from;
        }
        block = Zeroizing::new(mac.as_bytes().to_vec());
    }
    Ok(())
}
