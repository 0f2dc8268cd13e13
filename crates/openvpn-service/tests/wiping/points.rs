//! Two point-to-point ends without a server, with a static key and with TLS.

use std::collections::VecDeque;
use std::time::Duration;

use adit_crypto::{BlockCipher, Cipher, Digest};
use adit_dataplane::Relay;
use adit_dataplane::loopback::LoopbackOutput;
use adit_engine::command::Keepalive;
use adit_engine::{Engine, Instant, Link, PeerId, Random, Target};
use adit_openvpn::client::{ClientEvent, Remote};
use adit_openvpn::data_format::{BlockSuite, Command, Input, Notice, OpenVpn, Outbox, Output};
use adit_openvpn::keys::{Direction, StaticKey};
use adit_openvpn::negotiate::DataCipher;
use adit_openvpn::p2p::{
    Ifconfig4, PeerConfig, PeerEngine, PeerTls, RemotePolicy, StaticConfig, StaticEngine,
    TunnelAddrs,
};
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{ClientTls, ClientTlsOptions, ServerTls, ServerTlsOptions};
use adit_openvpn_data::{LoopbackPlane, Upcall, Upcalls};

use crate::alone;
use crate::pki::Pki;
use crate::search::{MASK, Secret, aside, key_method_copies, search};
use crate::server::{START, UNIX, address, apply, clock};

enum Kind {
    Static(Box<StaticEngine>),
    Peer(Box<PeerEngine>),
}

impl Kind {
    fn engine(&mut self) -> &mut dyn Engine<Event = ClientEvent, Format = OpenVpn> {
        match self {
            Self::Static(engine) => &mut **engine,
            Self::Peer(engine) => &mut **engine,
        }
    }

    fn shutdown(&mut self, now: Instant, out: &mut Outbox<ClientEvent>) {
        match self {
            Self::Static(engine) => engine.shutdown(now, out),
            Self::Peer(engine) => engine.shutdown(now, out),
        }
    }
}

/// One end of the tunnel.
struct Point {
    name: &'static str,
    engine: Kind,
    plane: LoopbackPlane,
    upcalls: Upcalls,
    /// The link to the other end.
    link: Link,
    /// Frames in transit to this end.
    inbox: VecDeque<Vec<u8>>,
}

struct World {
    now: Instant,
    points: [Point; 2],
    secrets: Vec<Secret>,
    /// The secrets of the first negotiation, until they have been found in use.
    key_method: Vec<Secret>,
    ups: usize,
}

fn remote_policy() -> RemotePolicy {
    let target = Target { host: "peer.example".into(), port: 1194, ..Target::default() };
    RemotePolicy::new(vec![Remote { target }])
}

fn tunnel_addrs(n: u8) -> TunnelAddrs {
    let inside = |n: u8| [10, 9, 0, n].into();
    TunnelAddrs { ipv4: Some(Ifconfig4::Pair(inside(1 + n), inside(2 - n))), ipv6: None }
}

impl World {
    fn new(engines: [Kind; 2], key_method: Vec<Secret>) -> Self {
        let mut n = 0;
        let points = engines.map(|engine| {
            let (plane, upcalls) = LoopbackPlane::new(Relay::Kernel, true, true, clock).unwrap();
            let link = Link::datagram(Default::default(), None, address(4001 - n));
            n += 1;
            let name = if n == 1 { "first point" } else { "second point" };
            Point { name, engine, plane, upcalls, link, inbox: VecDeque::new() }
        });
        Self { now: START, points, secrets: Vec::new(), key_method, ups: 0 }
    }

