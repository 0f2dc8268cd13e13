//! Tests of a proxy between the laptop and the server. Its address stays outside the tunnel.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Control::Fails;
use super::links::{LINK, OLD_NETWORK};
use super::{BOTH, ConnectedLaptop, Laptop, Scenario, Setup};
use crate::failure::Result;
use crate::laptop::{Access, Internet};
use crate::net::ip;
use crate::process::Daemon;
use crate::scenario::proxies::{HTTP_PORT, LOGIN, SOCKS_PORT, dante, tinyproxy, wait_for_port};

/// The scenarios of this module.
pub(super) const SCENARIOS: &[Scenario] = &[
    ("http-proxy-link-flap", BOTH, Fails(LINK), |laptop| flap(laptop, Kind::Http)),
    ("socks-proxy-udp-link-flap", BOTH, Fails(LINK), |laptop| flap(laptop, Kind::SocksUdp)),
    ("http-proxy-change-of-network", BOTH, Fails(OLD_NETWORK), |laptop| {
        change_network(laptop, Kind::Http)
    }),
    ("socks-proxy-udp-change-of-network", BOTH, Fails(OLD_NETWORK), |laptop| {
        change_network(laptop, Kind::SocksUdp)
    }),
];

/// The proxy's address, next to the host outside.
const PROXY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 90);

/// The server accepts the tunnel's packets only from the proxy's network.
const GATE: &str = "add table inet gate; add chain inet gate input { type filter hook input priority 0; }; \
     add rule inet gate input meta l4proto { tcp, udp } th dport 1194 ip saddr != 192.0.2.0/24 drop";

/// The proxy, and the tunnel's transport.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// tinyproxy and a stream.
    Http,
    /// dante and datagrams.
    SocksUdp,
}

/// Connects a laptop through a proxy, with all traffic in the tunnel.
fn connect<'a>(laptop: &'a Laptop<'a>, kind: Kind) -> Result<(ConnectedLaptop<'a>, Daemon)> {
    let setup = match kind {
        Kind::Http => Setup { listen: "tcp/1194", ..Setup::default() },
        Kind::SocksUdp => Setup::default(),
    };
    let mut proxy = None;
    let connected = laptop.connect_after(setup, |internet| {
        proxy = Some(start(laptop, internet, kind)?);
        Ok(())
    })?;
    let proxy = proxy.ok_or("no proxy was started")?;
    Ok((connected, proxy))
}

/// Starts the proxy, lets only it reach the server, and names it in the profile.
fn start(laptop: &Laptop<'_>, internet: &Internet, kind: Kind) -> Result<Daemon> {
    let outside = internet.outside();
    ip(Some(outside), [format!("address add {PROXY}/24 dev eth0")].into_iter())?;
    internet.vps.run("nft", &[GATE])?;
    let (proxy, port, line) = match kind {
        Kind::Http => {
            let login = laptop.folder.join("login");
            fs::write(&login, LOGIN)?;
            let line = format!("http-proxy {PROXY} {HTTP_PORT} {} basic", login.display());
            (tinyproxy(&laptop.folder, outside)?, HTTP_PORT, line)
        }
        Kind::SocksUdp => {
            let line = format!("socks-proxy {PROXY} {SOCKS_PORT}");
            let from = ([IpAddr::V4(PROXY), Ipv4Addr::LOCALHOST.into()], vec!["eth0".to_owned()]);
            (dante(&laptop.folder, outside, &from)?, SOCKS_PORT, line)
        }
    };
    wait_for_port(&internet.laptop, SocketAddr::new(PROXY.into(), port))?;
    let profile = fs::read_to_string(laptop.profile())?;
    fs::write(laptop.profile(), format!("{profile}\n{line}\n"))?;
    Ok(proxy)
}

/// The interface is down for three seconds.
fn flap(laptop: &Laptop<'_>, kind: Kind) -> Result<String> {
    let (laptop, _proxy) = connect(laptop, kind)?;
    laptop.flap(Access::Home)
}

/// From home to the café. The connection to the proxy does not survive the change of address, and neither does the
/// association that the proxy relays for it.
fn change_network(laptop: &Laptop<'_>, kind: Kind) -> Result<String> {
    let (laptop, _proxy) = connect(laptop, kind)?;
    laptop.change(Access::Home, Access::Cafe)
}
