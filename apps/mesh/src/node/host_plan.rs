//! The addresses and routes of a node on this machine.

use std::collections::BTreeSet;
use std::net::IpAddr;

use adit_mesh::roster::{Changes, Label, Layer, Member, Roster, ipv6_net};
use adit_mesh::session::KeyHash;
use adit_runtime::fault::Fault;
use adit_runtime::host::{Device, DnsPlan, Forward, HostPlan, PlannedRoute, Redirect, Via};
use adit_runtime::netinfo;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::names;
use crate::Settings;
use crate::guest::exchange::is_of_tinc;

/// Returns the plan for the node with this key: its addresses, with the mesh's prefixes, and routes to the networks behind other members.
/// `reached` are the subnets of the tinc net in which it is a guest.
pub(super) fn plan(
    settings: &Settings,
    roster: &Roster,
    own: &KeyHash,
    changes: &Changes,
    conflict: Option<&Conflict>,
    reached: &BTreeSet<IpNet>,
) -> HostPlan {
    let layer = changes.genesis().layer;
    let bare = without_addresses(settings, layer);
    let Some(member) = roster.member(own) else { return bare };
    let range = |ip| changes.genesis().ranges.iter().find(|range| range.contains(&ip)).copied();
    let ipv4 = member.ipv4.filter(|_| conflict.is_none()).and_then(|ip| {
        let len = range(ip).map_or(32, |range: Ipv4Net| range.prefix_len());
        Ipv4Net::new(ip, len).ok()
    });
    let ipv6 = Ipv6Net::new(member.ipv6, ipv6_net(changes.mesh()).prefix_len()).ok();
    let addresses = ipv4.map(IpNet::from).into_iter().chain(ipv6.map(IpNet::from)).collect();
    let others = roster.members().filter(|other| other.key != *own);
    let behind = others.flat_map(|other| other.subnets.iter().map(move |net| (*net, other)));
    // If a network is also behind this node, it is reached from here without the mesh.
    let mut nets: Vec<(IpNet, &Member)> =
        behind.filter(|(net, _)| !member.subnets.contains(net) && net.prefix_len() > 0).collect();
    nets.sort_by_key(|(net, other)| (*net, other.key));
    nets.dedup_by_key(|(net, _)| *net);
    let routes = nets.into_iter().filter_map(|(net, other)| {
        let via = match layer {
            Layer::Ip => None,
            Layer::Ethernet => {
                Some(station(net, other).filter(|ip| ip.is_ipv6() || ipv4.is_some())?)
            }
        };
        Some(PlannedRoute { net, via: Via::Tunnel(via), metric: None })
    });
    let plan = HostPlan { addresses, routes: routes.collect(), ..bare };
    if !settings.forward {
        return plan;
    }
    let masquerade = plan.addresses.iter().map(IpNet::trunc).filter(|_| settings.masquerade);
    let of_tinc =
        |net: &IpNet| settings.tinc.as_ref().is_some_and(|tinc| is_of_tinc(&tinc.networks, net));
    let own = member.subnets.iter().filter(|net| net.prefix_len() > 0 && !of_tinc(net));
    let forward = Forward {
        networks: own.chain(reached).copied().collect(),
        // The tinc net has routes to the mesh.
        untranslated: reached.iter().copied().collect(),
        internet: member.gateway && layer == Layer::Ip,
        masquerade: masquerade.collect(),
    };
    HostPlan { forward: Some(forward), ..plan }
}

/// Returns the address of a member for frames with packets to a network behind it.
fn station(net: IpNet, member: &Member) -> Option<IpAddr> {
    match net {
        IpNet::V4(_) => member.ipv4.map(IpAddr::from),
        IpNet::V6(_) => Some(member.ipv6.into()),
    }
}

