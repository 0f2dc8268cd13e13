use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::roster::testing::{
    Signer, admit, genesis, grant_admin, name, node_key, shuffled, write,
};
use crate::roster::{Action, NodeInfo, Roster};

const NOW: Instant = Instant::from_nanos(1_000_000_000);
/// The room of a session's queue.
const ROOM: usize = 64 * 1024;

/// Nodes, each with a set and an exchange, and reliable sessions between them. Session `n` of a node leads to node `n`.
struct World {
    nodes: Vec<(Changes, RosterSync)>,
    /// Records in transit, by the two nodes.
    pipes: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    /// Changes that were sent, over all sessions.
    changes_sent: usize,
    now: Instant,
}

impl World {
    fn new(sets: Vec<Changes>) -> Self {
        let nodes = sets.into_iter().map(|set| (set, RosterSync::default())).collect();
        Self { nodes, pipes: BTreeMap::new(), changes_sent: 0, now: NOW }
    }

    fn connect(&mut self, one: usize, other: usize) {
        for (here, there) in [(one, other), (other, one)] {
            self.nodes[here].1.connected(SessionNumber(there as u64));
            self.pipes.insert((here, there), VecDeque::new());
        }
    }

    /// Delivers records until none are in transit.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut quiet = true;
            self.now = self.now + Duration::from_millis(20);
            for ((here, there), pipe) in &mut self.pipes {
                let (changes, sync) = &mut self.nodes[*here];
                let session = SessionNumber(*there as u64);
                while let Some(record) = sync.next_record(session, changes, ROOM) {
                    if let Record::Changes(sent) = Record::decode(&record).unwrap() {
                        self.changes_sent += sent.len();
                    }
                    pipe.push_back(record);
                }
                let (changes, sync) = &mut self.nodes[*there];
                let session = SessionNumber(*here as u64);
                for record in pipe.drain(..) {
                    quiet = false;
                    sync.record(self.now, session, &record, changes).unwrap();
                }
            }
            if quiet {
                return;
            }
        }
        panic!("the nodes never stop sending");
    }

    fn assert_equal(&self) {
        let digest = self.nodes[0].0.digest();
        for (at, (changes, _)) in self.nodes.iter().enumerate() {
            assert_eq!((changes.digest(), changes.waiting()), (digest, 0), "node {at}");
        }
    }
}

/// Returns three admins, and a set with this many changes of each.
fn written(rounds: u8) -> (Vec<Signer>, Changes) {
    let signers: Vec<_> = (1..=3).map(Signer::new).collect();
    let mut changes = Changes::new(genesis(&signers[..1], 1)).unwrap();
    write(&mut changes, &signers[0], grant_admin(&signers[1]));
    write(&mut changes, &signers[1], grant_admin(&signers[2]));
    for round in 0..rounds {
        for (at, signer) in signers.iter().enumerate() {
            write(&mut changes, signer, admit(3 * round + at as u8));
        }
    }
    (signers, changes)
}

fn empty() -> Changes {
    Changes::new(genesis(&[Signer::new(1)], 1)).unwrap()
}

/// Returns a set with the first changes of another, in causal order.
fn beginning(of: &Changes, count: usize) -> Changes {
    let mut set = empty();
    for change in of.in_causal_order().into_iter().take(count) {
        set.insert(change.clone()).unwrap();
    }
    set
}

#[test]
fn equal_sets_exchange_digests_alone() {
    let (_, set) = written(5);
    let mut world = World::new(vec![set.clone(), set]);
    world.connect(0, 1);
    world.settle();
    assert_eq!(world.changes_sent, 0);
    assert!(world.nodes.iter().all(|(_, sync)| sync.counters().exchanges == 0));
}

#[test]
fn a_new_node_gets_each_change_once() {
    let (_, set) = written(60);
    let count = set.len();
    let mut world = World::new(vec![set, empty()]);
    world.connect(0, 1);
    world.settle();
    world.assert_equal();
    assert_eq!(world.changes_sent, count);
    assert_eq!(world.nodes[1].1.counters().known, 0);
}

