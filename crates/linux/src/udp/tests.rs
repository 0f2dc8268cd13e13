use super::*;
use crate::poll::{Events, Interest, Poller};
use std::time::Duration;

fn socket(bind: &str) -> UdpSocket {
    UdpSocket::bind(&UdpOptions::new(bind.parse().unwrap())).unwrap()
}

/// Wait for something to read, then take one burst.
fn receive(socket: &UdpSocket, batch: &mut RecvBatch) -> usize {
    let (poller, mut events) = (Poller::new().unwrap(), Events::new());
    poller.add(socket, 0, Interest::READ).unwrap();
    assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(5))).unwrap(), 1, "nothing came");
    socket.recv_burst(batch).unwrap()
}

fn train<'a>(to: SocketAddr, segment: u16, payload: &'a [u8]) -> Train<'a> {
    Train { to, from: None, segment, payload }
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
    // Less room than trains: several system calls, one order.
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
    let answer = Train { to: remote, from: local, segment: 4, payload: b"trains" };
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
