use std::fmt;

/// Why a TLS configuration cannot be used. The operator's to mend; each text says how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfigError {
    source: String,
    text: String,
    wrong_password: bool,
}

impl TlsConfigError {
    pub(super) fn new(source: impl Into<String>, text: impl Into<String>) -> Self {
        Self { source: source.into(), text: text.into(), wrong_password: false }
    }

    pub(super) fn wrong_password(source: impl Into<String>, text: impl Into<String>) -> Self {
        Self { source: source.into(), text: text.into(), wrong_password: true }
    }

    /// Where the unusable material came from: a file's path, `[inline] <ca>`, or a directive's name.
    pub fn origin(&self) -> &str {
        &self.source
    }

    /// The key is encrypted and the password is missing or wrong: worth asking for it again.
    pub fn is_password(&self) -> bool {
        self.wrong_password
    }
}

impl fmt::Display for TlsConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.text)
    }
}

impl std::error::Error for TlsConfigError {}

/// Why a TLS session ended, sorted by whose fault it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// The peer's certificate is not acceptable.
    Certificate(Box<CertificateError>),
    /// The peer ended the handshake with this alert; its log says why.
    Refused(String),
    /// The peer has no protocol version, cipher suite, group or signature scheme in common with us.
    Incompatible(String),
    /// The peer sent what TLS forbids, or more than we are willing to hold.
    Protocol(String),
    /// The caller wrote more than fits, or asked for something the state does not allow.
    Misuse(&'static str),
    /// Our side or this machine failed (no randomness, no clock).
    Ours(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(error) => error.fmt(f),
            Self::Refused(text) => write!(f, "the peer refused us: {text}"),
            Self::Incompatible(text) => write!(f, "no common ground with the peer: {text}"),
            Self::Protocol(text) => write!(f, "the peer broke TLS: {text}"),
            Self::Misuse(text) => write!(f, "TLS used wrongly: {text}"),
            Self::Ours(text) => write!(f, "TLS failed on this side: {text}"),
        }
    }
}

impl std::error::Error for TlsError {}

/// A certificate of the peer that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateError {
    /// Which check refused it.
    pub problem: CertificateProblem,
    /// The subject of the refused certificate, printable; empty if it could not be read.
    pub subject: String,
    /// What is wrong and what to do, one sentence or two.
    pub detail: String,
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.subject.is_empty() {
            write!(f, "peer certificate refused: {}", self.detail)
        } else {
            write!(f, "peer certificate \"{}\" refused: {}", self.subject, self.detail)
        }
    }
}

/// The checks on a peer's certificate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateProblem {
    /// None was sent and one is required.
    Missing,
    /// The chain has too many certificates, too many bytes, or too many levels.
    ChainTooLarge,
    /// Not DER, or a field with an impossible value.
    Malformed,
    /// A NUL or another control character in a name.
    BadName,
    /// X.509 version 1 or 2.
    Version,
    /// Signed with SHA-1 or MD5.
    WeakSignature,
    /// A key below the accepted size, or of a kind not supported.
    WeakKey,
    /// notAfter is past.
    Expired,
    /// notBefore is to come.
    NotYetValid,
    /// No path to one of our CAs, or a signature on the path is wrong.
    UnknownCa,
    /// The CA's own validity is over or has not begun.
    CaNotValidNow,
    /// A path-length, name or other constraint of a CA on the path forbids it.
    Constraint,
    /// On the revocation list.
    Revoked,
    /// The revocation list is past its next update.
    CrlExpired,
    /// No usable revocation list covers the certificate.
    CrlMissing,
    /// A CA certificate presented as a peer's own.
    IsCa,
    /// Key usage does not fit `remote-cert-tls`.
    KeyUsage,
    /// Extended key usage does not fit.
    ExtendedKeyUsage,
    /// The name is not what `verify-x509-name` demands.
    NameMismatch,
    /// Not among those that `peer-fingerprint` names.
    Fingerprint,
    /// An extension marked critical that we do not know.
    CriticalExtension,
}
