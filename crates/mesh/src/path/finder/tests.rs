mod channel_ports;
mod report;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, Rate};

use super::super::nat::{NatInfo, NatKind};
use super::super::probe::{MIN_PROBE, Nonce, Probe, ProbeKey, ProbeKind};
use super::super::record::{Offer, Purpose};
use super::port_search::Stage;
use super::*;

const A: KeyHash = [1; 32];
const B: KeyHash = [2; 32];
const RELAY: KeyHash = [9; 32];
const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn candidate(text: &str, kind: CandidateKind) -> Candidate {
    Candidate::new(address(text), kind).unwrap()
}

fn finder(own: KeyHash, peer: KeyHash, own_address: &str) -> PathFinder {
    let budget = Arc::new(PunchBudget::default());
    let mut finder = PathFinder::new(own, peer, Random::new([own[0]; 32]), budget);
    let leg = RelayLeg { relay: RELAY, stream: false, rtt: Duration::ZERO, mtu: 1400 };
    let candidates = vec![candidate(own_address, CandidateKind::Own)];
    let nat = NatInfo { kind: NatKind::None, ..NatInfo::default() };
    finder.handle(NOW, Input::Relays(vec![leg]), &mut Vec::new());
    finder.handle(NOW, Input::Local { candidates, nat }, &mut Vec::new());
    finder
}

/// Returns the records of an output list.
fn records(out: &[Output]) -> Vec<Vec<u8>> {
    let records = out.iter().filter_map(|output| match output {
        Output::SendRecord { bytes, .. } => Some(bytes.clone()),
        _ => None,
    });
    records.collect()
}

fn probes(out: &[Output]) -> Vec<(Route, Vec<u8>)> {
    let probes = out.iter().filter_map(|output| match output {
        Output::SendProbe { route, bytes, .. } => Some((*route, bytes.clone())),
        _ => None,
    });
    probes.collect()
}

fn record(finder: &mut PathFinder, now: Instant, from: KeyHash, bytes: &[u8]) -> Vec<Output> {
    let mut out = Vec::new();
    finder.handle(now, Input::Record { from, via: Some(RELAY), bytes }, &mut out);
    out
}

fn datagram(finder: &mut PathFinder, from: &str, bytes: &[u8]) -> Vec<Output> {
    let mut out = Vec::new();
    let input = Input::Datagram { socket: MAIN_SOCKET, from: address(from), local: None, bytes };
    finder.handle(NOW, input, &mut out);
    out
}

/// The keys and the state of a peer that a test simulates.
struct Peer {
    finder: PathFinder,
    /// The first probe of the finder, to 192.0.2.2.
    probe: Probe,
    send: ProbeKey,
    receive: ProbeKey,
    tag: Tag,
}

const PEER: &str = "192.0.2.2:1194";

/// Returns a finder that has sent its first probe to the peer.
fn probing() -> Peer {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let mut out = Vec::new();
    a.handle(NOW, Input::DataSent, &mut out);
    let ask = records(&out).remove(0);
    let Ok(Record::Offer(ask)) = Record::decode(&ask) else { panic!() };
    let answer = peer_offer(1, Purpose::Answer { to: ask.sequence, punch_in_ms: 0 });
    let out = record(&mut a, NOW, B, &encode(answer));
    let (own, peer) = ((&A, &*ask.secret), (&B, &[22; 32]));
    let receive = ProbeKey::derive(own, peer).unwrap();
    let probe = receive.open(&probes(&out)[0].1).unwrap();
    let send = ProbeKey::derive(peer, own).unwrap();
    Peer { finder: a, probe, send, receive, tag: ask.tag }
}

fn peer_offer(sequence: u64, purpose: Purpose) -> Offer {
    Offer {
        sequence,
        tag: Tag([7; 8]),
        secret: Zeroizing::new([22; 32]),
        purpose,
        relay_rtt_ms: 0,
        nat: NatKind::None,
        candidates: vec![candidate(PEER, CandidateKind::Own)],
    }
}

fn encode(offer: Offer) -> Vec<u8> {
    Record::Offer(Box::new(offer)).encode()
}

impl Peer {
    fn echo(&self, nonce: Nonce) -> Vec<u8> {
        let kind = ProbeKind::Echo { seen: Some(address("192.0.2.1:1194")), size: 43 };
        self.send.seal(&Probe { tag: self.tag, nonce, kind })
    }

    /// Answers a probe that went to the peer's main address.
    fn answer(&mut self, now: Instant, probe: &[u8]) {
        self.answer_on(now, MAIN_SOCKET, probe);
    }

    fn answer_on(&mut self, now: Instant, socket: SocketId, probe: &[u8]) {
        let bytes = self.echo_of(probe);
        let echo = Input::Datagram { socket, from: address(PEER), local: None, bytes: &bytes };
        self.finder.handle(now, echo, &mut Vec::new());
    }

    fn echo_of(&self, probe: &[u8]) -> Vec<u8> {
        let nonce = self.receive.open(probe).unwrap().nonce;
        let size = u16::try_from(probe.len()).unwrap();
        let kind = ProbeKind::Echo { seen: Some(address("192.0.2.1:1194")), size };
        self.send.seal(&Probe { tag: self.tag, nonce, kind })
    }

    fn is_direct(&self) -> bool {
        matches!(self.finder.current(), Some(Route::Direct { .. }))
    }
}

#[test]
fn data_goes_through_a_relay_at_once_and_directly_after_the_first_echo() {
    let mut peer = probing();
    assert_eq!(peer.finder.current(), Some(Route::Relay(RELAY)));
    let echo = peer.echo(peer.probe.nonce);
    let out = datagram(&mut peer.finder, PEER, &echo);
    let route = Route::Direct { socket: MAIN_SOCKET, to: address(PEER) };
    assert!(out.contains(&Output::UsePath(route)), "{out:?}");
    assert!(out.contains(&Output::Observed(address("192.0.2.1:1194"))));
    let mtu = out.iter().position(|output| matches!(output, Output::SetMtu { .. }));
    let used = out.iter().position(|output| matches!(output, Output::UsePath(_)));
    assert!(mtu < used, "the MTU is known before the path is used");
}

