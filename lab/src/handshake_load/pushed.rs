//! The configuration that each client received, compared with the server's.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_openvpn::client::TunnelConfig;
use ipnet::{Ipv4Net, Ipv6Net};

/// A client's state as its driver would apply it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AppliedConfig {
    /// The name of the client.
    pub client: String,
    /// Its IPv4 address and network.
    pub ipv4: Option<Ipv4Net>,
    /// Its IPv6 address and network.
    pub ipv6: Option<Ipv6Net>,
    /// The gateway of IPv4 routes.
    pub gateway4: Option<Ipv4Addr>,
    /// The gateway of IPv6 routes.
    pub gateway6: Option<Ipv6Addr>,
    /// Routes into the tunnel, sorted.
    pub routes4: Vec<Ipv4Net>,
    /// IPv6 routes into the tunnel, sorted.
    pub routes6: Vec<Ipv6Net>,
    /// DNS lines as pushed.
    pub dns: Vec<String>,
    /// MTU inside the tunnel.
    pub mtu: Option<u16>,
}

impl AppliedConfig {
    /// Returns the configuration that a client engine handed to its driver.
    pub fn of(client: impl Into<String>, config: &TunnelConfig) -> Self {
        let mut applied = Self {
            client: client.into(),
            ipv4: config.ipv4,
            ipv6: config.ipv6,
            gateway4: config.gateway4,
            gateway6: config.gateway6,
            routes4: config.routes4.iter().map(|route| route.net).collect(),
            routes6: config.routes6.iter().map(|route| route.net).collect(),
            dns: config.dns.lines(),
            mtu: config.mtu,
        };
        applied.routes4.sort_unstable();
        applied.routes6.sort_unstable();
        applied
    }

    /// Returns its addresses in the tunnel.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.ipv4.map(|net| IpAddr::from(net.addr()));
        let v6 = self.ipv6.map(|net| IpAddr::from(net.addr()));
        v4.into_iter().chain(v6)
    }
}

/// The configuration that each client should receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The server's IPv4 address and the network. Clients have other host addresses in it.
    pub server4: Ipv4Net,
    /// The same for IPv6.
    pub server6: Ipv6Net,
    /// Sorted IPv4 routes.
    pub routes4: Vec<Ipv4Net>,
    /// Sorted IPv6 routes.
    pub routes6: Vec<Ipv6Net>,
    /// DNS lines as in the configuration, in order.
    pub dns: Vec<String>,
    /// `tun-mtu`.
    pub mtu: u16,
}

/// The errors found, with a line for each client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// The number of clients that were checked.
    pub looked_at: usize,
    /// Clients that received a configuration other than the expected one.
    pub misconfigured: Vec<String>,
    /// Addresses that several clients have, with the names of these clients.
    pub duplicates: Vec<String>,
}

/// Checks the configuration of each client; `now` are the clients connected at the same time, whose addresses must
/// differ.
pub fn check(expected: &Expected, told: &[AppliedConfig], now: &[AppliedConfig]) -> Findings {
    let misconfigured = told
        .iter()
        .filter_map(|client| {
            let faults = expected.faults(client);
            (!faults.is_empty()).then(|| format!("{}: {}", client.client, faults.join("; ")))
        })
        .collect();
    let mut holders: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for client in now {
        for address in client.addresses() {
            holders.entry(address).or_default().push(&client.client);
        }
    }
    let duplicates = holders
        .iter()
        .filter(|(_, clients)| clients.len() > 1)
        .map(|(address, clients)| format!("{address}: {}", clients.join(", ")))
        .collect();
    Findings { looked_at: told.len(), misconfigured, duplicates }
}

impl Expected {
    fn faults(&self, client: &AppliedConfig) -> Vec<String> {
        let mut faults = Vec::new();
        match client.ipv4 {
            None => faults.push("no IPv4 address".to_owned()),
            Some(net) => faults.extend(self.address4(net)),
        }
        match client.ipv6 {
            None => faults.push("no IPv6 address".to_owned()),
            Some(net) => faults.extend(self.address6(net)),
        }
        differ(&mut faults, "gateway", &client.gateway4, &Some(self.server4.addr()));
        differ(&mut faults, "IPv6 gateway", &client.gateway6, &Some(self.server6.addr()));
        differ(&mut faults, "routes", &client.routes4, &self.routes4);
        differ(&mut faults, "IPv6 routes", &client.routes6, &self.routes6);
        differ(&mut faults, "DNS", &client.dns, &self.dns);
        differ(&mut faults, "MTU", &client.mtu, &Some(self.mtu));
        faults
    }

