//! Attacks by the thief of a signer's key.

use super::*;
use crate::roster::Change;

#[test]
fn a_stolen_key_does_not_end_another_chain_at_its_beginning() {
    let (admins, mut changes) = mesh(3, 2);
    let inviting = Signer::new(9);
    let grant = write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    write(&mut changes, &admins[1], Action::Approve(grant));
    write(&mut changes, &inviting, admit(1));
    write(&mut changes, &admins[0], admit(2));
    let members = |changes: &Changes| roster(changes).members().count();
    for victim in [&inviting, &admins[0]] {
        let mut stolen = changes.clone();
        let end = write(&mut stolen, &admins[2], revoke(victim.hash, None));
        assert_eq!(reason(&stolen, end), Some(Refusal::Unapproved));
        assert_eq!(members(&stolen), 2);
        // Its own approval does not count as another admin's.
        write(&mut stolen, &admins[2], Action::Approve(end));
        assert_eq!(members(&stolen), 2);
    }
}

#[test]
fn a_fork_at_an_old_number_undoes_no_other_signers_changes_and_no_revocation() {
    let (admins, mut changes) = mesh(3, 1);
    let mut old = changes.clone();
    write(&mut changes, &admins[1], admit(1));
    write(&mut changes, &admins[0], admit(2));
    write(&mut changes, &admins[1], revoke(node_key(3), None));
    write(&mut changes, &admins[0], admit(3));
    // The thief's first change has the number of the owner's first one.
    write(&mut old, &admins[1], admit(9));
    changes.merge(&old);
    assert!(has(&changes, 2) && !has(&changes, 3) && !has(&changes, 9));
    assert!(!has(&changes, 1), "nothing of the chain counts until a branch is chosen");
    // A more senior admin chooses the owner's branch: everything is as before, without the thief's changes.
    let all = changes.in_causal_order();
    let owners = all.iter().filter(|change| change.signer() == admins[1].hash);
    let tip = owners.max_by_key(|change| change.body().number).map(|change| change.hash());
    write(&mut changes, &admins[0], revoke(admins[1].hash, tip));
    assert!(has(&changes, 1) && has(&changes, 2) && !has(&changes, 3) && !has(&changes, 9));
}

#[test]
fn a_change_with_a_ground_hash_does_not_take_a_name_or_an_address_from_a_senior_signer() {
    let (admins, changes) = mesh(2, 1);
    let claim = |number| {
        admit_as(number, |node| {
            node.name = name("web");
            node.ipv4 = Some([100, 87, 1, 7].into());
        })
    };
    let mut senior = changes.clone();
    let held = write(&mut senior, &admins[0], claim(1));
    // A signer chooses its own times, so it can produce any number of hashes.
    let tries = (0..10_000).map(|second| {
        let body = changes.draft(admins[1].hash, UnixTime(NOW.0 + second), claim(2)).unwrap();
        admins[1].sign(changes.mesh(), body)
    });
    let ground: Change = tries.into_iter().find(|change| change.hash() < held).unwrap();
    senior.insert(ground).unwrap();
    let roster = roster(&senior);
    assert_eq!(roster.by_name(&name("web")).unwrap().key, node_key(1));
    assert_eq!(roster.by_address([100, 87, 1, 7].into()).unwrap().key, node_key(1));
    assert!(roster.member(&node_key(2)).is_some(), "it is a member without them");
}

#[test]
fn ghosts_of_a_stolen_key_go_with_it_and_what_they_took_is_free_again() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[1], admit(1));
    let mut owners = changes.clone();
    for ghost in 10..40 {
        let taken = format!("web{ghost}");
        write(&mut changes, &admins[1], admit_as(ghost, |node| node.name = name(&taken)));
    }
    assert_eq!(roster(&changes).members().count(), 31);
    // The first admin has not seen the ghosts, so they are void wherever they arrive.
    let action = revoke_signer(&owners, &admins[1]);
    write(&mut owners, &admins[0], action);
    write(&mut owners, &admins[0], admit_as(2, |node| node.name = name("web10")));
    changes.merge(&owners);
    let roster = roster(&changes);
    let members: BTreeSet<KeyHash> = roster.members().map(|member| member.key).collect();
    assert_eq!(members, [node_key(1), node_key(2)].into());
    assert_eq!(roster.by_name(&name("web10")).unwrap().key, node_key(2));
}

#[test]
fn ghosts_that_were_seen_go_with_everything_that_the_key_admitted() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[0], admit(1));
    (10..20).for_each(|ghost| {
        write(&mut changes, &admins[1], admit(ghost));
    });
    let last = last_of(&changes, &admins[1]);
    let revocation = Revocation { key: admins[1].hash, last, with_invited: true };
    write(&mut changes, &admins[0], Action::Revoke(revocation));
    let members: Vec<KeyHash> = roster(&changes).members().map(|member| member.key).collect();
    assert_eq!(members, [node_key(1)]);
}

#[test]
fn a_key_from_a_backup_that_signs_again_brings_nothing_back_and_stops() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[1], admit(1));
    let mut backup = changes.clone();
    write(&mut changes, &admins[1], revoke(node_key(1), None));
    write(&mut changes, &admins[1], admit(2));
    // The restored machine has neither, and continues its chain.
    write(&mut backup, &admins[1], admit(3));
    write(&mut backup, &admins[1], admit(1));
    changes.merge(&backup);
    assert!(!has(&changes, 1) && !has(&changes, 2) && !has(&changes, 3));
    // It notices when it hears of the other branch.
    let draft = changes.draft(admins[1].hash, NOW, admit(4));
    assert_eq!(draft, Err(crate::roster::DraftError::Forked));
}