#[test]
fn an_echo_with_another_nonce_does_not_count() {
    let mut peer = probing();
    let nonce = Nonce { random: [0; 8], ..peer.probe.nonce };
    let echo = peer.echo(nonce);
    datagram(&mut peer.finder, PEER, &echo);
    assert!(!peer.is_direct());
    assert_eq!(peer.finder.counters().wrong_nonces, 1);
    let unknown = peer.echo(Nonce { number: 999, ..peer.probe.nonce });
    datagram(&mut peer.finder, PEER, &unknown);
    assert!(!peer.is_direct());
    assert_eq!(peer.finder.counters().unknown_echoes, 1);
}

#[test]
fn an_echo_from_another_address_does_not_count() {
    let mut peer = probing();
    let echo = peer.echo(peer.probe.nonce);
    for other in ["192.0.2.3:1194", "192.0.2.2:1195"] {
        datagram(&mut peer.finder, other, &echo);
    }
    assert!(!peer.is_direct());
    assert_eq!(peer.finder.counters().wrong_addresses, 2);
    datagram(&mut peer.finder, PEER, &echo);
    assert!(peer.is_direct(), "the right address");
}

#[test]
fn an_echo_counts_once() {
    let mut peer = probing();
    let echo = peer.echo(peer.probe.nonce);
    datagram(&mut peer.finder, PEER, &echo);
    datagram(&mut peer.finder, PEER, &echo);
    let PathCounters { echoes, unknown_echoes, .. } = peer.finder.counters();
    assert_eq!((echoes, unknown_echoes), (1, 1));
}

#[test]
fn probes_of_strangers_get_no_echo() {
    let mut peer = probing();
    let probe =
        Probe { tag: peer.tag, nonce: Nonce { number: 1, random: [1; 8] }, kind: ProbeKind::Probe };
    let forged = ProbeKey::derive((&B, &[23; 32]), (&A, &[11; 32])).unwrap().seal(&probe);
    assert_eq!(probes(&datagram(&mut peer.finder, PEER, &forged)), []);
    let other_tag = peer.send.seal(&Probe { tag: Tag([0; 8]), ..probe });
    assert_eq!(probes(&datagram(&mut peer.finder, PEER, &other_tag)), []);
    assert_eq!(peer.finder.counters().not_authentic, 2);
    let genuine = peer.send.seal(&probe);
    assert_eq!(probes(&datagram(&mut peer.finder, PEER, &genuine)).len(), 1);
}

#[test]
fn a_replayed_probe_gets_no_echo() {
    let mut peer = probing();
    let nonce = Nonce { number: 1, random: [1; 8] };
    let probe = peer.send.seal(&Probe { tag: peer.tag, nonce, kind: ProbeKind::Probe });
    assert_eq!(probes(&datagram(&mut peer.finder, PEER, &probe)).len(), 1);
    // Otherwise an attacker with a recorded probe could make the node send packets to any address.
    assert_eq!(probes(&datagram(&mut peer.finder, "198.51.100.66:53", &probe)), []);
    assert_eq!(peer.finder.counters().replayed_probes, 1);
}

#[test]
fn a_probe_from_an_address_that_was_not_offered_is_probed_in_return() {
    let mut peer = probing();
    let nonce = Nonce { number: 1, random: [1; 8] };
    let probe = peer.send.seal(&Probe { tag: peer.tag, nonce, kind: ProbeKind::Probe });
    let out = probes(&datagram(&mut peer.finder, "192.0.2.2:40001", &probe));
    assert_eq!(out.len(), 2, "an echo and a probe");
    let to = Route::Direct { socket: MAIN_SOCKET, to: address("192.0.2.2:40001") };
    assert!(out.iter().all(|(route, _)| *route == to));
}

#[test]
fn addresses_that_were_not_offered_are_bounded() {
    let mut peer = probing();
    for number in 1..=200 {
        let nonce = Nonce { number, random: [1; 8] };
        let probe = peer.send.seal(&Probe { tag: peer.tag, nonce, kind: ProbeKind::Probe });
        let from = format!("192.0.2.2:{}", 2000 + number);
        datagram(&mut peer.finder, &from, &probe);
    }
    assert!(peer.finder.paths.len() <= 10, "{}", peer.finder.paths.len());
    assert!(peer.finder.counters().limited > 100);
}

#[test]
fn an_offer_of_another_node_is_refused() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let offer = encode(peer_offer(1, Purpose::Ask));
    assert_eq!(records(&record(&mut a, NOW, [3; 32], &offer)), Vec::<Vec<u8>>::new());
    assert_eq!(a.counters().wrong_sender, 1);
    assert_eq!(records(&record(&mut a, NOW, B, &offer)).len(), 1, "an answer to the peer");
}

#[test]
fn a_replayed_offer_is_refused() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let answered =
        |a: &mut PathFinder, offer| !records(&record(a, NOW, B, &encode(offer))).is_empty();
    let first = peer_offer(5, Purpose::Ask);
    assert!(answered(&mut a, first.clone()));
    assert!(!answered(&mut a, first.clone()));
    assert!(!answered(&mut a, peer_offer(4, Purpose::Ask)));
    assert!(answered(&mut a, peer_offer(6, Purpose::Ask)));
    // After a restart the peer has a new tag, and offers with the former one are replays.
    let restarted = Offer { tag: Tag([8; 8]), ..peer_offer(1, Purpose::Ask) };
    assert!(answered(&mut a, restarted));
    assert!(!answered(&mut a, peer_offer(7, Purpose::Ask)));
    assert_eq!(a.counters().replayed_offers, 3);
}

