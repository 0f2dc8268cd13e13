//! Prints a rule set in the form of `nft list ruleset`, which parses to the same rule set.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::rule::{ICMPX, PERIODS};
use super::set::duration_text;
use super::table::priorities;
use super::value::{is_bits, largest};
use super::{fields, names, settings};
use crate::ruleset::{
    Base, Chain, Count, Counter, CounterId, Element, Family, Field, Icmpx, Kind, Limit, Log, Match,
    Members, Policy, Range, Reject, Rule, RuleVerdict, Ruleset, Set, SetId, Statement, Table, Test,
};

/// The column after which a list of elements continues on a new line.
const WIDTH: usize = 96;

/// The owner of a count that a listing needs.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum CounterOwner {
    /// The rule with this handle.
    Rule(u32),
    /// A named counter.
    Named {
        /// The index into [`Ruleset::tables`].
        table: usize,
        /// The counter in that table.
        counter: CounterId,
    },
}

type CountReader<'a> = &'a dyn Fn(CounterOwner) -> Option<Count>;

/// Returns the present elements of a set, by its table's index, if they have changed since the file was read.
type Elements<'a> = &'a dyn Fn(usize, SetId) -> Option<Vec<Element>>;

/// Prints the rule set with handles as comments, with the counts of `live` and the present elements.
pub fn listing(ruleset: &Ruleset, live: CountReader<'_>, elements: Elements<'_>) -> String {
    Printer { out: String::new(), live: Some(live), elements: Some(elements) }.ruleset(ruleset)
}

impl fmt::Display for Ruleset {
    /// Prints a rule file that parses to an equal rule set, except for line numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Printer { out: String::new(), live: None, elements: None }.ruleset(self))
    }
}

/// Prints a rule of a table as one line, without its comment.
pub fn rule_text(table: &Table, rule: &Rule) -> String {
    let mut printer = Printer { out: String::new(), live: None, elements: None };
    printer.statements(table, rule);
    printer.out
}

/// Prints a statement of a table.
pub fn statement_text(table: &Table, statement: &Statement) -> String {
    let mut printer = Printer { out: String::new(), live: None, elements: None };
    printer.statement(table, 0, statement);
    printer.out
}

/// Prints a field: `tcp dport`.
pub fn field_text(field: Field) -> String {
    fields::text(field)
}

/// Prints a value of a kind.
pub fn value_text(kind: Kind, value: u128) -> String {
    range_text(kind, Range::single(value))
}

/// Prints the name of a set in a command: `inet filter blocked`.
pub fn set_text(ruleset: &Ruleset, named: &super::SetElements) -> String {
    let Some(table) = ruleset.tables.get(named.table) else { return String::new() };
    let name = table.sets.get(named.set.0).and_then(|set| set.name.as_deref()).unwrap_or("");
    format!("{} {} {name}", family(table.family), table.name)
}

/// Prints an element of a set.
pub fn element_text(ruleset: &Ruleset, table: usize, set: SetId, element: &Element) -> String {
    let table = ruleset.tables.get(table);
    let set = table.and_then(|table| table.sets.get(set.0));
    table.zip(set).map_or_else(String::new, |(table, set)| text_of(table, set, element))
}

struct Printer<'a> {
    out: String,
    live: Option<CountReader<'a>>,
    elements: Option<Elements<'a>>,
}

