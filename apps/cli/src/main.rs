//! The `adit` command. It only parses arguments and prints results.

#![forbid(unsafe_code)]

mod args;
mod audit;
mod background;
mod backup;
#[cfg(feature = "bridge")]
mod bridge;
mod client_terms;
mod clients;
mod complete;
mod demo;
mod doctor;
mod filter;
mod filter_control;
mod man;
#[cfg(feature = "mesh")]
mod mesh;
#[cfg(feature = "postgres")]
mod postgres;
mod profile_link;
mod server;
mod status;
mod text;
#[cfg(feature = "tinc")]
mod tinc;
mod users;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use adit_app_openvpn::connect::{self, ConnectOptions};
use adit_runtime::ZeroizingAllocator;
use adit_runtime::fault::Fault;
use adit_runtime::helper::DutyKind;
use adit_runtime::log::fault_line;
use adit_runtime::paths::Paths;

use args::{Connect, Location, Switch, Verb};

// musl's own allocator takes a lock for each call.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: ZeroizingAllocator<mimalloc::MiMalloc> = ZeroizingAllocator(mimalloc::MiMalloc);
#[cfg(not(target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: ZeroizingAllocator<std::alloc::System> = ZeroizingAllocator(std::alloc::System);

/// The commands that have a helper process.
const HELPERS: &[DutyKind] = &[
    adit_app_openvpn::OPENVPN,
    adit_app_openvpn::CONNECT,
    adit_app_server::SERVER,
    #[cfg(feature = "bridge")]
    adit_app_bridge::BRIDGE,
    #[cfg(feature = "mesh")]
    adit_app_mesh::node::MESH,
    #[cfg(feature = "postgres")]
    adit_app_postgres::node::NODE,
    #[cfg(feature = "tinc")]
    adit_app_tinc::daemon::TINC,
];

fn main() -> ExitCode {
    adit_runtime::demo::ends::end_with_parent();
    let arguments = as_adit(std::env::args_os().collect());
    if let Some(code) = adit_runtime::helper::main(&arguments, HELPERS) {
        return code;
    }
    if let Some(code) = adit_runtime::background::main(&arguments) {
        return code;
    }
    if let Some(code) = adit_runtime::programs::main(&arguments) {
        return code;
    }
    if let Some(code) = adit_app_openvpn::plugin_host::main(&arguments) {
        return code;
    }
    if let Some(code) = adit_app_openvpn::token_host::main(&arguments) {
        return code;
    }
    if let Some(code) = adit_app_server::pam::main(&arguments) {
        return code;
    }
    #[cfg(feature = "mesh")]
    if let Some(code) = adit_app_mesh::guest::main(&arguments) {
        return code;
    }
    if let Some(code) = complete::answer(&arguments) {
        return code;
    }
    if let Some(options) = as_openvpn(&arguments) {
        return adit_app_openvpn::openvpn::main(options);
    }
    #[cfg(feature = "tinc")]
    if let Some(words) = as_tincd(&arguments) {
        return adit_app_tinc::daemon::main(words);
    }
    if let Err(error) = adit_runtime::background::adopt() {
        note(&format!("adit: the supervisor of this process has ended: {error}\n"));
        return ExitCode::FAILURE;
    }
    adit_runtime::signals::end_with_terminal();
    #[cfg(feature = "mesh")]
    if arguments.get(1).is_some_and(|verb| verb == "mesh") {
        mesh::hide_token(&arguments);
        if arguments.iter().any(|word| word == "directory") {
            report_mask(adit_app_mesh::mask_secrets());
        }
    }
    #[cfg(feature = "postgres")]
    if arguments.get(1).is_some_and(|verb| verb == "postgres") {
        // Do this before anything else, because other users can read the command line until then.
        report_mask(adit_app_postgres::mask_secrets());
    }
    let (cli, act) = audit::parse(arguments);
    let outcome = run(cli.verb);
    audit::record(act, outcome.is_ok());
    match outcome {
        Ok(code) => code,
        Err(fault) => {
            note(&fault_line(&fault.to_string(), io::stderr().is_terminal()));
            fault.exit_code()
        }
    }
}

/// Warns if secrets on the command line stay visible.
#[cfg(any(feature = "mesh", feature = "postgres"))]
fn report_mask(masked: io::Result<()>) {
    if let Err(error) = masked {
        note(&format!(
            "adit: note: this command line stays visible in ps ({error}); give secrets on stdin: -\n"
        ));
    }
}

