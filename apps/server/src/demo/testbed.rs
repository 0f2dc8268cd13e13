//! The demo's testbed: two namespaces joined by a veth pair, keys, a server and a client.
//!
//! Dropping the testbed removes everything. If a demo was killed, the next start cleans up.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use adit_linux::netns::NetNs;
use ipnet::IpNet;

use super::super::clients::{ClientRequest, add};
use super::super::engine_config;
use super::super::firewall;
use super::super::init::{NewServer, init};
use super::super::settings::{Nat, Settings};
use adit_runtime::control::{self, Request, Response};
use adit_runtime::demo::ends::{
    End, address, device_addresses, namespace_fault, spawn, sweep, wait,
};
use adit_runtime::demo::interrupt::Interrupt;
use adit_runtime::fault::Fault;
use adit_runtime::paths::{Paths, make_folder, write_whole};

/// The prefix of a demo's namespaces and directories. The process id follows it.
const PREFIX: &str = "adit-demo";
/// The directory of the demos. It belongs to root, so no other user can create the name beforehand.
const ROOT: &str = "/run";

const SERVER_OUTSIDE: &str = "192.0.2.1";
const CLIENT_OUTSIDE: &str = "192.0.2.2";
/// The name of the tunnel's device, in both namespaces.
const DEVICE: &str = "adit0";

#[derive(Debug)]
pub(crate) struct Testbed {
    pub server: End,
    pub client: End,
    pub folder: PathBuf,
    client_run: PathBuf,
    paths: Paths,
}

impl Testbed {
    /// Creates everything including the profile. No process runs yet.
    pub(crate) fn new() -> Result<Self, Fault> {
        sweep(PREFIX, Path::new(ROOT));
        let folder = Path::new(ROOT).join(format!("{PREFIX}-{}", std::process::id()));
        // If a step fails, remove the directory too.
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

    /// Starts the server and waits until it answers requests.
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

    /// Checks that both ends still run.
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

/// A directory that is removed unless it is kept.
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
    // Without nft, a server that isolates its clients would not start. This one has a single
    // client.
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
        addresses: vec![engine_config::first_client4(settings.network).into()],
        ..ClientRequest::default()
    };
    let profile = add(paths, &wanted)?.profile.text().to_owned();
    Ok((settings, profile))
}
