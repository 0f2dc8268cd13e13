//! Handles the reports of the node and its machine: the log, the files, and the sockets that the node requests.

use std::net::{Ipv4Addr, SocketAddr};

use adit_mesh::join::JoinRefusal;
use adit_mesh::node::NodeEvent;
use adit_mesh::path::Route;
use adit_mesh::session::Reason;
use adit_runtime::clock::now;
use adit_runtime::fault::Fault;
use adit_runtime::host::{DnsChange, HostEvent};
use adit_runtime::log::{Kind, LogDecision, Source};
use adit_runtime::say;

use super::Running;
use super::report::hex;
use super::start::socket_options;

/// Logs an event of the machine.
pub(super) fn host_event(event: &HostEvent) {
    match event {
        // Check the node's own addresses.
        HostEvent::PathChanged { .. } | HostEvent::PathLost { .. } => {}
        HostEvent::Routing(Some(problem)) => tracing::warn!("routes: {problem}"),
        HostEvent::Routing(None) => say!(1, "routes: complete again"),
        HostEvent::Dns(event) => match event.change {
            DnsChange::AppliedAgain => tracing::warn!(
                "DNS: another program replaced /etc/resolv.conf; the names of the mesh are restored"
            ),
            DnsChange::Lost => tracing::warn!("DNS: now {}", event.in_use),
            DnsChange::Back => say!(1, "DNS: now {}", event.in_use),
        },
    }
}

impl Running {
    /// Acts on an event of the node.
    pub(super) async fn event(&mut self, event: NodeEvent) -> Result<(), Fault> {
        self.stats.record(&event);
        match event {
            NodeEvent::Added(hashes) => {
                let changes = self.driver.engine().changes();
                for change in hashes.iter().filter_map(|hash| changes.get(hash)) {
                    self.stats.changed(change.action());
                }
                self.store.append(self.driver.engine(), &hashes)?;
                self.advance_admin_key()?;
                self.changes_added(&hashes);
            }
            NodeEvent::Roster => self.roster_changed().await,
            NodeEvent::Invitations => self.store.invitations_changed(self.driver.engine()),
            NodeEvent::Endpoints | NodeEvent::Compared => self.store.endpoints_changed(),
            NodeEvent::Trust => self.trust_changed(),
            NodeEvent::Policy => {
                self.policy.changed(self.driver.engine(), self.driver.backend().plane());
            }
            NodeEvent::Connected { peer, via, stream } => {
                let (name, via) = (self.name(&peer), via.map(|relay| self.name(&relay)));
                match via {
                    Some(relay) => say!(1, "{name}: connected through {relay}"),
                    None if stream => say!(1, "{name}: connected over TCP"),
                    None => say!(1, "{name}: connected"),
                }
            }
            NodeEvent::Disconnected { peer, reason: reason @ (Reason::Idle | Reason::Closed) } => {
                say!(2, "{}: disconnected: {reason}", self.name(&peer));
            }
            NodeEvent::Disconnected { peer, reason } => {
                say!(1, "{}: disconnected: {reason}", self.name(&peer));
            }
            NodeEvent::Path { peer, route } => {
                let name = self.name(&peer);
                match route {
                    Route::Direct { to, .. } => say!(1, "{name}: direct path to {to}"),
                    Route::Stream { to, .. } => say!(1, "{name}: TCP connection to {to}"),
                    Route::Relay(relay) => say!(1, "{name}: through {}", self.name(&relay)),
                }
            }
            NodeEvent::OpenSockets { peer, count } => {
                let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
                let udp = socket_options(any, self.mark);
                let sockets = self.driver.open_sockets(&udp, count);
                self.driver.act(|node, now, out| node.sockets_opened(now, &peer, sockets, out));
            }
            NodeEvent::OpenStream(to) => self.open_stream(to),
            NodeEvent::CloseSockets(sockets) => self.driver.close_sockets(&sockets),
            NodeEvent::App(event) => self.apps.log(&event),
            NodeEvent::Admitted(key) => say!(1, "{} joined the mesh", self.name(&key)),
            NodeEvent::NotAdmitted(reason) => self.refused_joiner(&reason),
            NodeEvent::Waiting(key) => {
                if let Some(joiner) = self.joiners().into_iter().find(|it| it.key == hex(&key)) {
                    tracing::warn!(
                        "{} wants to join, with the key {}: admit it with: adit mesh approve {}",
                        joiner.name,
                        joiner.fingerprint,
                        joiner.name
                    );
                }
            }
            NodeEvent::Removed => self.removed = true,
        }
        Ok(())
    }

    /// Logs that a node could not join, unless that happens often. Anyone with an old token can cause it.
    fn refused_joiner(&mut self, reason: &JoinRefusal) {
        let line = format!("a node could not join: {reason}");
        let decision = self.log_limiter.count(now(), &Source::Pending, Kind::Refused, &line);
        if decision == LogDecision::Log {
            say!(1, "{line}");
        }
    }

    /// Logs how many lines were left out in the last minute.
    pub(super) fn log_suppressed(&mut self) {
        for suppressed in self.log_limiter.overdue(now()) {
            say!(1, "{suppressed}");
        }
    }

    /// Logs which peers have become stale or lost their routes, and which have recovered.
    fn trust_changed(&mut self) {
        let problems = self.trust_problems();
        for problem in problems.iter().filter(|it| !self.trust_problems.contains(it)) {
            tracing::warn!("{problem}");
        }
        for problem in self.trust_problems.iter().filter(|it| !problems.contains(it)) {
            say!(1, "no longer: {problem}");
        }
        self.trust_problems = problems;
    }
}
