use serde::{Deserialize, Serialize};

/// Defines the fields: the header and key of each in nftables' syntax, and the kind of its value.
macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $header:literal $key:literal = $kind:expr,)+ }) => {
        $(#[$doc])*
        pub enum $name { $($(#[$field_doc])* $field,)+ }

        impl $name {
            /// Every field with its header and key.
            pub(crate) const NAMES: &[(&str, &str, Self)] = &[$(($header, $key, Self::$field),)+];

            /// Returns the kind of the field's value.
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$field => $kind,)+
                }
            }
        }
    };
}

fields! {
    /// A property of a packet or of its connection that a rule can compare.
    ///
    /// The names are those of nftables; `th` is the transport header of TCP, UDP, SCTP, DCCP or UDP-Lite. A packet that
    /// lacks a field matches no comparison with it.
    #[derive(Copy, Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
    #[allow(missing_docs, reason = "named as nftables' manual names them")]
    Field {
        EtherSaddr: "ether" "saddr" = Kind::EtherAddr,
        EtherDaddr: "ether" "daddr" = Kind::EtherAddr,
        /// The first EtherType of the frame: that of the tag, if there is one.
        EtherType: "ether" "type" = Kind::EtherType,
        VlanId: "vlan" "id" = Kind::Integer(12),
        VlanPcp: "vlan" "pcp" = Kind::Integer(3),
        VlanType: "vlan" "type" = Kind::EtherType,
        ArpOperation: "arp" "operation" = Kind::ArpOp,
        ArpHtype: "arp" "htype" = Kind::Integer(16),
        ArpPtype: "arp" "ptype" = Kind::EtherType,
        ArpSaddrIp: "arp" "saddr ip" = Kind::Ipv4Addr,
        ArpDaddrIp: "arp" "daddr ip" = Kind::Ipv4Addr,
        ArpSaddrEther: "arp" "saddr ether" = Kind::EtherAddr,
        ArpDaddrEther: "arp" "daddr ether" = Kind::EtherAddr,
        /// Interface on which the packet arrived (`iif`, `iifname`).
        IifName: "meta" "iifname" = Kind::IfName,
        /// Interface on which it will leave.
        OifName: "meta" "oifname" = Kind::IfName,
        /// EtherType of the network header.
        MetaProtocol: "meta" "protocol" = Kind::EtherType,
        /// 2 for IPv4, 10 for IPv6.
        MetaNfproto: "meta" "nfproto" = Kind::NfProto,
        /// The transport protocol, after extension headers.
        MetaL4proto: "meta" "l4proto" = Kind::InetProto,
        /// Bytes from the network header on.
        MetaLength: "meta" "length" = Kind::Integer(32),
        /// 0 host, 1 broadcast, 2 multicast.
        MetaPkttype: "meta" "pkttype" = Kind::PktType,
        IpSaddr: "ip" "saddr" = Kind::Ipv4Addr,
        IpDaddr: "ip" "daddr" = Kind::Ipv4Addr,
        IpProtocol: "ip" "protocol" = Kind::InetProto,
        IpVersion: "ip" "version" = Kind::Integer(4),
        IpHdrlength: "ip" "hdrlength" = Kind::Integer(4),
        IpDscp: "ip" "dscp" = Kind::Dscp,
        IpEcn: "ip" "ecn" = Kind::Ecn,
        IpLength: "ip" "length" = Kind::Integer(16),
        IpId: "ip" "id" = Kind::Integer(16),
        IpFragOff: "ip" "frag-off" = Kind::Integer(16),
        IpTtl: "ip" "ttl" = Kind::Integer(8),
        Ip6Saddr: "ip6" "saddr" = Kind::Ipv6Addr,
        Ip6Daddr: "ip6" "daddr" = Kind::Ipv6Addr,
        Ip6Nexthdr: "ip6" "nexthdr" = Kind::InetProto,
        Ip6Version: "ip6" "version" = Kind::Integer(4),
        Ip6Dscp: "ip6" "dscp" = Kind::Dscp,
        Ip6Ecn: "ip6" "ecn" = Kind::Ecn,
        Ip6Flowlabel: "ip6" "flowlabel" = Kind::Integer(20),
        Ip6Length: "ip6" "length" = Kind::Integer(16),
        Ip6Hoplimit: "ip6" "hoplimit" = Kind::Integer(8),
        TcpSport: "tcp" "sport" = Kind::InetService,
        TcpDport: "tcp" "dport" = Kind::InetService,
        TcpSequence: "tcp" "sequence" = Kind::Integer(32),
        TcpAckseq: "tcp" "ackseq" = Kind::Integer(32),
        TcpDoff: "tcp" "doff" = Kind::Integer(4),
        TcpFlags: "tcp" "flags" = Kind::TcpFlags,
        TcpWindow: "tcp" "window" = Kind::Integer(16),
        TcpChecksum: "tcp" "checksum" = Kind::Integer(16),
        TcpUrgptr: "tcp" "urgptr" = Kind::Integer(16),
        UdpSport: "udp" "sport" = Kind::InetService,
        UdpDport: "udp" "dport" = Kind::InetService,
        UdpLength: "udp" "length" = Kind::Integer(16),
        UdpChecksum: "udp" "checksum" = Kind::Integer(16),
        ThSport: "th" "sport" = Kind::InetService,
        ThDport: "th" "dport" = Kind::InetService,
        IcmpType: "icmp" "type" = Kind::IcmpType,
        IcmpCode: "icmp" "code" = Kind::IcmpCode,
        IcmpId: "icmp" "id" = Kind::Integer(16),
        IcmpSequence: "icmp" "sequence" = Kind::Integer(16),
        IcmpMtu: "icmp" "mtu" = Kind::Integer(16),
        Icmpv6Type: "icmpv6" "type" = Kind::Icmpv6Type,
        Icmpv6Code: "icmpv6" "code" = Kind::Icmpv6Code,
        Icmpv6Id: "icmpv6" "id" = Kind::Integer(16),
        Icmpv6Sequence: "icmpv6" "sequence" = Kind::Integer(16),
        Icmpv6Mtu: "icmpv6" "mtu" = Kind::Integer(32),
        /// One bit of [`CtState`].
        CtState: "ct" "state" = Kind::CtState,
        /// A [`CtDirection`].
        CtDirection: "ct" "direction" = Kind::CtDirection,
        /// The connection's transport protocol.
        CtProtocol: "ct" "protocol" = Kind::InetProto,
    }
}

