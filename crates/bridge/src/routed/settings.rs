//! The settings of a router: addresses and routes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use adit_wire::ethernet::Mac;

use super::neighbour::MAX_FIXED;
use crate::port::Side;

/// The maximum number of addresses of one port.
pub const MAX_ADDRESSES: usize = 64;
/// The maximum number of routes, not counting connected networks.
pub const MAX_ROUTES: usize = 256;

/// A network: an address and its prefix length.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Prefix {
    /// An address in it.
    pub address: IpAddr,
    /// The prefix length.
    pub len: u8,
}

impl Prefix {
    /// Returns whether an address is in the network.
    pub fn contains(&self, other: IpAddr) -> bool {
        let (address, other, width) = match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), b.to_bits().into(), 32u8),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
            _ => return false,
        };
        let shift = u32::from(width.saturating_sub(self.len));
        let same: u128 = address ^ other;
        same.checked_shr(shift).unwrap_or(0) == 0
    }

    fn overlaps(&self, other: &Self) -> bool {
        if self.len <= other.len {
            self.contains(other.address)
        } else {
            other.contains(self.address)
        }
    }

    /// Returns whether an address is the network's IPv4 broadcast address or its all-zeros address; a network in which
    /// every address is a host's has neither (RFC 3021).
    pub(super) fn is_broadcast(&self, other: IpAddr) -> bool {
        let (IpAddr::V4(_), IpAddr::V4(other_v4)) = (self.address, other) else { return false };
        if self.len >= 31 || !self.contains(other) {
            return false;
        }
        let hosts = u32::MAX.checked_shr(self.len.into()).unwrap_or(0);
        matches!(other_v4.to_bits() & hosts, 0) || other_v4.to_bits() & hosts == hosts
    }

    /// Returns whether host bits are set.
    fn has_host_bits(&self) -> bool {
        match self.address {
            IpAddr::V4(a) => a.to_bits().checked_shl(self.len.into()).unwrap_or(0) != 0,
            IpAddr::V6(a) => a.to_bits().checked_shl(self.len.into()).unwrap_or(0) != 0,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for Prefix {
    type Err = String;

    /// Parses `10.0.1.1/24`; a plain address has the full prefix length.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no network; write one like 10.0.1.0/24 or fd00:1::/64");
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let digits = |len: &&str| len.bytes().all(|byte| byte.is_ascii_digit());
        let len = match len {
            Some(len) => {
                Some(len).filter(digits).and_then(|len| len.parse().ok()).ok_or_else(bad)?
            }
            None => width,
        };
        if len > width { Err(bad()) } else { Ok(Self { address, len }) }
    }
}

/// A route to a network that is not connected.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Route {
    /// The network.
    pub to: Prefix,
    /// The neighbour that forwards to it.
    pub via: IpAddr,
}

/// The router's settings for one port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortSettings {
    /// The link address of the router on this port.
    pub mac: Mac,
    /// The length of the longest packet.
    pub mtu: u32,
    /// The port's addresses, with the networks that are connected there. The first of a family is the source of errors.
    /// A link-local address is derived from `mac`.
    pub addresses: Vec<Prefix>,
}

impl PortSettings {
    /// Returns the link-local address (RFC 4291 appendix A).
    pub(super) fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac.0;
        let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(id))
    }
}

/// The reason why settings are invalid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SettingsError {
    /// A port has no address.
    NoAddress(Side),
    /// More than [`MAX_ADDRESSES`] addresses or [`MAX_ROUTES`] routes.
    TooMany,
    /// An address that no host can have.
    NotAHost(Prefix),
    /// The networks of the two ports, or of two addresses, share addresses.
    Overlap(Prefix, Prefix),
    /// A route to a network whose address has host bits set.
    HostBits(Prefix),
    /// Two routes to the same network.
    Twice(Prefix),
    /// A route via a gateway that is not in a connected network, or is the router itself.
    NotANeighbour(IpAddr),
    /// A route of one family via a gateway of another.
    Families(Route),
    /// A neighbour that is in no connected network, is the router itself, or has a group address.
    NoSuchNeighbour(IpAddr, Mac),
    /// More than [`MAX_FIXED`](super::MAX_FIXED) fixed neighbours.
    TooManyNeighbours,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchNeighbour(address, mac) => {
                write!(f, "{address}={mac}: no neighbour in a connected network can have these")
            }
            Self::TooManyNeighbours => write!(f, "too many neighbours: {MAX_FIXED} at most"),
            Self::NoAddress(side) => write!(
                f,
                "port {side:?} has no address: give it one with --address PORT=10.0.1.1/24"
            ),
            Self::TooMany => write!(
                f,
                "too many: a port has up to {MAX_ADDRESSES} addresses, a router {MAX_ROUTES} routes"
            ),
            Self::NotAHost(address) => write!(f, "{address} cannot be the address of a host"),
            Self::Overlap(a, b) => {
                write!(f, "{a} and {b} share addresses: each must lie on one side only")
            }
            Self::HostBits(network) => {
                write!(
                    f,
                    "{network} is a host's address, not a network's: a bit beyond /{} is set",
                    network.len
                )
            }
            Self::Twice(network) => write!(f, "there are two routes to {network}"),
            Self::NotANeighbour(via) => write!(
                f,
                "no route can go by way of {via}: it is not another host in a network of the ports"
            ),
            Self::Families(Route { to, via }) => {
                write!(f, "the way to {to} cannot be {via}: one is IPv4, the other IPv6")
            }
        }
    }
}

