//! Certificates and keys for the tests, created by the tools that users have: OpenSSL, Easy-RSA and openvpn itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Context, Result, ensure};
use crate::process::{output, run};
use crate::sandbox::{Sandbox, text};

/// The password of the protected key files.
pub const PASSWORD: &str = "correct horse";

/// The tool that creates the certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PkiTool {
    /// OpenSSL: EC P-256, a common name and no alternative name.
    OpenSslEc,
    /// Easy-RSA: RSA 2048, its default.
    EasyRsa,
}

/// Paths to everything that a run needs. Both tools use the same file names.
#[derive(Debug, Clone)]
pub struct Pki {
    openssl: PathBuf,
    easy_rsa: PathBuf,
    wrapping_keys: PathBuf,
}

impl Pki {
    /// Creates all files, once for a run.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn make(sandbox: &Sandbox) -> Result<Self> {
        let pki = Self {
            openssl: sandbox.folder("openssl")?,
            easy_rsa: sandbox.folder("easy-rsa")?,
            wrapping_keys: sandbox.folder("wrapping-keys")?,
        };
        std::thread::scope(|scope| {
            let rsa = scope.spawn(|| make_easy_rsa(&pki.easy_rsa));
            make_openssl(&pki.openssl)?;
            make_wrapping_keys(&pki.wrapping_keys)?;
            rsa.join().unwrap_or_else(|_| Err("the Easy-RSA thread panicked".into()))
        })?;
        Ok(pki)
    }

    fn folder(&self, pki_tool: PkiTool) -> &Path {
        match pki_tool {
            PkiTool::OpenSslEc => &self.openssl,
            PkiTool::EasyRsa => &self.easy_rsa,
        }
    }

    /// Returns the path of `ca.crt`, `server.crt`, `client.key` and similar files. From OpenSSL there are also
    /// `expired.crt`, `future.crt`, `client-pkcs8.key` and `client-traditional.key` (both under [`PASSWORD`]),
    /// `revoked.crt` with `crl.pem`, `stranger.crt` with its own authority, `v1.crt` (X.509 version 1).
    pub fn file(&self, pki_tool: PkiTool, name: &str) -> PathBuf {
        self.folder(pki_tool).join(name)
    }

    /// Returns the path of `static.key` for tls-auth and tls-crypt, `v2-server.key` or `v2-client.key`.
    pub fn wrapping_key(&self, name: &str) -> PathBuf {
        self.wrapping_keys.join(name)
    }
}

/// Runs `openssl` in `dir` with these arguments.
fn openssl(dir: &Path, words: &str) -> Result<()> {
    let mut command = Command::new("openssl");
    // A word cannot contain a bare `\0`, so it represents the spaces within a word.
    command.current_dir(dir).args(words.split_whitespace().map(|word| word.replace('\0', " ")));
    output(command).map(drop)
}

fn make_openssl(dir: &Path) -> Result<()> {
    let extensions = "[leaf]\nbasicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n";
    for (file, usage) in [("server.ext", "serverAuth"), ("client.ext", "clientAuth")] {
        let usage = format!("keyUsage=digitalSignature\nextendedKeyUsage={usage}\n");
        fs::write(dir.join(file), format!("{extensions}{usage}"))?;
    }
    for ca in ["ca", "stranger-ca"] {
        openssl(
            dir,
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {ca}.key -out {ca}.crt \
                 -subj /CN=adit\0interop\0{ca} -days 3650"
            ),
        )?;
    }
    for name in ["server", "client", "expired", "future", "revoked", "stranger", "v1"] {
        openssl(
            dir,
            &format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr \
                 -subj /CN={name}"
            ),
        )?;
    }
    let x509 = "x509 -req -CAcreateserial -days 365";
    openssl(
        dir,
        &format!(
            "{x509} -in server.csr -CA ca.crt -CAkey ca.key -extfile server.ext -extensions leaf -out server.crt"
        ),
    )?;
    openssl(
        dir,
        &format!(
            "{x509} -in client.csr -CA ca.crt -CAkey ca.key -extfile client.ext -extensions leaf -out client.crt"
        ),
    )?;
    openssl(
        dir,
        &format!(
            "{x509} -in stranger.csr -CA stranger-ca.crt -CAkey stranger-ca.key -extfile client.ext -extensions leaf -out stranger.crt"
        ),
    )?;
    openssl(dir, &format!("{x509} -in v1.csr -CA ca.crt -CAkey ca.key -out v1.crt"))?;
    make_dated(dir)?;
    make_revoked(dir)?;
    let password = format!("pass:{}", PASSWORD.replace(' ', "\0"));
    openssl(
        dir,
        &format!("pkcs8 -topk8 -in client.key -out client-pkcs8.key -passout {password}"),
    )?;
    openssl(
        dir,
        &format!("ec -aes256 -in client.key -out client-traditional.key -passout {password}"),
    )
}

