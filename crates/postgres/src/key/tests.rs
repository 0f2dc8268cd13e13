//! Alters each field, and tests each check, separately.

use adit_crypto::sha256;
use adit_engine::{Random, UnixTime};

use super::epoch::{
    Epoch, EpochError, EpochOpenError, EpochRecord, Expected, OpenedEpoch, PreviousEpoch, Wrap,
    accept, check, open,
};
use super::*;
use crate::{Audit, Durability, EpochNo, Generation, LeafNo, NodeId, Seq, StreamId};

/// A change to a valid value.
type Edit<T> = fn(&mut T);

fn random(seed: u8) -> Random {
    Random::new([seed; 32])
}

fn network() -> NetworkKey {
    NetworkKey::generate(&mut random(1))
}

fn keys(seed: u8) -> NodeKeys {
    NodeKeys::generate(&mut random(seed)).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn node() -> NodeRecord {
    NodeRecord::new(
        &keys(2).public(NodeId(7)).unwrap(),
        "berlin",
        Some("10.9.0.7/24".parse().unwrap()),
        Some("fd00::7/64".parse().unwrap()),
        vec!["192.168.4.0/24".parse().unwrap(), "fd01::/48".parse().unwrap()],
    )
}

fn network_record() -> NetworkRecord {
    NetworkRecord {
        version: 1,
        tag: "t1".into(),
        network4: Some("10.9.0.0/24".parse().unwrap()),
        network6: None,
        leaf_space: None,
    }
}

#[test]
fn a_node_whose_record_the_network_wrote_is_believed_and_only_then() {
    let mac = node().mac(&network()).unwrap();
    let public = node().verify(&network(), &mac).unwrap();
    assert_eq!(public, keys(2).public(NodeId(7)).unwrap());
    let other = NetworkKey::generate(&mut random(3));
    assert_eq!(node().verify(&other, &mac), Err(RecordError::Mac));
    assert_eq!(node().verify(&network(), &mac[..31]), Err(RecordError::Mac));
    assert_eq!(node().verify(&network(), &[]), Err(RecordError::Mac));
}

#[test]
fn each_field_of_a_node_altered_alone_is_refused() {
    let mac = node().mac(&network()).unwrap();
    let alterations: [(&str, Edit<NodeRecord>); 13] = [
        ("id", |n| n.id = NodeId(8)),
        ("name", |n| n.name.push('x')),
        ("address4", |n| n.address4 = Some("10.9.0.8/24".parse().unwrap())),
        ("prefix of address4", |n| n.address4 = Some("10.9.0.7/16".parse().unwrap())),
        ("no address4", |n| n.address4 = None),
        ("address6", |n| n.address6 = Some("fd00::8/64".parse().unwrap())),
        ("no address6", |n| n.address6 = None),
        ("one subnet less", |n| n.subnets.truncate(1)),
        ("a wider subnet", |n| n.subnets[0] = "192.168.0.0/16".parse().unwrap()),
        ("order of subnets", |n| n.subnets.swap(0, 1)),
        ("key to sign", |n| n.sign_key[31] ^= 1),
        ("key to seal", |n| n.seal_key[1215] ^= 1),
        ("removed", |n| n.removed = true),
    ];
    for (what, alter) in alterations {
        let mut record = node();
        alter(&mut record);
        assert_ne!(record, node(), "{what}");
        assert_eq!(record.verify(&network(), &mac), Err(RecordError::Mac), "{what}");
    }
}

/// Every holder of the network's key can write a MAC, so the values under it are checked too.
#[test]
fn a_record_out_of_bounds_is_refused_in_spite_of_its_mac() {
    let unfit: [(RecordError, Edit<NodeRecord>); 10] = [
        (RecordError::Id, |n| n.id = NodeId(0)),
        (RecordError::Id, |n| n.id = NodeId(-1)),
        (RecordError::Name, |n| n.name = String::new()),
        (RecordError::Name, |n| n.name = "a".repeat(25)),
        (RecordError::Name, |n| n.name = "a\nb".into()),
        (RecordError::Address, |n| (n.address4, n.address6) = (None, None)),
        (RecordError::Subnets, |n| n.subnets = vec!["10.0.0.0/8".parse().unwrap(); 257]),
        (RecordError::Key, |n| n.sign_key.push(0)),
        (RecordError::Key, |n| n.seal_key.truncate(1215)),
        // Coefficients of ML-KEM are below 3329.
        (RecordError::Key, |n| n.seal_key[..3].fill(0xff)),
    ];
    for (refusal, alter) in unfit {
        let mut record = node();
        alter(&mut record);
        let mac = record.mac(&network()).unwrap();
        assert_eq!(record.verify(&network(), &mac), Err(refusal), "{record:?}");
    }
}

#[test]
fn each_field_of_the_network_altered_alone_is_refused() {
    let mac = network_record().mac(&network()).unwrap();
    network_record().verify(&network(), &mac).unwrap();
    let alterations: [(&str, Edit<NetworkRecord>); 5] = [
        ("version", |n| n.version = 2),
        ("tag", |n| n.tag = "t2".into()),
        ("network4", |n| n.network4 = None),
        ("network6", |n| n.network6 = Some("fd00::/64".parse().unwrap())),
        ("leaf_space", |n| n.leaf_space = Some(String::new())),
    ];
    for (what, alter) in alterations {
        let mut record = network_record();
        alter(&mut record);
        assert_ne!(record, network_record(), "{what}");
        assert_eq!(record.verify(&network(), &mac), Err(RecordError::Mac), "{what}");
    }
}

#[test]
fn a_nodes_mac_is_never_a_networks() {
    let key = network();
    assert_ne!(
        key.node_mac().unwrap().sign(&[b"x"]).as_bytes(),
        key.network_mac().unwrap().sign(&[b"x"]).as_bytes()
    );
}

/// Databases contain the encodings for years, so these numbers never change in this version.
#[test]
fn known_answers_of_every_encoding() {
    assert_eq!(hex(&node().mac(&network()).unwrap()), KNOWN_NODE);
    assert_eq!(hex(&network_record().mac(&network()).unwrap()), KNOWN_NETWORK);
    assert_eq!(keys(2).public(NodeId(7)).unwrap().fingerprint().to_string(), KNOWN_FINGERPRINT);
    let opened = opened();
    let record = hex(&opened.record);
    assert!(record.starts_with(KNOWN_RECORD), "{record}");
    assert_eq!(opened.record.len(), KNOWN_RECORD.len() / 2 + 3 * 36);
    assert_eq!(hex(&opened.hash), KNOWN_HASH);
    assert_eq!(hex(opened.secret.expose()), KNOWN_SECRET);
    let wraps: Vec<u8> =
        opened.wraps.iter().flat_map(|w| [&w.enc[..], &w.sealed]).flatten().copied().collect();
    assert_eq!(hex(&sha256(&[&wraps])), KNOWN_WRAPS);
}

const KNOWN_NODE: &str = "8a62f9e64e70da581a8670095aa09d1deff95a2fa77cb5bf8f2fc20916c8c394";
const KNOWN_NETWORK: &str = "ef30ef2a4db596aaf2df0492b7880c156be88f7ab25883c5a9c41bd4ede9fbb3";
const KNOWN_FINGERPRINT: &str = "e07f7f791a6a0e875d726e8d57adddadfb738a99f73e646264460c59241ad238";
/// "adit-pg2 epoch", "t1", stream 3, from 7 to 8, epoch 5 in leaf 2 from packet 100, headers, at 1700000000; before it 4, 99,
/// at 1600000000, and a chain of 0xcc; strict, suite 1, under the network's first key and settings 9; 3 readers.
const KNOWN_RECORD: &str = concat!(
    "616469742d7067322065706f6368",
    "027431",
    "0000000300000007000000080000000500000002",
    "0000000000000064",
    "01",
    "000000006553f100",
    "02000000040000000000000063000000005f5e1000",
    "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",
    "0001",
    "00000001",
    "0000000000000009",
    "03"
);
const KNOWN_HASH: &str = "528eca82db84beac0643eb46ff96f7db330bbc78e6c888a778187b229058bae1";
const KNOWN_SECRET: &str = "a65007ae15ae021092cb4503061f215b3a2ff602e2000b781c543b6c14eed1a3";
const KNOWN_WRAPS: &str = "5ce50bddcd563aa3206bb20d233e32cae08a3f73f732e8ef3348aa1a57a25f6f";

fn epoch() -> Epoch {
    Epoch {
        network: "t1".into(),
        stream: StreamId(3),
        sender: NodeId(7),
        receiver: NodeId(8),
        no: EpochNo(5),
        leaf: LeafNo(2),
        first_seq: Seq(100),
        audit: Audit::Headers,
        opened: UnixTime(1_700_000_000),
        durability: Durability::Strict,
        settings: 9,
        previous: Some(PreviousEpoch {
            no: EpochNo(4),
            last_seq: Seq(99),
            chain: Some([0xcc; 32]),
            opened: Some(UnixTime(1_600_000_000)),
        }),
        generation: Generation::FIRST,
    }
}

fn auditor() -> AuditorKey {
    AuditorKey::generate(&network(), &mut random(9))
}

fn opened() -> OpenedEpoch {
    let (sender, receiver) =
        (keys(2).public(NodeId(7)).unwrap(), keys(4).public(NodeId(8)).unwrap());
    let auditor = auditor().public().unwrap();
    let readers =
        [(NodeId(8), &receiver.seal), (NodeId(7), &sender.seal), (NodeId::AUDITOR, &auditor)];
    open(epoch(), &keys(2), &network(), &readers, &mut random(5)).unwrap()
}

/// The arguments with which reader 8 accepts an epoch of stream 3. Each test replaces one of them.
struct AcceptArguments {
    tag: &'static str,
    stream: StreamId,
    sender: NodePublic,
    receiver: NodeId,
    keys: NodeKeys,
    me: NodeId,
    ring: KeyRing,
    record: Vec<u8>,
    signature: Vec<u8>,
    wrap: Wrap,
}

impl AcceptArguments {
    fn new() -> Self {
        let opened = opened();
        Self {
            tag: "t1",
            stream: StreamId(3),
            sender: keys(2).public(NodeId(7)).unwrap(),
            receiver: NodeId(8),
            keys: keys(4),
            me: NodeId(8),
            ring: network().into(),
            record: opened.record,
            signature: opened.signature.to_vec(),
            wrap: opened.wraps[2].clone(),
        }
    }

    /// Signs the changed record.
    fn sign(&mut self) {
        self.signature = keys(2)
            .signing()
            .sign(&[b"adit-pg2 signed epoch", &self.record[..]].concat())
            .unwrap()
            .to_vec();
    }

    fn refusal(&self) -> Option<EpochError> {
        let expected = Expected {
            network: self.tag,
            stream: self.stream,
            sender: &self.sender,
            receiver: self.receiver,
        };
        let reader = self.keys.reader(self.me);
        match accept(reader, &self.ring, &expected, &self.record, &self.signature, &self.wrap) {
            Ok((record, secret)) => {
                assert_eq!((record.epoch, secret.expose()), (epoch(), opened().secret.expose()));
                None
            }
            Err(refusal) => Some(refusal),
        }
    }
}

#[test]
fn every_reader_opens_its_own_wrap() {
    let opened = opened();
    let sender = keys(2).public(NodeId(7)).unwrap();
    let expected =
        Expected { network: "t1", stream: StreamId(3), sender: &sender, receiver: NodeId(8) };
    let (own, receiver, auditor) = (keys(2), keys(4), auditor());
    let readers = [auditor.reader(), own.reader(NodeId(7)), receiver.reader(NodeId(8))];
    for (reader, wrap) in readers.into_iter().zip(&opened.wraps) {
        assert_eq!(reader.id(), wrap.reader);
        let (record, secret) =
            accept(reader, &network().into(), &expected, &opened.record, &opened.signature, wrap)
                .unwrap();
        assert_eq!(record.epoch, epoch());
        assert_eq!(secret.expose(), opened.secret.expose());
    }
    assert_eq!(EpochRecord::hash(&opened.record, &opened.signature), opened.hash);
}

#[test]
fn two_epochs_share_nothing() {
    let sender = keys(2).public(NodeId(7)).unwrap();
    let mut source = random(5);
    let mut opened =
        || open(epoch(), &keys(2), &network(), &[(NodeId(7), &sender.seal)], &mut source).unwrap();
    let (first, second) = (opened(), opened());
    assert_ne!(first.secret.expose(), second.secret.expose());
    assert_ne!(first.wraps[0].enc, second.wraps[0].enc);
    assert_ne!(first.hash, second.hash);
}

/// Tests each check of `accept`, with everything else correct.
#[test]
fn each_check_refuses_alone() {
    assert_eq!(AcceptArguments::new().refusal(), None);
    let cases: [(EpochError, Edit<AcceptArguments>); 18] = [
        (EpochError::Signature, |t| t.signature[0] ^= 1),
        (EpochError::Signature, |t| t.signature.truncate(63)),
        (EpochError::Signature, |t| t.sender = keys(6).public(NodeId(7)).unwrap()),
        // The record is signed unchanged, but without the label that states its purpose.
        (EpochError::Signature, |t| {
            t.signature = keys(2).signing().sign(&t.record).unwrap().to_vec();
        }),
        (EpochError::Malformed, |t| (t.record.push(0), t.sign()).1),
        (EpochError::Network, |t| t.tag = "t2"),
        (EpochError::Stream, |t| t.stream = StreamId(4)),
        (EpochError::Sender, |t| t.sender.id = NodeId(9)),
        (EpochError::Receiver, |t| t.receiver = NodeId(9)),
        (EpochError::NotAReader, |t| t.me = NodeId(9)),
        // The wrap is genuine, but another reader's.
        (EpochError::Wrap, |t| t.wrap = opened().wraps[1].clone()),
        (EpochError::Wrap, |t| t.wrap.enc[7] ^= 1),
        (EpochError::Wrap, |t| t.wrap.sealed[7] ^= 1),
        (EpochError::Wrap, |t| t.wrap.enc.extend(t.wrap.sealed.drain(..1))),
        (EpochError::Key, |t| t.keys = keys(6)),
        (EpochError::Key, |t| t.ring = NetworkKey::generate(&mut random(3)).into()),
        (EpochError::Generation, |t| {
            let second = network().successor(&mut random(3)).unwrap();
            t.ring = second.into();
        }),
        // The signer includes a reader whose wrap was made for another epoch.
        (EpochError::Key, |t| {
            let mut record = EpochRecord::parse(&t.record).unwrap();
            record.epoch.opened.0 += 1;
            t.record = record.encode().unwrap();
            t.sign();
        }),
    ];
    for (number, (refusal, alter)) in cases.into_iter().enumerate() {
        let mut attempt = AcceptArguments::new();
        alter(&mut attempt);
        assert_eq!(attempt.refusal(), Some(refusal), "case {number}");
    }
}

#[test]
fn a_bit_of_the_record_changed_anywhere_is_refused() {
    let whole = AcceptArguments::new();
    let expected = Expected {
        network: whole.tag,
        stream: whole.stream,
        sender: &whole.sender,
        receiver: whole.receiver,
    };
    assert!(check(&expected, &whole.record, &whole.signature).is_ok());
    for at in 0..whole.record.len() {
        let mut record = whole.record.clone();
        record[at] ^= 1;
        assert_eq!(
            check(&expected, &record, &whole.signature),
            Err(EpochError::Signature),
            "byte {at}"
        );
    }
}

/// The wrap is bound to the epoch's position. If any field of the record is changed, the wrap no longer opens, even if
/// the sender signs the record again.
#[test]
fn a_wrap_opens_for_its_own_epoch_only() {
    let alterations: [(&str, Edit<Epoch>); 9] = [
        ("no", |e| e.no = EpochNo(6)),
        ("leaf", |e| e.leaf = LeafNo(3)),
        ("first_seq", |e| e.first_seq = Seq(101)),
        ("audit", |e| e.audit = Audit::Full),
        ("durability", |e| e.durability = Durability::Volatile),
        ("settings", |e| e.settings = 10),
        ("previous opened", |e| e.previous.as_mut().unwrap().opened = None),
        ("previous", |e| e.previous = None),
        ("chain of the previous", |e| e.previous.as_mut().unwrap().chain = Some([0xcd; 32])),
    ];
    for (what, alter) in alterations {
        let mut attempt = AcceptArguments::new();
        let mut record = EpochRecord::parse(&attempt.record).unwrap();
        alter(&mut record.epoch);
        attempt.record = record.encode().unwrap();
        attempt.sign();
        assert_eq!(attempt.refusal(), Some(EpochError::Key), "{what}");
    }
}

#[test]
fn a_record_that_could_be_written_in_two_ways_is_none() {
    let record = opened().record;
    let parsed = EpochRecord::parse(&record).unwrap();
    assert_eq!(parsed.encode().unwrap(), record);
    for len in 0..record.len() {
        assert_eq!(EpochRecord::parse(&record[..len]), Err(EpochError::Malformed), "{len} bytes");
    }
    let malformed: [(&str, Edit<EpochRecord>); 16] = [
        ("no readers", |r| r.readers.clear()),
        ("five readers", |r| r.readers.extend([(NodeId(9), [0; 32]), (NodeId(10), [0; 32])])),
        ("readers not ascending", |r| r.readers.swap(0, 1)),
        ("a reader twice", |r| r.readers[1] = r.readers[0]),
        ("a negative reader", |r| r.readers[0].0 = NodeId(-1)),
        ("stream 0", |r| r.epoch.stream = StreamId(0)),
        ("sender 0", |r| r.epoch.sender = NodeId(0)),
        ("receiver 0", |r| r.epoch.receiver = NodeId(0)),
        ("epoch 0", |r| r.epoch.no = EpochNo(0)),
        ("leaf 0", |r| r.epoch.leaf = LeafNo(0)),
        ("packet 0", |r| r.epoch.first_seq = Seq(0)),
        ("generation 0", |r| r.epoch.generation = Generation(0)),
        ("settings 0", |r| r.epoch.settings = 0),
        ("after itself", |r| r.epoch.previous.as_mut().unwrap().no = EpochNo(5)),
        ("the same packets again", |r| r.epoch.previous.as_mut().unwrap().last_seq = Seq(100)),
        ("a tag with a quote", |r| r.epoch.network = "t'".into()),
    ];
    for (what, alter) in malformed {
        let mut bad = parsed.clone();
        alter(&mut bad);
        assert!(bad.encode().is_err(), "{what}");
    }
}

/// Tests the same limits for reading, with bytes that our `encode` never writes.
#[test]
fn a_record_out_of_range_is_refused_by_the_reader_too() {
    let record = opened().record;
    // Offsets in the known record. The kind (14) and the tag (3) are followed by six numbers, then audit, time and
    // previous.
    let fields = [("stream", 17), ("sender", 21), ("receiver", 25), ("no", 29), ("leaf", 33)];
    for (what, at) in fields {
        let mut bad = record.clone();
        bad[at..at + 4].fill(0);
        assert_eq!(EpochRecord::parse(&bad), Err(EpochError::Malformed), "{what} 0");
        bad[at] = 0x80;
        assert_eq!(EpochRecord::parse(&bad), Err(EpochError::Malformed), "{what} negative");
    }
    for (what, at, byte) in [
        ("length of the tag", 14, 17),
        ("tag", 15, b'T'),
        ("first_seq", 37, 0x80),
        ("audit", 45, 4),
        ("kind of previous", 54, 3),
        ("previous no", 58, 5),
        ("previous last_seq", 66, 100),
        ("durability", 107, 3),
        ("suite", 108, 2),
        ("generation", 109, 0x80),
        ("generation", 112, 0),
        ("settings", 113, 0x80),
        ("settings", 120, 0),
        ("readers", 121, 5),
        ("readers", 121, 0),
        ("readers", 121, 4),
        ("first reader", 125, 7),
    ] {
        let mut bad = record.clone();
        assert_ne!(bad[at], byte, "{what}");
        bad[at] = byte;
        assert_eq!(EpochRecord::parse(&bad), Err(EpochError::Malformed), "{what} at {at}");
    }
}

#[test]
fn an_epoch_needs_readers_each_once() {
    let me = keys(2).public(NodeId(7)).unwrap();
    for readers in [vec![], vec![(NodeId(7), &me.seal); 2]] {
        let refusal = open(epoch(), &keys(2), &network(), &readers, &mut random(5)).unwrap_err();
        assert_eq!(refusal, EpochOpenError::Readers);
    }
    let bad = Epoch { first_seq: Seq(0), ..epoch() };
    let refusal = open(bad, &keys(2), &network(), &[(NodeId(7), &me.seal)], &mut random(5));
    assert_eq!(refusal.unwrap_err(), EpochOpenError::Field);
}

#[test]
fn an_auditors_file_reads_back_and_a_damaged_one_does_not() {
    let auditor = auditor();
    let text = auditor.to_text();
    assert_eq!(AuditorKey::from_text(&text), Ok(auditor));
    let body = text.lines().nth(1).unwrap();
    for bad in [
        String::new(),
        body.to_owned(),
        text.replace("key 1", "key 2"),
        format!("{}more\n", *text),
        text.replace(&body[..4], ""),
        text.replace(&body[8..9], if &body[8..9] == "A" { "B" } else { "A" }),
    ] {
        assert!(AuditorKey::from_text(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn secrets_read_back_and_stand_in_no_debug() {
    let keys = keys(2);
    let bytes = keys.to_bytes();
    assert_eq!(NodeKeys::from_bytes(&bytes).unwrap().to_bytes(), bytes);
    assert_ne!(bytes[..32], bytes[32..]);
    let shown = format!("{keys:?} {:?} {:?} {:?}", network(), auditor(), keys.reader(NodeId(7)));
    for secret in [&bytes[..], &network().as_bytes()[..]] {
        // The secret must not appear in hexadecimal or as a list of numbers.
        assert!(
            !shown.contains(&hex(&secret[..4]))
                && !shown.contains(&format!("{}, {}", secret[0], secret[1]))
        );
    }
    assert!(shown.contains("NetworkKey(..)") && shown.contains("SigningKey(..)"), "{shown}");
}

#[test]
fn a_fingerprint_is_of_both_keys_and_reads_back() {
    let public = keys(2).public(NodeId(7)).unwrap();
    let print = public.fingerprint();
    assert_eq!(print.to_string().parse(), Ok(print));
    for bad in ["", "0", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
        assert!(bad.parse::<Fingerprint>().is_err(), "{bad:?}");
    }
    let mut sign = public.clone();
    sign.sign[0] ^= 1;
    let mut seal = public.clone();
    seal.seal = keys(4).public(NodeId(7)).unwrap().seal;
    assert_ne!(sign.fingerprint(), print);
    assert_ne!(seal.fingerprint(), print);
}

#[test]
fn a_checkpoint_is_its_senders_for_one_epoch_row_and_value() {
    let checkpoint = Checkpoint { seq: Seq(7), chain: [3; 32] };
    let (sender, other) = (keys(2).public(NodeId(7)).unwrap(), keys(4).public(NodeId(7)).unwrap());
    let signature = checkpoint.sign(&keys(2), &[5; 32]).unwrap();
    assert!(checkpoint.is_signed(&sender, &[5; 32], &signature));
    assert!(!checkpoint.is_signed(&other, &[5; 32], &signature), "another sender");
    assert!(!checkpoint.is_signed(&sender, &[6; 32], &signature), "another epoch");
    for wrong in
        [Checkpoint { seq: Seq(8), ..checkpoint }, Checkpoint { chain: [4; 32], ..checkpoint }]
    {
        assert!(!wrong.is_signed(&sender, &[5; 32], &signature), "{wrong:?}");
    }
    assert!(!checkpoint.is_signed(&sender, &[5; 32], &signature[..63]));
}

/// After a rekey, a reader opens rows that were written before it, and rows under the new key.
#[test]
fn an_old_epoch_opens_with_the_ring_and_a_new_one_only_with_the_new_key() {
    let renewed = renewed();
    let second = renewed.newest().clone();
    let (sender, receiver) =
        (keys(2).public(NodeId(7)).unwrap(), keys(4).public(NodeId(8)).unwrap());
    let readers = [(NodeId(8), &receiver.seal)];
    let epoch = Epoch { generation: Generation(2), ..epoch() };
    let new = open(epoch, &keys(2), &second, &readers, &mut random(5)).unwrap();
    let expected =
        Expected { network: "t1", stream: StreamId(3), sender: &sender, receiver: NodeId(8) };
    let me = keys(4);
    let accept = |ring: &KeyRing, epoch: &OpenedEpoch| {
        let wrap = epoch.wraps.iter().find(|wrap| wrap.reader == NodeId(8)).unwrap();
        let reader = me.reader(NodeId(8));
        accept(reader, ring, &expected, &epoch.record, &epoch.signature, wrap).map(drop)
    };
    assert_eq!(accept(&renewed, &opened()), Ok(()));
    assert_eq!(accept(&renewed, &new), Ok(()));
    assert_eq!(accept(&network().into(), &new), Err(EpochError::Generation));
    // The record contains one key's generation, and wraps under another key.
    let forged = NetworkKey::new(Generation(2), network().as_bytes());
    assert_eq!(accept(&forged.into(), &new), Err(EpochError::Key));
    // An epoch cannot be created under a different key than its record states.
    let wrong = open(self::epoch(), &keys(2), &second, &readers, &mut random(5));
    assert!(matches!(wrong, Err(EpochOpenError::Field)));
}

/// Returns a ring with the network's second key and the first.
fn renewed() -> KeyRing {
    let mut ring = KeyRing::from(network());
    let key = network().successor(&mut random(3)).unwrap();
    let members = Members::new(NodeId(8), [NodeId(7), NodeId(8)]);
    let renewal = rekey::Renewal { key, members, made: UnixTime(1_700_000_000) };
    ring.take(adit_engine::Instant::default(), UnixTime(1_700_000_000), renewal);
    ring
}
