//! How two nodes agree on the cipher of their session, and what a node between them can change about it. Alice is the node under test, dave a
//! scripted one, and bob, between them, passes their lines on and may alter them.

use super::bench::{Bench, ipv4, key, name};
use crate::aead::Cipher;
use crate::base64;
use crate::node::Event;
use crate::sptps::{CipherChoice, Datagram, Error, Params, Role, WindowSize, data_label};

const AES: Cipher = Cipher::Aes256Gcm;
const CHACHA20: Cipher = Cipher::ChaCha20Poly1305;

const OFFER: &str = " aes-256-gcm";

/// What dave is: another node of adit, one of tinc, and one with a fixed cipher.
const ADIT: CipherChoice = CipherChoice::Agree;
const TINC: CipherChoice = CipherChoice::Fixed(CHACHA20);
const FIXED: CipherChoice = CipherChoice::Fixed(AES);

fn bench(configured: Option<Cipher>) -> Bench {
    let mut bench = Bench::with(|config| {
        config.hosts.get_mut(&name("dave")).unwrap().cipher = configured;
    });
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench
}

/// Starts dave's side of a session. Returns it, and its first record.
fn dave(bench: &mut Bench, role: Role, cipher: CipherChoice) -> (Datagram, String) {
    let label = match role {
        Role::Initiator => data_label("dave", "alice"),
        Role::Responder => data_label("alice", "dave"),
    };
    let params = Params { role, key: key("dave"), peer: key("alice").public(), label, cipher };
    let (sptps, kex) = Datagram::start(params, WindowSize::DEFAULT, &mut bench.random);
    (sptps, base64::encode(&kex))
}

/// Passes handshake records between both until there are no more.
fn finish(bench: &mut Bench, dave: &mut Datagram) {
    loop {
        let lines = bench.take("bob");
        let answers = lines.iter().filter_map(|line| line.strip_prefix("16 alice dave "));
        let answers: Vec<String> = answers.map(str::to_owned).collect();
        if answers.is_empty() {
            return;
        }
        for answer in answers {
            let words: Vec<&str> = answer.split(' ').collect();
            if words[1] == "901" {
                dave.peer_offers();
            }
            let record = base64::decode(words[0].as_bytes()).unwrap();
            let mut out = Vec::new();
            // Of a failed handshake, the test looks at the state.
            let _ = dave.receive_handshake(&record, &mut bench.random, &mut out);
            for record in out {
                let record = base64::encode(&record);
                bench.say("bob", &format!("16 dave alice {record} -1 -1 -1 0"));
            }
        }
    }
}

/// Alice asks for a session. Returns the words after the names.
fn request(bench: &mut Bench) -> String {
    bench.packet("dave", &ipv4(100));
    let lines = bench.take("bob");
    let request = lines.iter().find_map(|line| line.strip_prefix("15 alice dave 15 "));
    request.expect("a request").to_owned()
}

/// Alice asks dave, who answers with a cipher in the line. Returns dave's session.
fn ask(
    bench: &mut Bench,
    cipher: CipherChoice,
    alter: impl FnOnce(&mut bool, &mut bool),
) -> Datagram {
    let request = request(bench);
    let (mut session, kex) = dave(bench, Role::Responder, cipher);
    let record = request.strip_suffix(OFFER).unwrap_or(&request).to_owned();
    let mut asked = request.ends_with(OFFER);
    let mut answered = asked && cipher == ADIT;
    alter(&mut asked, &mut answered);
    if asked {
        session.peer_offers();
    }
    let record = base64::decode(record.as_bytes()).unwrap();
    let _ = session.receive_handshake(&record, &mut bench.random, &mut Vec::new());
    let number = if answered { 901 } else { -1 };
    bench.say("bob", &format!("16 dave alice {kex} {number} -1 -1 0"));
    finish(bench, &mut session);
    session
}

/// Dave asks alice, with or without the words of his offer. Returns dave's session.
fn asked(bench: &mut Bench, cipher: CipherChoice, words: &str) -> Datagram {
    let (mut session, kex) = dave(bench, Role::Initiator, cipher);
    bench.say("bob", &format!("15 dave alice 15 {kex}{words}"));
    finish(bench, &mut session);
    session
}

