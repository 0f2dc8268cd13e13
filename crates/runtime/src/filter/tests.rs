use std::fs;

use adit_filter::IfName;
use adit_filter::firewall::{FrameContext, FrameVerdict, Peers};
use adit_filter::packet::Layer;
use adit_wire::VnetHeader;

use super::*;
use crate::control::CapturedPacket;

const RULES: &str = "table inet vpn {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ip saddr @group:staff counter accept
        udp dport 53 log prefix \"dns: \" group 3 counter drop
    }
}
";

/// A UDP packet from 10.0.0.1 to port 53.
const UDP: [u8; 32] = [
    0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0x66, 0xcb, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0, 0, 53, 0,
    12, 0, 0, 1, 2, 3, 4,
];

fn live(dir: &tempfile::TempDir) -> LiveFilter {
    let path = dir.path().join("rules.nft");
    fs::write(&path, RULES).unwrap();
    LiveFilter::open(&path, None).unwrap()
}

/// Returns whether the rules accept the packet.
fn passes(live: &LiveFilter) -> bool {
    let place = FrameContext {
        layer: Layer::Ip,
        vlan: None,
        vnet: VnetHeader {
            needs_csum: true,
            csum_start: 20,
            csum_offset: 6,
            ..VnetHeader::default()
        },
        iif: IfName::new("tun0"),
        oif: IfName::new("host"),
        peers: Peers::default(),
        zone: 0,
    };
    let mut worker = live.firewall().worker();
    let mut burst = worker.burst(Nanos(now().as_nanos()));
    matches!(burst.evaluate(&UDP, &place), FrameVerdict::Pass)
}

fn alice(live: &mut LiveFilter, groups: &[&str]) {
    live.put(PeerAddresses {
        peer: PeerId(1),
        name: "alice".into(),
        groups: groups.iter().map(ToString::to_string).collect(),
        prefixes: vec!["10.0.0.1/32".parse().unwrap()],
    });
}

fn report(live: &mut LiveFilter) -> crate::control::FilterReport {
    match live.answer(&Request::FilterShow { flows: true, brief: false }) {
        Some(Response::Filter(report)) => *report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_come_and_go_and_survive_other_rules() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = live(&dir);
    assert!(!passes(&live));
    alice(&mut live, &["staff"]);
    assert!(passes(&live));
    assert_eq!(report(&mut live).members["@group:staff"], ["10.0.0.1/32"]);
    live.reread().unwrap();
    assert!(passes(&live), "other rules know her from the start");
    live.regroup(|_| Some(vec!["guests".into()]));
    assert!(!passes(&live));
    alice(&mut live, &["staff"]);
    live.remove(PeerId(1));
    assert!(!passes(&live));
}

#[test]
fn rules_with_a_mistake_change_nothing_and_name_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = live(&dir);
    alice(&mut live, &["staff"]);
    let path = dir.path().join("rules.nft");
    fs::write(&path, "table inet t {\n  chain c { frobnicate }\n}\n").unwrap();
    let wrong = live.reread().unwrap_err().to_string();
    assert!(wrong.contains("rules.nft:2:") && wrong.contains("stay in force"), "{wrong}");
    assert!(passes(&live));
    let files = RuleFiles {
        name: "sent.nft".into(),
        texts: [("sent.nft".to_owned(), "nonsense".to_owned())].into(),
    };
    let answer = live.answer(&Request::FilterReload { files: Some(files) });
    let Some(Response::Error { message }) = answer else { panic!("{answer:?}") };
    assert!(message.contains("sent.nft:1:1"), "{message}");
    assert!(passes(&live));
    assert_eq!(report(&mut live).reloads, 0);
    fs::remove_file(&path).unwrap();
    assert!(live.answer(&Request::FilterReload { files: None }).is_some());
    assert!(passes(&live));
}

/// Rules that check a client's identity only on its first packet, as most rules do.
const STATEFUL: &str = "table inet vpn {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        ip saddr @client:alice udp dport 53 accept
        ip saddr 10.0.0.0/24 udp dport 53 ct state new log prefix \"x\" drop
    }
}
";

/// Evaluates [`UDP`] from 10.0.0.1, or the answer to it.
fn goes(live: &LiveFilter, answer: bool) -> bool {
    goes_by(live, None, answer)
}

