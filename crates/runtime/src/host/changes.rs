//! The addresses and routes that a tunnel has added to the host.

use adit_linux::net::{Address, NetError, NetErrorKind, Route};
use ipnet::IpNet;

use super::apply::Host;
use super::routes::{KernelRoute, RouteInterface};
use crate::say;

/// A change, with the data for undoing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Address(Address),
    Route(Route),
}

impl Host {
    pub(super) async fn add_address(&mut self, index: u32, local: IpNet) -> Result<(), NetError> {
        let address = Address::new(index, local);
        self.net.add_address(&address).await?;
        self.changes.push(Change::Address(address));
        Ok(())
    }

    /// Adds a route. If the route is not in the tunnel, it is written to the undo log first, because it outlives the device.
    pub(super) async fn add_route(
        &mut self,
        route: &KernelRoute,
        index: u32,
        name: &str,
    ) -> Result<(), String> {
        self.exchange_route(route, index, name, None).await
    }

    /// Adds a route, in the place of one that the tunnel has added to the same network with the same metric: there is no moment without either.
    pub(super) async fn exchange_route(
        &mut self,
        route: &KernelRoute,
        index: u32,
        name: &str,
        replaced: Option<Route>,
    ) -> Result<(), String> {
        let Some(mut wanted) = kernel_route(route, index) else { return Ok(()) };
        let dev = Some(name).filter(|_| route.through == RouteInterface::Tunnel);
        say!(3, "net_route_{}_add: {}", family(&route.net), line(&wanted, dev));
        let foreign = route.through != RouteInterface::Tunnel;
        if foreign {
            self.undo_log.add(&wanted);
        }
        let mut added = self.net.put_route(&wanted, replaced.is_some()).await;
        if matches!(&added, Err(e) if e.kind() == NetErrorKind::Unreachable)
            && route.through == RouteInterface::Tunnel
            && !self.ethernet
        {
            // The gateway is in none of the device's networks. Leave it out, because the device has only one other end.
            wanted.via = None;
            added = self.net.put_route(&wanted, replaced.is_some()).await;
        }
        if added.is_err() && foreign {
            self.undo_log.remove(&wanted);
        }
        if let Some(replaced) = replaced {
            let change = Change::Route(replaced);
            if added.is_ok() {
                self.changes.retain(|other| *other != change);
                self.undo_log.remove(&replaced);
            } else {
                self.undo_change(&change).await;
            }
        }
        match added {
            Ok(()) => {
                self.changes.push(Change::Route(wanted));
                Ok(())
            }
            Err(e) if e.kind() == NetErrorKind::Exists && self.taken_over && !foreign => {
                self.changes.push(Change::Route(wanted));
                Ok(())
            }
            Err(e) if e.kind() == NetErrorKind::Exists => {
                Err(format!("a route to {} exists already and stays as it is", route.net))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// Returns the routes that this tunnel has added.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.changes.iter().filter_map(|change| match change {
            Change::Route(route) => Some(route),
            Change::Address(_) => None,
        })
    }

    /// Undoes one change, which stays recorded until it is undone.
    pub(super) async fn undo_change(&mut self, change: &Change) {
        self.revert(change).await;
        self.changes.retain(|other| other != change);
    }

    /// Undoes one change; the caller removes its record.
    pub(super) async fn revert(&mut self, change: &Change) {
        let undone = match change {
            Change::Address(address) => {
                say!(3, "net_addr_{}_del: {}", family(&address.local), address.local);
                self.net.delete_address(address).await
            }
            Change::Route(route) => {
                say!(3, "net_route_{}_del: {}", family(&route.to), line(route, None));
                let deleted = self.net.delete_route(route).await;
                self.undo_log.remove(route);
                deleted
            }
        };
        match undone {
            Ok(()) => {}
            // Another program removed the route or its interface.
            Err(e) if e.kind() == NetErrorKind::NotFound => {}
            Err(e) => tracing::warn!("{e}"),
        }
    }
}

/// Converts a route to the form of the kernel's interface. Returns `None` if it has neither gateway nor interface.
pub(super) fn kernel_route(route: &KernelRoute, index: u32) -> Option<Route> {
    let link = match route.through {
        RouteInterface::Tunnel => Some(index),
        RouteInterface::Interface(other) => Some(other),
        RouteInterface::Gateway => None,
    };
    let mut wanted = match (route.gateway, link) {
        (Some(gateway), _) => Route::via(route.net, gateway),
        (None, Some(link)) => Route::dev(route.net, link),
        (None, None) => return None,
    };
    wanted.link = link;
    wanted.metric = route.metric;
    wanted.table = route.table;
    Some(wanted)
}

/// Formats a route as `ip route` does.
fn line(route: &Route, dev: Option<&str>) -> String {
    let via = route.via.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let dev = dev.map(|dev| format!(" dev {dev}")).unwrap_or_default();
    let metric = route.metric.map(|metric| format!(" metric {metric}")).unwrap_or_default();
    let table = route.table.map(|table| format!(" table {table}")).unwrap_or_default();
    format!("{}{via}{dev}{metric}{table}", route.to)
}

pub(super) fn family(net: &IpNet) -> &'static str {
    match net {
        IpNet::V4(_) => "v4",
        IpNet::V6(_) => "v6",
    }
}
