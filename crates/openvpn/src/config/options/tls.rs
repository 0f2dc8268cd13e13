use std::path::PathBuf;
use std::time::Duration;

use super::{Pkcs11, Source};
use crate::tls::{CertProfile, ClientCertificates, IssuerHash, NameField};

/// Certificates and TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `ca`; optional with [`Self::peer_fingerprints`].
    pub ca: Option<Source>,
    /// `capath`: a directory with authorities and revocation lists, named by their hashes.
    pub ca_path: Option<PathBuf>,
    /// `peer-fingerprint`: the SHA-256 hashes of the accepted certificates, in lower-case hex.
    pub peer_fingerprints: Vec<String>,
    /// `cert` and `key`; optional for a client with a user name.
    pub identity: Option<Identity>,
    /// `management-external-key`: the key that the management client holds, instead of [`Self::identity`].
    pub external_key: Option<ExternalKey>,
    /// `pkcs12`: certificate, key and authorities in one file, instead of [`Self::identity`].
    pub pkcs12: Option<Pkcs12>,
    /// `pkcs11-id`, `pkcs11-id-management`: a key on a token, instead of [`Self::identity`].
    pub pkcs11: Option<Pkcs11>,
    /// `askpass`: the source of the key's password, or of the token's PIN. Without it, the password
    /// of an encrypted key is read from the terminal.
    pub askpass: Option<AskPass>,
    /// `crl-verify`.
    pub crl: Option<Source>,
    /// `crl-verify DIRECTORY dir`: the directory with a file for each revoked certificate, named by
    /// its serial number.
    pub crl_directory: Option<PathBuf>,
    /// `verify-x509-name`.
    pub verify_name: Option<VerifyName>,
    /// `remote-cert-tls`, `remote-cert-eku`: the purpose that the peer's certificate must have.
    pub peer_usage: Option<Usage>,
    /// `remote-cert-ku`: see [`crate::tls::VerifyOptions::key_usage`].
    pub key_usage: Option<Vec<u8>>,
    /// `ns-cert-type`: the old form of [`Self::peer_usage`].
    pub netscape_usage: Option<Usage>,
    /// `tls-cert-profile`.
    pub profile: CertProfile,
    /// `dh`: not used, but the file must exist.
    pub dh: Option<Source>,
    /// `verify-hash`.
    pub issuer: Option<IssuerHash>,
    /// `verify-client-cert` of a server.
    pub client_certificates: ClientCertificates,
    /// `x509-username-field`; empty for the common name.
    pub name_fields: Vec<NameField>,
    /// `tls-version-min`, at least 1.2.
    pub min_version: TlsVersion,
    /// `tls-version-max`.
    pub max_version: Option<TlsVersion>,
    /// `tls-cipher`: TLS 1.2 suites as written; `None` for the default.
    pub cipher_list: Option<Vec<String>>,
    /// `tls-ciphersuites`: TLS 1.3 suites as written.
    pub cipher_suites: Option<Vec<String>>,
    /// `tls-groups`, or `ecdh-curve`; as written.
    pub groups: Option<Vec<String>>,
}

/// Our own certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `cert`: the certificate, which its chain may follow.
    pub cert: Source,
    /// `extra-certs`.
    pub extra: Option<Source>,
    /// `key`.
    pub key: Source,
}

/// A key that the management client holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalKey {
    /// The certificate.
    pub cert: ExternalCert,
    /// `extra-certs`.
    pub extra: Option<Source>,
    /// The paddings of RSA signatures that the management client supports.
    pub padding: Vec<Padding>,
}

/// The certificate of an [`ExternalKey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalCert {
    /// `cert`.
    Source(Source),
    /// `management-external-cert`: the management client finds it by this hint.
    Ask(String),
}

/// A padding of RSA signatures.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Padding {
    /// `nopadding`: this end makes it.
    None,
    /// `pkcs1`.
    Pkcs1,
    /// `pss`.
    Pss,
}

/// `pkcs12`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkcs12 {
    /// The file; a block contains base64.
    pub file: Source,
    /// `extra-certs`.
    pub extra: Option<Source>,
}

/// The source of a key's password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskPass {
    /// The terminal.
    Prompt,
    /// The first line of a file.
    File(PathBuf),
}

/// `verify-x509-name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyName {
    /// The name to compare with.
    pub name: String,
    /// The part of the certificate to compare.
    pub kind: NameKind,
}

/// The second argument of `verify-x509-name`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// The whole subject.
    Subject,
    /// The common name.
    Name,
    /// The beginning of the common name.
    NamePrefix,
}

/// The purpose of a certificate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// TLS server.
    Server,
    /// TLS client.
    Client,
}

/// A TLS version.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    V12,
    /// TLS 1.3.
    V13,
}

/// Control channel wrapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wrap {
    /// None.
    #[default]
    None,
    /// `tls-auth`; the digest is the one of `auth`.
    TlsAuth {
        /// The static key.
        key: Source,
        /// 0 or 1 (`key-direction`), or `None` for one key for both directions.
        direction: Option<u8>,
    },
    /// `tls-crypt`.
    TlsCrypt(Source),
    /// `tls-crypt-v2`.
    TlsCryptV2 {
        /// The client's key with its wrapped form, or the server's key, by role.
        key: Source,
        /// `tls-crypt-v2-max-age` of a server.
        max_age: Option<Duration>,
        /// `tls-auth` or `tls-crypt` of a server, for clients without a tls-crypt-v2 key.
        shared: Option<Box<Self>>,
    },
}
