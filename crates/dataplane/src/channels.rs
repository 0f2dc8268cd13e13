//! Divides flows among the channels to one remote end.
//!
//! A remote end may be several peers, each with its own keys, counters and worker ([`PeerSpec::channel_of`]). Each flow
//! takes one of these channels, so its packets stay in order.
//!
//! [`PeerSpec::channel_of`]: adit_engine::command::PeerSpec::channel_of

use std::net::IpAddr;
use std::sync::Arc;

use adit_engine::command::MAX_CHANNELS;
use adit_wire::ip::{self, Ip};

use crate::format::Format;
use crate::peer::Peer;
use crate::routes::mix;

/// The protocols, besides TCP and UDP, whose packets begin with the ports: DCCP, SCTP and UDP-Lite.
const OTHERS_WITH_PORTS: [u8; 3] = [33, 132, 136];

/// A peer that is the first channel to its remote end, with all channels to that end.
#[derive(Clone, Debug)]
pub(crate) struct Slot<F: Format> {
    pub peer: Arc<Peer<F>>,
    /// All channels in order; `None` if the peer is the only one.
    channels: Option<Arc<[Arc<Peer<F>>]>>,
}

impl<F: Format> Slot<F> {
    pub(crate) fn new(peer: Arc<Peer<F>>) -> Self {
        Self { peer, channels: None }
    }

    /// Returns whether flows are divided among several channels.
    #[inline]
    pub(crate) fn is_divided(&self) -> bool {
        self.channels.is_some()
    }

    /// Returns the channel that a packet takes.
    #[inline]
    pub(crate) fn channel(&self, packet: &[u8]) -> &Arc<Peer<F>> {
        match &self.channels {
            None => &self.peer,
            Some(channels) => channels.get(number(packet, channels.len())).unwrap_or(&self.peer),
        }
    }

    /// Returns whether a peer can become a further channel, or is one already.
    pub(crate) fn has_room_for(&self, further: &Peer<F>) -> bool {
        let channels = self.channels.as_deref().unwrap_or_default();
        channels.len() < MAX_CHANNELS || channels.iter().any(|known| known.id == further.id)
    }

    /// Adds a further channel, replacing any with the same id. Flows may then move to other channels.
    pub(crate) fn join(&mut self, further: Arc<Peer<F>>) {
        let former = self.channels.as_deref().unwrap_or(std::slice::from_ref(&self.peer));
        let mut channels = former.to_vec();
        match channels.iter_mut().find(|known| known.id == further.id) {
            Some(known) => *known = further,
            None => channels.push(further),
        }
        self.channels = Some(channels.into());
    }

    /// Removes a further channel. Its flows move to others.
    pub(crate) fn leave(&mut self, further: &Peer<F>) {
        let former = self.channels.as_deref().unwrap_or_default();
        let channels: Vec<_> =
            former.iter().filter(|known| known.id != further.id).cloned().collect();
        self.channels = (channels.len() > 1).then(|| channels.into());
    }
}

/// Returns the number of a packet's channel, below `count`. Both directions of a flow have the same number, so both ends of a tunnel handle
/// a flow on the worker of one channel. Fragments and packets without ports are assigned by address alone, because only the first fragment
/// of a packet has ports. The hash needs no secret: by choosing ports, a member could only slow down its own flows.
#[inline(never)]
fn number(packet: &[u8], count: usize) -> usize {
    let Some(ip) = Ip::parse_super(packet) else { return 0 };
    let has_ports = !ip.fragment
        && (matches!(ip.protocol, ip::TCP | ip::UDP) || OTHERS_WITH_PORTS.contains(&ip.protocol));
    let ports = packet.get(ip.header_len..).and_then(<[u8]>::first_chunk).filter(|_| has_ports);
    let (source, destination, protocol) = match ports {
        Some(&[a, b, c, d]) => {
            (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), ip.protocol)
        }
        None => (0, 0, 0),
    };
    // Add the two hashes: a sum has no direction.
    let sum = end(ip.source, source).wrapping_add(end(ip.destination, destination));
    let hash = mix(sum.into(), protocol.into());
    // Scale the upper bits: a remainder would take a division.
    ((hash >> 32).wrapping_mul(count as u64) >> 32) as usize
}

