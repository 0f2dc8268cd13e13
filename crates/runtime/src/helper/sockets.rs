//! Creates sockets in this process or in its helper, because marks, devices, low ports and large buffers need
//! privileges.

use std::io;
use std::os::fd::OwnedFd;

use adit_linux::tcp::{TcpConnectOptions, TcpListenOptions, TcpListener, TcpStream};
use adit_linux::udp::{UdpOptions, UdpSocket};

use super::current;
use super::protocol::{Request, SocketRequest};

/// Creates a UDP socket.
pub fn udp(options: &UdpOptions) -> io::Result<UdpSocket> {
    if current().is_none() {
        return UdpSocket::bind(options);
    }
    let group = udp_group(options, 1)?;
    group.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Creates UDP sockets that share a port.
pub fn udp_group(options: &UdpOptions, count: u16) -> io::Result<Vec<UdpSocket>> {
    let Some(helper) = current() else {
        return UdpSocket::bind_group(options, count.into());
    };
    let wish = SocketRequest {
        bind: options.bind,
        bound: true,
        v6only: options.v6only,
        count,
        mark: options.fwmark,
        device: options.device.clone(),
        buffers: (Some(options.recv_buffer), Some(options.send_buffer)),
        icmp_errors: options.icmp_errors,
    };
    let (_, descriptors) = helper.call(Request::Datagrams(wish), &[])?;
    descriptors.into_iter().map(|fd| UdpSocket::from_fd(fd, options)).collect()
}

/// Creates a TCP listener.
pub fn listen(options: &TcpListenOptions) -> io::Result<TcpListener> {
    let Some(helper) = current() else { return TcpListener::bind(options) };
    let wish = SocketRequest {
        bind: options.bind,
        bound: true,
        v6only: options.v6only,
        count: 1,
        mark: options.fwmark,
        device: options.device.clone(),
        buffers: (options.recv_buffer, options.send_buffer),
        icmp_errors: false,
    };
    let (_, descriptors) = helper.call(Request::Listen(wish), &[])?;
    TcpListener::from_fd(first(descriptors)?)
}

/// Starts to connect a TCP stream.
pub fn connect(options: &TcpConnectOptions) -> io::Result<TcpStream> {
    let Some(helper) = current() else { return TcpStream::connect(options) };
    let any: std::net::IpAddr = match options.to {
        std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let wish = SocketRequest {
        bind: options.from.unwrap_or_else(|| (any, 0).into()),
        bound: options.from.is_some(),
        v6only: false,
        count: 1,
        mark: options.fwmark,
        device: options.device.clone(),
        buffers: (options.recv_buffer, options.send_buffer),
        icmp_errors: false,
    };
    let (_, descriptors) = helper.call(Request::Stream(wish), &[])?;
    TcpStream::connect_by(first(descriptors)?, options.to)
}

fn first(descriptors: Vec<OwnedFd>) -> io::Result<OwnedFd> {
    descriptors.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Performs the helper's part of [`udp_group`].
pub(super) fn make_datagrams(wish: &SocketRequest) -> io::Result<Vec<OwnedFd>> {
    let mut options = UdpOptions::new(wish.bind);
    options.v6only = wish.v6only;
    options.fwmark = wish.mark;
    options.device.clone_from(&wish.device);
    options.recv_buffer = wish.buffers.0.unwrap_or(options.recv_buffer);
    options.send_buffer = wish.buffers.1.unwrap_or(options.send_buffer);
    options.icmp_errors = wish.icmp_errors;
    options.gro = false;
    let group = UdpSocket::bind_group(&options, wish.count.into())?;
    Ok(group.into_iter().map(OwnedFd::from).collect())
}

/// Performs the helper's part of [`listen`].
pub(super) fn make_listener(wish: &SocketRequest) -> io::Result<OwnedFd> {
    let mut options = TcpListenOptions::new(wish.bind);
    options.v6only = wish.v6only;
    options.fwmark = wish.mark;
    options.device.clone_from(&wish.device);
    (options.recv_buffer, options.send_buffer) = wish.buffers;
    TcpListener::bind(&options).map(OwnedFd::from)
}

/// Performs the helper's part of [`connect`].
pub(super) fn make_stream(wish: &SocketRequest) -> io::Result<OwnedFd> {
    // Only the address family of the destination matters here.
    let mut options = TcpConnectOptions::new(wish.bind);
    options.from = wish.bound.then_some(wish.bind);
    options.fwmark = wish.mark;
    options.device.clone_from(&wish.device);
    (options.recv_buffer, options.send_buffer) = wish.buffers;
    TcpStream::prepare(&options)
}
