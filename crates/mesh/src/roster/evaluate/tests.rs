use std::collections::BTreeSet;

use adit_engine::UnixTime;

use super::*;
use crate::roster::testing::{
    NOW, Signer, admit, genesis, grant_admin, name, node_key, shuffled, write,
};
use crate::roster::{NodeInfo, Revocation, Rotation, ipv6_of};

mod attacks;
mod conflicts;
mod leaves;
mod properties;

/// Returns admins of a genesis, most senior first, and an empty set of changes.
fn mesh(admins: u8, threshold: u8) -> (Vec<Signer>, Changes) {
    let admins: Vec<_> = (1..=admins).map(Signer::new).collect();
    let changes = Changes::new(genesis(&admins, threshold)).unwrap();
    (admins, changes)
}

fn revoke(key: KeyHash, last: Option<ChangeHash>) -> Action {
    Action::Revoke(Revocation { key, last, with_invited: false })
}

/// Returns the revocation of a signer after its last change in the set.
fn revoke_signer(changes: &Changes, signer: &Signer) -> Action {
    revoke(signer.hash, last_of(changes, signer))
}

fn last_of(changes: &Changes, signer: &Signer) -> Option<ChangeHash> {
    changes.heads().into_iter().find(|head| head.signer == signer.hash).map(|head| head.hash)
}

fn rotate(changes: &Changes, old: &Signer, new: &Signer) -> Action {
    let last = last_of(changes, old);
    Action::Rotate(Rotation { old: old.hash, new: new.hash, last })
}

fn admit_as(number: u8, edit: impl FnOnce(&mut NodeInfo)) -> Action {
    let mut node = NodeInfo::named(name(&format!("node{number}")));
    edit(&mut node);
    Action::Admit { key: node_key(number), node }
}

fn set_names(number: u8, edit: impl FnOnce(&mut NodeInfo)) -> Action {
    match admit_as(number, edit) {
        Action::Admit { key, node } => Action::SetNames { key, node },
        other => other,
    }
}

fn inviter() -> Inviter {
    Inviter {
        groups: [name("staff")].into(),
        range: Some("100.87.1.0/24".parse().unwrap()),
        subnets: ["10.0.0.0/8".parse().unwrap()].into(),
        relay: false,
        gateway: false,
        leaves: false,
        count: 2,
        until: Some(NOW),
    }
}

fn grant_inviter(to: &Signer, limits: Inviter) -> Action {
    Action::Grant { key: to.hash, right: Right::Inviter(limits) }
}

/// Evaluates a set, and checks the properties that every roster has.
fn roster(changes: &Changes) -> Roster {
    let roster = Roster::evaluate(changes);
    for member in roster.members() {
        assert!(!roster.revoked().contains(&member.key), "a revoked member");
        assert_eq!(roster.by_address(member.ipv6.into()), Some(member));
        assert_eq!(member.ipv6, ipv6_of(changes.mesh(), &member.first_key));
        for (name, ipv4) in member.name.iter().zip(member.ipv4) {
            assert_eq!(roster.by_name(name), Some(member));
            assert_eq!(roster.by_address(ipv4.into()), Some(member));
        }
    }
    assert!(roster.admins().is_disjoint(roster.revoked()));
    roster
}

fn has(changes: &Changes, number: u8) -> bool {
    roster(changes).member(&node_key(number)).is_some()
}

fn reason(changes: &Changes, change: ChangeHash) -> Option<Refusal> {
    roster(changes).warnings().iter().find_map(|warning| match warning {
        Warning::Ignored { change: ignored, reason } if *ignored == change => Some(*reason),
        _ => None,
    })
}

#[test]
fn an_empty_mesh_has_the_admins_of_its_genesis() {
    let (admins, changes) = mesh(2, 2);
    let roster = roster(&changes);
    assert_eq!(roster.members().count(), 0);
    assert_eq!(*roster.admins(), admins.iter().map(|admin| admin.hash).collect());
    assert_eq!((roster.threshold(), roster.policy()), (2, None));
}

