//! A server and up to three clients.

use std::sync::OnceLock;
use std::time::Duration;

use adit_crypto::Digest;
use adit_engine::auth::Inactive;
use adit_engine::command::{ProbeResult, Traffic};
use adit_engine::{Engine, Instant, Link, PeerId, Transport, UnixTime, auth};
use adit_openvpn::client::{ClientConfig, ClientEvent};
use adit_openvpn::data_format::{FramingError, Input, Notice, Outbox};
use adit_openvpn::keys::{Direction, ServerKey, StaticKey};
use adit_openvpn::negotiate::ControlMessage;
use adit_openvpn::server::{ClientChecks, Disconnect, ReloadableConfig, ServerConfig};
use adit_openvpn::session::{Renegotiation, Settings};
use adit_openvpn::tls::{ClientTls, ServerTls};
use adit_openvpn::wrap::WrapConfig;
use adit_sim::Impairment;

use super::bytes::Bytes;
use super::forge::forged;
use super::world::{self, Wiretap, World};
use super::{MAX_EVENTS, MAX_OUTPUTS, MAX_TICKS, MAX_UNDER_WAY, SECOND, SHORT_TIMES, TIMES};

/// The maximum number of clients in one script.
const MAX_CLIENTS: usize = 3;
/// The time within which a client has a session again once the link works, whatever it was waiting
/// for.
const RECOVERY: Duration = Duration::from_secs(400);
/// The number of such periods that may be necessary, because a server may make a client wait for
/// the longest time.
const RECOVERIES: usize = 4;

pub(super) fn server_tls() -> ServerTls {
    static TLS: OnceLock<ServerTls> = OnceLock::new();
    TLS.get_or_init(world::server_tls).clone()
}

pub(super) fn client_tls(n: usize) -> ClientTls {
    static TLS: OnceLock<[ClientTls; MAX_CLIENTS]> = OnceLock::new();
    let all = TLS.get_or_init(|| ["client", "client-1", "client-2"].map(world::client_tls_named));
    all[n].clone()
}

/// Returns the wrapping at the server and at its clients.
pub(super) fn wrappings(choice: u8) -> (WrapConfig, WrapConfig) {
    let key = || StaticKey::new(std::array::from_fn(|n| n as u8));
    let auth = |direction| WrapConfig::TlsAuth { key: key(), direction, digest: Digest::Sha256 };
    match choice % 5 {
        0 => (WrapConfig::None, WrapConfig::None),
        1 => (auth(None), auth(None)),
        2 => (auth(Some(Direction::Normal)), auth(Some(Direction::Inverse))),
        3 => (WrapConfig::TlsCrypt { key: key() }, WrapConfig::TlsCrypt { key: key() }),
        _ => {
            let master = ServerKey::new(&[9; ServerKey::LEN]);
            let issued = master.client_key(key(), None).expect("a client's key");
            let client = WrapConfig::TlsCryptV2Client { key: issued };
            (WrapConfig::tls_crypt_v2_server(master), client)
        }
    }
}

/// The state of a script that is being played.
struct Play {
    world: World,
    settings: Settings,
    client_wrap: WrapConfig,
    streams: bool,
    one_name: bool,
    steadfast: bool,
}

/// Plays a script.
pub(crate) fn run(bytes: &[u8]) {
    let mut script = Bytes(bytes);
    let mut play = Play::new(&mut script);
    if play.steadfast {
        play.establish();
    }
    for _ in 0..MAX_EVENTS {
        let Some(event) = script.next() else { break };
        if play.steadfast {
            play.attack(event, &mut script);
        } else {
            play.event(event, &mut script);
        }
        play.check();
    }
    if play.steadfast { play.still_connected() } else { play.recovers() }
}

