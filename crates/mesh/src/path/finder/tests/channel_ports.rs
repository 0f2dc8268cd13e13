//! The ports of further channels.

use super::*;

const PORTS: [SocketId; 2] = [SocketId(7), SocketId(8)];

/// Returns a finder with a direct path, in a session with two further channels. The first probes are lost.
fn with_ports() -> (Peer, Instant) {
    let mut peer = direct();
    let now = NOW + MS * 2000;
    peer.finder.handle(now, Input::ChannelPorts(PORTS.to_vec()), &mut Vec::new());
    (peer, now)
}

/// Sends data for a time, and answers the probes from these sockets. Returns the changes of ports, with their times.
fn talk(
    peer: &mut Peer,
    from: Instant,
    time: Duration,
    answers: &[SocketId],
) -> Vec<(Duration, usize, Option<SocketId>)> {
    let (mut changes, mut now) = (Vec::new(), from);
    while now < from + time {
        let mut out = Vec::new();
        peer.finder.handle(now, Input::DataSent, &mut out);
        for (route, bytes) in probes(&out) {
            let Route::Direct { socket, .. } = route else { continue };
            if socket == MAIN_SOCKET || answers.contains(&socket) {
                let bytes = peer.echo_of(&bytes);
                let echo =
                    Input::Datagram { socket, from: address(PEER), local: None, bytes: &bytes };
                peer.finder.handle(now, echo, &mut out);
            }
        }
        for output in out {
            match output {
                Output::UsePort { channel, socket } => {
                    changes.push((now.since(from), channel, socket));
                }
                Output::UsePath(route) => panic!("another path: {route:?}"),
                _ => {}
            }
        }
        now = now + MS * 100;
    }
    changes
}

#[test]
fn a_channel_is_sent_from_its_port_once_a_probe_is_answered_and_until_three_are_lost() {
    let (mut peer, now) = with_ports();
    let second = Duration::from_secs(1);
    let changes = talk(&mut peer, now, second * 10, &PORTS[..1]);
    assert_eq!(changes, [(MS * 700, 1, Some(PORTS[0]))]);
    let changes = talk(&mut peer, now + second * 10, second * 10, &[]);
    let [(at, 1, None)] = changes[..] else { panic!("{changes:?}") };
    assert!(at <= second * 3, "{at:?}");
    // Each is tried again a minute after it was given up.
    let changes = talk(&mut peer, now + second * 20, second * 60, &PORTS);
    assert!(changes.contains(&(changes[0].0, 2, Some(PORTS[1]))), "{changes:?}");
    assert!((41..=43).contains(&changes[0].0.as_secs()), "{changes:?}");
    assert_eq!((changes.len(), changes[1].1, changes[1].2), (2, 1, Some(PORTS[0])));
}

#[test]
fn ports_are_probed_only_while_packets_pass() {
    let (mut peer, now) = with_ports();
    let second = Duration::from_secs(1);
    talk(&mut peer, now, second * 2, &PORTS);
    let mut probed = Vec::new();
    for tenth in 20..500 {
        let (now, mut out) = (now + MS * 100 * tenth, Vec::new());
        peer.finder.handle(now, Input::Tick, &mut out);
        for (route, bytes) in probes(&out) {
            let Route::Direct { socket, .. } = route else { continue };
            probed.extend(PORTS.contains(&socket).then_some(tenth));
            peer.answer_on(now, socket, &bytes);
        }
    }
    assert!(probed.len() > 20 && probed.iter().all(|tenth| *tenth <= 120), "{probed:?}");
    // The first packet after a pause checks the ports at once.
    let mut out = Vec::new();
    peer.finder.handle(now + second * 60, Input::DataSent, &mut out);
    let sockets: Vec<Route> = probes(&out).into_iter().map(|(route, _)| route).collect();
    let to = address(PEER);
    assert!(PORTS.iter().all(|port| sockets.contains(&Route::Direct { socket: *port, to })));
}

#[test]
fn a_new_path_begins_at_the_first_port() {
    let (mut peer, now) = with_ports();
    talk(&mut peer, now, MS * 100, &PORTS);
    let other = Route::Direct { socket: MAIN_SOCKET, to: address("192.0.2.3:1194") };
    peer.finder.current = Some(other);
    let mut out = Vec::new();
    peer.finder.advance_channel_ports(now + MS * 100, &mut out);
    let all: Vec<Route> = probes(&out).iter().map(|(route, _)| *route).collect();
    let to = address("192.0.2.3:1194");
    assert_eq!(all, PORTS.map(|socket| Route::Direct { socket, to }));
    // The echo of a probe to the previous address changes nothing; the echo of one of these does.
    for (to, changes) in [(address(PEER), false), (to, true)] {
        let mut out = Vec::new();
        let route = Route::Direct { socket: PORTS[0], to };
        assert!(peer.finder.on_channel_port_echo(now, route, &mut out));
        assert_eq!(!out.is_empty(), changes);
    }
    for route in [Route::Relay(RELAY), Route::Direct { socket: SocketId(9), to }] {
        peer.finder.current = Some(route);
        let mut out = Vec::new();
        peer.finder.advance_channel_ports(now + MS * 200, &mut out);
        assert!(out.is_empty(), "{route:?}: {out:?}");
    }
}

#[test]
fn no_path_leads_to_a_port_that_only_sends() {
    let (mut peer, now) = with_ports();
    let nonce = Nonce { number: 1, random: [0; 8] };
    let probe = Probe { tag: peer.tag, nonce, kind: ProbeKind::Probe };
    let bytes = peer.send.seal(&probe);
    let paths = peer.finder.paths.len();
    let mut out = Vec::new();
    let from = address("192.0.2.9:1194");
    let input = Input::Datagram { socket: PORTS[0], from, local: None, bytes: &bytes };
    peer.finder.handle(now, input, &mut out);
    let to_stranger =
        |(route, _): &(Route, Vec<u8>)| matches!(route, Route::Direct { to, .. } if *to == from);
    assert!(!probes(&out).iter().any(to_stranger));
    assert_eq!((peer.finder.paths.len(), peer.finder.counters().limited), (paths, 1));
    // At the node's own port, the same probe is answered.
    let input = Input::Datagram { socket: MAIN_SOCKET, from, local: None, bytes: &bytes };
    peer.finder.handle(now, input, &mut out);
    assert!(probes(&out).iter().any(to_stranger));
}
