//! Discovery of the host's addresses and networks, and of free networks.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use adit_engine::Random;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The number of attempts to find a free network. An attempt fails only if the network overlaps another one.
const TRIES: u32 = 1000;

/// The networks in 10/8 that so many homes and guides use that collisions are likely.
const CROWDED: [&str; 6] =
    ["10.0.0.0/20", "10.1.0.0/20", "10.8.0.0/16", "10.10.0.0/16", "10.42.0.0/15", "10.88.0.0/16"];

/// Returns the address from which this host reaches the outside through its default route. Sends nothing.
pub fn outside_address() -> Option<IpAddr> {
    // Documentation addresses are routed like any other, but belong to no host.
    let ways: [(SocketAddr, SocketAddr); 2] = [
        ((Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::new(192, 0, 2, 1), 9).into()),
        (
            (Ipv6Addr::UNSPECIFIED, 0).into(),
            (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into(),
        ),
    ];
    ways.into_iter().find_map(|(bind, far)| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(far).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_unspecified() && !address.is_loopback()).then_some(address)
    })
}

/// Returns whether an address is reachable only within its own site, so that a router must translate it.
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            let shared = Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10);
            ip.is_private() || ip.is_link_local() || ip.is_loopback() || shared.contains(&ip)
        }
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local() || ip.is_loopback(),
    }
}

/// Returns every network in which this host has an address or to which it has a route, except default routes.
pub fn local_networks() -> Vec<IpNet> {
    local_networks_except("")
}

/// Does the same as [`local_networks`], without the networks of one device.
pub fn local_networks_except(device: &str) -> Vec<IpNet> {
    let routes = |file| fs::read_to_string(file).unwrap_or_default();
    let mut networks = interface_networks(device);
    networks.extend(parse_routes4(&routes("/proc/net/route"), device));
    networks.extend(parse_routes6(&routes("/proc/net/ipv6_route"), device));
    networks.sort();
    networks.dedup();
    networks
}

fn interface_networks(except: &str) -> Vec<IpNet> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    interfaces
        .filter(|interface| interface.interface_name != except)
        .filter_map(|interface| {
            let (address, mask) = (interface.address?, interface.netmask?);
            if let (Some(address), Some(mask)) = (address.as_sockaddr_in(), mask.as_sockaddr_in()) {
                return Ipv4Net::with_netmask(address.ip(), mask.ip()).ok().map(IpNet::V4);
            }
            let (address, mask) = (address.as_sockaddr_in6()?, mask.as_sockaddr_in6()?);
            Ipv6Net::with_netmask(address.ip(), mask.ip()).ok().map(IpNet::V6)
        })
        .map(|network| network.trunc())
        .collect()
}

/// Parses `/proc/net/route`, whose fields are interface, destination, gateway, flags, 3 counters and mask, with numbers
/// in hex in native byte order.
fn parse_routes4(text: &str, except: &str) -> Vec<IpNet> {
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            fields.next().filter(|device| *device != except)?;
            let destination = u32::from_str_radix(fields.next()?, 16).ok()?;
            let mask = u32::from_str_radix(fields.nth(5)?, 16).ok()?;
            let address = Ipv4Addr::from(destination.to_ne_bytes());
            let network = Ipv4Net::with_netmask(address, mask.to_ne_bytes().into()).ok()?;
            (network.prefix_len() > 0).then_some(IpNet::V4(network))
        })
        .collect()
}

/// Parses `/proc/net/ipv6_route`, which begins with destination and prefix length in hex and ends with the interface.
fn parse_routes6(text: &str, except: &str) -> Vec<IpNet> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let destination = u128::from_str_radix(fields.next()?, 16).ok()?;
            let prefix = u8::from_str_radix(fields.next()?, 16).ok()?;
            let network = Ipv6Net::new(Ipv6Addr::from(destination), prefix).ok()?;
            fields.next_back().filter(|device| *device != except)?;
            let address = network.addr();
            let of_interest = prefix > 0 && !address.is_multicast() && !address.is_loopback();
            of_interest.then_some(IpNet::V6(network))
        })
        .collect()
}