fn cipher(bench: &Bench) -> Option<Cipher> {
    bench.info("dave").cipher
}

/// Asserts that the handshake failed, for this reason.
fn assert_failed(bench: &mut Bench, dave: &Datagram, error: Error) {
    assert_eq!((cipher(bench), dave.is_established()), (None, false));
    let removed = u64::from(error == Error::OfferRemoved);
    assert!(bench.events().contains(&Event::HandshakeFailed { node: name("dave"), error }));
    let counters = bench.node.counters();
    assert_eq!((counters.refused_handshakes, counters.removed_offers), (1, removed));
}

#[test]
fn two_nodes_that_offer_it_use_aes() {
    let mut bench = bench(None);
    let session = ask(&mut bench, ADIT, |_, _| {});
    assert_eq!((cipher(&bench), session.cipher()), (Some(AES), Some(AES)));
    let session = asked(&mut bench, ADIT, OFFER);
    assert_eq!((cipher(&bench), session.cipher()), (Some(AES), Some(AES)));
    // As a relay of tincr leaves the line.
    let session = asked(&mut bench, ADIT, " aes-256-gcm 192.0.2.7 655");
    assert_eq!((cipher(&bench), session.cipher()), (Some(AES), Some(AES)));
    assert_eq!(bench.node.counters().refused_handshakes, 0);
}

#[test]
fn a_node_of_tinc_gets_its_cipher() {
    let mut bench = bench(None);
    let session = ask(&mut bench, TINC, |_, _| {});
    assert!(session.is_established() && cipher(&bench) == Some(CHACHA20));
    let (_, kex) = dave(&mut bench, Role::Initiator, TINC);
    bench.take("bob");
    bench.say("bob", &format!("15 dave alice 15 {kex}"));
    let lines = bench.take("bob");
    let answer = lines.iter().find(|line| line.starts_with("16 alice dave ")).unwrap();
    assert!(answer.ends_with(" -1 -1 -1 0"), "{answer}");
    let session = asked(&mut bench, TINC, "");
    assert!(session.is_established() && cipher(&bench) == Some(CHACHA20));
    // A node on the way can add an offer, but not the mark.
    let session = asked(&mut bench, TINC, OFFER);
    assert!(session.is_established() && cipher(&bench) == Some(CHACHA20));
    assert_eq!(bench.node.counters().refused_handshakes, 0);
}

#[test]
fn an_offer_that_is_removed_from_a_request_is_noticed() {
    let mut bench = bench(None);
    let session = asked(&mut bench, ADIT, "");
    assert_failed(&mut bench, &session, Error::OfferRemoved);
}

#[test]
fn an_offer_that_is_removed_from_an_answer_is_noticed() {
    let mut bench = bench(None);
    let session = ask(&mut bench, ADIT, |_, answered| *answered = false);
    assert_failed(&mut bench, &session, Error::OfferRemoved);
}

#[test]
fn offers_that_are_removed_both_ways_are_noticed() {
    let mut bench = bench(None);
    let session = ask(&mut bench, ADIT, |asked, answered| (*asked, *answered) = (false, false));
    assert_failed(&mut bench, &session, Error::OfferRemoved);
    // One event in ten seconds, however often it is tried.
    asked(&mut bench, ADIT, "");
    assert_eq!(bench.node.counters().removed_offers, 2);
    assert!(!bench.events().iter().any(|event| matches!(event, Event::HandshakeFailed { .. })));
    bench.wait(11);
    asked(&mut bench, ADIT, "");
    assert!(bench.events().iter().any(|event| matches!(event, Event::HandshakeFailed { .. })));
}

