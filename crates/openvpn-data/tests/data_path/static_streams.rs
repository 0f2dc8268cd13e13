//! Tests of a static key over streams. One end uses real sockets; the other end's packets are made in memory.

use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::time::{Duration, Instant as Wall};

use adit_crypto::{BlockCipher, Digest, DirectionKey};
use adit_dataplane::{DropReason, Offloads, PlaneConfig, Relay, StreamEnd, StreamOptions};
use adit_engine::command::{Float, KeySlot};
use adit_engine::{Instant, Link, PeerId};
use adit_linux::tcp::{TcpConnectOptions, TcpStream};
use adit_openvpn::data_format::{
    BlockSuite, Command, DataKey, KeyLimits, Notice, PeerSpec, Protection,
};
use adit_openvpn_data::{Plane, Upcall, Upcalls};

use crate::common::{self, End, layout, packet, spec};

const PATIENCE: Duration = Duration::from_secs(30);
const PEER: PeerId = PeerId(0);
/// The control packet that the plane sends; its content does not matter.
const WORD: &[u8] = b"a word of control";

fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

fn static_key(bytes: u8) -> Box<DataKey> {
    let half = DirectionKey { cipher: [bytes; 64], hmac: [bytes.wrapping_add(1); 64] };
    let suite = BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha256) };
    Box::new(DataKey {
        key_id: 0,
        protection: Protection::Static(suite),
        seal: half.clone(),
        open: half,
        limits: KeyLimits::default(),
    })
}

fn static_spec(link: Link) -> PeerSpec {
    PeerSpec { layout: layout(None), ..spec(link) }
}

/// Returns the link of a stream that does not exist.
fn nowhere() -> Link {
    Link::stream(u64::MAX, ([0, 0, 0, 0], 0).into())
}

/// The end under test: it has the peer and accepts connections.
struct Host {
    plane: Plane,
    upcalls: Upcalls,
    listener: StdListener,
    next: u64,
    seen: Vec<Upcall>,
}

/// Creates the other end, or an end with another key.
fn other(key: u8) -> End {
    let end = End::new(Relay::Kernel, true);
    end.apply(Command::AddPeer(PEER, static_spec(common::link(1, 1194))));
    end.apply(Command::InstallKey(PEER, KeySlot::Primary, static_key(key)));
    end.apply(Command::SetRoutes(PEER, vec!["0.0.0.0/0".parse().unwrap()]));
    end
}

/// Prefixes one packet with its length.
fn framed(end: &mut End, fill: u8) -> Vec<u8> {
    let sealed = end.seal(&packet(2, 3, fill)).concat();
    [&(sealed.len() as u16).to_be_bytes()[..], &sealed].concat()
}

impl Host {
    fn new(float: bool) -> Self {
        let config = PlaneConfig {
            tun: None,
            sockets: Vec::new(),
            relay: Relay::Kernel,
            gates: Offloads::ALL,
            client: true,
            ethernet: false,
        };
        let (plane, upcalls) = Plane::start(config, boot_clock).unwrap();
        plane.apply(Command::AddPeer(
            PEER,
            PeerSpec { float: Float::if_allowed(float), ..static_spec(nowhere()) },
        ));
        plane.apply(Command::InstallKey(PEER, KeySlot::Primary, static_key(7)));
        plane.apply(Command::SetRoutes(PEER, vec!["0.0.0.0/0".parse().unwrap()]));
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        Self { plane, upcalls, listener, next: 1, seen: Vec::new() }
    }

    fn connection(&mut self) -> (StdStream, Link) {
        let address = self.listener.local_addr().unwrap();
        let stream = TcpStream::connect(&TcpConnectOptions::new(address)).unwrap();
        let (far, _) = self.listener.accept().unwrap();
        let end = Wall::now() + PATIENCE;
        while !stream.finish_connect().unwrap() {
            assert!(Wall::now() < end);
        }
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        let link = Link::stream(self.next, address);
        self.next += 1;
        self.plane.add_stream(link, stream, StreamOptions::default()).unwrap();
        (far, link)
    }

