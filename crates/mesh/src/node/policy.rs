//! The policy of the mesh, a text whose SHA-256 is in the roster. A node without it asks connected members, one after
//! another, for its pieces.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use adit_crypto::sha256;
use adit_engine::Instant;

use super::record::Record;
use super::{Node, NodeEvent, Out, SignError, Signed};
use crate::roster::Action;
use crate::session::KeyHash;

/// The maximum length of a policy, in bytes.
pub const MAX_POLICY: usize = 64 * 1024;

/// The length of a piece.
const PIECE: usize = 3 * 1024;

/// The number of texts that a node keeps: the roster's, and those that wait for approvals.
const MAX_TEXTS: usize = 4;

/// The time in which a member must answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a node knows of the policy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PolicyState<'a> {
    /// There is none, so all members reach each other.
    None,
    /// There is one, but this node has not received it yet.
    Missing,
    /// Its text.
    Text(&'a str),
}

/// The texts of policies, by hash.
#[derive(Debug, Default)]
pub(super) struct Policies {
    texts: VecDeque<([u8; 32], String)>,
    fetch: Option<Fetch>,
}

/// A text being fetched.
#[derive(Debug)]
struct Fetch {
    hash: [u8; 32],
    from: KeyHash,
    bytes: Vec<u8>,
    until: Instant,
    /// The members that did not have the text.
    without: BTreeSet<KeyHash>,
}

impl Policies {
    pub(super) fn get(&self, hash: &[u8; 32]) -> Option<&str> {
        self.texts.iter().find(|(it, _)| it == hash).map(|(_, text)| text.as_str())
    }

    /// Stores a text, in place of the oldest one that is not the roster's.
    pub(super) fn put(&mut self, text: String, current: Option<[u8; 32]>) {
        let hash = sha256(&[text.as_bytes()]);
        self.texts.retain(|(it, _)| *it != hash);
        if self.texts.len() >= MAX_TEXTS
            && let Some(oldest) = self.texts.iter().position(|(it, _)| Some(*it) != current)
        {
            self.texts.remove(oldest);
        }
        self.texts.push_back((hash, text));
    }
}

impl Node {
    /// Returns what this node knows of the policy.
    pub fn policy(&self) -> PolicyState<'_> {
        match self.roster.policy() {
            Some(hash) if hash != sha256(&[]) => match self.policies.get(&hash) {
                Some(text) => PolicyState::Text(text),
                None => PolicyState::Missing,
            },
            _ => PolicyState::None,
        }
    }

    /// Makes a text the mesh's policy. An empty text removes the policy.
    ///
    /// # Errors
    /// See [`SignError`].
    pub fn set_policy(
        &mut self,
        now: Instant,
        text: String,
        out: &mut Out,
    ) -> Result<Signed, SignError> {
        if text.len() > MAX_POLICY {
            return Err(SignError::PolicyTooLong(text.len()));
        }
        let hash = sha256(&[text.as_bytes()]);
        self.policies.put(text, self.roster.policy());
        self.sign(now, Action::SetPolicy(hash), out)
    }

    /// Asks a member for the text of the policy, if it is missing.
    pub(super) fn fetch_policy(&mut self, now: Instant) {
        let (PolicyState::Missing, Some(hash)) = (self.policy(), self.roster.policy()) else {
            self.policies.fetch = None;
            return;
        };
        let former = self.policies.fetch.take().filter(|fetch| fetch.hash == hash);
        let mut without = BTreeSet::new();
        if let Some(mut fetch) = former {
            if now < fetch.until && self.live(&fetch.from).is_some() {
                self.policies.fetch = Some(fetch);
                return;
            }
            fetch.without.insert(fetch.from);
            without = fetch.without;
        }
        let next = self.connected().find(|peer| !without.contains(peer));
        // All were asked; ask them again at the next tick.
        let Some(from) = next else { return };
        let until = now + PATIENCE;
        self.policies.fetch = Some(Fetch { hash, from, bytes: Vec::new(), until, without });
        self.send_record(now, &from, &Record::PolicyWanted { hash, offset: 0 });
    }

    /// Answers a member that asks for a piece of a policy. An answer without a text is empty.
    pub(super) fn policy_wanted(
        &mut self,
        now: Instant,
        from: &KeyHash,
        hash: [u8; 32],
        offset: u32,
    ) {
        let text = self.policies.get(&hash).unwrap_or_default().as_bytes();
        let total = u32::try_from(text.len()).unwrap_or_default();
        let rest = usize::try_from(offset).ok().and_then(|at| text.get(at..)).unwrap_or_default();
        let piece = rest.get(..PIECE).unwrap_or(rest).to_vec();
        self.send_record(now, from, &Record::Policy { hash, total, offset, piece });
    }

    /// Takes a piece of the policy.
    pub(super) fn policy_piece(
        &mut self,
        now: Instant,
        from: &KeyHash,
        (hash, total, offset): ([u8; 32], u32, u32),
        piece: &[u8],
        out: &mut Out,
    ) {
        let Some(fetch) = &mut self.policies.fetch else { return };
        if fetch.from != *from || fetch.hash != hash || !fetch.is_next(offset) {
            return;
        }
        fetch.bytes.extend(piece);
        let (len, total) = (fetch.bytes.len(), usize::try_from(total).unwrap_or(usize::MAX));
        if piece.is_empty() || total > MAX_POLICY || len > total {
            fetch.until = now;
        } else if len < total {
            fetch.until = now + PATIENCE;
            let offset = u32::try_from(len).unwrap_or(u32::MAX);
            self.send_record(now, from, &Record::PolicyWanted { hash, offset });
            return;
        } else {
            match String::from_utf8(std::mem::take(&mut fetch.bytes)) {
                Ok(text) if sha256(&[text.as_bytes()]) == hash => {
                    self.policies.fetch = None;
                    self.policies.put(text, Some(hash));
                    out.event(NodeEvent::Policy);
                    return;
                }
                _ => fetch.until = now,
            }
        }
        // This member does not have the text, but another one may.
        self.fetch_policy(now);
    }
}

impl Fetch {
    fn is_next(&self, offset: u32) -> bool {
        usize::try_from(offset).is_ok_and(|offset| offset == self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_the_roster_is_kept_and_the_oldest_other_one_goes() {
        let mut policies = Policies::default();
        let text = |n: u8| format!("policy {n}");
        let hash = |n: u8| sha256(&[text(n).as_bytes()]);
        policies.put(text(0), None);
        for n in 1..=MAX_TEXTS as u8 {
            policies.put(text(n), Some(hash(0)));
        }
        let kept: Vec<bool> =
            (0..=MAX_TEXTS as u8).map(|n| policies.get(&hash(n)).is_some()).collect();
        assert_eq!(kept, [true, false, true, true, true]);
    }
}
