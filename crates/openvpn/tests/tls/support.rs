//! A small PKI made by the `openssl` command, and two sessions joined in memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use adit_openvpn::tls::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::time_provider::TimeProvider;

pub(crate) const SERVER_EXT: &str = "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\nextendedKeyUsage=serverAuth\n";
pub(crate) const CLIENT_EXT: &str =
    "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=clientAuth\n";
pub(crate) const DAY: i64 = 86_400;

/// Runs `openssl` in `dir` and returns its standard output.
pub(crate) fn openssl(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("openssl")
        .args(args)
        .current_dir(dir)
        .output()
        .expect("the tests need the openssl command (apt install openssl)");
    assert!(
        output.status.success(),
        "openssl {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rsa1024,
    Rsa2048,
    Rsa4096,
    P256,
    P384,
    Ed25519,
}

impl Kind {
    fn args(self) -> &'static [&'static str] {
        match self {
            Self::Rsa1024 => &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024"],
            Self::Rsa2048 => &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
            Self::Rsa4096 => &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:4096"],
            Self::P256 => &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
            Self::P384 => &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"],
            Self::Ed25519 => &["-algorithm", "ED25519"],
        }
    }
}

/// A certificate and its key in PEM.
#[derive(Clone)]
pub(crate) struct Pair {
    pub cert: String,
    pub key: String,
}

/// An authority in its own directory.
pub(crate) struct Ca {
    pub dir: tempfile::TempDir,
    pub pair: Pair,
}

impl Ca {
    /// Creates a self-signed authority that is valid for 3650 days.
    pub(crate) fn new(name: &str, kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = new_key(dir.path(), kind);
        std::fs::write(dir.path().join("ca.key"), &key).unwrap();
        openssl(
            dir.path(),
            &[
                "req",
                "-x509",
                "-new",
                "-key",
                "ca.key",
                "-sha256",
                "-days",
                "3650",
                "-subj",
                name,
                "-addext",
                "keyUsage=critical,keyCertSign,cRLSign",
                "-out",
                "ca.crt",
            ],
        );
        let cert = std::fs::read_to_string(dir.path().join("ca.crt")).unwrap();
        Self { dir, pair: Pair { cert, key } }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn pem(&self) -> Pem {
        Pem::new("ca.crt", self.pair.cert.as_str())
    }

    pub(crate) fn server(&self, subject: &str) -> Pair {
        self.issue(subject, Kind::P256, SERVER_EXT, &[])
    }

    pub(crate) fn client(&self, subject: &str) -> Pair {
        self.issue(subject, Kind::P256, CLIENT_EXT, &[])
    }

    /// Issues a certificate with the extensions `ext` (none: version 1) and `extra` arguments for
    /// `openssl x509`.
    pub(crate) fn issue(&self, subject: &str, kind: Kind, ext: &str, extra: &[&str]) -> Pair {
        let dir = tempfile::tempdir_in(self.path()).unwrap();
        let key = new_key(dir.path(), kind);
        std::fs::write(dir.path().join("key"), &key).unwrap();
        std::fs::write(dir.path().join("ext"), ext).unwrap();
        openssl(
            dir.path(),
            &[
                "req",
                "-new",
                "-key",
                "key",
                "-subj",
                subject,
                "-utf8",
                "-multivalue-rdn",
                "-out",
                "csr",
            ],
        );
        // Count serial numbers here, because tests run concurrently and openssl does not lock its
        // serial file.
        static SERIAL: AtomicU32 = AtomicU32::new(0x4000_0001);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed).to_string();
        let mut args = vec![
            "x509",
            "-req",
            "-in",
            "csr",
            "-CA",
            "../ca.crt",
            "-CAkey",
            "../ca.key",
            "-set_serial",
            &serial,
            "-out",
            "crt",
        ];
        if !ext.is_empty() {
            args.extend(["-extfile", "ext"]);
        }
        if !extra.contains(&"-days") {
            args.extend(["-days", "100"]);
        }
        args.extend(extra);
        openssl(dir.path(), &args);
        Pair { cert: std::fs::read_to_string(dir.path().join("crt")).unwrap(), key }
    }

