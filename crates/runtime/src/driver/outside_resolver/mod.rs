//! Resolves a name with the access network's own servers, over sockets that stay outside the tunnel.

mod system;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use adit_dns::{Answer, RecordType};
use adit_engine::Family;
use adit_linux::tcp::TcpConnectOptions;
use adit_linux::udp::UdpOptions;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::helper::sockets;

/// The time limit for one server.
const SERVER_LIMIT: Duration = Duration::from_secs(2);

/// The number of rounds over all servers.
const ROUNDS: usize = 2;

/// The number of unrelated datagrams after which a server is abandoned.
const STRANGE_LIMIT: usize = 32;

/// The maximum size of an answer in bytes, over UDP and over TCP.
const DATAGRAM: usize = 4096;
const STREAM: usize = 16 * 1024;

/// The buffer size of a marked socket in bytes.
const BUFFER: usize = 64 * 1024;

/// Resolves the server's name while a tunnel may capture DNS.
#[derive(Clone, Debug)]
pub struct OutsideResolver {
    /// The root directory. It differs from `/` only in tests.
    root: PathBuf,
    /// Whether a tunnel's routes or DNS settings are in force. If so, only the access network's servers are queried.
    pub redirected: bool,
    /// The tunnel's DNS servers. They are never queried.
    pub tunnel: Vec<IpAddr>,
    /// The DNS servers from before the tunnel.
    former: Vec<SocketAddr>,
    /// The mark of the queries.
    pub mark: Option<u32>,
    /// The interface on which the queries leave.
    pub device: Option<String>,
}

impl Default for OutsideResolver {
    fn default() -> Self {
        Self {
            root: "/".into(),
            redirected: false,
            tunnel: Vec::new(),
            former: Vec::new(),
            mark: None,
            device: None,
        }
    }
}

impl OutsideResolver {
    /// Creates a resolver whose queries have this mark and leave on this interface.
    pub fn by(mark: Option<u32>, device: Option<String>) -> Self {
        Self { mark, device, ..Self::default() }
    }

    /// Records the current servers, before a tunnel hides them.
    pub fn remember(&mut self) {
        if !self.redirected {
            self.former = system::servers(&self.root, &[], &[]);
        }
    }

    /// Resolves a name. Blocks while it reads two small files.
    ///
    /// # Errors
    /// Returns one sentence for the log.
    pub async fn look_up(&self, name: &str, family: Family) -> Result<Vec<IpAddr>, String> {
        let hosts = system::hosts(&self.root, name);
        if !hosts.is_empty() {
            return Ok(hosts);
        }
        let servers = system::servers(&self.root, &self.tunnel, &self.former);
        if servers.is_empty() {
            return Err("the access network names no DNS server".into());
        }
        // Without a mark, queries can avoid a full tunnel only if they are bound to an interface.
        let mut by = self.clone();
        if self.redirected && self.mark.is_none() && self.device.is_none() {
            let first = servers.iter().find(|server| !server.ip().is_loopback());
            by.device = match first {
                Some(server) => outside(server.ip()).await,
                None => None,
            };
        }
        let mut problem = String::new();
        for _ in 0..ROUNDS {
            for server in &servers {
                match by.ask(*server, name, family).await {
                    Ok(found) => return found,
                    Err(e) => problem = format!("DNS server {}: {e}", server.ip()),
                }
            }
        }
        Err(problem)
    }

    /// Queries one server for both families. The outer error is about the server, the inner one about the name.
    async fn ask(
        &self,
        server: SocketAddr,
        name: &str,
        family: Family,
    ) -> Result<Result<Vec<IpAddr>, String>, String> {
        let one = async |record_type, wanted: bool| {
            if wanted { self.query(server, name, record_type).await.map(Some) } else { Ok(None) }
        };
        let (v4, v6) = tokio::join!(
            one(RecordType::A, family != Family::V6),
            one(RecordType::Aaaa, family != Family::V4)
        );
        let mut found = Vec::new();
        let mut problem = None;
        let mut missing = false;
        for outcome in [v4, v6] {
            match outcome {
                Ok(Some(Answer::Addresses(addresses))) => found.extend(addresses),
                Ok(Some(Answer::NoSuchName)) => missing = true,
                Ok(Some(Answer::Failed(code))) => problem = Some(format!("response code {code}")),
                Ok(Some(Answer::Truncated)) => problem = Some("answer too long".into()),
                Ok(None) => {}
                Err(e) => problem = Some(e),
            }
        }
        match problem {
            _ if !found.is_empty() => Ok(Ok(found)),
            Some(problem) => Err(problem),
            None if missing => Ok(Err("there is no such name".into())),
            None => Ok(Err("it has no address".into())),
        }
    }

