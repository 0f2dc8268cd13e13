//! `adit server start`, `stop`, `status`, `logs`, `enable` and `disable`.

use std::process::ExitCode;
use std::time::Duration;

use adit_runtime::background::{NotUp, Phase, Service};
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use adit_runtime::progress::Progress;
use adit_runtime::prompts::Answers;

use super::{Entry, not_up, print_log, stop_service};
use crate::args::{Location, LogOptions, ServerStatus, StartServer};
use crate::text::{span, wrapped};
use crate::{note, paths, print, print_json};

const NAME: &str = "server";

fn service(paths: &Paths) -> Service {
    let mut arguments = vec!["server".to_owned(), "run".to_owned()];
    if paths.dir.is_some() {
        // The supervisor has another working directory.
        arguments.extend(["--dir".into(), paths.config.to_string_lossy().into_owned()]);
    }
    Service::new(paths, "adit-server", None, arguments, paths.control_socket())
}

pub(crate) fn start(options: &StartServer) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    adit_app_server::check(&paths)?;
    let service = service(&paths);
    let progress = Progress::new("starting the server");
    match service.state()?.phase {
        Phase::Foreground => {
            return Err(Fault::environment(format!(
                "the server already runs in the foreground of a terminal: end it there with Ctrl-C, or with: {}",
                paths.command("server stop")
            )));
        }
        Phase::Running => {}
        Phase::Waiting => {
            service.stop()?;
            service.start(Answers::new())?;
        }
        Phase::Failed | Phase::Stopped => {
            if let Some(text) = service.note() {
                progress.aside(|| note(&wrapped("note: ", &text)));
            }
            if let Err(fault) = service.start(Answers::new()) {
                // systemd waits until the server is ready, and so notices that it fails.
                return Err(match service.state()? {
                    state if state.message.is_some() => {
                        not_up(NAME, &service, NotUp::Failed(state))
                    }
                    _ => fault,
                });
            }
        }
    }
    if options.patience.wait > 0 {
        match service.wait(Duration::from_secs(options.patience.wait), |_| true) {
            Ok(_) => {}
            Err(NotUp::NotYet) => {
                return Err(Fault::environment(format!(
                    "the server is not up after {} s; its log: {}",
                    options.patience.wait,
                    paths.command("server logs")
                )));
            }
            Err(reason) => return Err(not_up(NAME, &service, reason)),
        }
    }
    drop(progress);
    print(&format!(
        "The server runs in the background.\nLook: {}   Log: {}   End: {}\n",
        paths.command("status"),
        paths.command("server logs"),
        paths.command("server stop")
    ));
    if service.uses_systemd() && !service.state()?.at_boot {
        print(&format!("Start it with the machine: {}\n", paths.command("server enable")));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn stop(location: &Location) -> Result<ExitCode, Fault> {
    let service = service(&paths(location)?);
    print(if stop_service(NAME, &service)? {
        "The server has stopped.\n"
    } else {
        "The server was not running.\n"
    });
    if service.state()?.at_boot {
        note("note: it starts again with the machine, unless: adit server disable\n");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `adit server status`. The exit code is 0 if the server runs.
pub(crate) fn status(options: &ServerStatus) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let service = service(&paths);
    let (state, report) = (service.state()?, service.report());
    let mut entry = Entry::new(NAME, state, report.as_deref());
    // It has many sessions, or none.
    let runs = matches!(entry.state, "up" | "connecting");
    if runs {
        entry.state = "running";
    }
    entry.since = report.as_ref().map(|report| report.started);
    (entry.addresses, entry.server) = (Vec::new(), None);
    if options.json {
        print_json(&entry)?;
    } else {
        let text = page(&entry, &service);
        print(&text);
        if runs {
            print(&format!("Its sessions: {}\n", paths.command("status")));
        }
    }
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn page(entry: &Entry, service: &Service) -> String {
    let mut parts = vec![format!("The server is {}", entry.state)];
    if let Some(since) = entry.since {
        parts.push(format!("up {}", span(crate::text::now().saturating_sub(since))));
    }
    parts.extend(entry.pid.map(|pid| format!("process {pid}")));
    match entry.kept_by {
        Some("systemd") => parts.push(format!("kept running by {}", service.unit())),
        Some("supervisor") => parts.push("kept running by a supervisor".into()),
        Some(_) => parts.push("in the foreground of a terminal".into()),
        None => {}
    }
    if entry.restarts > 0 {
        parts.push(format!("restarted {} times", entry.restarts));
    }
    if entry.at_boot {
        parts.push("starts with the machine".into());
    }
    let mut text = wrapped("", &parts.join(", "));
    if entry.kept_by != Some("foreground")
        && let Some(detail) = entry.detail()
    {
        text.push_str(&wrapped("  ", &detail));
    }
    text
}

pub(crate) fn logs(options: &LogOptions) -> Result<ExitCode, Fault> {
    print_log(&service(&paths(&options.location)?), options)
}

pub(crate) fn set_at_boot(location: &Location, on: bool) -> Result<ExitCode, Fault> {
    let paths = paths(location)?;
    let service = service(&paths);
    service.set_at_boot(on)?;
    print(if on {
        "The server starts with the machine from now on.\n"
    } else {
        "The server no longer starts with the machine.\n"
    });
    let runs = matches!(service.state()?.phase, Phase::Running | Phase::Foreground);
    if on && !runs {
        note(&format!("note: it does not run now; start it: {}\n", paths.command("server start")));
    }
    Ok(ExitCode::SUCCESS)
}
