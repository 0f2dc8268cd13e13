//! A data plane in a process that may have only a few threads.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use adit_dataplane::{Offloads, PlaneConfig, Relay};
use adit_engine::{Instant, SocketId};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_openvpn_data::Plane;

/// Set in the limited process.
const CHILD: &str = "ADIT_TEST_LIMITED";

/// Starts a plane for four workers. Returns their actual number.
fn started() -> usize {
    let options = UdpOptions::new(([127, 0, 0, 1], 0).into());
    let sockets = UdpSocket::bind_group(&options, 4).unwrap();
    let config = PlaneConfig {
        tun: None,
        sockets: sockets.into_iter().map(|socket| (SocketId(1), Arc::new(socket))).collect(),
        relay: Relay::Kernel,
        gates: Offloads::ALL,
        client: false,
        ethernet: false,
    };
    let (plane, _upcalls) = Plane::start(config, || Instant::from_nanos(1)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    plane.workers()
}

/// Runs this test alone in a process of a separate user, which may have this many tasks.
fn limited(tasks: u32) -> usize {
    // Tasks of other users do not count, nor do those of another test.
    let user = (0x4000_0000 + std::process::id()).to_string();
    let output = Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "prlimit"])
        .arg(format!("--nproc={tasks}"))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "threads_that_cannot_be_started_are_done_without", "--test-threads=1"])
        .arg("--nocapture")
        .env(CHILD, "1")
        .output()
        .expect("the tests need setpriv and prlimit (util-linux), and root");
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, rest) = text.split_once("workers: ").unwrap_or_else(|| {
        panic!("{text}{}", String::from_utf8_lossy(&output.stderr));
    });
    rest.lines().next().unwrap().parse().unwrap()
}

#[test]
fn threads_that_cannot_be_started_are_done_without() {
    if std::env::var_os(CHILD).is_some() {
        println!("workers: {}", started());
        return;
    }
    adit_testbed::needs_root!();
    assert_eq!(started(), 4);
    assert_eq!(limited(100), 4);
    let few = limited(3);
    assert!((1..=2).contains(&few), "{few}");
}
