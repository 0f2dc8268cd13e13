//! Section 9.5: records of the responder that overtake its SIG.

use std::time::Duration;

use super::bench::{Bench, RemoteSession, address, ipv4, key, name};
use crate::base64;
use crate::sptps::{CipherChoice, Datagram, Params, Role, WindowSize, data_label};

const EXPIRE: Duration = Duration::from_secs(100);

fn with_dave() -> Bench {
    let mut bench = Bench::with(|config| config.server.key_expire = EXPIRE);
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench
}

/// Returns the record of the node's next message of a type to dave.
fn record(bench: &mut Bench, kind: &str, at: usize) -> Vec<u8> {
    let prefix = format!("{kind} alice dave ");
    let line = bench.take("bob").into_iter().find(|line| line.starts_with(&prefix));
    base64::decode(line.expect("a record").split(' ').nth(at).unwrap().as_bytes()).unwrap().to_vec()
}

/// Dave handles a record as the responder. Returns those that he sends in answer.
fn handle(bench: &mut Bench, session: &mut RemoteSession, record: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    session.sptps.receive_handshake(record, &mut bench.random, &mut out).unwrap();
    out
}

/// Begins the first session up to dave's KEX. Returns his session and the node's SIG.
fn begin(bench: &mut Bench) -> (RemoteSession, Vec<u8>) {
    bench.packet("dave", &ipv4(100));
    let kex = record(bench, "15", 4);
    let label = data_label("alice", "dave");
    let (role, cipher) = (Role::Responder, CipherChoice::default());
    let params = Params { role, key: key("dave"), peer: key("alice").public(), label, cipher };
    let (sptps, own) = Datagram::start(params, WindowSize::DEFAULT, &mut bench.random);
    let mut session = RemoteSession { name: "dave".to_owned(), sptps };
    handle(bench, &mut session, &kex);
    bench.answer("bob", &session, &own);
    let sig = record(bench, "16", 3);
    (session, sig)
}

fn established() -> (Bench, RemoteSession) {
    let mut bench = with_dave();
    let (mut session, sig) = begin(&mut bench);
    for answer in handle(&mut bench, &mut session, &sig) {
        bench.answer("bob", &session, &answer);
    }
    bench.continue_session("bob", &mut session);
    bench.forget();
    (bench, session)
}

/// Begins a rekey up to the node's SIG, which it returns.
fn begin_rekey(bench: &mut Bench, session: &mut RemoteSession) -> Vec<u8> {
    bench.wait(EXPIRE.as_secs() - 1);
    bench.forget();
    bench.wait(1);
    let kex = record(bench, "16", 3);
    for answer in handle(bench, session, &kex) {
        bench.answer("bob", session, &answer);
    }
    record(bench, "16", 3)
}

fn packet(bench: &mut Bench, session: &mut RemoteSession, len: usize) {
    bench.send_record(session, address("dave"), 0, &ipv4(len));
}

fn forged(bench: &mut Bench, from: &str) {
    let mut bytes = [&[0; 6][..], &name(from).id().0, &[9; 40]].concat();
    bench.send_datagram(address(from), &mut bytes);
}

fn lengths(bench: &mut Bench) -> Vec<usize> {
    bench.delivered().iter().map(|(_, packet)| packet.len()).collect()
}

#[test]
fn records_that_overtake_the_first_sig_are_opened_after_it() {
    let mut bench = with_dave();
    let (mut session, sig) = begin(&mut bench);
    let answers = handle(&mut bench, &mut session, &sig);
    packet(&mut bench, &mut session, 41);
    packet(&mut bench, &mut session, 42);
    assert_eq!(lengths(&mut bench), []);
    for answer in &answers {
        bench.answer("bob", &session, answer);
    }
    packet(&mut bench, &mut session, 43);
    assert_eq!(lengths(&mut bench), [41, 42, 43]);
    assert_eq!(bench.node.counters().refused_records, 0);
}

#[test]
fn records_that_overtake_the_sig_and_the_ack_of_a_rekey_are_opened_after_the_sig() {
    let (mut bench, mut session) = established();
    let sig = begin_rekey(&mut bench, &mut session);
    packet(&mut bench, &mut session, 41);
    assert_eq!(lengths(&mut bench), [41], "under the old keys");
    let answers = handle(&mut bench, &mut session, &sig);
    assert_eq!(answers.len(), 2, "a SIG and an ACK");
    packet(&mut bench, &mut session, 42);
    forged(&mut bench, "dave");
    packet(&mut bench, &mut session, 43);
    assert_eq!(lengths(&mut bench), []);
    bench.answer("bob", &session, &answers[0]);
    assert_eq!(lengths(&mut bench), [42, 43]);
    assert_eq!(bench.node.counters().refused_records, 1, "the forged one");
    bench.answer("bob", &session, &answers[1]);
    packet(&mut bench, &mut session, 44);
    assert_eq!(lengths(&mut bench), [44]);
    assert!(bench.node.early.is_empty());
}

#[test]
fn few_records_are_kept_and_none_of_a_rekey_that_was_given_up() {
    let (mut bench, mut session) = established();
    forged(&mut bench, "dave");
    assert_eq!(bench.node.counters().refused_records, 1, "no handshake");
    begin_rekey(&mut bench, &mut session);
    for _ in 0..130 {
        forged(&mut bench, "dave");
    }
    assert_eq!(bench.node.counters().refused_records, 3);
    bench.wait(20);
    assert!(bench.node.early.is_empty());
    assert_eq!(bench.node.counters().refused_records, 131);
}

#[test]
fn records_of_few_nodes_are_kept() {
    let mut bench = with_dave();
    let (mut session, sig) = begin(&mut bench);
    for other in 0..64 {
        bench.node.early.insert(name(&format!("other{other}")), Vec::new());
    }
    let answers = handle(&mut bench, &mut session, &sig);
    packet(&mut bench, &mut session, 41);
    assert_eq!(bench.node.counters().refused_records, 1);
    for answer in &answers {
        bench.answer("bob", &session, answer);
    }
    assert_eq!(lengths(&mut bench), []);
}
