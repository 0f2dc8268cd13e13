//! The engine of all sessions of a node.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use adit_crypto::sign::SigningKey;
use adit_engine::{Instant, Link, PeerId, Random, Seed, UnixTime};
use adit_openvpn::data_format::{Command, Outbox};
use adit_openvpn::keys::Role;
use adit_openvpn::packet::SessionId;
use adit_openvpn::records::{Dial, Record, RecordListener, RecordSession};
use adit_openvpn::session::PathReport;
use adit_openvpn::tls::SelfSigned;

use super::channel_ids::ChannelIds;
use super::keys::wrap_key;
use super::state::Session;
use super::streams::Streams;
use super::{Hello, KeyHash, MAX_CHANNELS, MeshId, Policy, Protocol, Reason};

pub(super) type Out = Outbox<Event>;

/// The maximum number of this node's own attempts that are not yet established.
const MAX_ATTEMPTS: usize = 256;

/// The number of a session in one [`SessionEngine`]. Numbers are never reused.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct SessionNumber(pub u64);

/// The parts of a [`SessionEngine`].
#[derive(Debug)]
pub struct SessionConfig {
    /// The node's key.
    pub key: SigningKey,
    /// The mesh.
    pub mesh: MeshId,
    /// The times when sessions are renewed and end.
    pub policy: Policy,
    /// The ids that data channels may have in our data plane, whose tables extend to the highest id.
    pub ids: RangeInclusive<u32>,
}

/// An event of a node's sessions.
#[derive(Debug)]
pub enum Event {
    /// A session was established.
    Established {
        /// The session.
        session: SessionNumber,
        /// The hash of the peer's key.
        peer: KeyHash,
        /// The purpose of the session.
        protocol: Protocol,
        /// The role of this node.
        role: Role,
        /// The data channels, in order; none in a joining session.
        channels: Vec<PeerId>,
        /// The path to the peer.
        link: Link,
    },
    /// A record arrived.
    Record(SessionNumber, Record),
    /// The path MTU of a session has changed.
    Path(SessionNumber, PathReport),
    /// A session ended, or an attempt failed. The peer is known if it proved its key or was expected.
    Ended(SessionNumber, Option<KeyHash>, Reason),
}

/// Counters of a node's sessions.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Packets of unauthenticated senders that were refused.
    pub refused: u64,
    /// Incoming handshakes that failed before the peer's key was known.
    pub handshakes_failed: u64,
    /// Packets that did not fit their session.
    pub dropped: u64,
    /// Refused streams: too many, or too many of one network, carried no session yet.
    pub streams_refused: u64,
    /// Streams that were closed because no packet arrived in time.
    pub streams_silent: u64,
    /// Sessions that this node did not begin, because too many attempts were under way.
    pub attempts_refused: u64,
}

/// The sessions of one node, as a sans-IO engine.
///
/// A peer must be admitted ([`SessionEngine::admit`]) before either end can begin a session of
/// [`Protocol::Mesh`] with it. The caller sets the routes of a session's channels in the data plane.
pub struct SessionEngine {
    identity: SelfSigned,
    /// The hash of this node's key.
    pub(super) own: KeyHash,
    pub(super) mesh: MeshId,
    pub(super) policy: Policy,
    pub(super) random: Random,
    base: (Instant, UnixTime),
    pub(super) listener: RecordListener,
    pub(super) members: HashSet<KeyHash>,
    pub(super) sessions: BTreeMap<SessionNumber, Box<Session>>,
    /// The sessions by the session ids of their peers.
    pub(super) by_sender: HashMap<SessionId, SessionNumber>,
    pub(super) channel_ids: ChannelIds,
    links: HashMap<Link, usize>,
    pub(super) streams: Streams,
    pub(super) timers: BTreeSet<(Instant, SessionNumber)>,
    next: u64,
    pub(super) counters: SessionCounters,
    /// Whether the stack may contain copies of keys.
    pub(super) soiled: bool,
}

