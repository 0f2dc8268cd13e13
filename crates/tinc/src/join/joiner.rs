//! The side of the new node.

use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random};

use super::{COMPLETE, DATA, DONE, ExchangeError, JOINER_MINOR, KEY_LINE, later};
use crate::invitation::{Accepted, FileError, MAX_FILE, Url};
use crate::keys::{PrivateKey, PublicKey};
use crate::meta::{Id, Identity, Lines, MAJOR};
use crate::name::NodeName;
use crate::sptps::{self, CipherChoice, Event, INVITATION_LABEL, Params, Received, Role, Stream};

/// The time within which the inviter must send something.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far the exchange is. It tells what a closed connection means.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The inviter's first lines have not come.
    Greeting,
    /// The session has not begun.
    Session,
    /// The cookie was sent, and nothing has come since.
    Cookie,
    /// A part of the invitation has come.
    File,
    /// The invitation is complete, and this side has not sent the new node's key.
    Offered,
    /// The new node's key was sent, and not confirmed.
    Key,
}

/// The reason why joining failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The connection was closed before the inviter's first line.
    #[error(
        "the inviter closed the connection at once: it may have too many, or the address may be another program's"
    )]
    NotGreeted,
    /// The connection was closed during the handshake.
    #[error("the inviter closed the connection during the handshake")]
    NoSession,
    /// The inviter has another key than the URL says.
    #[error(
        "the inviter's key is not the one in the invitation: the invitation is another node's, or older than the inviter's present key"
    )]
    WrongKey,
    /// The inviter closed the connection when it had the cookie.
    #[error(
        "the inviter does not know the invitation: it was used before, is expired, or was withdrawn. Ask for a new one"
    )]
    Refused,
    /// The connection ended within the invitation.
    #[error("the invitation is incomplete: the connection was closed too early. Ask for a new one")]
    Truncated,
    /// The inviter closed the connection when it had the new node's key.
    #[error(
        "the inviter did not store this node's key: it may know a node of this name already. Ask for an invitation with another name"
    )]
    KeyNotStored,
    /// The inviter sent nothing until [`Joiner::deadline`].
    #[error("the inviter did not answer within {} s", PATIENCE.as_secs())]
    Timeout,
    /// The inviter's name is invalid or missing, or its version is another one.
    #[error("the address is not that of a node of tinc 1.1")]
    NotANode,
    /// The inviter sent something else than the exchange has.
    #[error("the inviter broke the exchange: {0}")]
    Exchange(#[from] ExchangeError),
    /// The invitation is longer than [`MAX_FILE`], or not text.
    #[error("the invitation is no text of at most {MAX_FILE} bytes")]
    NoText,
    /// The invitation cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A step of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinerEvent {
    /// The invitation is complete. Prepare the new node's files, and call [`Joiner::accept`] with its key.
    Offered(Box<Accepted>),
    /// The inviter has stored the new node's key. Close the connection.
    Done,
}

/// The new node in an exchange.
#[derive(Debug)]
pub struct Joiner {
    url: Url,
    /// The key for this connection alone.
    key: Arc<PrivateKey>,
    lines: Lines,
    inviter: Option<NodeName>,
    session: Option<Stream>,
    file: Vec<u8>,
    phase: Phase,
    deadline: Instant,
}

impl Joiner {
    /// Starts the exchange on a new connection to the URL's host, and appends the first line to `out`.
    pub fn start(url: Url, now: Instant, random: &mut Random, out: &mut Vec<u8>) -> Self {
        let key = Arc::new(PrivateKey::generate(random));
        let identity = Identity::Joining(key.public());
        Id { identity, major: MAJOR, minor: JOINER_MINOR }.write(out);
        Self {
            url,
            key,
            lines: Lines::default(),
            inviter: None,
            session: None,
            file: Vec::new(),
            phase: Phase::Greeting,
            deadline: later(now, PATIENCE),
        }
    }

    /// Returns the inviter's name, once it is known.
    pub fn inviter(&self) -> Option<&NodeName> {
        self.inviter.as_ref()
    }

    /// Returns how far the exchange is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns when the inviter must have sent something. While this side is due there is no limit.
    pub fn deadline(&self) -> Option<Instant> {
        (self.phase != Phase::Offered).then_some(self.deadline)
    }

    /// Returns what it means that the connection was closed now.
    pub fn closed(&self) -> JoinError {
        match self.phase {
            Phase::Greeting => JoinError::NotGreeted,
            Phase::Session => JoinError::NoSession,
            Phase::Cookie => JoinError::Refused,
            Phase::File | Phase::Offered => JoinError::Truncated,
            Phase::Key => JoinError::KeyNotStored,
        }
    }