impl Printer<'_> {
    fn ruleset(mut self, ruleset: &Ruleset) -> String {
        for setting in settings::lines(ruleset.allow_unhooked, &ruleset.limits) {
            self.line(0, &setting);
        }
        for (index, table) in ruleset.tables.iter().enumerate() {
            self.table(table, index);
        }
        self.out
    }

    fn line(&mut self, depth: usize, text: &str) {
        self.out.extend(std::iter::repeat_n('\t', depth));
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn count(&self, whose: CounterOwner, start: Count) -> Count {
        self.live.and_then(|live| live(whose)).unwrap_or(start)
    }

    fn table(&mut self, table: &Table, index: usize) {
        self.line(0, &format!("table {} {} {{", family(table.family), table.name));
        for (id, counter) in table.counters.iter().enumerate() {
            let whose = CounterOwner::Named { table: index, counter: CounterId(id) };
            let Count { packets, bytes } = self.count(whose, counter.start);
            self.line(1, &format!("counter {} {{", counter.name));
            self.line(2, &format!("packets {packets} bytes {bytes}"));
            self.line(1, "}");
        }
        for (id, set) in table.sets.iter().enumerate().filter(|(_, set)| set.name.is_some()) {
            let now = self.elements.and_then(|elements| elements(index, SetId(id)));
            self.set(table, set, now.as_deref());
        }
        for chain in &table.chains {
            self.chain(table, chain);
        }
        self.line(0, "}");
    }

    fn set(&mut self, table: &Table, set: &Set, now: Option<&[Element]>) {
        let what = if set.map { "map" } else { "set" };
        self.line(1, &format!("{what} {} {{", set.name.as_deref().unwrap_or("")));
        let data = if set.map { " : verdict" } else { "" };
        self.line(2, &format!("{}{data}", key_type(&set.key)));
        if let Some(size) = set.size {
            self.line(2, &format!("size {size}"));
        }
        let flags =
            [(set.constant, "constant"), (set.interval, "interval"), (set.timeouts, "timeout")];
        let flags: Vec<&str> =
            flags.iter().filter(|(has, _)| *has).map(|(_, flag)| *flag).collect();
        if !flags.is_empty() {
            self.line(2, &format!("flags {}", flags.join(",")));
        }
        if let Some(timeout) = set.timeout {
            self.line(2, &format!("timeout {}", duration_text(timeout)));
        }
        if set.auto_merge {
            self.line(2, "auto-merge");
        }
        if let Some(comment) = &set.comment {
            self.line(2, &format!("comment \"{comment}\""));
        }
        let fixed = match &set.members {
            Members::Fixed(list) => list.as_slice(),
            _ => &[],
        };
        let list = now.unwrap_or(fixed);
        if !list.is_empty() {
            let text = format!("elements = {}", elements(table, set, list, 3));
            self.line(2, &text);
        }
        self.line(1, "}");
    }

    fn chain(&mut self, table: &Table, chain: &Chain) {
        self.line(1, &format!("chain {} {{", chain.name));
        if let Some(comment) = &chain.comment {
            self.line(2, &format!("comment \"{comment}\""));
        }
        if let Some(base) = chain.base {
            self.line(2, &base_text(table.family, base));
        }
        for rule in &chain.rules {
            self.out.push_str("\t\t");
            self.statements(table, rule);
            if let Some(comment) = &rule.comment {
                self.out.push_str(&format!(" comment \"{comment}\""));
            }
            if self.live.is_some() {
                self.out.push_str(&format!(" # handle {}", rule.handle));
            }
            self.out.push('\n');
        }
        self.line(1, "}");
    }

    fn statements(&mut self, table: &Table, rule: &Rule) {
        for (place, statement) in rule.statements.iter().enumerate() {
            if place > 0 {
                self.out.push(' ');
            }
            self.statement(table, rule.handle, statement);
        }
    }

    fn statement(&mut self, table: &Table, handle: u32, statement: &Statement) {
        let text = match statement {
            Statement::Match(m) => match_text(table, m),
            Statement::Counter(Counter::Own(start)) => {
                let count = self.count(CounterOwner::Rule(handle), *start);
                let Count { packets, bytes } = count;
                if self.live.is_none() && count == Count::default() {
                    "counter".to_owned()
                } else {
                    format!("counter packets {packets} bytes {bytes}")
                }
            }
            Statement::Counter(Counter::Named(id)) => {
                let name = table.counters.get(id.0).map_or("", |c| &c.name);
                format!("counter name \"{name}\"")
            }
            Statement::Limit(limit) => limit_text(limit),
            Statement::Log(log) => log_text(log),
            Statement::Verdict(verdict) => verdict_text(table, *verdict),
            Statement::VerdictMap { key, map } => {
                format!("{} vmap {}", key_text(key), set_in_rule(table, *map))
            }
            Statement::Reject(reject) => reject_text(*reject),
        };
        self.out.push_str(&text);
    }
}

pub(super) const fn family(family: Family) -> &'static str {
    match family {
        Family::Ip => "ip",
        Family::Ip6 => "ip6",
        Family::Inet => "inet",
        Family::Bridge => "bridge",
    }
}

pub(super) fn priority_text(family: Family, base: Base) -> String {
    let near = |p: &&(&str, i32)| base.priority.abs_diff(p.1) <= 10;
    match priorities(family).iter().find(near) {
        Some(&(name, value)) if value == base.priority => name.to_owned(),
        Some(&(name, value)) => {
            let sign = if base.priority > value { '+' } else { '-' };
            format!("{name} {sign} {}", base.priority.abs_diff(value))
        }
        None => base.priority.to_string(),
    }
}

fn base_text(family: Family, base: Base) -> String {
    let priority = priority_text(family, base);
    let policy = match base.policy {
        Policy::Accept => "accept",
        Policy::Drop => "drop",
    };
    format!("type filter hook forward priority {priority}; policy {policy};")
}

/// Prints `type a . b`, or `typeof` if a part's type has no name.
fn key_type(key: &[Kind]) -> String {
    let types: Option<Vec<&str>> = key.iter().map(|&kind| names::type_name(kind)).collect();
    match types {
        Some(types) => format!("type {}", types.join(" . ")),
        None => {
            let fields = key.iter().filter_map(|&kind| fields::example(kind));
            format!("typeof {}", fields.map(fields::text).collect::<Vec<_>>().join(" . "))
        }
    }
}

