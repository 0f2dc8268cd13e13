//! Past vulnerabilities of OpenVPN, each identified by its number, tested against our engines.
//! Further ones are tested next to the relevant code. docs/security.md lists all of them.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Engine, Link, auth};
use adit_openvpn::data_format::{Input, Notice, Outbox, Output};
use adit_openvpn::keys::{ServerKey, StaticKey};
use adit_openvpn::negotiate::{PullFilters, PushedOption, PushedOptions};
use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::server::ServerConfig;
use adit_openvpn::session::Settings;
use adit_openvpn::wrap::{WrapConfig, Wrapper};
use adit_sim::Impairment;

use crate::support::{self, World, client_config, server_address, server_config};

const SECOND: Duration = Duration::from_secs(1);

fn with(wrap: &WrapConfig) -> Settings {
    Settings { wrap: wrap.clone(), ..Settings::default() }
}

fn crypt_v2() -> (WrapConfig, WrapConfig) {
    let key = ServerKey::new(&[42; ServerKey::LEN]);
    let client = key.client_key(StaticKey::new([3; StaticKey::LEN]), None).expect("a key");
    (WrapConfig::tls_crypt_v2_server(key), WrapConfig::TlsCryptV2Client { key: client })
}

/// Returns the server's and the client's half of every wrapping.
fn wrappings() -> Vec<(WrapConfig, WrapConfig)> {
    let crypt = WrapConfig::TlsCrypt { key: StaticKey::new([3; StaticKey::LEN]) };
    vec![(WrapConfig::None, WrapConfig::None), (crypt.clone(), crypt), crypt_v2()]
}

fn address(n: u32) -> SocketAddr {
    let [a, b, c, d] = (0x0b00_0000 + n).to_be_bytes();
    SocketAddr::from(([a, b, c, d], 5000))
}

/// Returns a client whose reset was answered, and the packets that it would send next.
fn before_the_third_packet(
    server: &WrapConfig,
    client: &WrapConfig,
) -> (World, usize, Vec<Vec<u8>>) {
    let mut w = World::new(server_config(with(server)), 1);
    let c = w.connect(client_config(with(client)), Impairment::default(), 1);
    w.tick_client(c);
    let first = w.capture(c);
    let answers = w.stranger(w.clients[c].address, &first[0]);
    let link = Link::datagram(Default::default(), None, server_address());
    w.to_client(c, Input::ControlPacket(link, &mut answers[0].clone()));
    let third = w.capture(c);
    assert!(!third.is_empty());
    (w, c, third)
}

/// The comparison of the cookie was inverted, so any cookie but the right one was valid.
#[test]
fn cve_2025_13086_a_cookie_counts_for_its_own_address_port_and_session() {
    for (server, client) in wrappings() {
        let (mut w, c, third) = before_the_third_packet(&server, &client);
        let own = w.clients[c].address;
        let other_port = SocketAddr::new(own.ip(), own.port() ^ 1);
        for from in [address(9), other_port] {
            third.iter().for_each(|packet| assert!(w.stranger(from, packet).is_empty()));
            assert_eq!(w.server.handshakes(), 0, "{from}");
        }
        assert!(w.server.counters().cookies_bad >= 2);
        third.iter().for_each(|packet| drop(w.stranger(own, packet)));
        assert_eq!(w.server.handshakes(), 1, "and from there it does");
    }
    // Without a wrapping, each part can be changed separately.
    let (mut w, c, third) = before_the_third_packet(&WrapConfig::None, &WrapConfig::None);
    let own = w.clients[c].address;
    let parts = [("the client's session", 1..9), ("the cookie", 14..22)];
    for (part, at) in
        parts.map(|(part, range)| range.map(move |at| (part, at))).into_iter().flatten()
    {
        for bit in 0..8 {
            let mut packet = third[0].clone();
            packet[at] ^= 1 << bit;
            assert!(w.stranger(own, &packet).is_empty(), "{part}, byte {at}, bit {bit}");
        }
    }
    assert_eq!((w.server.handshakes(), w.server.counters().cookies_bad), (0, 128));
    w.stranger(own, &third[0]);
    assert_eq!(w.server.handshakes(), 1);
}

