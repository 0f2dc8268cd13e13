//! Tests of relaying sealed packets between two peers, unread.

use adit_dataplane::{DropReason, MAX_SPLICES, Relay, StreamEnd};
use adit_engine::command::{
    Float, KeySlot, PeerSpec, Splice, SpliceId, SpliceLabel, SplicedLengths,
};
use adit_engine::{Command, Link, PeerId, Rate};

use crate::common::{End, SERVER, key, layout, link, packet, spec, world};

/// The sender's session with the relay.
const FROM: PeerId = PeerId(5);
/// The receiver's session with the relay.
const TO: PeerId = PeerId(6);
/// The packets that the client sends to the server through the relay; the server chose peer-id 2.
const ID: SpliceId = SpliceId { from: FROM, label: SpliceLabel::PeerId(2) };

fn splice(limit: Option<Rate>) -> Command<crate::common::Types> {
    Command::AddSplice(Splice { limit, ..Splice::new(ID, TO) })
}

/// Creates a relay, a server that is reached through it, and the server's client. The clocks stand still.
fn relayed() -> (End, End, End) {
    let (server, [client]) = world(Relay::Kernel, [2]);
    let relay = End::frozen(Relay::Kernel, false);
    relay.apply(Command::AddPeer(FROM, PeerSpec { float: Float::Refuse, ..spec(link(2, 1000)) }));
    relay.apply(Command::AddPeer(TO, PeerSpec { float: Float::Refuse, ..spec(link(100, 1194)) }));
    server.apply(Command::SetLink(PeerId(2), link(77, 1194)));
    (relay, server, client)
}

/// Returns three sealed packets of the client as one received buffer, and the length of each.
fn train(client: &mut End) -> (usize, Vec<u8>) {
    let packets: Vec<_> = (0..3).map(|n| client.seal_one(&packet(2, SERVER, n))).collect();
    (packets[0].len(), packets.concat())
}

#[test]
fn a_train_passes_whole_and_unchanged() {
    let (mut relay, mut server, mut client) = relayed();
    relay.apply(splice(None));
    let (len, sealed) = train(&mut client);
    let trains = relay.relay_buffer(link(2, 1000), len, &sealed);
    assert_eq!(trains, [(TO, len, sealed.clone())]);
    assert_eq!(server.open_buffer(link(77, 1194), len, &sealed).0.len(), 3);
    assert_eq!((relay.all_drops(), server.all_drops()), (0, 0));
}

#[test]
fn only_packets_with_a_splice_from_its_peers_address_pass() {
    let (mut relay, _, mut client) = relayed();
    let (len, sealed) = train(&mut client);
    assert_eq!(relay.relay_buffer(link(2, 1000), len, &sealed), []);
    assert_eq!(relay.dropped(DropReason::UnknownPeer), 3, "no splice");
    relay.apply(splice(None));
    for (host, port) in [(3, 1000), (2, 1001), (100, 1194)] {
        assert_eq!(relay.relay_buffer(link(host, port), len, &sealed), [], "{host}:{port}");
    }
    assert_eq!(relay.dropped(DropReason::UnknownPeer), 12);
    relay.apply(Command::SetLink(FROM, link(3, 1000)));
    assert_eq!(relay.relay_buffer(link(2, 1000), len, &sealed), [], "the peer has moved");
    assert_eq!(relay.relay_buffer(link(3, 1000), len, &sealed).len(), 1);
}

#[test]
fn a_splice_ends_by_command_and_with_either_peer() {
    let ends = [Command::DelSplice(ID), Command::DelPeer(FROM), Command::DelPeer(TO)];
    for end in ends {
        let (mut relay, _, mut client) = relayed();
        let (len, sealed) = train(&mut client);
        relay.apply(splice(None));
        assert_eq!(relay.relay_buffer(link(2, 1000), len, &sealed).len(), 1);
        relay.apply(end);
        // The sender is known again, but no splice was kept for it.
        relay.apply(Command::AddPeer(FROM, spec(link(2, 1000))));
        assert_eq!(relay.relay_buffer(link(2, 1000), len, &sealed), []);
    }
}

