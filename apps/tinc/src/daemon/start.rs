//! Opens what a daemon needs, gives up privileges, and runs the loop.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adit_linux::privileges::Capability;
use adit_linux::process::detach;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{self, Watcher, files};
use adit_runtime::instance::{self, Controls};
use adit_runtime::log::{self, Settings, Style, Target};
use adit_runtime::paths::Paths;
use adit_runtime::privileges::{self, PrivilegeOptions};
use adit_runtime::{programs, random, say};
use adit_tinc::config::{Mode, Proxy, ServerConfig};
use adit_tinc::name::NodeName;
use adit_tinc::node::{Node, NodeConfig};
use adit_tinc::route::{Router, Settings as RouterSettings};
use tokio::signal::unix::{SignalKind, signal};

use super::address_cache::AddressCache;
use super::clients::Clients;
use super::data::Data;
use super::device::{self, Device};
use super::dial::DialOptions;
use super::duty::{TINC, TincDuty};
use super::followers::{LogFollowers, PacketFollowers};
use super::guest::Guest;
use super::joins::Joins;
use super::listen;
use super::load::{Loaded, load, private_key};
use super::options::DaemonOptions;
use super::privileged::Privileged;
use super::report::Statistics;
use super::rows::Changes;
use super::running::Running;
use super::scripts::Scripts;
use super::streams::Streams;
use super::system_names::SystemNames;
use crate::conf_file::write_file;
use crate::control::server::Cookie;
use crate::net::Net;

/// How long the scripts at the end may take. tinc's unit kills the daemon after 5 s.
const LAST_SCRIPTS: Duration = Duration::from_secs(4);

/// Runs a daemon until it is stopped.
///
/// # Errors
/// Fails before the log has been started.
pub(super) fn run(options: &DaemonOptions) -> Result<ExitCode, Fault> {
    if options.chroot {
        return Err(Fault::operator(
            "-R: not supported: the daemon reads files through a process that is not in the new root directory; -U gives up root",
        ));
    }
    let net = Net::new(&options.net, std::env::var("NETNAME").ok())?;
    let net = absolute(net)?;
    let mut report = None;
    if !options.no_detach {
        let detached = detach();
        report =
            Some(detached.map_err(|error| Fault::environment(format!("cannot detach: {error}")))?);
    }
    if let Err(error) = log::start(log_settings(&net, options)) {
        let fault = Fault::environment(format!("cannot log: {error}"));
        // The error stream of a detached process is closed.
        if let Some(report) = &mut report {
            report.note(&format!("tincd: {fault}"));
        }
        return Err(fault);
    }
    let followers = Arc::new(LogFollowers::new(options.debug, report));
    let lines = Arc::clone(&followers);
    log::observe(move |level, verb, text| lines.line(level, verb, text));
    say!(1, "tincd {} starting, debug level {}", crate::VERSION, options.debug);
    Ok(match start(net, options, followers) {
        Ok(()) => {
            say!(1, "Terminating");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            log::error(&fault.to_string());
            ExitCode::FAILURE
        }
    })
}

/// Makes the paths independent of the working directory.
fn absolute(net: Net) -> Result<Net, Fault> {
    let absolute = |path: std::path::PathBuf| {
        std::path::absolute(&path)
            .map_err(|error| Fault::operator(format!("{}: {error}", path.display())))
    };
    let Net { name, config, pid_file } = net;
    Ok(Net { name, config: absolute(config)?, pid_file: absolute(pid_file)? })
}

fn log_settings(net: &Net, options: &DaemonOptions) -> Settings {
    let name = net.name.as_ref().map_or_else(|| "tinc".to_owned(), |name| format!("tinc.{name}"));
    let target = match &options.log_file {
        Some(file) if file.as_os_str().is_empty() => {
            Target::Append(format!("/var/log/{name}.log").into())
        }
        Some(file) => Target::Append(file.clone()),
        None if options.no_detach && !options.syslog => Target::Stderr,
        None => Target::Syslog(name),
    };
    let friendly = Settings::friendly(options.debug);
    let timestamps = match target {
        Target::Syslog(_) => false,
        Target::Stderr => friendly.style == Style::Plain { timestamps: true },
        _ => true,
    };
    Settings { style: Style::Plain { timestamps }, target, ..friendly }
}

fn start(net: Net, options: &DaemonOptions, followers: Arc<LogFollowers>) -> Result<(), Fault> {
    let mut names = SystemNames::default();
    let loaded = load(&net, &options.options, &mut names)?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let key = loaded.server.ed25519_private_key_file.as_ref();
    let duty = TincDuty {
        config: net.config.clone(),
        pid_file: net.pid_file.clone(),
        socket: net.socket(),
        control: Paths::new(None)?.run.join(format!("{}.sock", net.instance())),
        key: key.map_or_else(|| net.private_key(), |name| net.config.join(name)),
        mark: Some(loaded.server.fwmark).filter(|mark| *mark != 0),
        device: loaded.server.bind_to_interface.clone(),
        metrics: options.metrics.clone(),
        net_name: net.name.clone(),
        name: loaded.name.to_string(),
        proxy_command: match &loaded.server.proxy {
            Some(Proxy::Exec(command)) => Some(command.clone()),
            _ => None,
        },
    };
    create_cache(&duty);
    privileges::raise_descriptor_limit();
    // The helper must end last.
    let helper = helper::start(&TINC, &duty, &[])?;
    if helper.is_none() {
        programs::start(&duty.setup())?;
        if duty.proxy_command.is_some() {
            return Err(Fault::operator(
                "Proxy = exec: start the daemon as root: its helper process starts the command",
            ));
        }
    }
    let runtime = adit_runtime::async_runtime()?;
    runtime.block_on(serve(net, options, &duty, (loaded, names), helper.is_some(), followers))
}

