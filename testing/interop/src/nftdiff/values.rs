//! Values in the syntax of rules.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::frame::Side;
use super::random::Random;
use super::universe;

/// The kind of a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub(super) enum Kind {
    V4,
    V6,
    Port,
    Proto,
    Ttl,
    Dscp,
    Ecn,
    Length,
    Id,
    FragOff,
    Words,
    Version,
    Flow,
    Sequence,
    Flags,
    IcmpType,
    IcmpCode,
    Icmpv6Type,
    Icmpv6Code,
    MetaProtocol,
    NfProto,
    Interface,
    State,
    Direction,
    Ether,
    EtherType,
    Vlan,
    Priority,
    ArpOperation,
}

const STATES: [&str; 4] = ["new", "established", "related", "invalid"];
const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"];
const PROTOS: [(&str, u8); 9] = [
    ("tcp", 6),
    ("udp", 17),
    ("icmp", 1),
    ("ipv6-icmp", 58),
    ("tcp", 6),
    ("udp", 17),
    ("esp", 50),
    ("253", 253),
    ("4", 4),
];
const ICMP: [&str; 10] = [
    "echo-request",
    "echo-reply",
    "destination-unreachable",
    "time-exceeded",
    "parameter-problem",
    "redirect",
    "timestamp-request",
    "timestamp-reply",
    "8",
    "42",
];
const ICMPV6: [&str; 10] = [
    "echo-request",
    "echo-reply",
    "destination-unreachable",
    "packet-too-big",
    "time-exceeded",
    "parameter-problem",
    "nd-neighbor-solicit",
    "nd-neighbor-advert",
    "128",
    "200",
];

impl Kind {
    /// Returns its name in a set's `type`.
    pub(super) fn set_type(self) -> &'static str {
        match self {
            Self::V4 => "ipv4_addr",
            Self::V6 => "ipv6_addr",
            Self::Port => "inet_service",
            Self::Ether => "ether_addr",
            Self::IcmpType => "icmp_type",
            Self::Icmpv6Type => "icmpv6_type",
            Self::State => "ct_state",
            Self::Flags => "tcp_flag",
            Self::EtherType | Self::MetaProtocol => "ether_type",
            _ => "inet_proto",
        }
    }

    /// Returns whether values have an order that a rule can compare.
    fn ordered(self) -> bool {
        !matches!(
            self,
            Self::Interface
                | Self::State
                | Self::Direction
                | Self::Flags
                | Self::NfProto
                | Self::MetaProtocol
                | Self::EtherType
        )
    }
}

/// Generates a value, in the syntax of rules and as a number.
fn value(random: &mut Random, kind: Kind) -> (String, u128) {
    let number = |value: u64| (value.to_string(), u128::from(value));
    let side = if random.percent(50) { Side::A } else { Side::B };
    match kind {
        Kind::V4 => {
            let address = universe::v4(random, side);
            (address.to_string(), u128::from(u32::from(address)))
        }
        Kind::V6 => {
            let address = universe::v6(random, side);
            (address.to_string(), u128::from(address))
        }
        Kind::Port => number(u64::from(if random.percent(15) {
            universe::client_port(random)
        } else {
            universe::port(random)
        })),
        Kind::Proto => {
            let (name, value) = *random.pick(&PROTOS);
            (name.to_owned(), u128::from(value))
        }
        Kind::Ttl => number(u64::from(*random.pick(&universe::TTLS))),
        Kind::Dscp => number(u64::from(random.pick(&universe::TOS) >> 2)),
        Kind::Ecn => number(random.within(0..=3)),
        Kind::Length => number(
            *random.pick(&[8, 20, 28, 40, 44, 48, 52, 60, 64, 84, 100, 576, 1000, 1500, 2000]),
        ),
        Kind::Id => number(*random.pick(&[0, 1, 7, 255, 256, 1000, 8192, 29_200, 32_768, 65_535])),
        Kind::FragOff => number(*random.pick(&[0, 0x4000, 0x2000, 1])),
        Kind::Words => number(*random.pick(&[5, 6, 7, 8, 10])),
        Kind::Version => number(*random.pick(&[4, 6])),
        Kind::Flow => number(*random.pick(&[0, 1, 0x12345, 0xf_ffff])),
        Kind::Sequence => number(*random.pick(&[0, 1, 1000, 1001, 0x7fff_ffff, 0xffff_ffff])),
        Kind::IcmpCode => number(random.within(0..=4)),
        Kind::Icmpv6Code => number(random.within(0..=4)),
        Kind::IcmpType => named(random, &ICMP),
        Kind::Icmpv6Type => named(random, &ICMPV6),
        Kind::MetaProtocol => named(random, &["ip", "ip6"]),
        Kind::EtherType => named(random, &["ip", "ip6", "arp", "vlan", "0x88b5"]),
        Kind::NfProto => named(random, &["ipv4", "ipv6"]),
        Kind::Interface => named(random, &["ta", "tb", "\"t*\"", "\"eth0\"", "\"ta*\""]),
        Kind::State => named(random, &STATES),
        Kind::Direction => named(random, &["original", "reply"]),
        Kind::Flags => named(random, &FLAGS),
        Kind::Ether => {
            let mac = *random.pick(&universe::MACS);
            let text: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
            (text.join(":"), mac.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte)))
        }
        Kind::Vlan => number(u64::from(*random.pick(&universe::VLANS))),
        Kind::Priority => number(random.within(0..=7)),
        Kind::ArpOperation => named(random, &["request", "reply"]),
    }
}

