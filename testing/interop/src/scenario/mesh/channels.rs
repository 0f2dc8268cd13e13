//! Tests of several data channels to one peer.

use std::net::SocketAddr;
use std::thread;

use super::super::{Scenario, ping_until};
use super::demo::cut;
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Failure, Result, ensure};
use crate::traffic::tcp_to_port;

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
