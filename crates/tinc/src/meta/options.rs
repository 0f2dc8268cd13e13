//! The options of an edge, which both of its ends agree on.

/// The minor version of the protocol that adit speaks.
pub const MINOR: u8 = 7;

/// The options of an edge: flags, and the minor version of the node that the edge leads to.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options(pub u32);

impl Options {
    /// Only neighbours send to the node directly.
    pub const INDIRECT: u32 = 1;
    /// Packets go over TCP alone.
    pub const TCP_ONLY: u32 = 1 << 1;
    /// The path MTU is discovered.
    pub const PMTU_DISCOVERY: u32 = 1 << 2;
    /// The MSS of TCP connections is lowered to what fits.
    pub const CLAMP_MSS: u32 = 1 << 3;

    const FLAGS: u32 = 0x00ff_ffff;

    /// Creates the options of a node that speaks adit's minor version. TCP alone implies that only neighbours send directly.
    pub const fn new(flags: u32) -> Self {
        let implied = if flags & Self::TCP_ONLY != 0 { Self::INDIRECT } else { 0 };
        Self((flags | implied) & Self::FLAGS | (MINOR as u32) << 24)
    }

    /// Returns whether a flag is set.
    pub const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// Returns the minor version.
    pub const fn minor(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Combines the options of both ends: the path MTU is discovered if both want it; any other flag is set if one of them wants it. The
    /// minor version is the peer's.
    #[must_use]
    pub const fn merge(self, peer: Self) -> Self {
        let mut flags = (self.0 | peer.0) & Self::FLAGS;
        if !(self.has(Self::PMTU_DISCOVERY) && peer.has(Self::PMTU_DISCOVERY)) {
            flags &= !Self::PMTU_DISCOVERY;
        }
        Self(flags | peer.0 & !Self::FLAGS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Specification 5.4.
    #[test]
    fn options_are_merged_as_in_the_specification() {
        let ours = Options::new(Options::PMTU_DISCOVERY | Options::CLAMP_MSS);
        assert_eq!(ours, Options(0x0700_000c));
        assert_eq!(ours.merge(Options(0x0400_000c)), Options(0x0400_000c));
        assert_eq!(ours.merge(Options(0x0200_0000)), Options(0x0200_0008));
        assert_eq!(ours.merge(Options(0x0700_0004)), Options(0x0700_000c));
        assert_eq!(Options(0).merge(Options(0x0000_0001)), Options(1), "a node of minor 0");
        assert_eq!(Options::new(Options::TCP_ONLY).0 & 3, 3);
        assert_eq!((ours.minor(), Options(3).minor()), (7, 0));
    }
}
