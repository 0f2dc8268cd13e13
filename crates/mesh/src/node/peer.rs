use std::net::SocketAddr;

use adit_engine::{Instant, Link, PeerId, SocketId};

use super::freshness::Trust;
use crate::path::{PathFinder, Tag};
use crate::session::SessionNumber;

/// Another member with which this node has or seeks a session.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) session: Option<Live>,
    pub(super) attempt: Option<Attempt>,
    pub(super) finder: PathFinder,
    /// The time of the finder in the table of timers.
    pub(super) scheduled: Option<Instant>,
    /// The sockets of the search for a path; later only the one that found it.
    pub(super) search_sockets: Vec<SocketId>,
    /// Until this time, the peer is connected to again if there is no session.
    pub(super) wanted_until: Instant,
}

/// An established session.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) number: SessionNumber,
    pub(super) channels: Vec<PeerId>,
    pub(super) link: Link,
    pub(super) since: Instant,
    /// The packets in the tunnel so far, by channel.
    pub(super) packets: Vec<u64>,
    /// The last time at which the number of packets had changed.
    pub(super) active_at: Instant,
    /// This node's permissions for the peer, as far as they depend on its roster.
    pub(super) trust: Trust,
}

/// A way on which a peer may answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// An address, or a relay.
    Link(Link),
    /// A stream to an address, which is not open yet.
    Stream(SocketAddr),
}

/// The search for a way on which the peer answers. If there is a session on a stream, it searches for one over
/// datagrams to replace it.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    /// The session that is being made.
    pub(super) number: Option<SessionNumber>,
    /// The ways that are still to be tried in this round.
    pub(super) ways: Vec<Way>,
    /// The stream that is being opened.
    pub(super) dials: Option<SocketAddr>,
    /// The time at which the next step is due.
    pub(super) until: Instant,
    /// The rounds in which no way worked.
    pub(super) failures: u32,
}

impl Peer {
    pub(super) fn new(finder: PathFinder) -> Self {
        Self {
            session: None,
            attempt: None,
            finder,
            scheduled: None,
            search_sockets: Vec::new(),
            wanted_until: Instant::default(),
        }
    }

    pub(super) fn tag(&self) -> Tag {
        self.finder.tag()
    }
}
