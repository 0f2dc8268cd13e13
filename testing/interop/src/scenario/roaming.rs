//! Tests of ends that move, crash, restart, or do not exist.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Scenario, ping_until};
use crate::case::{READY, SETUP_LIMIT, Tunnel, dial, serve};
use crate::failure::{Result, ensure};
use crate::net::{End, Pair, VETH};
use crate::traffic::tcp;

/// The client gets another address while a transfer pauses; the session continues.
pub(super) fn float(scenario: &Scenario<'_>) -> Result<String> {
    let tunnel = scenario.tunnel(&scenario.configs())?;
    tunnel.ping_all(4)?;
    tunnel.pair.move_client()?;
    let took = ping_until(&tunnel.pair.client, tunnel.server_inner.v4, Duration::from_secs(10))
        .map_err(|failure| format!("{failure}\n{}", tunnel.server.failure("after the move")))?;
    tunnel.ping_all(4)?;
    tcp(&tunnel.pair.server, &tunnel.pair.client, tunnel.client_inner.v4, 1_000_000)?;
    let handshakes = tunnel.client.count(READY);
    ensure(handshakes == 1, || tunnel.client.failure("began anew instead of floating").0)?;
    Ok(format!("went on after {} ms", took.as_millis()))
}

/// The client is killed and returns from another port.
pub(super) fn client_killed(scenario: &Scenario<'_>) -> Result<String> {
    let configs = scenario.configs();
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.client.signal(Signal::SIGKILL)?;
    tunnel.client.wait_exit(Duration::from_secs(5))?;
    tunnel.client = dial(&tunnel.pair, scenario.folder(), &configs, scenario.client)?;
    tunnel.client.wait_for(READY, SETUP_LIMIT)?;
    ping_until(&tunnel.pair.client, tunnel.server_inner.v4, Duration::from_secs(10))?;
    // The same certificate receives the same address again, or the next one; in both cases the server recognizes the
    // new session.
    let tcp_time =
        tcp(&tunnel.pair.client, &tunnel.pair.server, tunnel.server_inner.v4, 1_000_000)?;
    Ok(format!("1 MB in {} ms after the return", tcp_time.as_millis()))
}

/// The server is killed; the client notices the silence and dials again.
pub(super) fn server_killed(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server = configs.server.replace("keepalive 2 20", "keepalive 1 4");
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.server.signal(Signal::SIGKILL)?;
    tunnel.server.wait_exit(Duration::from_secs(5))?;
    back(scenario, tunnel, &configs)
}

/// The server ends in an orderly way and notifies its clients, which reconnect at once.
pub(super) fn server_exit_notice(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("explicit-exit-notify 1");
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.server.signal(Signal::SIGTERM)?;
    tunnel.server.wait_exit(Duration::from_secs(10))?;
    back(scenario, tunnel, &configs)
}

/// Starts the server again and waits until the client has reconnected on its own.
fn back(
    scenario: &Scenario<'_>,
    mut tunnel: Tunnel,
    configs: &crate::case::Configs,
) -> Result<String> {
    tunnel.server = serve(&tunnel.pair, scenario.folder(), configs, scenario.server)?;
    tunnel.server.wait_for(READY, SETUP_LIMIT)?;
    tunnel.client.wait_for_nth(READY, 2, SETUP_LIMIT)?;
    let took = ping_until(&tunnel.pair.client, tunnel.server_inner.v4, Duration::from_secs(10))?;
    tunnel.ping_all(4)?;
    Ok(format!("back, first answer after {} ms", took.as_millis()))
}

/// A server with two addresses answers from the first address to packets sent to the second; with `float` the client
/// accepts that.
pub(super) fn reply_from_another_address(scenario: &Scenario<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let (first, second) = (End::Server.outer(false).to_string(), "192.0.2.77");
    pair.server.run("ip", &["address", "add", &format!("{second}/24"), "dev", VETH])?;
    let mut configs = scenario.configs();
    let remote = |address: &str| format!("remote {address}");
    configs.client = configs.client.replace(&remote(&first), &remote(second));
    configs.client("float\nhand-window 10");
    let tunnel =
        Tunnel::start(pair, scenario.folder(), &configs, scenario.server, scenario.client)?;
    tunnel.ping_all(4)?;
    Ok(String::new())
}

/// The first `remote` does not answer; the second one does.
pub(super) fn second_remote(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.client = configs.client.replace(
        "remote 192.0.2.1 1194",
        "remote 192.0.2.1 9\nremote 192.0.2.1 1194\nserver-poll-timeout 3\nconnect-retry 1 2",
    );
    let tunnel =
        Tunnel::start(Pair::new()?, scenario.folder(), &configs, scenario.server, scenario.client)?;
    tunnel.ping_all(4)?;
    Ok(String::new())
}
