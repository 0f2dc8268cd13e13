//! Units of systemd, through `systemctl` and `journalctl`.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Manager, Phase, SEARCHED, State};
use crate::fault::Fault;
use crate::log;

/// The folder that exists where systemd is the init system (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// The properties of a unit that are shown.
const PROPERTIES: &str =
    "LoadState,ActiveState,SubState,MainPID,NRestarts,ExecMainStatus,UnitFileState";

pub(super) fn runs() -> bool {
    Path::new(BOOTED).is_dir()
}

/// Returns whether systemd knows a unit.
pub(super) fn knows(unit: &str) -> bool {
    properties(unit).is_ok_and(|known| known.get("LoadState").is_some_and(|it| it == "loaded"))
}

/// Returns the state of a unit.
pub(super) fn state(unit: &str) -> Result<State, Fault> {
    let mut state = parse_state(&properties(unit)?);
    if matches!(state.phase, Phase::Waiting | Phase::Failed) {
        state.message = last_lines(unit).and_then(|text| last_fault(&text));
    }
    Ok(state)
}

fn properties(unit: &str) -> Result<BTreeMap<String, String>, Fault> {
    let shown = systemctl(&["show", "-p", PROPERTIES, unit])?;
    let lines = shown.lines().filter_map(|line| line.split_once('='));
    Ok(lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

fn parse_state(properties: &BTreeMap<String, String>) -> State {
    let get = |key: &str| properties.get(key).map(String::as_str).unwrap_or_default();
    let phase = match (get("ActiveState"), get("SubState")) {
        ("activating", "auto-restart" | "auto-restart-queued") => Phase::Waiting,
        ("active" | "activating" | "reloading" | "deactivating", _) => Phase::Running,
        ("failed", _) => Phase::Failed,
        _ => Phase::Stopped,
    };
    State {
        manager: Some(Manager::Systemd),
        phase,
        pid: get("MainPID").parse().ok().filter(|pid| *pid != 0),
        restarts: get("NRestarts").parse().unwrap_or(0),
        next: None,
        code: get("ExecMainStatus").parse().ok().filter(|_| phase != Phase::Running),
        message: None,
        at_boot: get("UnitFileState").starts_with("enabled"),
    }
}

/// Returns the last lines of a unit's journal.
pub(super) fn last_lines(unit: &str) -> Option<String> {
    let mut command = Command::new("journalctl");
    command.args(["-q", "--no-pager", "-o", "cat", "-n", &SEARCHED.to_string(), "-u", unit]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    log::clean_lines(&mut text);
    Some(text)
}

/// Returns the last line of the program itself in a log.
fn last_fault(text: &str) -> Option<String> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("adit: "));
    line.map(str::to_owned)
}

/// Runs `systemctl`. Its complaint becomes the fault.
pub(super) fn systemctl(words: &[&str]) -> Result<String, Fault> {
    let output = Command::new("systemctl")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Fault::environment(format!("systemctl cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Fault::environment(format!("systemctl {}: {}", words.join(" "), log::clean(&text))))
}

/// Becomes `journalctl`, which shows the log of a unit.
pub(super) fn show_log(unit: &str, lines: usize, follows: bool) -> io::Error {
    let mut command = Command::new("journalctl");
    command.args(["-u", unit, "-n", &lines.to_string()]);
    if follows {
        command.arg("-f");
    }
    command.exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> State {
        let lines = text.lines().filter_map(|line| line.trim().split_once('='));
        parse_state(&lines.map(|(key, value)| (key.into(), value.into())).collect())
    }

    #[test]
    fn properties_become_a_state() {
        let running = parsed(
            "MainPID=71\nNRestarts=2\nExecMainStatus=0\nActiveState=active\nSubState=running\n\
             UnitFileState=enabled\nLoadState=loaded",
        );
        let expected = State {
            manager: Some(Manager::Systemd),
            phase: Phase::Running,
            pid: Some(71),
            restarts: 2,
            at_boot: true,
            ..State::default()
        };
        assert_eq!(running, expected);
        let waiting =
            parsed("MainPID=0\nExecMainStatus=1\nActiveState=activating\nSubState=auto-restart");
        assert_eq!((waiting.phase, waiting.pid, waiting.code), (Phase::Waiting, None, Some(1)));
        let failed =
            parsed("ExecMainStatus=2\nActiveState=failed\nSubState=failed\nUnitFileState=static");
        assert_eq!((failed.phase, failed.code, failed.at_boot), (Phase::Failed, Some(2), false));
        assert_eq!(parsed("ActiveState=inactive\nSubState=dead").phase, Phase::Stopped);
        assert_eq!(parsed("").phase, Phase::Stopped);
    }

    #[test]
    fn the_reason_is_the_programs_own_last_line() {
        let text = "connecting to 192.0.2.1:1194\nadit: the first\nadit: the server refused this client\n\
                    adit-connect@a.service: Main process exited, code=exited, status=1/FAILURE\n";
        assert_eq!(last_fault(text).as_deref(), Some("the server refused this client"));
        assert_eq!(last_fault("nothing\n"), None);
    }
}