#[test]
fn both_sides_get_what_they_lack() {
    let (signers, set) = written(2);
    let (mut one, mut other) = (set.clone(), set);
    for number in 100..110 {
        write(&mut one, &signers[0], admit(number));
        write(&mut other, &signers[1], admit(number + 50));
    }
    let mut world = World::new(vec![one, other]);
    world.connect(0, 1);
    world.settle();
    world.assert_equal();
    assert_eq!(world.changes_sent, 20);
}

#[test]
fn a_fork_reaches_both_sides() {
    let (signers, set) = written(2);
    let (mut one, mut other) = (set.clone(), set);
    write(&mut one, &signers[0], admit(100));
    for number in 101..105 {
        write(&mut other, &signers[0], admit(number));
    }
    let mut world = World::new(vec![one, other]);
    world.connect(0, 1);
    world.settle();
    world.assert_equal();
    assert_eq!(world.nodes[0].0.forks().count(), 1);
}

/// Connects each of `count` nodes with the next two, in a ring, so each has four neighbours.
fn ring(set: &Changes, count: usize) -> World {
    let mut world = World::new(vec![set.clone(); count]);
    for node in 0..count {
        for step in 1..=2 {
            world.connect(node, (node + step) % count);
        }
    }
    world.settle();
    world
}

#[test]
fn the_cost_of_a_change_is_proportional_to_the_number_of_nodes() {
    let (signers, set) = written(1);
    for count in [10, 40] {
        let mut world = ring(&set, count);
        assert_eq!(world.changes_sent, 0);
        let (changes, sync) = &mut world.nodes[0];
        let hash = write(changes, &signers[0], admit(200));
        sync.push(&[hash]);
        world.settle();
        world.assert_equal();
        // At least one of a node's four neighbours has sent it the change.
        assert!(world.changes_sent <= 3 * count + 1, "{} for {count}", world.changes_sent);
    }
}

#[test]
fn a_change_goes_neither_back_nor_twice() {
    let (signers, set) = written(1);
    let mut world = World::new(vec![set.clone(), set]);
    world.connect(0, 1);
    world.settle();
    let (changes, sync) = &mut world.nodes[0];
    let hash = write(changes, &signers[0], admit(200));
    sync.push(&[hash]);
    sync.push(&[hash]);
    world.settle();
    world.assert_equal();
    assert_eq!(world.changes_sent, 1);
    assert_eq!(world.nodes[0].1.counters().known, 0);
}

#[test]
fn what_a_neighbour_has_is_forgotten_once_both_have_the_same() {
    let (signers, set) = written(1);
    let mut world = World::new(vec![set.clone(), set]);
    world.connect(0, 1);
    world.settle();
    let remembered = |world: &World| {
        let of = |sync: &RosterSync| sync.neighbours.values().map(|it| it.has.len()).sum::<usize>();
        world.nodes.iter().map(|(_, sync)| of(sync)).collect::<Vec<_>>()
    };
    let sign = |world: &mut World, number: u8| {
        let (changes, sync) = &mut world.nodes[0];
        let hash = write(changes, &signers[0], admit(number));
        sync.push(&[hash]);
        world.settle();
    };
    (100..120).for_each(|number| sign(&mut world, number));
    assert_eq!(remembered(&world), [20, 20]);
    world.nodes.iter_mut().for_each(|(_, sync)| sync.compare());
    world.settle();
    assert_eq!(remembered(&world), [0, 0]);
    sign(&mut world, 120);
    world.assert_equal();
    assert_eq!(world.changes_sent, 21, "no change twice");
}

