//! Captured packets of the real openvpn with a static key: pings, and packets from its TUN device (router
//! solicitations).

use std::time::{SystemTime, UNIX_EPOCH};

use adit_crypto::{BlockCipher, Digest, DirectionKey};
use adit_dataplane::{DropReason, Relay};
use adit_engine::PeerId;
use adit_engine::command::KeySlot;
use adit_openvpn::data_format::{BlockSuite, Command, DataKey, KeyLimits, PeerSpec, Protection};

use crate::common::{self, End, layout, link, spec};

const CAPTURE: &str = include_str!("../fixtures/stock-static-key.txt");
const PEER: PeerId = PeerId(0);

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// Returns the two keys in a key file.
fn halves() -> [DirectionKey; 2] {
    let key = CAPTURE.lines().find_map(|line| line.strip_prefix("key ")).unwrap();
    let key = unhex(key);
    [0, 128].map(|at| DirectionKey {
        cipher: key[at..at + 64].try_into().unwrap(),
        hmac: key[at + 64..at + 128].try_into().unwrap(),
    })
}

/// The settings of a captured packet.
struct CapturedPacket {
    name: String,
    suite: BlockSuite,
    /// The key that openvpn sealed it with.
    sealed_with: usize,
    time: u32,
    packet: Vec<u8>,
}

fn captured() -> Vec<CapturedPacket> {
    let lines = CAPTURE.lines().filter(|line| !line.starts_with(['#', 'k']));
    let packets = lines.map(|line| {
        let [cipher, digest, direction, time, packet] =
            line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        CapturedPacket {
            name: format!("{cipher} {digest} {direction}"),
            suite: BlockSuite {
                cipher: BlockCipher::from_name(cipher),
                digest: Digest::from_name(digest),
            },
            // Without a direction both ends use the first key; with 1 this end has the second.
            sealed_with: usize::from(direction == "1"),
            time: time.parse().unwrap(),
            packet: unhex(packet),
        }
    });
    packets.collect()
}

fn end(suite: BlockSuite, open: &DirectionKey) -> End {
    let end = End::new(Relay::Kernel, true);
    end.apply(Command::AddPeer(PEER, PeerSpec { layout: layout(None), ..spec(link(200, 1194)) }));
    end.apply(Command::SetRoutes(
        PEER,
        vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
    ));
    let key = DataKey {
        key_id: 0,
        protection: Protection::Static(suite),
        seal: open.clone(),
        open: open.clone(),
        limits: KeyLimits::default(),
    };
    end.apply(Command::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
    end
}

#[test]
fn packets_of_openvpn_open_under_its_key_and_no_other() {
    let halves = halves();
    let all = captured();
    assert_eq!(all.len(), 12);
    let mut solicitations = 0;
    for CapturedPacket { name, suite, sealed_with, packet, .. } in &all {
        let mut right = end(*suite, &halves[*sealed_with]);
        let out = right.open(link(200, 1194), packet);
        assert_eq!((right.received(0), right.all_drops()), (1, 0), "{name}");
        // A ping carries no packet.
        solicitations += out.len();
        assert!(out.iter().all(|packet| packet[0] >> 4 == 6), "{name}");
        assert!(right.open(link(200, 1194), packet).is_empty());
        assert_eq!(right.dropped(DropReason::Replayed), 1, "{name}");
        let mut wrong = end(*suite, &halves[1 - *sealed_with]);
        wrong.open(link(200, 1194), packet);
        assert_eq!(wrong.dropped(DropReason::BadTag), 1, "{name}");
    }
    assert_eq!(solicitations, 4, "as `cipher none` shows: the second packet of each run");
}

/// Ids begin with 1, followed by the time of the first packet: with `cipher none` both are readable.
#[test]
fn our_packets_look_like_openvpns() {
    let halves = halves();
    let all = captured();
    let plain = all.iter().find(|captured| captured.suite.cipher.is_none()).unwrap();
    let id_and_time = |packet: &[u8]| {
        let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
        (word(32), word(36))
    };
    let (id, time) = id_and_time(&plain.packet);
    assert_eq!(id, 1);
    assert!((plain.time..plain.time + 5).contains(&time));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32;
    let mut ours = end(plain.suite, &halves[0]);
    let packet = ours.seal_one(&common::packet(2, 1, 0));
    let (id, time) = id_and_time(&packet);
    assert_eq!(id, 1);
    assert!((now..now + 60).contains(&time));
    assert_eq!(packet.len(), 32 + 8 + common::packet(2, 1, 0).len());
}
