//! Snapshots of everything that a VPN client may change on a machine.

use super::Internet;
use crate::failure::{Result, ensure};
use crate::net::Namespace;

/// Rules, routes, nft, DNS and the settings of the kernel at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostState {
    parts: Vec<(&'static str, String)>,
}

/// The name of each part, and the shell command that prints it.
const PARTS: &[(&str, &str)] = &[
    ("interfaces", "ls /sys/class/net"),
    ("IPv4 rules", "ip -4 rule"),
    ("IPv6 rules", "ip -6 rule"),
    ("IPv4 routes", "ip -4 route show table all"),
    ("IPv6 routes", "ip -6 route show table all | sed 's/ expires [0-9a-z]*//'"),
    ("nft", "nft list ruleset"),
    ("resolv.conf", "stat -c %F:%a:%u:%g /etc/resolv.conf; cat /etc/resolv.conf"),
    ("files of /etc", "ls -A /etc"),
    ("hosts", "cat /etc/hosts"),
    (
        "kernel",
        "cd /proc/sys/net; grep -r . ipv4/conf/*/rp_filter ipv4/conf/*/src_valid_mark \
      ipv4/ip_forward ipv6/conf/*/disable_ipv6 ipv6/conf/all/forwarding",
    ),
];

impl HostState {
    /// Returns the current state of a host.
    ///
    /// # Errors
    /// A command failed.
    pub fn of(host: &Namespace) -> Result<Self> {
        let shown = |&(name, script): &(&'static str, &str)| -> Result<(&'static str, String)> {
            let text = host.run("sh", &["-c", script])?;
            let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
            // The kernel lists routes of several tables in an arbitrary order.
            if name.ends_with("routes") || name == "kernel" {
                lines.sort_unstable();
            }
            Ok((name, lines.join("\n")))
        };
        Ok(Self { parts: PARTS.iter().map(shown).collect::<Result<_>>()? })
    }

    /// Returns the differences, by part with the lines removed and added; empty if there are none.
    pub fn changes(&self, later: &Self) -> String {
        let mut text = String::new();
        for ((name, before), (_, after)) in self.parts.iter().zip(&later.parts) {
            let gone = before.lines().filter(|line| !after.lines().any(|other| other == *line));
            let came = after.lines().filter(|line| !before.lines().any(|other| other == *line));
            let gone = gone.map(|line| format!("\n    {name}: - {line}"));
            let came = came.map(|line| format!("\n    {name}: + {line}"));
            text.extend(gone.chain(came));
        }
        text
    }
}

impl Internet {
    /// Returns the laptop's current state.
    ///
    /// # Errors
    /// A command failed.
    pub fn state(&self) -> Result<HostState> {
        HostState::of(&self.laptop)
    }

    /// Fails unless the laptop is in its former state.
    ///
    /// # Errors
    /// The state differs; the error lists the differences.
    pub fn ensure_restored(&self, before: &HostState, when: &str) -> Result<()> {
        let changes = before.changes(&self.state()?);
        ensure(changes.is_empty(), || format!("{when} the laptop is not as it was:{changes}"))
    }
}