/// Does the same for a packet from or to a peer.
fn goes_by(live: &LiveFilter, peer: Option<u32>, answer: bool) -> bool {
    let mut peers = Peers { from: peer, to: None };
    let mut bytes = UDP;
    let (mut iif, mut oif) = (IfName::new("tun0"), IfName::new("host"));
    if answer {
        (bytes[12..16]).copy_from_slice(&UDP[16..20]);
        (bytes[16..20]).copy_from_slice(&UDP[12..16]);
        (bytes[20..22]).copy_from_slice(&UDP[22..24]);
        (bytes[22..24]).copy_from_slice(&UDP[20..22]);
        std::mem::swap(&mut iif, &mut oif);
        std::mem::swap(&mut peers.from, &mut peers.to);
    }
    let vnet =
        VnetHeader { needs_csum: true, csum_start: 20, csum_offset: 6, ..VnetHeader::default() };
    let place = FrameContext { layer: Layer::Ip, vlan: None, vnet, iif, oif, peers, zone: 0 };
    let mut worker = live.firewall().worker();
    worker.burst(Nanos(now().as_nanos())).evaluate(&bytes, &place).passes()
}

fn client(live: &mut LiveFilter, peer: u32, name: &str) {
    live.put(PeerAddresses {
        peer: PeerId(peer),
        name: name.into(),
        groups: Vec::new(),
        prefixes: vec!["10.0.0.1/32".parse().unwrap()],
    });
}

fn stateful(dir: &tempfile::TempDir, rules: &str) -> LiveFilter {
    let path = dir.path().join("rules.nft");
    fs::write(&path, rules).unwrap();
    let mut live = LiveFilter::open(&path, None).unwrap();
    client(&mut live, 1, "alice");
    assert!(goes(&live, false) && goes(&live, true));
    live
}

#[test]
fn connections_wait_for_their_own_client_alone() {
    let dir = tempfile::tempdir().unwrap();
    // An open connection is not inherited, even if the rules would accept either client.
    let anybody = STATEFUL.replace("@client:alice", "10.0.0.0/24");
    for rules in [STATEFUL, &anybody] {
        let mut live = stateful(&dir, rules);
        live.remove(PeerId(1));
        assert_eq!(report(&mut live).flows.now, 1, "frozen");
        client(&mut live, 2, "alice");
        assert!(goes(&live, true), "the answer to what was asked before");
        live.remove(PeerId(2));
        client(&mut live, 3, "bob");
        assert_eq!(report(&mut live).flows.now, 0);
        assert!(!goes(&live, true), "nor do answers come to who has the address now");
        assert_eq!(goes(&live, false), rules == anybody);
    }
}

/// Bob's network is a part of Alice's, so her packets may have his addresses while he is away.
#[test]
fn of_overlapping_networks_each_client_keeps_its_own_connections() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.nft");
    fs::write(&path, STATEFUL.replace("@client:alice", "@client:bob")).unwrap();
    let mut live = LiveFilter::open(&path, None).unwrap();
    let connect = |live: &mut LiveFilter, peer: u32, name: &str, net: &str| {
        live.put(PeerAddresses {
            peer: PeerId(peer),
            name: name.into(),
            groups: Vec::new(),
            prefixes: vec![net.parse().unwrap()],
        });
    };
    connect(&mut live, 1, "alice", "10.0.0.0/31");
    connect(&mut live, 2, "bob", "10.0.0.1/32");
    assert!(goes_by(&live, Some(2), false) && goes_by(&live, Some(2), true));
    let listed = report(&mut live).list.unwrap();
    assert_eq!(listed[0].clients, ["bob", ""]);
    live.remove(PeerId(2));
    // The routes now lead to Alice.
    assert!(!goes_by(&live, Some(1), true), "she has asked nothing");
    assert!(!goes_by(&live, Some(1), false), "and may not ask");
    assert_eq!(report(&mut live).flows.now, 1, "it waits for him");
    connect(&mut live, 3, "bob", "10.0.0.1/32");
    assert!(goes_by(&live, Some(3), true) && goes_by(&live, Some(3), false));
    let flush = |live: &mut LiveFilter, client: &str| {
        let client = Some(client.to_owned());
        live.answer(&Request::FilterFlush { client, address: None })
    };
    assert_eq!(flush(&mut live, "alice"), Some(Response::Done { count: 0 }));
    assert_eq!(flush(&mut live, "bob"), Some(Response::Done { count: 1 }));
}

#[test]
fn a_reload_ends_what_it_would_not_accept_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = stateful(&dir, STATEFUL);
    let path = dir.path().join("rules.nft");
    fs::write(
        &path,
        STATEFUL.replace("udp dport 53 accept", "udp dport { 53, 54 } counter accept"),
    )
    .unwrap();
    live.reread().unwrap();
    assert!(goes(&live, true) && goes(&live, false));
    fs::write(&path, STATEFUL.replace("udp dport 53 accept", "udp dport 54 accept")).unwrap();
    live.reread().unwrap();
    assert!(!goes(&live, true) && !goes(&live, false));
    let flows = report(&mut live).flows;
    assert_eq!((flows.now, flows.withdrawn), (0, 1));
}

