//! Announcements that contradict this node's own state. Each gets an answer with the truth, unless another node seems to have the same name.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_engine::Instant;

use super::{ConnectionId, Event, Node, after, count};
use crate::meta::{EdgeInfo, Message};
use crate::name::NodeName;
use crate::subnet::Subnet;

/// The number of contradictions of each kind within [`CONTRADICTION_PERIOD`] above which another node seems to have this node's name.
const MAX_CONTRADICTIONS: u32 = 100;

/// How often contradictions are counted up.
const CONTRADICTION_PERIOD: Duration = Duration::from_secs(5);

/// For how long contradictions get no answer after too many of them: at first, and at most.
const MIN_SILENCE: Duration = Duration::from_secs(10);
const MAX_SILENCE: Duration = Duration::from_secs(3600);

/// The time between two answers to the same contradiction by the same neighbour.
const ANSWER_INTERVAL: Duration = Duration::from_secs(1);

/// The number of recent answers that are remembered, of which each neighbour that contradicts gets an equal share, and at most half. Further
/// contradictions of a neighbour get no answer until some are forgotten.
const MAX_ANSWERS: usize = 8192;

/// An announcement that contradicts this node's own state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    Edge(NodeName),
    Subnet(Subnet),
}

/// Counts the announcements that contradict this node's own state, and decides which get an answer.
#[derive(Debug)]
pub(super) struct Contradictions {
    added: u32,
    deleted: u32,
    checked: Instant,
    silence: Duration,
    silent_until: Option<Instant>,
    answered: BTreeMap<ConnectionId, BTreeMap<Claim, Instant>>,
}

impl Contradictions {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            added: 0,
            deleted: 0,
            checked: now,
            silence: MIN_SILENCE,
            silent_until: None,
            answered: BTreeMap::new(),
        }
    }

    /// Returns until when contradictions get no answer.
    pub(super) fn silent_until(&self) -> Option<Instant> {
        self.silent_until
    }

    /// Returns whether to answer, and remembers that.
    fn may_answer(&mut self, now: Instant, id: ConnectionId, claim: Claim) -> bool {
        if self.silent_until.is_some() {
            return false;
        }
        let others = self.answered.keys().filter(|other| **other != id).count();
        let share = MAX_ANSWERS.checked_div(others.saturating_add(1).max(2)).unwrap_or(0);
        let answered = self.answered.entry(id).or_default();
        match answered.get(&claim) {
            Some(at) if now.since(*at) < ANSWER_INTERVAL => return false,
            None if answered.len() >= share => return false,
            _ => {}
        }
        answered.insert(claim, now);
        true
    }

    /// Returns whether another node seems to have this node's name, and begins a silence if so.
    fn check(&mut self, now: Instant) -> bool {
        self.answered.retain(|_, answered| {
            answered.retain(|_, at| now.since(*at) < ANSWER_INTERVAL);
            !answered.is_empty()
        });
        if self.silent_until.is_some_and(|until| now >= until) {
            self.silent_until = None;
        }
        if now.since(self.checked) < CONTRADICTION_PERIOD {
            return false;
        }
        self.checked = now;
        let conflict = self.added > MAX_CONTRADICTIONS && self.deleted > MAX_CONTRADICTIONS;
        (self.added, self.deleted) = (0, 0);
        if conflict {
            self.silent_until = Some(after(now, self.silence));
            self.silence = self.silence.saturating_mul(2).min(MAX_SILENCE);
        } else if self.silent_until.is_none() {
            self.silence =
                self.silence.checked_div(2).map_or(MIN_SILENCE, |half| half.max(MIN_SILENCE));
        }
        conflict
    }
}

impl Node {
    /// Sends a neighbour the truth, unless it got it a moment ago or a silence is on.
    pub(super) fn contradict(&mut self, id: ConnectionId, claim: Claim, message: &Message) {
        count(&mut self.counters.contradictions);
        if self.contradictions.may_answer(self.now, id, claim) {
            self.send(id, message);
        }
    }

    /// A neighbour announced an edge that begins at this node.
    pub(super) fn own_edge_claimed(&mut self, id: ConnectionId, to: &NodeName, claimed: &EdgeInfo) {
        let own = self.own.clone();
        let claim = Claim::Edge(to.clone());
        let Some(edge) = self.graph.edge(&own, to) else {
            self.contradictions.added = self.contradictions.added.saturating_add(1);
            return self.contradict(id, claim, &Message::DelEdge(own, to.clone()));
        };
        let local = claimed.local.as_ref().filter(|local| local.socket().is_some());
        let equal = edge.address == claimed.address
            && edge.options == claimed.options
            && edge.weight == claimed.weight
            && local.is_none_or(|local| edge.local.as_ref() == Some(local));
        if equal {
            return;
        }
        let answer = Message::AddEdge(own, to.clone(), edge.clone());
        self.contradict(id, claim, &answer);
    }

