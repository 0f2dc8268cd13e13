use super::*;
use crate::net::Address;
use crate::netns::NetNs;
use crate::poll::{Events, Interest, Poller};
use crate::udp::{RecvBatch, SendScratch, Train, UdpOptions, UdpSocket};
use std::time::{Duration, Instant};

/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
const GSO_UDP_L4: u8 = 5;

/// Creates a device in a namespace, brings it up with 10.9.0.1/24, and binds a socket to that address.
fn device(ns: &NetNs, options: &TunOptions) -> (TunDevice, UdpSocket) {
    // The kernel itself must not send any packets in between (router solicitations, MLD).
    ns.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
    let device = ns.run(|| TunDevice::open(options)).unwrap().unwrap();
    ns.configure(async |net| {
        let link = net.link(&device.name).await?;
        assert_eq!(link.index, device.ifindex);
        net.set_up(link.index).await?;
        net.add_address(&Address::new(link.index, "10.9.0.1/24".parse().unwrap())).await
    })
    .unwrap()
    .unwrap();
    let socket = ns.run(|| UdpSocket::bind(&UdpOptions::new("10.9.0.1:0".parse().unwrap())));
    (device, socket.unwrap().unwrap())
}

/// Opens a device as soon as no other process has it open. A program started by another test has copies of this
/// process's descriptors until it calls `exec`.
fn open_when_free(ns: &NetNs, options: &TunOptions) -> TunDevice {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match ns.run(|| TunDevice::open(options)).unwrap() {
            Err(TunError::Busy(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            device => return device.unwrap(),
        }
    }
}

/// Closes a device and waits until the kernel has removed it, for the same reason.
fn remove(ns: &NetNs, device: TunDevice) {
    let (name, index) = (device.name.clone(), device.ifindex);
    drop(device);
    let deadline = Instant::now() + Duration::from_secs(30);
    while ns.configure(async |net| net.link_by_index(index).await).unwrap().is_ok() {
        assert!(Instant::now() < deadline, "{name} still exists");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn train(payload: &[u8]) -> Train<'_> {
    Train { to: "10.9.0.2:9".parse().unwrap(), from: None, segment: 1000, tos: None, payload }
}

fn wait(fd: &impl AsFd) {
    let (poller, mut events) = (Poller::new().unwrap(), Events::new());
    poller.add(fd, 0, Interest::READ).unwrap();
    assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(5))).unwrap(), 1);
}

/// Reads all packets; returns their headers and lengths, and the bytes of the last one.
fn drain(queue: &TunQueue) -> (Vec<([u8; VNET_LEN], usize)>, Vec<u8>) {
    let (mut packets, mut last) = (Vec::new(), Vec::new());
    let (mut vnet, mut buffer) = ([0; VNET_LEN], vec![0; 1 << 16]);
    loop {
        match queue.read(&mut vnet, &mut buffer) {
            Ok(len) => {
                packets.push((vnet, len));
                last = buffer[..len].to_vec();
            }
            Err(e) => {
                assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
                return (packets, last);
            }
        }
    }
}

#[test]
fn a_super_packet_goes_out_and_comes_back_whole() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let options = TunOptions { name: Some("adit0".into()), ..TunOptions::default() };
    let (device, socket) = device(&ns, &options);
    assert_eq!((device.name.as_str(), device.offloads), ("adit0", TunOffloads::ALL));
    let queue = &device.queues[0];
    let payload: Vec<u8> = (0..20_500u32).map(|i| i as u8).collect();
    socket.send_trains(&[train(&payload)], &mut SendScratch::default()).unwrap();
    wait(queue);
    let (packets, mut packet) = drain(queue);
    let [(vnet, len)] = packets[..] else { panic!("{packets:?}") };
    assert_eq!((vnet[1], len), (GSO_UDP_L4, 28 + payload.len()));
    // Swapping source and destination leaves all checksums valid.
    let (source, destination) = (packet[12..16].to_vec(), packet[16..20].to_vec());
    packet[12..20].copy_from_slice(&[destination, source].concat());
    let (source, destination) = (packet[20..22].to_vec(), packet[22..24].to_vec());
    packet[20..24].copy_from_slice(&[destination, source].concat());
    let (head, tail) = packet.split_at(28);
    let parts = [IoSlice::new(&vnet), IoSlice::new(head), IoSlice::new(tail)];
    assert_eq!(queue.write(&parts).unwrap(), VNET_LEN + len);
    wait(&socket);
    let mut batch = RecvBatch::new(2);
    assert_eq!(socket.recv_burst(&mut batch).unwrap(), 1);
    let got = batch.datagrams_mut().next().unwrap();
    assert_eq!((got.segment, got.remote), (1000, "10.9.0.2:9".parse().unwrap()));
    assert_eq!(got.data, payload);
}

