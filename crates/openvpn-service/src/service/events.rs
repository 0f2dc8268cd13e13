//! The events of a running server's driver.

use std::net::SocketAddr;

use adit_openvpn::server::{ServerEvent, UsedElsewhere};
use adit_runtime::clock::{now, unix_time};
use adit_runtime::control::SharedProfile;
use adit_runtime::driver::Event;
use adit_runtime::log;

use super::Running;
use crate::log_limits::is_logged;

/// The maximum number of profiles used by two devices that `adit status` lists; the oldest is removed to make room.
const MAX_SHARED: usize = 64;

impl Running<'_> {
    /// Handles an event and the events queued after it, and writes the log lines of one packet as one batch.
    pub(super) fn driver_events(&mut self, first: Event<ServerEvent>) {
        let _lines = log::gather();
        self.driver_event(first);
        while let Some(event) = self.driver.perform() {
            self.driver_event(event);
        }
    }

    pub(super) fn driver_event(&mut self, event: Event<ServerEvent>) {
        match event {
            Event::Engine(event) => self.event(&event),
            // A server does not dial.
            Event::Dialling(_)
            | Event::Dialled(_)
            | Event::DialFailed(_)
            | Event::StreamOpened(..) => {}
        }
    }

    pub(super) fn event(&mut self, event: &ServerEvent) {
        // The filter must know a client before any of its packets pass, so the engine emits this event first.
        match (&mut self.filter, event) {
            (Some(filter), ServerEvent::Addresses(addresses)) => filter.put((**addresses).clone()),
            (Some(filter), ServerEvent::ClientDown(peer, ..)) => filter.remove(*peer),
            _ => {}
        }
        if is_logged(&mut self.log_limiter, now(), event, &self.sessions) {
            self.hooks.log_event(event, &self.sessions);
        }
        match event {
            ServerEvent::UsedElsewhere(used) => self.share(used),
            ServerEvent::ClientDown(peer, _, traffic) => {
                if let Some(session) = self.sessions.get(*peer) {
                    self.hooks.ended(session, *traffic);
                }
            }
            _ => {}
        }
        if let ServerEvent::ChallengeResponse { session, text } = event {
            self.authorizer.challenge_response(*session, text.clone());
        }
        self.sessions.record(now(), event);
        self.handshakes.record(event);
        self.hooks.event(event);
    }

    /// Records for `adit status` that two devices use a profile.
    pub(super) fn share(&mut self, used: &UsedElsewhere) {
        if self.shared.len() >= MAX_SHARED && !self.shared.contains_key(&used.name) {
            let oldest = self.shared.values().min_by_key(|profile| profile.last);
            if let Some(name) = oldest.map(|profile| profile.name.clone()) {
                self.shared.remove(&name);
            }
        }
        let address = |address: SocketAddr| address.ip().to_canonical().to_string();
        let profile = SharedProfile {
            name: used.name.clone(),
            addresses: [address(used.former), address(used.newer)],
            count: used.count,
            last: unix_time().0,
        };
        self.shared.insert(used.name.clone(), profile);
    }
}