impl Play {
    fn new(script: &mut Bytes<'_>) -> Self {
        let (scene, times, seed) = (script.u8(), script.u8(), script.u8());
        let (server_wrap, client_wrap) = wrappings(scene & 7);
        let steadfast = scene & 0x80 != 0;
        let seconds = |n| Duration::from_secs(n);
        let after = [seconds(3600), seconds(40), seconds(15), seconds(0)][usize::from(times & 3)];
        let settings = Settings {
            wrap: server_wrap,
            dynamic_tls_crypt: scene & 8 == 0,
            float: times & 4 != 0,
            exit_notify: (times & 8 != 0).then_some(2),
            tran_window: if times & 16 != 0 && !steadfast { 60 * SECOND } else { 3600 * SECOND },
            renegotiation: Renegotiation { after, earliest: after, ..Renegotiation::default() },
            ..Settings::default()
        };
        let config = ServerConfig {
            authorize: times & 32 != 0 && !steadfast,
            checks: ClientChecks {
                reauthorize: times & 32 != 0 && !steadfast,
                connect: times & 96 == 96 && !steadfast,
                ..ClientChecks::default()
            },
            duplicate_cn: times & 64 != 0,
            force_cookie: times & 128 != 0,
            ..world::server_config_with(settings.clone(), server_tls())
        };
        let mut world = World::new(config, seed.into());
        world.wiretap = Some(Wiretap::default());
        let streams = scene & 16 != 0 && !steadfast;
        let one_name = scene & 32 != 0;
        let mut play = Self { world, settings, client_wrap, streams, one_name, steadfast };
        play.add_client(Impairment::default(), seed);
        if scene & 64 != 0 {
            play.run(SECOND);
        }
        play
    }

    fn add_client(&mut self, impairment: Impairment, seed: u8) {
        let n = self.world.clients.len();
        if n >= MAX_CLIENTS {
            return;
        }
        let wrap = self.client_wrap.clone();
        let settings = Settings { wrap, ..self.settings.clone() };
        let mut target = adit_engine::Target { host: "vpn.example".into(), ..Default::default() };
        target.transport = if self.streams { Transport::Tcp } else { Transport::Udp };
        let tls = client_tls(if self.one_name { 0 } else { n });
        let remotes = vec![adit_openvpn::client::Remote { target }];
        let config = ClientConfig::new(settings, tls, remotes);
        // A stream neither loses nor reorders packets.
        let impairment = if self.streams { Impairment::default() } else { impairment };
        self.world.connect(config, impairment, seed.into());
    }

    fn run(&mut self, time: Duration) {
        self.world.run(time, |_| false);
    }

    fn client(&self, script: &mut Bytes<'_>) -> usize {
        script.index() % self.world.clients.len()
    }

    fn act(&mut self, n: usize, act: impl FnOnce(&mut ClientEngine, Instant, &mut ClientOut)) {
        let mut out = Outbox::new();
        act(&mut self.world.clients[n].engine, self.world.now, &mut out);
        self.world.perform_client(n, out);
    }

    fn act_as_server(&mut self, act: impl FnOnce(&mut ServerEngine, Instant, &mut ServerOut)) {
        let mut out = Outbox::new();
        act(&mut self.world.server, self.world.now, &mut out);
        self.world.perform_server(out);
    }
}

type ClientEngine = adit_openvpn::client::ClientEngine;
type ServerEngine = adit_openvpn::server::ServerEngine;
type ClientOut = Outbox<ClientEvent>;
type ServerOut = Outbox<adit_openvpn::server::ServerEvent>;

/// The events of a script.
impl Play {
    fn event(&mut self, event: u8, script: &mut Bytes<'_>) {
        match event % 20 {
            0..=8 => self.network(event % 20, script),
            9 => self.notice(script),
            10 => self.client_acts(script),
            11 => self.server_acts(script),
            12 => self.speaks(script),
            13 => self.answer(script),
            14 => {
                let impairment = script.impairment();
                self.add_client(impairment, script.u8());
            }
            15 => self.link_breaks(script),
            16 => self.world.server.release_memory(self.world.now),
            17 => self.clock_or_certificate(script),
            18 => self.world.slow_registry = script.u8() & 1 != 0,
            _ => self.world.no_streams = script.u8() & 1 != 0,
        }
    }

