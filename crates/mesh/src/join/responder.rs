//! The inviter's end.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use std::collections::VecDeque;

use adit_crypto::sign::SigningKey;
use adit_engine::UnixTime;
use zeroize::Zeroizing;

use super::pending::NotPending;
use super::record::{Record, Refused, encode_changes};
use crate::roster::{
    Action, Change, ChangeHash, Changes, DraftError, InsertError, Label, NodeInfo, ObjectError,
    Roster,
};
use crate::session::KeyHash;
use crate::token::{Invitation, InvitationError, Invitations, JoinSecret, Terms};

/// The inviter's end of one joining session.
#[derive(Debug)]
pub struct Responder {
    /// The key that the joiner proved in TLS.
    peer: KeyHash,
    has_answered: bool,
    /// The next record, unless it contains changes.
    first: Option<Zeroizing<Vec<u8>>>,
    /// The changes that are still to be sent.
    unsent: VecDeque<ChangeHash>,
}

/// The state of an inviter that admits nodes.
#[derive(Debug)]
pub struct Admission<'a> {
    /// The signing key.
    pub key: &'a SigningKey,
    /// The changes of the mesh.
    pub changes: &'a mut Changes,
    /// The roster that results from them. A request without a valid secret never causes another evaluation.
    pub roster: &'a mut Roster,
    /// The invitations.
    pub invitations: &'a mut Invitations,
    /// Counts requests.
    pub counters: &'a mut JoinCounters,
    /// The name of this node. It is sent to a waiting joiner.
    pub inviter: Option<Label>,
    /// The time.
    pub now: UnixTime,
}

