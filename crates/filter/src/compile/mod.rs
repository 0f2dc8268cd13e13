//! A rule set compiled for evaluation.

mod carry_over;
mod check;
mod counts;
mod demands;
mod implied;
mod index;
mod live_sets;
mod lookup;
mod program;
mod saved;
mod segments;
mod sorted;
mod tree;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

pub use check::CompileError;
pub(crate) use counts::Pending;
pub use counts::{ChainVerdicts, Counts};
pub(crate) use index::mixed;
pub use live_sets::IpRange;
pub(crate) use live_sets::LiveSets;
pub(crate) use program::{Op, Program, RuleAt, WideTest};
pub(crate) use saved::SavedCounts;

use crate::compile::sorted::SortedKeys;
use crate::elements::{Delta, Key, SetName, may_change};
use crate::evaluate::token_bucket::TokenBucket;
use crate::evaluate::verdict_cache::EvaluationStore;
use crate::evaluate::{Context, RuleLocation, Trace, run, walk};
use crate::packet::{Network, Packet};
#[cfg(any(test, feature = "oracle"))]
use crate::ruleset::Count;
use crate::ruleset::{
    ChainId, Counter, CounterId, Family, Field, Members, Policy, Rule, Ruleset, Set, SetId,
    Statement, Table, Test,
};

/// The maximum depth of nested jumps and gotos: the kernel's own bound.
pub const MAX_DEPTH: usize = 16;
/// The maximum number of rules that one packet may visit in a table below one chain, if every rule that can match does.
/// Without it, jumps that fan out could take any amount of time; this many visits take a few milliseconds.
pub const MAX_VISITS: usize = 1_000_000;
/// The maximum number of parts of a concatenation.
pub const MAX_PARTS: usize = 8;

/// Compiled rules, shared by all evaluators and replaced as a whole at a reload. Counters and limits then continue for
/// rules that are in both rule sets (`carry_on`).
#[derive(Debug)]
pub struct Filter {
    ruleset: Ruleset,
    bases: BaseChains,
    program: Program,
    /// The base chains by kind of packet.
    starts: [Vec<Start>; 3],
    traces: EvaluationStore,
    numbers: CounterNumbers,
    buckets: Vec<TokenBucket>,
    counts: counts::Totals,
    verdicts: counts::VerdictTotals,
    slots: LiveSetSlots,
    live: ArcSwap<LiveSets>,
    generation: live_sets::Generation,
    tracks: bool,
}

/// Base chains in the order of evaluation, by kind of packet.
#[derive(Debug, Default)]
struct BaseChains {
    v4: Vec<RuleLocation>,
    v6: Vec<RuleLocation>,
    other: Vec<RuleLocation>,
}

/// A base chain of the compiled form.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Start {
    /// Its number in the program.
    pub chain: u32,
    /// Its verdict on packets that no rule decided about.
    pub policy: Policy,
    /// The number of its counter of accepted packets; that of dropped ones follows.
    pub verdicts: u32,
}

/// The numbers of a rule's first unnamed counter and first limit.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct FirstIndices {
    pub counter: usize,
    pub bucket: usize,
}

/// The numbers of counters and limits, in the order of the file.
#[derive(Debug, Default)]
pub(crate) struct CounterNumbers {
    /// The first indices by table, chain and rule.
    rules: Vec<Vec<Vec<FirstIndices>>>,
    /// The number of each table's first named counter.
    named: Vec<usize>,
}

/// The sets with changing members: their number in [`LiveSets`].
#[derive(Debug, Default)]
pub(crate) struct LiveSetSlots {
    by_set: HashMap<(usize, SetId), usize>,
    /// The client or group of each slot, and whether it is for IPv6.
    wanted: Vec<(Members, bool)>,
    /// The sets whose elements change, in the slots after those.
    elements: Vec<(usize, SetId)>,
}

impl Filter {
    /// Compiles `ruleset`.
    ///
    /// # Errors
    /// The rule set is inconsistent: it refers to a missing item, or its jumps form a loop or are nested too deep.
    pub fn compile(ruleset: Ruleset) -> Result<Self, CompileError> {
        Self::compile_with(ruleset, &|_| false)
    }

