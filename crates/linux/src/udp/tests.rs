use super::*;
use crate::poll::{Events, Interest, Poller};
use std::collections::BTreeMap;
use std::time::Duration;

fn socket(bind: &str) -> UdpSocket {
    UdpSocket::bind(&UdpOptions::new(bind.parse().unwrap())).unwrap()
}

/// Waits until the socket is readable, then receives one burst.
fn receive(socket: &UdpSocket, batch: &mut RecvBatch) -> usize {
    let (poller, mut events) = (Poller::new().unwrap(), Events::new());
    poller.add(socket, 0, Interest::READ).unwrap();
    assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(5))).unwrap(), 1, "nothing came");
    socket.recv_burst(batch).unwrap()
}

fn train<'a>(to: SocketAddr, segment: u16, payload: &'a [u8]) -> Train<'a> {
    Train { to, from: None, segment, tos: None, payload }
}

#[test]
fn a_train_arrives_whole() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    assert!(b.gro_enabled());
    let payload: Vec<u8> = (0..44 * 1450 + 77).map(|i| (i % 251) as u8).collect();
    let mut scratch = SendScratch::default();
    a.send_trains(&[train(b.local_addr(), 1450, &payload)], &mut scratch).unwrap();
    let mut batch = RecvBatch::new(4);
    assert_eq!(receive(&b, &mut batch), 1);
    let got = batch.datagrams_mut().next().unwrap();
    assert_eq!((got.segment, got.remote), (1450, a.local_addr()));
    assert_eq!(got.local, Some("127.0.0.1".parse().unwrap()));
    assert_eq!(got.data, payload);
    let again = b.recv_burst(&mut batch).unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
    assert_eq!(batch.datagrams_mut().count(), 0);
}

#[test]
fn several_trains_leave_in_one_call_and_keep_their_order() {
    let (a, b) = (socket("[::1]:0"), socket("[::1]:0"));
    let payloads: Vec<Vec<u8>> = (0..10u8).map(|i| vec![i; 100 * (i as usize + 1)]).collect();
    let trains: Vec<_> = payloads.iter().map(|p| train(b.local_addr(), 100, p)).collect();
    // Fewer slots than trains: several system calls, in the same order.
    let mut scratch = SendScratch::new(3);
    a.send_trains(&trains, &mut scratch).unwrap();
    let mut batch = RecvBatch::new(16);
    assert_eq!(receive(&b, &mut batch), 10);
    let got: Vec<_> = batch.datagrams_mut().map(|r| (r.segment, r.data.to_vec())).collect();
    assert_eq!(got, payloads.into_iter().map(|p| (100, p)).collect::<Vec<_>>());
}

#[test]
fn without_gro_a_train_arrives_as_datagrams() {
    let mut options = UdpOptions::new("127.0.0.1:0".parse().unwrap());
    options.gro = false;
    let (a, b) = (socket("127.0.0.1:0"), UdpSocket::bind(&options).unwrap());
    assert!(!b.gro_enabled());
    a.send_trains(&[train(b.local_addr(), 10, &[9; 25])], &mut SendScratch::default()).unwrap();
    let mut batch = RecvBatch::new(8);
    assert_eq!(receive(&b, &mut batch), 3);
    let got: Vec<_> = batch.datagrams_mut().map(|r| (r.segment, r.data.len())).collect();
    assert_eq!(got, [(10, 10), (10, 10), (5, 5)]);
}

/// Returns the runs of a burst: the sender's port, the lengths of the datagrams and the first byte of each.
fn runs(batch: &mut RecvBatch) -> Vec<(u16, Vec<(usize, u8)>)> {
    let run = |run: Received<'_>| {
        let datagrams = run.data.chunks(run.stride).map(|chunk| {
            let datagram = &chunk[..run.segment.min(chunk.len())];
            (datagram.len(), datagram.first().copied().unwrap_or(0))
        });
        (run.remote.port(), datagrams.collect())
    };
    batch.runs_mut().map(run).collect()
}