/// Generates a name. Names have no order that matters here; their index in the list distinguishes
/// them.
fn named(random: &mut Random, names: &[&str]) -> (String, u128) {
    let at = random.below(names.len());
    (names[at].to_owned(), at as u128)
}

/// Generates the part of a comparison that follows the field.
pub(super) fn test(random: &mut Random, kind: Kind) -> String {
    match kind {
        Kind::Flags => return flags(random),
        Kind::State => return states(random),
        _ => {}
    }
    let not = if random.percent(20) { "!= " } else { "" };
    let single = value(random, kind).0;
    match random.within(0..=9) {
        0 | 1 if kind.ordered() => {
            let (first, last) = ordered_pair(random, kind);
            format!("{not}{first}-{last}")
        }
        2 if kind.ordered() => format!("{} {single}", random.pick(&["<", ">", "<=", ">="])),
        3 | 4 if kind != Kind::Interface => {
            let interval = random.percent(40) && kind.ordered();
            let count = random.within(1..=4);
            format!("{not}{{ {} }}", elements(random, &[kind], interval, count).join(", "))
        }
        5 | 6 if matches!(kind, Kind::V4 | Kind::V6) => format!("{not}{}", prefix(random, kind).0),
        7 if matches!(kind, Kind::Id | Kind::Port | Kind::Sequence | Kind::Length) => {
            let mask = *random.pick(&[1u64, 0xff, 0xf0, 0x8000]);
            let (_, wanted) = value(random, kind);
            let equals = if not.is_empty() { "==" } else { "!=" };
            format!("& {mask} {equals} {}", wanted & u128::from(mask))
        }
        _ => format!("{not}{single}"),
    }
}

fn ordered_pair(random: &mut Random, kind: Kind) -> (String, String) {
    for _ in 0..20 {
        let (first, second) = (value(random, kind), value(random, kind));
        if first.1 < second.1 && !is_name(&first.0) && !is_name(&second.0) {
            return (first.0, second.0);
        }
    }
    match kind {
        Kind::V4 => ("10.0.0.0".to_owned(), "10.0.0.255".to_owned()),
        Kind::V6 => ("2001:db8:a::".to_owned(), "2001:db8:a::ffff".to_owned()),
        Kind::Ether => ("02:00:00:00:00:00".to_owned(), "02:ff:ff:ff:ff:ff".to_owned()),
        _ => ("0".to_owned(), "3".to_owned()),
    }
}

