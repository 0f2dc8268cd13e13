use std::net::SocketAddr;

use adit_engine::{Instant, auth};
use ipnet::IpNet;

use super::event::ClientInfo;
use super::pool::Lease;
use crate::data_format::Framing;
use crate::negotiate::PeerInfo;
use crate::packet::SessionId;
use crate::reason::Reason;
use crate::session::{Budget, ControlChannel, DataChannel};
use crate::tls::PeerIdentity;

/// A peer that has proved its address.
pub(super) struct Client {
    pub(super) control_channel: ControlChannel,
    /// The peer's session id. Together with its address, it identifies its packets.
    pub(super) session: SessionId,
    pub(super) stage: Stage,
    /// Its time in the timer table.
    pub(super) scheduled: Option<Instant>,
    /// The amount of work that the peer may still cause.
    pub(super) budget: Budget,
}

/// The stage of a client. Only the last stage has keys, an address and a peer in the data plane.
pub(super) enum Stage {
    /// TLS and key exchange are in progress.
    Negotiating,
    /// The client's certificate is authenticated, and the authorization request is pending.
    Authorizing { ticket: auth::RequestId, until: Instant, negotiated: Box<NegotiatedClient> },
    /// The client was refused, and is kept until it acknowledges the refusal.
    Refused { until: Instant, reason: Reason },
    /// The client has a session.
    Connected(Box<ConnectedClient>),
    /// A newer session of the same name has replaced its session; the client is being notified.
    Replaced(Box<ReplacedClient>),
}

/// The state of the notification of a client whose session was replaced.
pub(super) struct ReplacedClient {
    /// The time by which the client must acknowledge.
    pub(super) until: Instant,
    pub(super) name: String,
    /// The address of the newer session.
    pub(super) by: SocketAddr,
    /// Whether the client understands `AUTH_FAILED,TEMP` with a back-off.
    pub(super) knows_backoff: bool,
    /// Whether the first message has been sent. Its acknowledgement shows that the device is
    /// present.
    pub(super) asked: bool,
}

/// The information that a client gives about itself before it is accepted.
pub(super) struct NegotiatedClient {
    pub(super) identity: PeerIdentity,
    pub(super) username: Option<String>,
    pub(super) peer_info: PeerInfo,
    pub(super) cipher: crate::negotiate::DataCipher,
    pub(super) tls: String,
    /// Whether its options string mentions compression.
    pub(super) compressed: bool,
}

/// The session of a client.
pub(super) struct ConnectedClient {
    pub(super) info: ClientInfo,
    pub(super) data: DataChannel,
    pub(super) lease: Lease,
    /// The parameters for this client only.
    pub(super) grant: auth::ClientParams,
    /// The prefixes that the data plane routes to this client.
    pub(super) prefixes: Vec<IpNet>,
    pub(super) framing: Framing,
    /// The client's current options, with which an update is computed.
    pub(super) options: Vec<String>,
    /// The bundles of its PUSH_REPLY, kept because the client may request them again.
    pub(super) push: Vec<String>,
    /// Whether the client has requested its options.
    pub(super) asked: bool,
}

impl Client {
    pub(super) fn connected(&self) -> Option<&ConnectedClient> {
        match &self.stage {
            Stage::Connected(connected) => Some(connected),
            _ => None,
        }
    }

    /// Returns when the client's next timer expires.
    pub(super) fn deadline(&self) -> Option<(Instant, &'static str)> {
        let stage = match &self.stage {
            Stage::Negotiating => None,
            Stage::Authorizing { until, .. } => Some((*until, "authorization")),
            Stage::Refused { until, .. } => Some((*until, "refused")),
            // After each acknowledged message, the next one is sent at once or the client is
            // removed.
            Stage::Replaced(_) if self.control_channel.all_acknowledged() => {
                Some((Instant::default(), "replaced"))
            }
            Stage::Replaced(notified) => Some((notified.until, "replaced")),
            Stage::Connected(connected) => connected.data.deadline(),
        };
        // Delayed work is performed only for connected clients. For a client being replaced, it
        // would stay due forever.
        let delayed = self.connected().and_then(|_| self.budget.deadline());
        [stage, self.control_channel.deadline(), delayed].into_iter().flatten().min()
    }
}