    /// Runs both ends for this long.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for n in [0, 1] {
                let Point { engine, inbox, link, .. } = &mut self.points[n];
                let mut out = Outbox::new();
                match inbox.pop_front() {
                    Some(mut frame) => {
                        let input = Input::ControlPacket(*link, &mut frame);
                        engine.engine().handle(self.now, input, &mut out);
                    }
                    None => engine.engine().handle(self.now, Input::Tick, &mut out),
                }
                self.perform(n, out);
            }
            self.now = self.now + Duration::from_millis(1);
        }
    }

    fn perform(&mut self, n: usize, mut out: Outbox<ClientEvent>) {
        let mut dialled = false;
        while let Some(output) = out.pop() {
            match output {
                Output::Send(_, frame) => self.points[1 - n].inbox.push_back(frame),
                Output::Plane(op) => {
                    let derives =
                        matches!(op, Command::InstallKey(..)) && self.points[n].is_server();
                    let point = &self.points[n];
                    apply(&mut self.secrets, &point.plane, point.name, op);
                    // The client has yet to derive its keys.
                    for secret in
                        derives.then(|| std::mem::take(&mut self.key_method)).into_iter().flatten()
                    {
                        assert!(
                            !search(std::slice::from_ref(&secret)).is_empty(),
                            "{} is not in use",
                            secret.0
                        );
                    }
                }
                Output::Dial(_) => dialled = true,
                Output::Event(ClientEvent::Up(_)) => self.ups += 1,
                _ => {}
            }
        }
        if dialled {
            let mut out = Outbox::new();
            let input = Input::LinkUp(self.points[n].link);
            self.points[n].engine.engine().handle(self.now, input, &mut out);
            self.perform(n, out);
        }
    }

    /// Sends a packet from each end to the other.
    fn traffic(&mut self) {
        for n in [0, 1] {
            let mut packet = vec![0; 60];
            (packet[0], packet[3], packet[8], packet[9]) = (0x45, 60, 64, 17);
            packet[12..16].copy_from_slice(&[10, 9, 0, n as u8 + 1]);
            packet[16..20].copy_from_slice(&[10, 9, 0, 2 - n as u8]);
            let mut sent = Vec::new();
            self.points[n].plane.seal(&Default::default(), &mut packet, |train, _| {
                sent.push(train.to_vec());
            });
            let Point { plane, link, .. } = &mut self.points[1 - n];
            let mut passed = 0;
            for mut datagram in sent {
                let len = datagram.len();
                plane.open(link, len, &mut datagram, |what| {
                    passed += usize::from(matches!(what, LoopbackOutput::Tun(_)));
                });
            }
            assert_eq!(passed, 1, "from {}", self.points[n].name);
        }
        for n in [0, 1] {
            let mut notices = Vec::new();
            self.points[n].upcalls.drain(|upcall| {
                if let Upcall::Notice(notice) = upcall {
                    notices.push(notice);
                }
            });
            for notice in notices {
                self.notice(n, notice);
            }
        }
    }

    fn notice(&mut self, n: usize, notice: Notice) {
        let mut out = Outbox::new();
        self.points[n].engine.engine().handle(self.now, Input::Notice(notice), &mut out);
        self.perform(n, out);
    }

    fn shutdown(&mut self) {
        for n in [0, 1] {
            let mut out = Outbox::new();
            self.points[n].engine.shutdown(self.now, &mut out);
            self.perform(n, out);
            self.run(Duration::from_secs(15));
        }
    }
}

impl Point {
    fn is_server(&self) -> bool {
        matches!(self.engine, Kind::Peer(_)) && self.name == "first point"
    }
}

/// Runs a tunnel from start to end, and searches for its secrets. If `renegotiates`, each end has two keys before it
/// ends, otherwise one.
fn tunnel(name: &str, mut world: World, mut secrets: Vec<Secret>, renegotiates: bool) {
    world.run(Duration::from_millis(500));
    world.traffic();
    assert_eq!(world.ups, 2, "{name}: both points are up");
    assert!(world.key_method.is_empty(), "{name}");
    if renegotiates {
        world.notice(0, Notice::KeyNearLimit(PeerId(0), 0));
        world.run(Duration::from_millis(3000));
        world.traffic();
    }
    let keys = |slot: &str| world.secrets.iter().filter(|secret| secret.0.contains(slot)).count();
    assert!(keys("first data key") >= 8, "{name}");
    assert_eq!(keys("next data key") >= 8, renegotiates, "{name}");
    secrets.append(&mut world.secrets);
    let found = search(&secrets);
    assert!(found.iter().any(|found| found.contains("data key")), "{name}: {found:#?}");
    // One copy of the key material of the first data keys is left, in rustls's receive buffer.
    let copies = key_method_copies(&found);
    assert!(copies <= 1, "{name}, in use: {found:#?}");
    world.shutdown();
    if renegotiates {
        // Both processes continue.
        let found = search(&secrets);
        assert!(found.is_empty(), "{name}, ended: {found:#?}");
    }
    drop(world);
    let found = search(&secrets);
    assert!(found.is_empty(), "{name}, gone: {found:#?}");
}

