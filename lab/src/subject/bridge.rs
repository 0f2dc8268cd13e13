//! Two hosts with a TAP device each, and the bridge or relay that joins them.

use std::fmt::Write as _;
use std::process::Command;

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::net::{Namespace, ip};
use adit_testbed::process::Daemon;

use super::start::{Processes, SETUP_LIMIT, inner, inners, no_lines};
use super::{Toolchain, TunnelSpec, Tunnels, copy, reach};
use crate::relay::READY;
use crate::testbed::Testbed;

/// A way to join two TAP devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bridging {
    /// A plain relay with a blocking thread for each direction. It reads and writes each frame with one system call each. It is the faster
    /// of the two plain relays, and comes first as the reference of ratios.
    PlainThreads,
    /// A plain relay with one thread that polls both devices.
    Plain,
    /// `adit bridge --relay`.
    Relay,
    /// `adit bridge` with four rules and connection tracking.
    Rules,
    /// `adit bridge` with 10,000 rules and sets before the decisive rule.
    ManyRules,
}

impl Bridging {
    /// Returns the name that plans use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "relay",
            Self::PlainThreads => "relay-threads",
            Self::Relay => "adit-bridge-relay",
            Self::Rules => "adit-bridge",
            Self::ManyRules => "adit-bridge-10k",
        }
    }

    fn rules(self) -> Option<String> {
        match self {
            Self::Plain | Self::PlainThreads | Self::Relay => None,
            Self::Rules => Some(rules(0)),
            Self::ManyRules => Some(rules(10_000 - DECIDING)),
        }
    }
}

/// The number of rules of the small firewall.
const DECIDING: u32 = 4;

/// Returns the small firewall after this many rules that match other packets. The ports that the lab's generators
/// choose replace 7070.
pub(super) fn rules(others: u32) -> String {
    let mut text = String::from("table inet fw {\n");
    if others > 0 {
        text.push_str(
            "    set others {\n        type ipv4_addr; flags interval;\n        elements = {",
        );
        for n in 0..1000u32 {
            let comma = if n > 0 { "," } else { "" };
            let _ = write!(text, "{comma} 172.{}.{}.0/25", 16 + n / 256, n % 256);
        }
        text.push_str(" }\n    }\n");
    }
    text.push_str(
        "    chain forward {\n        type filter hook forward priority filter; policy drop;\n",
    );
    for n in 0..others {
        let (high, low) = (n / 256 % 256, n % 256);
        let rule = match n % 5 {
            0 => format!("ip saddr 192.168.{low}.0/24 tcp dport {} accept", 6000 + n % 50_000),
            1 => format!("ip daddr 172.{}.{high}.{low} drop", 20 + n % 8),
            2 => format!("ip saddr @others udp dport {} drop", 1000 + n),
            3 => format!("ip6 daddr 2001:db8:{n:x}::/48 accept"),
            _ => format!(
                "ip daddr 198.18.{high}.{low}/31 tcp sport {{ 7, 9-13, {} }} drop",
                1000 + n
            ),
        };
        let _ = writeln!(text, "        {rule}");
    }
    text.push_str(
        "        ct state established,related accept\n        meta l4proto { icmp, ipv6-icmp } accept\n        \
         tcp dport 1024-65535 accept\n        meta l4proto udp accept\n    }\n}\n",
    );
    text
}

/// Starts the bridge on the server's host, whose device is `public`; the client's is `private`.
pub(super) fn start(
    toolchain: &Toolchain,
    bridging: Bridging,
    testbed: &Testbed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    no_lines(spec, "a bridge")?;
    let client = testbed.clients.first().context("a testbed without clients")?;
    ensure(testbed.clients.len() == 1, || "a bridge joins two hosts: one client".into())?;
    let folder = toolchain.scratch()?;
    let mut configs = Vec::new();
    let mut command: Command;
    let ready = match bridging {
        Bridging::Plain | Bridging::PlainThreads => {
            command = testbed.server.command(&copy::program()?.to_string_lossy());
            command.args(["relay", "private", "public"]);
            command.args((bridging == Bridging::PlainThreads).then_some("--threads"));
            READY
        }
        Bridging::Relay | Bridging::Rules | Bridging::ManyRules => {
            command = testbed.server.command(&toolchain.adit(None)?.to_string_lossy());
            command.args(["bridge", "tap:private", "tap:public"]);
            match bridging.rules() {
                None => command.arg("--relay"),
                Some(rules) => {
                    let path = folder.path().join("fw.nft");
                    std::fs::write(&path, &rules)?;
                    configs.push(("fw.nft".to_owned(), rules));
                    command.arg("--rules").arg(path)
                }
            };
            command.arg("--dir").arg(folder.path());
            "the bridge is up"
        }
    };
    let mut processes = Processes::default();
    processes.server.push(Daemon::spawn(bridging.name(), command)?);
    for daemon in &mut processes.server {
        daemon.wait_for(ready, SETUP_LIMIT)?;
    }
    processes.clients.push(Vec::new());
    ip(Some(&testbed.server), [format!("link set private netns {}", client.name())].into_iter())?;
    let (server_inner, client_inner) = (inner(0)?, inners(testbed)?);
    let client_address = client_inner.first().context("a client without addresses")?;
    set_up(&testbed.server, "public", &server_inner, testbed)?;
    set_up(client, "private", client_address, testbed)?;
    reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT).map_err(|f| processes.blame(f))?;
    let mut tunnels = processes.into_tunnels(server_inner, client_inner);
    tunnels.configs = configs;
    tunnels.folder = Some(folder);
    Ok(tunnels)
}

pub(super) fn set_up(
    host: &Namespace,
    device: &'static str,
    inner: &adit_testbed::tunnel::InnerAddrs,
    testbed: &Testbed,
) -> Result<()> {
    let offload = testbed.mode().offload();
    host.handle()?.run(|| offload.set(device))??;
    let mut lines =
        vec![format!("link set {device} up"), format!("addr add {}/16 dev {device}", inner.v4)];
    lines.extend(inner.v6.map(|v6| format!("addr add {v6}/64 dev {device} nodad")));
    ip(Some(host), lines.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_many_rules_are_ten_thousand() {
        let count = |text: &str| {
            text.lines().filter(|line| line.ends_with("accept") || line.ends_with("drop")).count()
        };
        assert_eq!(count(&rules(0)), 4);
        assert_eq!(count(&Bridging::ManyRules.rules().unwrap()), 10_000);
        assert!(Bridging::Relay.rules().is_none());
    }
}
