//! Tests of the rights of several admins, and of replaced admin keys.

use adit_crypto::sign::SigningKey;
use adit_mesh::node::{SignError, Signed};
use adit_mesh::roster::{Action, Revocation, Right, Rotation};
use adit_mesh::session::KeyHash;

use crate::world::{SECOND, World, hash};

const MACHINES: usize = 3;

/// Returns a hub with an admin's key, and two other members.
fn mesh() -> World {
    let mut w = World::new(1);
    for n in 1..=MACHINES {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    w.join_all(0, &[1, 2]);
    w
}

fn sign(w: &mut World, machine: usize, action: Action) -> Result<Signed, SignError> {
    w.act(machine, |node, now, out| node.sign(now, action, out))
}

fn admin(key: KeyHash) -> Action {
    Action::Grant { key, right: Right::Admin }
}

/// Waits until a condition holds for every member.
fn wait_for_all(w: &mut World, what: &str, is_true: impl Fn(&World, usize) -> bool) {
    let done = |w: &World| (0..MACHINES).all(|machine| is_true(w, machine));
    assert!(w.run_until(SECOND * 10, done), "{what}");
}

#[test]
fn a_right_waits_on_all_members_until_two_admins_have_signed() {
    let mut w = mesh();
    let (second, third) = (w.machines[1].key, w.machines[2].key);
    let is_admin = |key| move |w: &World, at| w.node(at).roster().admins().contains(&key);
    assert!(!sign(&mut w, 0, admin(second)).unwrap().is_waiting);
    wait_for_all(&mut w, "the second admin", is_admin(second));
    let raised = sign(&mut w, 0, Action::SetThreshold(2)).unwrap();
    assert!(raised.is_waiting);
    wait_for_all(&mut w, "the waiting threshold", |w, at| {
        w.node(at).changes().get(&raised.change).is_some()
    });
    assert!(!sign(&mut w, 1, Action::Approve(raised.change)).unwrap().is_waiting);
    wait_for_all(&mut w, "the threshold", |w, at| w.node(at).roster().threshold() == 2);

    let granted = sign(&mut w, 0, admin(third)).unwrap();
    assert!(granted.is_waiting);
    wait_for_all(&mut w, "the waiting right", |w, at| {
        w.node(at).changes().get(&granted.change).is_some()
    });
    for at in 0..MACHINES {
        assert!(!w.node(at).roster().admins().contains(&third), "unapproved on {at}");
    }
    assert_eq!(sign(&mut w, 2, Action::Approve(granted.change)), Err(SignError::NoRight));
    sign(&mut w, 1, Action::Approve(granted.change)).unwrap();
    wait_for_all(&mut w, "the third admin", is_admin(third));
}

#[test]
fn a_key_that_is_replaced_signs_no_more_and_the_members_stay_with_their_addresses() {
    let mut w = mesh();
    let addresses = |w: &World, at: usize| -> Vec<_> {
        w.node(at).roster().members().map(|it| (it.key, it.ipv4, it.ipv6)).collect()
    };
    let before = addresses(&w, 0);
    let old = w.node(0).admin_key().unwrap();
    let new_key = SigningKey::from_seed(&[0xae; 32]).unwrap();
    let new = hash(&new_key);
    let heads = w.node(0).changes().heads();
    let last = heads.into_iter().find(|head| head.signer == old).map(|head| head.hash);
    let rotated = sign(&mut w, 0, Action::Rotate(Rotation { old, new, last })).unwrap();
    assert!(!rotated.is_waiting);
    wait_for_all(&mut w, "the new key", |w, at| *w.node(at).roster().admins() == [new].into());
    for at in 0..MACHINES {
        assert_eq!(addresses(&w, at), before, "{at}");
    }

    let removed = w.machines[2].key;
    let revocation = Revocation { key: removed, last: None, with_invited: false };
    let refused = sign(&mut w, 0, Action::Revoke(revocation.clone()));
    assert_eq!(refused, Err(SignError::NoRight), "the old key");
    w.act(0, |node, _, _| node.set_admin_key(new_key));
    sign(&mut w, 0, Action::Revoke(revocation)).unwrap();
    let is_removed = |w: &World| w.node(1).roster().member(&removed).is_none();
    assert!(w.run_until(SECOND * 10, is_removed), "the new key");
}
