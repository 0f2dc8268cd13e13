//! Determines which revocations of signers count.
//!
//! A revocation is void if its signer's key is ended by another one that counts and that had not seen it. What a revoker
//! had seen remains, even after the last change that it lets count: a revocation is permanent. Of revocations that would
//! void each other, the most senior signer's counts.
//!
//! A fork does not undo revocations, nor approvals of them, not even those in its branches. Otherwise the holder of an
//! old copy of a signer's key could bring back every key that the signer has revoked, with one change of an old number.

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
    /// The state of each revocation and of each approval of one, with the revocations that would void it.
    nodes: BTreeMap<usize, (State, Vec<usize>)>,
    /// The revocations, the most senior signer's first.
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
        // An approval outside the set has not been seen.
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
            // The rest void each other in a circle. Void is only what a counting revocation voids.
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

    /// Decides what follows from the decided states. Returns whether there was anything.
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