#[test]
fn a_node_is_a_member_until_it_is_revoked_and_never_again() {
    let (admins, mut changes) = mesh(1, 1);
    write(&mut changes, &admins[0], admit(1));
    assert!(has(&changes, 1));
    write(&mut changes, &admins[0], revoke(node_key(1), None));
    assert!(!has(&changes, 1));
    write(&mut changes, &admins[0], admit(1));
    assert!(!has(&changes, 1));
    assert!(roster(&changes).revoked().contains(&node_key(1)));
}

#[test]
fn revoke_beats_a_concurrent_admit() {
    let (admins, changes) = mesh(2, 1);
    let (mut one, mut other) = (changes.clone(), changes);
    write(&mut one, &admins[0], admit(1));
    write(&mut other, &admins[1], revoke(node_key(1), None));
    one.merge(&other);
    assert!(!has(&one, 1));
}

#[test]
fn a_right_counts_in_the_signers_own_view_only() {
    let (admins, mut changes) = mesh(1, 1);
    let (granted, inviting) = (Signer::new(8), Signer::new(9));
    write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    let early = write(&mut changes, &inviting, grant_admin(&granted));
    assert_eq!(reason(&changes, early), Some(Refusal::NoRight));
    write(&mut changes, &admins[0], grant_admin(&inviting));
    // The signer did not have the right when it signed the first one.
    assert_eq!(reason(&changes, early), Some(Refusal::NoRight));
    assert!(!roster(&changes).admins().contains(&granted.hash));
    write(&mut changes, &inviting, grant_admin(&granted));
    assert!(roster(&changes).admins().contains(&granted.hash));
}

#[test]
fn changes_after_the_end_of_a_chain_do_not_count_whatever_they_claim_to_have_seen() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[1], admit(1));
    let mut stolen = changes.clone();
    let action = revoke_signer(&changes, &admins[1]);
    write(&mut changes, &admins[0], action);
    let late = write(&mut stolen, &admins[1], admit(2));
    changes.merge(&stolen);
    assert!(has(&changes, 1) && !has(&changes, 2));
    assert_eq!(reason(&changes, late), Some(Refusal::Ended));
    let later = write(&mut changes, &admins[1], admit(3));
    assert_eq!(reason(&changes, later), Some(Refusal::NoRight));
}

#[test]
fn nodes_stay_when_their_signer_is_revoked_unless_it_is_with_invited() {
    for with_invited in [false, true] {
        let (admins, mut changes) = mesh(2, 1);
        write(&mut changes, &admins[1], admit(1));
        write(&mut changes, &admins[0], admit(2));
        let last = last_of(&changes, &admins[1]);
        let revocation = Revocation { key: admins[1].hash, last, with_invited };
        write(&mut changes, &admins[0], Action::Revoke(revocation));
        assert_eq!(has(&changes, 1), !with_invited);
        assert!(has(&changes, 2));
        // The node's key is not revoked: it can be admitted again.
        write(&mut changes, &admins[0], admit(1));
        assert!(has(&changes, 1));
    }
}

#[test]
fn of_concurrent_mutual_revocations_the_senior_signers_counts() {
    for senior_first in [true, false] {
        let (admins, changes) = mesh(2, 1);
        let (mut one, mut other) = (changes.clone(), changes.clone());
        write(&mut one, &admins[0], revoke(admins[1].hash, None));
        write(&mut other, &admins[1], revoke(admins[0].hash, None));
        assert!(roster(&other).revoked().contains(&admins[0].hash));
        let mut all = if senior_first { one.clone() } else { other.clone() };
        all.merge(&one);
        all.merge(&other);
        assert_eq!(*roster(&all).revoked(), [admins[1].hash].into());
        assert_eq!(*roster(&all).admins(), [admins[0].hash].into());
    }
}

#[test]
fn the_depth_of_the_grant_decides_after_the_genesis() {
    let (admins, mut changes) = mesh(1, 1);
    let (child, grandchild) = (Signer::new(8), Signer::new(9));
    write(&mut changes, &admins[0], grant_admin(&child));
    write(&mut changes, &child, grant_admin(&grandchild));
    let (mut one, mut other) = (changes.clone(), changes);
    let action = revoke_signer(&one, &grandchild);
    write(&mut one, &child, action);
    let action = revoke_signer(&other, &child);
    write(&mut other, &grandchild, action);
    one.merge(&other);
    assert_eq!(*roster(&one).revoked(), [grandchild.hash].into());
}

