//! Rule files generated from a grammar. They contain everything in the supported subset that can be compared, in random
//! combinations.

use std::fmt::Write as _;

use super::case::Mode;
use super::random::Random;
use super::values::{self, Kind};

/// The layer that a field needs. A rule may not require two of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    V4,
    V6,
    Tcp,
    Udp,
    /// TCP or UDP, because nft itself would read any transport's first bytes as ports.
    Ports,
    Icmp,
    Icmpv6,
    Arp,
    Vlan,
}

/// A field that rules compare.
struct Field {
    text: &'static str,
    kind: Kind,
    need: Need,
}

const fn field(text: &'static str, kind: Kind, need: Need) -> Field {
    Field { text, kind, need }
}

/// Fields of IP packets, of either family; the most used ones occur more than once.
const IP: &[Field] = &[
    field("ip saddr", Kind::V4, Need::V4),
    field("ip daddr", Kind::V4, Need::V4),
    field("ip saddr", Kind::V4, Need::V4),
    field("ip daddr", Kind::V4, Need::V4),
    field("ip protocol", Kind::Proto, Need::V4),
    field("ip ttl", Kind::Ttl, Need::V4),
    field("ip dscp", Kind::Dscp, Need::V4),
    field("ip ecn", Kind::Ecn, Need::V4),
    field("ip length", Kind::Length, Need::V4),
    field("ip id", Kind::Id, Need::V4),
    field("ip frag-off", Kind::FragOff, Need::V4),
    field("ip hdrlength", Kind::Words, Need::V4),
    field("ip version", Kind::Version, Need::V4),
    field("ip6 saddr", Kind::V6, Need::V6),
    field("ip6 daddr", Kind::V6, Need::V6),
    field("ip6 saddr", Kind::V6, Need::V6),
    field("ip6 daddr", Kind::V6, Need::V6),
    field("ip6 nexthdr", Kind::Proto, Need::V6),
    field("ip6 hoplimit", Kind::Ttl, Need::V6),
    field("ip6 dscp", Kind::Dscp, Need::V6),
    field("ip6 ecn", Kind::Ecn, Need::V6),
    field("ip6 flowlabel", Kind::Flow, Need::V6),
    field("ip6 length", Kind::Length, Need::V6),
    field("ip6 version", Kind::Version, Need::V6),
    field("tcp sport", Kind::Port, Need::Tcp),
    field("tcp dport", Kind::Port, Need::Tcp),
    field("tcp dport", Kind::Port, Need::Tcp),
    field("tcp sequence", Kind::Sequence, Need::Tcp),
    field("tcp ackseq", Kind::Sequence, Need::Tcp),
    field("tcp doff", Kind::Words, Need::Tcp),
    field("tcp flags", Kind::Flags, Need::Tcp),
    field("tcp flags", Kind::Flags, Need::Tcp),
    field("tcp window", Kind::Id, Need::Tcp),
    field("tcp checksum", Kind::Id, Need::Tcp),
    field("tcp urgptr", Kind::Id, Need::Tcp),
    field("udp sport", Kind::Port, Need::Udp),
    field("udp dport", Kind::Port, Need::Udp),
    field("udp dport", Kind::Port, Need::Udp),
    field("udp length", Kind::Length, Need::Udp),
    field("udp checksum", Kind::Id, Need::Udp),
    field("th sport", Kind::Port, Need::Ports),
    field("th dport", Kind::Port, Need::Ports),
    field("icmp type", Kind::IcmpType, Need::Icmp),
    field("icmp type", Kind::IcmpType, Need::Icmp),
    field("icmp code", Kind::IcmpCode, Need::Icmp),
    field("icmp id", Kind::Id, Need::Icmp),
    field("icmp sequence", Kind::Id, Need::Icmp),
    field("icmp mtu", Kind::Length, Need::Icmp),
    field("icmpv6 type", Kind::Icmpv6Type, Need::Icmpv6),
    field("icmpv6 type", Kind::Icmpv6Type, Need::Icmpv6),
    field("icmpv6 code", Kind::Icmpv6Code, Need::Icmpv6),
    field("icmpv6 id", Kind::Id, Need::Icmpv6),
    field("icmpv6 sequence", Kind::Id, Need::Icmpv6),
    field("icmpv6 mtu", Kind::Length, Need::Icmpv6),
    field("meta l4proto", Kind::Proto, Need::Nothing),
    field("meta length", Kind::Length, Need::Nothing),
    field("meta protocol", Kind::MetaProtocol, Need::Nothing),
    field("iifname", Kind::Interface, Need::Nothing),
    field("oifname", Kind::Interface, Need::Nothing),
    field("ip saddr", Kind::V4, Need::V4),
    field("ip daddr", Kind::V4, Need::V4),
    field("ip6 saddr", Kind::V6, Need::V6),
    field("ip6 daddr", Kind::V6, Need::V6),
    field("tcp sport", Kind::Port, Need::Tcp),
    field("tcp dport", Kind::Port, Need::Tcp),
    field("tcp dport", Kind::Port, Need::Tcp),
    field("tcp flags", Kind::Flags, Need::Tcp),
    field("udp sport", Kind::Port, Need::Udp),
    field("udp dport", Kind::Port, Need::Udp),
    field("meta l4proto", Kind::Proto, Need::Nothing),
    field("meta l4proto", Kind::Proto, Need::Nothing),
    field("icmp type", Kind::IcmpType, Need::Icmp),
    field("icmpv6 type", Kind::Icmpv6Type, Need::Icmpv6),
];

