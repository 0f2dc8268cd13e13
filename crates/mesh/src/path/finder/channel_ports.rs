//! The source ports of the channels after the first.
//!
//! Networks, and receive queues of network cards, spread packets by the addresses and ports of each packet. So that they spread the
//! channels of a session too, each further channel has its own source port. It goes to the same port of the peer as the first channel. The
//! peer accepts its packets from every address. This port is used only while probes from there are answered, and otherwise the port of the
//! first channel: a firewall or a NAT at the peer may let only that one pass.
//!
//! The probes are MTU probes without padding, because the peer answers those and adds no path for their source.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Instant, SocketId};

use super::super::probe::ProbeKind;
use super::path_state::{CHECK_INTERVAL, LOST_PROBES};
use super::{ACTIVE, MAIN_SOCKET, Output, PathFinder, Route};

/// When to try a port again after it got no answer.
const RETRY: Duration = Duration::from_secs(60);

/// The ports of the further channels to the peer.
#[derive(Debug, Default)]
pub(super) struct ChannelPorts {
    ports: Vec<Port>,
    /// The peer's address to which they were probed.
    to: Option<SocketAddr>,
}

/// The port of one channel.
#[derive(Debug)]
struct Port {
    socket: SocketId,
    /// Whether it sends the channel.
    is_used: bool,
    /// Probes since the last echo, and the time of the first of them.
    unanswered: u32,
    unanswered_since: Instant,
    probe_at: Instant,
}

impl Port {
    fn new(now: Instant, socket: SocketId) -> Self {
        Self { socket, is_used: false, unanswered: 0, unanswered_since: now, probe_at: now }
    }

    /// Returns whether there was enough time for answers to the probes.
    fn is_lost(&self, now: Instant) -> bool {
        self.unanswered >= LOST_PROBES
            && now >= self.unanswered_since + CHECK_INTERVAL * LOST_PROBES
    }
}

impl ChannelPorts {
    /// Returns whether a socket is only for sending a channel.
    pub(super) fn has(&self, socket: SocketId) -> bool {
        self.ports.iter().any(|port| port.socket == socket)
    }

    fn restart(&mut self, now: Instant) {
        for port in &mut self.ports {
            *port = Port::new(now, port.socket);
        }
    }
}

impl PathFinder {
    /// Sets the sockets of the further channels of a new session, which begin at the port of the first one.
    pub(super) fn set_channel_ports(&mut self, now: Instant, sockets: Vec<SocketId>) {
        let ports = sockets.into_iter().map(|socket| Port::new(now, socket)).collect();
        self.channel_ports = ChannelPorts { ports, to: None };
    }

    /// Returns the time of the next probe from one of the ports.
    pub(super) fn channel_ports_due(&self) -> Option<Instant> {
        let next = self.channel_ports.ports.iter().map(|port| port.probe_at).min()?;
        let active = self.data_sent_at.is_some_and(|at| next < at + ACTIVE);
        (active && self.remote.is_some() && self.shared_path().is_some()).then_some(next)
    }

    /// Returns the peer's address if data goes there from the node's own port.
    fn shared_path(&self) -> Option<SocketAddr> {
        match self.current {
            Some(Route::Direct { socket: MAIN_SOCKET, to }) => Some(to),
            _ => None,
        }
    }

    /// Checks the ports again soon, after a time without packets.
    pub(super) fn recheck_channel_ports(&mut self, now: Instant) {
        for port in self.channel_ports.ports.iter_mut().filter(|port| port.is_used) {
            port.probe_at = now;
        }
    }

    /// Probes the ports that are due, and gives up ports without answers.
    pub(super) fn advance_channel_ports(&mut self, now: Instant, out: &mut Vec<Output>) {
        let to = self.shared_path();
        if self.channel_ports.to != to {
            // With the path, all channels have moved to the port of the first one.
            self.channel_ports.to = to;
            self.channel_ports.restart(now);
        }
        let Some(to) = to.filter(|_| self.channel_ports_due().is_some_and(|at| at <= now)) else {
            return;
        };
        let mut probed = Vec::new();
        for (number, port) in self.channel_ports.ports.iter_mut().enumerate() {
            if port.probe_at > now {
                continue;
            }
            if port.is_lost(now) {
                if std::mem::take(&mut port.is_used) {
                    out.push(Output::UsePort { channel: number.saturating_add(1), socket: None });
                }
                port.unanswered = 0;
                port.probe_at = now + RETRY;
                continue;
            }
            if port.unanswered == 0 {
                port.unanswered_since = now;
            }
            port.unanswered = port.unanswered.saturating_add(1);
            port.probe_at = now + CHECK_INTERVAL;
            probed.push(port.socket);
        }
        for socket in probed {
            let kind = ProbeKind::MtuProbe { padding: 0 };
            self.send_probe(now, Route::Direct { socket, to }, kind, out);
        }
    }

    /// Processes the echo of a probe from one of the ports. Returns false if the route begins at none of them.
    pub(super) fn on_channel_port_echo(
        &mut self,
        now: Instant,
        route: Route,
        out: &mut Vec<Output>,
    ) -> bool {
        let Route::Direct { socket, to } = route else { return false };
        let current = self.channel_ports.to;
        let mut ports = self.channel_ports.ports.iter_mut().enumerate();
        let Some((number, port)) = ports.find(|(_, port)| port.socket == socket) else {
            return false;
        };
        if current == Some(to) {
            port.unanswered = 0;
            port.probe_at = now + CHECK_INTERVAL;
            if !std::mem::replace(&mut port.is_used, true) {
                let socket = Some(port.socket);
                out.push(Output::UsePort { channel: number.saturating_add(1), socket });
            }
        }
        true
    }
}
