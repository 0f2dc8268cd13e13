//! Sets, verdict maps and their elements.

use super::cursor::Parser;
use super::lex::{Span, SyntaxError, Tok};
use super::{MAX_ELEMENTS, MAX_KEY, MAX_NESTING, names};
use crate::ruleset::{Element, Kind, Lifetime, Members, Set, SetId};

const IN_SET: &[&str] =
    &["type", "typeof", "flags", "timeout", "auto-merge", "size", "elements", "comment"];

/// Unsupported parts of a set and their closest replacement.
const REFUSED: &[(&str, &str)] = &[
    ("gc-interval", "leave it out: elements expire within a second"),
    ("policy", "leave it out: how a set is looked up is adit's own choice"),
    ("counter", "`counter` in the rule that looks the set up"),
    ("quota", "`limit rate` in the rule that looks the set up"),
    ("limit", "`limit rate` in the rule that looks the set up"),
];

impl Parser {
    /// Parses a named set or map, after the keyword.
    pub(super) fn set(&mut self, table: usize, map: bool) -> Result<(), SyntaxError> {
        let what = if map { "map" } else { "set" };
        let (name, at) = self.name(what)?;
        let draft =
            self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no such table"))?;
        let id = draft.set(&name, at);
        if !draft.define(|d| d.sets.get_mut(id).map(|s| &mut s.note), at) {
            return Err(SyntaxError::new(at, format!("`{name}` is defined already")));
        }
        if let Some(set) = draft.table.sets.get_mut(id) {
            set.map = map;
        }
        self.expect("{", &format!("after the {what}'s name"))?;
        loop {
            self.skip_separators();
            if self.consume("}") {
                break;
            }
            if matches!(self.peek(), Tok::End) {
                return Err(
                    SyntaxError::new(at, format!("{what} `{name}` is not closed")).hint("}")
                );
            }
            self.in_set(table, id)?;
        }
        let typed = self.set_mut(table, id, at)?;
        if typed.key.is_empty() {
            let example = if map { "type ipv4_addr : verdict;" } else { "type ipv4_addr;" };
            return Err(SyntaxError::new(at, format!("{what} `{name}` has no type")).hint(example));
        }
        together(typed, at)?;
        self.statement_end()
    }

    fn set_mut(&mut self, table: usize, id: usize, at: Span) -> Result<&mut Set, SyntaxError> {
        let draft = self.drafts.get_mut(table);
        draft
            .and_then(|d| d.table.sets.get_mut(id))
            .ok_or_else(|| SyntaxError::new(at, "no such set"))
    }

    fn in_set(&mut self, table: usize, id: usize) -> Result<(), SyntaxError> {
        let (word, at) = self.word("`type`, `flags` or `elements`")?;
        match &*word {
            "type" | "typeof" => {
                let map = self.set_mut(table, id, at)?.map;
                let key = if &*word == "type" { self.types()? } else { self.typeof_fields()? };
                self.map_data(map)?;
                let set = self.set_mut(table, id, at)?;
                if !set.key.is_empty() {
                    return Err(SyntaxError::new(at, "a second type"));
                }
                set.key = key;
            }
            "flags" => {
                let flags = self.set_flags()?;
                let set = self.set_mut(table, id, at)?;
                set.interval |= flags.interval;
                set.constant |= flags.constant;
                set.timeouts |= flags.timeouts;
            }
            "timeout" => {
                let timeout = self.duration()?;
                let set = self.set_mut(table, id, at)?;
                (set.timeout, set.timeouts) = (Some(timeout), true);
            }
            "auto-merge" => self.set_mut(table, id, at)?.auto_merge = true,
            "size" => {
                let (size, _) = self.number("a number of elements")?;
                self.set_mut(table, id, at)?.size = Some(size);
            }
            "comment" => {
                let comment = self.comment()?;
                self.set_mut(table, id, at)?.comment = comment;
            }
            "elements" => {
                self.expect("=", "after `elements`")?;
                self.elements_of(table, id)?;
            }
            _ => {
                return Err(match REFUSED.iter().find(|r| r.0 == &*word) {
                    Some((_, hint)) => {
                        SyntaxError::new(at, format!("`{word}` is not supported in a set"))
                            .hint(*hint)
                    }
                    None => Self::unknown(&word, at, "a part of a set", IN_SET.iter().copied()),
                });
            }
        }
        self.statement_end()
    }

