use std::net::IpAddr;

use adit_filter::Nanos;
use adit_filter::packet::{Layer, Packet, Transport};
use adit_wire::checksum::Sum;
use adit_wire::ethernet::Mac;
use adit_wire::icmp_error::ip_header;
use adit_wire::{Gso, VnetHeader};

use super::message::{Arp, advertisement, solicitation};
use super::neighbour::{MAX_ASKED, MAX_KNOWN, MAX_WAITING, MAX_WAITING_BYTES};
use super::packet::mac;
use super::resolve::BROADCAST;
use super::{
    ERRORS_AT_ONCE, EgressResult, IngressResult, MAX_OUT, Outgoing, PortSettings, Prefix, Route,
    Router, RouterDrop, SettingsError,
};
use crate::port::Side;

const ROUTER_A: Mac = Mac([2, 0, 0, 0, 0, 0xa1]);
const ROUTER_B: Mac = Mac([2, 0, 0, 0, 0, 0xb1]);
const HOST_A: Mac = Mac([2, 0, 0, 0, 0, 0xaa]);
const HOST_B: Mac = Mac([2, 0, 0, 0, 0, 0xbb]);
const GATEWAY: Mac = Mac([2, 0, 0, 0, 0, 0xbe]);

const PLAIN: [u8; 10] = [0; 10];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn at(millis: u64) -> Nanos {
    Nanos(millis * 1_000_000)
}

fn settings() -> [PortSettings; 2] {
    let port = |mac, addresses: [&str; 2]| PortSettings {
        mac,
        mtu: 1500,
        addresses: addresses.map(prefix).into(),
    };
    [
        port(ROUTER_A, ["10.0.1.1/24", "fd00:1::1/64"]),
        port(ROUTER_B, ["10.0.2.1/24", "fd00:2::1/64"]),
    ]
}

fn routes() -> [Route; 2] {
    [
        Route { to: prefix("10.9.0.0/16"), via: ip("10.0.2.254") },
        Route { to: prefix("fd09::/16"), via: ip("fd00:2::254") },
    ]
}

fn router() -> Router {
    Router::new(settings(), &routes()).unwrap()
}

/// Returns the usual hosts of a family: the one on A and the one on B.
fn hosts(v6: bool) -> (IpAddr, IpAddr) {
    if v6 { (ip("fd00:1::2"), ip("fd00:2::2")) } else { (ip("10.0.1.2"), ip("10.0.2.2")) }
}

/// Builds a frame that contains an IP packet.
fn frame(to: Mac, from: Mac, src: IpAddr, dst: IpAddr, protocol: u8, l4: &[u8]) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    frame.extend(if src.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
    let mut header = [0; 40];
    let _sum = ip_header(src, dst, protocol, l4.len(), &mut header).unwrap();
    frame.extend(&header[..if src.is_ipv4() { 20 } else { 40 }]);
    frame.extend(l4);
    frame
}

/// Fills in the checksum of `l4` at offset `at`.
fn summed(src: IpAddr, dst: IpAddr, protocol: u8, mut l4: Vec<u8>, at: usize) -> Vec<u8> {
    let pseudo = ip_header(src, dst, protocol, l4.len(), &mut [0; 40]).unwrap();
    let start = if protocol == 1 { Sum::new() } else { pseudo };
    let sum = start.bytes(&l4).finish().to_be_bytes();
    l4[at..at + 2].copy_from_slice(&sum);
    l4
}

fn udp(to: Mac, from: Mac, src: IpAddr, dst: IpAddr, len: usize) -> Vec<u8> {
    let mut l4 = vec![0x0f, 0xa0, 0, 53];
    l4.extend((len as u16 + 8).to_be_bytes());
    l4.extend([0, 0]);
    l4.resize(len + 8, 7);
    frame(to, from, src, dst, 17, &summed(src, dst, 17, l4, 6))
}

/// Builds a frame from the host on A to the one on B.
fn across(v6: bool) -> Vec<u8> {
    let (a, b) = hosts(v6);
    udp(ROUTER_A, HOST_A, a, b, 30)
}

fn set_life(frame: &mut [u8], life: u8) {
    if frame[14] >> 4 == 6 {
        frame[21] = life;
    } else {
        frame[22] = life;
        fix(frame);
    }
}

/// Fills in the IPv4 header's checksum.
fn fix(frame: &mut [u8]) {
    let len = usize::from(frame[14] & 0xf) * 4;
    frame[24..26].fill(0);
    let sum = Sum::new().bytes(&frame[14..14 + len]).finish().to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
}

fn parse(frame: &[u8]) -> Packet<'_> {
    let packet = Packet::parse(frame, Layer::Ethernet, None, &VnetHeader::default()).unwrap();
    assert!(packet.checksum_ok());
    packet
}

fn arp(reply: bool, sender_mac: Mac, sender: IpAddr, target: IpAddr, to: Mac) -> Vec<u8> {
    let (IpAddr::V4(sender), IpAddr::V4(target)) = (sender, target) else { panic!() };
    Arp { reply, sender_mac, sender, target_mac: Mac::default(), target }.frame(to)
}

/// Builds the reply of the host on B to a request.
fn answer(v6: bool) -> Vec<u8> {
    match hosts(v6).1 {
        IpAddr::V6(b) => {
            advertisement(HOST_B, b, Some((ROUTER_B, "fe80::ff:fe00:b1".parse().unwrap())))
        }
        b => arp(true, HOST_B, b, ip("10.0.2.1"), ROUTER_B),
    }
}

