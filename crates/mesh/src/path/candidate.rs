//! The addresses at which a node may be reachable.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::KeyHash;
use crate::wire::{DecodeError, Decoder, is_usable, put_address};

/// The maximum number of candidates in an offer.
pub const MAX_CANDIDATES: usize = 16;

/// An address at which a node may be reachable.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    address: SocketAddr,
    kind: CandidateKind,
}

/// The origin of a [`Candidate`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CandidateKind {
    /// An address of one of the node's interfaces.
    Own,
    /// A port that the node's router mapped by PCP or NAT-PMP.
    Mapped,
    /// The source address of the node's packets as another node sees it.
    Observed,
    /// A relay that the node reaches, with the relay's key hash.
    Relay(KeyHash),
    /// An address at which the node accepts TCP connections on port 443.
    Stream,
}

impl Candidate {
    /// Creates a candidate, unless no other machine could use the address.
    pub fn new(address: SocketAddr, kind: CandidateKind) -> Option<Self> {
        // Remove the scope and the flow label, so equal addresses compare as equal.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        is_usable(address).then_some(Self { address, kind })
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the origin.
    pub fn kind(&self) -> CandidateKind {
        self.kind
    }

    /// Returns whether datagrams to this address reach the node itself.
    pub fn takes_datagrams(&self) -> bool {
        matches!(self.kind, CandidateKind::Own | CandidateKind::Mapped | CandidateKind::Observed)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self.kind {
            CandidateKind::Own => 1,
            CandidateKind::Mapped => 2,
            CandidateKind::Observed => 3,
            CandidateKind::Relay(_) => 4,
            CandidateKind::Stream => 5,
        });
        put_address(self.address, out);
        if let CandidateKind::Relay(relay) = self.kind {
            out.extend(relay);
        }
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let kind = from.u8()?;
        let address = from.address()?;
        let kind = match kind {
            1 => CandidateKind::Own,
            2 => CandidateKind::Mapped,
            3 => CandidateKind::Observed,
            4 => CandidateKind::Relay(from.array()?),
            5 => CandidateKind::Stream,
            _ => return Err(DecodeError::Kind(kind)),
        };
        Ok(Self { address, kind })
    }
}

impl fmt::Display for CandidateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Mapped => "mapped",
            Self::Observed => "observed",
            Self::Relay(_) => "relay",
            Self::Stream => "tcp/443",
        })
    }
}

/// Returns whether an address is reachable only from within the same site.
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private(),
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_other_machine_can_use_are_no_candidates() {
        let candidate = |text: &str| Candidate::new(text.parse().unwrap(), CandidateKind::Own);
        for address in ["192.0.2.1:1194", "10.0.0.1:1", "[2001:db8::1]:65535", "[fd00::1]:1194"] {
            assert!(candidate(address).is_some(), "{address}");
        }
        for address in [
            "127.0.0.1:53",
            "0.0.0.0:1194",
            "224.0.0.1:1194",
            "255.255.255.255:1194",
            "169.254.1.1:1194",
            "192.0.2.1:0",
            "[::1]:53",
            "[::]:1194",
            "[ff02::1]:1194",
            "[fe80::1]:1194",
            "[::ffff:127.0.0.1]:53",
        ] {
            assert_eq!(candidate(address), None, "{address}");
        }
        let mapped = candidate("[::ffff:192.0.2.1]:1194");
        assert_eq!(mapped, candidate("192.0.2.1:1194"), "IPv4-mapped addresses are IPv4");
    }
}
