//! Certificates for a database, created by OpenSSL under the authority of a run's PKI, or under a separate one.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Result;
use crate::pki::{Pki, PkiTool};
use crate::process::output;

/// The PEM files of a certificate.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The server's certificate.
    pub chain: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority, for clients: `sslrootcert`.
    pub authority: PathBuf,
}

/// The certificate of a database, and two that its clients must refuse.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The right one.
    pub right: Certificate,
    /// One of the same authority, for another host.
    pub other: Certificate,
    /// One for the same host, of another authority.
    pub stranger: Certificate,
}

impl Certificates {
    /// Creates certificates in folders below `folder` for a database at this address.
    ///
    /// # Errors
    /// `openssl` failed, or the folders exist.
    pub fn new(folder: &Path, pki: &Pki, address: IpAddr) -> Result<Self> {
        let make = |name: &str| -> Result<PathBuf> {
            let path = folder.join(name);
            fs::create_dir(&path)?;
            Ok(path)
        };
        let name = format!("IP:{address}");
        Ok(Self {
            right: Certificate::new(&make("right")?, pki, &[&name])?,
            other: Certificate::new(&make("other")?, pki, &["DNS:elsewhere.example"])?,
            stranger: Certificate::alone(&make("stranger")?, &[&name])?,
        })
    }
}

impl Certificate {
    /// Creates a certificate for these names in `folder`, under the authority of the run's OpenSSL files. A name is
    /// `DNS:db.example` or `IP:192.0.2.1`.
    ///
    /// # Errors
    /// `openssl` failed.
    pub fn new(folder: &Path, pki: &Pki, names: &[&str]) -> Result<Self> {
        let file = |name| pki.file(PkiTool::OpenSslEc, name);
        Self::under(folder, &file("ca.crt"), &file("ca.key"), names)
    }

    /// Creates a certificate for these names in `folder`, together with a new authority.
    ///
    /// # Errors
    /// `openssl` failed.
    pub fn alone(folder: &Path, names: &[&str]) -> Result<Self> {
        let (ca, key) = (folder.join("ca.crt"), folder.join("ca.key"));
        let mut command = request(folder, &key);
        command.args(["-x509", "-days", "3650", "-subj", "/CN=adit test authority", "-out"]);
        command.arg(&ca);
        output(command)?;
        Self::under(folder, &ca, &key, names)
    }

    fn under(folder: &Path, ca: &Path, ca_key: &Path, names: &[&str]) -> Result<Self> {
        let path = |name: &str| folder.join(name);
        let (chain, key) = (path("database.crt"), path("database.key"));
        let mut command = request(folder, &key);
        command.args(["-subj", "/CN=database", "-out", "database.csr"]);
        output(command)?;
        let names = names.join(",");
        let extensions = format!(
            "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\nsubjectAltName={names}\n\
             subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        );
        fs::write(path("database.ext"), extensions)?;
        let mut command = Command::new("openssl");
        // A random serial number, because other tests may sign under the same authority at the same time.
        command.current_dir(folder).args(["x509", "-req", "-days", "365", "-in", "database.csr"]);
        command.arg("-CA").arg(ca).arg("-CAkey").arg(ca_key);
        command.args(["-extfile", "database.ext", "-out"]).arg(&chain);
        command.args(["-set_serial", &format!("0x{}", random_hex()?)]);
        output(command)?;
        Ok(Self { chain, key, authority: ca.to_owned() })
    }
}

/// Returns the command that creates a P-256 key and a request for it.
fn request(folder: &Path, key: &Path) -> Command {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(["req", "-newkey", "ec", "-pkeyopt"]);
    command.args(["ec_paramgen_curve:P-256", "-nodes", "-keyout"]).arg(key);
    command
}

fn random_hex() -> Result<String> {
    let mut command = Command::new("openssl");
    command.args(["rand", "-hex", "15"]);
    Ok(format!("01{}", output(command)?.trim()))
}