/// Counts requests that were not granted, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinCounters {
    /// Records that were malformed or out of turn.
    pub malformed: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// The reason why an inviter does not admit a node, for the inviter's log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// The record is malformed.
    #[error("a malformed record in a session for joining: {0}")]
    Form(#[from] ObjectError),
    /// The record is not a request, or not the first one in its session.
    #[error("a record out of turn in a session for joining")]
    OutOfTurn,
    /// The secret belongs to no invitation that is still valid.
    #[error(transparent)]
    Invitation(#[from] InvitationError),
    /// Another member has the name.
    #[error("another member has the name {0}")]
    Name(Label),
    /// The range of the invitation has no free address.
    #[error("the range of the invitation has no free IPv4 address")]
    NoAddress,
    /// This node cannot sign a change.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// The change would exceed the limits of an object.
    #[error("the admission cannot be signed: {0}")]
    Sign(ObjectError),
    /// The change cannot be in the set.
    #[error(transparent)]
    Insert(#[from] InsertError),
    /// The change would not make the node a member, because this node may not sign it or the key was revoked.
    #[error("this node has no right to admit it, or its key was revoked")]
    NotAdmitted,
    /// The change could not be stored.
    #[error("the admission could not be stored")]
    NotAppended,
    /// The operator has refused the key.
    #[error("its key was refused")]
    Denied,
    /// Too many joiners wait for an approval.
    #[error("too many nodes wait for approval: approve or refuse some with adit mesh approve")]
    Crowded,
    /// No joiner with this key waits for an approval.
    #[error("the node no longer asks: start adit mesh join on it again")]
    NotWaiting,
}

impl JoinRefusal {
    /// Returns the reason to send to the joiner, or `None` if the joiner broke the protocol.
    fn on_the_wire(&self) -> Option<Refused> {
        match self {
            Self::Form(_) | Self::OutOfTurn => None,
            Self::Invitation(_) => Some(Refused::Invitation),
            Self::Name(_) => Some(Refused::Name),
            Self::Denied => Some(Refused::Denied),
            Self::Crowded => Some(Refused::Crowded),
            _ => Some(Refused::Failed),
        }
    }
}

impl Responder {
    /// Begins the exchange in a session whose other end has proved the key `peer`.
    pub fn new(peer: KeyHash) -> Self {
        Self { peer, has_answered: false, first: None, unsent: VecDeque::new() }
    }

    /// Processes a record from the joiner. `append` stores the admission and returns whether that succeeded; only then does the admission
    /// use up the invitation. The answer or refusal is sent by [`Self::send`].
    ///
    /// # Errors
    /// See [`JoinRefusal`].
    pub fn receive(
        &mut self,
        record: &[u8],
        admission: &mut Admission<'_>,
        append: impl FnOnce(&Change) -> bool,
    ) -> Result<(), JoinRefusal> {
        let result = self.answer(record, admission, append);
        if let Err(reason) = &result {
            let refused = reason.on_the_wire();
            let counters = &mut *admission.counters;
            let counter =
                if refused.is_some() { &mut counters.refused } else { &mut counters.malformed };
            *counter = counter.saturating_add(1);
            if let Some(refused) = refused {
                self.first = Some(Record::Refused(refused).encode());
            }
        }
        result
    }

    fn answer(
        &mut self,
        record: &[u8],
        admission: &mut Admission<'_>,
        append: impl FnOnce(&Change) -> bool,
    ) -> Result<(), JoinRefusal> {
        if std::mem::replace(&mut self.has_answered, true) {
            return Err(JoinRefusal::OutOfTurn);
        }
        let Record::Request { secret, name } = Record::decode(record)? else {
            return Err(JoinRefusal::OutOfTurn);
        };
        if !admission.admit(self.peer, &secret, name, append)? {
            let inviter = admission.inviter.clone();
            self.first = Some(Record::Waiting { inviter }.encode());
            return Ok(());
        }
        let changes = &*admission.changes;
        let genesis = changes.genesis().encode().map_err(JoinRefusal::Sign)?;
        let count = u32::try_from(changes.len()).unwrap_or(u32::MAX);
        self.first = Some(Record::Roster { changes: count, genesis }.encode());
        self.unsent = changes.in_causal_order().into_iter().map(Change::hash).collect();
        Ok(())
    }

    /// Sends as many records as the session accepts. `send` returns false if there is no room for a record. Returns whether nothing is
    /// left.
    pub fn send(&mut self, changes: &Changes, mut send: impl FnMut(&[u8]) -> bool) -> bool {
        if let Some(first) = &self.first {
            if !send(first) {
                return false;
            }
            self.first = None;
        }
        while !self.unsent.is_empty() {
            let objects = self.unsent.iter().map_while(|hash| changes.get(hash));
            let (record, count) = encode_changes(objects.map(Change::encode));
            debug_assert!(count > 0, "changes of another set");
            if count == 0 || !send(&record) {
                return false;
            }
            self.unsent.drain(..count);
        }
        true
    }
}

impl Admission<'_> {
    /// Makes a node a member, unless it is one. Returns false if it must wait for an approval.
    fn admit(
        &mut self,
        peer: KeyHash,
        secret: &JoinSecret,
        wished: Label,
        append: impl FnOnce(&Change) -> bool,
    ) -> Result<bool, JoinRefusal> {
        if is_member(self.roster, &peer, self.now) {
            return Ok(true);
        }
        let Invitation { secret_hash, terms, .. } =
            self.invitations.find(secret, self.now)?.clone();
        let name = terms.name.clone().unwrap_or(wished);
        self.check_name(&name)?;
        if !terms.approve {
            self.sign(peer, name, &secret_hash, &terms, append)?;
            return Ok(true);
        }
        match self.invitations.pending_mut().ask(peer, name, secret_hash, self.now) {
            Ok(()) => Ok(false),
            Err(NotPending::Refused) => Err(JoinRefusal::Denied),
            Err(NotPending::Full) => Err(JoinRefusal::Crowded),
        }
    }

    /// Admits a joiner that waits for an approval. The joiner receives the approval when it asks again.
    ///
    /// # Errors
    /// See [`JoinRefusal`]; its invitation may have been used up by another node, or be too old.
    pub fn approve(
        &mut self,
        key: &KeyHash,
        append: impl FnOnce(&Change) -> bool,
    ) -> Result<(), JoinRefusal> {
        let waiting = self.invitations.pending().get(key, self.now).cloned();
        let waiting = waiting.ok_or(JoinRefusal::NotWaiting)?;
        let invitation = self.invitations.valid(&waiting.secret_hash, self.now)?;
        let terms = invitation.terms.clone();
        self.check_name(&waiting.name)?;
        self.sign(*key, waiting.name, &waiting.secret_hash, &terms, append)?;
        self.invitations.pending_mut().remove(key);
        Ok(())
    }

    fn check_name(&self, name: &Label) -> Result<(), JoinRefusal> {
        match self.roster.by_name(name) {
            Some(_) => Err(JoinRefusal::Name(name.clone())),
            None => Ok(()),
        }
    }

    /// Signs and stores the admission of a node, which counts as a use of the invitation.
    fn sign(
        &mut self,
        peer: KeyHash,
        name: Label,
        secret_hash: &[u8; 32],
        terms: &Terms,
        append: impl FnOnce(&Change) -> bool,
    ) -> Result<(), JoinRefusal> {
        let node = node(terms, name, self.roster, &peer)?;
        let signer = self.key.public_hash();
        let body = self.changes.draft(signer, self.now, Action::Admit { key: peer, node })?;
        let change =
            Change::sign(self.changes.mesh(), self.key, body).map_err(JoinRefusal::Sign)?;
        let mut changed = self.changes.clone();
        changed.insert(change.clone())?;
        let roster = Roster::evaluate(&changed);
        if !is_member(&roster, &peer, self.now) {
            return Err(JoinRefusal::NotAdmitted);
        }
        if !append(&change) {
            return Err(JoinRefusal::NotAppended);
        }
        (*self.changes, *self.roster) = (changed, roster);
        self.invitations.take_use(secret_hash);
        Ok(())
    }
}

fn is_member(roster: &Roster, key: &KeyHash, now: UnixTime) -> bool {
    roster.member(key).is_some_and(|member| !member.is_expired(now))
}

/// Returns the roster's entry for a node that joins on these terms.
fn node(
    terms: &Terms,
    name: Label,
    roster: &Roster,
    key: &KeyHash,
) -> Result<NodeInfo, JoinRefusal> {
    let address = |range| roster.free_ipv4(range, key).ok_or(JoinRefusal::NoAddress);
    Ok(NodeInfo {
        name,
        ipv4: terms.range.map(address).transpose()?,
        subnets: terms.subnets.clone(),
        groups: terms.groups.clone(),
        relay: terms.relay,
        gateway: terms.gateway,
        openvpn: false,
        leaf_of: None,
        not_after: terms.not_after,
    })
}
