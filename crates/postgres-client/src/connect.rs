//! Opens a connection: tries the hosts in order.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio_postgres::config::{Config, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connect_fault::{ConnectFault, all_hosts};
use super::dial::{DialAddress, Line, addresses, dial};
use super::message_limit::{LimitedStream, LimitedTls};
use super::target::{Host, Session, Target};
use super::tls;

/// The stream of a connection. It checks the length of each message before storing it.
type LimitedLine = LimitedStream<Box<dyn Line>>;

/// The future that must be polled to drive a connection. Its messages are the notifications.
pub type Connection = tokio_postgres::Connection<
    LimitedLine,
    LimitedStream<<MakeRustlsConnect as MakeTlsConnect<LimitedLine>>::Stream>,
>;

/// A new connection. No task polls it yet.
pub struct NewConnection {
    /// The client that sends queries to the database.
    pub client: Client,
    /// The connection. It must be polled (`poll_message`) until it ends.
    pub connection: Connection,
}

/// Connects to the first host that accepts the connection and meets the target's conditions. The database's list of
/// sessions shows `purpose` as `adit PURPOSE`.
///
/// # Errors
/// Returns the reason why there is no connection, with the party at fault.
pub async fn connect(target: &Target, purpose: &str) -> Result<NewConnection, ConnectFault> {
    let rounds: &[Session] = match &target.session {
        Session::PreferStandby => &[Session::Standby, Session::Any],
        other => std::slice::from_ref(other),
    };
    let mut faults = Vec::new();
    for session in rounds {
        faults.clear();
        for host in &target.hosts {
            match one(target, host, *session, purpose).await {
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
    }
    Err(all_hosts(faults))
}

async fn one(
    target: &Target,
    host: &Host,
    session: Session,
    purpose: &str,
) -> Result<NewConnection, ConnectFault> {
    let mut tls = tls::connector(target, host).map_err(ConnectFault::permanent)?;
    let config = target.config(host, purpose);
    let began = async {
        let places = addresses(host).await.map_err(|error| ConnectFault::io(host, &error))?;
        let mut last = None;
        for place in &places {
            match reach(place, &config, &mut tls, target, (host, session)).await {
                Ok(opened) => return Ok(opened),
                Err(fault) => last = Some(fault),
            }
        }
        Err(last.unwrap_or_else(|| all_hosts(Vec::new())))
    };
    // Treat a server that accepts a connection and sends nothing like an unreachable one.
    let limit = target.patience.saturating_add(Duration::from_secs(5));
    match tokio::time::timeout(limit, began).await {
        Ok(done) => done,
        Err(_) => Err(ConnectFault::timed_out(host, limit)),
    }
}

/// Connects to one address of a host.
async fn reach(
    place: &DialAddress,
    config: &Config,
    tls: &mut MakeRustlsConnect,
    target: &Target,
    (host, session): (&Host, Session),
) -> Result<NewConnection, ConnectFault> {
    let line = dial(place, config).await.map_err(|error| ConnectFault::io(host, &error))?;
    let line = match config.get_ssl_mode() {
        SslMode::Disable => LimitedStream::messages(line),
        _ => LimitedStream::answer_first(line),
    };
    let Ok(tls) = MakeTlsConnect::<LimitedLine>::make_tls_connect(tls, &host.name);
    let fault = |error: tokio_postgres::Error| ConnectFault::new(target, host, &error);
    let (client, mut connection) =
        config.connect_raw(line, LimitedTls(tls)).await.map_err(fault)?;
    if let Some((question, wanted, why)) = asked_of(session) {
        let answer = tokio::select! {
            biased;
            asked = answer(&client, question) => asked.map_err(fault)?,
            ended = &mut connection => {
                ended.map_err(fault)?;
                return Err(ConnectFault::io(host, &io::ErrorKind::UnexpectedEof.into()));
            }
        };
        if answer.as_deref() != Some(wanted) {
            let error = io::Error::new(io::ErrorKind::PermissionDenied, why);
            return Err(ConnectFault::io(host, &error));
        }
    }
    Ok(NewConnection { client, connection })
}

/// Returns the query that checks the kind of a server, the expected answer, and the error for a different answer.
fn asked_of(session: Session) -> Option<(&'static str, &'static str, &'static str)> {
    let read_only = "SHOW transaction_read_only";
    match session {
        Session::ReadWrite => Some((read_only, "off", "it does not allow writes")),
        Session::ReadOnly => Some((read_only, "on", "it allows writes")),
        Session::Standby => {
            Some(("SELECT pg_catalog.pg_is_in_recovery()", "t", "it is no standby"))
        }
        Session::Any | Session::PreferStandby => None,
    }
}

/// Runs a query that returns a single value.
async fn answer(client: &Client, question: &str) -> Result<Option<String>, tokio_postgres::Error> {
    let mut answer = pin!(client.simple_query_raw(question).await?);
    while let Some(message) = answer.try_next().await? {
        if let SimpleQueryMessage::Row(row) = message {
            return Ok(row.try_get(0)?.map(str::to_owned));
        }
    }
    Ok(None)
}

/// Connects, and starts a task that polls the connection, for callers that need no notifications.
///
/// # Errors
/// See [`connect`].
pub async fn open(target: &Target, purpose: &str) -> Result<Client, ConnectFault> {
    let NewConnection { client, connection } = connect(target, purpose).await?;
    tokio::spawn(async move {
        // The client's next call reports the end of the connection.
        let _ = connection.await;
    });
    Ok(client)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixListener};

    use super::*;
    use crate::Environment;

    /// Accepts a client, refuses its request for TLS, and announces a message of a gigabyte.
    async fn serve_oversized_message(mut stream: impl Line, asked_for_tls: bool) {
        let mut heard = [0; 8];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard == [0, 0, 0, 8, 4, 210, 22, 47], asked_for_tls);
        if asked_for_tls {
            stream.write_all(b"N").await.unwrap();
        }
        stream.write_all(&[b'R', 0x40, 0, 0, 0]).await.unwrap();
        // Wait until the client has closed the connection.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }

    async fn connect_error(url: &str) -> String {
        let target = Target::of_operator(url, &Environment::with(&[], None)).unwrap();
        let fault = connect(&target, "test").await.err().unwrap();
        assert!(fault.passing);
        fault.to_string()
    }

    #[tokio::test]
    async fn no_line_lets_a_gigabyte_be_announced() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for (mode, asks) in [("disable", false), ("prefer", true)] {
            let url = format!("postgres://u:p@127.0.0.1:{port}/d?sslmode={mode}");
            let serve =
                async { serve_oversized_message(listener.accept().await.unwrap().0, asks).await };
            let ((), told) = tokio::join!(serve, connect_error(&url));
            assert!(told.contains("announced a message of 1073741824 bytes"), "{mode}: {told}");
        }
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let url = format!("host={} user=u dbname=d", folder.path().display());
        let serve =
            async { serve_oversized_message(listener.accept().await.unwrap().0, false).await };
        let ((), told) = tokio::join!(serve, connect_error(&url));
        assert!(told.contains("announced a message of 1073741824 bytes"), "{told}");
    }
    /// Accepts a client and answers its first message with `answer`. The connection lives as long as the returned
    /// value.
    async fn answer(listener: &TcpListener, answer: &[u8]) -> TcpStream {
        let mut stream = listener.accept().await.unwrap().0;
        let mut heard = [0; 1 << 10];
        assert_ne!(stream.read(&mut heard).await.unwrap(), 0);
        stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
        assert_ne!(stream.read(&mut heard).await.unwrap(), 0);
        stream.write_all(answer).await.unwrap();
        if answer.is_empty() {
            stream.shutdown().await.unwrap();
        }
        stream
    }

    #[tokio::test]
    async fn who_must_write_is_not_given_a_standby_nor_a_line_that_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!(
            "postgres://u:p@127.0.0.1:{port}/d?sslmode=disable&target_session_attrs=read-write"
        );
        let columns = b"T\0\0\0\x1a\0\x01r\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0";
        let end = b"C\0\0\0\x09SHOW\0Z\0\0\0\x05I";
        let on = [&columns[..], b"D\0\0\0\x0c\0\x01\0\0\0\x02on", end].concat();
        let (_line, standby) = tokio::join!(answer(&listener, &on), connect_error(&url));
        assert!(standby.contains("is a standby"), "{standby}");
        let (_line, ended) = tokio::join!(answer(&listener, b""), connect_error(&url));
        assert!(ended.contains("cannot be reached") || ended.contains("closed"), "{ended}");
        let off = [&columns[..], b"D\0\0\0\x0d\0\x01\0\0\0\x03off", end].concat();
        let target = Target::of_operator(&url, &Environment::with(&[], None)).unwrap();
        let (_line, opened) = tokio::join!(answer(&listener, &off), connect(&target, "test"));
        assert!(opened.is_ok());
    }
}
