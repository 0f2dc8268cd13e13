use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::client::Route;

/// The flags that may follow `redirect-gateway` and `redirect-private`, configured or pushed.
pub(crate) const REDIRECT_FLAGS: [&str; 8] =
    ["def1", "local", "autolocal", "bypass-dhcp", "bypass-dns", "block-local", "ipv6", "!ipv4"];

/// A `route` or `route-ipv6` as written. Its words may denote addresses that are known only once
/// the tunnel is up.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec<N, G> {
    /// The destination.
    pub to: Destination<N>,
    /// The gateway.
    pub via: Via<G>,
    /// The metric; `None` for `route-metric` or the kernel's default.
    pub metric: Option<u32>,
}

/// The destination of a route.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Destination<N> {
    /// A network.
    Net(N),
    /// `remote_host`: the server's address outside the tunnel.
    RemoteHost,
    /// `vpn_gateway`: the far end of the tunnel.
    VpnGateway,
}

/// A route's gateway.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Via<G> {
    /// `vpn_gateway`, `default` or no argument: the gateway of the tunnel.
    Tunnel,
    /// `net_gateway`: the gateway outside the tunnel.
    Outside,
    /// `remote_host`: the server's address.
    RemoteHost,
    /// An address.
    Gateway(G),
}

/// The addresses that the words in routes denote.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteContext {
    /// The server's address outside the tunnel.
    pub remote: Option<IpAddr>,
    /// The far end of the tunnel.
    pub gateway4: Option<Ipv4Addr>,
    /// The far end of the tunnel, IPv6.
    pub gateway6: Option<Ipv6Addr>,
    /// `route-metric`.
    pub metric: Option<u32>,
}

impl RouteSpec<Ipv4Net, Ipv4Addr> {
    /// Replaces the words with addresses. Returns `None` if one denotes no address (such as
    /// `remote_host` while the server is reached over IPv6).
    pub fn resolve(&self, context: &RouteContext) -> Option<Route<Ipv4Net, Ipv4Addr>> {
        let remote = match context.remote {
            Some(IpAddr::V4(address)) => Some(address),
            _ => None,
        };
        let net = match self.to {
            Destination::Net(net) => net,
            Destination::RemoteHost => Ipv4Net::from(remote?),
            Destination::VpnGateway => Ipv4Net::from(context.gateway4?),
        };
        finish(net, self.via, remote, self.metric.or(context.metric))
    }
}

impl RouteSpec<Ipv6Net, Ipv6Addr> {
    /// Replaces the words with addresses. Returns `None` if one denotes no address.
    pub fn resolve(&self, context: &RouteContext) -> Option<Route<Ipv6Net, Ipv6Addr>> {
        let remote = match context.remote {
            Some(IpAddr::V6(address)) => Some(address),
            _ => None,
        };
        let net = match self.to {
            Destination::Net(net) => net,
            Destination::RemoteHost => Ipv6Net::from(remote?),
            Destination::VpnGateway => Ipv6Net::from(context.gateway6?),
        };
        finish(net, self.via, remote, self.metric.or(context.metric))
    }
}

fn finish<N, G>(
    net: N,
    via: Via<G>,
    remote: Option<G>,
    metric: Option<u32>,
) -> Option<Route<N, G>> {
    let (via, outside) = match via {
        Via::Tunnel => (None, false),
        Via::Outside => (None, true),
        Via::RemoteHost => (Some(remote?), false),
        Via::Gateway(gateway) => (Some(gateway), false),
    };
    Some(Route { net, via, outside, metric })
}

/// Parses the text after `route`: `NETWORK [NETMASK] [GATEWAY] [METRIC]`.
///
/// # Errors
/// Returns a text that describes the defect to the option's author.
pub(crate) fn parse_route4(args: &[&str]) -> Result<RouteSpec<Ipv4Net, Ipv4Addr>, String> {
    let mut args = args.iter().copied();
    let (network, mask) =
        (args.next().unwrap_or_default(), args.next().filter(|word| !is_default(word)));
    let to = match network {
        "remote_host" => Destination::RemoteHost,
        "vpn_gateway" => Destination::VpnGateway,
        _ => {
            let address: Ipv4Addr =
                network.parse().map_err(|_| format!("\"{network}\" is not an IPv4 network"))?;
            let mask = mask.unwrap_or("255.255.255.255");
            let net = mask
                .parse()
                .ok()
                .and_then(|mask| Ipv4Net::with_netmask(address, mask).ok())
                .ok_or_else(|| format!("\"{mask}\" is not a netmask"))?;
            Destination::Net(net.trunc())
        }
    };
    let via = parse_via(args.next(), "net_gateway")?;
    Ok(RouteSpec { to, via, metric: parse_metric(args.next())? })
}

/// Parses the text after `route-ipv6`: `NETWORK/BITS [GATEWAY] [METRIC]`.
///
/// # Errors
/// Returns a text that describes the defect to the option's author.
pub(crate) fn parse_route6(args: &[&str]) -> Result<RouteSpec<Ipv6Net, Ipv6Addr>, String> {
    let mut args = args.iter().copied();
    let network = args.next().unwrap_or_default();
    let to = match network {
        "remote_host_ipv6" | "remote_host" => Destination::RemoteHost,
        "vpn_gateway_ipv6" | "vpn_gateway" => Destination::VpnGateway,
        _ => {
            let net: Ipv6Net = match network.parse::<Ipv6Addr>() {
                Ok(address) => Ipv6Net::from(address),
                Err(_) => network.parse().map_err(|_| {
                    format!("\"{network}\" is not an IPv6 network with its prefix length")
                })?,
            };
            Destination::Net(net.trunc())
        }
    };
    let via = parse_via(args.next(), "net_gateway_ipv6")?;
    Ok(RouteSpec { to, via, metric: parse_metric(args.next())? })
}

/// Returns whether a word can only be a host's name.
pub(crate) fn is_host_name(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let reserved = ["remote_host", "vpn_gateway", "net_gateway", "default", "nil"];
    word.len() <= 253
        && word.contains(|c: char| c.is_ascii_alphabetic())
        && word.chars().all(plain)
        && !reserved.contains(&word)
}

fn is_default(word: &str) -> bool {
    matches!(word, "default" | "nil")
}

fn parse_via<G: std::str::FromStr>(word: Option<&str>, outside: &str) -> Result<Via<G>, String> {
    Ok(match word {
        None | Some("vpn_gateway" | "vpn_gateway_ipv6") => Via::Tunnel,
        Some(word) if is_default(word) => Via::Tunnel,
        Some("net_gateway") => Via::Outside,
        Some(word) if word == outside => Via::Outside,
        Some("remote_host" | "remote_host_ipv6") => Via::RemoteHost,
        Some(word) => Via::Gateway(
            word.parse().map_err(|_| format!("\"{word}\" is not a gateway's address"))?,
        ),
    })
}

fn parse_metric(word: Option<&str>) -> Result<Option<u32>, String> {
    match word {
        None => Ok(None),
        Some(word) if is_default(word) => Ok(None),
        Some(word) => match word.parse::<i32>() {
            Ok(metric) => Ok(u32::try_from(metric).ok()),
            Err(_) => Err(format!("\"{word}\" is not a metric")),
        },
    }
}
