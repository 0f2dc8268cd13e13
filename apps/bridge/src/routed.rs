//! Creates the router of a bridge (`--routed`) from its command-line options.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_bridge::routed::{Mac, PortSettings, Prefix, Route, Router, RouterDrop, SettingsError};
use adit_bridge::{Port, PortSpec, Side};

use super::open_ports::Ports;
use adit_runtime::fault::Fault;

/// The options of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutedOptions {
    /// The router's addresses.
    pub addresses: Vec<PortAddress>,
    /// The routes to networks that are not directly connected.
    pub routes: Vec<RouteArg>,
    /// The neighbours with configured MAC addresses. They are not resolved.
    pub neighbours: Vec<NeighbourArg>,
}

/// A neighbour in the form `ADDRESS=MAC`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NeighbourArg {
    address: IpAddr,
    mac: Mac,
}

impl FromStr for NeighbourArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: write it like 10.0.1.5=02:00:00:00:00:05");
        let (address, mac) = text.split_once('=').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        Ok(Self { address, mac: mac.parse().map_err(|_| wrong())? })
    }
}

/// An address in the form `PORT=ADDRESS/LENGTH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddress {
    port: String,
    address: Prefix,
}

impl FromStr for PortAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, address) = text
            .split_once('=')
            .ok_or("write the port's name and its address, like eth1=10.0.1.1/24")?;
        let port = port.parse::<PortSpec>()?.name().to_owned();
        if !address.contains('/') {
            return Err(format!("{address:?} has no prefix length: write it like 10.0.1.1/24"));
        }
        Ok(Self { port, address: address.parse()? })
    }
}

/// A route in the form `NETWORK via NEIGHBOUR`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RouteArg(Route);

impl FromStr for RouteArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let &[network, "via", via] = words.as_slice() else {
            return Err("write it like '10.9.0.0/16 via 10.0.2.254', in quotes".into());
        };
        let via: IpAddr = via.parse().map_err(|_| format!("{via:?} is no address"))?;
        let to = match (network, via) {
            ("default", IpAddr::V4(_)) => Prefix { address: IpAddr::from([0; 4]), len: 0 },
            ("default", IpAddr::V6(_)) => Prefix { address: IpAddr::from([0; 16]), len: 0 },
            _ => network.parse()?,
        };
        Ok(Self(Route { to, via }))
    }
}

/// A running router.
pub(super) struct Routed {
    router: Arc<Mutex<Router>>,
}

impl Routed {
    /// Creates a router between open ports.
    ///
    /// # Errors
    /// Fails if an address belongs to no port, or settings contradict each other.
    pub(crate) async fn open(
        options: &RoutedOptions,
        ports: &[Port; 2],
        opener: &Ports,
    ) -> Result<Self, Fault> {
        for PortAddress { port, address } in &options.addresses {
            if ports.iter().all(|known| known.name != *port) {
                let [a, b] = ports.each_ref().map(|port| port.name.as_str());
                return Err(Fault::operator(format!(
                    "--address {port}={address}: there is no port {port}; the ports are {a} and {b}"
                )));
            }
        }
        let [a, b] = ports;
        let of = async |port: &Port, side| {
            let station = opener.station(side, port).await?;
            let own = options.addresses.iter().filter(|address| address.port == port.name);
            let addresses = own.map(|own| own.address).collect();
            Ok::<_, Fault>(PortSettings { mac: station.mac, mtu: station.mtu, addresses })
        };
        let settings = [of(a, Side::A).await?, of(b, Side::B).await?];
        let routes: Vec<Route> = options.routes.iter().map(|route| route.0).collect();
        let wrong = |error: SettingsError| {
            let [a, b] = ports.each_ref().map(|port| port.name.as_str());
            Fault::operator(format!("{error} (port A is {a}, port B is {b})"))
        };
        let mut router = Router::new(settings, &routes).map_err(wrong)?;
        for NeighbourArg { address, mac } in &options.neighbours {
            router.fix_neighbour(*address, *mac).map_err(wrong)?;
        }
        Ok(Self { router: Arc::new(Mutex::new(router)) })
    }

    /// Returns the part that the workers use.
    pub(crate) fn router(&self) -> Arc<Mutex<Router>> {
        Arc::clone(&self.router)
    }

    /// Handles a port that exists again.
    pub(crate) async fn attach(
        &self,
        side: Side,
        port: &Port,
        opener: &Ports,
    ) -> Result<(), Fault> {
        let station = opener.station(side, port).await?;
        self.lock().attach(side, station.mac, station.mtu);
        Ok(())
    }

    /// Sets the MTU of a port. Longer packets are refused with "packet too big".
    pub(crate) fn set_mtu(&self, side: Side, mtu: u32) {
        self.lock().set_mtu(side, mtu);
    }

    /// Adds the numbers of packets that were not forwarded, by reason.
    pub(crate) fn report(&self, drops: &mut BTreeMap<String, u64>) {
        let stats = self.lock().stats();
        for (why, count) in
            RouterDrop::ALL.iter().zip(stats.dropped).filter(|(_, count)| *count > 0)
        {
            *drops.entry(why.name().to_owned()).or_insert(0) += count;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Router> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_routes_are_read_as_they_are_written() {
        let read: PortAddress = "tap:private=10.0.1.1/24".parse().unwrap();
        assert_eq!(
            (read.port.as_str(), read.address.to_string()),
            ("private", "10.0.1.1/24".into())
        );
        for bad in
            ["10.0.1.1/24", "eth1=10.0.1.1", "eth1=x/24", "eth1=10.0.0.1/33", "a/b=10.0.0.1/8"]
        {
            assert!(bad.parse::<PortAddress>().is_err(), "{bad}");
        }
        let route = |text: &str| text.parse::<RouteArg>().map(|route| route.0.to.to_string());
        assert_eq!(route("10.9.0.0/16 via 10.0.2.254"), Ok("10.9.0.0/16".into()));
        assert_eq!(route("default via 10.0.2.254"), Ok("0.0.0.0/0".into()));
        assert_eq!(route("default via fd00::1"), Ok("::/0".into()));
        let neighbour: NeighbourArg = "fd00:1::5=02:00:00:00:00:05".parse().unwrap();
        assert_eq!(neighbour.mac, Mac([2, 0, 0, 0, 0, 5]));
        for bad in
            ["10.0.1.5", "10.0.1.5=x", "x=02:00:00:00:00:05", "10.0.1.0/24=02:00:00:00:00:05"]
        {
            assert!(bad.parse::<NeighbourArg>().unwrap_err().contains("write it like"), "{bad}");
        }
        for bad in
            ["", "10.9.0.0/16", "10.9.0.0/16 by 10.0.2.254", "x via 10.0.2.254", "default via x"]
        {
            assert!(route(bad).is_err(), "{bad}");
        }
    }
}
