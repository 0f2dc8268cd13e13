//! The packages of scripts/packages.sh, installed and removed in small Debian systems (scripts/package-roots.sh).

mod booted;
mod debian;
mod moving;
mod others;
mod services;
mod units;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nix::mount::{MntFlags, umount2};

use super::{Test, new_user};
use crate::case::TestEnv;
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::peer::Program;
use crate::process::{output, run};
use crate::sandbox::text;
use crate::skip::skip;

/// The variable that names the Debian suites, separated by blanks.
const SUITES: &str = "ADIT_PACKAGE_SUITES";

/// Debian's oldstable, whose glibc is the oldest one that the packages support.
const DEFAULT_SUITE: &str = "bookworm";

/// The version of the packages, and an older one.
const VERSION: &str = "1.2.3";
const OLDER: &str = "1.2.2";

type CaseFn = fn(&Case<'_>) -> Result<String>;

/// The cases of each suite.
const CASES: &[(&str, CaseFn)] = &[
    ("install-upgrade-purge", debian::install_upgrade_purge),
    ("uninstall", debian::uninstall),
    ("over-an-installation-by-hand", debian::over_an_installation_by_hand),
    ("openvpn-replaced", debian::openvpn_replaced),
    ("moving-from-openvpn", moving::from_openvpn),
    ("units", units::hardened),
    ("services", services::services),
    ("rpm", others::rpm),
    ("tarball", others::tarball),
];

/// The cases that do not depend on a suite.
const ALONE: &[(&str, CaseFn)] = &[("image", others::image), ("same-bytes", others::same_bytes)];

/// A case in a suite.
struct Case<'a> {
    env: &'a TestEnv,
    folder: PathBuf,
    adit: &'a Path,
    suite: &'a str,
}

/// Returns the tests, in the suites that the environment names.
pub(super) fn tests(adit: &Program) -> Vec<Test> {
    let Program::Adit(adit) = adit else { return Vec::new() };
    let suites = std::env::var(SUITES).unwrap_or_else(|_| DEFAULT_SUITE.into());
    let mut tests = Vec::new();
    for (name, case) in ALONE {
        tests.push(test(format!("packages/{name}"), adit, DEFAULT_SUITE, *case));
    }
    for suite in suites.split_whitespace() {
        for (name, case) in CASES {
            tests.push(test(format!("packages/{suite}/{name}"), adit, suite, *case));
        }
    }
    tests
}

fn test(name: String, adit: &Path, suite: &str, case: CaseFn) -> Test {
    let (adit, suite, label) = (adit.to_owned(), suite.to_owned(), name.replace('/', "_"));
    let run = move |env: &TestEnv| {
        let folder = env.sandbox.folder(&label)?;
        case(&Case { env, folder, adit: &adit, suite: &suite })
    };
    Test { name, run: Box::new(run) }
}

/// All formats of packages.
const FORMATS: [&str; 4] = ["deb", "rpm", "tarball", "image"];

/// Builds packages of a version with the program `adit`, whose man pages `native` prints.
fn build(folder: &Path, version: &str, adit: &Path, native: &Path, formats: &[&str]) -> Result<()> {
    let mut command = Command::new("scripts/packages.sh");
    command.args(["--fast", "--version", version, "--out", text(folder)]);
    command.arg("--adit").arg(adit).arg("--native").arg(native).args(formats);
    output(command).map(drop)
}

/// Keeps files, and leaves out folders.
fn without_folders(files: BTreeSet<String>) -> BTreeSet<String> {
    files.into_iter().filter(|name| !name.ends_with('/')).collect()
}

impl Case<'_> {
    /// Returns the folder with the packages, which the first case that needs them builds for all.
    fn packages(&self) -> Result<PathBuf> {
        static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &*built {
            return Ok(folder.clone());
        }
        let folder = self.env.sandbox.folder("packages")?;
        build(&folder, VERSION, self.adit, self.adit, &FORMATS)?;
        build(&folder, OLDER, self.adit, self.adit, &["deb"])?;
        *built = Some(folder.clone());
        Ok(folder)
    }

    /// Returns the file of a Debian package.
    fn deb(&self, name: &str, version: &str) -> Result<PathBuf> {
        self.file(&format!("{name}_{version}_"), ".deb")
    }

    /// Returns the package file with this beginning and end.
    fn file(&self, prefix: &str, suffix: &str) -> Result<PathBuf> {
        let fits = |name: &str| name.starts_with(prefix) && name.ends_with(suffix);
        fs::read_dir(self.packages()?)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(fits))
            .context(format!("no {prefix}*{suffix} was built"))
    }

    /// Returns a Debian system of its own. Without its root, counts the check as skipped.
    fn machine(&self) -> Result<Option<Machine>> {
        let name = format!("packages-{}", self.suite);
        let Ok(root) = Path::new("target/roots").join(&name).canonicalize() else {
            skip(&name, "no root of this Debian suite: scripts/package-roots.sh makes it");
            return Ok(None);
        };
        Machine::new(&root, &self.folder).map(Some)
    }
}

