use std::fmt;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection, SignatureScheme,
    SupportedProtocolVersion,
};

use super::error::{TlsConfigError, TlsError};
use super::options::{ClientCertificates, ClientTlsOptions, ServerTlsOptions};
use super::trust::Trust;
use super::verify::Verifier;

/// The protocol name (ALPN) of a connection check.
pub(super) const CHECK: &[u8] = b"adit-check";

/// The parts common to both roles.
pub(super) struct Context {
    pub(super) provider: Arc<CryptoProvider>,
    /// The algorithms that verify peers' signatures.
    pub(super) algorithms: WebPkiSupportedAlgorithms,
    pub(super) versions: Vec<&'static SupportedProtocolVersion>,
    pub(super) time: Arc<dyn TimeProvider>,
    pub(super) own: Option<Arc<CertifiedKey>>,
    pub(super) trust: Option<Arc<Trust>>,
    pub(super) client_certificates: ClientCertificates,
    pub(super) warnings: Vec<String>,
}

/// A client's configuration for TLS sessions; cheap to clone.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    warnings: Arc<[String]>,
}

/// A server's configuration for TLS sessions; cheap to clone.
#[derive(Clone)]
pub struct ServerTls {
    // Shared by all sessions, because the library allocates a table of 256 entries with each
    // config.
    config: Arc<ServerConfig>,
    warnings: Arc<[String]>,
}

// Implemented by hand because the config holds a private key.
impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Reads and checks the operator's certificates, keys and options.
    pub fn new(options: ClientTlsOptions) -> Result<Self, TlsConfigError> {
        let context = super::load::client(options)?;
        let trust = context.trust.clone().ok_or_else(|| missing("a client without a CA"))?;
        let verifier = Verifier::new(trust, &context);
        let builder =
            ClientConfig::builder_with_details(context.provider.clone(), context.time.clone())
                .with_protocol_versions(&context.versions)
                .map_err(|error| missing(&error.to_string()))?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match context.own {
            Some(own) => builder.with_client_cert_resolver(Arc::new(OwnCertificate(own))),
            None => builder.with_no_client_auth(),
        };
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = false;
        Ok(Self { config: Arc::new(config), warnings: context.warnings.into() })
    }

    /// Returns a copy for a connection check, which offers the protocol `CHECK` (ALPN, RFC 7301). A
    /// server that selects it lets the check have a session in addition to that of its certificate;
    /// servers without this protocol ignore the offer.
    #[must_use]
    pub fn for_check(&self) -> Self {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![CHECK.to_vec()];
        Self { config: Arc::new(config), warnings: self.warnings.clone() }
    }

    /// Returns warnings for the operator that do not prevent startup, such as an expired
    /// certificate of our own.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(super) fn connection(&self) -> Result<Connection, TlsError> {
        // OpenVPN's servers are identified by `verify-x509-name`; rustls requires a name, although
        // it neither sends nor compares it here.
        let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        ClientConnection::new(self.config.clone(), name)
            .map(Connection::Client)
            .map_err(|error| TlsError::Ours(error.to_string()))
    }
}

impl ServerTls {
    /// Reads and checks the operator's certificates, keys and options.
    pub fn new(options: ServerTlsOptions) -> Result<Self, TlsConfigError> {
        let context = super::load::server(options)?;
        let own = context.own.clone().ok_or_else(|| missing("a server without a certificate"))?;
        let builder =
            ServerConfig::builder_with_details(context.provider.clone(), context.time.clone())
                .with_protocol_versions(&context.versions)
                .map_err(|error| missing(&error.to_string()))?;
        let builder = match (&context.trust, context.client_certificates) {
            (_, ClientCertificates::None) => builder.with_no_client_auth(),
            (Some(trust), _) => {
                builder.with_client_cert_verifier(Arc::new(Verifier::new(trust.clone(), &context)))
            }
            (None, _) => return Err(missing("client certificates wanted without a CA")),
        };
        let mut config = builder.with_cert_resolver(Arc::new(OwnCertificate(own)));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        // A client that offers a protocol is a connection check; other clients offer none.
        config.alpn_protocols = vec![CHECK.to_vec()];
        Ok(Self { config: Arc::new(config), warnings: context.warnings.into() })
    }

    /// Returns warnings for the operator, as [`ClientTls::warnings`] does.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(super) fn connection(&self) -> Result<Connection, TlsError> {
        ServerConnection::new(self.config.clone())
            .map(Connection::Server)
            .map_err(|error| TlsError::Ours(error.to_string()))
    }
}

/// Creates the error for a condition that was already excluded when the options were loaded.
fn missing(what: &str) -> TlsConfigError {
    TlsConfigError::new("tls", what)
}

/// Presents our only certificate, whatever preferences the peer has.
#[derive(Debug)]
pub(super) struct OwnCertificate(pub(super) Arc<CertifiedKey>);

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}
