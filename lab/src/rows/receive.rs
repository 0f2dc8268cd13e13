//! The path from the database to the device.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use adit_testbed::failure::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

use super::send::channel;
use super::{End, Form, said};

/// The maximum number of pending notifications. Beyond it, their connection is not read, and the server keeps the rest.
const WAITING: usize = 16_384;

type Notifications = mpsc::Receiver<Result<String>>;

/// Listens on a separate connection for the peer's notifications.
pub(super) async fn listen(database: &str, form: Form, peer: Ipv4Addr) -> Result<Notifications> {
    let (client, mut connection) = tokio_postgres::connect(database, NoTls).await.map_err(said)?;
    let (to, notified) = mpsc::channel(WAITING);
    let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            let news = match message {
                Ok(AsyncMessage::Notification(news)) => Ok(news.payload().to_owned()),
                Ok(_) => continue,
                Err(error) => Err(said(error)),
            };
            if to.send(news).await.is_err() {
                return;
            }
        }
    });
    let channel = match form {
        Form::Trigger => "raw_packet_ready".to_owned(),
        Form::Row | Form::Notify => channel(peer.into()),
    };
    client.batch_execute(&format!("LISTEN \"{channel}\"")).await.map_err(said)?;
    // The connection lives as long as a client handle exists.
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(client);
    });
    Ok(notified)
}

/// Delivers packets forever.
pub(super) async fn run(end: Arc<End>, notified: Notifications, selects: usize) -> Result<()> {
    let news =
        stream::unfold(notified, async |mut notified| Some((notified.recv().await?, notified)));
    let fetched = news.map(|news| fetch(&end, news)).buffered(selects);
    let mut fetched = std::pin::pin!(fetched);
    while let Some(packets) = fetched.next().await {
        for packet in packets? {
            end.device.write(&packet);
            end.counters.delivered(&packet);
        }
    }
    Err("the listening connection has ended".into())
}

async fn fetch(end: &End, news: Result<String>) -> Result<Vec<Vec<u8>>> {
    let news = news?;
    match end.form {
        Form::Notify => Ok(vec![STANDARD.decode(&news).context("a notification")?]),
        Form::Row => {
            let id: i32 = news.parse().context("a notification")?;
            let row = end.pool.with(async |connection| {
                let select = connection.select.as_ref().context("no SELECT is prepared")?;
                connection.client.query_one(select, &[&id]).await.map_err(said)
            });
            Ok(vec![row.await?.try_get(0).map_err(said)?])
        }
        Form::Trigger => unreceived(end).await,
    }
}

/// Returns the packets that have arrived since the last call, and marks each one separately.
async fn unreceived(end: &End) -> Result<Vec<Vec<u8>>> {
    let peer = IpAddr::V4(end.peer);
    end.pool
        .with(async |connection| {
            let statements = (connection.select.as_ref(), connection.mark.as_ref());
            let (Some(select), Some(mark)) = statements else {
                return Err("no SELECT is prepared".into());
            };
            let mut packets = Vec::new();
            for row in connection.client.query(select, &[&peer]).await.map_err(said)? {
                packets.push(row.try_get(1).map_err(said)?);
                let id: i32 = row.try_get(0).map_err(said)?;
                connection.client.execute(mark, &[&id]).await.map_err(said)?;
            }
            Ok(packets)
        })
        .await
}
