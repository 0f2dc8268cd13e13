//! The sender without a receiver: the turns of its streams, its batches, and its packet numbers.

use std::time::Duration;

use adit_engine::{Instant, UnixTime};
use adit_postgres::key::Checkpoint;
use adit_postgres::limits::{BATCH_BYTES, QUEUE_BYTES};
use adit_postgres::row::{copy, decode};
use adit_postgres::seal::{EpochSecret, Opener, Sealer};
use adit_postgres::sender::{
    Action, Batch, BatchPart, Config, NewEpoch, OpenLeaf, PreviousEpoch, ResumeOutcome, ResumeRow,
    SavedState, Sender,
};
use adit_postgres::{Audit, EpochNo, LeafNo, NodeId, Seq, StreamId};
use adit_wire::{Gso, VnetHeader};
use proptest::prelude::*;

use crate::world::packet;

const A: StreamId = StreamId(3);
const B: StreamId = StreamId(5);
const UNIX: UnixTime = UnixTime(1_795_000_000);
const CONFIG: Config =
    Config { packet_size: 7900, leaf_bytes: 1 << 40, leaf_age: Duration::from_secs(3600) };

fn ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn sender(config: Config) -> Sender {
    let mut sender = Sender::new(config);
    sender.add(A, NodeId(30), Default::default());
    sender.add(B, NodeId(50), Default::default());
    sender
}

fn secret(stream: StreamId, epoch: EpochNo) -> (EpochSecret, [u8; 32]) {
    (EpochSecret::new([stream.0 as u8; 32]), [epoch.0 as u8; 32])
}

fn sealer(opening: &NewEpoch) -> Sealer {
    let (secret, hash) = secret(opening.stream, opening.epoch);
    Sealer::new(&secret, Audit::Headers, opening.stream, opening.epoch, hash).unwrap()
}

/// Answers all requests to resume, open and sign as an empty database would. Returns the opened epochs and the first
/// other action.
fn open_all(sender: &mut Sender, now: Instant) -> (Vec<NewEpoch>, Action) {
    let mut opened = Vec::new();
    loop {
        match sender.next_action(now, UNIX) {
            Action::Resume { stream, .. } => {
                sender.resumed(stream, ResumeRow::default());
            }
            Action::Sign(unsigned) => sender.signed(now, &unsigned),
            Action::Open(opening) => {
                sender.opened(now, opening.stream, sealer(&opening));
                opened.push(opening);
            }
            action => return (opened, action),
        }
    }
}

/// Creates a sender with both streams open and empty.
fn open() -> Sender {
    let mut sender = sender(CONFIG);
    for stream in [A, B] {
        sender.push(ms(0), Some(stream), VnetHeader::default(), &packet(1, 0));
        open_all(&mut sender, ms(0));
        let batch = sender.batch(ms(0)).unwrap();
        sender.committed(ms(1), batch);
    }
    sender
}

fn plain(sender: &mut Sender, stream: StreamId, len: usize) {
    sender.push(ms(10), Some(stream), VnetHeader::default(), &ip(len));
}

fn ip(len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet
}

/// Builds a TCP super-packet over IPv4 that is split into segments with `size` bytes of payload each.
fn tcp(len: usize, size: u16) -> (VnetHeader, Vec<u8>) {
    let mut packet = ip(len);
    packet[9] = 6;
    packet[12..20].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
    packet[32] = 5 << 4;
    for (index, byte) in packet[40..].iter_mut().enumerate() {
        *byte = (index % 251) as u8;
    }
    let vnet = VnetHeader {
        needs_csum: true,
        gso: Gso::TcpV4,
        hdr_len: 40,
        gso_size: size,
        csum_start: 20,
        csum_offset: 16,
        ecn: false,
    };
    (vnet, packet)
}

/// Opens the rows of a part and returns their packets.
fn unsealed(part: &BatchPart) -> Vec<(Seq, Vec<u8>)> {
    let mut rest = part.bytes.as_slice();
    let mut packets = Vec::new();
    while let Some((fields, behind)) = copy::split_row(rest) {
        let row = decode::row(fields).unwrap();
        let (secret, hash) = secret(part.stream, row.epoch);
        let opener = Opener::new(&secret, Audit::Headers, part.stream, row.epoch, hash).unwrap();
        let mut packet = Vec::new();
        opener.open(&row, &mut packet).unwrap();
        assert_eq!(row.chain.is_some(), behind.is_empty(), "the last row has the chain's value");
        packets.push((row.seq, packet));
        rest = behind;
    }
    assert_eq!(packets.len(), part.rows);
    packets
}

