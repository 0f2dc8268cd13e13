//! The helper of a node, and the requests that it permits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use adit_engine::Transport;
use adit_runtime::fault::Fault;
use adit_runtime::helper::{Duty, DutyKind, PlanCheck, Policy};
use adit_runtime::host::{HostPlan, Via};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::host_plan::without_addresses;
use crate::directory::DirectoryConfig;
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
    /// The UDP port, which overrides the settings.
    pub(crate) port: Option<u16>,
    /// Whether the machine's DNS settings may change.
    pub(crate) names: bool,
    /// The gateway for the internet, which overrides the settings.
    pub(crate) exit: Option<String>,
}

impl Duty for MeshDuty {
    /// Returns the policy for a node. Its keys and its roster are opened before it drops its privileges.
    fn policy(&self, _: &[(PathBuf, Vec<u8>)], _: u32) -> Result<Policy, Fault> {
        let paths = Paths::new(self.dir.as_deref(), &self.name)?;
        let mut settings = Settings::load(&paths)?;
        settings.exit = self.exit.clone().or(settings.exit);
        let plan = without_addresses(&settings);
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
            // The files that are read for each connection to the database.
            readable: match DirectoryConfig::load(&paths)? {
                Some(config) => config.files()?.into_iter().collect(),
                None => Default::default(),
            },
            control: [paths.control_socket()].into(),
            plans: Some(Box::new(MeshPlans {
                bare: plan,
                names: self.names,
                forward: settings.forward,
            })),
            ..Policy::default()
        };
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        // Of the sockets that search for a path, each gets a port of the kernel's choice.
        let search = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let ports = [port, settings.openvpn_port];
        let listen = ports.into_iter().flat_map(|port| any.map(|ip| SocketAddr::new(ip, port)));
        let listen = listen.chain([search]);
        policy.sockets.listen = listen.map(|address| (Transport::Udp, address)).collect();
        if settings.tcp_port != 0 {
            let streams = any.map(|ip| (Transport::Tcp, SocketAddr::new(ip, settings.tcp_port)));
            policy.sockets.listen.extend(streams);
        }
        // Streams to other nodes, from a port of the kernel's choice.
        policy.sockets.dial = true;
        Ok(policy)
    }
}

/// Permits addresses of the device, routes onto it, and DNS at these addresses: the roster decides on them while the node
/// runs.
#[derive(Debug)]
struct MeshPlans {
    bare: HostPlan,
    names: bool,
    /// Whether the settings permit forwarding.
    forward: bool,
}

impl PlanCheck for MeshPlans {
    fn check(&self, plan: &HostPlan) -> Result<(), String> {
        let bare =
            HostPlan { routes: Vec::new(), addresses: Vec::new(), dns: None, ..plan.clone() };
        if !self.forward && bare.forward != self.bare.forward {
            return Err("plan: the settings permit no forwarding".into());
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
        let is_odd = |route: &&adit_runtime::host::PlannedRoute| {
            route.via != Via::Tunnel(None) || route.metric.is_some() || route.net.prefix_len() == 0
        };
        let odd = plan.routes.iter().find(is_odd);
        odd.map_or(Ok(()), |route| Err(format!("plan: the route {} is not a mesh's", route.net)))
    }
}

#[cfg(test)]
mod tests {
    use adit_runtime::host::{Device, DnsPlan, Forward, PlannedRoute};

    use super::*;

    #[test]
    fn only_the_ports_of_the_settings_may_be_listened_on() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        paths.create().unwrap();
        let tcp = |text: &str| {
            std::fs::write(paths.settings_file(), text).unwrap();
            let duty = MeshDuty {
                dir: Some(dir.path().to_owned()),
                name: "home".into(),
                port: Some(7),
                names: false,
                exit: None,
            };
            let listen = duty.policy(&[], 1).unwrap().sockets.listen;
            let ports = |wanted| {
                let of = listen.iter().filter(move |(transport, _)| *transport == wanted);
                of.map(|(_, address)| address.port()).collect::<Vec<_>>()
            };
            assert_eq!(ports(Transport::Udp), [7, 7, 1195, 1195, 0]);
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
            port_mapping: true,
            exit: None,
            forward: true,
            masquerade: true,
            openvpn_port: 2,
            openvpn_host: None,
        };
        let bare = without_addresses(&settings);
        let check = MeshPlans { bare: bare.clone(), names: true, forward: true };
        let route = |net: &str, via| PlannedRoute { net: net.parse().unwrap(), via, metric: None };
        let with = |route| HostPlan { routes: vec![route], ..bare.clone() };
        let addresses = vec!["100.87.0.1/16".parse().unwrap()];
        assert_eq!(check.check(&HostPlan { addresses, ..bare.clone() }), Ok(()));
        assert_eq!(check.check(&with(route("10.1.0.0/16", Via::Tunnel(None)))), Ok(()));
        assert!(check.check(&with(route("0.0.0.0/0", Via::Tunnel(None)))).is_err());
        assert!(check.check(&with(route("10.1.0.0/16", Via::Outside))).is_err());
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
        assert!(MeshPlans { bare: bare.clone(), names: false, forward: true }.check(&own).is_err());
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
        let refuses = MeshPlans { bare: bare.clone(), names: true, forward: false };
        assert!(refuses.check(&forwards("100.87.0.0/16")).is_err());
        assert_eq!(refuses.check(&bare), Ok(()));
        let exits = without_addresses(&Settings { exit: Some("hub".into()), ..settings });
        assert!(check.check(&exits).is_err(), "the settings have no exit");
        assert_eq!(
            MeshPlans { bare: exits.clone(), names: true, forward: true }.check(&exits),
            Ok(())
        );
    }
}
