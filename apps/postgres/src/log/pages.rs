//! Reads leaves and their rows one page at a time, so that the number of rows in memory is limited.

use adit_postgres::{LeafNo, Seq, StreamId, sql};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, Row};

use super::time::Micros;
use super::view::View;
use crate::admin::statement_fault;
use adit_runtime::fault::Fault;

/// Queries all leaves of the stream's sender, because a leaf without an epoch of the stream may still contain rows that
/// claim to belong to it.
const NEXT_LEAF: &str = "SELECT l.no, (SELECT min(e.first_seq) FROM adit.epoch e WHERE e.stream = $1 AND e.leaf = l.no), \
    l.opened, l.closed, l.dropped, l.durable FROM adit.leaf l WHERE l.sender = $1 / 65536 AND l.no > $2 ORDER BY l.no LIMIT 1";
/// Queries the leaf of the stream's newest epoch.
const LAST_LEAF: &str = "SELECT l.no, e.first_seq, l.opened, l.closed, l.dropped, l.durable \
    FROM adit.epoch e JOIN adit.leaf l ON l.sender = e.stream / 65536 AND l.no = e.leaf \
    WHERE e.stream = $1 AND l.dropped IS NULL ORDER BY e.no DESC LIMIT 1";

/// The tables from which packets are read.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The leaves themselves, for an auditor.
    Leaves,
    /// The views that show a node the packets addressed to it.
    Inboxes,
}

impl Source {
    /// Returns the table or view that contains the rows of a stream in a leaf.
    pub(super) fn of(self, stream: StreamId, leaf: LeafNo) -> String {
        match self {
            Self::Leaves => sql::leaf(stream.sender(), leaf),
            Self::Inboxes => sql::inbox(stream.sender(), leaf),
        }
    }
}

/// A row of the table `leaf`.
#[derive(Copy, Clone, Debug)]
pub(super) struct Leaf {
    pub(super) no: LeafNo,
    /// The first packet number of the stream's first epoch in the leaf; `None` if the leaf has no epoch of the stream.
    pub(super) first_seq: Option<Seq>,
    pub(super) opened: Micros,
    pub(super) closed: Option<Micros>,
    pub(super) dropped: Option<Micros>,
    /// Whether the leaf survives a crash and exists on a standby.
    pub(super) durable: bool,
}

impl Leaf {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            no: LeafNo(row.try_get(0)?),
            first_seq: row.try_get::<_, Option<i64>>(1)?.map(Seq),
            opened: row.try_get(2)?,
            closed: row.try_get(3)?,
            dropped: row.try_get(4)?,
            durable: row.try_get(5)?,
        })
    }

    /// Finds the first leaf of a stream after the given one.
    pub(super) async fn after(
        client: &impl GenericClient,
        stream: StreamId,
        no: LeafNo,
    ) -> Result<Option<Self>, Fault> {
        let row = client.query_opt(NEXT_LEAF, &[&stream.0, &no.0]).await;
        let leaf = row.and_then(|row| row.as_ref().map(Self::read).transpose());
        leaf.map_err(|error| statement_fault(&error))
    }

    /// Finds the newest leaf that exists.
    pub(super) async fn newest(client: &Client, stream: StreamId) -> Result<Option<Self>, Fault> {
        let row = client.query_opt(LAST_LEAF, &[&stream.0]).await;
        let leaf = row.and_then(|row| row.as_ref().map(Self::read).transpose());
        leaf.map_err(|error| statement_fault(&error))
    }
}

/// The index of the first additional column in a page's rows, after the transmitted ones.
pub(super) const TS: usize = 13;

/// A range of rows in a leaf.
#[derive(Copy, Clone, Debug)]
pub(super) struct Span {
    pub(super) after: Seq,
    pub(super) since: Micros,
    pub(super) until: Micros,
    pub(super) limit: i64,
}

/// Reads the next rows of a leaf in ascending order. Returns `None` if the leaf has been dropped in the meantime.
pub(super) async fn page(
    view: &View<'_>,
    stream: StreamId,
    leaf: LeafNo,
    span: Span,
) -> Result<Option<Vec<Row>>, Fault> {
    let statement = format!(
        "SELECT {}, ts FROM {} WHERE stream = $5 AND seq > $1 AND ts >= $2 AND ts < $3 ORDER BY seq LIMIT $4",
        sql::SENT_COLUMNS,
        view.source.of(stream, leaf)
    );
    let of: [&(dyn ToSql + Sync); 5] =
        [&span.after.0, &span.since, &span.until, &span.limit, &stream.0];
    rows_if_table_exists(view.client.query(&statement, &of).await)
}

/// Reads the last rows of a leaf in descending order. Returns `None` if the leaf has been dropped in the meantime.
pub(super) async fn last(
    view: &View<'_>,
    stream: StreamId,
    leaf: LeafNo,
    limit: i64,
) -> Result<Option<Vec<Row>>, Fault> {
    let statement = format!(
        "SELECT {}, ts FROM {} WHERE stream = $2 ORDER BY seq DESC LIMIT $1",
        sql::SENT_COLUMNS,
        view.source.of(stream, leaf)
    );
    rows_if_table_exists(view.client.query(&statement, &[&limit, &stream.0]).await)
}

fn rows_if_table_exists(
    rows: Result<Vec<Row>, tokio_postgres::Error>,
) -> Result<Option<Vec<Row>>, Fault> {
    match rows {
        Ok(rows) => Ok(Some(rows)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(statement_fault(&error)),
    }
}

/// Returns whether the requested table does not exist, or has no rows on a standby.
pub(super) fn is_gone(error: &tokio_postgres::Error) -> bool {
    [SqlState::UNDEFINED_TABLE, SqlState::FEATURE_NOT_SUPPORTED]
        .iter()
        .any(|code| error.code() == Some(code))
}
