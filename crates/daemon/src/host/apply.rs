use std::net::IpAddr;

use adit_linux::net::{Address, Net, NetError, NetErrorKind, Route};
use adit_linux::tun::{TunDevice, TunError, TunOffloads, TunOptions};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::ledger::{self, Ledger};
use super::plan::{Device, HostPlan, Redirect};
use super::routes::{KernelRoute, NextHop, Outside, Through, expand};
use crate::fault::Fault;
use crate::say;

/// Lanes over which the kernel spreads the flows that wait in the device: two of them seldom meet.
const LANES: usize = 16;

/// Packets that wait in the device's queue unless `txqueuelen` says otherwise: a whole train and what
/// arrives while it is sealed.
const TX_QUEUE_LEN: u32 = 1000;

/// What [`Host::apply`] did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Applied {
    /// The same plan was in force already.
    Same,
    /// It is in force now; what was left out and why.
    Changed(Vec<String>),
}

/// The changes a tunnel has made to this machine.
#[derive(Debug)]
pub struct Host {
    net: Net,
    device: Option<(String, u32)>,
    /// A TAP device: gateways behind it are stations of their own.
    ethernet: bool,
    /// The device was made by us, with several queues.
    in_lanes: bool,
    changes: Vec<Change>,
    plan: Option<HostPlan>,
    /// How the world was reached when the plan came into force.
    outside: Outside,
    ledger: Ledger,
}

/// One change, as it is undone.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Address(Address),
    Route(Route),
}

impl Host {
    /// Opens the device, still down and without addresses, with so many queues. Call inside a tokio runtime.
    ///
    /// # Errors
    /// No driver, no rights, the name is taken; each with its remedy.
    pub fn open(
        device: &Device,
        offloads: TunOffloads,
        queues: usize,
    ) -> Result<(Self, Option<TunDevice>), Fault> {
        let net = Net::open().map_err(|e| {
            Fault::environment(format!("cannot speak with the kernel's network side: {e}"))
        })?;
        let mut host = Self {
            net,
            device: None,
            ethernet: device.is_ethernet(),
            in_lanes: false,
            changes: Vec::new(),
            plan: None,
            outside: Outside::default(),
            ledger: Ledger::default(),
        };
        let Some((mode, name)) = device.tun() else { return Ok((host, None)) };
        host.ledger = Ledger::open();
        let name = name.map(str::to_owned);
        let options = TunOptions { name, offloads, mode, queues, lanes: LANES };
        let tun = TunDevice::open(&options).map_err(|e| match e {
            TunError::BadName(_) => Fault::operator(e.to_string()),
            _ => Fault::environment(e.to_string()),
        })?;
        say!(1, "TUN/TAP device {} opened", tun.name);
        host.device = Some((tun.name.clone(), tun.ifindex));
        host.in_lanes = tun.queues.iter().any(|queue| queue.lanes() > 1);
        Ok((host, Some(tun)))
    }

    /// The device's name.
    pub fn device(&self) -> Option<&str> {
        self.device.as_ref().map(|(name, _)| name.as_str())
    }

    /// The plan in force.
    pub fn plan(&self) -> Option<&HostPlan> {
        self.plan.as_ref()
    }

    /// Brings a plan into force in place of the former one.
    ///
    /// # Errors
    /// The device cannot be set up or have its addresses. Routes that cannot be added are notes:
    /// the rest of the tunnel is of use without them.
    pub async fn apply(&mut self, plan: &HostPlan) -> Result<Applied, Fault> {
        if self.plan.as_ref() == Some(plan) {
            return Ok(Applied::Same);
        }
        self.undo().await;
        let Some((name, index)) = self.device.clone() else {
            self.plan = Some(plan.clone());
            return Ok(Applied::Changed(Vec::new()));
        };
        ledger::clean_up(&self.net).await;
        // Before our own routes are there to be found.
        self.outside = self.look_outside(plan).await;
        self.set_up(plan, &name, index).await?;
        let (routes, mut notes) = expand(plan, &self.outside);
        for route in routes {
            if let Err(note) = self.add_route(&route, index, &name).await {
                notes.push(note);
            }
        }
        self.plan = Some(plan.clone());
        Ok(Applied::Changed(notes))
    }

