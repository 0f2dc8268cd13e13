use adit_wire::VnetHeader;

use super::{Layer, Malformed, Packet};

#[test]
fn nothing_is_no_packet() {
    let parse = |layer| Packet::parse(&[], layer, None, &VnetHeader::default()).map(|_| ());
    assert_eq!(parse(Layer::Ethernet), Err(Malformed::Link));
    assert_eq!(parse(Layer::Ip), Err(Malformed::Network));
}