/// Passes a frame through the router, as the bridge does with a frame that the rules accept.
fn pass(
    router: &mut Router,
    frame: &mut [u8],
    from: Side,
    now: Nanos,
) -> Result<EgressResult, IngressResult> {
    match router.arrive(frame, &PLAIN, from, now) {
        IngressResult::Forward(hop) => Ok(router.leave(frame, &PLAIN, from, hop, now)),
        other => Err(other),
    }
}

fn dropped(router: &mut Router, frame: &[u8], from: Side) -> Option<RouterDrop> {
    match pass(router, &mut frame.to_vec(), from, at(0)) {
        Err(IngressResult::Drop(why)) => Some(why),
        _ => None,
    }
}

/// Creates a router that knows the host on B.
fn router_knowing_b(v6: bool) -> Router {
    let mut router = router();
    assert_eq!(pass(&mut router, &mut across(v6), Side::A, at(0)), Ok(EgressResult::Consumed));
    assert_eq!(router.arrive(&mut answer(v6), &PLAIN, Side::B, at(1)), IngressResult::Consumed);
    router.take();
    router
}

/// Returns type, code and the next four bytes of the router's ICMP message to A's host.
fn told(out: &[Outgoing]) -> Option<(u8, u8, u32)> {
    let Outgoing { to, frame, .. } = out.first()?;
    let packet = parse(frame);
    let (ether, ip) = (packet.ether.unwrap(), packet.ip().unwrap());
    assert_eq!((*to, mac(ether.destination), mac(ether.source)), (Side::A, HOST_A, ROUTER_A));
    let own = if ip.source.is_ipv4() { "10.0.1.1" } else { "fd00:1::1" };
    assert_eq!((ip.source, ip.destination), (self::ip(own), hosts(ip.source.is_ipv6()).0));
    let Transport::Icmp(icmp) = packet.transport else { panic!("{packet:?}") };
    Some((icmp.kind, icmp.code, icmp.rest))
}

#[test]
fn a_packet_waits_until_its_neighbour_is_found() {
    for v6 in [false, true] {
        let mut router = router();
        assert_eq!(pass(&mut router, &mut across(v6), Side::A, at(0)), Ok(EgressResult::Consumed));
        let out = router.take();
        let [Outgoing { to: Side::B, vnet: PLAIN, frame: question }] = &out[..] else {
            panic!("{out:?}")
        };
        let want = match hosts(v6).1 {
            IpAddr::V6(b) => solicitation(ROUTER_B, "fe80::ff:fe00:b1".parse().unwrap(), b, None),
            b => arp(false, ROUTER_B, ip("10.0.2.1"), b, BROADCAST),
        };
        assert_eq!(*question, want);
        assert_eq!(router.stats().asked, 1);

        assert_eq!(router.arrive(&mut answer(v6), &PLAIN, Side::B, at(1)), IngressResult::Consumed);
        let out = router.take();
        let [Outgoing { to: Side::B, vnet: PLAIN, frame }] = &out[..] else { panic!("{out:?}") };
        let mut want = across(v6);
        want[..6].copy_from_slice(&HOST_B.0);
        want[6..12].copy_from_slice(&ROUTER_B.0);
        set_life(&mut want, 63);
        assert_eq!(*frame, want);
        parse(frame);

        let mut next = across(v6);
        assert_eq!(
            pass(&mut router, &mut next, Side::A, at(2)),
            Ok(EgressResult::Send),
            "now it is known"
        );
        assert_eq!(next, want);
        assert_eq!(router.take(), []);
        assert_eq!((router.stats().forwarded, router.stats().neighbours), (2, 1));
    }
}

#[test]
fn packets_for_other_networks_go_by_way_of_their_router() {
    for (v6, far, via) in [(false, "10.9.3.4", "10.0.2.254"), (true, "fd09::1", "fd00:2::254")] {
        let mut router = router();
        let mut packet = udp(ROUTER_A, HOST_A, hosts(v6).0, ip(far), 10);
        assert_eq!(pass(&mut router, &mut packet, Side::A, at(0)), Ok(EgressResult::Consumed));
        router.take();
        let mut reply = match ip(via) {
            IpAddr::V6(via) => {
                advertisement(GATEWAY, via, Some((ROUTER_B, "fe80::ff:fe00:b1".parse().unwrap())))
            }
            via => arp(true, GATEWAY, via, ip("10.0.2.1"), ROUTER_B),
        };
        router.arrive(&mut reply, &PLAIN, Side::B, at(1));
        assert_eq!(router.take()[0].frame[..6], GATEWAY.0);
        // A packet to the same network is sent back out, without a redirect.
        let (_, b) = hosts(v6);
        let mut packet = udp(ROUTER_B, HOST_B, b, ip(far), 10);
        assert_eq!(pass(&mut router, &mut packet, Side::B, at(2)), Ok(EgressResult::Consumed));
        let out = router.take();
        assert_eq!((out.len(), out[0].to, &out[0].frame[..6]), (1, Side::B, &GATEWAY.0[..]));
    }
}