/// Fields of connection tracking only.
const CT: &[Field] = &[
    field("ct state", Kind::State, Need::Nothing),
    field("ct state", Kind::State, Need::Nothing),
    field("ct state", Kind::State, Need::Nothing),
    field("ct direction", Kind::Direction, Need::Nothing),
    field("ct protocol", Kind::Proto, Need::Nothing),
];

/// Fields of frames.
const LINK: &[Field] = &[
    field("ether saddr", Kind::Ether, Need::Nothing),
    field("ether daddr", Kind::Ether, Need::Nothing),
    field("ether type", Kind::EtherType, Need::Nothing),
    field("vlan id", Kind::Vlan, Need::Vlan),
    field("vlan pcp", Kind::Priority, Need::Vlan),
    field("vlan type", Kind::MetaProtocol, Need::Vlan),
    field("arp operation", Kind::ArpOperation, Need::Arp),
    field("arp saddr ip", Kind::V4, Need::Arp),
    field("arp daddr ip", Kind::V4, Need::Arp),
    field("arp saddr ether", Kind::Ether, Need::Arp),
    field("arp daddr ether", Kind::Ether, Need::Arp),
    field("arp ptype", Kind::MetaProtocol, Need::Arp),
];

const INET: &[Field] = &[field("meta nfproto", Kind::NfProto, Need::Nothing)];

/// Table families in nftables' syntax.
const ROUTE_FAMILIES: [&str; 5] = ["inet", "inet", "inet", "ip", "ip6"];

/// The hook at which packets are evaluated.
pub const FORWARD: &str = "hook forward";

/// The only hook of a bridge's forwarding in which the kernel has `reject`. A packet has no `oifname` there.
pub const PREROUTING: &str = "hook prerouting";

/// The maximum number of rules in a chain.
const RULES: u64 = 9;

/// The statements that may follow in one rule, given the comparisons before it.
#[derive(Clone, Copy)]
struct Scope {
    family: &'static str,
    network: Option<Need>,
    transport: Option<Need>,
}

impl Scope {
    fn allows(&self, need: Need) -> bool {
        let network = |wanted| {
            let foreign = match self.family {
                "ip" => wanted != Need::V4,
                "ip6" => wanted != Need::V6,
                _ => false,
            };
            !foreign && self.network.is_none_or(|had| had == wanted)
        };
        let transport = |wanted| {
            self.transport.is_none_or(|had| had == wanted) && self.network != Some(Need::Arp)
        };
        match need {
            Need::Nothing => true,
            Need::V4 | Need::V6 => network(need),
            Need::Arp => self.family == "bridge" && network(need) && self.transport.is_none(),
            // nft of this version does not look for IP after a tag that the same rule has compared.
            Need::Vlan => {
                self.family == "bridge" && self.network.is_none() && self.transport.is_none()
            }
            Need::Tcp | Need::Udp | Need::Ports => transport(need),
            Need::Icmp => transport(need) && network(Need::V4),
            Need::Icmpv6 => transport(need) && network(Need::V6),
        }
    }

