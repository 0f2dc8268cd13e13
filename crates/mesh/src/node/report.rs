//! A node's reports about its peers, for operators.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Instant, PeerId, UnixTime};

use super::{Excess, Node};
use crate::join::JoinCounters;
use crate::path::{self, NatInfo, RelayCounters};
use crate::session::{KeyHash, SessionCounters};
use crate::sync::SyncCounters;
use crate::token::InvitationCounters;

/// How another member is reached.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// There is no session.
    None,
    /// A session is being established.
    Connecting,
    /// Directly, at this address.
    Direct(SocketAddr),
    /// Through this relay.
    Relay(KeyHash),
    /// It is an OpenVPN app, reached through this member.
    Leaf(KeyHash),
}

/// The state of another member, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// The hash of its key.
    pub key: KeyHash,
    /// How it is reached.
    pub route: RouteKind,
    /// The round trip, if it has been measured.
    pub rtt: Option<Duration>,
    /// The age of the session.
    pub connected_for: Option<Duration>,
    /// Whether the session is a standing one.
    pub standing: bool,
    /// Whether this node reaches it, or its relay, over TCP.
    pub stream: bool,
    /// Whether there are routes to it. A peer may have a session but no routes, while this node first compares its roster with other
    /// members.
    pub is_open: bool,
    /// Whether too few other members have confirmed the roster since this node was away.
    pub is_stale: bool,
    /// Whether it has no routes because the roster has not been compared with any other member for too long.
    pub is_expired: bool,
    /// Its items that were dropped in the last minutes because it exceeded a limit.
    pub excess: Excess,
}

/// The counters of a node.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Malformed records from members; each ended its session.
    pub malformed: u64,
    /// Dropped packets for a peer behind a relay: there was no session with the relay, or no room in it.
    pub relay_unavailable: u64,
    /// Forwarded items from a member that is not a relay, or whose original sender is not a member.
    pub not_relayed: u64,
    /// Probes that belong to no peer, and other packets to a port that this node only sends a channel from.
    pub unknown_probes: u64,
    /// The counters of sessions.
    pub sessions: SessionCounters,
    /// The counters of the roster exchange.
    pub sync: SyncCounters,
    /// The counters of requests to join.
    pub joins: JoinCounters,
    /// The counters of invitations.
    pub invitations: InvitationCounters,
    /// Dropped items of members that exceeded a limit.
    pub excess: Excess,
    /// Dropped items of members without an entry in the table of limits.
    pub untracked: u64,
    /// The counters of relayed control packets and records.
    pub relay: RelayCounters,
    /// The pairs of sender and receiver for which this node relays data.
    pub relayed_directions: usize,
}

impl NodeCounters {
    /// Returns what was refused or dropped, with a stable name for each reason.
    #[must_use]
    pub fn drops(&self) -> [(&'static str, u64); 22] {
        let Self { sessions, sync, joins, invitations, excess, relay, .. } = self;
        [
            ("record-malformed", self.malformed),
            ("relay-unavailable", self.relay_unavailable),
            ("forward-unexpected", self.not_relayed),
            ("probe-unknown", self.unknown_probes),
            ("member-records", excess.records),
            ("member-endpoints", excess.endpoints),
            ("member-changes", excess.changes),
            ("member-untracked", self.untracked),
            ("change-invalid", sync.invalid),
            ("change-limited", sync.limited),
            ("join-malformed", joins.malformed),
            ("join-refused", joins.refused),
            ("invitation-unknown", invitations.unknown),
            ("invitation-over", invitations.over),
            ("relay-pair-limit", relay.over_pair),
            ("relay-limit", relay.over_all),
            ("relay-no-room", relay.no_room),
            ("session-refused", sessions.refused),
            ("session-bad", sessions.dropped),
            ("handshake-failed", sessions.handshakes_failed),
            ("attempt-refused", sessions.attempts_refused),
            ("stream-refused", sessions.streams_refused.saturating_add(sessions.streams_silent)),
        ]
    }
}

impl Node {
    /// Shrinks the tables to their contents. Otherwise a nearly empty table keeps its peak allocation.
    pub fn release_memory(&mut self, now: Instant) {
        self.sessions.release_memory(now);
        self.session_outputs.shrink_to_fit();
        self.by_session.shrink_to_fit();
        self.by_channel.shrink_to_fit();
        self.by_tag.shrink_to_fit();
    }