#[test]
fn super_packets_stay_whole_and_lose_one_hop() {
    for v6 in [false, true] {
        let (a, b) = hosts(v6);
        let mut l4 = vec![0x0f, 0xa0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0];
        l4.resize(9000, 1);
        let big = frame(ROUTER_A, HOST_A, a, b, 6, &l4);
        let header = if v6 { 60 } else { 40 };
        let vnet = |gso_size| VnetHeader {
            needs_csum: true,
            gso: if v6 { Gso::TcpV6 } else { Gso::TcpV4 },
            gso_size,
            csum_start: 14 + header - 20,
            csum_offset: 16,
            ..VnetHeader::default()
        };
        let mut router = router_knowing_b(v6);
        let mut passed = big.clone();
        let fits = vnet(1500 - header).encode();
        let IngressResult::Forward(hop) = router.arrive(&mut passed, &fits, Side::A, at(2)) else {
            panic!()
        };
        assert_eq!(router.leave(&mut passed, &fits, Side::A, hop, at(2)), EgressResult::Send);
        let mut want = big.clone();
        set_life(&mut want, 63);
        assert_eq!(passed[14..], want[14..]);
        let large = vnet(1501 - header).encode();
        assert_eq!(
            router.arrive(&mut big.clone(), &large, Side::A, at(2)),
            IngressResult::Drop(RouterDrop::TooBig),
            "its segments would not fit"
        );
        assert_eq!(told(&router.take()), Some(if v6 { (2, 0, 1500) } else { (3, 4, 1500) }));
    }
}

#[test]
fn senders_are_told_what_is_not_forwarded() {
    for v6 in [false, true] {
        let (a, _) = hosts(v6);
        let mut router = router();
        for life in [0, 1] {
            let mut expired = across(v6);
            set_life(&mut expired, life);
            assert_eq!(dropped(&mut router, &expired, Side::A), Some(RouterDrop::Expired));
            let out = router.take();
            assert_eq!(told(&out), Some(if v6 { (3, 0, 0) } else { (11, 0, 0) }));
            let quoted = if v6 { 14 + 48 } else { 14 + 28 };
            assert_eq!(out[0].frame[quoted..], expired[14..], "as it came");
        }
        let nowhere = ip(if v6 { "2001:db8::1" } else { "192.0.2.1" });
        let lost = udp(ROUTER_A, HOST_A, a, nowhere, 10);
        assert_eq!(dropped(&mut router, &lost, Side::A), Some(RouterDrop::NoRoute));
        assert_eq!(told(&router.take()), Some(if v6 { (1, 0, 0) } else { (3, 0, 0) }));
        let (a, b) = hosts(v6);
        let long = udp(ROUTER_A, HOST_A, a, b, 1501 - if v6 { 48 } else { 28 });
        assert_eq!(dropped(&mut router, &long, Side::A), Some(RouterDrop::TooBig));
        assert_eq!(told(&router.take()), Some(if v6 { (2, 0, 1500) } else { (3, 4, 1500) }));
        assert_eq!(router.stats().errors, 4);
    }
}

#[test]
fn who_does_not_answer_is_asked_three_times_and_given_up() {
    for v6 in [false, true] {
        let mut router = router();
        for _ in 0..2 {
            assert_eq!(
                pass(&mut router, &mut across(v6), Side::A, at(0)),
                Ok(EgressResult::Consumed)
            );
        }
        let question = router.take();
        assert_eq!(question.len(), 1, "asked once for both");
        for second in [1, 2] {
            assert_eq!(router.wake(), Some(at(second * 1000)));
            router.tick(at(second * 1000 - 1));
            assert_eq!(router.take(), []);
            router.tick(at(second * 1000));
            assert_eq!(router.take(), question);
        }
        router.tick(at(3000));
        let out = router.take();
        assert_eq!(out.len(), 2, "one for each");
        assert_eq!(told(&out), Some(if v6 { (1, 3, 0) } else { (3, 1, 0) }));
        assert_eq!((router.wake(), router.stats().asked), (None, 0));
        assert_eq!(router.stats().dropped[RouterDrop::Unreachable as usize], 2);
        assert_eq!(router.neighbours.waiting_bytes(), 0);
        assert_eq!(
            pass(&mut router, &mut across(v6), Side::A, at(3001)),
            Ok(EgressResult::Consumed)
        );
        assert_eq!(router.take(), question, "asked anew");
    }
}

#[test]
fn a_neighbour_is_confirmed_while_it_is_used() {
    for v6 in [false, true] {
        let mut router = router_knowing_b(v6);
        let used = |router: &mut Router, now| pass(router, &mut across(v6), Side::A, now);
        assert_eq!(used(&mut router, at(30_000)), Ok(EgressResult::Send));
        assert_eq!(router.take(), [], "still fresh");
        assert_eq!(used(&mut router, at(30_001)), Ok(EgressResult::Send));
        let probe = router.take();
        assert_eq!((probe.len(), &probe[0].frame[..6]), (1, &HOST_B.0[..]), "to it alone");
        assert_eq!(used(&mut router, at(30_002)), Ok(EgressResult::Send));
        assert_eq!(router.take(), [], "once");
        router.tick(at(31_001));
        assert_eq!(router.take(), probe);
        router.arrive(&mut answer(v6), &PLAIN, Side::B, at(31_100));
        assert_eq!(used(&mut router, at(61_099)), Ok(EgressResult::Send));
        assert_eq!(router.take(), [], "confirmed");
        assert_eq!(used(&mut router, at(62_000)), Ok(EgressResult::Send));
        for second in [63, 64, 65] {
            assert_eq!(router.stats().neighbours, 1);
            router.tick(at(second * 1000));
        }
        assert_eq!(router.stats().neighbours, 0, "gone");
        assert_eq!(used(&mut router, at(66_000)), Ok(EgressResult::Consumed));
    }
}

