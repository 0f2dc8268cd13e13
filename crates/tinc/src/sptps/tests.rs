use adit_engine::Random;
use proptest::prelude::*;

use super::handshake::OwnKex;
use super::stream::Received;
use super::*;
use crate::testing::{alice, bob, hex};

/// The records of a session between alice, who initiates it, and bob, who starts a rekey: see the specification's section 20.
const STREAM: &str = include_str!("vectors/stream.txt");
const DATAGRAM: &str = include_str!("vectors/datagram.txt");

/// Returns the records of one sender.
fn records_of(vectors: &str, sender: &str) -> Vec<Vec<u8>> {
    let lines = vectors.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(name, _)| *name == sender).map(|(_, record)| hex(record)).collect()
}

/// Returns the fixed KEX of the vectors.
fn kex(nonce: u8, seed: u8) -> OwnKex {
    OwnKex::new([nonce; 32], &[seed; 32])
}

fn no_rekey() -> OwnKex {
    panic!("the peer starts no rekey");
}

fn params(role: Role, label: &[u8]) -> Params {
    let (key, peer) = match role {
        Role::Initiator => (alice(), bob()),
        Role::Responder => (bob(), alice()),
    };
    Params {
        role,
        key,
        peer: peer.public(),
        label: label.to_vec(),
        cipher: CipherChoice::default(),
    }
}

/// An event or record, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    Event(Event),
    Record(u8, Vec<u8>),
}

/// Passes all of `input` to a stream, in portions of at most `portion` bytes.
fn feed(
    stream: &mut Stream,
    input: &[u8],
    portion: usize,
    fresh: &mut dyn FnMut() -> OwnKex,
    out: &mut Vec<u8>,
) -> Result<Vec<Got>, Error> {
    let mut got = Vec::new();
    for mut portion in input.chunks(portion) {
        while let Some(received) = stream.receive_with(&mut portion, fresh, out)? {
            got.push(match received {
                Received::Event(event) => Got::Event(event),
                Received::Record(kind, data) => Got::Record(kind, data.to_vec()),
            });
        }
        assert!(portion.is_empty());
    }
    Ok(got)
}

/// Starts a stream between alice and bob with the KEX of the vectors.
fn streams() -> (Stream, Stream, Vec<u8>, Vec<u8>) {
    let label = meta_label("alice", "bob");
    let (mut from_alice, mut from_bob) = (Vec::new(), Vec::new());
    let alice =
        Stream::start_with(params(Role::Initiator, &label), kex(0x11, 0x21), &mut from_alice);
    let bob = Stream::start_with(params(Role::Responder, &label), kex(0x12, 0x22), &mut from_bob);
    (alice, bob, from_alice, from_bob)
}

/// Two established streams.
fn established_streams() -> (Stream, Stream) {
    let (mut alice, mut bob, from_alice, from_bob) = streams();
    let (mut sig, mut answer, mut none) = (Vec::new(), Vec::new(), Vec::new());
    assert_eq!(feed(&mut alice, &from_bob, 99, &mut no_rekey, &mut sig), Ok(vec![]));
    let from_alice = [from_alice, sig].concat();
    let established = Ok(vec![Got::Event(Event::Established)]);
    assert_eq!(feed(&mut bob, &from_alice, 99, &mut no_rekey, &mut answer), established);
    assert_eq!(feed(&mut alice, &answer, 99, &mut no_rekey, &mut none), established);
    assert!(none.is_empty() && alice.is_established() && bob.is_established());
    (alice, bob)
}

/// Runs the session of the vectors. Returns the bytes that alice and bob sent, and the events and records that bob received.
fn stream_session(portion: usize) -> (Vec<u8>, Vec<u8>, Vec<Got>) {
    let (mut alice, mut bob, mut from_alice, mut from_bob) = streams();
    let (mut alice_got, mut bob_got) = (Vec::new(), Vec::new());
    let (mut alice_read, mut bob_read) = (0, 0);
    let mut exchange =
        |alice: &mut Stream, bob: &mut Stream, from_alice: &mut Vec<u8>, from_bob: &mut Vec<u8>| {
            while (alice_read, bob_read) != (from_bob.len(), from_alice.len()) {
                let input = from_bob[alice_read..].to_vec();
                alice_read = from_bob.len();
                let got = feed(alice, &input, portion, &mut || kex(0x13, 0x23), from_alice);
                alice_got.extend(got.unwrap());
                let input = from_alice[bob_read..].to_vec();
                bob_read = from_alice.len();
                let got = feed(bob, &input, portion, &mut no_rekey, from_bob);
                bob_got.extend(got.unwrap());
            }
        };
    exchange(&mut alice, &mut bob, &mut from_alice, &mut from_bob);
    alice.send(0, b"4 655 12 700000c\n", &mut from_alice).unwrap();
    bob.send(0, b"4 655 8 700000c\n", &mut from_bob).unwrap();
    exchange(&mut alice, &mut bob, &mut from_alice, &mut from_bob);
    bob.rekey_with(kex(0x14, 0x24), &mut from_bob).unwrap();
    exchange(&mut alice, &mut bob, &mut from_alice, &mut from_bob);
    alice.send(0, b"x", &mut from_alice).unwrap();
    bob.send(0, b"y", &mut from_bob).unwrap();
    exchange(&mut alice, &mut bob, &mut from_alice, &mut from_bob);
    let expected = [
        Got::Event(Event::Established),
        Got::Record(0, b"4 655 8 700000c\n".to_vec()),
        Got::Event(Event::Rekeyed),
        Got::Record(0, b"y".to_vec()),
    ];
    assert_eq!(alice_got, expected);
    (from_alice, from_bob, bob_got)
}