    async fn query(
        &self,
        server: SocketAddr,
        name: &str,
        record_type: RecordType,
    ) -> Result<Answer, String> {
        let work = async {
            let random = crate::random::bytes::<2>().map_err(|e| e.to_string())?;
            let id = u16::from_be_bytes(random);
            let query = adit_dns::build_query(id, name, record_type).ok_or("not a domain name")?;
            let io = |e: std::io::Error| e.to_string();
            let socket = self.datagrams(server).map_err(io)?;
            socket.connect(server).await.map_err(io)?;
            socket.send(&query).await.map_err(io)?;
            let mut bytes = [0; DATAGRAM];
            for _ in 0..STRANGE_LIMIT {
                let len = socket.recv(&mut bytes).await.map_err(io)?;
                let bytes = bytes.get(..len).unwrap_or_default();
                match adit_dns::parse_answer(bytes, id, name, record_type) {
                    Some(Answer::Truncated) => {
                        return self.by_stream(server, &query, id, name, record_type).await;
                    }
                    Some(answer) => return Ok(answer),
                    // The answer is forged or late.
                    None => {}
                }
            }
            Err("no answer among its datagrams".into())
        };
        timeout(SERVER_LIMIT, work).await.unwrap_or_else(|_| Err("no answer".into()))
    }

    async fn by_stream(
        &self,
        server: SocketAddr,
        query: &[u8],
        id: u16,
        name: &str,
        record_type: RecordType,
    ) -> Result<Answer, String> {
        let io = |e: std::io::Error| e.to_string();
        let mut stream = self.stream(server).await.map_err(io)?;
        let len = u16::try_from(query.len()).map_err(|e| e.to_string())?;
        let mut framed = len.to_be_bytes().to_vec();
        framed.extend_from_slice(query);
        stream.write_all(&framed).await.map_err(io)?;
        let len = usize::from(stream.read_u16().await.map_err(io)?);
        if len > STREAM {
            return Err("answer too long".into());
        }
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).await.map_err(io)?;
        adit_dns::parse_answer(&bytes, id, name, record_type).ok_or_else(|| "not an answer".into())
    }

    /// Opens a stream to a server. Setting a mark needs privileges, which the helper process has.
    async fn stream(&self, server: SocketAddr) -> std::io::Result<TcpStream> {
        if self.mark.is_none() {
            let socket = self.socket(server, Type::STREAM)?;
            return TcpSocket::from_std_stream(socket.into()).connect(server).await;
        }
        let mut options = TcpConnectOptions::new(server);
        options.fwmark = self.mark;
        options.device.clone_from(&self.device);
        let stream = OwnedFd::from(sockets::connect(&options)?);
        let stream = TcpStream::from_std(std::net::TcpStream::from(stream))?;
        stream.writable().await?;
        match stream.take_error()? {
            Some(e) => Err(e),
            None => Ok(stream),
        }
    }

    fn datagrams(&self, server: SocketAddr) -> std::io::Result<UdpSocket> {
        // Each query uses a different port, which an attacker must guess together with the id.
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let any = SocketAddr::new(any, 0);
        if self.mark.is_some() {
            let mut options = UdpOptions::new(any);
            options.fwmark = self.mark;
            options.device.clone_from(&self.device);
            options.gro = false;
            (options.recv_buffer, options.send_buffer) = (BUFFER, BUFFER);
            let socket = OwnedFd::from(sockets::udp(&options)?);
            let socket = std::net::UdpSocket::from(socket);
            socket.set_nonblocking(true)?;
            return UdpSocket::from_std(socket);
        }
        let socket = self.socket(server, Type::DGRAM)?;
        socket.bind(&any.into())?;
        UdpSocket::from_std(socket.into())
    }

    /// Opens a socket that is bound to an interface outside the tunnel.
    fn socket(&self, server: SocketAddr, kind: Type) -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(server), kind, None)?;
        socket.set_nonblocking(true)?;
        let device = self.device.as_deref().filter(|_| !server.ip().is_loopback());
        if let Some(device) = device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        Ok(socket)
    }

    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.into(), redirected: true, ..Self::default() }
    }
}

/// Returns the interface of the default route in the main table. It is the access network's, because tunnels use two
/// half routes or a separate table.
async fn outside(server: IpAddr) -> Option<String> {
    let net = adit_linux::net::Net::open().ok()?;
    let route = net.default_route(server.is_ipv6()).await.ok()??;
    let name = nix::net::if_::if_indextoname(route.link?).ok()?;
    name.into_string().ok()
}

#[cfg(test)]
mod tests;
