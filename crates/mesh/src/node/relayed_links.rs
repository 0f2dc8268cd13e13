//! Links that represent paths through relays, so a session works the same over a relay as over a direct path.

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};

use adit_engine::{Link, SocketId};

use crate::session::KeyHash;

/// The socket of relayed links, which exists in no driver.
const SOCKET: SocketId = SocketId(u16::MAX);

/// A path through a relay.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Relayed {
    pub(super) relay: KeyHash,
    pub(super) peer: KeyHash,
}

/// The links of all relayed paths used so far.
#[derive(Debug, Default)]
pub(super) struct RelayedLinks {
    by_link: HashMap<Link, Relayed>,
    links: HashMap<Relayed, Link>,
    last: u64,
}

impl RelayedLinks {
    /// Returns the link that represents a path through a relay.
    pub(super) fn link(&mut self, way: Relayed) -> Link {
        if let Some(link) = self.links.get(&way) {
            return *link;
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