/// Returns the gateway of the IPv4 default route with the lowest metric, without the routes of one device.
pub fn default_gateway(except: &str) -> Option<Ipv4Addr> {
    parse_default4(&fs::read_to_string("/proc/net/route").unwrap_or_default(), except)
}

/// Parses the default gateway from `/proc/net/route`.
fn parse_default4(text: &str, except: &str) -> Option<Ipv4Addr> {
    let default = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [device, "00000000", gateway, _, _, _, metric, "00000000", ..] = fields.as_slice()
        else {
            return None;
        };
        let gateway = u32::from_str_radix(gateway, 16).ok().filter(|gateway| *gateway != 0)?;
        let metric: u32 = metric.parse().ok()?;
        (*device != except).then_some((metric, Ipv4Addr::from(gateway.to_ne_bytes())))
    };
    let best = text.lines().filter_map(default).min_by_key(|(metric, _)| *metric)?;
    Some(best.1)
}

/// Returns the gateway to an IPv6 address, without the routes of one device; the address itself if it is on a link of
/// this host.
pub fn gateway_to(address: Ipv6Addr, except: &str) -> Option<Ipv6Addr> {
    let routes = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    parse_gateway6(&routes, address, except)
}

/// Finds the most specific route in `/proc/net/ipv6_route`.
fn parse_gateway6(text: &str, address: Ipv6Addr, except: &str) -> Option<Ipv6Addr> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [destination, prefix, _, _, gateway, metric, _, _, _, device] = fields.as_slice()
        else {
            return None;
        };
        let hex = |text: &str| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from);
        let prefix = u8::from_str_radix(prefix, 16).ok()?;
        let network = Ipv6Net::new(hex(destination)?, prefix).ok()?;
        let metric = u32::from_str_radix(metric, 16).ok()?;
        let fits = network.contains(&address) && ![except, "lo"].contains(device);
        fits.then_some((prefix, std::cmp::Reverse(metric), hex(gateway)?))
    };
    let (_, _, gateway) = text.lines().filter_map(route).max()?;
    Some(if gateway.is_unspecified() { address } else { gateway })
}

/// The gateway of a default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The gateway.
    pub address: IpAddr,
    /// The netmask of this host's address in the gateway's IPv4 network.
    pub netmask: Option<Ipv4Addr>,
    /// The interface.
    pub interface: String,
    /// The interface's hardware address, if it has one.
    pub mac: Option<String>,
}

/// Returns the gateways of the default routes with the lowest metric, for IPv4 and IPv6.
pub fn default_gateways() -> [Option<Gateway>; 2] {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let v4 = default_gateway4(&read("/proc/net/route")).map(|(address, interface)| Gateway {
        address: address.into(),
        netmask: netmask_towards(address),
        mac: hardware_address(&interface),
        interface,
    });
    let v6 = default_gateway6(&read("/proc/net/ipv6_route")).map(|(address, interface)| Gateway {
        address: address.into(),
        netmask: None,
        // openvpn shows it for IPv4 only.
        mac: None,
        interface,
    });
    [v4, v6]
}

fn hardware_address(interface: &str) -> Option<String> {
    let mac = fs::read_to_string(format!("/sys/class/net/{interface}/address")).ok()?;
    Some(mac.trim().to_owned()).filter(|mac| mac.len() == 17 && mac != "00:00:00:00:00:00")
}

/// Returns the netmask of the interface's network that contains an address.
fn netmask_towards(address: Ipv4Addr) -> Option<Ipv4Addr> {
    nix::ifaddrs::getifaddrs().ok()?.find_map(|interface| {
        let (own, mask) = (interface.address?, interface.netmask?);
        let (own, mask) = (own.as_sockaddr_in()?.ip(), mask.as_sockaddr_in()?.ip());
        let net = Ipv4Net::with_netmask(own, mask).ok()?;
        net.contains(&address).then_some(mask)
    })
}

