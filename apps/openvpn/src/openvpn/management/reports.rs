//! What the run loops report to a management client.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adit_openvpn::Reason;
use adit_openvpn::client::{ClientEvent, TunnelConfig};
use adit_openvpn::config::{Options, Routes, ServerOptions};
use adit_openvpn_service::{Handle as Service, Sessions, compat_log};
use adit_runtime::driver::{Dialled, Endpoint};
use adit_runtime::instance::EndReason;
use adit_runtime::signals::Signal;

use super::super::status::Totals;
use super::{Handle, ServerProgram, State, StateName};

/// The reports of a client, or of a point-to-point end.
pub(crate) struct ClientReports {
    handle: Handle,
    /// The local address, if the operator chose it or the transport is a stream.
    local: Option<SocketAddr>,
    /// Whether the configuration has routes.
    routes: bool,
    /// `persist-tun`.
    persists: bool,
    /// The addresses of the last tunnel.
    addresses: Option<(Option<Ipv4Addr>, Option<Ipv6Addr>)>,
    /// Whether the server's options are missing.
    awaits_options: bool,
}

impl ClientReports {
    pub(crate) fn new(handle: Handle, options: &Options) -> Self {
        let Routes { v4, v6, redirect_gateway, redirect_private, .. } = &options.routes;
        let redirects = redirect_gateway.is_some() || redirect_private.is_some();
        Self {
            handle,
            local: None,
            routes: redirects || !v4.is_empty() || !v6.is_empty(),
            persists: options.device.persist,
            addresses: None,
            awaits_options: false,
        }
    }

    pub(crate) fn event(&mut self, event: &ClientEvent) {
        match event {
            ClientEvent::ServerAnswered(..) => self.enter(StateName::Auth),
            ClientEvent::Authenticated { .. } => self.awaits_options = true,
            ClientEvent::Pushed(_) => self.awaits_options = false,
            ClientEvent::Echo(text) => self.handle.echo(text),
            ClientEvent::Up(tunnel) => self.configures(tunnel),
            ClientEvent::Restarting(reason) => {
                self.awaits_options = false;
                self.notify(reason);
                let detail = compat_log::restart_cause(reason).to_owned();
                self.handle.state(&State { detail, ..StateName::Reconnecting.into() });
            }
            ClientEvent::Stopped(reason) => self.notify(reason),
            ClientEvent::AuthPending(limit) => {
                let detail = format!("timeout {}", limit.as_secs());
                self.handle.state(&State { detail, ..StateName::AuthPending.into() });
            }
            ClientEvent::Token(login) => {
                self.handle.notify([format!(">PASSWORD:Auth-Token:{}", login.password.as_str())]);
            }
            ClientEvent::ServerInfo(text) => self.handle.notify([format!(">INFOMSG:{text}")]),
            ClientEvent::Connecting(_)
            | ClientEvent::Unreachable(..)
            | ClientEvent::Updated(_)
            | ClientEvent::Reverified { .. }
            | ClientEvent::Rekeyed { .. }
            | ClientEvent::Note(_)
            | ClientEvent::Warning(_)
            | ClientEvent::Path(_) => {}
        }
    }

    /// Reports the server's words about the end of a session.
    fn notify(&self, reason: &Reason) {
        let (kind, text) = match reason {
            Reason::AuthFailed(text) | Reason::AuthFailedForNow(text) => {
                return self.handle.refused("Auth", Some(text));
            }
            Reason::Halted(text) => ("server-pushed-halt", text.as_str()),
            Reason::ServerRestart(text) => ("server-pushed-connection-reset", text.as_str()),
            Reason::RemoteExit => ("remote-exit", "EXIT"),
            _ => return,
        };
        self.handle.notify([format!(">NOTIFY:info,{kind},{text}")]);
    }

    fn configures(&mut self, tunnel: &TunnelConfig) {
        let ipv4 = tunnel.ipv4.map(|net| net.addr());
        let ipv6 = tunnel.ipv6.map(|net| net.addr());
        self.handle.in_tunnel(own(ipv4, ipv6));
        let same = self.addresses.replace((ipv4, ipv6)) == Some((ipv4, ipv6));
        if same && self.persists {
            // The device stays as it is.
            return;
        }
        self.handle.state(&State { ipv4, ipv6, ..StateName::AssignIp.into() });
        let pushed = !tunnel.routes4.is_empty() || !tunnel.routes6.is_empty();
        if self.routes || pushed || tunnel.redirect_gateway.is_some() {
            self.enter(StateName::AddRoutes);
        }
    }

    pub(crate) fn dialling(&self) {
        self.enter(StateName::TcpConnect);
    }

