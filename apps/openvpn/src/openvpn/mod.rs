//! `adit openvpn`: the command line, config files, log lines and status files of `openvpn` 2.6.

mod alone;
pub(crate) mod authorization;
mod capath;
mod client;
mod convert;
mod daemonize;
pub(crate) mod environment;
mod genkey;
mod hand_over;
mod key_files;
mod login;
mod management;
mod metrics;
mod p2p;
mod pkcs12;
mod pool_persist;
pub(crate) mod scripts;
mod server;
mod show;
mod status;
mod token;

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use adit_openvpn::config::{self, Log, LogTo, Options, Role, UserPass};

use crate::config_files::Configs;
use adit_runtime::fault::Fault;
use adit_runtime::helper::{self, Request};
use adit_runtime::host::HostPlan;
use adit_runtime::log;
use adit_runtime::{async_runtime, say};
pub(crate) use client::order;
pub(crate) use convert::{
    bare_plan, client_config, client_plan, device, dial_settings, dialled_from, dns_plan, listeners,
};
use daemonize::Daemonizer;
pub use hand_over::hand_over;
use key_files::Ask;
pub(crate) use key_files::{Terminal, TlsMaterial, wrap};
pub(crate) use login::{LoginSource, first_login};
use management::Management;
pub(crate) use metrics::metrics;
pub(crate) use server::control_socket;

/// The program's name and version, printed where openvpn prints its own. Tools use the second word to determine which
/// version's options and log lines to expect.
const BANNER: &str = concat!(
    "OpenVPN 2.6.14 adit-",
    env!("CARGO_PKG_VERSION"),
    " [SSL (rustls)] [LZO] [LZ4] [EPOLL] [MH/PKTINFO] [AEAD]"
);

/// The features for which tools look in the output of `--version`, with openvpn's names.
const FEATURES: &str = "Compile time defines: enable_fragment=yes enable_lz4=yes enable_lzo=yes enable_management=yes \
                        enable_port_share=yes enable_systemd=yes enable_plugins=";

/// The exit code for every fault, as in openvpn.
const FAILURE: u8 = 1;

/// Runs as `openvpn` would with these arguments (without the program's name).
pub fn main(args: Vec<OsString>) -> ExitCode {
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    if let Some(code) = answer_without_tunnel(&args) {
        return code;
    }
    if let Some(done) = genkey::run(&args).or_else(|| alone::run(&args)) {
        return done.map_or_else(
            |fault| {
                eprintln!("{fault}");
                ExitCode::from(FAILURE)
            },
            |()| ExitCode::SUCCESS,
        );
    }
    let mut ground = Daemonizer::default();
    let (mut management, mut kept) = (None, None);
    let code = loop {
        match round(&args, &mut ground, &mut management, &mut kept) {
            Ok(Next::Exit(code)) => break code,
            Ok(Next::Restart | Next::Again) => {}
            Err(fault) => {
                if let Some(management) = &management {
                    management.handle().fatal(&fault.to_string());
                }
                if ground.logging() {
                    log::error(&fault.to_string());
                    tracing::error!("Exiting due to fatal error");
                } else {
                    eprintln!("{fault}");
                    log_refusal(&args, &fault);
                }
                break ExitCode::from(FAILURE);
            }
        }
    };
    if let Some(management) = management {
        management.close();
    }
    ground.leave();
    code
}

/// Also writes an options error to the log that the configuration names, because a daemon's terminal may be unattended.
fn log_refusal(args: &[String], fault: &Fault) {
    let Some(to) = config::log_target(args, &config::Disk) else { return };
    let target = match to {
        LogTo::File(path) => log::Target::File(path),
        LogTo::Append(path) => log::Target::Append(path),
        LogTo::Syslog(name) => log::Target::Syslog(name),
        LogTo::Standard => return,
    };
    let style = log::Style::OpenVpn { timestamps: true, machine_readable: false };
    // A log that cannot be written is a separate fault, and this one is printed on the terminal.
    if log::start(log::Settings { style, verb: 1, mute: None, target }).is_ok() {
        fault.to_string().lines().for_each(|line| tracing::error!("{line}"));
    }
}

