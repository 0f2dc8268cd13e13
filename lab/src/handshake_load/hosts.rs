//! Reads the tunnels that programs have set up on hosts.

use std::net::{Ipv4Addr, Ipv6Addr};

use adit_testbed::failure::{Context, Result};
use adit_testbed::net::Namespace;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;

use super::pushed::AppliedConfig;

#[derive(Debug, Deserialize)]
struct Device {
    ifname: String,
    /// Loopback's does not fit into 16 bits.
    mtu: u32,
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Debug, Deserialize)]
struct Address {
    local: String,
    prefixlen: u8,
    scope: String,
}

#[derive(Debug, Deserialize)]
struct Route {
    dst: String,
    dev: String,
    gateway: Option<String>,
    protocol: Option<String>,
}

/// Returns the configuration of each `tun` device of a host: its addresses, MTU and IPv6 routes, and the IPv4 routes
/// into any of the host's tunnels. If several tunnels lead to one network, only the first has those routes. DNS servers
/// and the gateway of IPv6 routes cannot be read from the kernel.
///
/// # Errors
/// `ip` failed.
pub fn applied(host: &Namespace) -> Result<Vec<AppliedConfig>> {
    let addresses = host.run("ip", &["-j", "address", "show"])?;
    let routes4 = host.run("ip", &["-j", "-4", "route", "show"])?;
    let routes6 = host.run("ip", &["-j", "-6", "route", "show"])?;
    read(host.name(), [&addresses, &routes4, &routes6])
}

fn read(host: &str, [addresses, routes4, routes6]: [&str; 3]) -> Result<Vec<AppliedConfig>> {
    let devices: Vec<Device> = serde_json::from_str(addresses).context("ip address")?;
    let routes = |text: &str| -> Result<Vec<Route>> {
        let all: Vec<Route> = serde_json::from_str(text).context("ip route")?;
        // The kernel adds the routes to the tunnel's own network with the address.
        let pushed = |route: &Route| {
            route.dev.starts_with("tun") && route.protocol.as_deref() != Some("kernel")
        };
        Ok(all.into_iter().filter(pushed).collect())
    };
    let (routes4, routes6) = (routes(routes4)?, routes(routes6)?);
    let gateway4 = routes4.iter().find_map(|route| route.gateway.as_ref()?.parse().ok());
    let of_device = |device: &Device| {
        let global = |v6: bool| {
            let mut all = device.addr_info.iter().filter(|address| address.scope == "global");
            all.find(|address| address.local.contains(':') == v6)
        };
        let mut nets4: Vec<Ipv4Net> = routes4.iter().filter_map(|r| net4(&r.dst)).collect();
        let own6 = routes6.iter().filter(|route| route.dev == device.ifname);
        let mut nets6: Vec<Ipv6Net> = own6.filter_map(|route| net6(&route.dst)).collect();
        nets4.sort_unstable();
        nets6.sort_unstable();
        AppliedConfig {
            client: format!("{host}/{}", device.ifname),
            ipv4: global(false).and_then(|a| Ipv4Net::new(a.local.parse().ok()?, a.prefixlen).ok()),
            ipv6: global(true).and_then(|a| Ipv6Net::new(a.local.parse().ok()?, a.prefixlen).ok()),
            gateway4,
            gateway6: None,
            routes4: nets4,
            routes6: nets6,
            dns: Vec::new(),
            mtu: u16::try_from(device.mtu).ok(),
        }
    };
    Ok(devices.iter().filter(|device| device.ifname.starts_with("tun")).map(of_device).collect())
}

/// Parses a network; `ip` writes it with its prefix length, but a host without one.
fn net4(text: &str) -> Option<Ipv4Net> {
    text.parse().ok().or_else(|| Some(Ipv4Net::from(text.parse::<Ipv4Addr>().ok()?)))
}

fn net6(text: &str) -> Option<Ipv6Net> {
    text.parse().ok().or_else(|| Some(Ipv6Net::from(text.parse::<Ipv6Addr>().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: &str = r#"[{"ifindex":1,"ifname":"lo","mtu":65536,"addr_info":[]},
        {"ifindex":2,"ifname":"tun0","mtu":1400,"addr_info":[
        {"family":"inet","local":"10.88.0.2","prefixlen":16,"scope":"global"},
        {"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"},
        {"family":"inet6","local":"fd88::1000","prefixlen":64,"scope":"global"}]}]"#;
    const ROUTES4: &str = r#"[{"dst":"192.0.2.0/24","dev":"veth0","protocol":"kernel"},
        {"dst":"10.99.0.0/16","gateway":"10.88.0.1","dev":"tun0","flags":[]},
        {"dst":"10.77.0.1","gateway":"10.88.0.1","dev":"tun0","flags":[]},
        {"dst":"10.88.0.0/16","dev":"tun0","protocol":"kernel"}]"#;
    const ROUTES6: &str = r#"[{"dst":"fd99::/64","dev":"tun0","metric":1024},{"dst":"fd99::/64","dev":"tun1"},
        {"dst":"fe80::/64","dev":"tun0","protocol":"kernel"}]"#;

    #[test]
    fn reads_what_ip_tells() {
        let applied = read("client-1", [ADDRESSES, ROUTES4, ROUTES6]).unwrap();
        let expected = AppliedConfig {
            client: "client-1/tun0".into(),
            ipv4: Some("10.88.0.2/16".parse().unwrap()),
            ipv6: Some("fd88::1000/64".parse().unwrap()),
            gateway4: Some("10.88.0.1".parse().unwrap()),
            gateway6: None,
            routes4: vec!["10.77.0.1/32".parse().unwrap(), "10.99.0.0/16".parse().unwrap()],
            routes6: vec!["fd99::/64".parse().unwrap()],
            dns: Vec::new(),
            mtu: Some(1400),
        };
        assert_eq!(applied, [expected]);
    }

    #[test]
    fn a_host_without_a_tunnel_shows_none() {
        let lo = r#"[{"ifindex":1,"ifname":"lo","mtu":65536,"addr_info":[]}]"#;
        assert!(read("client-1", [lo, "[]", "[]"]).unwrap().is_empty());
        assert!(read("client-1", ["no JSON", "[]", "[]"]).is_err());
    }
}