#[test]
fn arp_requests_for_own_addresses_are_answered() {
    let mut router = router();
    let (a, _) = hosts(false);
    let own = ip("10.0.1.1");
    let mut ask = |sender: IpAddr, target: IpAddr, from| {
        let step =
            router.arrive(&mut arp(false, HOST_A, sender, target, BROADCAST), &PLAIN, from, at(0));
        (step, router.take())
    };
    let (step, out) = ask(a, own, Side::A);
    let mut want = arp(true, ROUTER_A, own, a, HOST_A);
    want[32..38].copy_from_slice(&HOST_A.0);
    assert_eq!((step, &out[0].frame, out[0].to), (IngressResult::Consumed, &want, Side::A));
    let (_, out) = ask(ip("0.0.0.0"), own, Side::A);
    assert_eq!(out.len(), 1, "who has no address yet asks whether one is taken");
    assert_eq!(ask(a, ip("10.0.1.9"), Side::A), (IngressResult::Consumed, vec![]), "for another");
    assert_eq!(
        ask(a, ip("10.0.2.1"), Side::A),
        (IngressResult::Consumed, vec![]),
        "of the other port"
    );
    let refused = (IngressResult::Drop(RouterDrop::Discovery), vec![]);
    assert_eq!(ask(ip("10.0.2.2"), own, Side::A), refused, "from another network");
    assert_eq!(ask(ip("10.0.1.255"), own, Side::A), refused, "from all");
    assert_eq!(ask(own, own, Side::A), refused, "from the router itself");
    let mut group = arp(false, HOST_A, a, own, BROADCAST);
    group[22] |= 1;
    assert_eq!(dropped(&mut router, &group, Side::A), Some(RouterDrop::Discovery), "of a group");
    let mut other = arp(false, HOST_A, a, own, BROADCAST);
    other[21] = 3;
    assert_eq!(dropped(&mut router, &other, Side::A), Some(RouterDrop::Discovery), "no request");
}

#[test]
fn solicitations_for_own_addresses_are_answered() {
    let mut router = router();
    let IpAddr::V6(a) = hosts(true).0 else { panic!() };
    let own: std::net::Ipv6Addr = "fd00:1::1".parse().unwrap();
    let local: std::net::Ipv6Addr = "fe80::ff:fe00:a1".parse().unwrap();
    let mut ask = |mut frame: Vec<u8>, from| {
        let step = router.arrive(&mut frame, &PLAIN, from, at(0));
        (step, router.take())
    };
    for own in [own, local] {
        for to in [None, Some(ROUTER_A)] {
            let (step, out) = ask(solicitation(HOST_A, a, own, to), Side::A);
            let want = advertisement(ROUTER_A, own, Some((HOST_A, a)));
            assert_eq!((step, &out[0].frame, out[0].to), (IngressResult::Consumed, &want, Side::A));
            parse(&want);
        }
    }
    let refused = (IngressResult::Drop(RouterDrop::Discovery), vec![]);
    let good = solicitation(HOST_A, a, own, None);
    assert_eq!(ask(good.clone(), Side::B), refused, "by the other port");
    let other = "fd00:1::9".parse().unwrap();
    assert_eq!(ask(solicitation(HOST_A, a, other, None), Side::A), refused, "for another");
    let far = "fd00:2::2".parse().unwrap();
    assert_eq!(ask(solicitation(HOST_A, far, own, None), Side::A), refused, "from elsewhere");
    let mut hops = good.clone();
    hops[21] = 254;
    assert_eq!(ask(hops, Side::A), refused, "from another link");
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(ask(damaged, Side::A), refused, "damaged");
    // A host without an address sends no option; the answer is sent to all.
    let unnamed = "::".parse().unwrap();
    assert_eq!(ask(solicitation(HOST_A, unnamed, own, None), Side::A), refused, "with an option");
    let mut bare = solicitation(HOST_A, unnamed, own, None);
    bare.truncate(14 + 40 + 24);
    bare[19] = 24;
    let (src, dst) = (IpAddr::from(unnamed), parse_destination(&bare));
    bare[56..58].fill(0);
    let l4 = summed(src, dst, 58, bare[54..].to_vec(), 2);
    bare.splice(54.., l4);
    let (step, out) = ask(bare, Side::A);
    assert_eq!(
        (step, &out[0].frame),
        (IngressResult::Consumed, &advertisement(ROUTER_A, own, None))
    );
}

fn parse_destination(frame: &[u8]) -> IpAddr {
    IpAddr::from(*frame[38..].first_chunk::<16>().unwrap())
}

/// Builds another station's claims to the address of the host on B: unsolicited, in every form that ARP has.
fn claims() -> [Vec<u8>; 3] {
    let (_, b) = hosts(false);
    [
        arp(true, GATEWAY, b, b, BROADCAST),
        arp(false, GATEWAY, b, b, BROADCAST),
        arp(false, GATEWAY, b, ip("10.0.2.1"), BROADCAST),
    ]
}

/// Returns the link address to which packets for the host on B are sent.
fn goes_to(router: &mut Router, now: Nanos) -> Mac {
    let mut packet = across(false);
    assert_eq!(pass(router, &mut packet, Side::A, now), Ok(EgressResult::Send));
    Mac(*packet.first_chunk().unwrap())
}