    fn set_flags(&mut self) -> Result<Flags, SyntaxError> {
        let mut flags = Flags::default();
        loop {
            let (flag, at) = self.word("`interval`, `timeout` or `constant`")?;
            match &*flag {
                "interval" => flags.interval = true,
                "constant" => flags.constant = true,
                "timeout" => flags.timeouts = true,
                "dynamic" => {
                    let error = SyntaxError::new(at, "sets with `flags dynamic` are not supported");
                    let hint = "`limit rate` in the rule, or `adit filter element add`";
                    return Err(error.hint(hint));
                }
                _ => {
                    let known = ["interval", "timeout", "constant"].into_iter();
                    return Err(Self::unknown(&flag, at, "a set's flag", known));
                }
            }
            if !self.consume(",") {
                return Ok(flags);
            }
        }
    }

    /// Parses `: verdict` after a map's key.
    fn map_data(&mut self, map: bool) -> Result<(), SyntaxError> {
        if !map {
            if self.is(":") {
                return Err(SyntaxError::new(self.span(), "a set's elements have no values")
                    .hint("map NAME { type KEY : verdict; }"));
            }
            return Ok(());
        }
        self.expect(":", "and `verdict`, in a map")?;
        let (data, at) = self.word("`verdict`")?;
        if &*data == "verdict" {
            return Ok(());
        }
        let message = format!("maps to `{data}` are not supported: only verdicts can be looked up");
        Err(SyntaxError::new(at, message).hint("type KEY : verdict"))
    }

    fn types(&mut self) -> Result<Vec<Kind>, SyntaxError> {
        let mut key = Vec::new();
        loop {
            let (name, at) = self.word("a type, like ipv4_addr")?;
            let Some(kind) = names::type_named(&name) else {
                let error = match &*name {
                    "mark" => SyntaxError::new(at, "there are no marks"),
                    "iface_index" => {
                        SyntaxError::new(at, "interfaces are known by name only").hint("ifname")
                    }
                    "integer" | "string" => {
                        SyntaxError::new(at, format!("type `{name}` has no width"))
                            .hint("typeof FIELD, like `typeof ip ttl`")
                    }
                    _ => Self::unknown(&name, at, "a type", names::types()),
                };
                return Err(error);
            };
            key.push(kind);
            if !self.consume(".") {
                return within_key(key, at);
            }
        }
    }

    fn typeof_fields(&mut self) -> Result<Vec<Kind>, SyntaxError> {
        let at = self.span();
        let fields = self.key()?;
        within_key(fields.iter().map(|f| f.kind()).collect(), at)
    }

    /// Parses `add element FAMILY TABLE SET { ... }`, after the table's name.
    pub(super) fn add_elements(&mut self, table: usize) -> Result<(), SyntaxError> {
        let (name, at) = self.name("set")?;
        let draft =
            self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no such table"))?;
        let id = draft.set(&name, at);
        if draft.sets.get(id).is_none_or(|s| !s.note.defined) {
            let error =
                SyntaxError::new(at, format!("`{name}` is not defined before its elements"));
            return Err(error.hint(format!("add set inet TABLE {name} {{ type ipv4_addr; }}")));
        }
        self.elements_of(table, id)?;
        self.statement_end()
    }

    fn elements_of(&mut self, table: usize, id: usize) -> Result<(), SyntaxError> {
        let at = self.span();
        let (key, map, interval) = {
            let set = self.set_mut(table, id, at)?;
            (set.key.clone(), set.map, set.interval)
        };
        if key.is_empty() {
            return Err(SyntaxError::new(at, "elements before the type").hint("`type` first"));
        }
        let elements = self.elements(table, id, &key, map)?;
        if !interval
            && let Some((_, at)) =
                elements.iter().find(|(e, _)| e.key.iter().any(|r| r.first != r.last))
        {
            let error = SyntaxError::new(*at, "a range in a set of single values");
            return Err(error.hint("`flags interval;` in the set"));
        }
        if let Some((_, at)) = elements.iter().find(|(one, _)| one.lifetime.is_some())
            && !self.set_mut(table, id, *at)?.timeouts
        {
            return Err(SyntaxError::new(*at, NO_TIMEOUTS).hint("`flags timeout;` in the set"));
        }
        let draft =
            self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no such table"))?;
        if let Some(note) = draft.sets.get_mut(id) {
            note.places.extend(elements.iter().map(|(_, at)| *at));
        }
        if let Some(Set { members: Members::Fixed(list), .. }) = draft.table.sets.get_mut(id) {
            list.extend(elements.into_iter().map(|(e, _)| e));
        }
        Ok(())
    }

