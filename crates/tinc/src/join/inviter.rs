//! The side of the inviting node, on a connection that began with a joining node's line.

use std::sync::Arc;
use std::time::Duration;

use adit_engine::Random;

use super::{COMPLETE, DATA, DONE, ExchangeError, KEY_LINE, MAX_PART};
use crate::config::split_line;
use crate::invitation::{Cookie, FileError, MAX_FILE};
use crate::keys::{PrivateKey, PublicKey};
use crate::meta::Id;
use crate::name::NodeName;
use crate::sptps::{self, CipherChoice, Event, INVITATION_LABEL, Params, Received, Role, Stream};

/// The reason why an inviter ends the exchange. The joining node only sees the connection end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InviterError {
    /// The joining node sent something else than the exchange has.
    #[error("the joining node broke the exchange: {0}")]
    Exchange(#[from] ExchangeError),
    /// The cookie has the wrong length.
    #[error("the joining node sent no valid cookie")]
    NoCookie,
    /// No invitation has this cookie, or it was used.
    #[error("no invitation has the joining node's cookie: it was used, withdrawn or invented")]
    Unknown,
    /// The invitation is expired.
    #[error("the joining node's invitation is expired")]
    Expired,
    /// The invitation's file cannot be read.
    #[error("the file of the invitation cannot be read")]
    Unreadable,
    /// The invitation's file is damaged.
    #[error("the file of the invitation is damaged: {0}")]
    File(#[from] FileError),
    /// The joining node sent no valid public key.
    #[error("the joining node sent no valid public key")]
    NoPublicKey,
    /// The caller acted at a moment when nothing is due.
    #[error("the exchange is at another point")]
    NotDue,
}

/// A step of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InviterEvent {
    /// The joining node has shown a cookie. Rename the file of this name in the folder of invitations, so that no other connection can
    /// use it, read it, and call [`Inviter::offer`].
    Claimed(String),
    /// The new node has accepted. Create its host file with this content, unless it exists, and call [`Inviter::finish`]; if it exists,
    /// close the connection.
    Accepted {
        /// The new node.
        name: NodeName,
        /// The content of its host file.
        host_file: String,
    },
}

/// What the caller found under the name of an invitation's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The file, which was renamed.
    Found {
        /// Its content.
        content: String,
        /// The time since it was written.
        age: Duration,
    },
    /// There is no such file.
    Missing,
    /// It could not be renamed or read, or is no text.
    Unreadable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The session has not begun.
    Handshake,
    /// The cookie is due.
    Cookie,
    /// The caller looks for the file.
    Claimed,
    /// The file of this node was sent, and its key is due.
    Offered(NodeName),
    /// The caller creates the host file.
    Accepted,
    /// The exchange is over.
    Done,
}

/// The inviting node in an exchange. The limit on the time of a connection before its ACK applies to all of it.
#[derive(Debug)]
pub struct Inviter {
    key: PublicKey,
    session: Stream,
    state: State,
}

impl Inviter {
    /// Answers a joining node, whose line had the key `joining`, and appends the first bytes to `out`. `key` is the key for
    /// invitations.
    pub fn start(
        own: &NodeName,
        key: Arc<PrivateKey>,
        joining: PublicKey,
        random: &mut Random,
        out: &mut Vec<u8>,
    ) -> Self {
        let public = key.public();
        Id::of(own.clone()).write(out);
        out.extend_from_slice(format!("{KEY_LINE} {public}\n").as_bytes());
        let label = INVITATION_LABEL.to_vec();
        let params = Params {
            role: Role::Responder,
            key,
            peer: joining,
            label,
            cipher: CipherChoice::default(),
        };
        let session = Stream::start(params, random, out);
        Self { key: public, session, state: State::Handshake }
    }

    /// Handles received bytes from the front of `input`, and appends answers to `out`. Returns at the first event; call it again with the
    /// rest of the input, until it returns `None`.
    ///
    /// # Errors
    /// The first error ends the exchange: close the connection.
    pub fn receive(
        &mut self,
        input: &mut &[u8],
        random: &mut Random,
        out: &mut Vec<u8>,
    ) -> Result<Option<InviterEvent>, InviterError> {
        loop {
            let received = self.session.receive(input, random, out).map_err(ExchangeError::from)?;
            let Some(received) = received else { return Ok(None) };
            let (kind, data) = match received {
                Received::Event(Event::Established) => {
                    self.state = State::Cookie;
                    continue;
                }
                // It would only cost time, of which a stranger could use up as much as it likes.
                Received::Event(Event::Rekeyed) => {
                    return Err(ExchangeError::from(sptps::Error::UnexpectedHandshake).into());
                }
                Received::Record(kind, data) => (kind, data),
            };
            return match (kind, &self.state) {
                (DATA, State::Cookie) => {
                    let cookie = Cookie::from_bytes(data).ok_or(InviterError::NoCookie)?;
                    self.state = State::Claimed;
                    Ok(Some(InviterEvent::Claimed(cookie.file_name(&self.key))))
                }
                (COMPLETE, State::Offered(name)) => {
                    let text = std::str::from_utf8(data).ok();
                    let key = text.and_then(|text| text.parse::<PublicKey>().ok());
                    let key = key.ok_or(InviterError::NoPublicKey)?;
                    let name = name.clone();
                    self.state = State::Accepted;
                    let host_file = format!("Ed25519PublicKey = {key}\n");
                    Ok(Some(InviterEvent::Accepted { name, host_file }))
                }
                (kind, _) => Err(ExchangeError::Record(kind, data.len()).into()),
            };
        }
    }

    /// Sends the invitation's file, after [`InviterEvent::Claimed`], if it is not older than `expire`. Returns the new node's name. The file
    /// may then be deleted.
    ///
    /// # Errors
    /// Fails if the invitation must not be used: close the connection. The renamed file is not restored.
    pub fn offer(
        &mut self,
        claim: Claim,
        expire: Duration,
        out: &mut Vec<u8>,
    ) -> Result<NodeName, InviterError> {
        if self.state != State::Claimed {
            return Err(InviterError::NotDue);
        }
        self.state = State::Done;
        let (content, age) = match claim {
            Claim::Found { content, age } => (content, age),
            Claim::Missing => return Err(InviterError::Unknown),
            Claim::Unreadable => return Err(InviterError::Unreadable),
        };
        if age > expire {
            return Err(InviterError::Expired);
        }
        if content.len() > MAX_FILE {
            return Err(FileError::TooLong.into());
        }
        let name = invited_node(&content)?;
        for part in content.as_bytes().chunks(MAX_PART) {
            self.session.send(DATA, part, out).map_err(ExchangeError::from)?;
        }
        self.session.send(COMPLETE, &[], out).map_err(ExchangeError::from)?;
        self.state = State::Offered(name.clone());
        Ok(name)
    }

    /// Confirms that the new node's host file was created, after [`InviterEvent::Accepted`].
    ///
    /// # Errors
    /// Fails if it is not due.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), InviterError> {
        if self.state != State::Accepted {
            return Err(InviterError::NotDue);
        }
        self.state = State::Done;
        self.session.send(DONE, &[], out).map_err(ExchangeError::from)?;
        Ok(())
    }
}

/// Returns the new node's name, which the first line of an invitation has.
///
/// # Errors
/// Fails if the first line is another one, or the name is invalid.
pub fn invited_node(content: &str) -> Result<NodeName, FileError> {
    let line = content.lines().next().unwrap_or_default();
    match split_line(line.trim()) {
        (variable, name) if variable.eq_ignore_ascii_case("Name") => Ok(name.parse()?),
        _ => Err(FileError::NoName),
    }
}
