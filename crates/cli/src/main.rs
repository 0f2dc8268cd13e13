//! The `adit` command: argument parsing and printing, nothing else.

#![forbid(unsafe_code)]

mod args;
mod bridge;
mod demo;
mod doctor;
mod filter;
mod filter_live;
mod postgres;
mod server;
mod status;
mod text;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use adit_daemon::Wiping;
use adit_daemon::connect::{self, ConnectOptions};
use adit_daemon::fault::Fault;
use adit_daemon::managed::{self, Places};
use clap::{CommandFactory, Parser};

use args::{Cli, Connect, Place, Switch, Verb};

// musl's own allocator takes a lock for each call.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: Wiping<mimalloc::MiMalloc> = Wiping(mimalloc::MiMalloc);
#[cfg(not(target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: Wiping<std::alloc::System> = Wiping(std::alloc::System);

type Done = Result<ExitCode, Fault>;

fn main() -> ExitCode {
    managed::demo::end_with_parent();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = adit_daemon::helper::main(&arguments) {
        return code;
    }
    if let Some(options) = as_openvpn(&arguments) {
        return adit_daemon::openvpn::main(options);
    }
    if arguments.get(1).is_some_and(|verb| verb == "postgres") {
        // Before anything else: whoever looks may look now.
        if let Err(error) = adit_daemon::postgres::mask_secrets() {
            note(&format!(
                "adit: note: this command line stays to be seen in ps ({error}); give secrets on stdin: -\n"
            ));
        }
    }
    match run(Cli::parse_from(arguments).verb) {
        Ok(code) => code,
        Err(fault) => {
            note(&format!("adit: {fault}\n"));
            fault.exit_code()
        }
    }
}

/// openvpn's own options, if that is what is asked for: `openvpn ...` or `adit openvpn ...`. They
/// never pass through clap, which would want to understand `--help` and the like.
fn as_openvpn(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let (program, rest) = arguments.split_first()?;
    if Path::new(program).file_name().is_some_and(|name| name == "openvpn") {
        return Some(rest.to_vec());
    }
    let (verb, options) = rest.split_first()?;
    (verb == "openvpn").then(|| options.to_vec())
}

fn run(verb: Verb) -> Done {
    match verb {
        Verb::Server(verb) => server::run(verb),
        Verb::Connect(options) if options.release => release(),
        Verb::Connect(options) => Ok(connect::run(connect_options(options))),
        Verb::Status(options) => status::once(&options),
        Verb::Top(options) => status::top(&options),
        Verb::Bridge(options) => Ok(bridge::run(options)),
        Verb::Filter(verb) => filter::run(verb),
        Verb::Postgres(verb) => postgres::run(verb),
        Verb::Openvpn { options } => Ok(adit_daemon::openvpn::main(options)),
        Verb::Reload(options) => status::reload(&options),
        Verb::Kick(options) => status::kick(&options),
        Verb::Doctor(options) => doctor::run(&options),
        Verb::Demo(options) => demo::run(&options),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "adit", &mut script);
            print(&String::from_utf8_lossy(&script));
            Ok(ExitCode::SUCCESS)
        }
        Verb::Man { dir } => man(&dir),
    }
}

fn places(place: &Place) -> Result<Places, Fault> {
    Places::new(place.dir.as_deref())
}

fn connect_options(options: Connect) -> ConnectOptions {
    let Connect {
        profile,
        check,
        full,
        json,
        no_routes,
        allow_lan,
        kill_switch,
        release: _,
        dns,
        device,
        verbose,
        dir,
    } = options;
    let profile = profile.unwrap_or_default();
    ConnectOptions {
        profile,
        check,
        full,
        json,
        no_routes,
        allow_lan,
        kill_switch,
        keep_dns: dns == Switch::Off,
        device,
        dir,
        verbose,
    }
}

/// `adit connect --release`.
fn release() -> Done {
    let undone = adit_daemon::host::release()
        .map_err(|e| Fault::environment(format!("cannot change routes and rules: {e}")))?;
    match undone.as_slice() {
        [] => print("there is nothing to release\n"),
        undone => undone.iter().for_each(|what| print(&format!("removed {what}\n"))),
    }
    Ok(ExitCode::SUCCESS)
}

