//! nebula, with its own CA. The server is the lighthouse, and the relay if clients need one.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use adit_testbed::failure::{Context, Result};
use adit_testbed::net::Namespace;
use adit_testbed::process::{Daemon, output};
use tempfile::TempDir;

use super::root::RootProgram;
use super::start::{Processes, SETUP_LIMIT, endpoint, inner, inners, no_lines};
use super::toolchain::Toolchain;
use super::{MemberPath, TunnelSpec, Tunnels, reach};
use crate::testbed::Testbed;

const PORT: u16 = 4242;

/// The log line of a running node.
const RUNS: &str = "Nebula interface is active";

/// Returns the first line of `nebula -version`.
pub(super) fn version() -> std::result::Result<String, String> {
    RootProgram::find("nebula", "usr/bin/nebula-cert")?;
    let line = RootProgram::find("nebula", "usr/bin/nebula")?.version("-version")?;
    Ok(format!("nebula {}", line.trim_start_matches("Version: ")))
}

/// Starts a node on every host; the clients have tunnels to the server.
pub(super) fn start(
    toolchain: &Toolchain,
    testbed: &Testbed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    no_lines(spec, "nebula")?;
    let files = Files::write(toolchain, testbed, spec)?;
    let mut processes = Processes::default();
    let mut server = Daemon::spawn("server", files.command(&testbed.server, 0))?;
    server.wait_for(RUNS, SETUP_LIMIT)?;
    processes.server.push(server);
    processes.dial(testbed, |index, host| Ok(files.command(host, index + 1)))?;
    processes.wait_clients(RUNS)?;
    let server_inner = inner(0)?;
    reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT).map_err(|f| processes.blame(f))?;
    let mut tunnels = processes.into_tunnels(server_inner, inners(testbed)?);
    tunnels.notes = vec![
        "nebula's default cipher: AES-256-GCM; this version has no settings for offloads".into(),
    ];
    if spec.inner_mtu.is_none() {
        tunnels.notes.push("MTU inside the tunnel: the program's default, 1300".to_owned());
    }
    tunnels.configs = files.shown;
    tunnels.folder = Some(files.folder);
    Ok(tunnels)
}

/// The CA, and certificate, key and configuration of each node, numbered like the addresses.
struct Files {
    program: RootProgram,
    folder: TempDir,
    shown: Vec<(String, String)>,
}

impl Files {
    fn write(toolchain: &Toolchain, testbed: &Testbed, spec: &TunnelSpec) -> Result<Self> {
        let program = RootProgram::find("nebula", "usr/bin/nebula")?;
        let mut files = Self { program, folder: toolchain.scratch()?, shown: Vec::new() };
        let nebula_cert = RootProgram::find("nebula", "usr/bin/nebula-cert")?;
        let sign = |words: &[&str]| {
            let mut command = nebula_cert.here();
            output({
                command.current_dir(files.folder.path()).args(words);
                command
            })
        };
        // Version 2 of the certificates has IPv6 addresses.
        sign(&["ca", "-version", "2", "-name", "lab"])?;
        for number in 0..=testbed.clients.len() {
            let (name, address) = (name(number), inner(number)?);
            let v6 = address.v6.map(|v6| format!(",{v6}/64")).unwrap_or_default();
            let networks = format!("{}/16{v6}", address.v4);
            sign(&["sign", "-version", "2", "-name", &name, "-networks", &networks])?;
        }
        for number in 0..=testbed.clients.len() {
            let conf = conf(files.folder.path(), testbed, spec, number)?;
            let path = files.config(number);
            fs::write(&path, &conf).context(path.display())?;
            if number < 2 {
                files.shown.push((format!("{}.yml", name(number)), conf));
            }
        }
        Ok(files)
    }

    fn config(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("{}.yml", name(number)))
    }

    fn command(&self, host: &Namespace, number: usize) -> Command {
        let mut command = self.program.on(host);
        command.arg("-config").arg(self.config(number));
        command
    }
}

fn name(number: usize) -> String {
    if number == 0 { "server".to_owned() } else { format!("client{number}") }
}

fn conf(folder: &Path, testbed: &Testbed, spec: &TunnelSpec, number: usize) -> Result<String> {
    let (folder, name) = (folder.display(), name(number));
    let is_server = number == 0;
    let lighthouse = inner(0)?.v4;
    let outer = endpoint(testbed.server_outer(spec.outer_v6), PORT);
    let others = if is_server { String::new() } else { format!("\"{lighthouse}\"") };
    let is_relayed = spec.members == Some(MemberPath::Relay);
    let relays = if is_relayed { others.as_str() } else { "" };
    let (host, port) =
        (if spec.outer_v6 { "[::]" } else { "0.0.0.0" }, if is_server { PORT } else { 0 });
    let mut conf = format!(
        "pki: {{ca: {folder}/ca.crt, cert: {folder}/{name}.crt, key: {folder}/{name}.key}}\n\
         static_host_map: {{\"{lighthouse}\": [\"{outer}\"]}}\n\
         lighthouse: {{am_lighthouse: {is_server}, hosts: [{others}]}}\n\
         relay: {{am_relay: {}, relays: [{relays}], use_relays: {is_relayed}}}\n\
         listen: {{host: \"{host}\", port: {port}}}\n",
        is_server && is_relayed,
    );
    let mtu = spec.inner_mtu.map(|mtu| format!(", mtu: {mtu}")).unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = writeln!(conf, "tun: {{dev: tun0{mtu}}}");
    let any = "[{port: any, proto: any, host: any}]";
    let _ = writeln!(conf, "firewall: {{outbound: {any}, inbound: {any}}}");
    Ok(conf)
}