/// Returns the gateway that the settings name.
///
/// # Errors
/// No member has this name, or it is not a gateway. The roster may be out of date.
pub(super) fn exit(settings: &Settings, roster: &Roster) -> Result<Option<KeyHash>, Fault> {
    let Some(name) = &settings.exit else { return Ok(None) };
    let named = Label::new(name).and_then(|label| roster.by_name(&label));
    if let Some(member) = named.filter(|member| member.gateway) {
        return Ok(Some(member.key));
    }
    let gateways = roster.members().filter(|member| member.gateway);
    let names = gateways.filter_map(|member| Some(member.name.as_ref()?.to_string()));
    let names: Vec<String> = names.collect();
    Err(Fault::operator(if names.is_empty() {
        format!(
            "{name} is not a gateway, and the mesh has none: a gateway joins with a token of adit mesh invite --gateway"
        )
    } else {
        format!("{name} is not a gateway of the mesh; these are: {}", names.join(", "))
    }))
}

/// A network of this machine that overlaps the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    range: Ipv4Net,
    other: IpNet,
}

impl Conflict {
    /// Returns the first conflict of the mesh with one of these networks.
    pub(super) fn find(changes: &Changes, networks: &[IpNet]) -> Option<Self> {
        let of = |range: &Ipv4Net| {
            let range = *range;
            let other = networks.iter().find(|other| netinfo::overlap(other, &range.into()))?;
            Some(Self { range, other: *other })
        };
        changes.genesis().ranges.iter().find_map(of)
    }
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { range, other } = self;
        write!(
            f,
            "this machine has {other}, which overlaps the mesh's {range}: only IPv6 is used in the mesh here"
        )
    }
}

/// Returns the machine's DNS settings for the addresses of a plan.
pub(super) fn dns(plan: &HostPlan, changes: &Changes) -> Option<DnsPlan> {
    let own: Vec<IpAddr> = plan.addresses.iter().map(IpNet::addr).collect();
    names::plan(changes, &own)
}

/// Returns the device of a node.
pub(super) fn device(settings: &Settings, layer: Layer) -> Device {
    let name = Some(settings.device.clone());
    match layer {
        Layer::Ip => Device::Tun(name),
        Layer::Ethernet => Device::Tap(name),
    }
}

/// Returns the part of every plan that the changes in the roster do not alter.
pub(super) fn without_addresses(settings: &Settings, layer: Layer) -> HostPlan {
    // By itself this plan forwards nothing from or to the mesh, even on a host that forwards other traffic.
    let plan = HostPlan {
        device: device(settings, layer),
        forward: Some(Forward::default()),
        ..HostPlan::default()
    };
    if settings.exit.is_none() {
        return plan;
    }
    let redirect = Redirect { ipv4: true, ipv6: true, ..Redirect::default() };
    // Policy routing keeps the node's own marked packets outside the mesh. Routers in the local network stay reachable, because they map
    // ports and resolve names.
    HostPlan { redirect: Some(redirect), policy: true, allow_lan: true, ..plan }
}

#[cfg(test)]
mod tests {
    use adit_engine::UnixTime;
    use adit_mesh::roster::{Action, Change, NodeInfo};

    use super::*;
    use crate::state::State;
    use crate::testing::{found_layer, found_mesh, hub};
    use crate::{NewMesh, Paths, found};

    #[test]
    fn the_first_node_has_its_addresses_and_no_routes() {
        let dir = tempfile::tempdir().unwrap();
        let paths = found_mesh(dir.path(), false);
        let range: Ipv4Net = "100.87.0.0/16".parse().unwrap();
        let state = State::open(&paths).unwrap();
        let settings = Settings::load(&paths).unwrap();
        let own = state.key.public_hash();
        let roster = Roster::evaluate(&state.changes);
        let of = |conflict: Option<&Conflict>| {
            plan(&settings, &roster, &own, &state.changes, conflict, &BTreeSet::new())
        };
        let with_conflict = {
            let net = |text: &str| text.parse::<IpNet>().unwrap();
            assert_eq!(
                Conflict::find(&state.changes, &[net("100.88.0.0/16"), net("::1/128")]),
                None
            );
            let conflict = Conflict::find(&state.changes, &[net("100.64.0.0/10")]).unwrap();
            assert!(conflict.to_string().contains("100.64.0.0/10"));
            of(Some(&conflict))
        };
        assert!(matches!(with_conflict.addresses[..], [IpNet::V6(_)]));
        let plan = of(None);
        let [IpNet::V4(v4), IpNet::V6(v6)] = &plan.addresses[..] else { panic!("{plan:?}") };
        assert_eq!((v4.trunc(), v6.prefix_len()), (range, 64));
        assert_eq!((plan.routes.len(), plan.mtu), (0, 1500));
    }

