//! `adit server ...`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use adit_app_server::{
    InitOutcome, Nat, Reach, ReadyReport, RunOptions, Settings, Step, UpOptions,
};
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;

use crate::args::{Choices, HandOver, Init, Server, Up};
use crate::background::server as background;
use crate::text::{row, table, wrapped};
use crate::{doctor, paths, print};

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
        Server::Client(verb) => crate::clients::run(verb),
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};

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