/// Alternating authentic and malformed packets, early in a handshake with tls-crypt-v2, terminated
/// the server. Here a client connects while each of its packets is also delivered altered,
/// truncated, twice and late.
#[test]
fn cve_2025_2704_malformed_packets_between_authentic_ones_end_no_handshake() {
    for (server, client) in wrappings().into_iter().filter(|(_, c)| !matches!(c, WrapConfig::None))
    {
        let mut w = World::new(server_config(with(&server)), 1);
        let c = w.connect(client_config(with(&client)), Impairment::default(), 1);
        let own = w.clients[c].address;
        let link = Link::datagram(Default::default(), None, server_address());
        let mut former: Vec<Vec<u8>> = Vec::new();
        w.tick_client(c);
        for _ in 0..20 {
            let sent = w.capture(c);
            for packet in &sent {
                let at = 9 + former.len() * 7 % (packet.len() - 9);
                let mut altered = packet.clone();
                altered[at] ^= 0x40;
                let mut answers = w.stranger(own, &altered);
                for cut in [1, 9, 17, 49, packet.len() / 2, packet.len() - 1] {
                    answers.extend(w.stranger(own, &packet[..cut.min(packet.len() - 1)]));
                }
                answers.extend(w.stranger(own, packet));
                for again in former.iter().chain([packet]) {
                    answers.extend(w.stranger(own, again));
                }
                former.push(packet.clone());
                answers
                    .iter_mut()
                    .for_each(|answer| w.to_client(c, Input::ControlPacket(link, answer)));
            }
        }
        assert!(w.is_up(c), "{:?}", w.events);
        assert_eq!((w.server.clients().count(), w.server.handshakes()), (1, 0));
        assert!(w.downs().is_empty() && w.server.counters().session_bad > 0);
    }
}

/// Packets that are authentic with a client's own key but meaningless neither start nor end a
/// handshake, and are not answered.
#[test]
fn cve_2026_35058_nonsense_under_a_clients_good_key_starts_and_ends_nothing() {
    let (server, client) = crypt_v2();
    let plain = Control {
        opcode: Opcode::HardResetClientV3,
        key_id: 0,
        session: SessionId([7; 8]),
        acks: Acks::default(),
        remote: None,
        message: Some(0),
        payload: &[],
    };
    let acks = Acks::from_slice(&[0]).expect("one fits");
    let remote = Some(SessionId([9; 8]));
    let long = [0u8; 1200];
    let nonsense = [
        Control { message: Some(1), ..plain },
        Control { message: Some(u32::MAX), ..plain },
        Control { acks, remote, ..plain },
        Control { key_id: 1, ..plain },
        Control { opcode: Opcode::ControlWkcV1, ..plain },
        Control { opcode: Opcode::ControlWkcV1, acks, remote, message: Some(1), ..plain },
        Control { opcode: Opcode::ControlWkcV1, acks, remote, payload: &long, ..plain },
        Control { opcode: Opcode::ControlV1, acks, remote, message: Some(1), ..plain },
        Control { opcode: Opcode::AckV1, acks, remote, message: None, ..plain },
    ];
    let sealed = |control: &Control<'_>| {
        let mut packet = Vec::new();
        let mut wrapper = Wrapper::client(&client).expect("a client's wrapping");
        wrapper.set_next_id(0x0f00_0100);
        wrapper.seal(control, adit_engine::UnixTime(1), &mut packet).expect("a packet");
        packet
    };
    let mut w = World::new(server_config(with(&server)), 1);
    for control in &nonsense {
        assert!(w.stranger(address(1), &sealed(control)).is_empty(), "{control:?}");
    }
    assert_eq!((w.server.handshakes(), w.server.deadline()), (0, None));
    // The same packets are sent within a session, with the session's own ids.
    let c = w.connect(client_config(with(&client)), Impairment::default(), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    let (session, ours) = w.session_ids;
    for control in &nonsense {
        let remote = control.remote.map(|_| SessionId(ours));
        let control = Control { session: SessionId(session), remote, ..*control };
        w.stranger(w.clients[c].address, &sealed(&control));
    }
    w.run(30 * SECOND, |_| false);
    assert_eq!((w.ups(c), w.downs().len(), w.server.clients().count()), (1, 0, 1));
}

