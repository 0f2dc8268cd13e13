//! TLS between two ends that know each other by their keys, without authorities.
//!
//! Both ends present a certificate. It is a fixed template with an Ed25519 key and a signature by
//! that key, without variable names or dates. A certificate that does not match the template is
//! refused without being parsed. The client accepts one key. The server accepts any key, and its
//! caller decides what the key may do.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::fmt;
use std::sync::Arc;

use adit_crypto::sha256;
use adit_crypto::sign::{self, PUBLIC_LEN, SEED_LEN, SIGNATURE_LEN, SigningKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError as Alert, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, Error, PeerIncompatible, ServerConfig, ServerConnection, SignatureScheme,
};

use super::context::OwnCertificate;
use super::error::{CertificateError, CertificateProblem, TlsError};
use super::verify;

/// The SHA-256 of an Ed25519 public key.
pub type KeyHash = [u8; 32];

/// The certificate up to the public key: X.509 version 3, serial number 1, issuer and subject
/// `CN=adit`, valid from 1970 to 9999.
const BEFORE_KEY: &[u8] = b"\x30\x81\xcb\x30\x7f\xa0\x03\x02\x01\x02\x02\x01\x01\
    \x30\x05\x06\x03\x2b\x65\x70\
    \x30\x0f\x31\x0d\x30\x0b\x06\x03\x55\x04\x03\x0c\x04adit\
    \x30\x20\x17\x0d700101000000Z\x18\x0f99991231235959Z\
    \x30\x0f\x31\x0d\x30\x0b\x06\x03\x55\x04\x03\x0c\x04adit\
    \x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
/// The bytes between the public key and the signature.
const BEFORE_SIGNATURE: &[u8] = b"\x30\x05\x06\x03\x2b\x65\x70\x03\x41\x00";
/// The length of the certificate's outer header. The signature does not cover it.
const OUTER_HEADER: usize = 3;
/// The PKCS#8 form of an Ed25519 key up to its seed.
const PKCS8: &[u8] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// The key of one end, which creates TLS configurations; cheap to clone.
#[derive(Clone)]
pub struct SelfSigned {
    own: Arc<CertifiedKey>,
    hash: KeyHash,
}

/// One end's TLS configuration for all key negotiations of a session; cheap to clone.
#[derive(Clone)]
pub enum RecordTls {
    /// The end that sends the first packet.
    Client(Arc<ClientConfig>),
    /// The other end.
    Server(Arc<ServerConfig>),
}

impl SelfSigned {
    /// Creates the certificate of a key.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn new(key: &SigningKey) -> Result<Self, TlsError> {
        let failed = |error: &dyn fmt::Display| TlsError::Ours(error.to_string());
        let certificate = certificate(key).map_err(|error| failed(&error))?;
        let mut pkcs8 = zeroize::Zeroizing::new([0; PKCS8.len().saturating_add(SEED_LEN)]);
        for (to, from) in pkcs8.iter_mut().zip(PKCS8.iter().chain(key.seed())) {
            *to = *from;
        }
        let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_slice()))
            .map_err(|error| failed(&error))?;
        let own = Arc::new(CertifiedKey::new(vec![CertificateDer::from(certificate)], signer));
        Ok(Self { own, hash: sha256(&[&key.public()]) })
    }

    /// Returns the hash of this end's public key.
    pub fn key_hash(&self) -> KeyHash {
        self.hash
    }

    /// Creates the configuration of a client that accepts one server key and uses one protocol
    /// (ALPN).
    ///
    /// # Errors
    /// Fails if the TLS library refuses the configuration, which is our fault.
    pub fn client(&self, expected: KeyHash, protocol: &[u8]) -> Result<RecordTls, TlsError> {
        let mut config = ClientConfig::builder_with_details(provider(), Arc::new(NoTime))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Ours(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ExpectedKey(expected)))
            .with_client_cert_resolver(Arc::new(OwnCertificate(self.own.clone())));
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = false;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(RecordTls::Client(Arc::new(config)))
    }

    /// Creates the configuration of a server that accepts any key and supports these protocols
    /// (ALPN).
    ///
    /// # Errors
    /// Fails if the TLS library refuses the configuration, which is our fault.
    pub fn server(&self, protocols: &[&[u8]]) -> Result<RecordTls, TlsError> {
        let mut config = ServerConfig::builder_with_details(provider(), Arc::new(NoTime))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Ours(error.to_string()))?
            .with_client_cert_verifier(Arc::new(AnyKey))
            .with_cert_resolver(Arc::new(OwnCertificate(self.own.clone())));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(RecordTls::Server(Arc::new(config)))
    }
}

