//! `adit doctor`: reports what prevents a VPN from working on this host, with a remedy for each problem.

mod folders;
mod kernel;
mod network;
mod server;
mod single_sign_on;
mod users;

use std::fs;
use std::process::{Command, Stdio};

use serde::Serialize;

use super::host_state::HostState;
use super::leftover;
use super::settings::{Listen, Settings};
use adit_runtime::paths::Paths;

/// The severity of a [`Finding`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// There is no problem.
    Fine,
    /// The VPN works, but with a limitation.
    Warning,
    /// The VPN will not work.
    Problem,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A short name: `tun`, `rights`, ...
    pub check: &'static str,
    /// The severity.
    pub level: Level,
    /// The finding, as a sentence.
    pub what: String,
    /// The remedy; one command or sentence per line.
    pub remedy: Vec<String>,
    /// Whether `adit doctor --fix` can apply the remedy.
    pub fixable: bool,
    #[serde(skip)]
    fix: Option<Fix>,
}

/// A fix that `--fix` may apply. None of them can cut off a user who is logged in over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fix {
    Run(&'static str, Vec<String>),
    Mode(std::path::PathBuf, u32),
    /// Undo the changes that ended processes left.
    Release,
    /// Undo the changes that a killed server left.
    Undo(Box<Paths>),
}

impl Finding {
    fn new(check: &'static str, level: Level, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { check, level, what, remedy: Vec::new(), fixable: false, fix: None }
    }

    /// Reports that a check found no problem.
    pub fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Fine, what)
    }

    /// Reports a limitation.
    pub fn warning(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Warning, what)
    }

    /// Reports what keeps the VPN from working.
    pub fn problem(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Problem, what)
    }

    /// Adds a line to the remedy.
    #[must_use]
    pub fn remedy(mut self, line: impl Into<String>) -> Self {
        self.remedy.push(line.into());
        self
    }

    fn fix(mut self, fix: Fix) -> Self {
        self.fixable = true;
        self.fix = Some(fix);
        self
    }

    /// Applies the fix. Returns whether it seems to have worked, or `None` if there is no fix.
    pub fn repair(&self) -> Option<bool> {
        Some(match self.fix.as_ref()? {
            Fix::Run(program, args) => Command::new(program)
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success()),
            // Claiming the host state first undoes the changes that a killed server left.
            Fix::Undo(paths) => HostState::claim(paths, std::process::id()).is_ok(),
            Fix::Mode(path, mode) => {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(*mode);
                fs::set_permissions(path, mode).is_ok()
            }
            Fix::Release => adit_runtime::host::release().is_ok(),
        })
    }
}

/// Performs all checks. Leaves out those of a managed server if there is none.
pub fn examine(paths: &Paths) -> Vec<Finding> {
    let mut findings = vec![
        kernel::tun(),
        kernel::rights(),
        kernel::offloads(),
        kernel::clock(),
        network::forwarding(),
    ];
    let settings = Settings::read(&paths.settings_file());
    let settings_exist = paths.settings_file().exists();
    let device = settings.as_ref().map_or("adit0", |settings| settings.device.as_str());
    let listen = settings.as_ref().map(|settings| settings.listen.clone()).unwrap_or_default();
    findings.extend(network::firewall(device, &listen));
    findings.push(network::mtu());
    findings.push(network::dns());
    // Without these rights every folder would be reported.
    if nix::unistd::geteuid().is_root() {
        findings.extend(folders::folders(&[&paths.config, &paths.data, &paths.run]));
    }
    findings.push(network::leftovers());
    findings.push(network::routing());
    findings.extend(left_behind(paths));
    findings.extend(server::shared_profiles(paths));
    match settings {
        Ok(settings) => {
            findings.extend(server::examine(paths, &settings));
            findings.extend(users::examine(paths, &settings));
            findings.extend(single_sign_on::examine(paths, &settings));
        }
        Err(fault) if settings_exist => {
            findings.push(
                Finding::problem("settings", fault.to_string())
                    .remedy(format!("edit {}", paths.settings_file().display())),
            );
        }
        Err(_) => {}
    }
    findings
}

/// Finds rules of other programs that drop what a mesh node forwards through `device`, or what arrives at its UDP port. `None`: the node
/// forwards nothing.
pub fn firewall_of_mesh(device: Option<&str>, port: u16) -> Vec<Finding> {
    network::foreign_rules(device, "the mesh's", &[Listen::udp(port)])
}

/// Finds the changes that a killed server left on this host.
fn left_behind(paths: &Paths) -> Option<Finding> {
    let left: Vec<String> = leftover::of(paths).iter().map(ToString::to_string).collect();
    (!left.is_empty()).then(|| {
        let what = format!("a server was killed and left behind: {}", left.join(", "));
        Finding::warning("leftovers", what)
            .remedy(paths.command("doctor --fix"))
            .remedy(format!("or start it again: {}", paths.command("server run")))
            .fix(Fix::Undo(Box::new(paths.clone())))
    })
}

/// Returns the reason why the server cannot listen on a port, or `None` if it can.
pub(super) fn port_problem(listen: Listen) -> Option<String> {
    let finding = server::port(listen, false);
    (finding.level == Level::Problem).then_some(finding.what)
}

/// Performs the checks that every tunnel needs.
pub(super) fn for_a_tunnel() -> Vec<Finding> {
    vec![kernel::tun(), kernel::rights()]
}

/// Returns the problems and warnings that `adit server up` prints before it starts.
pub(super) fn in_the_way(paths: &Paths, settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![kernel::tun(), kernel::rights(), kernel::clock()];
    findings.extend(network::firewall(&settings.device, &settings.listen));
    findings.extend(server::examine(paths, settings));
    findings.extend(users::examine(paths, settings));
    findings.retain(|finding| finding.level != Level::Fine);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_complaint_has_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        fs::write(
            paths.settings_file(),
            "host = \"no-such-host.invalid\"\nnetwork = \"127.0.0.0/24\"\n",
        )
        .unwrap();
        let findings = examine(&paths);
        for check in ["tun", "rights", "forwarding", "firewall", "mtu", "offloads", "clock", "dns"]
        {
            assert!(findings.iter().any(|finding| finding.check == check), "{check} is missing");
        }
        for finding in &findings {
            assert_eq!(
                finding.level == Level::Fine,
                finding.remedy.is_empty(),
                "{}: {}",
                finding.check,
                finding.what
            );
        }
        let overlap = findings.iter().find(|finding| finding.check == "network").unwrap();
        assert_eq!(overlap.level, Level::Problem, "{}", overlap.what);
    }

    #[test]
    fn a_broken_file_is_a_finding() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        fs::write(paths.settings_file(), "nonsense").unwrap();
        let findings = examine(&paths);
        let finding = findings.iter().find(|finding| finding.check == "settings").unwrap();
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.what.contains("line 1"), "{}", finding.what);
    }
}
