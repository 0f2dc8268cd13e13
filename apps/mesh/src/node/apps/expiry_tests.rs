//! A gateway and an OpenVPN app with a session, in virtual time, without a network or a data plane.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use adit_engine::{Engine, Instant, Link, PeerId, SocketId, Target, UnixTime};
use adit_mesh::node::{AppsConfig, NewLeaf, Node, NodeEvent};
use adit_mesh::roster::Label;
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent, Remote as Server};
use adit_openvpn::data_format::{Command, Input, Notice, Outbox, Output};
use adit_openvpn::keys::StaticKey;
use adit_openvpn::server::ServerEvent;
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{ClientTls, ClientTlsOptions, CommonTlsOptions, Pem};
use adit_openvpn::wrap::WrapConfig;
use adit_pki::{NewProfile, Proto, Remote};
use adit_runtime::clock::unix_time;

use super::{AppServer, in_certificate, server_key};
use crate::testing::{hub, open_node};
use crate::{NewMesh, Paths, found};

const START: Instant = Instant::from_nanos(1_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);

/// The socket of the gateway's server for apps.
const APPS: SocketId = SocketId(9);

/// How long the app is a member, in seconds.
const MEMBER_FOR: u64 = 60;

struct World {
    now: Instant,
    gateway: Node,
    app: ClientEngine,
    to_gateway: VecDeque<Vec<u8>>,
    to_app: VecDeque<Vec<u8>>,
    is_up: bool,
    /// When and why the gateway ended the session.
    ended: Option<(Instant, String)>,
}

/// Returns the app's link.
fn to_gateway() -> Link {
    Link::datagram(SocketId(0), None, "192.0.2.2:1195".parse().unwrap())
}

/// Returns a block of a profile.
fn block(profile: &str, name: &str) -> Option<Pem> {
    let (_, rest) = profile.split_once(&format!("<{name}>\n"))?;
    let (content, _) = rest.split_once(&format!("</{name}>"))?;
    Some(Pem::new(name, content.as_bytes().to_vec()))
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        found(&paths, &NewMesh { relay: false, openvpn: true, ..hub() }).unwrap();
        let unix = unix_time();
        let (mut gateway, _) = open_node(&paths, None, START, unix);
        let mut apps = AppServer::open(&paths).unwrap();
        let (tls, wrap) = apps.tls().unwrap();
        let config =
            AppsConfig { socket: APPS, tls, wrap, dns: Vec::new(), domain: "home.internal".into() };
        gateway.serve_apps(START, config).unwrap();
        let app = admitted_app(&mut apps, &mut gateway, UnixTime(unix.0 + MEMBER_FOR));
        let (to_gateway, to_app) = Default::default();
        let now = START;
        Self { now, gateway, app, to_gateway, to_app, is_up: false, ended: None }
    }

    /// Runs for this time, or until nothing is left to do.
    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            if let Some(mut packet) = self.to_gateway.pop_front() {
                let from = Link::datagram(APPS, None, "192.0.2.1:40000".parse().unwrap());
                self.gateway(Input::ControlPacket(from, &mut packet));
                continue;
            }
            if let Some(mut packet) = self.to_app.pop_front() {
                self.app(Input::ControlPacket(to_gateway(), &mut packet));
                continue;
            }
            let due = [self.gateway.due(), self.app.due()];
            let Some(next) = due.into_iter().flatten().min().filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            if due[0].is_some_and(|at| at <= self.now) {
                self.gateway(Input::Tick);
            }
            if due[1].is_some_and(|at| at <= self.now) {
                self.app(Input::Tick);
            }
        }
        self.now = end;
    }

    fn gateway(&mut self, input: Input<'_>) {
        let mut out = Outbox::new();
        self.gateway.handle(self.now, input, &mut out);
        let mut gone: Vec<PeerId> = Vec::new();
        while let Some(output) = out.pop() {
            match output {
                Output::Send(link, packet) if link.socket() == Some(APPS) => {
                    self.to_app.push_back(packet);
                }
                Output::Plane(Command::DelPeer(peer)) => gone.push(peer),
                Output::Event(NodeEvent::App(event)) => match *event {
                    ServerEvent::ClientUp(_) => self.is_up = true,
                    ServerEvent::ClientDown(_, reason, _) => {
                        self.ended = Some((self.now, reason.to_string()));
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        for peer in gone {
            self.gateway(Input::Notice(Notice::PeerGone(peer, Default::default())));
        }
    }

    fn app(&mut self, input: Input<'_>) {
        let mut out: Outbox<ClientEvent> = Outbox::new();
        self.app.handle(self.now, input, &mut out);
        while let Some(output) = out.pop() {
            match output {
                Output::Send(_, packet) => self.to_gateway.push_back(packet),
                Output::Dial(_) => {
                    self.app(Input::LinkUp(to_gateway()));
                }
                _ => {}
            }
        }
    }
}

/// Makes an app a leaf of the gateway until this time.
fn admitted_app(apps: &mut AppServer, gateway: &mut Node, not_after: UnixTime) -> ClientEngine {
    let name = Label::new("phone").unwrap();
    let issuer = apps.issuer().unwrap();
    let key = StaticKey::generate(|bytes| bytes.fill(5));
    let key = server_key(issuer).unwrap().client_key(key, None).unwrap();
    let pem = key.to_pem();
    let remote =
        Remote { host: "192.0.2.2".into(), port: 1195, proto: Proto::Udp, further: Vec::new() };
    let new = NewProfile {
        name: in_certificate(&name).unwrap(),
        remotes: &[remote],
        tls_crypt_v2_client_key: &pem,
        options: &[],
    };
    let issued = issuer.profile(&new, SystemTime::now()).unwrap();
    let leaf = NewLeaf {
        name,
        groups: Default::default(),
        range: Some("100.87.0.0/16".parse().unwrap()),
        fingerprint: issued.fingerprint.clone(),
        not_after,
    };
    gateway.admit_leaf(START, leaf, &mut Outbox::new()).unwrap();
    let profile = issued.profile.text();
    let common = CommonTlsOptions {
        ca: block(profile, "ca"),
        cert: block(profile, "cert"),
        key: block(profile, "key"),
        ..CommonTlsOptions::default()
    };
    let tls = ClientTls::new(ClientTlsOptions { common }).unwrap();
    let wrap = WrapConfig::TlsCryptV2Client { key };
    let settings = Settings { wrap, ..Settings::default() };
    let target = Target { host: "192.0.2.2".into(), port: 1195, ..Target::default() };
    let config = ClientConfig::new(settings, tls, vec![Server { target }]);
    ClientEngine::new(config, [8; 32], START, unix_time())
}

#[test]
fn the_session_of_an_app_ends_within_two_seconds_of_its_membership() {
    let mut w = World::new();
    w.run_for(SECOND * 10);
    assert!(w.is_up, "the app is connected");
    // It is a member to the end of the last second.
    w.run_for(SECOND * 50);
    assert_eq!((w.ended.clone(), w.gateway.connected_apps()), (None, 1));
    w.run_for(SECOND * 3);
    let (at, reason) = w.ended.clone().expect("the session has ended");
    assert!(at.since(START) <= SECOND * (MEMBER_FOR as u32 + 2), "{:?}", at.since(START));
    assert!(reason.contains("not a member"), "{reason}");
    assert_eq!(w.gateway.connected_apps(), 0);
    // The app tries again, and is refused.
    w.run_for(SECOND * 60);
    assert_eq!(w.gateway.connected_apps(), 0);
}
