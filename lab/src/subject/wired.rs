//! Two hosts with a third between them and a veth pair to each, like a firewall in a rack. The third host runs the
//! kernel's own bridge, or `adit bridge` on the same two ports.

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::net::{Namespace, ip};
use adit_testbed::process::{Daemon, run_with_input};

use super::start::{Processes, SETUP_LIMIT, inner, inners, no_lines};
use super::{Toolchain, TunnelSpec, Tunnels, bridge, reach};
use crate::testbed::Testbed;

/// A way to join the two veth pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Joint {
    /// The kernel's bridge with the small firewall's rules in nftables. It comes first, as the reference of ratios.
    KernelRules,
    /// The kernel's bridge, without rules.
    Kernel,
    /// `adit bridge` with the small firewall's rules.
    Adit,
}

impl Joint {
    /// Returns the name that plans use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "linux-bridge",
            Self::KernelRules => "linux-bridge-nft",
            Self::Adit => "adit-bridge-veth",
        }
    }
}

/// The ports of the host in between, towards the client and towards the server.
const PORTS: [&str; 2] = ["private", "public"];
/// The devices of the two hosts.
const HOST: &str = "eth";

/// Returns the small firewall in the `bridge` family. A kernel without connection tracking for bridges refuses the rule
/// about states; without it, only the ports decide, in both directions.
fn kernel_rules(tracked: bool) -> String {
    let first =
        if tracked { "ct state established,related accept" } else { "tcp sport 1024-65535 accept" };
    format!(
        "table bridge fw {{\n    chain forward {{\n        type filter hook forward priority filter; policy drop;\n        \
         {first}\n        ether type arp accept\n        meta l4proto {{ icmp, ipv6-icmp }} accept\n        \
         tcp dport 1024-65535 accept\n        meta l4proto udp accept\n    }}\n}}\n"
    )
}

pub(super) fn start(
    toolchain: &Toolchain,
    joint: Joint,
    testbed: &Testbed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    no_lines(spec, "a bridge")?;
    let client = testbed.clients.first().context("a testbed without clients")?;
    ensure(testbed.clients.len() == 1, || "a bridge joins two hosts: one client".into())?;
    let folder = toolchain.scratch()?;
    let third = BridgeHost(Namespace::new("between")?);
    let between = &third.0;
    let (server_inner, client_inner) = (inner(0)?, inners(testbed)?);
    let client_address = client_inner.first().context("a client without addresses")?;
    let hosts = [(client, client_address), (&testbed.server, &server_inner)];
    let offload = testbed.mode().offload();
    for ((host, address), port) in hosts.into_iter().zip(PORTS) {
        let (near, far) = (between.name(), host.name());
        let veth = format!("link add {port} netns {near} type veth peer name {HOST} netns {far}");
        ip(None, [veth].into_iter())?;
        between.handle()?.run(|| offload.set(port))??;
        ip(Some(between), [format!("link set {port} up")].into_iter())?;
        bridge::set_up(host, HOST, address, testbed)?;
    }
    let mut processes = Processes::default();
    let (mut configs, mut notes) = (Vec::new(), Vec::new());
    match joint {
        Joint::Kernel => join(between)?,
        Joint::KernelRules => {
            join(between)?;
            let apply = |tracked| {
                let rules = kernel_rules(tracked);
                let mut command = between.command("nft");
                command.args(["-f", "-"]);
                run_with_input(command, &rules).map(|_| rules)
            };
            let rules = match apply(true) {
                Ok(rules) => rules,
                Err(_) => {
                    notes.push(
                        "this kernel tracks no connections on a bridge: rules without state".into(),
                    );
                    apply(false)?
                }
            };
            configs.push(("fw.nft".to_owned(), rules));
        }
        Joint::Adit => {
            let rules = bridge::rules(0);
            let path = folder.path().join("fw.nft");
            std::fs::write(&path, &rules)?;
            configs.push(("fw.nft".to_owned(), rules));
            let mut command = between.command(&toolchain.adit(None)?.to_string_lossy());
            command.arg("bridge").args(PORTS).arg("--rules").arg(path);
            command.arg("--dir").arg(folder.path());
            processes.server.push(Daemon::spawn(joint.name(), command)?);
            for daemon in &mut processes.server {
                daemon.wait_for("the bridge is up", SETUP_LIMIT)?;
            }
        }
    }
    processes.clients.push(Vec::new());
    reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT).map_err(|f| processes.blame(f))?;
    let mut tunnels = processes.into_tunnels(server_inner, client_inner);
    (tunnels.configs, tunnels.notes) = (configs, notes);
    tunnels.folder = Some(folder);
    tunnels.between = Some(third);
    Ok(tunnels)
}

/// The host in between.
#[derive(Debug)]
pub(super) struct BridgeHost(Namespace);

impl Drop for BridgeHost {
    fn drop(&mut self) {
        // The kernel removes a namespace's devices some time after the namespace; the hosts' ends must be removed now, because the next
        // subject gives its devices the same names.
        let cables = PORTS.iter().map(|port| format!("link del {port}"));
        let _ = ip(Some(&self.0), cables);
    }
}

/// Sets up the kernel's bridge, which forwards at once.
fn join(between: &Namespace) -> Result<()> {
    let first =
        ["link add joint type bridge forward_delay 0".to_owned(), "link set joint up".to_owned()];
    let ports = PORTS.iter().map(|port| format!("link set {port} master joint"));
    ip(Some(between), first.into_iter().chain(ports))
}