fn bobs_view() -> Vec<Got> {
    vec![
        Got::Event(Event::Established),
        Got::Record(0, b"4 655 12 700000c\n".to_vec()),
        Got::Event(Event::Rekeyed),
        Got::Record(0, b"x".to_vec()),
    ]
}

/// Specification 20.2.
#[test]
fn a_stream_sends_the_bytes_of_the_vectors() {
    let (from_alice, from_bob, got) = stream_session(usize::MAX);
    assert_eq!(from_alice, records_of(STREAM, "alice").concat());
    assert_eq!(from_bob, records_of(STREAM, "bob").concat());
    assert_eq!(got, bobs_view());
}

#[test]
fn a_stream_is_split_at_any_byte() {
    let whole = stream_session(usize::MAX);
    for portion in [1, 2, 3, 67, 68, 69] {
        assert_eq!(stream_session(portion), whole, "portions of {portion}");
    }
}

/// Plays the records of the vectors to bob, with his own KEX and rekey. Returns what he made of them.
fn bob_hears(input: &[u8]) -> (Result<Vec<Got>, Error>, Stream) {
    let (_, mut bob, _, _) = streams();
    let (mut out, mut rest, mut all) = (Vec::new(), input, Vec::new());
    loop {
        let received = match bob.receive_with(&mut rest, &mut || kex(0x14, 0x24), &mut out) {
            Err(error) => return (Err(error), bob),
            Ok(None) => return (Ok(all), bob),
            Ok(Some(Received::Event(event))) => Got::Event(event),
            Ok(Some(Received::Record(kind, data))) => Got::Record(kind, data.to_vec()),
        };
        let acknowledged = matches!(&received, Got::Record(_, data) if data.starts_with(b"4 "));
        all.push(received);
        if acknowledged {
            bob.send(0, b"4 655 8 700000c\n", &mut out).unwrap();
            bob.rekey_with(kex(0x14, 0x24), &mut out).unwrap();
        }
    }
}

#[test]
fn an_altered_stream_ends_the_session_and_delivers_nothing_that_was_altered() {
    let input = records_of(STREAM, "alice").concat();
    assert_eq!(bob_hears(&input).0, Ok(bobs_view()));
    for at in 0..input.len() {
        let mut altered = input.clone();
        altered[at] ^= 0x41;
        let (outcome, mut bob) = bob_hears(&altered);
        match outcome {
            Err(_) => {
                let mut nothing = &[][..];
                let again = bob.receive_with(&mut nothing, &mut no_rekey, &mut Vec::new());
                assert_eq!(again, Err(Error::Ended), "byte {at}");
                assert_eq!(bob.send(0, b"", &mut Vec::new()), Err(Error::Ended));
                assert_eq!(bob.rekey_with(kex(1, 1), &mut Vec::new()), Err(Error::Ended));
                assert!(!bob.is_established());
            }
            // The length of a record has grown, so it is not complete. The earlier ones arrived.
            Ok(got) => assert!(got.len() < 4 && bobs_view().starts_with(&got), "byte {at}"),
        }
    }
}

/// Specification 4.3 and 4.4: what is fatal before the first keys.
#[test]
fn a_stream_refuses_what_is_no_handshake() {
    let refused = |input: &[u8]| bob_hears(input).0.unwrap_err();
    let records = records_of(STREAM, "alice");
    let changed = |at: usize, to: u8| {
        let mut record = records[0].clone();
        record[at] = to;
        record
    };
    assert_eq!(refused(&changed(3, 1)), Error::Version(1));
    assert_eq!(refused(&changed(2, 0)), Error::UnexpectedType(0), "data before the keys");
    assert_eq!(refused(&changed(2, 129)), Error::UnexpectedType(129));
    assert_eq!(refused(&[0xff, 0xff]), Error::Length(0xffff), "not even buffered");
    assert_eq!(refused(&records[1]), Error::Length(64), "SIG before KEX");
    let twice = [&records[0][..], &records[0]].concat();
    assert_eq!(refused(&twice), Error::Length(65), "a second KEX");
    let mut forged = records[..2].concat();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(refused(&forged), Error::Signature);
}

/// Specification 3.3, in a handshake: the initiator's KEX fixes the shared secret, and its signature is genuine.
#[test]
fn an_ephemeral_key_of_small_order_establishes_nothing() {
    let (_, mut victim, _, from_bob) = streams();
    let mut message = [0; 65];
    message[33] = 1;
    let label = meta_label("alice", "bob");
    let signed = [&[1], &message[..], &from_bob[3..], &label].concat();
    let mut input = vec![0, 65, 128];
    input.extend(message);
    input.extend([0, 64, 128]);
    input.extend(alice().sign(&signed));
    let outcome = feed(&mut victim, &input, 999, &mut no_rekey, &mut Vec::new());
    assert_eq!(outcome, Err(Error::EphemeralKey));
}

