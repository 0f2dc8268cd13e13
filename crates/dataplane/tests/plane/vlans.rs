//! VLANs in memory: which frames the device carries, with which tags, and which peers get them.

use crate::common::*;
use adit_dataplane::{DropReason, FilterConfig, MacTotals, Relay};
use adit_engine::{VlanAccept, VlanId, Vlans};
use adit_filter::firewall::{Firewall, Limits};
use adit_filter::{Filter, lang};
use proptest::prelude::*;

const ALL: [u8; 6] = [0xff; 6];
/// The device's own side.
const HOST: [u8; 6] = [2, 0, 0, 0, 1, 1];
const NATIVE: u16 = 5;

/// Returns the station behind client `n`.
fn station(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, n, 1]
}

/// Returns an ARP frame with this control information in a tag.
fn frame(to: [u8; 6], from: [u8; 6], tag: Option<u16>) -> Vec<u8> {
    let tag = tag.map(|control| [[0x81, 0], control.to_be_bytes()].concat());
    [&to[..], &from, &tag.unwrap_or_default(), &[8, 6], &[7; 28]].concat()
}

fn vlans(accept: VlanAccept) -> Vlans {
    Vlans { accept, native: VlanId::new(NATIVE).unwrap() }
}

/// Creates a server and its clients: those with their own VLANs, and those without.
fn switch<const N: usize>(
    relay: Relay,
    accept: VlanAccept,
    clients: [(u8, u16); N],
) -> (End, [End; N]) {
    let server = End::ethernet(relay, false);
    server.memory.plane().sort_into_vlans(vlans(accept));
    let clients = clients.map(|(n, vlan)| (n, VlanId::new(vlan)));
    let ends = connect(&server, End::ethernet, clients);
    (server, ends)
}

/// Sends a frame from client `n`; returns the frames for the device, and the peers that get the frame as it is.
fn sends(server: &mut End, n: u8, client: &mut End, frame: &[u8]) -> (Vec<Vec<u8>>, Vec<u32>) {
    let sealed = client.seal_one(frame);
    let (device, peers) = server.open_buffer(link(n, 1000), sealed.len(), &sealed);
    let reached = peers.into_iter().map(|(id, got)| {
        assert_eq!(got, frame);
        id.0
    });
    (device, reached.collect())
}

/// Sends a frame from the device; returns the clients that get it, and the frame that they get.
fn reaches<const N: usize>(
    server: &mut End,
    clients: &mut [End; N],
    frame: &[u8],
) -> Vec<(usize, Vec<u8>)> {
    let mut reached = Vec::new();
    for datagram in server.seal(frame) {
        for (at, client) in clients.iter_mut().enumerate() {
            let got = client.open(link(200, 1194), &datagram);
            reached.extend(got.into_iter().map(|frame| (at, frame)));
        }
    }
    reached
}

#[test]
fn a_frame_of_the_device_reaches_the_clients_of_its_vlan_without_the_tag() {
    let clients = [(2, 10), (3, 10), (4, 20), (6, 0)];
    let (mut server, mut ends) = switch(Relay::Kernel, VlanAccept::All, clients);
    let got = |at: usize, tag| (at, frame(ALL, HOST, tag));
    let mut sent = |tag| reaches(&mut server, &mut ends, &frame(ALL, HOST, tag));
    assert_eq!(sent(Some(10)), [got(0, None), got(1, None)]);
    assert_eq!(sent(Some(20)), [got(2, None)]);
    assert_eq!(sent(None), [got(3, None)], "the native VLAN");
    assert_eq!(sent(Some(NATIVE)), [got(3, None)]);
    assert_eq!(sent(Some(30)), [], "no client is in it");
    // A priority is lost with the VLAN, as in openvpn, and a priority tag stays.
    assert_eq!(sent(Some(0xa000 | 20)), [got(2, None)]);
    assert_eq!(sent(Some(0xa000)), [got(3, Some(0xa000))]);
    assert_eq!(sent(Some(0xffff)), [], "a reserved number");
    assert_eq!((server.dropped(DropReason::WrongVlan), server.all_drops()), (1, 1));
}

