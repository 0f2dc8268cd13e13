//! Tests of `adit bridge --routed`, with two networks and a host between them that routes.

use super::{BridgeSetup, LIMIT, Scenario, ScenarioFn, answers, bulk_to, number, reach};
use crate::failure::{Result, ensure};
use crate::net::{Namespace, ip};

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] =
    &[("routed-taps", taps), ("routed-cables", cables)];

/// Connections from the left side may pass, with all their packets; pings from the right may not.
const RULES: &str = "\
table inet fw {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        iifname \"LEFT\" oifname \"RIGHT\" accept
    }
}
";

/// Sets addresses and default routes of the hosts: 10.5.1.2 on the left and 10.5.2.2 on the right, through .1.
fn address(place: &BridgeSetup<'_>, left: &str, right: &str) -> Result<()> {
    for (host, port, net) in [(&place.left, left, 1), (&place.right, right, 2)] {
        let lines = [
            format!("link set {port} up"),
            format!("addr add 10.5.{net}.2/24 dev {port}"),
            format!("addr add fd05:{net}::2/64 dev {port} nodad"),
            format!("route add default via 10.5.{net}.1"),
            format!("route add default via fd05:{net}::1"),
        ];
        ip(Some(host), lines.into_iter())?;
    }
    Ok(())
}

fn arguments(left: &str, right: &str) -> Vec<String> {
    let of = |port: &str, net| {
        let own = [format!("{port}=10.5.{net}.1/24"), format!("{port}=fd05:{net}::1/64")];
        own.into_iter().flat_map(|own| ["--address".to_owned(), own])
    };
    std::iter::once("--routed".to_owned()).chain(of(left, 1)).chain(of(right, 2)).collect()
}

/// Returns the output of ping when no answer arrives.
fn ping_output(from: &Namespace, arguments: &[&str]) -> String {
    let fixed = ["-c", "1", "-W", "5"];
    let all = [&fixed[..], arguments].concat();
    // It prints the error message that it received, and fails.
    let mut command = from.command("ping");
    let said = command.args(all).output();
    said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default()
}

fn expect_icmp_error(from: &Namespace, arguments: &[&str], by: &str, words: &str) -> Result<()> {
    let said = ping_output(from, arguments);
    ensure(said.contains(by) && said.contains(words), || {
        format!("ping {arguments:?} was not told {words:?} by {by}:\n{said}")
    })
}

fn everything(place: &BridgeSetup<'_>) -> Result<u64> {
    for (from, near, far) in [(&place.left, 1, 2), (&place.right, 2, 1)] {
        // The router's own addresses, of both sides.
        for net in [near, far] {
            reach(from, &format!("10.5.{net}.1"))?;
            reach(from, &format!("fd05:{net}::1"))?;
        }
    }
    for to in ["10.5.2.2", "fd05:2::2"] {
        reach(&place.left, to)?;
        let large = ping_output(&place.left, &["-s", "3000", to]);
        ensure(large.contains(" 1 received"), || format!("pieces do not pass:\n{large}"))?;
    }
    for to in ["10.5.1.2", "fd05:1::2"] {
        ensure(!answers(&place.right, to), || format!("{to} is reached against the rules"))?;
    }
    bulk_to(place, "10.5.2.2", 7070)?;
    bulk_to(place, "fd05:2::2", 7071)?;
    expect_icmp_error(
        &place.left,
        &["-t", "1", "10.5.2.2"],
        "From 10.5.1.1",
        "Time to live exceeded",
    )?;
    expect_icmp_error(&place.left, &["-t", "1", "fd05:2::2"], "From fd05:1::1", "Hop limit")?;
    expect_icmp_error(
        &place.left,
        &["10.5.2.77"],
        "From 10.5.1.1",
        "Destination Host Unreachable",
    )?;
    expect_icmp_error(&place.left, &["fd05:2::77"], "From fd05:1::1", "Address unreachable")?;
    expect_icmp_error(&place.left, &["192.0.2.1"], "From 10.5.1.1", "Destination Net Unreachable")?;
    expect_icmp_error(&place.left, &["2001:db8::1"], "From fd05:1::1", "No route")?;
    let report = place.status()?;
    for reason in ["hops-exhausted", "host-unreachable", "no-route", "rules"] {
        ensure(number(&report, &format!("/drops/{reason}")).is_ok_and(|count| count > 0), || {
            format!("no drops for {reason}: {report}")
        })?;
    }
    number(&report, "/bridge/ports/0/large")
}

fn start(
    place: &BridgeSetup<'_>,
    ports: [&str; 2],
    names: [&str; 2],
) -> Result<crate::process::Daemon> {
    let file = place.scenario.folder().join("routed.nft");
    let [left, right] = names;
    std::fs::write(&file, RULES.replace("LEFT", left).replace("RIGHT", right))?;
    let name = file.display().to_string();
    let more = arguments(left, right);
    let mut all = vec![ports[0], ports[1], "--rules", &name];
    all.extend(more.iter().map(String::as_str));
    place.start(&all)
}

fn taps(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::new(scenario)?;
    let names = ["private", "public"];
    let mut bridge = start(&place, ["tap:private", "tap:public"], names)?;
    let moves = [(&place.left, "private"), (&place.right, "public")]
        .map(|(to, tap)| format!("link set {tap} netns {}", to.name()));
    ip(Some(&place.middle), moves.into_iter())?;
    address(&place, "private", "public")?;
    let large = everything(&place)?;
    ensure(large > 0, || "no super-packet passed whole".into())?;
    bridge.stop()?;
    Ok(format!("{large} super-packets whole"))
}

fn cables(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::new(scenario)?;
    place.veth_pair("mid0", &place.left)?;
    place.veth_pair("mid1", &place.right)?;
    place.middle.handle()?.set_sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
    address(&place, "port", "port")?;
    let mut bridge = start(&place, ["mid0", "mid1"], ["mid0", "mid1"])?;
    let large = everything(&place)?;
    bridge.wait_for("the bridge is up", LIMIT)?;
    bridge.stop()?;
    Ok(format!("{large} super-packets whole"))
}
