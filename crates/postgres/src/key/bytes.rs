//! Writes and strictly reads the canonical encodings, which consist of big-endian numbers and length-prefixed bytes.

use ipnet::IpNet;

use crate::NodeId;

/// Encodes fields by appending them.
#[derive(Debug, Default)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    /// Creates an encoder that begins with a label for the kind of encoding, so that bytes of one kind cannot be
    /// mistaken for another.
    pub(crate) fn new(kind: &[u8]) -> Self {
        let mut encoder = Self(Vec::with_capacity(256));
        encoder.fixed(kind);
        encoder
    }

    /// Appends bytes of a length that both sides know.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.fixed(&[value]);
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.fixed(&value.to_be_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.fixed(&value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.fixed(&value.to_be_bytes());
    }

    /// Appends length-prefixed bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        // No field is longer than 4 GiB. A longer one would at least not get another field's length.
        self.fixed(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.fixed(bytes);
    }

    /// Appends a network's length-prefixed tag. Returns `None` and writes nothing if it cannot be a tag.
    pub(crate) fn tag(&mut self, tag: &str) -> Option<()> {
        let len = u8::try_from(tag.len()).ok().filter(|_| is_tag(tag.as_bytes()))?;
        self.u8(len);
        self.fixed(tag.as_bytes());
        Some(())
    }

    /// Appends the readers of wraps, each with the hash of its wrap. The caller writes their number first, in the width
    /// that its record uses.
    pub(crate) fn wraps(&mut self, wraps: &[(NodeId, [u8; 32])]) {
        for (reader, hash) in wraps {
            self.i32(reader.0);
            self.fixed(hash);
        }
    }

    /// Appends optional bytes. A missing value differs from an empty one.
    pub(crate) fn maybe(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            None => self.u8(0),
            Some(bytes) => {
                self.u8(1);
                self.bytes(bytes);
            }
        }
    }

    /// Appends an address with its prefix length. The host bits are kept.
    pub(crate) fn net(&mut self, net: Option<IpNet>) {
        match net {
            None => self.u8(0),
            Some(IpNet::V4(net)) => {
                self.u8(4);
                self.fixed(&net.addr().octets());
                self.u8(net.prefix_len());
            }
            Some(IpNet::V6(net)) => {
                self.u8(6);
                self.fixed(&net.addr().octets());
                self.u8(net.prefix_len());
            }
        }
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Decodes the fields of an encoding from the front.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes the next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// Takes the next bytes as an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// Requires exactly these bytes next.
    pub(crate) fn expect(&mut self, bytes: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(bytes)?;
        Some(())
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a tag that [`Encoder::tag`] wrote.
    pub(crate) fn tag(&mut self) -> Option<String> {
        let len = self.u8()?;
        let tag = self.take(usize::from(len))?;
        std::str::from_utf8(tag).ok().filter(|_| is_tag(tag)).map(str::to_owned)
    }

    /// Reads `count` entries that [`Encoder::wraps`] wrote. The caller has limited `count`.
    pub(crate) fn wraps(&mut self, count: usize) -> Option<Vec<(NodeId, [u8; 32])>> {
        (0..count).map(|_| Some((NodeId(self.i32()?), self.array()?))).collect()
    }

    /// Requires that no bytes are left.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

fn is_tag(tag: &[u8]) -> bool {
    (1..=16).contains(&tag.len())
        && tag.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}
