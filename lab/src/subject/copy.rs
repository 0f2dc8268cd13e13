//! The tunnel without cryptography: `adit-lab copy` at each end.

use std::path::PathBuf;
use std::process::Command;

use adit_testbed::failure::{Context, Result};
use adit_testbed::net::Namespace;
use adit_testbed::process::{Daemon, command_line};
use adit_testbed::tunnel::InnerAddrs;

use super::start::{Processes, SETUP_LIMIT, endpoint, inner, inners, no_lines};
use super::{TunnelSpec, Tunnels, reach};
use crate::copy::READY;
use crate::testbed::Testbed;

const PORT: u16 = 5000;

/// Returns the lab's own version, because it is a part of the lab.
pub(super) fn version() -> std::result::Result<String, String> {
    program().map(|_| concat!("adit-lab ", env!("CARGO_PKG_VERSION")).to_owned())
}

/// Finds this program, or the `adit-lab` next to it; in a test, the one in the parent folder.
pub(super) fn program() -> std::result::Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let folders = this.ancestors().skip(1).take(2).map(|folder| folder.join("adit-lab"));
    let found = std::iter::once(this.clone())
        .chain(folders)
        .find(|path| path.file_name().is_some_and(|name| name == "adit-lab") && path.is_file());
    found.ok_or_else(|| format!("no adit-lab next to {}: cargo build -p adit-lab", this.display()))
}

/// Starts one process at the server and one at every client.
pub(super) fn start(testbed: &Testbed, spec: &TunnelSpec) -> Result<Tunnels> {
    no_lines(spec, "the copy")?;
    let program = program()?;
    let server_outer = endpoint(testbed.server_outer(spec.outer_v6), PORT);
    let server_inner = inner(0)?;
    let client_inner = inners(testbed)?;
    let outer = |client| endpoint(testbed.client_outer(client, spec.outer_v6), PORT);
    let peers = client_inner.iter().enumerate().map(|(client, inner)| {
        let v6 = inner.v6.map(|v6| format!(",{v6}")).unwrap_or_default();
        format!("{}={}{v6}", outer(client), inner.v4)
    });
    let command = |host: &Namespace, listen: &str, peers: &[String], inner: InnerAddrs| {
        let mut command = host.command(&program.to_string_lossy());
        command.args(["copy", "--tun", "tun0", "--listen", listen]);
        command.arg(format!("--address={}/16", inner.v4));
        command.args(inner.v6.map(|v6| format!("--address={v6}/64")));
        command.args(spec.inner_mtu.map(|mtu| format!("--mtu={mtu}")));
        command.args(peers.iter().map(|peer| format!("--peer={peer}")));
        command
    };
    let server = command(&testbed.server, &server_outer, &peers.collect::<Vec<_>>(), server_inner);
    let mut configs = vec![("server's command".to_owned(), shown(&server))];
    let mut processes = Processes::default();
    processes.server.push(Daemon::spawn("server", server)?);
    let to_server = [server_outer];
    processes.dial(testbed, |client, host| {
        let inner = client_inner.get(client).context("a client without addresses")?;
        let command = command(host, &outer(client), &to_server, *inner);
        if client == 0 {
            configs.push(("client's command".to_owned(), shown(&command)));
        }
        Ok(command)
    })?;
    for daemon in &mut processes.server {
        daemon.wait_for(READY, SETUP_LIMIT)?;
    }
    processes.wait_clients(READY)?;
    reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT).map_err(|f| processes.blame(f))?;
    let mut tunnels = processes.into_tunnels(server_inner, client_inner);
    tunnels.configs = configs;
    tunnels.notes = match spec.inner_mtu {
        Some(_) => Vec::new(),
        None => vec!["MTU inside the tunnel: its default, 1428".to_owned()],
    };
    Ok(tunnels)
}

/// Returns the command as a user would type it on the host.
pub(super) fn shown(command: &Command) -> String {
    let shown = command_line(command);
    shown.split_once("adit-lab ").map_or(shown.clone(), |(_, rest)| format!("adit-lab {rest}"))
}