/// The kind of a field's value. It determines its syntax and width.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as nftables' manual names them")]
pub enum Kind {
    EtherAddr,
    EtherType,
    Ipv4Addr,
    Ipv6Addr,
    InetProto,
    InetService,
    IfName,
    IcmpType,
    IcmpCode,
    Icmpv6Type,
    Icmpv6Code,
    TcpFlags,
    CtState,
    CtDirection,
    Dscp,
    Ecn,
    NfProto,
    PktType,
    ArpOp,
    /// A plain number of this many bits.
    Integer(u8),
}

impl Kind {
    /// Returns the width in bits.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ecn => 2,
            Self::Dscp => 6,
            Self::CtDirection
            | Self::InetProto
            | Self::IcmpType
            | Self::IcmpCode
            | Self::Icmpv6Type
            | Self::Icmpv6Code
            | Self::TcpFlags
            | Self::NfProto
            | Self::PktType => 8,
            Self::EtherType | Self::InetService | Self::ArpOp => 16,
            Self::Ipv4Addr | Self::CtState => 32,
            Self::EtherAddr => 48,
            Self::Ipv6Addr | Self::IfName => 128,
            Self::Integer(bits) => bits,
        }
    }
}

/// Connection states as bits, so that a rule can test several at once.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct CtState(pub u8);

impl CtState {
    /// Belongs to no connection and cannot start one.
    pub const INVALID: Self = Self(1);
    /// Belongs to a connection whose other side has answered.
    pub const ESTABLISHED: Self = Self(2);
    /// An ICMP error about a known connection.
    pub const RELATED: Self = Self(4);
    /// Starts a connection, or repeats its start.
    pub const NEW: Self = Self(8);
    /// Is not tracked.
    pub const UNTRACKED: Self = Self(64);
}

/// The direction of a packet in its connection.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum CtDirection {
    /// The direction of the first packet.
    Original = 0,
    /// The opposite direction.
    Reply = 1,
}
