use std::net::Ipv4Addr;
use std::sync::Arc;

use adit_wire::VnetHeader;
use proptest::prelude::*;

use super::*;
use crate::firewall::{Firewall, FrameContext, Limits};
use crate::packet::Layer;
use crate::testing::{V4_B, udp, v4_of};
use crate::{Filter, IfName, lang};

/// Writes enough rules for an index, which must not include the elements of a changing set.
fn rules(set: &str) -> String {
    let mut rules = String::new();
    for port in 0..20 {
        rules.push_str(&format!("    ip saddr 192.0.2.{port} udp dport {port} drop\n"));
    }
    format!(
        "table inet t {{
  set s {{ {set} }}
  chain c {{
    type filter hook forward priority 0; policy drop;
{rules}    ip saddr @s counter accept
  }}
}}
"
    )
}

fn parsed(text: &str) -> crate::ruleset::Ruleset {
    let mut none = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    lang::parse("t", text, &mut none).unwrap_or_else(|error| panic!("{error}"))
}

fn filter(text: &str) -> Filter {
    Filter::compile(parsed(text)).unwrap()
}

fn firewall(text: &str) -> Arc<Firewall> {
    Firewall::new(filter(text), Limits::default(), [3; 16])
}

/// Executes a command; returns the number of changed elements, or the error.
fn change(firewall: &Firewall, change: Change, text: &str, now: u64) -> Result<usize, String> {
    let rules = firewall.filter();
    let named = lang::elements(rules.ruleset(), text).map_err(|error| error.to_string())?;
    let done = firewall.change_elements(named.table, named.set, change, named.elements, Nanos(now));
    done.map_err(|error| error.to_string())
}

fn passes(firewall: &Arc<Firewall>, host: u8, now: u64) -> bool {
    let (iif, oif) = (IfName::new("a"), IfName::new("b"));
    let vnet = VnetHeader::default();
    let place = FrameContext {
        layer: Layer::Ip,
        vlan: None,
        vnet,
        iif,
        oif,
        peers: crate::firewall::Peers::default(),
        zone: 0,
    };
    let source = Ipv4Addr::new(10, 0, 0, host);
    let packet = v4_of(source, V4_B, 1, 0, 17, &udp(false, b"x"));
    firewall.worker().burst(Nanos(now)).evaluate(&packet, &place).passes()
}