#[test]
fn revocations_in_a_circle_leave_the_most_senior_signers() {
    let (admins, changes) = mesh(3, 1);
    let mut all = changes.clone();
    for (at, admin) in admins.iter().enumerate() {
        let mut alone = changes.clone();
        write(&mut alone, admin, revoke(admins[(at + 1) % 3].hash, None));
        all.merge(&alone);
    }
    // The first revokes the second, so the second's revocation of the third is void, but the third's revocation of the first is not.
    assert_eq!(*roster(&all).revoked(), [admins[1].hash, admins[0].hash].into());
}

#[test]
fn a_concurrent_revocation_by_a_revoked_signer_is_void_and_a_seen_one_is_not() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[0], admit(1));
    let mut hidden = changes.clone();
    write(&mut hidden, &admins[1], revoke(node_key(1), None));
    // Revoked at its beginning.
    let mut unseen = changes.clone();
    write(&mut unseen, &admins[0], revoke(admins[1].hash, None));
    unseen.merge(&hidden);
    assert!(has(&unseen, 1));
    let mut seen = hidden.clone();
    write(&mut seen, &admins[0], revoke(admins[1].hash, None));
    assert!(!has(&seen, 1));
}

#[test]
fn to_end_a_chain_before_what_was_seen_needs_the_threshold() {
    let (admins, mut changes) = mesh(2, 2);
    let inviting = Signer::new(9);
    let grant = write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    write(&mut changes, &admins[1], Action::Approve(grant));
    let first = write(&mut changes, &inviting, admit(1));
    write(&mut changes, &inviting, admit(2));
    let mut at_the_end = changes.clone();
    let action = revoke_signer(&changes, &inviting);
    write(&mut at_the_end, &admins[0], action);
    assert!(roster(&at_the_end).revoked().contains(&inviting.hash));
    assert!(has(&at_the_end, 2));
    let before = write(&mut changes, &admins[0], revoke(inviting.hash, Some(first)));
    assert_eq!(reason(&changes, before), Some(Refusal::Unapproved));
    assert!(roster(&changes).inviters().contains_key(&inviting.hash) && has(&changes, 2));
    write(&mut changes, &admins[1], Action::Approve(before));
    assert!(roster(&changes).revoked().contains(&inviting.hash));
    assert!(has(&changes, 1) && !has(&changes, 2));
}

#[test]
fn an_inviter_does_not_undo_its_own_admissions_without_the_admins() {
    let (admins, mut changes) = mesh(1, 1);
    let inviting = Signer::new(9);
    write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    let first = write(&mut changes, &inviting, admit(1));
    write(&mut changes, &inviting, admit(2));
    let end = write(&mut changes, &inviting, revoke(inviting.hash, Some(first)));
    assert_eq!(reason(&changes, end), Some(Refusal::Unapproved));
    assert!(has(&changes, 2));
    let mut approved = changes.clone();
    write(&mut approved, &admins[0], Action::Approve(end));
    assert!(!has(&approved, 2) && has(&approved, 1));
    // It may resign.
    let action = revoke_signer(&changes, &inviting);
    write(&mut changes, &inviting, action);
    assert!(roster(&changes).inviters().is_empty() && has(&changes, 2));
}

/// Returns a set in which the second admin has written twice after the same change.
fn forked() -> (Vec<Signer>, Changes, [ChangeHash; 2]) {
    let (admins, mut changes) = mesh(3, 1);
    write(&mut changes, &admins[1], admit(1));
    let mut other = changes.clone();
    let one_tip = write(&mut changes, &admins[1], admit(2));
    let other_tip = write(&mut other, &admins[1], admit(3));
    changes.merge(&other);
    (admins, changes, [one_tip, other_tip])
}

