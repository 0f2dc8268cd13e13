//! The server's own nft table. It isolates clients from each other and masquerades their traffic.
//!
//! Each instance has one `inet` table, replaced in a single transaction and removed at the end. Other tables are never changed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ipnet::IpNet;
use serde_json::Value;

use super::settings::Listen;
use super::settings::{Nat, Settings};
use adit_runtime::fault::Fault;

/// The maximum length of nft's output in a message.
const MAX_QUOTED: usize = 400;

/// Returns the name of an instance's table.
pub(super) fn table_name(instance: &str) -> String {
    format!("adit_{instance}")
}

/// Returns the ruleset that replaces the table, for `nft -f -`. `behind` are the networks behind clients.
pub(super) fn ruleset(table: &str, settings: &Settings, behind: &[IpNet]) -> String {
    let device = &settings.device;
    let with_sites = |own: String, ipv6: bool| {
        let sites = behind.iter().filter(|net| net.addr().is_ipv6() == ipv6);
        let all: Vec<String> = std::iter::once(own).chain(sites.map(ToString::to_string)).collect();
        if all.len() == 1 { all.concat() } else { format!("{{ {} }}", all.join(", ")) }
    };
    let inside4 = with_sites(settings.network.to_string(), false);
    let inside6 = settings.network6.map(|network| with_sites(network.to_string(), true));
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
        "\t\tiifname \"{device}\" ip saddr != {inside4} counter drop \
         comment \"not a client's address\""
    );
    match &inside6 {
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
        let mut masquerade = |family: &str, network: &str| {
            let _ = writeln!(
                text,
                "\t\t{family} saddr {network} oifname != \"{device}\" counter masquerade"
            );
        };
        masquerade("ip", &inside4);
        if let Some(network) = &inside6 {
            masquerade("ip6", network);
        }
        let _ = writeln!(text, "\t}}");
    }
    let _ = writeln!(text, "}}");
    text
}

/// Returns the commands that remove a table, whether or not it exists.
pub(super) fn removal(table: &str) -> String {
    format!("table inet {table} {{}}\ndelete table inet {table}\n")
}

/// The directories with nft and the programs that it starts. The caller's `PATH` is never used.
const PROGRAMS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Returns a command for a program with its absolute path, without the caller's environment and directory.
fn program(name: &str) -> Command {
    let paths = PROGRAMS.map(|folder| Path::new(folder).join(name));
    let found = paths.iter().find(|path| path.exists()).or(paths.first());
    let mut command = Command::new(found.map_or(Path::new(name), PathBuf::as_path));
    command.env_clear().env("PATH", PROGRAMS.join(":")).env("LC_ALL", "C").current_dir("/");
    command
}

/// Loads a ruleset into the kernel, either all of it or nothing.
pub(super) fn load(rules: &str) -> Result<(), Fault> {
    let mut child = program("nft")
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
        // If writing fails, nft's exit status shows it.
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

/// Reads the ruleset as JSON from nft; `None` if nft cannot be run.
pub(super) fn listing() -> Option<Value> {
    let output = program("nft")
        .args(["--json", "list", "ruleset"])
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .output()
        .ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// Another program's chain that drops packets which none of its rules accepts. An `accept` in our table does not override it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignDrop {
    family: String,
    table: String,
    chain: String,
    /// Whether ufw created the chain. If so, the remedy must use ufw.
    ufw: bool,
}

impl std::fmt::Display for ForeignDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.chain)
    }
}

impl ForeignDrop {
    /// Returns the commands that accept the tunnel's packets.
    pub(super) fn let_device(&self, device: &str) -> Vec<String> {
        if self.is_firewalld() {
            return vec![format!("firewall-cmd --zone=trusted --add-interface={device}")];
        }
        if self.ufw {
            return vec![
                format!("ufw route allow in on {device}"),
                format!("ufw route allow out on {device}"),
            ];
        }
        let rule = |direction: &str| match self.iptables() {
            Some(program) => {
                format!("{program} -I {} -{direction} {device} -j ACCEPT", self.chain)
            }
            None => format!("nft insert rule {self} {direction}ifname {device} accept"),
        };
        vec![rule("i"), rule("o")]
    }

