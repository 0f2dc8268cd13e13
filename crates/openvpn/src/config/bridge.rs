//! Ethernet mode: `server-bridge`, `lladdr`, VLANs, and the conflicts with `dev tap`.

use std::net::Ipv4Addr;

use adit_engine::{VlanAccept, VlanId, Vlans};
use ipnet::Ipv4Net;

use super::ConfigError;
use super::options::DeviceKind;
use super::raw_config::RawConfig;
use super::reader::{Directive, Location};
use crate::server::Network4;

/// `server-bridge`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bridge {
    /// `server-bridge GATEWAY NETMASK FIRST LAST`: the server assigns addresses from the network to
    /// which its device is bridged. The device itself has no address.
    Pool {
        /// The gateway with the network's prefix length.
        gateway: Ipv4Net,
        /// First address for clients.
        first: Ipv4Addr,
        /// Last address for clients.
        last: Ipv4Addr,
    },
    /// `server-bridge`: a DHCP server in the bridged network assigns addresses and the gateway.
    Dhcp,
    /// `server-bridge nogw`: a DHCP server assigns addresses, but no gateway.
    DhcpWithoutGateway,
}

/// The arguments of `server-bridge`.
pub(super) const USAGE: &str = "[nogw | GATEWAY NETMASK FIRST LAST]";

/// Parses the arguments of `server-bridge`.
pub(super) fn bridge(d: &Directive) -> Result<Bridge, ConfigError> {
    match (d.args.len(), d.arg(0)) {
        (0, _) => return Ok(Bridge::Dhcp),
        (1, "nogw") => return Ok(Bridge::DhcpWithoutGateway),
        (4, _) => {}
        _ => {
            let usage = format!("write: server-bridge {USAGE}");
            return Err(d.error("these words make no sense", usage));
        }
    }
    let gateway = d.net4(0, 1)?;
    let (first, last) = (d.ipv4(2)?, d.ipv4(3)?);
    for address in [first, last] {
        let edge = address == gateway.network() || address == gateway.broadcast();
        if !gateway.contains(&address) || edge {
            return Err(d.error(
                format!("{address} is not an address of {}", gateway.trunc()),
                "write addresses of the bridged network",
            ));
        }
    }
    if first > last {
        return Err(d.error(
            format!("{first} is behind {last}"),
            "write the first address of the pool, then its last",
        ));
    }
    if (first..=last).contains(&gateway.addr()) {
        return Err(d.error(
            format!("the gateway {} is among the addresses for clients", gateway.addr()),
            "leave it out",
        ));
    }
    Ok(Bridge::Pool { gateway, first, last })
}

/// Parses `lladdr`: the address of a single station.
pub(super) fn mac(d: &Directive) -> Result<[u8; 6], ConfigError> {
    parse_mac(d.arg(0)).ok_or_else(|| {
        d.error(
            format!("\"{}\" is not the address of a station", d.arg(0)),
            "write six pairs of digits whose first is even: lladdr 02:00:00:00:00:01",
        )
    })
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next()?;
        let digits = part.bytes().all(|digit| digit.is_ascii_hexdigit());
        *byte = u8::from_str_radix(part, 16).ok().filter(|_| digits && part.len() <= 2)?;
    }
    let [first, ..] = bytes;
    let station = first & 1 == 0 && bytes != [0; 6];
    (parts.next().is_none() && station).then_some(bytes)
}

/// Parses `vlan-pvid`.
pub(super) fn vlan(d: &Directive) -> Result<VlanId, ConfigError> {
    d.arg(0).parse().ok().and_then(VlanId::new).ok_or_else(|| {
        d.error(format!("\"{}\" is not a VLAN", d.arg(0)), "write a number from 1 to 4094")
    })
}

/// Parses `vlan-accept`.
pub(super) fn vlan_accept(d: &Directive) -> Result<VlanAccept, ConfigError> {
    match d.arg(0) {
        "all" => Ok(VlanAccept::All),
        "tagged" => Ok(VlanAccept::Tagged),
        "untagged" => Ok(VlanAccept::Untagged),
        other => Err(d.error(format!("\"{other}\" is not known"), "write all, tagged or untagged")),
    }
}

/// Returns how a server sorts frames into VLANs.
pub(super) fn vlans(raw: &RawConfig) -> Result<Option<Vlans>, ConfigError> {
    if raw.vlan_tagging {
        let (accept, native) = (raw.vlan_accept, raw.vlan_pvid);
        return Ok(Some(Vlans {
            accept: accept.unwrap_or_default(),
            native: native.unwrap_or_default(),
        }));
    }
    for name in ["vlan-accept", "vlan-pvid"] {
        if raw.seen.contains_key(name) {
            let problem = "this server does not sort frames into VLANs";
            return Err(raw.error(name, problem, "add vlan-tagging, or remove it"));
        }
    }
    Ok(None)
}

/// Checks directives that require `dev tap` or conflict with it.
pub(super) fn check(raw: &mut RawConfig) -> Result<(), ConfigError> {
    let tap = raw.is_ethernet();
    for name in ["server-bridge", "lladdr", "vlan-tagging"] {
        if raw.seen.contains_key(name) && !tap {
            return Err(raw.error(name, "it makes sense with dev tap only", "write dev tap"));
        }
    }
    if let Some(location) = raw.gateway_dhcp.take() {
        if !tap {
            return Err(location.error(
                "route-gateway",
                "addresses come by DHCP to TAP devices only",
                "write an address",
            ));
        }
        raw.options.warnings.push(no_dhcp(&location));
    }
    let Some((bridge, location)) = raw.bridge.clone() else { return Ok(()) };
    for name in ["server", "ifconfig-pool"] {
        if raw.seen.contains_key(name) {
            return Err(location.error(
                "server-bridge",
                format!("{name} gives addresses to clients already"),
                "keep one of the two",
            ));
        }
    }
    if bridge == Bridge::Dhcp {
        raw.server.push.push("route-gateway dhcp".into());
    }
    Ok(())
}

fn no_dhcp(location: &Location) -> String {
    format!(
        "{}:{}: route-gateway dhcp: no DHCP client is started here: start one on the device",
        location.file, location.line
    )
}

impl RawConfig {
    pub(super) fn is_ethernet(&self) -> bool {
        self.options.device.kind == DeviceKind::Tap
    }

    /// Returns the clients' network in `server-bridge`, in which the server's address is the
    /// gateway's.
    pub(super) fn bridged(&self) -> Option<Network4> {
        match self.bridge {
            Some((Bridge::Pool { gateway, first, last }, _)) => {
                Some(Network4::subnet(gateway, first, last))
            }
            _ => None,
        }
    }
}

/// Parses `ifconfig` for a client, or next to `server-bridge`. With a TAP device it contains a
/// netmask.
pub(super) fn own_address(raw: &RawConfig) -> Result<Option<Ipv4Net>, ConfigError> {
    match &raw.ifconfig_pair {
        Some((local, mask, location)) if raw.is_ethernet() => {
            let net = Ipv4Net::with_netmask(*local, *mask).map_err(|_| {
                location.error(
                    "ifconfig",
                    format!("{mask} is not a netmask"),
                    "write: ifconfig ADDRESS NETMASK, as it is with dev tap",
                )
            })?;
            Ok(Some(net))
        }
        _ => Ok(None),
    }
}
