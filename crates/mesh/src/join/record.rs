//! The records of the exchange.
//!
//! ```text
//! request: version 1 | kind 1 | secret 16 | length 1, name
//! refused: version 1 | kind 2 | reason 1
//! roster:  version 1 | kind 3 | number of changes 4 | genesis
//! changes: version 1 | kind 4 | (length 2, change)*
//! waiting: version 1 | kind 5 | the inviter's name, if it has one: length 1, name
//! ```

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use zeroize::Zeroizing;

use crate::roster::{Label, MAX_CHANGES, MAX_LABEL, MAX_OBJECT, ObjectError};
use crate::token::JoinSecret;
use crate::wire::{DecodeError, open_record, put_head, put_objects};

/// The length of the longest record, in bytes.
pub const MAX_RECORD: usize = 16 * 1024;

/// The length of the longest request, in bytes.
const MAX_REQUEST: usize = 2 + JoinSecret::LEN + 1 + MAX_LABEL;

const _: () = assert!(MAX_RECORD > MAX_OBJECT + 8, "each object fits a record");

/// A record of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The joiner asks to be admitted.
    Request {
        /// The secret of its token.
        secret: JoinSecret,
        /// The name that it requests.
        name: Label,
    },
    /// The inviter does not admit the joiner.
    Refused(Refused),
    /// The inviter has admitted the joiner.
    Roster {
        /// The number of changes that follow, 1 to [`MAX_CHANGES`].
        changes: u32,
        /// The encoded genesis.
        genesis: Vec<u8>,
    },
    /// Encoded changes, at least one.
    Changes(Vec<Vec<u8>>),
    /// The joiner must wait for an approval, and ask again.
    Waiting {
        /// The name of the inviter.
        inviter: Option<Label>,
    },
}

/// The reason for a refusal, as sent to the joiner.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The invitation is unknown, expired or used up. An unknown sender does not learn which of these it is.
    #[error("the inviter does not accept this invitation: it may be used up or too old")]
    Invitation,
    /// Another member has the name.
    #[error("another member of the mesh has this name: choose another one with --name")]
    Name,
    /// The inviter failed to admit the node.
    #[error("the inviter could not admit this node: its log has the reason")]
    Failed,
    /// The inviter's operator has refused the node.
    #[error("the inviter's operator refused this node: ask them why, and join again")]
    Denied,
    /// Too many nodes wait for an approval.
    #[error("too many nodes wait for approval at the inviter: try again in a minute")]
    Crowded,
}

impl Refused {
    const ALL: [(u8, Self); 5] = [
        (1, Self::Invitation),
        (2, Self::Name),
        (3, Self::Failed),
        (4, Self::Denied),
        (5, Self::Crowded),
    ];
}

impl Record {
    /// Encodes the record.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        // Reserve the full length: a reallocation would leave a copy of the secret.
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_REQUEST));
        match self {
            Self::Request { secret, name } => {
                put_head(1, &mut out);
                out.extend(secret.as_bytes());
                name.put(&mut out);
            }
            Self::Refused(reason) => {
                put_head(2, &mut out);
                out.extend(Refused::ALL.iter().find(|(_, it)| it == reason).map(|(code, _)| code));
            }
            Self::Roster { changes, genesis } => {
                put_head(3, &mut out);
                out.extend(changes.to_be_bytes());
                out.extend(genesis);
            }
            Self::Changes(changes) => {
                let (record, count) = encode_changes(changes.iter().cloned());
                debug_assert_eq!(count, changes.len(), "more changes than fit a record");
                out.extend(record);
            }
            Self::Waiting { inviter } => {
                put_head(5, &mut out);
                inviter.iter().for_each(|name| name.put(&mut out));
            }
        }
        out
    }

    /// Decodes a record. Only the exact output of [`Self::encode`] is accepted.
    ///
    /// # Errors
    /// Fails with the first deviation from the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, ObjectError> {
        let (kind, mut from) = open_record(bytes, MAX_RECORD)?;
        match kind {
            1 => {
                let secret = JoinSecret::from_bytes(from.array()?);
                let name = Label::read(&mut from)?;
                from.end()?;
                Ok(Self::Request { secret, name })
            }
            2 => {
                let code = from.u8()?;
                from.end()?;
                let reason = Refused::ALL.iter().find(|(known, _)| *known == code);
                reason
                    .map(|(_, reason)| Self::Refused(*reason))
                    .ok_or(DecodeError::Kind(code).into())
            }
            3 => {
                let changes = from.u32()?;
                if changes == 0 || usize::try_from(changes).map_or(true, |it| it > MAX_CHANGES) {
                    return Err(ObjectError::Range(changes));
                }
                Ok(Self::Roster { changes, genesis: from.rest().to_vec() })
            }
            4 => match from.objects()? {
                changes if changes.is_empty() => Err(DecodeError::Truncated.into()),
                changes => Ok(Self::Changes(changes)),
            },
            5 if from.is_empty() => Ok(Self::Waiting { inviter: None }),
            5 => {
                let inviter = Some(Label::read(&mut from)?);
                from.end()?;
                Ok(Self::Waiting { inviter })
            }
            kind => Err(DecodeError::Kind(kind).into()),
        }
    }
}

/// Encodes a record of as many changes as fit. Returns their number as well.
pub(super) fn encode_changes(changes: impl IntoIterator<Item = Vec<u8>>) -> (Vec<u8>, usize) {
    let mut out = Vec::new();
    put_head(4, &mut out);
    let count = put_objects(changes, MAX_RECORD, &mut out);
    (out, count)
}
