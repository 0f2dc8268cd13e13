use super::*;
use crate::netns::NetNs;

fn index(ns: &NetNs, name: &str) -> u32 {
    ns.configure(async |net| net.link(name).await).unwrap().unwrap().index
}

/// Waits briefly for a burst and receives it.
fn receive(socket: &PacketSocket, batch: &mut FrameBatch) -> usize {
    for _ in 0..200 {
        match socket.receive(batch) {
            Ok(count) => return count,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Err(e) => panic!("{e}"),
        }
    }
    0
}

/// Builds a frame between two invented addresses, with an EtherType for experiments.
fn frame(mark: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    bytes.resize(60, mark);
    bytes
}

#[test]
fn frames_of_others_arrive_whole_and_own_ones_are_not_seen() {
    adit_testbed::needs_root!();
    let (a, b) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    for ns in [&a, &b] {
        ns.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
    }
    a.connect("left", &b, "right").unwrap();
    for queues in [1, 3] {
        let left = a.run(|| PacketSocket::open(index(&a, "left"), 1)).unwrap().unwrap();
        let right = b.run(|| PacketSocket::open(index(&b, "right"), queues)).unwrap().unwrap();
        let mut tagged = frame(7);
        tagged.splice(12..12, [0x81, 0, 0x20, 5]);
        left[0].send(&[0; VNET_LEN], &frame(6)).unwrap();
        left[0].send(&[0; VNET_LEN], &tagged).unwrap();
        let mut batch = FrameBatch::new(16);
        let mut got = Vec::new();
        for socket in right.iter().cycle().take(100) {
            while got.len() < 2 && socket.receive(&mut batch).is_ok() {
                got.extend((0..batch.len()).map(|at| batch.frame(at).unwrap().bytes.to_vec()));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        got.sort();
        let mut sent = vec![frame(6), tagged];
        sent.sort();
        assert_eq!(got, sent, "{queues} sockets");
        let blocked = left[0].receive(&mut batch).unwrap_err();
        assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
    }
}

#[test]
fn a_burst_leaves_without_what_is_not_kept() {
    adit_testbed::needs_root!();
    let (a, b) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    for ns in [&a, &b] {
        ns.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
    }
    a.connect("left", &b, "right").unwrap();
    let left = a.run(|| PacketSocket::open(index(&a, "left"), 1)).unwrap().unwrap();
    let right = b.run(|| PacketSocket::open(index(&b, "right"), 1)).unwrap().unwrap();
    (0..5).for_each(|mark| left[0].send(&[0; VNET_LEN], &frame(mark)).unwrap());
    let (mut batch, mut back) = (FrameBatch::new(16), FrameBatch::new(16));
    assert_eq!(receive(&right[0], &mut batch), 5);
    for at in [0, 2, 4] {
        *batch.frame(at).unwrap().keep = true;
    }
    let (done, stopped) = batch.send_to_socket(&right[0], 1, 5);
    assert!(stopped.is_none(), "{stopped:?}");
    assert_eq!(done, 4);
    assert_eq!(receive(&left[0], &mut back), 2);
    let marks: Vec<u8> = (0..2).map(|at| back.frame(at).unwrap().bytes[14]).collect();
    assert_eq!(marks, [2, 4]);
}

#[test]
fn an_interface_that_is_switched_off_is_not_lost_and_one_that_is_removed_is() {
    adit_testbed::needs_root!();
    let (a, b) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    a.connect("left", &b, "right").unwrap();
    let left = index(&a, "left");
    let socket = a.run(|| PacketSocket::open(left, 1)).unwrap().unwrap().remove(0);
    let mut batch = FrameBatch::new(4);
    a.configure(async |net| net.set_down(left).await).unwrap().unwrap();
    let error = loop {
        match socket.receive(&mut batch) {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
    assert!(!socket.is_lost());
    a.configure(async |net| net.set_up(left).await).unwrap().unwrap();
    socket.send(&[0; VNET_LEN], &frame(1)).unwrap();
    a.configure(async |net| net.delete_link(left).await).unwrap().unwrap();
    assert!(socket.is_lost());
}

#[test]
fn the_guard_keeps_the_host_from_frames_that_the_socket_still_sees() {
    adit_testbed::needs_root!();
    let (a, b) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    a.connect("left", &b, "right").unwrap();
    for (ns, address) in [(&a, "192.0.2.1/24"), (&b, "192.0.2.2/24")] {
        let name = if ns.as_fd().as_raw_fd() == a.as_fd().as_raw_fd() { "left" } else { "right" };
        let out = ns.command("ip").unwrap().args(["addr", "add", address, "dev", name]).output();
        assert!(out.unwrap().status.success());
    }
    let answered = || {
        let mut ping = b.command("ping").unwrap();
        ping.args(["-c", "1", "-W", "1", "192.0.2.1"]).output().unwrap().status.success()
    };
    // On a busy machine, the first answer may take longer than the ping's timeout.
    let answered_in_time = || (0..20).any(|_| answered());
    assert!(answered_in_time(), "without a guard the host does not answer");
    let socket = a.run(|| PacketSocket::open(index(&a, "left"), 1)).unwrap().unwrap().remove(0);
    let mut guard = a.run(Guard::new).unwrap().unwrap();
    guard.add("left").unwrap();
    guard.add("left").unwrap();
    assert!(!answered(), "the guard lets the host answer");
    let mut batch = FrameBatch::new(16);
    assert!(receive(&socket, &mut batch) > 0, "the socket sees nothing");
    drop(guard);
    assert!(answered_in_time(), "the guard outlives its owner");
}

/// The kernel binds an ingress chain to an existing interface. If an interface is removed and created again, rules that
/// match its name keep its packets from the host until the bridge has added it again.
#[test]
fn the_guard_s_second_line_needs_no_interface() {
    adit_testbed::needs_root!();
    let (a, b) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    let mut guard = a.run(Guard::new).unwrap().unwrap();
    assert!(guard.take_gap().is_none());
    guard.add_by_name("left");
    assert!(guard.take_gap().is_none());
    let ip = |ns: &NetNs, line: &str| {
        let out = ns.command("ip").unwrap().args(line.split_whitespace()).output().unwrap();
        assert!(out.status.success(), "{out:?}");
    };
    a.connect("left", &b, "right").unwrap();
    a.connect("other", &b, "free").unwrap();
    for (ns, name, addresses) in [
        (&a, "left", ["192.0.2.1/24", "2001:db8::1/64"]),
        (&b, "right", ["192.0.2.2/24", "2001:db8::2/64"]),
        (&a, "other", ["198.51.100.1/24", "2001:db8:1::1/64"]),
        (&b, "free", ["198.51.100.2/24", "2001:db8:1::2/64"]),
    ] {
        addresses.iter().for_each(|address| {
            ip(ns, &format!("addr add {address} dev {name} nodad"));
        });
    }
    let answers = |to: &str| {
        let mut ping = b.command("ping").unwrap();
        ping.args(["-c", "1", "-W", "1", to]).output().unwrap().status.success()
    };
    // On a busy machine, the first answer may take longer than the ping's timeout.
    let answers_in_time = |to| (0..20).any(|_| answers(to));
    for other in ["198.51.100.1", "2001:db8:1::1"] {
        assert!(answers_in_time(other), "another interface");
    }
    assert!(!answers("192.0.2.1") && !answers("2001:db8::1"));
    let neighbours =
        b.command("ip").unwrap().args(["neigh", "show", "192.0.2.1"]).output().unwrap();
    let neighbours = String::from_utf8_lossy(&neighbours.stdout).into_owned();
    assert!(!neighbours.contains("lladdr"), "ARP is not answered either: {neighbours}");
    drop(guard);
    assert!(answers_in_time("192.0.2.1"));
}

#[test]
fn an_interface_that_is_back_is_guarded_again() {
    adit_testbed::needs_root!();
    let (a, b) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    let mut guard = a.run(Guard::new).unwrap().unwrap();
    for _ in 0..3 {
        a.connect("left", &b, "right").unwrap();
        guard.add("left").unwrap();
        let out = a.command("nft").unwrap().args(["list", "ruleset"]).output().unwrap();
        let rules = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(rules.matches("chain keep_from_host_left {").count(), 1, "{rules}");
        assert!(rules.contains("hook ingress device \"left\""), "{rules}");
        assert_eq!(rules.matches("iifname \"left\" drop").count(), 2, "{rules}");
        let left = index(&a, "left");
        a.configure(async |net| net.delete_link(left).await).unwrap().unwrap();
    }
}
