//! A mesh node as a guest: the networks that it announces through this daemon, and the subnets of the net that it asks for.
//!
//! A guest repeats its request every few seconds. If the requests end, its networks are withdrawn.

use std::time::Duration;

use adit_engine::Instant;
use adit_runtime::clock::now;
use adit_runtime::control::{Response, TincNet, TincSubnet};
use adit_runtime::say;
use adit_tinc::config::Mode;
use adit_tinc::node::Node;
use adit_tinc::subnet::Subnet;
use ipnet::IpNet;

use super::running::Running;

/// The number of networks that a guest may announce.
const MAX_NETWORKS: usize = 1024;

/// The number of subnets in an answer.
const MAX_SUBNETS: usize = 4096;

/// How long networks stay announced after the guest's last request.
const LEASE: Duration = Duration::from_secs(30);

/// The networks of a guest.
#[derive(Debug, Default)]
pub(super) struct Guest {
    announced: Vec<Subnet>,
    until: Option<Instant>,
}

impl Guest {
    /// Returns the configured subnets of this node, and those of the guest.
    pub(super) fn with(&self, configured: &[Subnet]) -> Vec<Subnet> {
        let further = self.announced.iter().filter(|subnet| !configured.contains(subnet));
        configured.iter().chain(further).copied().collect()
    }

    /// Returns whether the guest's last request was too long ago, once.
    fn expire(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }
}

impl Running {
    /// Announces exactly these networks, in addition to the configured subnets. Returns the subnets of the other nodes.
    pub(super) fn announce(&mut self, networks: &[IpNet]) -> Response {
        let error = |message: String| Response::Error { message };
        if self.server.mode != Mode::Router {
            return error(
                "Mode: a net of Ethernet frames has no subnets for a guest: it needs Mode = router"
                    .into(),
            );
        }
        if networks.len() > MAX_NETWORKS {
            return error(format!(
                "{} networks: a guest announces at most {MAX_NETWORKS}",
                networks.len()
            ));
        }
        if let Some(net) = networks.iter().find(|net| net.prefix_len() == 0) {
            return error(format!("{net}: a guest announces no default route"));
        }
        self.replace_announced(networks.iter().filter_map(subnet).collect());
        self.guest.until = Some(now() + LEASE);
        Response::TincNet(net_of(&self.node))
    }

    /// Withdraws the networks of a guest that no longer asks.
    pub(super) fn expire_guest(&mut self, now: Instant) {
        if self.guest.expire(now) {
            say!(1, "The guest from a mesh is silent: its subnets are withdrawn");
            self.replace_announced(Vec::new());
        }
    }

    fn replace_announced(&mut self, mut wanted: Vec<Subnet>) {
        let now = now();
        // The configured ones stay when the guest leaves.
        wanted.retain(|subnet| !self.server.own.subnets.contains(subnet));
        let old = std::mem::replace(&mut self.guest.announced, wanted);
        let new = &self.guest.announced;
        for subnet in old.iter().filter(|subnet| !new.contains(subnet)) {
            self.node.remove_subnet(now, *subnet);
        }
        for subnet in new.iter().filter(|subnet| !old.contains(subnet)) {
            self.node.add_subnet(now, *subnet);
        }
        self.perform(now);
    }
}

fn subnet(net: &IpNet) -> Option<Subnet> {
    net.trunc().to_string().parse().ok()
}

/// Returns the other nodes that are reachable, with their subnets.
fn net_of(node: &Node) -> TincNet {
    let (graph, own) = (node.graph(), node.name());
    let others = || graph.nodes().filter(|name| *name != own && graph.route(name).is_some());
    let of = |name: &adit_tinc::name::NodeName| {
        let owner = name.to_string();
        let nets = node.subnets().of(name).filter_map(Subnet::ip_net);
        nets.map(move |net| TincSubnet { owner: owner.clone(), net }).collect::<Vec<_>>()
    };
    let mut subnets: Vec<TincSubnet> = others().flat_map(of).collect();
    subnets.sort();
    let left_out = subnets.len().saturating_sub(MAX_SUBNETS);
    subnets.truncate(MAX_SUBNETS);
    TincNet { node: own.to_string(), reachable: others().count(), subnets, left_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_keeps_the_networks_of_the_guest() {
        let subnets = |texts: &[&str]| -> Vec<Subnet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let announced = subnets(&["100.87.0.0/16", "10.1.0.0/16"]);
        let guest = Guest { announced, until: None };
        let all = guest.with(&subnets(&["10.1.0.0/16", "10.2.0.0/16"]));
        assert_eq!(all, subnets(&["10.1.0.0/16", "10.2.0.0/16", "100.87.0.0/16"]));
    }

    #[test]
    fn the_networks_of_a_guest_that_no_longer_asks_are_withdrawn_once() {
        let start = Instant::from_nanos(1_000_000_000);
        let mut guest = Guest { announced: Vec::new(), until: Some(start + LEASE) };
        let expired = [start, start + LEASE, start + LEASE].map(|at| guest.expire(at));
        assert_eq!(expired, [false, true, false]);
    }

    #[test]
    fn networks_become_subnets_and_back() {
        for text in ["10.1.0.0/16", "10.0.0.1/32", "fd00::/8"] {
            let net: IpNet = text.parse().unwrap();
            assert_eq!(subnet(&net).unwrap().ip_net(), Some(net));
        }
    }
}
