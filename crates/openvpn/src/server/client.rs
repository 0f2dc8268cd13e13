use std::net::SocketAddr;

use adit_engine::command::Framing;
use adit_engine::{Instant, auth};
use ipnet::IpNet;

use super::event::ClientInfo;
use super::pool::Lease;
use crate::negotiate::PeerInfo;
use crate::packet::SessionId;
use crate::session::{Budget, ControlChannel, Idle, PacketSizes, RekeySchedule};
use crate::tls::PeerIdentity;

/// One peer that has proved its address.
pub(super) struct Client {
    pub(super) control_channel: ControlChannel,
    /// The peer's session id: with its address, where its packets are filed.
    pub(super) session: SessionId,
    pub(super) stage: Stage,
    /// Where it stands in the timer table.
    pub(super) scheduled: Option<Instant>,
    /// What it may still cause.
    pub(super) budget: Budget,
}

/// How far it has come. Only the last stage has keys, an address and a place in the data plane.
pub(super) enum Stage {
    /// TLS and key exchange.
    Negotiating,
    /// Authenticated by its certificate; the registry is being asked.
    Authorizing { ticket: auth::RequestId, until: Instant, negotiated: Box<Negotiated> },
    /// Told that it may not; it stays until that is acknowledged.
    Refused { until: Instant, reason: String },
    /// A session.
    Connected(Box<Connected>),
    /// A newer session of the same name has replaced its session; it is being told.
    Replaced(Box<Notified>),
}

/// What a client whose session was replaced is told, and whether it has heard.
pub(super) struct Notified {
    /// It must acknowledge by then.
    pub(super) until: Instant,
    pub(super) name: String,
    /// Where the newer session is.
    pub(super) by: SocketAddr,
    /// It understands `AUTH_FAILED,TEMP` with a back-off.
    pub(super) knows_backoff: bool,
    /// The first message is on its way, whose acknowledgement shows that the device is there.
    pub(super) asked: bool,
}

/// What a client said about itself before it is let in.
pub(super) struct Negotiated {
    pub(super) identity: PeerIdentity,
    pub(super) username: Option<String>,
    pub(super) peer_info: PeerInfo,
    pub(super) cipher: crate::negotiate::DataCipher,
    pub(super) tls: String,
    /// Its options string speaks of compression.
    pub(super) compressed: bool,
}

/// A session.
pub(super) struct Connected {
    pub(super) info: ClientInfo,
    pub(super) schedule: RekeySchedule,
    pub(super) sizes: PacketSizes,
    /// `inactive`.
    pub(super) idle: Option<Idle>,
    /// `session-timeout`.
    pub(super) ends: Option<Instant>,
    pub(super) exporter: bool,
    pub(super) lease: Lease,
    /// What is particular to it.
    pub(super) grant: auth::ClientParams,
    /// The prefixes that are its own in the data plane.
    pub(super) prefixes: Vec<IpNet>,
    pub(super) framing: Framing,
    /// Its options: what an update of them is measured by.
    pub(super) options: Vec<String>,
    /// The bundles of its PUSH_REPLY: it may ask again.
    pub(super) push: Vec<String>,
    /// It has asked for them.
    pub(super) asked: bool,
}

impl Client {
    pub(super) fn connected(&self) -> Option<&Connected> {
        match &self.stage {
            Stage::Connected(connected) => Some(connected),
            _ => None,
        }
    }

    /// When it wants to be looked at.
    pub(super) fn deadline(&self) -> Option<(Instant, &'static str)> {
        let stage = match &self.stage {
            Stage::Negotiating => None,
            Stage::Authorizing { until, .. } => Some((*until, "authorization")),
            Stage::Refused { until, .. } => Some((*until, "refused")),
            // What it has acknowledged is followed by the next message, or the end, at once.
            Stage::Replaced(_) if self.control_channel.all_acknowledged() => {
                Some((Instant::default(), "replaced"))
            }
            Stage::Replaced(notified) => Some((notified.until, "replaced")),
            Stage::Connected(connected) => {
                let idle = connected.idle.as_ref().map(Idle::deadline);
                let ends = connected.ends.map(|at| (at, "session-timeout"));
                [connected.schedule.deadline(), connected.sizes.deadline(), idle, ends]
                    .into_iter()
                    .flatten()
                    .min()
            }
        };
        // Only a connected client's delayed work is done: that of one that is being replaced would be due for ever.
        let delayed = self.connected().and_then(|_| self.budget.deadline());
        [stage, self.control_channel.deadline(), delayed].into_iter().flatten().min()
    }
}