/// Creates certificates that are no longer or not yet valid: only `openssl ca` accepts dates.
fn make_dated(dir: &Path) -> Result<()> {
    let config = "[ca]\ndefault_ca=here\n[here]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\n\
                  default_md=sha256\ncrlnumber=crlnumber\npolicy=any\nunique_subject=no\n[any]\ncommonName=supplied\n";
    fs::write(dir.join("ca.cnf"), config)?;
    fs::write(dir.join("index.txt"), "")?;
    fs::write(dir.join("crlnumber"), "01\n")?;
    for (name, from, to) in [
        ("expired", "20200101000000Z", "20210101000000Z"),
        ("future", "20400101000000Z", "20410101000000Z"),
    ] {
        openssl(
            dir,
            &format!(
                "ca -batch -config ca.cnf -cert ca.crt -keyfile ca.key -in {name}.csr -out {name}.crt -notext \
                 -startdate {from} -enddate {to} -extfile client.ext -extensions leaf"
            ),
        )?;
    }
    Ok(())
}

fn make_revoked(dir: &Path) -> Result<()> {
    let ca = "ca -batch -config ca.cnf -cert ca.crt -keyfile ca.key";
    let leaf = "-notext -days 365 -extfile client.ext -extensions leaf";
    openssl(dir, &format!("{ca} -in revoked.csr -out revoked.crt {leaf}"))?;
    openssl(dir, &format!("{ca} -revoke revoked.crt"))?;
    openssl(dir, &format!("{ca} -gencrl -crldays 365 -out crl.pem"))
}

fn make_easy_rsa(dir: &Path) -> Result<()> {
    let program = "/usr/share/easy-rsa/easyrsa";
    ensure(Path::new(program).exists(), || format!("{program} is missing: apt install easy-rsa"))?;
    let pki = dir.join("pki");
    let easy_rsa = |words: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(dir).args(words);
        command.env("EASYRSA_BATCH", "1").env("EASYRSA_PKI", &pki);
        output(command).map(drop)
    };
    easy_rsa(&["init-pki"])?;
    easy_rsa(&["build-ca", "nopass"])?;
    easy_rsa(&["build-server-full", "server", "nopass"])?;
    easy_rsa(&["build-client-full", "client", "nopass"])?;
    for (from, to) in [
        ("ca.crt", "ca.crt"),
        ("issued/server.crt", "server.crt"),
        ("issued/client.crt", "client.crt"),
        ("private/server.key", "server.key"),
        ("private/client.key", "client.key"),
    ] {
        fs::copy(pki.join(from), dir.join(to)).context(from)?;
    }
    Ok(())
}

fn make_wrapping_keys(dir: &Path) -> Result<()> {
    let path = |name: &str| dir.join(name);
    let (fixed, server, client) =
        (path("static.key"), path("v2-server.key"), path("v2-client.key"));
    run("openvpn", &["--genkey", "secret", text(&fixed)])?;
    run("openvpn", &["--genkey", "tls-crypt-v2-server", text(&server)])?;
    let arguments =
        ["--tls-crypt-v2", text(&server), "--genkey", "tls-crypt-v2-client", text(&client)];
    run("openvpn", &arguments)?;
    Ok(())
}
