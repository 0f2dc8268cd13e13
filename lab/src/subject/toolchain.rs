//! The resources that all trials of a run share: keys, folders, the programs and their versions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use adit_testbed::failure::Result;
use adit_testbed::sandbox::Sandbox;
use tempfile::TempDir;

use super::keys::Keys;
use super::tinc::RsaKey;
use super::{
    Bridging, Joint, Subject, TunnelSpec, Tunnels, adit, bare, bridge, copy, database, mesh,
    nebula, revision, wired, wireguard,
};
use crate::testbed::Testbed;

/// The shared resources, made once per run inside the sandbox.
#[derive(Debug)]
pub struct Toolchain {
    folder: PathBuf,
    keys: Keys,
    revisions: BTreeMap<String, PathBuf>,
    known: BTreeMap<Subject, std::result::Result<String, String>>,
    rsa: OnceLock<Result<RsaKey>>,
}

impl Toolchain {
    /// Makes the keys and asks the programs of these subjects for their versions.
    ///
    /// # Errors
    /// The keys could not be written; a revision is unknown, or was not built by [`super::prepare`] beforehand and
    /// cannot be built in the sandbox.
    pub fn new(sandbox: &Sandbox, subjects: &[Subject]) -> Result<Self> {
        let mut toolchain = Self {
            folder: sandbox.folder("tunnels")?,
            keys: Keys::make(sandbox.folder("keys")?)?,
            revisions: revision::prepare(subjects)?,
            known: BTreeMap::new(),
            rsa: OnceLock::new(),
        };
        toolchain.known = subjects.iter().map(|s| (s.clone(), toolchain.ask(s))).collect();
        Ok(toolchain)
    }

    /// Returns the subject's version.
    ///
    /// # Errors
    /// The subject cannot be measured here; the error gives the reason and the program to install.
    pub fn available(&self, subject: &Subject) -> std::result::Result<String, String> {
        self.known.get(subject).cloned().unwrap_or_else(|| self.ask(subject))
    }

    /// Starts the subject on every host of the testbed; returns when all clients can pass traffic.
    ///
    /// # Errors
    /// The subject is not available, it does not support the spec, or it did not become ready; in the last case the
    /// error includes its log.
    pub fn start(
        &self,
        subject: &Subject,
        testbed: &Testbed,
        spec: &TunnelSpec,
    ) -> Result<Tunnels> {
        self.available(subject)?;
        match subject {
            Subject::Bare => bare::start(testbed, spec),
            Subject::Copy => copy::start(testbed, spec),
            Subject::Vpn(vpn) => vpn.start(self, testbed, spec),
            Subject::Bridge(bridging) => bridge::start(self, *bridging, testbed, spec),
            Subject::Wired(joint) => wired::start(self, *joint, testbed, spec),
            Subject::Database(_) => Err(format!(
                "{subject} needs a database: only scenarios of the kinds postgres and soak have one"
            )
            .into()),
            Subject::Tinc(version) => version.start(self, testbed, spec),
            Subject::Nebula => nebula::start(self, testbed, spec),
            Subject::WireguardGo => wireguard::start(self, testbed, spec),
            Subject::Mesh => mesh::start(self, testbed, spec),
        }
    }

    fn ask(&self, subject: &Subject) -> std::result::Result<String, String> {
        match subject.revision() {
            Some(revision) => adit::version(&self.adit(Some(revision))?, true),
            None => here(subject),
        }
    }

    /// Returns the certificates and keys that adit and openvpn use.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the binary of adit: this tree's, or that of a revision.
    ///
    /// # Errors
    /// It is not built.
    pub fn adit(&self, revision: Option<&str>) -> std::result::Result<PathBuf, String> {
        match revision {
            None => adit::beside(),
            Some(revision) => self.revisions.get(revision).cloned().ok_or_else(|| {
                format!("adit@{revision} was not built: name it when the run is prepared")
            }),
        }
    }

    /// Returns tinc's key, which the first call creates.
    pub(super) fn rsa(&self) -> Result<&RsaKey> {
        let key = self.rsa.get_or_init(|| RsaKey::make(self.keys.folder()));
        key.as_ref().map_err(Clone::clone)
    }

    /// Creates a folder in memory for the files of one tunnel, which is removed on drop.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn scratch(&self) -> Result<TempDir> {
        Ok(tempfile::Builder::new().prefix("t").tempdir_in(&self.folder)?)
    }
}

/// Returns the version of a subject on this machine.
///
/// # Errors
/// The subject cannot be measured here; the error gives the reason and the program to install.
pub fn here(subject: &Subject) -> std::result::Result<String, String> {
    match subject {
        Subject::Bare | Subject::Wired(Joint::Kernel | Joint::KernelRules) => {
            Ok(format!("Linux {}", kernel()))
        }
        Subject::Copy | Subject::Bridge(Bridging::Plain | Bridging::PlainThreads) => {
            copy::version()
        }
        Subject::Bridge(_) | Subject::Wired(Joint::Adit) | Subject::Mesh => {
            adit::version(&adit::beside()?, false)
        }
        Subject::Vpn(vpn) => vpn.version(),
        Subject::Database(scheme) => database::version(*scheme),
        Subject::Tinc(version) => version.installed(),
        Subject::Nebula => nebula::version(),
        Subject::WireguardGo => wireguard::version(),
    }
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// Returns the first line of a program's version output, on whichever stream it is printed.
///
/// # Errors
/// The program does not exist; `install` then tells the user what to do.
pub(super) fn first_line(
    program: &Path,
    arguments: &[&str],
    install: &str,
) -> std::result::Result<String, String> {
    let done = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{}: {error}: {install}", program.display()))?;
    // openvpn exits with 1 after printing its version, so the exit status means nothing.
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().map(str::trim).find(|line| !line.is_empty());
    line.map(str::to_owned)
        .ok_or_else(|| format!("{} tells no version: {install}", program.display()))
}
