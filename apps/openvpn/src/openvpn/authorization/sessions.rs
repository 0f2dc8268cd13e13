//! What a chain remembers of the clients that it was asked about.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::check::Address;
use super::facts::ClientFacts;

/// The sessions by their numbers. The engine bounds them: by `max-clients` and by its limit of handshakes.
#[derive(Debug)]
pub(super) struct SessionTable<T> {
    /// The clients whose authorization is in progress, to which responses to challenges belong.
    checking: HashMap<u64, Arc<ClientFacts>>,
    /// Those whose response to a challenge is being checked.
    answering: HashSet<u64>,
    /// The clients whose `client-connect` is in progress, and whether the client has gone meanwhile.
    connecting: HashMap<u64, bool>,
    /// The clients that were refused while they connected, and whose attempts have not ended yet.
    refused: HashSet<u64>,
    /// The clients that were accepted.
    accepted: HashMap<u64, Accepted<T>>,
    /// The session of each address.
    addresses: HashMap<Address, u64>,
}

impl<T> Default for SessionTable<T> {
    fn default() -> Self {
        Self {
            checking: HashMap::new(),
            answering: HashSet::new(),
            connecting: HashMap::new(),
            refused: HashSet::new(),
            accepted: HashMap::new(),
            addresses: HashMap::new(),
        }
    }
}

#[derive(Debug)]
struct Accepted<T> {
    facts: Arc<ClientFacts>,
    since: Instant,
    addresses: Vec<Address>,
    /// Whether the engine has reported its session.
    established: bool,
    /// The turn of its last hooks, once its session ends.
    turn: Option<T>,
}

/// A session that has ended, for its last hooks.
#[derive(Debug)]
pub(super) struct Finished<T> {
    pub(super) facts: Arc<ClientFacts>,
    pub(super) since: Instant,
    pub(super) addresses: Vec<Address>,
    /// The turn of its last hooks.
    pub(super) turn: T,
    /// Whether all checks accepted it.
    pub(super) accepted: bool,
}

/// What remains to be done when a session or an attempt ends.
#[derive(Debug)]
pub(super) enum Ending<T> {
    /// Nothing: the client was refused, or gave up, before it connected.
    Abandoned,
    /// Nothing: its last hooks ran when it was refused.
    Reported,
    /// Its last hooks run later.
    Later,
    /// Its last hooks are due.
    Due(Box<Finished<T>>),
}

impl<T> Accepted<T> {
    fn finished(self, turn: impl FnOnce(&ClientFacts) -> T) -> Finished<T> {
        let Self { facts, since, addresses, turn: taken, .. } = self;
        let turn = taken.unwrap_or_else(|| turn(&facts));
        Finished { facts, since, addresses, turn, accepted: true }
    }
}

impl<T> SessionTable<T> {
    /// Begins an authorization.
    pub(super) fn open(&mut self, facts: &Arc<ClientFacts>) {
        self.checking.insert(facts.identity.session, Arc::clone(facts));
    }

    /// Ends an authorization, unless another one of the same session has begun.
    pub(super) fn close(&mut self, facts: &Arc<ClientFacts>) {
        let session = facts.identity.session;
        if self.checking.get(&session).is_some_and(|open| Arc::ptr_eq(open, facts)) {
            self.checking.remove(&session);
        }
    }

    /// Returns the client whose authorization is in progress.
    pub(super) fn checking(&self, session: u64) -> Option<Arc<ClientFacts>> {
        self.checking.get(&session).cloned()
    }

    /// Begins the check of a client's response. Returns false if another one is being checked.
    pub(super) fn begin_answer(&mut self, session: u64) -> bool {
        self.answering.insert(session)
    }

    pub(super) fn end_answer(&mut self, session: u64) {
        self.answering.remove(&session);
    }

    /// Begins the connection of an authorized client.
    pub(super) fn connecting(&mut self, session: u64) {
        self.connecting.insert(session, false);
    }

    /// Ends a connection. Returns the session if its last hooks are due already: because a check refused the client, or
    /// because it has gone meanwhile.
    pub(super) fn connected(
        &mut self,
        session: u64,
        facts: &Arc<ClientFacts>,
        addresses: Vec<Address>,
        accepted: bool,
        turn: impl FnOnce() -> T,
    ) -> Option<Finished<T>> {
        let gone = self.connecting.remove(&session).unwrap_or_default();
        let (facts, since) = (Arc::clone(facts), Instant::now());
        if !accepted && !gone {
            self.refused.insert(session);
        }
        if gone || !accepted {
            return Some(Finished { facts, since, addresses, turn: turn(), accepted });
        }
        let new = Accepted { facts, since, addresses, established: false, turn: None };
        self.accepted.insert(session, new);
        None
    }

