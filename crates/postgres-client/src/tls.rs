//! TLS to the database, and which servers are trusted.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;
use zeroize::Zeroizing;

use super::target::{Host, Ssl, SslMode, Target};
use adit_runtime::fault::Fault;
use adit_runtime::helper::files;

/// The check of the server's certificate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Check {
    /// Verify nothing. This protects only against a passive attacker.
    Nothing,
    /// Verify that a trusted authority has signed the certificate.
    Chain,
    /// Also verify that the certificate is the host's.
    Name,
}

/// Creates a connector for this host.
pub(super) fn connector(target: &Target, host: &Host) -> Result<MakeRustlsConnect, Fault> {
    let ssl = &target.ssl;
    let check = match target.mode(host) {
        SslMode::Disable | SslMode::Prefer => Check::Nothing,
        // As in libpq, if there are authorities, the chain is verified.
        SslMode::Require if ssl.root.as_deref() == Some(Path::new("system")) => Check::Name,
        SslMode::Require if ssl.root.is_some() => Check::Chain,
        SslMode::Require => Check::Nothing,
        SslMode::VerifyCa => Check::Chain,
        SslMode::VerifyFull => Check::Name,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match check {
        Check::Nothing => Arc::new(Lenient { inner: None, provider: provider.clone() }),
        Check::Chain => {
            let inner = Some(webpki(roots(ssl)?, &provider)?);
            Arc::new(Lenient { inner, provider: provider.clone() })
        }
        Check::Name => webpki(roots(ssl)?, &provider)?,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ours(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match identity(ssl)? {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            Fault::operator(format!("sslcert and sslkey do not belong together: {error}"))
        })?,
    };
    Ok(MakeRustlsConnect::new(config))
}

fn ours(error: &Error) -> Fault {
    Fault::ours(format!("TLS to the database: {error}"))
}

fn webpki(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, Fault> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| Fault::ours(format!("TLS to the database: {error}")))
}

/// Loads the authorities from a file or those of the host.
fn roots(ssl: &Ssl) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    let file = ssl.root.as_deref().filter(|root| *root != Path::new("system"));
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(Fault::environment(
                "this machine has no certificate authorities; install them (apt install ca-certificates), or give your \
                 own: sslrootcert=FILE",
            ));
        }
        return Ok(roots);
    };
    for certificate in certificates(file, "sslrootcert")? {
        roots
            .add(certificate)
            .map_err(|error| Fault::operator(format!("sslrootcert {}: {error}", file.display())))?;
    }
    Ok(roots)
}

fn certificates(file: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let pem = files::contents(file).map_err(|error| {
        Fault::operator(format!("cannot read {what} {}: {error}", file.display()))
    })?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => {
            Err(Fault::operator(format!("{what} {}: no certificate in PEM format", file.display())))
        }
    }
}

/// Our own certificate and key, for servers that request one.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(ssl: &Ssl) -> Result<Option<Identity>, Fault> {
    match (&ssl.certificate, &ssl.key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate, "sslcert")?;
            let pem = files::contents(key).map(Zeroizing::new).ok();
            let read = pem.and_then(|pem| PrivateKeyDer::from_pem_slice(&pem).ok());
            let key = read.ok_or_else(|| {
                Fault::operator(format!(
                    "sslkey {}: no private key in PEM format that can be read",
                    key.display()
                ))
            })?;
            Ok(Some((chain, key)))
        }
        (Some(_), None) => {
            Err(Fault::operator("there is an sslcert but no sslkey; give both or neither"))
        }
        (None, Some(_)) => {
            Err(Fault::operator("there is an sslkey but no sslcert; give both or neither"))
        }
    }
}

/// A verifier that checks less than rustls: nothing at all, or the chain without the name.
#[derive(Debug)]
struct Lenient {
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // The chain is checked before the name.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
