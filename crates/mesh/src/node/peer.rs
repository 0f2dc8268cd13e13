use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Instant, Link, PeerId, SocketId};

use super::freshness::Trust;
use crate::path::{PathFinder, Tag};
use crate::session::SessionNumber;

/// A member that this node has a session with, or tries to establish one with.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) session: Option<Live>,
    pub(super) attempt: Option<Attempt>,
    pub(super) finder: PathFinder,
    /// The finder's time in the table of timers.
    pub(super) scheduled: Option<Instant>,
    /// The sockets of the port search; later only the one that found a path.
    pub(super) search_sockets: Vec<SocketId>,
    /// Until this time, the node connects again if there is no session.
    pub(super) wanted_until: Instant,
}

/// An established session.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) number: SessionNumber,
    pub(super) channels: Vec<PeerId>,
    pub(super) link: Link,
    pub(super) since: Instant,
    /// The tunnelled packets so far, by channel.
    pub(super) packets: Vec<u64>,
    /// The last time at which the number of packets changed.
    pub(super) active_at: Instant,
    /// What this node permits the peer, as far as it depends on the age of the roster.
    pub(super) trust: Trust,
}

/// A way to reach a peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// An address, or a relay.
    Link(Link),
    /// A stream to an address, still to be opened.
    Stream(SocketAddr),
}

/// An attempt to reach a peer. If there is a session on a stream, it tries datagrams, to replace the session.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    /// The session being established.
    pub(super) number: Option<SessionNumber>,
    /// The ways left to try in this round.
    pub(super) ways: Vec<Way>,
    /// The stream being opened.
    pub(super) dials: Option<SocketAddr>,
    /// The time when the next step is due.
    pub(super) until: Instant,
    /// The time from the failure of this step to the next step.
    pub(super) pause: Duration,
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
