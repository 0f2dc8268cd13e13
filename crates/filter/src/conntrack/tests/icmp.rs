use super::*;

const ID: u32 = 0x1234_0001;

#[test]
fn queries_start_flows_and_replies_belong_to_them() {
    let pairs = [(false, 8, 0), (false, 13, 14), (false, 15, 16), (false, 17, 18)];
    let pairs = pairs.into_iter().chain([(true, 128, 129), (true, 139, 140)]);
    for (v6, query, reply) in pairs {
        let (a, b) = (host(v6, A), host(v6, B));
        let world = World::new();
        assert_eq!(world.pass(&icmp(b, a, (reply, 0), ID, &[])), BAD, "{query} without a query");
        assert_eq!(world.invalid(Invalid::Icmp), 1);
        assert_eq!(world.pass(&icmp(a, b, (query, 0), ID, &[])), NEW);
        assert_eq!(world.pass(&icmp(a, b, (query, 0), ID + 1, &[])), NEW, "the next in sequence");
        assert_eq!(world.pass(&icmp(b, a, (reply, 0), ID + (1 << 16), &[])), BAD, "another id");
        assert_eq!(world.pass(&icmp(a, b, (reply, 0), ID, &[])), BAD, "from the one who asked");
        assert_eq!(world.pass(&icmp(b, a, (query, 0), ID, &[])), NEW, "a query the other way");
        assert_eq!(world.pass(&icmp(b, a, (reply, 0), ID, &[])), COMES);
        assert_eq!(world.pass(&icmp(a, b, (query, 0), ID, &[])), GOES);
        assert_eq!(world.flows().len(), 2);
    }
}

#[test]
fn a_query_to_oneself_tells_its_direction_by_its_type() {
    let a = host(false, A);
    let world = World::new();
    assert_eq!(world.pass(&icmp(a, a, (8, 0), ID, &[])), NEW);
    assert_eq!(world.pass(&icmp(a, a, (0, 0), ID, &[])), COMES);
    assert_eq!(world.pass(&icmp(a, a, (8, 0), ID, &[])), GOES);
}

#[test]
fn other_types_belong_to_nothing() {
    let (a, b) = (host(false, A), host(false, B));
    let world = World::new();
    for kind in (0..=255).filter(|kind| ![8, 13, 15, 17].contains(kind)) {
        assert_eq!(world.pass(&icmp(a, b, (kind, 0), ID, &[])), BAD, "type {kind}");
    }
    let (a, b) = (host(true, A), host(true, B));
    for kind in 0..=255 {
        let expected = match kind {
            130..=136 | 143 => UNTRACKED,
            128 | 139 => NEW,
            _ => BAD,
        };
        let view = world.look(&icmp(a, b, (kind, 0), ID, &[]));
        assert_eq!((view.state, view.direction), expected, "ICMPv6 type {kind}");
    }
    assert_eq!(world.flows(), []);
}

#[test]
fn arp_is_not_tracked() {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([0; 20]);
    let packet = Packet::parse(&frame, Layer::Ethernet, None, &VnetHeader::default()).unwrap();
    let tracked = World::new().tracker.burst(Nanos(1)).look(&packet, Crossing::Nowhere.into());
    assert_eq!((tracked.state, tracked.protocol), (CtState::UNTRACKED, None));
}

/// Builds an ICMP error from C about `inner`, addressed to `to`.
fn error(v6: bool, to: u8, inner: &[u8]) -> Vec<u8> {
    let kind = if v6 { (1, 4) } else { (3, 3) };
    icmp(host(v6, C), host(v6, to), kind, 0, &inner[..inner.len().min(48)])
}

const RELATED_BACK: View = (CtState::RELATED, CtDirection::Reply);
const RELATED_ALONG: View = (CtState::RELATED, CtDirection::Original);

#[test]
fn an_error_is_related_to_the_flow_whose_packet_it_carries() {
    for v6 in [false, true] {
        let (a, b) = ((host(v6, A), 1000), (host(v6, B), 53));
        let world = World::new();
        assert_eq!(world.pass(&error(v6, A, &udp(a, b))), BAD, "no such flow");
        world.pass(&udp(a, b));
        let before = world.only();
        let tracked = world.look(&error(v6, A, &udp(a, b)));
        assert_eq!((tracked.state, tracked.direction), RELATED_BACK);
        assert_eq!(tracked.protocol, Some(17), "the flow's, not ICMP's");
        assert_eq!(world.pass(&error(v6, B, &udp(b, a))), RELATED_ALONG);
        assert_eq!(world.only(), before, "it changes nothing, and makes nothing");
        assert_eq!(world.pass(&udp(a, b)), NEW, "it is no answer");
    }
}

#[test]
fn an_error_does_not_keep_a_flow_alive() {
    let (a, b) = ((host(false, A), 1000), (host(false, B), 53));
    let mut world = World::new();
    world.pass(&udp(a, b));
    world.wait(Duration::from_secs(29));
    assert_eq!(world.pass(&error(false, A, &udp(a, b))), RELATED_BACK);
    world.wait(Duration::from_secs(1));
    assert_eq!(world.pass(&error(false, A, &udp(a, b))), BAD);
}