    /// Records that the engine has reported a session. Returns its client.
    pub(super) fn established(&mut self, session: u64) -> Option<Arc<ClientFacts>> {
        let accepted = self.accepted.get_mut(&session)?;
        accepted.established = true;
        Some(Arc::clone(&accepted.facts))
    }

    /// Returns the client of a session.
    pub(super) fn accepted(&self, session: u64) -> Option<Arc<ClientFacts>> {
        self.accepted.get(&session).map(|accepted| Arc::clone(&accepted.facts))
    }

    /// Takes the variables of a renegotiation over into those of its session.
    pub(super) fn renegotiated(&mut self, facts: &ClientFacts) {
        if let Some(accepted) = self.accepted.get_mut(&facts.identity.session) {
            let (identity, environment) =
                (accepted.facts.identity.clone(), facts.environment.clone());
            accepted.facts = Arc::new(ClientFacts { identity, environment });
        }
    }

    /// Records that a session ends.
    pub(super) fn ending(
        &mut self,
        session: u64,
        turn: impl FnOnce(&ClientFacts) -> T,
    ) -> Ending<T> {
        if let Some(gone) = self.connecting.get_mut(&session) {
            *gone = true;
            return Ending::Later;
        }
        if self.refused.remove(&session) {
            return Ending::Reported;
        }
        let Some(accepted) = self.accepted.get_mut(&session) else { return Ending::Abandoned };
        if accepted.established {
            // Its counters follow.
            accepted.turn.get_or_insert_with(|| turn(&accepted.facts));
            return Ending::Later;
        }
        match self.remove(session, turn) {
            Some(finished) => Ending::Due(Box::new(finished)),
            None => Ending::Abandoned,
        }
    }

    /// Removes a session.
    pub(super) fn remove(
        &mut self,
        session: u64,
        turn: impl FnOnce(&ClientFacts) -> T,
    ) -> Option<Finished<T>> {
        let accepted = self.accepted.remove(&session)?;
        if self.accepted.is_empty() {
            self.accepted.shrink_to_fit();
        }
        Some(accepted.finished(turn))
    }

    /// Removes all sessions.
    pub(super) fn drain(&mut self, turn: impl Fn(&ClientFacts) -> T) -> Vec<Finished<T>> {
        self.refused.clear();
        let accepted = std::mem::take(&mut self.accepted);
        accepted.into_values().map(|accepted| accepted.finished(&turn)).collect()
    }

    /// Returns what is known about the client of a session that was accepted.
    pub(super) fn facts(&self, session: u64) -> Option<Arc<ClientFacts>> {
        self.accepted.get(&session).map(|accepted| Arc::clone(&accepted.facts))
    }

    /// Gives an address to a session. Returns the other session that had it.
    pub(super) fn learn(&mut self, address: Address, session: u64) -> Option<u64> {
        self.addresses.insert(address, session).filter(|former| *former != session)
    }

    /// Undoes [`Self::learn`].
    pub(super) fn unlearn(&mut self, address: Address, session: u64, former: Option<u64>) {
        match former.filter(|former| self.accepted.contains_key(former)) {
            Some(former) => drop(self.addresses.insert(address, former)),
            None => drop(self.forget(address, session)),
        }
    }

    /// Records an address that a session got after it was accepted. Returns false if the session has ended meanwhile.
    pub(super) fn add(&mut self, address: Address, session: u64) -> bool {
        let Some(accepted) = self.accepted.get_mut(&session) else { return false };
        if !accepted.addresses.contains(&address) {
            accepted.addresses.push(address);
        }
        true
    }

    /// Removes an address from a session that continues. Returns the session's client unless another session has the
    /// address by now.
    pub(super) fn lose(&mut self, address: Address, session: u64) -> Option<Arc<ClientFacts>> {
        let accepted = self.accepted.get_mut(&session)?;
        accepted.addresses.retain(|other| *other != address);
        let facts = Arc::clone(&accepted.facts);
        self.forget(address, session).then_some(facts)
    }

    /// Takes an address from a session. Returns false if another session has it by now.
    pub(super) fn forget(&mut self, address: Address, session: u64) -> bool {
        let own = self.addresses.get(&address) == Some(&session);
        if own {
            self.addresses.remove(&address);
            if self.addresses.is_empty() {
                self.addresses.shrink_to_fit();
            }
        }
        own
    }
}

#[cfg(test)]
impl<T> SessionTable<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.checking.is_empty()
            && self.answering.is_empty()
            && self.connecting.is_empty()
            && self.refused.is_empty()
            && self.accepted.is_empty()
            && self.addresses.is_empty()
    }
}
