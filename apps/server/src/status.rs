//! `adit status`, `adit top`, `adit kick` and `adit reload`. They query running processes.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::leftover;
use super::processes::{self, Process, user_name};
use adit_runtime::control::{self, ReloadReport, Request, Response, StatusReport};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::paths::Paths;

/// The time limit for one process's status report.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time limit for all processes together. They are queried in parallel.
const ALL_PATIENCE: Duration = Duration::from_secs(3);

/// An adit process with its status report.
#[derive(Clone, Debug)]
struct Instance {
    socket: Option<PathBuf>,
    report: StatusReport,
}

/// The running processes, and the leftovers of killed ones.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// The report of each process. If a process cannot be queried, its report has a [`StatusReport::problem`].
    pub reports: Vec<StatusReport>,
    /// Changes to this host that belong to no running process.
    pub left_behind: Vec<String>,
}

/// Returns all running instances: all processes in this network namespace or, with `--dir`, those whose control sockets are in that
/// directory.
///
/// # Errors
/// Fails if the directory of the sockets cannot be read.
pub fn status(paths: &Paths) -> Result<Overview, Fault> {
    let reports = instances(paths)?.into_iter().map(|instance| instance.report).collect();
    Ok(Overview {
        reports,
        left_behind: leftover::of(paths).iter().map(ToString::to_string).collect(),
    })
}

fn instances(paths: &Paths) -> Result<Vec<Instance>, Fault> {
    let mut sockets: BTreeSet<PathBuf> = match control::list(&paths.run) {
        Ok(sockets) => sockets.into_iter().collect(),
        Err(error) => return Err(file_fault("cannot read", &paths.run, &error)),
    };
    // A client with this `--dir` has its socket in the directory itself.
    if paths.dir.is_some() {
        sockets.extend(control::list(&paths.config).unwrap_or_default());
    }
    let running = if paths.dir.is_none() { processes::all() } else { Vec::new() };
    sockets.extend(running.iter().flat_map(|process| process.sockets.iter().cloned()));
    let mut instances = ask_all(sockets);
    for process in &running {
        let known = |instance: &Instance| instance.report.pid == process.pid;
        if process.sockets.is_empty() && !instances.iter().any(known) {
            adopt(&mut instances, process);
        }
    }
    instances.sort_by(|a, b| {
        let key = |i: &Instance| (i.report.role.clone(), i.report.instance.clone(), i.report.pid);
        key(a).cmp(&key(b))
    });
    Ok(instances)
}

/// Adds a process without visible sockets: it has none, or this user may not query it.
fn adopt(instances: &mut Vec<Instance>, process: &Process) {
    let root = nix::unistd::geteuid().is_root();
    let denied = instances.iter_mut().find(|instance| {
        let report = &instance.report;
        report.problem.is_some() && report.pid == 0 && fits(process, &report.instance)
    });
    if let Some(instance) = denied {
        instance.report.pid = process.pid;
        instance.report.role = process.role.into();
        instance.report.user = Some(process.user.clone());
        return;
    }
    let problem = if root {
        "has no control socket for queries".to_owned()
    } else {
        "permission denied: run as root".to_owned()
    };
    let report = StatusReport {
        role: process.role.into(),
        instance: process.command.clone(),
        pid: process.pid,
        user: Some(process.user.clone()),
        problem: Some(problem),
        ..StatusReport::default()
    };
    instances.push(Instance { socket: None, report });
}

/// Returns whether a process may be the owner of the control socket with this name.
fn fits(process: &Process, instance: &str) -> bool {
    match process.role {
        "server" => instance == "server",
        "openvpn" => instance == format!("openvpn-{}", process.pid),
        "client" => {
            let stem = instance.strip_prefix("connect-");
            stem.is_some_and(|stem| process.command.contains(stem))
        }
        "tinc" => {
            let net = instance.strip_prefix("tinc-").unwrap_or_default();
            instance.starts_with("tinc") && process.command.contains(net)
        }
        _ => false,
    }
}