fn rows_of(batch: &Batch, stream: StreamId) -> usize {
    batch.parts.iter().filter(|part| part.stream == stream).map(|part| part.rows).sum()
}

#[test]
fn a_super_packet_becomes_the_rows_of_its_segments() {
    let mut sender = open();
    let (vnet, packet) = tcp(40 + 3000, 1400);
    sender.push(ms(2), Some(A), vnet, &packet);
    let batch = sender.batch(ms(2)).unwrap();
    let rows = unsealed(&batch.parts[0]);
    assert_eq!(rows.iter().map(|(seq, _)| seq.0).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(rows.iter().map(|(_, packet)| packet.len()).collect::<Vec<_>>(), [1440, 1440, 240]);
    let payload: Vec<u8> = rows.iter().flat_map(|(_, packet)| packet[40..].to_vec()).collect();
    assert_eq!(payload, packet[40..]);
    assert_eq!((batch.parts[0].receiver, batch.parts[0].leaf), (NodeId(30), LeafNo(1)));
    assert_eq!(batch.rows(), 3);
}

#[test]
fn streams_share_a_batch_evenly_however_much_one_of_them_has() {
    let mut sender = open();
    (0..900).for_each(|_| plain(&mut sender, A, 7900));
    (0..3).for_each(|_| plain(&mut sender, B, 100));
    let batch = sender.batch(ms(11)).unwrap();
    assert_eq!(rows_of(&batch, B), 3, "a few packets do not wait behind many");
    assert!(rows_of(&batch, A) > 100);
    sender.committed(ms(12), batch);
    (0..300).for_each(|_| plain(&mut sender, B, 7900));
    let batch = sender.batch(ms(13)).unwrap();
    let (a, b) = (rows_of(&batch, A), rows_of(&batch, B));
    assert!(a.abs_diff(b) <= 9 && a + b > 120, "{a} {b}");
}

#[test]
fn turns_go_round_when_a_batch_holds_only_some() {
    let mut sender = open();
    // A few super-packets, each of which becomes many rows, fill a batch.
    let (vnet, packet) = tcp(65_000, 500);
    let mut served = Vec::new();
    for _ in 0..60 {
        for stream in [A, B] {
            sender.push(ms(10), Some(stream), vnet, &packet);
        }
    }
    for now in 10..14 {
        let batch = sender.batch(ms(now)).unwrap();
        served.push(batch.parts.iter().map(|part| part.stream).collect::<Vec<_>>());
        assert!(batch.parts.iter().map(|part| part.bytes.len()).sum::<usize>() <= BATCH_BYTES);
        sender.committed(ms(now), batch);
    }
    assert!(served.iter().all(|streams| streams.len() == 2), "{served:?}");
}

#[test]
fn a_stream_that_cannot_be_opened_holds_up_no_other() {
    let mut sender = sender(CONFIG);
    plain(&mut sender, A, 100);
    open_all(&mut sender, ms(10));
    // The request to resume B is made once and never answered.
    plain(&mut sender, B, 100);
    let mut resumes = 0;
    for now in 10..500 {
        plain(&mut sender, A, 100);
        loop {
            match sender.next_action(ms(now), UNIX) {
                Action::Resume { stream, .. } => {
                    assert_eq!(stream, B);
                    resumes += 1;
                }
                Action::Batch => {
                    let batch = sender.batch(ms(now)).unwrap();
                    assert_eq!(batch.parts.len(), 1);
                    sender.committed(ms(now), batch);
                }
                Action::Sign(unsigned) => sender.signed(ms(now), &unsigned),
                Action::Wait(_) => break,
                Action::Open(opening) => panic!("{opening:?}"),
            }
        }
    }
    assert_eq!(resumes, 1);
    assert_eq!(sender.stats().packets, 491);
}

#[test]
fn a_batch_comes_between_two_streams_that_want_to_be_opened() {
    let mut sender = sender(CONFIG);
    (10..20).for_each(|id| sender.add(StreamId(id), NodeId(id), Default::default()));
    plain(&mut sender, A, 100);
    open_all(&mut sender, ms(10));
    (10..20).for_each(|id| plain(&mut sender, StreamId(id), 100));
    let mut wants = Vec::new();
    for _ in 0..20 {
        plain(&mut sender, A, 100);
        wants.push(match sender.next_action(ms(10), UNIX) {
            Action::Batch => {
                let batch = sender.batch(ms(10)).unwrap();
                sender.committed(ms(10), batch);
                'b'
            }
            Action::Resume { .. } => 'r',
            action => panic!("{action:?}"),
        });
    }
    assert!(!wants.windows(2).any(|two| two == ['r', 'r']), "{wants:?}");
    assert_eq!(wants.iter().filter(|action| **action == 'r').count(), 10);
}

#[test]
fn a_refusal_is_followed_by_growing_pauses_and_another_leaf() {
    let mut sender = open();
    sender.lost();
    let mut asked = Vec::new();
    let mut leaves = Vec::new();
    for now in 100..10_000 {
        if now % 1000 == 100 {
            sender.push(ms(now), Some(A), VnetHeader::default(), &ip(100));
        }
        match sender.next_action(ms(now), UNIX) {
            Action::Resume { stream, .. } => {
                asked.push(now);
                sender.resumed(stream, ResumeRow { last_leaf: 1, ..ResumeRow::default() });
                let Action::Open(opening) = sender.next_action(ms(now), UNIX) else { panic!() };
                leaves.push(opening.leaf.0);
                sender.failed(ms(now), stream);
            }
            Action::Sign(unsigned) => sender.signed(ms(now), &unsigned),
            Action::Wait(until) => assert!(until.is_some_and(|until| until > ms(now))),
            action => panic!("{action:?}"),
        }
    }
    let pauses: Vec<u64> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(pauses[..7], [50, 100, 200, 400, 800, 1600, 3000]);
    assert_eq!(leaves[..2], [1, 2], "not again in the leaf that was refused");
}

#[test]
fn an_opening_that_was_never_answered_is_repeated_in_another_leaf() {
    let mut sender = open();
    for leaf in [1, 2] {
        sender.lost();
        plain(&mut sender, A, 100);
        assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { stream: A, .. }));
        sender.resumed(A, ResumeRow { last_leaf: 1, ..ResumeRow::default() });
        let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!() };
        assert_eq!(opening.leaf, LeafNo(leaf));
    }
}

