//! Requests that the laptop's programs send, each from a separate socket.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use super::services::PORT;
use crate::failure::{Result, ensure};
use crate::net::Namespace;
use crate::wait::ScaledInstant;

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The host reported this source address of the request.
    From(IpAddr),
    /// The kernel, or a router, refused it.
    Refused(ErrorKind),
    /// No answer arrived in time.
    Silence,
}

/// A sender of requests from one namespace.
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    from: &'a Namespace,
}

/// The time that one request waits for its reply before the next one is sent.
const TRY: Duration = Duration::from_millis(250);
/// The pause after a refused request.
const PAUSE: Duration = Duration::from_millis(50);

impl<'a> Probe<'a> {
    /// Creates a sender in this namespace.
    pub fn new(from: &'a Namespace) -> Self {
        Probe { from }
    }

    /// Sends one datagram and returns the answer within `timeout`.
    ///
    /// # Errors
    /// The namespace no longer exists.
    pub fn udp(&self, to: impl Into<IpAddr>, timeout: Duration) -> Result<Answer> {
        let to = SocketAddr::new(to.into(), PORT);
        Ok(self.from.handle()?.run(|| datagram(to, timeout))?)
    }

    /// Opens one connection and returns the answer within `timeout`.
    ///
    /// # Errors
    /// The namespace no longer exists.
    pub fn tcp(&self, to: impl Into<IpAddr>, timeout: Duration) -> Result<Answer> {
        let to = SocketAddr::new(to.into(), PORT);
        Ok(self.from.handle()?.run(|| connection(to, timeout))?)
    }

    /// Sends one datagram from the calling thread's namespace, without waiting for an answer.
    pub fn send_once(to: impl Into<IpAddr>) {
        let to = SocketAddr::new(to.into(), PORT);
        let _ = UdpSocket::bind((any(to), 0)).and_then(|socket| socket.send_to(b"who am I", to));
    }

    /// Sends datagrams until one is answered; returns the source address in the answer, and how long it took.
    ///
    /// # Errors
    /// No datagram was answered within `limit`.
    pub fn until_answered(
        &self,
        to: impl Into<IpAddr>,
        limit: Duration,
    ) -> Result<(IpAddr, Duration)> {
        let (to, started) = (to.into(), ScaledInstant::now());
        loop {
            let answer = self.udp(to, TRY)?;
            if let Answer::From(address) = answer {
                return Ok((address, started.elapsed()));
            }
            ensure(started.elapsed() < limit, || {
                format!("no answer from {to} in {} s: {answer:?}", limit.as_secs())
            })?;
            std::thread::sleep(PAUSE);
        }
    }
}

fn any(to: SocketAddr) -> IpAddr {
    if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn datagram(to: SocketAddr, timeout: Duration) -> Answer {
    let asked = || {
        let socket = UdpSocket::bind((any(to), 0))?;
        // Connected, so that ICMP errors are reported.
        socket.connect(to)?;
        socket.set_read_timeout(Some(timeout))?;
        socket.send(b"who am I")?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        Ok(said(buffer.get(..length).unwrap_or_default()))
    };
    judge(asked())
}

fn connection(to: SocketAddr, timeout: Duration) -> Answer {
    let asked = || {
        let mut stream = TcpStream::connect_timeout(&to, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(said(&text))
    };
    judge(asked())
}

fn said(text: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(text);
    let address = text.strip_prefix("you are ").and_then(|address| address.parse().ok());
    address.map_or(Answer::Silence, Answer::From)
}

fn judge(asked: std::io::Result<Answer>) -> Answer {
    match asked {
        Ok(answer) => answer,
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Answer::Silence,
            kind => Answer::Refused(kind),
        },
    }
}
