//! The server's own nft table: clients kept apart, their traffic masqueraded.
//!
//! One `inet` table per instance, replaced as a whole in one transaction and removed at the end.
//! Nothing outside it is touched.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::failure::Outcome;
use super::settings::{Nat, Settings};
use crate::fault::Fault;

/// Longest piece of nft's own words that goes into a message.
const MAX_QUOTED: usize = 400;

/// The name of an instance's table.
pub(super) fn table_name(instance: &str) -> String {
    format!("adit_{instance}")
}

/// The ruleset that replaces the table, for `nft -f -`.
pub(super) fn ruleset(table: &str, settings: &Settings) -> String {
    let device = &settings.device;
    let mut text = String::new();
    // Declaring before deleting makes the deletion succeed whether or not the table exists.
    let _ = writeln!(text, "table inet {table} {{}}\ndelete table inet {table}");
    let _ = writeln!(text, "table inet {table} {{");
    let _ = writeln!(text, "\tchain forward {{");
    let _ = writeln!(text, "\t\ttype filter hook forward priority filter; policy accept;");
    if !settings.client_to_client {
        let _ = writeln!(
            text,
            "\t\tiifname \"{device}\" oifname \"{device}\" counter drop \
             comment \"clients are kept apart\""
        );
    }
    let _ = writeln!(
        text,
        "\t\tiifname \"{device}\" ip saddr != {} counter drop comment \"not a client's address\"",
        settings.network
    );
    match settings.network6 {
        Some(network) => {
            let _ = writeln!(
                text,
                "\t\tiifname \"{device}\" ip6 saddr != {network} counter drop \
                 comment \"not a client's address\""
            );
        }
        None => {
            let _ = writeln!(
                text,
                "\t\tiifname \"{device}\" meta nfproto ipv6 counter drop \
                 comment \"no IPv6 in this tunnel\""
            );
        }
    }
    let _ = writeln!(text, "\t\tiifname \"{device}\" counter accept");
    let _ = writeln!(text, "\t\toifname \"{device}\" counter accept");
    let _ = writeln!(text, "\t}}");
    if settings.nat == Nat::Auto {
        let _ = writeln!(text, "\tchain postrouting {{");
        let _ = writeln!(text, "\t\ttype nat hook postrouting priority srcnat; policy accept;");
        let mut masquerade = |family: &str, network: String| {
            let _ = writeln!(
                text,
                "\t\t{family} saddr {network} oifname != \"{device}\" counter masquerade"
            );
        };
        masquerade("ip", settings.network.to_string());
        if let Some(network) = settings.network6 {
            masquerade("ip6", network.to_string());
        }
        let _ = writeln!(text, "\t}}");
    }
    let _ = writeln!(text, "}}");
    text
}

/// The commands that remove a table, whether or not it is there.
pub(super) fn removal(table: &str) -> String {
    format!("table inet {table} {{}}\ndelete table inet {table}\n")
}

