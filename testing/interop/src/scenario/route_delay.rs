//! Tests of `route-delay`.

use std::fs;
use std::time::Duration;

use super::Scenario;
use crate::case::{Configs, READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Result, ensure};
use crate::file;
use crate::net::{Namespace, Pair};
use crate::wait::until;

/// The configured delay, in seconds.
const DELAY: u64 = 4;

/// Writes a program that records the time in nanoseconds and the routes. Returns its directive.
fn recording(scenario: &Scenario<'_>, option: &str) -> Result<String> {
    let path = scenario.folder().join(option);
    let out = scenario.folder().display();
    let text =
        format!("#!/bin/sh\ndate +%s%N > {out}/{option}.time\nip route > {out}/{option}.routes\n");
    file::write(&path, text, 0o755)?;
    Ok(format!("{option} {}", path.display()))
}

/// Returns the time at which a program ran, and the routes then.
fn recorded(scenario: &Scenario<'_>, option: &str) -> Result<(Duration, String)> {
    let read = |kind: &str| fs::read_to_string(scenario.folder().join(format!("{option}.{kind}")));
    let time: u64 = read("time")?.trim().parse().map_err(|_| format!("{option}: no time"))?;
    Ok((Duration::from_nanos(time), read("routes")?))
}

fn has_route(namespace: &Namespace) -> Result<bool> {
    Ok(namespace.run("ip", &["route"])?.contains("10.66.0.0/16"))
}

/// A client's routes, pushed and its own, come after the delay, and `route-up` after them.
pub(super) fn after_the_connection(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("push \"route 10.66.0.0 255.255.0.0\"");
    configs.client(&format!("script-security 2\nroute-delay {DELAY}\nroute 10.67.0.0 255.255.0.0"));
    for option in ["up", "route-up"] {
        configs.client(&recording(scenario, option)?);
    }
    let tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let (up, early) = recorded(scenario, "up")?;
    let (route_up, late) = recorded(scenario, "route-up")?;
    for network in ["10.66.0.0/16", "10.67.0.0/16"] {
        ensure(!early.contains(network), || format!("{network} was there at once: {early}"))?;
        ensure(late.contains(network), || format!("{network} is missing: {late}"))?;
    }
    let waited = route_up.saturating_sub(up);
    // openvpn counts whole seconds.
    ensure(waited >= Duration::from_secs(DELAY - 1), || {
        tunnel.client.failure(&format!("routes were added after {} ms", waited.as_millis())).0
    })?;
    Ok(format!("{} ms", waited.as_millis()))
}

/// An end whose addresses are configured adds its routes once the other end has answered.
pub(super) fn point_to_point(scenario: &Scenario<'_>) -> Result<String> {
    let key = scenario.env.pki.wrapping_key("static.key").display().to_string();
    let mut configs = Configs::default();
    configs.both("dev tun\nproto udp4\nverb 3\nping 1\nping-restart 20\ncipher AES-256-CBC");
    configs.server(&format!("ifconfig 10.88.0.1 10.88.0.2\nsecret {key} 0\nremote 192.0.2.2"));
    configs.client(&format!("ifconfig 10.88.0.2 10.88.0.1\nsecret {key} 1\nremote 192.0.2.1"));
    configs.client("route 10.66.0.0 255.255.0.0\nroute-delay 1\nscript-security 2");
    configs.client(&recording(scenario, "up")?);
    let pair = Pair::new()?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    let up = scenario.folder().join("up.routes");
    until("the device is open", SETUP_LIMIT, || Ok(up.exists()))
        .map_err(|f| client.failure(&f.0).0)?;
    // Longer than the delay.
    std::thread::sleep(Duration::from_secs(3));
    ensure(!has_route(&pair.client)?, || client.failure("a route without a connection").0)?;
    let _server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    until("the route is added", SETUP_LIMIT, || has_route(&pair.client))
        .map_err(|f| client.failure(&f.0).0)?;
    Ok(String::new())
}