/// Returns the command line of `tinc ...` as that of `adit tinc ...`, and any other unchanged.
fn as_adit(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let program = arguments.first().map(Path::new).and_then(Path::file_name);
    if cfg!(feature = "tinc") && program.is_some_and(|name| name == "tinc") {
        arguments.splice(..1, ["adit".into(), "tinc".into()]);
    }
    arguments
}

/// Returns the options of `tincd ...`. They do not pass through clap, whose grammar is another one.
#[cfg(feature = "tinc")]
fn as_tincd(arguments: &[OsString]) -> Option<&[OsString]> {
    let (program, rest) = arguments.split_first()?;
    let is_tincd = Path::new(program).file_name().is_some_and(|name| name == "tincd");
    is_tincd.then_some(rest)
}

/// Returns the options of `openvpn ...` or `adit openvpn ...`, if this is such a command line. They
/// do not pass through clap, which would interpret options such as `--help`.
fn as_openvpn(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let (program, rest) = arguments.split_first()?;
    if Path::new(program).file_name().is_some_and(|name| name == "openvpn") {
        return Some(rest.to_vec());
    }
    let (verb, options) = rest.split_first()?;
    (verb == "openvpn").then(|| options.to_vec())
}

fn run(verb: Verb) -> Result<ExitCode, Fault> {
    match verb {
        Verb::Server(verb) => server::run(verb),
        Verb::Connect(options) if options.release => release(),
        Verb::Connect(options) => Ok(connect::run(connect_options(options))),
        Verb::Up(options) => background::up(&options),
        Verb::Down(options) => background::down(&options),
        Verb::List(options) => background::list(&options),
        Verb::Logs(options) => background::logs(&options),
        Verb::Status(options) => status::once(&options),
        Verb::Top(options) => status::top(&options),
        #[cfg(feature = "bridge")]
        Verb::Bridge(options) => bridge::run(options),
        #[cfg(not(feature = "bridge"))]
        Verb::Bridge(_) => Err(left_out("bridge")),
        Verb::Filter(verb) => filter::run(verb),
        #[cfg(feature = "mesh")]
        Verb::Mesh(verb) => mesh::run(verb),
        #[cfg(not(feature = "mesh"))]
        Verb::Mesh(_) => Err(left_out("mesh")),
        #[cfg(feature = "postgres")]
        Verb::Postgres(verb) => postgres::run(verb),
        #[cfg(not(feature = "postgres"))]
        Verb::Postgres(_) => Err(left_out("postgres")),
        #[cfg(feature = "tinc")]
        Verb::Tinc(options) => tinc::run(&options),
        #[cfg(not(feature = "tinc"))]
        Verb::Tinc(_) => Err(left_out("tinc")),
        Verb::Openvpn { options } => Ok(adit_app_openvpn::openvpn::main(options)),
        Verb::Reload(options) => status::reload(&options),
        Verb::Kick(options) => status::kick(&options),
        Verb::Doctor(options) => doctor::run(&options),
        Verb::Demo(options) => demo::run(&options),
        Verb::Completions { shell } => {
            print(&complete::script(shell)?);
            Ok(ExitCode::SUCCESS)
        }
        Verb::Man { dir } => man::write(&dir),
    }
}

/// Returns the fault for a command that this build does not include.
#[cfg(not(all(feature = "bridge", feature = "mesh", feature = "postgres", feature = "tinc")))]
fn left_out(verb: &str) -> Fault {
    Fault::operator(format!(
        "adit {verb}: not part of this build; build adit with the feature `{verb}`, which is on by default"
    ))
}

fn paths(location: &Location) -> Result<Paths, Fault> {
    Paths::new(location.dir.as_deref())
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
        serve,
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
        metrics: serve.metrics,
        verbose,
    }
}

/// Runs `adit connect --release`.
fn release() -> Result<ExitCode, Fault> {
    let undone = adit_runtime::host::release()
        .map_err(|e| Fault::environment(format!("cannot change routes and rules: {e}")))?;
    match undone.as_slice() {
        [] => print("there is nothing to release\n"),
        undone => undone.iter().for_each(|what| print(&format!("removed {what}\n"))),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints to stdout. It is not a failure if the reader has closed the pipe (`| head`).
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a message other than the result to stderr (`eprint!` would panic).
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

    #[cfg(feature = "tinc")]
    #[test]
    fn a_program_called_tinc_is_the_verb() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(as_adit(words("/usr/sbin/tinc -n vpn pid")), words("adit tinc -n vpn pid"));
        assert_eq!(as_adit(words("adit connect tinc")), words("adit connect tinc"));
    }
}