    /// A neighbour withdrew an edge that begins at this node.
    pub(super) fn own_edge_withdrawn(&mut self, id: ConnectionId, to: &NodeName) {
        let own = self.own.clone();
        let Some(edge) = self.graph.edge(&own, to) else { return };
        let answer = Message::AddEdge(own, to.clone(), edge.clone());
        self.contradictions.deleted = self.contradictions.deleted.saturating_add(1);
        self.contradict(id, Claim::Edge(to.clone()), &answer);
    }

    /// Looks for a second node with this node's name.
    pub(super) fn check_contradictions(&mut self) {
        let was_silent = self.contradictions.silent_until().is_some();
        if self.contradictions.check(self.now) {
            self.event(Event::NameConflict);
        }
        if was_silent && self.contradictions.silent_until().is_none() {
            self.announce_again();
        }
    }

    /// Announces this node's edges and subnets once more, because contradictions had no answer for a while. Nodes that know them ignore this.
    fn announce_again(&mut self) {
        let own = self.own.clone();
        let subnets = self.subnets.of(&own).map(|subnet| Message::AddSubnet(own.clone(), *subnet));
        let edges = self.graph.edges_of(&own);
        let edges = edges.map(|(to, edge)| Message::AddEdge(own.clone(), to.clone(), edge.clone()));
        let messages: Vec<Message> = subnets.chain(edges).collect();
        messages.iter().for_each(|message| self.flood(message, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000) + Duration::from_millis(millis)
    }

    fn edge(name: &str) -> Claim {
        Claim::Edge(name.parse().unwrap())
    }

    /// Specification 7.5: at most one answer a second per edge and neighbour.
    #[test]
    fn a_contradiction_is_answered_once_a_second() {
        let mut state = Contradictions::new(at(0));
        let (one, other) = (ConnectionId(1), ConnectionId(2));
        assert!(state.may_answer(at(0), one, edge("bob")));
        assert!(!state.may_answer(at(999), one, edge("bob")));
        assert!(state.may_answer(at(999), one, edge("carol")), "another edge");
        assert!(state.may_answer(at(999), other, edge("bob")), "another neighbour");
        assert!(state.may_answer(at(1000), one, edge("bob")));
        state.check(at(1998));
        assert_eq!(state.answered.keys().collect::<Vec<_>>(), [&one, &other]);
        state.check(at(2000));
        assert!(state.answered.is_empty());
    }

    #[test]
    fn a_neighbour_does_not_use_up_the_answers_to_others() {
        let mut state = Contradictions::new(at(0));
        let mut answers = |number| {
            let claims = (0..MAX_ANSWERS * 2).map(|claim| edge(&format!("n{claim}")));
            let answered =
                |claim: &Claim| state.may_answer(at(0), ConnectionId(number), claim.clone());
            claims.filter(answered).count()
        };
        let half = MAX_ANSWERS / 2;
        assert_eq!([1, 2, 3, 4].map(&mut answers), [half, half, MAX_ANSWERS / 3, MAX_ANSWERS / 4]);
        assert_eq!(answers(1), 0, "they are remembered");
    }

    /// Specification 7.3.
    #[test]
    fn many_contradictions_of_both_kinds_silence_the_node_for_longer_each_time() {
        let mut state = Contradictions::new(at(0));
        let mut now = 0;
        let mut check = |state: &mut Contradictions, added, deleted| {
            now += 5000;
            (state.added, state.deleted) = (added, deleted);
            let conflict = state.check(at(now));
            let left = state.silent_until.map_or(0, |until| until.since(at(now)).as_secs());
            (conflict, left)
        };
        assert_eq!(check(&mut state, 101, 100), (false, 0));
        assert_eq!(check(&mut state, 100, 101), (false, 0));
        assert_eq!(check(&mut state, 101, 101), (true, 10));
        assert!(!state.may_answer(at(10), ConnectionId(1), edge("bob")));
        assert_eq!(check(&mut state, 101, 101), (true, 20));
        assert_eq!(check(&mut state, 0, 0), (false, 15));
        for _ in 0..12 {
            check(&mut state, 101, 101);
        }
        assert_eq!(check(&mut state, 101, 101), (true, 3600));
        for _ in 0..800 {
            check(&mut state, 0, 0);
        }
        assert_eq!(check(&mut state, 101, 101), (true, 10), "calm for long");
    }
}
