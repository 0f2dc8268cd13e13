//! Keys in worker threads: on their stacks, in the snapshots that they read, in what they free.

use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use adit_crypto::{BlockCipher, Cipher, Digest, KeyHalf};
use adit_engine::verbs::{
    BlockSuite, DataKey, Framing, InnerMtu, Keepalive, KeyLimits, KeySlot, PeerSpec, Protection,
};
use adit_engine::{Instant, Link, Op, PeerId, SocketId};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_plane::{DropReason, Offloads, Plane, PlaneConfig, Relay, Upcalls};

use crate::alone;
use crate::search::{MASK, Secret, of_key, search};

/// Long enough for the busiest machine; nothing waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(30);

fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

struct Node {
    plane: Plane,
    _upcalls: Upcalls,
    socket: Arc<UdpSocket>,
}

impl Node {
    fn new(client: bool) -> Self {
        let socket = UdpSocket::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        let socket = Arc::new(socket);
        let config = PlaneConfig {
            tun: None,
            sockets: vec![(SocketId(3), Arc::clone(&socket))],
            relay: if client { Relay::Kernel } else { Relay::Direct },
            gates: Offloads::ALL,
            client,
            ethernet: false,
        };
        let (plane, _upcalls) = Plane::start(config, boot_clock).unwrap();
        Self { plane, _upcalls, socket }
    }

    fn add(&self, id: PeerId, wire_id: Option<u32>, other: &Self) {
        let link = Link::datagram(SocketId(3), None, other.socket.local_addr());
        let spec = PeerSpec {
            link,
            wire_id,
            float: true,
            framing: Framing::None,
            decompress: None,
            fragment: None,
            keepalive: Keepalive::default(),
            mtu: InnerMtu::default(),
            replay_window: 64,
        };
        self.plane.apply(Op::AddPeer(id, spec));
        // Those of the clients' packets.
        let inside = if wire_id == Some(2) || id.0 == 2 { "10.8.0.2/32" } else { "10.8.0.3/32" };
        let inside = if id.0 == 0 { "0.0.0.0/0" } else { inside };
        self.plane.apply(Op::SetRoutes(id, vec![inside.parse().unwrap()]));
    }

    fn until(&self, what: &str, done: impl Fn(&Plane) -> bool) {
        let end = Wall::now() + PATIENCE;
        while !done(&self.plane) {
            assert!(Wall::now() < end, "{what}: {:?}", self.plane.totals());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Key material that is in no other place of the memory, made in place.
fn key(protection: Protection, seed: u8, key_id: u8, at_server: bool) -> Box<DataKey> {
    let half = || KeyHalf { cipher: [0; 64], hmac: [0; 64] };
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

/// The inner packet of one client to the other.
fn packet(from: u8, to: u8) -> Vec<u8> {
    let mut packet = vec![0x61; 120];
    let header = [0x45, 0, 0, 120, 0, 0, 0, 0, 64, 253, 0, 0, 10, 8, 0, from, 10, 8, 0, to];
    packet[..20].copy_from_slice(&header);
    let sum = adit_wire::checksum::Sum::new().bytes(&header).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A server and two clients, each with a worker, and the keys of both.
struct World {
    server: Node,
    clients: [(u8, Node); 2],
    protection: Protection,
    seed: u8,
    secrets: Vec<Secret>,
    passed: u64,
}

impl World {
    fn new(protection: Protection, seed: u8) -> Self {
        let server = Node::new(false);
        let clients = [(2, Node::new(true)), (3, Node::new(true))];
        for (n, client) in &clients {
            // A static key has no packets with a peer-id.
            let wire_id = match protection {
                Protection::Static(_) => None,
                _ => Some(u32::from(*n)),
            };
            server.add(PeerId((*n).into()), wire_id, client);
            client.add(PeerId(0), wire_id, &server);
        }
        Self { server, clients, protection, seed, secrets: Vec::new(), passed: 0 }
    }

    fn install(&mut self, slot: KeySlot, key_id: u8) {
        for (n, client) in &self.clients {
            for (plane, id, at_server) in
                [(&self.server.plane, u32::from(*n), true), (&client.plane, 0, false)]
            {
                let key = key(self.protection, self.seed + n, key_id, at_server);
                if at_server {
                    self.secrets.extend(of_key(&format!("client {n}'s key {key_id}:"), &key));
                }
                plane.apply(Op::InstallKey(PeerId(id), slot, key));
            }
        }
    }

    /// Packets from each client to the other: the server's worker opens and seals, the other's opens.
    fn traffic(&mut self) {
        const PACKETS: u64 = 10;
        self.passed += PACKETS;
        for (from, to) in [(0, 1), (1, 0)] {
            let ((a, sender), (b, receiver)) = (&self.clients[from], &self.clients[to]);
            for _ in 0..PACKETS {
                sender.plane.apply(Op::SendData(PeerId(0), packet(*a, *b)));
            }
            let passed = self.passed;
            // Without a device the packets end at the other client, authentic.
            receiver.until(&format!("{:?}: packets arrive", self.protection), |plane| {
                plane.totals().dropped(DropReason::NoTun) == passed
            });
        }
    }

    fn planes(&self) -> impl Iterator<Item = (&Plane, Vec<PeerId>)> {
        let clients = self.clients.iter().map(|(_, client)| (&client.plane, vec![PeerId(0)]));
        clients.chain([(&self.server.plane, vec![PeerId(2), PeerId(3)])])
    }

    fn apply(&self, op: impl Fn(PeerId) -> Op) {
        for (plane, peers) in self.planes() {
            peers.into_iter().for_each(|peer| plane.apply(op(peer)));
        }
    }

    /// Nothing of these is left once the workers have had their turn.
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

#[test]
fn nothing_of_a_key_is_left_in_a_worker_after_it_was_deleted() {
    let _alone = alone();
    let block = |cipher| BlockSuite { cipher, digest: Some(Digest::Sha256) };
    for (protection, seed) in [
        Protection::Aead(Cipher::Aes256Gcm),
        Protection::Aead(Cipher::ChaCha20Poly1305),
        Protection::Epoch(Cipher::Aes256Gcm),
        Protection::Epoch(Cipher::ChaCha20Poly1305),
        Protection::Block(block(Some(BlockCipher::Aes256Cbc))),
        Protection::Static(block(Some(BlockCipher::Aes256Cbc))),
    ]
    .into_iter()
    .zip((100..).step_by(10))
    {
        let mut world = World::new(protection, seed);
        world.install(KeySlot::Primary, 0);
        world.traffic();
        let found = search(&world.secrets);
        assert!(found.iter().any(|found| found.contains("data key")), "{protection:?}");
        // A static key is never replaced.
        if !matches!(protection, Protection::Static(_)) {
            let first = std::mem::take(&mut world.secrets);
            world.install(KeySlot::Secondary, 1);
            world.apply(Op::SwapKeys);
            world.traffic();
            world.apply(|peer| Op::DelKey(peer, KeySlot::Secondary));
            world.expect_nothing_of(&first, "key deleted");
        }
        // The peers go, and their workers go on.
        let found = search(&world.secrets);
        assert!(found.iter().any(|found| found.contains("data key")), "{protection:?}");
        world.traffic();
        world.apply(Op::DelPeer);
        world.expect_nothing_of(&world.secrets, "peer deleted");
    }
}