#[test]
fn offers_are_limited_in_number() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let answers = (1..=100)
        .filter(|sequence| {
            let offer = encode(peer_offer(*sequence, Purpose::Ask));
            !records(&record(&mut a, NOW, B, &offer)).is_empty()
        })
        .count();
    assert_eq!(answers, 8);
    assert_eq!(a.counters().limited, 92);
}

#[test]
fn an_answer_counts_for_the_offer_that_it_answers() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    a.handle(NOW, Input::DataSent, &mut Vec::new());
    let stale = peer_offer(1, Purpose::Answer { to: 999, punch_in_ms: 0 });
    assert_eq!(probes(&record(&mut a, NOW, B, &encode(stale))), []);
    assert!(matches!(a.round, Round::Asked { .. }));
}

#[test]
fn malformed_records_are_counted() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    record(&mut a, NOW, B, &[]);
    assert_eq!(a.counters().malformed, 1);
}

#[test]
fn each_candidate_is_probed_three_times_at_50_ms() {
    let mut peer = probing();
    let mut times = Vec::new();
    for ms in 1..900 {
        let now = NOW + Duration::from_millis(ms);
        if peer.finder.deadline().is_some_and(|(at, _)| at <= now) {
            let mut out = Vec::new();
            peer.finder.handle(now, Input::Tick, &mut out);
            times.extend(probes(&out).iter().map(|_| ms));
        }
    }
    // The first one follows the answer at once.
    assert_eq!(times, [50, 100]);
}

#[test]
fn searches_share_the_budget_of_the_node() {
    let budget = Arc::new(PunchBudget::default());
    let stages: Vec<bool> = (0..6)
        .map(|_| {
            let mut a = finder(A, B, "192.0.2.1:1194");
            a.budget = Arc::clone(&budget);
            a.nat.kind = NatKind::EndpointIndependent;
            let nat = NatKind::Symmetric { sequential: false };
            record(&mut a, NOW, B, &encode(Offer { nat, ..peer_offer(1, Purpose::Ask) }));
            a.begin_search(NOW, &mut Vec::new());
            let first = matches!(a.search.stage, Stage::Guessing { .. });
            a.begin_search(NOW, &mut Vec::new());
            assert_eq!(first, matches!(a.search.stage, Stage::Guessing { .. }), "once");
            first
        })
        .collect();
    assert_eq!(stages, [true, true, true, true, false, false]);
}

#[test]
fn guesses_are_bounded_in_number_and_rate() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    a.nat.kind = NatKind::EndpointIndependent;
    let nat = NatKind::Symmetric { sequential: false };
    record(&mut a, NOW, B, &encode(Offer { nat, ..peer_offer(1, Purpose::Ask) }));
    let mut guesses = Vec::new();
    let end = NOW + Duration::from_secs(20);
    while let Some((at, _)) = a.deadline().filter(|(at, _)| *at < end) {
        let mut out = Vec::new();
        a.handle(at, Input::Tick, &mut out);
        let to_guessed =
            |route: &Route| matches!(route, Route::Direct { to, .. } if *to != address(PEER));
        guesses.extend(probes(&out).iter().filter(|(route, _)| to_guessed(route)).map(|_| at));
    }
    assert_eq!(guesses.len(), MAX_GUESSES as usize);
    let rate = Rate::per_second(100);
    for start in &guesses {
        let second = *start + Duration::from_secs(1);
        let inside = guesses.iter().filter(|at| (*start..second).contains(at)).count() as u64;
        assert!(inside <= rate.most_in(Duration::from_secs(1)) / 2, "{inside}");
    }
    assert_eq!(a.search.stage, Stage::Done { found: false });
}

const MS: Duration = Duration::from_millis(1);

/// Runs a finder until a given time. Returns its outputs with their times.
fn run(finder: &mut PathFinder, from: Instant, until: Duration) -> Vec<(Duration, Output)> {
    let mut performed = Vec::new();
    while let Some((at, _)) = finder.deadline().filter(|(at, _)| *at < from + until) {
        let now = at.max(from);
        let mut out = Vec::new();
        finder.handle(now, Input::Tick, &mut out);
        performed.extend(out.into_iter().map(|output| (now.since(from), output)));
    }
    performed
}

/// Returns when a finder sends its first probe to the peer.
fn first_probe(finder: &mut PathFinder, from: Instant) -> Option<Duration> {
    let outputs = run(finder, from, Duration::from_secs(3));
    outputs.iter().find(|(_, output)| matches!(output, Output::SendProbe { .. })).map(|(at, _)| *at)
}

fn set_leg(finder: &mut PathFinder, rtt: Duration) {
    let leg = RelayLeg { relay: RELAY, stream: false, rtt, mtu: 1400 };
    finder.handle(NOW, Input::Relays(vec![leg]), &mut Vec::new());
}

#[test]
fn both_sides_send_their_first_probes_at_the_same_time() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let mut b = finder(B, A, PEER);
    set_leg(&mut a, MS * 40);
    set_leg(&mut b, MS * 60);
    let mut out = Vec::new();
    a.handle(NOW, Input::DataSent, &mut out);
    // The relay is 20 ms from one node and 30 ms from the other.
    let answer = records(&record(&mut b, NOW + MS * 50, A, &records(&out)[0]));
    assert_eq!(probes(&record(&mut a, NOW + MS * 100, B, &answer[0])).len(), 1);
    assert_eq!(first_probe(&mut b, NOW), Some(MS * 100));
}

#[test]
fn no_figure_of_the_peer_delays_probes_for_long() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let ask = Offer { relay_rtt_ms: u16::MAX, ..peer_offer(1, Purpose::Ask) };
    record(&mut a, NOW, B, &encode(ask));
    assert_eq!(first_probe(&mut a, NOW), Some(MS * 2000));
    let mut a = finder(A, B, "192.0.2.1:1194");
    a.handle(NOW, Input::DataSent, &mut Vec::new());
    let answer = peer_offer(1, Purpose::Answer { to: 1, punch_in_ms: u16::MAX });
    record(&mut a, NOW, B, &encode(answer));
    assert_eq!(first_probe(&mut a, NOW), Some(MS * 2000));
}

