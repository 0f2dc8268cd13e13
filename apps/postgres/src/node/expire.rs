//! Drops leaves that exceed the network's retention, at startup, every hour, and whenever a leaf was closed. It uses a
//! separate, temporary connection, because dropping waits for locks.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::connection::{Link, within};
use super::db_error::DbError;
use super::shared::Shared;
use adit_runtime::fault::Fault;

/// The interval between runs that nothing else triggers.
const HOURLY: Duration = Duration::from_secs(3600);

/// The minimum pause between two runs, because a network with many nodes has many triggers.
const PAUSE: Duration = Duration::from_secs(3);

/// The time limit for one run.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) async fn run(shared: Rc<Shared>) -> Result<Infallible, Fault> {
    loop {
        // Both trigger a run.
        let _ = timeout(HOURLY, shared.rotated.notified()).await;
        match expire(&shared).await {
            Ok(0) => {}
            Ok(leaves) => tracing::debug!("{leaves} leaves beyond the retention were dropped"),
            // The connection that writes reports problems of the database.
            Err(cause) => tracing::debug!("nothing was dropped: {}", cause.message),
        }
        sleep(PAUSE).await;
    }
}

async fn expire(shared: &Shared) -> Result<usize, DbError> {
    let link = Link::open(&shared.target, &shared.purpose("expire"), None).await?;
    within(LIMIT, async {
        link.client.batch_execute("SET statement_timeout = '110s'").await?;
        Ok(link.client.query("SELECT dropped_leaf FROM adit.expire()", &[]).await?.len())
    })
    .await
}
