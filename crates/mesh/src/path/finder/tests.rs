use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, Rate};

use super::super::nat::{NatInfo, NatKind};
use super::super::probe::{Nonce, Probe, ProbeKey, ProbeKind};
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

/// The keys and the state of a peer that a test plays itself.
struct Peer {
    finder: PathFinder,
    /// The first probe of the finder, to 192.0.2.2.
    probe: Probe,
    send: ProbeKey,
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
    let probe = ProbeKey::derive(own, peer).unwrap().open(&probes(&out)[0].1).unwrap();
    let send = ProbeKey::derive(peer, own).unwrap();
    Peer { finder: a, probe, send, tag: ask.tag }
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
    // An attacker who recorded it would have the node send packets to any address.
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
    // After a restart the peer has another tag, and offers with the former one are replays.
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
    // The first one is in the answer's own turn.
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
    assert_eq!(a.search.stage, Stage::Done);
}

#[test]
fn a_report_explains_in_words_and_in_fields() {
    let mut peer = probing();
    let before = peer.finder.report(NOW);
    assert_eq!(before.relayed_because, Some(RelayReason::Probing));
    let echo = peer.echo(peer.probe.nonce);
    datagram(&mut peer.finder, PEER, &echo);
    let report = peer.finder.report(NOW);
    assert_eq!(report.relayed_because, None);
    let direct = RouteReport::Direct { to: address(PEER), origin: "own".to_owned() };
    assert_eq!(report.current.as_ref().map(|path| &path.route), Some(&direct));
    assert_eq!(report.peer.as_ref().unwrap().candidates[0].address, address(PEER));
    let text = report.to_string();
    assert!(text.starts_with("current      direct to 192.0.2.2:1194 (own), 0 ms"), "{text}");
    assert!(text.contains("relay 09090909"), "{text}");
}
