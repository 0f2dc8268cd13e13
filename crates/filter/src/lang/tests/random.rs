//! Random rule sets in the form of the parser's output, from a stream of random numbers.

use proptest::prelude::*;

use super::super::{fields, names, value::is_bits};
use crate::ruleset::*;

const FIELDS: &[Field] = &[
    Field::EtherSaddr,
    Field::EtherDaddr,
    Field::EtherType,
    Field::VlanId,
    Field::VlanPcp,
    Field::VlanType,
    Field::ArpOperation,
    Field::ArpHtype,
    Field::ArpPtype,
    Field::ArpSaddrIp,
    Field::ArpDaddrIp,
    Field::ArpSaddrEther,
    Field::ArpDaddrEther,
    Field::IifName,
    Field::OifName,
    Field::MetaProtocol,
    Field::MetaNfproto,
    Field::MetaL4proto,
    Field::MetaLength,
    Field::MetaPkttype,
    Field::IpSaddr,
    Field::IpDaddr,
    Field::IpProtocol,
    Field::IpVersion,
    Field::IpHdrlength,
    Field::IpDscp,
    Field::IpEcn,
    Field::IpLength,
    Field::IpId,
    Field::IpFragOff,
    Field::IpTtl,
    Field::Ip6Saddr,
    Field::Ip6Daddr,
    Field::Ip6Nexthdr,
    Field::Ip6Version,
    Field::Ip6Dscp,
    Field::Ip6Ecn,
    Field::Ip6Flowlabel,
    Field::Ip6Length,
    Field::Ip6Hoplimit,
    Field::TcpSport,
    Field::TcpDport,
    Field::TcpSequence,
    Field::TcpAckseq,
    Field::TcpDoff,
    Field::TcpFlags,
    Field::TcpWindow,
    Field::TcpChecksum,
    Field::TcpUrgptr,
    Field::UdpSport,
    Field::UdpDport,
    Field::UdpLength,
    Field::UdpChecksum,
    Field::ThSport,
    Field::ThDport,
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
    Field::CtState,
    Field::CtDirection,
    Field::CtProtocol,
];

const NAMES: &[&str] = &["eth0", "eth1.5", "wg-7", "br_lan", "a"];
const WILD: &[&str] = &["lan", "tun", "x"];

/// Generates a rule set. With `for_nft`, it has only rules that the kernel's nftables accepts too.
pub(super) fn rulesets(for_nft: bool) -> impl Strategy<Value = Ruleset> {
    prop::collection::vec(any::<u64>(), 50..600)
        .prop_map(move |stream| RulesetGenerator { stream, at: 0, handle: 0, for_nft }.ruleset())
}

struct RulesetGenerator {
    stream: Vec<u64>,
    at: usize,
    handle: u32,
    for_nft: bool,
}

fn name(text: &str, wild: bool) -> Range {
    let mut bytes = [0; 16];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    let first = u128::from_be_bytes(bytes);
    let fill = if wild { u128::MAX >> (8 * text.len()) } else { 0 };
    Range { first, last: first | fill }
}