#[test]
fn changes_after_a_fork_do_not_count() {
    let (admins, changes, tips) = forked();
    assert!(has(&changes, 1) && !has(&changes, 2) && !has(&changes, 3));
    assert_eq!(tips.map(|tip| reason(&changes, tip)), [Some(Refusal::Forked); 2]);
    let warning = Warning::Fork { signer: admins[1].hash };
    assert!(roster(&changes).warnings().contains(&warning));
}

#[test]
fn a_senior_admin_chooses_a_branch_and_a_junior_one_does_not() {
    for (by, chosen) in [(0, true), (2, false)] {
        let (admins, mut changes, [tip, _]) = forked();
        write(&mut changes, &admins[by], revoke(admins[1].hash, Some(tip)));
        assert!(has(&changes, 1) && !has(&changes, 3));
        assert_eq!(has(&changes, 2), chosen);
        assert!(roster(&changes).revoked().contains(&admins[1].hash));
    }
}

#[test]
fn a_fork_does_not_bring_back_revoked_keys() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[0], admit(1));
    write(&mut changes, &admins[0], admit(2));
    let mut old_copy = changes.clone();
    write(&mut changes, &admins[1], revoke(node_key(1), None));
    write(&mut changes, &admins[1], revoke(node_key(2), None));
    write(&mut old_copy, &admins[1], admit(9));
    changes.merge(&old_copy);
    assert_eq!(changes.forks().count(), 1);
    assert!(!has(&changes, 1) && !has(&changes, 2));
}

#[test]
fn important_changes_need_as_many_admins_as_the_threshold() {
    let inviting = Signer::new(9);
    let new = Signer::new(8);
    let actions = |admins: &[Signer]| {
        [
            grant_admin(&new),
            grant_inviter(&inviting, inviter()),
            Action::SetPolicy([5; 32]),
            Action::SetThreshold(1),
            revoke(admins[2].hash, None),
            Action::Rotate(Rotation { old: admins[2].hash, new: new.hash, last: None }),
        ]
    };
    for at in 0..6 {
        let (admins, mut changes) = mesh(3, 2);
        let before = roster(&changes);
        let action = actions(&admins)[at].clone();
        let change = write(&mut changes, &admins[0], action.clone());
        assert_eq!(reason(&changes, change), Some(Refusal::Unapproved), "{action:?}");
        write(&mut changes, &admins[0], Action::Approve(change));
        assert_eq!(reason(&changes, change), Some(Refusal::Unapproved), "by itself: {action:?}");
        assert_eq!(roster(&changes).admins(), before.admins());
        write(&mut changes, &admins[1], Action::Approve(change));
        assert_eq!(reason(&changes, change), None, "{action:?}");
        let after = Roster { warnings: Vec::new(), ..roster(&changes) };
        assert_ne!(after, before, "{action:?}");
    }
}

#[test]
fn admitting_and_revoking_a_node_needs_one_admin() {
    let (admins, mut changes) = mesh(3, 3);
    write(&mut changes, &admins[2], admit(1));
    assert!(has(&changes, 1));
    write(&mut changes, &admins[1], revoke(node_key(1), None));
    assert!(!has(&changes, 1));
}

#[test]
fn only_admins_approve_and_each_once() {
    let (admins, mut changes) = mesh(3, 3);
    let new = Signer::new(8);
    let change = write(&mut changes, &admins[0], grant_admin(&new));
    write(&mut changes, &admins[1], Action::Approve(change));
    write(&mut changes, &admins[1], Action::Approve(change));
    assert_eq!(reason(&changes, change), Some(Refusal::Unapproved));
    // The second admin replaces its key, with the approval of all three.
    let mut rotated = changes.clone();
    let second = Signer::new(12);
    let action = rotate(&rotated, &admins[1], &second);
    let rotation = write(&mut rotated, &admins[1], action);
    write(&mut rotated, &admins[0], Action::Approve(rotation));
    write(&mut rotated, &admins[2], Action::Approve(rotation));
    assert!(roster(&rotated).admins().contains(&second.hash));
    write(&mut rotated, &second, Action::Approve(change));
    assert_eq!(reason(&rotated, change), Some(Refusal::Unapproved));
    write(&mut changes, &admins[2], Action::Approve(change));
    assert_eq!(reason(&changes, change), None);
}

