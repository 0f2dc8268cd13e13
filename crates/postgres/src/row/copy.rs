//! Encodes rows for `COPY ... WITH (FORMAT binary)`; see "Binary Format" in
//! <https://www.postgresql.org/docs/15/sql-copy.html>. Fields are encoded like a statement's binary parameters, so a
//! row can be split again for an INSERT.

use std::net::IpAddr;

use super::{Columns, TAG_LEN};
use crate::{EpochNo, Seq, StreamId};

/// The bytes before the first row.
pub const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// The bytes after the last row.
pub const TRAILER: &[u8] = &(-1i16).to_be_bytes();

/// The number of fields in a row: [`crate::sql::SENT_COLUMNS`].
pub const FIELDS: usize = 13;

/// The fields' values in the encoding of binary parameters; `None` for null.
pub type Fields<'a> = [Option<&'a [u8]>; FIELDS];

/// The maximum number of bytes of a row in addition to its payload, for two IPv6 addresses and a chain value.
pub const MAX_OVERHEAD: usize =
    2 + FIELDS * 4 + 8 + 5 * 4 + 2 * 2 + 2 * 20 + TAG_LEN + super::CHAIN_LEN;

/// The length of a field that is null.
const NULL: [u8; 4] = (-1i32).to_be_bytes();

/// PostgreSQL's own numbers for the address families (`utils/inet.h`), the same on every platform.
pub(super) const FAMILY_4: u8 = 2;
pub(super) const FAMILY_6: u8 = 3;

/// Appends the number of fields, and the fields up to `dst`. The caller appends `tag`, `chain` and `payload`.
pub(crate) fn head(
    out: &mut Vec<u8>,
    seq: Seq,
    stream: StreamId,
    epoch: EpochNo,
    columns: &Columns,
) {
    out.extend_from_slice(&(FIELDS as u16).to_be_bytes());
    field(out, Some(seq.0.to_be_bytes()));
    field(out, Some(stream.0.to_be_bytes()));
    field(out, Some(epoch.0.to_be_bytes()));
    field(out, columns.len.map(i32::to_be_bytes));
    field(out, columns.sport.map(i32::to_be_bytes));
    field(out, columns.dport.map(i32::to_be_bytes));
    field(out, columns.proto.map(i16::to_be_bytes));
    field(out, columns.flags.map(i16::to_be_bytes));
    inet(out, columns.src);
    inet(out, columns.dst);
}

/// Appends a field of fixed length, or null.
#[inline]
pub(crate) fn field<const N: usize>(out: &mut Vec<u8>, value: Option<[u8; N]>) {
    match value {
        Some(value) => {
            out.extend_from_slice(&(N as u32).to_be_bytes());
            out.extend_from_slice(&value);
        }
        None => out.extend_from_slice(&NULL),
    }
}

/// Appends a host's address, as the family, prefix length, `cidr` flag, length and bytes.
fn inet(out: &mut Vec<u8>, value: Option<IpAddr>) {
    match value {
        Some(IpAddr::V4(address)) => {
            out.extend_from_slice(&[0, 0, 0, 8, FAMILY_4, 32, 0, 4]);
            out.extend_from_slice(&address.octets());
        }
        Some(IpAddr::V6(address)) => {
            out.extend_from_slice(&[0, 0, 0, 20, FAMILY_6, 128, 0, 16]);
            out.extend_from_slice(&address.octets());
        }
        None => out.extend_from_slice(&NULL),
    }
}

/// Splits `rows` into the fields of the first row and the remaining bytes. It accepts arbitrary bytes.
///
/// Returns `None` if there is no complete row with [`FIELDS`] fields, as at the [`TRAILER`].
#[must_use]
pub fn split_row(rows: &[u8]) -> Option<(Fields<'_>, &[u8])> {
    let (count, mut rest) = rows.split_first_chunk::<2>()?;
    if usize::from(u16::from_be_bytes(*count)) != FIELDS {
        return None;
    }
    let mut fields = [None; FIELDS];
    for field in &mut fields {
        let (len, behind) = rest.split_first_chunk::<4>()?;
        rest = behind;
        if *len != NULL {
            let len = usize::try_from(i32::from_be_bytes(*len)).ok()?;
            let (value, behind) = rest.split_at_checked(len)?;
            (*field, rest) = (Some(value), behind);
        }
    }
    Some((fields, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::decode;

    fn row(out: &mut Vec<u8>, columns: &Columns, chain: Option<[u8; 32]>) {
        head(out, Seq(7), StreamId(3), EpochNo(2), columns);
        field(out, Some([9; TAG_LEN]));
        field(out, chain);
        field(out, Some(*b"payload"));
    }

    #[test]
    fn rows_are_as_the_manual_says() {
        assert_eq!(HEADER.len(), 11 + 4 + 4);
        assert_eq!(TRAILER, [0xff, 0xff]);
        let columns =
            Columns { dport: Some(443), src: Some([10, 9, 0, 1].into()), ..Columns::default() };
        let mut out = Vec::new();
        row(&mut out, &columns, None);
        let null = [0xff; 4];
        let expected = [
            &[0, 13][..],
            &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7],
            &[0, 0, 0, 4, 0, 0, 0, 3],
            &[0, 0, 0, 4, 0, 0, 0, 2],
            &null,
            &null,
            &[0, 0, 0, 4, 0, 0, 1, 187],
            &null,
            &null,
            &[0, 0, 0, 8, 2, 32, 0, 4, 10, 9, 0, 1],
            &null,
            &[0, 0, 0, 16],
            &[9; 16],
            &null,
            &[0, 0, 0, 7],
            b"payload",
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn the_longest_row_is_as_long_as_it_says() {
        let v6 = Some("fd00::1".parse().unwrap());
        let columns = Columns {
            len: Some(1),
            sport: Some(2),
            dport: Some(3),
            proto: Some(4),
            flags: Some(5),
            src: v6,
            dst: v6,
        };
        let mut out = Vec::new();
        row(&mut out, &columns, Some([1; 32]));
        assert_eq!(out.len(), MAX_OVERHEAD + "payload".len());
    }

    #[test]
    fn rows_are_taken_apart_again() {
        let columns =
            Columns { len: Some(9), dst: Some("fd00::1".parse().unwrap()), ..Columns::default() };
        let mut out = Vec::new();
        row(&mut out, &columns, None);
        row(&mut out, &Columns::default(), Some([5; 32]));
        out.extend_from_slice(TRAILER);
        let (first, rest) = split_row(&out).unwrap();
        let first = decode::row(first).unwrap();
        assert_eq!((first.seq, first.stream, first.epoch), (Seq(7), StreamId(3), EpochNo(2)));
        assert_eq!(
            (first.columns, first.tag, first.payload),
            (columns, &[9; 16][..], &b"payload"[..])
        );
        let (second, rest) = split_row(rest).unwrap();
        assert_eq!(decode::row(second).unwrap().chain, Some(&[5; 32][..]));
        assert_eq!((split_row(rest), rest), (None, TRAILER));
    }

    #[test]
    fn a_row_that_ends_early_or_has_other_fields_is_none() {
        let mut out = Vec::new();
        row(&mut out, &Columns::default(), None);
        for len in 0..out.len() {
            assert_eq!(split_row(&out[..len]), None, "{len} bytes");
        }
        let negative_length = 2;
        out[negative_length..][..4].copy_from_slice(&(-2i32).to_be_bytes());
        assert_eq!(split_row(&out), None);
        out[1] = 12;
        assert_eq!(split_row(&out), None);
    }
}