fn elements(table: &Table, set: &Set, list: &[Element], depth: usize) -> String {
    let mut out = "{ ".to_owned();
    let mut width = 0_usize;
    for (index, element) in list.iter().enumerate() {
        let text = text_of(table, set, element);
        if index > 0 {
            out.push(',');
            width = width.saturating_add(text.len()).saturating_add(2);
            if width > WIDTH && depth > 0 {
                out.push('\n');
                out.extend(std::iter::repeat_n('\t', depth));
                width = text.len();
            } else {
                out.push(' ');
            }
        }
        out.push_str(&text);
    }
    out.push_str(" }");
    out
}

fn text_of(table: &Table, set: &Set, element: &Element) -> String {
    let mut text = values(&set.key, &element.key);
    if let Some(lifetime) = &element.lifetime {
        for (word, duration) in [("timeout", lifetime.timeout), ("expires", lifetime.expires)] {
            if let Some(duration) = duration {
                text.push_str(&format!(" {word} {}", duration_text(duration)));
            }
        }
    }
    if let Some(comment) = &element.comment {
        text.push_str(&format!(" comment \"{comment}\""));
    }
    if let Some(verdict) = element.verdict {
        text.push_str(&format!(" : {}", verdict_text(table, verdict)));
    }
    text
}

fn values(kinds: &[Kind], ranges: &[Range]) -> String {
    let parts = kinds.iter().zip(ranges).map(|(&kind, &range)| range_text(kind, range));
    parts.collect::<Vec<_>>().join(" . ")
}

fn set_in_rule(table: &Table, id: SetId) -> String {
    let Some(set) = table.sets.get(id.0) else {
        return String::new();
    };
    match (&set.name, &set.members) {
        (Some(name), _) => format!("@{name}"),
        (None, Members::Fixed(list)) => elements(table, set, list, 0),
        (None, who) => who.label().unwrap_or_default(),
    }
}

fn key_text(key: &[Field]) -> String {
    key.iter().map(|&field| fields::text(field)).collect::<Vec<_>>().join(" . ")
}

fn match_text(table: &Table, m: &Match) -> String {
    let key = key_text(&m.key);
    let kinds: Vec<Kind> = m.key.iter().map(|f| f.kind()).collect();
    let kind = kinds.first().copied().unwrap_or(Kind::Integer(128));
    let unequal = if m.negate { "!= " } else { "" };
    match &m.test {
        Test::Set(id) => format!("{key} {unequal}{}", set_in_rule(table, *id)),
        Test::Within(ranges) => {
            let one = ranges.first().filter(|r| r.first == r.last && ranges.len() == 1);
            match one {
                // Without an operator, the comparison tests bits.
                Some(range) if is_bits(kind) => {
                    let op = if m.negate { "!=" } else { "==" };
                    format!("{key} {op} {}", exact_bits(kind, range.first))
                }
                _ => format!("{key} {unequal}{}", values(&kinds, ranges)),
            }
        }
        Test::AnyOf(mask) if is_bits(kind) && !m.negate => {
            format!("{key} {}", bits(kind, *mask, ","))
        }
        Test::AnyOf(mask) => {
            let op = if m.negate { "==" } else { "!=" };
            format!("{key} & {} {op} {}", mask_text(kind, *mask), plain(kind, 0))
        }
        Test::Masked { mask, value } => {
            let op = if m.negate { "!=" } else { "==" };
            format!("{key} & {} {op} {}", mask_text(kind, *mask), plain(kind, *value))
        }
    }
}

/// Prints a mask: bits by name in parentheses, or a value.
fn mask_text(kind: Kind, mask: u128) -> String {
    let text = plain(kind, mask);
    if text.contains('|') { format!("({text})") } else { text }
}

/// Prints a value in arithmetic, without names except those of bits.
fn plain(kind: Kind, value: u128) -> String {
    match kind {
        Kind::Ipv4Addr | Kind::Ipv6Addr | Kind::EtherAddr => value_alone(kind, value),
        _ if is_bits(kind) => bits(kind, value, " | "),
        _ => format!("{value:#x}"),
    }
}

fn exact_bits(kind: Kind, value: u128) -> String {
    if value.count_ones() == 1 { bits(kind, value, "|") } else { format!("{value:#x}") }
}

/// Prints bits by name if all of them have names.
fn bits(kind: Kind, value: u128, joint: &str) -> String {
    let named: Vec<&(&str, u128)> =
        names::of(kind).iter().filter(|(_, bit)| bit & value != 0).collect();
    let all = named.iter().fold(0, |all, (_, bit)| all | bit);
    if all != value || value == 0 {
        return format!("{value:#x}");
    }
    named.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(joint)
}

