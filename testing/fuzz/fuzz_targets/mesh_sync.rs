//! Fuzzes the exchange of changes between two members of a mesh. A decoded record encodes to the same bytes again, and whatever a neighbour
//! sends, every answer is a record of bounded length.
#![cfg_attr(fuzzing, no_main)]

use adit_crypto::sha256;
use adit_crypto::sign::SigningKey;
use adit_engine::{Instant, UnixTime};
use adit_mesh::roster::{Action, Change, Changes, Genesis, Label, Layer, NodeInfo};
use adit_mesh::session::SessionNumber;
use adit_mesh::sync::{MAX_RECORD, Record, RosterSync};

const SESSION: SessionNumber = SessionNumber(1);

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let record = Record::decode(bytes);
    if let Ok(record) = &record {
        assert_eq!(record.encode(), bytes);
    }
    let key = SigningKey::from_seed(&[1; 32]).unwrap();
    let signer = sha256(&[&key.public()]);
    let genesis = Genesis {
        name: Label::new("home").unwrap(),
        admins: vec![signer],
        threshold: 1,
        ranges: Vec::new(),
        random: [0; 32],
        layer: Layer::Ip,
    };
    let mut changes = Changes::new(genesis).unwrap();
    let mesh = *changes.mesh();
    for number in 0..3 {
        let node = NodeInfo::named(Label::new(&format!("n{number}")).unwrap());
        let action = Action::Admit { key: [number; 32], node };
        let body = changes.draft(signer, UnixTime(1), action).unwrap();
        changes.insert(Change::sign(&mesh, &key, body).unwrap()).unwrap();
    }
    let mut sync = RosterSync::default();
    sync.connected(SESSION);
    let now = Instant::from_nanos(1_000_000_000);
    // Pass the bytes as one record, and as several with their lengths.
    let mut records = vec![bytes];
    let mut rest = bytes;
    while let Some((len, after)) = rest.split_first_chunk() {
        let Some((record, more)) = after.split_at_checked(u16::from_be_bytes(*len).into()) else {
            break;
        };
        records.push(record);
        rest = more;
    }
    for record in records {
        if let Ok(added) = sync.record(now, SESSION, record, &mut changes) {
            assert!(added.iter().all(|hash| changes.get(hash).is_some()));
        }
        while let Some(answer) = sync.next_record(SESSION, &changes, MAX_RECORD) {
            assert!(answer.len() <= MAX_RECORD && Record::decode(&answer).is_ok());
        }
    }
}