    /// Returns the command that accepts clients' packets.
    pub(super) fn let_port(&self, listen: Listen) -> Vec<String> {
        let (protocol, port) = (listen.protocol(), listen.port);
        vec![match self.iptables() {
            _ if self.is_firewalld() => format!("firewall-cmd --add-port={port}/{protocol}"),
            _ if self.ufw => format!("ufw allow {port}/{protocol}"),
            Some(program) => {
                format!("{program} -I {} -p {protocol} --dport {port} -j ACCEPT", self.chain)
            }
            None => format!("nft insert rule {self} {protocol} dport {port} accept"),
        }]
    }

    /// Returns whether firewalld created the chain. It replaces rules that are added without it.
    fn is_firewalld(&self) -> bool {
        self.table == "firewalld"
    }

    /// Returns the program that manages chains with this name. It would not notice rules added without it.
    fn iptables(&self) -> Option<&'static str> {
        let theirs = self.table == "filter" && matches!(&*self.chain, "FORWARD" | "INPUT");
        match &*self.family {
            "ip" if theirs => Some("iptables"),
            "ip6" if theirs => Some("ip6tables"),
            _ => None,
        }
    }
}

/// Returns foreign chains that drop forwarded packets, in tables without a rule for `device`.
pub(super) fn drops_forwarded(listing: &Value, device: &str) -> Vec<ForeignDrop> {
    let named = format!("\"{device}\"");
    foreign_drops(listing, "forward", |rule| rule.to_string().contains(&named))
}

/// Returns foreign chains that drop incoming packets, in tables without a rule for the port.
pub(super) fn drops_port(listing: &Value, listen: Listen) -> Vec<ForeignDrop> {
    let protocol = format!("\"{}\"", listen.protocol());
    let other = if listen.protocol() == "udp" { "\"tcp\"" } else { "\"udp\"" };
    foreign_drops(listing, "input", |rule| {
        let text = rule.to_string();
        // nft shows old matches of iptables without their contents, so assume that they are relevant.
        let opaque = [protocol.as_str(), "\"multiport\""].iter().any(|name| text.contains(name))
            && text.contains("\"xt\"");
        let port = text.contains("\"dport\"") && has_number(rule, u64::from(listen.port));
        // A rule for the other protocol alone does not accept packets of this one.
        let others = text.contains(other) && !text.contains(&protocol);
        opaque || (port && !others)
    })
}

/// Returns whether a value contains a number, directly or within a range.
fn has_number(value: &Value, wanted: u64) -> bool {
    match value {
        Value::Number(number) => number.as_u64() == Some(wanted),
        Value::Array(items) => items.iter().any(|item| has_number(item, wanted)),
        Value::Object(fields) => {
            let range = fields.get("range").and_then(Value::as_array);
            let bounds =
                range.and_then(|ends| Some((ends.first()?.as_u64()?, ends.get(1)?.as_u64()?)));
            bounds.is_some_and(|(from, to)| (from..=to).contains(&wanted))
                || fields.values().any(|field| has_number(field, wanted))
        }
        _ => false,
    }
}

/// Returns whether a rule drops every packet that reaches it, as the last one of firewalld's chains does.
fn drops_the_rest(rule: &Value) -> bool {
    let expressions = rule.get("expr").and_then(Value::as_array);
    let is = |names: &[&str], one: &Value| names.iter().any(|name| one.get(name).is_some());
    expressions.is_some_and(|all| {
        all.last().is_some_and(|last| is(&["drop", "reject"], last))
            && all.iter().all(|one| is(&["drop", "reject", "counter", "log", "limit"], one))
    })
}

