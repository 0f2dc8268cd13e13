//! The helper of a node, and the requests that it permits.
//!
//! The signed roster on the disk determines the permitted forwarding; requests of the network process do not. The helper knows the mesh and
//! the node's key from its start, when nothing from the network had been read.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use adit_engine::Transport;
use adit_mesh::roster::Roster;
use adit_mesh::session::{KeyHash, MeshId};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{Duty, DutyKind, PlanCheck, Policy};
use adit_runtime::host::{Forward, HostPlan, Via};
use adit_runtime::metrics::Config as MetricsConfig;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::host_plan::without_addresses;
use crate::directory::DirectoryConfig;
use crate::roster_file::RosterFile;
use crate::state::load_key;
use crate::{Paths, Settings};

/// The helper of `adit mesh up`; its arguments are the `MeshDuty`.
pub const MESH: DutyKind = DutyKind {
    name: "mesh",
    read: |arguments| Ok(Box::new(serde_json::from_value::<MeshDuty>(arguments)?)),
};

/// A node's command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeshDuty {
    /// The folder of all files, if not the default.
    pub(crate) dir: Option<PathBuf>,
    /// The mesh's name on this machine.
    pub(crate) name: String,
    /// The UDP port. Overrides the settings.
    pub(crate) port: Option<u16>,
    /// Whether the machine's DNS settings may change.
    pub(crate) names: bool,
    /// The gateway for the internet. Overrides the settings.
    pub(crate) exit: Option<String>,
    /// Where metrics are served. Overrides the settings.
    pub(crate) metrics: Option<MetricsConfig>,
}

impl Duty for MeshDuty {
    /// Returns the policy for a node. Its keys and its roster are opened before it drops its privileges.
    fn policy(&self, _: &[(PathBuf, Vec<u8>)], _: u32) -> Result<Policy, Fault> {
        let paths = Paths::new(self.dir.as_deref(), &self.name)?;
        let mut settings = Settings::load(&paths)?;
        settings.exit = self.exit.clone().or(settings.exit);
        // The kind of the device is in the genesis, whose hash is the mesh's id.
        let layer = RosterFile::peek(&paths.roster_file())?.genesis().layer;
        let plan = without_addresses(&settings, layer);
        let port = self.port.unwrap_or(settings.port);
        let mut policy = Policy {
            device: Some(plan.device.clone()),
            replaceable: [
                paths.admin_key_file(),
                paths.invitations_file(),
                paths.policy_file(),
                paths.reach_file(),
                paths.apps_file(),
            ]
            .into(),
            // The files read for each connection to the database.
            readable: match DirectoryConfig::load(&paths)? {
                Some(config) => config.files()?.into_iter().collect(),
                None => Default::default(),
            },
            control: [paths.control_socket()].into(),
            plans: Some(Box::new(MeshPlans {
                bare: plan,
                names: self.names,
                forward: settings.forward.then(|| Forwarding::new(&paths)).transpose()?,
            })),
            ..Policy::default()
        };
        policy.add_metrics(self.metrics.as_ref().or(settings.metrics.as_ref()));
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        // Sockets for a port search and for further channels, each on a port that the kernel chooses.
        let free = any.map(|ip| SocketAddr::new(ip, 0));
        let ports = [port, settings.openvpn_port];
        let listen = ports.into_iter().flat_map(|port| any.map(|ip| SocketAddr::new(ip, port)));
        let listen = listen.chain(free);
        policy.sockets.listen = listen.map(|address| (Transport::Udp, address)).collect();
        if settings.tcp_port != 0 {
            let streams = any.map(|ip| (Transport::Tcp, SocketAddr::new(ip, settings.tcp_port)));
            policy.sockets.listen.extend(streams);
        }
        // Streams to other nodes, from a port that the kernel chooses.
        policy.sockets.dial = true;
        Ok(policy)
    }
}

/// Permits any addresses of the device, routes to it, and DNS at these addresses: the roster determines them while the node runs.
#[derive(Debug)]
struct MeshPlans {
    bare: HostPlan,
    names: bool,
    /// The permitted forwarding, or `None` if the settings permit none.
    forward: Option<Forwarding>,
}

/// The forwarding that the roster permits.
#[derive(Debug)]
struct Forwarding {
    roster: PathBuf,
    mesh: MeshId,
    own: KeyHash,
    /// The last permitted forwarding. The network process may keep using it, so it may also request it again.
    permitted: RefCell<Option<Forward>>,
}

impl Forwarding {
    fn new(paths: &Paths) -> Result<Self, Fault> {
        let roster = paths.roster_file();
        let mesh = *RosterFile::peek(&roster)?.mesh();
        let own = load_key(&paths.node_key_file())?.public_hash();
        Ok(Self { roster, mesh, own, permitted: RefCell::default() })
    }