#[test]
fn offers_without_an_answer_become_rare_and_take_turns_at_the_relays() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let legs = [8, 9].map(|relay| RelayLeg {
        relay: [relay; 32],
        stream: false,
        rtt: Duration::ZERO,
        mtu: 1400,
    });
    a.handle(NOW, Input::Relays(legs.to_vec()), &mut Vec::new());
    a.handle(NOW, Input::DataSent, &mut Vec::new());
    let outputs = run(&mut a, NOW, Duration::from_secs(3600));
    let offers: Vec<_> = outputs
        .iter()
        .filter_map(|(at, output)| match output {
            Output::SendRecord { via: Some(via), .. } => Some((at.as_secs(), via[0])),
            _ => None,
        })
        .collect();
    assert_eq!(offers[..4], [(1, 9), (2, 8), (3, 9), (5, 8)]);
    let last_minutes = offers.iter().filter(|(at, _)| *at > 1800).count();
    assert!((2..=4).contains(&last_minutes), "{offers:?}");
}

#[test]
fn rounds_that_find_nothing_become_rare() {
    let mut peer = probing();
    let outputs = run(&mut peer.finder, NOW, Duration::from_secs(31));
    let asks = |outputs: &[(Duration, Output)]| {
        let records = outputs.iter().filter_map(|(at, output)| match output {
            Output::SendRecord { bytes, .. } => Some((*at, Record::decode(bytes).unwrap())),
            _ => None,
        });
        let offers = records.filter(|(_, record)| matches!(record, Record::Offer(_)));
        offers.map(|(at, _)| at.as_secs()).collect::<Vec<_>>()
    };
    // The round lasts for one second.
    assert!(asks(&outputs).is_empty());
    let now = NOW + Duration::from_secs(31);
    let outputs = run(&mut peer.finder, now, MS * 100);
    assert_eq!(asks(&outputs), [0]);
    let answer = peer_offer(2, Purpose::Answer { to: 2, punch_in_ms: 0 });
    record(&mut peer.finder, now, B, &encode(answer));
    let outputs = run(&mut peer.finder, now, Duration::from_secs(62));
    assert_eq!(asks(&outputs)[0], 61);
}

#[test]
fn three_lost_probes_in_3_s_end_a_path_and_two_do_not() {
    for answered in [2, 3] {
        let mut peer = probing();
        let echo = peer.echo(peer.probe.nonce);
        datagram(&mut peer.finder, PEER, &echo);
        assert!(peer.is_direct());
        let mut unanswered = 0;
        let mut lost = None;
        let end = NOW + Duration::from_secs(60);
        while let Some((at, _)) = peer.finder.deadline().filter(|(at, _)| *at < end) {
            let mut out = Vec::new();
            peer.finder.handle(at, Input::DataSent, &mut out);
            if !peer.is_direct() {
                lost = Some(at);
                break;
            }
            for (route, bytes) in probes(&out) {
                let probe = peer.receive.open(&bytes).unwrap();
                if probe.kind != ProbeKind::Probe || !matches!(route, Route::Direct { .. }) {
                    continue;
                }
                unanswered += 1;
                if unanswered == answered && answered < 3 {
                    unanswered = 0;
                    let bytes = peer.echo(probe.nonce);
                    let (socket, from) = (MAIN_SOCKET, address(PEER));
                    let echo = Input::Datagram { socket, from, local: None, bytes: &bytes };
                    peer.finder.handle(at, echo, &mut Vec::new());
                }
            }
        }
        let lost = lost.map(|at| at.since(NOW));
        assert_eq!(lost.is_some(), answered == 3, "{lost:?}");
        assert!(lost.is_none_or(|after| after < Duration::from_secs(3)), "{lost:?}");
    }
}

#[test]
fn probes_in_quick_succession_are_not_lost_before_their_echoes_can_arrive() {
    let mut peer = probing();
    let echo = peer.echo(peer.probe.nonce);
    datagram(&mut peer.finder, PEER, &echo);
    // A round begins, with three probes within 100 ms, to a peer with a long round trip.
    record(&mut peer.finder, NOW, B, &encode(peer_offer(2, Purpose::Ask)));
    run(&mut peer.finder, NOW, MS * 2000);
    assert!(peer.is_direct());
    run(&mut peer.finder, NOW, MS * 3000);
    assert!(!peer.is_direct());
}

#[test]
fn addresses_of_many_interfaces_do_not_displace_those_that_others_see() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let own = (1..100).map(|n| candidate(&format!("10.0.{n}.1:1"), CandidateKind::Own));
    let mut candidates: Vec<Candidate> = own.collect();
    candidates.push(candidate("[2001:db8::1]:1", CandidateKind::Own));
    let seen = [
        candidate("203.0.113.7:40001", CandidateKind::Observed),
        candidate("203.0.113.7:40002", CandidateKind::Mapped),
    ];
    candidates.extend(seen);
    candidates.extend(seen);
    a.handle(NOW, Input::Local { candidates, nat: NatInfo::default() }, &mut Vec::new());
    assert_eq!(a.candidates.len(), MAX_CANDIDATES);
    assert_eq!(a.candidates.iter().filter(|own| seen.contains(own)).count(), 2, "each once");
    assert!(a.candidates.iter().any(|own| own.address().is_ipv6()));
}

#[test]
fn an_echo_leaves_from_the_address_at_which_the_probe_arrived() {
    let mut peer = probing();
    let nonce = Nonce { number: 1, random: [1; 8] };
    let bytes = peer.send.seal(&Probe { tag: peer.tag, nonce, kind: ProbeKind::Probe });
    let local = Some("192.0.2.7".parse().unwrap());
    let mut out = Vec::new();
    let (socket, from) = (MAIN_SOCKET, address(PEER));
    peer.finder.handle(NOW, Input::Datagram { socket, from, local, bytes: &bytes }, &mut out);
    let locals: Vec<_> = out
        .iter()
        .filter_map(|output| match output {
            Output::SendProbe { local, .. } => Some(*local),
            _ => None,
        })
        .collect();
    assert_eq!(locals, [local], "the echo");
}

