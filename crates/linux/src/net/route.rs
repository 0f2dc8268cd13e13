use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType, RouteVia,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Mode, Net, NetError};

/// The default table of routes.
pub const MAIN_TABLE: u32 = 254;

/// The action that the kernel takes on packets that match a route.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// Forwards them.
    #[default]
    Unicast,
    /// Reports an error to their sender at once.
    Unreachable,
    /// Leaves the decision to the next rule of policy routing.
    Throw,
}

/// A route.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The destination network; host bits are ignored.
    pub to: IpNet,
    /// The next hop; `None` for a network on the link itself.
    pub via: Option<IpAddr>,
    /// The interface; optional if there is a gateway, because the kernel derives it from that.
    pub link: Option<u32>,
    /// The metric. Lower wins; `None` is 0 for IPv4 and 1024 for IPv6.
    pub metric: Option<u32>,
    /// The routing table; `None` is [`MAIN_TABLE`].
    pub table: Option<u32>,
    /// The source address of packets whose socket is not bound to an address.
    pub source: Option<IpAddr>,
    /// The gateway is on the link even if no address says so.
    pub onlink: bool,
    /// The action that the kernel takes on the packets.
    pub kind: RouteKind,
}

impl Route {
    /// Creates a route through a gateway.
    pub fn via(to: IpNet, gateway: IpAddr) -> Self {
        Self { via: Some(gateway), ..Self::bare(to) }
    }

    /// Creates a route to a network on a link.
    pub fn dev(to: IpNet, link: u32) -> Self {
        Self { link: Some(link), ..Self::bare(to) }
    }

    /// Creates a route without next hop or interface.
    pub fn without_hop(to: IpNet, kind: RouteKind) -> Self {
        Self { kind, ..Self::bare(to) }
    }

    fn bare(to: IpNet) -> Self {
        Self {
            to,
            via: None,
            link: None,
            metric: None,
            table: None,
            source: None,
            onlink: false,
            kind: RouteKind::Unicast,
        }
    }

    /// Returns whether the route is a default route.
    pub fn is_default(&self) -> bool {
        self.to.prefix_len() == 0
    }

    fn message(&self) -> RouteMessage {
        let to = self.to.trunc();
        let mut message = RouteMessage::default();
        message.header.kind = self.kind.into();
        message.header.address_family = family(to.addr());
        message.header.destination_prefix_length = to.prefix_len();
        message.attributes.push(RouteAttribute::Destination(to.addr().into()));
        let table = self.table.unwrap_or(MAIN_TABLE);
        match u8::try_from(table) {
            Ok(table) => message.header.table = table,
            Err(_) => message.attributes.push(RouteAttribute::Table(table)),
        }
        match (self.via, self.to) {
            (Some(IpAddr::V6(via)), IpNet::V4(_)) => {
                message.attributes.push(RouteAttribute::Via(RouteVia::Inet6(via)));
            }
            (Some(via), _) => message.attributes.push(RouteAttribute::Gateway(via.into())),
            (None, _) => {}
        }
        message.attributes.extend(self.link.map(RouteAttribute::Oif));
        message.attributes.extend(self.metric.map(RouteAttribute::Priority));
        message.attributes.extend(self.source.map(|ip| RouteAttribute::PrefSource(ip.into())));
        if self.onlink {
            message.header.flags.insert(RouteFlags::Onlink);
        }
        message
    }

    fn addition(&self) -> RouteMessage {
        let mut message = self.message();
        message.header.protocol = RouteProtocol::Static;
        // In a table other than the main one, a route with only an interface must not have link scope, because the
        // kernel checks whether the gateway of another route is on a link, and would find this route.
        let direct = self.kind == RouteKind::Unicast
            && self.via.is_none()
            && self.table.is_none_or(|table| table == MAIN_TABLE)
            && matches!(self.to, IpNet::V4(_));
        message.header.scope = if direct { RouteScope::Link } else { RouteScope::Universe };
        message
    }

    fn removal(&self) -> RouteMessage {
        let mut message = self.message();
        // "Any scope"; otherwise the kernel would compare it.
        message.header.scope = RouteScope::NoWhere;
        message
    }

    fn read(message: &RouteMessage) -> Option<Self> {
        let unspecified: IpAddr = match message.header.address_family {
            AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
            AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let mut to = unspecified;
        let mut route = Self {
            kind: read_kind(message.header.kind)?,
            onlink: message.header.flags.contains(RouteFlags::Onlink),
            table: Some(message.header.table.into()),
            ..Self::bare(IpNet::new(to, 0).ok()?)
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(ip) => to = address(ip)?,
                RouteAttribute::Table(table) => route.table = Some(*table),
                RouteAttribute::Priority(metric) => route.metric = Some(*metric),
                RouteAttribute::PrefSource(ip) => route.source = address(ip),
                RouteAttribute::MultiPath(hops) => {
                    // Report only the first of several equal-cost next hops.
                    let hop = hops.first()?;
                    route.link = Some(hop.interface_index);
                    hop.attributes.iter().for_each(|attribute| route.read_hop(attribute));
                }
                other => route.read_hop(other),
            }
        }
        route.to = IpNet::new(to, message.header.destination_prefix_length).ok()?;
        Some(route)
    }

    fn read_hop(&mut self, attribute: &RouteAttribute) {
        match attribute {
            RouteAttribute::Gateway(ip) => self.via = address(ip),
            RouteAttribute::Via(RouteVia::Inet(ip)) => self.via = Some((*ip).into()),
            RouteAttribute::Via(RouteVia::Inet6(ip)) => self.via = Some((*ip).into()),
            RouteAttribute::Oif(link) => self.link = Some(*link),
            _ => {}
        }
    }
}

