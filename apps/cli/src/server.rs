//! `adit server ...`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_app_server::clients::{self, ClientOverview, ClientRequest};
use adit_app_server::{
    InitOutcome, Nat, Reach, ReadyReport, RunOptions, Settings, Step, UpOptions,
};
use adit_pki::{ClientState, IssuedClient};
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use adit_runtime::terminal;
use zeroize::Zeroizing;

use crate::args::{
    Choices, Client, ClientAdd, ClientGroup, ClientList, ClientRemotes, ClientRenew, ClientShow,
    HandOver, Init, Server, Up,
};
use crate::background::server as background;
use crate::text::{bytes, date, date_from_now, row, span, table, table_of_names, wrapped};
use crate::{client_terms, doctor, paths, print, print_json, profile_link};

pub(crate) fn run(verb: Server) -> Result<ExitCode, Fault> {
    match verb {
        Server::Up(options) => up(options),
        Server::Init(options) => init(options),
        Server::Run(options) => {
            let run = RunOptions {
                verbose: options.verbose,
                workers: options.workers,
                metrics: options.serve.metrics,
            };
            adit_app_server::run(&paths(&options.location)?, run, None)?;
            Ok(ExitCode::SUCCESS)
        }
        Server::Start(options) => background::start(&options),
        Server::Stop(location) => background::stop(&location),
        Server::Status(options) => background::status(&options),
        Server::Logs(options) => background::logs(&options),
        Server::Enable(location) => background::set_at_boot(&location, true),
        Server::Disable(location) => background::set_at_boot(&location, false),
        Server::HandOver(options) => hand_over(&options),
        Server::Audit(options) => crate::audit::show(&options),
        Server::Client(verb) => client(verb),
        Server::User(verb) => crate::users::run(verb),
        Server::Backup(options) => crate::backup::back_up(&options),
        Server::Restore(options) => crate::backup::restore(&options),
    }
}

/// Runs `adit server hand-over`.
fn hand_over(options: &HandOver) -> Result<ExitCode, Fault> {
    if let Some(unit) = &options.if_restarting
        && !is_restarting(unit)?
    {
        return Ok(ExitCode::SUCCESS);
    }
    let count = match options.process {
        Some(pid) => adit_app_openvpn::openvpn::hand_over(pid)?,
        None => adit_app_server::hand_over(&paths(&options.location)?)?,
    };
    print(&format!("{count} sessions are left to the next process.\n"));
    Ok(ExitCode::SUCCESS)
}

/// Returns whether systemd is restarting a unit.
fn is_restarting(unit: &str) -> Result<bool, Fault> {
    let output = std::process::Command::new("systemctl")
        .args(["list-jobs", "--no-legend", "--full"])
        .output()
        .map_err(|e| Fault::environment(format!("systemctl cannot be started: {e}")))?;
    let jobs = String::from_utf8_lossy(&output.stdout);
    Ok(jobs.lines().any(|job| {
        let mut words = job.split_ascii_whitespace();
        words.nth(1) == Some(unit) && words.next() == Some("restart")
    }))
}

fn client(verb: Client) -> Result<ExitCode, Fault> {
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

fn init(options: Init) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let created = adit_app_server::init(&paths, &choices(&options.choices)?, options.dry_run)?;
    if options.dry_run && created.new_settings {
        print(&format!("# This would be written to {}:\n\n", paths.settings_file().display()));
        print(&created.settings.to_toml());
        notes(&created);
        return Ok(ExitCode::SUCCESS);
    }
    print(&summary(&created, &paths));
    notes(&created);
    print(&format!(
        "\nNext:   {}\n        {}\n",
        paths.command("server client add laptop"),
        paths.command("server run")
    ));
    Ok(ExitCode::SUCCESS)
}

fn notes(created: &InitOutcome) {
    for note in &created.notes {
        crate::note(&wrapped("note: ", note));
    }
}

