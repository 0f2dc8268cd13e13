//! `adit up`, `down`, `list` and `logs`: clients in the background. The submodule contains the verbs of the managed server.

pub(crate) mod server;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use adit_app_openvpn::connect::{Change, Profiles};
use adit_runtime::background::{Manager, NotUp, Phase, Service, State};
use adit_runtime::control::StatusReport;
use adit_runtime::fault::Fault;
use adit_runtime::progress::Progress;
use serde::Serialize;

use crate::args::{DownProfile, ListProfiles, LogOptions, ProfileLog, UpProfile};
use crate::text::{row, span, table_of_names, wrapped};
use crate::{note, paths, print, print_json};

/// A program in the background, for `--json`.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    /// `up`, `connecting`, `waiting`, `failed` or `stopped`; a server is `running` instead of `up`.
    state: &'static str,
    /// `systemd`, `supervisor` or `foreground`.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_by: Option<&'static str>,
    at_boot: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// The beginning of the session, or of a server, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    restarts: u32,
    /// The time of the next restart in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Entry {
    fn new(name: &str, state: State, report: Option<&StatusReport>) -> Self {
        let session = report.and_then(|report| report.peers.first());
        let runs = matches!(state.phase, Phase::Running | Phase::Foreground);
        let kept_by = match (state.phase, state.manager) {
            (Phase::Foreground, _) => Some("foreground"),
            (_, Some(Manager::Systemd)) => Some("systemd"),
            (_, Some(Manager::Supervisor(_))) => Some("supervisor"),
            (_, None) => None,
        };
        Self {
            name: name.to_owned(),
            state: match state.phase {
                Phase::Running | Phase::Foreground if session.is_some() => "up",
                Phase::Running | Phase::Foreground => "connecting",
                Phase::Waiting => "waiting",
                Phase::Failed => "failed",
                Phase::Stopped => "stopped",
            },
            kept_by: kept_by.filter(|_| !matches!(state.phase, Phase::Stopped | Phase::Failed)),
            at_boot: state.at_boot,
            pid: report.map(|report| report.pid).or(state.pid),
            since: session.map(|session| session.since),
            addresses: session.map(|session| session.tunnel.clone()).unwrap_or_default(),
            server: session.map(|session| session.address.clone()),
            restarts: state.restarts,
            next: state.next,
            exit_code: state.code.filter(|_| !runs),
            message: state.message.filter(|_| !runs),
        }
    }

    /// Describes a failure, or where the program runs if that is not the background.
    fn detail(&self) -> Option<String> {
        if self.kept_by == Some("foreground") {
            let pid = self.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
            return Some(format!("in the foreground of a terminal{pid}"));
        }
        let message = self.message.as_deref().filter(|message| !message.is_empty());
        let retry = self.next.map(|next| {
            let seconds = next.saturating_sub(crate::text::now());
            format!("next try in {}", span(seconds))
        });
        let parts = [message.map(str::to_owned), retry];
        let text = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
        Some(text).filter(|text| !text.is_empty())
    }
}

fn is_up(report: &StatusReport) -> bool {
    !report.peers.is_empty()
}

