//! `adit kick`, `adit reload`.

use std::process::ExitCode;

use adit_app_server::ReloadOutcome;
use adit_runtime::control::ReloadReport;
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;

use crate::args::{Kick, Reload};
use crate::text::{count, wrapped};
use crate::{paths, print};

pub(crate) fn kick(options: &Kick) -> Result<ExitCode, Fault> {
    let ended = adit_app_server::kick(&paths(&options.location)?, &options.name)?;
    let text = format!("{}: {} ended; it may connect again", options.name, count(ended, "session"));
    print(&wrapped("", &text));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn reload(options: &Reload) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let reloaded = adit_app_server::reload(&paths, options.name.as_deref())?;
    print(&reload_page(&reloaded, &paths));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reload_page(reloaded: &ReloadOutcome, paths: &Paths) -> String {
    if reloaded.role == "bridge" {
        return format!("The bridge {} has read its rules again.\n", reloaded.instance);
    }
    let ReloadReport { applied, pending, outdated, endpoints } = &reloaded.report;
    let mut text = String::from("The server has read its files again; no tunnel was dropped.\n");
    if !applied.is_empty() {
        text.push_str(&wrapped("applied now:                 ", &applied.join(", ")));
    }
    if !pending.is_empty() {
        text.push_str(&wrapped("not applied until a restart: ", &pending.join(", ")));
    }
    if !outdated.is_empty() {
        text.push_str(&wrapped("profiles out of date:        ", &outdated.join(", ")));
        text.push_str(&new_lines(endpoints, paths));
    }
    text
}

/// Returns the hint for clients whose profiles still name the old host or ports.
fn new_lines(endpoints: &[String], paths: &Paths) -> String {
    let mut text = String::from(
        "\nIn these profiles replace the lines that begin with proto, remote or\n\
         server-poll-timeout by:\n",
    );
    endpoints.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str(&format!(
        "and note it here:           {}\n\
         Or make a new profile, with a new key and certificate:\n\
         \x20                           {}\n",
        paths.command("server client remotes --done NAME"),
        paths.command("server client renew NAME")
    ));
    text
}
