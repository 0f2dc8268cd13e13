//! Keys in worker threads: on their stacks, in the snapshots that they read, and in the memory that they free.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use adit_crypto::{BlockCipher, Cipher, Digest, DirectionKey};
use adit_dataplane::{DropReason, Offloads, PlaneConfig, Relay, StreamOptions};
use adit_engine::command::KeySlot;
use adit_engine::{Instant, Link, PeerId, SocketId};
use adit_linux::tcp::{TcpConnectOptions, TcpListenOptions, TcpListener, TcpStream};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_openvpn::data_format::{
    BlockSuite, Command, DataKey, KeyLimits, PacketLayout, PeerSpec, Protection,
};
use adit_openvpn_data::{Plane, Upcalls};

use crate::alone;
use crate::devices::Devices;
use crate::search::{MASK, Secret, of_key, search};

/// Long enough for the busiest machine; in a passing test it never expires.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

/// Planes with workers, and the tunnels between them.
pub(crate) trait Network {
    fn planes(&self) -> Vec<&Plane>;

    fn tunnels(&self) -> Vec<Tunnel>;

    /// Passes packets through each tunnel in both directions. Each end's counters prove that they were authentic.
    fn traffic(&mut self);
}

/// A tunnel with its two ends. Each is given as the index of a plane in [`Network::planes`] and its peer in that plane.
/// The first end is the server's.
pub(crate) struct Tunnel {
    pub number: u8,
    pub ends: [(usize, PeerId); 2],
}

/// Returns the layout of a client's packets. Both ends put its number into them. With a static key, packets carry no
/// number.
pub(crate) fn layout(protection: Protection, number: u8) -> PacketLayout {
    let wire_id = match protection {
        Protection::Static(_) => None,
        _ => Some(u32::from(number)),
    };
    PacketLayout { wire_id, ..PacketLayout::default() }
}

/// Connects to a listener and returns both ends of the connection.
pub(crate) fn connection(
    listener: &TcpListener,
    connect: impl FnOnce(&TcpConnectOptions) -> TcpStream,
) -> [TcpStream; 2] {
    let there = connect(&TcpConnectOptions::new(listener.local_addr()));
    let end = Wall::now() + PATIENCE;
    let mut here = None;
    while here.is_none() || !there.finish_connect().unwrap() {
        assert!(Wall::now() < end, "no connection came");
        here = here.or_else(|| listener.accept().ok());
        std::thread::sleep(Duration::from_millis(1));
    }
    let (here, _) = here.unwrap();
    [here, there]
}

/// Returns key material that occurs at no other place in memory, created in place.
fn key(protection: Protection, seed: u8, key_id: u8, at_server: bool) -> Box<DataKey> {
    let half = || DirectionKey { cipher: [0; 64], hmac: [0; 64] };
    let (seal, open, limits) = (half(), half(), KeyLimits::default());
    let mut key = Box::new(DataKey { key_id, protection, seal, open, limits });
    let DataKey { seal, open, .. } = &mut *key;
    let (up, down) = if at_server { (open, seal) } else { (seal, open) };
    for (n, half) in [(1, up), (2, down)] {
        let mut state = u64::from(seed) << 16 | u64::from(key_id) << 8 | n;
        for byte in half.cipher.iter_mut().chain(&mut half.hmac) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8 ^ MASK;
        }
    }
    key
}

