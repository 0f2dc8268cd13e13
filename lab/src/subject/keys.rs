//! The keys and certificates of a run: ECDSA P-256, as openssl and Easy-RSA make them, and a key for tls-crypt.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_openvpn::keys::StaticKey;
use adit_testbed::failure::{Context, Result};
use adit_testbed::file;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A folder with `ca.crt`, `server.crt`, `server.key`, `client.crt`, `client.key` and `tls-crypt.key`, and the
/// authority, which can issue more certificates.
#[derive(Debug, Clone)]
pub struct Keys {
    folder: PathBuf,
    authority: Arc<Issuer<'static, KeyPair>>,
    issued: Arc<AtomicU64>,
}

/// A client's certificate and key, as PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate, whose common name is unique.
    pub certificate: String,
    /// The unencrypted key.
    pub key: String,
}

impl Keys {
    /// Creates all files.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn make(folder: PathBuf) -> Result<Self> {
        let ca_key = KeyPair::generate().context("a key")?;
        let mut ca = params("adit lab CA");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let own = ca.self_signed(&ca_key).context("an authority")?.pem();
        let authority = Arc::new(Issuer::new(ca, ca_key));
        let keys = Self { folder, authority, issued: Arc::default() };
        keys.write("ca.crt", &own)?;
        let ends = [
            ("server", ExtendedKeyUsagePurpose::ServerAuth),
            ("client", ExtendedKeyUsagePurpose::ClientAuth),
        ];
        for (name, purpose) in ends {
            let identity = keys.sign(name, purpose)?;
            keys.write(&format!("{name}.crt"), &identity.certificate)?;
            keys.write(&format!("{name}.key"), &identity.key)?;
        }
        let mut bytes = [0; StaticKey::LEN];
        fs::File::open("/dev/urandom").context("/dev/urandom")?.read_exact(&mut bytes)?;
        keys.write("tls-crypt.key", &StaticKey::new(bytes).to_text())?;
        Ok(keys)
    }

    /// Issues a certificate to one more client.
    ///
    /// # Errors
    /// The library cannot generate a key.
    pub fn issue(&self) -> Result<Identity> {
        let number = self.issued.fetch_add(1, Ordering::Relaxed) + 1;
        self.sign(&format!("client-{number}"), ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Issues a certificate to one more client and writes it into `folder`. Returns the paths of certificate and key.
    ///
    /// # Errors
    /// As [`Keys::issue`], or the files cannot be written.
    pub fn issue_into(&self, folder: &Path, name: &str) -> Result<[PathBuf; 2]> {
        let identity = self.issue()?;
        let paths = [folder.join(format!("{name}.crt")), folder.join(format!("{name}.key"))];
        let [certificate, key] = &paths;
        write(certificate, &identity.certificate)?;
        write(key, &identity.key)?;
        Ok(paths)
    }

    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> Result<Identity> {
        let key = KeyPair::generate().context("a key")?;
        let mut leaf = params(name);
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![purpose];
        let certificate = leaf.signed_by(&key, &self.authority).context("a certificate")?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    /// Returns the path of one of the files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the folder that contains the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        write(&self.file(name), text)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    // openvpn warns about keys that other users can read.
    let is_key = path.extension().is_some_and(|kind| kind == "key");
    file::write(path, text, if is_key { 0o600 } else { 0o644 })
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_files_that_openvpn_reads() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::make(folder.path().to_owned()).unwrap();
        for name in ["ca.crt", "server.crt", "client.crt"] {
            let text = fs::read_to_string(keys.file(name)).unwrap();
            assert!(text.starts_with("-----BEGIN CERTIFICATE-----"), "{name}: {text}");
        }
        let fixed = fs::read_to_string(keys.file("tls-crypt.key")).unwrap();
        assert!(StaticKey::parse(&fixed).is_ok());
    }

    #[test]
    fn no_two_clients_share_a_certificate_or_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::make(folder.path().to_owned()).unwrap();
        let [one, two] = [keys.issue().unwrap(), keys.clone().issue().unwrap()];
        assert_ne!(one.certificate, two.certificate);
        assert_ne!(one.key, two.key);
    }
}