    fn take(&mut self, need: Need) {
        match need {
            Need::Nothing => {}
            Need::V4 | Need::V6 | Need::Arp | Need::Vlan => self.network = Some(need),
            Need::Tcp | Need::Udp | Need::Ports => self.transport = Some(need),
            Need::Icmp => (self.network, self.transport) = (Some(Need::V4), Some(need)),
            Need::Icmpv6 => (self.network, self.transport) = (Some(Need::V6), Some(need)),
        }
    }
}

/// A named set or map.
struct Named {
    name: String,
    kinds: Vec<Kind>,
    map: bool,
}

struct Writer<'a> {
    random: &'a mut Random,
    family: &'static str,
    stateful: bool,
    hook: &'static str,
    text: String,
    sets: Vec<Named>,
    /// Complete chains, to which rules can jump.
    chains: Vec<String>,
    counters: usize,
}

/// Generates a rule file with one rule on each line.
pub fn generate(random: &mut Random, mode: Mode, stateful: bool) -> String {
    let mut text = String::new();
    let tables = if random.percent(25) { 2 } else { 1 };
    // Use the same hook for all tables, because the kernel runs all chains of one hook before those of the next.
    let hook = if mode == Mode::Bridge && random.percent(50) { PREROUTING } else { FORWARD };
    for index in 0..tables {
        let family = match mode {
            Mode::Route => *random.pick(&ROUTE_FAMILIES),
            Mode::Bridge => "bridge",
        };
        let mut writer = Writer {
            random,
            family,
            stateful,
            hook,
            text: String::new(),
            sets: Vec::new(),
            chains: Vec::new(),
            counters: 0,
        };
        writer.table(index);
        text.push_str(&writer.text);
    }
    text
}

/// Returns the header whose fields a comparison reads, mostly its first word.
fn header(comparison: &str) -> &str {
    let ports = comparison.contains("th sport") || comparison.contains("th dport");
    if ports { "th" } else { comparison.split(' ').next().unwrap_or_default() }
}