    /// Plays an event of an attacker on the path who has no keys.
    fn attack(&mut self, event: u8, script: &mut Bytes<'_>) {
        match event % 8 {
            0 | 1 => {
                let time = TIMES[script.index() % SHORT_TIMES];
                self.run(time);
            }
            2 => {
                // A renegotiation is in progress from here on.
                let (peer, key) = (self.first_peer(), script.u8() & 7);
                self.world.to_server(Input::Notice(Notice::KeyNearLimit(peer, key)));
            }
            event => self.network(event, script),
        }
    }

    fn network(&mut self, event: u8, script: &mut Bytes<'_>) {
        match event {
            0 | 1 => {
                let time = script.choose(TIMES);
                self.run(time);
            }
            2 => self.exchange_data(),
            3 => self.alter(script),
            4 => {
                let (to_server, from) = (script.u8() & 1 == 0, script.u8());
                let packet = script.bytes().to_vec();
                self.deliver(to_server, from, packet);
            }
            5 => self.forge(script),
            6 => {
                let (n, to_server) = (self.client(script), script.u8() & 1 == 0);
                let far = self.world.now + 3600 * SECOND;
                let client = &mut self.world.clients[n];
                let pipe = if to_server { &mut client.up } else { &mut client.down };
                if !self.streams {
                    (0..script.u8() % 8).for_each(|_| drop(pipe.pop(far)));
                }
            }
            7 if !self.steadfast => {
                let (n, impairment) = (self.client(script), script.impairment());
                if !self.streams {
                    self.world.clients[n].up.set_impairment(impairment.clone());
                    self.world.clients[n].down.set_impairment(impairment);
                }
            }
            7 => self.run(Duration::from_millis(3)),
            _ => {
                let n = self.client(script);
                if !self.streams {
                    self.world.rebind(n);
                    self.exchange_data();
                }
            }
        }
    }

    /// Sends one packet from each end to each peer for which it has a key.
    fn exchange_data(&mut self) {
        let now = self.world.now;
        for client in &mut self.world.clients {
            for (_, datagram) in client.plane.send_to_all() {
                client.up.push(now, world::Packet::Data(datagram));
            }
        }
        for (link, datagram) in self.world.plane.send_to_all() {
            let mut clients = self.world.clients.iter_mut();
            if let Some(client) = clients.find(|client| client.address == link.remote()) {
                client.down.push(now, world::Packet::Data(datagram));
            }
        }
        self.run(100 * Duration::from_millis(1));
    }

    /// Repeats or alters a captured packet, from its sender's address or another.
    fn alter(&mut self, script: &mut Bytes<'_>) {
        let (flags, from, back, other) = (script.u8(), script.u8(), script.index(), script.index());
        let to_server = flags & 1 == 0;
        // Packets of the other direction are used too, and so reflected.
        let of = to_server ^ (flags & 6 == 6);
        let Some(tap) = &self.world.wiretap else { return };
        let (Some(packet), other) = (tap.packet(of, back), tap.packet(of, other)) else { return };
        let packet = script.altered(packet, other.unwrap_or_default());
        self.deliver(to_server, from, packet);
    }

    /// Delivers a well-formed packet with the session's ids. In a steadfast script, the attacker
    /// does not have the key.
    fn forge(&mut self, script: &mut Bytes<'_>) {
        let (flags, from) = (script.u8(), script.u8());
        let to_server = flags & 1 == 0;
        let (client, server) = self.world.session_ids;
        let (from_id, to_id) = if to_server { (client, server) } else { (server, client) };
        let wrap = (&self.client_wrap, self.steadfast);
        if let Some(packet) = forged(script, flags, (from_id, to_id), wrap) {
            self.deliver(to_server, from, packet);
        }
    }