/// Returns an inner packet from one client to another.
fn packet(from: u8, to: u8) -> Vec<u8> {
    let mut packet = vec![0x61; 120];
    let header = [0x45, 0, 0, 120, 0, 0, 0, 0, 64, 253, 0, 0, 10, 8, 0, from, 10, 8, 0, to];
    packet[..20].copy_from_slice(&header);
    let sum = adit_wire::checksum::Sum::new().bytes(&header).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A server and two clients on the loopback interface, without devices. Packets from one client are relayed to the
/// other.
struct Relayed {
    /// The server, client 2 and client 3.
    nodes: [Node; 3],
    passed: u64,
}

struct Node {
    plane: Plane,
    _upcalls: Upcalls,
    address: SocketAddr,
}

impl Node {
    fn new(client: bool) -> Self {
        // Two, so that both workers of the server have packets to open, whichever stream or address they come from.
        let workers = if client { 1 } else { 2 };
        let options = UdpOptions::new(([127, 0, 0, 1], 0).into());
        let group = UdpSocket::bind_group(&options, workers).unwrap();
        let sockets: Vec<_> = group.into_iter().map(Arc::new).collect();
        let address = sockets[0].local_addr();
        let config = PlaneConfig {
            tun: None,
            sockets: sockets.into_iter().map(|socket| (SocketId(3), socket)).collect(),
            relay: if client { Relay::Kernel } else { Relay::Direct },
            gates: Offloads::ALL,
            client,
            ethernet: false,
        };
        let (plane, _upcalls) = Plane::start(config, boot_clock).unwrap();
        assert_eq!(plane.workers(), workers);
        Self { plane, _upcalls, address }
    }

    fn add(&self, id: PeerId, layout: PacketLayout, link: Link, inside: &str) {
        self.plane.apply(Command::AddPeer(id, PeerSpec { layout, ..PeerSpec::plain(link) }));
        self.plane.apply(Command::SetRoutes(id, vec![inside.parse().unwrap()]));
    }
}

impl Relayed {
    fn new(protection: Protection, streams: bool) -> Self {
        let nodes = [false, true, true].map(Node::new);
        let [server, clients @ ..] = &nodes;
        let listener =
            TcpListener::bind(&TcpListenOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        for (number, client) in [2, 3].into_iter().zip(clients) {
            let mut links =
                [client, server].map(|to| Link::datagram(SocketId(3), None, to.address));
            if streams {
                let ends = connection(&listener, |to| TcpStream::connect(to).unwrap());
                for ((node, stream), link) in [server, client].into_iter().zip(ends).zip(&mut links)
                {
                    *link = Link::stream(number.into(), stream.peer_addr().unwrap());
                    node.plane.add_stream(*link, stream, StreamOptions::default()).unwrap();
                }
            }
            let layout = layout(protection, number);
            let [to_client, to_server] = links;
            server.add(PeerId(number.into()), layout, to_client, &format!("10.8.0.{number}/32"));
            client.add(PeerId(0), layout, to_server, "0.0.0.0/0");
        }
        Self { nodes, passed: 0 }
    }
}

impl Network for Relayed {
    fn planes(&self) -> Vec<&Plane> {
        self.nodes.iter().map(|node| &node.plane).collect()
    }

    fn tunnels(&self) -> Vec<Tunnel> {
        let tunnel = |number: u8| Tunnel {
            number,
            ends: [(0, PeerId(number.into())), (usize::from(number) - 1, PeerId(0))],
        };
        vec![tunnel(2), tunnel(3)]
    }

    /// Sends packets that the server's workers open and seal, and the other client opens.
    fn traffic(&mut self) {
        const PACKETS: u64 = 10;
        self.passed += PACKETS;
        for (from, to) in [(2, 3), (3, 2)] {
            let [sender, receiver] = [from, to].map(|n: u8| &self.nodes[usize::from(n) - 1].plane);
            for _ in 0..PACKETS {
                sender.apply(Command::SendData(PeerId(0), packet(from, to)));
            }
            // Without a device, the packets end at the other client, which has authenticated them.
            let end = Wall::now() + PATIENCE;
            while receiver.totals().dropped(DropReason::NoTun) != self.passed {
                assert!(Wall::now() < end, "packets arrive: {:?}", receiver.totals());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// A network and its keys.
struct World<N> {
    network: N,
    protection: Protection,
    seed: u8,
    secrets: Vec<Secret>,
}

impl<N: Network> World<N> {
    fn install(&mut self, slot: KeySlot, key_id: u8) {
        let planes = self.network.planes();
        for Tunnel { number, ends } in self.network.tunnels() {
            for ((plane, peer), at_server) in ends.into_iter().zip([true, false]) {
                let key = key(self.protection, self.seed + number, key_id, at_server);
                if at_server {
                    let name = format!("tunnel {number}'s key {key_id}:");
                    self.secrets.extend(of_key(&name, &key));
                }
                planes[plane].apply(Command::InstallKey(peer, slot, key));
            }
        }
    }

    fn apply(&self, op: impl Fn(PeerId) -> Command) {
        let planes = self.network.planes();
        for (plane, peer) in self.network.tunnels().into_iter().flat_map(|tunnel| tunnel.ends) {
            planes[plane].apply(op(peer));
        }
    }

    fn expect_in_use(&self) {
        let found = search(&self.secrets);
        assert!(found.iter().any(|found| found.contains("data key")), "{:?}", self.protection);
    }

    /// Checks that none of these secrets is left once each worker has run.
    fn expect_nothing_of(&self, secrets: &[Secret], what: &str) {
        let end = Wall::now() + PATIENCE;
        loop {
            let found = search(secrets);
            if found.is_empty() {
                return;
            }
            assert!(Wall::now() < end, "{:?}, {what}: {found:#?}", self.protection);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Installs, replaces and deletes the keys of a network, with traffic under each key, and searches after each removal.
fn nothing_is_left<N: Network>(network: impl Fn(Protection) -> N) {
    let _alone = alone();
    let block = BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha256) };
    for (protection, seed) in [
        Protection::Aead(Cipher::Aes256Gcm),
        Protection::Aead(Cipher::ChaCha20Poly1305),
        Protection::Epoch(Cipher::Aes256Gcm),
        Protection::Epoch(Cipher::ChaCha20Poly1305),
        Protection::Block(block),
        Protection::Static(block),
    ]
    .into_iter()
    .zip((100..).step_by(10))
    {
        let network = network(protection);
        let mut world = World { network, protection, seed, secrets: Vec::new() };
        world.install(KeySlot::Primary, 0);
        world.network.traffic();
        world.expect_in_use();
        // A static key is never replaced.
        if !matches!(protection, Protection::Static(_)) {
            let first = std::mem::take(&mut world.secrets);
            world.install(KeySlot::Secondary, 1);
            world.apply(Command::SwapKeys);
            world.network.traffic();
            world.apply(|peer| Command::DelKey(peer, KeySlot::Secondary));
            world.expect_nothing_of(&first, "key deleted");
        }
        // The peers are removed, and their workers continue.
        world.expect_in_use();
        world.network.traffic();
        world.apply(Command::DelPeer);
        world.expect_nothing_of(&world.secrets, "peer deleted");
    }
}

#[test]
fn nothing_of_a_key_is_left_in_a_worker_after_it_was_deleted() {
    nothing_is_left(|protection| Relayed::new(protection, false));
}

#[test]
fn nothing_of_a_key_is_left_in_a_worker_of_streams() {
    nothing_is_left(|protection| Relayed::new(protection, true));
}

#[test]
fn nothing_of_a_key_is_left_in_a_worker_of_a_device() {
    adit_testbed::needs_root!();
    nothing_is_left(|protection| Devices::new(protection, false));
}

#[test]
fn nothing_of_a_key_is_left_in_a_worker_of_a_device_and_a_stream() {
    adit_testbed::needs_root!();
    nothing_is_left(|protection| Devices::new(protection, true));
}
