//! The sessions for packets with other nodes: how they start, renew their keys, and start again.
//!
//! A session's handshake travels in REQ_KEY and ANS_KEY messages through the neighbours on the way.

use std::time::Duration;

use adit_engine::Instant;

use super::peer::{MAX_HELD, MAX_HELD_BY_ALL};
use super::{Event, Node, after, count};
use crate::base64;
use crate::config::HostConfig;
use crate::meta::{AddressToken, KeyRequest, Message, Token, decode_public_key, decode_record};
use crate::name::NodeName;
use crate::sptps::{self, CipherChoice, Datagram, Params, Role, SharedSession, data_label};

/// The time after which an unanswered request is repeated, and a failed session may start again.
pub(super) const RETRY: Duration = Duration::from_secs(10);

/// The time after an authentic record in which a session counts as working. It is longer than the time between two probes of an idle path.
/// Records that are not authentic do not restart a working session, because other nodes can send them.
const IN_ORDER: Duration = Duration::from_secs(20);

/// The number of records that may be sealed after a handshake record of a rekey until the peer has answered. tinc discards a handshake record
/// that 128 others have overtaken.
const MAX_OVERTAKING: u32 = 96;

/// The number of keys that a node learns from the net.
const MAX_LEARNED_KEYS: usize = 4096;

/// The number of host files above which it learns none: each becomes a file, and a daemon does not start with too many.
const MAX_HOSTS: usize = 8192;

/// A session for packets.
pub(super) struct DataSession {
    pub(super) sptps: Datagram,
    role: Role,
    /// When the session was created.
    started: Instant,
    /// When to renew the keys.
    rekey_at: Option<Instant>,
    /// When the current rekey began.
    rekeying: Option<Instant>,
    /// When the last handshake record was sent.
    handshake_sent: Instant,
    /// The number of records sealed since then.
    sealed: u32,
    /// The time from a handshake record to its answer.
    round_trip: Duration,
    /// The peer may not have received the last ACK of a rekey before this time.
    settled_at: Option<Instant>,
    /// A neighbour has received it once it has sent this many PONGs, if that is earlier.
    settling_pongs: Option<u32>,
}

impl DataSession {
    fn new(sptps: Datagram, role: Role, now: Instant) -> Self {
        Self {
            sptps,
            role,
            started: now,
            rekey_at: None,
            rekeying: None,
            handshake_sent: now,
            sealed: 0,
            round_trip: Duration::ZERO,
            settled_at: None,
            settling_pongs: None,
        }
    }

    /// Returns the session for another layer, unless the order of records among handshake records matters.
    pub(super) fn share(&self, now: Instant) -> Option<SharedSession> {
        let in_order = self.is_rekey_due(now) || self.rekeying.is_some() || self.must_hold(now);
        self.sptps.share().filter(|_| self.sptps.is_peer_tolerant() || !in_order)
    }

    /// Returns whether it is time to renew the keys.
    pub(super) fn is_rekey_due(&self, now: Instant) -> bool {
        let due = self.rekey_at.is_some_and(|at| now >= at) || self.sptps.needs_rekey();
        self.rekeying.is_none() && due
    }

    /// Returns whether packets must wait, because they would overtake a handshake record that makes them readable.
    pub(super) fn must_hold(&self, now: Instant) -> bool {
        let is_ahead = self.rekeying.is_some() && self.sealed >= MAX_OVERTAKING;
        self.sptps.must_hold_records()
            || self.settled_at.is_some_and(|at| now < at)
            || (is_ahead && !self.sptps.is_peer_tolerant())
    }

    pub(super) fn sealed(&mut self, records: u32) {
        self.sealed = self.sealed.saturating_add(records);
    }

    fn handshake_sent(&mut self, now: Instant) {
        self.handshake_sent = now;
        self.sealed = 0;
    }
}

