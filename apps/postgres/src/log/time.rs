//! Decodes times from the database.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The microseconds from 1970 to 2000, when the database's times begin.
const EPOCH: i64 = 946_684_800_000_000;

/// A time in microseconds since 1970. The database's infinities become the minimum and the maximum.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Micros(pub(super) i64);

impl Micros {
    pub(super) const FIRST: Self = Self(i64::MIN);
    pub(super) const LAST: Self = Self(i64::MAX);
}

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(i64::from_be_bytes(raw.try_into()?).saturating_add(EPOCH)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }
}

impl ToSql for Micros {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i64(match *self {
            Self::FIRST => i64::MIN,
            Self::LAST => i64::MAX,
            Self(micros) => micros.saturating_sub(EPOCH),
        });
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}
