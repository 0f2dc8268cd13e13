//! Opening a connection: each host in turn.

use std::time::Duration;

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::{ConnectFault, several};
use super::target::{Host, Target};
use super::tls;

/// What must be polled for a connection to live; its messages are the notifications.
pub type Connection =
    tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A connection, not yet polled by anybody.
pub struct Opened {
    /// Says things to the database.
    pub client: Client,
    /// To be polled (`poll_message`) until it ends.
    pub connection: Connection,
}

/// Connects to the first host that takes us and lets us write. `purpose` is what the database's own lists show: `adit PURPOSE`.
///
/// # Errors
/// Whose fault it is that there is no connection.
pub async fn connect(target: &Target, purpose: &str) -> Result<Opened, ConnectFault> {
    let mut faults = Vec::new();
    for host in &target.hosts {
        match one(target, host, purpose).await {
            Ok(opened) => return Ok(opened),
            Err(fault) => {
                let last = fault.final_;
                faults.push(fault);
                if last {
                    break;
                }
            }
        }
    }
    Err(several(faults))
}

async fn one(target: &Target, host: &Host, purpose: &str) -> Result<Opened, ConnectFault> {
    let tls = tls::connector(target, host).map_err(ConnectFault::lasting)?;
    let config = target.config(host, purpose);
    let began = config.connect(tls);
    // The library's own limit is for the socket alone; a server that accepts and then is silent is no better.
    let limit = target.patience.saturating_add(Duration::from_secs(5));
    match tokio::time::timeout(limit, began).await {
        Ok(Ok((client, connection))) => Ok(Opened { client, connection }),
        Ok(Err(error)) => Err(ConnectFault::new(target, host, &error)),
        Err(_) => Err(ConnectFault::silent(host, limit)),
    }
}

/// Connects, and lets a task poll the connection, for who needs no notifications.
///
/// # Errors
/// As [`connect`].
pub async fn open(target: &Target, purpose: &str) -> Result<Client, ConnectFault> {
    let Opened { client, connection } = connect(target, purpose).await?;
    tokio::spawn(async move {
        // Its end is seen by whoever uses the client.
        let _ = connection.await;
    });
    Ok(client)
}
