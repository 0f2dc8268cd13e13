use std::fmt;
use std::sync::Arc;

use rustls::time_provider::TimeProvider;
use zeroize::Zeroizing;

use super::external::KeyHolder;

/// PEM data from the operator, with its name for messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// A file's path, or `[inline] <ca>`.
    pub origin: String,
    /// The file's content: PEM with any text around the blocks.
    pub bytes: Zeroizing<Vec<u8>>,
}

impl Pem {
    /// Creates PEM data from `bytes`, which messages call `origin`.
    pub fn new(origin: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { origin: origin.into(), bytes: Zeroizing::new(bytes.into()) }
    }
}

// Implemented by hand because the content may be a private key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// The part of a certificate's name that `verify-x509-name` compares.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NameType {
    /// The whole subject, `C=..., O=..., CN=...`.
    Subject,
    /// The common name.
    Name,
    /// The beginning of the common name.
    NamePrefix,
}

/// `remote-cert-tls`: the role for which the peer's certificate must be valid.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RemoteCertTls {
    /// The peer's certificate must be valid for TLS servers.
    Server,
    /// The peer's certificate must be valid for TLS clients.
    Client,
}

/// `verify-client-cert`: whether a server requests a client's certificate.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// The certificate is not requested.
    None,
    /// The certificate is requested, but TLS accepts a client without one.
    Optional,
    /// The certificate is required.
    #[default]
    Require,
}

/// A TLS version in `tls-version-min` and `tls-version-max`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// `tls-cert-profile`: the keys and signatures that certificates may have.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum CertProfile {
    /// RSA keys of 2048 bits or more, signatures with SHA-256 or better.
    #[default]
    Preferred,
    /// RSA keys of 1024 bits or more, as in OpenVPN's default.
    Legacy,
    /// The same as `Legacy`, and signatures with SHA-1.
    Insecure,
}

/// `x509-username-field`: a part of a certificate that names its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameField {
    /// The last attribute of the subject with this short name.
    Attribute(String),
    /// The certificate's serial number in hex.
    Serial,
    /// The last mail address among the subject's alternative names.
    SubjectMail,
    /// The last mail address among the issuer's alternative names.
    IssuerMail,
}

impl NameField {
    /// Returns the attribute of the subject with this short name of OpenSSL, or `None` if there is none.
    pub fn attribute(name: &str) -> Option<Self> {
        super::identity::is_short_name(name).then(|| Self::Attribute(name.to_owned()))
    }
}

/// The requirements on the peer's certificate in addition to a valid chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// `x509-username-field`: the parts that name the owner; empty for the common name.
    pub name_fields: Vec<NameField>,
    /// `verify-x509-name`.
    pub name: Option<(String, NameType)>,
    /// `remote-cert-tls`: requires matching KeyUsage and ExtendedKeyUsage extensions. Without it,
    /// an ExtendedKeyUsage that is present must still match.
    pub remote_cert_tls: Option<RemoteCertTls>,
    /// `ns-cert-type`: requires a matching ExtendedKeyUsage or, in certificates without one, the
    /// Netscape type.
    pub netscape: Option<RemoteCertTls>,
    /// `remote-cert-ku`: the KeyUsage must have all bits of one of these values. The first bit of
    /// the extension (digitalSignature) is 0x80. An empty list requires a KeyUsage with any bits.
    pub key_usage: Option<Vec<u8>>,
    /// `verify-hash`: the certificate that signed the peer's must have one of these fingerprints.
    pub issuer: Option<IssuerHash>,
}

/// Fingerprints of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerHash {
    /// Whether the fingerprints are SHA-1 rather than SHA-256.
    pub sha1: bool,
    /// The fingerprints in lower-case hex without separators.
    pub fingerprints: Vec<String>,
}

/// The options common to client and server; [`ClientTlsOptions`] and [`ServerTlsOptions`] each hold
/// them.
#[derive(Clone, Default)]
pub struct CommonTlsOptions {
    /// `ca`: the certificates of one or more authorities; may be absent with `peer_fingerprints`.
    pub ca: Option<Pem>,
    /// `cert`: our certificate, followed by its intermediates, if any.
    pub cert: Option<Pem>,
    /// `extra-certs`: further intermediates to send.
    pub extra_certs: Option<Pem>,
    /// `key`: PKCS#8, SEC1 or PKCS#1, encrypted or not.
    pub key: Option<Pem>,
    /// `askpass`: the password of `key`.
    pub key_password: Option<Zeroizing<String>>,
    /// The holder of the private key, instead of `key`.
    pub key_holder: Option<Arc<dyn KeyHolder>>,
    /// `crl-verify`: revocation lists of every authority in a peer's chain. An empty `Pem` is
    /// refused.
    pub crl: Option<Pem>,
    /// The revocation lists of `capath`. Each applies to its authority, and an authority may have
    /// none.
    pub known_crl: Option<Pem>,
    /// The requirements on the peer's certificate.
    pub verify: VerifyOptions,
    /// `tls-cert-profile`.
    pub profile: CertProfile,
    /// `peer-fingerprint`: the SHA-256 hashes of the accepted certificates in lower-case hex; empty
    /// to accept all that the CA signed. With fingerprints, `ca` may be absent. In that case no
    /// other part of the certificate matters, not even its validity period, as in OpenVPN.
    pub peer_fingerprints: Vec<String>,
    /// `tls-version-min`; 1.2 if `None`.
    pub min_version: Option<TlsVersion>,
    /// `tls-version-max`; 1.3 if `None`.
    pub max_version: Option<TlsVersion>,
    /// `tls-cipher`: OpenSSL's or IANA's names separated by colons, for TLS 1.2.
    pub tls12_ciphers: Option<String>,
    /// `tls-ciphersuites`: the same for TLS 1.3.
    pub tls13_ciphers: Option<String>,
    /// `tls-groups` (or `ecdh-curve`), separated by colons. `None` means X25519MLKEM768,
    /// X25519, secp256r1, secp384r1 and secp521r1.
    pub groups: Option<String>,
    /// The wall clock for validity periods; the system's if `None`.
    pub time: Option<Arc<dyn TimeProvider>>,
}

// Implemented by hand to keep the password out of the logs.
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

/// The options of [`super::ClientTls::new`].
#[derive(Clone, Debug, Default)]
pub struct ClientTlsOptions {
    /// The common options; `cert` and `key` may both be absent.
    pub common: CommonTlsOptions,
}

/// The options of [`super::ServerTls::new`].
#[derive(Clone, Debug, Default)]
pub struct ServerTlsOptions {
    /// The common options; `ca` may be absent if `client_certificates` is `None`, `cert` and `key`
    /// may not.
    pub common: CommonTlsOptions,
    /// `verify-client-cert`.
    pub client_certificates: ClientCertificates,
}