impl Writer<'_> {
    fn table(&mut self, index: usize) {
        let _ = writeln!(self.text, "table {} t{index} {{", self.family);
        if self.random.percent(30) {
            self.counters = 1;
            self.text.push_str("\tcounter c0 {\n\t}\n");
        }
        for _ in 0..self.random.within(0..=3) {
            self.set(false);
        }
        for chain in 0..self.random.within(0..=3) {
            let name = format!("sub{chain}");
            self.chain(&name, None);
            self.chains.push(name);
        }
        if self.random.percent(40) {
            // Maps come after the chains that they name.
            self.set(true);
        }
        let bases = if self.random.percent(25) { 2 } else { 1 };
        for base in 0..bases {
            let priority = index as i64 * 10 + *self.random.pick(&[-5i64, 0, 3]) + base;
            let policy = if self.random.percent(75) { "accept" } else { "drop" };
            let hook = format!("type filter {} priority {priority}; policy {policy};", self.hook);
            self.chain(&format!("base{base}"), Some(&hook));
        }
        self.text.push_str("}\n");
    }

    fn set(&mut self, map: bool) {
        let name = format!("{}{}", if map { 'm' } else { 's' }, self.sets.len());
        let kinds = values::set_kinds(self.random, self.family);
        let interval = self.random.percent(50);
        let types: Vec<&str> = kinds.iter().map(|kind| kind.set_type()).collect();
        let verdict = if map { " : verdict" } else { "" };
        let _ = writeln!(self.text, "\t{} {name} {{", if map { "map" } else { "set" });
        let _ = writeln!(self.text, "\t\ttype {}{verdict}", types.join(" . "));
        if interval {
            self.text.push_str("\t\tflags interval\n");
        }
        let elements = self.elements(&kinds, interval, map);
        let _ = writeln!(self.text, "\t\telements = {{ {elements} }}\n\t}}");
        self.sets.push(Named { name, kinds, map });
    }

    fn elements(&mut self, kinds: &[Kind], interval: bool, map: bool) -> String {
        let count = self.random.within(1..=6);
        let mut texts = values::elements(self.random, kinds, interval, count);
        if map {
            for text in &mut texts {
                let verdict = self.verdict();
                let _ = write!(text, " : {verdict}");
            }
        }
        texts.join(", ")
    }

    /// Generates a verdict that a map may contain.
    fn verdict(&mut self) -> String {
        let plain = ["accept", "drop", "continue", "return"];
        if self.chains.is_empty() || self.random.percent(60) {
            return (*self.random.pick(&plain)).to_owned();
        }
        let how = if self.random.percent(60) { "jump" } else { "goto" };
        format!("{how} {}", self.random.pick(&self.chains))
    }

    fn chain(&mut self, name: &str, hook: Option<&str>) {
        let _ = writeln!(self.text, "\tchain {name} {{");
        if let Some(hook) = hook {
            let _ = writeln!(self.text, "\t\t{hook}");
        }
        let most = if hook.is_some() { RULES } else { RULES / 2 };
        for _ in 0..self.random.within(1..=most) {
            let rule = self.rule();
            let _ = writeln!(self.text, "\t\t{rule}");
        }
        self.text.push_str("\t}\n");
    }

    fn rule(&mut self) -> String {
        let mut scope = Scope { family: self.family, network: None, transport: None };
        let mut parts: Vec<String> = Vec::new();
        for _ in 0..*self.random.pick(&[0u8, 1, 1, 1, 1, 1, 2, 2, 3]) {
            parts.extend(self.comparison(&mut scope));
        }
        // nft (1.0.6) merges comparisons of neighbouring fields of one header across a counter, which then also counts
        // packets that do not match. A counter therefore separates only expressions of different headers.
        let alike = |at: usize| parts[..at].iter().any(|part| header(part) == header(&parts[at]));
        if parts.len() > 1 && !(1..parts.len()).any(alike) && self.random.percent(20) {
            let at = 1 + self.random.below(parts.len() - 1);
            parts.insert(at, "counter".to_owned());
        }
        match self.random.within(0..=29) {
            0 => parts.push("limit rate 1000000000/second".to_owned()),
            1 => parts.push("limit rate over 1000000000/second".to_owned()),
            2 => parts.push("log group 7 prefix \"x \"".to_owned()),
            3 if self.counters > 0 => parts.push("counter name c0".to_owned()),
            _ => {}
        }
        parts.push("counter".to_owned());
        if let Some(end) = self.end(&mut scope) {
            parts.push(end);
        }
        parts.join(" ")
    }

    /// Generates the end of a rule.
    fn end(&mut self, scope: &mut Scope) -> Option<String> {
        // A rule without comparisons would leave no packets for the rules after it.
        let plain = scope.network.is_none() && scope.transport.is_none();
        if plain && self.random.percent(80) {
            return None;
        }
        match self.random.within(0..=99) {
            0..=39 => None,
            40..=52 => Some("accept".to_owned()),
            53..=61 => Some("drop".to_owned()),
            62..=70 if self.family != "bridge" || self.hook == PREROUTING => self.reject(*scope),
            71..=76 => Some("return".to_owned()),
            77..=78 => Some("continue".to_owned()),
            79..=89 => Some(self.verdict()),
            _ => self.verdict_map(scope),
        }
    }

    fn reject(&mut self, scope: Scope) -> Option<String> {
        let v4 = scope.allows(Need::V4) && self.random.percent(30);
        let v6 = scope.allows(Need::V6) && self.random.percent(30);
        let icmp = [
            "net-unreachable",
            "host-unreachable",
            "prot-unreachable",
            "port-unreachable",
            "admin-prohibited",
        ];
        let icmpv6 = ["no-route", "admin-prohibited", "addr-unreachable", "port-unreachable"];
        let icmpx = ["no-route", "port-unreachable", "host-unreachable", "admin-prohibited"];
        Some(if scope.allows(Need::Tcp) && self.random.percent(30) {
            "reject with tcp reset".to_owned()
        } else if v4 {
            format!("reject with icmp {}", self.random.pick(&icmp))
        } else if v6 {
            format!("reject with icmpv6 {}", self.random.pick(&icmpv6))
        } else if matches!(self.family, "inet" | "bridge") && self.random.percent(50) {
            format!("reject with icmpx {}", self.random.pick(&icmpx))
        } else {
            "reject".to_owned()
        })
    }

    /// Returns a field that may follow, of this kind or of any kind.
    fn field(&mut self, scope: Scope, kind: Option<Kind>) -> Option<&'static Field> {
        let ct: &[Field] = if self.stateful { CT } else { &[] };
        let link: &[Field] = if self.family == "bridge" { LINK } else { &[] };
        let inet: &[Field] = if self.family == "inet" { INET } else { &[] };
        let weighted = [IP, ct, link, inet];
        // A third of the comparisons use connection tracking, if it is available.
        let pool: Vec<&'static Field> =
            if !ct.is_empty() && kind.is_none() && self.random.percent(30) {
                CT.iter().collect()
            } else {
                weighted.iter().flat_map(|fields| fields.iter()).collect()
            };
        let fits: Vec<&'static Field> = pool
            .into_iter()
            .filter(|field| kind.is_none_or(|kind| kind == field.kind) && scope.allows(field.need))
            .filter(|field| self.hook == FORWARD || field.text != "oifname")
            .collect();
        if fits.is_empty() { None } else { Some(fits[self.random.below(fits.len())]) }
    }

    /// Returns fields for each of these kinds, in sequence.
    fn fields(&mut self, scope: &mut Scope, kinds: &[Kind]) -> Option<(String, String)> {
        let (mut names, mut before) = (Vec::new(), String::new());
        let mut taken = *scope;
        for kind in kinds {
            let field = self.field(taken, Some(*kind))?;
            if names.contains(&field.text) {
                return None;
            }
            if field.need == Need::Ports && taken.transport.is_none() {
                "meta l4proto { tcp, udp } ".clone_into(&mut before);
            }
            taken.take(field.need);
            names.push(field.text);
        }
        *scope = taken;
        Some((before, names.join(" . ")))
    }

    fn comparison(&mut self, scope: &mut Scope) -> Option<String> {
        let set = match self.random.within(0..=99) {
            0..=19 => self.named(scope, false),
            20..=27 => {
                let kinds = values::set_kinds(self.random, self.family);
                let interval = self.random.percent(50);
                let elements = self.elements(&kinds, interval, false);
                self.fields(scope, &kinds).map(|(before, fields)| {
                    format!("{before}{fields} {}{{ {elements} }}", self.not())
                })
            }
            _ => None,
        };
        if set.is_some() {
            return set;
        }
        let field = self.field(*scope, None)?;
        let before = if field.need == Need::Ports && scope.transport.is_none() {
            "meta l4proto { tcp, udp } "
        } else {
            ""
        };
        scope.take(field.need);
        Some(format!("{before}{} {}", field.text, values::test(self.random, field.kind)))
    }

    fn not(&mut self) -> &'static str {
        if self.random.percent(20) { "!= " } else { "" }
    }

    fn named(&mut self, scope: &mut Scope, map: bool) -> Option<String> {
        let fits: Vec<usize> =
            (0..self.sets.len()).filter(|index| self.sets[*index].map == map).collect();
        if fits.is_empty() {
            return None;
        }
        let index = fits[self.random.below(fits.len())];
        let (name, kinds) = (self.sets[index].name.clone(), self.sets[index].kinds.clone());
        let (before, fields) = self.fields(scope, &kinds)?;
        let how = if map { "vmap " } else { self.not() };
        Some(format!("{before}{fields} {how}@{name}"))
    }

    fn verdict_map(&mut self, scope: &mut Scope) -> Option<String> {
        if self.random.percent(50) {
            return self.named(scope, true);
        }
        if self.stateful && self.random.percent(30) {
            let (first, second) = (self.verdict(), self.verdict());
            return Some(format!(
                "ct state vmap {{ established : {first}, new : {second}, invalid : drop }}"
            ));
        }
        let kinds = values::set_kinds(self.random, self.family);
        let interval = self.random.percent(50);
        let elements = self.elements(&kinds, interval, true);
        let (before, fields) = self.fields(scope, &kinds)?;
        Some(format!("{before}{fields} vmap {{ {elements} }}"))
    }
}
