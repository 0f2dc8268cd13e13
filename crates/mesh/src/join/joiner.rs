//! The joining end.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use adit_engine::UnixTime;
use zeroize::Zeroizing;

use super::record::{Record, Refused};
use crate::roster::{Change, Changes, Genesis, InsertError, Insertion, Label, ObjectError, Roster};
use crate::session::{KeyHash, MeshId};
use crate::token::Token;

/// A node that joins a mesh, in one session with the inviter.
#[derive(Debug)]
pub struct Joiner {
    mesh: MeshId,
    own: KeyHash,
    state: State,
    waits: Option<Waits>,
}

/// The inviter's answer that the joiner must wait for an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The name of the inviter, if it has one.
    pub inviter: Option<Label>,
}

#[derive(Debug)]
enum State {
    /// The request was sent.
    Requested,
    /// Changes arrive; this many are still missing.
    Receiving(Box<Changes>, u32),
    /// The exchange is over.
    Over,
}

/// A mesh that this node has joined.
#[derive(Debug)]
pub struct Joined {
    /// All changes.
    pub changes: Changes,
    /// The roster that results from them, with this node as a member.
    pub roster: Roster,
}

/// The reason why a node does not join.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The other end of the session is not the token's inviter.
    #[error("the node at this address is not the inviter")]
    NotInviter,
    /// The inviter refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A record or object is malformed, or belongs to another mesh than the token.
    #[error("the inviter's answer: {0}")]
    Object(#[from] ObjectError),
    /// The genesis belongs to another mesh.
    #[error("the inviter's answer is about another mesh than the token")]
    Mesh,
    /// A change does not follow from those before it.
    #[error("the inviter's answer: {0}")]
    Change(#[from] InsertError),
    /// A change arrived twice, or before one that it names.
    #[error("the inviter's answer: changes are not in causal order")]
    Order,
    /// More changes arrived than were announced.
    #[error("the inviter's answer: more changes than announced")]
    TooMany,
    /// A record does not fit the state of the exchange.
    #[error("the inviter's answer: a record out of turn")]
    OutOfTurn,
    /// The roster does not have this node as a member.
    #[error(
        "the inviter's answer: this node is not a member; if it was admitted for a limited time, check this machine's clock"
    )]
    NotMember,
}

impl Joiner {
    /// Begins the exchange in a session whose other end has proved the key `peer`. Returns the request to be sent.
    ///
    /// # Errors
    /// [`JoinError::NotInviter`].
    pub fn begin(
        token: &Token,
        peer: &KeyHash,
        own: KeyHash,
        name: Label,
    ) -> Result<(Self, Zeroizing<Vec<u8>>), JoinError> {
        if peer != token.inviter() {
            return Err(JoinError::NotInviter);
        }
        let request = Record::Request { secret: token.secret().clone(), name }.encode();
        Ok((Self { mesh: *token.mesh(), own, state: State::Requested, waits: None }, request))
    }

    /// Returns whether the exchange is over because this node must wait for an approval and then ask again.
    pub fn waits(&self) -> Option<&Waits> {
        self.waits.as_ref()
    }

    /// Processes a record from the inviter. Returns the mesh once the joiner has all of it.
    ///
    /// # Errors
    /// See [`JoinError`]. An error is final.
    pub fn receive(&mut self, record: &[u8], now: UnixTime) -> Result<Option<Joined>, JoinError> {
        let state = std::mem::replace(&mut self.state, State::Over);
        match (state, Record::decode(record)?) {
            (State::Requested, Record::Refused(reason)) => Err(reason.into()),
            (State::Requested, Record::Waiting { inviter }) => {
                self.waits = Some(Waits { inviter });
                Ok(None)
            }
            (State::Requested, Record::Roster { changes, genesis }) => {
                let genesis = Genesis::decode(&genesis)?;
                if genesis.mesh_id()? != self.mesh {
                    return Err(JoinError::Mesh);
                }
                self.state = State::Receiving(Box::new(Changes::new(genesis)?), changes);
                Ok(None)
            }
            (State::Receiving(mut changes, mut left), Record::Changes(objects)) => {
                for object in objects {
                    left = left.checked_sub(1).ok_or(JoinError::TooMany)?;
                    let change = Change::decode(&self.mesh, &object)?;
                    if changes.insert(change)? != Insertion::Added(0) {
                        return Err(JoinError::Order);
                    }
                }
                if left > 0 {
                    self.state = State::Receiving(changes, left);
                    return Ok(None);
                }
                let roster = Roster::evaluate(&changes);
                match roster.member(&self.own) {
                    Some(member) if !member.is_expired(now) => {
                        Ok(Some(Joined { changes: *changes, roster }))
                    }
                    _ => Err(JoinError::NotMember),
                }
            }
            _ => Err(JoinError::OutOfTurn),
        }
    }
}