    fn wait_for<T>(&mut self, pick: impl Fn(&Upcall) -> Option<T>) -> T {
        let end = Wall::now() + PATIENCE;
        loop {
            let found = self.seen.iter().enumerate().find_map(|(at, u)| Some((at, pick(u)?)));
            if let Some((at, found)) = found {
                self.seen.remove(at);
                return found;
            }
            assert!(Wall::now() < end, "nothing came: {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(2));
            let seen = &mut self.seen;
            self.upcalls.drain(|upcall| seen.push(upcall));
        }
    }

    fn moved_to(&mut self, link: Link) {
        self.wait_for(|upcall| match upcall {
            Upcall::Notice(Notice::Floated(PEER, to)) if *to == link => Some(()),
            _ => None,
        });
    }

    fn end_of(&mut self, link: Link) -> StreamEnd {
        self.wait_for(|upcall| match upcall {
            Upcall::StreamEnded(ended, why) if *ended == link => Some(*why),
            _ => None,
        })
    }

    fn received(&self) -> u64 {
        self.plane.counters(PEER).unwrap().rx_packets
    }

    fn until(&self, done: impl Fn(&Self) -> bool) {
        let end = Wall::now() + PATIENCE;
        while !done(self) {
            assert!(Wall::now() < end, "it never happened: {:?}", self.plane.totals());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns the next packet's time and number, as a strict receiver sees them.
fn numbered(socket: &mut StdStream) -> (u32, u32) {
    let mut length = [0; 2];
    socket.read_exact(&mut length).unwrap();
    let mut sealed = vec![0; u16::from_be_bytes(length).into()];
    socket.read_exact(&mut sealed).unwrap();
    let half = DirectionKey { cipher: [7; 64], hmac: [8; 64] };
    let open = adit_crypto::block::OpenBlock::new(
        Some(BlockCipher::Aes256Cbc),
        Some(Digest::Sha256),
        &half,
    );
    let open = open.unwrap();
    let text = open.open(&mut sealed).unwrap();
    let number = |at: usize| u32::from_be_bytes(text[at..at + 4].try_into().unwrap());
    (number(4), number(0))
}

#[test]
fn an_authentic_packet_shows_whose_connection_it_is() {
    let mut host = Host::new(true);
    let (_silent, first) = host.connection();
    host.plane.apply(Command::SetLink(PEER, first));
    let (mut theirs, second) = host.connection();
    let mut end = other(7);
    theirs.write_all(&framed(&mut end, 1)).unwrap();
    host.moved_to(second);
    assert_eq!(host.plane.link(PEER), Some(second));
    assert_eq!(host.received(), 1);
}

#[test]
fn neither_strangers_nor_captured_packets_move_a_peer_or_come_in() {
    let mut host = Host::new(true);
    let (mut theirs, link) = host.connection();
    host.plane.apply(Command::SetLink(PEER, link));
    let mut end = other(7);
    let captured: Vec<_> = (0..5).map(|fill| framed(&mut end, fill)).collect();
    theirs.write_all(&captured.concat()).unwrap();
    host.until(|host| host.received() == 5);
    for bytes in [framed(&mut other(9), 1), captured[4].clone(), captured[0].clone()] {
        let (mut stranger, foreign) = host.connection();
        stranger.write_all(&bytes).unwrap();
        assert_eq!(host.end_of(foreign), StreamEnd::BadPacket);
        assert_eq!((host.plane.link(PEER), host.received()), (Some(link), 5));
    }
    // The same after the peer's own connection has ended.
    host.plane.apply(Command::SetLink(PEER, nowhere()));
    host.plane.remove_stream(link);
    let (mut stranger, foreign) = host.connection();
    host.plane.apply(Command::SetLink(PEER, foreign));
    stranger.write_all(&captured[2]).unwrap();
    assert_eq!(host.end_of(foreign), StreamEnd::BadPacket);
    assert_eq!(host.received(), 5);
}

/// An end that dials has one connection, which its peer uses.
#[test]
fn without_float_another_connection_is_not_listened_to() {
    let mut host = Host::new(false);
    let (_theirs, link) = host.connection();
    host.plane.apply(Command::SetLink(PEER, link));
    let (mut elsewhere, _) = host.connection();
    elsewhere.write_all(&framed(&mut other(7), 1)).unwrap();
    host.until(|host| host.plane.totals().dropped(DropReason::WrongAddress) == 1);
    assert_eq!((host.plane.link(PEER), host.received()), (Some(link), 0));
}

/// openvpn discards a connection's packet ids with the connection, and requires ids from 1 on
/// without a gap.
#[test]
fn packets_are_counted_from_the_start_on_each_connection() {
    let host = &mut Host::new(true);
    let mut last = 0;
    for _ in 0..3 {
        let (mut theirs, link) = host.connection();
        host.plane.apply(Command::SetLink(PEER, link));
        for expected in 1..=3 {
            host.plane.apply(Command::SendData(PEER, WORD.to_vec()));
            let (time, id) = numbered(&mut theirs);
            assert_eq!(id, expected);
            assert!(if id == 1 { time > last } else { time == last }, "{time} {last}");
            last = time;
        }
        host.plane.apply(Command::SetLink(PEER, nowhere()));
        // The packet is sent to no peer.
        host.plane.apply(Command::SendData(PEER, WORD.to_vec()));
        host.plane.remove_stream(link);
    }
}
