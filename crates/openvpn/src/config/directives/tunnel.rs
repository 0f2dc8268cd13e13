//! Directives for the inside of the tunnel: device, addresses, routes, DNS, sizes.

use std::time::Duration;

use super::InConnection::Shared;
use super::{Roles, Spec, flag, used};
use crate::config::options::DeviceKind;
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;
use crate::config::{ConfigError, bridge};
use crate::data_format::Framing;
use crate::negotiate::{DnsError, REDIRECT_FLAGS, compression, parse_route4, parse_route6};
use crate::server::Topology;
use crate::session::{Fragment, Mssfix};

/// The default maximum length of a sent control packet, as in openvpn.
const CONTROL_PACKET: u16 = 1250;
const DNS: &str = "server NUMBER OPTION VALUE... | search-domains DOMAIN...";

pub(super) const TABLE: &[Spec] = &[
    used("dev", "tun|tap|NAME", 1..=1, dev)
        .doc(
        "The device. Its name begins with tun or tap, or dev-type gives its kind; null is \
         none.",
    ),
    used("dev-type", "tun|tap", 1..=1, dev_type).doc("The kind of device: packets or frames."),
    used("disable-dco", "", 0..=0, |_, _| Ok(()))
        .doc("Switches off the kernel's data channel offload, which adit does not use."),
    used("dev-node", "/dev/net/tun", 1..=1, dev_node)
        .doc("The node of the TUN driver; other names are for Windows and macOS."),
    used("lladdr", "ADDRESS", 1..=1, |raw, d| {
        raw.options.device.mac = Some(bridge::mac(d)?);
        Ok(())
    })
    .doc("The Ethernet address of a TAP device."),
    used("txqueuelen", "PACKETS", 1..=1, |raw, d| {
        raw.options.device.tx_queue = Some(d.number(0, 0..=1_000_000)?);
        Ok(())
    })
    .doc("The length of the device's queue."),
    used("shaper", "BYTES", 1..=1, |raw, d| {
        raw.options.device.rate = Some(d.number(0, 100..=100_000_000)?);
        Ok(())
    })
    .roles(Roles::DIALS)
    .doc("The maximum rate of packets into the tunnel, in bytes a second."),
    flag("persist-tun", |raw| &mut raw.options.device.persist)
        .doc("Keeps the device while a client reconnects."),
    used("ifconfig-nowarn", "", 0..=0, |_, _| Ok(()))
        .doc("Gives no warning about differing addresses at the two ends, as adit never does."),
    flag("ifconfig-noexec", |raw| &mut raw.options.device.ifconfig_noexec)
        .doc("Leaves the device's addresses to another program."),
    used("topology", "subnet|net30|p2p", 1..=1, topology)
        .doc(
        "How a server with a TUN device assigns IPv4 addresses: from a network, in pairs, or \
         singly.",
    ),
    used("ifconfig", "ADDRESS NETMASK|FAR-END", 2..=2, |raw, d| {
        raw.ifconfig_pair = Some((d.ipv4(0)?, d.ipv4(1)?, d.location.clone()));
        Ok(())
    })
    .roles(Roles::OWN_ADDRESS)
    .doc("The device's own IPv4 address."),
    used("ifconfig-ipv6", "ADDRESS/BITS [GATEWAY]", 1..=2, |raw, d| {
        raw.ifconfig6 = Some((d.net6_or_64(0)?, d.location.clone()));
        if d.args.len() > 1 {
            raw.options.routes.gateway6 = Some(d.ipv6(1)?);
        }
        Ok(())
    })
    .roles(Roles::OWN_ADDRESS)
    .doc("The device's own IPv6 address."),
    used("route", "NETWORK NETMASK [GATEWAY] [METRIC]", 1..=4, |raw, d| {
        let route = parse_route4(&d.words()).map_err(|problem| {
            d.error(problem, "write: route 10.1.0.0 255.255.0.0; names are not looked up")
        })?;
        raw.options.routes.v4.push(route);
        Ok(())
    })
    .doc("An IPv4 route into the tunnel."),
    used("route-ipv6", "NETWORK/BITS [GATEWAY] [METRIC]", 1..=3, |raw, d| {
        let route = parse_route6(&d.words())
            .map_err(|problem| d.error(problem, "write: route-ipv6 2001:db8::/32"))?;
        raw.options.routes.v6.push(route);
        Ok(())
    })
    .doc("An IPv6 route into the tunnel."),
    used("route-gateway", "ADDRESS", 1..=1, |raw, d| {
        match d.arg(0) {
            "dhcp" => raw.gateway_dhcp = Some(d.location.clone()),
            _ => raw.options.routes.gateway4 = Some(d.ipv4(0)?),
        }
        Ok(())
    })
    .doc("The gateway for routes that name none."),
    used("route-ipv6-gateway", "ADDRESS", 1..=1, |raw, d| {
        raw.options.routes.gateway6 = Some(d.ipv6(0)?);
        Ok(())
    })
    .doc("The gateway for IPv6 routes that name none."),
    used("route-metric", "NUMBER", 1..=1, |raw, d| {
        raw.options.routes.metric = Some(d.number(0, 0..=i32::MAX.cast_unsigned())?);
        Ok(())
    })
    .doc("The metric for routes that name none."),
    used("route-delay", "[SECONDS [SECONDS]]", 0..=2, |raw, d| {
        let seconds = |index| d.get(index).map(|_| d.number(index, 0..=86_400)).transpose();
        // The second number is for Windows.
        let _ = seconds(1)?;
        let delay: u64 = seconds(0)?.unwrap_or_default();
        raw.options.routes.delay = Some(Duration::from_secs(delay));
        Ok(())
    })
    .roles(Roles::DIALS_LAX)
    .doc("How long routes, and route-up, wait once the other end is connected (0)."),
    used("route-table", "NUMBER", 1..=1, |raw, d| {
        raw.options.routes.table = Some(d.number(0, 1..=u32::MAX)?);
        Ok(())
    })
    .doc("The routing table for routes; the main one without it."),
    flag("route-noexec", |raw| &mut raw.options.routes.noexec)
        .doc("Leaves routes to another program."),
    used("redirect-gateway", "[FLAG ...]", 0..=usize::MAX, |raw, d| {
        redirect(&mut raw.options.routes.redirect_gateway, d)
    })
    .roles(Roles::DIALS)
    .doc("Sends all traffic through the tunnel."),
    used("redirect-private", "[FLAG ...]", 0..=usize::MAX, |raw, d| {
        redirect(&mut raw.options.routes.redirect_private, d)
    })
    .doc("Like redirect-gateway, but without the default route."),
    flag("block-ipv6", |raw| &mut raw.options.routes.block_ipv6)
        .doc("Answers IPv6 packets that would enter the tunnel with an error."),
    flag("allow-lan", |raw| &mut raw.options.routes.allow_lan)
        .doc("Keeps the machine's private networks outside the tunnel. Only adit has it."),
    flag("kill-switch", |raw| &mut raw.options.routes.kill_switch)
        .doc("Lets no packet out except through the tunnel, even after the client has exited. Only adit has it."),
    used("policy-routing", "on|off", 1..=1, |raw, d| {
        raw.options.routes.policy = Some(match d.arg(0) {
            "on" => true,
            "off" => false,
            other => {
                return Err(
                    d.error(format!("\"{other}\" is not known"), "write: policy-routing on")
                );
            }
        });
        Ok(())
    })
    .doc(
        "Redirects traffic with a routing table that precedes the main one. Only adit has it.",
    ),
    flag("allow-recursive-routing", |raw| &mut raw.options.routes.allow_recursive)
        .doc("Allows the tunnel's own packets to enter the tunnel."),
    used("dhcp-option", "TYPE [VALUE]", 1..=usize::MAX, dns)
        .doc("DNS servers and domains, in the older form."),
    used("dns", DNS, 1..=usize::MAX, dns).doc("DNS servers and domains."),
    used("tun-mtu", "BYTES [TOLD]", 1..=2, |raw, d| {
        raw.options.session.tun_mtu = d.number(0, 100..=65_535)?;
        raw.options.session.occ_mtu = d.get(1).map(|_| d.number(1, 100..=65_535)).transpose()?;
        Ok(())
    })
    .in_connection(Shared)
    .doc("The device's MTU (1500), and the one announced to the peer."),
    used("tun-mtu-extra", "BYTES", 1..=1, |_, d| d.number::<u32>(0, 0..=65_535).map(drop))
        .in_connection(Shared)
        .doc("Makes room for frames larger than tun-mtu, as adit always does."),
    used("tun-mtu-max", "BYTES", 1..=1, |raw, d| {
        raw.options.session.tun_mtu_max = d.number(0, 576..=65_535)?;
        Ok(())
    })
    .doc("The largest MTU that a server may push (1600)."),
    used("link-mtu", "BYTES", 1..=1, link_mtu)
        .doc("Deprecated: tun-mtu is computed from it and the configured cipher."),
    used("udp-mtu", "BYTES", 1..=1, link_mtu).doc("The same as link-mtu."),
    used("fragment", "BYTES [mtu]", 1..=2, fragment)
        .in_connection(Shared)
        .doc("Splits packets into UDP datagrams of at most this size; the other end must do the same."),
    used("mssfix", "[BYTES [mtu|fixed]]", 0..=2, mssfix)
        .in_connection(Shared)
        .doc("Lowers the segment size of TCP connections in the tunnel; 0 leaves it unchanged."),
    flag("mtu-test", |raw| &mut raw.options.mtu_test)
        .roles(Roles::DIALS_LAX)
        .doc("Logs the path MTU that was found, which adit always looks for."),
    used("max-packet-size", "BYTES", 1..=1, max_packet_size)
        .doc("Sets mssfix BYTES mtu; control packets have at most 1,250 bytes."),
    used("comp-lzo", "[no|yes|adaptive]", 0..=1, compress)
        .doc("The framing of packets for LZO. adit decompresses and never compresses."),
    used("compress", "[stub|stub-v2|lz4|lz4-v2|lzo|migrate]", 0..=1, compress)
        .doc("The framing of packets for compression. adit decompresses and never compresses."),
    used("allow-compression", "no", 1..=1, allow_compression)
        .doc("Whether compressed packets from the other end are accepted."),
];