    /// Delivers a packet to one end. Its source is the other end's address if `from` is even, and a
    /// different one otherwise.
    fn deliver(&mut self, to_server: bool, from: u8, mut packet: Vec<u8>) {
        let n = usize::from(from >> 1) % self.world.clients.len();
        let stranger = ([203, 0, 113, from], 1194).into();
        let stranger = if self.streams {
            Link::stream(0xffff + u64::from(from), stranger)
        } else {
            Link::datagram(Default::default(), None, stranger)
        };
        let genuine = from & 1 == 0;
        if to_server {
            let link = if genuine { self.world.server_link(n) } else { stranger };
            if !genuine && link.is_stream() {
                self.world.to_server(Input::LinkUp(link));
            }
            self.world.to_server(Input::ControlPacket(link, &mut packet));
        } else {
            let link = if genuine { self.world.client_link(n) } else { stranger };
            self.world.to_client(n, Input::ControlPacket(link, &mut packet));
        }
    }

    fn first_peer(&self) -> PeerId {
        self.world.plane.peers.keys().min().copied().unwrap_or(PeerId(0))
    }

    /// Delivers a notice from the data plane.
    fn notice(&mut self, script: &mut Bytes<'_>) {
        let (flags, kind) = (script.u8(), script.u8());
        let n = usize::from(flags >> 1) % self.world.clients.len();
        let to_server = flags & 1 == 0;
        let plane = if to_server { &self.world.plane } else { &self.world.clients[n].plane };
        let mut peers: Vec<PeerId> = plane.peers.keys().copied().collect();
        peers.sort();
        let peer = peers.get(script.index()).copied().unwrap_or(PeerId(77));
        let link = if to_server { self.world.server_link(n) } else { self.world.client_link(n) };
        let notice = match kind % 10 {
            0 | 1 => Notice::KeyNearLimit(peer, script.u8() & 7),
            2 => Notice::PeerSilent(peer),
            3 => Notice::PeerActive(peer),
            4 => Notice::Unreachable(link, 111),
            5 => Notice::Violation(peer, FramingError::Compressed),
            6 => {
                let kernel = u16::from(script.u8()) * 8;
                Notice::ProbeResult(peer, ProbeResult { size: u16::from(script.u8()) * 8, kernel })
            }
            7 => {
                let packets = u64::from(script.u8());
                Notice::Traffic(
                    peer,
                    Traffic { packets, bytes: packets * 900, ..Traffic::default() },
                )
            }
            8 => Notice::KeyFirstUse(peer, script.u8() & 7),
            _ => Notice::InBand(peer, script.bytes().to_vec()),
        };
        if to_server {
            self.world.to_server(Input::Notice(notice));
        } else {
            self.world.to_client(n, Input::Notice(notice));
        }
    }

    fn client_acts(&mut self, script: &mut Bytes<'_>) {
        let n = self.client(script);
        match script.u8() % 5 {
            0 => self.act(n, |client, now, out| client.restart(now, out)),
            1 => self.act(n, |client, now, out| client.shutdown(now, out)),
            2 => self.act(n, |client, now, out| client.path_changed(now, true, out)),
            3 => self.act(n, |client, now, out| client.path_changed(now, false, out)),
            _ => self.world.to_client(n, Input::DialFailed("no route".into())),
        }
    }

    fn server_acts(&mut self, script: &mut Bytes<'_>) {
        let peer = PeerId(script.u8().into());
        match script.u8() % 4 {
            0 => self.act_as_server(|server, now, out| {
                server.kick(now, peer, Disconnect::Restart, "told to", out);
            }),
            1 => self.act_as_server(|server, now, out| {
                server.kick(now, peer, Disconnect::Halt, "told to", out);
            }),
            2 => self.act_as_server(|server, now, out| server.shutdown(now, out)),
            _ => {
                let max_clients = u32::from(script.u8());
                let leases = vec![("client".into(), "10.9.0.200/32".parse().expect("an address"))];
                let push = vec![script.text(), script.text()];
                let offer = ReloadableConfig { push, max_clients, leases, ..Default::default() };
                self.act_as_server(|server, now, out| server.set_offer(now, offer, out));
            }
        }
    }

    /// Sends a client's message on the control channel.
    fn speaks(&mut self, script: &mut Bytes<'_>) {
        let (n, times) = (self.client(script), script.u8() % 16);
        let message = match script.u8() % 4 {
            0 => ControlMessage::PushRequest,
            1 => ControlMessage::Exit,
            2 => ControlMessage::PushReply(script.text()),
            _ => ControlMessage::Unknown(script.text()),
        };
        for _ in 0..=times {
            self.act(n, |client, now, out| {
                client.say(now, &message, out);
            });
        }
    }

