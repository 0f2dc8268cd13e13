//! Random rule sets with few values, so that packets match.

use super::Source;
use crate::ruleset::{
    Base, Chain, ChainId, Count, Counter, CounterId, Element, Family, Field, Icmpx, Kind, Limit,
    Log, Match, Members, NamedCounter, Policy, Range, Reject, Rule, RuleVerdict, Ruleset, Set,
    SetId, Statement, Table, Test,
};

const FIELDS: &[Field] = &[
    Field::IpSaddr,
    Field::IpDaddr,
    Field::IpSaddr,
    Field::IpDaddr,
    Field::TcpDport,
    Field::TcpSport,
    Field::UdpDport,
    Field::UdpSport,
    Field::ThDport,
    Field::ThSport,
    Field::MetaL4proto,
    Field::CtState,
    Field::CtState,
    Field::IifName,
    Field::OifName,
    Field::Ip6Saddr,
    Field::Ip6Daddr,
    Field::IpProtocol,
    Field::CtDirection,
    Field::CtProtocol,
    Field::MetaNfproto,
    Field::MetaProtocol,
    Field::EtherSaddr,
    Field::EtherDaddr,
    Field::EtherType,
    Field::VlanId,
    Field::VlanPcp,
    Field::VlanType,
    Field::MetaLength,
    Field::MetaPkttype,
    Field::ArpOperation,
    Field::ArpHtype,
    Field::ArpPtype,
    Field::ArpSaddrIp,
    Field::ArpDaddrIp,
    Field::ArpSaddrEther,
    Field::ArpDaddrEther,
    Field::IpVersion,
    Field::IpHdrlength,
    Field::IpDscp,
    Field::IpEcn,
    Field::IpLength,
    Field::IpId,
    Field::IpFragOff,
    Field::IpTtl,
    Field::Ip6Nexthdr,
    Field::Ip6Version,
    Field::Ip6Dscp,
    Field::Ip6Ecn,
    Field::Ip6Flowlabel,
    Field::Ip6Length,
    Field::Ip6Hoplimit,
    Field::TcpSequence,
    Field::TcpAckseq,
    Field::TcpDoff,
    Field::TcpFlags,
    Field::TcpWindow,
    Field::TcpChecksum,
    Field::TcpUrgptr,
    Field::UdpLength,
    Field::UdpChecksum,
    Field::IcmpType,
    Field::IcmpCode,
    Field::IcmpId,
    Field::IcmpSequence,
    Field::IcmpMtu,
    Field::Icmpv6Type,
    Field::Icmpv6Code,
    Field::Icmpv6Id,
    Field::Icmpv6Sequence,
    Field::Icmpv6Mtu,
];

/// Chooses a field, preferring the first ones.
fn field(source: &mut Source<'_>) -> Field {
    if source.once_in(3) { source.pick(FIELDS) } else { source.pick(&FIELDS[..20]) }
}

/// Chooses a value that packets have, or one next to it.
fn value(kind: Kind, source: &mut Source<'_>) -> u128 {
    let names = |source: &mut Source<'_>| crate::IfName::new(source.pick(&super::frames::NAMES)).0;
    match kind {
        Kind::EtherAddr => 0x0200_0000_0000 + source.below(4) as u128,
        Kind::EtherType => source.pick(&[0x0800, 0x86dd, 0x0806, 0x8100, 0x1234]),
        Kind::Ipv4Addr => 0x0a00_0000 + source.below(16) as u128,
        Kind::Ipv6Addr => (0xfd << 120) + source.below(16) as u128,
        Kind::InetProto => source.pick(&[1, 6, 17, 58, 132, 47]),
        Kind::InetService => 20 + source.below(8) as u128,
        Kind::IfName => names(source),
        Kind::IcmpType => source.pick(&[0, 3, 8]),
        Kind::Icmpv6Type => source.pick(&[2, 128, 129]),
        Kind::TcpFlags => source.pick(&[1, 2, 4, 16, 18]),
        Kind::CtState => source.pick(&[1, 2, 4, 8, 64]),
        Kind::NfProto => source.pick(&[2, 10]),
        Kind::ArpOp | Kind::CtDirection | Kind::PktType | Kind::IcmpCode | Kind::Icmpv6Code => {
            source.below(3) as u128
        }
        Kind::Dscp | Kind::Ecn => source.below(4) as u128,
        Kind::Integer(bits) => source.below(1 << bits.min(7)) as u128,
    }
}

