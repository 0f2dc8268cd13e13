use std::collections::HashMap;
use std::net::SocketAddr;

use adit_engine::command::PeerRates;
use adit_engine::{Identity, Instant, auth};
use ipnet::IpNet;

use super::auth_token::Token;
use super::event::ClientInfo;
use super::pool::Lease;
use crate::data_format::Framing;
use crate::negotiate::PeerInfo;
use crate::packet::{Control, SessionId};
use crate::reason::Reason;
use crate::session::{Budget, ControlChannel, DataChannel};
use crate::tls::PeerIdentity;

/// A peer that has proved its address.
pub(super) struct Client {
    pub(super) control_channel: ControlChannel,
    /// The peer's session id. Together with its address, it identifies its packets.
    pub(super) session: SessionId,
    /// The number of the session, which no other session of the server has.
    pub(super) number: u64,
    /// When its handshake began.
    pub(super) began: Instant,
    /// Whether there was a request about the client, whose end is reported then.
    pub(super) requested: bool,
    pub(super) stage: Stage,
    /// Its time in the timer table.
    pub(super) scheduled: Option<Instant>,
    /// The amount of work that the peer may still cause.
    pub(super) budget: Budget,
}

/// The stage of a client. Only the last stage has keys, an address and a peer in the data plane.
pub(super) enum Stage {
    /// The key that the client brought is being verified, and TLS has not begun.
    VerifyingKey(Box<KeyVerification>),
    /// TLS and key exchange are in progress.
    Negotiating,
    /// The client's certificate is authenticated, and a request about the client is pending.
    Authorizing(Box<AuthorizingClient>),
    /// The client was refused, and is kept until it acknowledges the refusal.
    Refused { until: Instant, reason: Reason },
    /// The client has a session.
    Connected(Box<ConnectedClient>),
    /// Its session has ended, and the client is kept until it acknowledges the message about that.
    Ended { until: Instant, reason: Reason },
    /// A newer session of the same name has replaced its session; the client is being notified.
    Replaced(Box<ReplacedClient>),
}

/// A client whose tls-crypt-v2 key is being verified.
pub(super) struct KeyVerification {
    pub(super) request: auth::RequestId,
    /// The packet that begins the handshake.
    pub(super) first: HeldPacket,
    /// The packets that have arrived since, still wrapped.
    pub(super) more: Vec<Vec<u8>>,
}

/// A control packet that waits to be processed.
pub(super) struct HeldPacket {
    header: Control<'static>,
    payload: Vec<u8>,
}

impl HeldPacket {
    pub(super) fn new(packet: &Control<'_>) -> Self {
        let &Control { opcode, key_id, session, acks, remote, message, payload } = packet;
        let header = Control { opcode, key_id, session, acks, remote, message, payload: &[] };
        Self { header, payload: payload.to_vec() }
    }

    pub(super) fn control(&self) -> Control<'_> {
        Control { payload: &self.payload, ..self.header }
    }
}

/// A client whose authorization or connection is being decided.
pub(super) struct AuthorizingClient {
    pub(super) request: auth::RequestId,
    /// The time by which the response must arrive.
    pub(super) until: Instant,
    pub(super) negotiated: NegotiatedClient,
    /// What is reserved for a client that is authorized and whose connection is being decided.
    pub(super) reservation: Option<Reservation>,
}

/// The parameters of an authorized client, and the addresses reserved for it.
pub(super) struct Reservation {
    pub(super) grant: auth::ClientParams,
    pub(super) lease: Lease,
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
    /// The valid token that it sent instead of a password.
    pub(super) token: Option<Token>,
    /// The identity without the password, if a second request needs it.
    pub(super) about: Option<Box<Identity>>,
}