#[test]
fn a_claim_takes_no_address_from_a_station_that_answers() {
    for mut claim in claims() {
        let mut router = router_knowing_b(false);
        router.arrive(&mut claim, &PLAIN, Side::B, at(5000));
        assert_eq!(goes_to(&mut router, at(5001)), HOST_B);
        let asked: Vec<_> = router.take();
        let probe = asked.iter().find(|out| out.frame[..6] == HOST_B.0).unwrap().clone();
        assert!(asked.iter().all(|out| out.frame[..6] != BROADCAST.0), "it alone is asked");
        // Repeated claims change nothing.
        for now in 5002..5100 {
            router.arrive(&mut claim, &PLAIN, Side::B, at(now));
        }
        let again = router.take();
        assert!(!again.contains(&probe), "and asked no more often for it");
        router.arrive(&mut answer(false), &PLAIN, Side::B, at(5150));
        router.tick(at(5900));
        assert_eq!((goes_to(&mut router, at(5901)), router.stats().challenged), (HOST_B, 1));
        // Within a second of its answer it is not probed again; afterwards it is.
        router.take();
        router.arrive(&mut claim, &PLAIN, Side::B, at(5950));
        assert!(!router.take().contains(&probe));
        router.tick(at(6149));
        assert!(!router.take().contains(&probe));
        router.tick(at(6150));
        assert!(router.take().contains(&probe));
        assert_eq!(goes_to(&mut router, at(6200)), HOST_B);
    }
}

#[test]
fn an_address_moves_when_its_station_is_silent() {
    for mut claim in claims() {
        let mut router = router_knowing_b(false);
        router.arrive(&mut claim, &PLAIN, Side::B, at(5000));
        for now in [5200, 5400] {
            router.tick(at(now));
            assert_eq!(goes_to(&mut router, at(now)), HOST_B);
        }
        router.take();
        router.tick(at(5600));
        assert_eq!(goes_to(&mut router, at(5601)), GATEWAY);
        let asked = router.take();
        assert!(asked.iter().any(|out| out.frame[..6] == GATEWAY.0), "it has to answer there");
        // It does not answer, so the neighbour is lost.
        for now in [6600, 7600, 8600, 9600] {
            router.tick(at(now));
        }
        let mut packet = across(false);
        assert_eq!(pass(&mut router, &mut packet, Side::A, at(9700)), Ok(EgressResult::Consumed));
    }
}

#[test]
fn what_the_operator_says_of_a_neighbour_stays() {
    let mut router = router();
    let (_, b) = hosts(false);
    router.fix_neighbour(b, HOST_B).unwrap();
    assert_eq!(goes_to(&mut router, at(0)), HOST_B);
    for mut claim in claims() {
        router.arrive(&mut claim, &PLAIN, Side::B, at(5000));
    }
    router.take();
    router.tick(at(100_000));
    assert_eq!(goes_to(&mut router, at(100_000)), HOST_B);
    assert_eq!(router.take(), [], "it is not asked for");
    router.attach(Side::B, ROUTER_B, 1400);
    assert_eq!(goes_to(&mut router, at(100_001)), HOST_B);
    // Learnt neighbours have their full quota in addition to the fixed ones.
    for (address, mac) in [
        ("10.0.3.1", HOST_A),
        ("10.0.1.1", HOST_A),
        ("10.0.1.255", HOST_A),
        ("10.0.1.7", BROADCAST),
        ("10.0.1.7", ROUTER_A),
        ("fe80::1", HOST_A),
    ] {
        let wrong = router.fix_neighbour(ip(address), mac).unwrap_err();
        assert!(wrong.to_string().contains(address), "{wrong}");
    }
    for host in 0..=255 {
        let done = router.fix_neighbour(IpAddr::from([10, 0, 1, host]), HOST_A);
        assert_eq!(done.is_ok(), (2..255).contains(&host), "{host}");
    }
    for host in 10.. {
        if let Err(full) = router.fix_neighbour(IpAddr::from([10, 0, 2, host]), HOST_A) {
            assert_eq!((full, host), (SettingsError::TooManyNeighbours, 12));
            break;
        }
    }
}

#[test]
fn another_mtu_counts_from_the_next_packet_on() {
    let mut router = router_knowing_b(false);
    let (a, b) = hosts(false);
    let long = || udp(ROUTER_A, HOST_A, a, b, 1400);
    assert_eq!(pass(&mut router, &mut long(), Side::A, at(10)), Ok(EgressResult::Send));
    router.set_mtu(Side::B, 1300);
    assert_eq!(
        pass(&mut router, &mut long(), Side::A, at(11)),
        Err(IngressResult::Drop(RouterDrop::TooBig))
    );
    assert_eq!(router.take().len(), 1, "its sender is told");
}

#[test]
fn no_neighbour_is_believed_unasked() {
    for v6 in [false, true] {
        let mut router = router();
        router.arrive(&mut answer(v6), &PLAIN, Side::B, at(0));
        assert_eq!(router.stats().neighbours, 0, "it was not asked for");
    }
    // An advertisement without override does not change a known address.
    let mut router = router_knowing_b(true);
    let IpAddr::V6(b) = hosts(true).1 else { panic!() };
    let other = |insists: bool| {
        let mut frame =
            advertisement(GATEWAY, b, Some((ROUTER_B, "fe80::ff:fe00:b1".parse().unwrap())));
        if !insists {
            frame[58] = 0xc0;
            frame[56..58].fill(0);
            let (src, dst) = (IpAddr::V6(b), parse_destination(&frame));
            let l4 = summed(src, dst, 58, frame[54..].to_vec(), 2);
            frame.splice(54.., l4);
        }
        frame
    };
    for insists in [false, true] {
        assert_eq!(
            router.arrive(&mut other(insists), &PLAIN, Side::B, at(5)),
            IngressResult::Consumed
        );
        let mut packet = across(true);
        assert_eq!(pass(&mut router, &mut packet, Side::A, at(6)), Ok(EgressResult::Send));
        assert_eq!(packet[..6], HOST_B.0);
        assert_eq!(router.stats().challenged, u64::from(insists));
    }
    // A host that resolves the router is entered, because it will be answered.
    let mut router = self::router();
    let (a, _) = hosts(false);
    router.arrive(&mut arp(false, HOST_A, a, ip("10.0.1.1"), BROADCAST), &PLAIN, Side::A, at(0));
    assert_eq!(router.stats().neighbours, 1);
}

