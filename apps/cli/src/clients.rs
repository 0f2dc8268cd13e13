//! `adit server client ...`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use adit_app_server::clients::{self, ClientOverview, ClientRequest};
use adit_pki::{ClientState, IssuedClient};
use adit_runtime::fault::Fault;
use adit_runtime::terminal;
use zeroize::Zeroizing;

use crate::args::{
    Client, ClientAdd, ClientGroup, ClientList, ClientRemotes, ClientRenew, ClientShow,
};
use crate::text::{bytes, date, date_from_now, pair, row, span, table, table_of_names, wrapped};
use crate::{client_terms, paths, print, print_json, profile_link};

pub(crate) fn run(verb: Client) -> Result<ExitCode, Fault> {
    match verb {
        Client::Add(options) => add(options),
        Client::List(options) => list(&options),
        Client::Show(options) => show(&options),
        Client::Renew(options) => renew(options),
        Client::Set(options) => client_terms::set(&options),
        Client::Rename(options) => {
            let paths = paths(&options.location)?;
            let (client, count) = clients::rename(&paths, &options.name, &options.new_name)?;
            let what = format!("is now {}; its profile stays valid", client.name);
            ended(&options.name, &what, count)
        }
        Client::Delete(options) => {
            let count = clients::delete(&paths(&options.location)?, &options.name)?;
            ended(&options.name, "is deleted, and its certificate is revoked", count)
        }
        Client::Group(options) => group(&options),
        Client::Remotes(options) => remotes(&options),
        Client::Revoke(who) => {
            let count = clients::revoke(&paths(&who.location)?, &who.name)?;
            ended(&who.name, "is revoked permanently", count)
        }
        Client::Disable(who) => {
            let count = clients::disable(&paths(&who.location)?, &who.name)?;
            ended(&who.name, "is locked out until it is enabled", count)
        }
        Client::Enable(who) => {
            clients::enable(&paths(&who.location)?, &who.name)?;
            ended(&who.name, "may connect again", 0)
        }
        Client::Kick(who) => {
            let text = match clients::kick(&paths(&who.location)?, &who.name)? {
                0 => format!("{} was not connected\n", who.name),
                1 => format!("{}: its session ended; it may connect again\n", who.name),
                ended => {
                    format!("{}: its {ended} sessions ended; it may connect again\n", who.name)
                }
            };
            print(&wrapped("", text.trim_end()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn remotes(options: &ClientRemotes) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let remotes = clients::remotes(&paths, &options.done)?;
    remotes.lines.iter().for_each(|line| print(&format!("{line}\n")));
    let hint = if remotes.outdated.is_empty() {
        "all profiles, as far as is known, contain this host and these ports\n".to_owned()
    } else {
        let names = remotes.outdated.join(", ");
        wrapped("out of date: ", &names)
            + "These lines replace those that begin with proto, remote or server-poll-timeout.\n"
    };
    crate::note(&hint);
    Ok(ExitCode::SUCCESS)
}

fn group(options: &ClientGroup) -> Result<ExitCode, Fault> {
    let client = clients::set_groups(&paths(&options.location)?, &options.name, &options.groups)?;
    print(&if client.groups.is_empty() {
        format!("{} is in no group\n", client.name)
    } else {
        format!("{} is in: {}\n", client.name, groups(&client))
    });
    Ok(ExitCode::SUCCESS)
}

/// Prints a change of a client or user, and the number of sessions that it ended.
pub(crate) fn ended(name: &str, what: &str, count: usize) -> Result<ExitCode, Fault> {
    let sessions = match count {
        0 => String::new(),
        1 => "; its session ended".to_owned(),
        _ => format!("; its {count} sessions ended"),
    };
    print(&wrapped("", &format!("{name} {what}{sessions}")));
    Ok(ExitCode::SUCCESS)
}

fn add(options: ClientAdd) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    clients::check_new(&paths, &options.name)?;
    let link = profile_link::open(&paths, &options.link)?;
    let target = link.is_none().then(|| target(options.output, &options.name)).transpose()?;
    let wanted = ClientRequest {
        days: options.days,
        password: ask_password(options.password)?,
        addresses: options.address,
        keep_profile: options.keep_profile,
        groups: options.group,
        name: options.name,
    };
    let kept = wanted.keep_profile;
    let issued = clients::add(&paths, &wanted)?;
    match link {
        Some(link) => profile_link::hand_out(&paths, link, &issued, options.link.qr),
        None => deliver(&issued, target.flatten(), kept),
    }
}

fn renew(options: ClientRenew) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    clients::show(&paths, &options.name)?;
    let link = profile_link::open(&paths, &options.link)?;
    let target = link.is_none().then(|| target(options.output, &options.name)).transpose()?;
    let wanted = ClientRequest {
        days: options.days,
        password: ask_password(options.password)?,
        name: options.name,
        ..ClientRequest::default()
    };
    let (issued, ended) = clients::renew(&paths, &wanted)?;
    if ended > 0 {
        crate::note("its session with the old certificate ended\n");
    }
    if let Some(link) = link {
        return profile_link::hand_out(&paths, link, &issued, options.link.qr);
    }
    let kept = clients::show(&paths, issued.client.name.as_str())?.profile_kept;
    deliver(&issued, target.flatten(), kept)
}

/// Returns the file to write, or `None` for stdout. It is called before a certificate is issued.
pub(crate) fn target(output: Option<PathBuf>, name: &str) -> Result<Option<PathBuf>, Fault> {
    let path = match output {
        Some(path) if path.as_os_str() == "-" => return Ok(None),
        Some(path) => path,
        None if !std::io::stdout().is_terminal() => return Ok(None),
        None => PathBuf::from(format!("{name}.ovpn")),
    };
    clients::check_target(&path)?;
    Ok(Some(path))
}

fn deliver(issued: &IssuedClient, target: Option<PathBuf>, kept: bool) -> Result<ExitCode, Fault> {
    let Some(path) = target else {
        print(issued.profile.text());
        crate::note("the profile, with its private key, goes to stdout: keep it out of logs\n");
        return Ok(ExitCode::SUCCESS);
    };
    issued.profile.save(&path).map_err(|error| Fault::environment(error.to_string()))?;
    print(&format!(
        "{} holds the profile of {}, valid until {}.\n\
         It contains the private key{}: hand it over safely.\n",
        path.display(),
        issued.client.name,
        date(issued.client.expires),
        if kept { "" } else { ", which is kept nowhere else" }
    ));
    Ok(ExitCode::SUCCESS)
}

fn ask_password(wanted: bool) -> Result<Option<Zeroizing<String>>, Fault> {
    if !wanted {
        return Ok(None);
    }
    let ask = |prompt: &str| {
        terminal::ask_hidden(prompt).map_err(|error| {
            Fault::operator(format!("--password needs a terminal to ask on: {error}"))
        })
    };
    let password = ask("Password for the private key: ")?;
    if password.is_empty() {
        return Err(Fault::operator("an empty password protects nothing; omit --password"));
    }
    if *ask("The same again: ")? != *password {
        return Err(Fault::operator("the two passwords differ; nothing was created"));
    }
    Ok(Some(password))
}

fn state(known: &ClientOverview) -> &'static str {
    match known.client.state {
        ClientState::Active if known.client.expires < crate::text::now() => "expired",
        ClientState::Active if known.sessions.is_empty() => "active",
        ClientState::Active => "connected",
        ClientState::Disabled => "disabled",
        ClientState::Revoked => "revoked",
    }
}

fn list(options: &ClientList) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let known = clients::list(&paths)?;
    if options.json {
        print_json(&known)?;
        return Ok(ExitCode::SUCCESS);
    }
    if known.is_empty() {
        let hint = paths.command("server client add laptop");
        print(&format!("No clients yet. Add one: {hint}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    // Print complete names for programs, and lines that fit a terminal for users.
    print(&if std::io::stdout().is_terminal() {
        for_people(&known)
    } else {
        table(&columns(&known))
    });
    Ok(ExitCode::SUCCESS)
}

fn inside(known: &ClientOverview) -> String {
    let session = known.sessions.first();
    session
        .and_then(|session| session.tunnel.first().cloned())
        .or_else(|| known.client.address4.map(|address| address.to_string()))
        .unwrap_or_else(|| "-".into())
}

fn columns(known: &[ClientOverview]) -> Vec<Vec<String>> {
    // Omit the columns that are empty for all clients.
    let grouped = known.iter().any(|client| !client.client.groups.is_empty());
    let noted = known.iter().any(|client| client.client.terms.note.is_some());
    let mut rows = vec![row(["NAME", "STATE", "EXPIRES", "FROM", "INSIDE"])];
    if let Some(head) = rows.first_mut() {
        head.extend(grouped.then(|| "GROUPS".into()));
        head.extend(noted.then(|| "NOTE".into()));
    }
    for client in known {
        let from = client.sessions.first().map_or("-".into(), |session| session.address.clone());
        rows.push(vec![
            client.client.name.to_string(),
            state(client).into(),
            expiry(client),
            from,
            inside(client),
        ]);
        if let Some(last) = rows.last_mut() {
            last.extend(grouped.then(|| groups(&client.client)));
            last.extend(noted.then(|| client.client.terms.note.clone().unwrap_or_default()));
        }
    }
    rows
}

/// Prints a line for each client, and below it its address and its groups.
fn for_people(known: &[ClientOverview]) -> String {
    let mut rows = vec![row(["NAME", "STATE", "EXPIRES", "INSIDE"])];
    rows.extend(known.iter().map(|client| {
        row([client.client.name.as_str(), state(client), &expiry(client), &inside(client)])
    }));
    let lines = table_of_names(rows);
    let mut lines = lines.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    for (line, client) in lines.zip(known) {
        let mut details: Vec<String> =
            client.sessions.iter().map(|session| format!("from {}", session.address)).collect();
        if !client.client.groups.is_empty() {
            details.push(format!("groups: {}", groups(&client.client)));
        }
        details.extend(client.client.terms.note.clone());
        text.push_str(&format!("{line}\n"));
        if !details.is_empty() {
            text.push_str(&wrapped("    ", &details.join("; ")));
        }
    }
    text
}

/// A certificate is marked from this many seconds before its expiry.
const SOON: u64 = 30 * 86_400;

/// Formats the expiry of a client's certificate, with a mark if it is soon.
fn expiry(known: &ClientOverview) -> String {
    let client = &known.client;
    let left = client.expires.saturating_sub(crate::text::now());
    match client.state {
        ClientState::Revoked => date(client.expires),
        _ if left == 0 || left >= SOON => date(client.expires),
        _ => format!("{} (renew: {} d left)", date(client.expires), left / 86_400),
    }
}

fn groups(client: &adit_pki::Client) -> String {
    let names: Vec<&str> = client.groups.iter().map(|group| group.as_str()).collect();
    names.join(", ")
}

fn show(options: &ClientShow) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    if options.profile {
        print(&clients::profile(&paths, &options.name)?);
        return Ok(ExitCode::SUCCESS);
    }
    let known = clients::show(&paths, &options.name)?;
    if options.json {
        print_json(&known)?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = &known.client;
    let mut rows = vec![
        row(["name", client.name.as_str()]),
        row(["state", state(&known)]),
        row(["serial", &client.serial]),
        row(["created", &date(client.created)]),
        row(["expires", &date_from_now(client.expires)]),
    ];
    if let Some(identity) = &client.identity {
        rows.push(row(["certificate of", identity.as_str()]));
    }
    rows.extend(client_terms::rows(&known));
    if known.profile_kept {
        rows.push(row(["profile", "kept on the server: show --profile prints it"]));
    }
    if !client.groups.is_empty() {
        rows.push(row(["groups", &groups(client)]));
    }
    if let Some(revoked) = client.revoked {
        rows.push(row(["revoked", &date_from_now(revoked)]));
    }
    for old in &client.former {
        rows.push(row(["former serial", &old.serial]));
    }
    for session in &known.sessions {
        let since = crate::text::now().saturating_sub(session.since);
        rows.push(row(["session", &format!("from {}, for {}", session.address, span(since))]));
        rows.push(row(["inside", &session.tunnel.join(", ")]));
        let traffic =
            format!("received {}, sent {}", bytes(session.rx_bytes), bytes(session.tx_bytes));
        rows.push(row(["traffic", &traffic]));
        rows.push(row(["protected by", &format!("{}, {}", session.cipher, session.tls)]));
        if let Some(program) = &session.program {
            rows.push(row(["program", program]));
        }
    }
    rows.iter().for_each(|row| print(&pair(row)));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use adit_pki::ClientTerms;
    use adit_runtime::control::PeerReport;

    use super::*;

    #[test]
    fn a_list_for_people_fits_a_terminal() {
        let client = |name: &str, group: &[&str]| adit_pki::Client {
            name: name.parse().unwrap(),
            serial: "1".into(),
            former: Vec::new(),
            state: ClientState::Active,
            created: 0,
            expires: crate::text::now() + 86_500,
            revoked: None,
            address4: None,
            address6: None,
            groups: group.iter().map(|name| name.parse().unwrap()).collect(),
            identity: None,
            terms: ClientTerms::default(),
            remote: None,
        };
        let session = PeerReport {
            address: "[2001:db8:1234:5678:9abc:def0:1234:5678]:50000".into(),
            tunnel: vec!["10.255.255.254".into()],
            ..PeerReport::default()
        };
        let overview =
            |client, sessions| ClientOverview { client, used: None, profile_kept: false, sessions };
        let long = "a-laptop-with-a-very-long-name@example.net";
        let known = [
            overview(client(long, &["staff", "ops"]), vec![session]),
            overview(client("b", &[]), Vec::new()),
        ];
        let text = for_people(&known);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("~  connected  ") && lines[1].ends_with("10.255.255.254"),
            "{text}"
        );
        assert!(lines[2].starts_with("    from [2001:db8:") && text.contains("groups: "), "{text}");
        assert!(lines.last().unwrap().starts_with("b "), "{text}");
        let whole = table(&columns(&known));
        assert!(whole.contains(long) && whole.contains("GROUPS"), "{whole}");
    }
}
