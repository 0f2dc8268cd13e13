//! Two point-to-point ends, with TLS or with a static key.

use std::time::Duration;

use adit_crypto::{BlockCipher, Digest};
use adit_engine::command::{Keepalive, ProbeResult};
use adit_engine::{Instant, Link, PeerId, SocketId, Transport};
use adit_openvpn::data_format::{BlockSuite, FramingError, Input, Notice};
use adit_openvpn::keys::{Direction, StaticKey};
use adit_openvpn::p2p::{Ifconfig4, PeerConfig, PeerTls, RemotePolicy, StaticConfig, TunnelAddrs};
use adit_openvpn::session::{Renegotiation, Settings};
use adit_openvpn::wrap::WrapConfig;
use adit_sim::Impairment;

use super::bytes::Bytes;
use super::forge::forged;
use super::points::{A, B, Config, End, Packet, World, address, remote};
use super::sessions::{client_tls, server_tls, wrappings};
use super::{MAX_EVENTS, MAX_OUTPUTS, MAX_TICKS, MAX_UNDER_WAY, SECOND, SHORT_TIMES, TIMES};

/// `MAX_ATTEMPTS` of the engine.
const MAX_HANDSHAKES: usize = 64;
/// The time within which two ends have a session again once the link works. The longest wait is 300
/// s.
const RECOVERY: Duration = Duration::from_secs(400);

struct Play {
    world: World,
    client_wrap: WrapConfig,
    steadfast: bool,
    /// Whether an end was ordered to stop.
    ended: bool,
}

