//! A member of a mesh as a guest in the net of the real tinc 1.1.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use adit_tinc::keys::PrivateKey;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::super::tinc::{NO_TINC, program};
use super::super::{Scenario, ping_until};
use super::gateway::until_seen;
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::{Namespace, ip};
use crate::process::{Daemon, output};
use crate::skip::skip;
use crate::traffic::silent;
use crate::wait::until;

/// A node of the real tinc.
pub(super) struct Tinc {
    pub(super) folder: PathBuf,
    pub(super) daemon: Option<Daemon>,
}

impl Tinc {
    /// Writes the files of a node: its settings, and a script for each event.
    pub(super) fn new(
        folder: PathBuf,
        conf: &str,
        key: &PrivateKey,
        scripts: &[(&str, String)],
    ) -> Result<Self> {
        fs::create_dir_all(folder.join("hosts"))?;
        fs::write(folder.join("tinc.conf"), conf)?;
        fs::write(folder.join("ed25519_key.priv"), key.to_file().as_bytes())?;
        for (name, text) in scripts {
            let path = folder.join(name);
            file::write(&path, format!("#!/bin/sh\n{text}\n"), 0o755)?;
        }
        Ok(Self { folder, daemon: None })
    }

    /// Writes a host file.
    pub(super) fn host(&self, name: &str, key: &PrivateKey, lines: &str) -> Result<()> {
        let text = format!("Ed25519PublicKey = {}\n{lines}", key.public());
        Ok(fs::write(self.folder.join("hosts").join(name), text)?)
    }

    /// Starts the daemon. Returns whether the real tinc is installed.
    pub(super) fn start(&mut self, space: &Namespace) -> Result<bool> {
        let Some(mut command) = program(space, "usr/sbin/tincd", &self.folder) else {
            skip("tinc", NO_TINC);
            return Ok(false);
        };
        command.args(["-D", "-d", "3"]);
        let mut daemon = Daemon::spawn("tincd", command)?;
        daemon.wait_for("Ready", LIMIT)?;
        self.daemon = Some(daemon);
        Ok(true)
    }

    /// Runs a command of `tinc`. Returns its output.
    pub(super) fn run(&self, space: &Namespace, words: &[&str]) -> Result<String> {
        let mut command = program(space, "usr/sbin/tinc", &self.folder).context(NO_TINC)?;
        command.args(words);
        output(command)
    }

    fn wait_for_subnet(&self, space: &Namespace, line: &str, exists: bool) -> Result<()> {
        let what = format!("tinc {} {line}", if exists { "has" } else { "has not" });
        until(&what, LIMIT, || Ok(self.run(space, &["dump", "subnets"])?.contains(line) == exists))
    }
}