    /// Checks the forwarding of a plan.
    fn check(&self, forward: &Forward) -> Result<(), String> {
        if self.permitted.borrow().as_ref() == Some(forward) {
            return Ok(());
        }
        // Verify each change in the file again: the network process writes the file.
        let changes = RosterFile::peek(&self.roster).map_err(|fault| fault.to_string())?;
        if *changes.mesh() != self.mesh {
            return Err("plan: the roster is now that of another mesh".into());
        }
        let roster = Roster::evaluate(&changes);
        let member = roster.member(&self.own).ok_or("plan: the node is not a member")?;
        // A guest forwards parts of its networks.
        let is_behind = |net: &IpNet| member.subnets.iter().any(|own| own.contains(net));
        if let Some(net) = forward.networks.iter().find(|net| !is_behind(net)) {
            return Err(format!("plan: the roster has no network {net} behind this node"));
        }
        if forward.untranslated.iter().any(|net| !forward.networks.contains(net)) {
            return Err("plan: packets to a network that is not forwarded keep their source".into());
        }
        if forward.internet && !member.gateway {
            return Err("plan: the roster does not make this node a gateway".into());
        }
        *self.permitted.borrow_mut() = Some(forward.clone());
        Ok(())
    }
}

impl PlanCheck for MeshPlans {
    fn check(&self, plan: &HostPlan) -> Result<(), String> {
        let bare =
            HostPlan { routes: Vec::new(), addresses: Vec::new(), dns: None, ..plan.clone() };
        if let Some(forward) = &bare.forward
            && bare.forward != self.bare.forward
        {
            let permission = self.forward.as_ref();
            permission.ok_or("plan: the settings permit no forwarding")?.check(forward)?;
        }
        let bare = HostPlan { forward: self.bare.forward.clone(), ..bare };
        let is_inside = |net: &IpNet| plan.addresses.iter().any(|own| own.trunc() == *net);
        let mut masquerade = plan.forward.iter().flat_map(|forward| &forward.masquerade);
        if let Some(net) = masquerade.find(|net| !is_inside(net)) {
            return Err(format!("plan: {net} is not the mesh's, and is not masqueraded"));
        }
        if bare != self.bare {
            return Err("plan: the node's settings have another".into());
        }
        if let Some(dns) = &plan.dns {
            let is_own = |server: &SocketAddr| {
                plan.addresses.iter().any(|address| address.addr() == server.ip())
            };
            if !self.names || dns.domains.is_empty() || !dns.servers.iter().all(is_own) {
                return Err("plan: other DNS settings than those for the mesh's names".into());
            }
        }
        let is_ethernet = self.bare.device.is_ethernet();
        let leads_inside = |via| match via {
            Via::Tunnel(None) => !is_ethernet,
            // A station in one of the mesh's networks.
            Via::Tunnel(Some(ip)) => {
                is_ethernet && plan.addresses.iter().any(|own| own.contains(&ip))
            }
            Via::Outside | Via::Gateway(_) => false,
        };
        let is_odd = |route: &&adit_runtime::host::PlannedRoute| {
            !leads_inside(route.via) || route.metric.is_some() || route.net.prefix_len() == 0
        };
        let odd = plan.routes.iter().find(is_odd);
        odd.map_or(Ok(()), |route| Err(format!("plan: the route {} is not a mesh's", route.net)))
    }
}

#[cfg(test)]
mod tests {
    use adit_crypto::sign::SigningKey;
    use adit_engine::UnixTime;
    use adit_mesh::roster::{Action, Change, Layer, NodeInfo};
    use adit_runtime::host::{Device, DnsPlan, PlannedRoute};

    use super::*;
    use crate::state::{State, new_key};
    use crate::testing::found_mesh;

    /// Appends a description of the first node, signed by the admin's key or by another one.
    fn describe(paths: &Paths, signer: Option<&SigningKey>, change: impl FnOnce(&mut NodeInfo)) {
        let mut state = State::open(paths).unwrap();
        let own = state.key.public_hash();
        let roster = Roster::evaluate(&state.changes);
        let member = roster.member(&own).unwrap();
        let mut node = NodeInfo {
            ipv4: member.ipv4,
            relay: member.relay,
            gateway: member.gateway,
            subnets: member.subnets.clone(),
            ..NodeInfo::named(member.name.clone().unwrap())
        };
        change(&mut node);
        let admin = state.admin.current().unwrap().unwrap();
        let key = signer.unwrap_or(&admin);
        let action = Action::SetNames { key: own, node };
        let body = state.changes.draft(key.public_hash(), UnixTime(1_900_000_000), action);
        let change = Change::sign(state.changes.mesh(), key, body.unwrap()).unwrap();
        state.roster.append(&[&change]).unwrap();
    }