#[test]
fn connections_are_ended_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = stateful(&dir, STATEFUL);
    let flush = |live: &mut LiveFilter, client: Option<&str>, address: Option<&str>| {
        let (client, address) = (client.map(str::to_owned), address.map(str::to_owned));
        match live.answer(&Request::FilterFlush { client, address }) {
            Some(Response::Done { count }) => Ok(count),
            Some(Response::Error { message }) => Err(message),
            other => panic!("{other:?}"),
        }
    };
    assert!(flush(&mut live, Some("bob"), None).unwrap_err().contains("has had no address"));
    assert!(flush(&mut live, None, Some("10.0.0")).unwrap_err().contains("is no address"));
    assert_eq!(flush(&mut live, None, Some("10.0.9.0/24")), Ok(0));
    assert!(goes(&live, true));
    for (client, address) in
        [(Some("alice"), None), (None, Some("10.0.0.2")), (None, Some("10.0.0.0/24")), (None, None)]
    {
        assert!(goes(&live, false) && goes(&live, true));
        assert_eq!(flush(&mut live, client, address), Ok(1), "{client:?} {address:?}");
        assert!(!goes(&live, true));
    }
    // This also holds for a client that is away.
    assert!(goes(&live, false));
    live.remove(PeerId(1));
    assert_eq!(flush(&mut live, Some("alice"), None), Ok(1));
}

#[test]
fn rules_to_which_no_hook_leads_are_refused_at_start_and_at_reload() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = live(&dir);
    alice(&mut live, &["staff"]);
    let path = dir.path().join("rules.nft");
    let forgotten = RULES.replace("type filter hook forward priority 0; policy drop;", "");
    let lost = format!("{RULES}table ip other {{ chain c {{ drop; }} }}\n");
    for (text, why) in [
        ("", "no chain has a hook"),
        ("flush ruleset\n", "no chain has a hook"),
        (forgotten.as_str(), "no chain has a hook"),
        (lost.as_str(), "no hook leads to chain `c` of table `other`"),
    ] {
        fs::write(&path, text).unwrap();
        let wrong = live.reread().unwrap_err().to_string();
        assert!(wrong.contains(why) && wrong.contains("stay in force"), "{wrong}");
        let wrong = LiveFilter::open(&path, None).unwrap_err().to_string();
        assert!(wrong.contains(why), "{wrong}");
        let name = "sent.nft".to_owned();
        let files = RuleFiles { texts: [(name.clone(), text.to_owned())].into(), name };
        let answer = live.answer(&Request::FilterReload { files: Some(files) });
        let Some(Response::Error { message }) = answer else { panic!("{answer:?}") };
        assert!(message.contains(why), "{message}");
        let asking = format!("define adit_allow_unhooked = 1\n{text}");
        fs::write(&path, asking).unwrap();
        assert!(LiveFilter::open(&path, None).is_ok(), "{text}");
    }
    assert_eq!(report(&mut live).reloads, 0);
    assert!(passes(&live));
}

#[test]
fn rules_that_were_sent_take_the_place_of_the_file_s() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = live(&dir);
    fs::write(dir.path().join("more.nft"), "# nothing\n").unwrap();
    let other = dir.path().join("other.nft");
    let text = "include \"more.nft\"\ntable inet t { chain c { type filter hook forward priority 0; \
                policy accept; } }\n";
    fs::write(&other, text).unwrap();
    let (files, _) = read(&other).unwrap();
    assert_eq!(files.texts.len(), 2);
    fs::remove_dir_all(dir.path()).unwrap();
    let answer = live.answer(&Request::FilterReload { files: Some(files) });
    assert_eq!(answer, Some(Response::Done { count: 1 }));
    assert!(passes(&live));
    let report = report(&mut live);
    assert_eq!((report.file.as_str(), report.reloads), (other.to_str().unwrap(), 1));
}

#[test]
fn what_is_shown_parses_again_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = live(&dir);
    assert!(!passes(&live));
    alice(&mut live, &["staff"]);
    assert!(passes(&live));
    let report = report(&mut live);
    assert!(report.rules.contains("counter packets 1 bytes 32"), "{}", report.rules);
    let counted: Vec<(u32, u64)> = report.counters.iter().map(|c| (c.line, c.packets)).collect();
    assert_eq!(counted, [(4, 1), (5, 1)]);
    assert_eq!(report.drops["rules"], 1);
    let again = RuleFiles {
        name: "shown".into(),
        texts: [("shown".to_owned(), report.rules.clone())].into(),
    };
    parse(&again).unwrap();
}

