//! The tunnel without cryptography: `adit-lab copy` at each end.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use adit_interop::failure::{Context, Result};
use adit_interop::net::Namespace;
use adit_interop::process::{Daemon, show};

use super::start::{
    Processes, SETUP, address_lines, endpoint, inner, inners, ip_batch, no_lines, wait_for_device,
};
use super::{TunnelSpec, Tunnels, reach};
use crate::bed::Bed;

/// The port of the first client's tunnel at the server; the next client has the next.
const PORT: u16 = 5000;

/// That of the lab, whose part it is.
pub(super) fn version() -> std::result::Result<String, String> {
    program().map(|_| concat!("adit-lab ", env!("CARGO_PKG_VERSION")).to_owned())
}

/// This program, or the `adit-lab` beside it or above it where this is a test.
fn program() -> std::result::Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let folders = this.ancestors().skip(1).take(2).map(|folder| folder.join("adit-lab"));
    let found = std::iter::once(this.clone())
        .chain(folders)
        .find(|path| path.file_name().is_some_and(|name| name == "adit-lab") && path.is_file());
    found.ok_or_else(|| format!("no adit-lab beside {}: cargo build -p adit-lab", this.display()))
}

/// A process at every client, and as many at the server, since it copies between two ends only.
pub(super) fn start(bed: &Bed, spec: &TunnelSpec) -> Result<Tunnels> {
    no_lines(spec, "the copy")?;
    let program = program()?;
    let v6 = spec.outer_v6;
    let port = |client: usize| u16::try_from(client).map(|n| PORT + n).context("too many clients");
    let server_inner = inner(0)?;
    let client_inner = inners(bed)?;
    let mut processes = Processes::default();
    let mut configs = Vec::new();
    for (client, host) in bed.clients.iter().enumerate() {
        let server_end = endpoint(bed.server_outer(v6), port(client)?);
        let client_end = endpoint(bed.client_outer(client, v6), PORT);
        let make = |host: &Namespace, device: &str, ends: [&str; 2], address: String| {
            let mut command = host.command(&program.to_string_lossy());
            command.args(["copy", "--tun", device, "--listen", ends[0], "--peer", ends[1]]);
            command.args(["--address", &address]);
            command
        };
        let device = format!("tun{client}");
        let ends = [server_end.as_str(), client_end.as_str()];
        let server = make(&bed.server, &device, ends, format!("{}/32", server_inner.v4));
        let ends = [client_end.as_str(), server_end.as_str()];
        let inner = client_inner.get(client).context("a client without addresses")?;
        let client_command = make(host, "tun0", ends, format!("{}/16", inner.v4));
        if client == 0 {
            configs.push(("server's command".to_owned(), shown(&server)));
            configs.push(("client's command".to_owned(), shown(&client_command)));
        }
        processes.server.push(Daemon::spawn(&format!("server, {device}"), server)?);
        processes.clients.push(vec![Daemon::spawn(&format!("client {client}"), client_command)?]);
    }
    let mut routes = String::new();
    for (client, (daemon, inner)) in processes.server.iter_mut().zip(&client_inner).enumerate() {
        let device = format!("tun{client}");
        wait_for_device(daemon, &bed.server, &device)?;
        let mtu = spec.inner_mtu.map(|mtu| format!("mtu {mtu} ")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(routes, "link set dev {device} {mtu}up");
        for (to, from) in [(Some(inner.v4), Some(server_inner.v4)), (inner.v6, server_inner.v6)] {
            let (Some(to), Some(from)) = (to, from) else { continue };
            if from.is_ipv6() {
                let _ = writeln!(routes, "address add {from}/128 dev {device} nodad");
            }
            let _ = writeln!(routes, "route replace {to} dev {device} src {from}");
        }
    }
    ip_batch(&bed.server, &routes)?;
    for ((host, daemon), inner) in
        bed.clients.iter().zip(processes.clients.iter_mut().flatten()).zip(&client_inner)
    {
        wait_for_device(daemon, host, "tun0")?;
        let mtu = spec.inner_mtu.map(|mtu| format!("mtu {mtu} ")).unwrap_or_default();
        let v6 = address_lines(*inner, "tun0")
            .lines()
            .skip(1)
            .fold(String::new(), |all, line| all + line + "\n");
        ip_batch(host, &format!("link set dev tun0 {mtu}up\n{v6}"))?;
    }
    reach::all(&bed.clients, server_inner.v4, SETUP).map_err(|f| processes.blame(f))?;
    let (server, clients) = processes.take();
    Ok(Tunnels {
        server,
        clients,
        server_inner,
        client_inner,
        configs,
        notes: Vec::new(),
        folder: None,
    })
}

/// What a person would type in the host.
fn shown(command: &Command) -> String {
    let shown = show(command);
    shown.split_once("adit-lab ").map_or(shown.clone(), |(_, rest)| format!("adit-lab {rest}"))
}