impl RulesetGenerator {
    fn draw(&mut self) -> u64 {
        self.at += 1;
        self.stream.get(self.at - 1).copied().unwrap_or(0)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.draw() % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn comment(&mut self) -> Option<String> {
        self.one_in(5).then(|| format!("a comment {}", self.below(9)))
    }

    fn value(&mut self, kind: Kind) -> u128 {
        if kind == Kind::CtState {
            return self.pick(&[1, 2, 4, 8, 64]);
        }
        let known = names::of(kind);
        let strict = matches!(kind, Kind::CtDirection | Kind::NfProto | Kind::PktType | Kind::Ecn);
        if !known.is_empty() && (strict || !self.one_in(3)) {
            return self.pick(known).1;
        }
        let random = u128::from(self.draw()) << 64 | u128::from(self.draw());
        let some = if self.one_in(2) { random } else { random % 300 };
        some & super::super::value::largest(kind)
    }

    /// Generates a single value, or sometimes a range.
    fn range(&mut self, kind: Kind, interval: bool) -> Range {
        if kind == Kind::IfName {
            return if interval && self.one_in(3) {
                name(self.pick(WILD), true)
            } else {
                name(self.pick(NAMES), false)
            };
        }
        let value = self.value(kind);
        let ordered = !is_bits(kind) && !names_only(kind);
        if !interval || !ordered || !self.one_in(2) {
            return Range::single(value);
        }
        if matches!(kind, Kind::Ipv4Addr | Kind::Ipv6Addr) && self.one_in(2) {
            let host = self.below(usize::from(kind.bits())) as u32;
            let fill = (1_u128 << host) - 1;
            return Range { first: value & !fill, last: value | fill };
        }
        let other = self.value(kind);
        Range { first: value.min(other), last: value.max(other) }
    }

    fn verdict(&mut self, chains: &[usize]) -> RuleVerdict {
        match self.below(6) {
            0 => RuleVerdict::Accept,
            1 => RuleVerdict::Drop,
            2 => RuleVerdict::Return,
            3 if !chains.is_empty() => RuleVerdict::Jump(ChainId(self.pick(chains))),
            4 if !chains.is_empty() => RuleVerdict::Goto(ChainId(self.pick(chains))),
            _ => RuleVerdict::Accept,
        }
    }

    /// Generates elements of which no two overlap.
    fn elements(
        &mut self,
        key: &[Kind],
        interval: bool,
        map: bool,
        chains: &[usize],
    ) -> Vec<Element> {
        let mut list: Vec<Element> = Vec::new();
        for _ in 0..=self.below(6) {
            let ranges: Vec<Range> = key.iter().map(|&k| self.range(k, interval)).collect();
            let crosses = |e: &Element| {
                e.key.iter().zip(&ranges).all(|(a, b)| a.first <= b.last && b.first <= a.last)
            };
            if list.iter().any(crosses) {
                continue;
            }
            let verdict = map.then(|| self.verdict(chains));
            let comment = self.comment();
            list.push(Element { key: ranges, verdict, lifetime: None, comment });
        }
        list
    }

    fn key(&mut self, family: Family) -> Vec<Field> {
        let parts = if self.one_in(4) { 2 + self.below(2) } else { 1 };
        let mut key = Vec::new();
        while key.len() < parts {
            let field = self.pick(FIELDS);
            if fields::missing(family, field).is_some()
                || (self.for_nft && refused_by_nft(family, field))
            {
                continue;
            }
            key.push(field);
            // nftables requires headers that occur in one packet, because it checks dependencies.
            if self.for_nft {
                break;
            }
        }
        key
    }

    fn test(&mut self, table: &mut Table, key: &[Field], named: usize) -> (Test, bool) {
        let kinds: Vec<Kind> = key.iter().map(|f| f.kind()).collect();
        let negate = self.one_in(4);
        let fitting: Vec<usize> =
            (0..named).filter(|&s| !table.sets[s].map && table.sets[s].key == kinds).collect();
        if !fitting.is_empty() && self.one_in(2) {
            return (Test::Set(SetId(self.pick(&fitting))), negate);
        }
        let address = [Field::IpSaddr, Field::IpDaddr, Field::Ip6Saddr, Field::Ip6Daddr];
        if key.len() == 1 && address.contains(&key[0]) && self.one_in(4) && !self.for_nft {
            let who = self.pick(&["alice", "b b", "carol@example.net"]).to_owned();
            let members = self.pick(&[Members::Client, Members::Node, Members::Group])(who);
            let found = table.sets.iter().position(|s| s.members == members && s.key == kinds);
            let id = found.unwrap_or_else(|| {
                let (key, interval) = (kinds.clone(), true);
                table.sets.push(Set { key, interval, members, ..Set::default() });
                table.sets.len() - 1
            });
            return (Test::Set(SetId(id)), negate);
        }
        if key.len() > 1 || self.one_in(3) {
            return (Test::Set(self.anonymous(table, &kinds, false, &[])), negate);
        }
        let kind = kinds[0];
        if kind == Kind::IfName {
            return (Test::Within(vec![self.range(kind, true)]), negate);
        }
        let mask = self.value(kind).max(1);
        match self.below(4) {
            0 if is_bits(kind) || !names_only(kind) => (Test::AnyOf(mask), false),
            1 if is_bits(kind) || !names_only(kind) => {
                let value = self.value(kind) & mask;
                (Test::Masked { mask, value }, negate && value != 0)
            }
            _ => (Test::Within(vec![self.range(kind, true)]), negate),
        }
    }

    fn anonymous(
        &mut self,
        table: &mut Table,
        kinds: &[Kind],
        map: bool,
        chains: &[usize],
    ) -> SetId {
        let list = self.elements(kinds, true, map, chains);
        let interval = list.iter().any(|e| e.key.iter().any(|r| r.first != r.last));
        let key = kinds.to_vec();
        let members = Members::Fixed(list);
        table.sets.push(Set { key, map, interval, members, ..Set::default() });
        SetId(table.sets.len() - 1)
    }

    fn limit(&mut self) -> Limit {
        let bytes = self.one_in(2);
        let burst = self.below(50) as u64 + u64::from(!bytes);
        let per = self.pick(super::super::rule::PERIODS).1;
        Limit { over: self.one_in(3), rate: self.below(5000) as u64 + 1, per, burst, bytes }
    }

    fn log(&mut self) -> Log {
        let prefix = if self.one_in(2) { "dropped: ".to_owned() } else { String::new() };
        let group = self.one_in(2).then(|| self.below(65536) as u16);
        let snaplen = if group.is_some() && self.one_in(2) { self.below(2000) as u32 } else { 0 };
        Log { prefix, group, snaplen }
    }

    fn reject(&mut self, family: Family) -> Reject {
        let code = self.pick(&[0_u8, 1, 2, 3, 9, 10, 13]);
        let code6 = self.pick(&[0_u8, 1, 3, 4, 5, 6]);
        match (family, self.below(4)) {
            (_, 0) => Reject::TcpReset,
            (_, 1) => Reject::Icmpx(Icmpx::PortUnreachable),
            (Family::Ip, _) => Reject::Icmp(code),
            (Family::Ip6, _) => Reject::Icmpv6(code6),
            (_, 2) => Reject::Icmp(code),
            _ => Reject::Icmpx(self.pick(&[
                Icmpx::NoRoute,
                Icmpx::HostUnreachable,
                Icmpx::AdminProhibited,
            ])),
        }
    }

    fn rule(&mut self, table: &mut Table, named: usize, chains: &[usize]) -> Rule {
        self.handle += 1;
        let mut statements = Vec::new();
        let last = self.below(6);
        let bridge = table.family == Family::Bridge;
        // nftables refuses comparisons that can never match, and a kernel may not reject in a
        // bridge.
        let rejects = last == 0 && !(self.for_nft && bridge);
        let matches = if self.for_nft { usize::from(!rejects) } else { self.below(3) };
        for _ in 0..matches {
            let key = self.key(table.family);
            let (test, negate) = self.test(table, &key, named);
            statements.push(Statement::Match(Match { key, test, negate }));
        }
        let count = Count { packets: self.below(3) as u64, bytes: self.below(99) as u64 };
        if !table.counters.is_empty() && self.one_in(3) {
            let id = CounterId(self.below(table.counters.len()));
            statements.push(Statement::Counter(Counter::Named(id)));
        } else if self.one_in(3) {
            statements.push(Statement::Counter(Counter::Own(count)));
        }
        if self.one_in(4) {
            statements.push(Statement::Limit(self.limit()));
        }
        if self.one_in(4) {
            statements.push(Statement::Log(self.log()));
        }
        statements.push(match last {
            0 if rejects => Statement::Reject(self.reject(table.family)),
            1 => {
                let key =
                    if self.for_nft { vec![Field::MetaL4proto] } else { self.key(table.family) };
                let kinds: Vec<Kind> = key.iter().map(|f| f.kind()).collect();
                let maps: Vec<usize> = (0..named)
                    .filter(|&s| table.sets[s].map && table.sets[s].key == kinds)
                    .collect();
                // A named map may jump to any chain. Only in the first chain can this not form a
                // loop.
                let map = if !maps.is_empty() && !chains.is_empty() && chains[0] == 1 {
                    SetId(self.pick(&maps))
                } else {
                    self.anonymous(table, &kinds, true, chains)
                };
                Statement::VerdictMap { key, map }
            }
            2 => Statement::Verdict(RuleVerdict::Continue),
            _ => Statement::Verdict(self.verdict(chains)),
        });
        Rule { handle: self.handle, line: 0, statements, comment: self.comment() }
    }

    fn table(&mut self, index: usize) -> Table {
        let family = self.pick(&[Family::Ip, Family::Ip6, Family::Inet, Family::Bridge]);
        let mut table = Table {
            family,
            name: format!("t{index}"),
            sets: Vec::new(),
            chains: Vec::new(),
            counters: Vec::new(),
        };
        for n in 0..self.below(3) {
            let start = Count { packets: self.below(9) as u64, bytes: self.below(99) as u64 };
            table.counters.push(NamedCounter { name: format!("n{n}"), start });
        }
        let chains = 1 + self.below(5);
        let targets: Vec<usize> = (1..chains).collect();
        let named = self.below(4);
        for n in 0..named {
            let map = self.one_in(3);
            let key = self.key(family).iter().map(|f| f.kind()).collect::<Vec<_>>();
            let interval = self.one_in(2);
            let members = Members::Fixed(self.elements(&key, interval, map, &targets));
            let comment = self.comment();
            table.sets.push(Set {
                name: Some(format!("s{n}")),
                key,
                map,
                interval,
                auto_merge: !map && interval && self.one_in(4),
                constant: self.one_in(4),
                size: self.one_in(4).then_some(1000),
                members,
                comment,
                ..Set::default()
            });
        }
        for n in 0..chains {
            let policy = self.pick(&[Policy::Accept, Policy::Drop]);
            let priority = self.pick(&[0, -200, 5, -5, 300, -150, 1000, -77]);
            let base = (n == 0).then_some(Base { priority, policy });
            let comment = self.comment();
            let later: Vec<usize> = (n + 1..chains).collect();
            let mut chain = Chain { name: format!("c{n}"), base, rules: Vec::new(), comment };
            for _ in 0..self.below(6) {
                chain.rules.push(self.rule(&mut table, named, &later));
            }
            table.chains.push(chain);
        }
        table
    }

    fn ruleset(&mut self) -> Ruleset {
        let tables = 1 + self.below(3);
        Ruleset {
            tables: (0..tables).map(|index| self.table(index)).collect(),
            ..Ruleset::default()
        }
    }
}

/// Returns whether the values of a kind are names without an order.
fn names_only(kind: Kind) -> bool {
    matches!(kind, Kind::CtDirection | Kind::NfProto | Kind::PktType)
}

/// Returns whether nftables refuses this field in a table of this family, or as a single key.
fn refused_by_nft(family: Family, field: Field) -> bool {
    // The kernel may lack tracking for bridges.
    let ct = [Field::CtState, Field::CtDirection, Field::CtProtocol];
    family == Family::Bridge && (field == Field::MetaNfproto || ct.contains(&field))
}
