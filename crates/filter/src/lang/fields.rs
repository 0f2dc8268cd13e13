//! The syntax of fields.

use crate::ruleset::{Family, Field, Kind};

use Field as F;

/// Other names of fields.
const ALIASES: &[(&str, &str, Field)] = &[("meta", "iif", F::IifName), ("meta", "oif", F::OifName)];

/// Returns every field with the names in which it is printed, then the aliases.
fn all() -> impl Iterator<Item = &'static (&'static str, &'static str, Field)> + Clone {
    Field::NAMES.iter().chain(ALIASES)
}

/// Keys of `meta` that may occur without `meta`.
const UNQUALIFIED: &[&str] = &["iif", "oif", "iifname", "oifname", "pkttype"];

/// Unsupported fields and their closest replacement: header, key (empty for all), advice.
const REFUSED: &[(&str, &str, &str)] = &[
    ("ct", "mark", "there are no marks; a named chain can carry the decision: `jump NAME`"),
    ("ct", "status", "`ct state established` or `ct state new`"),
    ("ct", "helper", "`ct state related` is for ICMP errors only; allow the ports by rule"),
    ("ct", "saddr", "`ip saddr` with `ct direction original`"),
    ("ct", "original", "`ip saddr` with `ct direction original`"),
    ("ct", "reply", "`ip saddr` with `ct direction reply`"),
    ("ct", "l3proto", "`meta nfproto ipv4`"),
    ("ct", "zone", "there is one zone"),
    ("ct", "label", "there are no labels; `jump NAME` can carry the decision"),
    ("ct", "count", "`limit rate 10/second` on `ct state new`"),
    ("ct", "expiration", "`ct state established`"),
    ("ct", "bytes", "`counter` counts bytes; no rule compares them"),
    ("ct", "packets", "`counter` counts packets; no rule compares them"),
    ("meta", "mark", "there are no marks; `jump NAME` can carry the decision"),
    ("meta", "priority", "`ip dscp` or `vlan pcp`"),
    ("meta", "skuid", "only forwarded packets are seen: use `ip saddr`, or `@client:NAME`"),
    ("meta", "skgid", "only forwarded packets are seen: use `ip saddr`, or `@group:NAME`"),
    ("meta", "iifgroup", "`iifname { eth1, eth2 }` or `iifname \"eth*\"`"),
    ("meta", "oifgroup", "`oifname { eth1, eth2 }` or `oifname \"eth*\"`"),
    ("meta", "iiftype", "`iifname \"eth*\"`"),
    ("meta", "oiftype", "`oifname \"eth*\"`"),
    ("meta", "ibrname", "`iifname`"),
    ("meta", "ibriport", "`iifname`"),
    ("meta", "obrname", "`oifname`"),
    ("meta", "obriport", "`oifname`"),
    ("meta", "nftrace", "`adit filter explain FILE PACKET` shows the way of a packet"),
    ("meta", "time", "a rule file per time, and `adit filter reload FILE`"),
    ("meta", "day", "a rule file per day, and `adit filter reload FILE`"),
    ("meta", "hour", "a rule file per hour, and `adit filter reload FILE`"),
    ("meta", "cpu", "leave it out"),
    ("meta", "cgroup", "only forwarded packets are seen: use `ip saddr`"),
    ("meta", "rtclassid", "`ip daddr`"),
    ("meta", "random", "`limit rate`"),
    ("meta", "secpath", "leave it out"),
    ("meta", "ipsec", "leave it out"),
    ("tcp", "option", "`tcp flags syn`; the MSS is adit's own business (`mssfix`)"),
    ("tcp", "reserved", "`tcp flags` and `tcp doff`"),
    ("ip", "option", "`ip hdrlength > 5` matches any option"),
    ("ip", "checksum", "wrong checksums are dropped before any rule"),
    ("icmp", "checksum", "wrong checksums are dropped before any rule"),
    ("icmpv6", "checksum", "wrong checksums are dropped before any rule"),
    ("icmp", "gateway", "`icmp type redirect`"),
    ("icmpv6", "max-delay", "`icmpv6 type mld-listener-query`"),
    ("icmpv6", "parameter-problem", "`icmpv6 type parameter-problem`"),
    ("icmpv6", "packet-too-big", "`icmpv6 type packet-too-big`"),
    ("arp", "hlen", "ARP is always for IPv4 over Ethernet; leave it out"),
    ("arp", "plen", "ARP is always for IPv4 over Ethernet; leave it out"),
    ("vlan", "cfi", "`vlan pcp`"),
    ("vlan", "dei", "`vlan pcp`"),
    ("sctp", "", "`meta l4proto sctp th dport 5060`"),
    ("dccp", "", "`meta l4proto dccp th dport 5001`"),
    ("udplite", "", "`meta l4proto udplite th dport 53`"),
    ("ah", "", "`meta l4proto ah`"),
    ("esp", "", "`meta l4proto esp`"),
    ("comp", "", "`meta l4proto ipcomp`"),
    ("igmp", "", "`meta l4proto igmp`"),
    ("gre", "", "`meta l4proto gre`"),
    ("geneve", "", "`udp dport 6081`"),
    ("vxlan", "", "`udp dport 4789`"),
    ("frag", "", "fragments are put together before any rule sees them"),
    ("exthdr", "", "`ip6 nexthdr` for the first header, `meta l4proto` for the transport"),
    ("hbh", "", "`ip6 nexthdr 0`"),
    ("dst", "", "`ip6 nexthdr 60`"),
    ("mh", "", "`meta l4proto mobility-header`"),
    ("rt", "", "`ip6 nexthdr ipv6-route`, or `ip daddr`"),
    ("rt0", "", "`ip6 nexthdr ipv6-route`"),
    ("rt2", "", "`ip6 nexthdr ipv6-route`"),
    ("srh", "", "`ip6 nexthdr ipv6-route`"),
    ("fib", "", "`iifname \"eth1\" ip saddr != 10.0.0.0/8 drop`"),
    ("socket", "", "only forwarded packets are seen; leave it out"),
    ("osf", "", "`tcp flags`, `tcp window` and `ip ttl`"),
    ("ipsec", "", "leave it out"),
    ("numgen", "", "`limit rate`"),
    ("jhash", "", "leave it out"),
    ("symhash", "", "leave it out"),
    ("mark", "", "there are no marks; `jump NAME` can carry the decision"),
    ("skuid", "", "only forwarded packets are seen: use `ip saddr`, or `@client:NAME`"),
    ("skgid", "", "only forwarded packets are seen: use `ip saddr`, or `@group:NAME`"),
    ("iifgroup", "", "`iifname { eth1, eth2 }` or `iifname \"eth*\"`"),
    ("oifgroup", "", "`oifname { eth1, eth2 }` or `oifname \"eth*\"`"),
    ("iiftype", "", "`iifname \"eth*\"`"),
    ("oiftype", "", "`oifname \"eth*\"`"),
    ("ibrname", "", "`iifname`"),
    ("ibriport", "", "`iifname`"),
    ("obrname", "", "`oifname`"),
    ("obriport", "", "`oifname`"),
    ("nftrace", "", "`adit filter explain FILE PACKET` shows the way of a packet"),
    ("rtclassid", "", "`ip daddr`"),
    ("cgroup", "", "only forwarded packets are seen: use `ip saddr`"),
];