/// Creates the folder of the addresses at which nodes were reached. Without it, they are not kept.
fn create_cache(duty: &TincDuty) {
    let folder = duty.cache();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    if let Err(error) = made {
        tracing::warn!("{}: cannot be created: {error}", folder.display());
    }
}

async fn serve(
    net: Net,
    options: &DaemonOptions,
    duty: &TincDuty,
    (loaded, system_names): (Loaded, SystemNames),
    helped: bool,
    followers: Arc<LogFollowers>,
) -> Result<(), Fault> {
    let _watcher = helper::current().map(Watcher::start).transpose()?;
    let Loaded { name, server, hosts, .. } = loaded;
    let key = Arc::new(private_key(&net, &server)?);
    let workers = device::workers(&server)?;
    let device = Device::open(&net, &server, workers)?;
    let listening = listen::open(&server, workers)?;
    let port = listening.port;
    let mut controls = Controls::open(&duty.control, duty.metrics.as_ref())?;
    let cookie = Cookie::generate(&mut random::generator()?);
    let pid_line = cookie.pid_file(std::process::id(), &format!("127.0.0.1 port {port}"));
    let copies = Arc::new(PacketFollowers::new(server.mode == Mode::Router));
    let both = (Arc::clone(&followers), Arc::clone(&copies));
    let clients = Clients::open(&net.socket(), cookie, name.clone(), both)?;
    write_file(&net.pid_file, pid_line.as_bytes(), 0o600)?;
    let wanted = PrivilegeOptions {
        user: options.user.clone(),
        lock_memory: options.lock_memory,
        ..PrivilegeOptions::default()
    };
    let at_start = duty.setup().programs;
    privileges::drop(&wanted, helped, &[Capability::CAP_NET_ADMIN])?;
    let variables = script_variables(&net, &name, &device, options);
    let mut scripts = Scripts::new(net.config.clone(), at_start, variables);
    scripts.push_path(now(), "tinc-up", &[]);
    scripts.finish().await;
    let config = NodeConfig { name, key, server: server.clone(), hosts, udp_port: port };
    let router = Router::new(RouterSettings::from(&server));
    let mut node = Node::new(config, now(), random::generator()?);
    let address_cache = AddressCache::load(duty.addresses(), &mut node, now());
    let mut running = Running {
        options: options.options.clone(),
        system_names,
        node,
        address_cache,
        dial: dial_options(&server, duty),
        joins: Joins::new(random::generator()?),
        privileged: Privileged::new(duty.clone()),
        data: Data::new(&server, device, router, listening.udp, copies)?,
        streams: Streams::new(),
        accepted: listen::accept(listening.tcp)?,
        clients,
        scripts,
        alarm: signal(SignalKind::alarm())
            .map_err(|error| Fault::environment(format!("cannot receive signals: {error}")))?,
        port,
        started: i64::try_from(unix_time().0).unwrap_or(i64::MAX),
        changes: Changes::new(),
        statistics: Statistics::default(),
        debug: options.debug,
        guest: Guest::default(),
        stopped: false,
        server,
        net,
    };
    say!(1, "Ready");
    controls.ready("Ready");
    followers.ready();
    let ended = instance::run(&mut running, &mut controls).await;
    controls.stopping();
    running.shut_down(LAST_SCRIPTS).await;
    for path in [&running.net.pid_file, &running.net.socket()] {
        if let Err(error) = files::remove(path) {
            tracing::debug!("{}: {error}", path.display());
        }
    }
    ended.map(drop)
}

/// Returns the variables that all scripts get.
fn script_variables(
    net: &Net,
    name: &NodeName,
    device: &Device,
    options: &DaemonOptions,
) -> Vec<(String, String)> {
    let variables = [
        ("NETNAME", net.name.clone().unwrap_or_default()),
        ("NAME", name.to_string()),
        ("DEVICE", "/dev/net/tun".to_owned()),
        ("INTERFACE", device.name.clone()),
        ("DEBUG", options.debug.to_string()),
    ];
    variables.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn dial_options(server: &ServerConfig, duty: &TincDuty) -> DialOptions {
    let from = server.bind_to_address.iter().filter_map(|bind| Some((bind.address?, 0).into()));
    DialOptions {
        mark: duty.mark,
        device: duty.device.clone(),
        from: from.collect(),
        proxy: server.proxy.clone(),
    }
}