#[test]
fn a_change_whose_past_is_missing_brings_its_past() {
    let (_, set) = written(3);
    let last = set.in_causal_order().last().unwrap().hash();
    let mut world = World::new(vec![set.clone(), beginning(&set, 3)]);
    world.connect(0, 1);
    // Only pushes, because no digests have been compared.
    world.nodes.iter_mut().for_each(|(_, sync)| {
        sync.neighbours.values_mut().for_each(|neighbour| neighbour.digest_due = false);
    });
    world.nodes[0].1.push(&[last]);
    world.settle();
    world.assert_equal();
}

#[test]
fn changes_are_returned_in_causal_order_when_they_are_added() {
    let (_, set) = written(1);
    let all: Vec<_> = set.in_causal_order().into_iter().cloned().collect();
    let (mut other, mut sync) = (empty(), RosterSync::default());
    let session = SessionNumber(1);
    sync.connected(session);
    let mut deliver = |changes: &[Change]| {
        let record = Record::Changes(changes.iter().map(Change::encode).collect()).encode();
        sync.record(NOW, session, &record, &mut other).unwrap()
    };
    assert_eq!(deliver(&all[1..3]), Vec::<ChangeHash>::new());
    assert_eq!(deliver(&all[..1]), all[..3].iter().map(Change::hash).collect::<Vec<_>>());
}

#[test]
fn a_neighbour_that_sends_invalid_changes_is_refused() {
    let (_, set) = written(1);
    let stranger = Signer::new(99);
    let body = set.draft(stranger.hash, crate::roster::testing::NOW, admit(1)).unwrap();
    let without_right = stranger.sign(set.mesh(), body).encode();
    let mut forged = set.in_causal_order()[0].encode();
    *forged.last_mut().unwrap() ^= 1;
    for bad in [vec![1, 2, 3], forged, without_right] {
        let (mut changes, mut sync) = (set.clone(), RosterSync::default());
        let session = SessionNumber(1);
        sync.connected(session);
        let record = Record::Changes(vec![bad]).encode();
        for _ in 1..MAX_INVALID {
            assert_eq!(sync.record(NOW, session, &record, &mut changes), Ok(Vec::new()));
        }
        let refused = sync.record(NOW, session, &record, &mut changes);
        assert_eq!(refused, Err(SyncError::TooManyInvalid));
        assert_eq!(sync.counters().invalid, u64::from(MAX_INVALID));
        assert_eq!(changes.digest(), set.digest());
    }
}

#[test]
fn changes_beyond_the_rate_are_dropped_and_counted() {
    let (_, set) = written(1);
    let record = Record::Changes(vec![set.in_causal_order()[0].encode()]).encode();
    let (mut changes, mut sync) = (empty(), RosterSync::default());
    let session = SessionNumber(1);
    sync.connected(session);
    sync.neighbours.get_mut(&session).unwrap().budget.changes.take(NOW, MAX_CHANGES + 1, CHANGES);
    assert_eq!(sync.record(NOW, session, &record, &mut changes), Ok(Vec::new()));
    assert_eq!((sync.counters().limited, changes.len()), (1, 0));
}

#[test]
fn exchanges_of_heads_are_limited() {
    let (_, set) = written(1);
    let (mut changes, mut sync) = (set, RosterSync::default());
    let session = SessionNumber(1);
    sync.connected(session);
    for number in 0..100 {
        let record = Record::Digest([number; 32]).encode();
        sync.record(NOW, session, &record, &mut changes).unwrap();
    }
    assert!(sync.counters().exchanges <= 9, "{}", sync.counters().exchanges);
}

#[test]
fn the_same_difference_is_not_exchanged_again() {
    let (_, set) = written(1);
    let (mut changes, mut sync) = (set, RosterSync::default());
    let session = SessionNumber(1);
    sync.connected(session);
    let record = Record::Digest([9; 32]).encode();
    for _ in 0..3 {
        sync.record(NOW, session, &record, &mut changes).unwrap();
    }
    assert_eq!(sync.counters().exchanges, 1);
    sync.compare();
    sync.record(NOW, session, &record, &mut changes).unwrap();
    assert_eq!(sync.counters().exchanges, 2);
}