    /// Creates an authority that this one signs.
    pub(crate) fn intermediate(&self, name: &str, kind: Kind, ext: &str) -> Self {
        let pair = self.issue(name, kind, ext, &[]);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.key"), &pair.key).unwrap();
        std::fs::write(dir.path().join("ca.crt"), &pair.cert).unwrap();
        Self { dir, pair }
    }

    /// Creates a revocation list with `revoked`, which is valid for ten days.
    pub(crate) fn crl(&self, revoked: &[&Pair]) -> String {
        self.crl_with("crlnumber=crlnumber\ncrl_extensions=x\n", revoked, &[])
    }

    /// Creates a list in openssl's default form, which has version 1 or, with reasons, version 2
    /// without extensions.
    pub(crate) fn crl_of_old(&self, revoked: &[&Pair], reason: bool) -> String {
        self.crl_with("", revoked, if reason { &["-crl_reason", "keyCompromise"] } else { &[] })
    }

    fn crl_with(&self, lines: &str, revoked: &[&Pair], reason: &[&str]) -> String {
        let dir = self.path();
        let text = format!(
            "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=10\n\
             certificate=ca.crt\nprivate_key=ca.key\n{lines}[x]\nauthorityKeyIdentifier=keyid\n"
        );
        std::fs::write(dir.join("ca.cnf"), text).unwrap();
        std::fs::write(dir.join("index"), "").unwrap();
        std::fs::write(dir.join("crlnumber"), "01\n").unwrap();
        for pair in revoked {
            std::fs::write(dir.join("revoked.crt"), &pair.cert).unwrap();
            let revoke = ["ca", "-config", "ca.cnf", "-revoke", "revoked.crt"];
            openssl(dir, &[&revoke, reason].concat());
        }
        openssl(dir, &["ca", "-config", "ca.cnf", "-gencrl", "-out", "crl.pem"]);
        std::fs::read_to_string(dir.join("crl.pem")).unwrap()
    }
}

fn new_key(dir: &Path, kind: Kind) -> String {
    // OpenSSL needs seconds for a key of this size, so all certificates have the same one.
    static RSA_4096: OnceLock<String> = OnceLock::new();
    match kind {
        Kind::Rsa4096 => RSA_4096.get_or_init(|| generate_key(dir, kind)).clone(),
        _ => generate_key(dir, kind),
    }
}

fn generate_key(dir: &Path, kind: Kind) -> String {
    let path: PathBuf = dir.join("new.key");
    let mut args = vec!["genpkey", "-out", "new.key"];
    args.extend(kind.args());
    openssl(dir, &args);
    std::fs::read_to_string(path).unwrap()
}

/// Returns the authority that most tests use.
pub(crate) fn ca() -> &'static Ca {
    static CA: OnceLock<Ca> = OnceLock::new();
    CA.get_or_init(|| Ca::new("/C=US/O=Adit tests/CN=Test CA", Kind::P256))
}

/// A clock with an offset in seconds from the system's.
#[derive(Debug)]
pub(crate) struct Clock(i64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            now.as_secs().checked_add_signed(self.0).unwrap(),
        )))
    }
}

/// A clock that is set manually, in seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct HandSet(pub std::sync::atomic::AtomicU64);

impl TimeProvider for HandSet {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.load(Ordering::Relaxed);
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    }
}

pub(crate) fn clock(offset: i64) -> Option<Arc<dyn TimeProvider>> {
    Some(Arc::new(Clock(offset)))
}

pub(crate) fn options(ca: &Ca, own: Option<&Pair>) -> CommonTlsOptions {
    CommonTlsOptions {
        ca: Some(ca.pem()),
        cert: own.map(|pair| Pem::new("own.crt", pair.cert.as_str())),
        key: own.map(|pair| Pem::new("own.key", pair.key.as_str())),
        ..Default::default()
    }
}

pub(crate) fn client_tls(common: CommonTlsOptions) -> ClientTls {
    ClientTls::new(ClientTlsOptions { common }).unwrap()
}

