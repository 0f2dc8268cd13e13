//! Leaves and their rows, a page at a time: so many rows are in memory, however many there are.

use adit_postgres::{LeafNo, Seq, StreamId, sql};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient, Row};

use super::time::Micros;
use crate::managed::Outcome;
use crate::postgres::admin::said;

const NEXT_LEAF: &str = "SELECT no, first_seq, opened, closed, dropped FROM adit.leaf \
    WHERE stream = $1 AND no > $2 ORDER BY no LIMIT 1";
const LAST_LEAF: &str = "SELECT no, first_seq, opened, closed, dropped FROM adit.leaf \
    WHERE stream = $1 AND dropped IS NULL ORDER BY no DESC LIMIT 1";

/// A row of the table `leaf`.
#[derive(Copy, Clone, Debug)]
pub(super) struct Leaf {
    pub(super) no: LeafNo,
    pub(super) first_seq: Seq,
    pub(super) opened: Micros,
    pub(super) closed: Option<Micros>,
    pub(super) dropped: Option<Micros>,
}

impl Leaf {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            no: LeafNo(row.try_get(0)?),
            first_seq: Seq(row.try_get(1)?),
            opened: row.try_get(2)?,
            closed: row.try_get(3)?,
            dropped: row.try_get(4)?,
        })
    }

    /// The first leaf of a stream after that one.
    pub(super) async fn after(
        client: &impl GenericClient,
        stream: StreamId,
        no: LeafNo,
    ) -> Outcome<Option<Self>> {
        let row = client.query_opt(NEXT_LEAF, &[&stream.0, &no.0]).await;
        let leaf = row.and_then(|row| row.as_ref().map(Self::read).transpose());
        leaf.map_err(|error| said(&error))
    }

    /// The newest that is there.
    pub(super) async fn newest(client: &Client, stream: StreamId) -> Outcome<Option<Self>> {
        let row = client.query_opt(LAST_LEAF, &[&stream.0]).await;
        let leaf = row.and_then(|row| row.as_ref().map(Self::read).transpose());
        leaf.map_err(|error| said(&error))
    }
}

/// Column of a page's rows behind the sent ones.
pub(super) const TS: usize = 13;

/// Which rows of a leaf.
#[derive(Copy, Clone, Debug)]
pub(super) struct Span {
    pub(super) after: Seq,
    pub(super) since: Micros,
    pub(super) until: Micros,
    pub(super) limit: i64,
}

/// The next rows of a leaf, ascending; `None` if it has been dropped meanwhile.
pub(super) async fn page(
    client: &Client,
    stream: StreamId,
    leaf: LeafNo,
    span: Span,
) -> Outcome<Option<Vec<Row>>> {
    let statement = format!(
        "SELECT {}, ts FROM {} WHERE seq > $1 AND ts >= $2 AND ts < $3 ORDER BY seq LIMIT $4",
        sql::SENT_COLUMNS,
        sql::leaf(stream, leaf)
    );
    there(client.query(&statement, &[&span.after.0, &span.since, &span.until, &span.limit]).await)
}

/// The last rows of a leaf, descending; `None` if it has been dropped meanwhile.
pub(super) async fn last(
    client: &Client,
    stream: StreamId,
    leaf: LeafNo,
    limit: i64,
) -> Outcome<Option<Vec<Row>>> {
    let statement = format!(
        "SELECT {}, ts FROM {} ORDER BY seq DESC LIMIT $1",
        sql::SENT_COLUMNS,
        sql::leaf(stream, leaf)
    );
    there(client.query(&statement, &[&limit]).await)
}

fn there(rows: Result<Vec<Row>, tokio_postgres::Error>) -> Outcome<Option<Vec<Row>>> {
    match rows {
        Ok(rows) => Ok(Some(rows)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(said(&error)),
    }
}

/// Whether the table that was asked for is not there.
pub(super) fn is_gone(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::UNDEFINED_TABLE)
}