/// Returns the plan of a server or a point-to-point tunnel, which depends only on the configuration.
///
/// # Errors
/// The configuration has an unknown flag, or belongs to a client, whose plan also depends on the server.
pub(crate) fn configured_plan(
    options: &Options,
    remote: Option<SocketAddr>,
) -> Result<HostPlan, Fault> {
    let planned = match &options.role {
        Role::Server(server) => convert::server_plan(options, server),
        Role::Peer(peer) => p2p::plan(options, &peer.tunnel_addrs, remote),
        Role::Client(_) => Err(Fault::ours("a client's plan is not configured alone")),
    };
    planned.map(|(plan, _)| plan)
}

/// The action after one run.
enum Next {
    /// The process ends.
    Exit(ExitCode),
    /// SIGHUP: start again from the beginning and read the configuration again.
    Restart,
    /// SIGUSR1 at a server: start again with the same configuration.
    Again,
}

/// Handles arguments that need no tunnel.
fn answer_without_tunnel(args: &[String]) -> Option<ExitCode> {
    let first = args.first().map(String::as_str);
    let text = match first {
        Some("--version") => {
            let plugins = if adit_linux::plugin::SUPPORTED { "yes" } else { "no" };
            format!("{BANNER}\nlibrary versions: rustls, AWS-LC\n{FEATURES}{plugins}\n")
        }
        None | Some("--help") => format!(
            "{BANNER}\n\nUsage: adit openvpn --config FILE [--OPTION [ARG]...]...\n       adit openvpn \
             FILE\n\nTakes the directives of openvpn 2.6 as client, server or one of two points, over UDP \
             and TCP, with TUN and TAP devices.\nExample: adit openvpn --config client.ovpn --verb 3\n\n{}\n",
            config::help().trim_end()
        ),
        Some(mode) => show::list(mode)?,
    };
    // A reader such as head(1) may leave after the first line.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Some(ExitCode::SUCCESS)
}

/// Runs from the start, or from one restart, to the next one. `kept` is the configuration, if it is not read again.
fn round(
    args: &[String],
    ground: &mut Daemonizer,
    management: &mut Option<Management>,
    kept: &mut Option<Options>,
) -> Result<Next, Fault> {
    let first = !ground.logging();
    let (options, piped) = match kept.take() {
        Some(options) => (options, Vec::new()),
        None => read_configuration(args, ground)?,
    };
    ground.open_plugins(&options)?;
    let tokens = ground.open_tokens(&options)?;
    let tokens = tokens.as_ref();
    if first {
        *management = Management::open(&options)?;
    }
    if let Some(management) = management
        && let Some(next) = management.begin(&options)?
    {
        return Ok(next);
    }
    let mut management = management.as_mut();
    let handle = management.as_ref().map(|management| management.handle());
    // Keys may be prompted for on the terminal, so this must precede leaving it.
    let next = match &options.role {
        Role::Client(role) => {
            let mut prepared =
                client::prepare(&options, role, &mut *asked(&mut management), tokens)?;
            if let (Some(handle), Some(UserPass::Prompt)) = (&handle, &role.auth_user_pass)
                && management.as_ref().is_some_and(|management| management.asks_passwords())
            {
                prepared.authorizer = Arc::new(handle.login());
            }
            prepared.management = handle;
            ground.settle(&options, args, &piped)?;
            scripts::start(&options)?;
            let retry_max = role.dial.connect_retry_max;
            run(management, client::run(prepared, &options, retry_max, ground))
        }
        Role::Peer(role) => {
            let mut prepared = p2p::prepare(&options, role, &mut *asked(&mut management), tokens)?;
            prepared.management = handle;
            ground.settle(&options, args, &piped)?;
            scripts::start(&options)?;
            run(management, p2p::run(prepared, &options, role, ground))
        }
        Role::Server(role) => {
            let plugins = ground.opened_plugins();
            let mut ask = asked(&mut management);
            let prepared = server::prepare(&options, role, &mut *ask, plugins, tokens, handle)?;
            drop(ask);
            ground.settle(&options, args, &piped)?;
            scripts::start(&options)?;
            run(management, server::run(prepared, &options, role, ground))
        }
    }?;
    if matches!(next, Next::Again) {
        *kept = Some(options);
    }
    Ok(next)
}

