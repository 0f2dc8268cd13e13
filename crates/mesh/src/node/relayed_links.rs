//! Links that represent paths through relays, so a session works the same over a relay as over a direct path.

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};

use adit_engine::{Link, SocketId};

use crate::session::KeyHash;

/// The socket of relayed links. It exists in no driver.
const SOCKET: SocketId = SocketId(u16::MAX);

/// With more relayed paths than this, those that no session uses are forgotten. Sessions have fewer, because each has a channel.
const MAX_LINKS: usize = 65_536;

/// A path through a relay.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Relayed {
    pub(super) relay: KeyHash,
    pub(super) peer: KeyHash,
}

/// The links of relayed paths.
#[derive(Debug, Default)]
pub(super) struct RelayedLinks {
    by_link: HashMap<Link, Relayed>,
    links: HashMap<Relayed, Link>,
    last: u64,
}

impl RelayedLinks {
    /// Returns the link that represents a path through a relay. `is_used` returns which links must keep their meaning.
    pub(super) fn link(&mut self, way: Relayed, is_used: impl Fn(Link) -> bool) -> Link {
        if let Some(link) = self.links.get(&way) {
            return *link;
        }
        if self.links.len() >= MAX_LINKS {
            self.links.retain(|_, link| is_used(*link));
            self.by_link.retain(|link, _| is_used(*link));
        }
        self.last = self.last.saturating_add(1);
        // The discard prefix (RFC 6666) never contains a node's address.
        let address = Ipv6Addr::from((0x0100_u128 << 112) | u128::from(self.last));
        let link = Link::datagram(SOCKET, None, SocketAddr::from((address, 1)));
        self.by_link.insert(link, way);
        self.links.insert(way, link);
        link
    }

    /// Returns the relayed path that a link represents, or `None` for a direct path.
    pub(super) fn way(&self, link: Link) -> Option<Relayed> {
        if link.socket() == Some(SOCKET) { self.by_link.get(&link).copied() } else { None }
    }

    /// Forgets the paths to and through a former member.
    pub(super) fn forget(&mut self, node: &KeyHash) {
        self.by_link.retain(|_, way| way.relay != *node && way.peer != *node);
        self.links.retain(|way, _| way.relay != *node && way.peer != *node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_no_session_uses_make_room() {
        let mut links = RelayedLinks::default();
        let way = |n: u32| {
            let mut peer = [7; 32];
            peer[..4].copy_from_slice(&n.to_be_bytes());
            Relayed { relay: [1; 32], peer }
        };
        let used = links.link(way(0), |_| false);
        for n in 1..=MAX_LINKS as u32 {
            links.link(way(n), |link| link == used);
        }
        assert_eq!((links.links.len(), links.by_link.len()), (2, 2));
        assert_eq!(links.way(used), Some(way(0)));
        assert_eq!(links.link(way(0), |_| false), used);
        let last = links.link(way(MAX_LINKS as u32), |_| false);
        assert_eq!(links.way(last), Some(way(MAX_LINKS as u32)));
    }
}
