//! Fuzzes frames for a router, each preceded by two bytes: the first is its length; the second has
//! its port in the lowest bit, and above it the delay before its arrival, in quarters of a second.
#![cfg_attr(fuzzing, no_main)]

use std::time::Duration;

use adit_bridge::Side;
use adit_bridge::routed::{EgressResult, IngressResult, MAX_OUT, Mac, PortSettings, Route, Router};
use adit_filter::Nanos;
use adit_filter::packet::{Layer, Packet};
use adit_wire::VnetHeader;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(mut bytes: &[u8]) {
    let port = |last, addresses: [&str; 2]| PortSettings {
        mac: Mac([2, 0, 0, 0, 0, last]),
        mtu: 200,
        addresses: addresses.map(|text| text.parse().expect("an address")).into(),
    };
    let ports =
        [port(0xa1, ["10.0.1.1/24", "fd00:1::1/64"]), port(0xb1, ["10.0.2.1/24", "fd00:2::1/64"])];
    let to = "10.9.0.0/16".parse().expect("a network");
    let route = Route { to, via: "10.0.2.254".parse().expect("an address") };
    let mut router = Router::new(ports, &[route]).expect("a router");
    let (mut now, vnet) = (Nanos(0), VnetHeader::default().encode());
    while let Some((&[len, choice], rest)) = bytes.split_first_chunk() {
        let (frame, rest) = rest.split_at(usize::from(len).min(rest.len()));
        bytes = rest;
        let from = if choice & 1 == 0 { Side::A } else { Side::B };
        now = now.after(Duration::from_millis(250 * u64::from(choice >> 1)));
        router.tick(now);
        let mut passed = frame.to_vec();
        if let IngressResult::Forward(hop) = router.arrive(&mut passed, &vnet, from, now)
            && router.leave(&mut passed, &vnet, from, hop, now) == EgressResult::Send
        {
            assert_eq!((passed.len(), hop.to), (frame.len(), from.other()));
            let packet = Packet::parse(&passed, Layer::Ethernet, None, &VnetHeader::default())
                .expect("what is forwarded is a packet");
            assert!(packet.ip().is_some());
        }
        let out = router.take();
        assert!(out.len() <= MAX_OUT);
        for outgoing in out {
            let packet =
                Packet::parse(&outgoing.frame, Layer::Ethernet, None, &VnetHeader::default());
            packet.expect("what the router says is a packet");
        }
    }
}
