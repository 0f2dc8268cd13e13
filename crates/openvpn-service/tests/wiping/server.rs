//! A client and a server.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use adit_crypto::{BlockCipher, Cipher};
use adit_dataplane::Relay;
use adit_engine::command::KeySlot;
use adit_engine::{Engine, Instant, Link, PeerId, Random, Target, Transport, UnixTime, auth};
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent, Credentials, Remote};
use adit_openvpn::data_format::{Command, Input, Notice, Outbox, Output};
use adit_openvpn::negotiate::DataCipher;
use adit_openvpn::server::{Network4, ServerConfig, ServerEngine};
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{ClientTls, ClientTlsOptions, ServerTls, ServerTlsOptions};
use adit_openvpn_data::{LoopbackPlane, Upcall, Upcalls};
use zeroize::Zeroizing;

use crate::alone;
use crate::pki::Pki;
use crate::search::{MASK, Secret, aside, key_method_copies, of_key, search};

pub(crate) const UNIX: UnixTime = UnixTime(1_800_000_000);
pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// The length of the longest packet on a stream.
const MAX_FRAME: usize = 9600;

/// An engine with its data plane.
struct End<E: Engine> {
    engine: E,
    plane: LoopbackPlane,
    upcalls: Upcalls,
    /// The link to the other end.
    link: Link,
}

struct World {
    now: Instant,
    server: End<ServerEngine>,
    client: End<ClientEngine>,
    secrets: Vec<Secret>,
    /// The secrets of the first negotiation, until they have been found in use.
    key_method: Vec<Secret>,
    asked: usize,
    /// Frames in transit to the server.
    to_server: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
}

pub(crate) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

pub(crate) fn clock() -> Instant {
    START
}

fn plane(client: bool) -> (LoopbackPlane, Upcalls) {
    LoopbackPlane::new(Relay::Kernel, client, true, clock).unwrap()
}

