//! Tests of names, addresses and subnets that several members claim.

use super::*;

fn at(last: u8) -> Option<Ipv4Addr> {
    Some([100, 87, 1, last].into())
}

/// Two signers write at the same time, each in its own copy of the set.
fn concurrently(
    changes: &Changes,
    one: (&Signer, &[Action]),
    other: (&Signer, &[Action]),
) -> Changes {
    let mut all = changes.clone();
    for (signer, actions) in [one, other] {
        let mut alone = changes.clone();
        for action in actions {
            write(&mut alone, signer, action.clone());
        }
        all.merge(&alone);
    }
    all
}

fn named(changes: &Changes, name: &str) -> Option<KeyHash> {
    roster(changes).by_name(&Label::new(name).unwrap()).map(|member| member.key)
}

#[test]
fn of_concurrent_claims_the_senior_signers_wins() {
    let (admins, changes) = mesh(2, 1);
    let claim = |number| {
        admit_as(number, |node| {
            node.name = name("web");
            node.ipv4 = at(7);
        })
    };
    // The length of the other chain does not matter.
    let senior = [admit(5), admit(6), claim(1)];
    let changes = concurrently(&changes, (&admins[0], &senior), (&admins[1], &[claim(2)]));
    let roster = roster(&changes);
    assert_eq!(named(&changes, "web"), Some(node_key(1)));
    let loser = roster.member(&node_key(2)).unwrap();
    assert_eq!((&loser.name, loser.ipv4), (&None, None));
    let (member, address) = (node_key(2), [100, 87, 1, 7].into());
    assert!(roster.warnings().contains(&Warning::Name { member, name: name("web") }));
    assert!(roster.warnings().contains(&Warning::Address { member, address }));
}

#[test]
fn a_holder_in_the_causal_past_keeps_what_it_has() {
    let (admins, mut changes) = mesh(2, 1);
    let claim = |number| {
        admit_as(number, |node| {
            node.name = name("web");
            node.ipv4 = at(7);
        })
    };
    write(&mut changes, &admins[1], claim(1));
    write(&mut changes, &admins[0], claim(2));
    assert_eq!(named(&changes, "web"), Some(node_key(1)));
    assert_eq!(roster(&changes).by_address(at(7).unwrap().into()).unwrap().key, node_key(1));
    // Another change of the holder does not restart its claim.
    let update = set_names(1, |node| {
        node.name = name("web");
        node.ipv4 = at(7);
        node.relay = true;
    });
    write(&mut changes, &admins[1], update);
    assert_eq!(named(&changes, "web"), Some(node_key(1)));
    assert!(roster(&changes).member(&node_key(1)).unwrap().relay);
    // An abandoned name is free, and taking it again is a new claim.
    write(&mut changes, &admins[1], set_names(1, |node| node.name = name("old")));
    assert_eq!(named(&changes, "web"), Some(node_key(2)));
    write(&mut changes, &admins[1], set_names(1, |node| node.name = name("web")));
    assert_eq!(named(&changes, "web"), Some(node_key(2)));
    // So is the name of a revoked node.
    write(&mut changes, &admins[1], revoke(node_key(2), None));
    assert_eq!(named(&changes, "web"), Some(node_key(1)));
}

#[test]
fn the_loser_of_an_address_is_renumbered() {
    let (admins, changes) = mesh(2, 1);
    let claim = |number| admit_as(number, |node| node.ipv4 = at(7));
    let mut changes = concurrently(&changes, (&admins[0], &[claim(1)]), (&admins[1], &[claim(2)]));
    let range = "100.87.1.0/24".parse().unwrap();
    let free = roster(&changes).free_ipv4(range, &node_key(2)).unwrap();
    assert_ne!(Some(free), at(7));
    write(&mut changes, &admins[1], set_names(2, |node| node.ipv4 = Some(free)));
    assert_eq!(roster(&changes).member(&node_key(2)).unwrap().ipv4, Some(free));
    assert_eq!(roster(&changes).warnings(), []);
}

#[test]
fn a_key_is_admitted_once() {
    let (admins, changes) = mesh(2, 1);
    let as_named = |text: &str| admit_as(1, |node| node.name = name(text));
    let mut changes =
        concurrently(&changes, (&admins[0], &[as_named("a")]), (&admins[1], &[as_named("b")]));
    assert_eq!(named(&changes, "a"), Some(node_key(1)));
    assert_eq!(named(&changes, "b"), None);
    write(&mut changes, &admins[0], as_named("c"));
    assert_eq!(named(&changes, "a"), Some(node_key(1)), "a later admission changes nothing");
}

#[test]
fn of_two_nodes_with_the_same_ipv6_address_the_first_is_a_member() {
    let (admins, mut changes) = mesh(1, 1);
    let mut colliding = node_key(1);
    colliding[31] ^= 1;
    write(&mut changes, &admins[0], admit(1));
    let node = NodeInfo::named(name("second"));
    write(&mut changes, &admins[0], Action::Admit { key: colliding, node });
    let roster = roster(&changes);
    assert!(roster.member(&node_key(1)).is_some() && roster.member(&colliding).is_none());
    assert_eq!(roster.warnings(), [Warning::Collision { key: colliding }]);
}

