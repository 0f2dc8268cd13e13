//! Pages out of the database.

use std::collections::HashMap;

use adit_postgres::receiver::{Dated, Query};
use adit_postgres::row::copy::FIELDS;
use adit_postgres::row::decode;
use adit_postgres::{LeafNo, StreamId, sql};
use futures_util::{StreamExt, TryStreamExt};
use tokio_postgres::{Client, Row, Statement};

use super::cause::Cause;
use crate::postgres::fields::{fields, value};

/// Statements that are remembered.
const STATEMENTS: usize = 512;

/// The row, and how old it is by the database's clock; `None` if it is none.
pub(super) fn dated(row: &Row) -> Option<Dated<'_>> {
    // The two times stand behind the row as it was sent.
    let time = |at| Some(i64::from_be_bytes(value(row, at)?.try_into().ok()?));
    let age_us = time(FIELDS + 1)?.saturating_sub(time(FIELDS)?);
    Some(Dated { row: decode::row(fields(row)).ok()?, age_ms: age_us / 1000 })
}

/// A connection that reads.
pub(super) struct Reader<'a> {
    client: &'a Client,
    statements: HashMap<(StreamId, LeafNo, Kind), Statement>,
}

/// How a leaf is asked.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Forward,
    NewestFirst,
    Skip,
}

impl<'a> Reader<'a> {
    pub(super) async fn new(client: &'a Client) -> Result<Self, Cause> {
        // One plan for ever: a leaf grows from nothing to millions of rows, and only the index is right for both.
        client
            .batch_execute(
                "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
                 SET enable_bitmapscan = off; SET enable_sort = off",
            )
            .await?;
        Ok(Self { client, statements: HashMap::new() })
    }

    /// Asks for the rows of a [`Query::Page`]; for other queries there are none.
    pub(super) async fn page(&mut self, stream: StreamId, query: Query) -> Result<Vec<Row>, Cause> {
        let Query::Page { leaf, after, until, limit, newest_first } = query else {
            return Ok(Vec::new());
        };
        let kind = if newest_first { Kind::NewestFirst } else { Kind::Forward };
        let statement = self.statement(stream, leaf, kind).await?;
        let rows = self.client.query_raw(&statement, [after.0, until.0, i64::from(limit)]).await?;
        // A limit is the database's to keep, or not.
        Ok(rows.take(limit as usize).try_collect().await?)
    }

    /// The newest row behind `after` that is too old to be delivered.
    pub(super) async fn skip(
        &mut self,
        stream: StreamId,
        leaf: LeafNo,
        after: i64,
    ) -> Result<Option<i64>, Cause> {
        let statement = self.statement(stream, leaf, Kind::Skip).await?;
        Ok(self.client.query_one(&statement, &[&after]).await?.try_get(0)?)
    }

    async fn statement(
        &mut self,
        stream: StreamId,
        leaf: LeafNo,
        kind: Kind,
    ) -> Result<Statement, Cause> {
        if let Some(statement) = self.statements.get(&(stream, leaf, kind)) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&select(stream, leaf, kind)).await?;
        if self.statements.len() >= STATEMENTS {
            self.statements.clear();
        }
        self.statements.insert((stream, leaf, kind), statement.clone());
        Ok(statement)
    }
}

fn select(stream: StreamId, leaf: LeafNo, kind: Kind) -> String {
    let table = sql::leaf(stream, leaf);
    let order = match kind {
        Kind::Forward => "seq",
        Kind::NewestFirst => "seq DESC",
        Kind::Skip => {
            let expired = adit_postgres::limits::EXPIRED_MS;
            return format!(
                "SELECT seq FROM {table} WHERE seq > $1 AND ts < statement_timestamp() - interval '{expired} ms' \
                 ORDER BY seq DESC LIMIT 1"
            );
        }
    };
    // Of `chain` only auditors know what to do with it; its place stays.
    let columns = sql::SENT_COLUMNS.replace("chain", "NULL::bytea");
    format!(
        "SELECT {columns}, ts, statement_timestamp() FROM {table} WHERE seq > $1 AND seq <= $2 \
         ORDER BY {order} LIMIT $3"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_asked_by_number_alone() {
        let text = select(StreamId(3), LeafNo(4), Kind::NewestFirst);
        assert!(text.contains(
            "FROM adit.packet_3_4 WHERE seq > $1 AND seq <= $2 ORDER BY seq DESC LIMIT $3"
        ));
        assert_eq!(text.split(" FROM ").next().unwrap().split(',').count(), FIELDS + 2);
    }
}