    async fn set_up(&mut self, plan: &HostPlan, name: &str, index: u32) -> Result<(), Fault> {
        let failed = |e: NetError| Fault::environment(format!("{name}: {e}"));
        say!(3, "net_iface_mtu_set: mtu {} for {name}", plan.mtu);
        self.net.set_mtu(index, u32::from(plan.mtu)).await.map_err(failed)?;
        if let Some(mac) = plan.mac {
            let text: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
            say!(1, "TUN/TAP link layer address set to {}", text.join(":"));
            self.net.set_mac(index, mac).await.map_err(failed)?;
        }
        let queue = plan.tx_queue_len.unwrap_or(TX_QUEUE_LEN);
        self.net.set_txqueuelen(index, queue).await.map_err(failed)?;
        if self.in_lanes {
            // It works with the default as well.
            let _ = self.net.set_no_qdisc(index).await;
        }
        say!(3, "net_iface_up: set {name} up");
        self.net.set_up(index).await.map_err(failed)?;
        for local in &plan.addresses {
            let far = plan.far4.filter(|_| matches!(local, IpNet::V4(_)));
            match far {
                Some(far) => {
                    say!(3, "net_addr_ptp_v4_add: {} peer {far} dev {name}", local.addr());
                }
                None => say!(3, "net_addr_{}_add: {local} dev {name}", family(local)),
            }
            let address = Address { remote: far.map(IpAddr::V4), ..Address::new(index, *local) };
            match self.net.add_address(&address).await {
                Ok(()) => self.changes.push(Change::Address(address)),
                Err(e) if e.kind() == NetErrorKind::Exists => {}
                // `ipv6.disable=1`: the IPv4 half of the tunnel still works.
                Err(e) if e.kind() == NetErrorKind::NoFamily && matches!(local, IpNet::V6(_)) => {
                    tracing::warn!("{name}: {e}; going on without IPv6");
                }
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }

    pub(super) fn link(&self) -> Option<(String, u32)> {
        self.device.clone()
    }

    pub(super) fn outside(&self) -> &Outside {
        &self.outside
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn put_changes(&mut self, changes: Vec<Change>) {
        self.changes = changes;
    }

    pub(super) fn set_plan(&mut self, plan: HostPlan) {
        self.plan = Some(plan);
    }

    pub(super) async fn set_mtu(&self, index: u32, mtu: u16) -> Result<(), Fault> {
        let set = self.net.set_mtu(index, u32::from(mtu)).await;
        set.map_err(|e| Fault::environment(e.to_string()))
    }

    pub(super) async fn add_address(&mut self, index: u32, local: IpNet) -> Result<(), NetError> {
        let address = Address::new(index, local);
        self.net.add_address(&address).await?;
        self.changes.push(Change::Address(address));
        Ok(())
    }

    pub(super) async fn add_route(
        &mut self,
        route: &KernelRoute,
        index: u32,
        name: &str,
    ) -> Result<(), String> {
        let Some(mut wanted) = kernel_route(route, index) else { return Ok(()) };
        let dev = if route.through == Through::Tunnel { name } else { "[NULL]" };
        say!(3, "net_route_{}_add: {}", family(&route.net), line(&wanted, dev));
        let foreign = route.through != Through::Tunnel;
        if foreign {
            self.ledger.add(&wanted);
        }
        let mut added = self.net.add_route(&wanted).await;
        if matches!(&added, Err(e) if e.kind() == NetErrorKind::Unreachable)
            && route.through == Through::Tunnel
            && !self.ethernet
        {
            // A gateway that is in none of the device's networks: there is only one other end.
            wanted.via = None;
            added = self.net.add_route(&wanted).await;
        }
        if added.is_err() && foreign {
            self.ledger.remove(&wanted);
        }
        match added {
            Ok(()) => {
                self.changes.push(Change::Route(wanted));
                Ok(())
            }
            Err(e) if e.kind() == NetErrorKind::Exists => {
                Err(format!("a route to {} exists already and stays as it is", route.net))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// How the world is reached without the tunnel. What cannot be found out is left out.
    async fn look_outside(&self, plan: &HostPlan) -> Outside {
        let default4 = self.net.default_route(false).await.ok().flatten();
        let default6 = self.net.default_route(true).await.ok().flatten();
        let remote = match plan.remote {
            Some(remote) => self.net.route_to(remote.ip()).await.ok().filter(|path| !path.local),
            None => None,
        };
        let hop = |route: Option<Route>| {
            route.and_then(|route| {
                route.link.map(|interface| NextHop { gateway: route.via, interface })
            })
        };
        let mut outside = Outside {
            default4: hop(default4),
            default6: hop(default6),
            remote: remote.map(|path| NextHop { gateway: path.gateway, interface: path.link }),
            local: Vec::new(),
        };
        if plan.redirect.is_some_and(|redirect| redirect.block_local) {
            let addresses = self.net.addresses().await.unwrap_or_default();
            let links = [outside.default4, outside.default6];
            outside.local = addresses
                .iter()
                .filter(|a| links.iter().flatten().any(|hop| hop.interface == a.link))
                .filter(|a| !is_link_local(a.local.addr()))
                .map(|a| a.local.trunc())
                .collect();
        }
        outside
    }

    /// Undoes what was applied, last first, and leaves the device for the next plan.
    pub async fn undo(&mut self) {
        self.plan = None;
        while let Some(change) = self.changes.pop() {
            self.revert(&change).await;
        }
    }

    /// Undoes what does not go with the device, which the caller closes: after a change of user there
    /// may be no right left to undo the rest.
    pub async fn close(mut self) {
        let Some((_, index)) = self.device else { return };
        say!(1, "Closing TUN/TAP interface");
        while let Some(change) = self.changes.pop() {
            let link = match &change {
                Change::Address(address) => Some(address.link),
                Change::Route(route) => route.link,
            };
            if link != Some(index) {
                self.revert(&change).await;
            }
        }
    }

    /// Undoes everything: the process whose tunnel this is was killed.
    pub async fn abandon(mut self) {
        if !self.changes.is_empty() {
            tracing::warn!("the process of the tunnel ended without a word: undoing its routes");
        }
        self.undo().await;
    }

    /// Keeps another server reachable while the plan in force sends everything into the tunnel: a
    /// client that reconnects elsewhere would otherwise dial through the tunnel it has lost.
    pub async fn keep_reachable(&mut self, remote: IpAddr) {
        let Some(((name, index), plan)) = self.device.clone().zip(self.plan.as_ref()) else {
            return;
        };
        let Some(redirect) = &plan.redirect else { return };
        if plan.remote.is_some_and(|known| known.ip() == remote) {
            return;
        }
        let default = if remote.is_ipv4() { self.outside.default4 } else { self.outside.default6 };
        let outside = Outside { remote: default, ..Outside::default() };
        let detour = HostPlan {
            redirect: Some(Redirect { private: true, block_local: false, ..*redirect }),
            remote: Some((remote, 0).into()),
            ..HostPlan::default()
        };
        for route in expand(&detour, &outside).0 {
            // It may be there from the last time.
            let _ = self.add_route(&route, index, &name).await;
        }
    }

    pub(super) async fn revert(&mut self, change: &Change) {
        let undone = match change {
            Change::Address(address) => {
                say!(3, "net_addr_{}_del: {}", family(&address.local), address.local);
                self.net.delete_address(address).await
            }
            Change::Route(route) => {
                say!(3, "net_route_{}_del: {}", family(&route.to), line(route, "[NULL]"));
                let deleted = self.net.delete_route(route).await;
                self.ledger.remove(route);
                deleted
            }
        };
        match undone {
            Ok(()) => {}
            // Somebody else removed it, or the interface it was on.
            Err(e) if e.kind() == NetErrorKind::NotFound => {}
            Err(e) => tracing::warn!("{e}"),
        }
    }
}

/// A route as the kernel is asked for it; `None` without gateway and interface.
pub(super) fn kernel_route(route: &KernelRoute, index: u32) -> Option<Route> {
    let link = match route.through {
        Through::Tunnel => Some(index),
        Through::Interface(other) => Some(other),
        Through::Gateway => None,
    };
    let mut wanted = match (route.gateway, link) {
        (Some(gateway), _) => Route::via(route.net, gateway),
        (None, Some(link)) => Route::dev(route.net, link),
        (None, None) => return None,
    };
    wanted.link = link;
    wanted.metric = route.metric;
    Some(wanted)
}

/// A route as stock writes it.
fn line(route: &Route, dev: &str) -> String {
    let via = route.via.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let metric = route.metric.map_or(-1, i64::from);
    format!("{}{via} dev {dev} table 0 metric {metric}", route.to)
}

pub(super) fn family(net: &IpNet) -> &'static str {
    match net {
        IpNet::V4(_) => "v4",
        IpNet::V6(_) => "v6",
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use adit_linux::netns::NetNs;

    use super::super::plan::{PlannedRoute, Via};
    use super::*;

    /// A namespace with a default route, and the one behind it; `None` where none can be made (no
    /// rights).
    fn world() -> Option<(NetNs, NetNs)> {
        let ns = NetNs::new("adit-host").ok()?;
        let other = NetNs::new("adit-host").ok()?;
        ns.connect("eth0", &other, "eth0").ok()?;
        ns.configure(async |net| {
            let link = net.link("eth0").await.unwrap().index;
            let address = "192.0.2.2/24".parse().unwrap();
            net.add_address(&Address::new(link, address)).await.unwrap();
            net.set_up(link).await.unwrap();
            let gateway = "192.0.2.1".parse().unwrap();
            net.add_route(&Route::via("0.0.0.0/0".parse().unwrap(), gateway)).await.unwrap();
        })
        .ok()?;
        Some((ns, other))
    }

    fn plan() -> HostPlan {
        let mut redirect = Redirect::parse(["def1"]).unwrap();
        redirect.gateway4 = Some("10.77.0.1".parse().unwrap());
        HostPlan {
            mtu: 1400,
            addresses: vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()],
            routes: vec![
                PlannedRoute {
                    net: "10.99.0.0/16".parse().unwrap(),
                    via: Via::Tunnel(Some("10.77.0.1".parse().unwrap())),
                    metric: Some(50),
                },
                PlannedRoute {
                    net: "203.0.113.0/24".parse().unwrap(),
                    via: Via::Outside,
                    metric: None,
                },
            ],
            redirect: Some(redirect),
            remote: Some("198.51.100.7:1194".parse().unwrap()),
            ..HostPlan::default()
        }
    }

    #[test]
    fn a_plan_is_applied_and_undone_to_the_last_route() {
        let Some((ns, _other)) = world() else { return };
        let listing = ns.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let net = Net::open().unwrap();
                let all = async |net: &Net| {
                    let mut routes = net.routes().await.unwrap();
                    // The kernel's own, and those of the loopback interface, are not ours.
                    routes.retain(|route| route.table == Some(adit_linux::net::MAIN_TABLE));
                    routes.retain(|route| !route.to.to_string().starts_with("fe80"));
                    routes.iter().map(|route| route.to.to_string()).collect::<Vec<_>>()
                };
                let before = all(&net).await;
                let opened = Host::open(&Device::Tun(None), TunOffloads::NONE, 1);
                let (mut host, device) = opened.unwrap();
                assert_eq!(host.device(), Some("tun0"));
                let notes = host.apply(&plan()).await.unwrap();
                assert_eq!(notes, Applied::Changed(Vec::new()));
                assert_eq!(host.apply(&plan()).await.unwrap(), Applied::Same);
                let during = all(&net).await;
                let mtu = net.link("tun0").await.unwrap().mtu;
                host.keep_reachable("198.51.100.99".parse().unwrap()).await;
                let detour = all(&net).await.contains(&"198.51.100.99/32".to_owned());
                assert!(detour, "another server must be reachable outside the tunnel");
                host.undo().await;
                let undone = all(&net).await;
                host.apply(&plan()).await.unwrap();
                host.close().await;
                drop(device);
                let closed = all(&net).await;
                (before, during, undone, closed, mtu)
            })
        });
        let (before, mut during, undone, closed, mtu) = listing.unwrap();
        assert_eq!(mtu, 1400);
        during.retain(|net| !before.contains(net));
        during.sort();
        assert_eq!(
            during,
            [
                "0.0.0.0/1",
                "10.77.0.0/24",
                "10.99.0.0/16",
                "128.0.0.0/1",
                "198.51.100.7/32",
                "203.0.113.0/24",
                "fd77::/64",
            ]
        );
        assert_eq!(undone, before);
        assert_eq!(closed, before);
    }
}