    fn answer(&mut self, script: &mut Bytes<'_>) {
        let (which, kind) = (script.index(), script.u8());
        let ticket = if self.world.asked.is_empty() {
            auth::RequestId(which as u64)
        } else {
            self.world.asked.remove(which % self.world.asked.len())
        };
        let reply = match kind % 8 {
            0 | 4 => auth::Response::Reject("no".into()),
            1 | 5 => auth::Response::Later("not now".into()),
            7 => {
                let timeout = Duration::from_secs(u64::from(script.u8()));
                auth::Response::Pending { timeout, info: Some("WEB_AUTH::x".into()) }
            }
            _ => auth::Response::Accept(self.grant(script)),
        };
        if kind & 0x80 != 0 {
            self.world.reply = reply.clone();
        }
        self.world.to_server(Input::AuthResponse(ticket, reply));
    }

    fn grant(&self, script: &mut Bytes<'_>) -> auth::ClientParams {
        let flags = script.u8();
        let host = script.u8();
        let set = |bit: u8| flags & bit != 0;
        auth::ClientParams {
            ipv4: set(1).then_some([10, 9, 0, host].into()),
            ipv6: set(2).then(|| format!("fd00::{host:x}").parse().expect("an address")),
            iroutes: if set(4) { vec!["10.20.0.0/16".parse().expect("a network")] } else { vec![] },
            push_reset: set(8),
            push: if set(16) { vec![script.text()] } else { vec![] },
            inactive: set(32).then_some(Inactive { after: 20 * SECOND, bytes: host.into() }),
            session_timeout: set(64).then_some(u32::from(host) * SECOND),
            groups: vec!["staff".into()],
            ..auth::ClientParams::default()
        }
    }

    fn link_breaks(&mut self, script: &mut Bytes<'_>) {
        let n = self.client(script);
        match (script.u8() % 3, self.streams) {
            (0, true) => self.world.cut(n),
            (_, true) => {
                let link = Link::stream(0xffff + u64::from(script.u8()), world::server_address());
                self.world.to_server(Input::LinkDown(link));
            }
            (0, false) => {
                let link = self.world.server_link(n);
                self.world.to_server(Input::LinkDown(link));
            }
            (_, false) => {
                let link = self.world.client_link(n);
                self.world.to_client(n, Input::LinkDown(link));
            }
        }
    }

    fn clock_or_certificate(&mut self, script: &mut Bytes<'_>) {
        let unix = UnixTime(1_800_000_000 + u64::from(script.u8()) * 3600);
        let now = self.world.now;
        match script.u8() % 3 {
            0 => self.world.server.set_unix_time(now, unix),
            1 => self.world.clients[0].engine.set_unix_time(now, unix),
            _ => self.world.server.set_tls(server_tls()),
        }
    }
}

/// The invariants that a script checks.
impl Play {
    /// Checks that both ends are idle and within their limits.
    fn check(&mut self) {
        self.rest();
        let world = &mut self.world;
        let most = std::mem::take(&mut world.most_outputs);
        assert!(most <= MAX_OUTPUTS, "{most} outputs of one input");
        assert!(
            world.server.clients().count() <= world.plane.peers.len(),
            "sessions without peers"
        );
        assert!(world.server.handshakes() <= 2 * MAX_EVENTS, "{}", world.server.handshakes());
        assert!(world.server.pending_streams() <= 2 * MAX_EVENTS);
        for client in &world.clients {
            assert!(client.plane.peers.len() <= 1, "a client with two sessions");
            assert!(client.up.in_flight() <= MAX_UNDER_WAY, "{}", client.up.in_flight());
            assert!(client.down.in_flight() <= MAX_UNDER_WAY, "{}", client.down.in_flight());
        }
    }

