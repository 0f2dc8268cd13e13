//! Writes batches to the database with one COPY per stream or, for a few rows, one INSERT, followed by the wake-up.

use std::pin::pin;

use adit_postgres::limits::FEW_ROWS;
use adit_postgres::receiver::Hint;
use adit_postgres::row::copy;
use adit_postgres::sender::Batch;
use adit_postgres::{Durability, LeafNo, NodeId, sql};
use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::db_error::DbError;
use super::tuples;

/// Wakes the readers and counts the wake-ups. This is a separate transaction that does not wait for the disk, because a
/// NOTIFY holds a lock for all notifications of the whole database cluster until its commit is flushed.
const WAKE: &str = "SELECT pg_notify(c, p), nextval(b::regclass), set_config('synchronous_commit', 'off', true) \
                    FROM unnest($1::text[], $2::text[], $3::text[]) n(c, p, b)";

const SIGN: &str = "SELECT adit.sign($1, $2, $3, $4, $5)";

/// A connection that writes.
pub(super) struct Writer<'a> {
    client: &'a Client,
    me: NodeId,
    /// The leaf to which the statements belong.
    leaf: LeafNo,
    statements: Statements,
    wake: Statement,
    sign: Statement,
}

/// The prepared statements of a leaf.
#[derive(Default)]
struct Statements {
    copy: Option<Statement>,
    /// The INSERT statements, indexed by the number of rows minus one.
    insert: [Option<Statement>; FEW_ROWS],
}

impl<'a> Writer<'a> {
    /// Prepares a connection.
    pub(super) async fn new(
        client: &'a Client,
        me: NodeId,
        durability: Durability,
    ) -> Result<Self, DbError> {
        let flush = if durability == Durability::Strict { "on" } else { "off" };
        client.batch_execute(&format!("SET synchronous_commit = {flush}")).await?;
        let (wake, sign) = (client.prepare(WAKE).await?, client.prepare(SIGN).await?);
        Ok(Self { client, me, leaf: LeafNo(0), statements: Statements::default(), wake, sign })
    }

    /// Stores checkpoints with their streams, epochs, numbers, chain values and signatures.
    pub(super) async fn sign(&self, checkpoints: [&(dyn ToSql + Sync); 5]) -> Result<(), DbError> {
        self.client.query_one(&self.sign, &checkpoints).await?;
        Ok(())
    }

    /// Writes the batch and wakes the receivers. On success, the batch is committed with the configured durability and
    /// returned for its buffers. After an error, it may or may not be committed.
    pub(super) async fn commit(&mut self, mut batch: Batch) -> Result<Batch, DbError> {
        let Some(leaf) = batch.parts.first().map(|part| part.leaf) else { return Ok(batch) };
        if batch.parts.iter().any(|part| part.leaf != leaf) {
            return Err(DbError::new("a batch of our own making is of several leaves"));
        }
        let rows = batch.rows();
        let statement = self.statement(leaf, rows).await?;
        let mut all = Vec::with_capacity(batch.parts.len());
        let mut channels = Vec::with_capacity(batch.parts.len());
        let mut payloads = Vec::with_capacity(batch.parts.len());
        let mut bells = Vec::with_capacity(batch.parts.len());
        for part in &mut batch.parts {
            all.push(Bytes::from(std::mem::take(&mut part.bytes)));
            channels.push(sql::channel(part.receiver));
            payloads.push(Hint { stream: part.stream, leaf: part.leaf }.to_string());
            bells.push(sql::wake_up_sequence(part.receiver));
        }
        // Both are sent at once in this order. Whether the rows were refused is known only later, but an unnecessary
        // wake-up does no harm.
        let wake = async { self.client.query(&self.wake, &[&channels, &payloads, &bells]).await };
        let (written, notifications) =
            tokio::join!(write(self.client, &statement, rows, &all), wake);
        written?;
        notifications?;
        for (part, bytes) in batch.parts.iter_mut().zip(all) {
            // This does not copy, because nothing else holds the bytes any more.
            part.bytes = bytes.into();
        }
        Ok(batch)
    }

    async fn statement(&mut self, leaf: LeafNo, rows: usize) -> Result<Statement, DbError> {
        if self.leaf != leaf {
            (self.leaf, self.statements) = (leaf, Statements::default());
        }
        let table = sql::leaf(self.me, leaf);
        let columns = sql::SENT_COLUMNS;
        let few = rows.checked_sub(1).and_then(|at| self.statements.insert.get_mut(at));
        let (slot, text) = match few {
            Some(slot) => (slot, insert(&table, columns, rows)),
            None => (
                &mut self.statements.copy,
                format!("COPY {table} ({columns}) FROM STDIN (FORMAT binary)"),
            ),
        };
        if let Some(statement) = slot {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&text).await?;
        *slot = Some(statement.clone());
        Ok(statement)
    }
}

async fn write(
    client: &Client,
    statement: &Statement,
    rows: usize,
    parts: &[Bytes],
) -> Result<(), DbError> {
    if rows <= FEW_ROWS {
        let mut parameters = Vec::new();
        for part in parts {
            let more = tuples::parameters(part)
                .ok_or_else(|| DbError::new("a batch of our own making is malformed"))?;
            parameters.extend(more);
        }
        client.execute_raw(statement, parameters).await?;
        return Ok(());
    }
    let sink = client.copy_in::<_, Bytes>(statement).await?;
    let mut sink = pin!(sink);
    sink.feed(Bytes::from_static(copy::HEADER)).await?;
    for part in parts {
        sink.feed(part.clone()).await?;
    }
    sink.feed(Bytes::from_static(copy::TRAILER)).await?;
    sink.finish().await?;
    Ok(())
}

/// Builds an INSERT statement for this number of rows.
fn insert(table: &str, columns: &str, rows: usize) -> String {
    let width = columns.split(',').count();
    let mut text = format!("INSERT INTO {table} ({columns}) VALUES ");
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 0..width {
            let comma = if column == 0 { "" } else { ", " };
            text.push_str(&format!("{comma}${}", row * width + column + 1));
        }
        text.push(')');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insert_has_a_parameter_for_each_value() {
        assert_eq!(
            insert("adit.packet_1_2", "seq, tag", 2),
            "INSERT INTO adit.packet_1_2 (seq, tag) VALUES ($1, $2), ($3, $4)"
        );
    }
}