#[test]
fn nothing_of_a_static_key_is_left_after_the_end() {
    let _alone = alone();
    for (seed, direction, cipher) in [
        (11, None, Some(BlockCipher::Aes256Cbc)),
        (12, Some(Direction::Normal), Some(BlockCipher::Aes128Cbc)),
        (13, Some(Direction::Normal), None),
    ] {
        let masked: Vec<u8> = bytes(seed, StaticKey::LEN);
        let engine = |n: u8| {
            let key = StaticKey::generate(|to| {
                to.iter_mut().zip(&masked).for_each(|(to, byte)| *to = byte ^ MASK);
            });
            let direction = match (direction, n) {
                (Some(_), 1) => Some(Direction::Inverse),
                (direction, _) => direction,
            };
            let suite = BlockSuite { cipher, digest: Some(Digest::Sha256) };
            let (remote_policy, tunnel_addrs) = (remote_policy(), tunnel_addrs(n));
            let keepalive =
                Keepalive { interval: Duration::from_secs(1), timeout: Duration::from_secs(60) };
            let settings = Settings { keepalive, ..Settings::default() };
            let config =
                StaticConfig { settings, key, direction, suite, remote_policy, tunnel_addrs };
            Kind::Static(Box::new(StaticEngine::new(config)))
        };
        let key = Secret("static key".into(), masked.clone());
        tunnel(
            &format!("{direction:?}, {cipher:?}"),
            World::new([0, 1].map(engine), Vec::new()),
            vec![key],
            false,
        );
    }
}

/// Returns bytes that occur at no other place in memory.
fn bytes(seed: u8, len: usize) -> Vec<u8> {
    let mut random = Random::new([seed; 32]);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Returns the secrets of the client's key method 2 message, as [`PeerEngine`] requests them from its generator.
fn key_method(seed: u8) -> Vec<Secret> {
    aside(|| derive_key_method(seed))
}

#[inline(never)]
fn derive_key_method(seed: u8) -> Vec<Secret> {
    let mut random = Random::new([seed; 32]);
    // The session id.
    random.fill(&mut [0; 8]);
    let pre_master = Secret::new("client's pre-master secret", &random.bytes::<48>());
    let randoms = ["first random bytes", "second random bytes"]
        .map(|part| Secret::new(format!("client's {part}"), &random.bytes::<32>()));
    [pre_master].into_iter().chain(randoms).collect()
}

#[test]
fn nothing_of_a_session_between_two_points_is_left_after_its_end() {
    let _alone = alone();
    let ciphers = [
        DataCipher::Aead(Cipher::Aes256Gcm),
        DataCipher::Aead(Cipher::ChaCha20Poly1305),
        DataCipher::Block(Some(BlockCipher::Aes256Cbc)),
    ];
    for (seed, cipher) in (21..).zip(ciphers) {
        let pki = Pki::new();
        let settings =
            Settings { ciphers: vec![cipher], exit_notify: Some(1), ..Settings::default() };
        let engine = |n: u8| {
            let tls = match n {
                0 => {
                    let common = pki.common("first");
                    let options = ServerTlsOptions { common, ..Default::default() };
                    PeerTls::Server(ServerTls::new(options).unwrap())
                }
                _ => {
                    let common = pki.common("second");
                    PeerTls::Client(ClientTls::new(ClientTlsOptions { common }).unwrap())
                }
            };
            let settings = settings.clone();
            let (remote_policy, tunnel_addrs) = (remote_policy(), tunnel_addrs(n));
            let config =
                PeerConfig { settings, tls, force_cookie: false, remote_policy, tunnel_addrs };
            let seed = [seed + 100 * (1 - n); 32];
            Kind::Peer(Box::new(PeerEngine::new(config, seed, START, UNIX).unwrap()))
        };
        let world = World::new([0, 1].map(engine), key_method(seed));
        tunnel(&format!("{cipher:?}"), world, key_method(seed), true);
    }
}