#[test]
fn a_tap_hands_out_super_packets_as_frames_and_takes_them_back() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let options = TunOptions { mode: TunMode::Tap, ..TunOptions::default() };
    let (device, socket) = device(&ns, &options);
    assert_eq!(device.offloads, TunOffloads::ALL);
    let queue = &device.queues[0];
    let mac = queue.mac().unwrap();
    let neighbour = [2, 0, 0, 0, 0, 2];
    let payload: Vec<u8> = (0..20_500u32).map(|i| i as u8).collect();
    socket.send_trains(&[train(&payload)], &mut SendScratch::default()).unwrap();
    // The kernel resolves the neighbour first.
    wait(queue);
    let (asked, question) = drain(queue);
    assert_eq!(asked, [([0; VNET_LEN], 42)]);
    assert_eq!(question[..14], [&[0xff; 6][..], &mac, &[8, 6]].concat());
    let answer = [
        &mac[..],
        &neighbour,
        &[8, 6],
        &question[14..21],
        &[2],
        &neighbour,
        &[10, 9, 0, 2],
        &question[22..32],
    ]
    .concat();
    queue.write(&[IoSlice::new(&[0; VNET_LEN]), IoSlice::new(&answer)]).unwrap();
    wait(queue);
    let (packets, mut frame) = drain(queue);
    let [(vnet, len)] = packets[..] else { panic!("{packets:?}") };
    assert_eq!((vnet[1], len), (GSO_UDP_L4, 14 + 28 + payload.len()));
    assert_eq!(u16::from_ne_bytes([vnet[6], vnet[7]]), 14 + 20, "counted from the frame's start");
    assert_eq!(frame[..14], [&neighbour[..], &mac, &[8, 0]].concat());
    // Swapping source and destination leaves all checksums valid.
    frame[..6].copy_from_slice(&mac);
    frame[6..12].copy_from_slice(&neighbour);
    let addresses = [&frame[30..34], &frame[26..30]].concat();
    frame[26..34].copy_from_slice(&addresses);
    let ports = [&frame[36..38], &frame[34..36]].concat();
    frame[34..38].copy_from_slice(&ports);
    let (head, tail) = frame.split_at(42);
    let parts = [IoSlice::new(&vnet), IoSlice::new(head), IoSlice::new(tail)];
    assert_eq!(queue.write(&parts).unwrap(), VNET_LEN + len);
    wait(&socket);
    let mut batch = RecvBatch::new(2);
    assert_eq!(socket.recv_burst(&mut batch).unwrap(), 1);
    let got = batch.datagrams_mut().next().unwrap();
    assert_eq!((got.segment, got.remote), (1000, "10.9.0.2:9".parse().unwrap()));
    assert_eq!(got.data, payload);
}

#[test]
fn without_offloads_every_packet_comes_singly_and_finished() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let wanted = TunOptions { offloads: TunOffloads::NONE, ..TunOptions::default() };
    let (device, socket) = device(&ns, &wanted);
    assert_eq!(device.offloads, TunOffloads::NONE);
    socket.send_trains(&[train(&[7; 2500])], &mut SendScratch::default()).unwrap();
    wait(&device.queues[0]);
    let (packets, _) = drain(&device.queues[0]);
    assert_eq!(packets, [([0; 10], 1028), ([0; 10], 1028), ([0; 10], 528)]);
}

#[test]
fn offloads_can_be_switched_while_running() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let (device, socket) = device(&ns, &TunOptions::default());
    let queue = &device.queues[0];
    for (offloads, packets) in [
        (TunOffloads { uso: false, ..TunOffloads::ALL }, 3),
        (TunOffloads::ALL, 1),
        (TunOffloads::NONE, 3),
    ] {
        queue.set_offloads(offloads).unwrap();
        socket.send_trains(&[train(&[7; 2500])], &mut SendScratch::default()).unwrap();
        wait(queue);
        assert_eq!(drain(queue).0.len(), packets, "{offloads:?}");
    }
}

#[test]
fn a_bad_header_is_refused_and_the_queue_lives_on() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let (device, _socket) = device(&ns, &TunOptions::default());
    let queue = &device.queues[0];
    let bad = [0, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0];
    let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    let refused = queue.write(&[IoSlice::new(&bad), IoSlice::new(&packet)]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    let good = [0; VNET_LEN];
    assert_eq!(queue.write(&[IoSlice::new(&good), IoSlice::new(&packet)]).unwrap(), 30);
    // Shorter than a header.
    assert!(queue.write(&[IoSlice::new(&good[..4])]).is_err());
}

