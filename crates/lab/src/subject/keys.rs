//! The keys and certificates of a run: ECDSA P-256, as openssl and Easy-RSA make them, and a key for tls-crypt.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use adit_openvpn::keys::StaticKey;
use adit_testbed::failure::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A folder with `ca.crt`, `server.crt`, `server.key`, `client.crt`, `client.key` and `tls-crypt.key`.
#[derive(Debug, Clone)]
pub struct Keys {
    folder: PathBuf,
}

impl Keys {
    /// Makes them all. All clients share one certificate.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn make(folder: PathBuf) -> Result<Keys> {
        let keys = Keys { folder };
        let ca_key = KeyPair::generate().context("a key")?;
        let mut ca = params("adit lab CA");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        keys.write("ca.crt", &ca.self_signed(&ca_key).context("an authority")?.pem())?;
        let issuer = Issuer::new(ca, ca_key);
        let ends = [
            ("server", ExtendedKeyUsagePurpose::ServerAuth),
            ("client", ExtendedKeyUsagePurpose::ClientAuth),
        ];
        for (name, purpose) in ends {
            let key = KeyPair::generate().context("a key")?;
            let mut leaf = params(name);
            leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            leaf.extended_key_usages = vec![purpose];
            let certificate = leaf.signed_by(&key, &issuer).context("a certificate")?;
            keys.write(&format!("{name}.crt"), &certificate.pem())?;
            keys.write(&format!("{name}.key"), &key.serialize_pem())?;
        }
        let mut bytes = [0; StaticKey::LEN];
        fs::File::open("/dev/urandom").context("/dev/urandom")?.read_exact(&mut bytes)?;
        keys.write("tls-crypt.key", &StaticKey::new(bytes).to_text())?;
        Ok(keys)
    }

    /// The path of one of the files.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder of all of them.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.file(name);
        fs::write(&path, text).context(path.display())?;
        if path.extension().is_some_and(|kind| kind == "key") {
            // openvpn warns of keys that others may read.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        }
        Ok(())
    }
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
}