    /// Compiles as [`Self::compile`] does, for rules that are in force while the elements of the `changing` sets and of
    /// sets with timeouts change. A chain's index cannot use such a set.
    pub(crate) fn compile_with(
        mut ruleset: Ruleset,
        changing: &dyn Fn(&SetName) -> bool,
    ) -> Result<Self, CompileError> {
        check::check(&ruleset)?;
        implied::insert(&mut ruleset);
        let mut numbers = CounterNumbers::default();
        let (mut buckets, mut totals) = (Vec::new(), counts::Totals::default());
        for (at, table) in ruleset.tables.iter().enumerate() {
            numbers.named.push(totals.len());
            for (id, counter) in table.counters.iter().enumerate() {
                totals.push(counts::Owner::Named(at, CounterId(id)), counter.start);
            }
            let mut chains = Vec::new();
            for chain in &table.chains {
                let number = |rule| number(rule, &mut buckets, &mut totals);
                chains.push(chain.rules.iter().map(number).collect());
            }
            numbers.rules.push(chains);
        }
        let slots = LiveSetSlots::new(&ruleset, changing);
        let generation = live_sets::Generation::new();
        let elements = slots.elements.iter().map(|(at, set)| sorted(&ruleset, *at, *set)).collect();
        let live = LiveSets::new(generation.get(), slots.wanted.len(), elements);
        let live = ArcSwap::from_pointee(live);
        let (bases, tracks) = (BaseChains::new(&ruleset), tracks(&ruleset));
        let program = Program::new(&ruleset, &numbers, &slots);
        let verdicts = counts::VerdictTotals::new(base_chains(&ruleset).collect());
        let start = |place: &RuleLocation| {
            let (chain, policy) = run::base(&ruleset, *place);
            Start { chain, policy, verdicts: verdicts.first(place.table, place.chain) }
        };
        let starts =
            [&bases.v4, &bases.v6, &bases.other].map(|bases| bases.iter().map(start).collect());
        Ok(Self {
            ruleset,
            bases,
            program,
            starts,
            traces: EvaluationStore::default(),
            numbers,
            buckets,
            counts: totals,
            verdicts,
            slots,
            live,
            generation,
            tracks,
        })
    }

    /// Returns whether a rule uses the state of connections.
    pub fn tracks(&self) -> bool {
        self.tracks
    }

    /// Returns whether a chain evaluates frames other than IP, which only chains of bridge tables do.
    pub fn sees_frames(&self) -> bool {
        !self.bases.other.is_empty()
    }

    /// Returns the rule set that was compiled.
    pub fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// Returns the clients and groups whose addresses the rules use.
    pub fn wanted(&self) -> impl Iterator<Item = &Members> {
        self.slots.wanted.iter().map(|(who, _)| who)
    }

    /// Replaces the addresses of a client or a group. All evaluators use the new addresses from their next packet on,
    /// and evaluate known flows again. Returns whether the rules refer to this client or group.
    pub fn set_members(&self, who: &Members, addresses: &[IpRange]) -> bool {
        let asked = |(slot, (wanted, v6)): (usize, &(Members, bool))| {
            (wanted == who).then_some((slot, *v6))
        };
        let slots: Vec<(usize, bool)> =
            self.slots.wanted.iter().enumerate().filter_map(asked).collect();
        if slots.is_empty() {
            return false;
        }
        self.generation.advance(|generation| {
            let mut live = LiveSets::clone(&self.live.load());
            live.replace(generation, &slots, addresses);
            self.live.store(Arc::new(live));
        });
        true
    }

    /// Replaces the addresses of several clients and groups in one step, as [`Self::set_members`] does for one. Clients
    /// and groups that are not in `all` stay unchanged.
    pub fn set_all_members(&self, all: &HashMap<Members, Vec<IpRange>>) {
        let told = |(slot, (wanted, v6)): (usize, &(Members, bool))| {
            all.get(wanted).map(|addresses| (slot, *v6, addresses))
        };
        let told: Vec<_> = self.slots.wanted.iter().enumerate().filter_map(told).collect();
        if told.is_empty() {
            return;
        }
        self.generation.advance(|generation| {
            let mut live = LiveSets::clone(&self.live.load());
            for (slot, v6, addresses) in told {
                live.replace(generation, &[(slot, v6)], addresses);
            }
            self.live.store(Arc::new(live));
        });
    }

    /// Returns the sets whose elements change, by slot.
    pub(crate) fn slots_by_name(&self) -> impl Iterator<Item = (usize, SetName)> {
        let behind = self.slots.wanted.len();
        self.slots.elements.iter().enumerate().filter_map(move |(at, (table, set))| {
            let table = self.ruleset.tables.get(*table)?;
            Some((behind.saturating_add(at), name_of(table, table.sets.get(set.0)?)))
        })
    }