/// The session of a client.
pub(super) struct ConnectedClient {
    pub(super) info: ClientInfo,
    /// The user name that the client sent. The authorization may have replaced it.
    pub(super) sent_username: Option<String>,
    pub(super) data: DataChannel,
    pub(super) lease: Lease,
    /// The parameters for this client only.
    pub(super) grant: auth::ClientParams,
    /// The limits on its speed.
    pub(super) rates: PeerRates,
    /// The prefixes that the data plane routes to this client.
    pub(super) prefixes: Vec<IpNet>,
    pub(super) framing: Framing,
    /// The client's current options, with which an update is computed.
    pub(super) options: Vec<String>,
    /// The bundles of its PUSH_REPLY, kept because the client may request them again.
    pub(super) push: Vec<String>,
    /// Whether the client has requested its options.
    pub(super) asked: bool,
    /// The token that the client has.
    pub(super) token: Option<ClientToken>,
    /// The renegotiation whose authorization is pending. Until then the former key stays in use.
    pub(super) reauthorization: Option<Reauthorization>,
    /// The requests about stations behind the client.
    pub(super) stations: HashMap<auth::RequestId, [u8; 6]>,
}

/// The token of a connected client.
pub(super) struct ClientToken {
    /// The data of the newest token.
    pub(super) token: Token,
    /// When the next one is sent, if that does not wait for a renegotiation.
    pub(super) renew_at: Option<Instant>,
}

/// A complete renegotiation whose key is not installed yet.
pub(super) struct Reauthorization {
    pub(super) request: auth::RequestId,
    /// The time by which the response must arrive.
    pub(super) until: Instant,
    pub(super) identity: PeerIdentity,
    pub(super) tls: String,
}

impl Client {
    pub(super) fn connected(&self) -> Option<&ConnectedClient> {
        match &self.stage {
            Stage::Connected(connected) => Some(connected),
            _ => None,
        }
    }

    /// Returns the parameters and addresses that the client has or that are reserved for it.
    pub(super) fn addresses(&self) -> Option<(&auth::ClientParams, Lease)> {
        match &self.stage {
            Stage::Connected(connected) => Some((&connected.grant, connected.lease)),
            Stage::Authorizing(waiting) => {
                let reserved = waiting.reservation.as_ref()?;
                Some((&reserved.grant, reserved.lease))
            }
            _ => None,
        }
    }

    /// Returns whether the client waits for the response to this request.
    pub(super) fn waits_for(&self, request: auth::RequestId) -> bool {
        match &self.stage {
            Stage::VerifyingKey(verification) => verification.request == request,
            Stage::Authorizing(authorizing) => authorizing.request == request,
            Stage::Connected(connected) => {
                connected.stations.contains_key(&request)
                    || connected
                        .reauthorization
                        .as_ref()
                        .is_some_and(|again| again.request == request)
            }
            _ => false,
        }
    }

    /// Returns whether the client may begin a renegotiation: it has a session, and no other renegotiation waits for its
    /// authorization.
    pub(super) fn may_renegotiate(&self) -> bool {
        self.connected().is_some_and(|connected| connected.reauthorization.is_none())
    }

    /// Returns when the client's next timer expires.
    pub(super) fn deadline(&self) -> Option<(Instant, &'static str)> {
        let stage = match &self.stage {
            // Nothing is sent before the response.
            Stage::VerifyingKey(_) => {
                return Some((self.control_channel.negotiation().give_up, "key verification"));
            }
            Stage::Negotiating => None,
            Stage::Authorizing(authorizing) => Some((authorizing.until, "authorization")),
            Stage::Refused { until, .. } => Some((*until, "refused")),
            Stage::Ended { .. } if self.control_channel.is_drained() => {
                Some((Instant::default(), "ended"))
            }
            Stage::Ended { until, .. } => Some((*until, "ended")),
            // After each acknowledged message, the next one is sent at once or the client is
            // removed.
            Stage::Replaced(_) if self.control_channel.all_acknowledged() => {
                Some((Instant::default(), "replaced"))
            }
            Stage::Replaced(notified) => Some((notified.until, "replaced")),
            Stage::Connected(connected) => connected.deadline(),
        };
        // Delayed work is performed only for connected clients. For a client being replaced, it
        // would stay due forever.
        let delayed = self.connected().and_then(|_| self.budget.deadline());
        [stage, self.control_channel.deadline(), delayed].into_iter().flatten().min()
    }
}

impl ConnectedClient {
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let authorization =
            self.reauthorization.as_ref().map(|again| (again.until, "authorization"));
        let token = self.token.as_ref().and_then(|token| token.renew_at);
        [authorization, self.data.deadline(), token.map(|at| (at, "token"))]
            .into_iter()
            .flatten()
            .min()
    }
}
