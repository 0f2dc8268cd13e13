//! The demo's testbed: two namespaces joined by a veth pair, keys, a server and a client.
//!
//! Dropping it removes everything. The next start cleans up after a demo that was killed.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adit_linux::net::Address;
use adit_linux::netns::NetNs;
use ipnet::IpNet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::clients::{ClientRequest, add};
use super::super::engine_config;
use super::super::firewall;
use super::super::init::{NewServer, init};
use super::super::paths::{Paths, make_folder, write_whole};
use super::super::settings::{Nat, Settings};
use super::interrupt::Interrupt;
use crate::control::{self, Request, Response};
use crate::fault::{Fault, file_fault};

/// Namespaces and folders of demos begin with this, then the process id.
const PREFIX: &str = "adit-demo";
/// Root's own folder: no other user can put a name there beforehand.
const ROOT: &str = "/run";

const SERVER_OUTSIDE: &str = "192.0.2.1";
const CLIENT_OUTSIDE: &str = "192.0.2.2";
/// The tunnel's device, by the same name in either namespace.
const DEVICE: &str = "adit0";

/// A child that hears of its parent's end reads this variable; see [`end_with_parent`].
const PARENT: &str = "ADIT_END_WITH_PARENT";

const START_PATIENCE: Duration = Duration::from_secs(20);
const END_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Lines of a log that a failure quotes.
const QUOTED_LINES: usize = 12;

/// One end of the tunnel.
#[derive(Debug)]
pub(crate) struct End {
    pub ns: NetNs,
    pub ipv4: Ipv4Addr,
    pub ipv6: Option<Ipv6Addr>,
    pub process: Option<Child>,
    pub log: PathBuf,
}

impl End {
    /// The process id; 0 for one that does not run.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// The name for `ip netns exec`.
    pub(crate) fn name(&self) -> &str {
        self.ns.name().unwrap_or_default()
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let six = self.ipv6.map(IpAddr::V6);
        std::iter::once(IpAddr::V4(self.ipv4)).chain(six)
    }

    pub(crate) fn alive(&mut self, what: &str) -> Result<(), Fault> {
        let Some(process) = &mut self.process else { return Ok(()) };
        match process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let what = format!("the {what} ended ({status})");
                Err(Fault::environment(format!("{what}; its output:\n{}", self.last_words())))
            }
            Err(error) => Err(Fault::environment(format!("the {what}: {error}"))),
        }
    }

    pub(crate) fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(QUOTED_LINES);
        lines.iter().skip(from).map(|line| format!("  {line}\n")).collect()
    }

    /// Asks the process to end, then makes it.
    pub(crate) fn end(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        if let Ok(pid) = i32::try_from(process.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let asked = Instant::now();
        while asked.elapsed() < END_PATIENCE {
            match process.try_wait() {
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                _ => return,
            }
        }
        let _ = process.kill();
        let _ = process.wait();
    }
}

#[derive(Debug)]
pub(crate) struct Testbed {
    pub server: End,
    pub client: End,
    pub folder: PathBuf,
    client_run: PathBuf,
    paths: Paths,
}

impl Testbed {
    /// Makes everything up to the profile; nothing runs yet.
    pub(crate) fn new() -> Result<Self, Fault> {
        sweep(PREFIX, Path::new(ROOT));
        let folder = Path::new(ROOT).join(format!("{PREFIX}-{}", std::process::id()));
        // Half a world is taken away too.
        let scrap = TempFolder(Some(folder.clone()));
        make_folder(&folder, 0o700)?;
        let paths = Paths::new(Some(&folder.join("server")))?;
        let (settings, profile) = make_server(&paths)?;
        let path = folder.join("client.ovpn");
        write_whole(&path, 0o600, profile.as_bytes())?;

        let end = |log: &str| -> Result<End, Fault> {
            let ns = NetNs::new(PREFIX).map_err(namespace_fault)?;
            let log = folder.join(log);
            Ok(End { ns, ipv4: Ipv4Addr::UNSPECIFIED, ipv6: None, process: None, log })
        };
        let (mut server, mut client) = (end("server.log")?, end("client.log")?);
        server.ns.connect("outside", &client.ns, "outside").map_err(namespace_fault)?;
        for (end, outside) in [(&server, SERVER_OUTSIDE), (&client, CLIENT_OUTSIDE)] {
            let net: IpNet = format!("{outside}/24")
                .parse()
                .map_err(|error| Fault::ours(format!("{outside}: {error}")))?;
            address(&end.ns, "outside", net).map_err(namespace_fault)?;
        }
        let network = engine_config::network4(settings.network);
        (server.ipv4, client.ipv4) =
            (network.server.addr(), engine_config::first_client4(settings.network));
        server.ipv6 = settings.network6.map(|net| engine_config::network6(net).server.addr());
        let client_run = folder.join("client");
        scrap.keep();
        Ok(Self { server, client, folder, client_run, paths })
    }

    /// Starts the server and waits until it can be asked.
    pub(crate) fn start_server(
        &mut self,
        program: &Path,
        interrupt: &Interrupt,
    ) -> Result<(), Fault> {
        let mut command = self.server.ns.command(program).map_err(namespace_fault)?;
        command.args(["server", "run", "--dir"]).arg(self.folder.join("server"));
        self.server.process = Some(spawn(command, &self.server.log)?);
        let socket = self.paths.control_socket();
        wait(interrupt, "server", &mut self.server, |_| {
            matches!(control::request(&socket, &Request::Status), Ok(Response::Status(_)))
        })
    }

