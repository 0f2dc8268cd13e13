/// A property of a packet, or of its connection, that a rule can compare.
///
/// The names are nftables'; `th` is the transport header of TCP, UDP, SCTP, DCCP and UDP-Lite alike. A packet that
/// lacks a field matches no comparison with it.
#[derive(Copy, Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[allow(missing_docs, reason = "named as nftables' manual names them")]
pub enum Field {
    EtherSaddr,
    EtherDaddr,
    /// The first type of the frame: a tag's, if there is one.
    EtherType,
    VlanId,
    VlanPcp,
    VlanType,
    ArpOperation,
    ArpHtype,
    ArpPtype,
    ArpSaddrIp,
    ArpDaddrIp,
    ArpSaddrEther,
    ArpDaddrEther,
    /// Interface by which the packet arrived (`iif`, `iifname`).
    IifName,
    /// Interface by which it will leave.
    OifName,
    /// EtherType of the network header.
    MetaProtocol,
    /// 2 for IPv4, 10 for IPv6.
    MetaNfproto,
    /// The transport protocol, after extension headers.
    MetaL4proto,
    /// Bytes from the network header on.
    MetaLength,
    /// 0 host, 1 broadcast, 2 multicast.
    MetaPkttype,
    IpSaddr,
    IpDaddr,
    IpProtocol,
    IpVersion,
    IpHdrlength,
    IpDscp,
    IpEcn,
    IpLength,
    IpId,
    IpFragOff,
    IpTtl,
    Ip6Saddr,
    Ip6Daddr,
    Ip6Nexthdr,
    Ip6Version,
    Ip6Dscp,
    Ip6Ecn,
    Ip6Flowlabel,
    Ip6Length,
    Ip6Hoplimit,
    TcpSport,
    TcpDport,
    TcpSequence,
    TcpAckseq,
    TcpDoff,
    TcpFlags,
    TcpWindow,
    TcpChecksum,
    TcpUrgptr,
    UdpSport,
    UdpDport,
    UdpLength,
    UdpChecksum,
    ThSport,
    ThDport,
    IcmpType,
    IcmpCode,
    IcmpId,
    IcmpSequence,
    IcmpMtu,
    Icmpv6Type,
    Icmpv6Code,
    Icmpv6Id,
    Icmpv6Sequence,
    Icmpv6Mtu,
    /// One bit of [`CtState`].
    CtState,
    /// A [`CtDirection`].
    CtDirection,
    /// The connection's transport protocol.
    CtProtocol,
}

/// The kind of a field's value, which determines its syntax and width.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
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

impl Field {
    /// Returns the kind of its value.
    pub const fn kind(self) -> Kind {
        match self {
            Self::EtherSaddr | Self::EtherDaddr | Self::ArpSaddrEther | Self::ArpDaddrEther => {
                Kind::EtherAddr
            }
            Self::EtherType | Self::VlanType | Self::MetaProtocol | Self::ArpPtype => {
                Kind::EtherType
            }
            Self::ArpOperation => Kind::ArpOp,
            Self::ArpSaddrIp | Self::ArpDaddrIp | Self::IpSaddr | Self::IpDaddr => Kind::Ipv4Addr,
            Self::Ip6Saddr | Self::Ip6Daddr => Kind::Ipv6Addr,
            Self::IifName | Self::OifName => Kind::IfName,
            Self::MetaNfproto => Kind::NfProto,
            Self::MetaPkttype => Kind::PktType,
            Self::MetaL4proto | Self::IpProtocol | Self::Ip6Nexthdr | Self::CtProtocol => {
                Kind::InetProto
            }
            Self::IpDscp | Self::Ip6Dscp => Kind::Dscp,
            Self::IpEcn | Self::Ip6Ecn => Kind::Ecn,
            Self::TcpSport
            | Self::TcpDport
            | Self::UdpSport
            | Self::UdpDport
            | Self::ThSport
            | Self::ThDport => Kind::InetService,
            Self::TcpFlags => Kind::TcpFlags,
            Self::IcmpType => Kind::IcmpType,
            Self::IcmpCode => Kind::IcmpCode,
            Self::Icmpv6Type => Kind::Icmpv6Type,
            Self::Icmpv6Code => Kind::Icmpv6Code,
            Self::CtState => Kind::CtState,
            Self::CtDirection => Kind::CtDirection,
            Self::VlanPcp => Kind::Integer(3),
            Self::IpVersion | Self::IpHdrlength | Self::Ip6Version | Self::TcpDoff => {
                Kind::Integer(4)
            }
            Self::IpTtl | Self::Ip6Hoplimit => Kind::Integer(8),
            Self::VlanId => Kind::Integer(12),
            Self::ArpHtype
            | Self::IpLength
            | Self::IpId
            | Self::IpFragOff
            | Self::Ip6Length
            | Self::TcpWindow
            | Self::TcpChecksum
            | Self::TcpUrgptr
            | Self::UdpLength
            | Self::UdpChecksum
            | Self::IcmpId
            | Self::IcmpSequence
            | Self::IcmpMtu
            | Self::Icmpv6Id
            | Self::Icmpv6Sequence => Kind::Integer(16),
            Self::Ip6Flowlabel => Kind::Integer(20),
            Self::MetaLength | Self::TcpSequence | Self::TcpAckseq | Self::Icmpv6Mtu => {
                Kind::Integer(32)
            }
        }
    }
}

/// Connection states as bits, so that a rule tests several at once.
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
    /// That of the first packet.
    Original = 0,
    /// The opposite one.
    Reply = 1,
}
