//! Tests of `passtos`.

use super::Scenario;
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::traffic::tcp;

/// Expedited forwarding (RFC 3246), as `ping` takes it.
const EXPEDITED: &str = "184";

/// Counts the tunnel's datagrams that arrive with this type of service.
fn count_expedited(namespace: &Namespace) -> Result<()> {
    let rules = "add table inet tos; add chain inet tos in { type filter hook input priority 0; }; \
                 add rule inet tos in udp dport 1194 ip dscp ef counter; \
                 add rule inet tos in udp sport 1194 ip dscp ef counter";
    namespace.run("nft", &[rules]).map(drop)
}

/// Returns the number of these datagrams.
fn expedited(namespace: &Namespace) -> Result<u64> {
    let listed = namespace.run("nft", &["list", "chain", "inet", "tos", "in"])?;
    let counts = listed.split("counter packets ").skip(1);
    let counts = counts.filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(counts.sum())
}

fn ping(namespace: &Namespace, tos: &str, size: &str) -> Result<()> {
    let words = ["-Q", tos, "-c", "4", "-i", "0.2", "-W", "5", "-s", size, "10.88.0.1"];
    let told = namespace.run("ping", &words)?;
    ensure(told.contains(" 4 received"), || told)
}

/// With `passtos`, a packet's type of service is also that of its datagram, in both directions; other packets meanwhile
/// have their own. Without it, no datagram has one.
pub(super) fn copied(scenario: &Scenario<'_>) -> Result<String> {
    let mut seen = Vec::new();
    for lines in ["", "passtos"] {
        let mut configs = scenario.configs();
        configs.both(lines);
        let mut tunnel = scenario.tunnel(&configs)?;
        let pair = &tunnel.pair;
        count_expedited(&pair.server)?;
        count_expedited(&pair.client)?;
        ping(&pair.client, "0", "1000")?;
        let ends = [&pair.server, &pair.client];
        let counts = || ends.iter().map(|end| expedited(end)).collect::<Result<Vec<u64>>>();
        ensure(counts()? == [0, 0], || format!("{lines}: plain packets are expedited"))?;
        ping(&pair.client, EXPEDITED, "1000")?;
        let pings = counts()?;
        // openvpn gives its keepalives the type of service of the last packet.
        let expected = if lines.is_empty() { 0..=0 } else { 4..=6 };
        ensure(pings.iter().all(|count| expected.contains(count)), || {
            format!("{lines}: {pings:?} instead of {expected:?} datagrams in each direction")
        })?;
        // Trains of other packets.
        let server: std::net::IpAddr = "10.88.0.1".parse().context("an address")?;
        tcp(&pair.client, &pair.server, server, 2_000_000)?;
        let after = counts()?;
        ensure(pings.iter().zip(&after).all(|(before, after)| after - before <= 2), || {
            format!("{lines}: TCP is expedited: {pings:?}, then {after:?}")
        })?;
        ping(&pair.client, EXPEDITED, "1000")?;
        seen.push(counts()?);
        tunnel.client.stop()?;
        tunnel.server.stop()?;
    }
    Ok(format!("{seen:?}"))
}
