//! 1,000,000 tracked flows fit in 256 MB: according to the table itself, and to the kernel for this
//! process, which runs nothing else.

use adit_filter::Nanos;
use adit_filter::conntrack::{Crossing, Limits, Tracker};
use adit_filter::packet::{Layer, Packet};
use adit_wire::VnetHeader;

const FLOWS: u64 = 1_000_000;
const MEGABYTE: u64 = 1_000_000;

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_million_flows_fit_in_256_mb() {
    let tracker = Tracker::new(
        Limits {
            flows: FLOWS as usize,
            unanswered_per_source: FLOWS as usize,
            ..Limits::default()
        },
        [3; 16],
    );
    let before = resident();
    let mut frame = datagram();
    let vouched =
        VnetHeader { needs_csum: true, csum_start: 40, csum_offset: 6, ..VnetHeader::default() };
    for run in 0..FLOWS / 1000 {
        let mut burst = tracker.burst(Nanos(run));
        for number in run * 1000..(run + 1) * 1000 {
            frame[16..24].copy_from_slice(&number.to_be_bytes());
            let packet = Packet::parse(&frame, Layer::Ip, None, &vouched).unwrap();
            let tracked = burst.look(&packet, Crossing::Nowhere.into());
            assert!(burst.confirm(&tracked, &packet));
        }
    }
    let (stats, taken) = (tracker.stats(), resident() - before);
    assert_eq!((stats.flows, stats.evicted), (FLOWS, 0));
    println!("table {} MB, process {} MB", stats.bytes / MEGABYTE, taken / MEGABYTE);
    assert!(stats.bytes < 256 * MEGABYTE, "the table says {} bytes", stats.bytes);
    assert!(taken < 256 * MEGABYTE, "the process grew by {taken} bytes");
}

/// Builds a datagram of IPv6 and UDP, which has the widest key.
fn datagram() -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
    bytes.extend([0xfd; 16]);
    bytes.extend([0xfc; 16]);
    bytes.extend([0x10, 0, 0, 53, 0, 8, 0, 0]);
    bytes
}