fn dev(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let name = d.arg(0);
    if name.is_empty() || name.len() > 15 || name.contains(['/', ' ']) || name.starts_with('.') {
        return Err(d.error(
            format!("\"{name}\" is not a device name"),
            "write dev tun, or a name of at most 15 characters",
        ));
    }
    raw.device = Some(name.to_owned());
    Ok(())
}

fn dev_type(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.device_type = Some(match d.arg(0) {
        "tun" => DeviceKind::Tun,
        "null" => DeviceKind::Null,
        "tap" => DeviceKind::Tap,
        other => return Err(d.error(format!("\"{other}\" is not known"), "write: dev-type tun")),
    });
    Ok(())
}

fn dev_node(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    match d.arg(0) {
        "/dev/net/tun" => {}
        // On other systems, the argument names an adapter.
        name if !name.contains('/') => {
            raw.warn(d, "has no effect: it names an adapter of Windows or macOS");
        }
        path => {
            return Err(d.error(format!("{path} is not used"), "remove it: it is /dev/net/tun"));
        }
    }
    Ok(())
}

fn topology(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.topology = Some(match d.arg(0) {
        "subnet" => Topology::Subnet,
        "net30" => Topology::Net30,
        "p2p" => Topology::P2p,
        other => {
            return Err(d.error(format!("\"{other}\" is not known"), "write: topology subnet"));
        }
    });
    Ok(())
}

