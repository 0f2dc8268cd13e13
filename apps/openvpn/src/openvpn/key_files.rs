//! Loads key files and certificates; each failure names its remedy.

mod ask;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use adit_crypto::Digest;
use adit_openvpn::client::Credentials;
use adit_openvpn::config::{
    AskPass, ExternalCert, ExternalKey, NameKind, Options, PeerKeys, Pkcs12, Role, Source, Tls,
    TlsVersion, Usage, UserPass, Wrap,
};
use adit_openvpn::keys::{ClientKey, Direction, ServerKey, StaticKey, TokenKey};
use adit_openvpn::tls::{
    self, ClientCertificates, ClientTls, ClientTlsOptions, CommonTlsOptions, NameType, Pem,
    RemoteCertTls, ServerTls, ServerTlsOptions, TlsConfigError, VerifyOptions,
};
use adit_openvpn::wrap::WrapConfig;
use zeroize::Zeroizing;

pub(crate) use ask::{Ask, Terminal};
pub(super) use ask::{ask_challenge, prompt};

use super::{capath, pkcs12, token};
use crate::token_host::Tokens;
use adit_runtime::control::CertificateReport;
use adit_runtime::expiry;
use adit_runtime::fault::Fault;
use adit_runtime::helper::files;
use adit_runtime::prompts;

/// The maximum size of certificates, keys and lists. It guards against endless files (`/dev/zero`
/// as a key file).
const FILE_LIMIT: u64 = 16 << 20;

/// The number of attempts to enter a password.
const PASSWORD_TRIES: u32 = 3;

/// The material that was read for TLS.
#[derive(Clone, Debug)]
pub(crate) struct TlsMaterial {
    common: CommonTlsOptions,
    client_certificates: ClientCertificates,
    password_from: Option<AskPass>,
    /// A key that is not in this process.
    external: Option<ExternalKey>,
    /// The warnings logged so far. They are not repeated when a revocation list is read again.
    warned: Vec<String>,
}

/// The maximum number of warnings that are remembered.
const MAX_WARNED: usize = 64;

/// Reads a file or uses the inline text.
pub(crate) fn read(directive: &str, source: &Source) -> Result<Pem, Fault> {
    match source {
        Source::Inline { text, .. } => Ok(Pem::new(source.to_string(), text.as_bytes())),
        Source::File(path) => {
            let bytes = read_file(directive, path)?;
            Ok(Pem::new(path.display().to_string(), bytes.as_slice()))
        }
    }
}

/// Directives whose files contain keys or passwords.
const SECRET: [&str; 11] = [
    "key",
    "pkcs12",
    "tls-auth",
    "tls-crypt",
    "tls-crypt-v2",
    "secret",
    "askpass",
    "auth-user-pass",
    "auth-gen-token-secret",
    "http-proxy",
    "socks-proxy",
];

/// Returns openvpn's warning about a file that users other than its owner can read or write.
fn open_to_others(path: &Path, data: &fs::Metadata) -> Option<String> {
    (data.is_file() && data.mode() & 0o077 != 0).then(|| {
        format!("WARNING: file '{}' is group or others accessible: chmod 600 it", path.display())
    })
}

pub(super) fn read_file(directive: &str, path: &Path) -> Result<Zeroizing<Vec<u8>>, Fault> {
    use std::io::Read;
    let problem = |e: io::Error| {
        let remedy = match e.kind() {
            io::ErrorKind::NotFound => {
                "check the path; a relative one starts where the program was started, or at 'cd'"
            }
            io::ErrorKind::PermissionDenied => "run as root, or make it readable for this user",
            _ => "check the file",
        };
        Fault::operator(format!("--{directive} fails with '{}': {e}: {remedy}", path.display()))
    };
    let mut bytes = Zeroizing::new(Vec::new());
    let file = files::open(path).map_err(problem)?;
    if SECRET.contains(&directive)
        && let Some(warning) = file.metadata().ok().and_then(|data| open_to_others(path, &data))
    {
        tracing::warn!("{warning}");
    }
    file.take(FILE_LIMIT + 1).read_to_end(&mut bytes).map_err(problem)?;
    if bytes.len() as u64 > FILE_LIMIT {
        let message = format!("--{directive}: '{}' is not a key or certificate", path.display());
        return Err(Fault::operator(message));
    }
    Ok(bytes)
}