#[test]
fn another_label_or_key_or_role_establishes_nothing() {
    let label = meta_label("alice", "bob");
    let mallory = Arc::new(PrivateKey::from_seed(&[9; 32]));
    let good = params(Role::Initiator, &label);
    let other_label = Params { label: meta_label("alice", "carol"), ..good.clone() };
    let other_key = Params { key: mallory.clone(), ..good.clone() };
    let other_role = Params { role: Role::Responder, ..good.clone() };
    for bad in [other_label, other_key, other_role] {
        let (_, mut bob, _, from_bob) = streams();
        let mut out = Vec::new();
        let mut peer = Stream::start_with(bad, kex(0x11, 0x21), &mut out);
        feed(&mut peer, &from_bob, 999, &mut no_rekey, &mut out).unwrap();
        if peer.handshake_role() == Role::Responder {
            // Two responders wait for each other.
            assert_eq!(feed(&mut bob, &out, 999, &mut no_rekey, &mut Vec::new()), Ok(vec![]));
            assert!(!bob.is_established());
            continue;
        }
        let outcome = feed(&mut bob, &out, 999, &mut no_rekey, &mut Vec::new());
        assert_eq!(outcome, Err(Error::Signature));
    }
    // The initiator verifies the responder as well.
    let (mut alice, _, from_alice, _) = streams();
    let bad = Params { key: mallory, ..params(Role::Responder, &label) };
    let (mut kex_record, mut sig, mut answer) = (Vec::new(), Vec::new(), Vec::new());
    let mut peer = Stream::start_with(bad, kex(0x12, 0x22), &mut kex_record);
    feed(&mut alice, &kex_record, 999, &mut no_rekey, &mut sig).unwrap();
    let input = [from_alice, sig].concat();
    feed(&mut peer, &input, 999, &mut no_rekey, &mut answer).unwrap();
    let outcome = feed(&mut alice, &answer, 999, &mut no_rekey, &mut Vec::new());
    assert_eq!(outcome, Err(Error::Signature));
}

/// Specification 4.6: each side takes the other's KEX for the answer to its own.
#[test]
fn both_sides_of_a_stream_start_a_rekey_at_once() {
    let (mut alice, mut bob) = established_streams();
    let (mut from_alice, mut from_bob) = (Vec::new(), Vec::new());
    alice.rekey_with(kex(3, 3), &mut from_alice).unwrap();
    bob.rekey_with(kex(4, 4), &mut from_bob).unwrap();
    assert_eq!(alice.rekey_with(kex(5, 5), &mut from_alice), Err(Error::HandshakeInProgress));
    // Data is sent at every moment of it.
    alice.send(0, b"1", &mut from_alice).unwrap();
    bob.send(0, b"2", &mut from_bob).unwrap();
    let (mut alice_got, mut bob_got) = (Vec::new(), Vec::new());
    for round in 3..6 {
        let input = std::mem::take(&mut from_bob);
        let got = feed(&mut alice, &input, 7, &mut no_rekey, &mut from_alice);
        alice_got.extend(got.unwrap());
        alice.send(0, &[round], &mut from_alice).unwrap();
        let input = std::mem::take(&mut from_alice);
        let got = feed(&mut bob, &input, 7, &mut no_rekey, &mut from_bob);
        bob_got.extend(got.unwrap());
        bob.send(0, &[round], &mut from_bob).unwrap();
    }
    let data = |got: Vec<Got>| -> Vec<u8> {
        got.into_iter()
            .filter_map(|got| if let Got::Record(_, d) = got { Some(d[0]) } else { None })
            .collect()
    };
    assert!(alice_got.contains(&Got::Event(Event::Rekeyed)));
    assert!(bob_got.contains(&Got::Event(Event::Rekeyed)));
    assert_eq!(data(alice_got), [b'2', 3, 4]);
    assert_eq!(data(bob_got), [b'1', 3, 4, 5]);
}

/// Specification 6.9: the bytes after a record may belong to no record.
#[test]
fn bytes_after_a_record_remain_in_the_input() {
    let (mut alice, mut bob) = established_streams();
    let mut sent = Vec::new();
    alice.send(0, b"21 4\n", &mut sent).unwrap();
    sent.extend(b"\xff\xff\xff\xff");
    alice.send(1, b"8\n", &mut sent).unwrap();
    let mut input = &sent[..];
    let received = bob.receive_with(&mut input, &mut no_rekey, &mut Vec::new());
    assert_eq!(received, Ok(Some(Received::Record(0, b"21 4\n"))));
    input = input.strip_prefix(b"\xff\xff\xff\xff").unwrap();
    let received = bob.receive_with(&mut input, &mut no_rekey, &mut Vec::new());
    assert_eq!(received, Ok(Some(Received::Record(1, b"8\n"))), "the number is the next one");
}

/// Specification 4.1.
#[test]
fn a_record_has_up_to_65535_bytes_and_a_type_up_to_127() {
    let (mut alice, mut bob) = established_streams();
    let mut sent = Vec::new();
    assert_eq!(alice.send(128, b"", &mut sent), Err(Error::UnexpectedType(128)));
    assert_eq!(alice.send(0, &[0; 65_536], &mut sent), Err(Error::TooLong(65_536)));
    assert!(sent.is_empty());
    alice.send(127, &[7; 65_535], &mut sent).unwrap();
    assert_eq!(sent.len(), 65_535 + STREAM_OVERHEAD);
    alice.send(0, b"", &mut sent).unwrap();
    let got = feed(&mut bob, &sent, 1000, &mut no_rekey, &mut Vec::new());
    assert_eq!(got, Ok(vec![Got::Record(127, vec![7; 65_535]), Got::Record(0, vec![])]));
    let (mut early, ..) = streams();
    assert_eq!(early.send(0, b"", &mut sent), Err(Error::NotEstablished));
    assert_eq!(early.rekey_with(kex(1, 1), &mut sent), Err(Error::NotEstablished));
}

