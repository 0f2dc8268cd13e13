//! The callbacks by which a command follows its client.

use std::net::SocketAddr;

use adit_engine::command::Counters;
use adit_openvpn::client::{ClientEvent, TunnelConfig};
use adit_runtime::control::CertificateReport;
use adit_runtime::driver::{Dialled, Endpoint};
use adit_runtime::fault::Fault;
use adit_runtime::host::{ApplyOutcome, Capture, DnsInUse, HostPlan};
use adit_runtime::instance::Reaction;
use adit_runtime::signals::Signal;

/// Callbacks to the owner of a [`Client`](super::Client).
pub(crate) trait Hooks {
    /// Called with every event of the engine, before it is handled.
    fn event(&mut self, event: &ClientEvent);

    /// Called before a stream to this server is opened.
    fn dialling(&mut self, remote: SocketAddr) {
        let _ = remote;
    }

    /// Called when a socket to a server is open.
    fn dialled(&mut self, dialled: &Dialled);

    /// Called when the listening socket is open.
    fn listening(&mut self, bound: Endpoint) {
        let _ = bound;
    }

    /// Called when a server could not be dialled.
    fn dial_failed(&mut self, reason: &str);

    /// Returns the host plan of a tunnel, with notes for the log.
    ///
    /// # Errors
    /// The configuration contradicts itself; the client then ends.
    fn plan(&mut self, tunnel: &TunnelConfig) -> Result<(HostPlan, Vec<String>), Fault>;

    /// Called before [`Hooks::up`], and whenever the DNS servers in use change. `logged` is true if the change has
    /// already been logged.
    fn dns(&mut self, in_use: &DnsInUse, logged: bool) {
        let _ = (in_use, logged);
    }

    /// Called when the tunnel is up.
    fn up(&mut self, tunnel: &TunnelConfig, report: &HostReport<'_>);

    /// Handles a signal.
    fn signal(&mut self, signal: Signal) -> Reaction {
        match signal {
            Signal::User1 => Reaction::Reload,
            other => other.into(),
        }
    }

    /// Called every [`Options::tick`](super::Options::tick) with the traffic of all sessions so far.
    fn tick(&mut self, traffic: &Traffic) -> Next {
        let _ = traffic;
        Next::GoOn
    }

    /// Returns the local certificate that expires first, for `adit status`.
    fn certificate(&self) -> Option<CertificateReport> {
        None
    }
}

/// The changes to the host for a tunnel that is up.
#[derive(Debug)]
pub(crate) struct HostReport<'a> {
    /// The device.
    pub device: Option<&'a str>,
    /// Whether the host's settings had to be changed.
    pub applied: &'a ApplyOutcome,
    /// The part of the machine's traffic that the tunnel carries.
    pub capture: Capture,
}

/// Traffic counters of a client's sessions.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// The data channel.
    pub data: Counters,
    /// The control channel, including attempts that did not lead to a session.
    pub control: Counters,
    /// Tunnel packets received in the current session, without pings and messages such as path MTU probes.
    pub tunnel_packets: u64,
    /// The bytes of these packets on the wire, including a few bytes of encryption overhead for each ping and message.
    pub tunnel_bytes: u64,
}

/// The action after a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    GoOn,
    /// Send a packet through the tunnel, as if it had come from the device.
    Send(Vec<u8>),
    /// Send an exit notice and end.
    End,
}
