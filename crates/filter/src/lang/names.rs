//! The names of values.

use crate::ruleset::Kind;

type Names = &'static [(&'static str, u128)];

const PROTOCOLS: Names = &[
    ("ip", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ipencap", 4),
    ("tcp", 6),
    ("egp", 8),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ipv6-icmp", 58),
    ("icmpv6", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("eigrp", 88),
    ("ospf", 89),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("comp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("mobility-header", 135),
    ("udplite", 136),
    ("mpls-in-ip", 137),
    ("hip", 139),
    ("shim6", 140),
];

const SERVICES: Names = &[
    ("echo", 7),
    ("discard", 9),
    ("daytime", 13),
    ("chargen", 19),
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("time", 37),
    ("whois", 43),
    ("tacacs", 49),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("gopher", 70),
    ("finger", 79),
    ("http", 80),
    ("www", 80),
    ("kerberos", 88),
    ("pop3", 110),
    ("sunrpc", 111),
    ("auth", 113),
    ("ident", 113),
    ("nntp", 119),
    ("ntp", 123),
    ("epmap", 135),
    ("netbios-ns", 137),
    ("netbios-dgm", 138),
    ("netbios-ssn", 139),
    ("imap2", 143),
    ("imap", 143),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("snmptrap", 162),
    ("bgp", 179),
    ("irc", 194),
    ("ldap", 389),
    ("https", 443),
    ("microsoft-ds", 445),
    ("submissions", 465),
    ("isakmp", 500),
    ("syslog", 514),
    ("printer", 515),
    ("router", 520),
    ("dhcpv6-client", 546),
    ("dhcpv6-server", 547),
    ("rtsp", 554),
    ("nntps", 563),
    ("submission", 587),
    ("ipp", 631),
    ("ldaps", 636),
    ("domain-s", 853),
    ("rsync", 873),
    ("ftps-data", 989),
    ("ftps", 990),
    ("telnets", 992),
    ("imaps", 993),
    ("pop3s", 995),
    ("socks", 1080),
    ("openvpn", 1194),
    ("ms-sql-s", 1433),
    ("l2f", 1701),
    ("radius", 1812),
    ("radius-acct", 1813),
    ("nfs", 2049),
    ("mysql", 3306),
    ("ms-wbt-server", 3389),
    ("nut", 3493),
    ("svn", 3690),
    ("ipsec-nat-t", 4500),
    ("sip", 5060),
    ("sip-tls", 5061),
    ("xmpp-client", 5222),
    ("xmpp-server", 5269),
    ("mdns", 5353),
    ("postgresql", 5432),
    ("amqp", 5672),
    ("x11", 6000),
    ("redis", 6379),
    ("ircd", 6667),
    ("http-alt", 8080),
    ("git", 9418),
];

const ETHER_TYPES: Names = &[
    ("ip", 0x0800),
    ("arp", 0x0806),
    ("ip6", 0x86dd),
    ("8021q", 0x8100),
    ("vlan", 0x8100),
    ("8021ad", 0x88a8),
];

const ICMP_TYPES: Names = &[
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
    ("info-request", 15),
    ("info-reply", 16),
    ("address-mask-request", 17),
    ("address-mask-reply", 18),
];

const ICMPV6_TYPES: Names = &[
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("mld-listener-query", 130),
    ("mld-listener-report", 131),
    ("mld-listener-done", 132),
    ("mld-listener-reduction", 132),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("router-renumbering", 138),
    ("ind-neighbor-solicit", 141),
    ("ind-neighbor-advert", 142),
    ("mld2-listener-report", 143),
];

const ICMP_CODES: Names = &[
    ("net-unreachable", 0),
    ("host-unreachable", 1),
    ("prot-unreachable", 2),
    ("port-unreachable", 3),
    ("frag-needed", 4),
    ("net-prohibited", 9),
    ("host-prohibited", 10),
    ("admin-prohibited", 13),
];

const ICMPV6_CODES: Names = &[
    ("no-route", 0),
    ("admin-prohibited", 1),
    ("addr-unreachable", 3),
    ("port-unreachable", 4),
    ("policy-fail", 5),
    ("reject-route", 6),
];

const TCP_FLAGS: Names = &[
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("psh", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ecn", 0x40),
    ("cwr", 0x80),
];

const CT_STATES: Names =
    &[("invalid", 1), ("established", 2), ("related", 4), ("new", 8), ("untracked", 64)];

const DSCP: Names = &[
    ("cs0", 0x00),
    ("cs1", 0x08),
    ("cs2", 0x10),
    ("cs3", 0x18),
    ("cs4", 0x20),
    ("cs5", 0x28),
    ("cs6", 0x30),
    ("cs7", 0x38),
    ("df", 0x00),
    ("be", 0x00),
    ("lephb", 0x01),
    ("af11", 0x0a),
    ("af12", 0x0c),
    ("af13", 0x0e),
    ("af21", 0x12),
    ("af22", 0x14),
    ("af23", 0x16),
    ("af31", 0x1a),
    ("af32", 0x1c),
    ("af33", 0x1e),
    ("af41", 0x22),
    ("af42", 0x24),
    ("af43", 0x26),
    ("va", 0x2c),
    ("ef", 0x2e),
];

const ARP_OPS: Names = &[
    ("request", 1),
    ("reply", 2),
    ("rrequest", 3),
    ("rreply", 4),
    ("inrequest", 8),
    ("inreply", 9),
    ("nak", 10),
];

/// Returns the names of values of a kind. A value's first name is printed.
pub(super) const fn of(kind: Kind) -> Names {
    match kind {
        Kind::InetProto => PROTOCOLS,
        Kind::InetService => SERVICES,
        Kind::EtherType => ETHER_TYPES,
        Kind::IcmpType => ICMP_TYPES,
        Kind::Icmpv6Type => ICMPV6_TYPES,
        Kind::IcmpCode => ICMP_CODES,
        Kind::Icmpv6Code => ICMPV6_CODES,
        Kind::TcpFlags => TCP_FLAGS,
        Kind::CtState => CT_STATES,
        Kind::CtDirection => &[("original", 0), ("reply", 1)],
        Kind::Dscp => DSCP,
        Kind::Ecn => &[("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)],
        Kind::NfProto => &[("ipv4", 2), ("ipv6", 10)],
        Kind::PktType => {
            &[("host", 0), ("unicast", 0), ("broadcast", 1), ("multicast", 2), ("other", 3)]
        }
        Kind::ArpOp => ARP_OPS,
        Kind::EtherAddr | Kind::Ipv4Addr | Kind::Ipv6Addr | Kind::IfName | Kind::Integer(_) => &[],
    }
}

/// Returns the value of a name.
pub(super) fn value(kind: Kind, name: &str) -> Option<u128> {
    of(kind).iter().find(|(n, _)| *n == name).map(|&(_, value)| value)
}

/// Returns the name of a value.
pub(super) fn name(kind: Kind, value: u128) -> Option<&'static str> {
    of(kind).iter().find(|(_, v)| *v == value).map(|&(name, _)| name)
}

/// The kinds that a set's `type` can name.
const TYPES: &[(&str, Kind)] = &[
    ("ether_addr", Kind::EtherAddr),
    ("ether_type", Kind::EtherType),
    ("ipv4_addr", Kind::Ipv4Addr),
    ("ipv6_addr", Kind::Ipv6Addr),
    ("inet_proto", Kind::InetProto),
    ("inet_service", Kind::InetService),
    ("ifname", Kind::IfName),
    ("icmp_type", Kind::IcmpType),
    ("icmp_code", Kind::IcmpCode),
    ("icmpv6_type", Kind::Icmpv6Type),
    ("icmpv6_code", Kind::Icmpv6Code),
    ("tcp_flag", Kind::TcpFlags),
    ("ct_state", Kind::CtState),
    ("ct_dir", Kind::CtDirection),
    ("dscp", Kind::Dscp),
    ("ecn", Kind::Ecn),
    ("nf_proto", Kind::NfProto),
    ("pkt_type", Kind::PktType),
    ("arp_op", Kind::ArpOp),
];

pub(super) fn type_named(name: &str) -> Option<Kind> {
    TYPES.iter().find(|(n, _)| *n == name).map(|&(_, kind)| kind)
}

pub(super) fn type_name(kind: Kind) -> Option<&'static str> {
    TYPES.iter().find(|(_, k)| *k == kind).map(|&(name, _)| name)
}

pub(super) fn types() -> impl Iterator<Item = &'static str> + Clone {
    TYPES.iter().map(|(n, _)| *n)
}

/// Describes the values that a kind accepts, for a human reader.
pub(super) fn takes(kind: Kind) -> String {
    let text = match kind {
        Kind::EtherAddr => "a MAC address, like 00:11:22:33:44:55",
        Kind::EtherType => "an EtherType, like ip, ip6, arp or 0x88cc",
        Kind::Ipv4Addr => "an IPv4 address, like 10.0.0.1 or 10.0.0.0/8",
        Kind::Ipv6Addr => "an IPv6 address, like fd00::1 or fd00::/8",
        Kind::InetProto => "a protocol, like tcp, udp, icmp or 47",
        Kind::InetService => "a port (0 to 65535) or a service, like 443 or https",
        Kind::IfName => "an interface's name, like eth1 or \"eth*\"",
        Kind::IcmpType | Kind::Icmpv6Type => "an ICMP type, like echo-request or 8",
        Kind::IcmpCode | Kind::Icmpv6Code => "an ICMP code, like port-unreachable or 3",
        Kind::TcpFlags => "flags: fin, syn, rst, psh, ack, urg, ecn, cwr",
        Kind::CtState => "a state: new, established, related, invalid or untracked",
        Kind::CtDirection => "original or reply",
        Kind::Dscp => "a code point, like ef, cs1, af21 or 46",
        Kind::Ecn => "not-ect, ect0, ect1 or ce",
        Kind::NfProto => "ipv4 or ipv6",
        Kind::PktType => "host, broadcast, multicast or other",
        Kind::ArpOp => "request, reply or a number",
        Kind::Integer(bits) => {
            let most = 1_u128.checked_shl(u32::from(bits)).unwrap_or(0).wrapping_sub(1);
            return format!("a number from 0 to {most}");
        }
    };
    text.to_owned()
}