fn range(kind: Kind, source: &mut Source<'_>) -> Range {
    let all = u128::MAX >> (128 - u32::from(kind.bits()));
    let first = value(kind, source);
    match source.below(8) {
        0 => Range { first, last: all },
        1 => Range { first: 0, last: first },
        2 | 3 => Range { first, last: (first + source.below(5) as u128).min(all) },
        4 if kind == Kind::IfName => {
            // `eth*`
            let first = first & !(u128::MAX >> 24);
            Range { first, last: first | u128::MAX >> 24 }
        }
        4 => Range { first: first & !3, last: (first | 3).min(all) },
        _ => Range::single(first),
    }
}

/// The objects that statements can refer to.
struct World {
    sets: Vec<Set>,
    /// The fields that are looked up in each set.
    keys: Vec<Vec<Field>>,
    counters: usize,
    chains: usize,
    handle: u32,
}

/// Generates a consistent rule set.
pub fn ruleset(source: &mut Source<'_>) -> Ruleset {
    let mut handle = 0;
    let tables = 1 + source.below(3);
    Ruleset {
        tables: (0..tables).map(|at| table(at, source, &mut handle)).collect(),
        ..Ruleset::default()
    }
}

fn table(at: usize, source: &mut Source<'_>, handle: &mut u32) -> Table {
    let family = source.pick(&[Family::Inet, Family::Bridge, Family::Ip, Family::Ip6]);
    let chains = 1 + source.below(5);
    let counters = source.below(3);
    let mut world = World { sets: vec![], keys: vec![], counters, chains, handle: *handle };
    for _ in 0..source.below(5) {
        set(&mut world, source);
    }
    let chains = (0..chains).map(|at| chain(at, &mut world, source)).collect();
    *handle = world.handle;
    let counter = |at| NamedCounter {
        name: format!("c{at}"),
        start: Count { packets: at as u64, bytes: at as u64 * 100 },
    };
    let counters = (0..counters).map(counter).collect();
    Table { family, name: format!("t{at}"), sets: world.sets, chains, counters }
}

fn key(source: &mut Source<'_>) -> Vec<Field> {
    let parts = if source.once_in(3) { 2 + source.below(2) } else { 1 };
    (0..parts).map(|_| field(source)).collect()
}

fn set(world: &mut World, source: &mut Source<'_>) {
    let map = source.once_in(3);
    let (fields, members) = if !map && source.once_in(4) {
        let whose = source.pick(&["alice", "bob"]).to_owned();
        let members =
            if source.once_in(2) { Members::Group(whose) } else { Members::Client(whose) };
        (vec![source.pick(&[Field::IpSaddr, Field::IpDaddr, Field::Ip6Saddr])], members)
    } else {
        let fields = key(source);
        let interval = source.once_in(2);
        let count = if source.once_in(6) { source.below(80) } else { source.below(8) };
        let elements = (0..count).map(|_| {
            let part = |field: &Field| {
                let range = range(field.kind(), source);
                if interval { range } else { Range::single(range.first) }
            };
            let key = fields.iter().map(part).collect();
            // Map verdicts must jump to later chains: base chains come first.
            let verdict = map.then(|| verdict(world.chains - 1, world, source));
            Element { key, verdict, lifetime: None, comment: None }
        });
        let elements = elements.collect();
        (fields, Members::Fixed(elements))
    };
    let kinds = fields.iter().map(|field| field.kind()).collect();
    let name = Some(format!("s{}", world.sets.len()));
    world.sets.push(Set { name, key: kinds, map, interval: true, members, ..Set::default() });
    world.keys.push(fields);
}