/// Queries all processes in parallel, so that a process that hangs delays the result only by its own time limit.
fn ask_all(sockets: BTreeSet<PathBuf>) -> Vec<Instance> {
    let (tx, answers) = mpsc::channel();
    let mut waiting = BTreeSet::new();
    for socket in sockets {
        let (tx, path) = (tx.clone(), socket.clone());
        let asking = std::thread::Builder::new().spawn(move || {
            let answer = ask(&path);
            // The requesting thread may have given up.
            let _ = tx.send((path, answer));
        });
        if asking.is_ok() {
            waiting.insert(socket);
        }
    }
    drop(tx);
    let until = Instant::now() + ALL_PATIENCE;
    let mut instances = Vec::new();
    while let Ok((socket, report)) =
        answers.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        waiting.remove(&socket);
        instances.extend(report.map(|report| Instance { socket: Some(socket), report }));
    }
    // These processes did not even accept a connection.
    for socket in waiting {
        let report = problem(&socket, None, control::silent(None));
        instances.push(Instance { socket: Some(socket), report });
    }
    instances
}

/// Queries one process. Returns `None` if only its socket is left.
fn ask(socket: &Path) -> Option<StatusReport> {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => None,
                io::ErrorKind::PermissionDenied => {
                    Some(problem(socket, None, "permission denied: run as root".into()))
                }
                _ => Some(problem(socket, None, error.to_string())),
            };
        }
    };
    let pid = control::listener_of(&stream);
    let answer = control::exchange(stream, &Request::Status, PATIENCE);
    // The caller prints the process id first.
    if let Some(what) = control::version_mismatch(&answer, None) {
        return Some(problem(socket, pid, what));
    }
    Some(match answer {
        Ok(Response::Status(report)) => *report,
        Ok(Response::Error { message }) => problem(socket, pid, message),
        Ok(_) => problem(socket, pid, "the control socket's answer is of another kind".into()),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                problem(socket, pid, does_not_answer(pid))
            }
            // The process has just ended.
            _ if !socket.exists() => return None,
            _ => problem(socket, pid, error.to_string()),
        },
    })
}

/// Does the same as [`control::silent`], without the process id, which the caller prints first.
fn does_not_answer(pid: Option<u32>) -> String {
    match pid.filter(|pid| control::is_stopped(*pid)) {
        Some(pid) => format!("does not answer: stopped; resume it with: kill -CONT {pid}"),
        None => "does not answer".into(),
    }
}

fn problem(socket: &Path, pid: Option<u32>, what: String) -> StatusReport {
    let instance = socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let role = match instance.split('-').next() {
        Some("server") => "server",
        Some("connect") => "client",
        Some("openvpn") => "openvpn",
        Some("postgres") => "postgres",
        Some("tinc") => "tinc",
        _ => "bridge",
    };
    let owner = std::fs::metadata(socket).ok().map(|meta| user_name(meta.uid()));
    StatusReport {
        role: role.into(),
        instance,
        pid: pid.unwrap_or_default(),
        user: owner,
        problem: Some(what),
        ..StatusReport::default()
    }
}

/// The result of a reload.
#[derive(Clone, Debug)]
pub struct ReloadOutcome {
    /// `server` or `bridge`.
    pub role: String,
    /// The instance's name.
    pub instance: String,
    /// The settings that were applied, and those that need a restart.
    pub report: ReloadReport,
}

/// Makes the running process with this name read its files again. Without a name this is the managed server or, if none runs, the only
/// other process that supports it.
///
/// # Errors
/// Fails if there is no such process or more than one, this user may not query it, or it could not read its files. It
/// then continues with its old settings.
pub fn reload(paths: &Paths, name: Option<&str>) -> Result<ReloadOutcome, Fault> {
    let mut instances = instances(paths)?;
    let own = paths.control_socket();
    let can = |i: &Instance| matches!(i.report.role.as_str(), "server" | "bridge" | "openvpn");
    match name {
        Some(name) => instances.retain(|i| i.report.instance == name),
        None if instances.iter().any(|i| i.socket.as_deref() == Some(own.as_path())) => {
            instances.retain(|i| i.socket.as_deref() == Some(own.as_path()));
        }
        None => instances.retain(can),
    }
    let names: Vec<String> = instances.iter().map(|i| i.report.instance.clone()).collect();
    let chosen = match (instances.pop(), names.len(), name) {
        (Some(instance), 1, _) => instance,
        (None, _, Some(name)) => {
            return Err(Fault::environment(format!(
                "nothing named {name} is running here; list all with: {}",
                paths.command("status")
            )));
        }
        (None, ..) => {
            return Err(Fault::environment(format!(
                "no server is running here; start it with: {}",
                paths.command("server run")
            )));
        }
        (Some(_), ..) => {
            return Err(Fault::operator(format!(
                "several processes are running here; choose one of: {}",
                names.join(", ")
            )));
        }
    };
    let socket = control_socket(&chosen)?;
    let report = match control::request(socket, &Request::Reload)? {
        Response::Reloaded(report) => *report,
        Response::Done { .. } => ReloadReport::default(),
        Response::Error { message } => return Err(Fault::operator(message)),
        _ => return Err(Fault::ours("the control socket's answer is of another kind")),
    };
    Ok(ReloadOutcome { role: chosen.report.role, instance: chosen.report.instance, report })
}