#[test]
fn numbers_are_never_given_twice_whatever_the_database_says() {
    let mut sender = open();
    plain(&mut sender, A, 100);
    let batch = sender.batch(ms(10)).unwrap();
    assert_eq!(unsealed(&batch.parts[0])[0].0, Seq(2));
    // The batch is now in doubt.
    sender.lost();
    let before = sender.given(A).unwrap();
    assert_eq!(before.1, Seq(2));
    for found in [
        ResumeRow::default(),
        ResumeRow { last_seq: -5, last_epoch: i32::MIN, last_leaf: -1, ..ResumeRow::default() },
        ResumeRow { last_seq: 1, last_epoch: 1, last_leaf: 1, ..ResumeRow::default() },
    ] {
        plain(&mut sender, A, 100);
        assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { stream: A, .. }));
        sender.resumed(A, found);
        let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!() };
        assert!(opening.first_seq > before.1, "{opening:?}");
        assert!(opening.epoch > before.0 && opening.leaf.0 >= 1, "{opening:?}");
        sender.lost();
    }
    // Numbers that leave too few unused must be forged, so the stream continues after its own numbers. Numbers that
    // were used stay used, even if the database is honest again.
    for found in [
        ResumeRow { last_seq: i64::MAX, ..ResumeRow::default() },
        ResumeRow { last_seq: i64::MAX - 1, ..ResumeRow::default() },
        ResumeRow { last_seq: (1 << 62) + 1, ..ResumeRow::default() },
        ResumeRow { last_epoch: i32::MAX, ..ResumeRow::default() },
        ResumeRow { last_epoch: i32::MAX - 1, ..ResumeRow::default() },
    ] {
        plain(&mut sender, A, 100);
        let before = sender.given(A).unwrap();
        assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { stream: A, .. }));
        assert_eq!(sender.resumed(A, found), ResumeOutcome::OwnNumbers);
        let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!("{found:?}") };
        assert_eq!(opening.first_seq, Seq(before.1.0 + 1), "{found:?}");
        assert_eq!(opening.epoch, EpochNo(before.0.0 + 1), "{found:?}");
        sender.lost();
    }
    // The next leaf must follow the one in the database, so an implausible leaf number cannot be replaced.
    for found in [
        ResumeRow { last_leaf: i32::MAX, ..ResumeRow::default() },
        ResumeRow { last_leaf: i32::MAX - 1, ..ResumeRow::default() },
    ] {
        refuses(&mut sender, found);
    }
}

