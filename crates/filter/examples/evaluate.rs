//! Measures the cost of evaluating one packet, by the number of rules and by the rule that decides; and compares the
//! compiled rules with the rules as written, for many packets.
//!
//!     cargo run --release -p adit-filter --features oracle --example evaluate
//!     cargo run --release -p adit-filter --features oracle --example evaluate -- compare 100000
//!     cargo run -p adit-filter --features oracle --example evaluate -- again differs.bin

use std::sync::Arc;
use std::time::Instant;

use adit_filter::oracle::{Coverage, compare};
use adit_filter::packet::{Layer, Packet};
use adit_filter::ruleset::{CtDirection, CtState};
use adit_filter::{Context, Evaluator, Filter, IfName, Nanos, VerdictCache, lang};
use adit_wire::VnetHeader;

#[path = "../../../testing/icount/src/rules.rs"]
mod rules;

use rules::{FOUR, many, random, udp};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("compare") => compared(arguments[2].parse().expect("a number of rule sets")),
        Some("again") => {
            let bytes = std::fs::read(&arguments[2]).expect("what differs left behind");
            compare(&bytes, &mut Coverage::default());
        }
        _ => measured(),
    }
}

fn compared(count: u64) {
    let mut seen = Coverage::default();
    let mut state = 0x2545_f491_4f6c_dd1d ^ u64::from(std::process::id()) << 32;
    for at in 0..count {
        let mut bytes = vec![0; random(&mut state) as usize % 3000];
        bytes.iter_mut().for_each(|byte| *byte = (random(&mut state) >> 24) as u8);
        if std::panic::catch_unwind(|| compare(&bytes, &mut Coverage::default())).is_err() {
            std::fs::write("differs.bin", &bytes).expect("differs.bin");
            panic!("differs in rule set {at}: see differs.bin");
        }
        compare(&bytes, &mut seen);
    }
    println!("{count} rule sets: {seen:?}");
}

const PACKETS: usize = 4096;

fn measured() {
    report("4 rules, ct", FOUR);
    report("4 rules", &many(4));
    report("100 rules", &many(100));
    report("10000 rules", &many(10_000));
}

/// Returns the network and port of the first rule of the form `ip saddr 10.1.2.0/24 udp dport 3 drop`, searching from
/// the middle of the text on if `part` is 2.
fn dropping(text: &str, part: usize) -> Option<(u32, u16)> {
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.len().checked_div(part).unwrap_or(0);
    lines[start..].iter().find_map(|line| {
        let (network, port) =
            line.trim().strip_prefix("ip saddr ")?.split_once(".0/24 udp dport ")?;
        let address: std::net::Ipv4Addr = format!("{network}.0").parse().ok()?;
        Some((address.to_bits(), port.strip_suffix(" drop")?.parse().ok()?))
    })
}

fn report(name: &str, text: &str) {
    let begun = Instant::now();
    let ruleset = lang::parse("bench", text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    let ruleset = ruleset.unwrap_or_else(|error| panic!("{error}"));
    let parsed = begun.elapsed();
    let begun = Instant::now();
    let filter = Arc::new(Filter::compile(ruleset).expect("compiles"));
    println!(
        "{name}: parsed in {parsed:.1?}, compiled in {:.1?}, {} KiB",
        begun.elapsed(),
        filter.size() >> 10
    );
    let mut state = 7;
    let mut any = || random(&mut state) as u32;
    let inside = |random: u32| 0x0a00_0000 | random & 0x00ff_ffff;
    let ten =
        (0..PACKETS).map(|_| udp(inside(any()), inside(any()), [4000, any() as u16])).collect();
    let accepted =
        (0..PACKETS).map(|_| udp(inside(any()), inside(any()), [any() as u16, 9])).collect();
    let far =
        (0..PACKETS).map(|_| udp(any() | 1 << 31, any() | 1 << 31, [4000, any() as u16])).collect();
    for (where_, part) in [("by the first of its kind", 0), ("by one in the middle", 2)] {
        if let Some((network, port)) = dropping(text, part) {
            let hit = (0..PACKETS).map(|_| udp(network | any() & 255, inside(any()), [4000, port]));
            measure(&filter, where_, hit.collect(), false);
        }
    }
    measure(&filter, "any of 10/8, any port", ten, false);
    measure(&filter, "accepted by the last", accepted, false);
    measure(&filter, "of no prefix", far, false);
    let one = (0..PACKETS).map(|_| udp(inside(5), inside(6), [7, 9])).collect();
    measure(&filter, "one flow, remembered", one, true);
}

fn measure(filter: &Arc<Filter>, name: &str, frames: Vec<Vec<u8>>, remembered: bool) {
    let vnet = VnetHeader::default();
    let parse = |frame| Packet::parse(frame, Layer::Ethernet, None, &vnet).expect("a packet");
    let packets: Vec<Packet<'_>> = frames.iter().map(|frame| parse(frame)).collect();
    let mut context = Context {
        now: Nanos(1),
        iif: IfName::new("eth1"),
        oif: IfName::new("eth2"),
        state: CtState::NEW,
        direction: CtDirection::Original,
        protocol: Some(17),
    };
    if remembered {
        context.state = CtState::ESTABLISHED;
    }
    let mut evaluator = Evaluator::new(filter.clone());
    let mut verdict_cache = VerdictCache::default();
    let (mut best, mut accepted) = (f64::MAX, 0);
    for _ in 0..40 {
        accepted = 0;
        let begun = Instant::now();
        for packet in &packets {
            let verdict_cache = remembered.then_some(&mut verdict_cache);
            let evaluation = evaluator.evaluate(packet, &context, verdict_cache, &mut ());
            accepted += u32::from(evaluation.verdict == adit_filter::Verdict::Accept);
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / PACKETS as f64);
        evaluator.flush();
    }
    println!("  {name:24} {best:7.1} ns  {accepted:5} accepted");
}