impl std::error::Error for SettingsError {}

/// The next hop of a packet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct NextHop {
    pub to: Side,
    /// The gateway, if it is not the destination itself.
    pub via: Option<IpAddr>,
}

/// All routes.
#[derive(Debug)]
pub(super) struct Routes {
    /// The known networks, the longest prefixes first.
    known: Vec<(Prefix, NextHop)>,
    connected: [Vec<Prefix>; 2],
}

impl Routes {
    pub(super) fn new(ports: &[PortSettings; 2], routes: &[Route]) -> Result<Self, SettingsError> {
        let connected = ports.each_ref().map(|port| port.addresses.clone());
        if routes.len() > MAX_ROUTES || connected.iter().any(|port| port.len() > MAX_ADDRESSES) {
            return Err(SettingsError::TooMany);
        }
        let mut this = Self { known: Vec::new(), connected };
        for (side, addresses) in Side::BOTH.into_iter().zip(this.connected.clone()) {
            if addresses.is_empty() {
                return Err(SettingsError::NoAddress(side));
            }
            for own in addresses {
                this.connect(side, own)?;
            }
        }
        for route in routes {
            this.add(route)?;
        }
        // The sort is stable; networks of equal length share no address.
        this.known.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len));
        Ok(this)
    }

    fn connect(&mut self, side: Side, own: Prefix) -> Result<(), SettingsError> {
        let host = adit_wire::icmp_error::is_host(own.address);
        if !host || is_link_local(own.address) || own.is_broadcast(own.address) || own.len == 0 {
            return Err(SettingsError::NotAHost(own));
        }
        if let Some((other, _)) = self.known.iter().find(|(other, _)| other.overlaps(&own)) {
            return Err(SettingsError::Overlap(*other, own));
        }
        self.known.push((own, NextHop { to: side, via: None }));
        Ok(())
    }

    fn add(&mut self, route: &Route) -> Result<(), SettingsError> {
        let Route { to, via } = *route;
        if to.address.is_ipv4() != via.is_ipv4() {
            return Err(SettingsError::Families(*route));
        }
        if to.has_host_bits() {
            return Err(SettingsError::HostBits(to));
        }
        if self.known.iter().any(|(other, _)| other.len == to.len && other.overlaps(&to)) {
            return Err(SettingsError::Twice(to));
        }
        let on = |side: &Side| self.is_neighbour(*side, via);
        let side = Side::BOTH.into_iter().find(on).ok_or(SettingsError::NotANeighbour(via))?;
        self.known.push((to, NextHop { to: side, via: Some(via) }));
        Ok(())
    }

    /// Returns the next hop to an address.
    pub(super) fn find(&self, address: IpAddr) -> Option<NextHop> {
        self.known.iter().find(|(prefix, _)| prefix.contains(address)).map(|(_, way)| *way)
    }

    fn networks(&self, side: Side) -> &[Prefix] {
        self.connected.get(side.index()).map_or(&[], Vec::as_slice)
    }

    /// Returns whether an address can belong to a neighbour.
    pub(super) fn is_neighbour(&self, side: Side, address: IpAddr) -> bool {
        let in_reach = |own: &Prefix| own.contains(address) && !own.is_broadcast(address);
        self.networks(side).iter().any(in_reach) && !self.is_own(side, address)
    }

    pub(super) fn is_own(&self, side: Side, address: IpAddr) -> bool {
        self.networks(side).iter().any(|own| own.address == address)
    }

    pub(super) fn is_broadcast(&self, address: IpAddr) -> bool {
        self.connected.iter().flatten().any(|own| own.is_broadcast(address))
    }

    /// Returns the router's address on a port: the one in the network that contains `near`, or else the first.
    pub(super) fn own(&self, side: Side, near: IpAddr) -> Option<IpAddr> {
        let family =
            || self.networks(side).iter().filter(|own| own.address.is_ipv4() == near.is_ipv4());
        let own = family().find(|own| own.contains(near)).or_else(|| family().next());
        own.map(|own| own.address)
    }
}

/// Returns whether an address is valid on one link only (RFC 3927, RFC 4291).
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns whether a packet to or from an address must not leave its host.
pub(super) fn is_martian(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            matches!(address.octets(), [0 | 127 | 240.., ..]) && address != Ipv4Addr::BROADCAST
        }
        IpAddr::V6(address) => address.is_loopback() || address.is_unspecified(),
    }
}