fn remote_cert_tls(usage: Usage) -> RemoteCertTls {
    match usage {
        Usage::Server => RemoteCertTls::Server,
        Usage::Client => RemoteCertTls::Client,
    }
}

impl TlsMaterial {
    /// Reads the files that the configuration names.
    pub(crate) fn read(options: &Tls) -> Result<Self, Fault> {
        let mut common = CommonTlsOptions {
            ca: options.ca.as_ref().map(|ca| read("ca", ca)).transpose()?,
            peer_fingerprints: options.peer_fingerprints.clone(),
            crl: options.crl.as_ref().map(|crl| read("crl-verify", crl)).transpose()?,
            verify: VerifyOptions {
                name_fields: options.name_fields.clone(),
                name: options.verify_name.as_ref().map(|verify| {
                    let kind = match verify.kind {
                        NameKind::Subject => NameType::Subject,
                        NameKind::Name => NameType::Name,
                        NameKind::NamePrefix => NameType::NamePrefix,
                    };
                    (verify.name.clone(), kind)
                }),
                remote_cert_tls: options.peer_usage.map(remote_cert_tls),
                key_usage: options.key_usage.clone(),
                netscape: options.netscape_usage.map(remote_cert_tls),
                issuer: options.issuer.clone(),
            },
            profile: options.profile,
            min_version: Some(version(options.min_version)),
            max_version: options.max_version.map(version),
            tls12_ciphers: options.cipher_list.as_ref().map(|names| names.join(":")),
            tls13_ciphers: options.cipher_suites.as_ref().map(|names| names.join(":")),
            groups: options.groups.as_ref().map(|names| names.join(":")),
            ..CommonTlsOptions::default()
        };
        if let Some(dh) = &options.dh {
            read("dh", dh)?;
        }
        if let Some(path) = &options.ca_path {
            capath::add(&mut common, path)?;
        }
        if let Some(identity) = &options.identity {
            common.cert = Some(read("cert", &identity.cert)?);
            common.key = Some(read("key", &identity.key)?);
            let extra = identity.extra.as_ref();
            common.extra_certs = extra.map(|extra| read("extra-certs", extra)).transpose()?;
        }
        if let Some(external) = &options.external_key {
            if let ExternalCert::Source(cert) = &external.cert {
                common.cert = Some(read("cert", cert)?);
            }
            let extra = external.extra.as_ref();
            common.extra_certs = extra.map(|extra| read("extra-certs", extra)).transpose()?;
        }
        if let Some(pkcs11) = &options.pkcs11 {
            let extra = pkcs11.extra.as_ref();
            common.extra_certs = extra.map(|extra| read("extra-certs", extra)).transpose()?;
        }
        if let Some(AskPass::File(path)) = &options.askpass {
            common.key_password = Some(first_line("askpass", path)?);
        }
        if let Some(pkcs12) = &options.pkcs12 {
            add_pkcs12(&mut common, pkcs12, options.askpass.as_ref())?;
        }
        Ok(Self {
            common,
            client_certificates: options.client_certificates,
            password_from: options.askpass.clone(),
            external: options.external_key.clone(),
            warned: Vec::new(),
        })
    }

    /// Takes certificate and key from a token (`pkcs11-id`). `waits` says whether the program may wait for a person who
    /// enters the PIN again while it runs.
    pub(crate) fn open_token(
        &mut self,
        options: &Tls,
        tokens: Option<&Tokens>,
        waits: bool,
        ask: &mut dyn Ask,
    ) -> Result<(), Fault> {
        if let (Some(wanted), Some(tokens)) = (&options.pkcs11, tokens) {
            let pin = self.common.key_password.take();
            let (cert, key) = token::open(tokens, wanted, pin, waits, ask)?;
            self.common.cert = Some(cert);
            self.common.key_holder = Some(key);
        }
        Ok(())
    }

    /// Loads a client's TLS configuration; asks on the terminal for the key's password if necessary.
    pub(crate) fn client(&mut self) -> Result<ClientTls, Fault> {
        self.client_asking(&mut Terminal)
    }