#[test]
fn a_stream_ends_before_its_numbers_repeat() {
    let (mut alice, mut bob) = established_streams();
    alice.set_seqno(HARD_LIMIT - 1);
    bob.set_seqno(HARD_LIMIT - 1);
    let mut sent = Vec::new();
    alice.send(0, b"last", &mut sent).unwrap();
    let got = feed(&mut bob, &sent, 1000, &mut no_rekey, &mut Vec::new());
    assert_eq!(got, Ok(vec![Got::Record(0, b"last".to_vec())]));
    assert_eq!(alice.send(0, b"", &mut sent), Err(Error::Exhausted));
    let got = feed(&mut bob, &[0; 19], 1000, &mut no_rekey, &mut Vec::new());
    assert_eq!(got, Err(Error::Exhausted));
}

/// Returns two sessions after the exchange of the vectors' first four records.
fn datagrams(window: WindowSize) -> (Datagram, Datagram) {
    let label = data_label("alice", "bob");
    let (mut alice, alice_kex) =
        Datagram::start_with(params(Role::Initiator, &label), window, kex(0x11, 0x21));
    let (mut bob, bob_kex) =
        Datagram::start_with(params(Role::Responder, &label), window, kex(0x12, 0x22));
    let (mut from_alice, mut from_bob) = (Vec::new(), Vec::new());
    let handle = |session: &mut Datagram, record: &[u8], out: &mut Vec<Vec<u8>>| {
        session.receive_handshake_with(record, &mut no_rekey, out).unwrap()
    };
    assert_eq!(handle(&mut bob, &alice_kex, &mut from_bob), None);
    assert_eq!(handle(&mut alice, &bob_kex, &mut from_alice), None);
    assert_eq!(handle(&mut bob, &from_alice[0], &mut from_bob), Some(Event::Established));
    assert!(!alice.is_established() && bob.is_established());
    assert_eq!(handle(&mut alice, &from_bob[0], &mut from_alice), Some(Event::Established));
    let vectors = [records_of(DATAGRAM, "alice"), records_of(DATAGRAM, "bob")];
    assert_eq!([alice_kex, from_alice.remove(0)], vectors[0][..2]);
    assert_eq!([bob_kex, from_bob.remove(0)], vectors[1][..2]);
    assert!(from_alice.is_empty() && from_bob.is_empty());
    (alice, bob)
}

fn seal(session: &mut Datagram, kind: u8, data: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    session.seal(kind, data, &mut record).unwrap();
    record
}

fn open(session: &mut Datagram, record: &[u8]) -> Result<(u8, Vec<u8>), Error> {
    let mut record = record.to_vec();
    session.open(&mut record).map(|(kind, data)| (kind, data.to_vec()))
}

/// Passes a handshake record. Returns the answers and the event.
fn hand(session: &mut Datagram, record: &[u8]) -> (Vec<Vec<u8>>, Option<Event>) {
    let mut out = Vec::new();
    let event = session.receive_handshake_with(record, &mut || kex(0x13, 0x23), &mut out).unwrap();
    (out, event)
}

/// Specification 20.3.
#[test]
fn a_datagram_session_sends_the_bytes_of_the_vectors() {
    let (mut alice, mut bob) = datagrams(WindowSize::DEFAULT);
    let (from_alice, from_bob) = (records_of(DATAGRAM, "alice"), records_of(DATAGRAM, "bob"));
    assert_eq!(seal(&mut alice, 0, b"Ehello"), from_alice[2]);
    assert_eq!(seal(&mut bob, 0, b"Eworld"), from_bob[2]);
    assert_eq!(open(&mut bob, &from_alice[2]), Ok((0, b"Ehello".to_vec())));
    assert_eq!(open(&mut alice, &from_bob[2]), Ok((0, b"Eworld".to_vec())));
    assert!(!alice.must_hold_records() && !bob.must_hold_records());
    assert_eq!(bob.rekey_with(kex(0x14, 0x24)).as_ref(), Ok(&from_bob[3]));
    assert!(!bob.must_hold_records());
    let (answers, event) = hand(&mut alice, &from_bob[3]);
    assert_eq!((answers, event), (from_alice[3..5].to_vec(), None));
    assert!(!alice.must_hold_records(), "the peer opens records under the old key up to the ACK");
    assert_eq!(hand(&mut bob, &from_alice[3]), (vec![], None));
    assert_eq!(hand(&mut bob, &from_alice[4]), (from_bob[4..6].to_vec(), None));
    assert!(bob.must_hold_records());
    assert_eq!(hand(&mut alice, &from_bob[4]), (vec![from_alice[5].clone()], None));
    assert_eq!(hand(&mut alice, &from_bob[5]), (vec![], Some(Event::Rekeyed)));
    assert_eq!(hand(&mut bob, &from_alice[5]), (vec![], Some(Event::Rekeyed)));
    assert!(!alice.must_hold_records() && !bob.must_hold_records());
    assert_eq!(seal(&mut alice, 0, b"x"), from_alice[6]);
    assert_eq!(seal(&mut bob, 0, b"y"), from_bob[6]);
    assert_eq!(open(&mut bob, &from_alice[6]), Ok((0, b"x".to_vec())));
    assert_eq!(open(&mut alice, &from_bob[6]), Ok((0, b"y".to_vec())));
}

