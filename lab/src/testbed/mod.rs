//! The testbed of a trial: hosts (network namespaces) and the veth pairs between them.

mod counters;
mod database;
mod frames;
mod relay;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use adit_sim::Impairment;
use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_testbed::net::{self, Host, Namespace, Offload};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub(crate) use counters::Counters;
pub use database::{Database, MOST_IDLE, ROLE};
pub use relay::{Relay, RelayCounters};

use crate::subject::MemberPath;

/// The offloads that the ends of the veth pairs leave to each other.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum LinkMode {
    /// The default of veth: super-packets cross the veth pair whole.
    Offload,
    /// Every packet crosses separately, and the receiver's kernel merges them again, as with a network card with GRO.
    WireGro,
    /// Every packet crosses separately and is not merged.
    Wire,
}

impl fmt::Display for LinkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Offload => "offload",
            Self::WireGro => "wire-gro",
            Self::Wire => "wire",
        })
    }
}

impl LinkMode {
    pub(crate) fn offload(self) -> Offload {
        match self {
            Self::Offload => Offload::All,
            Self::WireGro => Offload::WireGro,
            Self::Wire => Offload::Wire,
        }
    }
}

/// The packets that the kernel has dropped so far, in all namespaces together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// Datagrams dropped at full socket buffers, in both directions, IPv4 and IPv6.
    pub sockets: u64,
    /// Packets dropped at TUN devices.
    pub tun: u64,
    /// Packets dropped at the ends of the veth pairs.
    pub veths: u64,
}

impl Drops {
    /// Adds the drops of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            sockets: self.sockets + other.sockets,
            tun: self.tun + other.tun,
            veths: self.veths + other.veths,
        }
    }

    /// Returns the drops since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            sockets: self.sockets.saturating_sub(earlier.sockets),
            tun: self.tun.saturating_sub(earlier.tun),
            veths: self.veths.saturating_sub(earlier.veths),
        }
    }
}

/// The maximum number of clients' hosts in a star.
pub const MAX_CLIENTS: u16 = 250;

/// A server and its clients, joined by veth pairs.
#[derive(Debug)]
pub struct Testbed {
    // Declared first, so that the relay ends before the devices that it reads are removed with their namespaces.
    relay: Option<Relay>,
    // Declared before the hosts, because open files keep a namespace alive.
    counters: Arc<Counters>,
    mode: LinkMode,
    plan: Plan,
    /// The host of the server.
    pub server: Namespace,
    /// The hosts of the clients, at least one.
    pub clients: Vec<Namespace>,
    switch: Option<Namespace>,
}

/// The address plan of the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// 192.0.2.0/24.
    Pair,
    /// 198.18.0.0/15, the network for benchmarks (RFC 2544), with room for many hosts.
    Star,
}

impl Plan {
    /// Returns the server's address; IPv6 uses 2001:db8::/64 in both plans.
    fn server(self, v6: bool) -> IpAddr {
        match self {
            _ if v6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
            Self::Pair => Ipv4Addr::new(192, 0, 2, 1).into(),
            Self::Star => Ipv4Addr::new(198, 18, 0, 1).into(),
        }
    }

    /// Returns a client's address; `client` counts from 0.
    fn client(self, client: u16, v6: bool) -> IpAddr {
        let number = client + 1;
        let [high, low] = number.to_be_bytes();
        match self {
            Self::Pair if v6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number + 1).into(),
            Self::Pair => Ipv4Addr::new(192, 0, 2, low.saturating_add(1)).into(),
            Self::Star if v6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 1, number).into(),
            Self::Star => Ipv4Addr::new(198, 18, high + 1, low).into(),
        }
    }

    /// Returns both addresses of a host with their networks. `None` means the server.
    fn addresses(self, client: Option<u16>) -> Result<Vec<IpNet>> {
        let short = match self {
            Self::Pair => 24,
            Self::Star => 15,
        };
        let net = |v6, length| {
            let address = client.map_or_else(|| self.server(v6), |n| self.client(n, v6));
            IpNet::new(address, length).context("a prefix length")
        };
        Ok(vec![net(false, short)?, net(true, 64)?])
    }
}

impl Testbed {
    /// Creates one client (192.0.2.2, 2001:db8::2) and one veth pair to the server (192.0.2.1, 2001:db8::1).
    ///
    /// # Errors
    /// The kernel or `ip` refused; the error includes the message.
    pub fn pair(mode: LinkMode) -> Result<Self> {
        let (server, client) = ends()?;
        net::veth_pair(&server, &client)?;
        net::configure_veth(&server, &Plan::Pair.addresses(None)?, mode.offload())?;
        net::configure_veth(&client, &Plan::Pair.addresses(Some(0))?, mode.offload())?;
        net::wait_for_carriers(&[&server, &client])?;
        Self::new(Plan::Pair, mode, server, vec![client], None, None)
    }

    /// Creates 1 to [`MAX_CLIENTS`] clients' hosts (198.18.1.1 and up) and the server's (198.18.0.1), connected by a
    /// switch that isolates the clients from each other. The mode is set at both ends of all veth pairs.
    ///
    /// # Errors
    /// As [`Testbed::pair`].
    pub fn star(clients: u16, mode: LinkMode) -> Result<Self> {
        ensure((1..=MAX_CLIENTS).contains(&clients), || {
            format!("a star has 1 to {MAX_CLIENTS} clients' hosts, not {clients}")
        })?;
        let mut hosts: Vec<Host> = vec![("server".to_owned(), Plan::Star.addresses(None)?)];
        for client in 0..clients {
            hosts.push(("client".to_owned(), Plan::Star.addresses(Some(client))?));
        }
        let (switch, mut all) = net::star(&hosts, mode.offload())?;
        let server = all.remove(0);
        Self::new(Plan::Star, mode, server, all, Some(switch), None)
    }