    pub(crate) fn dialled(&mut self, dialled: &Dialled) {
        self.local = (dialled.bound || dialled.link.is_stream()).then_some(dialled.local);
        self.enter(StateName::Wait);
    }

    pub(crate) fn up(&self, tunnel: &TunnelConfig) {
        self.handle.state(&State {
            name: StateName::Connected,
            detail: "SUCCESS".into(),
            ipv4: tunnel.ipv4.map(|net| net.addr()),
            ipv6: tunnel.ipv6.map(|net| net.addr()),
            remote: tunnel.remote,
            local: self.local,
        });
    }

    /// Reports the traffic of the last second.
    pub(crate) fn second(&mut self, totals: Totals) {
        // As in openvpn, this state is for a server that must be asked.
        if std::mem::take(&mut self.awaits_options) {
            self.enter(StateName::GetConfig);
        }
        self.handle.traffic(totals);
    }

    pub(crate) fn ended(&self, ended: &EndReason<Reason>, notified: bool) {
        let detail = match ended {
            EndReason::Restart => return self.handle.restarting(),
            EndReason::Signal(_) if notified => "exit-with-notification",
            EndReason::Signal(signal) => signal_name(*signal),
            EndReason::Asked | EndReason::Stopped(Reason::EndRequested | Reason::Checked) => "exit",
            EndReason::Stopped(Reason::AuthFailed(_)) => "auth-failure",
            EndReason::Stopped(Reason::SessionTimeout) => "session-timeout",
            EndReason::Stopped(Reason::Inactive) => "inactive",
            EndReason::Stopped(Reason::TlsExit(_)) => "tls-error",
            EndReason::Stopped(Reason::PingExit) => "ping-exit",
            EndReason::Stopped(Reason::Halted(_)) => "server-pushed-halt",
            EndReason::Stopped(reason) => return self.handle.fatal(&reason.to_string()),
        };
        self.handle.exiting(detail);
    }

    fn enter(&self, name: StateName) {
        self.handle.state(&name.into());
    }
}

/// The reports of a server.
pub(crate) struct ServerReports {
    handle: Handle,
    ipv4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Addr>,
}

impl ServerReports {
    pub(crate) fn new(handle: Handle, role: &ServerOptions) -> Self {
        let ipv4 = role.network4.as_ref().map(|network| network.server.addr());
        let ipv6 = role.network6.as_ref().map(|network| network.server.addr());
        Self { handle, ipv4, ipv6 }
    }

    pub(crate) fn started(&self, service: &Service) {
        self.handle.attach(ServerProgram(service.clone()));
    }

    pub(crate) fn serving(&self, listening: &[Endpoint]) {
        let Self { ipv4, ipv6, .. } = *self;
        let local = listening.first().map(|endpoint| endpoint.address);
        let local = local.filter(|local| !local.ip().is_unspecified());
        self.handle.in_tunnel(own(ipv4, ipv6));
        self.handle.state(&State { ipv4, ipv6, ..StateName::AssignIp.into() });
        let detail = "SUCCESS".into();
        self.handle.state(&State { detail, ipv4, ipv6, local, ..StateName::Connected.into() });
    }

    /// Reports the traffic of the clients, if it is time.
    pub(crate) fn second(&self, sessions: &Sessions) {
        if self.handle.second() {
            self.handle.notify(sessions.iter().map(|session| {
                let (received, sent) = (session.counters.rx_bytes, session.counters.tx_bytes);
                format!(">BYTECOUNT_CLI:{},{received},{sent}", session.info.session)
            }));
        }
    }

    pub(crate) fn ended(&self, ended: &EndReason<Infallible>) {
        match ended {
            EndReason::Restart => self.handle.restarting(),
            EndReason::Signal(signal) => self.handle.exiting(signal_name(*signal)),
            EndReason::Asked => self.handle.exiting("SIGTERM"),
            EndReason::Stopped(never) => match *never {},
        }
    }
}

impl Handle {
    /// Reports that the program reads its configuration again.
    fn restarting(&self) {
        let detail = "SIGHUP".into();
        self.state(&State { detail, ..StateName::Reconnecting.into() });
    }

    fn exiting(&self, detail: &str) {
        let detail = detail.to_owned();
        self.state(&State { detail, ..StateName::Exiting.into() });
    }
}

/// Returns the address for `management tunnel`.
fn own(ipv4: Option<Ipv4Addr>, ipv6: Option<Ipv6Addr>) -> Option<IpAddr> {
    ipv4.map(IpAddr::V4).or(ipv6.map(IpAddr::V6))
}

fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::Terminate => "SIGTERM",
        Signal::Interrupt => "SIGINT",
        Signal::Hangup => "SIGHUP",
        Signal::User1 => "SIGUSR1",
        Signal::User2 => "SIGUSR2",
    }
}