#[test]
fn an_approval_after_the_end_of_a_chain_does_not_count() {
    let (admins, mut changes) = mesh(3, 2);
    let mut stolen = changes.clone();
    let end = write(&mut changes, &admins[0], revoke(admins[2].hash, None));
    write(&mut changes, &admins[1], Action::Approve(end));
    let grant = write(&mut stolen, &admins[1], grant_admin(&Signer::new(8)));
    let mut approved = stolen.clone();
    write(&mut approved, &admins[2], Action::Approve(grant));
    assert_eq!(reason(&approved, grant), None);
    // The second admin has two branches in this test, so it signs again.
    let (_, mut changes) = mesh(3, 2);
    let mut stolen = changes.clone();
    let grant = write(&mut changes, &admins[1], grant_admin(&Signer::new(8)));
    stolen.merge(&changes);
    let end = write(&mut changes, &admins[0], revoke(admins[2].hash, None));
    write(&mut changes, &admins[1], Action::Approve(end));
    write(&mut stolen, &admins[2], Action::Approve(grant));
    changes.merge(&stolen);
    assert_eq!(reason(&changes, grant), Some(Refusal::Unapproved));
    assert!(roster(&changes).revoked().contains(&admins[2].hash));
}

#[test]
fn the_older_and_the_newer_threshold_both_count() {
    // When the threshold is raised, the older one is not enough for the raise itself.
    let (admins, mut changes) = mesh(3, 1);
    let raise = write(&mut changes, &admins[0], Action::SetThreshold(2));
    assert_eq!(reason(&changes, raise), Some(Refusal::Unapproved));
    let old = write(&mut changes, &admins[0], Action::SetPolicy([5; 32]));
    assert_eq!(reason(&changes, old), None, "the raise is not yet in force");
    write(&mut changes, &admins[1], Action::Approve(raise));
    assert_eq!(roster(&changes).threshold(), 2);
    assert_eq!(reason(&changes, old), None, "signed before the raise");
    // When the threshold is lowered, the newer one is not enough for changes signed before.
    let (_, mut changes) = mesh(3, 3);
    let old = write(&mut changes, &admins[0], Action::SetPolicy([5; 32]));
    let lower = write(&mut changes, &admins[0], Action::SetThreshold(2));
    write(&mut changes, &admins[1], Action::Approve(lower));
    write(&mut changes, &admins[2], Action::Approve(lower));
    assert_eq!(roster(&changes).threshold(), 2);
    write(&mut changes, &admins[1], Action::Approve(old));
    assert_eq!(reason(&changes, old), Some(Refusal::Unapproved));
    write(&mut changes, &admins[2], Action::Approve(old));
    assert_eq!(reason(&changes, old), None);
    // The threshold is raised between the change and its approval.
    let (_, mut changes) = mesh(3, 2);
    let old = write(&mut changes, &admins[0], Action::SetPolicy([5; 32]));
    let raise = write(&mut changes, &admins[0], Action::SetThreshold(3));
    write(&mut changes, &admins[1], Action::Approve(raise));
    write(&mut changes, &admins[2], Action::Approve(raise));
    write(&mut changes, &admins[1], Action::Approve(old));
    assert_eq!(reason(&changes, old), Some(Refusal::Unapproved));
    write(&mut changes, &admins[2], Action::Approve(old));
    assert_eq!(reason(&changes, old), None);
}

#[test]
fn all_admins_together_reach_a_threshold_above_their_number() {
    let (admins, mut changes) = mesh(3, 3);
    let end = write(&mut changes, &admins[0], revoke(admins[2].hash, None));
    write(&mut changes, &admins[1], Action::Approve(end));
    assert_eq!(roster(&changes).admins().len(), 3, "the third has not approved");
    // It resigns instead, which needs no approval.
    write(&mut changes, &admins[2], revoke(admins[2].hash, None));
    assert_eq!(roster(&changes).admins().len(), 2);
    assert_eq!(roster(&changes).threshold(), 2);
}

