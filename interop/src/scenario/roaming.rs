//! Ends that move, crash, restart, or are not there.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Stage, ping_until};
use crate::cell::{READY, SETUP, Tunnel, dial, serve};
use crate::failure::{Result, ensure};
use crate::net::{CABLE, End, Pair};
use crate::traffic::tcp;

/// The client gets another address in the middle of a transfer's pause; the session goes on.
pub(super) fn float(stage: &Stage<'_>) -> Result<String> {
    let tunnel = stage.tunnel(&stage.configs())?;
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

/// The client dies without a word and comes back from another port.
pub(super) fn client_killed(stage: &Stage<'_>) -> Result<String> {
    let configs = stage.configs();
    let mut tunnel = stage.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.client.signal(Signal::SIGKILL)?;
    tunnel.client.wait_exit(Duration::from_secs(5))?;
    tunnel.client = dial(&tunnel.pair, stage.folder(), &configs, stage.client)?;
    tunnel.client.wait_for(READY, SETUP)?;
    ping_until(&tunnel.pair.client, tunnel.server_inner.v4, Duration::from_secs(10))?;
    // The same certificate gets the same address again, or the next one; either way the server knows the new session.
    let tcp_time =
        tcp(&tunnel.pair.client, &tunnel.pair.server, tunnel.server_inner.v4, 1_000_000)?;
    Ok(format!("1 MB in {} ms after the return", tcp_time.as_millis()))
}

/// The server dies without a word; the client notices by silence and dials again.
pub(super) fn server_killed(stage: &Stage<'_>) -> Result<String> {
    let mut configs = stage.configs();
    configs.server = configs.server.replace("keepalive 2 20", "keepalive 1 4");
    let mut tunnel = stage.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.server.signal(Signal::SIGKILL)?;
    tunnel.server.wait_exit(Duration::from_secs(5))?;
    back(stage, tunnel, &configs)
}

/// The server ends in order and tells its clients, which dial again at once.
pub(super) fn server_says_goodbye(stage: &Stage<'_>) -> Result<String> {
    let mut configs = stage.configs();
    configs.server("explicit-exit-notify 1");
    let mut tunnel = stage.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.server.signal(Signal::SIGTERM)?;
    tunnel.server.wait_exit(Duration::from_secs(10))?;
    back(stage, tunnel, &configs)
}

/// Starts the server again and waits until the client has come back by itself.
fn back(stage: &Stage<'_>, mut tunnel: Tunnel, configs: &crate::cell::Configs) -> Result<String> {
    tunnel.server = serve(&tunnel.pair, stage.folder(), configs, stage.server)?;
    tunnel.server.wait_for(READY, SETUP)?;
    tunnel.client.wait_for_nth(READY, 2, SETUP)?;
    let took = ping_until(&tunnel.pair.client, tunnel.server_inner.v4, Duration::from_secs(10))?;
    tunnel.ping_all(4)?;
    Ok(format!("back, first answer after {} ms", took.as_millis()))
}

/// A server with two addresses answers from the first what was sent to the second; with `float` the client
/// takes that.
pub(super) fn answer_from_elsewhere(stage: &Stage<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let (first, second) = (End::Server.outer(false).to_string(), "192.0.2.77");
    pair.server.run("ip", &["address", "add", &format!("{second}/24"), "dev", CABLE])?;
    let mut configs = stage.configs();
    let remote = |address: &str| format!("remote {address}");
    configs.client = configs.client.replace(&remote(&first), &remote(second));
    configs.client("float\nhand-window 10");
    let tunnel = Tunnel::start(pair, stage.folder(), &configs, stage.server, stage.client)?;
    tunnel.ping_all(4)?;
    Ok(String::new())
}

/// No one answers at the first `remote`; the second one does.
pub(super) fn second_remote(stage: &Stage<'_>) -> Result<String> {
    let mut configs = stage.configs();
    configs.client = configs.client.replace(
        "remote 192.0.2.1 1194",
        "remote 192.0.2.1 9\nremote 192.0.2.1 1194\nserver-poll-timeout 3\nconnect-retry 1 2",
    );
    let tunnel = Tunnel::start(Pair::new()?, stage.folder(), &configs, stage.server, stage.client)?;
    tunnel.ping_all(4)?;
    Ok(String::new())
}
