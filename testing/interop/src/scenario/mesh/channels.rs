//! Tests of several data channels to one peer.

use std::net::SocketAddr;
use std::thread;

use super::super::{Scenario, ping_until};
use super::demo::cut;
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Failure, Result, ensure};
use crate::net::Namespace;
use crate::process::run_with_input;
use crate::traffic::tcp_to_port;
use crate::wait::until;

/// The number of parallel streams. With a probability of 1 in 32,768, all of them take the same one of two channels.
const STREAMS: u16 = 16;

/// The number of bytes in each stream.
const BYTES: usize = 64 << 10;

/// Two machines with two workers use two channels to each other, both directly and through a relay that has one channel to each.
pub(super) fn channels(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::PortRestricted, Nat::PortRestricted])?;
    bed.machines[0].set("workers = 2\nchannels = 1\n")?;
    for at in [1, 2] {
        bed.machines[at].set("workers = 2\n")?;
    }
    bed.join_all()?;
    let address = bed.ipv4(2)?;
    ping_until(&bed.machines[1].space, address, LIMIT)?;
    bed.wait_for_route(1, 2, "direct")?;
    bed.wait_for_route(2, 1, "direct")?;
    ensure(received(&bed, 1, 0)?.len() == 1, || "the hub offers one channel".into())?;
    transfer(&bed).context("directly")?;
    let explained = bed.machines[1].mesh(&["path", &bed.machines[2].name])?;
    ensure(explained.contains("channels     0: "), || explained.clone())?;

    cut(&bed.boxes[0])?;
    let gap = ping_until(&bed.machines[1].space, address, LIMIT)?;
    bed.wait_for_route(1, 2, "relay")?;
    bed.wait_for_route(2, 1, "relay")?;
    transfer(&bed).context("through the relay")?;
    Ok(format!("both channels, through the relay {} ms after a cut", gap.as_millis()))
}

/// Two machines that reach each other's port send each channel from its own port. If a firewall at one of them lets only the first port
/// pass, the other one returns to that port, and no session ends.
pub(super) fn channel_ports(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    bed.machines[0].set("workers = 2\nchannels = 1\n")?;
    for at in [1, 2] {
        bed.machines[at].set("workers = 2\n")?;
    }
    bed.join_all()?;
    let address = bed.ipv4(2)?;
    ping_until(&bed.machines[1].space, address, LIMIT)?;
    bed.wait_for_route(1, 2, "direct")?;
    for at in [1, 2] {
        count_ports(&bed.machines[at].space)?;
    }
    for at in [1, 2] {
        wait_for_ports(&bed, at, 2).context("with both ports open")?;
    }
    let connected = bed.peer(1, 2)?["connected_s"].as_u64().context("no session")?;

    let firewall = "add rule inet ports input udp dport 1194 udp sport != 1194 drop";
    nft(&bed.machines[2].space, firewall)?;
    let gap = ping_until(&bed.machines[1].space, address, LIMIT)?;
    wait_for_ports(&bed, 2, 1).context("with one port open")?;
    wait_for_ports(&bed, 1, 2).context("in the direction without a firewall")?;
    let after = bed.peer(1, 2)?["connected_s"].as_u64().context("no session")?;
    ensure(after >= connected, || "the session began again".into())?;
    let route = bed.route(1, 2)?;
    ensure(route == "direct", || format!("the route is {route}"))?;
    Ok(format!("two ports, then one; an answer {} ms after the firewall", gap.as_millis()))
}

/// Transfers bytes until data from this many ports of the other machine arrives at a machine.
fn wait_for_ports(bed: &MeshTestbed, at: usize, count: usize) -> Result<()> {
    until(&format!("{count} ports send to machine {at}"), LIMIT, || {
        bed.machines[at].space.run("nft", &["flush", "set", "inet", "ports", "seen"])?;
        transfer(bed)?;
        Ok(seen_ports(bed, at)? == count)
    })
}

/// Records the senders of data. Probes and pings are shorter.
fn count_ports(space: &Namespace) -> Result<()> {
    nft(
        space,
        "table inet ports {
            set seen { type ipv4_addr . inet_service; flags dynamic; size 1024; }
            chain input {
                type filter hook input priority filter;
                udp dport 1194 meta length > 90 add @seen { ip saddr . udp sport }
            }
        }",
    )
}

fn nft(space: &Namespace, rules: &str) -> Result<()> {
    let mut command = space.command("nft");
    command.args(["-f", "-"]);
    run_with_input(command, rules).map(drop)
}

/// Returns the number of ports of the other machine that were recorded at one of the two, 11.0.0.2 and 11.0.0.3.
fn seen_ports(bed: &MeshTestbed, at: usize) -> Result<usize> {
    let listed = bed.machines[at].space.run("nft", &["list", "set", "inet", "ports", "seen"])?;
    let other = if at == 1 { "11.0.0.3 . " } else { "11.0.0.2 . " };
    Ok(listed.matches(other).count())
}

/// Transfers bytes in parallel streams, and checks that both channels carry them.
fn transfer(bed: &MeshTestbed) -> Result<()> {
    let before = [received(bed, 1, 2)?, received(bed, 2, 1)?];
    let (from, to, address) = (&bed.machines[1].space, &bed.machines[2].space, bed.ipv4(2)?);
    thread::scope(|scope| {
        let stream = |port| {
            let target = SocketAddr::new(address, port);
            scope.spawn(move || tcp_to_port(from, to, target, BYTES))
        };
        let streams: Vec<_> = (0..STREAMS).map(|number| stream(5200 + number)).collect();
        streams.into_iter().try_for_each(|stream| {
            stream.join().map_err(|_| Failure::from("a thread panicked"))?.map(drop)
        })
    })?;
    let after = [received(bed, 1, 2)?, received(bed, 2, 1)?];
    let grown = |at: usize| -> Vec<u64> {
        let pairs = before[at].iter().zip(&after[at]);
        pairs.map(|(before, after)| after.saturating_sub(*before)).collect()
    };
    // Acknowledgements at the sender, at least one stream at the receiver.
    for (at, least) in [(0, 200), (1, BYTES as u64)] {
        let grown = grown(at);
        ensure(grown.len() == 2 && grown.iter().all(|bytes| *bytes >= least), || {
            format!("the channels received {grown:?} bytes, of at least {least} each")
        })?;
    }
    let all = grown(1).iter().sum::<u64>();
    ensure(all >= u64::from(STREAMS) * BYTES as u64, || format!("the sum is {all}"))
}

/// Returns the bytes that a member has received from another one on each channel.
fn received(bed: &MeshTestbed, at: usize, from: usize) -> Result<Vec<u64>> {
    let peer = bed.peer(at, from)?;
    let channels = peer["channels"].as_array().context("no channels")?;
    let bytes = channels.iter().map(|channel| channel["received_bytes"].as_u64());
    bytes.collect::<Option<_>>().context("no counter")
}
