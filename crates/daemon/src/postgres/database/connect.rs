//! Opening a connection.

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::ConnectFault;
use super::target::Target;
use super::tls;
use crate::fault::Fault;

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

/// Connects. `purpose` is what the database's own lists show: `adit PURPOSE`.
///
/// # Errors
/// Whose fault it is that there is no connection.
pub async fn connect(target: &Target, purpose: &str) -> Result<Opened, ConnectFault> {
    let tls = tls::connector().map_err(|error| ConnectFault {
        fault: Fault::ours(format!("TLS to the database: {error}")),
        passing: false,
    })?;
    let mut config = target.config.clone();
    config.application_name(format!("adit {purpose}"));
    let (client, connection) = config.connect(tls).await.map_err(|e| ConnectFault::new(&e))?;
    Ok(Opened { client, connection })
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
