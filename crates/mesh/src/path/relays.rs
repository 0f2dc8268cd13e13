//! The choice of relays and standing neighbours. Each node computes it for itself and for others.

use adit_crypto::sha256;

use super::KeyHash;

/// How many relays a node registers its addresses with.
pub const RELAYS_PER_NODE: usize = 2;

/// How many neighbours a node always keeps a session with.
pub const STANDING_NEIGHBOURS: usize = 4;

/// Returns the relays of a node: the given members with the highest hashes, at most [`RELAYS_PER_NODE`].
///
/// Rendezvous hashing (Thaler and Ravishankar, 1998): every node that has the same roster computes the same relays, and a
/// relay that joins or leaves changes only the choice of the nodes that gain or lose it.
pub fn relays_of(mesh: &[u8; 16], node: &KeyHash, relays: &[KeyHash]) -> Vec<KeyHash> {
    highest(relays, RELAYS_PER_NODE, |relay| {
        (relay != node).then(|| sha256(&[b"adit mesh relay 1", mesh, node, relay]))
    })
}

/// Returns the members that a node always keeps a session with: its relays, and others by rendezvous hashing up to [`STANDING_NEIGHBOURS`].
/// The last of these changes each hour, so that changes spread from any part of a large mesh to any other; `hour` is the number of hours
/// since 1970.
pub fn standing_neighbours(
    mesh: &[u8; 16],
    node: &KeyHash,
    members: &[KeyHash],
    relays: &[KeyHash],
    hour: u64,
) -> Vec<KeyHash> {
    let mut chosen = relays_of(mesh, node, relays);
    let free = |member: &KeyHash, chosen: &[KeyHash]| member != node && !chosen.contains(member);
    let lasting = STANDING_NEIGHBOURS.saturating_sub(chosen.len()).saturating_sub(1);
    let more = highest(members, lasting, |member| {
        free(member, &chosen).then(|| sha256(&[b"adit mesh neighbour 1", mesh, node, member]))
    });
    chosen.extend(more);
    let hour = hour.to_be_bytes();
    let changing = highest(members, 1, |member| {
        free(member, &chosen).then(|| sha256(&[b"adit mesh hour 1", mesh, &hour, node, member]))
    });
    chosen.extend(changing);
    chosen
}

/// Returns the `count` members with the highest weight, highest first. Members without a weight are left out.
fn highest(
    members: &[KeyHash],
    count: usize,
    weight: impl Fn(&KeyHash) -> Option<[u8; 32]>,
) -> Vec<KeyHash> {
    let mut weighted: Vec<_> =
        members.iter().filter_map(|member| Some((weight(member)?, *member))).collect();
    weighted.sort_unstable_by(|a, b| b.cmp(a));
    weighted.dedup();
    weighted.into_iter().take(count).map(|(_, member)| member).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MESH: [u8; 16] = [7; 16];

    fn members(count: u16) -> Vec<KeyHash> {
        (0..count).map(|number| sha256(&[&number.to_be_bytes()])).collect()
    }

    #[test]
    fn the_order_of_the_members_does_not_matter() {
        let members = members(50);
        let mut reversed = members.clone();
        reversed.reverse();
        reversed.push(members[3]);
        let (node, relays) = (&members[0], &members[10..20]);
        let mut relays_reversed = relays.to_vec();
        relays_reversed.reverse();
        assert_eq!(relays_of(&MESH, node, relays), relays_of(&MESH, node, &relays_reversed));
        assert_eq!(
            standing_neighbours(&MESH, node, &members, relays, 5),
            standing_neighbours(&MESH, node, &reversed, &relays_reversed, 5)
        );
        assert_ne!(relays_of(&MESH, node, relays), relays_of(&[8; 16], node, relays));
    }

    #[test]
    fn relays_share_the_nodes_and_a_lost_relay_moves_only_its_own() {
        let (members, all) = (members(1000), members(1010)[1000..].to_vec());
        let lost = all[0];
        let (mut served, mut moved) = (0, 0);
        for node in &members {
            let before = relays_of(&MESH, node, &all);
            let after = relays_of(&MESH, node, &all[1..]);
            served += usize::from(before.contains(&lost));
            moved += usize::from(before != after);
            assert!(before.iter().filter(|relay| **relay != lost).all(|r| after.contains(r)));
        }
        assert_eq!(served, moved);
        assert!((150..250).contains(&served), "{served} of 2000 places at one of 10 relays");
    }

    #[test]
    fn four_neighbours_of_which_one_changes_each_hour() {
        let members = members(100);
        let (node, relays) = (members[0], &members[..4]);
        let at = |hour| standing_neighbours(&MESH, &node, &members, relays, hour);
        let mut changing = BTreeSet::new();
        for hour in 0..50 {
            let neighbours = at(hour);
            let distinct: BTreeSet<_> = neighbours.iter().collect();
            assert_eq!(distinct.len(), STANDING_NEIGHBOURS);
            assert!(!neighbours.contains(&node));
            assert_eq!(neighbours[..2], relays_of(&MESH, &node, relays));
            assert_eq!(neighbours[..3], at(0)[..3]);
            changing.insert(neighbours[3]);
        }
        assert!(changing.len() > 20, "{} different ones", changing.len());
    }

    #[test]
    fn small_meshes_have_as_many_neighbours_as_there_are() {
        let members = members(3);
        let neighbours =
            |relays: &[KeyHash]| standing_neighbours(&MESH, &members[0], &members, relays, 0).len();
        assert_eq!(neighbours(&[]), 2);
        assert_eq!(neighbours(&members), 2);
        assert_eq!(standing_neighbours(&MESH, &members[0], &members[..1], &[], 0), [[0; 32]; 0]);
    }
}
