//! `adit server backup` and `adit server restore`.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use adit_app_server::backup::{self, BackupSummary};
use adit_app_server::clients;
use adit_runtime::fault::Fault;
use adit_runtime::progress::Progress;
use adit_runtime::terminal;
use zeroize::Zeroizing;

use crate::args::{Backup, Restore};
use crate::text::{count, date, wrapped};
use crate::{note, paths, print};

pub(crate) fn back_up(options: &Backup) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let stdout = options.file.as_os_str() == "-";
    if stdout && std::io::stdout().is_terminal() {
        return Err(Fault::operator(
            "a backup is no text for a terminal; name a file, or use a pipe",
        ));
    }
    if !stdout {
        clients::check_target(&options.file)?;
    }
    let passphrase = passphrase(options.passphrase_file.as_deref(), true)?;
    let progress = Progress::new("reading and sealing the state");
    let (sealed, summary) = backup::backup(&paths, &passphrase)?;
    drop(progress);
    for path in &summary.left_out {
        note(&wrapped(
            "note: ",
            &format!(
                "{} is not in the backup: it is outside of the folder of the settings",
                path.display()
            ),
        ));
    }
    if stdout {
        let written = std::io::stdout().lock().write_all(&sealed);
        written.map_err(|error| Fault::environment(format!("cannot write to stdout: {error}")))?;
        return Ok(ExitCode::SUCCESS);
    }
    adit_pki::write_private(&options.file, &sealed)
        .map_err(|error| Fault::environment(error.to_string()))?;
    print(&wrapped(
        "",
        &format!(
            "{} holds the server with {}. With it and the passphrase, anyone can make clients: keep both, apart from each other.",
            options.file.display(),
            contents(&summary)
        ),
    ));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn restore(options: &Restore) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let file = backup::read_file(&options.file)?;
    let passphrase = passphrase(options.passphrase_file.as_deref(), false)?;
    let progress = Progress::new("restoring the state");
    let summary = backup::restore(&paths, &file, &passphrase, options.replace)?;
    drop(progress);
    print(&wrapped("", &format!("restored: {}, as of {}", contents(&summary), date(summary.made))));
    print(&wrapped(
        "",
        "Clients and users that were revoked, disabled or deleted since then can connect again: repeat these changes before the server starts.",
    ));
    print(&format!(
        "\nNext:   {}\n        {}\n",
        paths.command("doctor"),
        paths.command("server run")
    ));
    Ok(ExitCode::SUCCESS)
}

fn contents(summary: &BackupSummary) -> String {
    format!("{} and {}", count(summary.clients, "client"), count(summary.users, "user"))
}

/// Reads the passphrase from a file, or asks for it: twice if it is new.
fn passphrase(file: Option<&Path>, new: bool) -> Result<Zeroizing<String>, Fault> {
    if let Some(path) = file {
        let text = std::fs::read_to_string(path).map(Zeroizing::new).map_err(|error| {
            Fault::operator(format!("--passphrase-file {}: {error}", path.display()))
        })?;
        return Ok(Zeroizing::new(text.lines().next().unwrap_or_default().to_owned()));
    }
    let ask = |prompt: &str| {
        terminal::ask_hidden(prompt).map_err(|error| {
            Fault::operator(format!(
                "no terminal to ask for the passphrase on ({error}); give it with --passphrase-file"
            ))
        })
    };
    let passphrase = ask("Passphrase: ")?;
    if new && *ask("The same again: ")? != *passphrase {
        return Err(Fault::operator("the two passphrases differ; nothing was written"));
    }
    Ok(passphrase)
}