#[test]
fn datagrams_that_come_one_by_one_are_joined() {
    let mut options = UdpOptions::new("[::]:0".parse().unwrap());
    options.gro = false;
    let b = UdpSocket::bind(&options).unwrap();
    let port = b.local_addr().port();
    let senders = ["127.0.0.1:0", "127.0.0.1:0", "[::1]:0"].map(socket);
    let ports = senders.each_ref().map(|sender| sender.local_addr().port());
    let mut batch = RecvBatch::new(16);
    // The second burst meets slots that were used before.
    for _ in 0..2 {
        let mut number = 0;
        let mut send = |from: usize, to: &str, len: usize| {
            number += 1;
            let to = SocketAddr::new(to.parse().unwrap(), port);
            senders[from].send_to(to, None, &vec![number; len]).unwrap();
        };
        for len in [1400, 1400, 1400, 300, 300, 1400, 0, 0, 7] {
            send(0, "127.0.0.1", len);
        }
        send(1, "127.0.0.1", 7);
        send(1, "127.0.0.2", 7);
        send(1, "127.0.0.2", 7);
        send(2, "::1", 7);
        send(2, "::1", 7);
        assert_eq!(receive(&b, &mut batch), 14);
        let expected = [
            (ports[0], vec![(1400, 1), (1400, 2), (1400, 3), (300, 4)]),
            (ports[0], vec![(300, 5)]),
            (ports[0], vec![(1400, 6)]),
            (ports[0], vec![]),
            (ports[0], vec![]),
            (ports[0], vec![(7, 9)]),
            (ports[1], vec![(7, 10)]),
            (ports[1], vec![(7, 11), (7, 12)]),
            (ports[2], vec![(7, 13), (7, 14)]),
        ];
        assert_eq!(runs(&mut batch), expected);
    }
}

#[test]
fn trains_are_not_joined() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    let to = b.local_addr();
    let trains = [train(to, 10, &[1; 20]), train(to, 10, &[2; 20]), train(to, 0, &[3; 20])];
    a.send_trains(&trains, &mut SendScratch::default()).unwrap();
    a.send_to(to, None, &[4; 20]).unwrap();
    let mut batch = RecvBatch::new(8);
    assert_eq!(receive(&b, &mut batch), 4);
    let port = a.local_addr().port();
    let expected = [
        (port, vec![(10, 1), (10, 1)]),
        (port, vec![(10, 2), (10, 2)]),
        (port, vec![(20, 3), (20, 4)]),
    ];
    assert_eq!(runs(&mut batch), expected);
}

#[test]
fn empty_and_single_datagrams_are_harmless() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    a.send_to(b.local_addr(), None, &[]).unwrap();
    let to = b.local_addr();
    let trains = [train(to, 0, &[1; 30]), train(to, 10, &[]), train(to, 10, &[2; 10])];
    a.send_trains(&trains, &mut SendScratch::default()).unwrap();
    let mut batch = RecvBatch::new(8);
    assert_eq!(receive(&b, &mut batch), 4);
    let got: Vec<_> = batch.datagrams_mut().map(|r| (r.segment, r.data.len())).collect();
    assert_eq!(got, [(1, 0), (30, 30), (1, 0), (10, 10)]);
    a.send_trains(&[], &mut SendScratch::default()).unwrap();
}

/// `multihome` asks for this.
#[test]
fn a_dual_stack_socket_serves_ipv4_from_the_address_that_was_asked() {
    let server = socket("[::]:0");
    let port = server.local_addr().port();
    let client = socket("127.0.0.1:0");
    let asked: IpAddr = "127.0.0.77".parse().unwrap();
    client.send_to(SocketAddr::new(asked, port), None, b"hello").unwrap();
    let mut batch = RecvBatch::new(1);
    assert_eq!(receive(&server, &mut batch), 1);
    let (remote, local) = batch.datagrams_mut().map(|r| (r.remote, r.local)).next().unwrap();
    assert_eq!((remote, local), (client.local_addr(), Some(asked)));
    server.send_to(remote, local, b"single").unwrap();
    let answer = Train { to: remote, from: local, segment: 4, tos: None, payload: b"trains" };
    server.send_trains(&[answer], &mut SendScratch::new(1)).unwrap();
    for (segment, text) in [(6, &b"single"[..]), (4, b"trains")] {
        assert_eq!(receive(&client, &mut batch), 1);
        let got = batch.datagrams_mut().next().unwrap();
        assert_eq!(got.remote, SocketAddr::new(asked, port));
        assert_eq!((got.segment, &*got.data), (segment, text));
    }
}

