//! Proxies for clients: HTTP (CONNECT, for streams) and SOCKS 5 (for datagrams too).
//!
//! Once a proxy has agreed, the connection carries only the tunnel's bytes. The proxy gets the server's name
//! unresolved, because a client behind a proxy often cannot resolve it.

mod digest;
mod http;
mod relay;
mod socks;

use std::os::fd::AsFd;
use std::time::Duration;

use adit_linux::tcp::TcpStream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use zeroize::Zeroizing;

pub use http::{Authentication, HttpProxy, Scheme};
pub use relay::Association;
pub use socks::SocksProxy;

/// A proxy between a client and its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// `http-proxy`.
    Http(HttpProxy),
    /// `socks-proxy`.
    Socks(SocksProxy),
}

/// The credentials for a proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user name.
    pub username: String,
    /// The password.
    pub password: Zeroizing<String>,
}

// Implemented by hand to keep passwords out of the logs.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Returns the host and port of the proxy.
    pub fn address(&self) -> (&str, u16) {
        match self {
            Self::Http(proxy) => (&proxy.host, proxy.port),
            Self::Socks(proxy) => (&proxy.host, proxy.port),
        }
    }

    /// Asks the proxy, at the other end of a connected stream, for a connection to `host`.
    ///
    /// Returns `Some` if the proxy demands authentication. Pass it as `wanted` on another connection.
    ///
    /// # Errors
    /// Fails if the proxy refused or did not answer within `limit`. The stream is unusable in this case.
    pub async fn pass(
        &self,
        stream: &TcpStream,
        (host, port): (&str, u16),
        wanted: Option<&Authentication>,
        limit: Duration,
    ) -> Result<Option<Authentication>, String> {
        let mut copy = copy(stream)?;
        let asked = async {
            match self {
                Self::Http(proxy) => proxy.pass(&mut copy, (host, port), wanted).await,
                Self::Socks(proxy) => proxy.pass(&mut copy, host, port).await.map(|()| None),
            }
        };
        self.within(limit, asked).await
    }

    /// Asks the proxy to relay datagrams to `host`, for as long as the connection exists.
    ///
    /// # Errors
    /// See [`Proxy::pass`]. An HTTP proxy cannot relay datagrams.
    pub async fn associate(
        &self,
        stream: TcpStream,
        (host, port): (&str, u16),
        limit: Duration,
        mark: Option<u32>,
        device: Option<String>,
    ) -> Result<Association, String> {
        let mut copy = copy(&stream)?;
        let asked = async {
            match self {
                Self::Http(_) => Err("it carries no datagrams: write proto tcp".to_owned()),
                Self::Socks(proxy) => proxy.associate(&mut copy, host, port).await,
            }
        };
        let (relay, header) = self.within(limit, asked).await?;
        let peer = stream.peer_addr().map_err(broken)?;
        // If the proxy sends no relay address, it means the address at which it was reached.
        let relay = relay.filter(|relay| relay.port() != 0).ok_or_else(|| {
            let (proxy, at) = self.address();
            format!("proxy {proxy}:{at}: it sent no relay address")
        })?;
        let at = if relay.ip().is_unspecified() { peer.ip() } else { relay.ip() };
        let relay = std::net::SocketAddr::new(at, relay.port());
        Association::start(stream, relay, header, mark, device)
            .map_err(|e| format!("no socket for the proxy's datagrams: {e}"))
    }

    async fn within<T>(
        &self,
        limit: Duration,
        asked: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let (proxy, at) = self.address();
        let answered = tokio::time::timeout(limit, asked).await;
        answered
            .unwrap_or_else(|_| Err(format!("no answer within {} s", limit.as_secs())))
            .map_err(|problem| format!("proxy {proxy}:{at}: {problem}"))
    }
}

fn broken(e: std::io::Error) -> String {
    format!("the proxy's connection: {e}")
}

/// Duplicates the descriptor of a connection, for as long as tokio reads it.
fn copy(stream: &TcpStream) -> Result<tokio::net::TcpStream, String> {
    let copy = stream.as_fd().try_clone_to_owned().map_err(broken)?;
    tokio::net::TcpStream::from_std(copy.into()).map_err(broken)
}

/// The transport to a proxy; a test substitutes a pipe.
trait Wire: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Wire for T {}

/// Reads exactly this number of bytes, because the bytes after the proxy's response belong to the tunnel.
async fn read<const N: usize>(wire: &mut impl Wire) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    wire.read_exact(&mut bytes).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        _ => e.to_string(),
    })?;
    Ok(bytes)
}

/// Processes a proxy's responses, for the fuzzer. The first byte selects the request.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let Some((&choice, answer)) = bytes.split_first() else { return };
    let has = |bit: u8| choice & bit != 0;
    let password = Zeroizing::new("secret-password".to_owned());
    let login = has(1).then(|| Login { username: "a\"n\\n".into(), password });
    // This never waits, because the proxy's response is available from the beginning.
    let mut wire = tokio::io::join(answer, Vec::new());
    let host = if has(2) { "2001:db8::1" } else { "vpn.example" };
    if has(4) {
        let proxy = SocksProxy { host: "proxy".into(), port: 1080, login };
        if has(8) {
            if let Ok((_, header)) = at_once(proxy.associate(&mut wire, host, 1194)) {
                assert!((10..=300).contains(&header.len()), "{header:?}");
            }
        } else {
            let _ = at_once(proxy.pass(&mut wire, host, 443));
        }
        return;
    }
    let scheme = match choice >> 4 & 3 {
        0 => Scheme::Basic,
        1 => Scheme::Hidden,
        _ => Scheme::Auto,
    };
    let (version, agent, headers) = ("1.0".into(), None, Vec::new());
    let proxy =
        HttpProxy { host: "proxy".into(), port: 8080, login, scheme, version, agent, headers };
    let Ok(Some(wanted)) = at_once(proxy.pass(&mut wire, (host, 443), None)) else { return };
    let mut again = tokio::io::join(answer, Vec::new());
    let _ = at_once(proxy.pass(&mut again, (host, 443), Some(&wanted)));
    let request = String::from_utf8_lossy(again.writer());
    // No response of a proxy can add a line to the request or reveal the password.
    assert_eq!(request.lines().count(), 4, "{request}");
    assert!(!request.contains("secret-password"), "{request}");
    assert!(!(scheme == Scheme::Hidden && request.contains(": Basic ")), "{request}");
}

/// Runs a future that never waits.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(result) = work.as_mut().poll(&mut context) {
            return result;
        }
    }
}
