//! Stations behind clients (`learn-address` with a TAP device): the requests about them, and their answers.

use std::time::Duration;

use adit_engine::auth::{ClientParams, Response, Station};
use adit_engine::{PeerId, VlanId, Vlans};
use adit_openvpn::data_format::{Input, Notice};
use adit_openvpn::server::{Disconnect, ServerConfig, ServerEvent};
use adit_openvpn::session::Settings;
use adit_sim::Impairment;

use crate::support::{World, client_config, server_config};

const SECOND: Duration = Duration::from_secs(1);

fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A server with a client, its peer and its session.
fn connected() -> (World, PeerId, u64) {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    let info = w.server.clients().next().expect("a client");
    let (peer, session) = (info.peer, info.session);
    (w, peer, session)
}

fn heard(w: &mut World, peer: PeerId, number: u8) {
    w.to_server(Input::Notice(Notice::StationHeard(peer, mac(number))));
}

fn accept() -> Response {
    Response::Accept(ClientParams::default())
}

#[test]
fn each_station_is_allowed_by_its_own_answer() {
    let (mut w, peer, session) = connected();
    (1..4).for_each(|n| heard(&mut w, peer, n));
    let stations: Vec<Station> =
        (1..4).map(|n| Station { session, mac: mac(n), vlan: None }).collect();
    assert_eq!(w.stations, stations);
    assert!(w.plane.stations.is_empty(), "nothing is allowed before the answer");
    let asked = std::mem::take(&mut w.asked);
    w.to_server(Input::AuthResponse(asked[1], accept()));
    w.to_server(Input::AuthResponse(asked[0], Response::Reject("no".into())));
    w.to_server(Input::AuthResponse(asked[1], Response::Reject("twice".into())));
    assert_eq!(w.plane.stations, [(peer, mac(2), true), (peer, mac(1), false)]);
    assert_eq!(w.server.clients().count(), 1, "the session continues");
    // An answer that comes after the end allows nothing.
    let mut out = Default::default();
    w.server.kick(w.now, peer, Disconnect::Halt, "gone", &mut out);
    w.perform_server(out);
    w.to_server(Input::AuthResponse(asked[2], accept()));
    assert_eq!(w.plane.stations.len(), 2);
}

#[test]
fn the_open_requests_of_a_client_are_bounded() {
    let (mut w, peer, _) = connected();
    (0..40).for_each(|n| heard(&mut w, peer, n));
    assert_eq!(w.stations.len(), 32);
    let refused: Vec<_> = (32..40).map(|n| (peer, mac(n), false)).collect();
    assert_eq!(w.plane.stations, refused);
    let first = w.asked[0];
    w.to_server(Input::AuthResponse(first, accept()));
    heard(&mut w, peer, 40);
    assert_eq!(w.stations.len(), 33, "there is room again");
}

#[test]
fn a_forgotten_station_is_reported_with_its_session() {
    let (mut w, peer, session) = connected();
    w.to_server(Input::Notice(Notice::StationForgotten(peer, mac(1))));
    let station = Station { session, mac: mac(1), vlan: None };
    let last = w.events.last();
    assert!(matches!(last, Some(ServerEvent::StationForgotten(of)) if *of == station), "{last:?}");
}

#[test]
fn a_client_has_its_own_vlan_or_the_server_s() {
    let vlan = |number| VlanId::new(number).unwrap();
    for (native, own, expected) in
        [(None, Some(10), None), (Some(5), None, Some(5)), (Some(5), Some(10), Some(10))]
    {
        let vlans = native.map(|native| Vlans { native: vlan(native), ..Vlans::default() });
        let config = ServerConfig { vlans, authorize: true, ..server_config(Settings::default()) };
        let mut w = World::new(config, 1);
        w.reply = Response::Accept(ClientParams { vlan: own.map(vlan), ..ClientParams::default() });
        let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
        assert!(w.run(10 * SECOND, |w| w.is_up(c)));
        let info = w.server.clients().next().expect("a client");
        let (peer, session) = (info.peer, info.session);
        heard(&mut w, peer, 1);
        assert_eq!(w.plane.peers[&peer].vlan, expected.map(vlan));
        assert_eq!(w.stations, [Station { session, mac: mac(1), vlan: expected.map(vlan) }]);
    }
}