fn redirect(flags: &mut Option<Vec<String>>, d: &Directive) -> Result<(), ConfigError> {
    if let Some(flag) = d.args.iter().find(|flag| !REDIRECT_FLAGS.contains(&flag.as_str())) {
        return Err(d.error(
            format!("\"{flag}\" is not known"),
            format!("flags are {}", REDIRECT_FLAGS.join(", ")),
        ));
    }
    flags.get_or_insert_default().extend(d.args.iter().cloned());
    Ok(())
}

fn dns(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    match raw.options.routes.dns.add(&d.name, &d.words(), false) {
        Ok(()) => {}
        // openvpn leaves such options, for example those for time servers, to scripts.
        Err(DnsError::Unknown(word)) if d.name == "dhcp-option" => {
            raw.warn(d, &format!("has no effect here: {word} is not about DNS"));
        }
        Err(why) => {
            let shape = if d.name == "dns" { DNS } else { "TYPE [VALUE]" };
            return Err(d.error(why.to_string(), format!("write: {} {shape}", d.name)));
        }
    }
    Ok(())
}

fn link_mtu(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.link_mtu = Some(d.number(0, 100..=65_535)?);
    Ok(())
}

fn fragment(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    if let Some(flag) = d.get(1).filter(|flag| *flag != "mtu") {
        return Err(d.error(format!("\"{flag}\" is not known"), "write mtu, or nothing"));
    }
    let size = d.number(0, 68..=65_535)?;
    raw.options.session.fragment = Some(Fragment { size, outer: d.get(1).is_some() });
    Ok(())
}

