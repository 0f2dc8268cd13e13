//! A running node as a guest in a tinc net.

use std::collections::BTreeSet;

use adit_mesh::roster::{Layer, ipv6_net};
use adit_runtime::control::{MeshTinc, RefusedSubnet, TincNet};
use adit_runtime::fault::Fault;
use adit_runtime::say;
use ipnet::IpNet;

use super::Running;
use crate::guest::exchange::{Exchange, Mesh};
use crate::guest::{Guest, GuestProcess, GuestState};
use crate::settings::TincSettings;

/// What a node knows of the net.
#[derive(Debug)]
pub(super) struct TincGuest {
    guest: Guest,
    settings: TincSettings,
    state: GuestState,
    exchange: Exchange,
}

impl TincGuest {
    /// Takes over the process of the guest. Call it inside a runtime.
    pub(super) fn new(settings: TincSettings, process: GuestProcess) -> Result<Self, Fault> {
        let guest = Guest::new(process)?;
        let (state, exchange) = (GuestState::Starting, Exchange::default());
        Ok(Self { guest, settings, state, exchange })
    }

    /// Withdraws everything from the net.
    pub(super) fn end(self) {
        self.guest.end();
    }

    /// Returns the subnets of the net that the mesh reaches.
    pub(super) fn reached(&self) -> &BTreeSet<IpNet> {
        &self.exchange.reached
    }

    fn report(&self) -> MeshTinc {
        let Exchange { announced, reached, refused, guests, left_out } = self.exchange.clone();
        let net = self.settings.net.clone();
        let report = MeshTinc { net, guests, left_out, refused, ..MeshTinc::default() };
        match &self.state {
            GuestState::Running(tinc) => MeshTinc {
                node: Some(tinc.node.clone()),
                reachable: tinc.reachable,
                reached: reached.into_iter().collect(),
                announced,
                left_out: left_out.saturating_add(tinc.left_out),
                ..report
            },
            GuestState::Starting => report,
            GuestState::Failed(problem) => MeshTinc { problem: Some(problem.clone()), ..report },
        }
    }

    fn log(&self, former: &GuestState, before: &Exchange) {
        let net = &self.settings.net;
        match (&self.state, former) {
            (GuestState::Running(_), GuestState::Running(_)) => {}
            (GuestState::Running(tinc), _) => say!(1, "tinc {net}: a guest as {}", tinc.node),
            (GuestState::Failed(problem), _) if self.state != *former => {
                tracing::warn!("tinc {net}: {problem}");
            }
            _ => {}
        }
        let now = &self.exchange;
        for subnet in now.reached.difference(&before.reached) {
            say!(1, "tinc {net}: {subnet} is reached from the mesh");
        }
        for subnet in before.reached.difference(&now.reached) {
            say!(1, "tinc {net}: {subnet} is no longer reached from the mesh");
        }
        for refused in now.refused.iter().filter(|it| !before.refused.contains(it)) {
            tracing::warn!("{}", warning(net, refused));
        }
    }
}

fn warning(net: &str, RefusedSubnet { subnet, reason }: &RefusedSubnet) -> String {
    format!("tinc {net}: {} of {} is not reached from the mesh: {reason}", subnet.net, subnet.owner)
}

/// Refuses a guest where nothing can be forwarded to it.
///
/// # Errors
/// The fault names the setting.
pub(super) fn check(layer: Layer, has_tinc: bool) -> Result<(), Fault> {
    if layer == Layer::Ethernet {
        return Err(Fault::operator(
            "[tinc] in mesh.toml: this mesh carries Ethernet frames, and a tinc net exchanges IP networks with it: leave out \
             [tinc], or create another mesh for them",
        ));
    }
    if !has_tinc {
        return Err(Fault::operator(
            "[tinc] in mesh.toml: tinc is not part of this build; build adit with the feature `tinc`, which is on by default",
        ));
    }
    Ok(())
}

impl Running {
    /// Acts on a state of the net.
    pub(super) async fn tinc_changed(&mut self, state: GuestState) {
        let Some(tinc) = &mut self.tinc else { return };
        let former = std::mem::replace(&mut tinc.state, state);
        if self.exchange_networks(&former) {
            self.roster_changed().await;
        }
    }

    /// Compares the mesh with the net again. Returns whether the mesh reaches other subnets now.
    pub(super) fn exchange_networks(&mut self, former: &GuestState) -> bool {
        let mesh = self.mesh_for_tinc();
        let Some(tinc) = &mut self.tinc else { return false };
        let empty = TincNet::default();
        let net = match &tinc.state {
            GuestState::Running(net) => net,
            GuestState::Starting | GuestState::Failed(_) => &empty,
        };
        let exchange = Exchange::new(&mesh, &net.subnets);
        let before = std::mem::replace(&mut tinc.exchange, exchange);
        tinc.log(former, &before);
        tinc.guest.announce(&tinc.exchange.announced);
        tinc.exchange.reached != before.reached
    }

    /// Compares the mesh with the net after a change in the mesh, whose plan is made next.
    pub(super) fn announce_to_tinc(&mut self) {
        if let Some(state) = self.tinc.as_ref().map(|tinc| tinc.state.clone()) {
            self.exchange_networks(&state);
        }
    }

    fn mesh_for_tinc(&self) -> Mesh {
        let node = self.driver.engine();
        let (roster, own) = (node.roster(), node.key_hash());
        let member = roster.member(&own);
        // Without IPv4 in the mesh, this machine forwards none.
        let has_ipv4 = self.conflict.is_none();
        let fits = |net: &IpNet| has_ipv4 || matches!(net, IpNet::V6(_));
        let ranges = node.changes().genesis().ranges.iter().copied().map(IpNet::V4).filter(fits);
        let others = roster.members().filter(|other| other.key != own);
        Mesh {
            node: self.name(&own),
            own: ranges.chain([ipv6_net(node.changes().mesh()).into()]).collect(),
            granted: member.map(|member| member.subnets.clone()).unwrap_or_default(),
            others: others.flat_map(|other| other.subnets.iter().copied()).filter(fits).collect(),
            networks: self.settings.tinc.as_ref().map(|it| it.networks.clone()).unwrap_or_default(),
        }
    }

    pub(super) fn tinc_report(&self) -> Option<MeshTinc> {
        self.tinc.as_ref().map(TincGuest::report)
    }

    /// Names the subnets that are not reached, and the reason why there is no connection.
    pub(super) fn tinc_warnings(&self) -> Vec<String> {
        let Some(tinc) = &self.tinc else { return Vec::new() };
        let report = tinc.report();
        let problem =
            report.problem.iter().map(|problem| format!("tinc {}: {problem}", report.net));
        let refused = report.refused.iter().map(|refused| warning(&report.net, refused));
        problem.chain(refused).collect()
    }
}

/// Waits for the next state of the net, or forever if there is none.
pub(super) async fn next_state(tinc: &mut Option<TincGuest>) -> GuestState {
    match tinc {
        Some(tinc) => tinc.guest.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_of_frames_and_a_build_without_tinc_have_no_guest() {
        check(Layer::Ip, true).unwrap();
        let refused = |layer, has_tinc| check(layer, has_tinc).unwrap_err().to_string();
        assert!(refused(Layer::Ethernet, true).contains("Ethernet frames"));
        assert!(refused(Layer::Ip, false).contains("feature `tinc`"));
    }
}