#[test]
fn a_client_s_frame_has_the_tag_that_the_device_accepts() {
    for (accept, expected) in [
        (VlanAccept::All, [Some(Some(10)), Some(None)]),
        (VlanAccept::Tagged, [Some(Some(10)), Some(Some(NATIVE))]),
        (VlanAccept::Untagged, [None, Some(None)]),
    ] {
        for relay in [Relay::Kernel, Relay::Direct, Relay::Deny] {
            let (mut server, [mut a, mut b]) = switch(relay, accept, [(2, 10), (3, 0)]);
            for ((n, end), tag) in [(2, &mut a), (3, &mut b)].into_iter().zip(expected) {
                let to_host = frame(HOST, station(n), None);
                let (device, peers) = sends(&mut server, n, end, &to_host);
                let expected: Vec<_> =
                    tag.into_iter().map(|tag| frame(HOST, station(n), tag)).collect();
                assert_eq!((device, peers), (expected, vec![]), "{accept:?} {relay:?} {n}");
            }
            let dropped = u64::from(accept == VlanAccept::Untagged);
            assert_eq!(server.dropped(DropReason::WrongVlan), dropped);
            assert_eq!(server.all_drops(), dropped);
        }
    }
}

#[test]
fn a_client_cannot_choose_a_vlan() {
    let (mut server, [mut a]) = switch(Relay::Kernel, VlanAccept::All, [(2, 10)]);
    for (tag, expected) in [
        (Some(20), None),
        (Some(10), None),
        (Some(0xa00a), None),
        (Some(0xfff), None),
        (Some(0xa000), Some(0xa00a)),
        (Some(0), Some(10)),
        (None, Some(10)),
    ] {
        let (device, _) = sends(&mut server, 2, &mut a, &frame(HOST, station(2), tag));
        let expected = expected.map(|tag| frame(HOST, station(2), Some(tag)));
        assert_eq!(device, Vec::from_iter(expected), "{tag:?}");
    }
    assert_eq!(server.dropped(DropReason::WrongVlan), 4);
    // A tag that is cut short, and two tags.
    let cut = frame(HOST, station(2), Some(0xa000))[..17].to_vec();
    let peer = |frame: &[u8], server: &mut End| server.open(link(2, 1000), frame);
    let sealed = a.seal(&cut);
    assert!(sealed.is_empty() && a.dropped(DropReason::NotEthernet) == 1);
    let mut two = frame(HOST, station(2), Some(0));
    two.splice(16..16, [0x81, 0, 0, 20]);
    let sealed = a.seal_one(&two);
    let mut tagged = two.clone();
    tagged[15] = 10;
    assert_eq!(peer(&sealed, &mut server), [tagged], "the inner tag is the client's own affair");
}

#[test]
fn clients_reach_those_of_their_own_vlan() {
    let clients = [(2, 10), (3, 10), (4, 20)];
    let (mut server, [mut a, mut b, mut c]) = switch(Relay::Direct, VlanAccept::All, clients);
    let tagged = |to, n| vec![frame(to, station(n), Some(10))];
    for (n, end) in [(3, &mut b), (4, &mut c)] {
        sends(&mut server, n, end, &frame(HOST, station(n), None));
    }
    let mut sent = |to| sends(&mut server, 2, &mut a, &frame(to, station(2), None));
    assert_eq!(sent(ALL), (tagged(ALL, 2), vec![3]));
    assert_eq!(sent(station(3)), (vec![], vec![3]));
    // The station is unknown in this VLAN, so it may be behind the device.
    assert_eq!(sent(station(4)), (tagged(station(4), 2), vec![]));
    // The same station in two VLANs is behind two clients.
    sends(&mut server, 4, &mut c, &frame(HOST, station(3), None));
    let totals = server.memory.plane().mac_totals();
    assert_eq!(totals, Some(MacTotals { known: 4, learnt: 4, moved: 0 }));
    assert_eq!(
        sends(&mut server, 2, &mut a, &frame(station(3), station(2), None)),
        (vec![], vec![3])
    );
    let mut ends = [a, b, c];
    for (tag, at) in [(10, 1), (20, 2)] {
        let got = reaches(&mut server, &mut ends, &frame(station(3), HOST, Some(tag)));
        assert_eq!(got, [(at, frame(station(3), HOST, None))]);
    }
    assert_eq!(server.all_drops(), 0);
}

