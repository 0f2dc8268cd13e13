//! The environment of the postgres demo: a cluster, and two network namespaces that are connected neither to each other nor to anything
//! else. Dropping it removes everything. After `kill -9`, the next start cleans up.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use adit_linux::net::Net;
use adit_linux::netns::NetNs;

use super::cluster::Cluster;
use adit_runtime::demo::ends::{End, device_addresses, namespace_fault, spawn, sweep, wait};
use adit_runtime::demo::interrupt::Interrupt;
use adit_runtime::fault::Fault;
use adit_runtime::paths::make_folder;

/// The prefix of the demo's namespaces and directories. The process id follows it.
const PREFIX: &str = "adit-pgdemo";
/// The role that creates the network, and the name of its database.
const ROLE: &str = "vpn";
pub(super) const DATABASE: &str = "vpn";
const PASSWORD: &str = "demo";

/// The names of the two machines.
pub(super) const NAMES: [&str; 2] = ["east", "west"];

#[derive(Debug)]
pub(super) struct DemoSetup {
    pub ends: [End; 2],
    pub cluster: Cluster,
    pub folder: PathBuf,
    program: PathBuf,
    _scrap: RemoveOnDrop,
}

/// A directory. It is removed after all processes in it have ended.
#[derive(Debug)]
struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl DemoSetup {
    /// Starts the cluster and creates the namespaces, without a network yet.
    pub(super) fn new(program: &Path, interrupt: &Interrupt) -> Result<Self, Fault> {
        let root = std::env::temp_dir();
        sweep(PREFIX, &root);
        // The name has a random part: other users can write here and must not create it first.
        let template = root.join(format!("{PREFIX}-{}-XXXXXX", std::process::id()));
        let folder = nix::unistd::mkdtemp(&template).map_err(|error| {
            Fault::environment(format!("cannot make {}: {error}", template.display()))
        })?;
        let scrap = RemoveOnDrop(folder.clone());
        // The server's user must be able to traverse the directory.
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o711))
            .map_err(|error| Fault::environment(format!("{}: {error}", folder.display())))?;
        let place = folder.join("db");
        make_folder(&place, 0o700)?;
        let cluster = Cluster::start(&place, interrupt)?;
        let role = format!("CREATE ROLE {ROLE} LOGIN CREATEROLE PASSWORD '{PASSWORD}'");
        cluster.sql("postgres", &role)?;
        cluster.sql("postgres", &format!("CREATE DATABASE {DATABASE} OWNER {ROLE}"))?;
        let end = |name: &str| -> Result<End, Fault> {
            let ns = NetNs::new(PREFIX).map_err(namespace_fault)?;
            let up = ns.configure(async |net: &Net| {
                let loopback = net.link("lo").await?;
                net.set_up(loopback.index).await
            });
            up.map_err(namespace_fault)?.map_err(|error| namespace_fault(error.into()))?;
            let log = folder.join(format!("{name}.log"));
            Ok(End { ns, ipv4: Ipv4Addr::UNSPECIFIED, ipv6: None, process: None, log })
        };
        let ends = [end(NAMES[0])?, end(NAMES[1])?];
        let program = program.to_owned();
        Ok(Self { ends, cluster, folder, program, _scrap: scrap })
    }

    /// Returns the URL of the database for `init`. The password is in the environment.
    pub(super) fn url(&self) -> String {
        let folder = self.folder.join("db").display().to_string().replace('/', "%2F");
        format!("postgres://{ROLE}@{folder}/{DATABASE}")
    }

    /// Returns the directory of a machine's files.
    pub(super) fn dir(&self, at: usize) -> PathBuf {
        self.folder.join(NAMES.get(at).unwrap_or(&"nobody"))
    }

    /// Runs `adit postgres` with these arguments on one of the machines, and returns its output.
    pub(super) fn adit(&self, at: usize, words: &[&str]) -> Result<String, Fault> {
        let end = self.end(at)?;
        let mut command = end.ns.command(&self.program).map_err(namespace_fault)?;
        command.arg("postgres").args(words).arg("--dir").arg(self.dir(at));
        command.env("PGPASSWORD", PASSWORD).stdin(Stdio::null());
        let done = command.output().map_err(|error| Fault::environment(error.to_string()))?;
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        if done.status.success() {
            return Ok(printed);
        }
        let said = String::from_utf8_lossy(&done.stderr);
        let verb = words.first().copied().unwrap_or_default();
        Err(Fault::environment(format!("adit postgres {verb} failed: {printed}{}", said.trim())))
    }

    /// Starts `adit postgres up` on both machines and waits until each has its addresses.
    pub(super) fn up(&mut self, interrupt: &Interrupt) -> Result<(), Fault> {
        let dirs = [self.dir(0), self.dir(1)];
        for (end, dir) in self.ends.iter_mut().zip(&dirs) {
            let mut command = end.ns.command(&self.program).map_err(namespace_fault)?;
            command.args(["postgres", "up", "--dir"]).arg(dir);
            end.process = Some(spawn(command, &end.log)?);
        }
        for (end, name) in self.ends.iter_mut().zip(NAMES) {
            wait(interrupt, name, end, |end| {
                let device = tunnel_device(&end.ns).unwrap_or_default();
                let addresses = device_addresses(&end.ns, &device);
                end.ipv4 = addresses
                    .iter()
                    .find_map(|address| match address {
                        IpAddr::V4(address) => Some(*address),
                        IpAddr::V6(_) => None,
                    })
                    .unwrap_or(Ipv4Addr::UNSPECIFIED);
                end.ipv6 = addresses.iter().find_map(|address| match address {
                    IpAddr::V6(address) if !address.is_unicast_link_local() => Some(*address),
                    _ => None,
                });
                !end.ipv4.is_unspecified() && end.ipv6.is_some()
            })?;
        }
        Ok(())
    }

    /// Checks that both ends still run.
    pub(super) fn check(&mut self) -> Result<(), Fault> {
        for (end, name) in self.ends.iter_mut().zip(NAMES) {
            end.alive(name)?;
        }
        Ok(())
    }

    fn end(&self, at: usize) -> Result<&End, Fault> {
        self.ends.get(at).ok_or_else(|| Fault::ours("there are two machines"))
    }
}

/// Returns the only device other than the loopback.
fn tunnel_device(ns: &NetNs) -> Option<String> {
    let links = ns.configure(async |net: &Net| net.links().await).ok()?.ok()?;
    links.into_iter().map(|link| link.name).find(|name| name != "lo")
}

impl Drop for DemoSetup {
    fn drop(&mut self) {
        for end in &mut self.ends {
            end.end();
        }
    }
}
