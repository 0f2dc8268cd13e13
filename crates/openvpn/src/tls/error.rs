use std::fmt;

/// The reason why a TLS configuration cannot be used. The fault is the operator's; each text says
/// how to correct the problem.
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

    /// Returns the origin of the unusable data: a file's path, `[inline] <ca>`, or a directive's
    /// name.
    pub fn origin(&self) -> &str {
        &self.source
    }

    /// Returns whether the key is encrypted and the password missing or wrong, so that the caller
    /// may ask for it again.
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

/// The reason why a TLS session ended, classified by the party at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// The peer's certificate is not acceptable.
    Certificate(Box<CertificateError>),
    /// The peer ended the handshake with this alert; the peer's log gives the reason.
    Refused(String),
    /// The peer has no protocol version, cipher suite, group or signature scheme in common with us.
    Incompatible(String),
    /// The peer violated TLS, or sent more than this end is willing to hold.
    Protocol(String),
    /// The caller wrote more than fits, or requested an operation that the state does not allow.
    Misuse(&'static str),
    /// This program or this host failed (no randomness, no clock).
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

/// The refusal of a peer's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateError {
    /// The check that refused it.
    pub problem: CertificateProblem,
    /// The subject of the refused certificate, printable; empty if it could not be read.
    pub subject: String,
    /// The problem and its correction, in one or two sentences.
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
    /// The peer sent no certificate where one is required.
    Missing,
    /// The chain has too many certificates, too many bytes, or too many levels.
    ChainTooLarge,
    /// The certificate is not DER, or a field has an impossible value.
    Malformed,
    /// A name contains a NUL or another control character.
    BadName,
    /// The certificate has X.509 version 1 or 2.
    Version,
    /// The certificate is signed with SHA-1 or MD5.
    WeakSignature,
    /// The key is below the accepted size, or of an unsupported kind.
    WeakKey,
    /// The certificate's notAfter is in the past.
    Expired,
    /// The certificate's notBefore is in the future.
    NotYetValid,
    /// There is no path to one of our CAs, or a signature on the path is wrong.
    UnknownCa,
    /// The CA certificate has expired or is not valid yet.
    CaNotValidNow,
    /// A path-length, name or other constraint of a CA on the path forbids it.
    Constraint,
    /// The certificate is on the revocation list.
    Revoked,
    /// The revocation list is past its next update.
    CrlExpired,
    /// No usable revocation list covers the certificate.
    CrlMissing,
    /// The peer presented a CA certificate as its own.
    IsCa,
    /// The key usage does not fit `remote-cert-tls`.
    KeyUsage,
    /// The extended key usage does not fit.
    ExtendedKeyUsage,
    /// The name is not the one that `verify-x509-name` requires.
    NameMismatch,
    /// The fingerprint is not among those in `peer-fingerprint`.
    Fingerprint,
    /// An unknown extension is marked critical.
    CriticalExtension,
}