/// A Debian system: a layer over a root, which programs enter by chroot.
struct Machine {
    root: PathBuf,
}

/// Mounts the system. `$1` is the root, and `$2` the folder for the layer.
const MOUNT: &str = r#"set -e
cd "$2"
mkdir new work root
mount -t overlay overlay -o "lowerdir=$1,upperdir=new,workdir=work" root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount -t tmpfs -o mode=0755 tmpfs root/run
"#;

impl Machine {
    /// Mounts a system. The user that a package adds to it has an id of its own.
    fn new(lower: &Path, folder: &Path) -> Result<Self> {
        let this = Self { root: folder.join("root") };
        run("sh", &["-c", MOUNT, "sh", text(lower), text(folder)])?;
        let id = new_user();
        let range =
            ["UID", "GID"].map(|kind| format!("SYS_{kind}_MIN {id}\nSYS_{kind}_MAX {id}\n"));
        let mut settings = OpenOptions::new().append(true).open(this.path("etc/login.defs"))?;
        settings.write_all(range.concat().as_bytes())?;
        Ok(this)
    }

    /// Returns the path of a file in it.
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the words that run a program in it.
    fn words<'a>(&'a self, program: &'a str) -> [&'a str; 7] {
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        [text(&self.root), "env", "-i", path, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", program]
    }

    /// Runs a program in it, in the sandbox's own network namespace. Returns its output, with the errors.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let line = "exec 2>&1; exec chroot \"$@\"";
        let words = self.words(program);
        run("sh", &[&["-c", line, "sh"][..], &words[..], arguments].concat())
    }

    /// Creates a command that runs in it, in a network namespace.
    fn command(&self, namespace: &Namespace, program: &str, arguments: &[&str]) -> Command {
        // `ip netns exec` would give it mounts of its own, in which the other programs of the system do not see it.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", namespace.name())).arg("chroot");
        command.args(self.words(program)).args(arguments);
        command
    }

    /// Runs dpkg with package files.
    fn dpkg(&self, action: &str, packages: &[PathBuf]) -> Result<String> {
        let mut inside = Vec::new();
        for package in packages {
            let name = package.file_name().and_then(|name| name.to_str()).context("no file")?;
            fs::copy(package, self.path("tmp").join(name)).context(name)?;
            inside.push(format!("/tmp/{name}"));
        }
        let names: Vec<&str> = inside.iter().map(String::as_str).collect();
        let done = self.run("dpkg", &[&[action][..], &names].concat());
        for name in &inside {
            fs::remove_file(self.path(name))?;
        }
        done
    }

    /// Returns all files, and folders with a slash at the end, without the databases of dpkg and the backups and locks of the
    /// tools for users.
    fn files(&self) -> Result<BTreeSet<String>> {
        let mut files = BTreeSet::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).context(folder.display())? {
                let path = entry?.path();
                let name = path.strip_prefix(&self.root).unwrap_or(&path).display().to_string();
                if ["proc", "dev", "sys", "var/lib/dpkg"].contains(&name.as_str()) {
                    continue;
                }
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                    files.insert(name + "/");
                } else {
                    files.insert(name);
                }
            }
        }
        let users = ["passwd-", "group-", "shadow-", "gshadow-", "subuid", "subgid", ".pwd.lock"];
        files.retain(|name| {
            name != "var/log/dpkg.log" && !users.iter().any(|user| *name == format!("etc/{user}"))
        });
        Ok(files)
    }

    /// Returns the lines of the users and groups.
    fn users(&self) -> Result<String> {
        let read = |name| fs::read_to_string(self.path(name)).context(name);
        Ok(read("etc/passwd")? + &read("etc/group")?)
    }

    /// Checks that a file exists, or does not.
    fn expect_file(&self, path: &str, exists: bool) -> Result<()> {
        let found = self.path(path).symlink_metadata().is_ok();
        ensure(found == exists, || {
            format!("{path} {}", if found { "exists" } else { "is missing" })
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = umount2(&self.root, MntFlags::MNT_DETACH);
    }
}

/// Checks that two sets of files are equal, and names the differences.
fn ensure_same(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Result<()> {
    let new: Vec<&String> = after.difference(before).collect();
    let gone: Vec<&String> = before.difference(after).collect();
    ensure(new.is_empty() && gone.is_empty(), || format!("left: {new:?}, missing: {gone:?}"))
}