#[test]
fn names_without_a_client_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.nft");
    let rules = RULES.replace("udp dport 53", "ip daddr @client:printer udp dport 53");
    fs::write(&path, rules).unwrap();
    let live = LiveFilter::open(&path, None).unwrap();
    let known = KnownNames {
        clients: vec!["alice".into()],
        groups: vec!["staff".into()],
        ..KnownNames::default()
    };
    let [problem] = &live.unknown(&known)[..] else { panic!() };
    assert!(problem.contains("@client:printer"), "{problem}");
    assert_eq!(live.unknown(&KnownNames::default()).len(), 2);
}

fn captured(
    live: &mut LiveFilter,
    id: Option<u64>,
    end: bool,
) -> Result<(u64, Vec<CapturedPacket>), String> {
    match live.answer(&Request::FilterCapture { id, end }) {
        Some(Response::Capture(batch)) => Ok((batch.id, batch.packets)),
        Some(Response::Error { message }) => Err(message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_capture_at_a_time_gets_packets_from_its_start_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = live(&dir);
    assert!(!passes(&live));
    let (id, packets) = captured(&mut live, None, false).unwrap();
    assert!(packets.is_empty(), "no capture ran then");
    assert!(captured(&mut live, None, false).unwrap_err().contains("already"));
    assert!(!passes(&live));
    let (_, packets) = captured(&mut live, Some(id), false).unwrap();
    let [packet] = &packets[..] else { panic!("{packets:?}") };
    assert_eq!((packet.group, packet.prefix.as_str(), packet.length), (3, "dns: ", 32));
    assert_eq!(
        (packet.iif.as_str(), packet.oif.as_str(), packet.ethernet),
        ("tun0", "host", false)
    );
    let age = unix_time().0.abs_diff(packet.time / 1_000_000_000);
    assert!(age < 100, "seconds since 1970: {}", packet.time);
    assert!(!passes(&live));
    assert_eq!(captured(&mut live, Some(id), true).unwrap().1.len(), 1);
    assert!(captured(&mut live, Some(id), false).unwrap_err().contains("ended"));
    assert_ne!(captured(&mut live, None, false).unwrap().0, id);
}

#[test]
fn verdicts_and_the_packets_of_each_rule_are_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = live(&dir);
    assert!(!passes(&live));
    alice(&mut live, &["staff"]);
    assert!(passes(&live));
    let mut samples = crate::metrics::Samples::default();
    live.measure(&mut samples);
    let text = samples.text();
    for (place, count) in
        [("table=\"\",chain=\"\"", 0), ("table=\"inet vpn\",chain=\"forward\"", 1)]
    {
        for verdict in ["accept", "drop"] {
            let line =
                format!("adit_filter_verdicts_total{{{place},verdict=\"{verdict}\"}} {count}\n");
            assert!(text.contains(&line), "{text}");
        }
    }
    for counter in report(&mut live).counters {
        let line = format!(
            "adit_filter_rule_packets_total{{table=\"{}\",chain=\"{}\",handle=\"{}\"}} 1\n",
            counter.table, counter.chain, counter.handle
        );
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn the_next_process_knows_whose_addresses_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut former = live(&dir);
    alice(&mut former, &["staff"]);
    former.remove(PeerId(1));
    let text = serde_json::to_vec(&former.save()).unwrap();
    let mut next = live(&dir);
    next.resume(serde_json::from_slice(&text).unwrap());
    assert_eq!(next.owners.of("alice"), ["10.0.0.1/32".parse().unwrap()]);
    fuzz_saved(&text);
}

#[test]
fn counters_and_added_elements_pass_to_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.nft");
    let rules = "table inet vpn {
    set allowed { type ipv4_addr; flags timeout; }
    chain forward {
        type filter hook forward priority 0; policy drop;
        ip saddr @allowed counter accept
    }
}
";
    fs::write(&path, rules).unwrap();
    let mut former = LiveFilter::open(&path, None).unwrap();
    let text = "allowed { 10.0.0.1 timeout 1h }".to_owned();
    let answer = former.answer(&Request::FilterElement { delete: false, text });
    assert_eq!(answer, Some(Response::Done { count: 1 }));
    assert!(passes(&former));
    let text = serde_json::to_vec(&former.save()).unwrap();
    let mut next = LiveFilter::open(&path, None).unwrap();
    assert!(!passes(&next));
    next.resume(serde_json::from_slice(&text).unwrap());
    let shown = report(&mut next);
    assert_eq!(shown.counters.iter().map(|rule| rule.packets).collect::<Vec<_>>(), [1]);
    assert!(shown.rules.contains("10.0.0.1 timeout 1h expires "), "{}", shown.rules);
    assert_eq!(shown.elements.now, 1);
    assert!(passes(&next));
    fuzz_saved(&text);
}
