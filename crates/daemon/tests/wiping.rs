//! What is left of a session in the memory of its process: nothing that is secret. Alone in its process, because it
//! searches all of the writable memory, by /proc/self/mem.

use std::alloc::System;
use std::collections::VecDeque;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use adit_crypto::{BlockCipher, Cipher};
use adit_daemon::Wiping;
use adit_engine::verbs::KeySlot;
use adit_engine::{
    Engine, Grant, Input, Instant, Link, Notice, Op, Outbox, Output, PeerId, Question, Random,
    Reply, Target, UnixTime,
};
use adit_openvpn::client::{ClientConfig, ClientEngine, Credentials, Remote};
use adit_openvpn::negotiate::DataCipher;
use adit_openvpn::server::{Network4, ServerConfig, ServerEngine};
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{
    ClientTls, ClientTlsOptions, CommonTlsOptions, Pem, ServerTls, ServerTlsOptions,
};
use adit_plane::memory::Memory;
use adit_plane::{Relay, Upcall, Upcalls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use zeroize::{Zeroize, Zeroizing};

/// As in `adit` itself.
#[global_allocator]
static ALLOCATOR: Wiping<System> = Wiping(System);

/// What is searched for is kept only like this, or the search would find itself.
const MASK: u8 = 0xa5;
/// So many bytes of a secret count as the secret.
const PART: usize = 16;
const UNIX: UnixTime = UnixTime(1_800_000_000);
const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// A secret with its name, masked.
#[derive(Clone)]
struct Secret(String, Vec<u8>);

impl Secret {
    fn new(name: impl Into<String>, secret: &[u8]) -> Self {
        Self(name.into(), secret.iter().map(|byte| byte ^ MASK).collect())
    }
}

/// Searches the writable memory of the process; names what it finds, and where.
fn search(secrets: &[Secret]) -> Vec<String> {
    const CHUNK: usize = 1 << 20;
    let mut buffer = vec![0_u8; CHUNK + PART];
    let own = buffer.as_ptr() as u64..buffer.as_ptr() as u64 + buffer.len() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let memory = File::open("/proc/self/mem").unwrap();
    // Each part of 16 bytes of each secret, by its first byte.
    let mut parts: Vec<Vec<(usize, usize)>> = vec![Vec::new(); 256];
    for (n, Secret(_, masked)) in secrets.iter().enumerate() {
        for at in (0..=masked.len() - PART).step_by(PART) {
            parts[usize::from(masked[at] ^ MASK)].push((n, at));
        }
    }
    let mut found = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        let (from, to) = range.split_once('-').unwrap();
        let (from, to) =
            (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
        if !rights.starts_with("rw") || line.contains("[vvar") {
            continue;
        }
        let mut at = from;
        while at < to {
            let len = buffer.len().min((to - at) as usize);
            let Ok(read) = memory.read_at(&mut buffer[..len], at) else { break };
            for (n, window) in buffer[..read].windows(PART).enumerate() {
                for &(which, offset) in &parts[usize::from(window[0])] {
                    let Secret(name, masked) = &secrets[which];
                    let place = at + n as u64;
                    let same = || {
                        window
                            .iter()
                            .zip(&masked[offset..])
                            .all(|(byte, masked)| byte ^ MASK == *masked)
                    };
                    if !own.contains(&place) && same() {
                        let region = line.split_whitespace().nth(5).unwrap_or("anonymous");
                        found.push(format!("{name}, byte {offset}, at {place:x} in {region}"));
                    }
                }
            }
            at += CHUNK as u64;
        }
    }
    // It is too long for the allocator to wipe it.
    buffer.zeroize();
    found
}

struct Pki {
    ca: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        Self { ca, issuer: Issuer::new(params, key) }
    }

    fn common(&self, name: &str) -> CommonTlsOptions {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        CommonTlsOptions {
            ca: Some(Pem::new("ca", self.ca.as_bytes())),
            cert: Some(Pem::new("cert", cert.pem().as_bytes())),
            key: Some(Pem::new("key", key.serialize_pem().as_bytes())),
            ..CommonTlsOptions::default()
        }
    }
}

/// An engine with its data plane.
struct End<E: Engine> {
    engine: E,
    plane: Memory,
    upcalls: Upcalls,
    /// Where the other end is.
    link: Link,
}