    fn permits(forwarding: &Forwarding, networks: &[&str], internet: bool) -> Result<(), String> {
        let networks = networks.iter().map(|net| net.parse().unwrap()).collect();
        forwarding.check(&Forward { networks, internet, ..Forward::default() })
    }

    #[test]
    fn what_is_forwarded_follows_from_the_signed_roster() {
        let dir = tempfile::tempdir().unwrap();
        let paths = found_mesh(dir.path(), false);
        let forwarding = Forwarding::new(&paths).unwrap();
        assert!(permits(&forwarding, &["192.168.7.0/24"], false).is_err());
        assert!(permits(&forwarding, &[], true).is_err());
        describe(&paths, None, |node| {
            node.subnets.insert("192.168.7.0/24".parse().unwrap());
        });
        assert_eq!(permits(&forwarding, &["192.168.7.0/24"], false), Ok(()));
        assert!(permits(&forwarding, &["192.168.0.0/16"], false).is_err(), "a larger network");
        assert_eq!(permits(&forwarding, &["192.168.7.8/29"], false), Ok(()), "a part of it");
        assert_eq!(permits(&forwarding, &["192.168.7.0/24"], false), Ok(()));
        assert!(permits(&forwarding, &["192.168.7.0/24"], true).is_err(), "no gateway");
        describe(&paths, None, |node| node.gateway = true);
        assert_eq!(permits(&forwarding, &["192.168.7.0/24"], true), Ok(()));
        describe(&paths, None, |node| node.subnets.clear());
        assert_eq!(permits(&forwarding, &["192.168.7.0/24"], true), Ok(()), "it was permitted");
        assert_eq!(permits(&forwarding, &[], true), Ok(()));
        assert!(permits(&forwarding, &["192.168.7.0/24"], false).is_err(), "withdrawn");
    }

    #[test]
    fn a_network_process_that_was_taken_over_cannot_forge_what_is_forwarded() {
        let dir = tempfile::tempdir().unwrap();
        let paths = found_mesh(dir.path(), false);
        let forwarding = Forwarding::new(&paths).unwrap();
        // A change by a key without a right.
        let before = std::fs::read(paths.roster_file()).unwrap();
        let stranger = new_key().unwrap();
        describe(&paths, Some(&stranger), |node| node.gateway = true);
        assert!(permits(&forwarding, &[], true).is_err());
        // A change with a wrong signature.
        std::fs::write(paths.roster_file(), &before).unwrap();
        describe(&paths, None, |node| node.gateway = true);
        let mut forged = std::fs::read(paths.roster_file()).unwrap();
        let signature = forged.len() - 40;
        forged[signature] ^= 1;
        std::fs::write(paths.roster_file(), &forged).unwrap();
        assert!(permits(&forwarding, &[], true).is_err());
        // The roster of a different mesh.
        let other = tempfile::tempdir().unwrap();
        let theirs = found_mesh(other.path(), true);
        std::fs::copy(theirs.roster_file(), paths.roster_file()).unwrap();
        let refused = permits(&forwarding, &[], true).unwrap_err();
        assert!(refused.contains("another mesh"), "{refused}");
        // An empty file.
        std::fs::write(paths.roster_file(), "").unwrap();
        assert!(permits(&forwarding, &[], true).is_err());
        std::fs::write(paths.roster_file(), &before).unwrap();
        assert_eq!(permits(&forwarding, &[], false), Ok(()));
    }

    #[test]
    fn only_the_ports_of_the_settings_may_be_listened_on() {
        let dir = tempfile::tempdir().unwrap();
        let paths = found_mesh(dir.path(), false);
        let tcp = |text: &str| {
            std::fs::write(paths.settings_file(), text).unwrap();
            let duty = MeshDuty {
                dir: Some(dir.path().to_owned()),
                name: "home".into(),
                port: Some(7),
                names: false,
                exit: None,
                metrics: None,
            };
            let listen = duty.policy(&[], 1).unwrap().sockets.listen;
            let ports = |wanted| {
                let of = listen.iter().filter(move |(transport, _)| *transport == wanted);
                of.map(|(_, address)| address.port()).collect::<Vec<_>>()
            };
            assert_eq!(ports(Transport::Udp), [7, 7, 1195, 1195, 0, 0]);
            ports(Transport::Tcp)
        };
        assert_eq!(tcp(""), [443, 443]);
        assert_eq!(tcp("tcp-port = 8443"), [8443, 8443]);
        assert!(tcp("tcp-port = 0").is_empty());
    }

