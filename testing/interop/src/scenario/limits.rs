//! Tests of sessions that end without traffic, at their time limit, or because the peer is silent.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::Scenario;
use crate::failure::{Result, ensure};

/// This is longer than the limits below, even if the packets that a device sends when it comes up (router
/// solicitations) restart them.
const END: Duration = Duration::from_secs(45);

/// `inactive` is pushed by a server; pings of the tunnel itself do not count as traffic.
pub(super) fn pushed_inactive(scenario: &Scenario<'_>) -> Result<String> {
    ends_by_itself(scenario, "push \"inactive 3 2000\"")
}

/// `session-timeout` is pushed by a server; traffic in the tunnel has no effect on it.
pub(super) fn pushed_session_timeout(scenario: &Scenario<'_>) -> Result<String> {
    ends_by_itself(scenario, "push \"session-timeout 3\"")
}

fn ends_by_itself(scenario: &Scenario<'_>, line: &str) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server(line);
    let mut tunnel = scenario.tunnel(&configs)?;
    let status = tunnel.client.wait_exit(END)?;
    ensure(status.success(), || tunnel.client.failure(&format!("it ended by {status}")).0)?;
    ensure(tunnel.server.ended()?.is_none(), || tunnel.server.failure("it ended too").0)?;
    Ok(String::new())
}

/// A client with `ping-exit` ends when its server is silent, and does not reconnect.
pub(super) fn ping_exit(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.client("pull-filter ignore \"ping\"\nping 1\nping-exit 4");
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.server.signal(Signal::SIGKILL)?;
    let status = tunnel.client.wait_exit(END)?;
    ensure(status.success(), || tunnel.client.failure(&format!("it ended by {status}")).0)?;
    Ok(String::new())
}
