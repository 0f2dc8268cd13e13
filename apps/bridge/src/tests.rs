//! Tests a bridge in a separate network namespace. One of its workers fails.

use std::fs;

use adit_linux::netns::NetNs;
use adit_linux::packet::{FrameBatch, PacketSocket};
use adit_runtime::signals::Signals;
use adit_wire::checksum::Sum;

use super::*;

const RULES: &str = "table inet f {
    chain c {
        type filter hook forward priority 0; policy drop;
        udp dport 7 log
        udp dport { 7, 9 } accept
    }
}
";

const MARK: &[u8] = b"adit-bridge-test";

/// Returns a frame with a datagram to this port.
fn frame(port: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let length = u8::try_from(28 + MARK.len()).unwrap();
    let mut header = vec![0x45, 0, 0, length, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum = Sum::new().bytes(&header).finish();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend([0x10, 0, 0, port, 0, length - 20, 0, 0]);
    frame.extend(MARK);
    frame
}

/// The host's ends of both TAPs.
struct Ends {
    from: PacketSocket,
    to: PacketSocket,
}

impl Ends {
    async fn of(ports: &Ports) -> Self {
        let mut sockets = Vec::new();
        for side in Side::BOTH {
            let index = ports.link(side).await.unwrap().index;
            sockets.push(PacketSocket::open(index, 1).unwrap().remove(0));
        }
        let to = sockets.remove(1);
        Self { from: sockets.remove(0), to }
    }

    fn send(&self, port: u8) {
        self.from.send(&[0; 10], &frame(port)).unwrap();
    }

    /// Returns the number of the test's frames that have arrived so far.
    fn arrived(&self) -> usize {
        let mut batch = FrameBatch::new(16);
        let mut count = 0;
        while self.to.receive(&mut batch).is_ok_and(|frames| frames > 0) {
            for at in 0..batch.len() {
                let frame = batch.frame(at).unwrap();
                count += usize::from(frame.bytes.ends_with(MARK));
            }
        }
        count
    }
}

/// Creates a bridge between two TAPs with one worker, whose `log` statements call `on_log`.
async fn bridge(dir: &std::path::Path, on_log: fn()) -> (Running, Ends) {
    let file = dir.join("fw.nft");
    fs::write(&file, RULES).unwrap();
    let rules = Rules::open(file, 1).unwrap();
    rules.firewall().logs().on_record(on_log);
    let duty = BridgeDuty {
        ports: ["tap:a".into(), "tap:b".into()],
        rules: None,
        workers: 1,
        mtu: None,
        share_with_host: false,
        metrics: None,
        carry_link: false,
        control: dir.join("a-b.sock"),
    };
    let mut opener = Ports::new(&duty).unwrap();
    let ports = opener.open_both().await.unwrap();
    let ends = Ends::of(&opener).await;
    let bridge = Bridge::start(ports, &rules.policy(), 1, || Ok(())).unwrap();
    let running = Running::new(bridge, opener, Some(rules)).unwrap();
    (running, ends)
}

/// A worker that panics in the middle of a burst forwards no more packets. The process ends with a reason, so that the
/// service manager restarts it.
#[test]
fn a_worker_that_panics_ends_the_bridge_and_forwards_nothing_more() {
    adit_testbed::needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let ns = NetNs::unnamed().unwrap();
    let test = async || {
        let (mut running, ends) = bridge(dir.path(), || panic!("a fault of this test")).await;
        let limit = Duration::from_secs(60);
        let begun = std::time::Instant::now();
        let mut arrived = 0;
        while arrived == 0 && begun.elapsed() < limit {
            ends.send(9);
            tokio::time::sleep(Duration::from_millis(10)).await;
            arrived = ends.arrived();
        }
        assert!(arrived > 0, "the bridge forwards what the rules accept");
        assert!(running.check_workers().is_ok());
        ends.send(7);
        let mut controls =
            Controls { signals: Signals::none(), socket: None, notifier: None, metrics: None };
        let ended = instance::run(&mut running, &mut controls);
        let fault = tokio::time::timeout(limit, ended).await.expect("it ends").unwrap_err();
        assert_eq!(fault.to_string(), "worker 0: ended unexpectedly");
        assert_ne!(format!("{:?}", fault.exit_code()), format!("{:?}", ExitCode::SUCCESS));
        ends.arrived();
        for _ in 0..20 {
            ends.send(9);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(ends.arrived(), 0, "nothing passes without being evaluated");
    };
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    };
    ns.run(runtime).unwrap();
}