pub(super) fn range_text(kind: Kind, range: Range) -> String {
    let Range { first, last } = range;
    if first == last {
        return value_alone(kind, first);
    }
    if kind == Kind::IfName {
        return wildcard(first);
    }
    let size = last.wrapping_sub(first);
    let block = size & size.wrapping_add(1) == 0 && first & size == 0;
    if block && matches!(kind, Kind::Ipv4Addr | Kind::Ipv6Addr) {
        let length = u32::from(kind.bits()).saturating_sub(size.count_ones());
        return format!("{}/{length}", value_alone(kind, first));
    }
    let end = |value| match kind {
        Kind::Ipv4Addr | Kind::Ipv6Addr | Kind::EtherAddr => value_alone(kind, value),
        Kind::EtherType | Kind::TcpFlags | Kind::CtState | Kind::Dscp => format!("{value:#x}"),
        _ => value.to_string(),
    };
    format!("{}-{}", end(first), end(last))
}

fn name_bytes(value: u128) -> String {
    let bytes = value.to_be_bytes();
    bytes.iter().take_while(|&&b| b != 0).map(|&b| char::from(b)).collect()
}

fn wildcard(first: u128) -> String {
    format!("\"{}*\"", name_bytes(first))
}

fn value_alone(kind: Kind, value: u128) -> String {
    let shown = value & largest(kind);
    match kind {
        Kind::Ipv4Addr => Ipv4Addr::from(u32::try_from(shown).unwrap_or(0)).to_string(),
        // Addresses like `::ffff:10.0.0.1` are printed in groups, which all parsers accept.
        Kind::Ipv6Addr => Ipv6Addr::from(shown).to_string(),
        Kind::EtherAddr => {
            let bytes = shown.to_be_bytes();
            let hex: Vec<String> = bytes.iter().skip(10).map(|b| format!("{b:02x}")).collect();
            hex.join(":")
        }
        Kind::IfName => format!("\"{}\"", name_bytes(shown)),
        Kind::InetService => shown.to_string(),
        _ if is_bits(kind) => bits(kind, shown, " | "),
        _ => match (names::name(kind, shown), kind) {
            (Some(name), _) => name.to_owned(),
            (None, Kind::EtherType) => format!("{shown:#06x}"),
            (None, Kind::Dscp) => format!("{shown:#04x}"),
            (None, _) => shown.to_string(),
        },
    }
}

fn limit_text(limit: &Limit) -> String {
    let over = if limit.over { "over " } else { "" };
    let period = PERIODS.iter().find(|p| p.1 == limit.per).map_or("second", |p| p.0);
    let unit = if limit.bytes { " bytes" } else { "" };
    let burst = match (limit.bytes, limit.burst) {
        (true, 0) => String::new(),
        (true, burst) => format!(" burst {burst} bytes"),
        (false, burst) => format!(" burst {burst} packets"),
    };
    format!("limit rate {over}{}{unit}/{period}{burst}", limit.rate)
}

fn log_text(log: &Log) -> String {
    let mut text = "log".to_owned();
    if !log.prefix.is_empty() {
        text.push_str(&format!(" prefix \"{}\"", log.prefix));
    }
    if let Some(group) = log.group {
        text.push_str(&format!(" group {group}"));
    }
    if log.snaplen > 0 {
        text.push_str(&format!(" snaplen {}", log.snaplen));
    }
    text
}

pub(super) fn verdict_text(table: &Table, verdict: RuleVerdict) -> String {
    let name = |id: usize| table.chains.get(id).map_or("", |c| &c.name);
    match verdict {
        RuleVerdict::Accept => "accept".into(),
        RuleVerdict::Drop => "drop".into(),
        RuleVerdict::Continue => "continue".into(),
        RuleVerdict::Return => "return".into(),
        RuleVerdict::Jump(id) => format!("jump {}", name(id.0)),
        RuleVerdict::Goto(id) => format!("goto {}", name(id.0)),
    }
}

/// Prints a `reject` statement.
pub fn reject_text(reject: Reject) -> String {
    match reject {
        Reject::TcpReset => "reject with tcp reset".into(),
        Reject::Icmp(code) => {
            format!("reject with icmp {}", value_alone(Kind::IcmpCode, code.into()))
        }
        Reject::Icmpv6(code) => {
            format!("reject with icmpv6 {}", value_alone(Kind::Icmpv6Code, code.into()))
        }
        Reject::Icmpx(Icmpx::PortUnreachable) => "reject".into(),
        Reject::Icmpx(reason) => {
            let name = ICMPX.iter().find(|i| i.2 == reason).map_or("", |i| i.0);
            format!("reject with icmpx {name}")
        }
    }
}