    #[test]
    fn networks_behind_nodes_are_reached_at_their_station_where_the_mesh_carries_frames() {
        for layer in [Layer::Ip, Layer::Ethernet] {
            let dir = tempfile::tempdir().unwrap();
            let paths = found_layer(dir.path(), false, layer);
            let mut state = State::open(&paths).unwrap();
            let settings = Settings::load(&paths).unwrap();
            let (own, admin) = (state.key.public_hash(), state.admin.current().unwrap().unwrap());
            let net = |text: &str| text.parse::<IpNet>().unwrap();
            let node = NodeInfo {
                ipv4: Some([100, 87, 9, 9].into()),
                subnets: [net("192.168.7.0/24"), net("2001:db8:7::/64")].into(),
                ..NodeInfo::named(Label::new("site").unwrap())
            };
            let action = Action::Admit { key: [9; 32], node };
            let body = state.changes.draft(admin.public_hash(), UnixTime(1_900_000_000), action);
            let change = Change::sign(state.changes.mesh(), &admin, body.unwrap()).unwrap();
            state.changes.insert(change).unwrap();
            let roster = Roster::evaluate(&state.changes);
            let of = |conflict: Option<&Conflict>| {
                let plan =
                    plan(&settings, &roster, &own, &state.changes, conflict, &BTreeSet::new());
                let via = plan.routes.iter().map(|route| (route.net.to_string(), route.via));
                (plan.device.is_ethernet(), via.collect::<Vec<_>>())
            };
            let v6 = Via::Tunnel(Some(roster.member(&[9; 32]).unwrap().ipv6.into()));
            let v4 = Via::Tunnel(Some([100, 87, 9, 9].into()));
            let (first, second) = ("192.168.7.0/24".to_owned(), "2001:db8:7::/64".to_owned());
            let conflict = Conflict::find(&state.changes, &[net("100.64.0.0/10")]).unwrap();
            match layer {
                Layer::Ip => {
                    let both = vec![(first, Via::Tunnel(None)), (second, Via::Tunnel(None))];
                    assert_eq!(of(None), (false, both));
                }
                Layer::Ethernet => {
                    assert_eq!(of(None), (true, vec![(first, v4), (second.clone(), v6)]));
                    // Without an IPv4 address in the mesh, no frame reaches the station.
                    assert_eq!(of(Some(&conflict)), (true, vec![(second, v6)]));
                }
            }
        }
    }

    #[test]
    fn a_guest_forwards_only_what_the_tinc_net_has_and_keeps_its_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        let nets = |texts: &[&str]| -> BTreeSet<IpNet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let subnets = nets(&["10.20.0.0/16", "192.168.7.0/24"]);
        found(&paths, &NewMesh { subnets, ..hub() }).unwrap();
        std::fs::write(
            paths.settings_file(),
            "[tinc]\nnet = \"office\"\nnetworks = [\"10.20.0.0/16\"]\n",
        )
        .unwrap();
        let (state, settings) = (State::open(&paths).unwrap(), Settings::load(&paths).unwrap());
        let roster = Roster::evaluate(&state.changes);
        let own = state.key.public_hash();
        let forward = |reached: &[&str]| {
            let reached = nets(reached);
            let plan = plan(&settings, &roster, &own, &state.changes, None, &reached);
            let forward = plan.forward.unwrap();
            let networks: BTreeSet<IpNet> = forward.networks.into_iter().collect();
            (networks, forward.untranslated.into_iter().collect::<BTreeSet<_>>())
        };
        assert_eq!(forward(&[]), (nets(&["192.168.7.0/24"]), nets(&[])));
        let both = nets(&["192.168.7.0/24", "10.20.3.0/24"]);
        assert_eq!(forward(&["10.20.3.0/24"]), (both, nets(&["10.20.3.0/24"])));
    }
}
