//! This node's work as a relay for other members.
//!
//! A relay forwards control packets and records within a budget for each pair of members. It forwards data unread, by splices of the data
//! plane: a member sends the relay the ids of its channels with another member, and the relay forwards packets with these ids from that
//! member.
//!
//! A relay's own channels use another range of ids than other nodes' channels ([`ids`]). Otherwise the data plane would mistake packets to
//! be relayed for its own.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use adit_engine::command::{Splice, SpliceId, SpliceLabel};
use adit_engine::{Instant, PeerId, Rate};
use adit_openvpn::data_format::Command;

use crate::path::{RelayBudget, RelayCounters};
use crate::session::KeyHash;

/// The number of members whose packets one member can accept through this relay.
pub(super) const MAX_ACCEPTED: usize = 1024;

/// The budget for control packets and records of one pair of members. A handshake takes about 16 KiB in each direction.
const CONTROL_OF_PAIR: Rate = Rate::new(256 * 1024, Duration::from_secs(4));

/// The budget for control packets and records of all pairs.
const CONTROL_IN_ALL: Rate = Rate::new(64 * 1024 * 1024, Duration::from_secs(4));

/// The ids of a relay's own channels.
const RELAY_IDS: RangeInclusive<u32> = 1..=16_383;

/// The ids of the channels of all other nodes.
pub(super) const MEMBER_IDS: RangeInclusive<u32> = 16_384..=65_535;

/// Returns the ids that a node's channels may have.
pub(super) fn ids(is_relay: bool) -> RangeInclusive<u32> {
    if is_relay { RELAY_IDS } else { MEMBER_IDS }
}

/// The limits on the data that a relay forwards.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayLimits {
    /// The limit from one member to another, in bytes; `None`: no limit.
    pub of_pair: Option<Rate>,
    /// The limit for all members together, in bytes; `None`: no limit.
    pub in_all: Option<Rate>,
}

/// One direction of traffic between two members.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Direction {
    to: KeyHash,
    from: KeyHash,
}

/// The state of a relay.
#[derive(Debug)]
pub(super) struct Relaying {
    limits: RelayLimits,
    budget: RelayBudget,
    accepted: BTreeMap<Direction, Vec<u32>>,
    /// The receiver of packets from a member, by id.
    receivers: HashMap<(KeyHash, u32), KeyHash>,
}

/// The first data channel of this node's session with a member, if it has a session.
pub(super) type ChannelOf<'a> = dyn Fn(&KeyHash) -> Option<PeerId> + 'a;

impl Relaying {
    pub(super) fn new(limits: RelayLimits) -> Self {
        Self {
            limits,
            budget: RelayBudget::new(CONTROL_OF_PAIR, CONTROL_IN_ALL),
            accepted: BTreeMap::new(),
            receivers: HashMap::new(),
        }
    }

    pub(super) fn limits(&self) -> RelayLimits {
        self.limits
    }

    pub(super) fn counters(&self) -> RelayCounters {
        self.budget.counters()
    }

    /// Returns the number of pairs of sender and receiver for which data is forwarded.
    pub(super) fn directions(&self) -> usize {
        self.accepted.len()
    }

    /// Charges a control packet or record to the budgets. Returns whether it may be forwarded.
    pub(super) fn take(
        &mut self,
        now: Instant,
        from: &KeyHash,
        to: &KeyHash,
        bytes: usize,
    ) -> bool {
        self.budget.take(now, from, to, bytes)
    }

    /// Forwards packets from `from` with these ids to `to`, and stops forwarding other ids. Returns false if another member or a channel of
    /// this node uses an id, or if there is no room.
    pub(super) fn accept(
        &mut self,
        to: KeyHash,
        from: KeyHash,
        ids: Vec<u32>,
        is_own: impl Fn(PeerId) -> bool,
        channel_of: &ChannelOf<'_>,
        out: &mut Vec<Command>,
    ) -> bool {
        let direction = Direction { to, from };
        self.remove(direction, channel_of, out);
        if ids.is_empty() {
            return true;
        }
        let range = Direction { to, from: [0; 32] }..=Direction { to, from: [u8::MAX; 32] };
        let is_taken = |id: &u32| {
            self.receivers.contains_key(&(from, *id))
                || !MEMBER_IDS.contains(id)
                || is_own(PeerId(*id))
        };
        if ids.iter().any(is_taken) || self.accepted.range(range).count() >= MAX_ACCEPTED {
            return false;
        }
        for id in &ids {
            self.receivers.insert((from, *id), to);
        }
        self.accepted.insert(direction, ids);
        self.splice(direction, channel_of, out);
        true
    }

    /// Restores a member's splices, because it has a new session with this node.
    pub(super) fn connected(
        &self,
        member: &KeyHash,
        channel_of: &ChannelOf<'_>,
        out: &mut Vec<Command>,
    ) {
        let of_member =
            |direction: &&Direction| direction.to == *member || direction.from == *member;
        for direction in self.accepted.keys().filter(of_member) {
            self.splice(*direction, channel_of, out);
        }
    }