pub(crate) fn server_tls(common: CommonTlsOptions) -> ServerTls {
    ServerTls::new(ServerTlsOptions { common, ..Default::default() }).unwrap()
}

/// The result of a handshake at each end.
pub(crate) struct Outcome {
    pub client: TlsSession,
    pub server: TlsSession,
    pub client_error: Option<TlsError>,
    pub server_error: Option<TlsError>,
}

impl Outcome {
    pub(crate) fn is_up(&self) -> bool {
        self.client_error.is_none()
            && self.server_error.is_none()
            && !self.client.is_handshaking()
            && !self.server.is_handshaking()
    }
}

/// Moves bytes between two sessions in pieces of `piece` until neither has more.
pub(crate) fn pump(outcome: &mut Outcome, piece: usize) {
    loop {
        let up = outcome.client.pull(piece);
        if !up.is_empty()
            && let Err(error) = outcome.server.feed(&up)
        {
            outcome.server_error.get_or_insert(error);
        }
        let down = outcome.server.pull(piece);
        if !down.is_empty()
            && let Err(error) = outcome.client.feed(&down)
        {
            outcome.client_error.get_or_insert(error);
        }
        if up.is_empty() && down.is_empty() {
            return;
        }
    }
}

pub(crate) fn connect(client: &ClientTls, server: &ServerTls) -> Outcome {
    let mut outcome = Outcome {
        client: TlsSession::client(client).unwrap(),
        server: TlsSession::server(server).unwrap(),
        client_error: None,
        server_error: None,
    };
    pump(&mut outcome, 1100);
    outcome
}

/// A resolver that presents the certificate that it was given.
#[derive(Debug)]
struct FixedCertResolver(Arc<rustls::sign::CertifiedKey>);

impl rustls::server::ResolvesServerCert for FixedCertResolver {
    fn resolve(
        &self,
        _: rustls::server::ClientHello<'_>,
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// Returns the client's verdict on a server that presents `chain`, which need not be valid.
pub(crate) fn client_verdict(
    common: CommonTlsOptions,
    chain: &str,
    key: &str,
) -> Result<PeerIdentity, TlsError> {
    let chain =
        CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>().unwrap();
    verdict_on(&client_tls(common), chain, key)
}

/// Does the same for a client that may have connected to the server before.
pub(crate) fn client_verdict_again(
    client: &ClientTls,
    chain: &str,
    key: &str,
) -> Result<PeerIdentity, TlsError> {
    let chain =
        CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>().unwrap();
    verdict_on(client, chain, key)
}

/// Does the same for one certificate that need not be valid DER.
pub(crate) fn client_verdict_der(
    common: CommonTlsOptions,
    der: Vec<u8>,
    key: &str,
) -> Result<PeerIdentity, TlsError> {
    verdict_on(&client_tls(common), vec![CertificateDer::from(der)], key)
}

fn verdict_on(
    client: &ClientTls,
    chain: Vec<CertificateDer<'static>>,
    key: &str,
) -> Result<PeerIdentity, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(FixedCertResolver(Arc::new(
            rustls::sign::CertifiedKey::new(chain, key),
        ))));
    let mut peer = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    let mut session = TlsSession::client(client).unwrap();
    for _ in 0..10 {
        let bytes = session.pull(usize::MAX);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            peer.read_tls(&mut rest).unwrap();
            let _ = peer.process_new_packets();
        }
        let mut answer = Vec::new();
        while peer.wants_write() {
            peer.write_tls(&mut answer).unwrap();
        }
        session.feed(&answer)?;
        if let Some(identity) = session.peer() {
            return Ok(identity.clone());
        }
    }
    panic!("neither accepted nor refused");
}

/// Returns the check that refused a certificate.
#[track_caller]
pub(crate) fn problem(result: Result<PeerIdentity, TlsError>) -> CertificateProblem {
    match result {
        Err(TlsError::Certificate(error)) => {
            assert!(error.detail.len() > 15, "a sentence: {error}");
            error.problem
        }
        other => panic!("not refused for its certificate: {other:?}"),
    }
}
