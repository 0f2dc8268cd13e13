//! `adit server audit`, and the acts that it shows: the commands that change a server, its clients or users.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use adit_app_server::audit::{self, Act};
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::args::{AuditOptions, Cli};
use crate::text::{table_of_names, wrapped};
use crate::{note, paths, print, print_json};

/// The commands that change nothing, or whose acts other processes record.
const READS: [&str; 8] = ["list", "show", "status", "logs", "audit", "run", "up", "help"];

/// A command that changes a server.
pub(crate) struct Command {
    verb: String,
    name: Option<String>,
    dir: Option<PathBuf>,
}

/// Parses the command line as [`clap::Parser::parse_from`] does. Also returns what to record of it.
pub(crate) fn parse(arguments: Vec<OsString>) -> (Cli, Option<Command>) {
    let is_tinc = arguments.get(1).is_some_and(|verb| verb == "tinc");
    let parsed = Cli::command().try_get_matches_from(arguments).and_then(|matches| {
        let command = command(&matches);
        Ok((Cli::from_arg_matches(&matches)?, command))
    });
    parsed.unwrap_or_else(|error| {
        // Scripts expect the exit code of tinc.
        if is_tinc && error.use_stderr() {
            let _ = error.print();
            std::process::exit(1);
        }
        error.exit()
    })
}

fn command(matches: &ArgMatches) -> Option<Command> {
    let mut verbs = Vec::new();
    let mut inner = matches;
    while let Some((verb, further)) = inner.subcommand() {
        verbs.push(verb);
        inner = further;
    }
    let changes = match *verbs.first()? {
        "server" => !READS.contains(verbs.last()?),
        "kick" | "reload" => true,
        _ => false,
    };
    changes.then(|| Command {
        verb: verbs.join(" "),
        // The name of another argument is no name of a client or user.
        name: inner.try_get_one::<String>("name").ok().flatten().cloned(),
        dir: inner.try_get_one::<PathBuf>("dir").ok().flatten().cloned(),
    })
}

/// Records a command in the audit log.
pub(crate) fn record(command: Option<Command>, ok: bool) {
    let Some(Command { verb, name, dir }) = command else { return };
    let recorded = Paths::new(dir.as_deref())
        .and_then(|paths| audit::record(&paths, &Act::new(&verb, name.as_deref(), ok)));
    // A user without rights has changed nothing.
    if let (Err(fault), true) = (recorded, ok) {
        note(&wrapped("note: ", &format!("this is not in the audit log: {fault}")));
    }
}

/// Runs `adit server audit`.
pub(crate) fn show(options: &AuditOptions) -> Result<ExitCode, Fault> {
    let count = usize::try_from(options.lines).unwrap_or(usize::MAX);
    let acts = audit::acts(&paths(&options.location)?, count)?;
    if options.json {
        print_json(&acts)?;
    } else if acts.is_empty() {
        print("The audit log is empty.\n");
    } else {
        print(&page(&acts));
    }
    Ok(ExitCode::SUCCESS)
}

fn page(acts: &[Act]) -> String {
    let mut rows = vec![["WHO", "WHEN", "COMMAND", "RESULT"].map(str::to_owned).to_vec()];
    for act in acts {
        let login = act.login_uid.filter(|login| *login != act.uid);
        let who = act.sudo_user.clone().or(login.map(|login| format!("uid {login}")));
        let what = act.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        rows.push(vec![
            who.unwrap_or_else(|| {
                if act.uid == 0 { "root".into() } else { format!("uid {}", act.uid) }
            }),
            adit_runtime::log::stamp(act.time),
            format!("{}{what}", act.verb.trim_start_matches("server ")),
            if act.ok { "done" } else { "failed" }.into(),
        ]);
    }
    table_of_names(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(String, Option<String>)> {
        let matches = Cli::command().try_get_matches_from(line.split_whitespace()).unwrap();
        command(&matches).map(|command| (command.verb, command.name))
    }

    #[test]
    fn commands_that_change_a_server_are_recorded_with_a_name_and_without_arguments() {
        for (line, verb, name) in [
            ("adit server client add laptop --days 3", "server client add", Some("laptop")),
            ("adit server client revoke laptop", "server client revoke", Some("laptop")),
            ("adit server user passwd alice --password-stdin", "server user passwd", Some("alice")),
            ("adit server init", "server init", None),
            ("adit server enable", "server enable", None),
            ("adit kick laptop", "kick", Some("laptop")),
            ("adit reload", "reload", None),
        ] {
            assert_eq!(of(line), Some((verb.into(), name.map(str::to_owned))), "{line}");
        }
        for line in [
            "adit server client list",
            "adit server run",
            "adit status",
            "adit up a",
            "adit server audit",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn the_log_names_the_person_behind_sudo() {
        let act = |uid, sudo_user: Option<&str>, login_uid| Act {
            verb: "server client add".into(),
            name: Some("laptop".into()),
            uid,
            sudo_user: sudo_user.map(str::to_owned),
            login_uid,
            ok: true,
            ..Act::default()
        };
        let text = page(&[
            act(0, Some("alice"), Some(1000)),
            act(0, None, Some(1000)),
            act(0, None, None),
            act(7, None, Some(7)),
        ]);
        let who: Vec<&str> =
            text.lines().skip(1).filter_map(|line| line.split("  ").next()).collect();
        assert_eq!(who, ["alice", "uid 1000", "root", "uid 7"], "{text}");
        assert!(text.contains("client add laptop  done"), "{text}");
    }
}