#[test]
fn a_stream_without_numbers_of_its_own_waits_while_the_database_has_forged_ones() {
    for found in [
        ResumeRow { last_seq: (1 << 62) + 1, ..ResumeRow::default() },
        ResumeRow { last_epoch: i32::MAX - 1, ..ResumeRow::default() },
    ] {
        refuses(&mut sender(CONFIG), found);
    }
}

fn refuses(sender: &mut Sender, found: ResumeRow) {
    plain(sender, A, 100);
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { stream: A, .. }));
    assert_eq!(sender.resumed(A, found), ResumeOutcome::Refused);
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Wait(_)));
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Wait(Some(_))));
    sender.lost();
}

#[test]
fn the_highest_numbers_that_are_believed_leave_as_many_again() {
    let mut sender = open();
    sender.lost();
    plain(&mut sender, A, 100);
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { stream: A, .. }));
    let most = ResumeRow {
        last_seq: 1 << 62,
        last_epoch: (1 << 30) + (1 << 24),
        last_leaf: 1 << 30,
        open_leaf: None,
    };
    sender.resumed(A, most);
    let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!() };
    assert!(opening.epoch.0 < i32::MAX - (1 << 29) && opening.first_seq.0 < i64::MAX - (1 << 61));
    // From now on, the sender trusts its own numbers.
    sender.opened(ms(10), A, sealer(&opening));
    sender.lost();
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { stream: A, .. }));
    let one_more = ResumeRow { last_epoch: most.last_epoch + 1, last_leaf: 1, ..most };
    sender.resumed(A, one_more);
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Open(_)));
}

#[test]
fn numbers_that_were_kept_are_not_given_again_after_a_restart() {
    let mut sender = Sender::new(CONFIG);
    let given = (EpochNo(2_000_000_000), Seq(700));
    sender.add(A, NodeId(30), SavedState { given, ..SavedState::default() });
    plain(&mut sender, A, 100);
    let (opened, _) = open_all(&mut sender, ms(10));
    assert_eq!((opened[0].epoch, opened[0].first_seq), (EpochNo(2_000_000_001), Seq(701)));
}

#[test]
fn the_record_tells_how_the_epoch_before_ended() {
    // After a start, the record contains what the database reports.
    let mut sender = sender(CONFIG);
    plain(&mut sender, A, 100);
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { .. }));
    let found = ResumeRow { last_seq: 77, last_epoch: 8, last_leaf: 4, ..ResumeRow::default() };
    sender.resumed(A, found);
    let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!() };
    let previous =
        PreviousEpoch { epoch: EpochNo(8), last_seq: Seq(77), chain: None, opened: None };
    assert_eq!(opening.previous, Some(previous));
    // A sender that does not know of the existing leaf opens another.
    assert_eq!((opening.leaf, opening.first_seq), (LeafNo(5), Seq(78)));

    // After a lost connection, it contains what was acknowledged, not what was in flight.
    let hash = secret(A, opening.epoch).1;
    sender.opened(ms(10), A, sealer(&opening));
    let in_doubt = sender.batch(ms(10)).unwrap();
    assert_eq!(in_doubt.rows(), 1);
    sender.lost();
    plain(&mut sender, A, 100);
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { .. }));
    sender.resumed(A, ResumeRow { last_epoch: opening.epoch.0, last_leaf: 5, ..found });
    let Action::Open(second) = sender.next_action(ms(10), UNIX) else { panic!() };
    let opened = Some(UNIX);
    let previous =
        PreviousEpoch { epoch: opening.epoch, last_seq: Seq(77), chain: Some(hash), opened };
    assert_eq!(second.previous, Some(previous));
    assert_eq!((second.leaf, second.first_seq), (LeafNo(5), Seq(79)));

    // After an acknowledged batch, it contains the batch's chain value.
    sender.opened(ms(10), A, sealer(&second));
    let batch = sender.batch(ms(10)).unwrap();
    let mut rest = batch.parts[0].bytes.as_slice();
    let mut chain = None;
    while let Some((fields, behind)) = copy::split_row(rest) {
        chain = decode::row(fields).unwrap().chain.map(|chain| chain.try_into().unwrap());
        rest = behind;
    }
    sender.committed(ms(11), batch);
    sender.lost();
    plain(&mut sender, A, 100);
    assert!(matches!(sender.next_action(ms(11), UNIX), Action::Resume { .. }));
    sender.resumed(A, ResumeRow::default());
    let Action::Open(third) = sender.next_action(ms(11), UNIX) else { panic!() };
    let previous = PreviousEpoch { epoch: second.epoch, last_seq: Seq(79), chain, opened };
    assert!(chain.is_some());
    assert_eq!(third.previous, Some(previous));
}