#[test]
fn an_inviter_stays_within_each_limit() {
    let (admins, mut changes) = mesh(1, 1);
    let inviting = Signer::new(9);
    write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    let good = |node: &mut NodeInfo| {
        node.groups = [name("staff")].into();
        node.ipv4 = Some([100, 87, 1, 7].into());
        node.subnets = ["10.1.0.0/16".parse().unwrap()].into();
    };
    let with = |edit: &dyn Fn(&mut NodeInfo)| {
        let mut changes = changes.clone();
        let action = admit_as(1, |node| {
            good(node);
            edit(node);
        });
        let change = write(&mut changes, &inviting, action);
        reason(&changes, change)
    };
    assert_eq!(with(&|_| {}), None);
    type Edit<'a> = &'a dyn Fn(&mut NodeInfo);
    let cases: [(Limit, Edit<'_>); 5] = [
        (Limit::Groups, &|node| node.groups = [name("ops")].into()),
        (Limit::Range, &|node| node.ipv4 = Some([100, 87, 2, 7].into())),
        (Limit::Subnets, &|node| node.subnets = ["192.168.1.0/24".parse().unwrap()].into()),
        (Limit::Relay, &|node| node.relay = true),
        (Limit::Gateway, &|node| node.gateway = true),
    ];
    for (limit, edit) in cases {
        assert_eq!(with(edit), Some(Refusal::Limit(limit)));
    }
}

#[test]
fn an_inviter_admits_as_many_nodes_as_granted_and_until_its_time() {
    let (admins, mut changes) = mesh(1, 1);
    let inviting = Signer::new(9);
    write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    write(&mut changes, &inviting, admit(1));
    // A change that does not count, between two admissions, does not restart the count.
    write(&mut changes, &inviting, Action::SetThreshold(1));
    write(&mut changes, &inviting, admit(2));
    write(&mut changes, &inviting, Action::SetThreshold(1));
    let third = write(&mut changes, &inviting, admit(3));
    assert_eq!(reason(&changes, third), Some(Refusal::Limit(Limit::Count)));
    // A new grant allows as many again.
    write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    let again = write(&mut changes, &inviting, admit(3));
    assert_eq!(reason(&changes, again), None);
    let mut body = changes.draft(inviting.hash, UnixTime(NOW.0 + 1), admit(4)).unwrap();
    let late = inviting.sign(changes.mesh(), body.clone());
    let mut at_late = changes.clone();
    at_late.insert(late.clone()).unwrap();
    assert_eq!(reason(&at_late, late.hash()), Some(Refusal::Limit(Limit::Until)));
    // Time does not go back within a chain.
    (body.number, body.previous, body.time) = (body.number + 1, late.hash(), NOW);
    let back = inviting.sign(changes.mesh(), body);
    at_late.insert(back.clone()).unwrap();
    assert_eq!(reason(&at_late, back.hash()), Some(Refusal::Limit(Limit::Until)));
}

#[test]
fn an_inviter_does_nothing_else() {
    let (admins, mut changes) = mesh(1, 1);
    let inviting = Signer::new(9);
    write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    write(&mut changes, &admins[0], admit(1));
    let refused = [
        Action::SetPolicy([1; 32]),
        Action::SetThreshold(1),
        grant_admin(&inviting),
        revoke(node_key(1), None),
        Action::Approve([1; 32]),
        Action::Rotate(Rotation { old: node_key(1), new: [1; 32], last: None }),
    ];
    for action in refused {
        let mut changes = changes.clone();
        let change = write(&mut changes, &inviting, action);
        assert_eq!(reason(&changes, change), Some(Refusal::NoRight));
    }
    // It can describe the nodes that it admitted, and no others.
    write(&mut changes, &inviting, set_names(1, |node| node.name = name("taken")));
    write(&mut changes, &inviting, admit(2));
    write(&mut changes, &inviting, set_names(2, |node| node.name = name("mine")));
    let roster = roster(&changes);
    assert_eq!(roster.member(&node_key(1)).unwrap().name, Some(name("node1")));
    assert_eq!(roster.member(&node_key(2)).unwrap().name, Some(name("mine")));
}

#[test]
fn each_check_of_a_change_refuses_alone() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[1], admit(9));
    let own = ipv6_of(changes.mesh(), &[1; 32]);
    let hidden = {
        let mut other = changes.clone();
        write(&mut other, &admins[1], admit(8))
    };
    let with = |edit: &dyn Fn(&mut NodeInfo)| admit_as(1, edit);
    let subnet = |text: &str| {
        let subnet: IpNet = text.parse().unwrap();
        with(&|node| node.subnets = [subnet].into())
    };
    let of_other = last_of(&changes, &admins[1]);
    let outside = Inviter { range: Some("10.0.0.0/8".parse().unwrap()), ..inviter() };
    let cases = [
        (with(&|_| {}), None),
        (subnet("192.168.0.0/16"), None),
        (with(&|node| node.ipv4 = Some([100, 87, 0, 5].into())), None),
        (with(&|node| node.ipv4 = Some([10, 0, 0, 5].into())), Some(Refusal::Address)),
        (grant_inviter(&Signer::new(9), outside), Some(Refusal::Address)),
        (subnet("100.87.3.0/24"), Some(Refusal::Subnet)),
        (subnet("100.0.0.0/8"), Some(Refusal::Subnet)),
        (subnet(&format!("{own}/128")), Some(Refusal::Subnet)),
        (subnet("fc00::/7"), Some(Refusal::Subnet)),
        (subnet("0.0.0.0/0"), Some(Refusal::DefaultRoute)),
        (
            with(&|node| {
                node.gateway = true;
                node.subnets = ["::/0".parse().unwrap()].into();
            }),
            None,
        ),
        (revoke(admins[1].hash, of_other), None),
        (revoke(node_key(5), of_other), Some(Refusal::Last)),
        (revoke(admins[1].hash, Some(hidden)), Some(Refusal::Last)),
        (Action::SetThreshold(3), Some(Refusal::Threshold)),
        (
            Action::Rotate(Rotation { old: node_key(9), new: admins[1].hash, last: None }),
            Some(Refusal::KeyInUse),
        ),
        (
            Action::Rotate(Rotation { old: node_key(9), new: node_key(9), last: None }),
            Some(Refusal::KeyInUse),
        ),
    ];
    for (action, refusal) in cases {
        let mut changes = changes.clone();
        let change = write(&mut changes, &admins[0], action.clone());
        assert_eq!(reason(&changes, change), refusal, "{action:?}");
    }
}

