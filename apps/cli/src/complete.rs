//! Completion of command lines. A script for the shell calls this program, which completes commands, options and names
//! that exist on this host.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use adit_app_openvpn::connect::Profiles;
use adit_app_server::{clients, users};
use adit_pki::{Client, ClientState, UserState};
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;

use crate::args::Cli;
use crate::print;

/// The environment variable with the name of the calling shell. The scripts of `adit completions` set it.
const VARIABLE: &str = "ADIT_COMPLETE";

/// The maximum number of names that are offered for one word.
const MAX_NAMES: usize = 1000;

/// Returns the script that `adit completions` prints.
pub(crate) fn script(shell: Shell) -> Result<String, Fault> {
    let shells = Shells::builtins();
    let completer = shells
        .completer(&shell.to_string())
        .ok_or_else(|| Fault::ours(format!("no completions for {shell}")))?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "adit", "adit", "adit", &mut script)
        .map_err(|error| Fault::ours(format!("cannot write completions: {error}")))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Answers a shell that completes a line with `adit -- WORDS` and [`VARIABLE`] set. Returns `None` for any other call. After a fault there
/// are no completions, because any output would end up in the line.
pub(crate) fn answer(arguments: &[OsString]) -> Option<ExitCode> {
    let shell = std::env::var(VARIABLE).ok()?;
    let words: Vec<OsString> = words(arguments)?.to_vec();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell)?;
    let mut found = Vec::new();
    let folder = std::env::current_dir().ok();
    match completer.write_complete(&mut Cli::command(), words, folder.as_deref(), &mut found) {
        Ok(()) => print(&String::from_utf8_lossy(&found)),
        Err(_) => return Some(ExitCode::FAILURE),
    }
    Some(ExitCode::SUCCESS)
}

/// Returns the words of the line after `--`.
fn words(arguments: &[OsString]) -> Option<&[OsString]> {
    let (_, rest) = arguments.split_first()?;
    let (first, words) = rest.split_first()?;
    (first == "--" && !words.is_empty()).then_some(words)
}

/// Returns `--dir` from the words, because a completer does not receive the words before its own.
fn folder(words: &[OsString]) -> Option<PathBuf> {
    words.iter().enumerate().find_map(|(at, word)| match word.to_str()? {
        "--dir" => words.get(at.checked_add(1)?).map(PathBuf::from),
        word => word.strip_prefix("--dir=").map(PathBuf::from),
    })
}

fn paths() -> Option<Paths> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    Paths::new(words(&arguments).and_then(folder).as_deref()).ok()
}

fn candidate(name: &str, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(OsStr::new(name)).help(Some(help.to_owned().into()))
}

fn of_registry(wanted: fn(&Client) -> bool) -> Vec<CompletionCandidate> {
    let known = paths().and_then(|paths| clients::registered(&paths).ok()).unwrap_or_default();
    let wanted = known.iter().filter(|client| wanted(client)).take(MAX_NAMES);
    wanted.map(|client| candidate(client.name.as_str(), state(client.state))).collect()
}

fn state(state: ClientState) -> &'static str {
    match state {
        ClientState::Active => "active",
        ClientState::Disabled => "disabled",
        ClientState::Revoked => "revoked",
    }
}

/// Completes profiles of clients in the background.
pub(crate) fn profile() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let names = paths().and_then(|paths| Profiles::new(paths).names().ok()).unwrap_or_default();
        names.iter().take(MAX_NAMES).map(|name| candidate(name, "profile")).collect()
    })
}

/// Completes every client of the registry.
pub(crate) fn any_client() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_registry(|_| true))
}

/// Completes clients that are not revoked.
pub(crate) fn client() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_registry(|client| client.state != ClientState::Revoked))
}

/// Completes clients that `enable` admits again.
pub(crate) fn disabled_client() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_registry(|client| client.state == ClientState::Disabled))
}

