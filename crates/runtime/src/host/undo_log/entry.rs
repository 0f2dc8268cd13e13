//! Routes and rules as stored in an undo log.

use std::net::IpAddr;

use adit_linux::net::{Route, RouteKind, Rule};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A [`Route`] as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RouteEntry {
    net: IpNet,
    via: Option<IpAddr>,
    link: Option<u32>,
    metric: Option<u32>,
    #[serde(default)]
    table: Option<u32>,
    #[serde(default)]
    kind: Kind,
}

/// [`RouteKind`] as stored.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    #[default]
    Unicast,
    Unreachable,
    Throw,
}

/// A [`Rule`] as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RuleEntry {
    v6: bool,
    preference: u32,
    from: Option<IpNet>,
    to: Option<IpNet>,
    pub(super) not_mark: Option<u32>,
    udp_ports: Option<(u16, u16)>,
    table: u32,
}

impl From<&Rule> for RuleEntry {
    fn from(rule: &Rule) -> Self {
        let Rule { v6, preference, from, to, not_mark, udp_ports, table } = *rule;
        Self { v6, preference, from, to, not_mark, udp_ports, table }
    }
}

impl From<&RuleEntry> for Rule {
    fn from(entry: &RuleEntry) -> Self {
        let RuleEntry { v6, preference, from, to, not_mark, udp_ports, table } = *entry;
        Self { v6, preference, from, to, not_mark, udp_ports, table }
    }
}

impl From<&Route> for RouteEntry {
    fn from(route: &Route) -> Self {
        Self {
            net: route.to,
            via: route.via,
            link: route.link,
            metric: route.metric,
            table: route.table,
            kind: match route.kind {
                RouteKind::Unicast => Kind::Unicast,
                RouteKind::Unreachable => Kind::Unreachable,
                RouteKind::Throw => Kind::Throw,
            },
        }
    }
}

impl RouteEntry {
    /// Returns the route; `None` if the entry is invalid.
    pub(super) fn route(&self) -> Option<Route> {
        let mut route = match (self.kind, self.link) {
            (Kind::Unicast, link) => Route::dev(self.net, link?),
            (Kind::Unreachable, _) => Route::without_hop(self.net, RouteKind::Unreachable),
            (Kind::Throw, _) => Route::without_hop(self.net, RouteKind::Throw),
        };
        route.via = self.via;
        route.table = self.table;
        route.metric = self.metric;
        Some(route)
    }
}