fn choices(choices: &Choices) -> Result<adit_app_server::NewServer, Fault> {
    // The server may run in a different directory than this process.
    let absolute = choices.filter.as_deref().map(std::path::absolute).transpose();
    let filter = absolute.map_err(|error| Fault::operator(format!("--filter: {error}")))?;
    Ok(adit_app_server::NewServer {
        listen: choices.listen.clone(),
        host: choices.host.clone(),
        network: choices.network,
        network6: choices.network6,
        full_tunnel: choices.full_tunnel,
        routes: choices.route.clone(),
        dns: choices.dns.clone(),
        nat: choices.nat.map(Nat::from),
        workers: choices.workers,
        filter,
    })
}

/// Converts the choices back to arguments, for the process that creates the keys.
fn arguments(choices: &adit_app_server::NewServer) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut option = |name: &str, value: String| {
        arguments.push(format!("--{name}={value}").into());
    };
    choices.listen.iter().for_each(|listen| option("listen", listen.to_string()));
    choices.host.iter().for_each(|host| option("host", host.clone()));
    choices.network.iter().for_each(|network| option("network", network.to_string()));
    choices.network6.iter().for_each(|network| option("network6", network.to_string()));
    choices.routes.iter().for_each(|route| option("route", route.to_string()));
    choices.dns.iter().for_each(|server| option("dns", server.to_string()));
    choices.workers.iter().for_each(|workers| option("workers", workers.to_string()));
    choices.filter.iter().for_each(|path| option("filter", path.to_string_lossy().into_owned()));
    match choices.nat {
        Some(Nat::Auto) => option("nat", "auto".into()),
        Some(Nat::Off) => option("nat", "off".into()),
        None => {}
    }
    if choices.full_tunnel {
        arguments.push("--full-tunnel".into());
    }
    arguments
}

fn summary(created: &InitOutcome, paths: &Paths) -> String {
    let state = |new: bool| if new { "created" } else { "kept" };
    let mut rows = vec![
        vec![
            "settings".into(),
            format!("{} ({})", paths.settings_file().display(), state(created.new_settings)),
        ],
        vec!["keys".into(), format!("{} ({})", paths.data.display(), state(created.new_pki))],
    ];
    rows.extend(facts(&created.settings));
    table(&rows)
}

fn facts(settings: &Settings) -> Vec<Vec<String>> {
    let join = |items: Vec<String>| items.join(", ");
    let listen = join(settings.listen.iter().map(ToString::to_string).collect());
    let mut inside = settings.network.to_string();
    if let Some(network) = settings.network6 {
        inside.push_str(&format!(", {network}"));
    }
    let mut rows = vec![
        vec!["clients dial".into(), format!("{} on {listen}", settings.host)],
        vec!["inside".into(), inside],
    ];
    let reach = match &settings.reach {
        Reach::Full => "everything: all traffic uses the tunnel (full tunnel)".to_owned(),
        Reach::Networks(routes) if routes.is_empty() => {
            "only the tunnel's own network (split tunnel)".to_owned()
        }
        Reach::Networks(routes) => {
            format!("{} (split tunnel)", join(routes.iter().map(ToString::to_string).collect()))
        }
    };
    rows.push(vec!["clients reach".into(), reach]);
    if settings.reach != Reach::Full {
        rows.push(row(["", "for all traffic: full-tunnel = true in server.toml"]));
    }
    if !settings.dns.is_empty() {
        rows.push(row(["dns", &join(settings.dns.iter().map(ToString::to_string).collect())]));
    }
    let nat = match settings.nat {
        Nat::Auto => "clients' packets to other networks get this machine's address",
        Nat::Off => "off",
    };
    rows.push(row(["nat", nat]));
    if let Some(filter) = &settings.filter {
        rows.push(row(["filter", &filter.display().to_string()]));
    }
    if settings.login.has_users() {
        rows.push(row(["login", settings.login.name()]));
    }
    rows
}

