//! Two planes with TUN devices, in two namespaces joined by a veth pair.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream, UdpSocket as Udp};
use std::sync::Arc;

use adit_dataplane::{DropReason, Offloads, PlaneConfig, Relay, StreamOptions};
use adit_engine::command::InnerMtu;
use adit_engine::{Link, PeerId, SocketId};
use adit_linux::net::Address;
use adit_linux::netns::NetNs;
use adit_linux::tcp::{TcpListenOptions, TcpListener, TcpStream};
use adit_linux::tun::{TunDevice, TunOffloads, TunOptions};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_openvpn::data_format::{Command, PeerSpec, Protection};
use adit_openvpn_data::{Plane, Upcalls};

use crate::workers::{Network, PATIENCE, Tunnel, boot_clock, connection, layout};

/// The number of queues of each device, of sockets, and of workers.
const WORKERS: usize = 2;
/// The number of flows in each direction: enough for each queue and each socket to have some.
const FLOWS: usize = 16;
/// The length of the flow that the device delivers as super-packets.
const BULK: usize = 1 << 20;
const PEER: PeerId = PeerId(7);

/// The server and a client.
pub(crate) struct Devices([Side; 2]);

struct Side {
    ns: NetNs,
    plane: Plane,
    _upcalls: Upcalls,
}

/// Creates side `n`, with the addresses 10.77.0.n outside and 10.9.0.n inside. The first side is
/// the server.
fn side(ns: NetNs, n: u8) -> Side {
    let outside = format!("10.77.0.{n}/24").parse().unwrap();
    let options = TunOptions {
        name: Some("inside".into()),
        offloads: TunOffloads { csum: true, tso: true, uso: true },
        queues: WORKERS,
        ..TunOptions::default()
    };
    let tun = ns.run(|| TunDevice::open(&options)).unwrap().unwrap();
    let index = tun.ifindex;
    let inside = format!("10.9.0.{n}/24").parse().unwrap();
    let configured = ns.configure(async |net| {
        let cable = net.link("cable").await?.index;
        net.add_address(&Address::new(cable, outside)).await?;
        net.add_address(&Address::new(index, inside)).await?;
        net.set_up(index).await
    });
    configured.unwrap().unwrap();
    let options = UdpOptions::new(([10, 77, 0, n], 5000).into());
    let sockets = ns.run(|| UdpSocket::bind_group(&options, WORKERS)).unwrap().unwrap();
    let config = PlaneConfig {
        tun: Some(tun),
        sockets: sockets.into_iter().map(|socket| (SocketId(0), Arc::new(socket))).collect(),
        relay: Relay::Kernel,
        gates: Offloads::ALL,
        client: n == 2,
        ethernet: false,
    };
    let (plane, upcalls) = Plane::start(config, boot_clock).unwrap();
    assert_eq!(plane.workers(), WORKERS);
    Side { ns, plane, _upcalls: upcalls }
}

impl Devices {
    pub(crate) fn new(protection: Protection, stream: bool) -> Self {
        let [a, b] = [NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap()];
        a.connect("cable", &b, "cable").unwrap();
        let sides = [side(a, 1), side(b, 2)];
        let remote = |n: u8| Link::datagram(SocketId(0), None, ([10, 77, 0, n], 5000).into());
        let mut links = [remote(2), remote(1)];
        if stream {
            let [server, client] = &sides;
            let address = SocketAddr::from(([10, 77, 0, 1], 5000));
            let listener = server.ns.run(|| TcpListener::bind(&TcpListenOptions::new(address)));
            let ends = connection(&listener.unwrap().unwrap(), |to| {
                client.ns.run(|| TcpStream::connect(to)).unwrap().unwrap()
            });
            for ((side, stream), link) in sides.iter().zip(ends).zip(&mut links) {
                *link = Link::stream(5, stream.peer_addr().unwrap());
                side.plane.add_stream(*link, stream, StreamOptions::default()).unwrap();
            }
        }
        for (side, link) in sides.iter().zip(links) {
            let mtu = InnerMtu { mss4: 1300, mss6: 1300, largest: 0 };
            let layout = layout(protection, 7);
            side.plane
                .apply(Command::AddPeer(PEER, PeerSpec { layout, mtu, ..PeerSpec::plain(link) }));
            side.plane.apply(Command::SetRoutes(PEER, vec!["0.0.0.0/0".parse().unwrap()]));
        }
        Self(sides)
    }
}

impl Network for Devices {
    fn planes(&self) -> Vec<&Plane> {
        self.0.iter().map(|side| &side.plane).collect()
    }

    fn tunnels(&self) -> Vec<Tunnel> {
        vec![Tunnel { number: 7, ends: [(0, PEER), (1, PEER)] }]
    }

    /// Sends single datagrams in many flows, and a byte stream whose packets the device merges into
    /// super-packets.
    fn traffic(&mut self) {
        let [a, b] = &self.0;
        for (from, to, inside) in [(a, b, "10.9.0.2:0"), (b, a, "10.9.0.1:0")] {
            let receiver = to.ns.run(|| Udp::bind(inside)).unwrap().unwrap();
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            let address = receiver.local_addr().unwrap();
            for _ in 0..FLOWS {
                let sender = from.ns.run(|| Udp::bind("0.0.0.0:0")).unwrap().unwrap();
                sender.send_to(&[0x61; 100], address).unwrap();
                assert_eq!(receiver.recv(&mut [0; 200]).unwrap(), 100);
            }
            let listener = to.ns.run(|| StdListener::bind(inside)).unwrap().unwrap();
            let address = listener.local_addr().unwrap();
            let reader = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).map(|_| bytes.len())
            });
            let mut stream = from.ns.run(|| StdStream::connect(address)).unwrap().unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&vec![0x61; BULK]).unwrap();
            drop(stream);
            assert_eq!(reader.join().unwrap().unwrap(), BULK);
        }
        for side in &self.0 {
            let totals = side.plane.totals();
            assert_eq!(totals.dropped(DropReason::BadTag), 0);
            assert!(totals.sent.buckets[1..].iter().sum::<u64>() > 0, "{:?}", totals.sent);
        }
    }
}
