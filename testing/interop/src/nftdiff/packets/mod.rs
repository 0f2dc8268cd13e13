//! Generates packets of conversations and single packets, valid and invalid, interleaved.

mod link;
mod malformed;
mod plain;
mod tcp;

pub use malformed::{NO_CHECKSUM, WITHIN};

use super::case::{Mode, SentFrame};
use super::frame::{self, Ends, Ip, Side};
use super::random::Random;
use super::universe;

/// Packets that belong together, in order.
type Flow = Vec<SentFrame>;

/// Generates this many frames.
pub fn generate(random: &mut Random, mode: Mode, count: usize) -> Vec<SentFrame> {
    let mut flows: Vec<std::vec::IntoIter<SentFrame>> = Vec::new();
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        while flows.len() < 6 {
            flows.push(flow(random, mode).into_iter());
        }
        let index = random.below(flows.len());
        match flows[index].next() {
            Some(sent) => all.push(sent),
            None => drop(flows.swap_remove(index)),
        }
    }
    all
}

fn flow(random: &mut Random, mode: Mode) -> Flow {
    let mut flow = match (mode, random.within(0..=99)) {
        (Mode::Bridge, 0..=34) => link::some(random),
        (_, 0..=49) => tcp::conversation(random),
        (_, 50..=64) => plain::udp(random),
        (_, 65..=76) => plain::icmp(random),
        (_, 77..=81) => plain::other(random),
        // A switch reassembles no fragments.
        (Mode::Route, 82..=91) => malformed::pieces(random),
        _ => malformed::broken(random),
    };
    if flow.len() > 1 && random.percent(15) {
        let at = random.below(flow.len() - 1);
        flow.swap(at, at + 1);
    }
    if mode == Mode::Bridge {
        flow.iter_mut().for_each(|sent| link::disguise(random, sent));
    }
    flow
}

/// Two hosts in a conversation, and the properties of their packets.
#[derive(Clone)]
struct Pair {
    /// The side on which the first packet arrives.
    side: Side,
    ends: Ends,
    ip: Ip,
}

impl Pair {
    fn new(random: &mut Random) -> Self {
        let side = if random.percent(65) { Side::A } else { Side::B };
        let is_v6 = random.percent(40);
        let ends = universe::ends(random, side, is_v6);
        let mut pair = Self { side, ends, ip: look(random) };
        if ends.from.is_ipv6() && random.percent(12) {
            pair.ip.extensions = plain::extensions(random);
        }
        pair
    }

    /// Builds a packet of the first host, or of the second.
    fn sent(
        &self,
        random: &mut Random,
        forward: bool,
        protocol: u8,
        segment: &[u8],
        what: &'static str,
    ) -> SentFrame {
        let (side, ends) = self.way(forward);
        let mut ip = self.ip.clone();
        ip.id = random.word();
        if random.percent(5) {
            ip = Ip { extensions: ip.extensions, ..look(random) };
        }
        let packet = ip.packet(ends, protocol, segment);
        SentFrame { side, frame: frame::to_router(side, &packet), what: what.into() }
    }

    fn way(&self, forward: bool) -> (Side, Ends) {
        if forward { (self.side, self.ends) } else { (self.side.other(), self.ends.reversed()) }
    }
}

/// Generates a header; the router decrements the TTL once.
fn look(random: &mut Random) -> Ip {
    Ip {
        ttl: random.pick(&universe::TTLS) + 1,
        tos: *random.pick(&universe::TOS),
        id: random.word(),
        df: random.percent(70),
        flow: *random.pick(&[0, 0, 1, 0x12345]),
        options: if random.percent(4) { vec![1, 1, 1, 0] } else { Vec::new() },
        extensions: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_frames() {
        for mode in [Mode::Route, Mode::Bridge] {
            let make = || generate(&mut Random::new(7), mode, 300);
            assert_eq!(make(), make());
            assert_eq!(make().len(), 300);
        }
    }
}