fn mssfix(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let flag = d.get(1);
    if let Some(flag) = flag.filter(|flag| !matches!(*flag, "mtu" | "fixed")) {
        return Err(d.error(format!("\"{flag}\" is not known"), "write mtu or fixed"));
    }
    raw.options.session.mssfix = match d.get(0) {
        None => None,
        Some(_) => Some(Mssfix {
            size: d.number(0, 0..=u16::MAX)?,
            outer: flag == Some("mtu"),
            fixed: flag == Some("fixed"),
        }),
    };
    Ok(())
}

fn max_packet_size(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let size = d.number(0, 100..=65_535)?;
    raw.options.session.mssfix = Some(Mssfix { size, outer: true, fixed: false });
    if size != CONTROL_PACKET {
        let text = format!(
            "sets mssfix {size} mtu; control packets have at most {CONTROL_PACKET} bytes whatever it says"
        );
        raw.warn(d, &text);
    }
    Ok(())
}

fn compress(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    if (d.name.as_str(), d.get(0)) == ("compress", Some("migrate")) {
        raw.server.compress_migrate = true;
        raw.options.session.framing = Framing::None;
        return Ok(());
    }
    let Some((framing, compresses)) = compression(&d.name, d.arg(0)) else {
        let known = match d.name.as_str() {
            "compress" => "compress [stub|stub-v2|lz4|lz4-v2|lzo|migrate]",
            _ => "comp-lzo [no|yes|adaptive]",
        };
        return Err(d.error(format!("\"{}\" is not known", d.arg(0)), format!("write: {known}")));
    };
    if compresses {
        raw.warn(
            d,
            "is taken for packets of the other end, which are decompressed; our own are never \
             compressed, because that gives away their content (VORACLE)",
        );
    }
    raw.server.compress_migrate = false;
    raw.options.session.framing = framing;
    Ok(())
}

fn allow_compression(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.options.session.decompress = d.arg(0) != "no";
    match d.arg(0) {
        "no" | "asym" => {}
        "yes" => raw.warn(
            d,
            "means asym: packets of the other end are decompressed, our own never compressed",
        ),
        other => {
            return Err(d.error(format!("\"{other}\" is not known"), "write: allow-compression no"));
        }
    }
    Ok(())
}