#[test]
fn sessions_of_the_relay_itself_may_have_the_same_peer_id() {
    for with_key in [true, false] {
        let (mut relay, _, mut client) = relayed();
        let (_, [mut other]) = world(Relay::Kernel, [2]);
        let own = PeerSpec { float: Float::Refuse, layout: layout(2), ..spec(link(4, 1000)) };
        relay.apply(Command::AddPeer(PeerId(2), own));
        relay.apply(Command::SetRoutes(PeerId(2), vec!["10.8.0.2/32".parse().unwrap()]));
        if with_key {
            relay.apply(Command::InstallKey(PeerId(2), KeySlot::Primary, key(2, 0, true)));
        }
        relay.apply(splice(None));
        let (len, sealed) = train(&mut client);
        assert_eq!(relay.relay_buffer(link(2, 1000), len, &sealed).len(), 1, "{with_key}");
        let (len, own) = train(&mut other);
        let opened = relay.open_buffer(link(4, 1000), len, &own).0.len();
        assert_eq!(opened, if with_key { 3 } else { 0 });
    }
}

#[test]
fn bytes_beyond_a_limit_are_dropped_and_counted() {
    let rate = |trains: usize, bytes: usize| Some(Rate::per_second((trains * bytes) as u64));
    for (one, all, passing) in [(2, 9, 2), (9, 3, 3), (20, 20, 10)] {
        let (mut relay, _, mut client) = relayed();
        let (len, sealed) = train(&mut client);
        relay.apply(splice(rate(one, sealed.len())));
        relay.apply(Command::LimitSplices(rate(all, sealed.len())));
        let passes = |_: &u64| !relay.relay_buffer(link(2, 1000), len, &sealed).is_empty();
        let passed = (0..10).filter(passes).count() as u64;
        // A bucket that is not empty gives more than it has, once.
        assert!((passing..=passing + 1).contains(&passed), "{one} {all}: {passed}");
        assert_eq!(relay.dropped(DropReason::RelayLimited), 3 * (10 - passed));
    }
}

#[test]
fn the_number_of_splices_is_bounded() {
    let (mut relay, _, mut client) = relayed();
    let (len, sealed) = train(&mut client);
    for peer_id in 0..MAX_SPLICES as u32 {
        let id = SpliceId { from: FROM, label: SpliceLabel::PeerId(peer_id + 1000) };
        relay.apply(Command::AddSplice(Splice::new(id, TO)));
    }
    relay.apply(splice(None));
    assert_eq!(relay.relay_buffer(link(2, 1000), len, &sealed), []);
    let label = SpliceLabel::PeerId(1000);
    relay.apply(Command::DelSplice(SpliceId { from: FROM, label }));
    relay.apply(splice(None));
    assert_eq!(relay.relay_buffer(link(2, 1000), len, &sealed).len(), 1);
}

#[test]
fn peers_behind_one_relay_share_its_address() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let through = PeerId(9);
    server.apply(Command::AddPeer(through, spec(link(77, 1194))));
    server.apply(Command::SetRelay(PeerId(2), through));
    server.apply(Command::SetRelay(PeerId(2), PeerId(1234)));
    let (len, sealed) = train(&mut client);
    assert_eq!(server.open_buffer(link(77, 1194), len, &sealed).0.len(), 3);
    assert_eq!(server.notices().len(), 1, "the first use of the key; it has not moved");
    // The address is still the relay's, by which this end recognises relayed packets.
    server.apply(Command::AddPeer(TO, spec(link(100, 1194))));
    server.apply(Command::DelPeer(PeerId(2)));
    let id = SpliceId { from: through, label: SpliceLabel::PeerId(2) };
    server.apply(Command::AddSplice(Splice::new(id, TO)));
    assert_eq!(server.relay_buffer(link(77, 1194), len, &sealed).len(), 1);
}

/// The connection to a relay.
fn leg() -> Link {
    Link::stream(5, ([192, 0, 2, 77], 443).into())
}

/// Creates a server whose client 2 is reached over the stream of a relay, and the client.
fn behind_a_stream(float: Float) -> (End, End) {
    let (server, [client]) = world(Relay::Kernel, [2]);
    server.apply(Command::AddPeer(TO, PeerSpec { layout: layout(6), ..spec(leg()) }));
    server.apply(Command::DelPeer(PeerId(2)));
    // As in a mesh, the address represents the relay until the relay's own is set.
    let spec = PeerSpec { float, layout: layout(2), replay_window: 64, ..spec(link(9, 9)) };
    server.apply(Command::AddPeer(PeerId(2), spec));
    server.apply(Command::SetRelay(PeerId(2), TO));
    server.apply(Command::SetRoutes(PeerId(2), vec!["10.8.0.2/32".parse().unwrap()]));
    server.apply(Command::InstallKey(PeerId(2), KeySlot::Primary, key(2, 0, true)));
    (server, client)
}

