//! Opens connections to neighbours: directly, through a proxy, or by a command.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use adit_linux::tcp::TcpConnectOptions;
use adit_runtime::helper::sockets;
use adit_runtime::proxy::{HttpProxy, Login, Proxy as RuntimeProxy, Scheme, SocksProxy};
use adit_runtime::say;
use adit_tinc::config::Proxy;
use adit_tinc::node::ConnectionId;
use adit_tinc::socks4;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::running::Running;

/// The longest wait for a connection to be established, through a proxy as well.
const LIMIT: Duration = Duration::from_secs(20);

/// The number of a proxy's addresses that are tried.
const MAX_ADDRESSES: usize = 16;

/// The options of dialled connections.
#[derive(Clone, Debug, Default)]
pub(super) struct DialOptions {
    pub(super) mark: Option<u32>,
    pub(super) device: Option<String>,
    /// The addresses to connect from.
    pub(super) from: Vec<SocketAddr>,
    pub(super) proxy: Option<Proxy>,
}

/// A dialled connection.
#[derive(Debug)]
pub(super) enum Link {
    /// To the node, or to a proxy.
    Tcp(TcpStream),
    /// To a command.
    Command(UnixStream),
}

impl Link {
    /// Returns the local address, which is unspecified if there is none.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr(),
            Self::Command(_) => Ok(SocketAddr::from(([0; 4], 0))),
        }
    }
}

impl Running {
    /// Dials a node.
    pub(super) fn dial(&mut self, id: ConnectionId, address: SocketAddr) {
        say!(2, "Trying to connect to {} port {}", address.ip(), address.port());
        if !matches!(self.server.proxy, Some(Proxy::Exec(_))) {
            let options = self.dial.clone();
            return self.streams.dial(id, async move { connect(&options, address).await });
        }
        let connected = match self.node.dialled(id) {
            Some(node) => self.privileged.connect(node, address),
            None => return,
        };
        let connected = connected
            .map(Link::Command)
            .map_err(|error| format!("the command of Proxy cannot be started: {error}"));
        self.streams.dial(id, std::future::ready(connected));
    }
}

/// Connects to an address, through the proxy if there is one.
async fn connect(options: &DialOptions, to: SocketAddr) -> Result<Link, String> {
    let connected = timeout(LIMIT, async {
        match &options.proxy {
            None | Some(Proxy::Exec(_)) => tcp(options, to).await.map_err(|e| e.to_string()),
            Some(Proxy::Socks4(host, port, user)) => {
                let stream = to_proxy(options, host, *port).await?;
                let passed = pass_socks4(stream, to, user.as_deref()).await;
                passed.map_err(|problem| format!("proxy {host}:{port}: {problem}"))
            }
            Some(Proxy::Socks5(host, port, login)) => {
                let login = login
                    .clone()
                    .map(|(username, password)| Login { username, password: password.into() });
                let proxy = SocksProxy { host: host.clone(), port: *port, login };
                pass(options, &RuntimeProxy::Socks(proxy), to).await
            }
            Some(Proxy::Http(host, port)) => {
                let proxy = HttpProxy {
                    host: host.clone(),
                    port: *port,
                    login: None,
                    scheme: Scheme::Basic,
                    version: "1.1".to_owned(),
                    agent: None,
                    headers: Vec::new(),
                };
                pass(options, &RuntimeProxy::Http(proxy), to).await
            }
        }
    });
    let connected = connected.await;
    connected
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).to_string()))
        .map(Link::Tcp)
}

