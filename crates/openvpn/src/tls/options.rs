use std::fmt;
use std::sync::Arc;

use rustls::time_provider::TimeProvider;
use zeroize::Zeroizing;

/// Material of the operator with the name it goes by in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// A file's path, or `[inline] <ca>`.
    pub origin: String,
    /// The file's content: PEM, with any text around the blocks.
    pub bytes: Zeroizing<Vec<u8>>,
}

impl Pem {
    /// `bytes`, known to the operator as `origin`.
    pub fn new(origin: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { origin: origin.into(), bytes: Zeroizing::new(bytes.into()) }
    }
}

// By hand: it may hold a private key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// What `verify-x509-name` compares.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NameType {
    /// The whole subject, `C=..., O=..., CN=...`.
    Subject,
    /// The common name.
    Name,
    /// The beginning of the common name.
    NamePrefix,
}

/// `remote-cert-tls`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RemoteCertTls {
    /// The peer's certificate must be one for TLS servers.
    Server,
    /// The peer's certificate must be one for TLS clients.
    Client,
}

/// `verify-client-cert`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Not asked for.
    None,
    /// Asked for; a client without one is let in as far as TLS goes.
    Optional,
    /// Demanded.
    #[default]
    Require,
}

/// `tls-version-min`, `tls-version-max`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// `tls-cert-profile`: which keys and signatures certificates may have.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum CertProfile {
    /// RSA keys of 2048 bits or more, signatures with SHA-256 or better.
    #[default]
    Preferred,
    /// RSA keys of 1024 bits or more: openvpn's default.
    Legacy,
    /// The same, and signatures with SHA-1.
    Insecure,
}

/// What is demanded of the peer's certificate besides a valid chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// `verify-x509-name`.
    pub name: Option<(String, NameType)>,
    /// `remote-cert-tls`: demands KeyUsage and ExtendedKeyUsage extensions that fit. Without it an
    /// ExtendedKeyUsage that is there must fit all the same.
    pub remote_cert_tls: Option<RemoteCertTls>,
    /// `ns-cert-type`: an ExtendedKeyUsage that fits or, in certificates without one, the Netscape type.
    pub netscape: Option<RemoteCertTls>,
    /// `remote-cert-ku`: the KeyUsage must have all bits of one of these, the first bit of the extension
    /// (digitalSignature) being 0x80. An empty list demands any KeyUsage.
    pub key_usage: Option<Vec<u8>>,
    /// `verify-hash`: the certificate that signed the peer's must have one of these fingerprints.
    pub issuer: Option<IssuerHash>,
}

/// Fingerprints of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerHash {
    /// Made by SHA-1, and not by SHA-256.
    pub sha1: bool,
    /// Lower-case hex without separators.
    pub fingerprints: Vec<String>,
}

/// What client and server have in common; [`ClientTlsOptions`] and [`ServerTlsOptions`] hold one.
#[derive(Clone, Default)]
pub struct CommonTlsOptions {
    /// `ca`: certificates of the authorities, at least one; may be absent with `peer_fingerprints`.
    pub ca: Option<Pem>,
    /// `cert`: our certificate, then intermediates if any.
    pub cert: Option<Pem>,
    /// `extra-certs`: further intermediates to send.
    pub extra_certs: Option<Pem>,
    /// `key`: PKCS#8, SEC1 or PKCS#1, encrypted or not.
    pub key: Option<Pem>,
    /// `askpass`: the password of `key`.
    pub key_password: Option<Zeroizing<String>>,
    /// `crl-verify`: revocation lists of every authority in a peer's chain. An empty `Pem` is refused.
    pub crl: Option<Pem>,
    /// The lists of `capath`: they hold for the authorities that have one, and may be missing.
    pub known_crl: Option<Pem>,
    /// What is demanded of the peer.
    pub verify: VerifyOptions,
    /// `tls-cert-profile`.
    pub profile: CertProfile,
    /// `peer-fingerprint`: SHA-256 of the certificates that are let in, lower-case hex; empty for all that
    /// the CA vouches for. With it `ca` may be absent: then nothing else of the certificate counts, not
    /// even its dates, as in stock.
    pub peer_fingerprints: Vec<String>,
    /// `tls-version-min`; `None`: 1.2.
    pub min_version: Option<TlsVersion>,
    /// `tls-version-max`; `None`: 1.3.
    pub max_version: Option<TlsVersion>,
    /// `tls-cipher`: names as OpenSSL or IANA spell them, between colons; for TLS 1.2.
    pub tls12_ciphers: Option<String>,
    /// `tls-ciphersuites`: the same for TLS 1.3.
    pub tls13_ciphers: Option<String>,
    /// `tls-groups` (or `ecdh-curve`), between colons. `None`: X25519MLKEM768, X25519, secp256r1, secp384r1.
    pub groups: Option<String>,
    /// Wall time for validity periods; `None`: the system's.
    pub time: Option<Arc<dyn TimeProvider>>,
}

// By hand: the password never reaches a log.
impl fmt::Debug for CommonTlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommonTlsOptions")
            .field("ca", &self.ca)
            .field("cert", &self.cert)
            .field("key", &self.key)
            .field("crl", &self.crl)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}

/// What [`super::ClientTls::new`] needs.
#[derive(Clone, Debug, Default)]
pub struct ClientTlsOptions {
    /// All of it: `cert` and `key` may both be absent.
    pub common: CommonTlsOptions,
}

/// What [`super::ServerTls::new`] needs.
#[derive(Clone, Debug, Default)]
pub struct ServerTlsOptions {
    /// `ca` may be absent if `client_certificates` is `None`; `cert` and `key` may not.
    pub common: CommonTlsOptions,
    /// `verify-client-cert`.
    pub client_certificates: ClientCertificates,
}
