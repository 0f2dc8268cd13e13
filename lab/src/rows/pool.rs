//! A pool of connections that each execute one statement at a time, in the order of the requests, as in typical
//! applications.

use std::sync::{Mutex, PoisonError};

use adit_testbed::failure::{Context, Result};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, NoTls, Statement};

use super::{Form, said};

/// A connection with its prepared statements.
pub(super) struct PooledConnection {
    pub(super) client: Client,
    pub(super) insert: Option<Statement>,
    pub(super) notify: Statement,
    pub(super) select: Option<Statement>,
    pub(super) mark: Option<Statement>,
}

pub(super) struct Pool {
    idle: Mutex<Vec<PooledConnection>>,
    /// Has as many permits as there are idle connections, and grants them in the order of the requests.
    turn: Semaphore,
}

impl Pool {
    pub(super) async fn connect(database: &str, form: Form, size: usize) -> Result<Self> {
        let mut idle = Vec::with_capacity(size);
        for _ in 0..size {
            let (client, connection) =
                tokio_postgres::connect(database, NoTls).await.map_err(said)?;
            // If the connection ends, every later statement on it fails.
            tokio::spawn(connection);
            idle.push(prepare(client, form).await?);
        }
        Ok(Self { idle: Mutex::new(idle), turn: Semaphore::new(size) })
    }

    /// Runs a function with the next free connection.
    pub(super) async fn with<T>(
        &self,
        work: impl AsyncFnOnce(&PooledConnection) -> Result<T>,
    ) -> Result<T> {
        let _turn = self.turn.acquire().await.context("the pool is closed")?;
        let taken = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = taken.context("a permit without a connection")?;
        let done = work(&connection).await;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        done
    }
}

async fn prepare(client: Client, form: Form) -> Result<PooledConnection> {
    let rows = form != Form::Notify;
    let notify = client.prepare("SELECT pg_notify($1, $2)").await.map_err(said)?;
    let (mut insert, mut select, mut mark) = (None, None, None);
    if rows {
        let text = "INSERT INTO raw_packet (payload, sender) VALUES ($1, $2) RETURNING id";
        insert = Some(client.prepare(text).await.map_err(said)?);
    }
    if form == Form::Row {
        select = Some(
            client.prepare("SELECT payload FROM raw_packet WHERE id = $1").await.map_err(said)?,
        );
    }
    if form == Form::Trigger {
        let text = "SELECT id, payload FROM raw_packet WHERE sender = $1 AND received = 0 LIMIT 50";
        select = Some(client.prepare(text).await.map_err(said)?);
        mark = Some(
            client
                .prepare("UPDATE raw_packet SET received = 1 WHERE id = $1")
                .await
                .map_err(said)?,
        );
    }
    Ok(PooledConnection { client, insert, notify, select, mark })
}
