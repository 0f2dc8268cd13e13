//! Determines which revocations of signers count.
//!
//! A revocation is void if another revocation, which counts and whose signer had not seen it, ends its signer's key. A revocation that the
//! revoker had seen remains, even if it comes after the last change that is to count: revocations are permanent. If revocations would void
//! each other, that of the most senior signer counts.
//!
//! A fork does not undo revocations or their approvals, not even those in its branches. Otherwise a thief with an old copy of a signer's
//! key could bring back every key that the signer revoked, with one change that reuses an old number.

use std::collections::BTreeMap;

use super::authority::{Authority, ends};

/// Returns the revocations and rotations among these changes that count.
pub(super) fn resolve(authority: &Authority<'_, '_>, seen: &[usize]) -> Vec<usize> {
    Resolution::new(authority, seen).resolve()
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum State {
    Undecided,
    Counts,
    Void,
}

struct Resolution<'r, 'o, 'a> {
    authority: &'r Authority<'o, 'a>,
    /// The state of each revocation, and of each approval of a revocation, with the revocations that would void it.
    nodes: BTreeMap<usize, (State, Vec<usize>)>,
    /// The revocations, those of the most senior signer first.
    revocations: Vec<usize>,
}

impl<'r, 'o, 'a> Resolution<'r, 'o, 'a> {
    fn new(authority: &'r Authority<'o, 'a>, seen: &[usize]) -> Self {
        let order = authority.order;
        let mut revocations: Vec<_> = seen
            .iter()
            .copied()
            .filter(|at| ends(order.action(*at)).is_some() && authority.standings[*at].is_ok())
            .collect();
        let rank = |at: &usize| authority.standings[*at].as_ref().ok().map(|it| it.rank);
        revocations.sort_by_key(|at| (rank(at), order.change(*at).hash()));
        let mut by_key = BTreeMap::<_, Vec<usize>>::new();
        for at in &revocations {
            if let Some((key, _)) = ends(order.action(*at)) {
                by_key.entry(key).or_default().push(*at);
            }
        }
        let approvals = revocations.iter().flat_map(|at| authority.approvals(*at));
        // An approval outside the set is not known here.
        let approvals = approvals.filter(|at| seen.binary_search(at).is_ok());
        let nodes = revocations.iter().chain(approvals).map(|at| {
            let by = by_key.get(&order.signer(*at)).into_iter().flatten().copied();
            (
                *at,
                (
                    State::Undecided,
                    by.filter(|by| by != at && !order.is_before(*at, *by)).collect(),
                ),
            )
        });
        Self { authority, nodes: nodes.collect(), revocations }
    }

    fn resolve(mut self) -> Vec<usize> {
        loop {
            if self.propagate() {
                continue;
            }
            // The remaining ones void each other in a circle. Only a revocation that counts can make another one void.
            let undecided =
                self.revocations.iter().copied().find(|at| self.state(*at) == State::Undecided);
            let Some(senior) = undecided else { break };
            self.set(senior, State::Counts);
        }
        self.revocations
            .retain(|at| self.nodes.get(at).is_some_and(|(state, _)| *state == State::Counts));
        self.revocations
    }

    fn state(&self, at: usize) -> State {
        self.nodes.get(&at).map_or(State::Void, |(state, _)| *state)
    }

    fn set(&mut self, at: usize, state: State) {
        if let Some(node) = self.nodes.get_mut(&at) {
            node.0 = state;
        }
    }

    /// Decides the states that follow from those already decided. Returns whether there were any.
    fn propagate(&mut self) -> bool {
        let decided: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, (state, _))| *state == State::Undecided)
            .map(|(at, (_, by))| (*at, self.decide(*at, by)))
            .filter(|(_, state)| *state != State::Undecided)
            .collect();
        decided.iter().for_each(|(at, state)| self.set(*at, *state));
        !decided.is_empty()
    }

    fn decide(&self, at: usize, by: &[usize]) -> State {
        let approved = |counts: &dyn Fn(State) -> bool| {
            if ends(self.authority.order.action(at)).is_none() {
                return true;
            }
            let approvals = self.authority.approvals(at).iter().copied();
            self.authority.is_approved(at, approvals.filter(|at| counts(self.state(*at))))
        };
        let voided = by.iter().any(|by| self.state(*by) == State::Counts);
        if voided || !approved(&|state| state != State::Void) {
            State::Void
        } else if by.iter().all(|by| self.state(*by) == State::Void)
            && approved(&|state| state == State::Counts)
        {
            State::Counts
        } else {
            State::Undecided
        }
    }
}
