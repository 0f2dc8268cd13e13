//! Reads and writes the fields of messages and objects.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The reason why bytes are not a message of the mesh.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends before its last field.
    #[error("the message is truncated")]
    Truncated,
    /// Bytes follow the last field.
    #[error("{0} bytes follow the message")]
    TrailingBytes(usize),
    /// The message is longer than any valid one.
    #[error("the message of {0} bytes is too long")]
    TooLong(usize),
    /// The version is not supported.
    #[error("version {0} is not supported")]
    Version(u8),
    /// A kind or flag has an undefined value.
    #[error("{0} is not a known kind")]
    Kind(u8),
    /// An address cannot be the address of a node, or is not in its canonical form.
    #[error("an address is not usable")]
    Address,
    /// The offer has more candidates than allowed.
    #[error("{0} candidates are too many")]
    TooManyCandidates(usize),
    /// The same candidate appears twice.
    #[error("a candidate appears twice")]
    DuplicateCandidate,
    /// The signature is not valid.
    #[error("the signature is not valid")]
    Signature,
    /// Padding is not zero, or appears where none is allowed.
    #[error("the padding is not valid")]
    Padding,
}

/// The version of all records inside sessions.
const VERSION: u8 = 1;

/// Appends the header of a record: version 1 | kind 1.
pub(crate) fn put_head(kind: u8, out: &mut Vec<u8>) {
    out.extend([VERSION, kind]);
}

/// Reads the header of a record. Returns its kind, and a cursor over the fields that follow.
pub(crate) fn open_record(bytes: &[u8], longest: usize) -> Result<(u8, Decoder<'_>), DecodeError> {
    if bytes.len() > longest {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let mut from = Decoder::new(bytes);
    let version = from.u8()?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    Ok((from.u8()?, from))
}

/// Appends objects, each after its length in two bytes, until the next one would make the record longer than allowed.
/// Returns the number of objects.
pub(crate) fn put_objects(
    objects: impl IntoIterator<Item = Vec<u8>>,
    longest: usize,
    out: &mut Vec<u8>,
) -> usize {
    let mut count: usize = 0;
    for object in objects {
        let Ok(len) = u16::try_from(object.len()) else { break };
        if out.len().saturating_add(object.len()).saturating_add(2) > longest {
            break;
        }
        out.extend(len.to_be_bytes());
        out.extend(object);
        count = count.saturating_add(1);
    }
    count
}

/// A cursor over the fields of a message.
#[derive(Debug)]
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (field, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(field)
    }

    /// Reads the objects to the end of the record: see [`put_objects`].
    pub(crate) fn objects(mut self) -> Result<Vec<Vec<u8>>, DecodeError> {
        let mut objects = Vec::new();
        while !self.0.is_empty() {
            let len = usize::from(self.u16()?);
            objects.push(self.take(len)?.to_vec());
        }
        Ok(objects)
    }

    /// Reads an address that a node can have: see [`is_usable`].
    pub(crate) fn address(&mut self) -> Result<SocketAddr, DecodeError> {
        let ip: IpAddr = match self.u8()? {
            4 => Ipv4Addr::from(self.array::<4>()?).into(),
            6 => Ipv6Addr::from(self.array::<16>()?).into(),
            _ => return Err(DecodeError::Address),
        };
        let address = SocketAddr::new(ip, self.u16()?);
        is_usable(address).then_some(address).ok_or(DecodeError::Address)
    }

    /// Reads an address, or the zero byte that means that there is none.
    pub(crate) fn optional_address(&mut self) -> Result<Option<SocketAddr>, DecodeError> {
        match self.0.split_first() {
            Some((0, rest)) => {
                self.0 = rest;
                Ok(None)
            }
            _ => self.address().map(Some),
        }
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(DecodeError::TrailingBytes(more)),
        }
    }
}

/// Appends an address: the family (4 or 6), the octets, the port.
pub(crate) fn put_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_be_bytes());
}

/// Returns whether a node on another machine can have this address. Loopback, multicast and unspecified addresses could
/// make a node send probes to its own services, and a link-local address means nothing without its interface.
pub fn is_usable(address: SocketAddr) -> bool {
    let usable = match address.ip() {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_multicast()
                || ip.is_broadcast()
                || ip.is_link_local())
        }
        IpAddr::V6(ip) => {
            !(ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_multicast()
                || ip.is_unicast_link_local()
                || ip.to_ipv4_mapped().is_some())
        }
    };
    usable && address.port() != 0
}