#[test]
fn sequential_ports_are_tried_behind_the_highest_known_one_and_wrap() {
    for (known, expected) in [(40_000, [40_001, 40_002]), (u16::MAX, [1024, 1025])] {
        let mut a = finder(A, B, "192.0.2.1:1194");
        a.nat.kind = NatKind::EndpointIndependent;
        let seen = format!("203.0.113.8:{known}");
        let offer = Offer {
            nat: NatKind::Symmetric { sequential: true },
            candidates: vec![candidate(&seen, CandidateKind::Observed)],
            ..peer_offer(1, Purpose::Ask)
        };
        record(&mut a, NOW, B, &encode(offer));
        let outputs = run(&mut a, NOW, Duration::from_secs(2));
        let guesses: Vec<u16> = outputs
            .iter()
            .filter_map(|(_, output)| match output {
                Output::SendProbe { route: Route::Direct { to, .. }, .. } => Some(to.port()),
                _ => None,
            })
            .filter(|port| *port != known)
            .collect();
        assert_eq!(guesses[..2], expected);
    }
}

#[test]
fn a_search_is_made_once_with_each_address_and_again_after_its_path_was_lost() {
    let later = Duration::from_secs(700);
    let mut a = finder(A, B, "192.0.2.1:1194");
    a.nat.kind = NatKind::EndpointIndependent;
    let offer = |sequence, seen: &str| Offer {
        nat: NatKind::Symmetric { sequential: false },
        candidates: vec![candidate(seen, CandidateKind::Observed)],
        ..peer_offer(sequence, Purpose::Ask)
    };
    let searches = |a: &mut PathFinder, at: Duration| {
        a.begin_search(NOW + at, &mut Vec::new());
        let running = matches!(a.search.stage, Stage::Guessing { .. });
        a.close_search(None, &mut Vec::new());
        running
    };
    record(&mut a, NOW, B, &encode(offer(1, "203.0.113.8:4000")));
    assert!(searches(&mut a, Duration::ZERO));
    assert!(!searches(&mut a, later));
    record(&mut a, NOW, B, &encode(offer(2, "203.0.113.8:5000")));
    assert!(!searches(&mut a, later), "another port of the same NAT");
    record(&mut a, NOW, B, &encode(offer(3, "203.0.113.9:5000")));
    assert!(searches(&mut a, later), "another NAT");
    a.search.stage = Stage::Done { found: true };
    assert!(!searches(&mut a, later * 2 - MS * 101_000), "too soon");
    assert!(searches(&mut a, later * 2), "the path was lost");
}

#[test]
fn the_stream_of_the_session_carries_data_until_datagrams_are_answered() {
    let mut peer = direct();
    peer.finder.paths.clear();
    let to = address("192.0.2.2:443");
    peer.finder.handle(NOW, Input::EstablishedStream { id: 5, to }, &mut Vec::new());
    peer.finder.handle(NOW, Input::DataSent, &mut Vec::new());
    assert_eq!(peer.finder.current(), Some(Route::Stream { id: 5, to }));
    assert_eq!(peer.finder.lost_for(NOW), None);
    let route = Route::Direct { socket: MAIN_SOCKET, to: address(PEER) };
    peer.finder.handle(
        NOW,
        Input::Established { socket: MAIN_SOCKET, to: address(PEER) },
        &mut Vec::new(),
    );
    assert_eq!(peer.finder.current(), Some(route), "datagrams are better");
    peer.finder.handle(NOW, Input::StreamDown(4), &mut Vec::new());
    assert_eq!(peer.finder.paths.len(), 2, "another connection");
    peer.finder.handle(NOW, Input::StreamDown(5), &mut Vec::new());
    assert_eq!(peer.finder.paths.len(), 1);
}

#[test]
fn a_session_revives_its_path_whatever_was_lost_before() {
    let mut peer = direct();
    let run = |peer: &mut Peer, from: Instant| {
        let end = from + Duration::from_secs(30);
        while let Some((at, _)) = peer.finder.deadline().filter(|(at, _)| *at < end) {
            peer.finder.handle(at.max(from), Input::DataSent, &mut Vec::new());
        }
        end
    };
    let now = run(&mut peer, NOW);
    assert!(peer.finder.lost_for(now).is_some());
    let to = address(PEER);
    let input = Input::Established { socket: MAIN_SOCKET, to };
    peer.finder.handle(now, input, &mut Vec::new());
    assert_eq!(peer.finder.lost_for(now), None);
    let now = run(&mut peer, now);
    assert!(peer.finder.lost_for(now).is_some());
    peer.finder.handle(now, Input::EstablishedRelay(RELAY), &mut Vec::new());
    assert_eq!(
        (peer.finder.lost_for(now), peer.finder.current()),
        (None, Some(Route::Relay(RELAY)))
    );
}

#[test]
fn a_peer_whose_relay_is_gone_is_lost_only_after_some_time() {
    let mut peer = direct();
    let leg = peer.finder.legs.clone();
    peer.finder.handle(NOW, Input::Relays(leg), &mut Vec::new());
    for path in &mut peer.finder.paths {
        // The relay carries data, and the addresses have not answered for long.
        path.alive = !path.is_direct();
        path.unanswered = 5;
        path.unanswered_since = NOW;
    }
    let now = NOW + Duration::from_secs(1);
    peer.finder.select(now, &mut Vec::new());
    assert_eq!(peer.finder.current(), Some(Route::Relay(RELAY)));
    let later = NOW + Duration::from_secs(60);
    peer.finder.legs.clear();
    peer.finder.paths.retain(PathState::is_direct);
    peer.finder.select(later, &mut Vec::new());
    assert!(matches!(peer.finder.current(), Some(Route::Direct { .. })));
    assert_eq!(peer.finder.lost_for(later), Some(Duration::ZERO));
    let end = later + Duration::from_secs(10);
    assert_eq!(peer.finder.lost_for(end), Some(Duration::from_secs(10)));
}