/// Returns the gateway and the interface of the best default route in `/proc/net/route`.
fn default_gateway4(text: &str) -> Option<(Ipv4Addr, String)> {
    let hex = |field: &str| u32::from_str_radix(field, 16).ok();
    let routes = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [interface, to, gateway, _, _, _, metric, mask, ..] = fields.as_slice() else {
            return None;
        };
        let gateway = hex(gateway)?;
        let default = hex(to)? == 0 && hex(mask)? == 0 && gateway != 0;
        let gateway = Ipv4Addr::from(gateway.to_ne_bytes());
        default.then_some((metric.parse::<u32>().ok()?, gateway, (*interface).to_owned()))
    });
    routes.min_by_key(|(metric, ..)| *metric).map(|(_, gateway, interface)| (gateway, interface))
}

/// Returns the gateway and the interface of the best default route in `/proc/net/ipv6_route`.
fn default_gateway6(text: &str) -> Option<(Ipv6Addr, String)> {
    let hex = |field: &str| u128::from_str_radix(field, 16).ok();
    let routes = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [to, bits, _, _, gateway, metric, .., interface] = fields.as_slice() else {
            return None;
        };
        let gateway = hex(gateway)?;
        let default = hex(to)? == 0 && hex(bits)? == 0 && gateway != 0;
        default.then_some((hex(metric)?, Ipv6Addr::from(gateway), (*interface).to_owned()))
    });
    routes.min_by_key(|(metric, ..)| *metric).map(|(_, gateway, interface)| (gateway, interface))
}

/// Returns whether the kernel supports IPv6.
pub fn has_ipv6() -> bool {
    let off = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    off.is_ok_and(|text| text.trim() == "0")
}

/// Returns the first of `PREFIX0`, `PREFIX1`, ... that is not the name of a network device.
pub fn free_device(prefix: &str) -> String {
    let known = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let taken = |name: &str| {
        known.lines().any(|line| line.split(':').next().is_some_and(|have| have.trim() == name))
    };
    let mut names = (0..100).map(|number| format!("{prefix}{number}"));
    names.find(|name| !taken(name)).unwrap_or_else(|| format!("{prefix}0"))
}

/// Returns whether two networks share an address.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Chooses a random /24 in 10/8 that overlaps none of `taken` and is not a popular default.
pub fn free_network4(taken: &[IpNet], random: &mut Random) -> Option<Ipv4Net> {
    let crowded = CROWDED.iter().filter_map(|text| text.parse::<IpNet>().ok());
    let avoid: Vec<IpNet> = crowded.chain(taken.iter().copied()).collect();
    (0..TRIES).find_map(|_| {
        let [x, y] = random.bytes();
        let network = Ipv4Net::new(Ipv4Addr::new(10, x, y, 0), 24).ok()?;
        (!avoid.iter().any(|other| overlap(other, &network.into()))).then_some(network)
    })
}

