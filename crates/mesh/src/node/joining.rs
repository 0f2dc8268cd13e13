//! Joining a mesh with a token.

use std::net::SocketAddr;
use std::time::Duration;

use adit_crypto::sign::SigningKey;
use adit_engine::{Engine, Instant, Link, Seed, UnixTime};
use adit_openvpn::data_format::{Input, OpenVpn, Outbox, Output};

use super::NO_UDP;
use crate::join::{JoinError, Joined, Joiner, Waits};
use crate::path::MAIN_SOCKET;
use crate::roster::Label;
use crate::session::{self, KeyHash, Policy, Reason, SessionConfig, SessionEngine, SessionNumber};
use crate::token::Token;

/// The time limit for an inviter to answer at one of its addresses.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The first interval at which a node that waits for an approval asks again.
const ASK_SOON: Duration = Duration::from_secs(3);

/// How long it asks at that interval.
const SOON: Duration = Duration::from_secs(120);

/// How often it asks again later.
const ASK_LATER: Duration = Duration::from_secs(15);

/// How long a node waits for an approval.
const APPROVAL_LIMIT: Duration = Duration::from_secs(3600);

/// The result of joining.
#[derive(Debug)]
pub enum JoinEvent {
    /// This node is a member.
    Joined(Box<Joined>),
    /// This node waits for the approval of the inviter's operator. Reported once.
    Waiting(Waits),
    /// This node is not a member.
    Failed(JoinFailure),
    /// Open a stream to the inviter at this address; see [`Joining::stream_opened`].
    OpenStream(SocketAddr),
}

/// The reason why a node did not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinFailure {
    /// The inviter cannot be reached.
    #[error(
        "the inviter does not answer at any of the token's addresses: check that it runs, and that UDP or TCP passes \
         between the two machines"
    )]
    Unreachable,
    /// No operator approved this node in time.
    #[error(
        "the inviter did not approve this node within an hour: join again when an operator is there to approve it"
    )]
    NotApproved,
    /// The session with the inviter ended.
    #[error("the session with the inviter ended: {0}")]
    Session(Reason),
    /// The inviter refused, or its answer was invalid.
    #[error(transparent)]
    Answer(#[from] JoinError),
}

/// A node that joins a mesh, as a sans-IO engine. It asks the inviter at all addresses of the token at once, and over
/// streams if it gets no answer.
pub struct Joining {
    sessions: SessionEngine,
    outputs: Outbox<session::Event>,
    token: Token,
    own: KeyHash,
    name: Label,
    base: (Instant, UnixTime),
    attempts: Vec<SessionNumber>,
    joiner: Option<(SessionNumber, Joiner)>,
    until: Instant,
    /// The time when streams are opened, unless a datagram was answered.
    streams_at: Option<Instant>,
    /// The time when the inviter answered that an operator must approve this node.
    waits_since: Option<Instant>,
    /// The time when this node asks again.
    ask_at: Option<Instant>,
    is_over: bool,
}