#[test]
fn an_error_about_tcp_and_about_a_ping_is_related_too() {
    for v6 in [false, true] {
        let world = World::new();
        let syn = Seg { v6, ..seg(SYN, 1000, 0) };
        world.tcp(syn.clone());
        assert_eq!(world.pass(&error(v6, A, &syn.bytes())), RELATED_BACK);
        let query = if v6 { 128 } else { 8 };
        let ping = icmp(host(v6, A), host(v6, B), (query, 0), ID, &[]);
        assert_eq!(world.pass(&error(v6, A, &ping)), BAD);
        world.pass(&ping);
        assert_eq!(world.pass(&error(v6, A, &ping)), RELATED_BACK);
    }
}

#[test]
fn an_error_that_does_not_fit_is_invalid() {
    for v6 in [false, true] {
        let (a, b) = ((host(v6, A), 1000), (host(v6, B), 53));
        let world = World::new();
        let sent = udp(a, b);
        world.pass(&sent);
        let wrong = |what: &str, packet: Vec<u8>| {
            let before = world.invalid(Invalid::IcmpError);
            assert_eq!(world.pass(&packet), BAD, "{what}, v6: {v6}");
            assert_eq!(world.invalid(Invalid::IcmpError), before + 1, "{what}");
        };
        wrong("not to whom the packet came from", error(v6, B, &sent));
        wrong("to somebody else", error(v6, C, &sent));
        wrong("another port", error(v6, A, &udp((a.0, 1001), b)));
        wrong("another address", error(v6, A, &udp(a, (host(v6, C), 53))));
        wrong("never sent this way", error(v6, A, &udp(b, a)));
        wrong("nothing inside", error(v6, A, &[]));
        let header = if v6 { 40 } else { 20 };
        wrong("ports cut off", error(v6, A, &sent[..header + 3]));
        wrong("header cut off", error(v6, A, &sent[..header - 1]));
        let mut other = sent.clone();
        other[0] = if v6 { 0x40 } else { 0x60 };
        wrong("another version", error(v6, A, &other));
        let mut other = sent.clone();
        other[if v6 { 6 } else { 9 }] = 6;
        wrong("another protocol", error(v6, A, &other));
        wrong("an error inside an error", error(v6, A, &error(v6, A, &sent)));
        if !v6 {
            let mut piece = sent.clone();
            piece[7] = 1;
            wrong("not a first piece", error(v6, A, &piece));
            let mut short = sent.clone();
            short[0] = 0x44;
            wrong("a header of 16 bytes", error(v6, A, &short));
        }
    }
}

#[test]
fn extension_headers_inside_an_error_are_walked() {
    let (IpAddr::V6(a), IpAddr::V6(b)) = (host(true, A), host(true, B)) else { unreachable!() };
    let world = World::new();
    let sent = udp((a.into(), 1000), (b.into(), 53));
    world.pass(&sent);
    let options = [0, 1, 4, 0, 0, 0, 0];
    let piece = |offset: u8| [0, 0, offset, 0, 0, 0, 9];
    let inner = |chain: &[(u8, &[u8])]| v6_of(a, b, chain, 17, &sent[40..]);
    let to_a = |inner: &[u8]| icmp(host(true, C), a.into(), (2, 0), 1280, inner);
    assert_eq!(world.pass(&to_a(&inner(&[(0, &options), (60, &options)]))), RELATED_BACK);
    assert_eq!(world.pass(&to_a(&inner(&[(44, &piece(1))]))), RELATED_BACK, "the first piece");
    assert_eq!(world.pass(&to_a(&inner(&[(44, &piece(8))]))), BAD, "a later one");
    let nine: Vec<(u8, &[u8])> = vec![(60, &options[..]); 9];
    assert_eq!(world.pass(&to_a(&inner(&nine))), BAD, "too many");
}

#[test]
fn ports_of_protocols_that_are_not_looked_into() {
    let (a, b) = (host(false, A), host(false, B));
    for protocol in [33, 132, 136] {
        let one = |from: [u8; 2], to: [u8; 2]| {
            let mut l4 = [from, to].concat();
            l4.resize(24, 0);
            l4
        };
        let world = World::new();
        assert_eq!(world.pass(&packet(a, b, protocol, one([0, 9], [0, 5]), None)), NEW);
        assert_eq!(world.pass(&packet(b, a, protocol, one([0, 6], [0, 9]), None)), NEW);
        assert_eq!(world.pass(&packet(b, a, protocol, one([0, 5], [0, 9]), None)), COMES);
        assert_eq!(world.pass(&packet(b, a, protocol, vec![0, 5], None)), BAD, "cut off");
    }
    let world = World::new();
    assert_eq!(world.pass(&packet(a, b, 47, vec![0; 8], None)), NEW);
    assert_eq!(world.pass(&packet(b, a, 47, vec![], None)), COMES);
}
