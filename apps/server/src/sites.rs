//! The networks behind clients: what the server routes into the tunnel, and which clients get routes to them.

use std::collections::HashMap;
use std::time::Duration;

use adit_engine::Rate;
use adit_engine::command::PeerRates;
use adit_openvpn::server::ClientUpdate;
use adit_pki::{Client, ClientRate, ClientState};
use adit_runtime::fault::Fault;
use adit_runtime::netinfo;
use ipnet::IpNet;

use super::settings::{Reach, Settings};

/// The bytes that a rate lets through at once: two super-packets, with which one burst of a TCP connection passes.
const LEAST_BURST: u64 = 128 << 10;
/// The share of a second whose bytes a fast client may send at once.
const BURST_SHARE: u64 = 8;

/// The part of the settings on which the networks behind clients depend.
#[derive(Clone, Debug, Default)]
pub(super) struct SiteRules {
    /// The networks that no client can have behind it, with the keys that name them.
    taken: Vec<(&'static str, IpNet)>,
    /// Whether the tunnel carries IPv6.
    ipv6: bool,
    /// Whether clients get routes to each other's networks. They need none with a full tunnel, and could not use any if no packet may pass
    /// between clients.
    pushes: bool,
}

impl SiteRules {
    pub(super) fn of(settings: &Settings) -> Self {
        let routes: &[IpNet] = match &settings.reach {
            Reach::Full => &[],
            Reach::Networks(routes) => routes,
        };
        let inside = [
            Some(("network", IpNet::V4(settings.network))),
            settings.network6.map(|network| ("network6", IpNet::V6(network))),
        ];
        let taken = inside.into_iter().flatten();
        Self {
            taken: taken.chain(routes.iter().map(|route| ("routes", *route))).collect(),
            ipv6: settings.network6.is_some(),
            pushes: settings.reach != Reach::Full
                && (settings.client_to_client || settings.filter.is_some()),
        }
    }

    /// Returns whether clients get routes to each other's networks.
    pub(super) fn pushes(&self) -> bool {
        self.pushes
    }

    /// Returns the reason why a network cannot be behind a client.
    fn conflict(&self, network: &IpNet) -> Option<String> {
        if network.addr().is_ipv6() && !self.ipv6 {
            return Some(format!(
                "{network}: the tunnel carries no IPv6; set network6 in server.toml, and restart"
            ));
        }
        let (key, other) = self.taken.iter().find(|(_, other)| netinfo::overlap(other, network))?;
        Some(format!("{network} overlaps {key} {other} in server.toml; choose another"))
    }

    /// Refuses networks that the server cannot route to a client.
    ///
    /// # Errors
    /// A network overlaps one of the tunnel, of `routes`, or of this machine.
    pub(super) fn check(&self, networks: &[IpNet], local: &[IpNet]) -> Result<(), Fault> {
        for network in networks {
            if let Some(why) = self.conflict(network) {
                return Err(Fault::operator(why));
            }
            if let Some(other) = local.iter().find(|other| netinfo::overlap(other, network)) {
                return Err(Fault::operator(format!(
                    "{network} overlaps {other}, which this machine reaches without the tunnel; choose another"
                )));
            }
        }
        Ok(())
    }

    /// Returns the networks behind one client, without those that conflict with settings that were changed later.
    fn behind<'a>(&'a self, client: &'a Client) -> impl Iterator<Item = IpNet> + 'a {
        client.terms.networks.iter().copied().filter(|network| self.conflict(network).is_none())
    }

    /// Returns the networks behind all clients, in a fixed order.
    pub(super) fn networks(&self, clients: &[Client]) -> Vec<IpNet> {
        let living = clients.iter().filter(|client| client.state != ClientState::Revoked);
        let mut networks: Vec<IpNet> = living.flat_map(|client| self.behind(client)).collect();
        networks.sort();
        networks.dedup();
        networks
    }

    /// Logs the networks that are left out.
    pub(super) fn warn_of_conflicts(&self, clients: &[Client]) {
        for client in clients.iter().filter(|client| client.state != ClientState::Revoked) {
            for why in client.terms.networks.iter().filter_map(|network| self.conflict(network)) {
                tracing::warn!("{}: network not routed: {why}", client.name);
            }
        }
    }

    /// Returns the routes that are pushed to all clients. The engine leaves out those to a client's own networks.
    pub(super) fn push(&self, clients: &[Client]) -> Vec<String> {
        if !self.pushes {
            return Vec::new();
        }
        self.networks(clients).iter().map(route).collect()
    }

    /// Returns the parameters of one client that can change within its session. `clients` are at least those with networks.
    pub(super) fn update<'a>(
        &self,
        client: &Client,
        clients: impl IntoIterator<Item = &'a Client>,
    ) -> ClientUpdate {
        let hidden = clients.into_iter().filter(|other| {
            other.state != ClientState::Revoked
                && other.terms.is_hidden_from(client.name.as_str(), &client.groups)
        });
        let hidden = hidden.flat_map(|other| self.behind(other).map(|network| route(&network)));
        ClientUpdate {
            iroutes: self.behind(client).collect(),
            push_remove: if self.pushes { hidden.collect() } else { Vec::new() },
            rates: client.terms.rate.map(rates).unwrap_or_default(),
        }
    }