    /// Forgets a node that is no longer a member.
    pub(super) fn forget(&mut self, node: &KeyHash) {
        self.budget.forget(node);
        self.accepted.retain(|direction, _| direction.to != *node && direction.from != *node);
        self.receivers.retain(|(from, _), to| from != node && to != node);
    }

    fn splice(&self, direction: Direction, channel_of: &ChannelOf<'_>, out: &mut Vec<Command>) {
        let channels = channel_of(&direction.from).zip(channel_of(&direction.to));
        let (Some((from, to)), Some(ids)) = (channels, self.accepted.get(&direction)) else {
            return;
        };
        out.extend(ids.iter().map(|&peer_id| {
            let id = SpliceId { from, label: SpliceLabel::PeerId(peer_id) };
            Command::AddSplice(Splice { limit: self.limits.of_pair, ..Splice::new(id, to) })
        }));
    }

    fn remove(&mut self, direction: Direction, channel_of: &ChannelOf<'_>, out: &mut Vec<Command>) {
        let ids = self.accepted.remove(&direction).unwrap_or_default();
        let from = channel_of(&direction.from);
        for peer_id in ids {
            self.receivers.remove(&(direction.from, peer_id));
            let label = SpliceLabel::PeerId(peer_id);
            out.extend(from.map(|from| Command::DelSplice(SpliceId { from, label })));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: KeyHash = [1; 32];
    const B: KeyHash = [2; 32];
    const C: KeyHash = [3; 32];

    fn channel(member: &KeyHash) -> Option<PeerId> {
        Some(PeerId(u32::from(member[0])))
    }

    fn relaying() -> Relaying {
        Relaying::new(RelayLimits::default())
    }

    fn accept(relaying: &mut Relaying, to: KeyHash, from: KeyHash, ids: &[u32]) -> (bool, usize) {
        let mut out = Vec::new();
        let ids = ids.iter().map(|id| 20_000 + id).collect();
        let is_own = |id| id == PeerId(20_009);
        let accepted = relaying.accept(to, from, ids, is_own, &channel, &mut out);
        (accepted, out.len())
    }

    #[test]
    fn an_id_of_one_sender_goes_to_one_receiver() {
        let mut relaying = relaying();
        assert_eq!(accept(&mut relaying, B, A, &[5, 6]), (true, 2));
        assert_eq!(accept(&mut relaying, C, A, &[6]), (false, 0), "taken");
        assert_eq!(accept(&mut relaying, C, B, &[6]), (true, 1), "another sender");
        assert_eq!(accept(&mut relaying, B, A, &[7]), (true, 3), "in place of the former ones");
        assert_eq!(accept(&mut relaying, C, A, &[6]), (true, 1));
        assert_eq!(accept(&mut relaying, B, A, &[]), (true, 1));
        assert_eq!(accept(&mut relaying, C, A, &[7]), (true, 2));
    }

    #[test]
    fn the_ids_of_this_nodes_own_channels_are_taken() {
        assert_eq!(accept(&mut relaying(), B, A, &[9]), (false, 0));
        let (mut out, relay_id) = (Vec::new(), *RELAY_IDS.end());
        let may = relaying().accept(B, A, vec![relay_id], |_| false, &channel, &mut out);
        assert!(!may, "an id that a channel of the relay may get");
    }

    #[test]
    fn a_member_without_a_session_is_spliced_when_it_connects() {
        let mut relaying = relaying();
        let absent = |member: &KeyHash| if *member == A { None } else { channel(member) };
        let mut out = Vec::new();
        assert!(relaying.accept(B, A, vec![20_005], |_| false, &absent, &mut out));
        assert!(out.is_empty());
        relaying.connected(&C, &channel, &mut out);
        assert!(out.is_empty(), "another member");
        relaying.connected(&A, &channel, &mut out);
        let [Command::AddSplice(splice)] = &out[..] else { panic!("{out:?}") };
        let id = SpliceId { from: PeerId(1), label: SpliceLabel::PeerId(20_005) };
        assert_eq!((splice.id, splice.to), (id, PeerId(2)));
    }

    #[test]
    fn a_member_accepts_a_bounded_number_of_senders_and_those_that_left_make_room() {
        let mut relaying = relaying();
        let sender = |n: usize| {
            let mut key = [7; 32];
            key[..8].copy_from_slice(&n.to_be_bytes());
            key
        };
        for n in 0..MAX_ACCEPTED {
            assert!(accept(&mut relaying, B, sender(n), &[5]).0);
        }
        assert!(!accept(&mut relaying, B, A, &[5]).0);
        assert!(accept(&mut relaying, C, A, &[5]).0, "another receiver");
        relaying.forget(&sender(0));
        assert!(accept(&mut relaying, B, A, &[6]).0);
        relaying.forget(&A);
        assert_eq!(relaying.receivers.len(), MAX_ACCEPTED - 1);
    }
}