#[test]
fn a_relay_that_is_lost_is_tried_often_if_there_is_nothing_else() {
    let mut peer = probing();
    let (end, mut times) = (NOW + Duration::from_secs(12), Vec::new());
    while let Some((at, _)) = peer.finder.deadline().filter(|(at, _)| *at < end) {
        let mut out = Vec::new();
        peer.finder.handle(at.max(NOW), Input::DataSent, &mut out);
        let relayed =
            records(&out).iter().any(|bytes| matches!(Record::decode(bytes), Ok(Record::Probe(_))));
        times.extend(relayed.then_some(at));
    }
    assert!(times.len() >= 14, "{times:?}");
}

#[test]
fn a_stream_that_does_not_answer_is_lost() {
    let mut peer = direct();
    peer.finder.paths.clear();
    let to = address("192.0.2.2:443");
    peer.finder.handle(NOW, Input::EstablishedStream { id: 5, to }, &mut Vec::new());
    peer.finder.handle(NOW, Input::DataSent, &mut Vec::new());
    let end = NOW + Duration::from_secs(10);
    while let Some((at, _)) = peer.finder.deadline().filter(|(at, _)| *at < end) {
        peer.finder.handle(at, Input::DataSent, &mut Vec::new());
    }
    let lost = peer.finder.lost_for(end).expect("it is lost");
    assert!(lost > Duration::from_secs(8), "{lost:?}");
}

/// Answers every probe of a finder until a given time. Returns the number of probes and other records.
fn answer(peer: &mut Peer, from: Instant, until: Duration, active: bool) -> usize {
    let mut sent = 0;
    let end = from + until;
    while let Some((at, _)) = peer.finder.deadline().filter(|(at, _)| *at < end) {
        let (now, mut out) = (at.max(from), Vec::new());
        let input = if active { Input::DataSent } else { Input::Tick };
        peer.finder.handle(now, input, &mut out);
        sent += records(&out).len() + probes(&out).len();
        for (_, bytes) in probes(&out) {
            peer.answer(now, &bytes);
        }
        for bytes in records(&out) {
            if let Ok(Record::Probe(bytes)) = Record::decode(&bytes) {
                let echo = Record::Probe(peer.echo_of(&bytes)).encode();
                record(&mut peer.finder, now, B, &echo);
            }
        }
    }
    sent
}

/// Returns a finder whose data takes a direct path, and which has found the MTU.
fn direct() -> Peer {
    let mut peer = probing();
    let echo = peer.echo(peer.probe.nonce);
    datagram(&mut peer.finder, PEER, &echo);
    answer(&mut peer, NOW, Duration::from_secs(2), false);
    assert!(peer.is_direct());
    peer
}

#[test]
fn an_idle_path_is_probed_only_to_keep_its_mapping() {
    let mut peer = direct();
    answer(&mut peer, NOW, Duration::from_secs(60), false);
    let sent = answer(&mut peer, NOW, Duration::from_secs(660), false);
    assert_eq!(sent, 24, "one in 25 s, and none to the relay");
}

#[test]
fn data_does_not_add_probes_but_the_first_after_a_pause_is_checked() {
    let mut peer = direct();
    let mut probed = 0;
    for ms in (2000..12_000).step_by(10) {
        let mut out = Vec::new();
        peer.finder.handle(NOW + MS * ms, Input::DataSent, &mut out);
        for (_, bytes) in probes(&out) {
            probed += 1;
            peer.answer(NOW + MS * ms, &bytes);
        }
    }
    assert!((13..=15).contains(&probed), "{probed}");
    answer(&mut peer, NOW, Duration::from_secs(60), false);
    let mut out = Vec::new();
    let now = NOW + Duration::from_secs(60);
    peer.finder.handle(now, Input::DataSent, &mut out);
    let direct: Vec<_> = probes(&out);
    assert!(direct.iter().any(|(_, bytes)| bytes.len() == MIN_PROBE), "{}", direct.len());
}

#[test]
fn a_path_that_answers_again_after_a_loss_carries_data_30_s_later() {
    let mut peer = direct();
    peer.finder.handle(NOW + MS * 2000, Input::DataSent, &mut Vec::new());
    let outputs = run(&mut peer.finder, NOW, Duration::from_secs(10));
    let relayed = |(at, output): &(Duration, Output)| {
        (*output == Output::UsePath(Route::Relay(RELAY))).then_some(*at)
    };
    let lost = NOW + outputs.iter().find_map(relayed).unwrap();
    let again = NOW + Duration::from_secs(12);
    record(&mut peer.finder, again, B, &encode(peer_offer(2, Purpose::Ask)));
    answer(&mut peer, again, lost.since(again) + Duration::from_millis(1), true);
    let before = lost + Duration::from_millis(29_999);
    answer(&mut peer, again, before.since(again), true);
    assert!(!peer.is_direct());
    let report = peer.finder.report(before);
    assert!(matches!(report.relayed_because, Some(RelayReason::Probation { .. })), "{report}");
    assert!(report.lost.is_some());
    answer(&mut peer, before, Duration::from_secs(1), true);
    assert!(peer.is_direct());
    assert_eq!(peer.finder.report(before).lost, None);
}

