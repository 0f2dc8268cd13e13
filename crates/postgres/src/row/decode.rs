//! Rows from the binary values of their columns, as a SELECT hands them out. The database may lie: each value has
//! exactly the length of its type, or there is no row.

use std::net::IpAddr;

use super::copy::{FAMILY_4, FAMILY_6, Fields};
use super::{Columns, Row};
use crate::{EpochNo, Seq, StreamId};

/// Why values are no row.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRow {
    /// A column that is never null is.
    #[error("{0} is null")]
    Null(&'static str),
    /// A value is not one of its column's type.
    #[error("{0} is not a value of its type")]
    Malformed(&'static str),
}

/// The row with these values, in the order of [`crate::sql::SENT_COLUMNS`].
///
/// # Errors
/// They are none; says which column.
pub fn row(values: Fields<'_>) -> Result<Row<'_>, NoRow> {
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

fn present<T>(name: &'static str, value: Option<T>) -> Result<T, NoRow> {
    value.ok_or(NoRow::Null(name))
}

fn optional<T>(
    name: &'static str,
    value: Option<&[u8]>,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<Option<T>, NoRow> {
    value.map(|value| parse(value).ok_or(NoRow::Malformed(name))).transpose()
}

/// A host's address from the binary value of an `inet`; `None` for what is none, a network among it.
#[must_use]
pub fn inet(value: &[u8]) -> Option<IpAddr> {
    match value.split_first_chunk::<4>()? {
        ([FAMILY_4, 32, 0, 4], address) => Some(<[u8; 4]>::try_from(address).ok()?.into()),
        ([FAMILY_6, 128, 0, 16], address) => Some(<[u8; 16]>::try_from(address).ok()?.into()),
        _ => None,
    }
}
