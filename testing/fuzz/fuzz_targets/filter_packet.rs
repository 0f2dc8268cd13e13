//! Fuzzes the packets that a device delivers to the filter. The first byte selects the layer and a VLAN tag outside the
//! frame; the device's header follows; the rest is the frame.
#![cfg_attr(fuzzing, no_main)]

use adit_filter::rejection::{MAX_REJECTION, reject};
use adit_filter::packet::{Layer, Packet, Transport};
use adit_filter::ruleset::{Icmpx, Reject};
use adit_wire::VnetHeader;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let Some((vnet, frame)) = rest.split_first_chunk() else { return };
    let layer = if choice & 1 == 0 { Layer::Ethernet } else { Layer::Ip };
    let beside = (choice & 2 != 0).then_some(0x2007);
    let Ok(packet) = Packet::parse(frame, layer, beside, &VnetHeader::decode(vnet)) else { return };
    check(frame, &packet);
    for how in [
        Reject::TcpReset,
        Reject::Icmp(13),
        Reject::Icmpv6(1),
        Reject::Icmpx(Icmpx::PortUnreachable),
    ] {
        let mut out = [0; MAX_REJECTION];
        let Some(len) = reject(&packet, how, &mut out) else { continue };
        let told = Packet::parse(&out[..len], layer, beside, &VnetHeader::default())
            .expect("an answer is a packet");
        assert!(told.checksum_ok() && told.bytes.len() == len);
        assert!(reject(&told, how, &mut [0; MAX_REJECTION]).is_none(), "an answer to an answer");
    }
}

fn check(frame: &[u8], packet: &Packet<'_>) {
    assert!(frame.starts_with(packet.bytes));
    assert!(packet.length() <= packet.bytes.len() && packet.segments() >= 1);
    packet.checksum_ok();
    let Some(ip) = packet.ip() else { return };
    assert!(ip.at < ip.payload && ip.payload <= packet.bytes.len());
    let header = match packet.transport {
        Transport::Tcp(tcp) => tcp.header_len,
        Transport::Udp(_) | Transport::Icmp(_) => 8,
        Transport::Other | Transport::None => 0,
    };
    assert!(packet.transport_bytes().len() >= header);
}
