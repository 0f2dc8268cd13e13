//! Tests of every pair of NAT behaviours. Each pair that can connect directly does; the others use a relay.

use std::time::Duration;

use adit_sim::NatBehaviour;

use crate::world::{Place, REPAIRED_WITHIN, SECOND, World, ip};

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    FullCone,
    AddressRestricted,
    PortRestricted,
    SymmetricSequential,
    SymmetricRandom,
    DoubleNat,
    Hairpin,
    NoUdp,
    Ipv6Only,
}

use self::Behaviour::{
    AddressRestricted, DoubleNat, FullCone, Hairpin, Ipv6Only, NoUdp, PortRestricted,
    SymmetricRandom, SymmetricSequential,
};

const BEHAVIOURS: [(Behaviour, &str); 9] = [
    (FullCone, "full cone"),
    (AddressRestricted, "address-restr."),
    (PortRestricted, "port-restr."),
    (SymmetricSequential, "symmetric seq."),
    (SymmetricRandom, "symmetric random"),
    (DoubleNat, "double NAT"),
    (Hairpin, "hairpin"),
    (NoUdp, "no UDP"),
    (Ipv6Only, "IPv6 only"),
];

/// The required result for two behaviours.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Expected {
    Direct,
    /// Direct for at least 90 % of the seeds.
    PortSearch,
    Relay,
}

fn expected(a: Behaviour, b: Behaviour) -> Expected {
    let symmetric = |of| matches!(of, SymmetricSequential | SymmetricRandom);
    let open = |of| matches!(of, FullCone | AddressRestricted);
    match (a, b) {
        (NoUdp, _) | (_, NoUdp) => Expected::Relay,
        (Ipv6Only, Ipv6Only) => Expected::Direct,
        (Ipv6Only, _) | (_, Ipv6Only) => Expected::Relay,
        _ if symmetric(a) && symmetric(b) => Expected::Relay,
        _ if symmetric(a) != symmetric(b) && !open(a) && !open(b) => Expected::PortSearch,
        _ => Expected::Direct,
    }
}

/// Creates two nodes behind NATs with these behaviours.
pub(crate) fn world(behaviours: [Behaviour; 2], seed: u8) -> World {
    let mut world = World::new(seed);
    let place = |world: &mut World, behaviour, side: u8| {
        let external = format!("203.0.113.{}", 7 + side);
        // Both sites use the same private network, as in reality.
        let own = "10.0.0.2";
        let nat = match behaviour {
            FullCone => NatBehaviour::FULL_CONE,
            AddressRestricted => NatBehaviour::ADDRESS_RESTRICTED,
            PortRestricted => NatBehaviour::PORT_RESTRICTED,
            SymmetricSequential => NatBehaviour::SYMMETRIC_SEQUENTIAL,
            SymmetricRandom => NatBehaviour::SYMMETRIC_RANDOM,
            NoUdp => NatBehaviour::NO_UDP,
            Hairpin => NatBehaviour { hairpin: true, ..NatBehaviour::PORT_RESTRICTED },
            DoubleNat => {
                let outer = world.add_box(&external, NatBehaviour::PORT_RESTRICTED);
                let behaviour = NatBehaviour::PORT_RESTRICTED;
                let inner = world.net.add_box(ip("100.64.0.9"), behaviour, Some(outer));
                return Place::behind(own, inner);
            }
            Ipv6Only => {
                let site = world.add_box(&format!("2001:db8:{side}::1"), NatBehaviour::FIREWALL);
                return Place::behind(&format!("2001:db8:{side}::2"), site);
            }
        };
        let site = world.add_box(&external, nat);
        let place = Place::behind(own, site);
        Place { udp: behaviour != NoUdp, ..place }
    };
    let places = if behaviours == [Hairpin, Hairpin] {
        // Creates two hosts of one site that reach each other only through the external address.
        let first = place(&mut world, Hairpin, 0);
        let site = first.addresses[0].1.unwrap();
        world.net.isolate(site);
        [first, Place::behind("10.0.0.3", site)]
    } else {
        [place(&mut world, behaviours[0], 0), place(&mut world, behaviours[1], 1)]
    };
    world.add_nodes(places, seed);
    world
}

#[test]
fn every_pair_of_behaviours_is_connected_as_well_as_it_can_be() {
    let mut table = format!("{:<18}", "");
    for (_, name) in BEHAVIOURS {
        table += &format!("{name:>18}");
    }
    let mut wrong = Vec::new();
    for (a, name) in BEHAVIOURS {
        table += &format!("\n{name:<18}");
        for (b, _) in BEHAVIOURS {
            let cell = connect(a, b, &mut wrong);
            table += &format!("{cell:>18}");
        }
    }
    println!("{table}");
    assert!(wrong.is_empty(), "{wrong:#?}\n{table}");
}

/// Connects two nodes with several seeds. Returns the share of direct paths and the mean time until there was one.
fn connect(a: Behaviour, b: Behaviour, wrong: &mut Vec<String>) -> String {
    let expected = expected(a, b);
    let (seeds, seconds) = match expected {
        Expected::PortSearch => (50, 16),
        Expected::Direct | Expected::Relay => (3, 4),
    };
    let (mut direct, mut time) = (0, Duration::ZERO);
    for seed in 0..seeds {
        let mut world = world([a, b], seed);
        world.connect();
        for _ in 0..seconds {
            world.run_for(SECOND);
            if world.is_direct() {
                break;
            }
        }
        let gap = world.longest_gap();
        if gap >= REPAIRED_WITHIN || world.nodes.iter().any(|node| node.received == 0) {
            wrong.push(format!("{a:?} to {b:?}, seed {seed}: no data for {gap:?}"));
        }
        if world.is_direct() {
            direct += 1;
            time += world.direct_after().unwrap();
        }
    }
    let good = match expected {
        Expected::Direct => direct == seeds,
        Expected::PortSearch => u32::from(direct) * 100 >= u32::from(seeds) * 90,
        Expected::Relay => direct == 0,
    };
    if !good {
        wrong.push(format!("{a:?} to {b:?}: {expected:?}, direct {direct} of {seeds}"));
    }
    if direct == 0 {
        return "relay".to_owned();
    }
    let mean = time.as_secs_f64() / f64::from(direct);
    format!("{}% {mean:.2} s", u32::from(direct) * 100 / u32::from(seeds))
}
