//! The control channel of a server's session that another process continues.
//!
//! Everything passes to the other process except the TLS session, which the library cannot export. The data keys do not
//! need it. So the other process begins a renegotiation soon, with a TLS session of its own.

use adit_engine::command::Counters;
use adit_engine::{Instant, Link};
use serde::{Deserialize, Serialize};

use super::renegotiation::{NegotiationFailures, RenegotiationWrapping};
use super::{ControlChannel, reliable};
use crate::keys::Role;
use crate::packet::{KEY_ID_MASK, SessionId};
use crate::reason::Reason;
use crate::session::Settings;
use crate::session::key_negotiation::KeyNegotiation;
use crate::tls::TlsSession;
use crate::wrap::{SavedWrapper, Wrapper};

/// The state of a [`ControlChannel`], for another process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedControlChannel {
    pub(crate) link: Link,
    local: SessionId,
    pub(crate) remote: SessionId,
    /// The key id of the last negotiation.
    key_id: u8,
    wrapper: SavedWrapper,
    /// The wrapper of renegotiations.
    rewrapper: Option<SavedWrapper>,
    pub(crate) traffic: Counters,
}

impl ControlChannel {
    /// Returns whether nothing is in progress: the last negotiation is complete, and each end has the other's messages.
    pub(crate) fn is_quiet(&self) -> bool {
        self.newest.is_complete()
            && self.postponed.is_none()
            && self.former.iter().chain([&self.newest]).all(|negotiation| {
                negotiation.failed || negotiation.is_drained() && !negotiation.reliable.owes_acks()
            })
    }

    /// Returns the state. From now on, only another process may send packets of this session.
    ///
    /// # Errors
    /// Fails if the peer's session id is unknown, or no keys can be derived for renegotiations.
    pub(crate) fn save(&mut self) -> Result<SavedControlChannel, Reason> {
        self.make_rewrapper()?;
        let rewrapper = match &self.rewrapping {
            RenegotiationWrapping::Made(wrapper) => Some(wrapper.save()),
            RenegotiationWrapping::None | RenegotiationWrapping::Wanted => None,
        };
        Ok(SavedControlChannel {
            link: self.link,
            local: self.local,
            remote: self.remote.ok_or(Reason::Protocol("no session id of the peer"))?,
            key_id: self.newest.key_id,
            wrapper: self.wrapper.save(),
            rewrapper,
            traffic: self.traffic,
        })
    }

    /// Continues a session, and begins a renegotiation at `again`.
    ///
    /// # Errors
    /// Fails if the configuration has no such wrapping any more.
    pub(crate) fn restore(
        now: Instant,
        saved: SavedControlChannel,
        tls: TlsSession,
        settings: &Settings,
        again: Instant,
    ) -> Result<Self, Reason> {
        let SavedControlChannel { link, local, remote, key_id, wrapper, rewrapper, traffic } =
            saved;
        let reliable = reliable(link, settings);
        let newest = KeyNegotiation::taken_over(key_id & KEY_ID_MASK, tls, reliable, now);
        let wrapper = Wrapper::restore(wrapper, &settings.wrap)?;
        let rewrapping = match rewrapper {
            Some(saved) => RenegotiationWrapping::Made(Wrapper::restore(saved, &settings.wrap)?),
            None => RenegotiationWrapping::None,
        };
        Ok(Self {
            rewrapping,
            established: Some(settings.tran_window),
            failing: Some(NegotiationFailures { since: now, again }),
            traffic,
            ..Self::begin(link, Role::Server, (local, Some(remote)), wrapper, newest)
        })
    }
}
