//! Fuzzes the lines between neighbours in tinc: identifications and messages. A message that was read is written as a line of the same
//! meaning, which tinc can read.
#![cfg_attr(fuzzing, no_main)]

use adit_engine::{Instant, Random};
use adit_tinc::meta::{Id, Lines, Message, SeenLines, decode_public_key, decode_record};
use adit_tinc::meta::{KeyRequest, Token};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let mut rest = bytes;
    if let Ok(Some(line)) = Lines::default().read(&mut rest) {
        assert_eq!(line.len() + 1 + rest.len(), bytes.len());
        if let Ok(id) = Id::parse(&line) {
            let mut written = Vec::new();
            id.write(&mut written);
            assert_eq!(Id::parse(written.strip_suffix(b"\n").unwrap()), Ok(id));
        }
    }
    let mut seen = SeenLines::new(std::time::Duration::from_secs(60));
    let now = Instant::from_nanos(1_000_000_000);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        seen.insert(now, line);
        assert!(!seen.insert(now, line));
        let Ok(message) = Message::parse(line) else { continue };
        if let Message::ReqKey(_, _, Some(request)) = &message {
            decode(request);
        }
        let mut written = Vec::new();
        message.write(&mut Random::new([1; 32]), &mut written);
        assert_eq!(Message::parse(&written), Ok(message));
    }
}

fn decode(request: &KeyRequest) {
    let shown = |token: &Token| assert!(token.to_string().is_ascii());
    match request {
        KeyRequest::Session { record: token, .. } | KeyRequest::Datagram(token) => {
            shown(token);
            let _ = decode_record(token);
        }
        KeyRequest::PublicKey(token) => {
            if let Some(key) = decode_public_key(token) {
                assert_eq!(key.to_string().parse(), Ok(key));
            }
        }
        KeyRequest::AskPublicKey | KeyRequest::Unknown(_) => {}
    }
}
