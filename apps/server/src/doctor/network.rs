//! Checks of forwarding, firewall, MTU and DNS.

use std::fs;
use std::path::Path;

use super::super::firewall;
use super::super::settings::Listen;
use super::{Finding, Fix};
use adit_runtime::host::Leftover;

/// The maximum size of an IPv4 UDP packet with a full inner packet of OpenVPN. Only a path that carries 1500 bytes carries it unfragmented.
const FULL_MTU: u32 = 1500;
/// The minimum MTU for IPv6.
const LEAST_MTU: u32 = 1280;

pub(super) fn forwarding() -> Finding {
    let path = "/proc/sys/net/ipv4/ip_forward";
    let on = fs::read_to_string(path).unwrap_or_default().trim() == "1";
    if on {
        return Finding::ok("forwarding", "IPv4 forwarding is on");
    }
    if read_only("/proc/sys") {
        return Finding::problem(
            "forwarding",
            "IPv4 forwarding is off, and /proc/sys is read-only",
        )
        .remedy("outside this container: sysctl -w net.ipv4.ip_forward=1")
        .remedy("or start the container with --sysctl net.ipv4.ip_forward=1");
    }
    Finding::ok("forwarding", "IPv4 forwarding is off; a server switches it on while it runs")
}

fn read_only(mount: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(1) == Some(mount)
            && fields.nth(1).is_some_and(|options| options.split(',').any(|o| o == "ro"))
    })
}

/// Finds other programs' rule sets that affect the traffic of `device` or the ports that clients
/// dial.
pub(super) fn firewall(device: &str, listen: &[Listen]) -> Vec<Finding> {
    let mut findings = foreign_rules(Some(device), "clients'", listen);
    if findings.is_empty() {
        findings.push(Finding::ok("firewall", "no other program's rules are in the way"));
    }
    findings
}

/// Returns a finding for each chain of another program that drops packets forwarded for a device, or packets that arrive at a port.
pub(super) fn foreign_rules(device: Option<&str>, whose: &str, listen: &[Listen]) -> Vec<Finding> {
    let Some(listing) = firewall::listing() else {
        return vec![
            Finding::warning(
                "firewall",
                "the rules cannot be read: nft is missing or lacks permission",
            )
            .remedy("apt-get install nftables, and run as root"),
        ];
    };
    let mut findings = Vec::new();
    let forwards = device.into_iter().flat_map(|device| {
        firewall::drops_forwarded(&listing, device).into_iter().map(move |drop| (drop, device))
    });
    for (drop, device) in forwards {
        let what = format!("the chain {drop} drops forwarded packets, including {whose} packets");
        findings.push(
            drop.let_device(device)
                .into_iter()
                .fold(Finding::warning("firewall", what), Finding::remedy),
        );
    }
    for listen in listen {
        for drop in firewall::drops_port(&listing, *listen) {
            let (protocol, port) = (listen.protocol(), listen.port);
            let what = format!(
                "the chain {drop} drops incoming packets, and has no rule for {protocol}/{port}"
            );
            let finding = Finding::warning("firewall", what);
            findings.push(drop.let_port(*listen).into_iter().fold(finding, Finding::remedy));
        }
    }
    findings
}

pub(super) fn mtu() -> Finding {
    let Some(device) = outside_device() else {
        return Finding::warning("mtu", "there is no default route, so there is no path to check")
            .remedy("connect this machine to a network, or give --host when you create a server");
    };
    let path = Path::new("/sys/class/net").join(&device).join("mtu");
    let mtu: Option<u32> = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    match mtu {
        None => Finding::ok("mtu", format!("cannot read the MTU of {device}")),
        Some(mtu) if mtu < LEAST_MTU => {
            Finding::problem("mtu", format!("{device} carries {mtu} bytes; IPv6 needs {LEAST_MTU}"))
                .remedy(format!("ip link set {device} mtu {FULL_MTU}"))
        }
        Some(mtu) if mtu < FULL_MTU => Finding::warning(
            "mtu",
            format!("{device} carries {mtu} bytes: full packets cross the tunnel in two pieces"),
        )
        .remedy("works, but UDP is slower; if the path allows it: ip link set DEVICE mtu 1500"),
        Some(mtu) => Finding::ok("mtu", format!("{device} carries {mtu} bytes")),
    }
}

/// Returns the device of the default route, IPv4 first.
fn outside_device() -> Option<String> {
    let four = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let six = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    default_device4(&four).or_else(|| default_device6(&six))
}

fn default_device4(text: &str) -> Option<String> {
    text.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let zero = |at: usize| fields.get(at) == Some(&"00000000");
        (zero(1) && zero(7)).then(|| fields.first().map(ToString::to_string))?
    })
}