#[test]
fn a_source_that_is_not_ours_is_refused_and_named_by_index() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    let good = train(b.local_addr(), 0, b"good");
    let foreign = Train { from: Some("192.0.2.1".parse().unwrap()), ..good };
    let family = Train { from: Some("::1".parse().unwrap()), ..good };
    let v6 = Train { to: "[::1]:9".parse().unwrap(), ..good };
    let mut scratch = SendScratch::default();
    for (bad, errno) in
        [(foreign, libc::ENETUNREACH), (family, libc::EAFNOSUPPORT), (v6, libc::EAFNOSUPPORT)]
    {
        let stop = a.send_trains(&[good, good, bad, good], &mut scratch).unwrap_err();
        assert_eq!((stop.sent, stop.error.raw_os_error()), (2, Some(errno)));
        let single = a.send_to(bad.to, bad.from, bad.payload).unwrap_err();
        assert_eq!(single.raw_os_error(), Some(errno));
    }
    let mut batch = RecvBatch::new(16);
    assert_eq!(receive(&b, &mut batch), 6);
}

#[test]
fn buffers_are_as_large_as_the_system_allows() {
    let (receive, send) = socket("127.0.0.1:0").buffer_sizes().unwrap();
    assert!(receive >= 8 << 20 && send >= 2 << 20, "{receive} {send}: run as root");
}

#[test]
fn a_port_in_use_is_the_kernels_error() {
    let a = socket("127.0.0.1:0");
    let error = UdpSocket::bind(&UdpOptions::new(a.local_addr())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

/// Creates two namespaces connected by an Ethernet link with an MTU of 1500 bytes, with a socket in
/// each.
fn across(version: &str) -> (crate::netns::NetNs, UdpSocket, UdpSocket) {
    use crate::net::Address;
    use crate::netns::NetNs;
    let (left, right) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    left.connect("eth", &right, "eth").unwrap();
    let (a, b, len) = match version {
        "v4" => ("192.0.2.1", "192.0.2.2", 24),
        _ => ("2001:db8::1", "2001:db8::2", 64),
    };
    let [a, b] = [(&left, a), (&right, b)].map(|(ns, ip)| {
        let ip: IpAddr = ip.parse().unwrap();
        ns.configure(async |net| {
            let link = net.link("eth").await?.index;
            net.add_address(&Address::new(link, ipnet::IpNet::new(ip, len).unwrap())).await
        })
        .unwrap()
        .unwrap();
        ns.run(|| UdpSocket::bind(&UdpOptions::new(SocketAddr::new(ip, 0)))).unwrap().unwrap()
    });
    (left, a, b)
}

#[test]
fn trains_cross_an_ethernet_whole() {
    adit_testbed::needs_root!();
    for version in ["v4", "v6"] {
        let (_ns, a, b) = across(version);
        let payload = vec![3; 40 * 1400 + 9];
        let trains = [train(b.local_addr(), 1400, &payload); 3];
        a.send_trains(&trains, &mut SendScratch::default()).unwrap();
        let (mut batch, mut bytes, mut buffers) = (RecvBatch::new(8), 0, 0);
        while bytes < 3 * payload.len() {
            buffers += receive(&b, &mut batch);
            bytes += batch
                .datagrams_mut()
                .inspect(|r| assert_eq!(r.segment, 1400))
                .map(|r| r.data.len())
                .sum::<usize>();
        }
        assert_eq!((bytes, buffers), (3 * payload.len(), 3), "{version}");
    }
}

#[test]
fn segments_larger_than_the_path_stop_at_their_train_and_pass_singly() {
    adit_testbed::needs_root!();
    for version in ["v4", "v6"] {
        let (_ns, a, b) = across(version);
        let (fits, large) = ([1; 2800], [2; 5000]);
        let trains = [1400, 1400, 2000, 1400].map(|segment| {
            train(b.local_addr(), segment, if segment == 1400 { &fits[..] } else { &large })
        });
        let stop = a.send_trains(&trains, &mut SendScratch::default()).unwrap_err();
        assert_eq!(stop.sent, 2);
        assert!(matches!(stop.error.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL)), "{stop}");
        // The remedy that SendStop names: sent one by one, the kernel fragments them.
        for part in large.chunks(2000) {
            a.send_to(b.local_addr(), None, part).unwrap();
        }
        a.send_trains(&trains[3..], &mut SendScratch::default()).unwrap();
        let (mut batch, mut bytes) = (RecvBatch::new(8), 0);
        while bytes < 3 * 2800 + 5000 {
            receive(&b, &mut batch);
            bytes += batch.datagrams_mut().map(|r| r.data.len()).sum::<usize>();
        }
        assert_eq!(bytes, 3 * 2800 + 5000);
    }
}

#[test]
fn too_long_trains_are_refused_by_index() {
    adit_testbed::needs_root!();
    let (_ns, a, b) = across("v4");
    let to = b.local_addr();
    let bytes = vec![0; 70_000];
    let many = Train { segment: 100, ..train(to, 0, &bytes[..60_000]) };
    let long = Train { segment: 1400, ..train(to, 0, &bytes) };
    for bad in [many, long] {
        let trains = [train(to, 0, b"one"), bad];
        let stop = a.send_trains(&trains, &mut SendScratch::default()).unwrap_err();
        assert_eq!(stop.sent, 1);
        assert!(matches!(stop.error.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL)), "{stop}");
    }
}