#[test]
fn pings_of_the_router_are_answered_on_both_sides_addresses() {
    for (v6, own) in
        [(false, "10.0.1.1"), (false, "10.0.2.1"), (true, "fd00:1::1"), (true, "fd00:2::1")]
    {
        let mut router = router();
        let (a, own) = (hosts(v6).0, ip(own));
        let (protocol, kind) = if v6 { (58, 128) } else { (1, 8) };
        let request = [kind, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3];
        let request =
            frame(ROUTER_A, HOST_A, a, own, protocol, &summed(a, own, protocol, request.into(), 2));
        assert_eq!(
            router.arrive(&mut request.clone(), &PLAIN, Side::A, at(0)),
            IngressResult::Consumed
        );
        let out = router.take();
        let reply = [if v6 { 129 } else { 0 }, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3];
        let want =
            frame(HOST_A, ROUTER_A, own, a, protocol, &summed(own, a, protocol, reply.into(), 2));
        assert_eq!((out[0].to, &out[0].frame), (Side::A, &want));
        let mut damaged = request;
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(dropped(&mut router, &damaged, Side::A), Some(RouterDrop::Local));
        // The port is closed: the router reports it.
        let datagram = udp(ROUTER_A, HOST_A, a, own, 10);
        assert_eq!(dropped(&mut router, &datagram, Side::A), Some(RouterDrop::Local));
        let out = router.take();
        let Transport::Icmp(icmp) = parse(&out[0].frame).transport else { panic!() };
        assert_eq!((icmp.kind, icmp.code), if v6 { (1, 4) } else { (3, 3) });
    }
}

#[test]
fn what_is_not_forwarded_is_dropped_for_its_reason() {
    let mut router = router();
    let (a, b) = hosts(false);
    let (a6, b6) = hosts(true);
    let mut why = |frame: &[u8]| dropped(&mut router, frame, Side::A);
    let from =
        |src: &str| udp(ROUTER_A, HOST_A, ip(src), if src.contains(':') { b6 } else { b }, 9);
    let to = |dst: &str| udp(ROUTER_A, HOST_A, if dst.contains(':') { a6 } else { a }, ip(dst), 9);
    assert_eq!(why(&across(false)), None);
    assert_eq!(why(&across(false)[..30]), Some(RouterDrop::Malformed));
    assert_eq!(why(&udp(GATEWAY, HOST_A, a, b, 9)), Some(RouterDrop::NotOurs));
    assert_eq!(why(&udp(BROADCAST, HOST_A, a, b, 9)), Some(RouterDrop::Group));
    let mut tagged = across(false);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(why(&tagged), Some(RouterDrop::Tagged));
    let mut other = across(false);
    other[12..14].copy_from_slice(&[0x88, 0xcc]);
    assert_eq!(why(&other), Some(RouterDrop::NotIp));
    for source in [
        "0.0.0.0",
        "127.0.0.1",
        "240.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "ff02::1",
        "::",
    ] {
        assert_eq!(why(&from(source)), Some(RouterDrop::Martian), "{source}");
    }
    assert_eq!(why(&from("10.0.1.1")), Some(RouterDrop::Martian), "the router's own");
    assert_eq!(why(&from("10.0.2.7")), Some(RouterDrop::Martian), "of the other side");
    assert_eq!(why(&from("fd09::7")), Some(RouterDrop::Martian), "of the other side, by a route");
    assert_eq!(why(&from("192.0.2.1")), Some(RouterDrop::Martian), "of nowhere");
    assert_eq!(why(&from("10.0.1.255")), Some(RouterDrop::Martian), "all of a network");
    for destination in ["127.0.0.1", "240.0.0.1", "0.0.0.1", "::1"] {
        assert_eq!(why(&to(destination)), Some(RouterDrop::Martian), "{destination}");
    }
    for link in ["169.254.1.1", "fe80::9"] {
        assert_eq!(why(&from(link)), Some(RouterDrop::LinkLocal), "{link}");
        assert_eq!(why(&to(link)), Some(RouterDrop::LinkLocal), "{link}");
    }
    assert_eq!(why(&to("fe80::ff:fe00:b1")), Some(RouterDrop::LinkLocal), "the other port's");
    for group in ["224.0.0.5", "255.255.255.255", "10.0.2.255", "10.0.2.0", "ff05::1"] {
        assert_eq!(why(&to(group)), Some(RouterDrop::Group), "{group}");
    }
    for (option, want) in [
        ([131, 4, 4, 0], Some(RouterDrop::SourceRoute)),
        ([137, 4, 4, 0], Some(RouterDrop::SourceRoute)),
        ([1, 1, 137, 4], Some(RouterDrop::SourceRoute)),
        ([7, 0, 0, 0], Some(RouterDrop::SourceRoute)),
        ([7, 4, 4, 0], None),
        ([1, 1, 1, 0], None),
        ([0, 137, 4, 4], None),
    ] {
        let mut packet = across(false);
        packet.splice(34..34, option);
        packet[14] = 0x46;
        packet[17] += 4;
        fix(&mut packet);
        assert_eq!(why(&packet), want, "{option:?}");
    }
}

