//! `adit server up`: creates and runs a server in one command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use super::clients::{check_target, open_store};
use super::doctor::{self, Finding};
use super::host_state::running;
use super::init::{InitOutcome, NewServer, init};
use super::serve::{self, OnReady, RunOptions};
use super::settings::Settings;
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;

/// The options of `adit server up`.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The name of a client to add if it does not exist.
    pub client: Option<String>,
    /// The options for [`init`].
    pub choices: NewServer,
    /// The path of this program. The authority's key is only read by a separate process that never uses the network.
    pub program: PathBuf,
    /// The same options as arguments of `adit server init`.
    pub arguments: Vec<OsString>,
    /// The options of the running server.
    pub run: RunOptions,
}

/// A step of `adit server up`.
#[derive(Clone, Debug)]
pub enum Step {
    /// Settings and keys exist.
    Created(Box<InitOutcome>),
    /// A client with this name was added. This file is its profile.
    Client(String, PathBuf),
    /// The client already exists.
    ClientKept(String),
    /// The server already runs, with this process id.
    RunsAlready(u32),
    /// A check found a problem or a warning.
    InTheWay(Finding),
}

/// Creates what is missing, checks for obstacles, and runs the server. `tell` is called after each step.
///
/// # Errors
/// Fails if a step failed.
pub fn up(
    paths: &Paths,
    options: &UpOptions,
    tell: &mut dyn FnMut(Step),
    on_ready: OnReady,
) -> Result<(), Fault> {
    // A separate process creates and renews the keys: this one will use the network, so it never reads the authority's key.
    let planned = init(paths, &options.choices, true)?;
    if planned.new_settings {
        // Check the ports before the settings are written: a second attempt would have to agree with them.
        check_ports(&planned.settings)?;
    }
    child(options, "init", &options.arguments, paths)?;
    let settings = init(paths, &NewServer::default(), true)?.settings;
    let created = InitOutcome { settings, ..planned };
    let settings = created.settings.clone();
    tell(Step::Created(Box::new(created)));
    if let Some(name) = &options.client {
        tell(client(paths, options, name)?);
    }
    if let Some(pid) = running(paths) {
        tell(Step::RunsAlready(pid));
        return Ok(());
    }
    for finding in doctor::in_the_way(paths, &settings) {
        tell(Step::InTheWay(finding));
    }
    serve::run(paths, options.run.clone(), Some(on_ready))
}

fn check_ports(settings: &Settings) -> Result<(), Fault> {
    match settings.listen.iter().find_map(|listen| doctor::port_problem(*listen)) {
        None => Ok(()),
        Some(problem) => Err(Fault::environment(format!(
            "{problem}; nothing was written: stop that program, or choose another port, for example \
             --listen udp/1195"
        ))),
    }
}

fn client(paths: &Paths, options: &UpOptions, name: &str) -> Result<Step, Fault> {
    let exists = open_store(paths)?.client(name).is_ok();
    if exists {
        return Ok(Step::ClientKept(name.to_owned()));
    }
    let file = PathBuf::from(format!("{name}.ovpn"));
    // The issuer checks the name too. This check only prevents a path in the file's name.
    if !name.contains('/') {
        check_target(&file)?;
    }
    let arguments: Vec<OsString> =
        vec!["add".into(), name.into(), "--output".into(), file.clone().into()];
    child(options, "client", &arguments, paths)?;
    let shown = std::path::absolute(&file).unwrap_or(file);
    Ok(Step::Client(name.to_owned(), shown))
}

/// Runs `adit server VERB ARGUMENTS` without output. Its error becomes ours.
fn child(
    options: &UpOptions,
    verb: &str,
    arguments: &[OsString],
    paths: &Paths,
) -> Result<(), Fault> {
    let mut command = Command::new(&options.program);
    command.arg("server").arg(verb).args(arguments);
    if let Some(dir) = &paths.dir {
        command.arg("--dir").arg(dir);
    }
    let output = command.output().map_err(|error| {
        Fault::environment(format!("cannot start {}: {error}", options.program.display()))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("adit: ").to_owned();
    Err(match output.status.code() {
        Some(2) => Fault::operator(said),
        _ => Fault::environment(said),
    })
}
