//! Tests of how `adit bridge` reacts to the state of its ports: it propagates a lost link, reports why tagged frames do not fit, and
//! switches its ports off when it is not running.

use nix::sys::signal::Signal;

use super::{
    BridgeSetup, LIMIT, MARK, Scenario, ScenarioFn, answers, experiments, frame, number, reach,
    tap_into,
};
use crate::failure::{Result, ensure};
use crate::net::{Namespace, ip};
use crate::process::Daemon;
use crate::wait::until;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("link-state", link_state),
    ("tags-beyond-the-mtu", tags_beyond_the_mtu),
    ("switched-off-at-the-end", switched_off_at_the_end),
];

fn link(host: &Namespace, line: &str) -> Result<()> {
    ip(Some(host), [format!("link set {line}")].into_iter())
}

/// Returns the output of `ip link` for an interface.
fn state(host: &Namespace, interface: &str) -> Result<String> {
    host.run("ip", &["link", "show", "dev", interface])
}

/// Waits until an interface has a link, or has lost it.
fn await_link(host: &Namespace, interface: &str, there: bool) -> Result<()> {
    until(&format!("the link of {interface}: {there}"), LIMIT, || {
        Ok(state(host, interface)?.contains("LOWER_UP") == there)
    })
}

fn link_state(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::with_cables(scenario)?;
    let mut bridge = place.start(&["mid0", "mid1", "--relay", "--link-state", "carry"])?;
    reach(&place.left, "10.5.0.2")?;
    for (near, far) in [(&place.left, &place.right), (&place.right, &place.left)] {
        link(near, "port down")?;
        await_link(far, "port", false)?;
        link(near, "port up")?;
        await_link(far, "port", true)?;
        reach(&place.left, "10.5.0.2")?;
    }
    bridge.wait_for("mid1: switched off: mid0 has no link", LIMIT)?;
    bridge.wait_for("mid0: switched on: mid1 has its link back", LIMIT)?;
    // An interface that was removed has no link either.
    ip(Some(&place.middle), ["link del mid1".to_owned()].into_iter())?;
    await_link(&place.left, "port", false)?;
    place.veth_pair("mid1", &place.right)?;
    let back = ["link set port up", "addr add 10.5.0.2/24 dev port"];
    ip(Some(&place.right), back.iter().map(|line| (*line).to_owned()))?;
    await_link(&place.left, "port", true)?;
    reach(&place.left, "10.5.0.2")?;
    // A port that was switched off is on again after the bridge has ended.
    link(&place.left, "port down")?;
    await_link(&place.right, "port", false)?;
    bridge.stop()?;
    await_link(&place.right, "port", true)?;
    Ok("both ways, across a port that vanished, and undone at the end".into())
}

fn tags_beyond_the_mtu(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::with_cables(scenario)?;
    let mut bridge = place.start(&["mid0", "mid1", "--relay"])?;
    for (host, line) in [(&place.left, "port mtu 1508"), (&place.middle, "mid0 mtu 1508")] {
        link(host, line)?;
    }
    let (left, right) = (tap_into(&place.left, "port")?, tap_into(&place.right, "port")?);
    let mut sent = frame(&[0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0x00, 0x07]);
    sent.resize(14 + 8 + 1500, 7);
    left.send(&[0; 10], &sent)?;
    bridge.wait_for("mid1: frames with VLAN tags dropped: too long for its MTU", LIMIT)?;
    let report = place.status()?;
    let dropped = number(&report, "/bridge/ports/0/drops/too-long-with-tags")?;
    ensure(dropped == 1, || format!("{dropped} frames were counted: {report}"))?;
    for (host, line) in [(&place.right, "port mtu 1508"), (&place.middle, "mid1 mtu 1508")] {
        link(host, line)?;
    }
    left.send(&[0; 10], &sent)?;
    let got = experiments(&right, 1, MARK)?;
    ensure(got.first() == Some(&sent), || format!("{} frames came out", got.len()))?;
    bridge.stop()?;
    Ok("counted, said, and passed with a larger MTU".into())
}

fn switched_off_at_the_end(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::with_cables(scenario)?;
    place.answer_in_the_middle()?;
    let file = scenario.folder().join("office.toml");
    std::fs::write(&file, "ports = [\"mid0\", \"mid1\"]\nrelay = true\n")?;
    let file = file.display().to_string();
    let start = || -> Result<Daemon> {
        let mut bridge = Daemon::spawn("bridge", place.command(&["--settings", &file])?)?;
        bridge.wait_for("the bridge is up", LIMIT)?;
        Ok(bridge)
    };
    let mut bridge = start()?;
    reach(&place.left, "10.5.0.2")?;
    bridge.signal(Signal::SIGKILL)?;
    bridge.wait_exit(LIMIT)?;
    // In that case, this is the service manager's task.
    place.middle.run(&place.adit()?, &["bridge", "--settings", &file, "--down"])?;
    for port in ["mid0", "mid1"] {
        let said = state(&place.middle, port)?;
        ensure(said.contains("state DOWN") && !said.contains(",UP"), || said.clone())?;
    }
    ensure(!answers(&place.left, "10.5.0.9"), || "the host answers".into())?;
    let mut bridge = start()?;
    reach(&place.left, "10.5.0.2")?;
    ensure(!answers(&place.left, "10.5.0.9"), || "the host answers past the bridge".into())?;
    bridge.stop()?;
    Ok("off after a kill, on again at the next start".into())
}
