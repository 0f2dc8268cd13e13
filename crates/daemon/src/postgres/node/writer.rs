//! Batches into the database: COPY, or one INSERT of a few rows; the commit; and the wake-up behind it.

use std::collections::HashMap;
use std::pin::pin;

use adit_postgres::limits::FEW_ROWS;
use adit_postgres::receiver::Hint;
use adit_postgres::row::copy;
use adit_postgres::sender::{Batch, Part};
use adit_postgres::{Durability, LeafNo, StreamId, sql};
use bytes::Bytes;
use futures_util::SinkExt;
use futures_util::future::try_join_all;
use tokio_postgres::{Client, Statement};

use super::cause::Cause;
use super::tuples;

/// Leaves whose statements are remembered. More than that many streams at once are prepared again and again.
const LEAVES: usize = 256;

/// Wakes the readers. In a transaction of its own that is never waited for on disk: a NOTIFY holds a lock
/// of all notifications of the whole database cluster until its commit is flushed.
const WAKE: &str = "SELECT pg_notify(c, p), set_config('synchronous_commit', 'off', true) \
                    FROM unnest($1::text[], $2::text[]) n(c, p)";

/// A connection that writes.
pub(super) struct Writer<'a> {
    client: &'a Client,
    leaves: HashMap<(StreamId, LeafNo), Statements>,
    wake: Statement,
}

/// What is prepared for a leaf.
#[derive(Default)]
struct Statements {
    copy: Option<Statement>,
    /// By the number of rows, less one.
    insert: [Option<Statement>; FEW_ROWS],
}

/// Rows on their way, and how.
struct Ready {
    statement: Statement,
    rows: usize,
    bytes: Bytes,
}

impl<'a> Writer<'a> {
    /// Prepares a connection.
    pub(super) async fn new(client: &'a Client, durability: Durability) -> Result<Self, Cause> {
        let flush = if durability == Durability::Strict { "on" } else { "off" };
        client.batch_execute(&format!("SET synchronous_commit = {flush}")).await?;
        let wake = client.prepare(WAKE).await?;
        Ok(Self { client, leaves: HashMap::new(), wake })
    }

    /// Writes all of it in one transaction and wakes the receivers. When it returns, all is committed as the
    /// durability says, and the batch comes back for its buffers; after an error, nobody knows.
    pub(super) async fn commit(&mut self, mut batch: Batch) -> Result<Batch, Cause> {
        let mut ready = Vec::with_capacity(batch.parts.len());
        let mut channels = Vec::with_capacity(batch.parts.len());
        let mut payloads = Vec::with_capacity(batch.parts.len());
        for part in &mut batch.parts {
            let statement = self.statement(part).await?;
            let bytes = Bytes::from(std::mem::take(&mut part.bytes));
            ready.push(Ready { statement, rows: part.rows, bytes });
            channels.push(sql::channel(part.receiver));
            payloads.push(Hint { stream: part.stream, leaf: part.leaf }.to_string());
        }
        let (client, wake) = (self.client, &self.wake);
        // Everything is sent at once, in the order below: whether the rows were refused is known only later, and a
        // reader that is woken for nothing loses nothing.
        let wake = async { client.query(wake, &[&channels, &payloads]).await };
        if let [one] = ready.as_slice() {
            let (written, woken) = tokio::join!(write(client, one), wake);
            written?;
            woken?;
        } else {
            let begin = client.batch_execute("BEGIN");
            let rows = try_join_all(ready.iter().map(|part| write(client, part)));
            let commit = client.batch_execute("COMMIT");
            let (begun, written, committed, woken) = tokio::join!(begin, rows, commit, wake);
            begun?;
            written?;
            committed?;
            woken?;
        }
        for (part, ready) in batch.parts.iter_mut().zip(ready) {
            // Without copying, since nobody else holds the bytes any more.
            part.bytes = ready.bytes.into();
        }
        Ok(batch)
    }

    async fn statement(&mut self, part: &Part) -> Result<Statement, Cause> {
        if self.leaves.len() >= LEAVES && !self.leaves.contains_key(&(part.stream, part.leaf)) {
            self.leaves.clear();
        }
        let leaf = self.leaves.entry((part.stream, part.leaf)).or_default();
        let table = sql::leaf(part.stream, part.leaf);
        let columns = sql::SENT_COLUMNS;
        let few = part.rows.checked_sub(1).and_then(|at| leaf.insert.get_mut(at));
        let (slot, text) = match few {
            Some(slot) => (slot, insert(&table, columns, part.rows)),
            None => {
                (&mut leaf.copy, format!("COPY {table} ({columns}) FROM STDIN (FORMAT binary)"))
            }
        };
        if let Some(statement) = slot {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&text).await?;
        *slot = Some(statement.clone());
        Ok(statement)
    }
}

async fn write(client: &Client, part: &Ready) -> Result<(), Cause> {
    if part.rows <= FEW_ROWS {
        let parameters = tuples::parameters(&part.bytes)
            .ok_or_else(|| Cause::new("a batch of our own making is malformed"))?;
        client.execute_raw(&part.statement, parameters).await?;
        return Ok(());
    }
    let sink = client.copy_in::<_, Bytes>(&part.statement).await?;
    let mut sink = pin!(sink);
    sink.feed(Bytes::from_static(copy::HEADER)).await?;
    sink.feed(part.bytes.clone()).await?;
    sink.feed(Bytes::from_static(copy::TRAILER)).await?;
    sink.finish().await?;
    Ok(())
}

/// An INSERT of so many rows.
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
