//! Tests of OpenVPN apps as leaves of a gateway.

use super::*;

/// The number of the gateway among the nodes.
const GATEWAY: u8 = 1;
const APP: u8 = 2;

/// Returns a mesh whose node 1 is a gateway for apps.
fn with_gateway() -> (Vec<Signer>, Changes) {
    let (admins, mut changes) = mesh(1, 1);
    write(&mut changes, &admins[0], admit_as(GATEWAY, |node| node.openvpn = true));
    (admins, changes)
}

fn leaf(number: u8, of: KeyHash) -> Action {
    admit_as(number, |node| node.leaf_of = Some(of))
}

fn lost_gateway(changes: &Changes, number: u8) -> bool {
    roster(changes).warnings().contains(&Warning::Leaf { key: node_key(number) })
}

#[test]
fn an_app_is_a_member_and_a_leaf_of_its_gateway() {
    let (admins, mut changes) = with_gateway();
    write(&mut changes, &admins[0], leaf(APP, node_key(GATEWAY)));
    let roster = roster(&changes);
    let app = roster.member(&node_key(APP)).unwrap();
    assert_eq!(app.leaf_of, Some(node_key(GATEWAY)));
    let leaves: Vec<_> = roster.leaves_of(&node_key(GATEWAY)).collect();
    assert_eq!(leaves, [app]);
    assert_eq!(roster.warnings(), []);
}

#[test]
fn an_app_is_no_member_without_a_gateway_for_apps() {
    let (admins, changes) = with_gateway();
    let admin = &admins[0];
    let mut stranger = changes.clone();
    write(&mut stranger, admin, leaf(APP, node_key(9)));
    assert!(!has(&stranger, APP) && lost_gateway(&stranger, APP));
    let mut other = changes.clone();
    write(&mut other, admin, admit(3));
    write(&mut other, admin, leaf(APP, node_key(3)));
    assert!(!has(&other, APP) && lost_gateway(&other, APP), "a node without the role");
    let mut of_a_leaf = changes;
    write(&mut of_a_leaf, admin, leaf(APP, node_key(GATEWAY)));
    write(&mut of_a_leaf, admin, leaf(4, node_key(APP)));
    assert!(has(&of_a_leaf, APP) && !has(&of_a_leaf, 4), "a leaf of a leaf");
}

#[test]
fn the_apps_of_a_gateway_that_is_removed_leave_their_names_and_addresses() {
    let (admins, mut changes) = with_gateway();
    let admin = &admins[0];
    let address = Some([100, 87, 0, 7].into());
    let app = |node: &mut NodeInfo| {
        node.leaf_of = Some(node_key(GATEWAY));
        node.ipv4 = address;
    };
    write(&mut changes, admin, admit_as(APP, app));
    let mut without_role = changes.clone();
    write(&mut without_role, admin, set_names(GATEWAY, |_| {}));
    assert!(!has(&without_role, APP) && lost_gateway(&without_role, APP));
    write(&mut without_role, admin, set_names(GATEWAY, |node| node.openvpn = true));
    assert!(has(&without_role, APP), "the gateway is one again");
    write(&mut changes, admin, revoke(node_key(GATEWAY), None));
    assert!(!has(&changes, APP) && lost_gateway(&changes, APP));
    let named = |node: &mut NodeInfo| {
        node.name = name("node2");
        node.ipv4 = address;
    };
    write(&mut changes, admin, admit_as(5, named));
    let roster = roster(&changes);
    let heir = roster.member(&node_key(5)).unwrap();
    assert_eq!((heir.name.clone(), heir.ipv4), (Some(name("node2")), address));
}

#[test]
fn an_app_keeps_its_gateway_when_that_replaces_its_key() {
    let (admins, mut changes) = mesh(1, 1);
    let [gateway, renewed] = [Signer::new(20), Signer::new(21)];
    let node = NodeInfo { openvpn: true, ..NodeInfo::named(name("hub")) };
    write(&mut changes, &admins[0], Action::Admit { key: gateway.hash, node });
    write(&mut changes, &admins[0], leaf(APP, gateway.hash));
    let rotation = rotate(&changes, &gateway, &renewed);
    write(&mut changes, &admins[0], rotation);
    let roster = roster(&changes);
    assert_eq!(roster.member(&node_key(APP)).unwrap().leaf_of, Some(renewed.hash));
}

#[test]
fn an_app_cannot_take_the_name_or_the_address_of_a_member() {
    let (admins, mut changes) = with_gateway();
    let address = Some([100, 87, 0, 7].into());
    write(&mut changes, &admins[0], admit_as(3, |node| node.ipv4 = address));
    let claim = |node: &mut NodeInfo| {
        node.leaf_of = Some(node_key(GATEWAY));
        node.name = name("node3");
        node.ipv4 = address;
    };
    write(&mut changes, &admins[0], admit_as(APP, claim));
    let mut taken = roster(&changes);
    let app = taken.member(&node_key(APP)).unwrap();
    assert_eq!((app.name.clone(), app.ipv4), (None, None));
    // Nor may it use the name of another app.
    write(&mut changes, &admins[0], leaf(6, node_key(GATEWAY)));
    let claim = |node: &mut NodeInfo| {
        node.leaf_of = Some(node_key(GATEWAY));
        node.name = name("node6");
    };
    write(&mut changes, &admins[0], admit_as(7, claim));
    taken = roster(&changes);
    assert_eq!(taken.by_name(&name("node6")).unwrap().key, node_key(6));
    assert_eq!(taken.member(&node_key(7)).unwrap().name, None);
}

#[test]
fn an_inviter_admits_apps_of_its_own_node_if_it_may() {
    let (admins, mut changes) = mesh(1, 1);
    let inviting = Signer::new(9);
    let node = NodeInfo { openvpn: true, ..NodeInfo::named(name("hub")) };
    write(&mut changes, &admins[0], Action::Admit { key: inviting.hash, node });
    write(&mut changes, &admins[0], admit_as(GATEWAY, |node| node.openvpn = true));
    let limits = |leaves| Inviter { leaves, count: 9, ..inviter() };
    write(&mut changes, &admins[0], grant_inviter(&inviting, limits(false)));
    let refused = Some(Refusal::Limit(Limit::OpenVpn));
    let mut without = changes.clone();
    let change = write(&mut without, &inviting, leaf(APP, inviting.hash));
    assert_eq!(reason(&without, change), refused);
    write(&mut changes, &admins[0], grant_inviter(&inviting, limits(true)));
    let change = write(&mut changes, &inviting, leaf(3, node_key(GATEWAY)));
    assert_eq!(reason(&changes, change), refused, "a leaf of another node");
    let change = write(&mut changes, &inviting, admit_as(4, |node| node.openvpn = true));
    assert_eq!(reason(&changes, change), refused, "a gateway for apps");
    write(&mut changes, &inviting, leaf(APP, inviting.hash));
    assert!(has(&changes, APP) && !has(&changes, 3));
}