/// Returns the sessions of two nodes of adit, which have agreed on AES-256-GCM.
fn agreed(random: &mut Random) -> (Datagram, Datagram) {
    let label = data_label("alice", "bob");
    let mut start = |role| {
        let params = Params { cipher: CipherChoice::Agree, ..params(role, &label) };
        let (mut session, kex) = Datagram::start(params, WindowSize::DEFAULT, random);
        session.peer_offers();
        (session, kex)
    };
    let ((mut alice, to_bob), (mut bob, to_alice)) =
        (start(Role::Initiator), start(Role::Responder));
    let (mut to_bob, mut to_alice) = (vec![to_bob], vec![to_alice]);
    while !to_bob.is_empty() || !to_alice.is_empty() {
        for record in std::mem::take(&mut to_bob) {
            bob.receive_handshake(&record, random, &mut to_alice).unwrap();
        }
        for record in std::mem::take(&mut to_alice) {
            alice.receive_handshake(&record, random, &mut to_bob).unwrap();
        }
    }
    assert!(alice.is_peer_tolerant() && bob.is_peer_tolerant());
    (alice, bob)
}

/// Seals a record as another layer does, which may not have the session's last keys yet.
fn seal_elsewhere(session: &SharedSession) -> Vec<u8> {
    let seqno = session.numbers.take().unwrap();
    let mut data = b"\0elsewhere".to_vec();
    let tag = session.send.seal(seqno, &mut data).unwrap();
    [&seqno.to_be_bytes()[..], &data, &tag].concat()
}

/// Between two nodes of adit, whichever of them starts a rekey, each record that is sealed meanwhile can be opened at once, and after the rekey; also those
/// of another layer, which gets new keys only after each step.
#[test]
fn a_rekey_of_two_nodes_of_adit_makes_no_record_unreadable() {
    for (starter, both) in [(0, false), (1, false), (0, true)] {
        let mut random = Random::new([5; 32]);
        let (alice, bob) = agreed(&mut random);
        let mut ends = [alice, bob];
        // The handshake records on the way to each, and the records that arrive later.
        let (mut records, mut late) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        records[1 - starter].push(ends[starter].rekey(&mut random).unwrap());
        if both {
            records[starter].push(ends[1 - starter].rekey(&mut random).unwrap());
        }
        let (mut events, mut steps) = (Vec::new(), 0);
        while let Some(to) = [1, 0].into_iter().find(|to| !records[*to].is_empty()) {
            let shared = [ends[0].share().unwrap(), ends[1].share().unwrap()];
            let record = records[to].remove(0);
            let mut answers = Vec::new();
            let event = ends[to].receive_handshake(&record, &mut random, &mut answers).unwrap();
            events.extend(event);
            records[1 - to].extend(answers);
            steps += 1;
            for (from, elsewhere) in shared.iter().enumerate() {
                let to = 1 - from;
                assert!(!ends[from].must_hold_records());
                let own = seal(&mut ends[from], 0, b"own");
                assert_eq!(open(&mut ends[to], &own), Ok((0, b"own".to_vec())), "step {steps}");
                let other = seal_elsewhere(elsewhere);
                let expected = Ok((0, b"elsewhere".to_vec()));
                assert_eq!(open(&mut ends[to], &other), expected, "step {steps}");
                late[to].push(seal(&mut ends[from], 0, b"late"));
                late[to].push(seal_elsewhere(elsewhere));
            }
        }
        // KEX, KEX, SIG, SIG and two ACKs.
        assert_eq!((events, steps), (vec![Event::Rekeyed; 2], 6));
        for (end, late) in ends.iter_mut().zip(&late) {
            late.iter().for_each(|record| drop(open(end, record).unwrap()));
        }
    }
}

/// A layer that never gets the new keys is noticed.
#[test]
fn the_old_key_serves_for_a_limited_number_of_records_after_the_ack() {
    let mut random = Random::new([5; 32]);
    let (mut alice, mut bob) = agreed(&mut random);
    let old = alice.share().unwrap();
    let (mut to_bob, mut to_alice) = (vec![alice.rekey(&mut random).unwrap()], Vec::new());
    while !to_bob.is_empty() || !to_alice.is_empty() {
        for record in std::mem::take(&mut to_bob) {
            bob.receive_handshake(&record, &mut random, &mut to_alice).unwrap();
        }
        for record in std::mem::take(&mut to_alice) {
            alice.receive_handshake(&record, &mut random, &mut to_bob).unwrap();
        }
    }
    for _ in 0..4096 {
        open(&mut bob, &seal_elsewhere(&old)).unwrap();
    }
    assert_eq!(open(&mut bob, &seal_elsewhere(&old)), Err(Error::Forged));
    assert!(bob.knows_previous_key());
    for _ in 0..4100 {
        let record = seal(&mut alice, 0, b"x");
        open(&mut bob, &record).unwrap();
    }
    assert!(!bob.knows_previous_key());
}