/// The other side notices as well: alice marks her nonce whenever she offers, both as the initiator and as the responder.
#[test]
fn the_other_side_notices_too() {
    let mut bench = bench(None);
    let request = request(&mut bench);
    let (mut session, _) = dave(&mut bench, Role::Responder, ADIT);
    let record = request.strip_suffix(OFFER).expect("an offer");
    let record = base64::decode(record.as_bytes()).unwrap();
    let mut out = Vec::new();
    let outcome = session.receive_handshake(&record, &mut bench.random, &mut out);
    assert_eq!(outcome, Err(Error::OfferRemoved));
    let (mut session, kex) = dave(&mut bench, Role::Initiator, ADIT);
    bench.wait(11);
    bench.take("bob");
    bench.say("bob", &format!("15 dave alice 15 {kex}{OFFER}"));
    let lines = bench.take("bob");
    let answer = lines.iter().find_map(|line| line.strip_prefix("16 alice dave ")).unwrap();
    assert!(answer.ends_with(" 901 -1 -1 0"), "{answer}");
    let record = base64::decode(answer.split(' ').next().unwrap().as_bytes()).unwrap();
    let outcome = session.receive_handshake(&record, &mut bench.random, &mut out);
    assert_eq!((outcome, out.len()), (Err(Error::OfferRemoved), 0));
}

/// `SPTPSCipher = chacha20-poly1305` switches the agreement off.
#[test]
fn a_node_that_is_configured_for_tincs_cipher_offers_nothing() {
    let mut bench = bench(Some(CHACHA20));
    assert!(!request(&mut bench).contains(' '));
    bench.wait(11);
    let session = ask(&mut bench, TINC, |_, _| {});
    assert!(session.is_established() && cipher(&bench) == Some(CHACHA20));
    // Dave offers: alice neither answers the offer nor marks her nonce, so he takes her for a node of tinc.
    let session = asked(&mut bench, ADIT, OFFER);
    assert!(session.is_established() && cipher(&bench) == Some(CHACHA20));
}

/// Section 18.2.
#[test]
fn a_configured_cipher_needs_no_agreement() {
    let mut bench = bench(Some(AES));
    assert!(!request(&mut bench).contains(' '));
    bench.wait(11);
    let session = ask(&mut bench, FIXED, |_, _| {});
    assert!(session.is_established() && cipher(&bench) == Some(AES));
    let session = asked(&mut bench, FIXED, "");
    assert!(session.is_established() && cipher(&bench) == Some(AES));
}

/// Section 18.2: a mismatch fails at the signature.
#[test]
fn another_configured_cipher_fails_with_the_name_of_the_setting() {
    for (own, other, there) in [(CHACHA20, AES, FIXED), (AES, CHACHA20, TINC)] {
        let mut bench = bench(Some(own));
        let session = asked(&mut bench, there, "");
        let error = Error::OtherCipher { own, peer: other };
        assert_failed(&mut bench, &session, error);
        assert!(error.to_string().contains("SPTPSCipher"), "{error}");
    }
}

/// A changed host file starts the session again, with its cipher.
#[test]
fn a_changed_setting_starts_the_session_again() {
    let mut bench = bench(None);
    ask(&mut bench, ADIT, |_, _| {});
    assert_eq!(cipher(&bench), Some(AES));
    let mut hosts = bench.node.hosts.clone();
    bench.wait(11);
    bench.take("bob");
    let subnets = ["10.1.0.0/16".parse().unwrap()];
    bench.node.reload(bench.now, hosts.clone(), &subnets);
    bench.pump();
    assert_eq!(cipher(&bench), Some(AES), "nothing changed");
    hosts.get_mut(&name("dave")).unwrap().cipher = Some(CHACHA20);
    bench.node.reload(bench.now, hosts, &subnets);
    bench.pump();
    assert_eq!(cipher(&bench), None);
    let lines = bench.take("bob");
    let request = lines.iter().find(|line| line.starts_with("15 alice dave 15 ")).unwrap();
    assert!(!request.ends_with(OFFER), "{request}");
}

/// The keys of AES-256-GCM are renewed before it has sealed too many blocks.
#[test]
fn aes_renews_its_keys_by_the_number_of_records() {
    for (there, renews) in [(ADIT, true), (TINC, false)] {
        let mut bench = bench(None);
        ask(&mut bench, there, |_, _| {});
        bench.wait(1);
        bench.take("bob");
        let session = bench.node.peers.get(&name("dave")).unwrap().session.as_ref().unwrap();
        session.sptps.set_seqno((1 << 29) + 100);
        bench.wait(1);
        let lines = bench.take("bob");
        let rekeys = lines.iter().any(|line| line.starts_with("16 alice dave "));
        assert_eq!(rekeys, renews, "{lines:?}");
    }
}