/// Each message to a client comes from its own session, and only an authenticated session replaces
/// another. Here the sessions use datagrams, and packets of the previous session may still arrive
/// at any moment.
#[test]
fn cve_2023_46850_cve_2026_12996_cve_2026_84471_a_session_gives_way_to_an_authenticated_one_alone()
{
    for (server, client) in wrappings() {
        let mut config = server_config(with(&server));
        config.authorize = true;
        let mut w = World::new(config, 1);
        let first = w.connect(client_config(with(&client)), Impairment::default(), 1);
        assert!(w.run(5 * SECOND, |w| w.is_up(first)));
        let own = w.clients[first].address;
        w.slow_registry = true;
        let second = w.connect(client_config(with(&client)), Impairment::default(), 2);
        assert!(w.run(5 * SECOND, |w| !w.asked.is_empty()));
        w.run(10 * SECOND, |_| false);
        assert!(w.downs().is_empty(), "TLS is done, and still the old one goes on");
        w.to_server(Input::AuthResponse(w.asked[0], auth::Response::Reject("no".into())));
        w.run(10 * SECOND, |_| false);
        assert!(w.downs().is_empty() && w.server.clients().count() == 1 && !w.is_up(second));
        // This time the client is authorized, and the previous session's last packets are in
        // transit.
        w.slow_registry = false;
        let mut out = Outbox::new();
        w.clients[first].engine.restart(w.now, &mut out);
        let words: Vec<_> = std::iter::from_fn(|| out.pop())
            .filter_map(|output| match output {
                Output::Send(_, frame) => Some(frame),
                _ => None,
            })
            .collect();
        let third = w.connect(client_config(with(&client)), Impairment::default(), 3);
        let up = w.run(10 * SECOND, |w| {
            w.is_up(third) && w.server.clients().all(|info| info.link.remote() != own)
        });
        assert!(up, "{:?}", w.events);
        assert_eq!(w.downs(), ["replaced by a new session of the same name"]);
        for word in &words {
            assert!(w.stranger(own, word).is_empty(), "there is no one to answer");
        }
        assert_eq!((w.server.clients().count(), w.plane.peers.len()), (1, 1));
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

/// A client's key was kept for each packet of certain kinds, so unauthenticated senders could fill
/// the memory.
#[test]
fn cve_2026_12932_cve_2026_13698_no_key_of_a_stranger_is_kept() {
    let (server, client) = crypt_v2();
    let mut w = World::new(server_config(with(&server)), 1);
    let mut wrapper = Wrapper::client(&client).expect("a client's wrapping");
    let mut seal = |first_id, opcode, session: u8, remote, message| {
        let acks = match remote {
            Some(_) => Acks::from_slice(&[0]).expect("one fits"),
            None => Acks::default(),
        };
        let session = SessionId([session; 8]);
        let control = Control { opcode, key_id: 0, session, acks, remote, message, payload: &[] };
        let mut packet = Vec::new();
        wrapper.set_next_id(first_id);
        wrapper.seal(&control, adit_engine::UnixTime(1), &mut packet).expect("a packet");
        packet
    };
    let early = 0x0f00_0001;
    let remote = Some(SessionId([9; 8]));
    let mut kinds = vec![
        seal(early, Opcode::HardResetClientV3, 1, None, Some(0)),
        // A client of version 2.5, whose keys are kept for a while in a bounded table.
        seal(1, Opcode::HardResetClientV3, 2, None, Some(0)),
        seal(early, Opcode::ControlWkcV1, 3, remote, Some(1)),
        seal(early, Opcode::HardResetClientV3, 4, remote, Some(0)),
        seal(early, Opcode::HardResetClientV3, 5, None, Some(3)),
    ];
    // Test an authentic key with an altered packet, and an altered key.
    for at in [20, kinds[0].len() - 100] {
        let mut altered = kinds[0].clone();
        altered[at] ^= 1;
        kinds.push(altered);
    }
    let flood = |w: &mut World, from: u32| {
        for n in 0..4000 {
            kinds.iter().for_each(|packet| drop(w.stranger(address(from + n), packet)));
        }
        w.events.clear();
    };
    flood(&mut w, 0);
    let before = resident();
    for round in 1..6 {
        flood(&mut w, round * 4000);
    }
    let grown = resident().saturating_sub(before);
    // These are 140,000 packets. If 64 bytes of each were kept, this would be 9 MB.
    assert!(grown < 6 << 20, "{grown} bytes more");
    assert_eq!((w.server.handshakes(), w.server.deadline()), (0, None));
    assert!(w.plane.peers.is_empty());
}

/// While sessions were renegotiating, objects of one were confused with another's. Here each packet
/// of a renegotiation is repeated from the other client's address, once unchanged and once with the
/// other's session id.
#[test]
fn cve_2026_13117_cve_2026_40215_renegotiations_of_two_clients_never_mix() {
    for (server, client) in wrappings() {
        let config = ServerConfig { duplicate_cn: true, ..server_config(with(&server)) };
        let mut w = World::new(config, 1);
        let both =
            [1, 2].map(|seed| w.connect(client_config(with(&client)), Impairment::default(), seed));
        assert!(w.run(5 * SECOND, |w| both.iter().all(|&c| w.is_up(c))));
        w.run(SECOND, |_| false);
        let peers: Vec<_> = w.plane.peers.keys().copied().collect();
        for c in both {
            let peer = w.clients[c].plane.peers.keys().copied().next().expect("a peer");
            w.to_client(c, Input::Notice(Notice::KeyNearLimit(peer, 0)));
        }
        let mut crossed = 0;
        for _ in 0..20 {
            let sent = both.map(|c| w.capture(c));
            for (packets, (own, other)) in sent.iter().zip([(0, 1), (1, 0)]) {
                let from = w.clients[both[other]].address;
                let others = sent[other].first().map(|packet| packet[1..9].to_vec());
                for packet in packets {
                    let mut renamed = packet.clone();
                    if let Some(session) = &others {
                        renamed[1..9].copy_from_slice(session);
                    }
                    w.stranger(from, packet);
                    // Without its own wrapping keys, a renegotiation could come from anyone.
                    if packet[0] & 7 != 0 {
                        w.stranger(from, &renamed);
                    }
                    crossed += 1;
                }
                let (address, link) = (w.clients[both[own]].address, w.client_link(both[own]));
                for packet in packets {
                    for mut answer in w.stranger(address, packet) {
                        w.to_client(both[own], Input::ControlPacket(link, &mut answer));
                    }
                }
            }
            both.iter().for_each(|&c| w.tick_client(c));
        }
        assert!(crossed > 4, "{crossed}");
        assert!(w.run(10 * SECOND, |w| both.iter().all(|&c| w.rekeys(c) == 1)));
        both.iter().for_each(|&c| w.clients[c].traffic = true);
        let failed = w.plane.failed;
        w.run(SECOND, |_| false);
        assert_eq!(
            (w.downs().len(), w.plane.failed, w.plane.peers.len()),
            (0, failed, peers.len())
        );
        assert!(both.iter().all(|&c| w.ups(c) == 1 && w.clients[c].plane.opened > 50));
    }
}

/// Returns the id of each message that a server sends to a client, unwrapped.
fn messages(w: &mut World, c: usize) -> Vec<u32> {
    let far = w.now + Duration::from_secs(3600);
    let mut ids = Vec::new();
    while let Some(packet) = w.clients[c].down.pop(far) {
        let support::Packet::Control(bytes) = packet else { continue };
        let acks = usize::from(bytes[9]);
        let at = 10 + acks * 4 + if acks > 0 { 8 } else { 0 };
        ids.extend(bytes.get(at..at + 4).map(|id| u32::from_be_bytes(id.try_into().expect("4"))));
    }
    ids
}

/// The time between two retransmissions grew without limit, and acknowledgements of messages that
/// were not outstanding were counted. Here such acknowledgements arrive throughout a handshake that
/// makes no progress, without a wrapping, so that an unauthenticated sender can forge them.
#[test]
fn cve_2026_84732_retransmissions_keep_their_pace_whatever_is_acknowledged() {
    let (mut w, c, third) = before_the_third_packet(&WrapConfig::None, &WrapConfig::None);
    let own = w.clients[c].address;
    let parts = |at: std::ops::Range<usize>| SessionId(third[0][at].try_into().expect("eight"));
    let (session, remote) = (parts(1..9), Some(parts(14..22)));
    let ack = |ids: &[u32]| {
        let acks = Acks::from_slice(ids).expect("they fit");
        let (opcode, payload) = (Opcode::AckV1, &[][..]);
        let mut packet = Vec::new();
        Control { opcode, key_id: 0, session, acks, remote, message: None, payload }
            .encode(&mut packet);
        packet
    };
    let mut sent: std::collections::BTreeMap<u32, Vec<adit_engine::Instant>> = Default::default();
    for packet in &third {
        let link = w.server_link(c);
        w.to_server(Input::ControlPacket(link, &mut packet.clone()));
    }
    let start = w.now;
    // These ids are of messages that were never sent, of messages that were acknowledged long ago,
    // and the ends of the range.
    let absent = [0, 100, 1000, u32::MAX, u32::MAX - 1, 1 << 31, 77, 78];
    while w.now < start + 50 * SECOND {
        for id in messages(&mut w, c) {
            sent.entry(id).or_default().push(w.now);
        }
        assert!(w.stranger(own, &ack(&absent)).is_empty());
        w.now = w.now + Duration::from_millis(50);
        w.to_server(Input::Tick);
    }
    assert!(!sent.is_empty() && sent.keys().all(|id| *id < 7), "{:?}", sent.keys());
    for (id, times) in &sent {
        let gaps = times.windows(2).map(|pair| pair[1].since(pair[0]));
        assert!(gaps.max() <= Some(Duration::from_millis(4100)), "message {id}: {times:?}");
        assert!(times.len() >= 12, "message {id} is still outstanding, and was sent {times:?}");
    }
    assert_eq!(w.server.handshakes(), 1);
    assert!(w.run(9 * SECOND, |w| w.is_up(c)), "the handshake goes on: {:?}", w.clients[c].events);
}

/// A client's first message that was too large terminated the server.
#[test]
fn cve_2017_7478_a_first_message_of_any_size_ends_nothing() {
    for (server, client) in wrappings() {
        let opcode = match client {
            WrapConfig::TlsCryptV2Client { .. } => Opcode::ControlWkcV1,
            _ => Opcode::ControlV1,
        };
        for size in [0, 1, 1000, 1250, 1500, 4096, 16_384, 16_500, 65_000] {
            let (mut w, c, third) = before_the_third_packet(&server, &client);
            let own = w.clients[c].address;
            let mut wrapper = Wrapper::client(&client).expect("a client's wrapping");
            wrapper.set_next_id(0x0f00_0100);
            // The ids of the handshake are in the clear part of the packet, or known to the client
            // with the key.
            let session = SessionId(third[0][1..9].try_into().expect("eight"));
            let mut first = Vec::new();
            let reset = Control {
                opcode: match opcode {
                    Opcode::ControlWkcV1 => Opcode::HardResetClientV3,
                    _ => Opcode::HardResetClientV2,
                },
                key_id: 0,
                session,
                acks: Acks::default(),
                remote: None,
                message: Some(0),
                payload: &[],
            };
            wrapper.seal(&reset, adit_engine::UnixTime(1), &mut first).expect("a packet");
            let mut answer = w.stranger(own, &first).remove(0);
            let remote = wrapper.open(&mut answer).expect("an answer").session;
            let payload = vec![0x16; size];
            let acks = Acks::from_slice(&[0]).expect("one fits");
            let message = Some(1);
            let large = Control {
                opcode,
                session,
                acks,
                remote: Some(remote),
                message,
                payload: &payload,
                ..reset
            };
            let mut packet = Vec::new();
            wrapper.seal(&large, adit_engine::UnixTime(1), &mut packet).expect("a packet");
            w.stranger(own, &packet);
            let honest = w.connect(client_config(with(&client)), Impairment::default(), 9);
            assert!(w.run(5 * SECOND, |w| w.is_up(honest)), "{size} bytes: {:?}", w.events);
        }
    }
}

fn pushed(option: &str) -> Option<PushedOptions> {
    let option = PushedOption::parse(option).ok()?;
    PushedOptions::parse(&[option], &PullFilters::default()).ok()
}

/// Pushed domain names reached a shell.
#[test]
fn cve_2025_10680_pushed_dns_settings_mean_nothing_to_a_shell() {
    let hostile = [
        "$(reboot)",
        "`reboot`",
        "a;reboot",
        "a|reboot",
        "a&reboot",
        "a>b",
        "a\\nb",
        "-x",
        "a'b",
        "${IFS}",
        "../../etc",
        "a b",
        "*",
        "~",
        "a#b",
        "a!b",
        "\u{a0}",
        "a\u{202e}b",
    ];
    let forms = [
        "dhcp-option DOMAIN",
        "dhcp-option DOMAIN-SEARCH",
        "dhcp-option ADAPTER_DOMAIN_SUFFIX",
        "dhcp-option DOMAIN-ROUTE",
        "dhcp-option DNS",
        "dhcp-option DNS6",
        "dns search-domains",
        "dns server 1 address",
        "dns server 1 resolve-domains",
        "dns server 1 sni",
        "dns server 1 dnssec",
        "dns server 1 transport",
    ];
    for form in forms {
        for value in hostile {
            for option in [format!("{form} {value}"), format!("{form} \"{value}\"")] {
                let Some(options) = pushed(&option) else { continue };
                let lines = options.dns.lines();
                let harmless = |line: &String| {
                    line.bytes().all(|b| b.is_ascii_alphanumeric() || b" -._:[]".contains(&b))
                        && !line.split(' ').any(|word| word.starts_with('-') || word.contains(".."))
                };
                assert!(lines.iter().all(harmless), "{option}: {lines:?}");
            }
        }
    }
    let good = pushed("dhcp-option DOMAIN corp.example").expect("good").dns.lines();
    assert_eq!(good, ["dhcp-option DOMAIN corp.example"], "what is harmless is taken");
}

/// An IPv6 address that was too long or truncated was read beyond its end.
#[test]
fn cve_2025_12106_ipv6_addresses_of_any_length_are_taken_or_refused() {
    let whole = "ifconfig-ipv6 2001:db8:1:2:3:4:5:6/64 2001:db8:1:2::1";
    assert!(pushed(whole).expect("good").ipv6.is_some());
    for cut in 0..whole.len() {
        let _ = pushed(&whole[..cut]);
    }
    for address in
        ["2001:db8::1", "::", "::ffff:1.2.3.4", "2001:db8::1%eth0", "1:2:3:4:5:6:7:8:9", "12345::"]
    {
        for filler in ["", ":", "0", "f", "::", "/", "%", "1.2.3.4"] {
            for count in [1, 2, 45, 46, 47, 64, 255, 256, 900] {
                let long = format!("{address}{}", filler.repeat(count));
                let taken = |option: &str| pushed(option).is_some_and(|o| o.ipv6.is_some());
                // The unspecified address parses, but cannot be an end of a tunnel.
                let address: Option<std::net::Ipv6Addr> = long.parse().ok();
                let good = address.is_some_and(|address| !address.is_unspecified());
                assert_eq!(taken(&format!("ifconfig-ipv6 {long}/64 {long}")), good, "{long}");
                for form in [
                    "route-ipv6 {}/128 {}",
                    "dns server 1 address [{}]:53",
                    "route-ipv6-gateway {}",
                ] {
                    let _ = pushed(&form.replace("{}", &long));
                }
            }
        }
    }
}

/// A directive behind `setenv opt` was not checked by the service that starts openvpn with its own privileges. Here a
/// pushed directive counts only if its own name is allowed.
#[test]
fn cve_2026_63649_no_directive_hides_behind_setenv_opt() {
    assert!(!pushed("route 10.1.0.0 255.255.0.0").expect("good").routes4.is_empty());
    for hidden in [
        "route 10.1.0.0 255.255.0.0",
        "ifconfig 10.0.0.1 255.0.0.0",
        "up /bin/sh",
        "plugin /tmp/x.so",
        "script-security 3",
    ] {
        for form in ["setenv opt {}", "setenv \"opt\" {}", "setenv-safe opt {}", "setenv\topt {}"] {
            let option = form.replace("{}", hidden);
            let Some(options) = pushed(&option) else { continue };
            assert!(options.routes4.is_empty() && options.ipv4.is_none(), "{option}");
        }
    }
}