impl Node {
    /// Starts a session with a node, unless there is one or it was tried a moment ago.
    pub(super) fn ensure_session(&mut self, to: &NodeName) {
        let now = self.now;
        let Some(peer) = self.peers.get(to) else { return };
        let usable = peer
            .session
            .as_ref()
            .is_some_and(|it| it.sptps.is_established() && !it.sptps.needs_replacement());
        if usable || peer.asked.is_some_and(|at| now.since(at) < RETRY) {
            return;
        }
        // A responder waits as long for the initiator.
        if peer
            .session
            .as_ref()
            .is_some_and(|it| !it.sptps.is_established() && now.since(it.started) < RETRY)
        {
            return;
        }
        self.start_session(to);
    }

    pub(super) fn start_session(&mut self, to: &NodeName) {
        let (now, own) = (self.now, self.own.clone());
        let Some(key) = self.public_key(to) else { return self.ask_public_key(to) };
        self.forget_early(to);
        let label = data_label(own.as_str(), to.as_str());
        let (role, cipher) = (Role::Initiator, self.cipher_choice(to));
        let params = Params { role, key: self.key.clone(), peer: key, label, cipher };
        let Some(peer) = self.peers.get_mut(to) else { return };
        peer.asked = Some(now);
        let window = self.config.replay_window;
        let (sptps, record) = Datagram::start(params, window, &mut self.random);
        peer.set_session(Some(DataSession::new(sptps, Role::Initiator, now)));
        self.changed_paths.add(to);
        if let Some(record) = token(&record) {
            let offers_aes = cipher == CipherChoice::Agree;
            let request = KeyRequest::Session { record, offers_aes };
            self.send_towards(to, &Message::ReqKey(own, to.clone(), Some(request)));
        }
    }

    /// Returns how sessions for packets with a node get their cipher: its host file may fix it, or else this node's own configuration.
    pub(super) fn cipher_choice(&self, name: &NodeName) -> CipherChoice {
        let host = self.hosts.get(name).and_then(|host| host.cipher);
        host.or(self.config.own.cipher).map_or(CipherChoice::Agree, CipherChoice::Fixed)
    }

    /// Sends a message towards a node, if it is reachable.
    pub(super) fn send_towards(&mut self, to: &NodeName, message: &Message) {
        let Some(route) = self.graph.route(to) else { return };
        if let Some(id) = self.active.get(&route.next_hop).copied() {
            self.send(id, message);
        }
    }

    /// A node asks this one for something.
    pub(super) fn requested(&mut self, from: &NodeName, request: KeyRequest) {
        match request {
            KeyRequest::Session { record, offers_aes } => {
                self.session_requested(from, &record, offers_aes);
            }
            KeyRequest::AskPublicKey => {
                let own = self.own.clone();
                if self.public_key(from).is_none() {
                    self.ask_public_key(from);
                }
                let key = self.key.public().to_string();
                if let Some(key) = Token::new(key.as_bytes()) {
                    let answer = KeyRequest::PublicKey(key);
                    self.send_towards(from, &Message::ReqKey(own, from.clone(), Some(answer)));
                }
            }
            KeyRequest::PublicKey(key) => self.public_key_received(from, &key),
            KeyRequest::Datagram(_) | KeyRequest::Unknown(_) => {}
        }
    }

    pub(super) fn ask_public_key(&mut self, from: &NodeName) {
        // A key from the net must not replace one that its owner has passed on.
        if self.hosts.get(from).is_some_and(|host| host.unusable_key) {
            return;
        }
        let own = self.own.clone();
        if let Some(peer) = self.peers.get_mut(from) {
            peer.asked = Some(self.now);
        }
        self.send_towards(
            from,
            &Message::ReqKey(own, from.clone(), Some(KeyRequest::AskPublicKey)),
        );
    }

