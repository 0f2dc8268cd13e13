//! Leaves the sessions of a running server to its next process.
//!
//! Only what the engine and the data plane have passes. A server with programs, plugins, a management client or tokens, which know their
//! sessions themselves, ends them instead.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_openvpn::config::{self, DeviceKind, Options, Role, ServerOptions};
use adit_openvpn_service::handover;
use adit_runtime::control::{self, Request, Response};
use adit_runtime::fault::Fault;

use super::{control_socket, scripts};
use crate::config_files::Configs;

/// The time within which a process hands its sessions over.
const PATIENCE: Duration = Duration::from_secs(15);

/// Returns how sessions pass between processes with this configuration. `others` are whether it has plugins, and tokens.
pub(super) fn setup(options: &Options, role: &ServerOptions, others: [bool; 2]) -> handover::Setup {
    let mut setup = handover::Setup::from_env(settings(options));
    setup.obstacle = obstacle(options, role, others);
    if setup.obstacle.is_some() {
        setup.inherited = None;
    }
    setup
}

/// Returns the settings on which sessions depend: all of them, because a new version of the program does not change any.
fn settings(options: &Options) -> String {
    options.directives.join("\n")
}

/// Returns what a configuration has that does not pass to another process.
fn obstacle(
    options: &Options,
    role: &ServerOptions,
    [plugins, tokens]: [bool; 2],
) -> Option<&'static str> {
    let obstacles = [
        (options.device.kind != DeviceKind::Tun, "the stations behind clients of a TAP device"),
        (scripts::setup(options).is_some(), "the sessions that programs know"),
        (plugins, "the sessions that plugins know"),
        (tokens, "the keys of tokens"),
        (options.management.is_some(), "the sessions that a management client knows"),
        (options.process.chroot.is_some(), "the sessions of a process with chroot"),
        (role.ccd_exclusive, "the checks of client-config-dir with ccd-exclusive"),
        (options.tls.crl_directory.is_some(), "the checks of a directory of revoked certificates"),
    ];
    obstacles.into_iter().find_map(|(exists, what)| exists.then_some(what))
}

/// Asks a running server to leave its sessions to the next process, which the service manager starts, and waits until it has ended.
/// Returns the number of sessions.
///
/// # Errors
/// The process is no server of `adit openvpn`, or it has to end its sessions; the error says why.
pub fn hand_over(pid: u32) -> Result<usize, Fault> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let missing = |e| Fault::operator(format!("process {pid}: {e}"));
    let command = fs::read(process.join("cmdline")).map_err(missing)?;
    let args = arguments(&command)
        .ok_or_else(|| Fault::operator(format!("process {pid} is not adit openvpn")))?;
    // The configuration may name its files relative to the process's working directory. A unit's own commands may not see it, but are in it
    // anyway.
    let _ = env::set_current_dir(process.join("cwd"));
    // As the next process will read it.
    let options = config::parse(&args, &Configs::default())
        .map_err(|e| Fault::operator(format!("Options error: {e}")))?;
    if !matches!(options.role, Role::Server(_)) {
        return Err(Fault::operator(format!("process {pid} is not a server")));
    }
    let request = Request::HandOver { version: handover::VERSION, settings: settings(&options) };
    match control::request(&control_socket(pid), &request)? {
        Response::Done { count } => {
            let until = Instant::now() + PATIENCE;
            while runs(&process) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(count)
        }
        Response::Error { message } => {
            Err(Fault::environment(format!("the sessions end and begin again: {message}")))
        }
        _ => Err(Fault::ours("the server gave an unexpected answer")),
    }
}

/// Returns the arguments in a command line of `adit openvpn` or, where adit is called openvpn, of `openvpn`.
fn arguments(command: &[u8]) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(command);
    let mut words = text.strip_suffix('\0').unwrap_or(&text).split('\0').map(str::to_owned);
    let program = words.next()?;
    let openvpn = Path::new(&program).file_name().is_some_and(|name| name == "openvpn");
    if !openvpn && words.next()? != "openvpn" {
        return None;
    }
    Some(words.collect())
}

/// Returns whether a process has not ended. One that its parent has not noticed yet has ended.
fn runs(process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use adit_openvpn::config::Disk;

    use super::*;

    #[test]
    fn the_arguments_follow_the_command() {
        let of = |text: &str| arguments(text.as_bytes());
        let config = Some(vec!["--config".to_owned(), "a b.conf".to_owned()]);
        assert_eq!(of("/usr/bin/adit\0openvpn\0--config\0a b.conf\0"), config);
        assert_eq!(of("/usr/sbin/openvpn\0--config\0a b.conf\0"), config);
        assert_eq!(of("openvpn\0"), Some(Vec::new()));
        for other in ["/usr/bin/adit\0server\0run\0", "/usr/bin/sleep\0", "\0", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_that_has_ended_does_not_run() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        while runs(&process) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(!runs(&process));
        assert!(runs(Path::new("/proc/self")));
    }

    #[test]
    fn a_server_whose_sessions_others_know_too_hands_nothing_over() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("file");
        fs::write(&key, "").unwrap();
        let key = key.display();
        let plain = format!(
            "--dev tun --server 10.8.0.0 255.255.255.0 --dh none --ca {key} --cert {key} --key {key}"
        );
        let found = |more: &str, others| {
            let words = format!("{plain} {more}");
            let args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            let options = config::parse(&args, &Disk).unwrap();
            let Role::Server(role) = &options.role else { panic!() };
            obstacle(&options, role, others)
        };
        assert_eq!(found("", [false; 2]), None);
        assert_eq!(found("--client-config-dir /tmp --client-to-client", [false; 2]), None);
        for (more, others, part) in [
            ("", [true, false], "plugins"),
            ("", [false, true], "tokens"),
            ("--script-security 2 --client-connect /bin/true", [false; 2], "programs"),
            ("--management 127.0.0.1 7505", [false; 2], "management"),
            ("--chroot /tmp", [false; 2], "chroot"),
            ("--client-config-dir /tmp --ccd-exclusive", [false; 2], "ccd-exclusive"),
            ("--crl-verify /tmp dir", [false; 2], "revoked"),
        ] {
            let obstacle = found(more, others);
            assert!(obstacle.is_some_and(|what| what.contains(part)), "{more}: {obstacle:?}");
        }
        let tap = plain.replace("--dev tun", "--dev tap");
        let args: Vec<String> = tap.split_whitespace().map(str::to_owned).collect();
        let options = config::parse(&args, &Disk).unwrap();
        let Role::Server(role) = &options.role else { panic!() };
        assert!(obstacle(&options, role, [false; 2]).is_some_and(|what| what.contains("TAP")));
    }
}