/// Files that can be read only once, with their contents.
type PipedFiles = Vec<(PathBuf, Vec<u8>)>;

/// Reads the configuration, and logs what it says.
fn read_configuration(
    args: &[String],
    ground: &mut Daemonizer,
) -> Result<(Options, PipedFiles), Fault> {
    if let Some(helper) = helper::current() {
        // The helper reads the configuration first, and then lets this process read the files that it names.
        helper.call(Request::Reload, &[])?;
    }
    let files = Configs::default();
    let options = config::parse(args, &files).map_err(|e| {
        Fault::operator(format!("Options error: {e}\nUse --help for more information."))
    })?;
    let replaceable = if ground.logging() { Vec::new() } else { scripts::check(&options)? };
    start_log(&options, ground.logging())?;
    ground.log_started();
    for warning in options.warnings.iter().chain(&replaceable) {
        tracing::warn!("{warning}");
    }
    options.echo.iter().for_each(|text| say!(1, "ECHO:{text}"));
    options.directives.iter().for_each(|directive| say!(4, "Option: {directive}"));
    say!(1, "{BANNER}");
    if options.script_security >= scripts::RUNS_PROGRAMS {
        tracing::warn!(
            "NOTE: the current --script-security setting may allow this configuration to call user-defined scripts"
        );
    }
    Ok((options, files.into_piped()))
}

/// Returns the party that enters passwords: the management client, if the configuration says so, or the terminal.
fn asked<'a>(management: &'a mut Option<&mut Management>) -> Box<dyn Ask + 'a> {
    match management {
        Some(management) => Box::new(management.ask_there()),
        None => Box::new(Terminal),
    }
}

/// Runs the program and, at the same time, the management interface.
fn run(
    management: Option<&mut Management>,
    program: impl Future<Output = Result<Next, Fault>>,
) -> Result<Next, Fault> {
    async_runtime()?.block_on(async {
        match management {
            Some(management) => management.serve_while(program).await,
            None => program.await,
        }
    })
}

/// Starts the log. `again` is true after a SIGHUP, which does not truncate the file.
fn start_log(options: &Options, again: bool) -> Result<(), Fault> {
    let Log { to, verb, mute, timestamps, machine_readable, errors_to_stderr } = &options.log;
    let daemon = options.process.daemon.as_deref();
    let target = match to {
        LogTo::Standard => match daemon {
            Some(name) => log::Target::Syslog(name.to_owned()),
            None if *errors_to_stderr => log::Target::Split,
            None => log::Target::Stdout,
        },
        LogTo::File(path) if !again => log::Target::File(path.clone()),
        LogTo::File(path) | LogTo::Append(path) => log::Target::Append(path.clone()),
        LogTo::Syslog(name) => log::Target::Syslog(name.clone()),
    };
    let style =
        log::Style::OpenVpn { timestamps: *timestamps, machine_readable: *machine_readable };
    let settings = log::Settings { style, verb: *verb, mute: *mute, target };
    log::start(settings).map_err(|e| {
        let name = match to {
            LogTo::Standard => "the terminal".to_owned(),
            LogTo::File(path) | LogTo::Append(path) => path.display().to_string(),
            LogTo::Syslog(name) => format!("the system log as {name}"),
        };
        Fault::operator(format!("Options error: the log cannot be written to {name}: {e}"))
    })
}

/// Fuzzes the parsers of the files in which programs answer (`auth_pending_file` and others).
#[doc(hidden)]
pub fn fuzz_answers(bytes: &[u8]) {
    authorization::fuzz_answers(bytes);
}

/// Fuzzes the parser of a lease file (`ifconfig-pool-persist`).
#[doc(hidden)]
pub fn fuzz_leases(bytes: &[u8]) {
    pool_persist::fuzz(bytes);
}

/// Fuzzes the conversation with a management client.
#[doc(hidden)]
pub fn fuzz_management(bytes: &[u8]) {
    management::fuzz(bytes);
}