/// Chooses a random /64 of the unique local addresses (RFC 4193), which no other network is likely to have.
pub fn free_network6(taken: &[IpNet], random: &mut Random) -> Option<Ipv6Net> {
    (0..TRIES).find_map(|_| {
        let [a, b, c, d, e]: [u8; 5] = random.bytes();
        let address = Ipv6Addr::from([0xfd, a, b, c, d, e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let network = Ipv6Net::new(address, 64).ok()?;
        (!taken.iter().any(|other| overlap(other, &network.into()))).then_some(network)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_route_tables() {
        let four = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
            eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\n\
            eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n";
        assert_eq!(parse_routes4(four, ""), ["192.168.2.0/24".parse::<IpNet>().unwrap()]);
        let six = "fd120000000000000000000000000000 40 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n\
            00000000000000000000000000000000 00 0 00 0 0 0 0 0 lo\n\
            ff000000000000000000000000000000 08 0 00 0 0 0 0 0 eth0\n";
        assert_eq!(parse_routes6(six, ""), ["fd12::/64".parse::<IpNet>().unwrap()]);
        assert_eq!(parse_default4(four, ""), Some(Ipv4Addr::new(192, 168, 2, 1)));
        assert_eq!(parse_default4(four, "eth0"), None);
        let better = format!("{four}eth1\t00000000\t0103A8C0\t0003\t0\t0\t100\t00000000\t0\n");
        assert_eq!(parse_default4(&better, ""), Some(Ipv4Addr::new(192, 168, 2, 1)));
        assert_eq!(parse_default4(&better, "eth0"), Some(Ipv4Addr::new(192, 168, 3, 1)));
        assert!(parse_routes4(four, "eth0").is_empty() && parse_routes6(six, "eth0").is_empty());
    }

    #[test]
    fn finds_the_gateway_to_an_address() {
        let line = |to: &str, via: &str, device: &str| {
            format!(
                "{to} 00000000000000000000000000000000 00 {via} 00000400 00000001 00000000 00000001 {device}\n"
            )
        };
        let none = "0".repeat(32);
        let via = "fe800000000000000000000000000001";
        let text = line("20010db8000000000000000000000000 20", &none, "eth0")
            + &line(&format!("{none} 00"), via, "eth0")
            + &line(&format!("{none} 00"), &none, "lo");
        let far = "2001:db9::1".parse().unwrap();
        assert_eq!(parse_gateway6(&text, far, "tun0"), Some("fe80::1".parse().unwrap()));
        assert_eq!(parse_gateway6(&text, far, "eth0"), None);
        let near = "2001:db8::1".parse().unwrap();
        assert_eq!(parse_gateway6(&text, near, "tun0"), Some(near));
    }

    #[test]
    fn the_default_route_with_the_lowest_metric_names_the_gateway() {
        let four = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
            wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\n\
            eth0\t00000000\t0103A8C0\t0003\t0\t0\t100\t00000000\t0\n\
            tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\n\
            eth0\t0003A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n";
        let gateway = (Ipv4Addr::new(192, 168, 3, 1), "eth0".to_owned());
        assert_eq!(default_gateway4(four), Some(gateway));
        let any = "00000000000000000000000000000000 00";
        let six = format!(
            "{any} {any} 00000000000000000000000000000000 ffffffff 1 0 200200 lo\n\
             {any} {any} fd000000000000000000000000000001 00000400 3 0 3 eth0\n"
        );
        assert_eq!(default_gateway6(&six), Some(("fd00::1".parse().unwrap(), "eth0".to_owned())));
        for text in ["", "x", "a b c d e f g h i j k", "Iface\nx 0 0 0 0 0 0"] {
            assert_eq!((default_gateway4(text), default_gateway6(text)), (None, None), "{text}");
        }
    }

    #[test]
    fn a_free_network_avoids_what_is_there_and_what_everybody_has() {
        let taken: Vec<IpNet> =
            ["10.0.0.0/9".parse().unwrap(), "10.128.0.0/10".parse().unwrap()].into_iter().collect();
        for seed in 0..200 {
            let mut random = Random::new([seed; 32]);
            let network = free_network4(&taken, &mut random).unwrap();
            assert!(network.addr() >= Ipv4Addr::new(10, 192, 0, 0), "{network}");
            let open = free_network4(&[], &mut random).unwrap();
            assert!(!overlap(&open.into(), &"10.8.0.0/24".parse().unwrap()));
            let six = free_network6(&taken, &mut random).unwrap();
            assert!(six.addr().is_unique_local() && six.prefix_len() == 64);
        }
        let all = ["10.0.0.0/8".parse().unwrap()];
        assert_eq!(free_network4(&all, &mut Random::new([1; 32])), None);
    }

    #[test]
    fn knows_private_addresses() {
        for text in ["10.1.2.3", "192.168.0.9", "100.64.0.1", "169.254.1.1", "fd00::1", "fe80::1"] {
            assert!(is_private(text.parse().unwrap()), "{text}");
        }
        for text in ["203.0.113.5", "100.128.0.1", "2001:db8::1"] {
            assert!(!is_private(text.parse().unwrap()), "{text}");
        }
    }
}