/// Plays a script.
pub(crate) fn run(bytes: &[u8]) {
    let mut script = Bytes(bytes);
    let mut play = Play::new(&mut script);
    if play.steadfast {
        assert!(play.world.run(15 * SECOND, |w| w.both_up(1)), "{:?}", play.restarts());
        play.world.run(SECOND, |_| false);
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
    play.tunnel_addrs();
}

impl Play {
    fn new(script: &mut Bytes<'_>) -> Self {
        let (scene, times, seed) = (script.u8(), script.u8(), script.u8());
        let (server_wrap, client_wrap) = wrappings(scene & 7);
        let steadfast = scene & 0x80 != 0;
        let with_static_keys = scene & 64 != 0;
        let seconds = |n| Duration::from_secs(n);
        let after = [seconds(3600), seconds(40), seconds(15), seconds(0)][usize::from(times & 3)];
        let settings = Settings {
            dynamic_tls_crypt: scene & 8 == 0,
            float: times & 4 != 0,
            exit_notify: (times & 8 != 0).then_some(2),
            keepalive: Keepalive { interval: 2 * SECOND, timeout: 10 * SECOND },
            renegotiation: Renegotiation { after, earliest: after, ..Renegotiation::default() },
            ..Settings::default()
        };
        // Only one of the ends may wait for the other.
        let waits = scene & 16 != 0;
        let dialling = || RemotePolicy::new(vec![remote(Transport::Udp)]);
        let reaches = [if waits { RemotePolicy::new(Vec::new()) } else { dialling() }, dialling()];
        let directions = [Direction::Normal, Direction::Inverse];
        let tls = [PeerTls::Server(server_tls()), PeerTls::Client(client_tls(0))];
        let mut ends =
            reaches.into_iter().zip(directions).zip(tls).zip([server_wrap, client_wrap.clone()]);
        let configs = [A, B].map(|_| {
            let (((remote_policy, direction), tls), wrap) = ends.next().expect("two of each");
            let settings = Settings { wrap, ..settings.clone() };
            if with_static_keys {
                fixed(settings, remote_policy, direction)
            } else {
                let force_cookie = times & 16 != 0;
                let config = PeerConfig {
                    settings,
                    tls,
                    force_cookie,
                    remote_policy,
                    tunnel_addrs: inside(),
                };
                Config::Peer(Box::new(config))
            }
        });
        let world = World::new(configs, &Impairment::default(), seed.into());
        let mut play = Self { world, client_wrap, steadfast, ended: false };
        if scene & 32 != 0 {
            play.world.run(SECOND, |_| false);
        }
        play
    }

    fn restarts(&self) -> [Vec<String>; 2] {
        [A, B].map(|n| self.world.restarts(n))
    }

    /// Plays an event of an attacker on the path who has no keys.
    fn attack(&mut self, event: u8, script: &mut Bytes<'_>) {
        match event % 6 {
            0 | 1 => self.run(TIMES[script.index() % SHORT_TIMES]),
            2 => self.near_limit(script),
            event => self.network(event, script),
        }
    }

    fn event(&mut self, event: u8, script: &mut Bytes<'_>) {
        match event % 14 {
            0 | 1 => self.run(script.choose(TIMES)),
            2 => self.near_limit(script),
            event @ 3..=8 => self.network(event, script),
            9 => self.notice(script),
            10 => {
                let n = script.index() & 1;
                self.ended |= self.world.nodes[n].end.is_some();
                if self.world.nodes[n].end.is_some() {
                    self.world.act(n, |end, now, out| end.shutdown(now, out));
                }
            }
            11 => self.world.kill(script.index() & 1),
            12 => {
                let n = script.index() & 1;
                if self.world.nodes[n].end.is_none() {
                    self.world.revive(n);
                }
            }
            _ => {
                let n = script.index() & 1;
                let link = Link::datagram(SocketId(script.u8().into()), None, address(1 - n));
                match script.u8() % 5 {
                    0 => self.world.feed(n, Input::LinkDown(link)),
                    1 => self.world.feed(n, Input::LinkUp(link)),
                    2 => self.world.feed(n, Input::DialFailed("no route".into())),
                    how if self.world.nodes[n].end.is_some() => {
                        self.world.act(n, |end, now, out| end.path_changed(now, how == 4, out));
                    }
                    _ => {}
                }
            }
        }
    }

    fn run(&mut self, time: Duration) {
        self.world.run(time, |_| false);
    }

    fn near_limit(&mut self, script: &mut Bytes<'_>) {
        let (n, key) = (script.index() & 1, script.u8() & 7);
        let peer = self.world.nodes[n].plane.newest().unwrap_or(PeerId(0));
        self.world.feed(n, Input::Notice(Notice::KeyNearLimit(peer, key)));
    }

    fn network(&mut self, event: u8, script: &mut Bytes<'_>) {
        match event {
            3 => self.alter(script),
            4 => {
                let (flags, from) = (script.u8(), script.u8());
                let packet = Packet::Control(script.bytes().to_vec());
                self.deliver(usize::from(flags & 1), from, packet);
            }
            5 => self.forge(script),
            6 => {
                let n = script.index() & 1;
                let impairment = script.impairment();
                self.world.nodes[n].out.set_impairment(impairment);
            }
            7 => {
                let far = self.world.now + 3600 * SECOND;
                let pipe = &mut self.world.nodes[script.index() & 1].out;
                (0..script.u8() % 8).for_each(|_| drop(pipe.pop(far)));
            }
            _ => {
                let n = script.index() & 1;
                let port = self.world.nodes[n].address.port() ^ u16::from(script.u8() & 3);
                self.world.nodes[n].address.set_port(port);
                self.world.traffic(n);
            }
        }
    }

    /// Returns the packet that an end sent `back` packets ago.
    fn sent(&self, by: usize, back: usize) -> Option<Packet> {
        self.world.nodes[by].sent.iter().rev().nth(back).cloned()
    }

    /// Repeats or alters a captured packet, from its sender's address or another.
    fn alter(&mut self, script: &mut Bytes<'_>) {
        let (flags, from) = (script.u8(), script.u8());
        let to = usize::from(flags & 1);
        let by = if flags & 6 == 6 { to } else { 1 - to };
        let (first, other) = (self.sent(by, script.index()), self.sent(by, script.index()));
        match (first, other) {
            (Some(Packet::Control(packet)), other) => {
                let other = match other {
                    Some(Packet::Control(other)) => other,
                    _ => Vec::new(),
                };
                let packet = script.altered(&packet, &other);
                self.deliver(to, from, Packet::Control(packet));
            }
            // A data packet has no bytes in this model, so it can only be repeated or reflected.
            (Some(data), _) => self.deliver(to, from, data),
            (None, _) => {}
        }
    }

    /// Delivers a well-formed packet with the session's ids. In a steadfast script, the attacker
    /// does not have the key.
    fn forge(&mut self, script: &mut Bytes<'_>) {
        let (flags, from, back) = (script.u8(), script.u8(), script.index());
        let to = usize::from(flags & 1);
        let id = |by| match self.sent(by, back) {
            Some(Packet::Control(bytes)) => {
                bytes.get(1..9).and_then(|id| id.try_into().ok()).unwrap_or_default()
            }
            _ => [0; 8],
        };
        let (from_id, to_id) = (id(1 - to), id(to));
        let wrap = (&self.client_wrap, self.steadfast);
        if let Some(packet) = forged(script, flags, (from_id, to_id), wrap) {
            self.deliver(to, from, Packet::Control(packet));
        }
    }

    /// Delivers a packet to an end. Its source is the other end's address if `from` is even, and a
    /// different one otherwise.
    fn deliver(&mut self, to: usize, from: u8, packet: Packet) {
        let from = match from & 1 {
            0 => self.world.nodes[1 - to].address,
            _ => ([203, 0, 113, from], 1194).into(),
        };
        self.world.deliver(to, from, packet);
    }

    /// Delivers a notice from the data plane.
    fn notice(&mut self, script: &mut Bytes<'_>) {
        let (n, kind) = (script.index() & 1, script.u8());
        let peer = self.world.nodes[n].plane.newest().unwrap_or(PeerId(77));
        let notice = match kind % 7 {
            0 => Notice::PeerSilent(peer),
            1 => Notice::PeerActive(peer),
            2 => Notice::Unreachable(Link::datagram(SocketId(1), None, address(1 - n)), 111),
            3 => Notice::Violation(peer, FramingError::Framing),
            4 => {
                let kernel = u16::from(script.u8()) * 8;
                Notice::ProbeResult(peer, ProbeResult { size: u16::from(script.u8()) * 8, kernel })
            }
            5 => Notice::KeyFirstUse(peer, script.u8() & 7),
            _ => Notice::InBand(peer, script.bytes().to_vec()),
        };
        self.world.feed(n, Input::Notice(notice));
    }

    /// Checks that both ends are idle and within their limits.
    fn check(&mut self) {
        let now = self.world.now;
        for n in [A, B] {
            let mut ticks = 0;
            let due = |w: &World| w.nodes[n].end.as_ref().and_then(End::deadline);
            while due(&self.world).is_some_and(|at: Instant| at <= now) {
                assert!(ticks < MAX_TICKS, "end {n} does not rest");
                self.world.feed(n, Input::Tick);
                ticks += 1;
            }
            let node = &self.world.nodes[n];
            if let Some(End::Peer(engine)) = &node.end {
                assert!(engine.handshakes() <= MAX_HANDSHAKES, "{}", engine.handshakes());
            }
            assert!(node.out.in_flight() <= MAX_UNDER_WAY, "{}", node.out.in_flight());
            // There may be a session, and another that is about to replace it.
            assert!(node.plane.wire_ids().len() <= 2, "{:?}", node.plane.wire_ids());
        }
        let most = std::mem::take(&mut self.world.most_outputs);
        assert!(most <= MAX_OUTPUTS, "{most} outputs of one input");
    }

    fn tunnel_addrs(&mut self) {
        for node in &mut self.world.nodes {
            node.out.set_impairment(Impairment::default());
        }
        if self.steadfast {
            self.run(SECOND);
            assert!(self.world.passes(), "{:?}", self.restarts());
            assert!(self.restarts().iter().all(Vec::is_empty), "{:?}", self.restarts());
            return;
        }
        for n in [A, B] {
            self.world.nodes[n].address = address(n);
            if self.world.nodes[n].end.is_none() {
                self.world.revive(n);
            }
        }
        let stopped = |w: &World| [A, B].iter().any(|n| w.stopped(*n).is_some());
        if self.ended || stopped(&self.world) {
            return;
        }
        for _ in 0..4 {
            if self.world.passes() {
                return;
            }
            self.run(RECOVERY);
            self.check();
        }
        assert!(stopped(&self.world) || self.world.passes(), "{:?}", self.restarts());
    }
}

fn inside() -> TunnelAddrs {
    let pair = |a: &str, b: &str| {
        Ifconfig4::Pair(a.parse().expect("an address"), b.parse().expect("an address"))
    };
    TunnelAddrs { ipv4: Some(pair("10.1.0.1", "10.1.0.2")), ipv6: None }
}

fn fixed(settings: Settings, remote_policy: RemotePolicy, direction: Direction) -> Config {
    Config::Static(Box::new(StaticConfig {
        settings,
        key: StaticKey::new(std::array::from_fn(|n| n as u8)),
        direction: Some(direction),
        suite: BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha1) },
        remote_policy,
        tunnel_addrs: inside(),
    }))
}
