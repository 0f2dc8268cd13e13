//! `adit tinc`.

mod args;
mod daemon;
pub(crate) mod status;
mod top;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use adit_app_tinc as app;
use adit_app_tinc::{Change, Console, Net, NetOptions};
use adit_runtime::fault::Fault;
use clap::{CommandFactory, Parser};

pub(crate) use args::Tinc;
use args::{Command, Line};

use crate::args::Cli;
use crate::{note, print, print_json};

/// Runs `adit tinc`. Every failure has tinc's exit code 1, and is reported in its words.
pub(crate) fn run(options: &Tinc) -> Result<ExitCode, Fault> {
    if options.version {
        print_version();
        return Ok(ExitCode::SUCCESS);
    }
    let mut net_options = net_options(options);
    let done = match &options.command {
        Some(command) => reported(execute(command, options, &mut net_options)),
        None => shell(options, net_options),
    };
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn net_options(options: &Tinc) -> NetOptions {
    let Tinc { net, config, pidfile, .. } = options;
    NetOptions { name: net.clone(), config: config.clone(), pid_file: pidfile.clone() }
}

fn reported(result: Result<(), Fault>) -> bool {
    if let Err(fault) = &result {
        note(&format!("{fault}\n"));
    }
    result.is_ok()
}

fn print_version() {
    print(&format!("tinc version {}\n", app::VERSION));
}

/// Reads commands from the input. Returns whether all of them succeeded.
fn shell(options: &Tinc, mut net_options: NetOptions) -> bool {
    let prompts = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut all_done = true;
    loop {
        if prompts {
            print("tinc> ");
        }
        let mut line = String::new();
        // Not locked: a command may read the input as well.
        if !matches!(io::stdin().read_line(&mut line), Ok(1..)) {
            return all_done;
        }
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if matches!(line, "quit" | "exit") {
            return all_done;
        }
        match Line::try_parse_from(line.split_whitespace()) {
            Ok(Line { command }) => {
                all_done &= reported(execute(&command, options, &mut net_options));
            }
            Err(error) => {
                let _ = error.print();
                all_done &= !error.use_stderr();
            }
        }
    }
}

fn execute(command: &Command, options: &Tinc, net_options: &mut NetOptions) -> Result<(), Fault> {
    let net = Net::new(net_options, std::env::var("NETNAME").ok())?;
    let (mut input, mut out, mut notes) = (io::stdin(), io::stdout(), io::stderr());
    let mut console =
        Console { input: &mut input, out: &mut out, notes: &mut notes, force: options.force };
    let console = &mut console;
    match command {
        Command::Init { name } => app::init(&net, &name_or_question(name, options)?, console),
        Command::Get { words } => app::get(&net, words, console),
        Command::Set { words } => app::change(&net, Change::Set, words, console),
        Command::Add { words } => app::change(&net, Change::Add, words, console),
        Command::Del { words } => app::change(&net, Change::Delete, words, console),
        Command::GenerateEd25519Keys => app::generate_ed25519(&net, console),
        Command::GenerateKeys { .. } => {
            console.note(&format!("Not generated: {}.", app::NO_RSA));
            app::generate_ed25519(&net, console)
        }
        Command::GenerateRsaKeys { .. } => Err(Fault::operator(format!("{}.", app::NO_RSA))),
        Command::Export => app::export(&net, console),
        Command::ExportAll => app::export_all(&net, console),
        Command::Import => app::import(&net, console),
        Command::Exchange => {
            app::export(&net, console)?;
            app::import(&net, console)
        }
        Command::ExchangeAll => {
            app::export_all(&net, console)?;
            app::import(&net, console)
        }
        Command::Invite { node } => app::invite(&net, node, console),
        Command::Sign { file } => app::sign(&net, file.as_deref(), console),
        Command::Verify { node, file } => app::verify(&net, node, file.as_deref(), console),
        Command::Edit { file } => app::edit(&net, file),
        Command::Fsck => app::fsck(&net, console),
        Command::Network { name: None } => app::networks(console),
        Command::Network { name: Some(name) } => {
            // Takes effect on the commands that follow.
            let changed = NetOptions { name: Some(name.clone()), ..NetOptions::default() };
            Net::new(&changed, None)?;
            *net_options = changed;
            Ok(())
        }
        Command::Version => {
            print_version();
            Ok(())
        }
        Command::Help => {
            let mut adit = Cli::command();
            // The usage has the whole command line only after this.
            adit.build();
            let help = adit.find_subcommand_mut("tinc").map(|tinc| tinc.render_help().to_string());
            console.print(&help.unwrap_or_default());
            Ok(())
        }
        Command::Start { options } => app::start(&net, options, console),
        Command::Restart { options } => app::restart(&net, options, console),
        Command::Join { url } => {
            let url = match url {
                Some(url) => url.clone(),
                None => ask("Enter invitation URL: ", options)?,
            };
            app::join(net_options, &net, &url, console)
        }
        Command::Top { json: true, .. } => top::as_json(&net),
        Command::Top { every, json: false } => top::show(&net, Duration::from_secs(*every)),
        Command::Dump { what, json: true } => daemon::dump_json(&net, what),
        Command::Dump { what, json: false } => daemon::dump(&net, what, console),
        Command::Info { item, json } => daemon::info(&net, item, *json),
        command => daemon::ask(&net, command, console),
    }
}

fn name_or_question(name: &Option<String>, options: &Tinc) -> Result<String, Fault> {
    if let Some(name) = name {
        return Ok(name.clone());
    }
    if options.batch || !io::stdin().is_terminal() {
        return Err(Fault::operator("No Name given!"));
    }
    ask("Enter the Name you want your tinc node to have: ", options)
}

/// Reads a line of the input, after a question if a person may answer it.
fn ask(question: &str, options: &Tinc) -> Result<String, Fault> {
    if !options.batch && io::stdin().is_terminal() {
        print(question);
    }
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .map_err(|error| Fault::environment(format!("Error while reading stdin: {error}")))?;
    Ok(line.trim().to_owned())
}

/// Flushes what a stream has written so far. Returns whether the reader still reads.
fn write_all(bytes: &[u8]) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).is_ok()
}

fn json<T: serde::Serialize>(value: &T) -> Result<(), Fault> {
    print_json(value)
}