    /// Does the same as [`Self::client`], but asks elsewhere.
    pub(crate) fn client_asking(&mut self, ask: &mut dyn Ask) -> Result<ClientTls, Fault> {
        if let Some(external) = &self.external {
            if let ExternalCert::Ask(hint) = &external.cert {
                let pem = ask.certificate(hint)?;
                self.common.cert = Some(Pem::new("management-external-cert", pem.into_bytes()));
            }
            self.common.key_holder = Some(ask.key_holder(&external.padding)?);
        }
        let tls = self.with_password(ask, |common| ClientTls::new(ClientTlsOptions { common }))?;
        self.warn(tls.warnings());
        Ok(tls)
    }

    /// Logs each warning once.
    fn warn(&mut self, warnings: &[String]) {
        for text in warnings {
            if self.warned.len() < MAX_WARNED && !self.warned.contains(text) {
                tracing::warn!("{text}");
                self.warned.push(text.clone());
            }
        }
    }

    /// Loads a server's TLS configuration; asks on the terminal for the key's password if necessary.
    pub(crate) fn server(&mut self) -> Result<ServerTls, Fault> {
        self.server_asking(&mut Terminal)
    }

    /// Does the same as [`Self::server`], but asks elsewhere.
    pub(crate) fn server_asking(&mut self, ask: &mut dyn Ask) -> Result<ServerTls, Fault> {
        let client_certificates = self.client_certificates;
        let tls = self.with_password(ask, |common| {
            ServerTls::new(ServerTlsOptions { common, client_certificates })
        })?;
        self.warn(tls.warnings());
        Ok(tls)
    }

    fn with_password<T>(
        &mut self,
        ask: &mut dyn Ask,
        build: impl Fn(CommonTlsOptions) -> Result<T, TlsConfigError>,
    ) -> Result<T, Fault> {
        for tries_left in (0..PASSWORD_TRIES).rev() {
            match build(self.common.clone()) {
                Ok(tls) => return Ok(tls),
                Err(e) if e.is_password() && tries_left > 0 && self.may_ask(ask) => {
                    if self.common.key_password.is_some() {
                        ask.key_refused(&e.to_string())?;
                    }
                    self.common.key_password = Some(ask.key_password()?);
                }
                Err(e) => return Err(Fault::operator(e.to_string())),
            }
        }
        Err(Fault::operator("the password of the private key is wrong"))
    }

    fn may_ask(&self, ask: &dyn Ask) -> bool {
        !matches!(self.password_from, Some(AskPass::File(_))) && ask.can_answer()
    }

    /// Checks that the local certificate is valid at `now`. Otherwise fails with a sentence and a
    /// remedy.
    pub(crate) fn validity(&self, now: u64) -> Result<(), Fault> {
        match &self.common.cert {
            Some(cert) => expiry::check_own(&cert.origin, &cert.bytes, now),
            None => Ok(()),
        }
    }

    /// Returns the local certificate that expires first.
    pub(crate) fn nearest_expiry(&self, now: u64) -> Option<CertificateReport> {
        let pems = [("own", &self.common.cert), ("ca", &self.common.ca)];
        let known = pems.iter().filter_map(|(whose, pem)| Some((*whose, pem.as_ref()?)));
        expiry::nearest(known.map(|(whose, pem)| (whose, pem.bytes.as_slice())), now)
    }

    /// Replaces the revocation list.
    pub(crate) fn set_crl(&mut self, crl: Pem) {
        self.common.crl = Some(crl);
    }
}

