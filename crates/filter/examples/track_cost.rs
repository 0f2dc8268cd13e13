//! Measures the cost of a lookup in the connection table, by the number of flows:
//! `cargo run --release -p adit-filter --example track_cost`.
//!
//! `look` finds the flow of a datagram, with parsed headers and a verified checksum, in random order;
//! `hot` does the same for 64 flows of a full table; `new` enters a flow.

use std::time::Instant;

use adit_filter::Nanos;
use adit_filter::conntrack::{Burst, Crossing, Limits, Tracker};
use adit_filter::packet::{Layer, Packet};
use adit_wire::VnetHeader;

const BURST: u32 = 64;
const LOOKS: u32 = 2_000_000;

fn main() {
    println!(
        "| flows | look, ns | hot, ns | new, ns | bytes per flow |\n|---:|---:|---:|---:|---:|"
    );
    for flows in [1_000, 10_000, 100_000, 1_000_000] {
        let tracker = Tracker::new(
            Limits { flows: 1 << 20, unanswered_per_source: 1 << 20, ..Limits::default() },
            [9; 16],
        );
        let mut order = 1u32;
        let new = run(&tracker, flows, |number| number, true);
        let look = run(&tracker, LOOKS, |_| random(&mut order) % flows, false);
        let hot = run(&tracker, LOOKS, |number| number % 64 * (flows / 64), false);
        let stats = tracker.stats();
        assert_eq!(stats.flows, u64::from(flows));
        println!("| {flows} | {look:.0} | {hot:.0} | {new:.0} | {} |", stats.bytes / stats.flows);
    }
}

/// Returns the time per packet in nanoseconds, for `count` packets of the flows that `choose` selects.
fn run(tracker: &Tracker, count: u32, mut choose: impl FnMut(u32) -> u32, confirm: bool) -> f64 {
    let mut bytes = datagram();
    let vouched =
        VnetHeader { needs_csum: true, csum_start: 20, csum_offset: 6, ..VnetHeader::default() };
    let mut parsing = std::time::Duration::ZERO;
    let start = Instant::now();
    for first in (0..count).step_by(BURST as usize) {
        let mut burst = tracker.burst(Nanos(1));
        for number in first..count.min(first + BURST) {
            one(&mut bytes, &vouched, choose(number), Some((&mut burst, confirm)));
        }
    }
    let whole = start.elapsed();
    let start = Instant::now();
    for number in 0..count {
        one(&mut bytes, &vouched, choose(number), None);
    }
    parsing += start.elapsed();
    whole.saturating_sub(parsing).as_secs_f64() * 1e9 / f64::from(count)
}

fn one(bytes: &mut [u8], vouched: &VnetHeader, flow: u32, on: Option<(&mut Burst<'_>, bool)>) {
    // The header checksum remains valid: one half of the address gains what the other loses.
    bytes[20..22].copy_from_slice(&(flow as u16).to_be_bytes());
    bytes[13] = (flow >> 16) as u8;
    bytes[15] = !bytes[13];
    let packet = Packet::parse(std::hint::black_box(bytes), Layer::Ip, None, vouched).unwrap();
    let Some((burst, confirm)) = on else {
        std::hint::black_box(packet.segments());
        return;
    };
    let tracked = std::hint::black_box(burst.look(&packet, Crossing::Nowhere.into()));
    assert!(!confirm || burst.confirm(&tracked, &packet));
}

fn random(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

/// Builds a datagram from 10.x.2.(255-x) to 10.9.9.9, port 53.
fn datagram() -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 2, 255, 10, 9, 9, 9];
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([0x10, 0, 0, 53, 0, 8, 0, 0]);
    bytes
}