/// Specification 20.4: the probe and its reply.
#[test]
fn a_probe_has_the_bytes_of_the_vectors() {
    let (mut alice, mut bob) = datagrams(WindowSize::DEFAULT);
    seal(&mut alice, 0, b"Ehello");
    seal(&mut bob, 0, b"Eworld");
    let request = [&[0; 14][..], &[0xaa, 0xbb, 0xcc, 0xdd]].concat();
    let record = seal(&mut alice, 4, &request);
    assert_eq!(
        record,
        hex("00000003cba79f1e84ad45464dab5a75d6cc3745ece38d8b8614fe9535a2a96b945c40938f009a")
    );
    assert_eq!(open(&mut bob, &record), Ok((4, request)));
    let reply = [&[2, 0, 18][..], &[0; 11], &[0xaa, 0xbb, 0xcc, 0xdd]].concat();
    assert_eq!(
        seal(&mut bob, 4, &reply),
        hex("00000003e6e34e5fc168c1f96781623a8902021b42f4a7a34ba3541378d82dbecfc5f379b8f64c")
    );
}

/// Specification 9.5: data overtakes the SIG of the first handshake, or the ACK of a rekey, and data under the old key is late.
#[test]
fn data_and_handshake_overtake_each_other() {
    let (mut alice, mut bob) = datagrams(WindowSize::DEFAULT);
    let old = seal(&mut alice, 0, b"old");
    let kex_record = alice.rekey_with(kex(5, 5)).unwrap();
    let (from_bob, _) = hand(&mut bob, &kex_record);
    let (from_alice, _) = hand(&mut alice, &from_bob[0]);
    let (from_bob, _) = hand(&mut bob, &from_alice[0]);
    let (from_alice, _) = hand(&mut alice, &from_bob[0]);
    let new = seal(&mut alice, 0, b"new");
    let newer = seal(&mut bob, 0, b"newer");
    // Before either ACK has arrived.
    assert_eq!(open(&mut bob, &new), Ok((0, b"new".to_vec())));
    assert_eq!(open(&mut alice, &newer), Ok((0, b"newer".to_vec())));
    assert_eq!(hand(&mut alice, &from_bob[1]).1, Some(Event::Rekeyed));
    assert_eq!(hand(&mut bob, &from_alice[0]).1, Some(Event::Rekeyed));
    assert_eq!(open(&mut bob, &old), Ok((0, b"old".to_vec())));
    assert_eq!(open(&mut bob, &old), Err(Error::Replayed(2)));
    let label = data_label("alice", "bob");
    let early = params(Role::Initiator, &label);
    let (mut early, _) = Datagram::start_with(early, WindowSize::DEFAULT, kex(0x11, 0x21));
    assert_eq!(open(&mut early, &newer), Err(Error::NotEstablished));
}

#[test]
fn the_old_key_is_forgotten_when_the_window_has_passed_it() {
    for window in [WindowSize::DEFAULT, WindowSize::new(0).unwrap()] {
        let (mut alice, mut bob) = datagrams(window);
        let late = seal(&mut alice, 0, b"late");
        let (from_alice, _) = hand(&mut alice, &bob.rekey_with(kex(4, 4)).unwrap());
        hand(&mut bob, &from_alice[0]);
        let (from_bob, _) = hand(&mut bob, &from_alice[1]);
        let (from_alice, _) = hand(&mut alice, &from_bob[0]);
        hand(&mut alice, &from_bob[1]);
        hand(&mut bob, &from_alice[0]);
        for number in 0..4100 {
            assert_eq!(bob.knows_previous_key(), number < 4096, "{number} records later");
            let record = seal(&mut alice, 0, b"x");
            open(&mut bob, &record).unwrap();
        }
        assert_eq!(open(&mut bob, &late), Err(Error::Forged));
    }
}

/// A tinc node that is asked to rekey while it sends at full speed: its handshake records arrive after many later datagrams.
#[test]
fn any_number_of_datagrams_overtakes_a_handshake_record() {
    let (mut alice, mut bob) = datagrams(WindowSize::DEFAULT);
    let kex_record = alice.rekey_with(kex(5, 5)).unwrap();
    for number in 0..5000_u32 {
        let record = seal(&mut alice, 0, &number.to_be_bytes());
        open(&mut bob, &record).unwrap();
    }
    let (answers, _) = hand(&mut bob, &kex_record);
    assert_eq!(answers.len(), 1);
    let mut out = Vec::new();
    let again = bob.receive_handshake_with(&kex_record, &mut no_rekey, &mut out);
    assert_eq!(again, Err(Error::Replayed(2)), "and only once");
}