/// Returns the socket of a process that answers.
fn control_socket(instance: &Instance) -> Result<&Path, Fault> {
    let report = &instance.report;
    match (&instance.socket, &report.problem) {
        (Some(socket), None) => Ok(socket),
        (_, problem) => {
            let what = problem.clone().unwrap_or_else(|| "has no control socket".into());
            let by =
                report.user.as_ref().map(|user| format!(" of user {user}")).unwrap_or_default();
            Err(Fault::environment(format!(
                "{} {} (process {}{by}): {what}",
                report.role, report.instance, report.pid
            )))
        }
    }
}

/// Ends the sessions of a client on every server on this host. Returns the number of sessions.
///
/// # Errors
/// Fails if no server runs, this user may not query one of them, or none has a session with this name.
pub fn kick(paths: &Paths, name: &str) -> Result<usize, Fault> {
    let servers: Vec<Instance> = instances(paths)?
        .into_iter()
        .filter(|i| matches!(i.report.role.as_str(), "server" | "openvpn"))
        .collect();
    if servers.is_empty() {
        return Err(Fault::environment("no server is running here"));
    }
    let mut ended = 0;
    for server in &servers {
        let request = Request::Kick { name: Some(name.to_owned()), serial: None, peer: None };
        match control::request(control_socket(server)?, &request)? {
            Response::Done { count } => ended += count,
            Response::Error { message } => return Err(Fault::environment(message)),
            _ => return Err(Fault::ours("the control socket's answer is of another kind")),
        }
    }
    match ended {
        0 => Err(Fault::environment(format!("no session of {name} on the servers running here"))),
        _ => Ok(ended),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn paths() -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        std::fs::create_dir_all(&paths.run).unwrap();
        (dir, paths)
    }

    #[test]
    fn one_that_does_not_answer_is_named_and_a_dead_socket_is_passed_over() {
        let (_dir, paths) = paths();
        drop(UnixListener::bind(paths.run.join("dead.sock")).unwrap());
        // Like those of a stopped process, these sockets accept no connections.
        let _silent = ["server.sock", "connect-a.sock", "x-y.sock"]
            .map(|name| UnixListener::bind(paths.run.join(name)).unwrap());
        let started = Instant::now();
        let reports = status(&paths).unwrap().reports;
        // Each takes two seconds, and all together take no longer. One after the other would take three times as long.
        assert!(started.elapsed() < PATIENCE * 3, "they were asked one after the other");
        let roles: Vec<&str> = reports.iter().map(|report| report.role.as_str()).collect();
        assert_eq!(roles, ["bridge", "client", "server"]);
        for report in &reports {
            assert_eq!(report.pid, std::process::id());
            assert_eq!(report.problem.as_deref(), Some("does not answer"));
        }
        let fault = reload(&paths, None).unwrap_err().to_string();
        assert!(fault.contains("does not answer"), "{fault}");
    }

    #[test]
    fn nothing_runs_in_an_empty_folder() {
        let (_dir, paths) = paths();
        assert!(status(&paths).unwrap().reports.is_empty());
        assert!(
            reload(&paths, None).unwrap_err().to_string().contains("no server is running here")
        );
        assert!(kick(&paths, "a").unwrap_err().to_string().contains("no server is running here"));
    }
}