/// Connects by TCP.
async fn tcp(options: &DialOptions, to: SocketAddr) -> io::Result<TcpStream> {
    let mut wanted = TcpConnectOptions::new(to);
    wanted.fwmark = options.mark;
    wanted.device.clone_from(&options.device);
    wanted.from = options.from.iter().find(|from| from.is_ipv4() == to.is_ipv4()).copied();
    let socket = OwnedFd::from(sockets::connect(&wanted)?);
    let stream = TcpStream::from_std(std::net::TcpStream::from(socket))?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

/// Connects to the first address of a proxy that answers.
async fn to_proxy(options: &DialOptions, host: &str, port: u16) -> Result<TcpStream, String> {
    let failed = |problem: io::Error| format!("proxy {host}:{port}: {problem}");
    let found = tokio::net::lookup_host((host, port)).await.map_err(failed)?;
    let mut problem = format!("proxy {host}:{port}: it has no address");
    for address in found.take(MAX_ADDRESSES) {
        match tcp(options, address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => problem = failed(error),
        }
    }
    Err(problem)
}

/// Connects through a proxy of another kind than SOCKS 4. As under tinc, it gets an address, and not a name.
async fn pass(
    options: &DialOptions,
    proxy: &RuntimeProxy,
    to: SocketAddr,
) -> Result<TcpStream, String> {
    let (host, port) = proxy.address();
    let stream = to_proxy(options, host, port).await?;
    let failed = |problem: io::Error| format!("proxy {host}:{port}: {problem}");
    let socket = OwnedFd::from(stream.into_std().map_err(failed)?);
    let stream = adit_linux::tcp::TcpStream::from_fd(socket).map_err(failed)?;
    let target = to.ip().to_string();
    if proxy.pass(&stream, (&target, to.port()), None, LIMIT).await?.is_some() {
        return Err(format!("proxy {host}:{port}: it asks for a user name and a password"));
    }
    TcpStream::from_std(std::net::TcpStream::from(OwnedFd::from(stream))).map_err(failed)
}

async fn pass_socks4(
    mut stream: TcpStream,
    to: SocketAddr,
    user: Option<&str>,
) -> Result<TcpStream, String> {
    let request = socks4::request(to, user).map_err(|error| error.to_string())?;
    stream.write_all(&request).await.map_err(|error| error.to_string())?;
    let mut answer = [0; socks4::ANSWER_LEN];
    stream.read_exact(&mut answer).await.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        _ => error.to_string(),
    })?;
    socks4::check_answer(&answer).map_err(|error| error.to_string())?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const TO: &str = "192.0.2.7:655";

    /// A proxy that expects these requests and gives these answers, and then `hello`.
    async fn through(
        proxy: impl FnOnce(String, u16) -> Proxy,
        steps: Vec<(Vec<u8>, Vec<u8>)>,
        to: &str,
    ) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for (request, answer) in steps {
                let mut bytes = vec![0; request.len()];
                stream.read_exact(&mut bytes).await.unwrap();
                assert_eq!(bytes, request);
                stream.write_all(&answer).await.unwrap();
            }
            stream.write_all(b"hello").await.unwrap();
        });
        let proxy = Some(proxy("localhost".to_owned(), port));
        let options = DialOptions { proxy, ..DialOptions::default() };
        let link = connect(&options, to.parse().unwrap()).await?;
        assert_eq!(link.local_addr().unwrap().ip().to_string(), "127.0.0.1");
        let Link::Tcp(mut stream) = link else { panic!() };
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        Ok(text)
    }

    fn socks4(answer: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
        let request = [&[4, 1, 2, 143, 192, 0, 2, 7][..], b"ann", &[0]].concat();
        vec![(request, vec![0, answer, 0, 0, 0, 0, 0, 0])]
    }

    #[tokio::test]
    async fn a_socks_4_proxy_connects_or_refuses() {
        let ann = |host, port| Proxy::Socks4(host, port, Some("ann".to_owned()));
        assert_eq!(through(ann, socks4(90), TO).await.unwrap(), "hello");
        let refused = through(ann, socks4(91), TO).await.unwrap_err();
        assert!(refused.starts_with("proxy localhost:") && refused.ends_with("(91)"), "{refused}");
        let v6 = through(ann, Vec::new(), "[2001:db8::7]:655").await.unwrap_err();
        assert!(v6.contains("only IPv4"), "{v6}");
        let steps = vec![(socks4(90)[0].0.clone(), vec![0, 90])];
        let short = through(ann, steps, TO).await.unwrap_err();
        assert!(!short.is_empty());
    }

    #[tokio::test]
    async fn a_socks_5_proxy_gets_the_login_and_the_address() {
        let login = Some(("ann".to_owned(), "secret".to_owned()));
        let ann = move |host, port| Proxy::Socks5(host, port, login);
        let steps = vec![
            (vec![5, 2, 0, 2], vec![5, 2]),
            ([&[1, 3][..], b"ann\x06secret"].concat(), vec![1, 0]),
            (vec![5, 1, 0, 1, 192, 0, 2, 7, 2, 143], vec![5, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
        ];
        assert_eq!(through(ann, steps, TO).await.unwrap(), "hello");
    }

    #[tokio::test]
    async fn an_http_proxy_may_add_headers() {
        let http = Proxy::Http;
        let request = "CONNECT 192.0.2.7:655 HTTP/1.1\r\nHost: 192.0.2.7:655\r\n\r\n";
        let answer = "HTTP/1.1 200 Connected\r\nVia: x\r\n\r\n";
        let steps = |answer: &str| vec![(request.into(), answer.into())];
        assert_eq!(through(http, steps(answer), TO).await.unwrap(), "hello");
        let refused = through(http, steps("HTTP/1.1 403 No\r\n\r\n"), TO).await.unwrap_err();
        assert!(refused.contains("403 No"), "{refused}");
    }
}