fn of_users(wanted: fn(UserState) -> bool) -> Vec<CompletionCandidate> {
    let known = paths().and_then(|paths| users::names(&paths).ok()).unwrap_or_default();
    let wanted = known.iter().filter(|(_, state)| wanted(*state)).take(MAX_NAMES);
    let state = |state| match state {
        UserState::Active => "active",
        UserState::Disabled => "disabled",
    };
    wanted.map(|(name, of)| candidate(name, state(*of))).collect()
}

/// Completes users.
pub(crate) fn user() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_users(|_| true))
}

/// Completes users that `enable` admits again.
pub(crate) fn disabled_user() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_users(|state| state == UserState::Disabled))
}

/// Completes the groups of the registry.
pub(crate) fn group() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let known = paths().and_then(|paths| clients::names(&paths).ok()).unwrap_or_default();
        let mut groups = known.groups;
        groups.sort();
        groups.dedup();
        groups.iter().take(MAX_NAMES).map(|name| candidate(name, "group")).collect()
    })
}

/// Completes running processes, by their names in `adit status`.
pub(crate) fn process() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let running =
            paths().and_then(|paths| adit_app_server::status(&paths).ok()).unwrap_or_default();
        let reports = running.reports.iter().filter(|report| report.problem.is_none());
        reports.take(MAX_NAMES).map(|report| candidate(&report.instance, &report.role)).collect()
    })
}

/// Completes clients with a session on a server on this machine.
pub(crate) fn session() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let running =
            paths().and_then(|paths| adit_app_server::status(&paths).ok()).unwrap_or_default();
        let servers = running.reports.iter().filter(|report| report.role == "server");
        let peers = servers.flat_map(|report| &report.peers);
        let mut names: Vec<&str> = peers.map(|peer| peer.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.iter().take(MAX_NAMES).map(|name| candidate(name, "connected")).collect()
    })
}

#[cfg(test)]
mod tests {
    use clap_complete::engine::complete;

    use super::*;

    fn line(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_folder_is_the_lines_own() {
        for (text, dir) in [
            ("adit server client show x --dir vpn", Some("vpn")),
            ("adit server client show --dir=/srv/vpn x", Some("/srv/vpn")),
            ("adit server client show x", None),
            ("adit server client show x --dir", None),
        ] {
            assert_eq!(folder(&line(text)), dir.map(PathBuf::from), "{text}");
        }
    }

    #[test]
    fn only_a_shells_question_is_answered() {
        assert_eq!(words(&line("adit -- adit server")), Some(line("adit server").as_slice()));
        assert_eq!(words(&line("adit server -- x")), None);
        assert_eq!(words(&line("adit --")), None);
        assert_eq!(words(&line("adit")), None);
    }

    /// Returns what is offered for the last word of a line.
    fn offered(words: &[&str]) -> Vec<String> {
        let line = words.iter().map(OsString::from).collect();
        let found = complete(&mut Cli::command(), line, words.len() - 1, None).unwrap();
        found.iter().map(|word| word.get_value().to_string_lossy().into_owned()).collect()
    }

    /// Checks a command and those below it. Returns the number of words that are offered.
    fn check(command: &clap::Command, path: &[&str]) -> usize {
        let options = offered(&[path, &["--"]].concat());
        let mut count = 0;
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        for long in shown.filter_map(clap::Arg::get_long) {
            assert!(options.contains(&format!("--{long}")), "{path:?} --{long}: {options:?}");
            count += 1;
        }
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let name = verb.get_name();
            let verbs = offered(&[path, &[name]].concat());
            assert!(verbs.iter().any(|verb| verb == name), "{path:?} {name}: {verbs:?}");
            count += 1 + check(verb, &[path, &[name]].concat());
        }
        count
    }

    /// The parser itself is the list with which the completions are compared.
    #[test]
    fn every_command_and_option_is_offered() {
        let command = Cli::command().disable_help_subcommand(true);
        assert!(check(&command, &["adit"]) > 300);
    }
}
