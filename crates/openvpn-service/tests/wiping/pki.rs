//! Certificates for the tests.

use adit_openvpn::tls::{CommonTlsOptions, Pem};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

pub(crate) struct Pki {
    ca: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        Self { ca, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn common(&self, name: &str) -> CommonTlsOptions {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        CommonTlsOptions {
            ca: Some(Pem::new("ca", self.ca.as_bytes())),
            cert: Some(Pem::new("cert", cert.pem().as_bytes())),
            key: Some(Pem::new("key", key.serialize_pem().as_bytes())),
            ..CommonTlsOptions::default()
        }
    }
}