fn chain(at: usize, world: &mut World, source: &mut Source<'_>) -> Chain {
    let base = (at == 0 || (at + 1 < world.chains && source.once_in(4))).then(|| Base {
        priority: source.below(3) as i32 - 1,
        policy: source.pick(&[Policy::Accept, Policy::Drop]),
    });
    let rules = if source.once_in(3) { 12 + source.below(50) } else { source.below(6) };
    let rules = (0..rules).map(|_| rule(at, world, source)).collect();
    Chain { name: format!("chain{at}"), base, rules, comment: None }
}

/// Chooses the verdict of a rule of chain `at`. It jumps only to later chains, so there are no
/// loops. Maps may be used in any chain, so they jump only to the last chain.
fn verdict(at: usize, world: &World, source: &mut Source<'_>) -> RuleVerdict {
    let later = if at + 1 < world.chains {
        at + 1 + source.below(world.chains - at - 1)
    } else {
        return source.pick(&[
            RuleVerdict::Accept,
            RuleVerdict::Drop,
            RuleVerdict::Continue,
            RuleVerdict::Return,
        ]);
    };
    match source.below(8) {
        0 | 1 => RuleVerdict::Accept,
        2 | 3 => RuleVerdict::Drop,
        4 => RuleVerdict::Return,
        5 => RuleVerdict::Goto(ChainId(later)),
        6 => RuleVerdict::Continue,
        _ => RuleVerdict::Jump(ChainId(later)),
    }
}

fn rule(at: usize, world: &mut World, source: &mut Source<'_>) -> Rule {
    let mut statements = Vec::new();
    for _ in 0..source.below(4) {
        statements.push(statement(world, source));
    }
    if !source.once_in(4) {
        statements.push(last(at, world, source));
    }
    world.handle += 1;
    Rule { handle: world.handle, line: world.handle, statements, comment: None }
}

fn last(at: usize, world: &World, source: &mut Source<'_>) -> Statement {
    let maps = (0..world.sets.len()).filter(|set| world.sets[*set].map).collect::<Vec<_>>();
    match source.below(8) {
        0 => Statement::Reject(source.pick(&[
            Reject::TcpReset,
            Reject::Icmp(3),
            Reject::Icmpv6(4),
            Reject::Icmpx(Icmpx::PortUnreachable),
        ])),
        1 | 2 if !maps.is_empty() => {
            let map = source.pick(&maps);
            Statement::VerdictMap { key: world.keys[map].clone(), map: SetId(map) }
        }
        _ => Statement::Verdict(verdict(at, world, source)),
    }
}

fn statement(world: &World, source: &mut Source<'_>) -> Statement {
    match source.below(16) {
        0 => Statement::Counter(Counter::Own(Count { packets: 5, bytes: 7 })),
        1 if world.counters > 0 => {
            Statement::Counter(Counter::Named(CounterId(source.below(world.counters))))
        }
        2 => Statement::Limit(Limit {
            over: source.once_in(2),
            rate: 1 + source.below(5) as u64 * 100,
            per: source.pick(&[1_000_000_000, 60_000_000_000]),
            burst: source.below(6) as u64,
            bytes: source.once_in(3),
        }),
        3 => Statement::Log(Log {
            prefix: "x".repeat(source.below(3)),
            group: source.once_in(2).then_some(3),
            snaplen: 0,
        }),
        _ => Statement::Match(matching(world, source)),
    }
}

fn matching(world: &World, source: &mut Source<'_>) -> Match {
    let negate = source.once_in(4);
    let sets = (0..world.sets.len()).filter(|set| !world.sets[*set].map).collect::<Vec<_>>();
    if !sets.is_empty() && source.once_in(3) {
        let set = source.pick(&sets);
        return Match { key: world.keys[set].clone(), test: Test::Set(SetId(set)), negate };
    }
    let key = key(source);
    if let [field] = key.as_slice() {
        let kind = field.kind();
        let bits = if *field == Field::CtState || source.once_in(8) { 1 } else { 0 };
        if bits == 1 {
            let any = value(kind, source) | value(kind, source);
            let test = if source.once_in(3) {
                Test::Masked { mask: value(kind, source) | any, value: any }
            } else {
                Test::AnyOf(any)
            };
            return Match { key, test, negate };
        }
    }
    let ranges = key.iter().map(|field| range(field.kind(), source)).collect();
    Match { key, test: Test::Within(ranges), negate }
}