fn default_device6(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let device = fields.get(9)?;
        (fields.get(1) == Some(&"00") && *device != "lo").then(|| (*device).to_owned())
    })
}

/// Finds rules, routes and DNS settings of clients that have ended.
pub(super) fn leftovers() -> Finding {
    left_by_clients(&adit_runtime::host::leftovers())
}

fn left_by_clients(found: &[Leftover]) -> Finding {
    let what = if found.contains(&Leftover::KillSwitch) {
        "the kill switch of a client that has ended keeps all traffic in"
    } else if found.contains(&Leftover::Unclaimed) {
        "the rules of a full tunnel keep traffic in, and no client visible here has recorded them: a kill switch, or a \
         client in a container"
    } else if !found.is_empty() {
        "a client that was killed left routes, rules or DNS settings"
    } else {
        return Finding::ok("leftovers", "no killed client left routes, rules or DNS settings");
    };
    Finding::warning("leftovers", what).remedy("adit connect --release").fix(Fix::Release)
}

/// Checks the rules and routes of running tunnels.
pub(super) fn routing() -> Finding {
    incomplete_routing(&adit_runtime::host::unfinished())
}

fn incomplete_routing(problems: &[String]) -> Finding {
    let Some(why) = problems.first() else {
        return Finding::ok("routing", "no tunnel waits for rules or routes");
    };
    let more = match problems.len() {
        1 => String::new(),
        all => format!(" ({} more tunnels)", all - 1),
    };
    Finding::warning(
        "routing",
        format!("the kernel refuses rules or routes of a tunnel, which tries again: {why}{more}"),
    )
    .remedy("`adit status` names it: look at its device, `ip rule` and `ip route show table all`")
}

pub(super) fn dns() -> Finding {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = text
        .lines()
        .filter_map(|line| {
            line.split_ascii_whitespace().collect::<Vec<_>>().get(..2).map(<[_]>::to_vec)
        })
        .filter(|words| words.first() == Some(&"nameserver"))
        .count();
    if servers == 0 {
        return Finding::warning("dns", "/etc/resolv.conf has no name server")
            .remedy("add a line such as: nameserver 9.9.9.9");
    }
    Finding::ok(
        "dns",
        match servers {
            1 => "1 name server in /etc/resolv.conf".to_owned(),
            _ => format!("{servers} name servers in /etc/resolv.conf"),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn the_worst_of_what_clients_left_is_said_with_its_remedy() {
        use Leftover::{KillSwitch, Killed, Unclaimed};
        for (found, words) in [
            (&[Killed, Unclaimed, KillSwitch][..], "the kill switch of a client that has ended"),
            (&[Killed, Unclaimed], "no client visible here"),
            (&[Killed], "a client that was killed"),
        ] {
            let finding = left_by_clients(found);
            assert!(finding.what.contains(words), "{}", finding.what);
            assert_eq!(finding.remedy, ["adit connect --release"]);
            assert!(finding.fixable);
        }
        assert_eq!(left_by_clients(&[]).level, Level::Fine);
    }

    #[test]
    fn refused_routes_are_a_warning_with_the_reason() {
        assert_eq!(incomplete_routing(&[]).level, Level::Fine);
        let one = incomplete_routing(&["setting the route x: Network is down".into()]);
        assert_eq!(one.level, Level::Warning);
        assert_eq!(
            one.what,
            "the kernel refuses rules or routes of a tunnel, which tries again: setting the route x: \
             Network is down"
        );
        assert!(!one.remedy.is_empty() && !one.fixable);
        let three = incomplete_routing(&["a".into(), "b".into(), "c".into()]);
        assert!(three.what.ends_with("tries again: a (2 more tunnels)"), "{}", three.what);
    }

    #[test]
    fn finds_the_device_of_the_default_route() {
        let four = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU\n\
            eth1 0002A8C0 00000000 0001 0 0 0 00FFFFFF 0\n\
            eth0 00000000 0102A8C0 0003 0 0 0 00000000 0\n";
        assert_eq!(default_device4(four).as_deref(), Some("eth0"));
        assert_eq!(default_device4("header\n"), None);
        let zeros = "00000000000000000000000000000000";
        let six = format!(
            "{zeros} 00 {zeros} 00 {zeros} ffffffff 1 0 00200200 lo\n\
             {zeros} 00 {zeros} 00 fe800000000000000000000000000001 400 1 0 3 wan0\n"
        );
        assert_eq!(default_device6(&six).as_deref(), Some("wan0"));
    }
}