struct World {
    now: Instant,
    server: End<ServerEngine>,
    client: End<ClientEngine>,
    secrets: Vec<Secret>,
    asked: usize,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn clock() -> Instant {
    START
}

fn plane(client: bool) -> (Memory, Upcalls) {
    Memory::new(Relay::Kernel, client, true, clock).unwrap()
}

impl World {
    fn new(settings: &Settings, seed: u8, password: &[u8]) -> Self {
        let pki = Pki::new();
        let network = Network4::subnet(
            "10.9.0.1/24".parse().unwrap(),
            "10.9.0.2".parse().unwrap(),
            "10.9.0.254".parse().unwrap(),
        );
        let options = ServerTlsOptions { common: pki.common("server"), ..Default::default() };
        let config = ServerConfig {
            settings: settings.clone(),
            tls: ServerTls::new(options).unwrap(),
            network4: Some(network),
            network6: None,
            push: Vec::new(),
            push_keepalive: None,
            max_clients: 10,
            duplicate_cn: false,
            leases: Vec::new(),
            force_cookie: false,
            authorize: true,
            compress_migrate: false,
        };
        let target = Target { host: "vpn.example".into(), port: 1194, ..Target::default() };
        let tls = ClientTls::new(ClientTlsOptions { common: pki.common("client") }).unwrap();
        let mut client = ClientConfig::new(settings.clone(), tls, vec![Remote { target }]);
        let mut own = Zeroizing::new(String::with_capacity(password.len()));
        password.iter().for_each(|byte| own.push(char::from(byte ^ MASK)));
        client.credentials = Some(Credentials { username: "alice".into(), password: own });
        let server = ServerEngine::new(config, [seed; 32], START, UNIX).unwrap();
        let client = ClientEngine::new(client, [seed ^ 0xff; 32], START, UNIX);
        let end = |client| {
            let (plane, upcalls) = plane(client);
            (
                plane,
                upcalls,
                Link::datagram(Default::default(), None, address(if client { 1194 } else { 4000 })),
            )
        };
        let ((sp, su, sl), (cp, cu, cl)) = (end(false), end(true));
        Self {
            now: START,
            server: End { engine: server, plane: sp, upcalls: su, link: sl },
            client: End { engine: client, plane: cp, upcalls: cu, link: cl },
            secrets: Vec::new(),
            asked: 0,
        }
    }

    /// Runs both ends for so long.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut to_server: VecDeque<Vec<u8>> = VecDeque::new();
        let mut to_client: VecDeque<Vec<u8>> = VecDeque::new();
        while self.now < end {
            let mut out = Outbox::new();
            match to_server.pop_front() {
                Some(mut frame) => {
                    let input = Input::Frame(self.server.link, &mut frame);
                    self.server.engine.handle(self.now, input, &mut out);
                }
                None => self.server.engine.handle(self.now, Input::Tick, &mut out),
            }
            let mut answers = Vec::new();
            while let Some(output) = out.pop() {
                match output {
                    Output::Send(_, frame) => to_client.push_back(frame),
                    Output::Plane(op) => apply(&mut self.secrets, &self.server.plane, "server", op),
                    Output::Ask(ticket, Question::Authorize(identity)) => {
                        self.asked += usize::from(identity.password.is_some());
                        answers.push(ticket);
                    }
                    _ => {}
                }
            }
            let mut out = Outbox::new();
            for ticket in answers {
                let input = Input::Answer(ticket, Reply::Accept(Grant::default()));
                self.server.engine.handle(self.now, input, &mut out);
            }
            while let Some(output) = out.pop() {
                match output {
                    Output::Send(_, frame) => to_client.push_back(frame),
                    Output::Plane(op) => apply(&mut self.secrets, &self.server.plane, "server", op),
                    _ => {}
                }
            }
            let mut out = Outbox::new();
            match to_client.pop_front() {
                Some(mut frame) => {
                    let input = Input::Frame(self.client.link, &mut frame);
                    self.client.engine.handle(self.now, input, &mut out);
                }
                None => self.client.engine.handle(self.now, Input::Tick, &mut out),
            }
            let mut dialled = false;
            while let Some(output) = out.pop() {
                match output {
                    Output::Send(_, frame) => to_server.push_back(frame),
                    Output::Plane(op) => apply(&mut self.secrets, &self.client.plane, "client", op),
                    Output::Dial(_) => dialled = true,
                    _ => {}
                }
            }
            if dialled {
                let mut out = Outbox::new();
                let input = Input::LinkUp(self.client.link);
                self.client.engine.handle(self.now, input, &mut out);
                while let Some(output) = out.pop() {
                    if let Output::Send(_, frame) = output {
                        to_server.push_back(frame);
                    }
                }
            }
            self.now = self.now + Duration::from_millis(1);
        }
    }