#[test]
fn a_neighbour_cannot_name_more_heads_than_there_can_be() {
    let head = Head { signer: [1; 32], number: 1, hash: [2; 32] };
    let pages = [
        Page { heads: vec![head; HEADS_PER_RECORD], ..Page::default() },
        Page { missing: vec![[3; 32]; HEADS_PER_RECORD], ..Page::default() },
    ];
    for (page, most) in pages.into_iter().zip([MAX_HEADS, MAX_WAITING]) {
        let (mut changes, mut sync) = (empty(), RosterSync::default());
        let session = SessionNumber(1);
        sync.connected(session);
        let record = Record::Heads(page).encode();
        for _ in 0..most / HEADS_PER_RECORD {
            sync.record(NOW, session, &record, &mut changes).unwrap();
        }
        let refused = sync.record(NOW, session, &record, &mut changes);
        assert_eq!(refused, Err(SyncError::TooManyHeads));
    }
}

#[test]
fn no_record_is_longer_than_the_room() {
    let (_, set) = written(60);
    let mut sync = RosterSync::default();
    let session = SessionNumber(1);
    sync.connected(session);
    assert_eq!(sync.next_record(session, &set, 33), None, "no room for a digest");
    assert_eq!(sync.next_record(session, &set, 34).unwrap().len(), 34);
    let mut changes = set.clone();
    let ask = Record::Heads(Page { last: true, wants_heads: true, ..Page::default() }).encode();
    sync.record(NOW, session, &ask, &mut changes).unwrap();
    assert_eq!(sync.next_record(session, &set, 100), None, "no room for heads");
    let mut records = 0;
    while let Some(record) = sync.next_record(session, &set, 1000) {
        assert!(record.len() <= 1000);
        records += 1;
    }
    assert!(records > 20, "{records}");
}

#[test]
fn a_session_that_ended_is_forgotten() {
    let (_, set) = written(1);
    let (mut changes, mut sync) = (set, RosterSync::default());
    let session = SessionNumber(1);
    sync.connected(session);
    sync.disconnected(session);
    assert_eq!(sync.next_record(session, &changes, ROOM), None);
    let record = Record::Digest([9; 32]).encode();
    assert_eq!(sync.record(NOW, session, &record, &mut changes), Ok(Vec::new()));
    assert_eq!(sync.counters(), SyncCounters::default());
}

