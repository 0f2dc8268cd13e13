//! The network's keys, one for each generation, and the purposes for which each is valid.
//!
//! ```text
//!   taken          KEY_DELAY later        KEY_GRACE later
//!     ├─ former key seals ─┼─ new key seals ──────┼─────────────►
//!     ├─ rows under either are taken ─────────────┼─ under the new key only
//!     └─ MACs over rows of nodes and the network: the new key at once
//! ```
//!
//! Old keys are kept for reading old rows. A generation is never reverted. If a database is restored to an earlier
//! state, this node no longer accepts its rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use adit_engine::{Instant, UnixTime};
use zeroize::Zeroizing;

use super::NetworkKey;
use super::rekey::Renewal;
use crate::limits::{GENERATIONS, KEY_DELAY, KEY_GRACE, PEERS};
use crate::queue::later;
use crate::token::{checked_text, from_checked_text};
use crate::{Generation, NodeId};

/// The keys of a network that a node or an auditor has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRing {
    newest: NetworkKey,
    /// The known keys; at most [`GENERATIONS`].
    former: BTreeMap<Generation, NetworkKey>,
    /// The nodes that received the newest key; `None` if this node has only had one key.
    members: Option<Members>,
    /// The keys that were accepted recently, in order; at most [`GENERATIONS`].
    taken: VecDeque<AcceptedKey>,
}

/// A key that was accepted while this process ran.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct AcceptedKey {
    generation: Generation,
    at: Instant,
    /// The time when epochs begin to use the key.
    seals: Instant,
}

/// The nodes of a network at a rekey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    highest: NodeId,
    nodes: BTreeSet<NodeId>,
}

impl Members {
    /// Creates the set of these `nodes`, out of all that have had a number up to `highest`.
    pub fn new(highest: NodeId, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        Self { highest, nodes: nodes.into_iter().filter(|node| node.0 > 0).collect() }
    }

    /// Returns whether the node existed and was left out. No number is assigned twice, so nodes with numbers above the
    /// highest are newer.
    pub fn left_out(&self, node: NodeId) -> bool {
        node <= self.highest && !self.nodes.contains(&node)
    }
}

/// The error for an invalid line in the key file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct RingError {
    /// The number of the line, counted from 1.
    pub line: usize,
    why: &'static str,
}

impl From<NetworkKey> for KeyRing {
    fn from(newest: NetworkKey) -> Self {
        Self { newest, former: BTreeMap::new(), members: None, taken: VecDeque::new() }
    }
}

impl KeyRing {
    /// Returns the newest key.
    pub fn newest(&self) -> &NetworkKey {
        &self.newest
    }

    /// Returns the newest key's generation.
    pub fn generation(&self) -> Generation {
        self.newest.generation()
    }

    /// Returns the key of a generation, to read old rows.
    pub fn get(&self, generation: Generation) -> Option<&NetworkKey> {
        if generation == self.newest.generation() {
            return Some(&self.newest);
        }
        self.former.get(&generation)
    }

    /// Returns whether the node was removed, that is, existed when the newest key was created but did not get it.
    pub fn left_out(&self, node: NodeId) -> bool {
        self.members.as_ref().is_some_and(|members| members.left_out(node))
    }

    /// Accepts the next key. `unix` is this host's wall-clock time. The record contains the time when the key was
    /// created. A key of any other generation has no effect.
    pub fn take(&mut self, now: Instant, unix: UnixTime, renewal: Renewal) {
        let Renewal { key, members, made } = renewal;
        if Some(key.generation()) != self.generation().next() {
            debug_assert!(false, "a generation was left out");
            return;
        }
        // A clock that is behind must not delay the key further.
        let passed = Duration::from_secs(unix.0.saturating_sub(made.0));
        let seals = later(now, KEY_DELAY.saturating_sub(passed));
        self.taken.retain(|taken| now.since(taken.at) < KEY_GRACE);
        self.taken.push_back(AcceptedKey { generation: key.generation(), at: now, seals });
        if self.taken.len() > GENERATIONS {
            self.taken.pop_front();
        }
        self.push(key);
        self.members = Some(members);
    }

    fn push(&mut self, key: NetworkKey) {
        let former = std::mem::replace(&mut self.newest, key);
        self.former.insert(former.generation(), former);
        while self.former.len() > GENERATIONS {
            self.former.pop_first();
        }
    }

    /// Returns the key for epochs that are opened now.
    pub fn sealing(&self, now: Instant) -> &NetworkKey {
        let mut generation = self.generation();
        for taken in self.taken.iter().rev() {
            if now >= taken.seals {
                break;
            }
            generation = taken.generation.previous();
        }
        self.get(generation).unwrap_or(&self.newest)
    }

    /// Returns the oldest generation whose key new rows may still use.
    pub fn oldest_accepted(&self, now: Instant) -> Generation {
        let mut generation = self.generation();
        for taken in self.taken.iter().rev() {
            if now.since(taken.at) >= KEY_GRACE {
                break;
            }
            generation = taken.generation.previous();
        }
        generation
    }