    /// Applies changes to sets, by slot. All evaluators use the changed sets from their next packet on.
    pub(crate) fn change(&self, changes: &[(usize, &Delta)]) {
        if changes.is_empty() {
            return;
        }
        self.generation.advance(|generation| {
            let mut live = LiveSets::clone(&self.live.load());
            for (slot, delta) in changes {
                live.change(generation, *slot, |set| {
                    for (key, last) in *delta {
                        match last {
                            Some(last) => set.put(key, *last),
                            None => set.remove(key),
                        }
                    }
                });
            }
            self.live.store(Arc::new(live));
        });
    }

    /// Replaces all elements of the set in a slot, including those from the file.
    pub(crate) fn fill<'a>(&self, slot: usize, elements: impl Iterator<Item = (&'a Key, u128)>) {
        self.generation.advance(|generation| {
            let mut live = LiveSets::clone(&self.live.load());
            live.change(generation, slot, |set| {
                *set = SortedKeys::new(set.parts());
                elements.for_each(|(key, last)| set.put(key, last));
            });
            self.live.store(Arc::new(live));
        });
    }

    /// Returns the counts that all evaluators have flushed, including the initial values of counters.
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }

    /// Returns the verdicts that all evaluators have flushed, by base chain in the order of the file, after those
    /// without a chain.
    pub fn verdicts(&self) -> Vec<ChainVerdicts> {
        self.verdicts.read()
    }

    /// Returns the rule that decides about a packet, and why. Counts nothing, logs nothing, takes no tokens.
    pub fn explain(&self, packet: &Packet<'_>, context: &Context) -> Trace {
        walk::explain(self, &self.live.load(), packet, context)
    }

    /// Returns the base chains that evaluate this packet, in order.
    pub(crate) fn bases(&self, packet: &Packet<'_>) -> &[RuleLocation] {
        match packet.network {
            Network::Ip(ip) if ip.source.is_ipv4() => &self.bases.v4,
            Network::Ip(_) => &self.bases.v6,
            Network::Arp(_) | Network::Other(_) => &self.bases.other,
        }
    }

    /// Returns the base chains of the compiled form, see [`Self::bases`].
    #[inline]
    pub(crate) fn starts(&self, packet: &Packet<'_>) -> &[Start] {
        let [v4, v6, other] = &self.starts;
        match packet.network {
            Network::Ip(ip) if ip.source.is_ipv4() => v4,
            Network::Ip(_) => v6,
            Network::Arp(_) | Network::Other(_) => other,
        }
    }

    /// Returns the approximate heap size of the compiled form in bytes.
    pub fn size(&self) -> usize {
        self.program.size()
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn traces(&self) -> &EvaluationStore {
        &self.traces
    }

    pub(crate) fn first(&self, place: RuleLocation, rule: usize) -> FirstIndices {
        self.numbers.first(place.table, place.chain, rule)
    }

    pub(crate) fn named(&self, table: usize, id: CounterId) -> usize {
        self.numbers.named(table, id)
    }

    pub(crate) fn bucket(&self, number: usize) -> Option<&TokenBucket> {
        self.buckets.get(number)
    }

    pub(crate) fn slot(&self, table: usize, set: SetId) -> Option<usize> {
        self.slots.by_set.get(&(table, set)).copied()
    }

    pub(crate) fn live(&self) -> Arc<LiveSets> {
        self.live.load_full()
    }

    /// Fetches the newest members.
    #[inline]
    pub(crate) fn refresh(&self, live: &mut Arc<LiveSets>) {
        if self.generation.get() != live.generation {
            *live = self.live.load_full();
        }
    }

    /// Returns the value of each counter, by number.
    #[cfg(any(test, feature = "oracle"))]
    pub(crate) fn count_list(&self) -> Vec<Count> {
        self.counts.list()
    }

    pub(crate) fn pending(&self) -> Pending {
        Pending::new(self.counts.len(), &self.verdicts)
    }

    pub(crate) fn add(&self, pending: &mut Pending) {
        self.counts.add(pending);
        self.verdicts.add(pending);
    }
}

impl CounterNumbers {
    fn first(&self, table: usize, chain: ChainId, rule: usize) -> FirstIndices {
        let rules = self.rules.get(table).and_then(|chains| chains.get(chain.0));
        rules.and_then(|rules| rules.get(rule)).copied().unwrap_or_default()
    }

    fn named(&self, table: usize, id: CounterId) -> usize {
        self.named.get(table).map_or(usize::MAX, |first| first.saturating_add(id.0))
    }
}