    /// Parses a set or map within a rule, from its brace on.
    pub(super) fn anonymous(
        &mut self,
        table: usize,
        key: &[Kind],
        map: bool,
    ) -> Result<SetId, SyntaxError> {
        let at = self.span();
        let set = Set { key: key.to_vec(), map, ..Set::default() };
        let draft =
            self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no such table"))?;
        let id = draft.push_set(set, at, true);
        let elements = self.elements(table, id, key, map)?;
        if elements.is_empty() {
            return Err(SyntaxError::new(at, "an empty set in a rule"));
        }
        if let Some((_, at)) = elements.iter().find(|(one, _)| one.lifetime.is_some()) {
            let error = SyntaxError::new(*at, "elements that stand in a rule have no timeout");
            return Err(error.hint("a named set with `flags timeout;`"));
        }
        let draft =
            self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no such table"))?;
        if let Some(note) = draft.sets.get_mut(id) {
            note.places = elements.iter().map(|(_, at)| *at).collect();
        }
        if let Some(set) = draft.table.sets.get_mut(id) {
            set.interval = elements.iter().any(|(e, _)| e.key.iter().any(|r| r.first != r.last));
            set.members = Members::Fixed(elements.into_iter().map(|(e, _)| e).collect());
        }
        Ok(SetId(id))
    }

    /// Parses `{ ... }`: elements, in which a definition may insert nested braces.
    fn elements(
        &mut self,
        table: usize,
        id: usize,
        key: &[Kind],
        map: bool,
    ) -> Result<Vec<(Element, Span)>, SyntaxError> {
        let mut list = Vec::new();
        self.expect("{", "before the elements")?;
        let mut open = 1_usize;
        loop {
            self.skip_newlines();
            if self.consume("{") {
                open = open.saturating_add(1);
                if open > MAX_NESTING {
                    let message = format!("braces more than {MAX_NESTING} deep");
                    return Err(SyntaxError::new(self.before(), message));
                }
                continue;
            }
            if !self.is("}") {
                let at = self.span();
                self.elements = self.elements.saturating_add(1);
                if self.elements > MAX_ELEMENTS {
                    let message = format!("more than {MAX_ELEMENTS} elements");
                    return Err(SyntaxError::new(at, message));
                }
                let element = self.element(table, id, key, map)?;
                list.push((element, at));
                self.skip_newlines();
            }
            while self.consume("}") {
                open = open.saturating_sub(1);
                if open == 0 {
                    return Ok(list);
                }
                self.skip_newlines();
            }
            if !self.consume(",") {
                return Err(self.expected("`,` or `}`"));
            }
        }
    }

    pub(super) fn element(
        &mut self,
        table: usize,
        id: usize,
        key: &[Kind],
        map: bool,
    ) -> Result<Element, SyntaxError> {
        if self.is("*") {
            let error = SyntaxError::new(self.span(), "`*` for all other values is not supported");
            return Err(error.hint("a rule behind the one that looks up"));
        }
        let mut parts = Vec::with_capacity(key.len());
        for (index, &kind) in key.iter().enumerate() {
            if index > 0 {
                self.expect(".", "and the next part of the key")?;
            }
            parts.push(self.range(kind)?);
        }
        if self.is(".") {
            let error =
                SyntaxError::new(self.span(), format!("the key has {} parts here", key.len()));
            return Err(error);
        }
        let (mut lifetime, mut comment) = (None, None);
        self.element_options(&mut lifetime, &mut comment)?;
        let mut verdict = None;
        if map {
            self.expect(":", "and a verdict")?;
            verdict = Some(self.verdict(table, super::raw_ruleset::From::Set(id))?);
            self.element_options(&mut lifetime, &mut comment)?;
        } else if self.is(":") {
            let error = SyntaxError::new(self.span(), "a set's elements have no values");
            return Err(error.hint("`vmap { KEY : VERDICT }`"));
        }
        Ok(Element { key: parts, verdict, lifetime: lifetime.map(Box::new), comment })
    }

