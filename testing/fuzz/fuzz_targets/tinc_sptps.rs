//! Fuzzes tinc's sessions: bytes before and after the handshake, in both forms. The first byte chooses. No bytes of a stranger are delivered
//! as data.
#![cfg_attr(fuzzing, no_main)]

use std::sync::Arc;

use adit_engine::Random;
use adit_tinc::keys::PrivateKey;
use adit_tinc::sptps::{CipherChoice, Datagram, Params, Received, Role, Stream, WindowSize, data_label};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    match choice % 4 {
        0 => stream(bytes, false),
        1 => stream(bytes, true),
        2 => datagram(bytes, false),
        _ => datagram(bytes, true),
    }
}

fn params(role: Role) -> Params {
    let (one, other) = match role {
        Role::Initiator => (1, 2),
        Role::Responder => (2, 1),
    };
    let key = |seed: u8| Arc::new(PrivateKey::from_seed(&[seed; 32]));
    Params { role, key: key(one), peer: key(other).public(), label: data_label("alice", "bob"), cipher: CipherChoice::default() }
}

fn stream(bytes: &[u8], established: bool) {
    let (mut random, mut out, mut sig) = (Random::new([1; 32]), Vec::new(), Vec::new());
    let mut bob = Stream::start(params(Role::Responder), &mut random, &mut out);
    if established {
        let mut from_alice = Vec::new();
        let mut alice = Stream::start(params(Role::Initiator), &mut random, &mut from_alice);
        let none = alice.receive(&mut &out[..], &mut random, &mut sig).unwrap();
        assert_eq!(none, None);
        from_alice.extend(sig);
        bob.receive(&mut &from_alice[..], &mut random, &mut out).unwrap().unwrap();
    }
    assert_eq!(bob.is_established(), established);
    let before = out.len();
    for mut portion in bytes.chunks(7) {
        match bob.receive(&mut portion, &mut random, &mut out) {
            Ok(None) => assert!(portion.is_empty()),
            Ok(Some(Received::Record(..))) => panic!("a forged record"),
            Ok(Some(Received::Event(event))) => panic!("{event:?} without a key"),
            Err(_) => {
                assert!(!bob.is_established());
                return;
            }
        }
    }
    assert_eq!(out.len(), before, "no answer without a signature");
}

fn datagram(bytes: &[u8], established: bool) {
    let (mut random, window) = (Random::new([1; 32]), WindowSize::DEFAULT);
    let (mut bob, bob_kex) = Datagram::start(params(Role::Responder), window, &mut random);
    if established {
        let (mut alice, kex) = Datagram::start(params(Role::Initiator), window, &mut random);
        let mut out = Vec::new();
        alice.receive_handshake(&bob_kex, &mut random, &mut out).unwrap();
        bob.receive_handshake(&kex, &mut random, &mut Vec::new()).unwrap();
        bob.receive_handshake(&out[0], &mut random, &mut Vec::new()).unwrap().unwrap();
    }
    assert_eq!(bob.is_established(), established);
    let mut record = bytes.to_vec();
    assert!(bob.open(&mut record).is_err());
    let mut out = Vec::new();
    let event = bob.receive_handshake(bytes, &mut random, &mut out);
    assert!(out.is_empty() && !matches!(event, Ok(Some(_))));
    assert_eq!(bob.is_established(), established);
}
