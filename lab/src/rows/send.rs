//! The path from the device to the database.

use std::net::IpAddr;
use std::sync::Arc;

use adit_testbed::failure::{Context, Failure, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::{Semaphore, mpsc};

use super::{End, Form, said};

/// The maximum number of packets that wait for a connection. The original has no limit; TCP has far fewer in flight.
const WAITING: usize = 16_384;

/// Reads packets forever.
pub(super) async fn run(end: Arc<End>) -> Result<()> {
    let waiting = Arc::new(Semaphore::new(WAITING));
    let (failures, mut failed) = mpsc::channel::<Failure>(1);
    loop {
        let packet = tokio::select! {
            packet = end.device.read() => packet?,
            failure = failed.recv() => return Err(failure.context("no failure")?),
        };
        // Only IPv4 without options is sent, as in the original.
        if packet.first() != Some(&0x45) {
            continue;
        }
        if end.form == Form::Trigger {
            insert(&end, &packet).await?;
            end.counters.sent();
            continue;
        }
        let Ok(place) = Arc::clone(&waiting).try_acquire_owned() else {
            end.counters.dropped();
            continue;
        };
        let (end, failures) = (Arc::clone(&end), failures.clone());
        tokio::spawn(async move {
            let _place = place;
            match one(&end, &packet).await {
                Ok(()) => end.counters.sent(),
                // One pending failure is enough.
                Err(failure) => drop(failures.try_send(failure)),
            }
        });
    }
}

/// Sends each statement on the next free connection, as in the original.
async fn one(end: &End, packet: &[u8]) -> Result<()> {
    let text = match end.form {
        Form::Notify => STANDARD.encode(packet),
        Form::Row | Form::Trigger => insert(end, packet).await?.to_string(),
    };
    let channel = channel(end.own.into());
    end.pool
        .with(async |connection| {
            connection.client.execute(&connection.notify, &[&channel, &text]).await.map_err(said)
        })
        .await?;
    Ok(())
}

async fn insert(end: &End, packet: &[u8]) -> Result<i32> {
    let own = IpAddr::V4(end.own);
    end.pool
        .with(async |connection| {
            let insert = connection.insert.as_ref().context("no INSERT is prepared")?;
            let row = connection.client.query_one(insert, &[&packet, &own]).await;
            row.and_then(|row| row.try_get(0)).map_err(said)
        })
        .await
}

/// Returns the channel on which the peer listens for packets from this address.
pub(super) fn channel(sender: IpAddr) -> String {
    format!("raw_packet_ready:{sender}")
}