/// Runs `adit up`.
pub(crate) fn up(options: &UpProfile) -> Result<ExitCode, Fault> {
    let profiles = Profiles::new(paths(&options.location)?);
    let (name, source) = profiles.find(&options.profile, options.name.as_deref())?;
    let service = profiles.service(&name);
    let file = profiles.file(&name);
    let change = match &source {
        Some(_) if options.replace => Change::Differs,
        Some(source) => profiles.compare(source, &name)?,
        None => Change::Same,
    };
    if change == Change::Differs && !options.replace {
        return Err(Fault::operator(format!(
            "{} is another profile of this name: replace it with --replace, keep both with --name, or connect \
             with the old one: {}",
            file.display(),
            profiles.command("up", &name)
        )));
    }
    let state = service.state()?;
    let runs = matches!(state.phase, Phase::Running | Phase::Foreground);
    if !runs || change == Change::Differs {
        // The profile in the folder may contain a saved password.
        let from = source.as_deref().filter(|_| change != Change::Same).unwrap_or(&file);
        let answers = profiles.check(from)?;
        if options.save_password && !answers.is_empty() {
            if let Some(question) = Profiles::unsaved(&answers) {
                return Err(cannot_answer(question));
            }
            profiles.install(from, &name, Some(&answers))?;
        } else if service.uses_systemd() && !answers.is_empty() {
            return Err(match Profiles::unsaved(&answers) {
                Some(question) => cannot_answer(question),
                None => Fault::operator(format!(
                    "{name} asks for a password, but a service has no terminal: adit up --save-password {} keeps \
                     it in {}, which only root can read",
                    options.profile.display(),
                    profiles.folder().display()
                )),
            });
        } else if change != Change::Same {
            profiles.install(from, &name, None)?;
        }
        if options.boot {
            service.set_at_boot(true)?;
        }
        if let Some(text) = service.note() {
            note(&wrapped("note: ", &text));
        }
        if runs || state.phase == Phase::Waiting {
            stop_service(&name, &service)?;
        }
        let _progress = Progress::new(format!("starting {name}"));
        service.start(answers)?;
    } else if options.boot {
        service.set_at_boot(true)?;
    }
    if options.patience.wait == 0 {
        print(&format!("{name} is connecting. Look: {}\n", profiles.command("logs", &name)));
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::new(format!("waiting for the tunnel of {name}"));
    let waited = service.wait(Duration::from_secs(options.patience.wait), is_up);
    drop(progress);
    match waited {
        Ok(report) => {
            print(&connected(&name, &report));
            print(&format!(
                "Log: {}   End: {}\n",
                profiles.command("logs", &name),
                profiles.command("down", &name)
            ));
            Ok(ExitCode::SUCCESS)
        }
        Err(NotUp::NotYet) => {
            let warning =
                service.last_warning().map(|text| format!(": {text}")).unwrap_or_default();
            Err(Fault::environment(format!(
                "{name} is not connected after {} s, and keeps trying in the background{warning}; its log: {}; \
                 end it: {}",
                options.patience.wait,
                profiles.command("logs", &name),
                profiles.command("down", &name)
            )))
        }
        Err(reason) => Err(not_up(&name, &service, reason)),
    }
}

/// Stops a program that may take a while to end. Returns whether it was running.
fn stop_service(name: &str, service: &Service) -> Result<bool, Fault> {
    let _progress = Progress::new(format!("stopping {name}"));
    service.stop()
}

fn cannot_answer(question: &str) -> Fault {
    Fault::operator(format!(
        "the profile asks '{}', which a service cannot answer: run adit connect at a terminal instead",
        question.trim_end_matches([' ', ':'])
    ))
}

/// Returns the fault of a program that is not up, and stops what is left of it.
fn not_up(name: &str, service: &Service, reason: NotUp) -> Fault {
    let state = match reason {
        NotUp::Failed(state) => state,
        NotUp::Stopped => {
            return Fault::environment(format!(
                "{name} has ended: it was stopped while it started"
            ));
        }
        NotUp::NotYet => {
            return Fault::environment(format!("{name} is not up yet; it keeps trying"));
        }
    };
    // Nothing keeps running after a failed start.
    if let Err(fault) = service.stop() {
        return fault;
    }
    let message = state.message.filter(|message| !message.is_empty());
    let text =
        format!("{name}: {}", message.unwrap_or_else(|| "it has failed; its log says more".into()));
    match state.code {
        Some(2) => Fault::operator(text),
        _ => Fault::environment(text),
    }
}

fn connected(name: &str, report: &StatusReport) -> String {
    let Some(session) = report.peers.first() else { return String::new() };
    let device = report.tun.as_ref().map(|tun| format!(" on {}", tun.name)).unwrap_or_default();
    wrapped(
        "",
        &format!(
            "{name} is up: {}{device}, server {}",
            session.tunnel.join(" and "),
            session.address
        ),
    )
}

/// Returns the name of a known profile, which may also be given as a file.
fn known(profiles: &Profiles, given: &Path) -> Result<String, Fault> {
    let text = given.to_string_lossy();
    let is_file = given.extension().is_some_and(|end| end == "ovpn");
    let name = if is_file { given.file_stem().unwrap_or_default().to_string_lossy() } else { text };
    if profiles.names()?.iter().any(|known| *known == name) {
        return Ok(name.into_owned());
    }
    Err(Fault::operator(format!(
        "there is no profile {name} in {}; list them with: {}",
        profiles.folder().display(),
        profiles.list_command()
    )))
}

/// Runs `adit down`.
pub(crate) fn down(options: &DownProfile) -> Result<ExitCode, Fault> {
    let profiles = Profiles::new(paths(&options.location)?);
    let name = known(&profiles, &options.name)?;
    let service = profiles.service(&name);
    if options.boot {
        service.set_at_boot(false)?;
    }
    let stopped = stop_service(&name, &service)?;
    print(&format!("{name} {}\n", if stopped { "is disconnected" } else { "was not connected" }));
    if service.state()?.at_boot {
        let command = profiles.command("down --boot", &name);
        note(&wrapped(
            "note: ",
            &format!("it connects again when the machine starts, unless: {command}"),
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `adit list`.
pub(crate) fn list(options: &ListProfiles) -> Result<ExitCode, Fault> {
    let profiles = Profiles::new(paths(&options.location)?);
    let mut entries = Vec::new();
    for name in profiles.names()? {
        let service = profiles.service(&name);
        let state = service.state()?;
        let report = service.report();
        entries.push(Entry::new(&name, state, report.as_deref()));
    }
    if options.json {
        print_json(&entries)?;
    } else if entries.is_empty() {
        print(&format!(
            "There are no profiles in {} yet. Connect with one: {}\n",
            profiles.folder().display(),
            profiles.command("up", "laptop.ovpn")
        ));
    } else {
        print(&page(&entries));
    }
    Ok(ExitCode::SUCCESS)
}

fn page(entries: &[Entry]) -> String {
    let mut rows = vec![row(["NAME", "STATE", "FOR", "ADDRESS"])];
    for entry in entries {
        let since = entry.since.map(|since| span(crate::text::now().saturating_sub(since)));
        rows.push(vec![
            entry.name.clone(),
            entry.state.into(),
            since.unwrap_or_else(|| "-".into()),
            entry.addresses.first().cloned().unwrap_or_else(|| "-".into()),
        ]);
    }
    let lines = table_of_names(rows);
    let mut lines = lines.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    for (line, entry) in lines.zip(entries) {
        text.push_str(&format!("{line}\n"));
        let server = entry.server.as_ref().map(|server| format!("server {server}"));
        for detail in [server, entry.detail()].into_iter().flatten() {
            text.push_str(&wrapped("    ", &detail));
        }
    }
    text
}

/// Runs `adit logs`.
pub(crate) fn logs(options: &ProfileLog) -> Result<ExitCode, Fault> {
    let profiles = Profiles::new(paths(&options.log.location)?);
    let name = known(&profiles, &options.name)?;
    print_log(&profiles.service(&name), &options.log)
}

fn print_log(service: &Service, options: &LogOptions) -> Result<ExitCode, Fault> {
    let lines = usize::try_from(options.lines).unwrap_or(usize::MAX);
    service.print_log(lines, options.follow, &mut io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use adit_runtime::control::PeerReport;

    use super::*;

    fn up() -> StatusReport {
        let session = PeerReport {
            address: "[2001:db8:1234:5678:9abc:def0:1234:5678]:50000".into(),
            tunnel: vec!["10.255.255.254".into(), "fd73::1000".into()],
            since: crate::text::now().saturating_sub(90_000),
            ..PeerReport::default()
        };
        StatusReport { pid: 7, peers: vec![session], ..StatusReport::default() }
    }

    #[test]
    fn the_list_fits_a_terminal_and_says_why_a_client_does_not_run() {
        let running = State {
            manager: Some(Manager::Supervisor(1)),
            phase: Phase::Running,
            ..State::default()
        };
        let waiting = State {
            phase: Phase::Waiting,
            next: Some(crate::text::now() + 100),
            code: Some(1),
            message: Some("the server refused this client (AUTH_FAILED): ".repeat(3)),
            ..running.clone()
        };
        let failed =
            State { message: Some("line 3".into()), phase: Phase::Failed, ..State::default() };
        let foreground = State { phase: Phase::Foreground, ..State::default() };
        let entries = [
            Entry::new(&"n".repeat(64), running.clone(), Some(&up())),
            Entry::new("b", running, None),
            Entry::new("c", waiting, None),
            Entry::new("d", failed, None),
            Entry::new("e", foreground, Some(&up())),
            Entry::new("f", State::default(), None),
        ];
        let states = entries.iter().map(|entry| entry.state).collect::<Vec<_>>();
        assert_eq!(states, ["up", "connecting", "waiting", "failed", "up", "stopped"]);
        let text = page(&entries);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(
            text.contains("    server [2001:db8:1234:5678:9abc:def0:1234:5678]:50000\n"),
            "{text}"
        );
        assert!(text.contains("AUTH_FAILED") && text.contains("next try in"), "{text}");
        assert!(
            text.contains("    line 3\n") && text.contains("foreground of a terminal (process 7)")
        );
        let json = serde_json::to_value(&entries[0]).unwrap();
        assert_eq!(json["kept_by"], "supervisor");
        assert_eq!(json["addresses"][1], "fd73::1000");
        assert!(json.get("message").is_none());
    }

    #[test]
    fn a_failed_start_has_the_exit_code_of_the_program() {
        use adit_runtime::fault::Blame;
        let dir = tempfile::tempdir().unwrap();
        let paths = adit_runtime::paths::Paths::new(Some(dir.path())).unwrap();
        let service = Profiles::new(paths).service("a");
        let failed = |code, message: Option<&str>| {
            let state = State { code, message: message.map(str::to_owned), ..State::default() };
            not_up("a", &service, NotUp::Failed(state))
        };
        let wrong = failed(Some(2), Some("line 3"));
        assert_eq!((wrong.blame(), wrong.to_string().as_str()), (Blame::Operator, "a: line 3"));
        assert_eq!(failed(Some(1), None).blame(), Blame::Environment);
        assert_eq!(failed(None, None).blame(), Blame::Environment);
        assert!(not_up("a", &service, NotUp::Stopped).to_string().contains("stopped while"));
    }
}