fn number(
    rule: &Rule,
    buckets: &mut Vec<TokenBucket>,
    totals: &mut counts::Totals,
) -> FirstIndices {
    let first = FirstIndices { counter: totals.len(), bucket: buckets.len() };
    let mut nth = 0usize;
    for statement in &rule.statements {
        match statement {
            Statement::Counter(Counter::Own(start)) => {
                totals.push(counts::Owner::Rule(rule.handle, nth), *start);
                nth = nth.saturating_add(1);
            }
            Statement::Limit(limit) => buckets.push(TokenBucket::new(*limit)),
            _ => {}
        }
    }
    first
}

/// Returns the base chains in the order of the file.
fn base_chains(ruleset: &Ruleset) -> impl Iterator<Item = (usize, ChainId)> {
    ruleset.tables.iter().enumerate().flat_map(|(at, table)| {
        let chains = table.chains.iter().enumerate().filter(|(_, chain)| chain.base.is_some());
        chains.map(move |(chain, _)| (at, ChainId(chain)))
    })
}

impl BaseChains {
    fn new(ruleset: &Ruleset) -> Self {
        let of = |families: &[Family]| {
            let mut found: Vec<(i32, RuleLocation)> = Vec::new();
            for (table, content) in ruleset.tables.iter().enumerate() {
                if !families.contains(&content.family) {
                    continue;
                }
                for (chain, content) in content.chains.iter().enumerate() {
                    if let Some(base) = content.base {
                        found.push((base.priority, RuleLocation { table, chain: ChainId(chain) }));
                    }
                }
            }
            found.sort_by_key(|(priority, _)| *priority);
            found.into_iter().map(|(_, place)| place)
        };
        let bridge = || of(&[Family::Bridge]);
        Self {
            v4: bridge().chain(of(&[Family::Ip, Family::Inet])).collect(),
            v6: bridge().chain(of(&[Family::Ip6, Family::Inet])).collect(),
            other: bridge().collect(),
        }
    }
}

impl LiveSetSlots {
    fn new(ruleset: &Ruleset, changing: &dyn Fn(&SetName) -> bool) -> Self {
        let mut slots = Self::default();
        for (table, content) in ruleset.tables.iter().enumerate() {
            for (id, set) in content.sets.iter().enumerate() {
                if matches!(set.members, Members::Fixed(_)) {
                    if may_change(set) && (set.timeouts || changing(&name_of(content, set))) {
                        slots.elements.push((table, SetId(id)));
                    }
                    continue;
                }
                let v6 = set.key.first() == Some(&crate::ruleset::Kind::Ipv6Addr);
                slots.by_set.insert((table, SetId(id)), slots.wanted.len());
                slots.wanted.push((set.members.clone(), v6));
            }
        }
        let behind = slots.wanted.len();
        for (at, place) in slots.elements.iter().enumerate() {
            slots.by_set.insert(*place, behind.saturating_add(at));
        }
        slots
    }
}

/// Returns the identity of a set across rule sets.
pub(crate) fn name_of(table: &Table, set: &Set) -> SetName {
    (table.family, table.name.clone(), set.name.clone().unwrap_or_default())
}

/// Returns the elements of a set in the file.
fn sorted(ruleset: &Ruleset, table: usize, set: SetId) -> SortedKeys {
    let found = ruleset.tables.get(table).and_then(|table| table.sets.get(set.0));
    let mut sorted = SortedKeys::new(found.map_or(1, |set| set.key.len()));
    if let Some(Members::Fixed(elements)) = found.map(|set| &set.members) {
        for element in elements {
            let key: Key = element.key.iter().map(|range| range.first).collect();
            sorted.put(&key, element.key.first().map_or(0, |range| range.last));
        }
    }
    sorted
}

fn tracks(ruleset: &Ruleset) -> bool {
    let ct = |key: &[Field]| {
        key.iter()
            .any(|field| matches!(field, Field::CtState | Field::CtDirection | Field::CtProtocol))
    };
    let rules =
        ruleset.tables.iter().flat_map(|table| &table.chains).flat_map(|chain| &chain.rules);
    rules.flat_map(|rule| &rule.statements).any(|statement| match statement {
        Statement::Match(one) => ct(&one.key),
        Statement::VerdictMap { key, .. } => ct(key),
        _ => false,
    })
}

/// Returns the sets that a statement uses.
pub(crate) fn set_of(statement: &Statement) -> Option<SetId> {
    match statement {
        Statement::Match(one) => match one.test {
            Test::Set(id) => Some(id),
            _ => None,
        },
        Statement::VerdictMap { map, .. } => Some(*map),
        _ => None,
    }
}