/// The script that follows the subnets of other nodes with routes.
pub(super) fn route_scripts(own: &str, options: &str) -> [(&'static str, String); 3] {
    let others = format!("[ \"$NODE\" = {own} ] ||");
    [
        ("tinc-up", "ip link set $INTERFACE up".to_owned()),
        ("subnet-up", format!("{others} ip route replace $SUBNET dev $INTERFACE {options}")),
        ("subnet-down", format!("{others} ip route del $SUBNET dev $INTERFACE")),
    ]
}

/// The subnets of the host behind the real tinc.
const LINES: &str = "Port = 655\nSubnet = 10.20.3.0/24\n";

/// Writes the files of the real node, with a host behind it, and those of the guest.
fn prepare(bed: &MeshTestbed, printer: &Namespace, net: &Path) -> Result<Tinc> {
    let [bob_key, gate_key] = [1, 2].map(|seed| PrivateKey::from_seed(&[seed; 32]));
    let site = &bed.machines[2].space;
    let link = format!("link add site type veth peer name eth0 netns {}", printer.name());
    let lines = [link, "addr add 10.20.3.1/24 dev site".into(), "link set site up".into()];
    ip(Some(site), lines.into_iter())?;
    let lines =
        ["addr add 10.20.3.5/24 dev eth0", "link set eth0 up", "route add default via 10.20.3.1"];
    ip(Some(printer), lines.map(str::to_owned).into_iter())?;
    site.run("sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
    let conf = "Name = bob\nAddressFamily = ipv4\nInterface = tinc-bob\nLocalDiscovery = no\n";
    let folder = bed.machines[2].dir.join("tinc");
    let bob = Tinc::new(folder, conf, &bob_key, &route_scripts("bob", ""))?;
    bob.host("bob", &bob_key, LINES)?;
    bob.host("gate", &gate_key, "")?;
    let conf = "Name = gate\nAddressFamily = ipv4\nInterface = tinc-gate\nConnectTo = bob\n\
                LocalDiscovery = no\n";
    let up = "ip link set $INTERFACE up\nip route add 10.20.0.0/16 dev $INTERFACE".to_owned();
    let gate = Tinc::new(net.to_owned(), conf, &gate_key, &[("tinc-up", up)])?;
    gate.host("bob", &bob_key, "Address = 11.0.0.3\nPort = 655\n")?;
    gate.host("gate", &gate_key, "")?;
    Ok(bob)
}

/// Waits until the guest reaches exactly these subnets of the net.
fn wait_for_reached(bed: &MeshTestbed, nets: &[&str]) -> Result<()> {
    let mut last = Value::Null;
    let waited = until(&format!("the guest reaches {nets:?}"), LIMIT, || {
        last = bed.machines[1].json(&["status"])?["tinc"].clone();
        Ok(last["reached"].as_array().is_some_and(|all| *all == nets))
    });
    waited.map_err(|failure| format!("{failure}: {last}").into())
}

/// A far member reaches a host behind a node of the real tinc, and the other way around; subnets come and go on both sides, within the rights of
/// the guest; the daemon is started again, and everything is withdrawn at the end.
pub(super) fn guest(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    let printer = Namespace::new("printer")?;
    let net = bed.machines[1].dir.join("guestnet");
    let mut bob = prepare(&bed, &printer, &net)?;
    if !bob.start(&bed.machines[2].space)? {
        return Ok("skipped".to_owned());
    }
    bed.found()?;
    let token = bed.invite(&["--subnet", "10.20.0.0/16"])?;
    bed.join_only(1, &token)?;
    let settings = format!(
        "[tinc]\ndirectory = \"{}\"\nnetworks = [\"10.20.0.0/16\", \"10.99.0.0/16\"]\n",
        net.display()
    );
    bed.machines[1].set(&settings)?;
    bed.up(1)?;
    wait_for_reached(&bed, &["10.20.3.0/24"])?;
    let inside: IpAddr = "10.20.3.5".parse().context("an address")?;
    ping_until(&bed.machines[0].space, inside, LIMIT)?;
    let far = bed.ipv4(0)?;
    ping_until(&printer, far, LIMIT)?;
    let seen = until_seen(&bed.machines[0].space, &printer, inside)?;
    ensure(seen == far, || format!("the host sees {seen} instead of {far}"))?;
    changes_in_the_net(&bed, &bob)?;
    changes_in_the_mesh(&bed, &bob, inside)?;
    restarted(&bed, inside)?;
    bed.stop(1)?;
    bob.wait_for_subnet(&bed.machines[2].space, "owner gate", false)?;
    let links = bed.machines[1].space.run("ip", &["-br", "link"])?;
    ensure(!links.contains("tinc-gate"), || format!("tinc's device is left: {links}"))?;
    ensure(silent(&bed.machines[0].space, inside)?, || "still reached".into())?;
    Ok("reached in both directions, and withdrawn".to_owned())
}

/// Subnets of the real node come and go. One is beyond the rights of the guest.
fn changes_in_the_net(bed: &MeshTestbed, bob: &Tinc) -> Result<()> {
    let key = PrivateKey::from_seed(&[1; 32]);
    let more =
        format!("{LINES}Subnet = 10.20.4.0/24\nSubnet = 10.99.1.0/24\nSubnet = 172.16.0.0/16\n");
    bob.host("bob", &key, &more)?;
    bob.run(&bed.machines[2].space, &["reload"])?;
    wait_for_reached(bed, &["10.20.3.0/24", "10.20.4.0/24"])?;
    let status = bed.machines[1].mesh(&["status"])?;
    for part in [
        "10.99.1.0/24 of bob is not reached from the mesh: the mesh has no such network behind this node",
        "sudo adit mesh set node2 --subnet 10.20.0.0/16 --subnet 10.99.1.0/24",
        "172.16.0.0/16 of bob is not reached from the mesh: it is in none of the `networks`",
    ] {
        ensure(status.contains(part), || format!("{part}: {status}"))?;
    }
    bob.host("bob", &key, LINES)?;
    bob.run(&bed.machines[2].space, &["reload"])?;
    wait_for_reached(bed, &["10.20.3.0/24"])
}

/// A network of another member comes and goes, and the policy of the mesh holds.
fn changes_in_the_mesh(bed: &MeshTestbed, bob: &Tinc, inside: IpAddr) -> Result<()> {
    let (hub, site) = (&bed.machines[0], &bed.machines[2].space);
    bob.wait_for_subnet(site, "100.87.0.0/16 owner gate", true)?;
    hub.mesh(&["set", "hub", "--subnet", "192.168.50.0/24"])?;
    bob.wait_for_subnet(site, "192.168.50.0/24 owner gate", true)?;
    hub.mesh(&["set", "hub", "--no-subnets"])?;
    bob.wait_for_subnet(site, "192.168.50.0/24 owner gate", false)?;
    // The guest's own networks came from there.
    bob.wait_for_subnet(site, "10.20.0.0/16 owner gate", false)?;
    let rules = "table inet mesh {
        chain forward { type filter hook forward priority filter; policy drop; }
    }";
    hub.mesh_with_input(&["policy", "set", "-"], rules)?;
    until("the policy drops packets", LIMIT, || silent(&hub.space, inside))?;
    hub.mesh(&["policy", "clear"])?;
    ping_until(&hub.space, inside, LIMIT).map(drop)
}

/// The daemon of the guest is killed, and started again.
fn restarted(bed: &MeshTestbed, inside: IpAddr) -> Result<()> {
    let text = fs::read_to_string("/run/tinc.guestnet.pid")?;
    let pid = text.split_whitespace().next().and_then(|word| word.parse().ok());
    kill(Pid::from_raw(pid.context("a process id")?), Signal::SIGKILL)?;
    wait_for_reached(bed, &[])?;
    wait_for_reached(bed, &["10.20.3.0/24"])?;
    ping_until(&bed.machines[0].space, inside, LIMIT).map(drop)
}