    /// Returns when [`Self::sealing`] or [`Self::oldest_accepted`] changes next.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let ends = |taken: &AcceptedKey| [taken.seals, later(taken.at, KEY_GRACE)];
        self.taken.iter().flat_map(ends).filter(|at| *at > now).min()
    }

    /// Returns the secret key file, which has a line for each key, and the nodes that received the newest one.
    pub fn to_text(&self) -> Zeroizing<String> {
        // The capacity is sufficient for the whole text, because a string that grows leaves copies behind.
        let nodes = self.members.as_ref().map_or(0, |members| members.nodes.len());
        let lines = self.former.len().saturating_add(3);
        let capacity = lines.saturating_mul(80).saturating_add(nodes.saturating_mul(12));
        let mut text = Zeroizing::new(String::with_capacity(capacity));
        text.push_str("# Keys of the network, oldest first: for this machine alone.\n");
        for key in self.former.values().chain([&self.newest]) {
            text.push_str("key ");
            text.push_str(&checked_text(&key.encode()));
            text.push('\n');
        }
        if let Some(members) = &self.members {
            let nodes: Vec<String> = members.nodes.iter().map(ToString::to_string).collect();
            text.push_str(&format!("members {} {}\n", members.highest, nodes.join(",")));
        }
        text
    }

    /// Parses the key file of a node that joined with the key `first`. There is no grace period for keys that were
    /// accepted earlier.
    ///
    /// # Errors
    /// Fails if a line is invalid, generations do not increase, or the file does not belong to that key.
    pub fn from_text(first: NetworkKey, text: &str) -> Result<Self, RingError> {
        let mut ring: Option<Self> = None;
        let mut first = Some(first);
        let mut lines = 0;
        for (at, line) in text.lines().enumerate() {
            lines = at.saturating_add(1);
            let bad = |why| RingError { line: lines, why };
            match line.split_once(' ') {
                _ if line.starts_with('#') => {}
                Some(("key", text)) => {
                    let key = from_checked_text(text).and_then(|bytes| NetworkKey::decode(&bytes));
                    let key = key.ok_or(bad("a key is damaged"))?;
                    if first.as_ref().is_some_and(|own| own.generation() == key.generation()) {
                        first
                            .take_if(|own| *own == key)
                            .ok_or(bad("the node's own key differs"))?;
                    }
                    match &mut ring {
                        None => ring = Some(key.into()),
                        Some(ring) if key.generation() > ring.generation() => ring.push(key),
                        Some(_) => return Err(bad("the keys' order is wrong")),
                    }
                }
                Some(("members", list)) => {
                    let members = parse_members(list).ok_or(bad("not a list of nodes"))?;
                    let ring = ring.as_mut().filter(|ring| ring.members.is_none());
                    ring.ok_or(bad("not the place for a list of nodes"))?.members = Some(members);
                }
                _ => return Err(bad("neither a key nor a list of nodes")),
            }
        }
        // There are enough further keys that the node's first one is forgotten.
        let forgotten = |ring: &Self| {
            first.as_ref().is_none_or(|own| {
                ring.former.len() == GENERATIONS
                    && ring.former.keys().next().is_some_and(|oldest| own.generation() < *oldest)
            })
        };
        let found = ring.filter(forgotten);
        found.ok_or(RingError { line: lines, why: "the key that the node joined with is missing" })
    }
}

fn parse_members(list: &str) -> Option<Members> {
    let (highest, nodes) = list.split_once(' ')?;
    let number = |text: &str| text.parse().ok().filter(|id| *id > 0).map(NodeId);
    let nodes: BTreeSet<NodeId> = nodes.split(',').map(number).collect::<Option<_>>()?;
    let highest = number(highest)?;
    let fits = nodes.len() <= PEERS && nodes.iter().all(|node| *node <= highest);
    fits.then_some(Members { highest, nodes })
}

#[cfg(test)]
mod tests {
    use adit_engine::Random;

    use super::*;

    const MADE: UnixTime = UnixTime(1_795_000_000);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn first() -> NetworkKey {
        NetworkKey::generate(&mut Random::new([1; 32]))
    }

    fn renewal(ring: &KeyRing, members: &[i32]) -> Renewal {
        let key = ring.newest().successor(&mut Random::new([2; 32])).unwrap();
        let members = Members::new(NodeId(9), members.iter().copied().map(NodeId));
        Renewal { key, members, made: MADE }
    }

    /// Returns a ring with a second key, which was accepted at 1000 s, a second after its creation.
    fn renewed() -> KeyRing {
        let mut ring = KeyRing::from(first());
        let renewal = renewal(&ring, &[1, 3]);
        ring.take(at(1000), UnixTime(MADE.0 + 1), renewal);
        ring
    }