#[test]
fn each_mtu_is_tried_three_times_and_an_echo_of_a_large_one_counts() {
    let mut peer = direct();
    let route = Route::Direct { socket: MAIN_SOCKET, to: address(PEER) };
    assert_eq!(peer.finder.path(route).unwrap().mtu, Some(1500));
    let mut tried = Vec::new();
    let mut found = None;
    let end = NOW + Duration::from_secs(70);
    while let Some((at, _)) = peer.finder.deadline().filter(|(at, _)| *at < end) {
        let mut out = Vec::new();
        peer.finder.handle(at, Input::DataSent, &mut out);
        for output in &out {
            if let Output::SetMtu { mtu, .. } = output {
                found = Some((*mtu, at.since(NOW).as_secs()));
            }
        }
        for (_, bytes) in probes(&out) {
            let size = bytes.len() + 28;
            if bytes.len() > MIN_PROBE {
                tried.push(size);
            }
            // The path now carries smaller packets, and loses the first try of each size.
            let first = tried.iter().filter(|tried| **tried == 1400).count() < 3;
            if bytes.len() == MIN_PROBE || (size <= 1400 && !first) {
                peer.answer(at, &bytes);
            }
        }
    }
    assert_eq!(tried.iter().filter(|size| **size == 1500).count(), 3);
    assert!(matches!(found, Some((1400, 60..=62))), "{found:?}");
}

#[test]
fn an_offer_shows_that_its_relay_works() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    a.handle(NOW, Input::DataSent, &mut Vec::new());
    run(&mut a, NOW, MS * 1500);
    assert!(!a.report(NOW).paths[0].answers, "no answer for a second");
    record(&mut a, NOW + MS * 1500, B, &encode(peer_offer(1, Purpose::Ask)));
    assert!(a.report(NOW).paths[0].answers);
}

#[test]
fn a_node_that_has_answered_an_offer_makes_none_itself() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    assert_eq!(records(&record(&mut a, NOW, B, &encode(peer_offer(1, Purpose::Ask)))).len(), 1);
    let mut out = Vec::new();
    a.handle(NOW, Input::DataSent, &mut out);
    let offers = records(&out).into_iter().map(|bytes| Record::decode(&bytes).unwrap());
    assert_eq!(offers.filter(|record| matches!(record, Record::Offer(_))).count(), 0);
    assert!(out.contains(&Output::UsePath(Route::Relay(RELAY))));
}

#[test]
fn a_new_address_is_offered_and_the_loss_of_one_returns_data_to_the_relay() {
    let mut peer = direct();
    let nat = NatInfo { kind: NatKind::None, ..NatInfo::default() };
    let [old, new] = ["192.0.2.1:1194", "192.0.2.9:1194"].map(|a| candidate(a, CandidateKind::Own));
    let now = NOW + Duration::from_secs(2);
    let mut out = Vec::new();
    let local = |candidates| Input::Local { candidates, nat: nat.clone() };
    peer.finder.handle(now, local(vec![old, new]), &mut out);
    assert_eq!(records(&out).len(), 1, "an offer");
    assert!(peer.is_direct());
    out.clear();
    peer.finder.handle(now, local(vec![new, old]), &mut out);
    assert_eq!(out, [], "the same addresses");
    peer.finder.handle(now, local(vec![new]), &mut out);
    assert!(out.contains(&Output::UsePath(Route::Relay(RELAY))), "{out:?}");
    assert_eq!(records(&out).len(), 1, "an offer");
}

#[test]
fn another_port_of_a_symmetric_nat_is_not_offered_at_once_and_another_own_address_is() {
    let seen = |port: u16| candidate(&format!("203.0.113.7:{port}"), CandidateKind::Observed);
    let own = |text| candidate(text, CandidateKind::Own);
    let offers = |kind: NatKind, new: Candidate| {
        let mut peer = direct();
        peer.finder.nat.kind = kind;
        peer.finder.candidates = vec![seen(4000), own("192.0.2.1:1194")];
        let candidates = [&[new], peer.finder.candidates.as_slice()].concat();
        let nat = NatInfo { kind, ..NatInfo::default() };
        let mut out = Vec::new();
        let now = NOW + Duration::from_secs(2);
        peer.finder.handle(now, Input::Local { candidates, nat }, &mut out);
        assert!(peer.finder.candidates.contains(&new), "the next offer has it");
        records(&out).len()
    };
    let symmetric = |sequential| NatKind::Symmetric { sequential };
    assert_eq!(offers(NatKind::EndpointIndependent, seen(4100)), 1);
    for kind in [symmetric(false), symmetric(true)] {
        assert_eq!(offers(kind, seen(4100)), 0, "{kind:?}");
        assert_eq!(offers(kind, own("192.0.2.9:1194")), 1, "{kind:?}");
    }
}

#[test]
fn bounds_hold_for_relays_paths_echoes_and_outstanding_probes() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let leg =
        |relay| RelayLeg { relay: [relay; 32], stream: false, rtt: Duration::ZERO, mtu: 1400 };
    a.handle(NOW, Input::Relays((0..100).map(leg).collect()), &mut Vec::new());
    assert_eq!(a.paths.len(), MAX_RELAYS);
    for sequence in 1..5 {
        let at = |n| candidate(&format!("192.0.{sequence}.{n}:1194"), CandidateKind::Own);
        let candidates = (1..=16).map(at).collect();
        record(&mut a, NOW, B, &encode(Offer { candidates, ..peer_offer(sequence, Purpose::Ask) }));
    }
    assert_eq!(a.paths.len(), MAX_PATHS);
    let mut peer = probing();
    let echoed = (1..=1000).map(|number| {
        let probe = Probe {
            tag: peer.tag,
            nonce: Nonce { number, random: [1; 8] },
            kind: ProbeKind::MtuProbe { padding: 0 },
        };
        probes(&datagram(&mut peer.finder, PEER, &peer.send.seal(&probe))).len()
    });
    assert_eq!(echoed.sum::<usize>(), 512);
    let route = Route::Direct { socket: MAIN_SOCKET, to: address(PEER) };
    for _ in 0..5000 {
        peer.finder.send_probe(NOW, route, ProbeKind::Probe, &mut Vec::new());
    }
    assert_eq!(peer.finder.outstanding.len(), 2048);
    peer.finder.handle(NOW + Duration::from_secs(5), Input::Tick, &mut Vec::new());
    assert!(peer.finder.outstanding.len() < 10, "{}", peer.finder.outstanding.len());
}