/// Committed rows are signed within a second, both while packets arrive and after the last one.
#[test]
fn the_chain_is_signed_each_second_of_traffic_and_when_it_ends() {
    let mut sender = open();
    let mut signed = Vec::new();
    for at in (10..4010).step_by(10) {
        if at < 3000 {
            sender.push(ms(at), Some(A), VnetHeader::default(), &ip(100));
        }
        loop {
            match sender.next_action(ms(at), UNIX) {
                Action::Batch => {
                    let batch = sender.batch(ms(at)).unwrap();
                    sender.committed(ms(at), batch);
                }
                Action::Sign(unsigned) => {
                    if let Some(one) = unsigned.iter().find(|one| one.stream == A) {
                        signed.push((at, one.checkpoint.seq.0));
                        assert_eq!(one.record_hash, secret(A, one.epoch).1);
                    }
                    sender.signed(ms(at), &unsigned);
                }
                Action::Wait(_) => break,
                action => panic!("{action:?}"),
            }
        }
    }
    // The first row appears at 1 ms, then one every 10 ms.
    let mut covered = 0;
    for (at, seq) in &signed {
        assert!(at - 10 * covered <= 1000, "row {} waited until {at}", covered + 1);
        covered = *seq as u64;
    }
    assert_eq!(covered, 300, "the last row is signed");
    assert!(signed.len() <= 6, "{signed:?}");
}

#[test]
fn what_was_committed_before_a_loss_is_signed_after_it() {
    let mut sender = open();
    plain(&mut sender, A, 100);
    let batch = sender.batch(ms(10)).unwrap();
    sender.committed(ms(10), batch);
    let Action::Sign(unsigned) = sender.next_action(ms(1000), UNIX) else { panic!() };
    // The request is not repeated while it is outstanding, but it is after the connection was lost.
    assert_eq!(sender.next_action(ms(1000), UNIX), Action::Wait(Some(ms(3_600_000))));
    sender.lost();
    assert_eq!(sender.next_action(ms(1001), UNIX), Action::Sign(unsigned.clone()));
    sender.signed(ms(1002), &unsigned);
    assert_eq!(sender.next_action(ms(9000), UNIX), Action::Wait(None));
}

/// A sender neither signs a chain value that only the database reports, nor leaves out an epoch in which it has
/// written.
#[test]
fn a_restarted_sender_names_what_it_signed_itself() {
    let checkpoint = Checkpoint { seq: Seq(70), chain: [7; 32] };
    let cases = [
        // Rows in epoch 8 were written and signed.
        (8, Some(8), 8, (8, 70, Some([7; 32]))),
        // An epoch without rows is in between, and the record may skip it.
        (8, Some(8), 9, (8, 70, Some([7; 32]))),
        // Rows in epoch 9 were written, but none of them was signed.
        (9, Some(8), 9, (9, 77, None)),
        // The database withholds the last epoch.
        (9, Some(8), 8, (9, 77, None)),
        // No state was saved.
        (0, None, 8, (8, 77, None)),
    ];
    for (written, signed, found, (epoch, last_seq, chain)) in cases {
        let mut sender = Sender::new(CONFIG);
        let signed = signed.map(|epoch| (EpochNo(epoch), checkpoint));
        sender.add(A, NodeId(30), SavedState { given: (EpochNo(written), Seq(80)), signed });
        plain(&mut sender, A, 100);
        assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { .. }));
        sender.resumed(
            A,
            ResumeRow { last_seq: 77, last_epoch: found, last_leaf: 4, ..ResumeRow::default() },
        );
        let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!() };
        let (epoch, last_seq) = (EpochNo(epoch), Seq(last_seq));
        assert_eq!(opening.previous, Some(PreviousEpoch { epoch, last_seq, chain, opened: None }));
    }
}

