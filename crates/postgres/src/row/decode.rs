//! Decodes rows from the binary values that a SELECT returns. The database is not trusted, so a value whose length does
//! not match its type is refused.

use std::net::IpAddr;

use super::copy::{FAMILY_4, FAMILY_6, Fields};
use super::{Columns, Row};
use crate::{EpochNo, Seq, StreamId};

/// The reason why values do not form a row.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A column that must not be null is null.
    #[error("{0} is null")]
    Null(&'static str),
    /// A value does not have its column's type.
    #[error("{0} is not a value of its type")]
    Malformed(&'static str),
}

/// Decodes a row from these values, in the order of [`crate::sql::SENT_COLUMNS`].
///
/// # Errors
/// Fails with the column if the values do not form a row.
pub fn row(values: Fields<'_>) -> Result<Row<'_>, RowError> {
    let [seq, stream, epoch, len, sport, dport, proto, flags, src, dst, tag, chain, payload] =
        values;
    let i32_of = |name, value| {
        optional(name, value, |value| Some(i32::from_be_bytes(value.try_into().ok()?)))
    };
    let i16_of = |name, value| {
        optional(name, value, |value| Some(i16::from_be_bytes(value.try_into().ok()?)))
    };
    Ok(Row {
        seq: Seq(present(
            "seq",
            optional("seq", seq, |v| Some(i64::from_be_bytes(v.try_into().ok()?)))?,
        )?),
        stream: StreamId(present("stream", i32_of("stream", stream)?)?),
        epoch: EpochNo(present("epoch", i32_of("epoch", epoch)?)?),
        columns: Columns {
            len: i32_of("len", len)?,
            sport: i32_of("sport", sport)?,
            dport: i32_of("dport", dport)?,
            proto: i16_of("proto", proto)?,
            flags: i16_of("flags", flags)?,
            src: optional("src", src, inet)?,
            dst: optional("dst", dst, inet)?,
        },
        tag: present("tag", tag)?,
        chain,
        payload: present("payload", payload)?,
    })
}

fn present<T>(name: &'static str, value: Option<T>) -> Result<T, RowError> {
    value.ok_or(RowError::Null(name))
}

fn optional<T>(
    name: &'static str,
    value: Option<&[u8]>,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<Option<T>, RowError> {
    value.map(|value| parse(value).ok_or(RowError::Malformed(name))).transpose()
}

/// Decodes a host's address from the binary value of an `inet`. Returns `None` for anything else, such as a network.
#[must_use]
pub fn inet(value: &[u8]) -> Option<IpAddr> {
    match value.split_first_chunk::<4>()? {
        ([FAMILY_4, 32, 0, 4], address) => Some(<[u8; 4]>::try_from(address).ok()?.into()),
        ([FAMILY_6, 128, 0, 16], address) => Some(<[u8; 16]>::try_from(address).ok()?.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 13] = [
        "seq", "stream", "epoch", "len", "sport", "dport", "proto", "flags", "src", "dst", "tag",
        "chain", "payload",
    ];

    /// Returns a value for each column, and whether the column must not be null.
    fn values() -> [(Vec<u8>, bool); 13] {
        let v6 = [&[3, 128, 0, 16][..], &[0xfd; 16]].concat();
        [
            (vec![0, 0, 0, 0, 0, 0, 1, 0], true),
            (vec![0, 0, 0, 3], true),
            (vec![0, 0, 0, 2], true),
            (vec![0, 0, 0, 40], false),
            (vec![0, 0, 31, 144], false),
            (vec![0, 0, 1, 187], false),
            (vec![0, 6], false),
            (vec![0, 18], false),
            (vec![2, 32, 0, 4, 10, 9, 0, 1], false),
            (v6, false),
            (vec![9; 16], true),
            (vec![8; 32], false),
            (vec![7; 40], true),
        ]
    }

    fn fields(values: &[(Vec<u8>, bool); 13]) -> Fields<'_> {
        values.each_ref().map(|(value, _)| Some(&value[..]))
    }

    #[test]
    fn a_row_is_what_its_values_say() {
        assert_eq!(NAMES.join(", "), crate::sql::SENT_COLUMNS, "in this order");
        let values = values();
        let columns = Columns {
            len: Some(40),
            sport: Some(8080),
            dport: Some(443),
            proto: Some(6),
            flags: Some(18),
            src: Some([10, 9, 0, 1].into()),
            dst: Some([0xfd; 16].into()),
        };
        let expected = Row {
            seq: Seq(256),
            epoch: EpochNo(2),
            stream: StreamId(3),
            columns,
            tag: &[9; 16],
            chain: Some(&[8; 32]),
            payload: &[7; 40],
        };
        assert_eq!(row(fields(&values)), Ok(expected));
    }

    #[test]
    fn a_null_is_refused_where_there_is_none() {
        let values = values();
        for (at, (name, (_, needed))) in NAMES.iter().zip(&values).enumerate() {
            let mut fields = fields(&values);
            fields[at] = None;
            let expected = if *needed { Some(RowError::Null(name)) } else { None };
            assert_eq!(row(fields).err(), expected, "{name}");
        }
    }

    #[test]
    fn a_value_one_byte_longer_or_shorter_is_refused() {
        let values = values();
        for (at, name) in NAMES.iter().enumerate() {
            let value = &values[at].0;
            for wrong in [&value[1..], &[&value[..], &[0]].concat()[..], &[]] {
                let mut fields = fields(&values);
                fields[at] = Some(wrong);
                // The lengths of these columns are checked where they are used.
                let expected = match *name {
                    "tag" | "chain" | "payload" => None,
                    name => Some(RowError::Malformed(name)),
                };
                assert_eq!(row(fields).err(), expected, "{name}, {} bytes", wrong.len());
            }
        }
    }

    #[test]
    fn only_a_hosts_address_is_one() {
        let host = [2, 32, 0, 4, 10, 9, 0, 1];
        assert_eq!(inet(&host), Some([10, 9, 0, 1].into()));
        let fields = [(0, 3, "family"), (1, 24, "prefix"), (2, 1, "cidr"), (3, 3, "length")];
        for (at, other, what) in fields {
            let mut altered = host;
            altered[at] = other;
            assert_eq!(inet(&altered), None, "{what}");
        }
    }
}
