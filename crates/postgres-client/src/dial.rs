//! Dials a host, up to the first message. The client library accepts only connections that it dials itself, and does not limit their
//! messages.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_postgres::Config;

use super::target::Host;

/// A bidirectional byte stream.
pub trait Line: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Line for S {}

/// An address at which a host can be dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DialAddress {
    /// The path of a unix socket.
    Socket(PathBuf),
    /// An address of the host.
    Tcp(SocketAddr),
}

/// Resolves all addresses of a host, in the order in which to try them.
///
/// # Errors
/// Fails if the name cannot be resolved.
pub(super) async fn addresses(host: &Host) -> io::Result<Vec<DialAddress>> {
    if let Some(address) = host.address {
        return Ok(vec![DialAddress::Tcp(SocketAddr::new(address, host.port))]);
    }
    if host.is_socket() {
        let file = Path::new(&host.name).join(format!(".s.PGSQL.{}", host.port));
        return Ok(vec![DialAddress::Socket(file)]);
    }
    let found: Vec<_> =
        lookup_host((&*host.name, host.port)).await?.map(DialAddress::Tcp).collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name has no address"));
    }
    Ok(found)
}

/// Dials one host, with its own parameters.
///
/// # Errors
/// Fails if no answer arrived.
pub(super) async fn dial(place: &DialAddress, config: &Config) -> io::Result<Box<dyn Line>> {
    let limit = config.get_connect_timeout().copied();
    match place {
        DialAddress::Socket(file) => Ok(Box::new(within(limit, UnixStream::connect(file)).await?)),
        DialAddress::Tcp(address) => {
            let stream = within(limit, TcpStream::connect(address)).await?;
            stream.set_nodelay(true)?;
            let socket = SockRef::from(&stream);
            if let Some(limit) = config.get_tcp_user_timeout() {
                socket.set_tcp_user_timeout(Some(*limit))?;
            }
            if config.get_keepalives() {
                socket.set_tcp_keepalive(&keepalive(config))?;
            }
            Ok(Box::new(stream))
        }
    }
}

fn keepalive(config: &Config) -> TcpKeepalive {
    let mut keep = TcpKeepalive::new().with_time(config.get_keepalives_idle());
    if let Some(interval) = config.get_keepalives_interval() {
        keep = keep.with_interval(interval);
    }
    if let Some(count) = config.get_keepalives_retries() {
        keep = keep.with_retries(count);
    }
    keep
}

async fn within<T>(
    limit: Option<Duration>,
    dialled: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let Some(limit) = limit else { return dialled.await };
    match timeout(limit, dialled).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out")),
    }
}