#[test]
fn only_what_encode_writes_is_decoded() {
    let head = Head { signer: [1; 32], number: 7, hash: [2; 32] };
    let page = Page { last: true, wants_heads: true, heads: vec![head], missing: vec![[3; 32]] };
    let records = [
        Record::Digest([5; 32]),
        Record::Heads(Page::default()),
        Record::Heads(page),
        Record::Changes(vec![vec![1, 2], vec![]]),
    ];
    for record in records {
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Ok(record.clone()));
        for end in 0..bytes.len() {
            if let Ok(other) = Record::decode(&bytes[..end]) {
                assert_eq!(other.encode(), bytes[..end], "{record:?}");
            }
        }
    }
    assert_eq!(Record::decode(&[1, 17, 4, 0, 0]), Err(DecodeError::Kind(4)));
    assert_eq!(Record::decode(&[1, 18]), Err(DecodeError::Truncated));
    assert_eq!(Record::decode(&[1, 99]), Err(DecodeError::Kind(99)));
    assert_eq!(Record::decode(&[1, 17, 0, 0, 0, 9]), Err(DecodeError::Truncated));
    assert_eq!(Record::decode(&vec![1; MAX_RECORD + 1]), Err(DecodeError::TooLong(MAX_RECORD + 1)));
    let long = [&[1, 16][..], &[0; 33]].concat();
    assert_eq!(Record::decode(&long), Err(DecodeError::TrailingBytes(1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any nodes in a connected graph, with any parts of the changes, end with the same set.
    #[test]
    fn connected_nodes_end_with_the_same_set(
        shares in prop::collection::vec((any::<u8>(), 0usize..20), 2..7),
        links in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
    ) {
        let (_, whole) = written(6);
        let all: Vec<_> = whole.in_causal_order().into_iter().cloned().collect();
        let count = shares.len();
        let sets = shares.into_iter().map(|(seed, share)| {
            let mut set = empty();
            for change in shuffled(&all, seed).into_iter().take(share) {
                let _ = set.insert(change);
            }
            set
        });
        let mut world = World::new(sets.collect());
        for node in 1..count {
            world.connect(node - 1, node);
        }
        for (one, other) in links {
            let (one, other) = (one.index(count), other.index(count));
            if one.abs_diff(other) > 1 {
                world.connect(one, other);
            }
        }
        world.settle();
        // Digests are compared from time to time, because they do not cover waiting changes.
        for _ in 0..2 {
            world.now = world.now + Duration::from_secs(60);
            world.nodes.iter_mut().for_each(|(_, sync)| sync.compare());
            world.settle();
        }
        let digest = world.nodes[0].0.digest();
        for (changes, _) in &world.nodes {
            prop_assert_eq!(changes.digest(), digest);
        }
    }
}

#[test]
fn an_invalid_change_of_an_admin_is_refused_by_all_in_the_same_way() {
    let (signers, set) = written(2);
    let admin = &signers[0];
    let draft = || set.draft(admin.hash, crate::roster::testing::NOW, admit(200)).unwrap();
    let good = admin.sign(set.mesh(), draft());
    let oversized = [&good.encode()[..], &[0; MAX_OBJECT]].concat();
    let other_mesh = admin.sign(&[0xee; 16], draft()).encode();
    let mut wrong_number = draft();
    wrong_number.number += 7;
    let mut own_head = draft();
    own_head.heads = [own_head.previous].into();
    let signed = [wrong_number, own_head].map(|body| admin.sign(set.mesh(), body).encode());
    let [wrong_number, own_head] = signed;
    // A valid change that no node accepts, because a node's networks must not overlap those of the mesh.
    let overlapping = NodeInfo {
        subnets: ["100.87.7.0/24".parse().unwrap()].into(),
        ..NodeInfo::named(name("greedy"))
    };
    let action = Action::Admit { key: node_key(201), node: overlapping };
    let body = set.draft(signers[1].hash, crate::roster::testing::NOW, action).unwrap();
    let ignored = signers[1].sign(set.mesh(), body);
    let all =
        [oversized, other_mesh, wrong_number, own_head, ignored.encode(), good.encode()].to_vec();
    let results: Vec<_> = (0..8)
        .map(|seed| {
            let (mut changes, mut sync) = (set.clone(), RosterSync::default());
            let session = SessionNumber(1);
            sync.connected(session);
            for change in shuffled(&all, seed) {
                // A record stores the length in two bytes, so even a change longer than any object arrives complete.
                let record = Record::Changes(vec![change]).encode();
                sync.record(NOW, session, &record, &mut changes).unwrap();
            }
            let roster = Roster::evaluate(&changes);
            let members: Vec<_> = roster.members().cloned().collect();
            let warnings: Vec<_> = roster.warnings().iter().map(ToString::to_string).collect();
            (sync.counters(), changes.digest(), members, warnings)
        })
        .collect();
    let (counters, _, members, warnings) = &results[0];
    assert_eq!((counters.invalid, counters.added), (4, 2));
    assert!(members.iter().any(|member| member.key == node_key(200)));
    assert!(members.iter().all(|member| member.key != node_key(201)));
    assert!(!warnings.is_empty());
    for result in &results {
        assert_eq!(result, &results[0]);
    }
}