#[test]
fn two_rotations_to_one_key_or_from_one_key_leave_one_member() {
    let (admins, mut changes) = mesh(2, 1);
    write(&mut changes, &admins[0], admit(1));
    write(&mut changes, &admins[0], admit(2));
    let turn =
        |old, new| Action::Rotate(Rotation { old: node_key(old), new: node_key(new), last: None });
    let from_one =
        concurrently(&changes, (&admins[0], &[turn(1, 11)]), (&admins[1], &[turn(1, 12)]));
    assert!(has(&from_one, 11) && !has(&from_one, 12) && !has(&from_one, 1));
    let to_one = concurrently(&changes, (&admins[0], &[turn(1, 11)]), (&admins[1], &[turn(2, 11)]));
    let roster = roster(&to_one);
    assert_eq!(roster.member(&node_key(11)).unwrap().first_key, node_key(1));
    assert_eq!(roster.members().count(), 1);
    let circle = concurrently(&changes, (&admins[0], &[turn(1, 11)]), (&admins[1], &[turn(11, 1)]));
    assert!(!has(&circle, 1) && !has(&circle, 11));
}

#[test]
fn a_node_does_not_take_the_place_of_another_member() {
    for (old, new) in [(1, 2), (2, 1)] {
        let (admins, mut changes) = mesh(1, 1);
        write(&mut changes, &admins[0], admit(1));
        write(&mut changes, &admins[0], admit(2));
        let rotation = Rotation { old: node_key(old), new: node_key(new), last: None };
        write(&mut changes, &admins[0], Action::Rotate(rotation));
        let roster = roster(&changes);
        assert_eq!(roster.member(&node_key(new)).unwrap().first_key, node_key(new));
        assert_eq!(roster.members().count(), 1);
    }
}

#[test]
fn the_subnets_of_one_node_may_overlap() {
    let (admins, mut changes) = mesh(1, 1);
    let inviting = Signer::new(9);
    write(&mut changes, &admins[0], grant_inviter(&inviting, inviter()));
    let subnets: BTreeSet<IpNet> =
        ["10.1.0.0/16", "10.1.2.0/24"].map(|net| net.parse().unwrap()).into();
    write(&mut changes, &inviting, admit_as(1, |node| node.subnets = subnets.clone()));
    assert_eq!(roster(&changes).member(&node_key(1)).unwrap().subnets, subnets);
}

#[test]
fn overlapping_subnets_need_an_admin() {
    let (admins, mut changes) = mesh(1, 1);
    let (one, other) = (Signer::new(8), Signer::new(9));
    write(&mut changes, &admins[0], grant_inviter(&one, inviter()));
    write(&mut changes, &admins[0], grant_inviter(&other, inviter()));
    let net = |text: &str| -> IpNet { text.parse().unwrap() };
    let with = |number, text: &str| admit_as(number, |node| node.subnets = [net(text)].into());
    let subnets = |changes: &Changes, number| {
        roster(changes).member(&node_key(number)).unwrap().subnets.clone()
    };
    for (first, second) in [
        ("10.1.0.0/16", "10.1.2.0/24"),
        ("10.1.2.0/24", "10.1.0.0/16"),
        ("10.1.0.0/16", "10.1.0.0/16"),
    ] {
        // The second inviter's node loses its subnet to the first inviter's.
        let mut changes = changes.clone();
        write(&mut changes, &one, with(1, first));
        write(&mut changes, &other, with(2, second));
        assert_eq!(subnets(&changes, 1), [net(first)].into());
        assert_eq!(subnets(&changes, 2), [].into());
        let warning = Warning::Subnet { member: node_key(2), subnet: net(second) };
        assert_eq!(roster(&changes).warnings(), [warning]);
        // An admin may let two subnets overlap, and takes precedence over changes whose signers had not seen the admin's.
        write(&mut changes, &admins[0], with(3, second));
        assert_eq!(subnets(&changes, 1), [net(first)].into());
        assert_eq!(subnets(&changes, 3), [net(second)].into());
    }
    let by_admin = (&admins[0], &[with(3, "10.1.0.0/16")][..]);
    let concurrent = concurrently(&changes, by_admin, (&one, &[with(1, "10.1.2.0/24")]));
    assert_eq!(subnets(&concurrent, 1), [].into());
    assert_eq!(subnets(&concurrent, 3), [net("10.1.0.0/16")].into());
    // Of two concurrent claims of equal depth, the smaller key's wins, on both sides.
    let both = concurrently(
        &changes,
        (&one, &[with(1, "10.1.0.0/16")]),
        (&other, &[admit(5), with(2, "10.1.2.0/24")]),
    );
    let winner = if one.hash < other.hash { 1 } else { 2 };
    assert!(subnets(&both, 3 - winner).is_empty() && !subnets(&both, winner).is_empty());
    // Neighbouring subnets do not overlap.
    write(&mut changes, &one, with(1, "10.1.0.0/16"));
    write(&mut changes, &other, with(2, "10.2.0.0/16"));
    assert_eq!(roster(&changes).warnings(), []);
}