    /// Reports all other members.
    pub fn peers(&self) -> impl Iterator<Item = KeyHash> {
        self.roster.members().map(|member| member.key).filter(|key| *key != self.own)
    }

    /// Reports another member.
    pub fn peer(&self, now: Instant, key: &KeyHash) -> PeerReport {
        let gateway = self.roster.member(key).and_then(|member| member.leaf_of);
        let unix = self.unix(now);
        let age = |since: UnixTime| Duration::from_secs(unix.0.saturating_sub(since.0));
        let app = self.app_session(key).map(|(_, since)| age(since));
        let peer = self.peers.get(key);
        let live = peer.and_then(|peer| peer.session.as_ref());
        let route = match live {
            Some(live) => match self.relayed.way(live.link) {
                Some(way) => RouteKind::Relay(way.relay),
                // A dual-stack listener reports IPv4 addresses as mapped IPv6.
                None => {
                    let (ip, port) = (live.link.remote().ip(), live.link.remote().port());
                    RouteKind::Direct(SocketAddr::new(ip.to_canonical(), port))
                }
            },
            None if peer.is_some_and(|peer| peer.attempt.is_some()) => RouteKind::Connecting,
            None => gateway.map_or(RouteKind::None, RouteKind::Leaf),
        };
        let first_hop = match route {
            RouteKind::Relay(relay) => self.live(&relay),
            _ => live,
        };
        PeerReport {
            key: *key,
            route,
            stream: first_hop.is_some_and(|live| live.link.is_stream()),
            rtt: peer.and_then(|peer| peer.finder.current_rtt()),
            connected_for: live.map(|live| now.since(live.since)).or(app),
            standing: self.standing.contains(key),
            is_open: live.is_some_and(|live| live.trust.is_open),
            is_stale: live.is_some_and(|live| live.trust.is_stale),
            is_expired: live.is_some_and(|live| live.trust.is_expired),
            excess: self.limits.excess(now, key),
        }
    }

    /// Returns the data channels of the session with a member.
    pub fn channels(&self, key: &KeyHash) -> &[PeerId] {
        self.live(key).map(|live| &*live.channels).unwrap_or_default()
    }

    /// Explains the paths to a member, if this node has used any.
    pub fn path(&self, now: Instant, key: &KeyHash) -> Option<path::Report> {
        self.peers.get(key).map(|peer| peer.finder.report(now))
    }

    /// Returns the known properties of the NAT in front of this node.
    pub fn nat(&self, now: Instant) -> NatInfo {
        self.nat.classify(now)
    }

    /// Returns the counters.
    pub fn counters(&self) -> NodeCounters {
        let (excess, untracked) = self.limits.totals();
        NodeCounters {
            excess,
            untracked,
            sessions: self.sessions.counters(),
            sync: self.sync.counters(),
            joins: self.joins,
            invitations: self.invitations.counters(),
            relay: self.relaying.counters(),
            relayed_directions: self.relaying.directions(),
            ..self.counters
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own_and_is_documented() {
        let drops = NodeCounters::default().drops();
        let manual = include_str!("../../../../docs/mesh.md");
        for (at, (name, _)) in drops.iter().enumerate() {
            assert!(drops.iter().take(at).all(|(other, _)| other != name), "{name}");
            assert!(manual.contains(&format!("`{name}`")), "{name} is not in docs/mesh.md");
        }
    }
}