    /// Lets engines that are due act, and checks that they become idle.
    fn rest(&mut self) {
        let now = self.world.now;
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let mut ticks = 0;
        while due(self.world.server.due()) {
            assert!(
                ticks < MAX_TICKS,
                "the server does not rest: {:?}",
                self.world.server.deadline()
            );
            self.world.to_server(Input::Tick);
            ticks += 1;
        }
        for n in 0..self.world.clients.len() {
            let mut ticks = 0;
            while due(self.world.clients[n].engine.due()) {
                let deadline = self.world.clients[n].engine.deadline();
                assert!(ticks < MAX_TICKS, "the client does not rest: {deadline:?}");
                self.world.to_client(n, Input::Tick);
                ticks += 1;
            }
        }
    }

    fn establish(&mut self) {
        assert!(self.world.run(5 * SECOND, |w| w.is_up(0)), "{:?}", self.world.clients[0].events);
        self.run(SECOND);
        self.check();
    }

    /// Returns whether packets from and to the first client arrive.
    fn data_passes(&mut self) -> bool {
        // The first packet from a client that has moved reveals its new address.
        self.exchange_data();
        let before = (self.world.plane.opened, self.world.clients[0].plane.opened);
        self.exchange_data();
        let after = (self.world.plane.opened, self.world.clients[0].plane.opened);
        after.0 > before.0 && after.1 > before.1
    }

    /// Checks that a steadfast script still has its original session.
    fn still_connected(&mut self) {
        self.run(SECOND);
        let events = &self.world.clients[0].events;
        assert!(self.world.downs().is_empty(), "{:?}", self.world.downs());
        assert_eq!((self.world.ups(0), self.world.server.clients().count()), (1, 1), "{events:?}");
        let restarted = events.iter().any(|event| matches!(event, ClientEvent::Restarting(_)));
        assert!(!restarted, "{events:?}");
        assert!(self.data_passes(), "{:?}", self.world.clients[0].events);
    }

    fn stopped(&self, n: usize) -> bool {
        let mut events = self.world.clients[n].events.iter();
        events.any(|event| matches!(event, ClientEvent::Stopped(_)))
    }

    /// Checks that with a working link and a server that accepts it, the first client soon has a
    /// session, unless it has stopped.
    fn recovers(&mut self) {
        self.heal();
        // Two devices with one profile replace each other's sessions.
        let alone = self.world.clients.len() == 1;
        if !alone && self.one_name {
            return;
        }
        for _ in 0..RECOVERIES {
            if self.stopped(0) || self.data_passes() {
                return;
            }
            // Keepalive would detect this, but this data plane has none.
            self.report_silence();
            self.run(RECOVERY);
            self.check();
        }
        let connected = self.stopped(0) || self.data_passes();
        let deadline = self.world.clients[0].engine.deadline();
        assert!(connected, "{deadline:?}: {:?}", self.world.clients[0].events);
    }

    fn heal(&mut self) {
        self.world.slow_registry = false;
        self.world.no_streams = false;
        self.world.reply = auth::Response::Accept(auth::ClientParams::default());
        for ticket in std::mem::take(&mut self.world.asked) {
            let reply = self.world.reply.clone();
            self.world.to_server(Input::AuthResponse(ticket, reply));
        }
        let push = vec!["route 10.77.0.0 255.255.0.0".into()];
        let offer = ReloadableConfig { push, max_clients: 100, ..Default::default() };
        self.act_as_server(|server, now, out| server.set_offer(now, offer, out));
        if !self.streams {
            for client in &mut self.world.clients {
                client.up.set_impairment(Impairment::default());
                client.down.set_impairment(Impairment::default());
            }
        }
        self.run(2 * SECOND);
        self.check();
    }

    fn report_silence(&mut self) {
        for n in 0..self.world.clients.len() {
            for peer in self.world.clients[n].plane.peers.keys().copied().collect::<Vec<_>>() {
                self.world.to_client(n, Input::Notice(Notice::PeerSilent(peer)));
            }
        }
        for peer in self.world.plane.peers.keys().copied().collect::<Vec<_>>() {
            self.world.to_server(Input::Notice(Notice::PeerSilent(peer)));
        }
    }
}
