use std::time::Duration;

use super::*;
use crate::poll::{Events, Interest, Poller};

const PATIENCE: Duration = Duration::from_secs(30);

fn listener(bind: &str) -> TcpListener {
    TcpListener::bind(&TcpListenOptions::new(bind.parse().unwrap())).unwrap()
}

fn wait(fd: &impl AsFd, interest: Interest) {
    let (poller, mut events) = (Poller::new().unwrap(), Events::new());
    poller.add(fd, 0, interest).unwrap();
    assert_eq!(poller.wait(&mut events, Some(PATIENCE)).unwrap(), 1, "nothing came");
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(&TcpConnectOptions::new(to)).unwrap();
    wait(&stream, Interest::WRITE);
    assert!(stream.finish_connect().unwrap());
    stream
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = listener("127.0.0.1:0");
    let client = connect(listener.local_addr());
    wait(&listener, Interest::READ);
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    (server, client)
}

#[test]
fn bytes_travel_both_ways_until_one_side_closes() {
    let (server, client) = pair();
    let mut buffer = [0; 16];
    assert_eq!(server.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(client.send_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap(), 3);
    wait(&server, Interest::READ);
    assert_eq!(server.peek(&mut buffer).unwrap(), 3);
    assert_eq!(server.recv(&mut buffer).unwrap(), 3);
    assert_eq!(buffer[..3], *b"abc");
    server.send(b"d").unwrap();
    server.shutdown_write().unwrap();
    wait(&client, Interest::READ);
    assert_eq!(client.recv(&mut buffer).unwrap(), 1);
    assert_eq!(client.recv(&mut buffer).unwrap(), 0);
}

#[test]
fn both_ends_send_small_writes_at_once() {
    let (server, client) = pair();
    for stream in [&server, &client] {
        assert!(stream.options().tcp_nodelay().unwrap());
        stream.set_nodelay(false).unwrap();
        assert!(!stream.options().tcp_nodelay().unwrap());
    }
}

#[test]
fn what_waits_unsent_is_bounded() {
    let (_server, client) = pair();
    client.set_notsent_lowat(64 << 10).unwrap();
    let (mut taken, chunk) = (0, vec![0; 64 << 10]);
    while let Ok(sent) = client.send(&chunk) {
        taken += sent;
    }
    // The peer's receive window, and one more kernel buffer beyond the bound.
    let (_server, free) = pair();
    let mut free_taken = 0;
    while let Ok(sent) = free.send(&chunk) {
        free_taken += sent;
    }
    assert!(taken < free_taken, "{taken} {free_taken}");
}

#[test]
fn a_refused_connection_is_named() {
    let to = {
        let listener = listener("127.0.0.1:0");
        listener.local_addr()
    };
    let stream = TcpStream::connect(&TcpConnectOptions::new(to)).unwrap();
    wait(&stream, Interest::WRITE);
    assert_eq!(stream.finish_connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn one_listener_serves_both_families_unless_told_not_to() {
    let both = listener("[::]:0");
    let to = SocketAddr::from(([127, 0, 0, 1], both.local_addr().port()));
    let client = connect(to);
    wait(&both, Interest::READ);
    let (_, peer) = both.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap(), "an IPv4 client has an IPv4 address");
    let options =
        TcpListenOptions { v6only: true, ..TcpListenOptions::new("[::]:0".parse().unwrap()) };
    let six = TcpListener::bind(&options).unwrap();
    let to = SocketAddr::from(([127, 0, 0, 1], six.local_addr().port()));
    let stream = TcpStream::connect(&TcpConnectOptions::new(to)).unwrap();
    wait(&stream, Interest::WRITE);
    assert!(stream.finish_connect().is_err());
}

#[test]
fn a_client_can_choose_its_address() {
    let listener = listener("127.0.0.1:0");
    let from = Some("127.0.0.2:0".parse().unwrap());
    let options = TcpConnectOptions { from, ..TcpConnectOptions::new(listener.local_addr()) };
    let stream = TcpStream::connect(&options).unwrap();
    wait(&stream, Interest::WRITE);
    assert!(stream.finish_connect().unwrap());
    wait(&listener, Interest::READ);
    assert_eq!(listener.accept().unwrap().1.ip().to_string(), "127.0.0.2");
}

#[test]
fn listeners_share_a_port_only_if_both_agree() {
    let options = TcpListenOptions {
        reuse_port: true,
        ..TcpListenOptions::new("127.0.0.1:0".parse().unwrap())
    };
    let first = TcpListener::bind(&options).unwrap();
    let again = TcpListenOptions { bind: first.local_addr(), ..options };
    TcpListener::bind(&again).unwrap();
    let alone = TcpListenOptions { reuse_port: false, ..again };
    assert_eq!(TcpListener::bind(&alone).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn both_ends_of_a_stream_can_be_bound_to_a_device() {
    let mut options = TcpListenOptions::new("127.0.0.1:0".parse().unwrap());
    options.device = Some("lo".into());
    let listener = match TcpListener::bind(&options) {
        // Before Linux 5.7 this needs a privilege.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return,
        other => other.unwrap(),
    };
    let mut options = TcpConnectOptions::new(listener.local_addr());
    options.device = Some("lo".into());
    let stream = TcpStream::connect(&options).unwrap();
    wait(&stream, Interest::WRITE);
    assert!(stream.finish_connect().unwrap());
    options.device = Some("no-such-device".into());
    let missing = TcpStream::connect(&options).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(rustix::io::Errno::NODEV.raw_os_error()));
}

#[test]
fn it_is_known_what_the_far_end_has_not_acknowledged() {
    adit_testbed::needs_root!();
    use crate::net::{Address, Net};
    use crate::netns::NetNs;
    let (left, right) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    left.connect("eth", &right, "eth").unwrap();
    let address = async |net: &Net, text: &str| {
        Address::new(net.link("eth").await.unwrap().index, text.parse().unwrap())
    };
    for (ns, text) in [(&left, "192.0.2.1/24"), (&right, "192.0.2.2/24")] {
        let set = ns.configure(async |net| net.add_address(&address(net, text).await).await);
        set.unwrap().unwrap();
    }
    let listener = right.run(|| listener("192.0.2.2:0")).unwrap();
    let to = listener.local_addr();
    let client = left.run(|| connect(to)).unwrap();
    wait(&listener, Interest::READ);
    let (server, _) = listener.accept().unwrap();
    client.send(b"a").unwrap();
    wait(&server, Interest::READ);
    while client.unacknowledged().unwrap() > 0 {
        std::thread::yield_now();
    }
    let gone =
        right.configure(async |net| net.delete_address(&address(net, "192.0.2.2/24").await).await);
    gone.unwrap().unwrap();
    client.send(b"b").unwrap();
    assert_eq!(client.unacknowledged().unwrap(), 1);
}
