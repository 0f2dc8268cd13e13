//! Renegotiations of a session: when they may begin, how they are wrapped, and what follows if one fails.

use std::time::Duration;

use adit_engine::Instant;

use super::{ControlChannel, reliable};
use crate::keys::DYNAMIC_TLS_CRYPT_LABEL;
use crate::packet::{Acks, Control, Opcode, SessionId};
use crate::reason::Reason;
use crate::session::Settings;
use crate::session::budget::RENEGOTIATIONS;
use crate::session::key_negotiation::{Event, KeyNegotiation};
use crate::tls::TlsSession;
use crate::wrap::Wrapper;

/// The delay before another negotiation after a second failed one.
const AGAIN: Duration = Duration::from_secs(10);

/// Consecutive failed negotiations of a session.
#[derive(Copy, Clone)]
pub(super) struct NegotiationFailures {
    pub(super) since: Instant,
    /// When to begin another negotiation.
    pub(super) again: Instant,
}

/// The peer's request to renegotiate, delayed until [`ControlChannel::pace`] allows it. It is stored because a stream never retransmits.
pub(super) struct PostponedRenegotiation {
    until: Instant,
    session: SessionId,
    remote: Option<SessionId>,
    key_id: u8,
    message: Option<u32>,
}

/// The wrapping of renegotiations.
pub(super) enum RenegotiationWrapping {
    /// The same as that of the first negotiation.
    None,
    /// Dynamic tls-crypt whose keys are not derived yet, because many sessions end before their first renegotiation.
    Wanted,
    /// Dynamic tls-crypt with its keys.
    Made(Wrapper),
}

impl ControlChannel {
    /// Records that the session is established, and how long its keys live without a new negotiation. From now on, a
    /// packet that anyone could have forged ends at most the negotiation to which it claims to belong.
    pub(crate) fn establish(&mut self, lifetime: Duration) {
        self.established = Some(lifetime);
    }

    /// Returns whether anyone could forge packets of this negotiation, which therefore must not end the session. Over a
    /// stream, TCP makes forging hard.
    pub(super) fn tolerates(&self, key_id: u8) -> bool {
        let rewrapped = key_id != 0 && !matches!(self.rewrapping, RenegotiationWrapping::None);
        let authentic = rewrapped || self.wrapper.authenticates() || self.link.is_stream();
        self.established.is_some() && !authentic
    }

    /// Returns whether the peer may begin a negotiation with this key id. It must be the next id or, if the newest
    /// negotiation failed before both ends' keys were exchanged, the same id again.
    pub(super) fn may_begin(&self, key_id: u8) -> bool {
        let newest = &self.newest;
        let again = newest.failed && !newest.is_complete() && key_id == newest.key_id;
        again || key_id == next_key_id(newest.key_id) && (newest.is_complete() || newest.failed)
    }

    /// Ends a negotiation, but not the session.
    pub(super) fn fail(&mut self, now: Instant, key_id: u8) {
        if self.newest.key_id != key_id {
            self.former = None;
            return;
        }
        self.newest.failed = true;
        let (since, again) = match self.failing {
            Some(NegotiationFailures { since, .. }) => (since, now + AGAIN),
            None => (now, now),
        };
        self.failing = Some(NegotiationFailures {
            since,
            again: again.max(self.pace.next_whole(now, RENEGOTIATIONS)),
        });
    }

    /// Fails the negotiation in progress, which authenticated an identity other than the session's. Returns the reason
    /// to report if anyone could have forged this negotiation.
    ///
    /// # Errors
    /// Returns the reason if only the peer can have caused the failure, in which case the session ends.
    pub(crate) fn reject(&mut self, now: Instant, reason: Reason) -> Result<Reason, Reason> {
        let key_id = self.newest.key_id;
        if !self.tolerates(key_id) {
            return Err(reason);
        }
        self.fail(now, key_id);
        Ok(reason)
    }

    /// Returns when to negotiate again after the newest negotiation has failed.
    pub(crate) fn recovers_at(&self) -> Option<Instant> {
        self.failing.filter(|_| self.newest.failed).map(|failing| failing.again)
    }

    /// Returns whether the current negotiation follows a failed one that the peer may have completed. If so, its keys
    /// are used at once.
    pub(crate) fn is_recovering(&self) -> bool {
        self.failing.is_some()
    }

    /// Begins a renegotiation if one is `wanted`, or else processes the peer's delayed request for one.
    pub(crate) fn next_negotiation(
        &mut self,
        now: Instant,
        wanted: bool,
        next_tls: impl FnOnce() -> Result<TlsSession, Reason>,
        settings: &Settings,
    ) -> Result<Vec<Event>, Reason> {
        if !wanted {
            return self.resume_postponed(now, next_tls, settings);
        }
        self.renegotiate(now, next_tls()?, settings)?;
        Ok(Vec::new())
    }