    /// Stores a node's key, unless there is one.
    fn public_key_received(&mut self, from: &NodeName, key: &Token) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        // Only an answer to this node's own request counts.
        let asked = peer.asked.is_some_and(|at| self.now.since(at) < RETRY);
        let unknown = |host: &HostConfig| host.public_key.is_none() && !host.unusable_key;
        let unknown = self.hosts.get(from).is_none_or(unknown);
        let full = self.learned_keys >= MAX_LEARNED_KEYS || self.hosts.len() >= MAX_HOSTS;
        if !unknown || !self.config.learn_keys || full || !asked {
            return;
        }
        let Some(key) = decode_public_key(key) else { return };
        peer.asked = None;
        self.learned_keys = self.learned_keys.saturating_add(1);
        self.hosts.entry(from.clone()).or_default().public_key = Some(key);
        self.event(Event::KeyLearned { node: from.clone(), key });
        self.ensure_session(from);
    }

    /// A node starts a session.
    fn session_requested(&mut self, from: &NodeName, record: &Token, offers_aes: bool) {
        let now = self.now;
        let Some(key) = self.public_key(from) else { return self.ask_public_key(from) };
        let (own, window) = (self.own.clone(), self.config.replay_window);
        let Some(record) = decode_record(record) else { return };
        let cipher = self.cipher_choice(from);
        let Some(peer) = self.peers.get_mut(from) else { return };
        let waits = peer.session.as_ref().is_some_and(|session| {
            session.role == Role::Initiator
                && !session.sptps.is_established()
                && now.since(session.started) < RETRY
        });
        // If both ask at once, both would answer and wait. The greater name remains the initiator.
        if waits && own > *from {
            return;
        }
        // A node of tinc gives up its own session whatever its name is, and then this node's own goes on: whichever the next record is for.
        let keeps = waits || peer.is_established();
        let label = data_label(from.as_str(), own.as_str());
        let role = Role::Responder;
        let params = Params { role, key: self.key.clone(), peer: key, label, cipher };
        let (mut sptps, kex) = Datagram::start(params, window, &mut self.random);
        if offers_aes {
            sptps.peer_offers();
        }
        let session = Some(DataSession::new(sptps, role, now));
        if keeps {
            peer.replacement = session;
        } else {
            peer.set_session(session);
            self.changed_paths.add(from);
        }
        self.answer_key(from, &kex, offers_aes && cipher == CipherChoice::Agree);
        self.handshake_record(from, &record, None);
        self.report_mtu(from);
    }

    fn answer_key(&mut self, to: &NodeName, record: &[u8], offers_aes: bool) {
        let Some(key) = token(record) else { return };
        let from = self.own.clone();
        let (to_name, compression, reflexive) = (to.clone(), 0, None);
        let answer = Message::AnsKey { from, to: to_name, key, offers_aes, compression, reflexive };
        self.send_towards(to, &answer);
    }

    /// Handles a handshake record of a session.
    pub(super) fn handshake_record(
        &mut self,
        from: &NodeName,
        record: &[u8],
        reflexive: Option<AddressToken>,
    ) {
        let now = self.now;
        let mut answers = Vec::new();
        let replaced = match self.replacement_record(from, record, &mut answers) {
            Some(Ok(None)) => return,
            Some(result) => Some(result),
            None if self.defer_handshake(from, record, reflexive.as_ref()) => return,
            None => None,
        };
        let Some(peer) = self.peers.get_mut(from) else { return };
        let Some(session) = &mut peer.session else { return };
        let result = replaced.unwrap_or_else(|| {
            session.sptps.receive_handshake(record, &mut self.random, &mut answers)
        });
        self.changed_paths.add(from);
        if !answers.is_empty() {
            session.round_trip = now.since(session.handshake_sent);
            session.handshake_sent(now);
        }
        match result {
            Err(error) => return self.handshake_refused(from, error),
            Ok(None) if session.sptps.is_established() => {
                session.rekeying.get_or_insert(now);
            }
            Ok(None) => {}
            Ok(Some(event)) => self.handshake_completed(from, event),
        }
        let established = self.peers.get(from).is_some_and(super::peer::Peer::is_established);
        for answer in &answers {
            self.answer_key(from, answer, false);
        }
        if let Some(address) = reflexive.and_then(|address| address.remote())
            && established
            && let Some(peer) = self.peers.get_mut(from)
            && !peer.udp.confirmed
        {
            peer.udp.set_address(address);
        }
        self.release_held();
        self.open_early(from);
    }

    /// A handshake has given a session its keys: plans when to renew them.
    fn handshake_completed(&mut self, from: &NodeName, event: sptps::Event) {
        let (now, expire) = (self.now, self.config.key_expire);
        let Some(session) = self.session_mut(from) else { return };
        // The initiator is first, so that usually only one side starts.
        let margin = expire.checked_div(8).filter(|_| session.role == Role::Responder);
        session.rekey_at = Some(after(after(now, expire), margin.unwrap_or_default()));
        session.rekeying = None;
        let waits = session.role == Role::Initiator && !session.sptps.is_peer_tolerant();
        if event == sptps::Event::Rekeyed && waits {
            self.hold_until_settled(from);
        }
        self.event(match event {
            sptps::Event::Established => Event::SessionEstablished(from.clone()),
            sptps::Event::Rekeyed => Event::KeysRenewed(from.clone()),
        });
    }

    /// Holds packets until a peer has received the last ACK of a rekey. Its own ACK does not prove that. A neighbour handles a PING after the ACK; from
    /// other nodes, the last answer took a round trip, but tinc may read a datagram before what arrived earlier on a connection.
    fn hold_until_settled(&mut self, from: &NodeName) {
        let now = self.now;
        let is_direct = self.graph.route(from).is_some_and(|route| route.next_hop == *from);
        let connection = self.active.get(from).copied().filter(|_| is_direct);
        let pongs = connection.and_then(|id| self.ping(id));
        let Some(session) = self.session_mut(from) else { return };
        let wait = if pongs.is_some() { RETRY } else { session.round_trip.min(RETRY) };
        session.settled_at = Some(after(now, wait));
        session.settling_pongs = pongs;
        self.settling.insert(from.clone());
    }

    /// A neighbour has answered a PING, and so has handled everything that was sent to it before.
    pub(super) fn settle_by_pong(&mut self, neighbour: &NodeName) {
        let now = self.now;
        let Some(session) = self.session_mut(neighbour) else { return };
        let Some(pongs) = &mut session.settling_pongs else { return };
        *pongs = pongs.saturating_sub(1);
        if *pongs == 0 {
            session.settling_pongs = None;
            session.settled_at = session.settled_at.map(|at| at.min(now));
            self.release_held();
        }
    }

    pub(super) fn session_mut(&mut self, of: &NodeName) -> Option<&mut DataSession> {
        self.peers.get_mut(of)?.session.as_mut()
    }

    /// Hands a record to the session that is to replace a node's. Returns the result if it was for that one, which has replaced the other unless it
    /// waits for another record.
    fn replacement_record(
        &mut self,
        from: &NodeName,
        record: &[u8],
        answers: &mut Vec<Vec<u8>>,
    ) -> Option<Result<Option<sptps::Event>, sptps::Error>> {
        let peer = self.peers.get_mut(from)?;
        let replacement = peer.replacement.as_mut()?;
        let result = replacement.sptps.receive_handshake(record, &mut self.random, answers);
        match result {
            Ok(None) => {}
            // With another cipher, the node itself asked too, and has given up the former session.
            Ok(Some(_)) | Err(sptps::Error::OtherCipher { .. }) => {
                let replacement = peer.replacement.take();
                peer.set_session(replacement);
            }
            Err(sptps::Error::OfferRemoved) => peer.replacement = None,
            // The refused record has changed nothing, and may be the other session's.
            Err(_) => return None,
        }
        Some(result)
    }

    /// A datagram of a node is not authentic. During a rekey, those under the new keys overtake the handshake, which travels over TCP: the session
    /// is not at fault. A rekey that gets stuck is given up.
    pub(super) fn forged(&mut self, from: &NodeName) {
        let session = self.peers.get(from).and_then(|peer| peer.session.as_ref());
        if session.is_none_or(|session| session.rekeying.is_none()) {
            self.restart_session(from);
        }
    }

    /// A handshake record was refused: reports an error that does not pass with time, and starts a new session.
    fn handshake_refused(&mut self, from: &NodeName, error: sptps::Error) {
        count(&mut self.counters.refused_handshakes);
        if error == sptps::Error::OfferRemoved {
            count(&mut self.counters.removed_offers);
        }
        let lasts = matches!(
            error,
            sptps::Error::OfferRemoved | sptps::Error::OtherCipher { .. } | sptps::Error::Signature
        );
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(from)
            && lasts
            && peer.reported.is_none_or(|at| now.since(at) >= RETRY)
        {
            peer.reported = Some(now);
            self.event(Event::HandshakeFailed { node: from.clone(), error });
        }
        self.restart_session(from);
    }

    /// Starts a new session with a node whose record cannot be read, unless this one is new or in order.
    fn restart_session(&mut self, from: &NodeName) {
        let now = self.now;
        let Some(peer) = self.peers.get(from) else { return };
        let recent = |at: Instant| now.since(at) < RETRY;
        let is_busy = peer.session.as_ref().is_some_and(|session| {
            let heard = peer.heard.filter(|at| *at >= session.started);
            let is_in_order = heard.is_some_and(|at| now.since(at) < IN_ORDER);
            recent(session.started) || (session.sptps.is_established() && is_in_order)
        });
        if is_busy || peer.asked.is_some_and(recent) {
            return;
        }
        self.event(Event::SessionRestarted(from.clone()));
        self.start_session(from);
    }

    /// Renews keys, starts sessions again whose rekey got stuck, and sends packets that waited.
    pub(super) fn check_sessions(&mut self) {
        let now = self.now;
        self.drop_early();
        let (mut rekey, mut stuck) = (Vec::new(), Vec::new());
        for (name, peer) in &mut self.peers {
            peer.replacement.take_if(|replacement| now.since(replacement.started) >= RETRY);
            let Some(session) = &mut peer.session else { continue };
            if session.rekeying.is_some_and(|since| now.since(since) >= RETRY) {
                stuck.push(name.clone());
            } else if session.is_rekey_due(now) && peer.carried && !session.sptps.is_peer_tolerant()
            {
                // The next call renews the keys.
                self.changed_paths.add(name);
            } else if session.is_rekey_due(now) {
                rekey.push(name.clone());
            }
        }
        for name in stuck {
            count(&mut self.counters.stuck_rekeys);
            self.event(Event::SessionRestarted(name.clone()));
            self.start_session(&name);
        }
        for name in rekey {
            let Some(peer) = self.peers.get_mut(&name) else { continue };
            let Some(session) = &mut peer.session else { continue };
            match session.sptps.rekey(&mut self.random) {
                Ok(record) => {
                    session.rekeying = Some(now);
                    session.handshake_sent(now);
                    self.changed_paths.add(&name);
                    self.answer_key(&name, &record, false);
                }
                Err(_) => self.start_session(&name),
            }
        }
    }

    /// Returns when the first packets that wait may be sent.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let settled_at = |name: &NodeName| self.peers.get(name)?.session.as_ref()?.settled_at;
        self.settling.iter().filter_map(settled_at).min()
    }

    /// Sends packets that waited for the end of a rekey.
    pub(super) fn release_held(&mut self) {
        let now = self.now;
        for name in std::mem::take(&mut self.settling) {
            let Some(peer) = self.peers.get_mut(&name) else { continue };
            let settled_at = peer.session.as_mut().map(|session| &mut session.settled_at);
            if settled_at.is_some_and(|settled| settled.take_if(|at| now >= *at).is_some()) {
                self.changed_paths.add(&name);
            }
            if peer.session.as_ref().is_some_and(|session| session.must_hold(now)) {
                self.settling.insert(name);
                continue;
            }
            for packet in std::mem::take(&mut peer.held) {
                self.seal_packet(&name, &packet);
                self.recycle(packet);
            }
        }
    }

    /// Holds a packet for a node until its rekey is over.
    pub(super) fn hold(&mut self, name: &NodeName, packet: &[u8]) {
        let held = |name: &NodeName| self.peers.get(name).map_or(0, |peer| peer.held.len());
        let by_all: usize = self.settling.iter().map(held).sum();
        if held(name) >= MAX_HELD || by_all >= MAX_HELD_BY_ALL {
            return count(&mut self.counters.not_held);
        }
        let mut copy = self.buffer();
        copy.extend_from_slice(packet);
        if let Some(peer) = self.peers.get_mut(name) {
            peer.held.push_back(copy);
            self.settling.insert(name.clone());
        }
    }
}

/// Encodes a record for a message. Handshake records fit.
fn token(record: &[u8]) -> Option<Token> {
    let token = Token::new(base64::encode(record).as_bytes());
    debug_assert!(token.is_some());
    token
}
