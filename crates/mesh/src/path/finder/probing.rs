//! Probes and their echoes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::{Instant, Rate};

use super::super::candidate::is_private;
use super::super::probe::{Nonce, Probe, ProbeKind};
use super::super::record::Record;
use super::path_state::{Origin, PathState};
use super::{MAIN_SOCKET, MAX_PATHS, Output, PathFinder, Route};

/// The maximum number of probes that wait for an echo: more than a port search sends within [`ECHO_TIMEOUT`].
const MAX_OUTSTANDING: usize = 2048;

/// The time after which an echo no longer counts.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

/// The limit on echoes to the peer.
const ECHO_RATE: Rate = Rate::per_second(512);

/// The maximum number of paths to addresses that the peer did not offer.
const MAX_REFLEXIVE: usize = 8;

/// The minimum time between two probes that are caused by the peer's probes.
const TRIGGER_INTERVAL: Duration = Duration::from_millis(40);

/// A probe that waits for its echo.
#[derive(Copy, Clone, Debug)]
pub(super) struct Outstanding {
    pub(super) route: Route,
    random: [u8; 8],
    at: Instant,
    mtu: bool,
}

impl PathFinder {
    /// Probes a known path.
    pub(super) fn probe(&mut self, now: Instant, route: Route, out: &mut Vec<Output>) {
        if !self.send_probe(now, route, ProbeKind::Probe, out) {
            return;
        }
        if let Some(path) = self.path_mut(route) {
            path.on_probe_sent(now);
        }
        self.schedule_probe(now, route);
    }

    /// Sends a probe over a route. Returns false, without sending one, if the peer's key is not known.
    pub(super) fn send_probe(
        &mut self,
        now: Instant,
        route: Route,
        kind: ProbeKind,
        out: &mut Vec<Output>,
    ) -> bool {
        let Some(remote) = &self.remote else { return false };
        if self.outstanding.len() >= MAX_OUTSTANDING {
            self.counters.limited += 1;
            return true;
        }
        self.last_number += 1;
        let nonce = Nonce { number: self.last_number, random: self.random.bytes() };
        let bytes = remote.send.seal(&Probe { tag: remote.tag, nonce, kind });
        let mtu = matches!(kind, ProbeKind::MtuProbe { .. });
        let waiting = Outstanding { route, random: nonce.random, at: now, mtu };
        self.outstanding.insert(nonce.number, waiting);
        self.counters.probes += 1;
        push_probe(route, None, bytes, out);
        true
    }

    pub(super) fn expire_probes(&mut self, now: Instant) {
        while let Some(oldest) = self.outstanding.first_entry()
            && now.since(oldest.get().at) >= ECHO_TIMEOUT
        {
            oldest.remove();
        }
    }

    pub(super) fn on_probe(
        &mut self,
        now: Instant,
        route: Route,
        local: Option<IpAddr>,
        bytes: &[u8],
        out: &mut Vec<Output>,
    ) {
        let opened = self.remote.as_mut().and_then(|remote| {
            let probe = remote.receive.open(bytes)?;
            Some((probe, remote))
        });
        let Some((probe, remote)) = opened.filter(|(probe, _)| probe.tag == self.tag) else {
            self.counters.not_authentic += 1;
            return;
        };
        if let ProbeKind::Echo { seen, size } = probe.kind {
            return self.on_echo(now, route, probe.nonce, seen, size, out);
        }
        if let Route::Direct { socket, .. } = route
            && self.channel_ports.has(socket)
        {
            // No path leads to a port that only sends.
            self.counters.limited += 1;
            return;
        }
        if !remote.window.accept(probe.nonce.number) {
            self.counters.replayed_probes += 1;
            return;
        }
        if !self.echoes.take(now, 1, ECHO_RATE) {
            self.counters.limited += 1;
            return;
        }
        let seen = match route {
            Route::Direct { to, .. } => Some(to),
            Route::Stream { .. } | Route::Relay(_) => None,
        };
        let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let kind = ProbeKind::Echo { seen, size };
        let echo = remote.send.seal(&Probe { tag: remote.tag, nonce: probe.nonce, kind });
        push_probe(route, local, echo, out);
        if !matches!(route, Route::Relay(_)) && matches!(probe.kind, ProbeKind::Probe) {
            self.on_probe_from(now, route, out);
        }
    }

    /// Probes the source of a peer's probe, which may be an address that the peer itself does not know.
    fn on_probe_from(&mut self, now: Instant, route: Route, out: &mut Vec<Output>) {
        if !self.add_path(now, route, Origin::Reflexive) {
            return;
        }
        let waits = |path: &PathState| {
            !path.alive && path.probed_at.is_none_or(|at| now.since(at) >= TRIGGER_INTERVAL)
        };
        if self.path(route).is_some_and(waits) {
            self.probe(now, route, out);
        }
    }

    fn on_echo(
        &mut self,
        now: Instant,
        route: Route,
        nonce: Nonce,
        seen: Option<SocketAddr>,
        size: u16,
        out: &mut Vec<Output>,
    ) {
        let Some(waiting) = self.outstanding.get(&nonce.number) else {
            self.counters.unknown_echoes += 1;
            return;
        };
        if waiting.random != nonce.random {
            self.counters.wrong_nonces += 1;
            return;
        }
        if waiting.route != route {
            self.counters.wrong_addresses += 1;
            return;
        }
        let (sent_at, mtu) = (waiting.at, waiting.mtu);
        self.outstanding.remove(&nonce.number);
        self.counters.echoes += 1;
        if self.on_channel_port_echo(now, route, out) {
            return;
        }
        if mtu {
            self.on_mtu_echo(route, size);
        }
        if matches!(route, Route::Direct { .. }) && !self.add_path(now, route, Origin::PortSearch) {
            return;
        }
        if let Some(path) = self.path_mut(route) {
            path.on_echo(now.since(sent_at));
        }
        self.schedule_probe(now, route);
        // Within a site there is no NAT between the nodes, so the peer sees one of this node's own addresses.
        if let (Route::Direct { socket: MAIN_SOCKET, to }, Some(seen)) = (route, seen)
            && !is_private(to.ip())
        {
            out.push(Output::Observed(seen));
        }
    }

    /// Adds a path unless it is known. Returns whether it is known now.
    pub(super) fn add_path(&mut self, now: Instant, route: Route, origin: Origin) -> bool {
        if self.path(route).is_some() {
            return true;
        }
        let alike = |path: &&PathState| path.origin == origin;
        let too_many_alike =
            origin == Origin::Reflexive && self.paths.iter().filter(alike).count() >= MAX_REFLEXIVE;
        if too_many_alike || self.paths.len() >= MAX_PATHS {
            // Replace a path that never answered.
            let unused = |path: &PathState| {
                path.is_direct()
                    && (path.origin == origin || !too_many_alike)
                    && path.rtt.is_none()
                    && path.attempts >= 3
            };
            let Some(index) = self.paths.iter().position(unused) else {
                self.counters.limited += 1;
                return false;
            };
            self.paths.remove(index);
        }
        self.paths.push(PathState::new(now, route, origin));
        true
    }
}

fn push_probe(route: Route, local: Option<IpAddr>, bytes: Vec<u8>, out: &mut Vec<Output>) {
    out.push(match route {
        Route::Relay(relay) => {
            Output::SendRecord { via: Some(relay), bytes: Record::Probe(bytes).encode() }
        }
        Route::Direct { .. } | Route::Stream { .. } => Output::SendProbe { route, local, bytes },
    });
}
