//! A running node's reports to an operator.

use std::net::IpAddr;

use adit_engine::PeerId;
use adit_mesh::join::PendingJoiner;
use adit_mesh::node::{Excess, RouteKind};
use adit_mesh::roster::{Layer, Member};
use adit_mesh::session::KeyHash;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::control::{MeshChannel, MeshDropped, MeshJoiner, MeshPeer, MeshReport};

use super::Running;
use crate::{fingerprint, short};

impl Running {
    pub(super) fn mesh_report(&self) -> MeshReport {
        let node = self.driver.engine();
        let own = node.key_hash();
        let member = node.roster().member(&own);
        let mut peers: Vec<MeshPeer> = node.peers().map(|key| self.peer_report(&key)).collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| a.key.cmp(&b.key)));
        MeshReport {
            mesh: self.mesh.clone(),
            id: hex(node.changes().mesh()),
            node: self.name(&own),
            key: hex(&own),
            addresses: member.map(addresses_of).unwrap_or_default(),
            subnets: member.iter().flat_map(|member| member.subnets.iter().copied()).collect(),
            groups: member.map(groups_of).unwrap_or_default(),
            reachable: [self.addresses.current(), &self.mapped].concat(),
            tcp_port: self.tcp_port.map(std::num::NonZeroU16::get),
            nat: node.nat(now()).kind.to_string(),
            relay: member.is_some_and(|member| member.relay),
            gateway: member.is_some_and(|member| member.gateway),
            openvpn: member.is_some_and(|member| member.openvpn),
            connected_apps: node.connected_apps(),
            admin: node.is_admin(),
            exit: self.settings.exit.clone(),
            relayed_bytes: node.counters().relay.forwarded,
            directory: self.directory_report(),
            tinc: self.tinc_report(),
            waiting: self.joiners(),
            peers,
            warnings: self.warnings(),
            port: self.addresses.port(),
            device: self.settings.device.clone(),
            ethernet: node.changes().genesis().layer == Layer::Ethernet,
            forwards: self.settings.forward
                && member.is_some_and(|member| member.gateway || !member.subnets.is_empty()),
        }
    }

    /// Returns a route in words, and the address or relay that it leads to.
    pub(super) fn route(&self, route: RouteKind) -> (&'static str, Option<String>) {
        match route {
            RouteKind::None => ("none", None),
            RouteKind::Connecting => ("connecting", None),
            RouteKind::Direct(to) => ("direct", Some(to.to_string())),
            RouteKind::Relay(relay) => ("relay", Some(self.name(&relay))),
            RouteKind::Leaf(_) => ("leaf", None),
        }
    }

    /// Returns the nodes that wait for an approval, longest wait first.
    pub(super) fn joiners(&self) -> Vec<MeshJoiner> {
        let unix = unix_time();
        let mut waiting: Vec<_> = self.driver.engine().pending(now()).collect();
        waiting.sort_by_key(|joiner| joiner.since);
        let report = |joiner: &PendingJoiner| MeshJoiner {
            name: joiner.name.to_string(),
            key: hex(&joiner.key),
            fingerprint: fingerprint(&joiner.key),
            invitation: hex(&joiner.secret_hash),
            waits_s: unix.0.saturating_sub(joiner.since.0),
        };
        waiting.into_iter().map(report).collect()
    }

    pub(super) fn peer_report(&self, key: &KeyHash) -> MeshPeer {
        let node = self.driver.engine();
        let peer = node.peer(now(), key);
        let (route, via) = match peer.route {
            RouteKind::Leaf(_) => ("leaf", node.app_session(key).map(|(from, _)| from.to_string())),
            route => self.route(route),
        };
        let member = node.roster().member(key);
        let traffic = self.rates.of(key);
        MeshPeer {
            rx_bytes: traffic.rx_bytes,
            tx_bytes: traffic.tx_bytes,
            rx_bps: traffic.rx_bps,
            tx_bps: traffic.tx_bps,
            name: member.and_then(|member| member.name.as_ref()).map(ToString::to_string),
            key: hex(key),
            addresses: member.map(addresses_of).unwrap_or_default(),
            subnets: member.iter().flat_map(|member| member.subnets.iter().copied()).collect(),
            groups: member.map(groups_of).unwrap_or_default(),
            relay: member.is_some_and(|member| member.relay),
            gateway: member.is_some_and(|member| member.gateway),
            openvpn: member.is_some_and(|member| member.openvpn),
            leaf_of: member.and_then(|member| member.leaf_of).map(|gateway| self.name(&gateway)),
            route: route.into(),
            via,
            tcp: peer.stream,
            rtt_ms: peer.rtt.map(|rtt| (rtt.as_secs_f64() * 10_000.0).round() / 10.0),
            connected_s: peer.connected_for.map(|age| age.as_secs()),
            stale: peer.is_stale,
            expired: peer.is_expired,
            dropped: MeshDropped {
                records: peer.excess.records,
                endpoints: peer.excess.endpoints,
                changes: peer.excess.changes,
            },
            not_after: member.and_then(|member| member.not_after).map(|time| time.0),
            channels: node.channels(key).iter().map(|id| self.channel_report(*id)).collect(),
        }
    }

    fn channel_report(&self, channel: PeerId) -> MeshChannel {
        let counters = self.driver.backend().plane().counters(channel).unwrap_or_default();
        MeshChannel {
            received_packets: counters.rx_packets,
            received_bytes: counters.rx_bytes,
            sent_packets: counters.tx_packets,
            sent_bytes: counters.tx_bytes,
        }
    }

    fn warnings(&self) -> Vec<String> {
        let roster = self.driver.engine().roster();
        let expiring = roster.expiring(unix_time()).map(|member| {
            let name = member.name.as_ref().map_or_else(|| short(&member.key), ToString::to_string);
            format!("the membership of {name} ends soon: admit it again")
        });
        let policy = self.policy.problem().map(ToString::to_string);
        let conflict = self.conflict.as_ref().map(ToString::to_string);
        let exit = self.exit_problem.clone().into_iter().chain(self.tcp_problem.clone());
        let apps = self.apps.problem().map(ToString::to_string);
        let warnings = roster.warnings().iter().map(ToString::to_string);
        let own = policy.into_iter().chain(conflict).chain(exit).chain(apps);
        let members = self.trust_problems().into_iter().chain(self.floods());
        let warnings = warnings.chain(expiring).chain(own).chain(members);
        warnings.chain(self.directory_warnings()).chain(self.tinc_warnings()).collect()
    }

    /// Names the peers that are stale, or have no routes because of `max-age`.
    pub(super) fn trust_problems(&self) -> Vec<String> {
        let node = self.driver.engine();
        let problem = |key: KeyHash| {
            let peer = node.peer(now(), &key);
            let name = self.name(&key);
            if peer.is_expired {
                Some(format!(
                    "{name} has no routes: for longer than max-age, this node has compared its roster with no other member; \
                     it continues when another one is reached"
                ))
            } else if peer.is_stale {
                Some(format!(
                    "{name} is stale: this node was away, and too few other members confirm that it is still a member"
                ))
            } else {
                None
            }
        };
        node.peers().filter_map(problem).collect()
    }

    /// Names the members that exceeded a limit.
    fn floods(&self) -> Vec<String> {
        let node = self.driver.engine();
        let flood = |key: KeyHash| {
            let Excess { records, endpoints, changes } = node.peer(now(), &key).excess;
            let parts = [(records, "records"), (endpoints, "endpoints"), (changes, "changes")];
            let parts = parts.iter().filter(|(count, _)| *count > 0);
            let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
            (!parts.is_empty()).then(|| {
                format!(
                    "{} sends too much and is limited: {} dropped",
                    self.name(&key),
                    parts.join(", ")
                )
            })
        };
        node.peers().filter_map(flood).collect()
    }
}

fn groups_of(member: &Member) -> Vec<String> {
    member.groups.iter().map(ToString::to_string).collect()
}

pub(super) fn addresses_of(member: &Member) -> Vec<IpAddr> {
    member.ipv4.map(IpAddr::from).into_iter().chain([member.ipv6.into()]).collect()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