/// Returns the hash of one end of a flow.
fn end(address: IpAddr, port: u16) -> u64 {
    let address = match address {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => u128::from(ip),
    };
    mix(address, port.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds a packet whose payload begins with `ports`.
    fn packet(v6: bool, protocol: u8, ends: [(u8, u16); 2]) -> Vec<u8> {
        let [(from, source), (to, destination)] = ends;
        let mut packet = if v6 {
            let mut packet = vec![0; 60];
            packet[0] = 0x60;
            (packet[5], packet[6]) = (20, protocol);
            (packet[8], packet[23], packet[24], packet[39]) = (0xfd, from, 0xfd, to);
            packet
        } else {
            let mut packet = vec![0; 40];
            packet[0] = 0x45;
            (packet[3], packet[9]) = (40, protocol);
            packet[12..20].copy_from_slice(&[10, 8, 0, from, 10, 8, 0, to]);
            packet
        };
        let at = if v6 { 40 } else { 20 };
        packet[at..at + 2].copy_from_slice(&source.to_be_bytes());
        packet[at + 2..at + 4].copy_from_slice(&destination.to_be_bytes());
        packet
    }

    #[test]
    fn flows_are_spread_evenly() {
        for (v6, protocol) in [(false, 6), (true, 6), (false, 17), (true, 132)] {
            for count in [2usize, 3, 4, 16] {
                let mut flows = vec![0usize; count];
                for port in 0..2000u16 {
                    let packet = packet(v6, protocol, [(2, 32_768 + port), (1, 443)]);
                    flows[number(&packet, count)] += 1;
                }
                let even = 2000 / count;
                let range = even / 2..even * 2;
                assert!(flows.iter().all(|n| range.contains(n)), "{count}: {flows:?}");
            }
        }
    }

    #[test]
    fn addresses_spread_packets_without_ports() {
        let mut seen = [0usize; 4];
        for (from, to) in (0..50).flat_map(|from| (0..50).map(move |to| (from, to))) {
            seen[number(&packet(false, 1, [(from, 0x0800), (to, 7)]), 4)] += 1;
        }
        assert!(seen.iter().all(|n| *n > 400), "{seen:?}");
    }

    #[test]
    fn fragments_and_pings_of_two_hosts_take_one_channel() {
        let by_addresses = number(&packet(false, 1, [(2, 0), (1, 0)]), 16);
        for port in 0..100 {
            let ping = packet(false, 1, [(2, 0x0800), (1, port)]);
            assert_eq!(number(&ping, 16), by_addresses);
            for offset in [0x2000u16, 0x2001, 0x0001] {
                let mut fragment = packet(false, 17, [(2, port), (1, 53)]);
                fragment[6..8].copy_from_slice(&offset.to_be_bytes());
                assert_eq!(number(&fragment, 16), by_addresses);
            }
            let v6 = packet(true, 44, [(2, port), (1, 53)]);
            assert_eq!(number(&v6, 16), number(&packet(true, 58, [(2, 1), (1, 2)]), 16));
        }
        let mut whole = packet(false, 17, [(2, 0), (1, 53)]);
        whole[6] = 0x40;
        let of = |port: u16| number(&packet(false, 17, [(2, port), (1, 53)]), 16);
        assert_eq!(number(&whole, 16), of(0), "don't-fragment makes no fragment");
        assert!((0..100).any(|port| of(port) != of(0)));
    }

    proptest! {
        #[test]
        fn both_directions_have_one_number(
            v6: bool, protocol in prop_oneof![Just(6u8), Just(17), any::<u8>()],
            a in any::<(u8, u16)>(), b in any::<(u8, u16)>(), count in 2usize..=MAX_CHANNELS,
        ) {
            let there = number(&packet(v6, protocol, [a, b]), count);
            prop_assert_eq!(there, number(&packet(v6, protocol, [b, a]), count));
            prop_assert!(there < count);
        }

        #[test]
        fn no_bytes_have_a_number_too_high(
            bytes in proptest::collection::vec(any::<u8>(), 0..80), count in 1usize..=MAX_CHANNELS,
        ) {
            prop_assert!(number(&bytes, count) < count);
        }
    }
}
