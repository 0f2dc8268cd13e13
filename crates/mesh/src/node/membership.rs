//! The roster of a node: signing, new changes, and their consequences.

use std::collections::BTreeSet;

use adit_crypto::sign::SigningKey;
use adit_engine::{Instant, UnixTime};

use super::{Node, NodeEvent, Out, destinations, relaying};
use crate::join::{Admission, JoinRefusal, PendingJoiner};
use crate::path::Candidate;
use crate::roster::{
    Action, Change, ChangeHash, DraftError, InsertError, Label, Member, ObjectError, Refusal,
    Roster, Warning,
};
use crate::session::{KeyHash, SessionNumber};
use crate::token::{
    Invitation, InvitationError, JoinSecret, MAX_ADDRESSES, Terms, Token, TokenError,
};

/// A signed change.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The change.
    pub change: ChangeHash,
    /// Whether it takes effect only after other admins have approved it.
    pub is_waiting: bool,
}

/// The reason why a change cannot be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// This node has no key that may sign it.
    #[error("this node has no right to do this: sign on a machine with the key of an admin")]
    NoRight,
    /// The change would not be valid.
    #[error("the change would not count: {0}")]
    Refused(Refusal),
    /// The signer's chain has no room.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// The policy is longer than [`super::MAX_POLICY`].
    #[error("a policy of {0} bytes is too long; at most {max} are allowed", max = super::MAX_POLICY)]
    PolicyTooLong(usize),
    /// The change exceeds the limits of an object.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The change cannot be in the set.
    #[error(transparent)]
    Insert(InsertError),
}

/// The reason why a node cannot invite.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InviteError {
    /// This node may not admit others.
    #[error("this node may not invite: an admin grants the right")]
    NoRight,
    /// Another member has the name that the invitation gives.
    #[error("another member has the name {0}: choose another one")]
    Name(Label),
    /// This node has no address for the token, or too many.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// There is no room for another invitation.
    #[error(transparent)]
    Invitation(#[from] InvitationError),
}

impl Node {
    /// Invites nodes. Returns a token for them that is valid until `until`.
    ///
    /// # Errors
    /// See [`InviteError`].
    pub fn invite(
        &mut self,
        now: Instant,
        terms: Terms,
        uses: u32,
        until: UnixTime,
        out: &mut Out,
    ) -> Result<Token, InviteError> {
        if !self.is_admin() && !self.roster.inviters().contains_key(&self.own) {
            return Err(InviteError::NoRight);
        }
        if let Some(name) = terms.name.as_ref().filter(|name| self.roster.by_name(name).is_some()) {
            return Err(InviteError::Name(name.clone()));
        }
        let secret = JoinSecret::generate(&mut self.random);
        let secret_hash = secret.hash(&self.mesh);
        let addresses: Vec<_> =
            self.addresses(now).iter().map(Candidate::address).take(MAX_ADDRESSES).collect();
        let token = Token::new(self.mesh, self.own, secret, addresses)?;
        let token = token.with_tcp_port(self.streams.port);
        let unix = self.unix(now);
        self.invitations.add(Invitation { secret_hash, uses, until, terms }, unix)?;
        out.event(NodeEvent::Invitations);
        Ok(token)
    }

    /// Signs a change and sends it to the neighbours, even if other admins must still approve it.
    ///
    /// # Errors
    /// See [`SignError`].
    pub fn sign(
        &mut self,
        now: Instant,
        action: Action,
        out: &mut Out,
    ) -> Result<Signed, SignError> {
        let unix = self.unix(now);
        let key = self.signing_key();
        let body = self.changes.draft(key.public_hash(), unix, action)?;
        let change = Change::sign(&self.mesh, key, body)?;
        let hash = change.hash();
        let mut changed = self.changes.clone();
        changed.insert(change).map_err(|error| match error {
            InsertError::Signer => SignError::NoRight,
            error => SignError::Insert(error),
        })?;
        let roster = Roster::evaluate(&changed);
        let ignored = roster.warnings().iter().find_map(|warning| match warning {
            Warning::Ignored { change, reason } if *change == hash => Some(*reason),
            _ => None,
        });
        let is_waiting = ignored == Some(Refusal::Unapproved);
        match ignored.filter(|_| !is_waiting) {
            Some(Refusal::NoRight) => return Err(SignError::NoRight),
            Some(reason) => return Err(SignError::Refused(reason)),
            None => self.changes = changed,
        }
        self.sync.push(&[hash]);
        self.unsent.extend(self.by_session.keys());
        self.apply(now, vec![hash], roster, out);
        Ok(Signed { change: hash, is_waiting })
    }

