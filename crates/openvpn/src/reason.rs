//! The reasons why packets are dropped, handshakes fail, and sessions or engines end.
//!
//! Logs contain a reason's text, which is its [`Display`](std::fmt::Display). Programs use its name, which does not
//! change when the text does. The peer receives its wire text.

use adit_crypto::CryptoError;
use adit_engine::Link;
use adit_engine::auth::Rejection;

use crate::keys::KeyMethod2Error;
use crate::negotiate::{
    BadMessage, CipherRefused, DataCipher, PushError, PushRefused, PushTooLong,
};
use crate::records::RecordError;
use crate::tls::TlsError;
use crate::wrap::WrapError;

/// The party that can remedy a failure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The other end, or another sender.
    Peer,
    /// The configuration of this end, or a command from its operator.
    Operator,
    /// The network or this machine.
    Environment,
    /// This program.
    Internal,
}

/// The reason why a packet is dropped, a handshake fails, or a session or an engine ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The packet is malformed or not authentic.
    #[error(transparent)]
    Packet(#[from] WrapError),
    /// The packet is well-formed but not expected here.
    #[error("ignored {0}")]
    Ignored(&'static str),
    /// The packet is well-formed but belongs to another session.
    #[error("ignored {0}")]
    Foreign(&'static str),
    /// Packets on a stream do not begin where they should.
    #[error("the TCP connection is out of step: {0}")]
    OutOfStep(Box<Self>),

    /// The TLS session failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key exchange is malformed.
    #[error(transparent)]
    KeyMethod2(#[from] KeyMethod2Error),
    /// A control message is malformed.
    #[error(transparent)]
    Message(#[from] BadMessage),
    /// A record is malformed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    /// The cryptographic library failed.
    #[error("the cryptographic library failed")]
    Crypto,
    /// The negotiation took longer than the hand-window.
    #[error(
        "TLS key negotiation failed to occur within the hand-window (check your network connectivity)"
    )]
    HandshakeTimeout,

    /// Too many streams without a session are open.
    #[error("too many TCP connections without a session, in all or from this network")]
    TooManyStreams,
    /// A stream begins with something other than a reset.
    #[error("its TCP connection does not begin with a reset")]
    NoReset,
    /// The reset at the beginning of a stream is not message 0.
    #[error("its reset is not the first message")]
    ResetNotFirst,
    /// The reset at the beginning of a stream is not authentic.
    #[error("its reset is not authentic")]
    ResetUnauthentic,
    /// Too many handshakes are under way.
    #[error("too many handshakes are under way")]
    TooManyHandshakes,
    /// The sender's network has started too many handshakes.
    #[error("too many handshakes of this network have started")]
    TooManyStarts,
    /// There is no free peer id, or no TLS session.
    #[error("no handshake can begin")]
    NoHandshake,
    /// No packet arrived on a stream in time.
    #[error("its TCP connection brought no packet in time")]
    SilentStream,
    /// The connection in use has proved nothing while others wait for its place.
    #[error("it sent nothing, and others wait")]
    Unproven,

    /// The authorization did not respond in time.
    #[error("the authorization took longer than the hand-window")]
    AuthorizationTimeout,
    /// The client sent no user name, which this server requires.
    #[error("the client sent no user name and password")]
    NoUsername,
    /// The user name is too long to be the name of a session.
    #[error("the user name is too long to be a common name")]
    UsernameTooLong,
    /// `opt-verify`: the client has another value of this option.
    #[error("opt-verify: the client's {0} differs")]
    OptionsDiffer(&'static str),
    /// The client's token is not authentic, or belongs to another user or session.
    #[error("the token is not valid for this user")]
    TokenInvalid,
    /// The client's token is too old.
    #[error("the token has expired")]
    TokenExpired,
    /// The authorization rejected the client.
    #[error("{0}")]
    Rejected(Rejection),
    /// The authorization rejected the client for now.
    #[error("{0}")]
    RejectedForNow(String),
    /// The ends have no cipher in common.
    #[error(transparent)]
    NoCommonCipher(#[from] CipherRefused),
    /// As many clients as `max-clients` allows are connected.
    #[error("the server is full (max-clients)")]
    ServerFull,
    /// The pool is exhausted.
    #[error("the server has no free address")]
    NoFreeAddress,
    /// The fixed address of the client cannot be leased.
    #[error("the fixed address of this client is not in the network, or the server's own")]
    FixedAddressUnsuitable,
    /// Another client has the client's fixed address. Contains the other client's name if it is known.
    #[error("the fixed address of this client is in use{}", .0.as_ref().map(|name| format!(" by {name}")).unwrap_or_default())]
    FixedAddressInUse(Option<String>),
    /// An option for the client does not fit into a message.
    #[error(transparent)]
    PushTooLong(#[from] PushTooLong),

    /// The operator ended the session with this text.
    #[error("{0}")]
    Kicked(String),
    /// The server is shutting down.
    #[error("the server ends")]
    Shutdown,
    /// The session's address is the fixed address of another client, which has this name.
    #[error("its address is the fixed one of {0}")]
    AddressClaimed(String),
    /// A new session of the same name replaced the session.
    #[error("replaced by a new session of the same name")]
    Replaced,
    /// A newer check of the same name replaced the check.
    #[error("replaced by a newer check")]
    CheckReplaced,
    /// A server received nothing from its client for the time of `ping-restart`.
    #[error("ping-restart: nothing heard from the client")]
    ClientSilent,
    /// No packet arrived from the other end for the time of `ping-restart`.
    #[error("Inactivity timeout (--ping-restart), restarting")]
    PingRestart,
    /// No packet arrived from the other end for the time of `ping-exit`.
    #[error("ping-exit: nothing heard from the other end")]
    PingExit,
    /// There was too little traffic in the tunnel for the time of `inactive`.
    #[error("inactive: too little passed through the tunnel")]
    Inactive,
    /// `session-timeout` has expired.
    #[error("session-timeout is over")]
    SessionTimeout,
    /// The peer announced its exit.
    #[error("remote-exit")]
    RemoteExit,
    /// Either end, or a host on the path, closed the stream.
    #[error("connection reset")]
    ConnectionReset,

    /// The server could not be reached; contains the system's error text.
    #[error("{0}")]
    DialFailed(String),
    /// The server did not answer.
    #[error("the server did not answer (server-poll-timeout)")]
    NoAnswer,
    /// The server did not answer requests for options.
    #[error("no reply from server to push requests")]
    NoPushReply,
    /// The parts of the server's options cannot be assembled.
    #[error(transparent)]
    PushMalformed(#[from] PushError),
    /// The server pushed an option that cannot be used.
    #[error(transparent)]
    PushRefused(#[from] PushRefused),
    /// The server chose a cipher that is not allowed here.
    #[error("the server chose {0}, which is not in data-ciphers")]
    CipherNotAllowed(DataCipher),
    /// The server pushed no cipher, and there is no fallback.
    #[error("the server pushed no cipher; name the one it uses in data-ciphers-fallback")]
    NoCipherPushed,
    /// The server refused the client for good: AUTH_FAILED, with its text.
    #[error("AUTH_FAILED: {0}")]
    AuthFailed(String),
    /// The server refused the client for now.
    #[error("AUTH_FAILED,TEMP: {0}")]
    AuthFailedForNow(String),
    /// The server refused the token that it had issued.
    #[error("AUTH_FAILED (auth-token): {0}")]
    AuthTokenRefused(String),
    /// The server sent RESTART, with its text.
    #[error("the server asks for a restart{}", match .0.as_str() { "" => String::new(), words => format!(": {words}") })]
    ServerRestart(String),
    /// The server sent HALT, with its text.
    #[error("the server sent HALT: {0}")]
    Halted(String),

    /// The check of the server's certificate (`tls-verify`) did not accept it.
    #[error("the server was not accepted: {0}")]
    ServerRejected(String),
    /// There is no user name and password.
    #[error("no user name and password: {0}")]
    NoCredentials(String),

    /// The path from this host to the other end changed.
    #[error("the network changed")]
    NetworkChanged,
    /// The operator requested a restart.
    #[error("restart requested")]
    RestartRequested,
    /// The operator requested the end.
    #[error("end requested")]
    EndRequested,
    /// A check is complete. A further step would end another session with the same certificate.
    #[error("checked")]
    Checked,
    /// `connect-retry-max` rounds have passed.
    #[error("connect-retry-max rounds have passed")]
    RetriesExhausted,
    /// The handshake failed, and `tls-exit` allows no other.
    #[error("{0}")]
    TlsExit(Box<Self>),
}

impl Reason {
    /// Returns the party that can remedy the problem.
    pub fn blame(&self) -> Blame {
        self.entry().0
    }

    /// Returns the stable name for programs: lower case, with hyphens.
    pub fn name(&self) -> &'static str {
        self.entry().1
    }

    fn entry(&self) -> (Blame, &'static str) {
        use Blame::{Environment, Internal, Operator, Peer};
        match self {
            Self::Packet(WrapError::IdsExhausted | WrapError::Crypto(_)) => {
                (Internal, "wrap-failed")
            }
            Self::Packet(WrapError::WrongRole) => (Operator, "wrong-role"),
            Self::Packet(_) => (Peer, "bad-packet"),
            Self::Ignored(_) => (Peer, "unexpected-packet"),
            Self::Foreign(_) => (Peer, "foreign-packet"),
            Self::OutOfStep(_) => (Peer, "out-of-step"),
            Self::Tls(TlsError::Certificate(_)) => (Peer, "certificate-refused"),
            Self::Tls(TlsError::Misuse(_) | TlsError::Ours(_)) => (Internal, "tls-failed"),
            Self::Tls(_) => (Peer, "tls-error"),
            Self::KeyMethod2(_) => (Peer, "bad-key-exchange"),
            Self::Message(_) => (Peer, "bad-message"),
            Self::Record(_) => (Peer, "bad-record"),
            Self::Protocol(_) => (Peer, "protocol-error"),
            Self::Crypto => (Internal, "crypto-failed"),
            Self::HandshakeTimeout => (Environment, "handshake-timeout"),
            Self::TooManyStreams => (Peer, "too-many-streams"),
            Self::NoReset => (Peer, "no-reset"),
            Self::ResetNotFirst => (Peer, "reset-not-first"),
            Self::ResetUnauthentic => (Peer, "reset-unauthentic"),
            Self::TooManyHandshakes => (Peer, "too-many-handshakes"),
            Self::TooManyStarts => (Peer, "too-many-starts"),
            Self::NoHandshake => (Internal, "no-handshake"),
            Self::SilentStream => (Peer, "silent-stream"),
            Self::Unproven => (Peer, "unproven"),
            Self::AuthorizationTimeout => (Environment, "authorization-timeout"),
            Self::NoUsername => (Peer, "no-user-name"),
            Self::UsernameTooLong => (Peer, "user-name-too-long"),
            Self::OptionsDiffer(_) => (Peer, "options-differ"),
            Self::TokenInvalid => (Peer, "token-invalid"),
            Self::TokenExpired => (Peer, "token-expired"),
            Self::Rejected(_) => (Peer, "rejected"),
            Self::RejectedForNow(_) => (Environment, "rejected-for-now"),
            Self::NoCommonCipher(_) => (Peer, "no-common-cipher"),
            Self::ServerFull => (Operator, "server-full"),
            Self::NoFreeAddress => (Operator, "no-free-address"),
            Self::FixedAddressUnsuitable => (Operator, "fixed-address-unsuitable"),
            Self::FixedAddressInUse(_) => (Operator, "fixed-address-in-use"),
            Self::PushTooLong(_) => (Operator, "push-too-long"),
            Self::Kicked(_) => (Operator, "kicked"),
            Self::Shutdown => (Operator, "shutdown"),
            Self::AddressClaimed(_) => (Operator, "address-claimed"),
            Self::Replaced => (Peer, "replaced"),
            Self::CheckReplaced => (Peer, "check-replaced"),
            Self::ClientSilent | Self::PingRestart => (Environment, "ping-restart"),
            Self::PingExit => (Environment, "ping-exit"),
            Self::Inactive => (Peer, "inactive"),
            Self::SessionTimeout => (Operator, "session-timeout"),
            Self::RemoteExit => (Peer, "remote-exit"),
            Self::ConnectionReset => (Environment, "connection-reset"),
            Self::DialFailed(_) => (Environment, "dial-failed"),
            Self::NoAnswer => (Environment, "no-answer"),
            Self::NoPushReply => (Peer, "no-push-reply"),
            Self::PushMalformed(_) => (Peer, "push-malformed"),
            Self::PushRefused(_) => (Peer, "push-refused"),
            Self::CipherNotAllowed(_) => (Operator, "cipher-not-allowed"),
            Self::NoCipherPushed => (Operator, "no-cipher-pushed"),
            Self::AuthFailed(_) => (Peer, "auth-failed"),
            Self::AuthFailedForNow(_) => (Peer, "auth-failed-for-now"),
            Self::AuthTokenRefused(_) => (Peer, "auth-token-refused"),
            Self::ServerRestart(_) => (Peer, "server-restart"),
            Self::Halted(_) => (Peer, "halted"),
            Self::ServerRejected(_) => (Peer, "server-rejected"),
            Self::NoCredentials(_) => (Operator, "no-credentials"),
            Self::NetworkChanged => (Environment, "network-changed"),
            Self::RestartRequested => (Operator, "restart-requested"),
            Self::EndRequested => (Operator, "end-requested"),
            Self::Checked => (Operator, "checked"),
            Self::RetriesExhausted => (Environment, "retries-exhausted"),
            Self::TlsExit(inner) => inner.entry(),
        }
    }

    /// Returns the text that AUTH_FAILED or HALT carries to the peer. Most reasons are only for the log.
    pub fn wire_text(&self) -> String {
        match self {
            Self::NoCommonCipher(_) => {
                "Data channel cipher negotiation failed (no shared cipher)".into()
            }
            Self::TokenInvalid | Self::TokenExpired => "SESSION: token expired".into(),
            Self::Rejected(rejection) => rejection.peer.clone().unwrap_or_default(),
            Self::RejectedForNow(_)
            | Self::ServerFull
            | Self::NoFreeAddress
            | Self::FixedAddressUnsuitable
            | Self::FixedAddressInUse(_)
            | Self::Kicked(_) => self.to_string(),
            _ => String::new(),
        }
    }

    /// Returns whether only the packet is bad, and the session continues. A stream neither loses nor alters bytes, so
    /// on a stream a packet that is not authentic or belongs to another session shows that the ends disagree about
    /// where packets begin.
    pub(crate) fn is_harmless_on(&self, link: Link) -> bool {
        let out_of_step = matches!(self, Self::Packet(_) | Self::Foreign(_));
        self.is_harmless() && !(out_of_step && link.is_stream())
    }

    /// Returns whether only the packet is bad on a datagram path.
    pub(crate) fn is_harmless(&self) -> bool {
        matches!(self, Self::Packet(_) | Self::Ignored(_) | Self::Foreign(_))
    }

    /// Returns the warning about a negotiation that failed within a session.
    pub(crate) fn in_session(&self) -> String {
        format!("key negotiation failed: {self}; the session keeps its keys and negotiates again")
    }
}

impl From<CryptoError> for Reason {
    fn from(_: CryptoError) -> Self {
        Self::Crypto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_gets_only_the_texts_that_are_meant_for_it() {
        let wire = |reason: Reason| reason.wire_text();
        assert_eq!(wire(Reason::ServerFull), "the server is full (max-clients)");
        assert_eq!(wire(Reason::Kicked("room".into())), "room");
        assert_eq!(wire(Reason::RejectedForNow("later".into())), "later");
        assert_eq!(wire(Reason::Rejected("no such user".into())), "", "the log has it");
        let told = Rejection::with_text("no such user", "try again");
        assert_eq!(wire(Reason::Rejected(told)), "try again");
        assert_eq!(wire(Reason::PushTooLong(PushTooLong("route".into()))), "");
        let refused = CipherRefused { offered: vec!["BF-CBC".into()], allowed: Vec::new() };
        assert!(wire(refused.into()).ends_with("(no shared cipher)"));
    }

    #[test]
    fn blame_tells_a_failure_of_this_end_from_one_of_the_peer() {
        assert_eq!(Reason::from(WrapError::BadMac).blame(), Blame::Peer);
        assert_eq!(Reason::from(WrapError::IdsExhausted).blame(), Blame::Internal);
        assert_eq!(Reason::from(TlsError::Ours("no clock".into())).blame(), Blame::Internal);
        assert_eq!(Reason::DialFailed("no route".into()).blame(), Blame::Environment);
        assert_eq!(Reason::NoFreeAddress.blame(), Blame::Operator);
        let inner = Box::new(Reason::Protocol("a second reset"));
        assert_eq!(Reason::TlsExit(inner).name(), "protocol-error");
    }

    #[test]
    fn a_name_is_one_word_whatever_the_text_contains() {
        let hostile = "kicked: by \u{1b}[2J".to_owned();
        for reason in [Reason::Kicked(hostile.clone()), Reason::Halted(hostile), Reason::Shutdown] {
            let word = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(reason.name().chars().all(word), "{}", reason.name());
        }
    }

    #[test]
    fn texts_with_and_without_the_words_of_others() {
        let text = |reason: Reason| reason.to_string();
        assert_eq!(text(Reason::ServerRestart(String::new())), "the server asks for a restart");
        assert_eq!(text(Reason::ServerRestart("x".into())), "the server asks for a restart: x");
        let by = Reason::FixedAddressInUse(Some("alice".into()));
        assert_eq!(text(by), "the fixed address of this client is in use by alice");
    }
}
