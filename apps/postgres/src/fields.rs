//! The encoded values of a packet's row.

use std::error::Error;

use adit_postgres::row::copy::Fields;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

/// A value in the database's encoding.
#[derive(Copy, Clone, Debug)]
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Returns the value of a column, or `None` if it is null or does not exist.
pub(super) fn value(row: &Row, at: usize) -> Option<&[u8]> {
    row.try_get::<_, Option<Raw<'_>>>(at).ok().flatten().map(|raw| raw.0)
}

/// Returns the first columns of a row, which contain the packet as it was sent.
pub(super) fn fields(row: &Row) -> Fields<'_> {
    std::array::from_fn(|at| value(row, at))
}
