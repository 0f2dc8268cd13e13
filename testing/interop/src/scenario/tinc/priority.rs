//! `PriorityInheritance`: the datagrams of a node have the type of service of the packets in them, whichever part of the daemon sends them.

use super::super::Scenario;
use super::SOON;
use super::bed::{Bed, Kind, Mode, NetSpec, NodeSpec, apart, inner, machine};
use super::nets::with_logs;
use crate::failure::{Result, ensure};
use crate::wait::until;

/// Expedited forwarding (RFC 3246), as `ping` takes it.
const EXPEDITED: &str = "184";

/// The number of packets of each kind.
const PACKETS: &str = "4";

/// A node, the relay that it connects to, and the node behind it.
const OWN: usize = 0;
const RELAY: usize = 1;
const FAR: usize = 2;

/// All hosts of a link: a packet that the main thread spreads, and the data plane seals.
const MULTICAST: &str = "224.0.0.1";

/// Packets straight to a neighbour, which the data plane seals; through a relay, which the main thread seals; and to all nodes. Over IPv4 and IPv6,
/// without the variable, and with frames.
pub(super) fn priority(scenario: &Scenario<'_>) -> Result<String> {
    let mut told = Vec::new();
    for (number, (inherits, outer_v6, mode)) in [
        (true, false, Mode::Router),
        (true, true, Mode::Router),
        (false, false, Mode::Router),
        (true, false, Mode::Switch),
    ]
    .into_iter()
    .enumerate()
    {
        let nodes = vec![
            NodeSpec::new("alice", Kind::Adit, &[RELAY]),
            NodeSpec::new("relay", Kind::Adit, &[FAR]),
            NodeSpec::new("zoe", Kind::Adit, &[]),
        ];
        let mut spec = NetSpec::new(nodes);
        spec.only_neighbours = true;
        spec.outer_v6 = outer_v6;
        spec.mode = mode;
        let word = if inherits { "yes" } else { "no" };
        spec.conf = format!("PriorityInheritance = {word}\n");
        let folder = scenario.folder().join(number.to_string());
        std::fs::create_dir(&folder)?;
        let own = Scenario { folder, ..*scenario };
        let Some(mut bed) = Bed::new(&own, &spec)? else { return Ok("skipped".to_owned()) };
        told.push(with_logs(&mut bed, |bed| count(bed, inherits, outer_v6))?);
    }
    Ok(told.join("; "))
}

fn count(bed: &mut Bed, inherits: bool, outer_v6: bool) -> Result<String> {
    let family = if outer_v6 { "ip6" } else { "ip" };
    let (from, to) = (machine(OWN), machine(RELAY));
    let counter = format!("iifname {from} oifname {to} meta l4proto udp {family} dscp ef counter");
    let rules: Vec<String> = std::iter::once(counter).chain(apart(OWN, FAR)).collect();
    bed.set_rules(&rules)?;
    bed.start_all()?;
    bed.wait_for_path(OWN, RELAY, "directly with UDP", false)?;
    bed.wait_for_path(OWN, FAR, "none, forwarded via relay", false)?;
    // From then on, the data plane has the session. Packets keep the search going.
    until("the path MTU", SOON, || {
        bed.wait_for_ping(OWN, RELAY, false)?;
        Ok(bed.count(OWN, "Fixing PMTU of relay") > 0)
    })?;
    ensure(expedited(bed)? == 0, || "plain packets are expedited".to_owned())?;
    let mut counts = Vec::new();
    for to in [inner(RELAY, false).to_string(), inner(FAR, false).to_string(), MULTICAST.to_owned()]
    {
        let before = expedited(bed)?;
        let words = ["-Q", EXPEDITED, "-c", PACKETS, "-i", "0.2", "-W", "1", "-I", "vpn", &to];
        let sent = bed.space(OWN)?.run("ping", &words);
        // Hosts do not answer pings to all.
        if to != MULTICAST {
            let told = sent?;
            ensure(told.contains(&format!(" {PACKETS} received")), || told)?;
        }
        let most = PACKETS.parse().unwrap_or(0);
        let expected = if inherits { most } else { 0 };
        let counted = expedited(bed)? - before;
        ensure(counted == expected, || {
            format!("{counted} datagrams with packets to {to} are expedited, and not {expected}")
        })?;
        counts.push(counted);
    }
    Ok(format!("{family}: {counts:?}"))
}

/// Returns the number of expedited datagrams to the relay.
fn expedited(bed: &Bed) -> Result<u64> {
    bed.counters("packets")?.first().copied().ok_or_else(|| "no counter".into())
}