#[test]
fn addresses_that_were_not_offered_do_not_displace_those_that_were() {
    let mut peer = probing();
    run(&mut peer.finder, NOW, MS * 900);
    for number in 1..=200 {
        let nonce = Nonce { number, random: [1; 8] };
        let probe = peer.send.seal(&Probe { tag: peer.tag, nonce, kind: ProbeKind::Probe });
        datagram(&mut peer.finder, &format!("192.0.2.2:{}", 2000 + number), &probe);
    }
    let offered = Route::Direct { socket: MAIN_SOCKET, to: address(PEER) };
    assert!(peer.finder.path(offered).is_some());
}

#[test]
fn within_a_site_an_observed_address_says_nothing_about_the_nat() {
    let mut a = finder(A, B, "10.0.0.1:1194");
    a.handle(NOW, Input::DataSent, &mut Vec::new());
    let private = "10.0.0.2:1194";
    let candidates = vec![candidate(private, CandidateKind::Own)];
    let purpose = Purpose::Answer { to: 1, punch_in_ms: 0 };
    let answer = encode(Offer { candidates, ..peer_offer(1, purpose) });
    let out = record(&mut a, NOW, B, &answer);
    let receive = ProbeKey::derive((&A, &a.secret), (&B, &[22; 32])).unwrap();
    let send = ProbeKey::derive((&B, &[22; 32]), (&A, &a.secret)).unwrap();
    let nonce = receive.open(&probes(&out)[0].1).unwrap().nonce;
    let kind = ProbeKind::Echo { seen: Some(address("10.0.0.1:1194")), size: 43 };
    let echo = send.seal(&Probe { tag: a.tag, nonce, kind });
    let out = datagram(&mut a, private, &echo);
    assert!(matches!(a.current(), Some(Route::Direct { .. })));
    assert!(!out.iter().any(|output| matches!(output, Output::Observed(_))), "{out:?}");
}

#[test]
fn there_is_no_search_where_udp_is_blocked_or_both_ends_are_symmetric() {
    let symmetric = NatKind::Symmetric { sequential: false };
    let searched = |own, nat| {
        let mut a = finder(A, B, "192.0.2.1:1194");
        a.nat.kind = own;
        record(&mut a, NOW, B, &encode(Offer { nat, ..peer_offer(1, Purpose::Ask) }));
        a.begin_search(NOW, &mut Vec::new());
        a.search.stage != Stage::None
    };
    assert!(searched(NatKind::None, symmetric));
    assert!(searched(symmetric, NatKind::EndpointIndependent));
    assert!(!searched(symmetric, symmetric));
    assert!(!searched(NatKind::UdpBlocked, symmetric));
    assert!(!searched(symmetric, NatKind::UdpBlocked));
}

/// Returns a finder behind a symmetric NAT that has sent probes from its search sockets without data of its own.
fn searching() -> (Peer, Vec<(Route, Vec<u8>)>) {
    let mut a = finder(A, B, "192.0.2.1:1194");
    a.nat.kind = NatKind::Symmetric { sequential: false };
    record(&mut a, NOW, B, &encode(peer_offer(1, Purpose::Ask)));
    let outputs = run(&mut a, NOW, MS * 1500);
    assert!(outputs.iter().any(|(_, output)| *output == Output::OpenSockets(SEARCH_SOCKETS)));
    let now = NOW + MS * 1500;
    let sockets = (1..=SEARCH_SOCKETS as u16).map(SocketId).collect();
    let mut out = Vec::new();
    a.handle(now, Input::SocketsOpened(sockets), &mut out);
    let receive = ProbeKey::derive((&A, &a.secret), (&B, &[22; 32])).unwrap();
    let send = ProbeKey::derive((&B, &[22; 32]), (&A, &a.secret)).unwrap();
    let tag = a.tag;
    let sent = probes(&out);
    let probe = receive.open(&sent[0].1).unwrap();
    (Peer { finder: a, probe, send, receive, tag }, sent)
}

#[test]
fn all_sockets_send_within_a_second_and_the_end_of_a_search_keeps_those_that_found_a_path() {
    let (mut peer, mut sent) = searching();
    let now = NOW + MS * 1500;
    for (route, bytes) in &sent[..2] {
        peer.answer_on(now, route.search_socket().unwrap(), bytes);
    }
    let outputs = run(&mut peer.finder, now, Duration::from_secs(1));
    sent.extend(probes(&outputs.iter().map(|(_, output)| output.clone()).collect::<Vec<_>>()));
    let sockets: std::collections::BTreeSet<_> =
        sent.iter().filter_map(|(route, _)| route.search_socket()).collect();
    assert_eq!(sockets.len(), SEARCH_SOCKETS);
    // One of the two paths is lost meanwhile, so the finder must keep the other one.
    let kept = sent[1].0;
    peer.finder.path_mut(sent[0].0).unwrap().alive = false;
    peer.finder.path_mut(kept).unwrap().unanswered = 0;
    let mut out = Vec::new();
    peer.finder.handle(NOW + Duration::from_secs(15), Input::Tick, &mut out);
    let keep = kept.search_socket();
    assert!(out.contains(&Output::CloseSockets { keep }), "{out:?}");
    assert!(peer.finder.path(kept).is_some() && peer.finder.path(sent[0].0).is_none());
    // When this path is lost too, the next search closes its socket.
    let path = peer.finder.path_mut(kept).unwrap();
    path.alive = false;
    out.clear();
    peer.finder.begin_search(NOW + Duration::from_secs(1000), &mut out);
    let close = Output::CloseSockets { keep: None };
    assert_eq!(out, [close, Output::OpenSockets(SEARCH_SOCKETS)]);
}
