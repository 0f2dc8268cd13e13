//! Fuzzes frames from both ends. The first byte selects the meaning of the rest: the inside of an authentic packet of a
//! peer, of a switch that guards addresses, sorts frames into VLANs or does neither, or the output of a TAP device with
//! its header.
#![cfg_attr(fuzzing, no_main)]

use std::net::SocketAddr;

use adit_crypto::aead::SealKey;
use adit_crypto::{Cipher, DirectionKey};
use adit_dataplane::Relay;
use adit_dataplane::loopback::LoopbackOutput;
use adit_engine::command::{InnerMtu, KeySlot};
use adit_engine::{Instant, Link, PeerId, VlanId, Vlans};
use adit_openvpn::data_format::{Command, DataKey, KeyLimits, PacketLayout, PeerSpec, Protection};
use adit_openvpn_data::LoopbackPlane;
use adit_wire::VnetHeader;
use adit_wire::ethernet::{Ethernet, MAX_HEADER_LEN};
use adit_wire::split::Segments;
use adit_wire::vlan::Tagged;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const PEERS: [PeerId; 2] = [PeerId(1), PeerId(2)];
const RELAYS: [Relay; 3] = [Relay::Kernel, Relay::Direct, Relay::Deny];

pub fn run(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let relay = RELAYS[usize::from(choice >> 4) % RELAYS.len()];
    match choice & 0x0f {
        0 => inside(relay, false, false, rest),
        2 => inside(relay, true, false, rest),
        4 => inside(relay, false, true, rest),
        6 => handed_out(relay, true, rest),
        _ => handed_out(relay, false, rest),
    }
}

fn link(peer: PeerId) -> Link {
    let port = 1000 + peer.0 as u16;
    Link::datagram(Default::default(), None, SocketAddr::from(([192, 0, 2, 1], port)))
}

fn half() -> DirectionKey {
    DirectionKey { cipher: [3; 64], hmac: [5; 64] }
}

fn end(relay: Relay, client: bool, vlans: bool) -> LoopbackPlane {
    let (end, _upcalls) = LoopbackPlane::ethernet(relay, client, || Instant::from_nanos(1))
        .expect("an end in memory");
    if vlans {
        end.plane().sort_into_vlans(Vlans::default());
    }
    for peer in PEERS {
        let spec = PeerSpec {
            layout: PacketLayout { wire_id: Some(peer.0), ..PacketLayout::default() },
            mtu: InnerMtu { mss4: 1400, mss6: 1380, ..InnerMtu::default() },
            vlan: VlanId::new(peer.0 as u16),
            ..PeerSpec::plain(link(peer))
        };
        let key = DataKey {
            key_id: 0,
            protection: Protection::Aead(Cipher::Aes128Gcm),
            seal: half(),
            open: half(),
            limits: KeyLimits::default(),
        };
        end.plane().apply(Command::AddPeer(peer, spec));
        let route = format!("10.8.0.{}/32", peer.0).parse().expect("a route");
        end.plane().apply(Command::SetRoutes(peer, vec![route]));
        end.plane().apply(Command::InstallKey(peer, KeySlot::Primary, Box::new(key)));
    }
    end
}

/// Receives a malicious peer's frames, two at a time, so that merging is exercised; then another peer's, so that the
/// address look-up is exercised too.
fn inside(relay: Relay, guards: bool, vlans: bool, bytes: &[u8]) {
    let Some((&len, rest)) = bytes.split_first() else { return };
    let (first, second) = rest.split_at(usize::from(len).min(rest.len()));
    if let Some(header) = Ethernet::parse(first) {
        assert!(header.header_len <= first.len() && header.header_len <= MAX_HEADER_LEN);
        assert!(header.ip(first).is_none_or(|at| at == header.header_len));
    }
    let seal = SealKey::new(Cipher::Aes128Gcm, &half()).expect("a key");
    let mut end = end(relay, false, vlans);
    if guards {
        let network = "10.8.0.0/24".parse().expect("a network");
        end.plane().guard_sources(vec![network]);
    }
    for (peer, id, plain) in [(PEERS[0], 1u32, first), (PEERS[0], 2, second), (PEERS[1], 1, first)]
    {
        let mut packet = vec![0x48, 0, 0, peer.0 as u8];
        packet.extend_from_slice(&id.to_be_bytes());
        let mut tag = [0; 16];
        let mut text = vec![0; plain.len()];
        seal.seal(id, &packet, plain, &mut text, &mut tag).expect("sealed");
        packet.extend_from_slice(&tag);
        packet.extend_from_slice(&text);
        let segment = packet.len();
        end.open(&link(peer), segment, &mut packet, |what| {
            if let LoopbackOutput::Tagged(vlan, write) = what {
                assert_eq!(u32::from(vlan.get()), peer.0);
                let header = write.packets().next().unwrap_or_default();
                assert!(Tagged::new(&VnetHeader::default(), header, vlan.get()).is_some());
            }
        });
    }
    let known = end.plane().mac_totals().expect("a switch").known;
    let most = if vlans { 3 } else { 2 };
    assert!(known <= most, "no more stations than frames named");
}

/// Sends the output of a TAP device, with its header. The frame is split like its packet, and everything that is sent
/// can be opened at the other end.
fn handed_out(relay: Relay, vlans: bool, bytes: &[u8]) {
    let Some((vnet, frame)) = bytes.split_first_chunk() else { return };
    let vnet = VnetHeader::decode(vnet);
    cut_like_its_packet(&vnet, frame);
    let mut far = end(relay, true, false);
    let mut trains = Vec::new();
    let mut near = end(relay, false, vlans);
    near.plane().report_unrouted();
    near.seal(&vnet, &mut frame.to_vec(), |train, segment| {
        trains.push((train.to_vec(), segment));
    });
    for (mut train, segment) in trains {
        far.open(&link(PEERS[0]), segment, &mut train, |_| {});
    }
}

fn cut_like_its_packet(vnet: &VnetHeader, frame: &[u8]) {
    let Some(at) = Ethernet::parse(frame).and_then(|header| header.ip(frame)) else { return };
    let Some(csum_start) = vnet.csum_start.checked_sub(at as u16) else { return };
    let (header, packet) = frame.split_at(at);
    let (mut frame, mut packet) = (frame.to_vec(), packet.to_vec());
    let alone = VnetHeader { csum_start, ..*vnet };
    let behind = Segments::behind(vnet, &mut frame, at);
    match (behind, Segments::new(&alone, &mut packet)) {
        (Ok(mut frames), Ok(mut packets)) => loop {
            match (frames.next(), packets.next()) {
                (Some(frame), Some(packet)) => {
                    assert_eq!(&frame[..at], header);
                    assert_eq!(&frame[at..], packet);
                }
                (None, None) => return,
                _ => panic!("not as many"),
            }
        },
        (Err(_), Err(_)) => {}
        // The header leaves no space for the Ethernet header before it.
        (Err(_), Ok(_)) => {}
        (Ok(_), Err(_)) => panic!("a frame whose packet makes no sense was taken"),
    }
}