    fn element_options(
        &mut self,
        lifetime: &mut Option<Lifetime>,
        comment: &mut Option<String>,
    ) -> Result<(), SyntaxError> {
        loop {
            let at = self.span();
            if self.eat_word("comment") {
                *comment = self.comment()?.or_else(|| comment.take());
                continue;
            }
            let timeout = self.eat_word("timeout");
            if timeout || self.eat_word("expires") {
                let duration = self.duration()?;
                let life = lifetime.get_or_insert(Lifetime { timeout: None, expires: None });
                let part = if timeout { &mut life.timeout } else { &mut life.expires };
                if part.replace(duration).is_some() {
                    return Err(SyntaxError::new(at, "stated twice"));
                }
                continue;
            }
            if let Tok::Word(word) = self.peek()
                && let Some((_, hint)) = REFUSED.iter().find(|r| r.0 == &**word)
            {
                let message = format!("`{word}` is not supported in an element");
                return Err(SyntaxError::new(at, message).hint(*hint));
            }
            return Ok(());
        }
    }

    /// Parses `1d2h3m4s5ms` into nanoseconds.
    fn duration(&mut self) -> Result<u64, SyntaxError> {
        const FORM: &str = "1h30m: d, h, m, s and ms, in this order";
        let (text, at) = match self.peek() {
            Tok::Number(text) => (text.clone(), self.span()),
            _ => return Err(self.expected("a duration, like 1h30m")),
        };
        match nanoseconds(&text) {
            Some(1..) => {
                self.next();
                Ok(nanoseconds(&text).unwrap_or(1))
            }
            Some(0) => Err(SyntaxError::new(at, "a timeout of nothing").hint(FORM)),
            None => Err(SyntaxError::new(at, format!("`{text}` is not a duration")).hint(FORM)),
        }
    }
}

/// The values of `flags`.
#[derive(Default)]
struct Flags {
    interval: bool,
    constant: bool,
    timeouts: bool,
}

pub(super) const NO_TIMEOUTS: &str = "the elements of this set have no timeouts";

/// Checks that the parts of a set do not contradict each other.
fn together(set: &Set, at: Span) -> Result<(), SyntaxError> {
    if !set.timeouts {
        return Ok(());
    }
    let why = if set.map {
        "a map with timeouts is not supported"
    } else if set.constant {
        "a constant set has no timeouts"
    } else if set.auto_merge {
        "`auto-merge` in a set with timeouts: what became one would have two"
    } else if set.interval && set.key.len() > 1 {
        "a set of ranges of several fields has no timeouts"
    } else {
        return Ok(());
    };
    Err(SyntaxError::new(at, why))
}

/// The units of a duration, the longest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
];

/// A hundred years, so that sums with a time do not overflow.
const LONGEST: u64 = 100 * 366 * 86_400_000_000_000;

fn nanoseconds(text: &str) -> Option<u64> {
    let (mut rest, mut all, mut units) = (text, 0_u64, UNITS.as_slice());
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, behind) = rest.split_at_checked(digits)?;
        let letters = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(letters)?;
        let at = units.iter().position(|(name, _)| *name == unit)?;
        let (_, one) = units.get(at)?;
        all = all.checked_add(number.parse::<u64>().ok()?.checked_mul(*one)?)?;
        (units, rest) = (units.get(at.checked_add(1)?..)?, behind);
    }
    (all <= LONGEST).then_some(all)
}

/// Prints a duration as `nft` does; anything below a millisecond counts as one.
pub(super) fn duration_text(nanoseconds: u64) -> String {
    let mut rest = nanoseconds.div_ceil(1_000_000).saturating_mul(1_000_000);
    let mut text = String::new();
    for (name, one) in UNITS {
        let count = rest.checked_div(one).unwrap_or(0);
        if count > 0 {
            text.push_str(&format!("{count}{name}"));
            rest = rest.checked_rem(one).unwrap_or(0);
        }
    }
    text
}

fn within_key(key: Vec<Kind>, at: Span) -> Result<Vec<Kind>, SyntaxError> {
    if key.len() > MAX_KEY {
        return Err(SyntaxError::new(at, format!("more than {MAX_KEY} parts in a key")));
    }
    Ok(key)
}
