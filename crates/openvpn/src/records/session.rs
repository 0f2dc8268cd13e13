//! One session, from the first packet to its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use adit_crypto::Cipher;
use adit_engine::command::{Float, Keepalive};
use adit_engine::{Instant, Link, PeerId, Random, UnixTime};

use super::Record;
use crate::data_format::{Command, Framing, Notice, Outbox, Protection};
use crate::keys::{DataKeys, Role, StaticKey};
use crate::packet::{Control, Opcode, SessionId};
use crate::reason::Reason;
use crate::session::{
    Agreement, ControlChannel, DataChannel, Event, NoticeOutcome, PathReport, PeerTerms,
    Renegotiation, Settings, WallClock,
};
use crate::tls::{KeyHash, RecordTls, TlsSession};
use crate::wrap::{WrapConfig, Wrapper};

/// The settings of a node's sessions.
#[derive(Clone, Debug)]
pub struct RecordSettings {
    /// The maximum duration of a key negotiation.
    pub hand_window: Duration,
    /// The age at which the client replaces the data keys. If the client does not, the server does
    /// so one `hand_window` later.
    pub rekey_after: Duration,
    /// The keepalive times of the data channel.
    pub keepalive: Keepalive,
    /// Whether the tunnel carries Ethernet frames, not packets.
    pub ethernet: bool,
    /// The MTU of the tunnel device.
    pub tun_mtu: u16,
    /// The replay window in packets.
    pub replay_window: u32,
}

impl RecordSettings {
    pub(super) fn settings(&self, role: Role) -> Settings {
        let after = match role {
            Role::Client => self.rekey_after,
            Role::Server => self.rekey_after.saturating_add(self.hand_window),
        };
        Settings {
            hand_window: self.hand_window,
            renegotiation: Renegotiation { after, earliest: after, ..Renegotiation::default() },
            keepalive: self.keepalive,
            changes_family: true,
            ethernet: self.ethernet,
            tun_mtu: self.tun_mtu,
            replay_window: self.replay_window,
            ..Settings::default()
        }
    }
}

/// The parameters with which a client starts a session.
#[derive(Debug)]
pub struct Dial<'a> {
    /// The path to the server.
    pub link: Link,
    /// The server's tls-crypt key.
    pub wrap: StaticKey,
    /// The TLS configuration. It accepts only the server's key.
    pub tls: RecordTls,
    /// The client's hello.
    pub hello: &'a [u8],
}

/// The other end of a session, with its authenticated key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteEnd {
    /// The hash of its public key.
    pub key: KeyHash,
    /// The protocol that both ends agreed on (ALPN).
    pub protocol: Vec<u8>,
    /// Its hello.
    pub hello: Vec<u8>,
}

/// The agreed parameters of one data channel of a session.
#[derive(Debug)]
pub struct DataTerms {
    /// The peer's id in our data plane. The other end writes it into its packets.
    pub peer: PeerId,
    /// The id that we write into packets to the other end.
    pub wire_id: u32,
    /// The cipher of the epoch format.
    pub cipher: Cipher,
    /// The first keys.
    pub keys: DataKeys,
}

/// An event of a session.
#[derive(Debug)]
pub enum RecordEvent {
    /// The other end has proved its key and sent its hello. The session waits for
    /// [`RecordSession::establish`], or is closed.
    Ready(RemoteEnd),
    /// A renegotiation is complete. The session waits for [`RecordSession::rekey`].
    KeysReady,
    /// A record arrived.
    Record(Record),
    /// The other end has ended the session.
    Closed,
}

/// A session with records and data channels.
pub struct RecordSession {
    control: ControlChannel,
    role: Role,
    settings: Arc<Settings>,
    tls: RecordTls,
    clock: WallClock,
    /// Our hello. A server sets it when it establishes the session.
    hello: Vec<u8>,
    remote: Option<RemoteEnd>,
    established: bool,
    data: Vec<DataChannel>,
    /// The number of packets that did not belong to the session.
    dropped: u64,
}