#[test]
fn a_forged_or_repeated_packet_on_a_relays_stream_is_dropped_and_the_stream_goes_on() {
    let (mut server, mut client) = behind_a_stream(Float::Accept);
    let sealed: Vec<_> = (0..3).map(|n| client.seal_one(&packet(2, SERVER, n))).collect();
    let mut forged = sealed[1].clone();
    *forged.last_mut().unwrap() ^= 1;
    let arrived = [&sealed[0], &forged, &sealed[0], &sealed[1]].map(|packet| &packet[..]);
    assert_eq!(server.open_stream(leg(), &arrived).map(|packets| packets.len()), Ok(2));
    assert_eq!(server.dropped(DropReason::BadTag), 1);
    assert_eq!(server.dropped(DropReason::Replayed), 1);
    assert_eq!(server.open_stream(leg(), &[&sealed[2]]).map(|packets| packets.len()), Ok(1));
    // On the peer's own connection, either is an attack.
    for bad in [&forged, &sealed[0]] {
        let (mut server, _) = behind_a_stream(Float::Refuse);
        let arrived = [&sealed[0], bad, &sealed[1]].map(|packet| &packet[..]);
        assert_eq!(server.open_stream(leg(), &arrived), Err(StreamEnd::BadPacket));
    }
}

#[test]
fn packets_on_a_relays_stream_may_be_out_of_order() {
    let (mut server, mut client) = behind_a_stream(Float::Accept);
    let sealed: Vec<_> = (0..3).map(|n| client.seal_one(&packet(2, SERVER, n))).collect();
    let arrived = [&sealed[2], &sealed[0], &sealed[1]].map(|packet| &packet[..]);
    assert_eq!(server.open_stream(leg(), &arrived).map(|packets| packets.len()), Ok(3));
    assert_eq!(server.all_drops(), 0);
}

#[test]
fn a_peer_of_several_paths_is_heard_over_datagrams_and_streams_whichever_it_is_sent_to() {
    let (mut server, mut client) = behind_a_stream(Float::Accept);
    let mut seal = || client.seal_one(&packet(2, SERVER, 1));
    assert_eq!(server.open(link(3, 1000), &seal()).len(), 1, "a datagram, with a stream in use");
    let other = Link::stream(6, ([192, 0, 2, 78], 443).into());
    assert_eq!(server.open_stream(other, &[&seal()]).map(|packets| packets.len()), Ok(1));
    server.apply(Command::SetLink(PeerId(2), link(3, 1000)));
    assert_eq!(server.open_stream(leg(), &[&seal()]).map(|packets| packets.len()), Ok(1));
    let opens = |server: &End| server.memory.plane().link(PeerId(2)).unwrap();
    assert_eq!(opens(&server), link(3, 1000), "it has not moved");
    let (mut server, _) = behind_a_stream(Float::Follow);
    assert!(server.open(link(3, 1000), &seal()).is_empty());
    assert_eq!(server.dropped(DropReason::WrongAddress), 1);
}

#[test]
fn a_splice_applies_only_to_packets_of_its_lengths() {
    let (mut relay, _, mut client) = relayed();
    let (len, sealed) = train(&mut client);
    let bound = |len: usize| u16::try_from(len).unwrap();
    let mut passes = |shortest, longest, bytes: &[u8]| {
        let lengths = SplicedLengths { shortest: bound(shortest), longest: bound(longest) };
        relay.apply(Command::AddSplice(Splice { lengths, ..Splice::new(ID, TO) }));
        !relay.relay_buffer(link(2, 1000), len, bytes).is_empty()
    };
    assert!(passes(len, len, &sealed));
    assert!(!passes(len + 1, 2000, &sealed));
    assert!(!passes(0, len - 1, &sealed));
    // The last packet of a train may be shorter.
    let shorter = &sealed[..sealed.len() - 7];
    assert!(!passes(len - 6, len, shorter));
    assert!(passes(len - 7, len, shorter));
    assert_eq!(relay.dropped(DropReason::UnknownPeer), 9);
}

#[test]
fn the_packets_of_a_splice_are_counted_until_they_are_taken() {
    let (mut relay, _, mut client) = relayed();
    let (len, sealed) = train(&mut client);
    relay.apply(splice(None));
    let taken = |relay: &End| {
        let mut taken = Vec::new();
        relay.memory.plane().take_spliced(|id, packets| taken.push((id, packets)));
        taken
    };
    assert_eq!(taken(&relay), []);
    relay.relay_buffer(link(2, 1000), len, &sealed);
    // A replacement goes on counting.
    relay.apply(splice(None));
    relay.relay_buffer(link(2, 1000), len, &sealed[..len + 9]);
    relay.relay_buffer(link(3, 1000), len, &sealed);
    assert_eq!(taken(&relay), [(ID, 5)]);
    assert_eq!(taken(&relay), []);
}