/// Specification 4.7: before the keys, numbers are exact.
#[test]
fn early_handshake_records_are_in_order() {
    let label = data_label("alice", "bob");
    let (mut bob, _) =
        Datagram::start_with(params(Role::Responder, &label), WindowSize::DEFAULT, kex(0x12, 0x22));
    let records = records_of(DATAGRAM, "alice");
    let mut out = Vec::new();
    let mut refused = |bob: &mut Datagram, record: &[u8]| {
        bob.receive_handshake_with(record, &mut no_rekey, &mut out).unwrap_err()
    };
    assert_eq!(refused(&mut bob, &records[1]), Error::OutOfOrder(1));
    assert_eq!(refused(&mut bob, &records[0][..69]), Error::Length(64));
    assert_eq!(refused(&mut bob, &[0, 0, 0]), Error::Length(3));
    assert_eq!(refused(&mut bob, &[0; 4]), Error::Length(4));
    assert_eq!(refused(&mut bob, &[0; 70]), Error::UnexpectedType(0));
    hand(&mut bob, &records[0]);
    assert_eq!(refused(&mut bob, &records[0]), Error::OutOfOrder(0));
    let mut forged = records[1].clone();
    forged[9] ^= 1;
    assert_eq!(refused(&mut bob, &forged), Error::Signature);
    // No refused record has changed anything.
    assert_eq!(hand(&mut bob, &records[1]).1, Some(Event::Established));
}

/// Handshake records never arrive as datagrams, nor data in a handshake message.
#[test]
fn records_arrive_the_way_that_belongs_to_their_type() {
    let (mut alice, mut bob) = datagrams(WindowSize::DEFAULT);
    let handshake = alice.rekey_with(kex(5, 5)).unwrap();
    assert_eq!(open(&mut bob, &handshake), Err(Error::UnexpectedType(128)));
    let data = seal(&mut alice, 0, b"data");
    let mut out = Vec::new();
    let outcome = bob.receive_handshake_with(&data, &mut no_rekey, &mut out);
    assert_eq!(outcome, Err(Error::UnexpectedType(0)));
    assert_eq!(hand(&mut bob, &handshake).0.len(), 1);
    assert_eq!(open(&mut bob, &data), Ok((0, b"data".to_vec())));
    assert_eq!(open(&mut bob, &data[..20]), Err(Error::Length(20)));
    let mut record = Vec::new();
    assert_eq!(alice.seal(128, b"", &mut record), Err(Error::UnexpectedType(128)));
    assert_eq!(alice.seal(0, &[0; 65_536], &mut record), Err(Error::TooLong(65_536)));
}

/// Specification 4.8.
#[test]
fn a_datagram_session_is_replaced_before_its_numbers_end() {
    let (mut alice, mut bob) = datagrams(WindowSize::DEFAULT);
    alice.set_seqno((1 << 31) - 1);
    assert!(!alice.needs_replacement());
    seal(&mut alice, 0, b"");
    assert!(alice.needs_replacement());
    for _ in 0..5 {
        let record = seal(&mut alice, 0, b"");
        let _ = open(&mut bob, &record);
    }
    assert!(bob.needs_replacement(), "the peer's numbers end as well");
    alice.set_seqno(HARD_LIMIT - 2);
    assert_eq!(alice.rekey_with(kex(3, 3)).map(|record| record.len()), Ok(86));
    seal(&mut alice, 0, b"");
    assert_eq!(alice.seal(0, b"", &mut Vec::new()), Err(Error::Exhausted));
    let (mut alice, mut bob) = datagrams(WindowSize::DEFAULT);
    alice.set_seqno(HARD_LIMIT);
    assert_eq!(alice.rekey_with(kex(3, 3)), Err(Error::Exhausted));
    let record = bob.rekey_with(kex(4, 4)).unwrap();
    let outcome = alice.receive_handshake_with(&record, &mut no_rekey, &mut Vec::new());
    assert_eq!(outcome, Err(Error::Exhausted));
}

#[test]
fn the_random_generator_gives_every_session_other_keys() {
    let mut random = Random::new([5; 32]);
    let label = data_label("alice", "bob");
    let mut start =
        || Datagram::start(params(Role::Initiator, &label), WindowSize::DEFAULT, &mut random).1;
    let (one, other) = (start(), start());
    assert_ne!(one[6..38], other[6..38], "nonces");
    assert_ne!(one[38..], other[38..], "ephemeral keys");
}

proptest! {
    /// A stream delivers in whatever portions, and data of both directions mixes with rekeys that either side starts.
    #[test]
    fn streams_deliver_everything_in_order(
        steps in proptest::collection::vec((0..4_u8, 1..100_usize), 1..40),
        seed: [u8; 32],
    ) {
        let mut random = Random::new(seed);
        let (mut alice, mut bob) = established_streams();
        let (mut to_bob, mut to_alice) = (Vec::new(), Vec::new());
        let (mut sent, mut received) = ([0_u32; 2], [0_u32; 2]);
        for (step, size) in steps {
            match step {
                0 => {
                    alice.send(0, &sent[0].to_be_bytes(), &mut to_bob).unwrap();
                    sent[0] += 1;
                }
                1 => {
                    bob.send(0, &sent[1].to_be_bytes(), &mut to_alice).unwrap();
                    sent[1] += 1;
                }
                2 => {
                    let _ = alice.rekey(&mut random, &mut to_bob);
                }
                _ => {
                    let _ = bob.rekey(&mut random, &mut to_alice);
                }
            }
            let portion: Vec<u8> = to_bob.drain(..size.min(to_bob.len())).collect();
            let mut portion = &portion[..];
            while let Some(got) = bob.receive(&mut portion, &mut random, &mut to_alice).unwrap() {
                if let Received::Record(_, data) = got {
                    prop_assert_eq!(data, received[0].to_be_bytes());
                    received[0] += 1;
                }
            }
            let portion: Vec<u8> = to_alice.drain(..size.min(to_alice.len())).collect();
            let mut portion = &portion[..];
            while let Some(got) = alice.receive(&mut portion, &mut random, &mut to_bob).unwrap() {
                if let Received::Record(_, data) = got {
                    prop_assert_eq!(data, received[1].to_be_bytes());
                    received[1] += 1;
                }
            }
        }
    }

    #[test]
    fn no_bytes_panic(input in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (_, mut bob, _, _) = streams();
        let _ = feed(&mut bob, &input, 50, &mut || kex(6, 6), &mut Vec::new());
        let (_, mut bob) = established_streams();
        let _ = feed(&mut bob, &input, 50, &mut || kex(6, 6), &mut Vec::new());
        let (_, mut bob) = datagrams(WindowSize::DEFAULT);
        let _ = open(&mut bob, &input);
        let _ = bob.receive_handshake_with(&input, &mut || kex(6, 6), &mut Vec::new());
    }
}