    /// Creates two clients and the server as [`Testbed::star`] does; the clients reach each other only on a direct path.
    ///
    /// # Errors
    /// As [`Testbed::pair`].
    pub fn members(mode: LinkMode, path: MemberPath) -> Result<Self> {
        let testbed = Self::star(2, mode)?;
        if path == MemberPath::Direct {
            net::join_ports(testbed.switch.as_ref().context("a star without a switch")?, 2)?;
        }
        Ok(testbed)
    }

    /// Creates one client, the server and a [`Relay`] between them that impairs packets; the addresses are those of [`Testbed::pair`].
    /// `impairment` is that from the client, then that from the server; the same seed gives the same impairment. The mode is
    /// [`LinkMode::Wire`], because the relay moves single packets.
    ///
    /// # Errors
    /// As [`Testbed::pair`], or there is no TUN driver.
    pub fn line(impairment: [Impairment; 2], seed: u64) -> Result<Self> {
        let (server, client) = ends()?;
        let devices = [relay::end(&client)?, relay::end(&server)?];
        // The devices are made without any offloads that could be switched off.
        net::configure_veth(&server, &Plan::Pair.addresses(None)?, Offload::All)?;
        net::configure_veth(&client, &Plan::Pair.addresses(Some(0))?, Offload::All)?;
        // The relay starts when both are up; otherwise the kernel's first packets would be refused.
        let relay = Relay::start(devices, impairment, seed)?;
        Self::new(Plan::Pair, LinkMode::Wire, server, vec![client], None, Some(relay))
    }

    fn new(
        plan: Plan,
        mode: LinkMode,
        server: Namespace,
        clients: Vec<Namespace>,
        switch: Option<Namespace>,
        relay: Option<Relay>,
    ) -> Result<Self> {
        let counters = Counters::open(std::iter::once(&server).chain(&clients))?;
        let counters = Arc::new(counters);
        Ok(Self { relay, counters, mode, plan, server, clients, switch })
    }

    /// Returns the link mode of the veth pairs.
    pub fn mode(&self) -> LinkMode {
        self.mode
    }

    /// Returns the server's outer address.
    pub fn server_outer(&self, v6: bool) -> IpAddr {
        self.plan.server(v6)
    }

    /// Returns the outer address of a client, counted from 0.
    pub fn client_outer(&self, client: usize, v6: bool) -> IpAddr {
        // There are never more than MAX_CLIENTS.
        self.plan.client(u16::try_from(client).unwrap_or(MAX_CLIENTS), v6)
    }

    /// Returns the largest frame that leaves the first client's host while `while_running` sends, in bytes including
    /// the Ethernet header (which a line's devices do not have). Only the first few thousand frames are examined.
    ///
    /// # Errors
    /// No frame was captured, or `while_running` failed.
    pub fn largest_frame(&self, while_running: impl FnOnce() -> Result<()>) -> Result<u64> {
        let client = self.clients.first().context("a testbed without clients")?;
        let tap = frames::Tap::start(client)?;
        let outcome = while_running();
        let largest = tap.finish();
        outcome?;
        largest
    }

    /// Checks whether a largest frame of this many bytes is possible in this testbed's mode.
    ///
    /// # Errors
    /// It is not possible, so the label of the testbed would be wrong.
    pub fn check_mode(&self, largest: u64) -> std::result::Result<(), String> {
        frames::check(self.mode, largest)
    }

    /// Returns the middle host of a [`Testbed::line`].
    pub fn relay(&self) -> Option<&Relay> {
        self.relay.as_ref()
    }

    /// Returns the kernel's drops so far on the hosts, without the switch.
    ///
    /// # Errors
    /// The counters could not be read.
    pub fn drops(&self) -> Result<Drops> {
        self.counters.total()
    }

    /// Returns the counters of all hosts, the server's first.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

/// Returns the namespaces of a server and one client.
fn ends() -> Result<(Namespace, Namespace)> {
    let [server, client] = Namespace::several(&["server", "client"])?
        .try_into()
        .map_err(|_| Failure::from("two namespaces were asked for"))?;
    Ok((server, client))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_hosts_share_an_address() {
        for v6 in [false, true] {
            let mut all: BTreeSet<IpAddr> =
                (0..MAX_CLIENTS).map(|n| Plan::Star.client(n, v6)).collect();
            all.insert(Plan::Star.server(v6));
            assert_eq!(all.len(), usize::from(MAX_CLIENTS) + 1);
            let nets = Plan::Star.addresses(None).unwrap();
            assert!(all.iter().all(|ip| nets.iter().any(|net| net.contains(ip))));
        }
        assert_eq!(Plan::Star.client(249, false).to_string(), "198.18.1.250");
        assert_eq!(Plan::Pair.client(0, false).to_string(), "192.0.2.2");
        assert_eq!(Plan::Pair.client(0, true).to_string(), "2001:db8::2");
    }

    #[test]
    fn what_was_dropped_since_then() {
        let (earlier, more) =
            (Drops { sockets: 1, tun: 2, veths: 3 }, Drops { sockets: 10, tun: 20, veths: 30 });
        assert_eq!(earlier.plus(more).since(earlier), more);
    }
}