fn man(dir: &Path) -> Done {
    let fault = |error: io::Error| {
        Fault::environment(format!(
            "cannot write man pages into {}: {error}; name a folder that you may write to",
            dir.display()
        ))
    };
    std::fs::create_dir_all(dir).map_err(fault)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, dir).map_err(fault)?;
    Ok(ExitCode::SUCCESS)
}

/// A page for a command, and one for each of its verbs.
fn write_pages(command: &clap::Command, dir: &Path) -> io::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write_pages(verb, dir)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    std::fs::write(dir.join(format!("{name}.1")), page(command, name)?)
}

/// The generated page, with a title that names the program and a synopsis with the options' values.
fn page(command: &clap::Command, name: &str) -> io::Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    let mut text = String::new();
    let mut in_synopsis = false;
    for line in String::from_utf8_lossy(&page).lines() {
        if line.starts_with(".TH ") {
            let version = env!("CARGO_PKG_VERSION");
            text.push_str(&format!(".TH {name} 1 \"\" \"adit {version}\" \"adit manual\""));
        } else if std::mem::take(&mut in_synopsis) {
            text.push_str(&synopsis(command));
        } else {
            text.push_str(line);
        }
        in_synopsis |= line == ".SH SYNOPSIS";
        text.push('\n');
    }
    Ok(text)
}

fn synopsis(command: &clap::Command) -> String {
    let bold = |text: &str| format!("\\fB{}\\fR", text.replace('-', "\\-"));
    let mut text = bold(command.get_bin_name().unwrap_or(command.get_name()));
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let names = argument.get_value_names().unwrap_or_default();
        let values: Vec<String> = names.iter().map(|name| format!("\\fI{name}\\fR")).collect();
        let values = values.join(" ");
        let word = match (argument.get_long(), argument.get_short()) {
            (Some(long), _) if argument.get_action().takes_values() => {
                format!("{} {values}", bold(&format!("--{long}")))
            }
            (Some(long), _) => bold(&format!("--{long}")),
            (None, Some(short)) => bold(&format!("-{short}")),
            (None, None) => values,
        };
        text.push_str(&match argument.is_required_set() {
            true => format!(" {word}"),
            false => format!(" [{word}]"),
        });
    }
    if command.has_subcommands() {
        text.push_str(" \\fIVERB\\fR");
    }
    text
}

/// Prints; a reader that has gone away (`| head`) is no failure.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The same for what is not the result itself, to stderr (`eprint!` would panic).
fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a value as JSON.
fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Fault> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Fault::ours(format!("cannot write JSON: {error}")))?;
    print(&text);
    print("\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openvpn(line: &str) -> Option<Vec<String>> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let options = as_openvpn(&words)?;
        Some(options.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn openvpns_options_pass_untouched() {
        assert_eq!(
            openvpn("adit openvpn --config c --help --version"),
            Some(vec!["--config".into(), "c".into(), "--help".into(), "--version".into()])
        );
        assert_eq!(openvpn("/usr/sbin/openvpn x.ovpn"), Some(vec!["x.ovpn".into()]));
        assert_eq!(openvpn("openvpn"), Some(vec![]));
        assert_eq!(openvpn("adit connect openvpn"), None);
        assert_eq!(openvpn("adit"), None);
    }

    #[test]
    fn every_verb_has_a_man_page() {
        let dir = tempfile::tempdir().unwrap();
        man(dir.path()).unwrap();
        for page in ["adit.1", "adit-server-client-add.1", "adit-demo.1", "adit-openvpn.1"] {
            assert!(dir.path().join(page).exists(), "{page}");
        }
        let read = |page: &str| std::fs::read_to_string(dir.path().join(page)).unwrap();
        let up = read("adit-server-up.1");
        assert!(up.contains(".TH adit-server-up 1 \"\" \"adit "), "{up}");
        assert!(up.contains("[\\fB\\-\\-client\\fR \\fINAME\\fR]"), "{up}");
        assert!(up.contains("[\\fB\\-\\-full\\-tunnel\\fR]"), "{up}");
        assert!(read("adit-connect.1").contains("\\fBadit connect\\fR [\\fIPROFILE\\fR]"));
        let openvpn = read("adit-openvpn.1");
        assert!(
            openvpn.contains("\"adit manual\"") && !openvpn.contains("\"openvpn \""),
            "{openvpn}"
        );
    }
}
