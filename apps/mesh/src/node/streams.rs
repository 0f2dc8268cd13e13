//! TCP: this node's listener, and streams to other nodes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use adit_engine::{Link, Transport};
use adit_linux::tcp::{TcpConnectOptions, TcpListenOptions, TcpListener};
use adit_mesh::node::DIAL_TIMEOUT;
use adit_runtime::driver::bind_problem;
use adit_runtime::helper::sockets;

use super::Running;

impl Running {
    /// Accepts streams if this node is a relay or has an admin's key, like the first node, because other nodes connect to such nodes. If
    /// the port is in use, the node works without accepting streams.
    pub(super) fn accept_streams(&mut self) {
        let node = self.driver.engine();
        let is_relay = node.roster().member(&node.key_hash()).is_some_and(|own| own.relay);
        let port = NonZeroU16::new(self.settings.tcp_port);
        let Some(port) = port.filter(|_| is_relay || node.is_admin()) else { return };
        if self.tcp_port.is_some() || self.tcp_problem.is_some() {
            return;
        }
        let listening = bind(port, self.mark).and_then(|listener| self.driver.listen(listener));
        match listening {
            Ok(()) => {
                self.tcp_port = Some(port);
                self.driver.act(|node, now, out| node.set_stream_port(now, Some(port), out));
            }
            Err(error) => {
                let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port.get());
                let problem = bind_problem(Transport::Tcp, any, None, &error);
                let problem = format!(
                    "nodes without UDP cannot reach this one: {problem}; tcp-port in mesh.toml sets it, and 0 turns it \
                     off"
                );
                tracing::warn!("{problem}");
                self.tcp_problem = Some(problem);
            }
        }
    }

    /// Opens a stream to another node.
    pub(super) fn open_stream(&mut self, to: SocketAddr) {
        let mut options = TcpConnectOptions::new(to);
        options.fwmark = self.mark;
        self.driver.open_stream(options, DIAL_TIMEOUT);
    }

    pub(super) fn stream_opened(&mut self, to: SocketAddr, opened: Result<Link, String>) {
        if let Err(problem) = &opened {
            tracing::debug!("{problem}");
        }
        self.driver.act(|node, now, out| node.stream_opened(now, to, opened.ok(), out));
    }
}

fn bind(port: NonZeroU16, mark: Option<u32>) -> std::io::Result<TcpListener> {
    let at = |ip: IpAddr| {
        let mut options = TcpListenOptions::new(SocketAddr::new(ip, port.get()));
        options.fwmark = mark;
        sockets::listen(&options)
    };
    match at(Ipv6Addr::UNSPECIFIED.into()) {
        Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
            at(Ipv4Addr::UNSPECIFIED.into())
        }
        listener => listener,
    }
}