impl RecordSession {
    /// Starts a session as client.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn connect<E>(
        now: Instant,
        unix: UnixTime,
        dial: Dial<'_>,
        settings: &RecordSettings,
        random: &mut Random,
        out: &mut Outbox<E>,
    ) -> Result<Self, Reason> {
        let Dial { link, wrap, tls, hello } = dial;
        let settings = Arc::new(settings.settings(Role::Client));
        let wrapper = Wrapper::client(&WrapConfig::TlsCrypt { key: wrap })?;
        let local = SessionId(random.bytes());
        let reset = Opcode::HardResetClientV2;
        let session = TlsSession::records(&tls)?;
        let control = ControlChannel::open(now, link, local, reset, wrapper, session, &settings);
        let clock = WallClock::new(now, unix);
        let mut session = Self::new(control, Role::Client, settings, tls, clock);
        session.hello = hello.to_vec();
        session.finish(now, Ok(()), out)?;
        Ok(session)
    }

    /// Continues a server's session with the packet that returned its cookie.
    pub(super) fn accept<E>(
        now: Instant,
        link: Link,
        (first, wrapper): (&Control<'_>, Wrapper),
        (tls, settings, clock): (&RecordTls, &Arc<Settings>, WallClock),
        out: &mut Outbox<E>,
    ) -> Result<(Self, Vec<RecordEvent>), Reason> {
        let ids = (first.remote.unwrap_or_default(), first.session);
        let session = TlsSession::records(tls)?;
        let control = ControlChannel::resume(now, link, ids, wrapper, session, settings);
        let mut session = Self::new(control, Role::Server, settings.clone(), tls.clone(), clock);
        let events = session.control.take(now, first, too_early, settings);
        let events = session.step(now, events, out)?;
        Ok((session, events))
    }

    /// Begins a server's session with the reset on a stream that was accepted at this time.
    pub(super) fn accept_stream<E>(
        now: Instant,
        link: Link,
        (local, accepted): (SessionId, Instant),
        (first, wrapper): (&Control<'_>, Wrapper),
        (tls, settings, clock): (&RecordTls, &Arc<Settings>, WallClock),
        out: &mut Outbox<E>,
    ) -> Result<(Self, Vec<RecordEvent>), Reason> {
        let (ids, session) = ((local, first.session), TlsSession::records(tls)?);
        let give_up = accepted + settings.hand_window;
        let control = ControlChannel::accept(now, link, ids, wrapper, session, give_up);
        let mut session = Self::new(control, Role::Server, settings.clone(), tls.clone(), clock);
        let events = session.control.take(now, first, too_early, settings);
        let events = session.step(now, events, out)?;
        Ok((session, events))
    }

    fn new(
        control: ControlChannel,
        role: Role,
        settings: Arc<Settings>,
        tls: RecordTls,
        clock: WallClock,
    ) -> Self {
        Self {
            control: control.with_records(),
            role,
            settings,
            tls,
            clock,
            hello: Vec::new(),
            remote: None,
            established: false,
            data: Vec::new(),
            dropped: 0,
        }
    }

    /// Processes a control packet, which is decrypted in place.
    ///
    /// # Errors
    /// Returns the reason why the session ends; the caller then calls [`Self::close`].
    pub fn packet<E>(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        out: &mut Outbox<E>,
    ) -> Result<Vec<RecordEvent>, Reason> {
        let (tls, established) = (&self.tls, self.established);
        let next = || if established { Ok(TlsSession::records(tls)?) } else { too_early() };
        let events = self.control.frame(now, packet, next, &self.settings);
        self.step(now, events, out)
    }

    /// Performs the work that is due.
    ///
    /// # Errors
    /// Returns the reason why the session ends; the caller then calls [`Self::close`].
    pub fn tick<E>(
        &mut self,
        now: Instant,
        out: &mut Outbox<E>,
    ) -> Result<Vec<RecordEvent>, Reason> {
        if self.control.expired(now) {
            return Err(Reason::HandshakeTimeout);
        }
        let mut wanted = false;
        for data in &mut self.data {
            let (_, wants_key) = data.tick(now, &self.control, &self.settings, out);
            wanted |= wants_key;
        }
        let tls = &self.tls;
        let next = || Ok(TlsSession::records(tls)?);
        let events = self.control.next_negotiation(now, wanted, next, &self.settings);
        self.step(now, events, out)
    }

    /// Makes the session usable, with any number of data channels. Only the first one has keepalive times and searches for
    /// the path MTU, because all take the same path. A server sends its hello only
    /// after it has installed their keys, so the client never uses a key that the server does not
    /// have.
    ///
    /// # Errors
    /// Returns the reason why the session ends; the caller then calls [`Self::close`].
    pub fn establish<E>(
        &mut self,
        now: Instant,
        hello: &[u8],
        data: Vec<DataTerms>,
        random: &mut Random,
        out: &mut Outbox<E>,
    ) -> Result<(), Reason> {
        if self.remote.is_none() || self.established {
            debug_assert!(false, "a session is established once, when it is ready");
            return Err(Reason::Ignored("a session that is not ready"));
        }
        let link = self.control.link;
        for DataTerms { peer, wire_id, cipher, keys } in data {
            let agreement = Agreement {
                terms: PeerTerms {
                    peer,
                    link,
                    wire_id: Some(wire_id),
                    // The peer has several paths, and the two ends switch between them at different times.
                    float: Float::Accept,
                    framing: Framing::None,
                    protection: Protection::Epoch(cipher),
                    channel_of: self.data.first().map(|first| first.peer),
                    vlan: None,
                },
                routes: Vec::new(),
                keys,
                exporter: true,
                inactive: None,
                timeout: None,
            };
            let mut channel = DataChannel::establish(now, agreement, &self.settings, random, out);
            if let Some(first) = self.data.first_mut() {
                first.search_for(&mut channel);
            }
            self.data.push(channel);
        }
        self.established = true;
        self.control.establish(self.settings.tran_window);
        if self.role == Role::Server {
            self.hello = hello.to_vec();
            self.control.send_hello(&self.hello)?;
        }
        self.control.wrap_renegotiations();
        self.finish(now, Ok(()), out)
    }

    /// Installs the keys of a complete renegotiation, one for each data channel.
    ///
    /// # Errors
    /// Returns the reason why the session ends; the caller then calls [`Self::close`].
    pub fn rekey<E>(
        &mut self,
        now: Instant,
        keys: Vec<DataKeys>,
        random: &mut Random,
        out: &mut Outbox<E>,
    ) -> Result<(), Reason> {
        debug_assert_eq!(keys.len(), self.data.len(), "a key for each data channel");
        let key_id = self.control.negotiation().key_id;
        for (data, keys) in self.data.iter_mut().zip(keys) {
            data.install_next(now, key_id, keys, random, out);
        }
        if self.role == Role::Server {
            self.control.send_hello(&self.hello)?;
        }
        self.finish(now, Ok(()), out)
    }

    /// Sends a record. During a key negotiation the record is queued until the negotiation ends.
    /// Returns false if the queue is full.
    ///
    /// # Errors
    /// Returns the reason why the session ends; the caller then calls [`Self::close`].
    pub fn send<E>(
        &mut self,
        now: Instant,
        record: &[u8],
        out: &mut Outbox<E>,
    ) -> Result<bool, Reason> {
        let sent = self.control.send_record(record)?;
        self.finish(now, Ok(()), out)?;
        Ok(sent)
    }

    /// Returns the length of the longest record that [`Self::send`] accepts.
    pub fn room(&self) -> usize {
        self.control.record_room()
    }

    /// Ends the session and removes its data channels. Notifies the other end if TLS still works.
    pub fn close<E>(&mut self, now: Instant, out: &mut Outbox<E>) {
        // The session ends in any case, so a failure does not matter.
        let _ = self.control.close();
        let _ = self.finish(now, Ok(()), out);
        for data in self.data.drain(..) {
            out.plane(Command::DelPeer(data.peer));
        }
    }

    /// Exports keying material from the latest key negotiation for a label and a context (RFC
    /// 5705).
    ///
    /// # Errors
    /// The TLS handshake is not complete.
    pub fn export(&self, label: &[u8], context: &[u8], out: &mut [u8]) -> Result<(), Reason> {
        Ok(self.control.negotiation().tls().export_with_context(label, context, out)?)
    }

    /// Handles a notice about one of the session's data channels. Returns the findings about the
    /// path, if the notice led to any.
    pub fn notice<E>(
        &mut self,
        now: Instant,
        notice: &Notice,
        out: &mut Outbox<E>,
    ) -> Option<PathReport> {
        let peer = notice.peer()?;
        let data = self.data.iter_mut().find(|data| data.peer == peer)?;
        match data.notice(now, notice, &self.settings, out) {
            NoticeOutcome::Path(report) => Some(report),
            NoticeOutcome::Nothing | NoticeOutcome::KeyNearLimit | NoticeOutcome::Inactive => None,
        }
    }

    /// Moves the session to another path.
    pub fn set_link<E>(&mut self, now: Instant, link: Link, out: &mut Outbox<E>) {
        self.control.link = link;
        for data in &mut self.data {
            out.plane(Command::SetLink(data.peer, link));
            data.moved(now, link);
        }
    }

    /// Returns the path of the session.
    pub fn link(&self) -> Link {
        self.control.link
    }

    /// Returns our end of the session.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the other end, once it has proved its key and sent its hello.
    pub fn remote(&self) -> Option<&RemoteEnd> {
        self.remote.as_ref()
    }

    /// Returns the other end's session id, once it has answered. Its packets begin with it.
    pub fn remote_id(&self) -> Option<SessionId> {
        self.control.remote()
    }

    /// Returns whether [`Self::establish`] succeeded.
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Returns the number of packets that did not belong to the session.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns whether keys were handled since the last call. If so, copies of them may remain on
    /// the stack.
    pub fn take_soiled(&mut self) -> bool {
        self.control.take_soiled()
    }

    /// Returns when [`Self::tick`] is due next, and why.
    pub fn deadline(&self) -> Option<(Instant, &'static str)> {
        let data = self.data.iter().filter_map(DataChannel::deadline);
        data.chain(self.control.deadline()).min()
    }

    /// Handles the events of a step, and sends its output.
    fn step<E>(
        &mut self,
        now: Instant,
        events: Result<Vec<Event>, Reason>,
        out: &mut Outbox<E>,
    ) -> Result<Vec<RecordEvent>, Reason> {
        let mut reported = Vec::new();
        let result = events.and_then(|events| {
            events.into_iter().try_for_each(|event| self.handle_event(event, &mut reported))
        });
        self.finish(now, result, out)?;
        if self.control.is_closed() {
            reported.push(RecordEvent::Closed);
        }
        Ok(reported)
    }

    fn handle_event(
        &mut self,
        event: Event,
        reported: &mut Vec<RecordEvent>,
    ) -> Result<(), Reason> {
        match event {
            Event::Reset(_) => {}
            Event::TlsReady if self.role == Role::Client => {
                self.control.send_hello(&self.hello)?;
            }
            Event::TlsReady => {}
            Event::Keys => {
                let remote = self.remote_end()?;
                match &self.remote {
                    None => {
                        self.remote = Some(remote.clone());
                        reported.push(RecordEvent::Ready(remote));
                    }
                    Some(former) if *former == remote => reported.push(RecordEvent::KeysReady),
                    Some(_) => {
                        return Err(Reason::Protocol("another key or hello in a renegotiation"));
                    }
                }
            }
            Event::Message(record) => {
                reported.push(RecordEvent::Record(Record::new(record)));
            }
            // tls-crypt authenticates every packet, so only the other end can have caused the
            // failure.
            Event::Failed(reason) => return Err(reason),
        }
        Ok(())
    }

    fn remote_end(&self) -> Result<RemoteEnd, Reason> {
        let negotiation = self.control.negotiation();
        let tls = negotiation.tls();
        Ok(RemoteEnd {
            key: tls.peer_key().ok_or(Reason::Protocol("no certificate"))?,
            protocol: tls.protocol().ok_or(Reason::Protocol("no protocol (ALPN)"))?.to_vec(),
            hello: negotiation.remote_hello().unwrap_or_default().to_vec(),
        })
    }

    /// Sends the output of a step that had this result.
    fn finish<E>(
        &mut self,
        now: Instant,
        result: Result<(), Reason>,
        out: &mut Outbox<E>,
    ) -> Result<(), Reason> {
        let bad_packet = self.control.settle(now, self.clock.at(now), result, out)?;
        self.dropped = self.dropped.saturating_add(bad_packet.into());
        Ok(())
    }
}

// Implemented by hand to keep the keys in it out of the logs.
impl fmt::Debug for RecordSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSession")
            .field("role", &self.role)
            .field("link", &self.control.link)
            .field("established", &self.established)
            .finish_non_exhaustive()
    }
}

/// Refuses a renegotiation before there is a session.
fn too_early() -> Result<TlsSession, Reason> {
    Err(Reason::Ignored("a renegotiation before there is a session"))
}
