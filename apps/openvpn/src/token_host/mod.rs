//! Keys on tokens (`pkcs11-id`), with the PKCS#11 modules in a process of their own.
//!
//! ```text
//!   network process: Tokens ──requests, one at a time──► token host: the modules, one thread calls them ──► tokens
//!                           ◄─replies───────────────────
//! ```
//!
//! A module is foreign code with all rights of its process. The host is another instance of this program, which is
//! started before the network process reads a packet. It gets digests to sign, and the PIN once. It changes to the
//! configured user when the network process does. A module that crashes ends the host: then there are no further
//! signatures, and the program ends. A token that blocks delays one signature for a limited time, and fails the others
//! at once.

mod key;
mod link;
mod modules;
mod process;
mod protocol;
#[cfg(test)]
pub(crate) mod tests;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use adit_openvpn::config::{Options, Pkcs11};
use adit_runtime::fault::Fault;
use zeroize::Zeroizing;

pub(crate) use self::key::{FilePin, PinEntry, PinSource, TokenKey, last_try, wrong_file};
use self::link::Link;
pub(crate) use self::protocol::{Certificate, SeenToken, TokenRef};
use self::protocol::{Mechanism, Mechanisms, ModuleFile, OpenRequest, Pin, Reply, Request};

/// The program name of the token host.
pub(crate) const NAME: &str = "adit-tokens";

/// The number of tasks (threads) that the token host adds to a service's limits, with one for a module's own.
pub(crate) const TASKS: u16 = 4;

/// Whether this build can load modules. A static executable (musl) cannot load shared objects.
const SUPPORTED: bool = cfg!(not(target_env = "musl"));

/// How long modules may take to load: they may look for readers.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// How long the search for tokens and certificates may take: cards are slow.
const SCAN_LIMIT: Duration = Duration::from_secs(60);

/// How long a login may take. The PIN may have to be entered on the token's keypad.
const LOGIN_LIMIT: Duration = Duration::from_secs(120);

/// How long a signature may take. The control thread waits for it.
const SIGN_LIMIT: Duration = Duration::from_secs(10);

/// Runs the token host if this process was started as one.
pub fn main(arguments: &[OsString]) -> Option<ExitCode> {
    let name = arguments.first().map(Path::new)?;
    (name == Path::new(NAME)).then(process::main)
}

/// Parses messages of a token host, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<protocol::Message>(bytes) {
        let again = serde_json::to_vec(&message).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<protocol::Message>(&again).ok(), Some(message));
    }
    if let Some(signature) = key::ecdsa_der(bytes) {
        assert!(signature.len() <= bytes.len().saturating_add(9));
    }
    let text = String::from_utf8_lossy(bytes);
    if let Ok(query) = adit_openvpn::tls::CertificateQuery::parse(&text) {
        let label = query.token_label().unwrap_or_default();
        assert!(label.len() <= text.len());
    }
}

/// The tokens of the configuration. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    link: Arc<Link>,
}

/// The outcome of a login.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Login {
    Done,
    /// The PIN is wrong. `last` if a further wrong one locks the token.
    Wrong {
        last: bool,
    },
    /// The PIN was not tried, because a wrong one would lock the token.
    LastTry,
    /// The token is not there.
    Missing,
}

/// Refuses tokens in a build that cannot load their modules.
fn check_build(loads_modules: bool) -> Result<(), Fault> {
    if loads_modules {
        return Ok(());
    }
    Err(Fault::operator(
        "pkcs11-providers: this build of adit is static and cannot load shared objects: use the build for glibc",
    ))
}

impl Tokens {
    /// Starts the host and loads the modules. Call it as root, before any thread is started.
    ///
    /// # Errors
    /// The host cannot be started, or a module cannot be used.
    pub(crate) fn start(options: &Options) -> Result<Option<Self>, Fault> {
        let Some(pkcs11) = &options.tls.pkcs11 else { return Ok(None) };
        let (user, group) = (options.process.user.clone(), options.process.group.clone());
        Self::load(pkcs11, user, group).map(Some)
    }