#[test]
fn a_leaf_is_followed_by_the_next_for_its_size_and_for_its_age_but_never_with_rows_in_flight() {
    let config = Config { leaf_bytes: 3000, leaf_age: Duration::from_secs(60), ..CONFIG };
    let mut sender = sender(config);
    plain(&mut sender, A, 2000);
    open_all(&mut sender, ms(10));
    let batch = sender.batch(ms(10)).unwrap();
    sender.committed(ms(11), batch);
    // The leaf is not full yet.
    plain(&mut sender, A, 2000);
    assert_eq!(sender.next_action(ms(12), UNIX), Action::Batch);
    let batch = sender.batch(ms(12)).unwrap();
    plain(&mut sender, A, 2000);
    assert_eq!(
        sender.next_action(ms(12), UNIX),
        Action::Wait(Some(ms(761))),
        "its rows are in doubt"
    );
    sender.committed(ms(13), batch);
    let Action::Open(second) = sender.next_action(ms(13), UNIX) else { panic!() };
    assert_eq!((second.leaf, second.first_seq), (LeafNo(2), Seq(3)));
    sender.opened(ms(13), A, sealer(&second));
    let batch = sender.batch(ms(13)).unwrap();
    sender.committed(ms(14), batch);
    // The next leaf follows because of this one's age, although no packet is waiting.
    let Action::Sign(unsigned) = sender.next_action(ms(764), UNIX) else { panic!() };
    sender.signed(ms(765), &unsigned);
    let Action::Wait(Some(until)) = sender.next_action(ms(765), UNIX) else { panic!() };
    assert_eq!(until, ms(60_013));
    let Action::Open(third) = sender.next_action(until, UNIX) else { panic!() };
    assert_eq!(third.leaf, LeafNo(3));
    sender.opened(until, A, sealer(&third));
    assert_eq!(
        sender.next_action(ms(10_000_000), UNIX),
        Action::Wait(None),
        "an empty one has no age"
    );
}

#[test]
fn what_cannot_be_sent_is_counted_by_reason() {
    let mut sender = open();
    let config = CONFIG;
    sender.push(ms(10), None, VnetHeader::default(), &ip(100));
    // These packets are too long, not IP, shorter than their header says, larger than a batch, and impossible to
    // segment.
    plain(&mut sender, A, config.packet_size + 1);
    sender.push(ms(10), Some(A), VnetHeader::default(), &[0; 50]);
    sender.push(ms(10), Some(A), VnetHeader::default(), &ip(100)[..99]);
    let (vnet, packet) = tcp(65_000, 1);
    sender.push(ms(10), Some(A), vnet, &packet);
    sender.push(ms(10), Some(A), VnetHeader { gso: Gso::Other(9), ..vnet }, &packet[..2000]);
    assert!(sender.batch(ms(10)).is_none(), "nothing of that is fit");
    assert_eq!((sender.stats().dropped.no_route, sender.stats().dropped.malformed), (1, 5));
    // The sealer continues with the next number.
    plain(&mut sender, A, config.packet_size);
    let batch = sender.batch(ms(10)).unwrap();
    assert_eq!(unsealed(&batch.parts[0])[0].0, Seq(2));
    sender.committed(ms(11), batch);
    plain(&mut sender, A, 100);
    plain(&mut sender, B, 100);
    sender.remove(A);
    assert_eq!(sender.stats().dropped.closed, 1);
    let batch = sender.batch(ms(12)).unwrap();
    assert_eq!(batch.parts.len(), 1);
    plain(&mut sender, A, 100);
    assert_eq!(sender.stats().dropped.no_route, 2);
}

#[test]
fn a_node_that_is_removed_while_its_rows_are_in_flight_is_forgotten() {
    let mut sender = open();
    plain(&mut sender, A, 100);
    let batch = sender.batch(ms(10)).unwrap();
    sender.remove(A);
    sender.add(A, NodeId(30), Default::default());
    sender.committed(ms(11), batch);
    plain(&mut sender, A, 100);
    assert!(matches!(sender.next_action(ms(11), UNIX), Action::Resume { stream: A, .. }));
}

