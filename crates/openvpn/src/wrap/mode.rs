//! The wrappings, without their packet counters.

use std::sync::Arc;

use adit_crypto::{Aes256Ctr, CryptoError, Digest, DirectionKey, HmacKey};

use super::WrapError;
use crate::keys::{Direction, Role, StaticKey};
use crate::packet::{Control, PacketError};

/// A packet id and time stamp. Every wrapping that authenticates packets has them.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Stamp {
    pub id: u32,
    pub time: u32,
}

const STAMP_LEN: usize = 8;
const TAG_LEN: usize = 32;

/// A wrapping with its keys, cheap to clone.
#[derive(Clone)]
pub(super) enum Mode {
    None,
    Auth(Arc<AuthKeys>),
    Crypt(Arc<CryptKeys>),
}

pub(super) struct AuthKeys {
    base: StaticKey,
    seal: HmacKey,
    open: HmacKey,
}

pub(super) struct CryptKeys {
    base: StaticKey,
    seal: CryptHalf,
    open: CryptHalf,
}

struct CryptHalf {
    cipher: Aes256Ctr,
    mac: HmacKey,
}

impl CryptHalf {
    fn new(half: &DirectionKey) -> Result<Self, CryptoError> {
        let cipher = half.cipher.first_chunk().ok_or(CryptoError)?;
        Ok(Self { cipher: Aes256Ctr::new(cipher)?, mac: auth_key(Digest::Sha256, half)? })
    }
}

/// Creates a key for `digest`. OpenVPN's HMAC keys are as long as the digest.
fn auth_key(digest: Digest, half: &DirectionKey) -> Result<HmacKey, CryptoError> {
    HmacKey::new(digest, half.hmac.get(..digest.output_len()).ok_or(CryptoError)?)
}

impl Mode {
    pub(super) fn auth(
        key: &StaticKey,
        direction: Option<Direction>,
        digest: Digest,
    ) -> Result<Self, CryptoError> {
        let (seal, open) = match direction {
            Some(direction) => key.directed(direction),
            None => {
                let [first, _] = key.halves();
                (first.clone(), first)
            }
        };
        let (seal, open) = (auth_key(digest, &seal)?, auth_key(digest, &open)?);
        Ok(Self::Auth(Arc::new(AuthKeys { base: key.clone(), seal, open })))
    }

    /// Creates a tls-crypt wrapping. The server sends with the first half of the key. On the data
    /// channel the client does.
    pub(super) fn crypt(key: &StaticKey, role: Role) -> Result<Self, CryptoError> {
        let (seal, open) = key.directed(match role {
            Role::Server => Direction::Normal,
            Role::Client => Direction::Inverse,
        });
        let (seal, open) = (CryptHalf::new(&seal)?, CryptHalf::new(&open)?);
        Ok(Self::Crypt(Arc::new(CryptKeys { base: key.clone(), seal, open })))
    }

    /// Returns the configured key, if there is one.
    pub(super) fn base(&self) -> Option<&StaticKey> {
        match self {
            Self::None => None,
            Self::Auth(keys) => Some(&keys.base),
            Self::Crypt(keys) => Some(&keys.base),
        }
    }

    /// Returns the number of bytes that this wrapping adds.
    pub(super) fn overhead(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Auth(keys) => keys.seal.digest().output_len().saturating_add(STAMP_LEN),
            Self::Crypt(_) => TAG_LEN.saturating_add(STAMP_LEN),
        }
    }

    /// Appends the wrapped packet to the empty `out`.
    pub(super) fn seal(
        &self,
        control: &Control<'_>,
        stamp: Stamp,
        out: &mut Vec<u8>,
    ) -> Result<(), CryptoError> {
        control.encode_front(out);
        match self {
            Self::None => control.encode_rest(out),
            Self::Auth(keys) => {
                let mac_len = keys.seal.digest().output_len();
                out.extend(std::iter::repeat_n(0, mac_len));
                push_stamp(out, stamp);
                control.encode_rest(out);
                let (front, rest) =
                    out.split_at_mut_checked(Control::FRONT_LEN).ok_or(CryptoError)?;
                let (place, rest) = rest.split_at_mut_checked(mac_len).ok_or(CryptoError)?;
                let (stamp, rest) = rest.split_at_checked(STAMP_LEN).ok_or(CryptoError)?;
                place.copy_from_slice(keys.seal.sign(&[stamp, front, rest]).as_bytes());
            }
            Self::Crypt(keys) => {
                push_stamp(out, stamp);
                let clear_len = out.len();
                out.extend([0; TAG_LEN]);
                control.encode_rest(out);
                let (clear, rest) = out.split_at_mut_checked(clear_len).ok_or(CryptoError)?;
                let (place, rest) = rest.split_first_chunk_mut::<TAG_LEN>().ok_or(CryptoError)?;
                place.copy_from_slice(keys.seal.mac.sign(&[clear, rest]).as_bytes());
                let iv = place.first_chunk().ok_or(CryptoError)?;
                keys.seal.cipher.apply(iv, rest)?;
            }
        }
        Ok(())
    }

    /// Authenticates and decrypts a packet. Returns the bytes that follow the session id, and the
    /// stamp if there is one.
    pub(super) fn open<'a>(
        &self,
        packet: &'a mut [u8],
    ) -> Result<(&'a [u8], Option<Stamp>), WrapError> {
        let short = PacketError::TooShort;
        match self {
            Self::None => {
                let (_, rest) = packet.split_at_checked(Control::FRONT_LEN).ok_or(short)?;
                Ok((rest, None))
            }
            Self::Auth(keys) => {
                let (front, rest) = packet.split_at_checked(Control::FRONT_LEN).ok_or(short)?;
                let mac_len = keys.open.digest().output_len();
                let (mac, rest) = rest.split_at_checked(mac_len).ok_or(short)?;
                let (stamp, rest) = rest.split_first_chunk::<STAMP_LEN>().ok_or(short)?;
                if !keys.open.verify(&[stamp, front, rest], mac) {
                    return Err(WrapError::BadMac);
                }
                Ok((rest, Some(parse_stamp(*stamp))))
            }
            Self::Crypt(keys) => {
                let (front, rest) = packet.split_at_mut_checked(Control::FRONT_LEN).ok_or(short)?;
                let (stamp, rest) = rest.split_first_chunk_mut::<STAMP_LEN>().ok_or(short)?;
                let (tag, rest) = rest.split_first_chunk_mut::<TAG_LEN>().ok_or(short)?;
                let iv = tag.first_chunk().ok_or(short)?;
                // The tag covers the plaintext, so decryption comes first.
                keys.open.cipher.apply(iv, rest)?;
                if !keys.open.mac.verify(&[front, stamp, rest], tag) {
                    return Err(WrapError::BadMac);
                }
                Ok((rest, Some(parse_stamp(*stamp))))
            }
        }
    }
}

fn push_stamp(out: &mut Vec<u8>, stamp: Stamp) {
    out.extend_from_slice(&stamp.id.to_be_bytes());
    out.extend_from_slice(&stamp.time.to_be_bytes());
}

fn parse_stamp(bytes: [u8; STAMP_LEN]) -> Stamp {
    let both = u64::from_be_bytes(bytes);
    // Each half of a u64 fits.
    let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default();
    Stamp { id: half(both >> 32), time: half(both) }
}
