//! Reads pages from the database.

use std::cell::RefCell;
use std::collections::HashMap;

use adit_postgres::limits::EXPIRED_MS;
use adit_postgres::receiver::{AgedRow, Query};
use adit_postgres::row::copy::FIELDS;
use adit_postgres::row::decode;
use adit_postgres::{EpochNo, LeafNo, NodeId, StreamId, sql};
use futures_util::{StreamExt, TryStreamExt};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::db_error::DbError;
use crate::fields::{fields, value};

/// The number of cached statements: a few for each sender that a node may know.
const STATEMENTS: usize = 2048;

const EPOCHS: &str = "SELECT s.stream, e.record, e.signature, e.enc, e.sealed, \
    (extract(epoch FROM statement_timestamp() - e.opened) * 1000)::bigint \
    FROM unnest($1::integer[], $2::integer[]) s(stream, after) CROSS JOIN LATERAL ( \
        SELECT e.record, e.signature, e.opened, w.enc, w.sealed \
        FROM adit.epoch e JOIN adit.wrap w ON w.stream = e.stream AND w.epoch = e.no AND w.reader = $4 \
        WHERE e.stream = s.stream AND e.no > s.after ORDER BY e.no DESC LIMIT $3) e";

/// Decodes a row and its age by the database's clock. Returns `None` if it is malformed.
pub(super) fn aged_row(row: &Row) -> Option<AgedRow<'_>> {
    // The two times follow the row's columns.
    let time = |at| Some(i64::from_be_bytes(value(row, at)?.try_into().ok()?));
    let age_us = time(FIELDS + 1)?.saturating_sub(time(FIELDS)?);
    Some(AgedRow { row: decode::row(fields(row)).ok()?, age_ms: age_us / 1000 })
}

/// A connection for reading. Queries are sent without waiting for answers, so several may be in flight.
pub(super) struct Reader<'a> {
    client: &'a Client,
    statements: RefCell<HashMap<(NodeId, LeafNo), Statement>>,
    newest: Statement,
    epochs: Statement,
    count: Statement,
}

impl<'a> Reader<'a> {
    pub(super) async fn new(client: &'a Client, me: NodeId) -> Result<Self, DbError> {
        // Use one fixed plan. A leaf grows from no rows to millions, and only the index is suitable for both.
        client
            .batch_execute(
                "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
                 SET enable_bitmapscan = off; SET enable_sort = off",
            )
            .await?;
        let newest = select("adit.newest($1, $2, $3, $4, $5, $6)", "ORDER BY seq DESC");
        let newest = client.prepare(&newest).await?;
        let epochs = client.prepare(EPOCHS).await?;
        let count = client
            .prepare(&format!("SELECT last_value FROM {}", sql::wake_up_sequence(me)))
            .await?;
        Ok(Self { client, statements: RefCell::default(), newest, epochs, count })
    }

    /// Reads the epochs of each stream after the given one, newest first and at most `limit` per stream, with the wraps
    /// for `me`.
    pub(super) async fn epochs(
        &self,
        after: &[(StreamId, EpochNo)],
        limit: u32,
        me: NodeId,
    ) -> Result<Vec<Row>, DbError> {
        let streams: Vec<i32> = after.iter().map(|(stream, _)| stream.0).collect();
        let epochs: Vec<i32> = after.iter().map(|(_, epoch)| epoch.0).collect();
        let of: [&(dyn ToSql + Sync); 4] = [&streams, &epochs, &i64::from(limit), &me.0];
        let rows = self.client.query_raw(&self.epochs, of).await?;
        // The database may not respect the limit.
        let most = (limit as usize).saturating_mul(after.len());
        Ok(rows.take(most).try_collect().await?)
    }

    /// Returns the number of wake-ups sent to this node.
    pub(super) async fn count(&self) -> Result<i64, DbError> {
        Ok(self.client.query_one(&self.count, &[]).await?.try_get(0)?)
    }

    /// Queries the rows of a [`Query::Page`]. Other queries have none.
    pub(super) async fn page(&self, stream: StreamId, query: Query) -> Result<Vec<Row>, DbError> {
        let Query::Page { leaf, after, until, limit, newest_first } = query else {
            return Ok(Vec::new());
        };
        let limit_of_rows = i64::from(limit);
        let rows = if newest_first {
            let late: Option<i32> = None;
            let of: [&(dyn ToSql + Sync); 6] =
                [&stream.0, &leaf.0, &after.0, &until.0, &late, &limit_of_rows];
            self.client.query_raw(&self.newest, of).await?
        } else {
            let statement = self.statement(stream.sender(), leaf).await?;
            let of: [&(dyn ToSql + Sync); 4] = [&stream.0, &after.0, &until.0, &limit_of_rows];
            self.client.query_raw(&statement, of).await?
        };
        Ok(rows.take(limit as usize).try_collect().await?)
    }

    /// Finds the newest row after `after` that is too old to be delivered.
    pub(super) async fn skip(
        &self,
        stream: StreamId,
        leaf: LeafNo,
        after: i64,
    ) -> Result<Option<i64>, DbError> {
        let late = i32::try_from(EXPIRED_MS).unwrap_or(i32::MAX);
        let of: [&(dyn ToSql + Sync); 6] = [&stream.0, &leaf.0, &after, &i64::MAX, &late, &1_i64];
        let row = self.client.query_opt(&self.newest, &of).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    async fn statement(&self, sender: NodeId, leaf: LeafNo) -> Result<Statement, DbError> {
        if let Some(statement) = self.statements.borrow().get(&(sender, leaf)) {
            return Ok(statement.clone());
        }
        let text = select(
            &sql::inbox(sender, leaf),
            "WHERE stream = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4",
        );
        let statement = self.client.prepare(&text).await?;
        let mut statements = self.statements.borrow_mut();
        if statements.len() >= STATEMENTS {
            statements.clear();
        }
        statements.insert((sender, leaf), statement.clone());
        Ok(statement)
    }
}

/// Returns the columns of a [`Query::Page`]'s answer. Only auditors use `chain`; for others its column is empty.
fn select(from: &str, more: &str) -> String {
    let columns = sql::SENT_COLUMNS.replace("chain", "NULL::bytea");
    format!("SELECT {columns}, ts, statement_timestamp() FROM {from} {more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_columns_of_a_row_and_two_times() {
        let text = select("adit.inbox_3_4", "ORDER BY seq");
        assert!(text.ends_with(" FROM adit.inbox_3_4 ORDER BY seq"));
        assert_eq!(text.split(" FROM ").next().unwrap().split(',').count(), FIELDS + 2);
    }
}
