//! The TLS library's callbacks for checking a peer's certificate.

use std::cell::Cell;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError as Alert, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
};

use super::context::Context;
use super::error::{CertificateError, CertificateProblem};
use super::identity::PeerIdentity;
use super::options::ClientCertificates;
use super::trust::Trust;

thread_local! {
    /// The last verdict on this thread, until the session that requested it takes it. It cannot
    /// pass through the TLS library. An error that leads to the right alert has no room for a text,
    /// and the library does not tell the shared verifier which session it works for.
    static LAST: Cell<Option<Result<PeerIdentity, CertificateError>>> = const { Cell::new(None) };
}

/// Runs the library and returns its result, together with the verdict on the peer's certificate
/// during that run.
pub(super) fn watch<T>(
    work: impl FnOnce() -> T,
) -> (T, Option<Result<PeerIdentity, CertificateError>>) {
    LAST.set(None);
    let result = work();
    (result, LAST.take())
}

/// Reports a verdict to the session that requested it.
pub(super) fn report(verdict: Result<PeerIdentity, CertificateError>) {
    LAST.set(Some(verdict));
}

/// The verifier that all sessions share.
#[derive(Debug)]
pub(super) struct Verifier {
    trust: Arc<Trust>,
    algorithms: WebPkiSupportedAlgorithms,
    mandatory: bool,
}

impl Verifier {
    pub(super) fn new(trust: Arc<Trust>, context: &Context) -> Self {
        Self {
            trust,
            algorithms: context.algorithms,
            mandatory: context.client_certificates == ClientCertificates::Require,
        }
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        peer_is_server: bool,
        now: UnixTime,
    ) -> Result<(), Error> {
        let verdict = self.trust.check(leaf, intermediates, peer_is_server, now);
        let told = match &verdict {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::InvalidCertificate(alert(error.problem))),
        };
        report(verdict);
        told
    }
}

/// Returns the TLS library's error that makes it send the matching alert.
fn alert(problem: CertificateProblem) -> Alert {
    match problem {
        CertificateProblem::Expired | CertificateProblem::NotYetValid => Alert::Expired,
        CertificateProblem::Revoked => Alert::Revoked,
        CertificateProblem::UnknownCa | CertificateProblem::CaNotValidNow => Alert::UnknownIssuer,
        CertificateProblem::Malformed => Alert::BadEncoding,
        CertificateProblem::KeyUsage | CertificateProblem::ExtendedKeyUsage => {
            Alert::InvalidPurpose
        }
        _ => Alert::ApplicationVerificationFailure,
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end_entity, intermediates, true, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.trust.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(end_entity, intermediates, false, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