#[test]
fn several_queues_and_frames() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let options = TunOptions { queues: 3, mode: TunMode::Tap, ..TunOptions::default() };
    let device = ns.run(|| TunDevice::open(&options)).unwrap().unwrap();
    assert_eq!((device.queues.len(), device.name.as_str()), (3, "tap0"));
    let link = ns.configure(async |net| net.link("tap0").await).unwrap().unwrap();
    assert_eq!(link.mac, Some(device.queues[0].mac().unwrap()));
    let other = [2, 0, 0, 0, 0, 0x99];
    ns.configure(async |net| net.set_mac(link.index, other).await).unwrap().unwrap();
    assert_eq!(device.queues[2].mac().unwrap(), other);
    remove(&ns, device);
}

/// The offload mask belongs to the device, and attaching a queue must not have reset it.
#[test]
fn offloads_hold_with_several_queues() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let (device, socket) = device(&ns, &TunOptions { queues: 4, ..TunOptions::default() });
    assert_eq!((device.queues.len(), device.offloads), (4, TunOffloads::ALL));
    let (poller, mut events) = (Poller::new().unwrap(), Events::new());
    for (token, queue) in (0..).zip(&device.queues) {
        poller.add(queue, token, Interest::READ).unwrap();
    }
    let read = |events: &Events| {
        let event = events.iter().next().unwrap();
        drain(&device.queues[event.token as usize]).0
    };
    socket.send_trains(&[train(&[7; 20_500])], &mut SendScratch::default()).unwrap();
    assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(5))).unwrap(), 1);
    assert_eq!(read(&events), [([1, GSO_UDP_L4, 28, 0, 0xe8, 3, 20, 0, 6, 0], 20_528)]);
    // A change by any queue applies to all.
    device.queues[3].set_offloads(TunOffloads::NONE).unwrap();
    socket.send_trains(&[train(&[7; 2500])], &mut SendScratch::default()).unwrap();
    assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(5))).unwrap(), 1);
    assert_eq!(read(&events), [([0; 10], 1028), ([0; 10], 1028), ([0; 10], 528)]);
}

/// Like `openvpn --mktun` and `ip tuntap add`: a single-queue device that exists while no process uses it.
#[test]
fn a_device_made_before_is_taken_with_the_queues_it_has() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let open = |queues| {
        let options = TunOptions { name: Some("kept0".into()), queues, ..TunOptions::default() };
        open_when_free(&ns, &options)
    };
    for (made_with, wanted, got) in [(1, 3, 1), (3, 1, 1), (2, 3, 3)] {
        let made = open(made_with);
        persist(&made.queues[0], true);
        drop(made);
        let device = open(wanted);
        assert_eq!(device.queues.len(), got, "made with {made_with}, {wanted} wanted");
        assert_eq!(device.offloads, TunOffloads::ALL);
        persist(&device.queues[0], false);
    }
}

/// Sends bulk packets of one flow, followed by a few packets of each of the others; returns the flow numbers in the
/// order in which they are read. Bulk is 0.
fn order(device: &TunDevice, flows: &[UdpSocket]) -> Vec<u16> {
    let (bulk, little) = flows.split_first().unwrap();
    for _ in 0..20 {
        bulk.send_trains(&[train(&[7; 60_000])], &mut SendScratch::default()).unwrap();
    }
    for flow in little {
        flow.send_trains(&[train(&[7; 100])], &mut SendScratch::default()).unwrap();
    }
    let ports: Vec<u16> = flows.iter().map(|flow| flow.local_addr().port()).collect();
    let (mut vnet, mut buffer) = ([0; VNET_LEN], vec![0; 1 << 16]);
    wait(&device.queues[0]);
    let mut order = Vec::new();
    while device.queues[0].read(&mut vnet, &mut buffer).is_ok() {
        let port = u16::from_be_bytes([buffer[20], buffer[21]]);
        order.push(ports.iter().position(|of| *of == port).unwrap() as u16);
    }
    order
}

/// Creates many flows from one host.
fn flows(ns: &NetNs) -> Vec<UdpSocket> {
    let open = || UdpSocket::bind(&UdpOptions::new("10.9.0.1:0".parse().unwrap())).unwrap();
    ns.run(|| (0..16).map(|_| open()).collect()).unwrap()
}

#[test]
fn a_flow_with_little_to_say_does_not_wait_behind_one_with_much() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let (device, _socket) = device(&ns, &TunOptions { flow_queues: 16, ..TunOptions::default() });
    assert_eq!((device.queues.len(), device.queues[0].flow_queues()), (1, 16));
    assert_eq!(device.offloads, TunOffloads::ALL);
    let flows = flows(&ns);
    let before = early(&order(&device, &flows));
    assert!(!before.is_empty(), "that all share a lane with the bulk is as good as impossible");
    // Replies through the device do not move all flows into one queue.
    let queue = &device.queues[0];
    for flow in &flows {
        let [high, low] = flow.local_addr().port().to_be_bytes();
        let mut packet =
            [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1].to_vec();
        packet.extend([0, 9, high, low, 0, 8, 0, 0]);
        let plain = [0; VNET_LEN];
        assert_eq!(queue.write(&[IoSlice::new(&plain), IoSlice::new(&packet)]).unwrap(), 38);
    }
    assert_eq!(early(&order(&device, &flows)), before);
}