    /// Returns whether this node signs with the key of an admin.
    pub fn is_admin(&self) -> bool {
        self.roster.admins().contains(&self.signing_key().public_hash())
    }

    /// Returns the hash of the key that this node signs with.
    pub fn signer(&self) -> KeyHash {
        self.signing_key().public_hash()
    }

    /// Returns the hash of this node's admin key, which may no longer be valid.
    pub fn admin_key(&self) -> Option<KeyHash> {
        self.admin.as_ref().map(SigningKey::public_hash)
    }

    /// Makes the node sign with this key, if it is an admin's.
    pub fn set_admin_key(&mut self, key: SigningKey) {
        self.admin = Some(key);
    }

    /// Returns the members whose membership has not expired, except leaves, which have no sessions.
    pub(super) fn valid_members(&self, now: Instant) -> impl Iterator<Item = KeyHash> {
        let unix = self.unix(now);
        let has_sessions =
            move |member: &&Member| member.leaf_of.is_none() && !member.is_expired(unix);
        self.roster.members().filter(has_sessions).map(|it| it.key)
    }

    pub(super) fn is_valid_member(&self, now: Instant, key: &KeyHash) -> bool {
        let unix = self.unix(now);
        let member = self.roster.member(key).filter(|member| member.leaf_of.is_none());
        member.is_some_and(|member| !member.is_expired(unix))
    }

    /// Returns the members that relay.
    pub(super) fn relays(&self) -> Vec<KeyHash> {
        self.roster.members().filter(|member| member.relay).map(|member| member.key).collect()
    }

    pub(super) fn is_relay(&self, key: &KeyHash) -> bool {
        self.roster.member(key).is_some_and(|member| member.relay)
    }

    /// Adds changes from a source other than a neighbour, such as a directory, and pushes them to the neighbours. Returns the number of new
    /// ones; the set counts those that it rejects.
    pub fn receive(&mut self, now: Instant, changes: Vec<Change>, out: &mut Out) -> usize {
        let mut added = Vec::new();
        for change in changes {
            // The set counts failures.
            let _ = self.changes.insert_into(change, &mut added);
        }
        let count = added.len();
        self.sync.push(&added);
        self.added(now, added, out);
        count
    }

    /// Processes changes that arrived from a neighbour.
    pub(super) fn added(&mut self, now: Instant, added: Vec<ChangeHash>, out: &mut Out) {
        if added.is_empty() {
            return;
        }
        self.unsent.extend(self.by_session.keys());
        let roster = Roster::evaluate(&self.changes);
        self.apply(now, added, roster, out);
    }

    /// Puts the roster that results from new changes into effect.
    fn apply(&mut self, now: Instant, added: Vec<ChangeHash>, roster: Roster, out: &mut Out) {
        out.event(NodeEvent::Added(added));
        // A removed node learns of the removal before its sessions end.
        self.send_waiting(now);
        let former = std::mem::replace(&mut self.roster, roster);
        self.members_changed(now, out);
        if self.roster.policy() != former.policy() {
            out.event(NodeEvent::Policy);
            self.fetch_policy(now);
        }
        if self.roster.members().eq(former.members()) {
            return;
        }
        let peers: Vec<KeyHash> = self.connected().collect();
        for key in peers {
            let has_changed = destinations(&self.roster, &key) != destinations(&former, &key);
            if has_changed || self.exit == Some(key) {
                self.set_routes(&key, out);
            }
        }
        self.sessions.set_ids(relaying::ids(self.is_relay(&self.own)));
        self.neighbours_of = None;
        self.tell_relays_to_all(now, out);
        self.check_apps(now, out);
        out.event(NodeEvent::Roster);
    }

    pub(super) fn set_next_expiry(&mut self, now: Instant) {
        let unix = self.unix(now);
        let ends = self.roster.members().filter_map(|member| member.not_after);
        self.next_expiry = ends.filter(|end| *end >= unix).min();
    }

    /// Admits new members, and expels former ones.
    fn members_changed(&mut self, now: Instant, out: &mut Out) {
        self.set_next_expiry(now);
        if self.is_removed {
            return;
        }
        let mut valid: BTreeSet<KeyHash> = self.valid_members(now).collect();
        if !valid.contains(&self.own) {
            self.is_removed = true;
            valid.clear();
        }
        let admitted: BTreeSet<KeyHash> = self.sessions.admitted().collect();
        for key in valid.difference(&admitted) {
            self.sessions.admit(*key);
        }
        for key in admitted.difference(&valid) {
            self.expel(now, key, out);
        }
        if self.is_removed {
            out.event(NodeEvent::Removed);
        }
    }