fn foreign_drops(
    listing: &Value,
    hook: &str,
    lets_through: impl Fn(&Value) -> bool,
) -> Vec<ForeignDrop> {
    let Some(objects) = listing.get("nftables").and_then(Value::as_array) else {
        return Vec::new();
    };
    let text = |object: &Value, key: &str| {
        object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let of = |kind: &'static str| objects.iter().filter_map(move |object| object.get(kind));
    let same_table = |object: &Value, drop: &ForeignDrop| {
        text(object, "family") == drop.family && text(object, "table") == drop.table
    };
    of("chain")
        .filter(|chain| text(chain, "hook") == hook)
        .filter(|chain| {
            let mut rules = of("rule").filter(|rule| {
                [("family", "family"), ("table", "table"), ("chain", "name")]
                    .iter()
                    .all(|(of_rule, of_chain)| text(rule, of_rule) == text(chain, of_chain))
            });
            text(chain, "policy") == "drop" || rules.next_back().is_some_and(drops_the_rest)
        })
        .map(|chain| ForeignDrop {
            family: text(chain, "family"),
            table: text(chain, "table"),
            chain: text(chain, "name"),
            ufw: false,
        })
        .filter(|drop| !drop.table.starts_with("adit_") && !drop.table.starts_with("adit-"))
        .filter(|drop| !of("rule").any(|rule| same_table(rule, drop) && lets_through(rule)))
        .map(|drop| {
            let ufw = of("chain")
                .any(|chain| same_table(chain, &drop) && text(chain, "name").starts_with("ufw"));
            ForeignDrop { ufw, ..drop }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_runtime::paths::Paths;

    fn settings(text: &str) -> Settings {
        Settings::parse(text, &Paths::new(None).unwrap().settings_file()).unwrap()
    }

    const DUAL: &str = "host = \"h\"\nnetwork = \"10.87.31.0/24\"\n\
        network6 = \"fd12:3456:789a::/64\"\n";

    #[test]
    fn programs_are_started_by_their_path_and_without_the_callers_environment() {
        let output = program("env").output().unwrap();
        let mut names: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').collect();
        names.sort();
        assert_eq!(names, [&b""[..], b"LC_ALL=C", b"PATH=/usr/sbin:/sbin:/usr/bin:/bin"]);
        assert!(program("nft").get_program().to_string_lossy().starts_with('/'));
        assert!(program("not there").output().is_err());
    }

    #[test]
    fn the_ruleset_is_this() {
        let golden = include_str!("testdata/dual.nft");
        assert_eq!(ruleset("adit_server", &settings(DUAL), &[]), golden);
        let open = "host = \"h\"\nnetwork = \"10.87.31.0/24\"\nnat = \"off\"\n\
            client-to-client = true\n";
        let golden = include_str!("testdata/open.nft");
        assert_eq!(ruleset("adit_server", &settings(open), &[]), golden);
        let behind = ["192.168.1.0/24", "fd50::/64"].map(|net| net.parse().unwrap());
        let rules = ruleset("adit_server", &settings(DUAL), &behind);
        for line in [
            "ip saddr != { 10.87.31.0/24, 192.168.1.0/24 } counter drop",
            "ip6 saddr != { fd12:3456:789a::/64, fd50::/64 } counter drop",
            "ip saddr { 10.87.31.0/24, 192.168.1.0/24 } oifname != \"adit0\" counter masquerade",
        ] {
            assert!(rules.contains(line), "{line} is missing: {rules}");
        }
    }

    fn chain(family: &str, table: &str, name: &str, hook: &str) -> Value {
        serde_json::json!({"chain": {"family": family, "table": table, "name": name,
            "hook": hook, "policy": "drop"}})
    }

    fn listing(objects: &[Value]) -> Value {
        serde_json::json!({"nftables": objects})
    }

    #[test]
    fn finds_who_drops_what_we_forward() {
        let listing = listing(&[
            chain("ip", "filter", "FORWARD", "forward"),
            chain("inet", "mine", "passing", "forward"),
            // A rule anywhere in the table counts, because the chain may jump to it.
            serde_json::json!({"rule": {"family": "inet", "table": "mine", "chain": "user",
                "expr": [{"match": {"right": "adit0"}}]}}),
            chain("inet", "other", "in", "input"),
            chain("inet", "adit_x", "forward", "forward"),
        ]);
        let drops = drops_forwarded(&listing, "adit0");
        assert_eq!(drops.len(), 1);
        assert_eq!(
            drops[0].let_device("adit0"),
            ["iptables -I FORWARD -i adit0 -j ACCEPT", "iptables -I FORWARD -o adit0 -j ACCEPT"]
        );
        let drops = drops_forwarded(&listing, "adit1");
        assert_eq!(drops.len(), 2);
        assert_eq!(
            drops[1].let_device("adit1")[0],
            "nft insert rule inet mine passing iifname adit1 accept"
        );
        assert_eq!(drops_forwarded(&serde_json::json!({}), "adit0").len(), 0);
    }

    #[test]
    fn finds_firewalld_which_rejects_with_its_last_rule() {
        let mut forward = chain("inet", "firewalld", "filter_FORWARD", "forward");
        forward["chain"]["policy"] = "accept".into();
        let rule = |expressions: Value| {
            serde_json::json!({"rule": {"family": "inet", "table": "firewalld",
                "chain": "filter_FORWARD", "expr": expressions}})
        };
        let answer =
            rule(serde_json::json!([{"match": {"right": ["established"]}}, {"accept": null}]));
        let invalid = rule(serde_json::json!([{"match": {"right": "invalid"}}, {"drop": null}]));
        let rest = rule(serde_json::json!([{"counter": {}}, {"reject": {"type": "icmpx"}}]));
        let found = |rules: &[&Value]| {
            let all = [&forward].into_iter().chain(rules.iter().copied()).cloned();
            drops_forwarded(&listing(&all.collect::<Vec<_>>()), "mesh-home")
        };
        let drops = found(&[&answer, &invalid, &rest]);
        assert_eq!(
            drops[0].let_device("mesh-home"),
            ["firewall-cmd --zone=trusted --add-interface=mesh-home"]
        );
        assert_eq!(drops[0].let_port(Listen::udp(1194)), ["firewall-cmd --add-port=1194/udp"]);
        assert_eq!(found(&[&answer, &invalid]), [], "a rule with a condition");
        let ours = rule(serde_json::json!([{"match": {"right": "mesh-home"}}, {"accept": null}]));
        assert_eq!(found(&[&ours, &rest]), []);
    }

    /// Runs the real nft to check that the remedies are commands that work and have the expected effect.
    #[test]
    fn the_remedies_can_be_typed_as_they_are() {
        adit_testbed::needs_root!();
        let ns = adit_linux::netns::NetNs::unnamed().unwrap();
        ns.run(|| {
            load(
                "table inet mine {
                    chain passing { type filter hook forward priority 0; policy drop; }
                    chain incoming {
                        type filter hook input priority 0; policy drop;
                        udp dport 53 accept
                    }
                }",
            )
            .unwrap();
            let list = || super::listing().unwrap();
            let mut remedies = drops_forwarded(&list(), "adit0")[0].let_device("adit0");
            remedies.extend(drops_port(&list(), Listen::udp(1194))[0].let_port(Listen::udp(1194)));
            assert_eq!(remedies.len(), 3);
            for remedy in remedies {
                let mut words = remedy.split(' ');
                let mut command = Command::new(words.next().unwrap());
                assert!(command.args(words).status().unwrap().success(), "{remedy}");
            }
            assert_eq!(drops_forwarded(&list(), "adit0"), []);
            assert_eq!(drops_port(&list(), Listen::udp(1194)), []);
        })
        .unwrap();
    }

    #[test]
    fn finds_who_drops_what_comes_in() {
        let input = chain("ip", "filter", "INPUT", "input");
        let rule = |expression: Value| {
            serde_json::json!({"rule": {"family": "ip", "table": "filter", "chain": "INPUT",
                "expr": [expression]}})
        };
        let dport = |right: Value| {
            let left = serde_json::json!({"payload": {"protocol": "udp", "field": "dport"}});
            rule(serde_json::json!({"match": {"left": left, "right": right}}))
        };
        let drops = |rule: Value| drops_port(&listing(&[input.clone(), rule]), Listen::udp(1194));
        let found = drops(dport(serde_json::json!(53)));
        assert_eq!(
            found[0].let_port(Listen::udp(1194)),
            ["iptables -I INPUT -p udp --dport 1194 -j ACCEPT"]
        );
        for lets in [
            serde_json::json!(1194),
            serde_json::json!({"set": [53, 1194]}),
            serde_json::json!({"range": [1000, 2000]}),
        ] {
            assert_eq!(drops(dport(lets.clone())), [], "{lets}");
        }
        let opaque = serde_json::json!({"xt": {"type": "match", "name": "udp"}});
        assert_eq!(drops(rule(opaque)), []);
        let ufw = serde_json::json!({"chain": {"family": "ip", "table": "filter",
            "name": "ufw-user-input"}});
        assert_eq!(drops(ufw)[0].let_port(Listen::udp(1194)), ["ufw allow 1194/udp"]);
    }
}