    /// Starts the client and waits until its device has its addresses.
    pub(crate) fn start_client(
        &mut self,
        program: &Path,
        interrupt: &Interrupt,
    ) -> Result<(), Fault> {
        let mut command = self.client.ns.command(program).map_err(namespace_fault)?;
        command.arg("connect").arg(self.folder.join("client.ovpn"));
        command.args(["--device", DEVICE]).arg("--dir").arg(&self.client_run);
        self.client.process = Some(spawn(command, &self.client.log)?);
        let (ipv4, wants6) = (self.client.ipv4, self.server.ipv6.is_some());
        wait(interrupt, "client", &mut self.client, |client| {
            let have = device_addresses(&client.ns, DEVICE);
            client.ipv6 = have.iter().find_map(|address| match address {
                IpAddr::V6(ip) if !ip.is_unicast_link_local() => Some(*ip),
                _ => None,
            });
            have.contains(&IpAddr::V4(ipv4)) && (client.ipv6.is_some() || !wants6)
        })
    }

    /// Whether both ends still run.
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        self.server.alive("server")?;
        self.client.alive("client")
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.client.end();
        self.server.end();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A folder to remove unless kept.
struct TempFolder(Option<PathBuf>);

impl TempFolder {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn make_server(paths: &Paths) -> Result<(Settings, String), Fault> {
    let choices = NewServer {
        host: Some(SERVER_OUTSIDE.into()),
        nat: Some(Nat::Off),
        ..NewServer::default()
    };
    let planned = init(paths, &choices, true)?.settings;
    // Without nft a server that keeps clients apart would not start; this one has a single client.
    let settings = Settings {
        device: DEVICE.into(),
        client_to_client: firewall::listing().is_none(),
        ..planned
    };
    paths.create()?;
    write_whole(&paths.settings_file(), 0o644, settings.to_toml().as_bytes())?;
    init(paths, &NewServer::default(), false)?;
    let wanted = ClientRequest {
        name: "demo".into(),
        address: Some(engine_config::first_client4(settings.network)),
        ..ClientRequest::default()
    };
    let profile = add(paths, &wanted)?.profile.text().to_owned();
    Ok((settings, profile))
}

pub(crate) fn spawn(mut command: Command, log: &Path) -> Result<Child, Fault> {
    let open = || File::options().create(true).append(true).open(log);
    let output = open().and_then(|file| Ok((file.try_clone()?, file)));
    let (out, errors) = output.map_err(|error| file_fault("cannot open", log, &error))?;
    command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .env(PARENT, std::process::id().to_string())
        // Ctrl-C is for us; we end the children in order.
        .process_group(0);
    command.spawn().map_err(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        Fault::environment(format!("cannot start {program}: {error}"))
    })
}

/// Waits until `ready`, the process ends, the user interrupts or patience does.
pub(crate) fn wait(
    interrupt: &Interrupt,
    what: &str,
    end: &mut End,
    mut ready: impl FnMut(&mut End) -> bool,
) -> Result<(), Fault> {
    let started = Instant::now();
    while started.elapsed() < START_PATIENCE {
        interrupt.check()?;
        end.alive(what)?;
        if ready(end) {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let seconds = START_PATIENCE.as_secs();
    Err(Fault::environment(format!(
        "the {what} was not up after {seconds} s; its output:\n{}",
        end.last_words()
    )))
}

/// Gives a device of a namespace an address, usable at once (no duplicate address detection).
pub(crate) fn address(ns: &NetNs, device: &str, net: IpNet) -> io::Result<()> {
    ns.configure(async |handle| {
        let link = handle.link(device).await?;
        handle.add_address(&Address::new(link.index, net)).await
    })?
    .map_err(io::Error::from)
}

pub(crate) fn device_addresses(ns: &NetNs, device: &str) -> Vec<IpAddr> {
    let found = ns.run(|| {
        let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
        let ours = interfaces.filter(|interface| interface.interface_name == device);
        ours.filter_map(|interface| {
            let address = interface.address?;
            let four = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            four.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .collect()
    });
    found.unwrap_or_default()
}

pub(crate) fn namespace_fault(error: io::Error) -> Fault {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run as root: sudo adit demo (in a container: --privileged)"
        }
        _ => "",
    };
    Fault::environment(format!("cannot make the demo's namespaces: {error}{hint}"))
}

/// Removes what demos that were killed left behind: namespaces and folders in `root`, whose names begin with `prefix` and
/// the number of a process that is gone.
pub(crate) fn sweep(prefix: &str, root: &Path) {
    let _ = NetNs::sweep(prefix);
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            name.strip_prefix(prefix)?.strip_prefix('-')?.split('-').next()?.parse::<u32>().ok()
        });
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Lets a process that a demo started end when the demo is gone, however it went. To be called
/// first thing in `main`.
pub fn end_with_parent() {
    let Some(parent) = std::env::var_os(PARENT) else { return };
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGTERM);
    // It may have gone before that call.
    let still = nix::unistd::getppid().to_string();
    if parent.to_str() != Some(&still) {
        std::process::exit(1);
    }
}
