//! Tests of nodes that an operator must approve.

use adit_mesh::join::JoinRefusal;
use adit_mesh::node::NodeEvent;
use adit_mesh::token::Terms;

use crate::world::{SECOND, World, name};

/// Returns a hub, and two machines that ask to join with the same token, which requires approval.
fn asking() -> World {
    let mut w = World::new(1);
    for n in 1..=3 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    let token = w.invite(0, Terms { approve: true, ..Terms::default() }, 1);
    w.join(1, token.clone(), "laptop");
    w.join(2, token, "thief");
    w.run_for(SECOND * 2);
    w
}

fn approve(w: &mut World, machine: usize) -> Result<(), JoinRefusal> {
    let key = w.machines[machine].key;
    w.act(0, |node, now, out| node.approve(now, &key, out))
}

#[test]
fn a_node_waits_until_it_is_approved() {
    let mut w = asking();
    assert_eq!(w.machines[1].waits.as_ref().unwrap().inviter, Some(name("hub")));
    let reported = |event: &&NodeEvent| matches!(event, NodeEvent::Waiting(_));
    w.run_for(SECOND * 100);
    assert_eq!(w.machines[0].events.iter().filter(reported).count(), 2, "once for each");
    assert_eq!(w.node(0).roster().members().count(), 1);
    assert_eq!(w.node(0).pending(w.now).count(), 2);
    approve(&mut w, 1).unwrap();
    w.run_for(SECOND * 5);
    assert_eq!(w.machines[1].join_result, Some(Ok(())));
    assert!(w.ping(1, 0, SECOND * 5).is_some());
    // The token is used up now.
    let refused = w.machines[2].join_result.clone().unwrap().unwrap_err();
    assert!(refused.contains("does not accept this invitation"), "{refused}");
    assert_eq!(w.node(0).roster().members().count(), 2);
}

#[test]
fn a_node_that_is_refused_learns_it_and_the_other_one_goes_on_waiting() {
    let mut w = asking();
    let thief = w.machines[2].key;
    assert!(w.act(0, |node, _, _| node.refuse_joiner(&thief)));
    w.run_for(SECOND * 5);
    let refused = w.machines[2].join_result.clone().unwrap().unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
    assert_eq!(approve(&mut w, 2), Err(JoinRefusal::NotWaiting));
    approve(&mut w, 1).unwrap();
    w.run_for(SECOND * 5);
    assert_eq!(w.machines[1].join_result, Some(Ok(())));
}

#[test]
fn a_node_goes_on_waiting_while_the_inviter_restarts() {
    let mut w = World::new(1);
    for n in 1..=2 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    let token = w.invite(0, Terms { approve: true, ..Terms::default() }, 1);
    let invitations = w.node(0).invitations().clone();
    w.join(1, token, "laptop");
    w.run_for(SECOND * 5);
    let changes = w.kill(0);
    w.run_for(SECOND * 120);
    assert_eq!(w.machines[1].join_result, None);
    w.machines[0].invitations = Some(invitations);
    w.start(0, changes);
    let asks = |w: &World| w.node(0).pending(w.now).count() == 1;
    assert!(w.run_until(SECOND * 30, asks));
    approve(&mut w, 1).unwrap();
    w.run_for(SECOND * 20);
    assert_eq!(w.machines[1].join_result, Some(Ok(())));
}

#[test]
fn a_node_that_stops_asking_is_forgotten_and_one_that_goes_on_gives_up_after_an_hour() {
    let mut w = asking();
    w.lose(2, "198.51.100.1");
    w.run_for(SECOND * 120);
    let waiting: Vec<_> = w.node(0).pending(w.now).map(|it| it.key).collect();
    assert_eq!(waiting, [w.machines[1].key]);
    w.run_for(SECOND * 3600);
    let given_up = w.machines[1].join_result.clone().unwrap().unwrap_err();
    assert!(given_up.contains("within an hour"), "{given_up}");
    assert_eq!(approve(&mut w, 1), Err(JoinRefusal::NotWaiting));
}