#[test]
fn answers_out_of_place_change_nothing() {
    let mut sender = open();
    let opening = NewEpoch {
        stream: A,
        receiver: NodeId(30),
        epoch: EpochNo(9),
        leaf: LeafNo(9),
        first_seq: Seq(900),
        opened: UNIX,
        previous: None,
    };
    let before = sender.given(A);
    sender.opened(ms(10), A, sealer(&opening));
    sender.resumed(A, ResumeRow { last_seq: 5, ..ResumeRow::default() });
    sender.failed(ms(10), A);
    sender.failed(ms(10), StreamId(99));
    sender.committed(ms(10), Batch::default());
    assert_eq!(sender.given(A), before);
    plain(&mut sender, A, 100);
    assert_eq!(sender.next_action(ms(10), UNIX), Action::Batch);
    // This sealer belongs to an epoch other than the one to be opened.
    sender.lost();
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { .. }));
    sender.resumed(A, ResumeRow::default());
    assert!(matches!(sender.next_action(ms(10), UNIX), Action::Open(_)));
    sender.opened(ms(10), A, sealer(&opening));
    assert!(sender.batch(ms(10)).is_none());
}

#[test]
fn one_batch_at_a_time_and_its_commits_are_measured() {
    let mut sender = open();
    plain(&mut sender, A, 100);
    let batch = sender.batch(ms(10)).unwrap();
    plain(&mut sender, A, 100);
    assert!(sender.batch(ms(11)).is_none());
    assert!(matches!(sender.next_action(ms(11), UNIX), Action::Wait(_)));
    sender.committed(ms(26), batch);
    assert_eq!(sender.next_action(ms(26), UNIX), Action::Batch);
    // The earlier commits took 1 ms. This one took 16 ms and is weighted with an eighth.
    let expected = Duration::from_millis(1).mul_f64(7.0 / 8.0) + Duration::from_millis(2);
    assert!(sender.stats().commit.abs_diff(expected) < Duration::from_micros(1));
}