#[test]
fn errors_are_told_at_a_bounded_rate() {
    let mut router = router();
    let mut expired = across(false);
    set_life(&mut expired, 1);
    let mut told = |now, packets: usize| {
        for _ in 0..packets {
            router.arrive(&mut expired.clone(), &PLAIN, Side::A, now);
        }
        router.take().len()
    };
    assert_eq!(told(at(1000), 200), ERRORS_AT_ONCE as usize);
    assert_eq!(told(at(1001), 200), 1);
    assert_eq!(told(at(1011), 200), 10);
    assert_eq!(told(at(9000), 200), ERRORS_AT_ONCE as usize);
    let stats = router.stats();
    assert_eq!(stats.errors + stats.errors_suppressed, 800);
}

#[test]
fn what_waits_is_bounded() {
    let mut router = router();
    for _ in 0..MAX_WAITING {
        assert_eq!(
            pass(&mut router, &mut across(false), Side::A, at(0)),
            Ok(EgressResult::Consumed)
        );
    }
    let full = Ok(EgressResult::Drop(RouterDrop::NoRoom));
    assert_eq!(pass(&mut router, &mut across(false), Side::A, at(0)), full, "for one");
    let mut router = self::router();
    let (a, _) = hosts(false);
    let mut sent = 0;
    for host in 2..=250u8 {
        let packet = udp(ROUTER_A, HOST_A, a, ip(&format!("10.0.2.{host}")), 1400);
        for _ in 0..4 {
            let now = Nanos(u64::from(host));
            assert_eq!(
                pass(&mut router, &mut packet.clone(), Side::A, now),
                Ok(EgressResult::Consumed)
            );
            sent += packet.len();
        }
        assert_eq!(router.take().len(), 1, "whoever is new is asked for, however much waits");
    }
    let (held, each) = (router.neighbours.waiting_bytes(), sent / (249 * 4));
    assert!(held <= MAX_WAITING_BYTES && held > MAX_WAITING_BYTES - 4 * each, "{held}");
    let stats = router.stats();
    assert_eq!(stats.dropped[RouterDrop::NoRoom as usize] as usize, (sent - held) / each);
    assert_eq!(stats.asked, 249, "what made room is still asked for");
}

#[test]
fn scanning_a_network_keeps_no_neighbour_from_being_found() {
    let mut router = router();
    let (a, _) = hosts(true);
    for host in 3..2000u64 {
        let target = ip(&format!("fd00:2::{host:x}"));
        let mut packet = udp(ROUTER_A, HOST_A, a, target, 9);
        assert_eq!(
            pass(&mut router, &mut packet, Side::A, Nanos(host)),
            Ok(EgressResult::Consumed)
        );
        assert!(router.stats().asked <= MAX_ASKED);
        router.take();
    }
    let evicted = router.stats().dropped[RouterDrop::NoRoom as usize];
    assert_eq!(evicted as usize, 2000 - 3 - MAX_ASKED);
    assert_eq!(
        pass(&mut router, &mut across(true), Side::A, Nanos(2001)),
        Ok(EgressResult::Consumed)
    );
    router.take();
    router.arrive(&mut answer(true), &PLAIN, Side::B, Nanos(2002));
    assert_eq!(router.take().len(), 1);
}

#[test]
fn so_many_neighbours_are_known() {
    let mut router = Router::new(
        [
            PortSettings { mac: ROUTER_A, mtu: 1500, addresses: vec![prefix("10.0.0.1/16")] },
            PortSettings { mac: ROUTER_B, mtu: 1500, addresses: vec![prefix("10.1.0.1/16")] },
        ],
        &[],
    )
    .unwrap();
    for host in 0..MAX_KNOWN as u64 + 100 {
        let sender = ip(&format!("10.0.{}.{}", 1 + host / 200, 1 + host % 200));
        let mut request = arp(false, HOST_A, sender, ip("10.0.0.1"), BROADCAST);
        assert_eq!(
            router.arrive(&mut request, &PLAIN, Side::A, Nanos(host)),
            IngressResult::Consumed
        );
        router.take();
        assert!(router.stats().neighbours <= MAX_KNOWN);
    }
    assert_eq!(router.stats().neighbours, MAX_KNOWN);
}

#[test]
fn what_the_router_says_is_bounded() {
    let mut router = router();
    let (a, _) = hosts(false);
    for _ in 0..MAX_OUT + 10 {
        router.arrive(
            &mut arp(false, HOST_A, a, ip("10.0.1.1"), BROADCAST),
            &PLAIN,
            Side::A,
            at(0),
        );
    }
    assert_eq!(router.stats().out_full, 10);
    assert_eq!(router.take().len(), MAX_OUT);
}

