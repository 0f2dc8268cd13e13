//! The router's counters, and the reasons for which it drops frames.

/// The reason why a frame was dropped.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum RouterDrop {
    /// It cannot be parsed.
    Malformed,
    /// It has a VLAN tag.
    Tagged,
    /// It is for another station.
    NotOurs,
    /// It is neither IP nor ARP.
    NotIp,
    /// It has an impossible address, or a source that belongs elsewhere.
    Martian,
    /// It has an address that is valid on one link only.
    LinkLocal,
    /// It is for a group or broadcast.
    Group,
    /// It has a source route.
    SourceRoute,
    /// No route; its sender was notified.
    NoRoute,
    /// Its time to live has expired; its sender was notified.
    Expired,
    /// It exceeds the MTU; its sender was notified.
    TooBig,
    /// Its neighbour did not answer; its sender was notified.
    Unreachable,
    /// Too many packets are already queued for neighbours.
    NoRoom,
    /// It is for the router itself, which cannot use it; its sender may have been notified.
    Local,
    /// It is invalid ARP or neighbour discovery, or does not concern the router.
    Discovery,
}

impl RouterDrop {
    /// All reasons, in the order of [`RouterStats::dropped`].
    pub const ALL: [Self; 15] = [
        Self::Malformed,
        Self::Tagged,
        Self::NotOurs,
        Self::NotIp,
        Self::Martian,
        Self::LinkLocal,
        Self::Group,
        Self::SourceRoute,
        Self::NoRoute,
        Self::Expired,
        Self::TooBig,
        Self::Unreachable,
        Self::NoRoom,
        Self::Local,
        Self::Discovery,
    ];

    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Tagged => "tagged",
            Self::NotOurs => "not-for-the-router",
            Self::NotIp => "not-ip",
            Self::Martian => "martian",
            Self::LinkLocal => "link-local",
            Self::Group => "multicast-or-broadcast",
            Self::SourceRoute => "source-route",
            Self::NoRoute => "no-route",
            Self::Expired => "hops-exhausted",
            Self::TooBig => "too-big",
            Self::Unreachable => "host-unreachable",
            Self::NoRoom => "neighbour-queue-full",
            Self::Local => "local",
            Self::Discovery => "bad-arp-or-discovery",
        }
    }
}

/// The router's counters since its start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RouterStats {
    /// Frames that were forwarded.
    pub forwarded: u64,
    /// Frames dropped, by [`RouterDrop`].
    pub dropped: [u64; RouterDrop::ALL.len()],
    /// ICMP errors sent.
    pub errors: u64,
    /// ICMP errors that the rate limit suppressed.
    pub errors_suppressed: u64,
    /// The router's own frames that were not taken in time.
    pub out_full: u64,
    /// Known neighbours.
    pub neighbours: usize,
    /// Neighbours that are being resolved.
    pub asked: usize,
    /// Claims of a neighbour's address by another station.
    pub challenged: u64,
}