    /// Returns the parameters of all clients, by name.
    pub(super) fn updates(&self, clients: &[Client]) -> HashMap<String, ClientUpdate> {
        let sites: Vec<&Client> =
            clients.iter().filter(|client| !client.terms.networks.is_empty()).collect();
        let living = clients.iter().filter(|client| client.state != ClientState::Revoked);
        let update =
            |client: &Client| (client.name.to_string(), self.update(client, sites.iter().copied()));
        living.map(update).collect()
    }
}

/// Returns the option that pushes a route to a network.
pub(super) fn route(network: &IpNet) -> String {
    match network {
        IpNet::V4(net) => format!("route {} {}", net.addr(), net.netmask()),
        IpNet::V6(net) => format!("route-ipv6 {net}"),
    }
}

/// Converts bits per second to the data plane's limits.
fn rates(rate: ClientRate) -> PeerRates {
    let limit = |bits: u64| {
        let bytes = (bits / 8).max(1);
        let burst = (bytes / BURST_SHARE).max(LEAST_BURST);
        let nanos = u128::from(burst) * 1_000_000_000 / u128::from(bytes);
        Rate::new(burst, Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    };
    PeerRates { received: rate.up.map(limit), sent: rate.down.map(limit) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use adit_pki::ClientTerms;

    use super::*;

    fn rules(lines: &str) -> SiteRules {
        let text = format!("host = \"h\"\nnetwork = \"10.9.9.0/24\"\n{lines}");
        SiteRules::of(&Settings::parse(&text, Path::new("server.toml")).unwrap())
    }

    fn client(name: &str, networks: &[&str], hidden_from: &[&str]) -> Client {
        Client {
            name: name.parse().unwrap(),
            identity: None,
            serial: "1".into(),
            created: 0,
            expires: 0,
            state: ClientState::Active,
            revoked: None,
            address4: None,
            address6: None,
            groups: Vec::new(),
            terms: ClientTerms {
                networks: networks.iter().map(|net| net.parse().unwrap()).collect(),
                hidden_from: hidden_from.iter().map(|text| text.parse().unwrap()).collect(),
                ..ClientTerms::default()
            },
            remote: None,
            former: Vec::new(),
        }
    }

    /// Each network is refused for one reason.
    #[test]
    fn a_network_that_is_elsewhere_already_cannot_be_behind_a_client() {
        let rules = rules("network6 = \"fd12::/64\"\nroutes = [\"192.168.7.0/24\"]");
        let local = ["192.168.8.0/24".parse().unwrap()];
        let check = |network: &str| rules.check(&[network.parse().unwrap()], &local);
        check("192.168.1.0/24").unwrap();
        check("fd13::/64").unwrap();
        for (bad, why) in [
            ("10.0.0.0/8", "overlaps network 10.9.9.0/24"),
            ("fd12::/80", "overlaps network6"),
            ("192.168.7.128/25", "overlaps routes"),
            ("192.168.8.0/30", "this machine reaches"),
        ] {
            let fault = check(bad).unwrap_err().to_string();
            assert!(fault.contains(why), "{bad}: {fault}");
        }
        let without = self::rules("");
        let fault = without.check(&["fd13::/64".parse().unwrap()], &[]).unwrap_err().to_string();
        assert!(fault.contains("carries no IPv6"), "{fault}");
    }

    #[test]
    fn routes_go_to_those_that_can_use_them_and_see_them() {
        let office = client("office", &["192.168.1.0/24"], &["@client:phone", "@group:guests"]);
        let guest = Client { groups: vec!["guests".parse().unwrap()], ..client("g", &[], &[]) };
        let all = [office, client("phone", &[], &[]), guest, client("laptop", &[], &[])];
        let line = "route 192.168.1.0 255.255.255.0".to_owned();
        assert!(rules("").push(&all).is_empty(), "no packet passes between clients");
        assert!(rules("client-to-client = true\nfull-tunnel = true").push(&all).is_empty());
        let rules = rules("client-to-client = true");
        assert_eq!(rules.push(&all).concat(), line);
        let removed = |name: &str| rules.updates(&all)[name].push_remove.clone();
        assert_eq!((removed("phone"), removed("g")), (vec![line.clone()], vec![line]));
        assert!(removed("laptop").is_empty());
        assert_eq!(rules.updates(&all)["office"].iroutes, all[0].terms.networks);
    }

    #[test]
    fn a_conflict_that_came_later_and_a_revoked_client_leave_a_network_out() {
        let revoked =
            Client { state: ClientState::Revoked, ..client("old", &["192.168.2.0/24"], &[]) };
        let all = [client("a", &["192.168.1.0/24", "192.168.3.0/24"], &[]), revoked];
        let rules = rules("routes = [\"192.168.1.0/24\"]\nclient-to-client = true");
        let left: Vec<IpNet> = vec!["192.168.3.0/24".parse().unwrap()];
        assert_eq!(rules.networks(&all), left);
        assert_eq!(rules.updates(&all)["a"].iroutes, left);
    }

    #[test]
    fn a_rate_in_bits_is_a_limit_in_bytes() {
        for bits in [10_000, 8_000_000, 1_000_000_000] {
            let limits = rates(ClientRate { up: Some(bits), down: None });
            let limit = limits.received.unwrap();
            let most = limit.most_in(Duration::from_secs(100));
            let wanted = bits / 8 * 100 + (bits / 64).max(LEAST_BURST);
            assert!(most.abs_diff(wanted) <= wanted / 20, "{bits}: {most} {wanted}");
            assert_eq!(limits.sent, None);
        }
    }
}