    /// Returns what it means that the inviter sent nothing until [`Joiner::deadline`]. tinc keeps the connection of a node that it refuses,
    /// and reads nothing from it.
    pub fn timed_out(&self) -> JoinError {
        match self.phase {
            Phase::Cookie | Phase::Key => self.closed(),
            Phase::Greeting | Phase::Session | Phase::File | Phase::Offered => JoinError::Timeout,
        }
    }

    /// Handles received bytes from the front of `input`, and appends answers to `out`. Returns at the first event; call it again with the
    /// rest of the input, until it returns `None`.
    ///
    /// # Errors
    /// The first error ends the exchange.
    pub fn receive(
        &mut self,
        now: Instant,
        input: &mut &[u8],
        random: &mut Random,
        out: &mut Vec<u8>,
    ) -> Result<Option<JoinerEvent>, JoinError> {
        if !input.is_empty() {
            self.deadline = later(now, PATIENCE);
        }
        while self.session.is_none() {
            let Some(line) = self.lines.read(input).map_err(ExchangeError::from)? else {
                return Ok(None);
            };
            self.line(&line, random, out)?;
        }
        while let Some(session) = &mut self.session {
            let received = session.receive(input, random, out).map_err(ExchangeError::from)?;
            let Some(received) = received else { break };
            let (kind, data) = match received {
                Received::Event(Event::Established) => {
                    let cookie = self.url.cookie().as_bytes();
                    session.send(DATA, cookie, out).map_err(ExchangeError::from)?;
                    self.phase = Phase::Cookie;
                    continue;
                }
                // It would only cost time, of which a stranger could use up as much as it likes.
                Received::Event(Event::Rekeyed) => {
                    return Err(ExchangeError::from(sptps::Error::UnexpectedHandshake).into());
                }
                Received::Record(kind, data) => (kind, data),
            };
            match (kind, self.phase) {
                (DATA, Phase::Cookie | Phase::File) => {
                    if self.file.len().saturating_add(data.len()) > MAX_FILE {
                        return Err(JoinError::NoText);
                    }
                    self.file.extend_from_slice(data);
                    self.phase = Phase::File;
                }
                (COMPLETE, Phase::Cookie | Phase::File) if data.is_empty() => {
                    let file = std::mem::take(&mut self.file);
                    let text = std::str::from_utf8(&file).map_err(|_| JoinError::NoText)?;
                    let accepted = Accepted::read(text)?;
                    self.phase = Phase::Offered;
                    return Ok(Some(JoinerEvent::Offered(Box::new(accepted))));
                }
                (DONE, Phase::Key) if data.is_empty() => return Ok(Some(JoinerEvent::Done)),
                (kind, _) => return Err(ExchangeError::Record(kind, data.len()).into()),
            }
        }
        Ok(None)
    }

    /// Handles one of the two lines before the session.
    fn line(
        &mut self,
        line: &[u8],
        random: &mut Random,
        out: &mut Vec<u8>,
    ) -> Result<(), JoinError> {
        if self.inviter.is_none() {
            let id = Id::parse(line).map_err(|_| JoinError::NotANode)?;
            let Identity::Node(name) = id.identity else { return Err(JoinError::NotANode) };
            if id.major != MAJOR {
                return Err(JoinError::NotANode);
            }
            self.inviter = Some(name);
            return Ok(());
        }
        let key = invitation_key(line).ok_or(ExchangeError::NoKey)?;
        if !self.url.is_of(&key) {
            return Err(JoinError::WrongKey);
        }
        let params = Params {
            role: Role::Initiator,
            key: self.key.clone(),
            peer: key,
            label: INVITATION_LABEL.to_vec(),
            cipher: CipherChoice::default(),
        };
        self.session = Some(Stream::start(params, random, out));
        self.phase = Phase::Session;
        Ok(())
    }

    /// Sends the new node's key, after [`JoinerEvent::Offered`].
    ///
    /// # Errors
    /// Fails if it is not due.
    pub fn accept(
        &mut self,
        now: Instant,
        key: &PublicKey,
        out: &mut Vec<u8>,
    ) -> Result<(), JoinError> {
        let Some(session) = self.session.as_mut().filter(|_| self.phase == Phase::Offered) else {
            return Err(ExchangeError::Record(COMPLETE, 0).into());
        };
        let text = key.to_string();
        session.send(COMPLETE, text.as_bytes(), out).map_err(ExchangeError::from)?;
        self.phase = Phase::Key;
        self.deadline = later(now, PATIENCE);
        Ok(())
    }
}

/// Reads the inviter's second line: `4 KEY`.
fn invitation_key(line: &[u8]) -> Option<PublicKey> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    (words.next() == Some(KEY_LINE)).then_some(())?;
    words.next()?.parse().ok()
}
