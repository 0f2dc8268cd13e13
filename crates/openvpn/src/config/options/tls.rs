use std::path::PathBuf;
use std::time::Duration;

use super::Source;
use crate::tls::{CertProfile, IssuerHash};

/// Certificates and TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `ca`; with [`Self::peer_fingerprints`] there may be none.
    pub ca: Option<Source>,
    /// `capath`: a directory with authorities and revocation lists, named by their hashes.
    pub ca_path: Option<PathBuf>,
    /// `peer-fingerprint`: SHA-256 of the certificates that may in, lower-case hex.
    pub peer_fingerprints: Vec<String>,
    /// `cert` and `key`; a client may have none if it has a user name.
    pub identity: Option<Identity>,
    /// `askpass`: the key's password; without it an encrypted key is asked for on the terminal.
    pub askpass: Option<AskPass>,
    /// `crl-verify`.
    pub crl: Option<Source>,
    /// `verify-x509-name`.
    pub verify_name: Option<VerifyName>,
    /// `remote-cert-tls`, `remote-cert-eku`: what the peer's certificate must be for.
    pub peer_usage: Option<Usage>,
    /// `remote-cert-ku`: as [`crate::tls::VerifyOptions::key_usage`].
    pub key_usage: Option<Vec<u8>>,
    /// `ns-cert-type`: the old form of [`Self::peer_usage`].
    pub netscape_usage: Option<Usage>,
    /// `tls-cert-profile`.
    pub profile: CertProfile,
    /// `dh`: not used, but it must exist.
    pub dh: Option<Source>,
    /// `verify-hash`.
    pub issuer: Option<IssuerHash>,
    /// Server: `verify-client-cert`; default yes.
    pub require_client_cert: bool,
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
    /// `cert`: the certificate, perhaps followed by its chain.
    pub cert: Source,
    /// `extra-certs`.
    pub extra: Option<Source>,
    /// `key`.
    pub key: Source,
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
    /// 1.2
    #[default]
    V12,
    /// 1.3
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
        /// 0 or 1 (`key-direction`); `None`: one key for both ways.
        direction: Option<u8>,
    },
    /// `tls-crypt`.
    TlsCrypt(Source),
    /// `tls-crypt-v2`.
    TlsCryptV2 {
        /// The client's key with its wrapped form, or the server's key, by role.
        key: Source,
        /// `tls-crypt-v2-max-age`, of a server.
        max_age: Option<Duration>,
        /// `tls-auth` or `tls-crypt` for the clients of a server that bring no key of their own.
        shared: Option<Box<Self>>,
    },
}