impl From<RouteKind> for RouteType {
    fn from(kind: RouteKind) -> Self {
        match kind {
            RouteKind::Unicast => Self::Unicast,
            RouteKind::Unreachable => Self::Unreachable,
            RouteKind::Throw => Self::Throw,
        }
    }
}

fn read_kind(kind: RouteType) -> Option<RouteKind> {
    match kind {
        RouteType::Unicast => Some(RouteKind::Unicast),
        RouteType::Unreachable => Some(RouteKind::Unreachable),
        RouteType::Throw => Some(RouteKind::Throw),
        _ => None,
    }
}

/// Returns the name of an interface in this network namespace.
fn interface_name(link: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(link).ok()?;
    name.into_string().ok()
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RouteKind::Unicast => {}
            RouteKind::Unreachable => write!(f, "unreachable ")?,
            RouteKind::Throw => write!(f, "throw ")?,
        }
        write!(f, "{}", self.to.trunc())?;
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        if let Some(link) = self.link {
            match interface_name(link) {
                Some(name) => write!(f, " by {name}")?,
                // The interface no longer exists.
                None => write!(f, " by interface number {link}")?,
            }
        }
        if let Some(metric) = self.metric {
            write!(f, " metric {metric}")?;
        }
        match self.table {
            Some(table) if table != MAIN_TABLE => write!(f, " in table {table}"),
            _ => Ok(()),
        }
    }
}

/// The kernel's choice of a path for a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The next hop; `None` if the destination is on the link or is a local address.
    pub gateway: Option<IpAddr>,
    /// The interface.
    pub link: u32,
    /// The source address that the kernel would choose.
    pub source: Option<IpAddr>,
    /// Whether the destination is a local address.
    pub local: bool,
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address(from: &RouteAddress) -> Option<IpAddr> {
    match from {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

impl Net {
    /// Returns the unicast routes of all tables and both families.
    pub async fn routes(&self) -> Result<Vec<Route>, NetError> {
        let mut routes = self.all_routes().await?;
        routes.retain(|route| route.kind == RouteKind::Unicast);
        Ok(routes)
    }

    /// Returns the routes of every [`RouteKind`] in all tables and both families.
    pub async fn all_routes(&self) -> Result<Vec<Route>, NetError> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut query = RouteMessage::default();
            query.header.address_family = family;
            let message = RouteNetlinkMessage::GetRoute(query);
            let answers = self.talk(message, Mode::Dump, || "listing routes".into()).await;
            match answers {
                Ok(answers) => routes.extend(answers.iter().filter_map(listed)),
                // A kernel without IPv6 has no IPv6 routes.
                Err(e)
                    if family == AddressFamily::Inet6
                        && e.kind() == super::NetErrorKind::NoFamily => {}
                Err(e) => return Err(e),
            }
        }
        Ok(routes)
    }

    /// Returns the default route of a family with the lowest metric in the main table.
    pub async fn default_route(&self, v6: bool) -> Result<Option<Route>, NetError> {
        let is_default = |route: &Route| {
            route.is_default()
                && matches!(route.to, IpNet::V6(_)) == v6
                && route.table == Some(MAIN_TABLE)
        };
        let routes = self.routes().await?.into_iter().filter(is_default);
        Ok(routes.min_by_key(|route| route.metric.unwrap_or(0)))
    }

    /// Adds a route. Fails with kind `Exists` if the table already has a route to the same network with the same
    /// metric.
    pub async fn add_route(&self, route: &Route) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::NewRoute(route.addition());
        self.talk(message, Mode::Create, || format!("adding the route {route}")).await.map(drop)
    }

    /// Adds a route, or replaces one to the same network with the same metric in the same table.
    pub async fn replace_route(&self, route: &Route) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::NewRoute(route.addition());
        self.talk(message, Mode::Replace, || format!("setting the route {route}")).await.map(drop)
    }

    /// Removes a route; a field that is `None` matches any value (except the table).
    pub async fn delete_route(&self, route: &Route) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::DelRoute(route.removal());
        self.talk(message, Mode::Change, || format!("removing the route {route}")).await.map(drop)
    }

    /// Returns the path to an address that the kernel would choose now, including policy routing.
    pub async fn route_to(&self, to: IpAddr) -> Result<Path, NetError> {
        let mut query = RouteMessage::default();
        query.header.address_family = family(to);
        query.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
        query.attributes.push(RouteAttribute::Destination(to.into()));
        let action = || format!("looking up the route to {to}");
        let answers = self.talk(RouteNetlinkMessage::GetRoute(query), Mode::Ask, action).await?;
        let unreachable =
            || NetError::new(action(), io::Error::from_raw_os_error(libc::ENETUNREACH));
        let path = answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(message) => read_path(message),
            _ => None,
        });
        path.ok_or_else(unreachable)
    }
}

fn read_path(message: &RouteMessage) -> Option<Path> {
    let local = message.header.kind == RouteType::Local;
    if !local && message.header.kind != RouteType::Unicast {
        return None;
    }
    let mut message = message.clone();
    message.header.kind = RouteType::Unicast;
    let route = Route::read(&message)?;
    Some(Path { gateway: route.via, link: route.link?, source: route.source, local })
}

fn listed(answer: &RouteNetlinkMessage) -> Option<Route> {
    match answer {
        RouteNetlinkMessage::NewRoute(message) if !is_cached(&message.header) => {
            Route::read(message)
        }
        _ => None,
    }
}

/// Returns whether the kernel learned this entry (redirects, path MTUs). Such exceptions are not routes.
fn is_cached(header: &RouteHeader) -> bool {
    header.flags.contains(RouteFlags::Cloned)
}
