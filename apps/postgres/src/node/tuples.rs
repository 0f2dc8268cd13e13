//! Converts the rows of a binary COPY to the parameters of an INSERT. Both encode values in the same way (PostgreSQL
//! documentation, "COPY", binary format).

use std::error::Error;

use bytes::{Bytes, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// A value in the database's encoding, or null.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value(Option<Bytes>);

impl ToSql for Value {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Some(bytes) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Converts all values of all rows in order. `rows` has no header or trailer. Returns `None` if it does not consist of
/// complete rows.
pub(super) fn parameters(rows: &Bytes) -> Option<Vec<Value>> {
    let mut at = 0;
    let mut values = Vec::new();
    while at < rows.len() {
        let fields = u16::from_be_bytes(take(rows, &mut at)?);
        for _ in 0..fields {
            let len = i32::from_be_bytes(take(rows, &mut at)?);
            let value = match usize::try_from(len) {
                Ok(len) => {
                    let end = at.checked_add(len).filter(|end| *end <= rows.len())?;
                    let value = rows.slice(at..end);
                    at = end;
                    Some(value)
                }
                Err(_) => None,
            };
            values.push(Value(value));
        }
    }
    Some(values)
}

fn take<const N: usize>(bytes: &Bytes, at: &mut usize) -> Option<[u8; N]> {
    let taken = bytes.get(*at..)?.first_chunk()?;
    *at = at.checked_add(N)?;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(rows: &[&[Option<&[u8]>]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for row in rows {
            bytes.extend((row.len() as i16).to_be_bytes());
            for value in *row {
                bytes.extend(value.map_or(-1, |value| value.len() as i32).to_be_bytes());
                bytes.extend(value.unwrap_or_default());
            }
        }
        bytes
    }

    #[test]
    fn values_come_in_order_with_their_nulls() {
        let bytes = copy(&[&[Some(b"a"), None], &[Some(b""), Some(b"bc")]]);
        let values = parameters(&bytes.into()).unwrap();
        let plain: Vec<_> = values.iter().map(|v| v.0.as_deref()).collect();
        assert_eq!(plain, [Some(&b"a"[..]), None, Some(b""), Some(b"bc")]);
    }

    #[test]
    fn what_is_cut_off_anywhere_is_refused() {
        let bytes = copy(&[&[Some(b"abc"), None]]);
        for len in 1..bytes.len() {
            assert_eq!(parameters(&bytes[..len].to_vec().into()), None, "{len}");
        }
    }
}