    fn address4(&self, net: Ipv4Net) -> Option<String> {
        let (address, pool) = (net.addr(), self.server4.trunc());
        let wrong = net.prefix_len() != pool.prefix_len()
            || !pool.contains(&address)
            || [pool.network(), pool.broadcast(), self.server4.addr()].contains(&address);
        wrong.then(|| format!("address {net} is not one of {pool} for clients"))
    }

    fn address6(&self, net: Ipv6Net) -> Option<String> {
        let (address, pool) = (net.addr(), self.server6.trunc());
        let wrong = net.prefix_len() != pool.prefix_len()
            || !pool.contains(&address)
            || [pool.network(), self.server6.addr()].contains(&address);
        wrong.then(|| format!("address {net} is not one of {pool} for clients"))
    }
}

fn differ<T: PartialEq + fmt::Debug>(faults: &mut Vec<String>, what: &str, is: &T, should: &T) {
    if is != should {
        faults.push(format!("{what} {is:?} and not {should:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected {
            server4: "10.88.0.1/16".parse().unwrap(),
            server6: "fd88::1/64".parse().unwrap(),
            routes4: vec!["10.99.0.0/16".parse().unwrap()],
            routes6: vec!["fd99::/64".parse().unwrap()],
            dns: vec!["dhcp-option DNS 10.88.0.1".into()],
            mtu: 1400,
        }
    }

    fn client(number: u16) -> AppliedConfig {
        let [high, low] = (number + 2).to_be_bytes();
        AppliedConfig {
            client: format!("client {number}"),
            ipv4: Some(format!("10.88.{high}.{low}/16").parse().unwrap()),
            ipv6: Some(format!("fd88::{:x}/64", u32::from(number) + 0x1000).parse().unwrap()),
            gateway4: Some("10.88.0.1".parse().unwrap()),
            gateway6: Some("fd88::1".parse().unwrap()),
            routes4: vec!["10.99.0.0/16".parse().unwrap()],
            routes6: vec!["fd99::/64".parse().unwrap()],
            dns: vec!["dhcp-option DNS 10.88.0.1".into()],
            mtu: Some(1400),
        }
    }

    #[test]
    fn finds_nothing_where_all_is_well() {
        let clients: Vec<AppliedConfig> = (0..500).map(client).collect();
        let findings = check(&expected(), &clients, &clients);
        assert_eq!(findings, Findings { looked_at: 500, ..Findings::default() });
    }

    #[test]
    fn names_each_fault() {
        type Spoil = fn(&mut AppliedConfig);
        let faults: [(Spoil, &str); 10] = [
            (|c| c.ipv4 = None, "no IPv4 address"),
            (|c| c.ipv4 = "10.89.0.9/16".parse().ok(), "10.89.0.9/16 is not one of 10.88.0.0/16"),
            (|c| c.ipv4 = "10.88.0.9/24".parse().ok(), "10.88.0.9/24 is not one of"),
            (|c| c.ipv4 = "10.88.0.1/16".parse().ok(), "10.88.0.1/16 is not one of"),
            (|c| c.ipv6 = "fd88::1/64".parse().ok(), "fd88::1/64 is not one of"),
            (|c| c.gateway4 = None, "gateway None and not Some(10.88.0.1)"),
            (
                |c| c.routes4 = vec!["10.98.0.0/16".parse().unwrap()],
                "routes [10.98.0.0/16] and not [10.99.0.0/16]",
            ),
            (|c| c.routes6.clear(), "IPv6 routes [] and not [fd99::/64]"),
            (|c| c.dns.clear(), "DNS [] and not"),
            (|c| c.mtu = Some(1500), "MTU Some(1500) and not Some(1400)"),
        ];
        for (spoil, says) in faults {
            let mut clients: Vec<AppliedConfig> = (0..3).map(client).collect();
            spoil(&mut clients[1]);
            let findings = check(&expected(), &clients, &clients);
            assert_eq!(findings.misconfigured.len(), 1, "{says}: {findings:?}");
            let line = &findings.misconfigured[0];
            assert!(line.starts_with("client 1: ") && line.contains(says), "{line}");
        }
    }

    #[test]
    fn names_who_shares_an_address() {
        let mut clients: Vec<AppliedConfig> = (0..4).map(client).collect();
        clients[3].ipv4 = clients[1].ipv4;
        let findings = check(&expected(), &clients, &clients);
        assert_eq!(findings.duplicates, ["10.88.0.3: client 1, client 3"]);
        assert!(findings.misconfigured.is_empty(), "{findings:?}");
        let one_after_the_other = check(&expected(), &clients, clients.get(..3).unwrap());
        assert_eq!(one_after_the_other, Findings { looked_at: 4, ..Findings::default() });
    }
}