#[test]
fn a_node_keeps_its_place_under_a_new_key() {
    let (admins, mut changes) = mesh(1, 1);
    write(&mut changes, &admins[0], admit(1));
    let before = roster(&changes).member(&node_key(1)).unwrap().clone();
    let new = node_key(101);
    write(&mut changes, &admins[0], Action::Rotate(Rotation { old: node_key(1), new, last: None }));
    let after = roster(&changes);
    assert_eq!(after.member(&new), Some(&Member { key: new, ..before }));
    assert_eq!(after.members().count(), 1);
    assert!(after.revoked().contains(&node_key(1)));
    // Its description changes under either key.
    write(&mut changes, &admins[0], set_names(101, |node| node.name = name("db")));
    assert_eq!(roster(&changes).member(&new).unwrap().name, Some(name("db")));
    write(&mut changes, &admins[0], revoke(new, None));
    assert_eq!(roster(&changes).members().count(), 0);
}

#[test]
fn a_signer_keeps_its_rights_and_seniority_under_a_new_key() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[0], admit(1));
    let new = Signer::new(12);
    let action = rotate(&changes, &admins[0], &new);
    write(&mut changes, &admins[0], action);
    assert_eq!(*roster(&changes).admins(), [new.hash, admins[1].hash].into());
    let old = write(&mut changes, &admins[0], admit(2));
    assert_eq!(reason(&changes, old), Some(Refusal::NoRight));
    assert!(has(&changes, 1));
    let (mut one, mut other) = (changes.clone(), changes);
    write(&mut one, &new, revoke(admins[1].hash, None));
    write(&mut other, &admins[1], revoke(new.hash, None));
    one.merge(&other);
    assert_eq!(*roster(&one).admins(), [new.hash].into());
}

