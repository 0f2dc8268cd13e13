//! Tests of data packet formats: CBC for old peers, and the epochs of 2.7.

use std::time::Duration;

use super::Scenario;
use crate::case::{Tunnel, rekeys};
use crate::failure::{Result, ensure};
use crate::traffic::tcp;
use crate::wait::ScaledInstant;

const SOON: Duration = Duration::from_secs(5);
const BYTES: usize = 3_000_000;

/// Checks that both ends report this cipher and that all traffic passes in both directions, before
/// a rekey and afterwards.
fn carries(mut tunnel: Tunnel, cipher: &str) -> Result<String> {
    for daemon in [&mut tunnel.server, &mut tunnel.client] {
        // 2.5 writes "Cipher".
        daemon.wait_for(&format!("ipher '{cipher}'"), SOON)?;
    }
    traffic(&tunnel)?;
    let end = ScaledInstant::now() + Duration::from_secs(40);
    while rekeys(&tunnel.server).min(rekeys(&tunnel.client)) < 2 {
        ensure(ScaledInstant::now() < end, || {
            let client = tunnel.client.failure("meanwhile");
            format!("{}\n{client}", tunnel.server.failure("too few rekeys"))
        })?;
        std::thread::sleep(Duration::from_millis(100));
    }
    traffic(&tunnel)?;
    Ok(format!("{cipher}, {} rekeys", rekeys(&tunnel.server)))
}

fn traffic(tunnel: &Tunnel) -> Result<()> {
    let Tunnel { pair, server_inner, client_inner, .. } = tunnel;
    tunnel.ping_all(4)?;
    tcp(&pair.client, &pair.server, server_inner.v4, BYTES)?;
    tcp(&pair.server, &pair.client, client_inner.v4, BYTES).map(|_| ())
}

const REKEY: &str = "reneg-sec 5\nhand-window 4";

/// `data-ciphers` names only CBC.
pub(super) fn cbc_by_name(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.both("data-ciphers AES-256-CBC\nauth SHA512");
    configs.server(REKEY);
    carries(scenario.tunnel(&configs)?, "AES-256-CBC")
}

/// The key lengths and digests that differ.
pub(super) fn cbc_with_defaults(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    // Without `auth` the digest is SHA1.
    configs.both("data-ciphers AES-128-CBC");
    configs.client(REKEY);
    carries(scenario.tunnel(&configs)?, "AES-128-CBC")
}

/// Packets are authenticated but not encrypted.
pub(super) fn no_encryption(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.both("data-ciphers none\nauth SHA256");
    traffic(&scenario.tunnel(&configs)?)?;
    Ok(String::new())
}

/// `cipher` alone enables nothing, so the ends negotiate an AEAD.
pub(super) fn cipher_alone(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.both("cipher AES-256-CBC");
    configs.server(REKEY);
    carries(scenario.tunnel(&configs)?, "AES-256-GCM")
}

/// An old peer without negotiation, and the fallback for it. The `cipher` of the end that is not
/// adit is in its options string.
pub(super) fn fallback(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let old = "ncp-disable\ncipher AES-256-CBC";
    let new = "data-ciphers-fallback AES-256-CBC";
    let server_is_old = scenario.server.label() == "bullseye";
    let (at_server, at_client) = if server_is_old { (old, new) } else { (new, old) };
    configs.server(at_server);
    configs.client(at_client);
    configs.both("auth SHA256");
    configs.server(REKEY);
    carries(scenario.tunnel(&configs)?, "AES-256-CBC")
}

/// An old peer's CBC is among `data-ciphers`, so no fallback is needed.
pub(super) fn poor_mans_negotiation(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let old = "ncp-disable\ncipher AES-192-CBC";
    let new = "data-ciphers AES-256-GCM:AES-192-CBC";
    let server_is_old = scenario.server.label() == "bullseye";
    let (at_server, at_client) = if server_is_old { (old, new) } else { (new, old) };
    configs.server(at_server);
    configs.client(at_client);
    configs.server(REKEY);
    carries(scenario.tunnel(&configs)?, "AES-192-CBC")
}

/// The packet format of 2.7, which the server announces in its options.
pub(super) fn epochs(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.both("data-ciphers CHACHA20-POLY1305:AES-256-GCM");
    configs.client(REKEY);
    let mut tunnel = scenario.tunnel(&configs)?;
    // 2.6 does not support it, as a run with --control shows.
    if [scenario.server, scenario.client].iter().all(|program| program.label() != "openvpn") {
        tunnel.client.wait_for("aead-epoch", SOON)?;
    }
    carries(tunnel, "CHACHA20-POLY1305")
}