    /// A packet each way under the newest key.
    fn traffic(&mut self) {
        let packet = |from: u8, to: u8| {
            let mut packet = vec![0; 60];
            packet[0] = 0x45;
            packet[3] = 60;
            (packet[8], packet[9]) = (64, 17);
            packet[12..16].copy_from_slice(&[10, 9, 0, from]);
            packet[16..20].copy_from_slice(&[10, 9, 0, to]);
            packet
        };
        let mut sent = Vec::new();
        self.client
            .plane
            .plane()
            .apply(Op::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
        self.client.plane.seal(&Default::default(), &mut packet(2, 1), |train, _| {
            sent.push(train.to_vec());
        });
        let (link, mut passed) = (self.server.link, 0);
        for mut datagram in sent {
            let len = datagram.len();
            self.server.plane.open(&link, len, &mut datagram, |_| passed += 1);
        }
        assert_eq!(passed, 1, "the session carries packets");
        let mut notices = Vec::new();
        self.server.upcalls.drain(|upcall| {
            if let Upcall::Notice(notice) = upcall {
                notices.push(notice);
            }
        });
        for notice in notices {
            self.server.engine.handle(self.now, Input::Notice(notice), &mut Outbox::new());
        }
        self.client.upcalls.drain(|_| ());
    }
}

/// Applies a verb; of keys, remembers what they are.
fn apply(secrets: &mut Vec<Secret>, plane: &Memory, end: &str, op: Op) {
    if let Op::InstallKey(_, slot, key) = &op {
        let slot = if *slot == KeySlot::Primary { "first" } else { "next" };
        for (direction, half) in [("seal", &key.seal), ("open", &key.open)] {
            let name = |part| format!("{end}'s {slot} data key to {direction}, {part}");
            secrets.push(Secret::new(name("cipher"), &half.cipher));
            secrets.push(Secret::new(name("hmac"), &half.hmac));
        }
    }
    plane.plane().apply(op);
}

/// What the client's key method 2 message is made of: all that its generator gave out, but for what travels in clear.
fn key_method(seed: u8) -> Vec<Secret> {
    let mut random = Random::new([seed ^ 0xff; 32]);
    let mut secrets = Vec::new();
    // The session id.
    random.fill(&mut [0; 8]);
    for part in ["first random bytes", "second random bytes"] {
        secrets.push(Secret::new(format!("client's {part}"), &random.bytes::<32>()));
    }
    secrets.push(Secret::new("client's pre-master secret", &random.bytes::<48>()));
    secrets
}

/// One session from its start to its end.
fn session(settings: &Settings, seed: u8) -> Vec<Secret> {
    let password =
        Secret::new("password", &[b"only-to-be-found-", &[b'A' + seed; 20][..]].concat());
    let mut world = World::new(settings, seed, &password.1);
    world.run(Duration::from_millis(500));
    assert_eq!(world.server.engine.clients().count(), 1, "a session");
    assert_eq!(world.asked, 1, "the registry was asked about the password");
    world.traffic();
    // And a renegotiation.
    let mut out = Outbox::new();
    let near = Input::Notice(Notice::KeyNearLimit(PeerId(0), 0));
    world.server.engine.handle(world.now, near, &mut out);
    drop(out);
    world.run(Duration::from_millis(3000));
    let mut secrets = key_method(seed);
    secrets.append(&mut world.secrets);
    assert!(secrets.len() >= 3 + 8, "data keys: {}", secrets.len());
    secrets.push(password);
    adit_crypto::scrub_stack();
    // The search finds what is there: the client keeps its password for renegotiations, the planes their keys.
    let found = search(&secrets);
    assert!(found.iter().any(|found| found.starts_with("password")), "{found:#?}");
    assert!(found.iter().any(|found| found.contains("data key")), "{found:#?}");
    drop(world);
    secrets
}

#[test]
fn nothing_secret_of_a_session_is_left_in_memory_after_its_end() {
    let ciphers = [
        DataCipher::Aead(Cipher::Aes256Gcm),
        DataCipher::Aead(Cipher::ChaCha20Poly1305),
        DataCipher::Block(Some(BlockCipher::Aes256Cbc)),
    ];
    for (seed, cipher) in (1..).zip(ciphers) {
        let settings = Settings { ciphers: vec![cipher], ..Settings::default() };
        let secrets = session(&settings, seed);
        adit_crypto::scrub_stack();
        let found = search(&secrets);
        assert!(found.is_empty(), "{cipher:?}: {found:#?}");
    }
}