impl World {
    fn new(settings: &Settings, transport: Transport, seed: u8, password: &[u8]) -> Self {
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
            checks: Default::default(),
            compress_migrate: false,
            vlans: None,
        };
        let target =
            Target { host: "vpn.example".into(), port: 1194, transport, ..Target::default() };
        let tls = ClientTls::new(ClientTlsOptions { common: pki.common("client") }).unwrap();
        let settings = Settings { exit_notify: Some(1), ..settings.clone() };
        let mut client = ClientConfig::new(settings, tls, vec![Remote { target }]);
        let mut own = Zeroizing::new(String::with_capacity(password.len()));
        password.iter().for_each(|byte| own.push(char::from(byte ^ MASK)));
        client.credentials = Some(Credentials { username: "alice".into(), password: own });
        let server = ServerEngine::new(config, [seed; 32], START, UNIX).unwrap();
        let client = ClientEngine::new(client, [seed ^ 0xff; 32], START, UNIX);
        let end = |client| {
            let (plane, upcalls) = plane(client);
            let remote = address(if client { 1194 } else { 4000 });
            let link = match transport {
                Transport::Tcp => Link::stream(1, remote),
                Transport::Udp => Link::datagram(Default::default(), None, remote),
            };
            (plane, upcalls, link)
        };
        let ((sp, su, sl), (cp, cu, cl)) = (end(false), end(true));
        Self {
            now: START,
            server: End { engine: server, plane: sp, upcalls: su, link: sl },
            client: End { engine: client, plane: cp, upcalls: cu, link: cl },
            secrets: Vec::new(),
            key_method: key_method(seed),
            asked: 0,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
        }
    }

    /// Runs both ends for this long.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            match self.to_server.pop_front() {
                Some(mut frame) => {
                    self.at_server(Input::ControlPacket(self.server.link, &mut frame));
                }
                None => self.at_server(Input::Tick),
            }
            self.expect_key_method();
            match self.to_client.pop_front() {
                Some(mut frame) => {
                    self.at_client(Input::ControlPacket(self.client.link, &mut frame));
                }
                None => self.at_client(Input::Tick),
            }
            self.now = self.now + Duration::from_millis(1);
        }
    }

    /// Passes an input to the server, and accepts every client.
    fn at_server(&mut self, input: Input<'_>) {
        let mut out = Outbox::new();
        self.server.engine.handle(self.now, input, &mut out);
        while let Some(output) = out.pop() {
            match output {
                Output::Send(_, frame) => self.to_client.push_back(frame),
                Output::Plane(op) => apply(&mut self.secrets, &self.server.plane, "server", op),
                Output::AuthRequest(ticket, auth::Request::Authorize(identity)) => {
                    self.asked += usize::from(identity.password.is_some());
                    drop(identity);
                    self.at_server(Input::AuthResponse(
                        ticket,
                        auth::Response::Accept(auth::ClientParams::default()),
                    ));
                }
                _ => {}
            }
        }
    }

    fn at_client(&mut self, input: Input<'_>) {
        let mut out = Outbox::new();
        self.client.engine.handle(self.now, input, &mut out);
        self.perform(out);
    }

    /// Performs the client's outputs.
    fn perform(&mut self, mut out: Outbox<ClientEvent>) {
        while let Some(output) = out.pop() {
            match output {
                Output::Send(_, frame) => self.to_server.push_back(frame),
                Output::Plane(op) => apply(&mut self.secrets, &self.client.plane, "client", op),
                Output::Dial(_) => {
                    let streams = self.server.link.is_stream();
                    if streams {
                        self.at_server(Input::LinkUp(self.server.link));
                    }
                    self.at_client(Input::LinkUp(self.client.link));
                }
                _ => {}
            }
        }
    }

    /// Checks that the server has derived its first data keys and the client has not.
    fn expect_key_method(&mut self) {
        if !self.secrets.is_empty() {
            for secret in std::mem::take(&mut self.key_method) {
                assert!(
                    !search(std::slice::from_ref(&secret)).is_empty(),
                    "{} is not in use",
                    secret.0
                );
            }
        }
    }

    /// Disconnects the client.
    fn end(&mut self) {
        let mut out = Outbox::new();
        self.client.engine.shutdown(self.now, &mut out);
        self.perform(out);
        self.run(Duration::from_secs(15));
        if self.server.link.is_stream() {
            self.at_server(Input::LinkDown(self.server.link));
        }
        assert_eq!(self.server.engine.clients().count(), 0, "the session has ended");
    }

    /// Sends a packet each way under the newest key.
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
            .apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
        self.client.plane.seal(&Default::default(), &mut packet(2, 1), |train, _| {
            sent.push(train.to_vec());
        });
        let (link, mut passed) = (self.server.link, 0);
        for mut datagram in sent {
            let len = datagram.len();
            let End { plane, .. } = &mut self.server;
            if link.is_stream() {
                plane.open_stream(&link, MAX_FRAME, &mut datagram, |_| passed += 1).unwrap();
            } else {
                plane.open(&link, len, &mut datagram, |_| passed += 1);
            }
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

/// Applies a command to the plane, and records the secrets of any key that it installs.
pub(crate) fn apply(secrets: &mut Vec<Secret>, plane: &LoopbackPlane, end: &str, op: Command) {
    if let Command::InstallKey(_, slot, key) = &op {
        let slot = if *slot == KeySlot::Primary { "first" } else { "next" };
        secrets.extend(of_key(&format!("{end}'s {slot}"), key));
    }
    plane.plane().apply(op);
}

/// Returns the secrets of the client's key method 2 message: all output of its generator except the parts sent in the clear.
fn key_method(seed: u8) -> Vec<Secret> {
    aside(|| derive_key_method(seed))
}

#[inline(never)]
fn derive_key_method(seed: u8) -> Vec<Secret> {
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

/// Runs one session from start to end.
fn session(settings: &Settings, transport: Transport, seed: u8) {
    let password =
        Secret::new("password", &[b"only-to-be-found-", &[b'A' + seed; 20][..]].concat());
    let mut world = World::new(settings, transport, seed, &password.1);
    world.run(Duration::from_millis(500));
    assert_eq!(world.server.engine.clients().count(), 1, "a session");
    assert_eq!(world.asked, 1, "the registry was asked about the password");
    world.traffic();
    // Then a renegotiation.
    world.at_server(Input::Notice(Notice::KeyNearLimit(PeerId(0), 0)));
    world.run(Duration::from_millis(3000));
    let mut secrets = key_method(seed);
    secrets.append(&mut world.secrets);
    assert!(secrets.len() >= 3 + 8, "data keys: {}", secrets.len());
    // The search finds secrets in use. The client keeps its password for renegotiations, and the planes keep their
    // keys.
    let found = search(&[&secrets[..], std::slice::from_ref(&password)].concat());
    assert!(found.iter().any(|found| found.starts_with("password")), "{found:#?}");
    assert!(found.iter().any(|found| found.contains("data key")), "{found:#?}");
    // One copy of the key material of the first data keys is left, in rustls's receive buffer.
    let copies = key_method_copies(&found);
    assert!(copies <= 1, "{:?}, in use: {found:#?}", settings.ciphers);
    // Both processes continue; the client has its password in its configuration.
    world.end();
    let found = search(&secrets);
    assert!(found.is_empty(), "{:?}, ended: {found:#?}", settings.ciphers);
    drop(world);
    secrets.push(password);
    let found = search(&secrets);
    assert!(found.is_empty(), "{:?}, gone: {found:#?}", settings.ciphers);
}

#[test]
fn nothing_secret_of_a_session_is_left_in_memory_after_its_end() {
    let _alone = alone();
    let ciphers = [
        DataCipher::Aead(Cipher::Aes256Gcm),
        DataCipher::Aead(Cipher::ChaCha20Poly1305),
        DataCipher::Block(Some(BlockCipher::Aes256Cbc)),
    ];
    let transports = [Transport::Udp, Transport::Tcp];
    let cases = transports.into_iter().flat_map(|by| ciphers.map(|cipher| (by, cipher)));
    for (seed, (transport, cipher)) in (1..).zip(cases) {
        session(&Settings { ciphers: vec![cipher], ..Settings::default() }, transport, seed);
    }
}