    /// Does the same for the modules alone.
    pub(crate) fn load(
        pkcs11: &Pkcs11,
        user: Option<String>,
        group: Option<String>,
    ) -> Result<Self, Fault> {
        check_build(SUPPORTED)?;
        let modules = pkcs11.providers.iter().map(|provider| ModuleFile {
            file: provider.module.clone(),
            protected: provider.protected,
            private: provider.private,
        });
        let request = OpenRequest {
            modules: modules.collect(),
            pin_cache: pkcs11.pin_cache.map(|cache| cache.as_secs()),
            user,
            group,
        };
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME);
        Self::start_as(command, request)
    }

    fn start_as(command: Command, request: OpenRequest) -> Result<Self, Fault> {
        for module in &request.modules {
            adit_runtime::say!(1, "PKCS#11: Adding PKCS#11 provider '{}'", module.file);
        }
        let this = Self { link: Arc::new(Link::start(command)?) };
        match this.link.call(Request::Open(request), OPEN_LIMIT) {
            Ok(Reply::Done) => Ok(this),
            Ok(Reply::Failed(reason)) => Err(Fault::operator(reason)),
            Ok(_) => Err(unexpected()),
            Err(reason) => Err(Fault::environment(reason)),
        }
    }

    /// Changes the host to the configured user.
    ///
    /// # Errors
    /// The user cannot be changed.
    pub(crate) fn become_user(&self) -> Result<(), Fault> {
        match self.link.call(Request::BecomeUser, OPEN_LIMIT) {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Failed(reason)) | Err(reason) => Err(Fault::environment(reason)),
            Ok(_) => Err(unexpected()),
        }
    }

    /// Returns the tokens that are there, and the certificates on them.
    ///
    /// # Errors
    /// The host does not answer.
    pub(crate) fn scan(&self) -> Result<(Vec<SeenToken>, Vec<Certificate>), Fault> {
        let (tokens, count) = match self.link.call(Request::Scan, SCAN_LIMIT) {
            Ok(Reply::Scanned { tokens, certificates }) => (tokens, certificates),
            Ok(Reply::Failed(reason)) | Err(reason) => return Err(Fault::environment(reason)),
            Ok(_) => return Err(unexpected()),
        };
        let mut certificates = Vec::new();
        for number in 0..count.min(protocol::MAX_CERTIFICATES) {
            match self.link.call(Request::Certificate(number), SCAN_LIMIT) {
                Ok(Reply::Certificate(certificate)) => certificates.push(*certificate),
                Ok(Reply::Failed(reason)) | Err(reason) => return Err(Fault::environment(reason)),
                Ok(_) => return Err(unexpected()),
            }
        }
        Ok((tokens, certificates))
    }

    /// Logs in to a token. Without a PIN, it is entered on the token's own keypad. `by_hand` says whether a person has
    /// just entered the PIN.
    ///
    /// # Errors
    /// Says why this is impossible with any PIN.
    pub(crate) fn login(
        &self,
        token: &TokenRef,
        pin: Option<Zeroizing<String>>,
        by_hand: bool,
    ) -> Result<Login, String> {
        let request = Request::Login { token: token.clone(), pin: pin.map(Pin), by_hand };
        match self.link.call(request, LOGIN_LIMIT)? {
            Reply::Done => Ok(Login::Done),
            Reply::WrongPin { last } => Ok(Login::Wrong { last }),
            Reply::LastTry => Ok(Login::LastTry),
            Reply::Missing => Ok(Login::Missing),
            Reply::Failed(reason) => Err(reason),
            _ => Err("token host: unexpected reply".into()),
        }
    }

    /// Uses the key of a certificate from now on. Returns the mechanisms that the token has for it.
    fn choose(&self, certificate: &Certificate) -> Result<Mechanisms, Fault> {
        let (token, id) = (certificate.token.clone(), certificate.id.clone());
        let label = certificate.token.label();
        match self.link.call(Request::Use { token, id }, SCAN_LIMIT) {
            Ok(Reply::Ready(mechanisms)) => Ok(mechanisms),
            Ok(Reply::PinNeeded) => {
                Err(Fault::environment(format!("token '{label}': it asks for the PIN again")))
            }
            Ok(Reply::Missing) => Err(Fault::environment(missing(&label))),
            Ok(Reply::Failed(reason)) | Err(reason) => Err(Fault::environment(reason)),
            Ok(_) => Err(unexpected()),
        }
    }

    /// Signs with the key in use.
    fn sign(&self, mechanism: Mechanism, data: &[u8]) -> Result<Reply, String> {
        self.link.call(Request::Sign { mechanism, data: data.to_vec() }, SIGN_LIMIT)
    }

    /// Returns the fault if the host has ended.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.link.fault()
    }
}

fn unexpected() -> Fault {
    Fault::ours("token host: unexpected reply")
}

/// Returns the sentence about a token that is not there.
pub(crate) fn missing(label: &str) -> String {
    format!("token '{label}' is not there: insert it")
}