    /// Ends sessions, attempts and routes with a former member.
    fn expel(&mut self, now: Instant, key: &KeyHash, out: &mut Out) {
        self.sessions.expel(now, key, &mut self.session_outputs);
        while let Some(output) = self.session_outputs.pop() {
            self.perform(now, output, out);
        }
        self.forget_peer(key, out);
        self.standing.remove(key);
        self.relaying.forget(key);
        self.limits.forget(key);
        self.forget_comparison(key);
        self.relayed.forget(key);
        self.hints.remove(key);
        self.streams.forget(key);
        self.endpoints.retain(|node| node != key);
        self.neighbours_of = None;
    }

    /// Expels members whose membership has expired, and admits those that are valid again because the clock was set back.
    pub(super) fn check_expiry(&mut self, now: Instant, out: &mut Out) {
        self.members_changed(now, out);
        self.check_apps(now, out);
    }

    /// Processes a record from a joiner.
    pub(super) fn join_record(
        &mut self,
        now: Instant,
        session: SessionNumber,
        record: &[u8],
        out: &mut Out,
    ) {
        let Some(mut responder) = self.responders.remove(&session) else { return };
        // The event precedes the answer, so the change is stored before the answer is sent.
        let answered = self.with_admission(now, out, |admission, append| {
            responder.receive(record, admission, append)
        });
        self.responders.insert(session, responder);
        if let Err(reason) = answered {
            out.event(NodeEvent::NotAdmitted(reason));
        }
        if let Some(key) = self.invitations.pending_mut().take_new() {
            out.event(NodeEvent::Waiting(key));
        }
    }

    /// Admits a joiner that waits for an approval.
    ///
    /// # Errors
    /// See [`JoinRefusal`].
    pub fn approve(
        &mut self,
        now: Instant,
        key: &KeyHash,
        out: &mut Out,
    ) -> Result<(), JoinRefusal> {
        self.with_admission(now, out, |admission, append| admission.approve(key, append))
    }

    /// Refuses a joiner that waits for an approval. Returns whether there was one.
    pub fn refuse_joiner(&mut self, key: &KeyHash) -> bool {
        self.invitations.pending_mut().refuse(key)
    }

    /// Returns the joiners that wait for an approval.
    pub fn pending(&self, now: Instant) -> impl Iterator<Item = &PendingJoiner> {
        self.invitations.pending().iter(self.unix(now))
    }

    /// Lets `act` admit a node, and handles the consequences.
    fn with_admission<R>(
        &mut self,
        now: Instant,
        out: &mut Out,
        act: impl FnOnce(&mut Admission<'_>, &mut dyn FnMut(&Change) -> bool) -> R,
    ) -> R {
        let unix = self.unix(now);
        let inviter = self.roster.member(&self.own).and_then(|own| own.name.clone());
        let former = self.roster.members().count();
        // Unlike `signing_key`, this borrows only two fields, not the whole node.
        let key = greatest_right(self.admin.as_ref(), &self.key, &self.roster);
        let mut signed = None;
        let mut admission = Admission {
            key,
            changes: &mut self.changes,
            roster: &mut self.roster,
            invitations: &mut self.invitations,
            counters: &mut self.joins,
            inviter,
            now: unix,
        };
        let result = act(&mut admission, &mut |change| {
            signed = Some((change.hash(), change.action().clone()));
            true
        });
        if let Some((hash, action)) = signed {
            out.event(NodeEvent::Added(vec![hash]));
            self.sync.push(&[hash]);
            self.unsent.extend(self.by_session.keys());
            self.members_changed(now, out);
            self.neighbours_of = None;
            debug_assert!(self.roster.members().count() > former, "no node was admitted");
            out.event(NodeEvent::Roster);
            out.event(NodeEvent::Invitations);
            if let Action::Admit { key, .. } = action {
                out.event(NodeEvent::Admitted(key));
            }
        }
        result
    }

    /// Returns this node's key with the most rights.
    fn signing_key(&self) -> &SigningKey {
        greatest_right(self.admin.as_ref(), &self.key, &self.roster)
    }
}

fn greatest_right<'a>(
    admin: Option<&'a SigningKey>,
    own: &'a SigningKey,
    roster: &Roster,
) -> &'a SigningKey {
    admin.filter(|key| roster.admins().contains(&key.public_hash())).unwrap_or(own)
}
