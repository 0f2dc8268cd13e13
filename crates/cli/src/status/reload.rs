//! `adit kick`, `adit reload`.

use std::process::ExitCode;

use adit_daemon::control::ReloadReport;
use adit_daemon::managed::{self, Places, Reloaded};

use crate::args::{Kick, Reload};
use crate::text::{count, wrapped};
use crate::{Done, places, print};

pub fn kick(options: &Kick) -> Done {
    let ended = managed::kick(&places(&options.place)?, &options.name)?;
    let text = format!("{}: {} ended; it may connect again", options.name, count(ended, "session"));
    print(&wrapped("", &text));
    Ok(ExitCode::SUCCESS)
}

pub fn reload(options: &Reload) -> Done {
    let places = places(&options.place)?;
    let reloaded = managed::reload(&places, options.name.as_deref())?;
    print(&reload_page(&reloaded, &places));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reload_page(reloaded: &Reloaded, places: &Places) -> String {
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
        text.push_str(&new_lines(endpoints, places));
    }
    text
}

/// What to do about profiles that name another host or other ports.
fn new_lines(endpoints: &[String], places: &Places) -> String {
    let mut text = String::from(
        "\nIn these profiles replace the lines that begin with proto, remote or\n\
         server-poll-timeout by:\n",
    );
    endpoints.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str(&format!(
        "and note it here:           {}\n\
         Or make a new profile, with a new key and certificate:\n\
         \x20                           {}\n",
        places.command("server client remotes --done NAME"),
        places.command("server client renew NAME")
    ));
    text
}
