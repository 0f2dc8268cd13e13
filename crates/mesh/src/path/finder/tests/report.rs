use super::*;

/// Returns the reason that a node reports for a peer, with these NATs, after a round without an answer.
fn reason(own: NatKind, peer: NatKind, own_seen: &[&str], peer_seen: &[&str]) -> String {
    let mut a = finder(A, B, "192.0.2.1:1194");
    a.nat = NatInfo { kind: own, seen: own_seen.iter().map(|seen| address(seen)).collect() };
    let observed = |seen: &&str| candidate(seen, CandidateKind::Observed);
    let mut candidates: Vec<Candidate> = peer_seen.iter().map(observed).collect();
    candidates.push(candidate(PEER, CandidateKind::Own));
    let offer = Offer { nat: peer, candidates, ..peer_offer(1, Purpose::Ask) };
    record(&mut a, NOW, B, &encode(offer));
    run(&mut a, NOW, Duration::from_secs(20));
    a.report(NOW).relayed_because.unwrap().to_string()
}

#[test]
fn each_reason_for_a_relay_is_explained() {
    let symmetric = NatKind::Symmetric { sequential: false };
    let cone = NatKind::EndpointIndependent;
    let seen = ["203.0.113.7:40077", "203.0.113.7:40001"];
    assert_eq!(
        reason(symmetric, symmetric, &seen, &["203.0.113.8:5", "203.0.113.8:6"]),
        "both ends are behind symmetric NAT: here 203.0.113.7 maps ports 40001, 40077; at the peer \
         203.0.113.8 maps ports 5, 6"
    );
    assert_eq!(
        reason(cone, symmetric, &[], &seen),
        "the peer is behind symmetric NAT: 203.0.113.7 maps ports 40001, 40077; port search: found \
         no path with 1024 probes"
    );
    assert_eq!(
        reason(symmetric, cone, &[], &[]),
        "this node is behind symmetric NAT: no address observed; port search: found no path with 0 \
         probes"
    );
    assert_eq!(
        reason(cone, cone, &["203.0.113.7:1"], &[]),
        "no candidate answers: a firewall at one end may drop UDP between the two"
    );
    assert_eq!(
        reason(NatKind::UdpBlocked, symmetric, &[], &[]),
        "UDP gets no answer from any relay"
    );
    assert_eq!(
        reason(symmetric, NatKind::UdpBlocked, &[], &[]),
        "the peer gets no answer over UDP"
    );
}

#[test]
fn a_relay_is_explained_before_and_during_a_round() {
    let mut a = finder(A, B, "192.0.2.1:1194");
    let reason = |a: &PathFinder| a.report(NOW).relayed_because.unwrap();
    assert_eq!(reason(&a), RelayReason::NoOffer);
    record(&mut a, NOW, B, &encode(peer_offer(1, Purpose::Ask)));
    assert_eq!(reason(&a), RelayReason::Probing);
    let candidates = vec![candidate("[2001:db8::1]:1194", CandidateKind::Own)];
    record(&mut a, NOW, B, &encode(Offer { candidates, ..peer_offer(2, Purpose::Ask) }));
    run(&mut a, NOW, Duration::from_secs(2));
    assert_eq!(reason(&a), RelayReason::NoCommonFamily);
}

#[test]
fn a_report_explains_in_lines_of_text() {
    let peer = direct();
    let text = peer.finder.report(NOW).to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "current      direct to 192.0.2.2:1194 (own), 0 ms, MTU 1500",
            "this node    no NAT",
            "             192.0.2.1:1194 (own)",
            "peer         no NAT",
            "             192.0.2.2:1194 (own)",
            "tried        relay 09090909, 0 ms",
            "             direct to 192.0.2.2:1194 (own), 0 ms, MTU 1500",
        ]
    );
}

#[test]
fn a_report_is_data_for_programs() {
    let peer = probing();
    let report = serde_json::to_value(peer.finder.report(NOW)).unwrap();
    assert_eq!(report["relayed_because"]["reason"], "probing");
    assert_eq!(report["current"]["via"], "relay");
    assert_eq!(report["current"]["relay"], "09".repeat(32));
    assert_eq!(report["own"]["nat"]["nat"], "none");
    assert_eq!(report["peer"]["candidates"][0]["address"], PEER);
    assert_eq!(report["paths"][1]["via"], "direct");
    assert_eq!(report["paths"][1]["to"], PEER);
    assert_eq!(report["counters"]["probes"], 1);
}