/// Hands a ruleset to the kernel, all of it or nothing.
pub(super) fn load(rules: &str) -> Outcome<()> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Fault::environment(
                "the program nft is missing; install it: apt-get install nftables",
            ),
            _ => Fault::environment(format!("cannot start nft: {error}")),
        })?;
    if let Some(mut input) = child.stdin.take() {
        // A failure to write shows in nft's own exit status.
        let _ = input.write_all(rules.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(|error| Fault::environment(format!("cannot wait for nft: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let said: String = said.chars().take(MAX_QUOTED).collect();
    Err(Fault::environment(if said.contains("Operation not permitted") {
        "nft may not change the firewall; run it as root".to_owned()
    } else if said.contains("not supported") || said.contains("Protocol error") {
        format!("the kernel lacks nf_tables support for this: {said}; modprobe nf_tables nft_masq")
    } else {
        format!("nft refuses the rules: {said}")
    }))
}

/// What nft shows of the ruleset in JSON, or nothing when it cannot be asked.
pub(super) fn listing() -> Option<serde_json::Value> {
    let output = Command::new("nft")
        .args(["--json", "list", "ruleset"])
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .output()
        .ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// A chain of somebody else that forwards nothing unless a rule of its own says so. An `accept` in
/// our table does not overrule it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignDrop {
    /// Address family of the table.
    pub family: String,
    /// Table.
    pub table: String,
    /// Chain.
    pub chain: String,
}

impl ForeignDrop {
    /// The commands that let the tunnel through.
    pub fn remedy(&self, device: &str) -> Vec<String> {
        if self.table == "filter" && self.chain == "FORWARD" {
            let program = if self.family == "ip6" { "ip6tables" } else { "iptables" };
            return vec![
                format!("{program} -I FORWARD -i {device} -j ACCEPT"),
                format!("{program} -I FORWARD -o {device} -j ACCEPT"),
            ];
        }
        let Self { family, table, chain } = self;
        vec![
            format!("nft insert rule {family} {table} {chain} iifname {device} accept"),
            format!("nft insert rule {family} {table} {chain} oifname {device} accept"),
        ]
    }
}

/// Foreign chains on the forward hook with policy drop that have no rule for `device`.
pub(super) fn foreign_drops(listing: &serde_json::Value, device: &str) -> Vec<ForeignDrop> {
    let Some(objects) = listing.get("nftables").and_then(|list| list.as_array()) else {
        return Vec::new();
    };
    let text = |object: &serde_json::Value, key: &str| {
        object.get(key).and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    };
    let mentions = |drop: &ForeignDrop| {
        objects.iter().filter_map(|object| object.get("rule")).any(|rule| {
            text(rule, "family") == drop.family
                && text(rule, "table") == drop.table
                && text(rule, "chain") == drop.chain
                && rule.to_string().contains(&format!("\"{device}\""))
        })
    };
    objects
        .iter()
        .filter_map(|object| object.get("chain"))
        .filter(|chain| text(chain, "hook") == "forward" && text(chain, "policy") == "drop")
        .map(|chain| ForeignDrop {
            family: text(chain, "family"),
            table: text(chain, "table"),
            chain: text(chain, "name"),
        })
        .filter(|drop| !drop.table.starts_with("adit_") && !mentions(drop))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managed::places::Places;

    fn settings(text: &str) -> Settings {
        Settings::parse(text, &Places::new(None).unwrap().settings_file()).unwrap()
    }

    const DUAL: &str = "host = \"h\"\nnetwork = \"10.87.31.0/24\"\n\
        network6 = \"fd12:3456:789a::/64\"\n";

    #[test]
    fn the_ruleset_is_this() {
        let golden = include_str!("testdata/dual.nft");
        assert_eq!(ruleset("adit_server", &settings(DUAL)), golden);
        let open = "host = \"h\"\nnetwork = \"10.87.31.0/24\"\nnat = \"off\"\n\
            client-to-client = true\n";
        let golden = include_str!("testdata/open.nft");
        assert_eq!(ruleset("adit_server", &settings(open)), golden);
    }

    #[test]
    fn finds_who_drops_what_we_forward() {
        let listing = serde_json::json!({"nftables": [
            {"metainfo": {}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward",
                "policy": "drop"}},
            {"chain": {"family": "inet", "table": "mine", "name": "fwd", "hook": "forward",
                "policy": "drop"}},
            {"rule": {"family": "inet", "table": "mine", "chain": "fwd",
                "expr": [{"match": {"right": "adit0"}}]}},
            {"chain": {"family": "inet", "table": "other", "name": "in", "hook": "input",
                "policy": "drop"}},
            {"chain": {"family": "inet", "table": "adit_x", "name": "forward", "hook": "forward",
                "policy": "drop"}},
        ]});
        let drops = foreign_drops(&listing, "adit0");
        assert_eq!(drops.len(), 1);
        assert_eq!(drops[0].remedy("adit0")[0], "iptables -I FORWARD -i adit0 -j ACCEPT");
        assert_eq!(foreign_drops(&listing, "adit1").len(), 2);
        assert_eq!(foreign_drops(&serde_json::json!({}), "adit0").len(), 0);
    }
}