fn listed(firewall: &Firewall, now: u64) -> Vec<String> {
    let rules = firewall.filter();
    let elements = |table, set| firewall.elements(table, set, Nanos(now));
    let text = lang::listing(rules.ruleset(), &|_| None, &elements);
    let Some((_, behind)) = text.split_once("elements = { ") else { return Vec::new() };
    let list = behind.split_once(" }").unwrap().0;
    list.split(',').map(|one| one.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn a_ban_holds_for_its_time_and_over_a_reload() {
    let text = rules("type ipv4_addr; flags timeout; elements = { 10.0.0.1 }");
    let firewall = firewall(&text);
    assert!(passes(&firewall, 1, 0) && !passes(&firewall, 2, 0));
    let added = change(&firewall, Change::Add, "s 10.0.0.2 timeout 1m, 10.0.0.3", 10 * SECOND);
    assert_eq!(added, Ok(2));
    assert!(passes(&firewall, 2, 11 * SECOND) && passes(&firewall, 3, 11 * SECOND));
    assert_eq!(
        listed(&firewall, 20 * SECOND),
        ["10.0.0.1", "10.0.0.2 timeout 1m expires 50s", "10.0.0.3"]
    );
    firewall.replace(filter(&text));
    assert_eq!(listed(&firewall, 30 * SECOND)[1], "10.0.0.2 timeout 1m expires 40s");
    assert!(passes(&firewall, 2, 30 * SECOND));
    // Repeating a timeout renews it; an element without a timeout is unchanged.
    assert_eq!(change(&firewall, Change::Add, "s 10.0.0.2", 40 * SECOND), Ok(0));
    assert_eq!(change(&firewall, Change::Add, "s 10.0.0.2 timeout 2m", 40 * SECOND), Ok(1));
    firewall.sweep(Nanos(159 * SECOND));
    assert!(passes(&firewall, 2, 159 * SECOND));
    firewall.sweep(Nanos(160 * SECOND));
    assert!(!passes(&firewall, 2, 160 * SECOND));
    assert_eq!(listed(&firewall, 160 * SECOND), ["10.0.0.1", "10.0.0.3"]);
    assert_eq!(change(&firewall, Change::Delete, "inet t s { 10.0.0.3 }", 161 * SECOND), Ok(1));
    assert!(!passes(&firewall, 3, 161 * SECOND));
    let totals = firewall.element_totals();
    assert_eq!((totals.added, totals.expired, totals.refused), (0, 1, 0));
}

#[test]
fn elements_of_the_file_have_timeouts_too() {
    let text = rules(
        "type ipv4_addr; timeout 1m; elements = { 10.0.0.1, 10.0.0.2 timeout 2m expires 5s }",
    );
    let firewall = firewall(&text);
    // The first sweep sets the time.
    firewall.sweep(Nanos(100 * SECOND));
    assert!(passes(&firewall, 1, 100 * SECOND) && passes(&firewall, 2, 100 * SECOND));
    firewall.sweep(Nanos(105 * SECOND));
    assert!(passes(&firewall, 1, 105 * SECOND) && !passes(&firewall, 2, 105 * SECOND));
    // A running lifetime continues; an expired element from the file starts again.
    firewall.replace(filter(&text));
    firewall.sweep(Nanos(150 * SECOND));
    assert!(passes(&firewall, 1, 150 * SECOND) && passes(&firewall, 2, 150 * SECOND));
    firewall.sweep(Nanos(160 * SECOND));
    assert!(!passes(&firewall, 1, 160 * SECOND) && !passes(&firewall, 2, 160 * SECOND));
}

#[test]
fn what_cannot_change_is_refused_by_name() {
    let text = "table inet t {
  set one { type ipv4_addr; size 2; elements = { 10.0.0.1 } }
  set fixed { type ipv4_addr; flags constant; elements = { 10.0.0.1 } }
  set areas { type ipv4_addr . inet_service; flags interval; }
  map m { type ipv4_addr : verdict; }
  chain c { type filter hook forward priority 0; ip saddr @one accept; }
}
table ip u { set one { type ipv4_addr; } }
";
    let firewall = firewall(text);
    let refused = |what, command: &str| change(&firewall, what, command, 1).unwrap_err();
    for (what, command, why) in [
        (Change::Add, "one 10.0.0.2", "inet t one, or ip u one"),
        (Change::Add, "fixd 10.0.0.2", "did you mean `fixed`?"),
        (Change::Add, "fixed 10.0.0.2", "is constant"),
        (Change::Add, "areas 10.0.0.2 . 1-2", "ranges of several fields"),
        (Change::Add, "m 10.0.0.2 : accept", "is a map"),
        (Change::Add, "inet t one 10.0.0.0/24", "flags interval"),
        (Change::Add, "inet t one 10.0.0.2 timeout 5s", "flags timeout"),
        (Change::Add, "inet t one fd00::1", "takes an IPv4 address"),
        (Change::Add, "inet t one 10.0.0.2 10.0.0.3", "expected `,`"),
        (Change::Delete, "inet t one 10.0.0.1, 10.0.0.9", "no such element"),
        (Change::Add, "inet t one 10.0.0.8, 10.0.0.9", "its size is 2"),
    ] {
        let message = refused(what, command);
        assert!(message.contains(why), "{command}: {message}");
    }
    assert_eq!(firewall.element_totals().refused, 1);
    let (table, set) = (0, crate::ruleset::SetId(0));
    let left = firewall.elements(table, set, Nanos(1)).unwrap();
    assert_eq!(left.len(), 1, "wholly or not at all");
    assert_eq!(change(&firewall, Change::Add, "inet t one 10.0.0.8", 1), Ok(1));
}

#[test]
fn no_more_are_added_than_there_is_room_for() {
    let text = rules("type ipv4_addr;");
    let firewall = firewall(&text);
    let range = |first: usize, count: usize| {
        let address = |at: usize| Ipv4Addr::from_bits(0x0b00_0000 + at as u32).to_string();
        let list: Vec<String> = (first..first + count).map(address).collect();
        format!("s {{ {} }}", list.join(", "))
    };
    for at in (0..MAX_ADDED).step_by(lang::MAX_NAMED) {
        assert_eq!(change(&firewall, Change::Add, &range(at, lang::MAX_NAMED), 1), Ok(65_536));
    }
    let more = change(&firewall, Change::Add, "s 10.0.0.1", 1).unwrap_err();
    assert!(more.contains("262144"), "{more}");
    let many = change(&firewall, Change::Add, &range(0, lang::MAX_NAMED + 1), 1).unwrap_err();
    assert!(many.contains("more than 65536 elements in one command"), "{many}");
    assert_eq!(change(&firewall, Change::Delete, &range(0, 1), 1), Ok(1));
    assert_eq!(change(&firewall, Change::Add, "s 10.0.0.1", 1), Ok(1));
    assert!(passes(&firewall, 1, 2));
}

/// A set as a plain list: the element that each of 64 values belongs to.
#[derive(Clone, Debug)]
struct Model {
    owner: [Option<usize>; 64],
    /// The end and origin of each element: whether it was added.
    elements: Vec<(Option<u64>, bool)>,
    merges: bool,
    file: Vec<(usize, usize)>,
}

impl Model {
    fn new(merges: bool, file: &[(usize, usize)]) -> Self {
        let mut model =
            Self { owner: [None; 64], elements: Vec::new(), merges, file: file.to_vec() };
        for (first, last) in file {
            model.put(*first, *last, None, false);
        }
        model
    }

    fn put(&mut self, first: usize, last: usize, end: Option<u64>, added: bool) {
        self.owner[first..=last].fill(Some(self.elements.len()));
        self.elements.push((end, added));
    }

    fn span(&self, id: usize) -> (usize, usize) {
        let at = |owner: &Option<usize>| *owner == Some(id);
        (self.owner.iter().position(at).unwrap(), self.owner.iter().rposition(at).unwrap())
    }

    fn ids(&self, first: usize, last: usize) -> Vec<usize> {
        let mut ids: Vec<usize> = self.owner[first..=last].iter().flatten().copied().collect();
        ids.dedup();
        ids
    }

    fn add(&mut self, first: usize, last: usize, end: Option<u64>) -> bool {
        let ids = self.ids(first, last);
        if let [id] = ids[..]
            && (self.span(id) == (first, last)
                || (self.merges && self.owner[first..=last].iter().all(|own| *own == Some(id))))
        {
            if self.span(id) == (first, last) && end.is_some() {
                self.elements[id].0 = end;
            }
            return true;
        }
        if !ids.is_empty() && !self.merges {
            return false;
        }
        let spans: Vec<_> = ids.iter().map(|id| self.span(*id)).collect();
        let low = spans.iter().map(|span| span.0).min().unwrap_or(first).min(first);
        let high = spans.iter().map(|span| span.1).max().unwrap_or(last).max(last);
        self.put(low, high, end, true);
        true
    }

    fn delete(&mut self, first: usize, last: usize) -> bool {
        let ids = self.ids(first, last);
        let [id] = ids[..] else { return false };
        let whole = self.owner[first..=last].iter().all(|own| *own == Some(id));
        let span = self.span(id);
        if span != (first, last) && !(self.merges && whole) {
            return false;
        }
        self.owner[first..=last].fill(None);
        if span.1 > last && span.0 < first {
            let same = self.elements[id];
            self.put(last + 1, span.1, same.0, same.1);
        }
        true
    }

    fn expire(&mut self, now: u64) {
        let elements = &self.elements;
        let over = |id: usize| elements[id].0.is_some_and(|end| end <= now);
        for own in &mut self.owner {
            if own.is_some_and(over) {
                *own = None;
            }
        }
    }

    fn reload(&mut self) {
        let old = self.clone();
        *self = Self::new(old.merges, &old.file);
        for id in old.ids(0, 63) {
            let ((first, last), (end, added)) = (old.span(id), old.elements[id]);
            if added && self.ids(first, last).is_empty() {
                self.put(first, last, end, true);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(usize, usize, Option<u64>),
    Delete(usize, usize),
    Pass(u64),
    Reload,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range =
        || (0usize..64, 0usize..6).prop_map(|(first, more)| (first, (first + more).min(63)));
    let step = prop_oneof![
        6 => (range(), prop::option::of(1u64..60)).prop_map(|((a, b), end)| Step::Add(a, b, end)),
        3 => range().prop_map(|(a, b)| Step::Delete(a, b)),
        1 => (1u64..30).prop_map(Step::Pass),
        1 => Just(Step::Reload),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn sets_change_as_a_plain_list_does(kind in 0usize..3, steps in steps()) {
        let (single, merges, timed) = [(true, false, true), (false, true, false), (false, false, true)][kind];
        let flags = ["flags timeout;", "flags interval; auto-merge;", "flags interval, timeout;"][kind];
        let file: &[(usize, usize)] = if single { &[(3, 3), (7, 7)] } else { &[(3, 9), (20, 20)] };
        let address = |at: usize| format!("10.0.0.{at}");
        let text = |(first, last): (usize, usize)| if first == last { address(first) } else { format!("{}-{}", address(first), address(last)) };
        let list: Vec<String> = file.iter().map(|range| text(*range)).collect();
        let rules = rules(&format!("type ipv4_addr; {flags} elements = {{ {} }}", list.join(", ")));
        let (firewall, mut model) = (firewall(&rules), Model::new(merges, file));
        let mut now = 1;
        for step in steps {
            match step {
                Step::Add(first, last, end) => {
                    let last = if single { first } else { last };
                    let end = end.filter(|_| timed);
                    let timeout = end.map_or(String::new(), |end| format!(" timeout {end}s"));
                    let command = format!("s {}{timeout}", text((first, last)));
                    let done = change(&firewall, Change::Add, &command, now * SECOND);
                    prop_assert_eq!(done.is_ok(), model.add(first, last, end.map(|end| now + end)), "{} {:?}", command, done);
                }
                Step::Delete(first, last) => {
                    let last = if single { first } else { last };
                    let command = format!("s {}", text((first, last)));
                    let done = change(&firewall, Change::Delete, &command, now * SECOND);
                    prop_assert_eq!(done.is_ok(), model.delete(first, last), "{}", command);
                }
                Step::Pass(seconds) => {
                    now += seconds;
                    firewall.sweep(Nanos(now * SECOND));
                    model.expire(now);
                }
                Step::Reload => {
                    firewall.replace(filter(&rules));
                    model.reload();
                }
            }
            let listed = listed(&firewall, now * SECOND).len();
            prop_assert_eq!(listed, model.ids(0, 63).len());
        }
        for host in 0..64 {
            prop_assert_eq!(passes(&firewall, host, now * SECOND), model.owner[usize::from(host)].is_some(), "{}", host);
        }
        let text = rules.as_str();
        let printed = lang::listing(filter(text).ruleset(), &|_| None, &|table, set| {
            firewall.elements(table, set, Nanos(now * SECOND))
        });
        prop_assert_eq!(parsed(&printed).tables.len(), 1, "{}", printed);
    }

    #[test]
    fn pairs_change_as_a_plain_list_does(
        steps in prop::collection::vec((any::<bool>(), 0u8..20, 50u16..56), 1..80),
    ) {
        let text = "table ip t {
  set s { type ipv4_addr . inet_service; elements = { 10.0.0.1 . 53 } }
  chain c { type filter hook forward priority 0; policy drop; ip saddr . udp dport @s accept; }
}
";
        let firewall = firewall(text);
        let mut model: BTreeSet<(u8, u16)> = [(1, 53)].into();
        for (add, host, port) in steps {
            let what = if add { Change::Add } else { Change::Delete };
            let command = format!("s 10.0.0.{host} . {port}");
            let done = change(&firewall, what, &command, 1);
            let expected = if add { model.insert((host, port)); true } else { model.remove(&(host, port)) };
            prop_assert_eq!(done.is_ok(), expected, "{}", command);
        }
        for host in 0..20 {
            // The test packets are sent to port 53.
            prop_assert_eq!(passes(&firewall, host, 2), model.contains(&(host, 53)));
        }
    }
}