    #[test]
    fn only_addresses_and_routes_onto_the_device_are_permitted() {
        let device = "mesh-home".into();
        let settings = Settings {
            port: 1,
            tcp_port: 443,
            device,
            workers: None,
            channels: None,
            port_mapping: true,
            exit: None,
            forward: true,
            masquerade: true,
            openvpn_port: 2,
            openvpn_host: None,
            max_age: None,
            metrics: None,
            tinc: None,
        };
        let bare = without_addresses(&settings, Layer::Ip);
        let dir = tempfile::tempdir().unwrap();
        let paths = found_mesh(dir.path(), true);
        let forward = || Some(Forwarding::new(&paths).unwrap());
        let check = MeshPlans { bare: bare.clone(), names: true, forward: forward() };
        let route = |net: &str, via| PlannedRoute { net: net.parse().unwrap(), via, metric: None };
        let with = |route| HostPlan { routes: vec![route], ..bare.clone() };
        let addresses = vec!["100.87.0.1/16".parse().unwrap()];
        assert_eq!(check.check(&HostPlan { addresses, ..bare.clone() }), Ok(()));
        assert_eq!(check.check(&with(route("10.1.0.0/16", Via::Tunnel(None)))), Ok(()));
        assert!(check.check(&with(route("0.0.0.0/0", Via::Tunnel(None)))).is_err());
        assert!(check.check(&with(route("10.1.0.0/16", Via::Outside))).is_err());
        let tap = MeshPlans {
            bare: without_addresses(&settings, Layer::Ethernet),
            names: true,
            forward: forward(),
        };
        let addresses = vec!["100.87.0.1/16".parse().unwrap()];
        let on_tap = |plan: HostPlan| {
            let device = Device::Tap(Some("mesh-home".into()));
            HostPlan { device, addresses: addresses.clone(), ..plan }
        };
        let through = |ip: &str| Via::Tunnel(Some(ip.parse().unwrap()));
        let station = with(route("10.1.0.0/16", through("100.87.9.9")));
        assert_eq!(tap.check(&on_tap(station.clone())), Ok(()));
        assert!(tap.check(&station).is_err(), "another device");
        assert!(check.check(&on_tap(station.clone())).is_err(), "another device");
        assert!(check.check(&HostPlan { addresses: addresses.clone(), ..station }).is_err());
        let elsewhere = with(route("10.1.0.0/16", through("192.168.0.1")));
        assert!(tap.check(&on_tap(elsewhere)).is_err(), "a station outside the mesh");
        assert!(tap.check(&on_tap(with(route("10.1.0.0/16", Via::Tunnel(None))))).is_err());
        let metric = PlannedRoute { metric: Some(1), ..route("10.1.0.0/16", Via::Tunnel(None)) };
        assert!(check.check(&with(metric)).is_err());
        let address: IpNet = "100.87.0.1/16".parse().unwrap();
        let dns = |server: &str, domains: &[&str]| HostPlan {
            addresses: vec![address],
            dns: Some(DnsPlan {
                servers: vec![server.parse().unwrap()],
                search: Vec::new(),
                domains: domains.iter().map(ToString::to_string).collect(),
                dnssec: None,
                transport: adit_runtime::host::Transport::Plain,
            }),
            ..bare.clone()
        };
        let own = dns("100.87.0.1:53", &["home.internal"]);
        assert_eq!(check.check(&own), Ok(()));
        let nameless = MeshPlans { bare: bare.clone(), names: false, forward: forward() };
        assert!(nameless.check(&own).is_err());
        assert!(check.check(&dns("192.0.2.1:53", &["home.internal"])).is_err());
        assert!(check.check(&dns("100.87.0.1:53", &[])).is_err());
        let device = Device::Tun(Some("eth0".into()));
        assert!(check.check(&HostPlan { device, ..bare.clone() }).is_err());
        assert!(check.check(&HostPlan { kill_switch: true, ..bare.clone() }).is_err());
        let forwards = |net: &str| HostPlan {
            addresses: vec![address],
            forward: Some(Forward { masquerade: vec![net.parse().unwrap()], ..Forward::default() }),
            ..bare.clone()
        };
        assert_eq!(check.check(&forwards("100.87.0.0/16")), Ok(()));
        assert!(check.check(&forwards("0.0.0.0/0")).is_err());
        let refuses = MeshPlans { bare: bare.clone(), names: true, forward: None };
        assert!(refuses.check(&forwards("100.87.0.0/16")).is_err());
        assert_eq!(refuses.check(&bare), Ok(()));
        let exits =
            without_addresses(&Settings { exit: Some("hub".into()), ..settings }, Layer::Ip);
        assert!(check.check(&exits).is_err(), "the settings have no exit");
        assert_eq!(
            MeshPlans { bare: exits.clone(), names: true, forward: forward() }.check(&exits),
            Ok(())
        );
    }
}
