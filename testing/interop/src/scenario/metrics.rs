//! The metrics of running programs, and the alert rules, as Prometheus's own tool and curl read them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{Scenario, ping_until};
use crate::case::SETUP_LIMIT;
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::{Daemon, run, run_with_input};
use crate::skip::skip;
use crate::wait::until;

/// The program that scripts/prometheus.sh unpacks.
const PROMTOOL: &str = "target/roots/prometheus/usr/bin/promtool";

const SOON: Duration = Duration::from_secs(10);

/// A server on a unix socket, and its client on a port.
pub(super) fn scrape(scenario: &Scenario<'_>) -> Result<String> {
    let Program::Adit(adit) = scenario.server else { return Err("adit serves here".into()) };
    if !Path::new(PROMTOOL).exists() {
        skip("metrics/scrape", "no promtool: scripts/prometheus.sh fetches it");
        return Ok("SKIPPED".into());
    }
    let (pair, folder) = (Pair::new()?, scenario.folder());
    let path = |name: &str| folder.join(name).display().to_string();
    let (adit, vpn, profile) = (adit.display().to_string(), path("vpn"), path("laptop.ovpn"));
    for line in [
        "server init --host 192.0.2.1 --network 10.88.0.0/24",
        &format!("server client add laptop -o {profile}"),
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--dir", &vpn]).collect();
        pair.server.run(&adit, &words)?;
    }
    let socket = path("server.metrics");
    let mut command = pair.server.command(&adit);
    command.args(["server", "run", "--dir", &vpn, "--metrics", &format!("unix:{socket}")]);
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for("the server is up", SETUP_LIMIT)?;
    let mut command = pair.client.command(&adit);
    command.args(["connect", &profile, "--dns", "off", "--dir", &path("run")]);
    command.args(["--metrics", "127.0.0.1:9190"]);
    let mut client = Daemon::spawn("client", command)?;
    client.wait_for("connected: 10.88.0.2", SETUP_LIMIT)?;
    ping_until(&pair.client, "10.88.0.1".parse().context("an address")?, SOON)?;

    let of_server = |accept: &str| {
        let request = ["-sS", "--fail", "--unix-socket", &socket, "-H", accept];
        pair.server.run("curl", &[&request[..], &["http://adit/metrics"]].concat())
    };
    let open = of_server("Accept: application/openmetrics-text")?;
    ensure(open.ends_with("# EOF\n"), || open.clone())?;
    until("the traffic of the client", SOON, || {
        let text = of_server("Accept: text/plain")?;
        check(&text)?;
        let packets = text.lines().find_map(|line| {
            line.strip_prefix("adit_peer_received_packets_total{peer=\"laptop\"} ")
        });
        Ok(packets.is_some_and(|packets| packets != "0"))
    })
    .map_err(|failure| server.failure(&failure.0))?;
    let request = ["-sS", "--fail", "-H", "Accept: text/plain", "http://127.0.0.1:9190/metrics"];
    let text = pair.client.run("curl", &request)?;
    check(&text)?;
    ensure(text.contains("adit_peers_connected{"), || client.failure(&text).0)?;

    run(PROMTOOL, &["check", "rules", "packaging/metrics/alerts.yml"])?;
    run(PROMTOOL, &["test", "rules", "packaging/metrics/alerts.test.yml"])?;
    check_dashboard(folder)?;
    Ok(String::new())
}

/// Lets promtool parse the dashboard's queries as rules, with values for Grafana's variables.
fn check_dashboard(folder: &Path) -> Result<()> {
    let dashboard = fs::read("packaging/metrics/dashboard.json")?;
    let dashboard: serde_json::Value =
        serde_json::from_slice(&dashboard).context("dashboard.json")?;
    let mut rules = Vec::new();
    for panel in dashboard["panels"].as_array().context("no panels")? {
        for target in panel["targets"].as_array().context("no targets")? {
            let query = target["expr"].as_str().context("no query")?;
            let query = query.replace("$instance", ".*").replace("$__rate_interval", "5m");
            let name = format!("panel:{}:{}", panel["id"], rules.len());
            rules.push(json!({"record": name, "expr": query}));
        }
    }
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    // A JSON document is one of YAML, too.
    let file = folder.join("dashboard.yml");
    fs::write(&file, rules.to_string())?;
    run(PROMTOOL, &["check", "rules", &file.display().to_string()]).map(drop)
}

/// Lets promtool check a text, if it is installed.
pub(super) fn check_if_possible(text: &str) -> Result<()> {
    if Path::new(PROMTOOL).exists() { check(text) } else { Ok(()) }
}

/// Lets promtool check a text.
fn check(text: &str) -> Result<()> {
    let mut command = Command::new(PROMTOOL);
    command.args(["check", "metrics"]);
    run_with_input(command, text).map(drop)
}
