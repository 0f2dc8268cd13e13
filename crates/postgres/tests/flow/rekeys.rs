//! The network gets a new key while packets are being sent.

use adit_postgres::{Generation, LeafNo};

use crate::world::World;

const SECOND: Generation = Generation(2);

/// Creates a working stream under the network's first key.
fn settled() -> World {
    let mut world = World::new();
    world.latency = 10;
    world.check_it_works();
    world
}

fn generations(world: &World) -> Vec<(i32, LeafNo)> {
    world.records.iter().map(|record| (record.generation.0, record.leaf)).collect()
}

#[test]
fn a_new_key_loses_no_packet_and_needs_no_new_leaf() {
    let mut world = settled();
    let (before, first) = (world.came.len(), world.next_id);
    for step in 0..100 {
        world.traffic(2, 1);
        if step == 50 {
            world.key = SECOND;
            world.sender.renew();
        }
    }
    world.pass(200);
    world.check();
    let expected: Vec<u64> = (first..first + 200).collect();
    assert_eq!(world.came.get(before..), Some(&expected[..]));
    assert_eq!(generations(&world), [(1, LeafNo(1)), (2, LeafNo(1))]);
    // The previous key's grace period ends. No rows under it are left that could be refused.
    world.receiver.retire(SECOND);
    world.check_it_works();
    let stats = world.receiver.stats();
    assert_eq!((stats.old_key, stats.forged, stats.missing), (0, 0, 0));
}

#[test]
fn rows_under_the_former_key_are_refused_and_counted_after_its_grace() {
    let mut world = settled();
    world.receiver.retire(SECOND);
    let before = world.came.len();
    world.traffic(50, 7);
    world.pass(1500);
    assert_eq!(world.came.len(), before);
    let stats = world.receiver.stats();
    assert!(stats.old_key >= 50, "{stats:?}");
    assert_eq!(stats.forged, 0);
    // Once the sender has the new key, its packets are delivered again.
    world.key = SECOND;
    world.sender.renew();
    world.check_it_works();
    // The network's first key cannot become valid again.
    world.receiver.retire(Generation::FIRST);
    world.key = Generation::FIRST;
    world.sender.renew();
    let before = world.came.len();
    world.traffic(50, 7);
    world.pass(1500);
    assert_eq!(world.came.len(), before);
    assert!(world.receiver.stats().epochs_refused > 0);
}

#[test]
fn a_node_that_starts_after_a_rekey_hears_no_former_key() {
    let mut world = settled();
    world.restart_receiver(true);
    world.receiver.retire(SECOND);
    let before = world.came.len();
    world.traffic(50, 7);
    world.pass(1500);
    assert_eq!(world.came.len(), before);
    assert!(world.receiver.stats().epochs_refused > 0);
    world.key = SECOND;
    world.sender.renew();
    world.check_it_works();
}

#[test]
fn a_stream_without_packets_opens_no_epoch_for_a_new_key() {
    let mut world = settled();
    world.key = SECOND;
    world.sender.renew();
    world.pass(3000);
    assert_eq!(generations(&world).len(), 1);
    world.check_it_works();
    assert_eq!(generations(&world), [(1, LeafNo(1)), (2, LeafNo(1))]);
}