#[test]
fn buffers_of_batches_are_used_again() {
    let mut sender = open();
    let mut seen = std::collections::BTreeSet::new();
    for now in 10..60 {
        (0..20).for_each(|_| plain(&mut sender, A, 5000));
        (0..20).for_each(|_| plain(&mut sender, B, 5000));
        let batch = sender.batch(ms(now)).unwrap();
        assert_eq!(batch.parts.len(), 2);
        seen.extend(batch.parts.iter().map(|part| part.bytes.as_ptr()));
        sender.committed(ms(now), batch);
    }
    assert!(seen.len() <= 12, "{}", seen.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// This holds for any packets from the device.
    #[test]
    fn batches_are_bounded_and_numbers_have_no_gaps(
        packets in proptest::collection::vec((41..65_000_usize, 0..9000_u16, any::<bool>(), 0..20_u8), 1..150),
    ) {
        let mut sender = open();
        let mut next = [2, 2];
        for (len, size, other, flush) in packets {
            let stream = if other { B } else { A };
            let (vnet, packet) = tcp(len, size);
            sender.push(ms(20), Some(stream), vnet, &packet);
            prop_assert!(sender.stats().queued <= QUEUE_BYTES);
            if flush > 0 {
                continue;
            }
            let Some(batch) = sender.batch(ms(20)) else { continue };
            let bytes: usize = batch.parts.iter().map(|part| part.bytes.len()).sum();
            prop_assert!(bytes <= BATCH_BYTES, "{bytes}");
            for part in &batch.parts {
                for (seq, packet) in unsealed(part) {
                    let next = &mut next[usize::from(part.stream == B)];
                    prop_assert_eq!(seq.0, *next);
                    *next += 1;
                    prop_assert!(packet.len() <= CONFIG.packet_size);
                }
            }
            sender.committed(ms(21), batch);
        }
    }
}

/// Takes a batch of the waiting packets and commits it.
fn send_off(sender: &mut Sender, now: u64) -> Batch {
    let batch = sender.batch(ms(now)).unwrap();
    sender.committed(ms(now), batch.clone());
    batch
}

#[test]
fn streams_share_the_leaf_and_follow_to_the_next_when_they_have_packets() {
    let config = Config { leaf_bytes: 3000, leaf_age: Duration::from_secs(60), ..CONFIG };
    let mut sender = sender(config);
    for stream in [A, B] {
        plain(&mut sender, stream, 50);
        let (opened, _) = open_all(&mut sender, ms(10));
        assert_eq!(opened.iter().map(|o| o.leaf.0).collect::<Vec<_>>(), [1]);
        send_off(&mut sender, 10);
    }
    plain(&mut sender, A, 50);
    plain(&mut sender, B, 50);
    let batch = send_off(&mut sender, 10);
    assert!(batch.parts.len() == 2 && batch.parts.iter().all(|part| part.leaf == LeafNo(1)));
    // The two streams together fill the leaf. B has no packets and opens no epoch.
    plain(&mut sender, A, 2900);
    send_off(&mut sender, 11);
    let (opened, _) = open_all(&mut sender, ms(12));
    assert_eq!(opened.iter().map(|o| (o.stream, o.leaf.0)).collect::<Vec<_>>(), [(A, 2)]);
    assert!(matches!(sender.next_action(ms(13), UNIX), Action::Wait(_)));
    // No packet of B goes into the leaf that has ended.
    plain(&mut sender, B, 100);
    plain(&mut sender, A, 100);
    assert_eq!(
        sender.batch(ms(13)).map(|batch| (batch.parts.len(), batch.parts[0].stream)),
        Some((1, A))
    );
    sender.committed(ms(13), Batch::default());
    let (opened, action) = open_all(&mut sender, ms(14));
    assert_eq!(opened.iter().map(|o| (o.stream, o.leaf.0)).collect::<Vec<_>>(), [(B, 2)]);
    assert_eq!(action, Action::Batch);
    let batch = send_off(&mut sender, 14);
    assert!(batch.parts.iter().all(|part| part.leaf == LeafNo(2)));
    // When the leaf is too old and nothing is to be sent, one stream opens an epoch in a new leaf, so that the old leaf
    // can expire.
    let (opened, _) = open_all(&mut sender, ms(60_020));
    assert_eq!(opened.iter().map(|o| o.leaf.0).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_process_goes_on_in_the_leaf_of_a_former_one_until_that_is_full_or_refused() {
    let found = |bytes, age| ResumeRow {
        last_leaf: 4,
        open_leaf: Some(OpenLeaf { bytes, age: Duration::from_secs(age) }),
        ..ResumeRow::default()
    };
    for (bytes, age, leaf) in [(10, 0, 4), (10, 59, 4), (3000, 0, 5), (10, 60, 5)] {
        let config = Config { leaf_bytes: 3000, leaf_age: Duration::from_secs(60), ..CONFIG };
        let mut sender = sender(config);
        plain(&mut sender, A, 100);
        assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { .. }));
        sender.resumed(A, found(bytes, age));
        let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!() };
        assert_eq!(opening.leaf.0, leaf, "{bytes} {age}");
        if leaf == 5 {
            continue;
        }
        // The rows and the age of the existing leaf count, so it is too old after a second, or soon full.
        sender.opened(ms(10), A, sealer(&opening));
        send_off(&mut sender, 10);
        let (opened, _) = open_all(&mut sender, ms(1_100));
        assert_eq!(opened.len(), usize::from(age == 59), "{bytes} {age}");
    }
    let mut sender = sender(CONFIG);
    for leaf in [4, 5, 5] {
        plain(&mut sender, A, 100);
        assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { .. }));
        sender.resumed(A, found(10, 0));
        let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!() };
        assert_eq!(opening.leaf.0, leaf, "not again where it was refused");
        sender.failed(ms(10), A);
        sender.lost();
    }
    // A refusal for another reason does not affect the leaf.
    let mut sender = self::sender(CONFIG);
    for _ in 0..2 {
        plain(&mut sender, A, 100);
        assert!(matches!(sender.next_action(ms(10), UNIX), Action::Resume { .. }));
        sender.resumed(A, found(10, 0));
        let Action::Open(opening) = sender.next_action(ms(10), UNIX) else { panic!() };
        assert_eq!(opening.leaf.0, 4);
        sender.delayed(ms(10), A);
        sender.lost();
    }
}