#[test]
fn a_full_socket_would_block_at_the_first_train_that_does_not_fit() {
    adit_testbed::needs_root!();
    let (ns, a, _b) = across("v4");
    let mut options = UdpOptions::new(SocketAddr::new(a.local_addr().ip(), 0));
    options.send_buffer = 1;
    let small = ns.run(|| UdpSocket::bind(&options)).unwrap().unwrap();
    // This address is unused: datagrams to it wait for neighbour resolution and count against the
    // sender's buffer.
    let to = "192.0.2.99:9".parse().unwrap();
    let payload = vec![0; 40_000];
    let trains = [train(to, 1400, &payload); 40];
    let stop = small.send_trains(&trains, &mut SendScratch::default()).unwrap_err();
    assert_eq!(stop.error.kind(), io::ErrorKind::WouldBlock);
    assert!((1..40).contains(&stop.sent));
    let single = small.send_to(to, None, b"x").unwrap_err();
    assert_eq!(single.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn fragmentation_is_as_asked() {
    adit_testbed::needs_root!();
    let (ns, a, b) = across("v4");
    let mut options = UdpOptions::new(SocketAddr::new(a.local_addr().ip(), 0));
    options.fragmentation = Fragmentation::Forbidden;
    let strict = ns.run(|| UdpSocket::bind(&options)).unwrap().unwrap();
    let refused = strict.send_to(b.local_addr(), None, &[0; 3000]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
    options.fragmentation = Fragmentation::Local;
    let local = ns.run(|| UdpSocket::bind(&options)).unwrap().unwrap();
    local.send_to(b.local_addr(), None, &[0; 3000]).unwrap();
    let mut batch = RecvBatch::new(1);
    assert_eq!(receive(&b, &mut batch), 1);
    assert_eq!(batch.datagrams_mut().next().unwrap().data.len(), 3000);
}

#[test]
fn link_local_peers_are_answered_through_their_interface() {
    adit_testbed::needs_root!();
    let (left, a, b) = across("v6");
    drop(a);
    let index = left.configure(async |net| net.link("eth").await).unwrap().unwrap().index;
    let own = crate::net::Address::new(index, "fe80::77/64".parse().unwrap());
    left.configure(async |net| net.add_address(&own).await).unwrap().unwrap();
    let bind = std::net::SocketAddrV6::new("fe80::77".parse().unwrap(), 0, 0, index);
    let local = left.run(|| UdpSocket::bind(&UdpOptions::new(bind.into()))).unwrap().unwrap();
    let any = left.run(|| UdpSocket::bind(&UdpOptions::new("[::]:0".parse().unwrap())));
    let (any, mut batch) = (any.unwrap().unwrap(), RecvBatch::new(1));
    let mut to = bind;
    to.set_port(any.local_addr().port());
    // The kernel installs the route to a new local address slightly later than the address itself.
    let (poller, mut events) = (Poller::new().unwrap(), Events::new());
    poller.add(&any, 0, Interest::READ).unwrap();
    let heard = (0..500).any(|_| {
        local.send_to(to.into(), None, b"hello").unwrap();
        poller.wait(&mut events, Some(Duration::from_millis(10))).unwrap() > 0
    });
    assert!(heard);
    assert_eq!(receive(&any, &mut batch), 1);
    let (remote, from) = batch.datagrams_mut().map(|r| (r.remote, r.local)).next().unwrap();
    assert_eq!(remote, local.local_addr());
    any.send_to(remote, from, b"answer").unwrap();
    assert_eq!(receive(&local, &mut batch), 1);
    assert_eq!(batch.datagrams_mut().next().unwrap().remote, to.into());
    drop(b);
}

#[test]
fn a_port_without_a_listener_is_named_and_hinders_no_other() {
    for (bind, deaf, heard) in [
        ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"),
        ("[::]:0", "127.0.0.1:0", "[::1]:0"),
        ("[::]:0", "[::1]:0", "127.0.0.1:0"),
    ] {
        let mut options = UdpOptions::new(bind.parse().unwrap());
        options.icmp_errors = true;
        let a = UdpSocket::bind(&options).unwrap();
        assert!(a.take_error().unwrap().is_none());
        let gone = socket(deaf).local_addr();
        let peer = socket(heard);
        // Two, so that one error is pending when the second one is sent.
        let unreachable = [train(gone, 0, b"x"), train(gone, 0, b"y")];
        let mut scratch = SendScratch::default();
        a.send_trains(&unreachable, &mut scratch).unwrap();
        a.send_trains(&[train(peer.local_addr(), 0, b"z"); 2], &mut scratch).unwrap();
        a.send_to(peer.local_addr(), None, b"z").unwrap();
        for _ in unreachable {
            let said = a.take_error().unwrap().unwrap();
            assert_eq!(said.remote, gone);
            assert_eq!(said.error.kind(), io::ErrorKind::ConnectionRefused);
        }
        assert!(a.take_error().unwrap().is_none());
        let mut batch = RecvBatch::new(8);
        assert_eq!(receive(&peer, &mut batch), 3);
        // A pending error does not affect the receiver either.
        a.send_to(gone, None, b"x").unwrap();
        let nothing = a.recv_burst(&mut batch).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}

#[test]
fn long_trains_come_in_shorter_bursts_and_short_packets_in_longer_ones() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    let send = |count: usize, len: usize| {
        for _ in 0..count {
            a.send_to(b.local_addr(), None, &vec![7; len]).unwrap();
        }
    };
    let mut batch = RecvBatch::new(64);
    send(40, 60_000);
    assert_eq!(receive(&b, &mut batch), 16, "few, until it is known how long they are");
    assert_eq!(receive(&b, &mut batch), 17, "a mebibyte");
    assert_eq!(batch.datagrams_mut().count(), 17);
    assert_eq!(receive(&b, &mut batch), 7);
    send(1, 100);
    assert_eq!(receive(&b, &mut batch), 1, "one short packet says nothing about the next ones");
    send(60, 100);
    assert_eq!(receive(&b, &mut batch), 17);
    assert_eq!(receive(&b, &mut batch), 43);
}

#[test]
fn an_empty_batch_receives_nothing() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    a.send_to(b.local_addr(), None, b"x").unwrap();
    let mut batch = RecvBatch::default();
    assert_eq!(batch.slots(), 0);
    assert_eq!(b.recv_burst(&mut batch).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(batch.datagrams_mut().count(), 0);
    assert_eq!(receive(&b, &mut RecvBatch::new(0)), 1);
}

#[test]
fn a_group_shares_its_port_with_no_other_socket() {
    let options = UdpOptions::new("127.0.0.1:0".parse().unwrap());
    let group = UdpSocket::bind_group(&options, 3).unwrap();
    let address = group[0].local_addr();
    assert!(group.len() == 3 && group.iter().all(|socket| socket.local_addr() == address));
    let again = UdpOptions::new(address);
    // A second server with several workers or one. Both calls fail, and neither takes datagrams
    // from the first server.
    for count in [1, 3] {
        let error = UdpSocket::bind_group(&again, count).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{count}");
    }
    drop(group);
    let lone = UdpSocket::bind(&UdpOptions { reuse_port: true, ..again.clone() }).unwrap();
    let error = UdpSocket::bind_group(&again, 3).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "though the other would share");
    drop(lone);
    UdpSocket::bind_group(&again, 2).unwrap();
}

#[test]
fn a_group_divides_senders_and_keeps_each_ones_order() {
    for bind in ["127.0.0.1:0", "[::]:0"] {
        let group = UdpSocket::bind_group(&UdpOptions::new(bind.parse().unwrap()), 4).unwrap();
        let mut to = group[0].local_addr();
        to.set_ip([127, 0, 0, 1].into());
        let senders: Vec<_> = (0..64).map(|_| socket("127.0.0.1:0")).collect();
        for n in 0..8 {
            senders.iter().for_each(|sender| sender.send_to(to, None, &[n]).unwrap());
        }
        let mut served = Vec::new();
        for socket in &group {
            let (mut batch, mut got) = (RecvBatch::new(64), BTreeMap::<_, Vec<u8>>::new());
            while socket.recv_burst(&mut batch).is_ok() {
                for received in batch.datagrams_mut() {
                    got.entry(received.remote).or_default().extend(&*received.data);
                }
            }
            assert!(got.values().all(|numbers| *numbers == [0, 1, 2, 3, 4, 5, 6, 7]), "{got:?}");
            served.push(got.len());
        }
        assert_eq!(served.iter().sum::<usize>(), senders.len(), "{served:?}");
        // The probability that one socket gets all of them is 4 ^ -63.
        assert!(served.iter().all(|count| *count < senders.len()), "{served:?}");
    }
}

#[test]
fn senders_that_are_named_are_spread_evenly_wherever_they_send_from() {
    let field = SenderField { lead: 0xf800_0000, value: 0x4800_0000, sender: 0x00ff_ffff };
    for (bind, count) in [("127.0.0.1:0", 4), ("[::]:0", 3)] {
        let group = UdpSocket::bind_group(&UdpOptions::new(bind.parse().unwrap()), count).unwrap();
        steer(&group, &field).unwrap();
        let mut to = group[0].local_addr();
        to.set_ip([127, 0, 0, 1].into());
        let sockets: Vec<_> = (0..64).map(|_| socket("127.0.0.1:0")).collect();
        for (n, from) in (0u32..).zip(&sockets) {
            let mut named = (0x4800_0000u32 | n).to_be_bytes().to_vec();
            // Another key of the same sender, and a train.
            from.send_to(to, None, &named).unwrap();
            named[0] |= 7;
            named.resize(700, 1);
            from.send_trains(&[train(to, 350, &named)], &mut SendScratch::default()).unwrap();
            // Other datagrams: one of another kind, and one without a number.
            from.send_to(to, None, &[0x40, 0, 0, n as u8]).unwrap();
            from.send_to(to, None, &0x48ff_ffffu32.to_be_bytes()).unwrap();
            from.send_to(to, None, &[0x48, 0, 0]).unwrap();
        }
        let mut others = Vec::new();
        for (at, socket) in group.iter().enumerate() {
            let (mut batch, mut named, mut other, mut short) = (RecvBatch::new(64), 0, 0, 0);
            while socket.recv_burst(&mut batch).is_ok() {
                for received in batch.datagrams_mut() {
                    match received.data {
                        [0x48 | 0x4f, 0, 0, n, ..] => {
                            assert_eq!(usize::from(*n) % count, at);
                            named += received.data.len().div_ceil(received.segment);
                        }
                        [_, _, _, _, ..] => other += 1,
                        _ => short += 1,
                    }
                }
            }
            assert_eq!(named, 3 * (at..64).step_by(count).count());
            assert_eq!(short, if at == 0 { 64 } else { 0 });
            others.push(other);
        }
        // Distributed by address, so both datagrams of a sender reach the same socket. The
        // probability that one socket gets all of them is count ^ -63.
        assert_eq!(others.iter().sum::<usize>(), 2 * 64, "{others:?}");
        assert!(others.iter().all(|other| *other < 2 * 64 && other % 2 == 0), "{others:?}");
    }
    let lone = UdpSocket::bind_group(&UdpOptions::new("127.0.0.1:0".parse().unwrap()), 1).unwrap();
    steer(&lone, &field).unwrap();
    socket("127.0.0.1:0").send_to(lone[0].local_addr(), None, &[0x48, 0, 0, 5]).unwrap();
    assert_eq!(receive(&lone[0], &mut RecvBatch::new(2)), 1);
}

/// The kernel does not deliver a packet to a socket that is bound to another device than the one that the packet arrives on.
#[test]
fn a_socket_of_a_device_takes_packets_of_that_device_alone() {
    let of = |device: &str| {
        let mut options = UdpOptions::new("127.0.0.1:0".parse().unwrap());
        options.device = Some(device.to_owned());
        UdpSocket::bind(&options)
    };
    let missing = of("no-such-device").unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
    let bound = match of("lo") {
        // Before Linux 5.7 this needs a privilege.
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => return,
        other => other.unwrap(),
    };
    let sender = socket("127.0.0.1:0");
    sender.send_to(bound.local_addr(), None, b"x").unwrap();
    assert_eq!(receive(&bound, &mut RecvBatch::new(1)), 1);
}