/// Adds the contents of the file in `pkcs12`; asks for its password if necessary.
fn add_pkcs12(
    common: &mut CommonTlsOptions,
    wanted: &Pkcs12,
    askpass: Option<&AskPass>,
) -> Result<(), Fault> {
    let origin = wanted.file.to_string();
    let content = read("pkcs12", &wanted.file)?;
    let bytes = match wanted.file {
        Source::File(_) => content.bytes,
        Source::Inline { .. } => pkcs12::from_base64(&content.bytes)
            .ok_or_else(|| Fault::operator(format!("pkcs12: {origin} is not base64")))?,
    };
    let mut password = common.key_password.take().unwrap_or_default();
    let may_ask = !matches!(askpass, Some(AskPass::File(_))) && prompts::can_answer();
    let mut tries = PASSWORD_TRIES;
    let bundle = loop {
        match pkcs12::open(&bytes, &password) {
            Ok(bundle) => break bundle,
            Err(problem) if problem.is_password() && may_ask && tries > 0 => {
                tries -= 1;
                password = prompt("Enter Private Key Password: ")?;
            }
            Err(problem) => return Err(Fault::operator(format!("pkcs12: {origin}: {problem}"))),
        }
    };
    common.cert = Some(Pem::new(origin.clone(), bundle.certificate.as_bytes()));
    common.key = Some(Pem::new(origin.clone(), bundle.key.as_bytes()));
    let mut extra = bundle.intermediates.into_bytes();
    if let Some(more) = &wanted.extra {
        extra.extend_from_slice(&read("extra-certs", more)?.bytes);
    }
    common.extra_certs = (!extra.is_empty()).then(|| Pem::new(origin.clone(), extra));
    // With `ca`, the authorities in the file are not trusted, as in openvpn.
    if common.ca.is_none() && common.peer_fingerprints.is_empty() {
        if bundle.roots.is_empty() {
            let problem = format!("pkcs12: {origin} contains no authority: add ca FILE");
            return Err(Fault::operator(problem));
        }
        common.ca = Some(Pem::new(origin, bundle.roots.as_bytes()));
    }
    Ok(())
}

fn version(version: TlsVersion) -> tls::TlsVersion {
    match version {
        TlsVersion::V12 => tls::TlsVersion::V1_2,
        TlsVersion::V13 => tls::TlsVersion::V1_3,
    }
}

/// Converts `key-direction`.
pub(crate) fn way(direction: u8) -> Direction {
    match direction {
        0 => Direction::Normal,
        _ => Direction::Inverse,
    }
}

/// Loads the control channel's keys.
pub(crate) fn wrap(options: &Options) -> Result<WrapConfig, Fault> {
    let is_server = match &options.role {
        Role::Server(_) => true,
        Role::Client(_) => false,
        Role::Peer(peer) => peer.keys == PeerKeys::TlsServer,
    };
    wrap_of(&options.wrap, is_server, &options.session.auth)
}

fn wrap_of(wrap: &Wrap, is_server: bool, auth: &str) -> Result<WrapConfig, Fault> {
    Ok(match wrap {
        Wrap::None => WrapConfig::None,
        Wrap::TlsAuth { key, direction } => WrapConfig::TlsAuth {
            key: key_file("tls-auth", key, StaticKey::parse)?,
            direction: direction.map(way),
            digest: Digest::from_name(auth).ok_or_else(|| {
                Fault::operator(format!(
                    "auth {auth}: this digest is not supported with tls-auth; use SHA1, SHA256, SHA384 \
                     or SHA512 at both ends"
                ))
            })?,
        },
        Wrap::TlsCrypt(key) => {
            WrapConfig::TlsCrypt { key: key_file("tls-crypt", key, StaticKey::parse)? }
        }
        Wrap::TlsCryptV2 { key, max_age, shared } if is_server => WrapConfig::TlsCryptV2Server {
            key: key_file("tls-crypt-v2", key, ServerKey::parse)?,
            max_age: *max_age,
            shared: match shared {
                Some(shared) => Some(Box::new(wrap_of(shared, is_server, auth)?)),
                None => None,
            },
        },
        Wrap::TlsCryptV2 { key, .. } => {
            WrapConfig::TlsCryptV2Client { key: key_file("tls-crypt-v2", key, ClientKey::parse)? }
        }
    })
}

/// Loads the key of `secret`.
pub(crate) fn secret(source: &Source) -> Result<StaticKey, Fault> {
    key_file("secret", source, StaticKey::parse)
}

/// Loads the key of `auth-gen-token-secret`.
pub(crate) fn token_key(source: &Source) -> Result<TokenKey, Fault> {
    key_file("auth-gen-token-secret", source, TokenKey::parse)
}