#[test]
fn a_revocation_beats_a_concurrent_rotation() {
    for by_itself in [true, false] {
        let (admins, changes) = mesh(3, 1);
        let new = Signer::new(12);
        let (mut one, mut other) = (changes.clone(), changes);
        let signer = if by_itself { &admins[1] } else { &admins[2] };
        let action = rotate(&one, &admins[1], &new);
        write(&mut one, signer, action);
        assert!(roster(&one).admins().contains(&new.hash));
        write(&mut other, &admins[0], revoke(admins[1].hash, None));
        one.merge(&other);
        assert_eq!(*roster(&one).admins(), [admins[0].hash, admins[2].hash].into());
    }
}

#[test]
fn a_revocation_of_the_old_key_leaves_a_rotation_that_it_had_seen() {
    let (admins, mut changes) = mesh(2, 1);
    let new = Signer::new(12);
    let action = rotate(&changes, &admins[1], &new);
    write(&mut changes, &admins[1], action);
    let action = revoke_signer(&changes, &admins[1]);
    write(&mut changes, &admins[0], action);
    assert_eq!(*roster(&changes).admins(), [admins[0].hash, new.hash].into());
}

#[test]
fn the_last_change_that_counts_must_have_been_seen() {
    let (admins, changes) = mesh(2, 1);
    let (mut one, mut other) = (changes.clone(), changes);
    let unseen = write(&mut other, &admins[1], admit(1));
    let end = write(&mut one, &admins[0], revoke(admins[1].hash, Some(unseen)));
    one.merge(&other);
    assert_eq!(reason(&one, end), Some(Refusal::Last));
    assert!(has(&one, 1));
}

#[test]
fn to_end_a_chain_before_a_fork_needs_one_admin() {
    let (admins, mut changes) = mesh(2, 2);
    let inviting = Signer::new(9);
    let grant = write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    write(&mut changes, &admins[1], Action::Approve(grant));
    let last = write(&mut changes, &inviting, admit(1));
    let mut other = changes.clone();
    write(&mut changes, &inviting, admit(2));
    write(&mut other, &inviting, admit(3));
    changes.merge(&other);
    write(&mut changes, &admins[0], revoke(inviting.hash, Some(last)));
    assert!(roster(&changes).revoked().contains(&inviting.hash));
    assert!(has(&changes, 1));
}

#[test]
fn of_concurrent_policies_the_senior_signers_counts_and_a_later_one_replaces_it() {
    let (admins, changes) = mesh(2, 1);
    let (mut one, mut other) = (changes.clone(), changes);
    write(&mut one, &admins[0], Action::SetPolicy([1; 32]));
    write(&mut other, &admins[1], admit(1));
    write(&mut other, &admins[1], Action::SetPolicy([2; 32]));
    one.merge(&other);
    assert_eq!(roster(&one).policy(), Some([1; 32]));
    write(&mut one, &admins[1], Action::SetPolicy([3; 32]));
    assert_eq!(roster(&one).policy(), Some([3; 32]));
}

#[test]
fn members_are_reported_before_they_expire() {
    let (admins, mut changes) = mesh(1, 1);
    write(&mut changes, &admins[0], admit(1));
    let end = UnixTime(NOW.0 + 2 * EXPIRY_WARNING);
    write(&mut changes, &admins[0], admit_as(2, |node| node.not_after = Some(end)));
    let roster = roster(&changes);
    let expiring = |at: u64| roster.expiring(UnixTime(at)).map(|it| it.key).collect::<Vec<_>>();
    assert_eq!(expiring(end.0 - EXPIRY_WARNING - 1), [[0; 32]; 0]);
    assert_eq!(expiring(end.0 - EXPIRY_WARNING), [node_key(2)]);
    let member = roster.member(&node_key(2)).unwrap();
    assert!(!member.is_expired(end) && member.is_expired(UnixTime(end.0 + 1)));
}