impl SessionEngine {
    /// Creates the engine, which waits for packets and for calls to connect.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn new(
        config: SessionConfig,
        seed: impl Into<Seed>,
        now: Instant,
        unix: UnixTime,
    ) -> Result<Self, Reason> {
        let SessionConfig { key, mesh, mut policy, ids } = config;
        policy.channels = policy.channels.clamp(1, MAX_CHANNELS);
        let mut random = Random::new(seed);
        let identity = SelfSigned::new(&key).map_err(adit_openvpn::Reason::from)?;
        let wrap = wrap_key(&mesh, &identity.key_hash()).map_err(adit_openvpn::Reason::from)?;
        let tls = identity
            .server(&Protocol::ALL.map(|protocol| protocol.name().as_bytes()))
            .map_err(adit_openvpn::Reason::from)?;
        let listener = RecordListener::new(wrap, tls, &policy.record_settings(), &mut random)?;
        Ok(Self {
            own: identity.key_hash(),
            identity,
            mesh,
            random,
            base: (now, unix),
            listener,
            members: HashSet::new(),
            sessions: BTreeMap::new(),
            by_sender: HashMap::new(),
            channel_ids: ChannelIds::new(ids, policy.workers),
            policy,
            links: HashMap::new(),
            streams: Streams::new(),
            timers: BTreeSet::new(),
            next: 0,
            counters: SessionCounters::default(),
            soiled: false,
        })
    }

    /// Returns the hash of this node's key.
    pub fn key_hash(&self) -> KeyHash {
        self.own
    }

    /// Sets the wall clock.
    pub fn set_unix_time(&mut self, now: Instant, unix: UnixTime) {
        self.base = (now, unix);
    }

    /// Sets the ids that further data channels may have.
    pub fn set_ids(&mut self, ids: RangeInclusive<u32>) {
        self.channel_ids.allow(ids);
    }

    /// Allows a key to have sessions of [`Protocol::Mesh`].
    pub fn admit(&mut self, peer: KeyHash) {
        self.members.insert(peer);
    }

    /// Returns the keys that may have sessions of [`Protocol::Mesh`].
    pub fn admitted(&self) -> impl Iterator<Item = KeyHash> {
        self.members.iter().copied()
    }

    /// Ends a key's sessions, and refuses further ones.
    pub fn expel(&mut self, now: Instant, peer: &KeyHash, out: &mut Out) {
        self.members.remove(peer);
        for number in self.with(peer, Protocol::Mesh) {
            self.end(now, number, Reason::Expelled, out);
        }
    }

    /// Connects to a member, unless a session with it exists or is being established. A `standing` session does not end without traffic.
    ///
    /// # Errors
    /// The peer is not a member, no id for a channel is free, or the cryptographic library failed.
    pub fn connect(
        &mut self,
        now: Instant,
        peer: KeyHash,
        link: Link,
        standing: bool,
        out: &mut Out,
    ) -> Result<SessionNumber, Reason> {
        if !self.members.contains(&peer) {
            return Err(Reason::NotMember);
        }
        if let Some(&number) = self.with(&peer, Protocol::Mesh).first() {
            self.set_standing(number, standing);
            return Ok(number);
        }
        self.reconnect(now, peer, link, standing, out)
    }

    /// Connects to a member over another path. The new session replaces any current one. This is how a member moves between datagrams and a
    /// stream, which are different protocols.
    ///
    /// # Errors
    /// The peer is not a member, no id for a channel is free, or the cryptographic library failed.
    pub fn reconnect(
        &mut self,
        now: Instant,
        peer: KeyHash,
        link: Link,
        standing: bool,
        out: &mut Out,
    ) -> Result<SessionNumber, Reason> {
        if !self.members.contains(&peer) {
            return Err(Reason::NotMember);
        }
        let number = self.dial(now, peer, Protocol::Mesh, link, out)?;
        self.set_standing(number, standing);
        Ok(number)
    }

    /// Connects to a node in order to join its mesh.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn join(
        &mut self,
        now: Instant,
        inviter: KeyHash,
        link: Link,
        out: &mut Out,
    ) -> Result<SessionNumber, Reason> {
        self.dial(now, inviter, Protocol::Join, link, out)
    }

    fn dial(
        &mut self,
        now: Instant,
        peer: KeyHash,
        protocol: Protocol,
        link: Link,
        out: &mut Out,
    ) -> Result<SessionNumber, Reason> {
        let attempts = self.sessions.values().filter(|session| session.established.is_none());
        if attempts.count() >= MAX_ATTEMPTS {
            self.counters.attempts_refused = self.counters.attempts_refused.saturating_add(1);
            return Err(Reason::TooManyAttempts);
        }
        let wrap = wrap_key(&self.mesh, &peer).map_err(adit_openvpn::Reason::from)?;
        let tls = self
            .identity
            .client(peer, protocol.name().as_bytes())
            .map_err(adit_openvpn::Reason::from)?;
        let number = self.number();
        let channels = if protocol == Protocol::Mesh { self.offered() } else { 0 };
        let ids = self.reserve(number, channels)?;
        let hello = Hello { ids: ids.iter().map(|id| id.0).collect() }.encode();
        let dial = Dial { link, wrap, tls, hello: &hello };
        let settings = self.policy.record_settings();
        let unix = self.unix(now);
        let record = RecordSession::connect(now, unix, dial, &settings, &mut self.random, out)
            .inspect_err(|_| self.channel_ids.release(&ids))?;
        let mut session = Session::new(now, record, protocol);
        session.peer = Some(peer);
        session.ids = ids;
        self.insert(number, session, out);
        Ok(number)
    }

    /// Sets whether a session stays open without traffic.
    pub fn set_standing(&mut self, number: SessionNumber, standing: bool) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.standing = standing;
        }
    }

    /// Sends a record. Returns false if there is no such session, or too many records wait.
    pub fn send(
        &mut self,
        now: Instant,
        number: SessionNumber,
        record: &[u8],
        out: &mut Out,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(&number) else { return false };
        session.touch(now);
        match session.record.send(now, record, out) {
            Ok(sent) => {
                self.schedule(number);
                sent
            }
            Err(reason) => {
                self.end(now, number, reason.into(), out);
                false
            }
        }
    }

    /// Moves a session over datagrams to another datagram path that is known to reach the peer.
    pub fn set_link(&mut self, now: Instant, number: SessionNumber, link: Link, out: &mut Out) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let former = session.record.link();
        if former.is_stream() || link.is_stream() {
            debug_assert!(false, "a session on a stream does not move");
            return;
        }
        session.record.set_link(now, link, out);
        self.use_link(link, out);
        self.leave_link(former, out);
        self.schedule(number);
    }

    /// Ends a session or an attempt.
    pub fn disconnect(&mut self, now: Instant, number: SessionNumber, out: &mut Out) {
        self.end(now, number, Reason::Requested, out);
    }

    /// Returns the established session with a member.
    pub fn session_with(&self, peer: &KeyHash) -> Option<SessionNumber> {
        let mut sessions = self.with(peer, Protocol::Mesh).into_iter();
        sessions.find(|number| {
            self.sessions.get(number).is_some_and(|session| session.established.is_some())
        })
    }

    /// Returns the path of a session or an attempt.
    pub fn link(&self, number: SessionNumber) -> Option<Link> {
        self.sessions.get(&number).map(|session| session.record.link())
    }

    /// Returns whether a session, an attempt or a handshake is on this path.
    pub fn uses(&self, link: Link) -> bool {
        self.links.contains_key(&link)
    }

    /// Returns whether the peer of an attempt has answered.
    pub fn is_answered(&self, number: SessionNumber) -> bool {
        self.sessions.get(&number).is_some_and(|session| session.record.remote_id().is_some())
    }

    /// Returns the length of the longest record for which a session has room.
    pub fn room(&self, number: SessionNumber) -> usize {
        self.sessions.get(&number).map_or(0, |session| session.record.room())
    }

    /// Returns the number of sessions, attempts and handshakes.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether there are no sessions, attempts and handshakes.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Shrinks the tables to their contents.
    pub fn release_memory(&mut self, now: Instant) {
        self.listener.release_memory(now);
        self.by_sender.shrink_to_fit();
        self.channel_ids.shrink_to_fit();
        self.links.shrink_to_fit();
    }

    /// Returns the counters.
    pub fn counters(&self) -> SessionCounters {
        SessionCounters { refused: self.listener.refused(), ..self.counters }
    }

    pub(super) fn unix(&self, now: Instant) -> UnixTime {
        let (base, unix) = self.base;
        UnixTime(unix.0.saturating_add(now.since(base).as_secs()))
    }

    pub(super) fn number(&mut self) -> SessionNumber {
        self.next = self.next.saturating_add(1);
        SessionNumber(self.next)
    }

    /// Returns the sessions and attempts with a peer.
    pub(super) fn with(&self, peer: &KeyHash, protocol: Protocol) -> Vec<SessionNumber> {
        let same =
            |session: &Session| session.peer.as_ref() == Some(peer) && session.protocol == protocol;
        let sessions = self.sessions.iter().filter(|(_, session)| same(session));
        sessions.map(|(&number, _)| number).collect()
    }

    /// Returns the number of channels for another session: one if ids are scarce, so enough remain for other sessions.
    pub(super) fn offered(&self) -> usize {
        if self.channel_ids.are_scarce() { 1 } else { self.policy.channels }
    }

    /// Reserves ids for the channels of a session.
    pub(super) fn reserve(
        &mut self,
        number: SessionNumber,
        count: usize,
    ) -> Result<Vec<PeerId>, Reason> {
        self.channel_ids.reserve(number, count, &mut self.random).ok_or(Reason::NoFreeId)
    }

    fn use_link(&mut self, link: Link, out: &mut Out) {
        let users = self.links.entry(link).or_default();
        *users += 1;
        if *users == 1 {
            out.plane(Command::AdmitLink(link));
        }
    }

    fn leave_link(&mut self, link: Link, out: &mut Out) {
        let Some(users) = self.links.get_mut(&link) else { return };
        *users -= 1;
        if *users == 0 {
            self.links.remove(&link);
            out.plane(Command::DismissLink(link));
        }
    }

    pub(super) fn insert(&mut self, number: SessionNumber, session: Session, out: &mut Out) {
        let link = session.record.link();
        self.use_link(link, out);
        if link.is_stream() {
            self.streams.begun(link, number);
        }
        self.sessions.insert(number, Box::new(session));
        self.file(number);
        self.schedule(number);
    }

    /// Indexes a datagram session by its peer's session id, once that is known.
    pub(super) fn file(&mut self, number: SessionNumber) {
        if let Some(session) = self.sessions.get_mut(&number)
            && session.filed.is_none()
            && !session.record.link().is_stream()
            && let Some(id) = session.record.remote_id()
        {
            session.filed = Some(id);
            self.by_sender.entry(id).or_insert(number);
        }
    }

    pub(super) fn schedule(&mut self, number: SessionNumber) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let next = session.deadline(&self.policy).map(|(at, _)| at);
        let former = std::mem::replace(&mut session.scheduled, next);
        if former == next {
            return;
        }
        former.map(|at| self.timers.remove(&(at, number)));
        next.map(|at| self.timers.insert((at, number)));
    }

    /// Ends a session, and reports it unless it is a handshake whose sender has not proved a key.
    pub(super) fn end(
        &mut self,
        now: Instant,
        number: SessionNumber,
        reason: Reason,
        out: &mut Out,
    ) {
        let Some(mut session) = self.sessions.remove(&number) else { return };
        session.record.close(now, out);
        self.soiled |= session.record.take_soiled();
        self.counters.dropped = self.counters.dropped.saturating_add(session.record.dropped());
        if let Some(at) = session.scheduled {
            self.timers.remove(&(at, number));
        }
        if let Some(id) = session.filed
            && self.by_sender.get(&id) == Some(&number)
        {
            self.by_sender.remove(&id);
        }
        let link = session.record.link();
        self.leave_link(link, out);
        if link.is_stream() {
            self.hang_up(link, out);
        }
        if session.is_handshake {
            self.listener.finished(link, false);
        }
        if session.established.is_some() {
            // The data plane reports when it has removed them.
            self.channel_ids.retire(&session.ids);
        } else {
            self.channel_ids.release(&session.ids);
        }
        if session.peer.is_none() {
            self.counters.handshakes_failed = self.counters.handshakes_failed.saturating_add(1);
            return;
        }
        out.event(Event::Ended(number, session.peer, reason));
    }
}