#[test]
fn a_flood_is_not_counted_as_lost_because_the_device_does_not_carry_it() {
    let clients = [(2, 10), (3, 10)];
    let (mut server, [mut a, _]) = switch(Relay::Direct, VlanAccept::Untagged, clients);
    assert_eq!(sends(&mut server, 2, &mut a, &frame(ALL, station(2), None)), (vec![], vec![3]));
    assert_eq!(server.all_drops(), 0);
}

/// The device's frames, those of clients, and those between clients.
#[test]
fn rules_see_the_vlan_of_a_frame_with_and_without_a_tag() {
    let text =
        "table bridge t { chain c { type filter hook forward priority 0; vlan id 10 drop } }";
    for relay in [Relay::Kernel, Relay::Direct] {
        let clients = [(2, 10), (3, 10), (4, 20), (6, 20)];
        let (mut server, [mut a, b, mut c, d]) = switch(relay, VlanAccept::All, clients);
        let parsed = lang::parse("test", text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
        let rules = Filter::compile(parsed.unwrap()).unwrap();
        let firewall = Firewall::new(rules, Limits::default(), [7; 16]);
        server.memory.filter(FilterConfig { firewall, device: "tap0".into() });
        let from = |n| frame(ALL, station(n), None);
        assert_eq!(sends(&mut server, 2, &mut a, &from(2)), (vec![], vec![]), "{relay:?}");
        let (device, peers) = sends(&mut server, 4, &mut c, &from(4));
        let reached = if relay == Relay::Direct { vec![6] } else { vec![] };
        assert_eq!((device.len(), peers), (1, reached));
        let mut ends = [a, b, c, d];
        assert_eq!(reaches(&mut server, &mut ends, &frame(ALL, HOST, Some(10))), []);
        assert_eq!(reaches(&mut server, &mut ends, &frame(ALL, HOST, Some(20))).len(), 2);
    }
}

proptest! {
    /// No frame of the device reaches a client of another VLAN, and none of a client reaches another VLAN.
    #[test]
    fn nothing_passes_between_vlans(
        steps in proptest::collection::vec((0usize..4, 0u8..6, 0u16..4, any::<bool>()), 1..60),
    ) {
        let ids = [2u8, 3, 4];
        let own = [10u16, 20, 10];
        let clients = [(2, 10), (3, 20), (4, 10)];
        let (mut server, mut ends) = switch(Relay::Direct, VlanAccept::All, clients);
        for (n, target, vlan, group) in steps {
            let to = if group { ALL } else { station(target) };
            if let Some(id) = ids.get(n) {
                let (device, peers) = sends(&mut server, *id, &mut ends[n], &frame(to, station(*id), None));
                for peer in peers {
                    prop_assert_eq!(own[peer as usize - 2], own[n]);
                }
                for got in device {
                    prop_assert_eq!(got, frame(to, station(*id), Some(own[n])));
                }
            } else {
                let got = reaches(&mut server, &mut ends, &frame(to, HOST, Some(10 * vlan)));
                for (at, _) in got {
                    prop_assert_eq!(own[at], 10 * vlan);
                }
            }
        }
    }
}
