//! Directives about the inside: device, addresses, routes, MTU, keepalive.

use std::time::Duration;

use adit_engine::command::{Framing, Inactive};
use ipnet::{Ipv4Net, Ipv6Net};

use super::ConfigError;
use super::options::DeviceKind;
use super::raw_config::RawConfig;
use super::reader::Directive;
use crate::negotiate::{DnsError, REDIRECT_FLAGS, compression, parse_route4, parse_route6};
use crate::server::Topology;
use crate::session::{Fragment, Mssfix};

pub(super) fn apply(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    Ok(device(raw, d)?
        || addresses(raw, d)?
        || routes(raw, d)?
        || sizes(raw, d)?
        || liveness(raw, d)?)
}

fn device(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "dev" => {
            d.shape("dev tun", 1..=1)?;
            let name = d.arg(0);
            if name.is_empty()
                || name.len() > 15
                || name.contains(['/', ' '])
                || name.starts_with('.')
            {
                return Err(d.error(
                    format!("\"{name}\" is not a device name"),
                    "write dev tun, or a name of at most 15 characters",
                ));
            }
            raw.device = Some(name.to_owned());
        }
        "dev-type" => {
            d.shape("dev-type tun|tap", 1..=1)?;
            raw.device_type = Some(match d.arg(0) {
                "tun" => DeviceKind::Tun,
                "null" => DeviceKind::Null,
                "tap" => DeviceKind::Tap,
                other => {
                    return Err(d.error(format!("\"{other}\" is not known"), "write: dev-type tun"));
                }
            });
        }
        "dev-node" => {
            d.shape("dev-node /dev/net/tun", 1..=1)?;
            match d.arg(0) {
                "/dev/net/tun" => {}
                // Elsewhere it names an adapter.
                name if !name.contains('/') => {
                    raw.warn(d, "has no effect: it names an adapter of Windows or macOS");
                }
                path => {
                    return Err(
                        d.error(format!("{path} is not used"), "remove it: it is /dev/net/tun")
                    );
                }
            }
        }
        "txqueuelen" => {
            d.shape("txqueuelen PACKETS", 1..=1)?;
            raw.device_rest.tx_queue = Some(d.number(0, 0..=1_000_000)?);
        }
        "persist-tun" => {
            d.shape("persist-tun", 0..=0)?;
            raw.device_rest.persist = true;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn addresses(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "ifconfig-noexec" => {
            d.shape("ifconfig-noexec", 0..=0)?;
            raw.device_rest.ifconfig_noexec = true;
        }
        "topology" => {
            d.shape("topology subnet|net30|p2p", 1..=1)?;
            raw.topology = Some(match d.arg(0) {
                "subnet" => Topology::Subnet,
                "net30" => Topology::Net30,
                "p2p" => Topology::P2p,
                other => {
                    return Err(
                        d.error(format!("\"{other}\" is not known"), "write: topology subnet")
                    );
                }
            });
        }
        "ifconfig" => {
            d.shape("ifconfig ADDRESS NETMASK|FAR-END", 2..=2)?;
            raw.ifconfig_pair = Some((d.ipv4(0)?, d.ipv4(1)?, d.location.clone()));
        }
        "ifconfig-ipv6" => {
            d.shape("ifconfig-ipv6 ADDRESS/BITS [GATEWAY]", 1..=2)?;
            // Without a length it is a /64, as stock has it.
            let net = match d.arg(0).parse().ok().map(|address| Ipv6Net::new(address, 64)) {
                Some(Ok(net)) => net,
                _ => d.net6(0)?,
            };
            raw.ifconfig6 = Some((net, d.location.clone()));
            if d.args.len() > 1 {
                raw.routes.gateway6 = Some(d.ipv6(1)?);
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn routes(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    let args: Vec<&str> = d.args.iter().map(String::as_str).collect();
    match d.name.as_str() {
        "route" => {
            d.shape("route NETWORK NETMASK [GATEWAY] [METRIC]", 1..=4)?;
            let route = parse_route4(&args).map_err(|problem| {
                d.error(problem, "write: route 10.1.0.0 255.255.0.0; names are not looked up")
            })?;
            raw.routes.v4.push(route);
        }
        "route-ipv6" => {
            d.shape("route-ipv6 NETWORK/BITS [GATEWAY] [METRIC]", 1..=3)?;
            let route = parse_route6(&args)
                .map_err(|problem| d.error(problem, "write: route-ipv6 2001:db8::/32"))?;
            raw.routes.v6.push(route);
        }
        "route-gateway" => {
            d.shape("route-gateway ADDRESS", 1..=1)?;
            if d.arg(0) == "dhcp" {
                raw.gateway_dhcp = Some(d.location.clone());
                return Ok(true);
            }
            raw.routes.gateway4 = Some(d.ipv4(0)?);
        }
        "route-ipv6-gateway" => {
            d.shape("route-ipv6-gateway ADDRESS", 1..=1)?;
            raw.routes.gateway6 = Some(d.ipv6(0)?);
        }
        "route-metric" => {
            d.shape("route-metric NUMBER", 1..=1)?;
            raw.routes.metric = Some(d.number(0, 0..=i32::MAX.cast_unsigned())?);
        }
        "route-noexec" => {
            d.shape("route-noexec", 0..=0)?;
            raw.routes.noexec = true;
        }
        "redirect-gateway" | "redirect-private" => {
            if let Some(flag) = d.args.iter().find(|flag| !REDIRECT_FLAGS.contains(&flag.as_str()))
            {
                return Err(d.error(
                    format!("\"{flag}\" is not known"),
                    format!("flags are {}", REDIRECT_FLAGS.join(", ")),
                ));
            }
            let flags = if d.name == "redirect-gateway" {
                &mut raw.routes.redirect_gateway
            } else {
                &mut raw.routes.redirect_private
            };
            flags.get_or_insert_default().extend(d.args.iter().cloned());
        }
        "block-ipv6" => {
            d.shape("block-ipv6", 0..=0)?;
            raw.routes.block_ipv6 = true;
        }
        "allow-lan" => {
            d.shape("allow-lan", 0..=0)?;
            raw.routes.allow_lan = true;
        }
        "kill-switch" => {
            d.shape("kill-switch", 0..=0)?;
            raw.routes.kill_switch = true;
        }
        "policy-routing" => {
            d.shape("policy-routing on|off", 1..=1)?;
            raw.routes.policy = Some(match d.arg(0) {
                "on" => true,
                "off" => false,
                other => {
                    let problem = format!("\"{other}\" is not known");
                    return Err(d.error(problem, "write: policy-routing on"));
                }
            });
        }
        "allow-recursive-routing" => {
            d.shape("allow-recursive-routing", 0..=0)?;
            raw.routes.allow_recursive = true;
        }
        "dhcp-option" | "dns" => {
            let shape = match d.name.as_str() {
                "dns" => "dns server NUMBER OPTION VALUE... | search-domains DOMAIN...",
                _ => "dhcp-option TYPE [VALUE]",
            };
            d.shape(shape, 1..=usize::MAX)?;
            match raw.routes.dns.add(&d.name, &args, false) {
                Ok(()) => {}
                // Time servers and the like, which openvpn leaves to scripts.
                Err(DnsError::Unknown(word)) if d.name == "dhcp-option" => {
                    raw.warn(d, &format!("has no effect here: {word} is not about DNS"));
                }
                Err(why) => return Err(d.error(why.to_string(), format!("write: {shape}"))),
            }
        }
        "dns-updown" => {
            d.shape("dns-updown force|disable", 1..=1)?;
            raw.routes.apply_dns = match d.arg(0) {
                "force" => Some(true),
                "disable" => Some(false),
                _ => {
                    return Err(d.error(
                        "commands are not run for DNS",
                        "write dns-updown force, which applies DNS settings without a command, or \
                         dns-updown disable",
                    ));
                }
            };
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn sizes(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "tun-mtu" => {
            d.shape("tun-mtu BYTES [TOLD]", 1..=2)?;
            raw.tun_mtu = d.number(0, 100..=65_535)?;
            raw.occ_mtu = d.get(1).map(|_| d.number(1, 100..=65_535)).transpose()?;
        }
        "tun-mtu-max" => {
            d.shape("tun-mtu-max BYTES", 1..=1)?;
            raw.tun_mtu_max = d.number(0, 576..=65_535)?;
        }
        "fragment" => {
            d.shape("fragment BYTES [mtu]", 1..=2)?;
            if let Some(flag) = d.get(1).filter(|flag| *flag != "mtu") {
                return Err(d.error(format!("\"{flag}\" is not known"), "write mtu, or nothing"));
            }
            let size = d.number(0, 68..=65_535)?;
            raw.fragment = Some(Fragment { size, outer: d.get(1).is_some() });
        }
        "mssfix" => {
            d.shape("mssfix [BYTES [mtu|fixed]]", 0..=2)?;
            let flag = d.get(1);
            if let Some(flag) = flag.filter(|flag| !matches!(*flag, "mtu" | "fixed")) {
                return Err(d.error(format!("\"{flag}\" is not known"), "write mtu or fixed"));
            }
            raw.mssfix = match d.get(0) {
                None => None,
                Some(_) => Some(Mssfix {
                    size: d.number(0, 0..=u16::MAX)?,
                    outer: flag == Some("mtu"),
                    fixed: flag == Some("fixed"),
                }),
            };
        }
        "compress" if d.get(0) == Some("migrate") => {
            d.shape("compress migrate", 1..=1)?;
            raw.compress_migrate = true;
            raw.framing = Framing::None;
        }
        "comp-lzo" | "compress" => {
            let shape = match d.name.as_str() {
                "compress" => "compress [stub|stub-v2|lz4|lz4-v2|lzo|migrate]",
                _ => "comp-lzo [no|yes|adaptive]",
            };
            d.shape(shape, 0..=1)?;
            let Some((framing, compresses)) = compression(&d.name, d.arg(0)) else {
                let problem = format!("\"{}\" is not known", d.arg(0));
                return Err(d.error(problem, format!("write: {shape}")));
            };
            if compresses {
                raw.warn(
                    d,
                    "is taken for packets of the other end, which are decompressed; our own are never \
                     compressed, because that gives away their content (VORACLE)",
                );
            }
            raw.compresses |= compresses;
            raw.compress_migrate = false;
            raw.framing = framing;
        }
        "allow-compression" => {
            d.shape("allow-compression no", 1..=1)?;
            raw.never_decompress = d.arg(0) == "no";
            match d.arg(0) {
                "no" | "asym" => {}
                "yes" => raw.warn(
                    d,
                    "means asym: packets of the other end are decompressed, our own never compressed",
                ),
                other => {
                    return Err(d.error(
                        format!("\"{other}\" is not known"),
                        "write: allow-compression no",
                    ));
                }
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn liveness(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "keepalive" => {
            d.shape("keepalive INTERVAL TIMEOUT", 2..=2)?;
            let (interval, timeout) = (d.seconds(0)?, d.seconds(1)?);
            if interval.is_zero() || timeout < interval.saturating_mul(2) {
                return Err(d.error(
                    "the timeout must be at least twice the interval",
                    "write: keepalive 10 120",
                ));
            }
            raw.keepalive = Some((interval, timeout));
        }
        "ping" => {
            d.shape("ping SECONDS", 1..=1)?;
            raw.ping = Some(d.seconds(0)?);
        }
        "ping-restart" => {
            d.shape("ping-restart SECONDS", 1..=1)?;
            raw.ping_timeout = Some(d.seconds(0)?);
            raw.limits.exit_when_silent = false;
        }
        "ping-exit" => {
            d.shape("ping-exit SECONDS", 1..=1)?;
            raw.ping_timeout = Some(d.seconds(0)?);
            raw.limits.exit_when_silent = true;
        }
        "inactive" => {
            d.shape("inactive SECONDS [BYTES]", 1..=2)?;
            raw.limits.inactive = inactive(d)?;
        }
        "session-timeout" => {
            d.shape("session-timeout SECONDS", 1..=1)?;
            raw.limits.session = Some(d.seconds(0)?).filter(|time| !time.is_zero());
        }
        "tls-exit" => {
            d.shape("tls-exit", 0..=0)?;
            raw.limits.exit_on_tls_failure = true;
        }
        "explicit-exit-notify" => {
            d.shape("explicit-exit-notify [TIMES]", 0..=1)?;
            raw.exit_notify = match d.get(0) {
                None => Some(1),
                Some(_) => Some(d.number(0, 0..=100)?).filter(|n| *n > 0),
            };
        }
        "hand-window" => {
            d.shape("hand-window SECONDS", 1..=1)?;
            raw.hand_window = Duration::from_secs(d.number(0, 1..=86_400)?);
        }
        "tran-window" => {
            d.shape("tran-window SECONDS", 1..=1)?;
            raw.tran_window = d.seconds(0)?;
        }
        "tls-timeout" => {
            d.shape("tls-timeout SECONDS", 1..=1)?;
            raw.tls_timeout = Duration::from_secs(d.number(0, 1..=3600)?);
        }
        "reneg-sec" => {
            d.shape("reneg-sec MAX [MIN]", 1..=2)?;
            let longest = d.seconds(0)?;
            let shortest = d.get(1).map(|_| d.seconds(1)).transpose()?;
            if shortest.is_some_and(|shortest| shortest > longest) {
                return Err(d.error(
                    "the second time is longer than the first",
                    "write: reneg-sec MAX MIN",
                ));
            }
            raw.reneg_sec = Some((longest, shortest));
        }
        "reneg-bytes" => {
            d.shape("reneg-bytes BYTES", 1..=1)?;
            raw.reneg_bytes = d.number::<i64>(0, -1..=i64::MAX)?.try_into().unwrap_or(0);
        }
        "reneg-pkts" => {
            d.shape("reneg-pkts PACKETS", 1..=1)?;
            raw.reneg_packets = d.number::<i64>(0, -1..=i64::MAX)?.try_into().unwrap_or(0);
        }
        "replay-window" => {
            d.shape("replay-window PACKETS [SECONDS]", 1..=2)?;
            raw.replay_window = d.number(0, 1..=65_536)?;
            if d.args.len() > 1 {
                d.seconds(1)?;
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// `inactive SECONDS [BYTES]`; `None` for zero seconds.
pub(super) fn inactive(d: &Directive) -> Result<Option<Inactive>, ConfigError> {
    let after = d.seconds(0)?;
    // As in stock, less than nothing is nothing.
    let bytes = match d.get(1) {
        Some(_) => d.number::<i64>(1, i64::MIN..=i64::MAX)?.try_into().unwrap_or(0),
        None => 0,
    };
    Ok((!after.is_zero()).then_some(Inactive { after, bytes }))
}

/// The address of a network's own end: its first.
pub(super) fn first_host(net: Ipv4Net) -> Option<Ipv4Net> {
    let address = u32::from(net.network()).checked_add(1)?;
    Ipv4Net::new(address.into(), net.prefix_len()).ok()
}
