//! Fuzzes both sides of tinc's exchange of invitations, before and within its session. The first byte chooses. Without the cookie and the key of
//! the invitation, no file is asked for and none is accepted.
#![cfg_attr(fuzzing, no_main)]

use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random};
use adit_tinc::invitation::{Cookie, Url};
use adit_tinc::join::{Claim, Inviter, InviterEvent, Joiner, JoinerEvent};
use adit_tinc::keys::PrivateKey;
use adit_tinc::sptps::{CipherChoice, INVITATION_LABEL, Params, Role, Stream};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

fn key(seed: u8) -> Arc<PrivateKey> {
    Arc::new(PrivateKey::from_seed(&[seed; 32]))
}

pub fn run(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    match choice % 4 {
        0 => joiner(bytes),
        1 => inviter_before_session(bytes),
        2 => inviter(bytes),
        _ => file(bytes),
    }
}

/// A stranger answers a joining node.
fn joiner(bytes: &[u8]) {
    let (mut random, mut out) = (Random::new([1; 32]), Vec::new());
    let cookie = Cookie::from_bytes(&[7; 18]).unwrap();
    let url = Url::new("host", 655, &key(3).public(), cookie).unwrap();
    let mut joiner = Joiner::start(url, NOW, &mut random, &mut out);
    let sent = out.len();
    for mut portion in bytes.chunks(9) {
        match joiner.receive(NOW, &mut portion, &mut random, &mut out) {
            Ok(None) => assert!(portion.is_empty()),
            Ok(Some(event)) => panic!("{event:?}"),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    // At most the first record of the session, if the key was right.
    assert!(out.len() <= sent + 200, "the cookie is sent in a session alone");
}

/// A stranger begins the exchange.
fn inviter_before_session(bytes: &[u8]) {
    let (mut random, mut out) = (Random::new([1; 32]), Vec::new());
    let name = "bob".parse().unwrap();
    let mut inviter = Inviter::start(&name, key(3), key(4).public(), &mut random, &mut out);
    for mut portion in bytes.chunks(9) {
        match inviter.receive(&mut portion, &mut random, &mut out) {
            Ok(None) => assert!(portion.is_empty()),
            Ok(Some(event)) => panic!("{event:?}"),
            Err(_) => return,
        }
    }
}

/// A joining node sends records of its choice: the type and the length of each, and its bytes.
fn inviter(mut bytes: &[u8]) {
    let (mut random, mut greeting, mut out) = (Random::new([1; 32]), Vec::new(), Vec::new());
    let name = "bob".parse().unwrap();
    let mut inviter = Inviter::start(&name, key(3), key(4).public(), &mut random, &mut greeting);
    let mut ends = greeting.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let start = ends.nth(1).unwrap().0 + 1;
    let label = INVITATION_LABEL.to_vec();
    let params = Params { role: Role::Initiator, key: key(4), peer: key(3).public(), label, cipher: CipherChoice::default() };
    let mut session = Stream::start(params, &mut random, &mut out);
    session.receive(&mut &greeting[start..], &mut random, &mut out).unwrap();
    let mut answer = Vec::new();
    assert_eq!(inviter.receive(&mut &out[..], &mut random, &mut answer), Ok(None));
    session.receive(&mut &answer[..], &mut random, &mut out).unwrap().unwrap();
    let mut claimed = false;
    while let [kind, len, rest @ ..] = bytes {
        let (data, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        bytes = rest;
        let mut record = Vec::new();
        session.send(kind & 127, data, &mut record).unwrap();
        match inviter.receive(&mut &record[..], &mut random, &mut Vec::new()) {
            Ok(None) => panic!("each record is an event or an error"),
            Ok(Some(InviterEvent::Claimed(file))) => {
                assert!(!claimed && data.len() == 18 && file.len() == 24);
                claimed = true;
                let (content, age) = ("Name = alice\n".to_owned(), Duration::ZERO);
                let claim = Claim::Found { content, age };
                inviter.offer(claim, Duration::ZERO, &mut Vec::new()).unwrap();
            }
            Ok(Some(InviterEvent::Accepted { host_file, .. })) => {
                assert!(claimed && host_file.lines().count() == 1);
                inviter.finish(&mut Vec::new()).unwrap();
            }
            Err(_) => return,
        }
    }
}

/// An inviter sends a file of its choice.
fn file(bytes: &[u8]) {
    let (mut random, mut to_inviter, mut to_joiner) = (Random::new([1; 32]), vec![], vec![]);
    let cookie = Cookie::from_bytes(&[7; 18]).unwrap();
    let url = Url::new("host", 655, &key(3).public(), cookie).unwrap();
    let mut joiner = Joiner::start(url, NOW, &mut random, &mut to_inviter);
    let end = to_inviter.iter().position(|byte| *byte == b'\n').unwrap();
    let id = adit_tinc::meta::Id::parse(&to_inviter[..end]).unwrap();
    let adit_tinc::meta::Identity::Joining(joining) = id.identity else { panic!() };
    to_inviter.clear();
    to_joiner.extend_from_slice(format!("0 bob 17.7\n4 {}\n", key(3).public()).as_bytes());
    let label = INVITATION_LABEL.to_vec();
    let params = Params { role: Role::Responder, key: key(3), peer: joining, label, cipher: CipherChoice::default() };
    let mut session = Stream::start(params, &mut random, &mut to_joiner);
    assert_eq!(joiner.receive(NOW, &mut &to_joiner[..], &mut random, &mut to_inviter), Ok(None));
    to_joiner.clear();
    session.receive(&mut &to_inviter[..], &mut random, &mut to_joiner).unwrap().unwrap();
    for part in bytes.chunks(100) {
        session.send(0, part, &mut to_joiner).unwrap();
    }
    session.send(1, &[], &mut to_joiner).unwrap();
    match joiner.receive(NOW, &mut &to_joiner[..], &mut random, &mut to_inviter) {
        Ok(Some(JoinerEvent::Offered(accepted))) => {
            if let Ok(files) = accepted.files(&key(5)) {
                for file in files {
                    let name = file.path.strip_prefix("hosts/").unwrap_or(&file.path);
                    assert!(!name.contains('/') && !name.starts_with('.'), "{name}");
                }
            }
            for line in accepted.interface_plan().ignored {
                assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            }
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