impl RecordTls {
    pub(super) fn connection(&self) -> Result<Connection, TlsError> {
        let failed = |error: Error| TlsError::Ours(error.to_string());
        Ok(match self {
            Self::Client(config) => {
                // The library requires a name, although it neither sends nor compares it here.
                let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
                let connection = ClientConnection::new(config.clone(), name);
                Connection::Client(connection.map_err(failed)?)
            }
            Self::Server(config) => {
                Connection::Server(ServerConnection::new(config.clone()).map_err(failed)?)
            }
        })
    }
}

// Implemented by hand because both hold a private key.
impl fmt::Debug for SelfSigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelfSigned").field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl fmt::Debug for RecordTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client(_) => "RecordTls::Client",
            Self::Server(_) => "RecordTls::Server",
        })
    }
}

/// Returns the hash of the key in a certificate; `None` if it has another form.
pub(super) fn key_hash(certificate: &[u8]) -> Option<KeyHash> {
    public_key(certificate).map(|key| sha256(&[key]))
}

fn public_key(certificate: &[u8]) -> Option<&[u8; PUBLIC_LEN]> {
    let rest = certificate.strip_prefix(BEFORE_KEY)?;
    let (key, rest) = rest.split_first_chunk::<PUBLIC_LEN>()?;
    let signature = rest.strip_prefix(BEFORE_SIGNATURE)?;
    (signature.len() == SIGNATURE_LEN).then_some(key)
}

fn certificate(key: &SigningKey) -> Result<Vec<u8>, adit_crypto::CryptoError> {
    let mut certificate = [BEFORE_KEY, &key.public()].concat();
    let signature = key.sign(certificate.get(OUTER_HEADER..).unwrap_or_default())?;
    certificate.extend_from_slice(BEFORE_SIGNATURE);
    certificate.extend_from_slice(&signature);
    Ok(certificate)
}

/// Both ends run our program, so the only group and signature scheme are fixed.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    let mut provider = default_provider();
    provider.kx_groups = vec![kx_group::X25519MLKEM768];
    Arc::new(provider)
}

/// A fixed clock, because the certificates have no dates to check.
#[derive(Debug)]
struct NoTime;

impl TimeProvider for NoTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::ZERO))
    }
}

/// Refuses a peer's certificate, and makes the session's error explain why.
fn refuse(problem: CertificateProblem, detail: &str) -> Error {
    let (subject, detail) = (String::new(), detail.to_owned());
    verify::report(Err(CertificateError { problem, subject, detail }));
    Error::InvalidCertificate(Alert::ApplicationVerificationFailure)
}

/// Checks the form of a peer's certificate, and returns the hash of its key.
fn check_form(leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<KeyHash, Error> {
    let hash = key_hash(leaf).filter(|_| others.is_empty());
    hash.ok_or_else(|| refuse(CertificateProblem::Malformed, "it is not the one form for a key"))
}

fn verify_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = public_key(certificate).filter(|_| signed.scheme == SignatureScheme::ED25519);
    match key {
        Some(key) if sign::verify(key, message, signed.signature()) => {
            Ok(HandshakeSignatureValid::assertion())
        }
        _ => Err(Error::InvalidCertificate(Alert::BadSignature)),
    }
}

fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
}

/// A client's verifier. It accepts one key.
#[derive(Debug)]
struct ExpectedKey(KeyHash);