/// Returns whether this is a name. The index of a name in a list is not its number, so there are no
/// ranges between names.
fn is_name(text: &str) -> bool {
    !text.contains(':') && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

fn flags(random: &mut Random) -> String {
    let some = |random: &mut Random, least: u64| {
        let count = random.within(least..=3);
        let mut names: Vec<&str> = Vec::new();
        for _ in 0..count {
            let name = *random.pick(&FLAGS);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    };
    let usual = "(fin | syn | rst | ack)";
    match random.within(0..=8) {
        0 => format!("& {usual} == syn"),
        1 => format!("& {usual} != {}", random.pick(&["syn", "ack", "0x0"])),
        2 => format!("& ({}) == 0x0", some(random, 1).join(" | ")),
        3 => format!("& ({}) != 0x0", some(random, 1).join(" | ")),
        4 => format!("== {}", some(random, 1).join(" | ")),
        5 => "{ syn, syn | ack, ack, fin | ack }".to_owned(),
        6 => some(random, 1).join(","),
        7 => format!("!= {}", random.pick(&FLAGS)),
        _ => "syn / syn,ack,rst".to_owned(),
    }
}

fn states(random: &mut Random) -> String {
    let first = *random.pick(&STATES);
    match random.within(0..=9) {
        0..=2 => "established,related".to_owned(),
        3 | 4 => "invalid".to_owned(),
        5 => "new".to_owned(),
        6 => format!("!= {first}"),
        7 => "{ new, established }".to_owned(),
        8 => format!("!= {{ {first}, related }}").replace("related, related", "related"),
        _ => first.to_owned(),
    }
}

/// Generates a prefix that contains a known address, in the syntax of rules and as its first and
/// last address.
fn prefix(random: &mut Random, kind: Kind) -> (String, u128, u128) {
    let (_, address) = value(random, kind);
    let bits = if kind == Kind::V4 { 32 } else { 128 };
    let length = if kind == Kind::V4 {
        *random.pick(&[8u32, 12, 16, 20, 24, 25, 30, 31])
    } else {
        *random.pick(&[16u32, 32, 48, 64, 65, 80, 127])
    };
    let host = (1u128 << (bits - length)) - 1;
    let first = address & !host;
    let text = if kind == Kind::V4 {
        Ipv4Addr::from(first as u32).to_string()
    } else {
        Ipv6Addr::from(first).to_string()
    };
    (format!("{text}/{length}"), first, first | host)
}

/// Returns the kinds of the elements of sets in this family.
pub(super) fn set_kinds(random: &mut Random, family: &str) -> Vec<Kind> {
    let address = match family {
        "ip" => Kind::V4,
        "ip6" => Kind::V6,
        _ if random.percent(50) => Kind::V4,
        _ => Kind::V6,
    };
    if family == "bridge" && random.percent(25) {
        return vec![Kind::Ether];
    }
    match random.within(0..=9) {
        0..=2 => vec![address],
        3 | 4 => vec![Kind::Port],
        5 => vec![Kind::Proto],
        6 => vec![address, Kind::Port],
        7 => vec![address, address],
        8 => vec![address, address, Kind::Port],
        _ => vec![address, Kind::Proto, Kind::Port],
    }
}

/// Generates elements that do not overlap.
pub(super) fn elements(
    random: &mut Random,
    kinds: &[Kind],
    interval: bool,
    count: u64,
) -> Vec<String> {
    let mut boxes: Vec<Vec<(u128, u128)>> = Vec::new();
    let mut texts = Vec::new();
    for _ in 0..count {
        let parts: Vec<(String, u128, u128)> =
            kinds.iter().map(|kind| part(random, *kind, interval)).collect();
        let bounds: Vec<(u128, u128)> = parts.iter().map(|part| (part.1, part.2)).collect();
        let overlaps = |had: &Vec<(u128, u128)>| {
            had.iter().zip(&bounds).all(|(had, new)| had.0 <= new.1 && new.0 <= had.1)
        };
        if !boxes.iter().any(overlaps) {
            boxes.push(bounds);
            texts.push(parts.into_iter().map(|part| part.0).collect::<Vec<_>>().join(" . "));
        }
    }
    texts
}

fn part(random: &mut Random, kind: Kind, interval: bool) -> (String, u128, u128) {
    if interval && matches!(kind, Kind::V4 | Kind::V6) && random.percent(40) {
        return prefix(random, kind);
    }
    let first = value(random, kind);
    let second = value(random, kind);
    let range = interval && kind.ordered() && first.1 < second.1 && random.percent(50);
    if range && !is_name(&first.0) && !is_name(&second.0) {
        return (format!("{}-{}", first.0, second.0), first.1, second.1);
    }
    (first.0, first.1, first.1)
}