    #[test]
    fn a_new_key_seals_after_a_delay_and_the_former_ones_rows_end_after_their_grace() {
        let ring = renewed();
        let is = |seconds| {
            let now = at(seconds);
            (ring.sealing(now).generation().0, ring.oldest_accepted(now).0)
        };
        assert_eq!(ring.generation(), Generation(2));
        assert_eq!((is(1000), is(1001)), ((1, 1), (1, 1)));
        assert_eq!((is(1002), is(1119)), ((2, 1), (2, 1)));
        assert_eq!(is(1120), (2, 2));
        assert_eq!(ring.deadline(at(1000)), Some(at(1002)));
        assert_eq!(ring.deadline(at(1002)), Some(at(1120)));
        assert_eq!(ring.deadline(at(1120)), None);
        assert_eq!(ring.get(Generation(1)), Some(&first()), "for reading old rows");
    }

    #[test]
    fn a_key_made_long_ago_seals_at_once_and_a_clock_behind_holds_none_back() {
        for (unix, delay) in [(MADE.0 + 3600, 0), (MADE.0 + 2, 1), (MADE.0 - 3600, 3)] {
            let mut ring = KeyRing::from(first());
            let renewal = renewal(&ring, &[1]);
            ring.take(at(1000), UnixTime(unix), renewal);
            assert_eq!(ring.sealing(at(1000 + delay)).generation(), Generation(2), "{unix}");
            let before = at(1000 + delay) - Duration::from_millis(1);
            assert_eq!(ring.sealing(before).generation(), Generation(1), "{unix}");
        }
    }

    #[test]
    fn two_keys_one_after_the_other_have_their_grace_each() {
        let mut ring = renewed();
        let renewal = renewal(&ring, &[1]);
        ring.take(at(1060), UnixTime(MADE.0), renewal);
        let is = |seconds| {
            let now = at(seconds);
            (ring.sealing(now).generation().0, ring.oldest_accepted(now).0)
        };
        assert_eq!((is(1060), is(1063)), ((2, 1), (3, 1)));
        assert_eq!((is(1120), is(1179), is(1180)), ((3, 2), (3, 2), (3, 3)));
    }

    #[test]
    fn a_node_that_was_left_out_stays_out_and_one_that_came_later_is_in() {
        let ring = renewed();
        let out: Vec<i32> = (1..12).filter(|id| ring.left_out(NodeId(*id))).collect();
        assert_eq!(out, [2, 4, 5, 6, 7, 8, 9]);
        assert!(!KeyRing::from(first()).left_out(NodeId(1)));
    }

    #[test]
    fn a_file_reads_back_without_grace() {
        let ring = renewed();
        let text = ring.to_text();
        let back = KeyRing::from_text(first(), &text).unwrap();
        assert_eq!(back, KeyRing { taken: VecDeque::new(), ..ring });
        assert_eq!(back.oldest_accepted(at(1001)), Generation(2));
        assert_eq!(back.sealing(at(1001)).generation(), Generation(2));
        assert_eq!(*back.to_text(), *text);
        // A node that joined with the second key does not have the first one.
        let joined = KeyRing::from(back.newest().clone());
        let again = KeyRing::from_text(back.newest().clone(), &joined.to_text()).unwrap();
        assert_eq!(again.get(Generation(1)), None);
        assert_eq!(again, joined);
    }

    #[test]
    fn each_wrong_line_is_named() {
        let good = renewed().to_text();
        let lines: Vec<&str> = good.lines().collect();
        let [title, one, two, members] = lines[..] else { panic!("{}", *good) };
        let other = NetworkKey::generate(&mut Random::new([7; 32]));
        let alien = KeyRing::from(other).to_text();
        let alien = alien.lines().nth(1).unwrap();
        for (line, text) in [
            (2, [title, &one[..30], two, members]),
            (2, [title, &one.to_ascii_lowercase(), two, members]),
            (3, [title, two, one, members]),
            (3, [title, one, one, members]),
            (2, [title, members, one, two]),
            (2, [title, alien, two, members]),
            (4, [title, one, two, "members 9 "]),
            (4, [title, one, two, "members 2 1,3"]),
            (4, [title, one, two, "members 9 0"]),
            (4, [title, one, two, "key"]),
            (4, [title, title, two, members]),
        ] {
            let refused = KeyRing::from_text(first(), &text.join("\n")).unwrap_err();
            assert_eq!(refused.line, line, "{refused}: {text:?}");
        }
        assert!(KeyRing::from_text(first(), "").is_err());
    }

    #[test]
    fn keys_beyond_the_bound_are_forgotten_oldest_first() {
        let mut ring = KeyRing::from(first());
        for _ in 0..GENERATIONS + 5 {
            let renewal = renewal(&ring, &[1]);
            ring.take(at(1000), MADE, renewal);
        }
        assert_eq!((ring.former.len(), ring.taken.len()), (GENERATIONS, GENERATIONS));
        assert_eq!((ring.get(Generation(5)), ring.generation()), (None, Generation(262)));
        assert!(ring.get(Generation(6)).is_some());
        let back = KeyRing::from_text(first(), &ring.to_text()).unwrap();
        assert_eq!(back.generation(), Generation(262));
    }

    #[test]
    fn keys_are_not_shown() {
        let shown = format!("{:?}", renewed());
        assert!(shown.contains("NetworkKey(..)") && !shown.contains("secret"), "{shown}");
    }
}
