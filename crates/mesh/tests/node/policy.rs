//! Tests that the policy reaches all members.

use adit_mesh::node::{MAX_POLICY, NodeEvent, PolicyState, SignError};

use crate::world::{SECOND, World};

/// Returns a hub with an admin's key, and three other members.
fn mesh() -> World {
    let mut w = World::new(1);
    for n in 1..=4 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    w.join_all(0, &[1, 2, 3]);
    w
}

fn set(w: &mut World, machine: usize, text: &str) -> Result<(), SignError> {
    let text = text.to_owned();
    w.act(machine, |node, now, out| node.set_policy(now, text, out)).map(drop)
}

fn has(w: &World, machine: usize, text: &str) -> bool {
    w.node(machine).policy() == PolicyState::Text(text)
}

#[test]
fn every_member_gets_the_text_in_pieces_and_so_does_one_that_joins_later() {
    let mut w = mesh();
    let text = "# a line of a policy\n".repeat(3000);
    assert!(text.len() > MAX_POLICY * 9 / 10);
    set(&mut w, 0, &text).unwrap();
    assert!(w.run_until(SECOND * 5, |w| (0..4).all(|machine| has(w, machine, &text))));
    let told = |event: &NodeEvent| matches!(event, NodeEvent::Policy);
    assert!(w.machines[3].events.iter().any(told));
    let late = w.machine("198.51.100.9", None);
    w.join_all(0, &[late]);
    assert_eq!(w.node(late).policy(), PolicyState::Missing);
    assert!(w.run_until(SECOND * 5, |w| has(w, late, &text)));
}

#[test]
fn a_member_without_the_text_asks_another_one() {
    let mut w = mesh();
    set(&mut w, 0, "one").unwrap();
    assert!(w.run_until(SECOND * 5, |w| (0..4).all(|machine| has(w, machine, "one"))));
    // Two members lose the text, and the signer is gone. If the first member asked does not have it, another one does.
    let (first, second) = (w.kill(1), w.kill(2));
    w.kill(0);
    w.start(1, first);
    w.start(2, second);
    assert_eq!(w.node(1).policy(), PolicyState::Missing);
    assert!(w.run_until(SECOND * 30, |w| has(w, 1, "one") && has(w, 2, "one")));
}

#[test]
fn a_policy_ends_and_only_an_admin_sets_one() {
    let mut w = mesh();
    set(&mut w, 0, "one").unwrap();
    assert!(w.run_until(SECOND * 5, |w| has(w, 3, "one")));
    assert_eq!(set(&mut w, 3, "other"), Err(SignError::NoRight));
    let long = "#".repeat(MAX_POLICY + 1);
    assert_eq!(set(&mut w, 0, &long), Err(SignError::PolicyTooLong(MAX_POLICY + 1)));
    assert!(has(&w, 0, "one"));
    set(&mut w, 0, "").unwrap();
    let none = |w: &World| (0..4).all(|machine| w.node(machine).policy() == PolicyState::None);
    assert!(w.run_until(SECOND * 5, none));
}
