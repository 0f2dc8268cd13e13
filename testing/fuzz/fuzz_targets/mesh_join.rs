//! Fuzzes the exchange that joins a node to a mesh. A decoded record encodes to the same bytes again. Whatever arrives, an inviter admits
//! no node without the secret, and a node joins only its token's mesh.
#![cfg_attr(fuzzing, no_main)]

use adit_crypto::sha256;
use adit_crypto::sign::SigningKey;
use adit_engine::UnixTime;
use adit_mesh::join::{Admission, JoinCounters, Joiner, Record, Responder};
use adit_mesh::roster::{Changes, Genesis, Label, Layer, Roster};
use adit_mesh::token::{Invitation, Invitations, JoinSecret, Terms, Token};

const NOW: UnixTime = UnixTime(1_800_000_000);
const SECRET: [u8; 16] = *b"the right secret";

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let record = Record::decode(bytes);
    if let Ok(record) = &record {
        assert_eq!(*record.encode(), bytes);
    }
    let key = SigningKey::from_seed(&[1; 32]).unwrap();
    let genesis = Genesis {
        name: Label::new("home").unwrap(),
        admins: vec![sha256(&[&key.public()])],
        threshold: 1,
        ranges: Vec::new(),
        random: [0; 32],
        layer: Layer::Ip,
    };
    let mut changes = Changes::new(genesis.clone()).unwrap();
    let mesh = *changes.mesh();
    let mut invitations = Invitations::new(mesh);
    let secret = JoinSecret::from_bytes(SECRET);
    let secret_hash = secret.hash(&mesh);
    let invitation = Invitation { secret_hash, uses: 1, until: NOW, terms: Terms::default() };
    invitations.add(invitation, NOW).unwrap();
    let (mut counters, mut responder) = (JoinCounters::default(), Responder::new([9; 32]));
    let mut roster = Roster::evaluate(&changes);
    let mut admission = Admission {
        key: &key,
        changes: &mut changes,
        roster: &mut roster,
        invitations: &mut invitations,
        counters: &mut counters,
        inviter: None,
        now: NOW,
    };
    let admitted = responder.receive(bytes, &mut admission, |_| true).is_ok();
    let shown = matches!(&record, Ok(Record::Request { secret, .. }) if *secret.as_bytes() == SECRET);
    assert_eq!(admitted, shown);
    assert_eq!(changes.len(), usize::from(admitted));

    let address = "203.0.113.7:1194".parse().unwrap();
    let token = Token::new(mesh, [8; 32], secret, vec![address]).unwrap();
    let own = [9; 32];
    let roster = Record::Roster { changes: 1, genesis: genesis.encode().unwrap() }.encode();
    for first in [None, Some(roster)] {
        let name = genesis.name.clone();
        let (mut joiner, _) = Joiner::begin(&token, &[8; 32], own, name).unwrap();
        if let Some(first) = first {
            assert!(joiner.receive(&first, NOW).unwrap().is_none());
        }
        if let Ok(Some(joined)) = joiner.receive(bytes, NOW) {
            assert!(*joined.changes.mesh() == mesh && joined.roster.member(&own).is_some());
        }
    }
}