fn up(options: Up) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let choices = choices(&options.choices)?;
    let program = std::env::current_exe()
        .map_err(|error| Fault::environment(format!("cannot find this program: {error}")))?;
    let options = UpOptions {
        client: options.client,
        arguments: arguments(&choices),
        run: RunOptions {
            verbose: options.verbose,
            workers: choices.workers,
            metrics: options.serve.metrics,
        },
        choices,
        program,
    };
    let shown = paths.clone();
    let mut tell = |step: Step| print_step(&step, &shown);
    let commands = ["status", "server start"].map(|verb| paths.command(verb));
    adit_app_server::up(
        &paths,
        &options,
        &mut tell,
        Box::new(move |ready| serving(&ready, &commands)),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn print_step(step: &Step, paths: &Paths) {
    match step {
        Step::Created(created) => {
            print(&summary(created, paths));
            notes(created);
        }
        Step::Client(name, path) => print(&format!(
            "\nProfile of {name}: {}\n  for any OpenVPN client, or: sudo adit connect {}\n",
            path.display(),
            path.file_name().map(Path::new).unwrap_or(path).display()
        )),
        Step::ClientKept(name) => print(&format!(
            "\nThe client {name} exists; a new profile: {}\n",
            paths.command(&format!("server client renew {name}"))
        )),
        Step::RunsAlready(pid) => print(&format!(
            "\nThe server is already running (process {pid}). Show it: {}\n",
            paths.command("status")
        )),
        Step::InTheWay(finding) => print(&format!("\n{}", doctor::paragraph(finding))),
    }
}

fn serving(ready: &ReadyReport, [status, start]: &[String; 2]) {
    let listen: Vec<String> = ready.settings.listen.iter().map(ToString::to_string).collect();
    let listen = listen.join(", ");
    match &ready.self_test {
        Ok(time) => print(&format!(
            "\nThe server is up: {listen}, device {}. Self-test passed in {:.1} ms.\n\
             Look: {status}   End: Ctrl-C\n\
             It ends with this terminal. To keep it running: Ctrl-C, then {start}\n",
            ready.device,
            time.as_secs_f64() * 1000.0
        )),
        Err(problem) => print(&format!(
            "\nThe server runs on {listen}, but its self-test FAILED: {problem}\n\
             Look: adit doctor\n"
        )),
    }
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

/// Formats a line with two columns, and wraps the second if it is too long.
pub(crate) fn pair(row: &[String]) -> String {
    let [name, value] = row else { return String::new() };
    wrapped(&format!("{name:<15}"), value)
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
    use adit_pki::{Client, ClientTerms};
    use adit_runtime::control::PeerReport;
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};

    #[test]
    fn a_list_for_people_fits_a_terminal() {
        let client = |name: &str, group: &[&str]| Client {
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
        let shown = pair(&row(["protected by", &"word ".repeat(40)]));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    }

    /// The arguments that `up` passes to `init` must have the same meaning there.
    #[test]
    fn choices_survive_the_way_to_the_child() {
        let given = adit_app_server::NewServer {
            listen: vec!["udp/1195".parse().unwrap(), "udp/[::1]:9".parse().unwrap()],
            host: Some("-h".into()),
            network: Some("10.1.2.0/24".parse().unwrap()),
            network6: Some("fd00::/64".parse().unwrap()),
            full_tunnel: false,
            routes: vec!["192.168.0.0/24".parse().unwrap()],
            dns: vec!["9.9.9.9".parse().unwrap()],
            nat: Some(Nat::Off),
            workers: Some(3),
            filter: Some("/etc/adit/rules of mine.nft".into()),
        };
        let full = adit_app_server::NewServer {
            full_tunnel: true,
            ..adit_app_server::NewServer::default()
        };
        for given in [given, full, adit_app_server::NewServer::default()] {
            let line = ["adit", "server", "init"].map(OsString::from);
            let line = line.into_iter().chain(arguments(&given));
            let Verb::Server(Server::Init(parsed)) = Cli::try_parse_from(line).unwrap().verb else {
                panic!("another verb");
            };
            assert_eq!(choices(&parsed.choices).unwrap(), given);
        }
    }
}