    /// Delays the peer's request to renegotiate.
    pub(super) fn postpone(&mut self, until: Instant, request: &Control<'_>) {
        self.put_off = self.put_off.saturating_add(1);
        let &Control { session, remote, key_id, message, .. } = request;
        self.postponed = Some(PostponedRenegotiation { until, session, remote, key_id, message });
    }

    /// Returns when the peer's delayed request is due.
    pub(super) fn postponed_until(&self) -> Option<Instant> {
        self.postponed.as_ref().map(|postponed| postponed.until)
    }

    /// Processes the peer's delayed request to renegotiate, once it is due.
    pub(crate) fn resume_postponed(
        &mut self,
        now: Instant,
        next_tls: impl FnOnce() -> Result<TlsSession, Reason>,
        settings: &Settings,
    ) -> Result<Vec<Event>, Reason> {
        let due = self.postponed.take_if(|postponed| postponed.until <= now);
        let Some(PostponedRenegotiation { session, remote, key_id, message, .. }) = due else {
            return Ok(Vec::new());
        };
        let opcode = Opcode::SoftResetV1;
        let acks = Acks::default();
        let reset = Control { opcode, key_id, session, acks, remote, message, payload: &[] };
        self.take(now, &reset, next_tls, settings)
    }

    /// Returns `Ok` if a renegotiation may begin now, otherwise the time when it may.
    pub(crate) fn may_renegotiate(&self, now: Instant) -> Result<(), Instant> {
        match self.pace.next_whole(now, RENEGOTIATIONS) {
            at if at > now => Err(at),
            _ => Ok(()),
        }
    }

    /// Begins another negotiation with a soft reset.
    pub(crate) fn renegotiate(
        &mut self,
        now: Instant,
        tls: TlsSession,
        settings: &Settings,
    ) -> Result<(), Reason> {
        let key_id = if self.newest.failed && !self.newest.has_sent_keys() {
            self.newest.key_id
        } else {
            next_key_id(self.newest.key_id)
        };
        self.renegotiate_as(now, key_id, tls, settings)
    }

    /// Begins another negotiation with this key id.
    pub(super) fn renegotiate_as(
        &mut self,
        now: Instant,
        key_id: u8,
        tls: TlsSession,
        settings: &Settings,
    ) -> Result<(), Reason> {
        self.make_rewrapper()?;
        let _ = self.pace.take_whole(now, RENEGOTIATIONS);
        // The peer's request has the same key id, so it becomes part of this renegotiation.
        if let Some(postponed) = &mut self.postponed {
            postponed.until = now;
        }
        let reliable = reliable(self.link, settings);
        let give_up = now + settings.hand_window;
        let next = KeyNegotiation::open(
            now,
            (self.role, key_id),
            Opcode::SoftResetV1,
            tls,
            reliable,
            give_up,
        );
        let mut former = std::mem::replace(&mut self.newest, next);
        if self.records {
            self.newest.use_records(true);
        }
        if former.failed {
            self.newest.inherit(&mut former);
        } else {
            self.former = Some(former);
        }
        Ok(())
    }

    /// From now on, wraps renegotiations with keys from the first negotiation, which must be complete.
    pub(crate) fn wrap_renegotiations(&mut self) {
        self.rewrapping = RenegotiationWrapping::Wanted;
        // Derive the keys now. Otherwise anyone could make the first negotiation fail, after which its keys cannot be
        // exported.
        if !self.wrapper.authenticates() {
            let _ = self.make_rewrapper();
        }
    }

    /// Creates the wrapper for renegotiations. This happens before the first renegotiation begins, while the newest
    /// negotiation is the first one.
    pub(super) fn make_rewrapper(&mut self) -> Result<(), Reason> {
        if matches!(self.rewrapping, RenegotiationWrapping::Wanted) {
            let exported = self.newest.export(DYNAMIC_TLS_CRYPT_LABEL)?;
            self.rewrapping = RenegotiationWrapping::Made(self.wrapper.renegotiation(&exported)?);
        }
        Ok(())
    }

    /// Returns whether the newest negotiation took too long. If a failed negotiation does not end the session, returns
    /// whether negotiations have kept failing for the lifetime of the keys.
    pub(crate) fn expired(&self, now: Instant) -> bool {
        if let Some((failing, lifetime)) = self.failing.zip(self.established)
            && failing.since + lifetime <= now
        {
            return true;
        }
        let late = !self.newest.is_complete() && self.newest.give_up <= now;
        late && !self.newest.failed && !self.tolerates(self.newest.key_id)
    }
}

/// Returns the next key id. Key ids run 0, 1 .. 7, 1 .. 7. Zero is only for the first negotiation.
fn next_key_id(key_id: u8) -> u8 {
    if key_id >= 7 { 1 } else { key_id.saturating_add(1) }
}
