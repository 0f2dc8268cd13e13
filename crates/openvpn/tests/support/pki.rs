use std::sync::OnceLock;

use adit_openvpn::tls::{
    ClientCertificates, ClientTls, ClientTlsOptions, CommonTlsOptions, Pem, ServerTls,
    ServerTlsOptions,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ED25519};

/// A PKI with Ed25519 keys, whose signatures all have one length, so that packet sizes are
/// reproducible.
struct Pki {
    ca: String,
    issuer: Issuer<'static, KeyPair>,
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).expect("a key")
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Pki {
    fn new() -> Self {
        let key = key();
        let mut params = params("test CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).expect("a CA").pem();
        Self { ca, issuer: Issuer::new(params, key) }
    }
}

fn pki() -> &'static Pki {
    static PKI: OnceLock<Pki> = OnceLock::new();
    PKI.get_or_init(Pki::new)
}

fn common(name: &str) -> CommonTlsOptions {
    issued_by(pki(), name)
}

fn issued_by(issuer: &Pki, name: &str) -> CommonTlsOptions {
    let key = key();
    let cert = params(name).signed_by(&key, &issuer.issuer).expect("a certificate");
    CommonTlsOptions {
        ca: Some(Pem::new("ca", pki().ca.as_bytes())),
        cert: Some(Pem::new("cert", cert.pem().as_bytes())),
        key: Some(Pem::new("key", key.serialize_pem().as_bytes())),
        ..CommonTlsOptions::default()
    }
}

pub(crate) fn server_tls() -> ServerTls {
    server_tls_named("server")
}

pub(crate) fn server_tls_named(name: &str) -> ServerTls {
    let options = ServerTlsOptions { common: common(name), ..Default::default() };
    ServerTls::new(options).expect("a server's TLS")
}

/// Returns a server that requests clients' certificates in this way.
pub(crate) fn server_tls_with(client_certificates: ClientCertificates) -> ServerTls {
    let options = ServerTlsOptions { common: common("server"), client_certificates };
    ServerTls::new(options).expect("a server's TLS")
}

/// Returns a client without a certificate.
pub(crate) fn nameless_client_tls() -> ClientTls {
    let common = CommonTlsOptions { cert: None, key: None, ..common("nobody") };
    ClientTls::new(ClientTlsOptions { common }).expect("a client's TLS")
}

pub(crate) fn client_tls() -> ClientTls {
    client_tls_named("client")
}

pub(crate) fn client_tls_named(name: &str) -> ClientTls {
    ClientTls::new(ClientTlsOptions { common: common(name) }).expect("a client's TLS")
}

/// Returns a client whose certificate comes from an authority with the same name but another key.
pub(crate) fn foreign_client_tls(name: &str) -> ClientTls {
    let common = issued_by(&Pki::new(), name);
    ClientTls::new(ClientTlsOptions { common }).expect("a client's TLS")
}