/// Specification 18.2: each form works with AES-256-GCM, and a rekey keeps it.
#[test]
fn sessions_work_with_aes() {
    let aes = |role, label: &[u8]| Params {
        cipher: CipherChoice::Fixed(Cipher::Aes256Gcm),
        ..params(role, label)
    };
    let mut random = Random::new([5; 32]);
    let label = data_label("alice", "bob");
    let window = WindowSize::DEFAULT;
    let (mut alice, kex) = Datagram::start(aes(Role::Initiator, &label), window, &mut random);
    let (mut bob, bob_kex) = Datagram::start(aes(Role::Responder, &label), window, &mut random);
    let (mut to_bob, mut to_alice) = (vec![kex], vec![bob_kex]);
    for round in 0..2_u8 {
        while !to_bob.is_empty() || !to_alice.is_empty() {
            for record in std::mem::take(&mut to_bob) {
                bob.receive_handshake(&record, &mut random, &mut to_alice).unwrap();
            }
            for record in std::mem::take(&mut to_alice) {
                alice.receive_handshake(&record, &mut random, &mut to_bob).unwrap();
            }
        }
        let shared = alice.share().unwrap();
        assert_eq!(shared.send.cipher(), Cipher::Aes256Gcm);
        let mut record = Vec::new();
        alice.seal(0, &[round], &mut record).unwrap();
        assert_eq!(record.len(), 1 + DATAGRAM_OVERHEAD);
        assert_eq!(bob.open(&mut record.clone()), Ok((0, &[round][..])));
        record[5] ^= 1;
        assert_eq!(bob.open(&mut record), Err(Error::Forged));
        to_bob.push(alice.rekey(&mut random).unwrap());
    }
    let label = meta_label("alice", "bob");
    let (mut from_alice, mut from_bob) = (Vec::new(), Vec::new());
    let mut alice =
        Stream::start_with(aes(Role::Initiator, &label), self::kex(1, 2), &mut from_alice);
    let mut bob = Stream::start_with(aes(Role::Responder, &label), self::kex(3, 4), &mut from_bob);
    feed(&mut alice, &from_bob, 99, &mut no_rekey, &mut from_alice).unwrap();
    let mut answer = Vec::new();
    feed(&mut bob, &from_alice, 99, &mut no_rekey, &mut answer).unwrap();
    feed(&mut alice, &answer, 99, &mut no_rekey, &mut Vec::new()).unwrap();
    let mut line = Vec::new();
    alice.send(0, b"8", &mut line).unwrap();
    assert_eq!(line.len(), 1 + STREAM_OVERHEAD);
    let got = feed(&mut bob, &line, 99, &mut no_rekey, &mut Vec::new());
    assert_eq!(got, Ok(vec![Got::Record(0, b"8".to_vec())]));
}

/// Specification 18.2: the label of AES-256-GCM has two more bytes, so another cipher fails at the signature.
#[test]
fn another_cipher_fails_at_the_signature() {
    let (_, mut bob, _, from_bob) = streams();
    let label = meta_label("alice", "bob");
    let cipher = CipherChoice::Fixed(Cipher::Aes256Gcm);
    let aes = Params { cipher, ..params(Role::Initiator, &label) };
    let mut out = Vec::new();
    let mut peer = Stream::start_with(aes, kex(0x11, 0x21), &mut out);
    feed(&mut peer, &from_bob, 999, &mut no_rekey, &mut out).unwrap();
    let outcome = feed(&mut bob, &out, 999, &mut no_rekey, &mut Vec::new());
    let (own, peer) = (Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm);
    assert_eq!(outcome, Err(Error::OtherCipher { own, peer }));
    // The signature is that over the label with the two bytes.
    let label = [&label[..], &[0, 1]].concat();
    let (_, mut bob, _, from_bob) = streams();
    let mut out = Vec::new();
    let same = Params { label, ..params(Role::Initiator, &[]) };
    let mut peer = Stream::start_with(same, kex(0x11, 0x21), &mut out);
    feed(&mut peer, &from_bob, 999, &mut no_rekey, &mut out).unwrap();
    let outcome = feed(&mut bob, &out, 999, &mut no_rekey, &mut Vec::new());
    assert_eq!(outcome, Err(Error::OtherCipher { own, peer: Cipher::Aes256Gcm }));
}
