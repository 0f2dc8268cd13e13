//! Bounds, errors and field encodings that all objects share.
//!
//! An object has one encoding: numbers are big-endian, sets are sorted and have no duplicates, networks have no host
//! bits. A decoder accepts exactly the bytes that the encoder writes.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use adit_crypto::CryptoError;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::wire::{DecodeError, Decoder};

/// The length of the longest object, in bytes.
pub const MAX_OBJECT: usize = 4096;

/// The prefix of all bytes that are hashed or signed.
pub(super) const DOMAIN: &[u8] = b"adit-mesh/1";

/// The kind of an object, its first byte.
pub(super) const GENESIS: u8 = 1;
pub(super) const CHANGE: u8 = 2;

/// The reason why bytes are not an object of this mesh.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The bytes do not have the form of an object.
    #[error(transparent)]
    Form(#[from] DecodeError),
    /// The genesis belongs to another protocol.
    #[error("the genesis is not one of this protocol")]
    Domain,
    /// The signature algorithm is not supported.
    #[error("signature algorithm {0} is not supported")]
    Algorithm(u8),
    /// A name or group is not a lower-case DNS label.
    #[error("a name or group is not a lower-case DNS label")]
    Label,
    /// A list has more entries than allowed.
    #[error("{0} {1} are too many")]
    TooMany(usize, &'static str),
    /// A list that must be sorted is not, or has a duplicate.
    #[error("a list is not sorted")]
    Unsorted,
    /// A network has host bits, or a longer prefix than an address has bits.
    #[error("a network is not in its canonical form")]
    Network,
    /// A leaf has networks behind it, or a role.
    #[error("an OpenVPN app has networks behind it, or a role")]
    Leaf,
    /// A number is outside its range.
    #[error("{0} is outside the range of its field")]
    Range(u32),
    /// The signature is not the signer's, or is for another mesh.
    #[error("the signature is not valid")]
    Signature,
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// Returns the bytes as an object's decoder reads them, after its first byte.
pub(super) fn open(bytes: &[u8], kind: u8) -> Result<Decoder<'_>, ObjectError> {
    if bytes.len() > MAX_OBJECT {
        return Err(DecodeError::TooLong(bytes.len()).into());
    }
    let mut from = Decoder::new(bytes);
    match from.u8()? {
        found if found == kind => Ok(from),
        other => Err(DecodeError::Kind(other).into()),
    }
}

/// Appends a count of at most 255. Every bound on a list is lower.
pub(super) fn put_count(count: usize, out: &mut Vec<u8>) {
    debug_assert!(count <= usize::from(u8::MAX), "a list of {count} entries");
    out.push(u8::try_from(count).unwrap_or(u8::MAX));
}

/// Reads a count of at most `most`.
pub(super) fn count(
    from: &mut Decoder<'_>,
    most: usize,
    what: &'static str,
) -> Result<usize, ObjectError> {
    match usize::from(from.u8()?) {
        count if count <= most => Ok(count),
        count => Err(ObjectError::TooMany(count, what)),
    }
}

/// Reads a sorted list without duplicates.
pub(super) fn sorted<T: Ord>(
    from: &mut Decoder<'_>,
    most: usize,
    what: &'static str,
    read: impl Fn(&mut Decoder<'_>) -> Result<T, ObjectError>,
) -> Result<BTreeSet<T>, ObjectError> {
    let mut entries = BTreeSet::new();
    for _ in 0..count(from, most, what)? {
        let entry = read(from)?;
        if entries.last().is_some_and(|last| *last >= entry) {
            return Err(ObjectError::Unsorted);
        }
        entries.insert(entry);
    }
    Ok(entries)
}

/// Appends an optional value after a byte that indicates whether it is present.
pub(super) fn put_option<T>(
    value: Option<T>,
    out: &mut Vec<u8>,
    put: impl FnOnce(T, &mut Vec<u8>),
) {
    out.push(value.is_some().into());
    if let Some(value) = value {
        put(value, out);
    }
}

/// Reads the output of [`put_option`].
pub(super) fn option<T>(
    from: &mut Decoder<'_>,
    read: impl FnOnce(&mut Decoder<'_>) -> Result<T, ObjectError>,
) -> Result<Option<T>, ObjectError> {
    flag(from)?.then(|| read(from)).transpose()
}

/// Reads a byte that is 0 or 1.
pub(super) fn flag(from: &mut Decoder<'_>) -> Result<bool, ObjectError> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(DecodeError::Kind(other).into()),
    }
}

/// Appends flags as the bits of one byte, the first flag as the lowest bit. A later version may add flags: while they are not set, the byte
/// stays the same.
pub(super) fn put_bits<const N: usize>(flags: [bool; N], out: &mut Vec<u8>) {
    out.push(flags.into_iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(flag)));
}

/// Reads the output of [`put_bits`].
pub(super) fn bits<const N: usize>(from: &mut Decoder<'_>) -> Result<[bool; N], ObjectError> {
    let byte = from.u8()?;
    let mut rest = byte;
    let flags = std::array::from_fn(|_| {
        let flag = rest & 1 == 1;
        rest >>= 1;
        flag
    });
    if rest == 0 { Ok(flags) } else { Err(DecodeError::Kind(byte).into()) }
}

pub(super) fn put_ipv4_net(net: Ipv4Net, out: &mut Vec<u8>) {
    out.extend(net.network().octets());
    out.push(net.prefix_len());
}

pub(super) fn ipv4_net(from: &mut Decoder<'_>) -> Result<Ipv4Net, ObjectError> {
    let address = Ipv4Addr::from(from.array::<4>()?);
    let net = Ipv4Net::new(address, from.u8()?).map_err(|_| ObjectError::Network)?;
    if net.network() == address { Ok(net) } else { Err(ObjectError::Network) }
}

/// Appends a network: the family (4 or 6), the octets, the length of the prefix.
pub(super) fn put_net(net: IpNet, out: &mut Vec<u8>) {
    match net {
        IpNet::V4(net) => {
            out.push(4);
            put_ipv4_net(net, out);
        }
        IpNet::V6(net) => {
            out.push(6);
            out.extend(net.network().octets());
            out.push(net.prefix_len());
        }
    }
}

pub(super) fn net(from: &mut Decoder<'_>) -> Result<IpNet, ObjectError> {
    match from.u8()? {
        4 => ipv4_net(from).map(IpNet::V4),
        6 => {
            let address = Ipv6Addr::from(from.array::<16>()?);
            let net = Ipv6Net::new(address, from.u8()?).map_err(|_| ObjectError::Network)?;
            if net.network() == address { Ok(net.into()) } else { Err(ObjectError::Network) }
        }
        _ => Err(ObjectError::Network),
    }
}