impl ServerCertVerifier for ExpectedKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if check_form(end_entity, intermediates)? != self.0 {
            return Err(refuse(
                CertificateProblem::Fingerprint,
                "it has another key than expected",
            ));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// A server's verifier. It accepts any key whose owner signs the handshake.
#[derive(Debug)]
struct AnyKey;

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check_form(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::super::TlsSession;
    use super::*;

    const PROTOCOL: &[u8] = b"test/1";

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; SEED_LEN]).expect("a key")
    }

    fn end(seed: u8) -> SelfSigned {
        SelfSigned::new(&key(seed)).expect("an end")
    }

    /// Runs a handshake, and returns both ends with their first errors.
    fn shake(client: &RecordTls, server: &RecordTls) -> [(TlsSession, Option<TlsError>); 2] {
        let mut ends = [client, server].map(|tls| (TlsSession::records(tls).expect("TLS"), None));
        for turn in 0..8 {
            let [client, server] = &mut ends;
            let (from, to) = if turn % 2 == 0 { (client, server) } else { (server, client) };
            let bytes = from.0.pull(usize::MAX);
            to.1 = to.1.take().or(to.0.feed(&bytes).err());
        }
        ends
    }

    #[test]
    fn the_certificate_is_a_valid_one() {
        use x509_parser::prelude::FromDer;
        let der = certificate(&key(1)).expect("a certificate");
        let (rest, parsed) =
            x509_parser::certificate::X509Certificate::from_der(&der).expect("a certificate");
        assert!(rest.is_empty());
        assert_eq!(parsed.subject().to_string(), "CN=adit");
        assert_eq!(parsed.public_key().subject_public_key.data.as_ref(), key(1).public());
        let signed = parsed.tbs_certificate.as_ref();
        assert!(sign::verify(&key(1).public(), signed, &parsed.signature_value.data));
        assert_eq!(key_hash(&der), Some(sha256(&[&key(1).public()])));
    }

    #[test]
    fn each_byte_of_the_form_counts() {
        let der = certificate(&key(1)).expect("a certificate");
        let form =
            (0..BEFORE_KEY.len()).chain(BEFORE_KEY.len() + PUBLIC_LEN..der.len() - SIGNATURE_LEN);
        for at in form {
            let mut wrong = der.clone();
            wrong[at] ^= 1;
            assert_eq!(key_hash(&wrong), None, "byte {at}");
        }
        assert_eq!(key_hash(&der[..der.len() - 1]), None);
        assert_eq!(key_hash(&[&der[..], &[0]].concat()), None);
    }

    #[test]
    fn both_ends_learn_the_other_key_and_agree_on_secrets_by_label_and_context() {
        let (a, b) = (end(1), end(2));
        let client = a.client(b.key_hash(), PROTOCOL).expect("TLS");
        let server = b.server(&[b"other/1", PROTOCOL]).expect("TLS");
        let [(client, None), (server, None)] = shake(&client, &server) else { panic!("an error") };
        assert_eq!(client.peer_key(), Some(b.key_hash()));
        assert_eq!(server.peer_key(), Some(a.key_hash()));
        assert_eq!((client.protocol(), server.protocol()), (Some(PROTOCOL), Some(PROTOCOL)));
        assert!(client.description().ends_with("group X25519MLKEM768"), "{client:?}");
        let export = |end: &TlsSession, context: &[u8]| {
            let mut out = [0; 32];
            end.export_with_context(b"EXPORTER-test", context, &mut out).map(|()| out)
        };
        assert_eq!(export(&client, b"a"), export(&server, b"a"));
        assert_ne!(export(&client, b"a"), export(&server, b"b"));
    }

    #[test]
    fn a_server_with_another_key_is_refused_by_the_client_alone() {
        let (a, b) = (end(1), end(2));
        let client = a.client(end(3).key_hash(), PROTOCOL).expect("TLS");
        let [(client, error), _] = shake(&client, &b.server(&[PROTOCOL]).expect("TLS"));
        let Some(TlsError::Certificate(error)) = error else { panic!("{error:?}") };
        assert_eq!(error.problem, CertificateProblem::Fingerprint);
        assert_eq!(client.peer_key(), None);
    }

    #[test]
    fn ends_without_a_common_protocol_do_not_connect() {
        let (a, b) = (end(1), end(2));
        let client = a.client(b.key_hash(), b"other/1").expect("TLS");
        let [_, (server, error)] = shake(&client, &b.server(&[PROTOCOL]).expect("TLS"));
        assert!(error.is_some() && server.protocol().is_none());
    }

    /// An end that presents another end's certificate cannot sign the handshake with its key.
    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let (a, b) = (end(1), end(2));
        let stolen = |thief: &SelfSigned, victim: &SelfSigned| {
            let own = CertifiedKey::new(victim.own.cert.clone(), thief.own.key.clone());
            SelfSigned { own: Arc::new(own), hash: victim.hash }
        };
        let bad = |error: &Option<TlsError>| matches!(error, Some(TlsError::Protocol(text)) if text.contains("BadSignature"));
        let client = stolen(&end(9), &a).client(b.key_hash(), PROTOCOL).expect("TLS");
        let [_, (_, error)] = shake(&client, &b.server(&[PROTOCOL]).expect("TLS"));
        assert!(bad(&error), "{error:?}");
        let client = a.client(b.key_hash(), PROTOCOL).expect("TLS");
        let server = stolen(&end(9), &b).server(&[PROTOCOL]).expect("TLS");
        let [(_, error), _] = shake(&client, &server);
        assert!(bad(&error), "{error:?}");
    }

    #[test]
    fn no_key_is_printed() {
        let text = format!("{:?}{:?}", end(7), end(7).server(&[PROTOCOL]));
        assert!(!text.contains("PrivateKey") && !text.contains("7, 7, 7, 7"), "{text}");
    }
}
