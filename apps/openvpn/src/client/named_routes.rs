//! Routes to hosts' names that a server pushes (`allow-pull-fqdn`).

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use adit_openvpn::client::TunnelConfig;

/// The time limit for all look-ups of a session together. Meanwhile the tunnel has no routes yet.
const LIMIT: Duration = Duration::from_secs(5);

/// The maximum number of addresses of one name; further ones are ignored.
const ADDRESS_LIMIT: usize = 16;

/// Adds the routes to names, if that is allowed. Returns a line for the log for each name that is left out.
pub(super) async fn resolve(tunnel: &mut TunnelConfig, allowed: bool) -> Vec<String> {
    let mut names: Vec<String> =
        tunnel.named_routes.iter().filter_map(|words| words.first().cloned()).collect();
    names.sort();
    names.dedup();
    let mut left_out = Vec::new();
    let end = tokio::time::Instant::now() + LIMIT;
    for name in names {
        if !allowed {
            left_out.push(format!(
                "the server pushes a route to {name}, which is left out: add allow-pull-fqdn to look it up"
            ));
            continue;
        }
        let found = tokio::time::timeout_at(end, tokio::net::lookup_host((name.as_str(), 0)));
        let problem = match found.await {
            Ok(Ok(found)) => {
                let addresses: Vec<Ipv4Addr> = found
                    .filter_map(|address| match address.ip() {
                        IpAddr::V4(address) => Some(address),
                        IpAddr::V6(_) => None,
                    })
                    .take(ADDRESS_LIMIT)
                    .collect();
                if !addresses.is_empty() {
                    tunnel.add_routes_to(&name, &addresses);
                    continue;
                }
                "it has no IPv4 address".to_owned()
            }
            Ok(Err(e)) => e.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        left_out.push(format!("the pushed route to {name} is left out: {problem}"));
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(routes: &[&str]) -> TunnelConfig {
        let words = |route: &&str| route.split(' ').map(str::to_owned).collect();
        TunnelConfig { named_routes: routes.iter().map(words).collect(), ..TunnelConfig::default() }
    }

    #[tokio::test]
    async fn names_are_looked_up_only_if_that_is_allowed() {
        let routes = ["localhost 255.255.255.255 net_gateway 7", "lost.invalid"];
        let mut tunnel = pushed(&routes);
        let left_out = resolve(&mut tunnel, false).await;
        assert_eq!((tunnel.routes4.len(), left_out.len()), (0, 2));
        assert!(left_out[0].contains("allow-pull-fqdn"), "{left_out:?}");
        let left_out = resolve(&mut tunnel, true).await;
        assert_eq!(left_out.len(), 1, "{left_out:?}");
        assert!(left_out[0].contains("lost.invalid"), "{left_out:?}");
        let [route] = tunnel.routes4.as_slice() else { panic!("{:?}", tunnel.routes4) };
        assert_eq!(route.net, "127.0.0.1/32".parse().unwrap());
        assert_eq!((route.outside, route.metric), (true, Some(7)));
    }
}
