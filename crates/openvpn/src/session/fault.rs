use std::fmt;

use crate::keys::KeyMethod2Error;
use crate::negotiate::BadMessage;
use crate::tls::TlsError;
use crate::wrap::WrapError;
use adit_crypto::CryptoError;
use adit_engine::Link;

/// A fault of a packet or a session.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The packet is not authentic or malformed; it is dropped and counted.
    Packet(WrapError),
    /// The packet is well-formed and does not belong here; it is dropped and counted.
    Ignored(&'static str),
    /// The packet is well-formed and of another session; it is dropped and counted.
    Foreign(&'static str),
    /// The TLS session failed.
    Tls(TlsError),
    /// The key exchange is malformed.
    Keys(KeyMethod2Error),
    /// A control message is malformed.
    Message(BadMessage),
    /// The peer violated the protocol.
    Protocol(&'static str),
    /// The cryptographic library failed.
    Crypto,
    /// The negotiation took longer than the hand-window.
    TimedOut,
    /// The peer announced its exit, which is not a fault but ends the session too.
    Exit,
}

impl Fault {
    /// Returns whether the packet alone is bad and the session continues, which is only possible on
    /// a datagram path. On a stream, which neither loses nor alters anything, a packet that is not
    /// authentic or of another session means that the ends disagree on packet boundaries.
    pub(crate) fn is_harmless_on(&self, link: Link) -> bool {
        let out_of_step = matches!(self, Self::Packet(_) | Self::Foreign(_));
        self.is_harmless() && !(out_of_step && link.is_stream())
    }

    /// Returns whether only the packet is bad, on a datagram path.
    pub(crate) fn is_harmless(&self) -> bool {
        matches!(self, Self::Packet(_) | Self::Ignored(_) | Self::Foreign(_))
    }
}

/// Returns the report of a negotiation that failed within a session.
pub(crate) fn failed_negotiation(fault: &Fault) -> String {
    format!("key negotiation failed: {fault}; the session keeps its keys and negotiates again")
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(error) => error.fmt(f),
            Self::Ignored(what) | Self::Foreign(what) => write!(f, "ignored {what}"),
            Self::Tls(error) => error.fmt(f),
            Self::Keys(error) => error.fmt(f),
            Self::Message(error) => error.fmt(f),
            Self::Protocol(what) => write!(f, "the peer broke the protocol: {what}"),
            Self::Crypto => f.write_str("the cryptographic library failed"),
            Self::Exit => f.write_str("remote-exit"),
            Self::TimedOut => f.write_str("TLS key negotiation failed to occur within the hand-window (check your network connectivity)"),
        }
    }
}

impl From<WrapError> for Fault {
    fn from(error: WrapError) -> Self {
        Self::Packet(error)
    }
}

impl From<TlsError> for Fault {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

impl From<KeyMethod2Error> for Fault {
    fn from(error: KeyMethod2Error) -> Self {
        Self::Keys(error)
    }
}

impl From<BadMessage> for Fault {
    fn from(error: BadMessage) -> Self {
        Self::Message(error)
    }
}

impl From<CryptoError> for Fault {
    fn from(_: CryptoError) -> Self {
        Self::Crypto
    }
}
