//! Tunnels of adit's mesh. The server is its first node, and every client joins with a token.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::net::Namespace;
use adit_testbed::process::{Daemon, output, run_with_input};

use super::start::{Processes, SETUP_LIMIT, no_lines};
use super::toolchain::Toolchain;
use super::{MemberPath, TunnelSpec, Tunnels, reach};
use crate::testbed::Testbed;

/// The device of a mesh with the default name.
const DEVICE: &str = "mesh-home";

/// The beginning of the line with the token.
const TOKEN: &str = "adit-mesh1-";

/// Starts a node on every host; the clients have sessions with the server.
pub(super) fn start(
    toolchain: &Toolchain,
    testbed: &Testbed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    no_lines(spec, "adit-mesh")?;
    ensure(spec.inner_mtu.is_none(), || "adit-mesh: the MTU inside cannot be chosen".into())?;
    ensure(spec.cipher == "AES-256-GCM", || "adit-mesh has one cipher, AES-256-GCM".into())?;
    let folder = toolchain.scratch()?;
    let nodes = Nodes { adit: toolchain.adit(None)?, folder: folder.path() };
    let mut processes = Processes::default();
    let mut server = Daemon::spawn("server", nodes.up(&testbed.server, 0, &["--name", "server"]))?;
    server.wait_for(TOKEN, SETUP_LIMIT)?;
    processes.server.push(server);
    let uses = testbed.clients.len().to_string();
    let invited = output(nodes.command(&testbed.server, 0, &["invite", "--uses", &uses]))?;
    let token = invited.lines().find(|line| line.starts_with(TOKEN)).context("no token")?;
    for (host, number) in testbed.clients.iter().zip(1..) {
        let name = format!("client{number}");
        let words = ["join", "-", "--no-up", "--name", &name];
        run_with_input(nodes.command(host, number, &words), token)?;
    }
    processes.dial(testbed, |index, host| Ok(nodes.up(host, index + 1, &[])))?;
    processes.wait_clients("server: connected")?;
    let server_inner = reach::inner_addrs(&testbed.server, DEVICE)?;
    let client_inner = reach::inner(&testbed.clients, DEVICE)?;
    reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT).map_err(|f| processes.blame(f))?;
    if let Some(path) = spec.members {
        reach::members(&testbed.clients, &client_inner, SETUP_LIMIT)
            .and_then(|()| nodes.wait_for_path(testbed, path))
            .map_err(|failure| processes.blame(failure))?;
    }
    let mut tunnels = processes.into_tunnels(server_inner, client_inner);
    tunnels.configs = vec![(
        "commands".to_owned(),
        "server: adit mesh up; clients: adit mesh join, adit mesh up\n".to_owned(),
    )];
    tunnels.folder = Some(folder);
    Ok(tunnels)
}

/// The nodes, each with its own folder; the server is number 0.
struct Nodes<'a> {
    adit: PathBuf,
    folder: &'a Path,
}

impl Nodes<'_> {
    fn command(&self, host: &Namespace, number: usize, words: &[&str]) -> Command {
        let mut command = host.command(&self.adit.to_string_lossy());
        command.arg("mesh").args(words);
        command.arg("--dir").arg(self.folder.join(number.to_string()));
        command
    }

    /// Waits until the first two clients send to each other over this path.
    fn wait_for_path(&self, testbed: &Testbed, path: MemberPath) -> Result<()> {
        let last = Instant::now() + SETUP_LIMIT;
        let ends = testbed.clients.iter().zip([(1, "client2"), (2, "client1")]);
        for (host, (number, peer)) in ends {
            loop {
                let listed = output(self.command(host, number, &["peers", "--json"]))?;
                let peers: Vec<serde_json::Value> =
                    serde_json::from_str(&listed).context("JSON")?;
                let route = peers.iter().find(|p| p["name"] == peer).map(|p| p["route"].clone());
                if route.is_some_and(|route| route == path.to_string()) {
                    break;
                }
                ensure(Instant::now() < last, || format!("no {path} path to {peer}: {listed}"))?;
                sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    /// Returns the command that runs a node without changing the DNS settings.
    fn up(&self, host: &Namespace, number: usize, words: &[&str]) -> Command {
        let mut command = self.command(host, number, &["up", "--dns", "off"]);
        command.args(words);
        command
    }
}