impl Joining {
    /// Begins to join under a name.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn new(
        key: &SigningKey,
        token: Token,
        name: Label,
        seed: impl Into<Seed>,
        now: Instant,
        unix: UnixTime,
    ) -> Result<Self, Reason> {
        let key = SigningKey::from_seed(key.seed()).map_err(adit_openvpn::Reason::from)?;
        let (mesh, policy) = (*token.mesh(), Policy::default());
        let config = SessionConfig { key, mesh, policy, ids: 0..=0 };
        let sessions = SessionEngine::new(config, seed, now, unix)?;
        let mut joining = Self {
            own: sessions.key_hash(),
            sessions,
            outputs: Outbox::new(),
            token,
            name,
            base: (now, unix),
            attempts: Vec::new(),
            joiner: None,
            until: now + TIME_LIMIT,
            streams_at: Some(now + NO_UDP),
            waits_since: None,
            ask_at: None,
            is_over: false,
        };
        joining.ask(now)?;
        Ok(joining)
    }

    /// Takes the stream that [`JoinEvent::OpenStream`] requested. If it cannot be opened, no call is needed.
    pub fn stream_opened(&mut self, now: Instant, stream: Link, out: &mut Outbox<JoinEvent>) {
        let inviter = *self.token.inviter();
        let wanted = !self.is_over && self.joiner.is_none();
        let begun = wanted.then(|| self.sessions.join(now, inviter, stream, &mut self.outputs));
        match begun {
            Some(Ok(number)) => self.attempts.push(number),
            _ => out.push(Output::Hangup(stream)),
        }
        self.handle(now, Input::Tick, out);
    }

    /// Opens streams to the inviter if no datagram has been answered.
    fn try_streams(&mut self, now: Instant, out: &mut Outbox<JoinEvent>) {
        if self.is_over || self.streams_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let answered = |number: &SessionNumber| self.sessions.is_answered(*number);
        if self.joiner.is_none() && !self.attempts.iter().any(answered) {
            let all = self.token.tcp_addresses();
            all.into_iter().for_each(|to| out.event(JoinEvent::OpenStream(to)));
        }
    }

    /// Asks the inviter at all of its addresses.
    fn ask(&mut self, now: Instant) -> Result<(), Reason> {
        self.streams_at = Some(now + NO_UDP);
        for to in self.token.addresses().to_vec() {
            let link = Link::datagram(MAIN_SOCKET, None, to);
            let inviter = *self.token.inviter();
            let number = self.sessions.join(now, inviter, link, &mut self.outputs)?;
            self.attempts.push(number);
        }
        Ok(())
    }

    /// Ends the session, and asks again a little later. Returns the event if it is the first time.
    fn wait(&mut self, now: Instant, waits: Waits) -> Option<JoinEvent> {
        if let Some((session, _)) = self.joiner.take() {
            self.sessions.disconnect(now, session, &mut self.outputs);
        }
        let is_first = self.waits_since.is_none();
        self.waits_since.get_or_insert(now);
        self.ask_again(now);
        if !is_first {
            return None;
        }
        self.until = now + APPROVAL_LIMIT;
        Some(JoinEvent::Waiting(waits))
    }

    fn ask_again(&mut self, now: Instant) {
        let is_early = self.waits_since.is_none_or(|since| now.since(since) < SOON);
        self.ask_at = Some(now + if is_early { ASK_SOON } else { ASK_LATER });
    }

    fn event(
        &mut self,
        now: Instant,
        event: session::Event,
    ) -> Result<Option<JoinEvent>, JoinFailure> {
        match event {
            session::Event::Established { session, peer, .. } if self.joiner.is_none() => {
                let (joiner, request) =
                    Joiner::begin(&self.token, &peer, self.own, self.name.clone())?;
                self.joiner = Some((session, joiner));
                self.sessions.send(now, session, &request, &mut self.outputs);
                for other in std::mem::take(&mut self.attempts) {
                    if other != session {
                        self.sessions.disconnect(now, other, &mut self.outputs);
                    }
                }
            }
            session::Event::Record(session, record) => {
                let (base, unix) = self.base;
                let unix = UnixTime(unix.0.saturating_add(now.since(base).as_secs()));
                if let Some((own, joiner)) = &mut self.joiner
                    && *own == session
                {
                    let joined = joiner.receive(&record, unix)?;
                    if let Some(waits) = joiner.waits().cloned() {
                        return Ok(self.wait(now, waits));
                    }
                    return Ok(joined.map(|joined| JoinEvent::Joined(Box::new(joined))));
                }
            }
            session::Event::Ended(session, _, reason) => {
                self.attempts.retain(|attempt| *attempt != session);
                if self.waits_since.is_some() {
                    // The inviter may be back soon.
                    self.joiner.take_if(|(own, _)| *own == session);
                    if self.joiner.is_none() && self.attempts.is_empty() && self.ask_at.is_none() {
                        self.ask_again(now);
                    }
                    return Ok(None);
                }
                match &self.joiner {
                    Some((own, _)) if *own == session => {
                        return Err(JoinFailure::Session(reason));
                    }
                    None if self.attempts.is_empty() => return Err(JoinFailure::Unreachable),
                    _ => {}
                }
            }
            session::Event::Established { .. } | session::Event::Path(..) => {}
        }
        Ok(None)
    }

    fn end(&mut self, now: Instant) {
        self.is_over = true;
        if let Some((session, _)) = self.joiner.take() {
            self.sessions.disconnect(now, session, &mut self.outputs);
        }
    }
}

impl Engine for Joining {
    type Event = JoinEvent;
    type Format = OpenVpn;

    fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Outbox<JoinEvent>) {
        self.sessions.handle(now, input, &mut self.outputs);
        if !self.is_over && self.ask_at.take_if(|at| *at <= now).is_some() && self.ask(now).is_err()
        {
            self.ask_again(now);
        }
        while let Some(output) = self.outputs.pop() {
            match output {
                Output::Send(link, packet) => out.send(link, packet),
                Output::Hangup(link) => out.push(Output::Hangup(link)),
                Output::Event(event) if !self.is_over => match self.event(now, event) {
                    Ok(None) => {}
                    Ok(Some(event)) => {
                        if matches!(event, JoinEvent::Joined(_)) {
                            self.end(now);
                        }
                        out.event(event);
                    }
                    Err(failure) => {
                        self.end(now);
                        out.event(JoinEvent::Failed(failure));
                    }
                },
                // A joining session has no data channels.
                _ => {}
            }
        }
        self.try_streams(now, out);
        if !self.is_over && self.until <= now {
            self.end(now);
            let failure = match self.waits_since {
                Some(_) => JoinFailure::NotApproved,
                None => JoinFailure::Unreachable,
            };
            out.event(JoinEvent::Failed(failure));
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let limit = (!self.is_over).then_some((self.until, "the time limit of joining"));
        let streams = self.streams_at.filter(|_| !self.is_over);
        let streams = streams.map(|at| (at, "streams to the inviter"));
        let again = self.ask_at.filter(|_| !self.is_over).map(|at| (at, "asking again"));
        [self.sessions.deadline(), limit, streams, again].into_iter().flatten().min()
    }
}

impl std::fmt::Debug for Joining {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joining").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}