fn key_file<T, E: std::fmt::Display>(
    directive: &str,
    source: &Source,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, Fault> {
    let pem = read(directive, source)?;
    let text = std::str::from_utf8(&pem.bytes)
        .map_err(|_| Fault::operator(format!("{directive}: {} is not text", pem.origin)))?;
    parse(text).map_err(|e| Fault::operator(format!("{directive}: {}: {e}", pem.origin)))
}

/// Reads the credentials of `auth-user-pass` from the file, the inline lines, or the terminal.
pub(super) fn credentials(from: &UserPass) -> Result<Credentials, Fault> {
    credentials_asking(from, &mut Terminal)
}

/// Does the same as [`credentials`], but asks elsewhere for what is in no file.
pub(super) fn credentials_asking(from: &UserPass, ask: &mut dyn Ask) -> Result<Credentials, Fault> {
    match from {
        UserPass::Prompt => ask.login("Auth", None),
        UserPass::Source(source) => login("auth-user-pass", source, "Auth", ask),
    }
}

/// Loads the user name and password for a proxy.
pub(crate) fn proxy_login(
    directive: &str,
    from: &UserPass,
    ask: &mut dyn Ask,
) -> Result<Credentials, Fault> {
    match from {
        UserPass::Prompt => ask.login("HTTP Proxy", None),
        UserPass::Source(source) => login(directive, source, "HTTP Proxy", ask),
    }
}

/// Reads a user name and password from two lines; asks for the missing ones.
fn login(
    directive: &str,
    source: &Source,
    kind: &str,
    ask: &mut dyn Ask,
) -> Result<Credentials, Fault> {
    let pem = read(directive, source)?;
    let text = Zeroizing::new(String::from_utf8_lossy(&pem.bytes).into_owned());
    let mut lines = text.lines().map(|line| line.trim_end_matches('\r'));
    let mut next = || lines.next().filter(|line| !line.is_empty());
    let username = next().map(str::to_owned);
    let password = next().map(|line| Zeroizing::new(line.to_owned()));
    match (username, password) {
        (Some(username), Some(password)) => Ok(Credentials { username, password }),
        (username, _) => ask.login(kind, username),
    }
}

pub(super) fn first_line(directive: &str, path: &Path) -> Result<Zeroizing<String>, Fault> {
    let bytes = read_file(directive, path)?;
    let text = Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned());
    Ok(Zeroizing::new(text.lines().next().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named_with_its_directive_as_openvpn_does() {
        let source = Source::File("/nonexistent/ca.crt".into());
        let fault = read("ca", &source).unwrap_err();
        assert!(
            fault.to_string().starts_with(
                "--ca fails with '/nonexistent/ca.crt': No such file or directory (os error 2): check"
            ),
            "{fault}"
        );
        assert_eq!(fault.blame(), adit_runtime::fault::Blame::Operator);
    }

    #[test]
    fn a_key_that_others_can_read_is_warned_of() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.key");
        fs::write(&path, "x").unwrap();
        for (mode, open) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let warning = open_to_others(&path, &fs::metadata(&path).unwrap());
            assert_eq!(warning.is_some(), open, "{mode:o}");
            assert!(warning.is_none_or(|text| text.contains("is group or others accessible")));
        }
        let pipe = Path::new("/dev/null");
        assert_eq!(open_to_others(pipe, &fs::metadata(pipe).unwrap()), None);
    }

    #[test]
    fn credentials_come_from_two_lines() {
        let text = Zeroizing::new("alice\r\ns3cret\r\nrest\n".to_owned());
        let source = Source::Inline { directive: "auth-user-pass", text };
        let credentials = credentials(&UserPass::Source(source)).unwrap();
        assert_eq!(credentials.username, "alice");
        assert_eq!(*credentials.password, "s3cret");
    }

    #[test]
    fn a_broken_key_names_directive_and_file() {
        let source = Source::Inline {
            directive: "tls-crypt",
            text: Zeroizing::new("nothing of the kind".into()),
        };
        let fault = key_file("tls-crypt", &source, StaticKey::parse).unwrap_err();
        assert!(fault.to_string().starts_with("tls-crypt: [inline] <tls-crypt>: there is no line"));
    }
}