#[test]
fn a_port_that_came_back_is_another_station() {
    let mut router = router_knowing_b(false);
    router.attach(Side::B, GATEWAY, 1400);
    assert_eq!(router.stats().neighbours, 0);
    assert_eq!(pass(&mut router, &mut across(false), Side::A, at(9)), Ok(EgressResult::Consumed));
    assert_eq!(router.take()[0].frame[6..12], GATEWAY.0);
    let (a, b) = hosts(false);
    let long = udp(ROUTER_A, HOST_A, a, b, 1401 - 28);
    assert_eq!(dropped(&mut router, &long, Side::A), Some(RouterDrop::TooBig));
    assert_eq!(told(&router.take()), Some((3, 4, 1400)));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let with = |a: &[&str], b: &[&str], routes: &[(&str, &str)]| {
        let port = |mac, own: &[&str]| PortSettings {
            mac,
            mtu: 1500,
            addresses: own.iter().map(|text| prefix(text)).collect(),
        };
        let routes: Vec<Route> =
            routes.iter().map(|(to, via)| Route { to: prefix(to), via: ip(via) }).collect();
        Router::new([port(ROUTER_A, a), port(ROUTER_B, b)], &routes).err()
    };
    let (a, b) = (&["10.0.1.1/24"][..], &["10.0.2.1/24"][..]);
    assert_eq!(with(a, b, &[("0.0.0.0/0", "10.0.2.2"), ("10.0.0.0/8", "10.0.1.2")]), None);
    assert_eq!(with(a, &[], &[]), Some(SettingsError::NoAddress(Side::B)));
    for own in [
        "10.0.2.0/24",
        "10.0.2.255/24",
        "127.0.0.1/8",
        "224.0.0.1/24",
        "169.254.0.1/16",
        "10.0.0.1/0",
        "fe80::1/64",
        "::1/128",
    ] {
        let refused = SettingsError::NotAHost(prefix(own));
        assert_eq!(with(a, &[own], &[]), Some(refused), "{own}");
    }
    assert_eq!(with(&["10.0.2.0/31"], &["10.0.2.2/31"], &[]), None, "two hosts need no broadcast");
    let overlap = SettingsError::Overlap(prefix("10.0.1.1/24"), prefix("10.0.0.1/16"));
    assert_eq!(with(a, &["10.0.0.1/16"], &[]), Some(overlap));
    let bits = SettingsError::HostBits(prefix("10.9.0.1/16"));
    assert_eq!(with(a, b, &[("10.9.0.1/16", "10.0.2.2")]), Some(bits));
    let twice = SettingsError::Twice(prefix("10.9.0.0/16"));
    assert_eq!(
        with(a, b, &[("10.9.0.0/16", "10.0.2.2"), ("10.9.0.0/16", "10.0.1.2")]),
        Some(twice)
    );
    for via in ["10.0.3.1", "10.0.2.1", "10.0.2.255"] {
        let stranger = SettingsError::NotANeighbour(ip(via));
        assert_eq!(with(a, b, &[("10.9.0.0/16", via)]), Some(stranger), "{via}");
    }
    let mixed = Route { to: prefix("fd09::/16"), via: ip("10.0.2.2") };
    assert_eq!(with(a, b, &[("fd09::/16", "10.0.2.2")]), Some(SettingsError::Families(mixed)));
    let many = vec![("10.9.0.0/16", "10.0.2.2"); super::MAX_ROUTES + 1];
    assert_eq!(with(a, b, &many), Some(SettingsError::TooMany));
}

#[test]
fn prefixes_are_read_as_they_are_written() {
    for text in ["10.0.1.1/24", "0.0.0.0/0", "fd00::1/64", "::/0", "10.0.0.1/32"] {
        assert_eq!(prefix(text).to_string(), text);
    }
    assert_eq!(prefix("fd00::1").to_string(), "fd00::1/128");
    for bad in
        ["", "10.0.1.1/33", "fd00::1/129", "10.0.1/24", "10.0.1.1/", "10.0.1.1/+8", "10.0.1.1/8/8"]
    {
        assert!(bad.parse::<Prefix>().is_err(), "{bad}");
    }
    assert!(prefix("0.0.0.0/0").contains(ip("1.2.3.4")) && prefix("::/0").contains(ip("::1")));
    assert!(!prefix("0.0.0.0/0").contains(ip("::1")));
    assert!(
        prefix("10.0.1.1/24").contains(ip("10.0.1.9"))
            && !prefix("10.0.1.1/24").contains(ip("10.0.2.1"))
    );
}

/// No input makes the router panic or send endlessly.
#[test]
fn altered_frames_are_survived() {
    let (a, b) = hosts(false);
    let IpAddr::V6(own) = ip("fd00:1::1") else { panic!() };
    let IpAddr::V6(a6) = hosts(true).0 else { panic!() };
    let seeds = [
        across(false),
        across(true),
        arp(false, HOST_A, a, ip("10.0.1.1"), BROADCAST),
        arp(true, HOST_A, a, ip("10.0.1.1"), ROUTER_A),
        solicitation(HOST_A, a6, own, None),
        advertisement(HOST_A, a6, Some((ROUTER_A, own))),
        udp(ROUTER_A, HOST_A, a, ip("10.0.1.1"), 9),
        udp(ROUTER_A, HOST_A, a, b, 1480),
    ];
    let mut router = router();
    for (time, seed) in seeds.iter().enumerate() {
        for at in 0..seed.len().min(120) {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut frame = seed.clone();
                frame[at] = value;
                for vnet in [PLAIN, [1, 1, 0, 0, 100, 0, 14, 0, 6, 0]] {
                    for side in Side::BOTH {
                        let now = Nanos((time * 1000 + at) as u64 * 100_000_000);
                        if let IngressResult::Forward(hop) =
                            router.arrive(&mut frame.clone(), &vnet, side, now)
                        {
                            router.leave(&mut frame, &vnet, side, hop, now);
                        }
                        router.tick(now);
                        assert!(router.take().len() <= MAX_OUT);
                    }
                }
            }
            router.arrive(&mut seed[..at].to_vec(), &PLAIN, Side::A, self::at(0));
        }
    }
}