/// Returns the field of a header and key; the key of ARP addresses has two words.
pub(super) fn find(header: &str, key: &str) -> Option<Field> {
    all().find(|(h, k, _)| *h == header && *k == key).map(|&(.., field)| field)
}

/// Returns the field that consists of only this word (`iifname`).
pub(super) fn unqualified(word: &str) -> Option<Field> {
    UNQUALIFIED.contains(&word).then(|| find("meta", word)).flatten()
}

pub(super) fn is_header(word: &str) -> bool {
    all().any(|(h, ..)| *h == word)
}

/// Returns the words with which a field can start.
pub(super) fn starts() -> impl Iterator<Item = &'static str> + Clone {
    all().map(|(h, ..)| *h).chain(UNQUALIFIED.iter().copied())
}

/// Returns the keys of a header, first words only.
pub(super) fn keys(header: &str) -> impl Iterator<Item = &'static str> {
    let mut before = "";
    all().filter(move |(h, ..)| *h == header).filter_map(move |(_, k, _)| {
        let key = k.split(' ').next().unwrap_or(k);
        (std::mem::replace(&mut before, key) != key).then_some(key)
    })
}

/// Returns the replacement of an unsupported key, or of any key of an unsupported header.
pub(super) fn refused(header: &str, key: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(h, k, _)| *h == header && (k.is_empty() || *k == key)).map(|r| r.2)
}

/// Returns the field in nftables' syntax.
pub(super) fn text(field: Field) -> String {
    match all().find(|(.., f)| *f == field) {
        Some((_, key, F::IifName | F::OifName)) => (*key).to_owned(),
        Some((header, key, _)) => format!("{header} {key}"),
        None => String::new(),
    }
}

/// Returns a field of this kind, for `typeof`.
pub(super) fn example(kind: Kind) -> Option<Field> {
    match kind {
        Kind::Ipv4Addr => Some(F::IpSaddr),
        Kind::InetService => Some(F::TcpDport),
        Kind::Integer(4) => Some(F::IpHdrlength),
        Kind::Integer(16) => Some(F::IpLength),
        _ => all().map(|(.., field)| *field).find(|field| field.kind() == kind),
    }
}

/// Returns the reason why packets that a table evaluates can never have a field.
pub(super) fn missing(family: Family, field: Field) -> Option<&'static str> {
    let (header, ..) = all().find(|(.., f)| *f == field)?;
    match (family, *header) {
        (Family::Ip, "ip6") => Some("`ip saddr`, or `table inet`, which sees both"),
        (Family::Ip6, "ip") => Some("`ip6 saddr`, or `table inet`, which sees both"),
        (Family::Ip | Family::Ip6 | Family::Inet, "arp") => Some("`table bridge`, which sees ARP"),
        (Family::Ip | Family::Ip6, "meta") if field == F::MetaNfproto => {
            Some("leave it out: the table's family says it, or use `table inet`")
        }
        _ => None,
    }
}
