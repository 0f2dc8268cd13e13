//! The inputs of a node's sessions: packets, the data plane's notices, and time.

use adit_engine::{Engine, Instant, Link};
use adit_openvpn::data_format::{Command, Input, Notice, OpenVpn};
use adit_openvpn::packet::Opcode;
use adit_openvpn::records::{RecordEvent, RecordSession, sender};

use super::engine::{Event, Out, SessionEngine, SessionNumber};
use super::keys::Ends;
use super::state::Session;
use super::{Protocol, Reason};

impl Engine for SessionEngine {
    type Event = Event;
    type Format = OpenVpn;

    fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        self.work(now, input, out);
        if std::mem::take(&mut self.soiled) {
            adit_crypto::scrub_stack();
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let silent = self.streams.deadline().map(|at| (at, "silent streams"));
        let timer = self.timers.first().map(|&(at, number)| {
            let deadline = self.sessions.get(&number).and_then(|one| one.deadline(&self.policy));
            (at, deadline.map_or("timer", |(_, why)| why))
        });
        timer.into_iter().chain(silent).min()
    }

    fn due(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|&(at, _)| at);
        timer.into_iter().chain(self.streams.deadline()).min()
    }
}

impl SessionEngine {
    /// A separate function, so its stack frame is below its caller's.
    #[inline(never)]
    fn work(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        match input {
            Input::Tick => {}
            Input::ControlPacket(link, packet) => self.packet(now, link, packet, out),
            Input::Notice(notice) => self.notice(now, &notice, out),
            Input::LinkDown(link) => {
                let on = self.sessions.iter().filter(|(_, one)| one.record.link() == link);
                let lost: Vec<SessionNumber> = on.map(|(&number, _)| number).collect();
                for number in lost {
                    self.end(now, number, Reason::LinkDown, out);
                }
                self.streams.forget(link);
            }
            Input::LinkUp(link) => self.stream_up(now, link, out),
            Input::DialFailed(_) | Input::AuthResponse(..) => {}
        }
        self.tick(now, out);
    }

    fn packet(&mut self, now: Instant, link: Link, packet: &mut [u8], out: &mut Out) {
        if link.is_stream() {
            return self.stream_packet(now, link, packet, out);
        }
        let Some((opcode, sender)) = sender(packet) else { return };
        if let Some(&number) = self.by_sender.get(&sender) {
            return self.session_packet(now, number, packet, out);
        }
        if opcode == Opcode::HardResetServerV2 {
            return self.answered(now, link, packet, out);
        }
        let unix = self.unix(now);
        if let Some((record, events)) = self.listener.packet(now, unix, link, packet, out) {
            self.accepted(now, record, events, out);
        }
    }

    /// Takes over a session that the listener has begun.
    pub(super) fn accepted(
        &mut self,
        now: Instant,
        record: RecordSession,
        events: Vec<RecordEvent>,
        out: &mut Out,
    ) {
        let number = self.number();
        // The protocol is known when the session is ready.
        let mut session = Session::new(now, record, Protocol::Join);
        session.is_handshake = true;
        self.insert(number, session, out);
        self.handle_events(now, number, Ok(events), out);
    }

    /// Offers a reset to each attempt on the link, because it may answer one of them.
    fn answered(&mut self, now: Instant, link: Link, packet: &[u8], out: &mut Out) {
        let waits = |session: &Session| {
            let own = session.record.link();
            session.record.remote_id().is_none()
                && !own.is_stream()
                && own.remote() == link.remote()
        };
        let attempts = self.sessions.iter().filter(|(_, session)| waits(session));
        let attempts: Vec<SessionNumber> = attempts.map(|(&number, _)| number).collect();
        for number in attempts {
            // Unwrapping changes the packet in place, and other attempts need the original.
            self.session_packet(now, number, &mut packet.to_vec(), out);
            let session = self.sessions.get(&number);
            if session.is_none_or(|session| session.record.remote_id().is_some()) {
                return;
            }
        }
    }

    pub(super) fn session_packet(
        &mut self,
        now: Instant,
        number: SessionNumber,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let events = session.record.packet(now, packet, out);
        self.file(number);
        self.handle_events(now, number, events, out);
    }

    fn handle_events(
        &mut self,
        now: Instant,
        number: SessionNumber,
        events: Result<Vec<RecordEvent>, adit_openvpn::Reason>,
        out: &mut Out,
    ) {
        let result = events.map_err(Reason::from).and_then(|events| {
            events.into_iter().try_for_each(|event| self.handle_event(now, number, event, out))
        });
        if let Some(session) = self.sessions.get_mut(&number) {
            self.soiled |= session.record.take_soiled();
        }
        match result {
            Ok(()) => self.schedule(number),
            Err(reason) => self.end(now, number, reason, out),
        }
    }

    fn handle_event(
        &mut self,
        now: Instant,
        number: SessionNumber,
        event: RecordEvent,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(session) = self.sessions.get_mut(&number) else { return Ok(()) };
        match event {
            RecordEvent::Ready(remote) => return self.ready(now, number, &remote, out),
            RecordEvent::KeysReady => {
                let Some(peer) = session.peer else { return Ok(()) };
                let ends = Ends::of(&self.mesh, session.record.role(), &self.own, &peer);
                let keys = (0..session.ids.len())
                    .map(|channel| ends.data_keys(&session.record, channel))
                    .collect::<Result<Vec<_>, _>>()?;
                session.record.rekey(now, keys, &mut self.random, out)?;
            }
            RecordEvent::Record(record) => {
                session.touch(now);
                out.event(Event::Record(number, record));
            }
            RecordEvent::Closed => return Err(Reason::Closed),
        }
        Ok(())
    }

    fn notice(&mut self, now: Instant, notice: &Notice, out: &mut Out) {
        let Some(peer) = notice.peer() else { return };
        if let Notice::PeerGone(..) = notice {
            self.channel_ids.removed(peer);
        }
        let Some(number) = self.channel_ids.session(peer) else { return };
        let Some(session) = self.sessions.get_mut(&number) else { return };
        match notice {
            Notice::PeerSilent(_) => return self.end(now, number, Reason::Silent, out),
            Notice::Traffic(_, traffic) if session.traffic(now, peer, *traffic, &self.policy) => {
                return self.end(now, number, Reason::Idle, out);
            }
            _ => {}
        }
        if let Some(report) = session.record.notice(now, notice, out) {
            out.event(Event::Path(number, report));
        }
        self.schedule(number);
    }

    fn tick(&mut self, now: Instant, out: &mut Out) {
        self.end_silent(now, out);
        // Run each session once: a session that is due again at once must not block the others.
        let due = self.timers.range(..=(now, SessionNumber(u64::MAX)));
        let due: Vec<SessionNumber> = due.map(|&(_, number)| number).collect();
        for number in due {
            let Some(session) = self.sessions.get_mut(&number) else { continue };
            if session.ends(&self.policy).is_some_and(|at| at <= now) {
                self.end(now, number, Reason::JoinTimeout, out);
                continue;
            }
            if session.looks(now, &self.policy) {
                session.ids.iter().for_each(|id| out.plane(Command::ReadTraffic(*id)));
            }
            let events = session.record.tick(now, out);
            self.handle_events(now, number, events, out);
        }
    }
}
