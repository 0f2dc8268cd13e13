//! The timers of clients.

use adit_engine::{Instant, PeerId};

use super::control::next_tls;
use super::{Disconnect, Out, ServerEngine};
use crate::reason::Reason;
use crate::server::client::Stage;
use crate::tls::TlsSession;

impl ServerEngine {
    /// Updates a client's entry in the timer table.
    pub(super) fn schedule(&mut self, peer: PeerId) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let next = client.deadline().map(|(at, _)| at);
        let former = std::mem::replace(&mut client.scheduled, next);
        if former == next {
            return;
        }
        if let Some(at) = former {
            self.timers.remove(&(at, peer));
        }
        if let Some(at) = next {
            self.timers.insert((at, peer));
        }
    }

    pub(super) fn tick(&mut self, now: Instant, out: &mut Out) {
        self.end_silent(now, out);
        // Process each client once, because a client that is due again at once must not block the
        // others.
        let due: Vec<_> = self.timers.range(..=(now, PeerId(u32::MAX))).copied().collect();
        for (at, peer) in due {
            if self.timers.remove(&(at, peer))
                && let Some(client) = self.clients.get_mut(&peer)
            {
                client.scheduled = None;
                self.tick_client(now, peer, out);
            }
        }
    }

    pub(super) fn tick_client(&mut self, now: Instant, peer: PeerId, out: &mut Out) {
        let paused = self.paused;
        let Some(client) = self.clients.get_mut(&peer) else { return };
        if client.control_channel.expired(now) {
            return self.remove(peer, Reason::HandshakeTimeout, out);
        }
        match &mut client.stage {
            Stage::VerifyingKey(_) => return self.schedule(peer),
            Stage::Replaced(notified)
                if notified.until <= now || client.control_channel.all_acknowledged() =>
            {
                return self.tick_replaced(now, peer, out);
            }
            Stage::Refused { until, reason } | Stage::Ended { until, reason }
                if *until <= now || client.control_channel.is_drained() =>
            {
                let reason = reason.clone();
                return self.remove(peer, reason, out);
            }
            Stage::Authorizing(waiting) if waiting.until <= now => {
                return self.unanswered(now, peer, out);
            }
            Stage::Connected(connected) if connected.data.is_over(now) => {
                // Only this session ends, so the client may reconnect at once.
                self.disconnect(now, peer, Disconnect::Restart, Reason::SessionTimeout, out);
                return;
            }
            Stage::Connected(connected)
                if connected.reauthorization.as_ref().is_some_and(|again| again.until <= now) =>
            {
                return self.unanswered(now, peer, out);
            }
            Stage::Connected(connected) => {
                let waits = connected.reauthorization.is_some();
                let settings = &self.config.settings;
                let (report, wanted) =
                    connected.data.tick(now, &client.control_channel, settings, out);
                if let Some(report) = report {
                    self.found_path(now, peer, report, out);
                }
                // After a renegotiation that waits for its authorization, the next one is planned.
                if wanted && !waits && !paused {
                    return self.step(now, peer, out, |client, tls, settings| {
                        let tls = TlsSession::server(tls)?;
                        client.control_channel.renegotiate(now, tls, settings)?;
                        Ok(Vec::new())
                    });
                }
                self.tick_delayed(now, peer, out);
                self.tick_token(now, peer, out);
            }
            _ => {}
        }
        self.step(now, peer, out, |client, tls, settings| {
            let may_begin = client.may_renegotiate() && !paused;
            client.control_channel.resume_postponed(now, || next_tls(may_begin, tls), settings)
        });
    }

    /// Renews a client's token if it is due.
    fn tick_token(&mut self, now: Instant, peer: PeerId, out: &mut Out) {
        let connected = self.clients.get(&peer).and_then(|client| client.connected());
        let token = connected.and_then(|connected| connected.token.as_ref());
        if token.and_then(|token| token.renew_at).is_some_and(|at| at <= now) {
            let result = self.renew_token(now, peer, out);
            self.step(now, peer, out, |_, _, _| result.map(|()| Vec::new()));
        }
    }

    /// Performs the work that a client's budget delayed.
    pub(super) fn tick_delayed(&mut self, now: Instant, peer: PeerId, out: &mut Out) {
        let Some(client) = self.clients.get(&peer) else { return };
        if let Some(link) = client.budget.due_move(now) {
            self.floated(now, peer, link, out);
        }
        if self.clients.get(&peer).is_some_and(|client| client.budget.push_is_due(now)) {
            let result = self.push_again(now, peer, out);
            self.step(now, peer, out, |_, _, _| result.map(|()| Vec::new()));
        }
    }
}