/// Returns the flows that are read before the third packet of the bulk flow. The others share its queue and are read
/// after its last packet.
fn early(order: &[u16]) -> Vec<u16> {
    assert_eq!(order.len(), 20 + 15, "none is lost");
    let bulk: Vec<usize> = (0..order.len()).filter(|at| order[*at] == 0).collect();
    let (third, last) = (bulk[2], bulk[19]);
    assert!(bulk[1] == 1 && last == third + 17, "{order:?}");
    let mut early: Vec<u16> = order[..third].iter().copied().filter(|flow| *flow != 0).collect();
    early.sort_unstable();
    early
}

#[test]
fn a_device_without_lanes_is_read_in_the_order_of_its_packets() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let (device, _socket) = device(&ns, &TunOptions::default());
    assert_eq!(device.queues[0].flow_queues(), 1);
    let order = order(&device, &flows(&ns));
    assert!(order[..20].iter().all(|flow| *flow == 0) && order.len() == 35, "{order:?}");
}

#[test]
fn a_device_that_exists_or_has_several_queues_gets_no_lanes() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let open = |queues, flow_queues| {
        let name = Some("kept1".into());
        open_when_free(&ns, &TunOptions { name, queues, flow_queues, ..TunOptions::default() })
    };
    for (queues, flow_queues) in [(1, 1), (2, 16)] {
        let made = open(queues, flow_queues);
        assert!(made.queues.iter().all(|queue| queue.flow_queues() == 1), "{queues} {flow_queues}");
        persist(&made.queues[0], true);
        drop(made);
        let device = open(1, 16);
        assert_eq!((device.queues.len(), device.queues[0].flow_queues()), (1, 1));
        persist(&device.queues[0], false);
    }
}

fn persist(queue: &TunQueue, on: bool) {
    // SAFETY: TUNSETPERSIST takes its argument by value; the descriptor is open.
    let rc = unsafe { libc::ioctl(queue.fd.as_raw_fd(), libc::TUNSETPERSIST, i32::from(on)) };
    assert_eq!(rc, 0);
}

#[test]
fn errors_say_what_to_do() {
    adit_testbed::needs_root!();
    let ns = NetNs::unnamed().unwrap();
    let open = |name: &str, mode| {
        let options = TunOptions { name: Some(name.into()), mode, ..TunOptions::default() };
        ns.run(|| TunDevice::open(&options)).unwrap()
    };
    let first = open("adit0", TunMode::Tun).unwrap();
    let busy = open("adit0", TunMode::Tun).unwrap_err();
    assert!(matches!(&busy, TunError::Busy(name) if name == "adit0"), "{busy}");
    let other = open("lo", TunMode::Tun).unwrap_err();
    assert!(matches!(other, TunError::OtherKind(_)), "{other}");
    for name in ["", "a name", "much-too-long-name", "a/b", "tun%d", "..", "t\u{fc}n"] {
        assert!(matches!(open(name, TunMode::Tun), Err(TunError::BadName(_))), "{name}");
    }
    remove(&ns, first);
    open("adit0", TunMode::Tap).unwrap();
}

#[test]
fn a_persistent_device_stays_until_it_is_removed() {
    let ns = NetNs::unnamed().unwrap();
    for (name, mode) in [("tun7", TunMode::Tun), ("office", TunMode::Tap)] {
        let made = ns.run(|| make_persistent(name, mode, Some(65534), Some(65534))).unwrap();
        assert_eq!(made.unwrap(), name);
        let exists = || ns.configure(async |net| net.link(name).await).unwrap().is_ok();
        assert!(exists(), "no process has it open");
        assert_eq!(ns.run(|| remove_persistent(name, mode)).unwrap().unwrap(), name);
        let deadline = Instant::now() + Duration::from_secs(30);
        while exists() {
            assert!(Instant::now() < deadline, "{name} still exists");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let numbered = ns.run(|| make_persistent("tun", TunMode::Tun, None, None)).unwrap().unwrap();
    assert_eq!(numbered, "tun0");
    let other = ns.run(|| remove_persistent("tun0", TunMode::Tap)).unwrap();
    assert!(matches!(other, Err(TunError::OtherKind(_))), "{other:?}");
    assert!(matches!(
        ns.run(|| make_persistent("a/b", TunMode::Tun, None, None)).unwrap(),
        Err(TunError::BadName(_))
    ));
}
