//! Forwarding between the tunnel and the networks of this host.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use adit_linux::net::{ForwardRules, InstalledRules};
use ipnet::{IpNet, Ipv4Net};

use super::apply::Host;
use super::plan::{Forward, HostPlan};
use super::policy_routing::private_networks;
use super::sysctl;

const FORWARD4: &str = "net.ipv4.ip_forward";
const FORWARD6: &str = "net.ipv6.conf.all.forwarding";

/// The shared address space of carrier-grade NAT (RFC 6598), in which meshes choose their ranges.
const SHARED: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10);

/// The rules in force.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    rules: Option<(ForwardRules, InstalledRules)>,
    /// Whether a kernel setting was refused, so that the next change of the plan tries it again.
    is_incomplete: bool,
}

impl Forwarding {
    /// Returns whether a part of the plan is not in force.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }
}

impl Host {
    /// Applies the plan's forwarding rules. If the kernel refuses them, forwards nothing, so that no network is exposed
    /// unintentionally. Returns a note on each part that was refused.
    pub(super) fn apply_forwarding(&mut self, plan: &HostPlan, device: &str) -> Vec<String> {
        let Some(forward) = &plan.forward else {
            if self.forwarding.rules.take().is_some() {
                self.undo_log.restore_sysctls(is_forwarding);
            }
            return Vec::new();
        };
        let (wants_v4, wants_v6) = forward.families();
        if !wants_v4 && !wants_v6 {
            self.undo_log.restore_sysctls(is_forwarding);
        }
        let rules = rules(forward, device);
        let installed = match &self.forwarding.rules {
            Some((current, _)) if *current == rules => None,
            // Installs the new rules before removing the old ones, so that no packet passes unfiltered.
            _ => Some(rules.install()),
        };
        match installed {
            None if !self.forwarding.is_incomplete => return Vec::new(),
            None => {}
            Some(Ok(installed)) => self.forwarding.rules = Some((rules, installed)),
            Some(Err(error)) => {
                self.undo_log.restore_sysctls(is_forwarding);
                // The settings of the device go with it.
                for family in ["ipv4", "ipv6"] {
                    let _ = sysctl::write(&format!("net.{family}.conf.{device}.forwarding"), "0");
                }
                self.forwarding.rules = None;
                self.forwarding.is_incomplete = wants_v4 || wants_v6;
                if !wants_v4 && !wants_v6 {
                    tracing::debug!("no rules against forwarding: nftables: {error}");
                    return Vec::new();
                }
                return vec![format!("nothing is forwarded: nftables: {error}")];
            }
        }
        let mut notes = Vec::new();
        self.forwarding.is_incomplete = false;
        for (family, key, wanted) in [("IPv4", FORWARD4, wants_v4), ("IPv6", FORWARD6, wants_v6)] {
            if wanted && let Err(error) = self.forward(key) {
                self.forwarding.is_incomplete = true;
                notes.push(format!("{family} is not forwarded: {key}: {error}; it is tried again"));
            }
        }
        notes
    }

    fn forward(&mut self, key: &str) -> io::Result<()> {
        if key == FORWARD6 {
            if !sysctl::path(key)?.exists() {
                return Ok(());
            }
            self.keep_router_advertisements()?;
        }
        self.undo_log.set_sysctl(key, "1")
    }

    /// Keeps router advertisements working. A forwarding host ignores them unless `accept_ra` is 2, and would lose a
    /// default route that it got from them.
    fn keep_router_advertisements(&mut self) -> io::Result<()> {
        if sysctl::read(FORWARD6)? == "1" {
            return Ok(());
        }
        let folder = sysctl::path("net.ipv6.conf")?;
        let names = fs::read_dir(folder)?.flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name != "lo" && name != "all").collect();
        names.sort();
        for key in names.iter().map(|name| format!("net.ipv6.conf.{name}.accept_ra")) {
            // Interfaces come and go, and some have a dot in their name, which no key has.
            if sysctl::read(&key).is_ok_and(|value| value == "1") {
                self.undo_log.set_sysctl(&key, "2")?;
            }
        }
        Ok(())
    }
}

fn rules(forward: &Forward, device: &str) -> ForwardRules {
    let private = private_networks().chain([IpNet::V4(SHARED)]).filter(|_| forward.internet);
    ForwardRules {
        inside: device.to_owned(),
        accepted: forward.networks.clone(),
        dropped: private.collect(),
        others: forward.internet,
        masquerade: forward.masquerade.clone(),
        untranslated: forward.untranslated.clone(),
    }
}

fn is_forwarding(key: &str) -> bool {
    key == FORWARD4 || key == FORWARD6 || key.ends_with(".accept_ra")
}
