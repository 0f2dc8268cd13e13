//! Sets, verdict maps and their elements.

use super::cursor::Parser;
use super::lex::{Oops, Parsed, Span, Tok};
use super::{MAX_ELEMENTS, MAX_KEY, MAX_NESTING, names};
use crate::ruleset::{Element, Kind, Members, Set, SetId};

const IN_SET: &[&str] = &["type", "typeof", "flags", "auto-merge", "size", "elements", "comment"];

/// What is not supported in a set, and what comes nearest.
const REFUSED: &[(&str, &str)] = &[
    ("timeout", "a set has the elements of its file; change it with `adit filter reload FILE`"),
    ("gc-interval", "leave it out: elements do not expire"),
    ("policy", "leave it out: how a set is looked up is adit's own choice"),
    ("counter", "`counter` in the rule that looks the set up"),
    ("quota", "`limit rate` in the rule that looks the set up"),
    ("limit", "`limit rate` in the rule that looks the set up"),
];

impl Parser {
    /// A named set or map, behind that word.
    pub fn set(&mut self, table: usize, map: bool) -> Parsed<()> {
        let what = if map { "map" } else { "set" };
        let (name, at) = self.name(what)?;
        let draft = self.drafts.get_mut(table).ok_or_else(|| Oops::new(at, "no such table"))?;
        let id = draft.set(&name, at);
        if !draft.define(|d| d.sets.get_mut(id).map(|s| &mut s.note), at) {
            return Err(Oops::new(at, format!("`{name}` is defined already")));
        }
        if let Some(set) = draft.table.sets.get_mut(id) {
            set.map = map;
        }
        self.expect("{", &format!("after the {what}'s name"))?;
        loop {
            self.skip_separators();
            if self.eat("}") {
                break;
            }
            if matches!(self.peek(), Tok::End) {
                return Err(Oops::new(at, format!("{what} `{name}` is not closed")).hint("}"));
            }
            self.in_set(table, id)?;
        }
        let typed = self.set_mut(table, id, at)?;
        if typed.key.is_empty() {
            let example = if map { "type ipv4_addr : verdict;" } else { "type ipv4_addr;" };
            return Err(Oops::new(at, format!("{what} `{name}` has no type")).hint(example));
        }
        self.statement_end()
    }

    fn set_mut(&mut self, table: usize, id: usize, at: Span) -> Parsed<&mut Set> {
        let draft = self.drafts.get_mut(table);
        draft.and_then(|d| d.table.sets.get_mut(id)).ok_or_else(|| Oops::new(at, "no such set"))
    }

    fn in_set(&mut self, table: usize, id: usize) -> Parsed<()> {
        let (word, at) = self.word("`type`, `flags` or `elements`")?;
        match &*word {
            "type" | "typeof" => {
                let map = self.set_mut(table, id, at)?.map;
                let key = if &*word == "type" { self.types()? } else { self.typeof_fields()? };
                self.map_data(map)?;
                let set = self.set_mut(table, id, at)?;
                if !set.key.is_empty() {
                    return Err(Oops::new(at, "a second type"));
                }
                set.key = key;
            }
            "flags" => {
                let interval = self.set_flags()?;
                self.set_mut(table, id, at)?.interval |= interval;
            }
            "auto-merge" => {
                if let Some(note) = self.drafts.get_mut(table).and_then(|d| d.sets.get_mut(id)) {
                    note.auto_merge = true;
                }
            }
            "size" => {
                let (size, _) = self.number("a number of elements")?;
                if let Some(note) = self.drafts.get_mut(table).and_then(|d| d.sets.get_mut(id)) {
                    note.size = Some(size);
                }
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
                        Oops::new(at, format!("`{word}` is not supported in a set")).hint(*hint)
                    }
                    None => Self::unknown(&word, at, "a part of a set", IN_SET.iter().copied()),
                });
            }
        }
        self.statement_end()
    }

    fn set_flags(&mut self) -> Parsed<bool> {
        let mut interval = false;
        loop {
            let (flag, at) = self.word("`interval` or `constant`")?;
            match &*flag {
                "interval" => interval = true,
                // Every set is.
                "constant" => {}
                "dynamic" | "timeout" => {
                    let message = format!("sets with `flags {flag}` are not supported");
                    let hint = "`limit rate` in the rule, or a set that a reload changes";
                    return Err(Oops::new(at, message).hint(hint));
                }
                _ => {
                    let known = ["interval", "constant"].into_iter();
                    return Err(Self::unknown(&flag, at, "a set's flag", known));
                }
            }
            if !self.eat(",") {
                return Ok(interval);
            }
        }
    }

    /// `: verdict` behind a map's key.
    fn map_data(&mut self, map: bool) -> Parsed<()> {
        if !map {
            if self.is(":") {
                return Err(Oops::new(self.span(), "a set's elements have no values")
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
        Err(Oops::new(at, message).hint("type KEY : verdict"))
    }

    fn types(&mut self) -> Parsed<Vec<Kind>> {
        let mut key = Vec::new();
        loop {
            let (name, at) = self.word("a type, like ipv4_addr")?;
            let Some(kind) = names::type_named(&name) else {
                let oops = match &*name {
                    "mark" => Oops::new(at, "there are no marks"),
                    "iface_index" => {
                        Oops::new(at, "interfaces are known by name only").hint("ifname")
                    }
                    "integer" | "string" => Oops::new(at, format!("type `{name}` has no width"))
                        .hint("typeof FIELD, like `typeof ip ttl`"),
                    _ => Self::unknown(&name, at, "a type", names::types()),
                };
                return Err(oops);
            };
            key.push(kind);
            if !self.eat(".") {
                return within_key(key, at);
            }
        }
    }

    fn typeof_fields(&mut self) -> Parsed<Vec<Kind>> {
        let at = self.span();
        let fields = self.key()?;
        within_key(fields.iter().map(|f| f.kind()).collect(), at)
    }

    /// `add element FAMILY TABLE SET { ... }`, behind the table's name.
    pub fn add_elements(&mut self, table: usize) -> Parsed<()> {
        let (name, at) = self.name("set")?;
        let draft = self.drafts.get_mut(table).ok_or_else(|| Oops::new(at, "no such table"))?;
        let id = draft.set(&name, at);
        if draft.sets.get(id).is_none_or(|s| !s.note.defined) {
            let oops = Oops::new(at, format!("`{name}` is not defined before its elements"));
            return Err(oops.hint(format!("add set inet TABLE {name} {{ type ipv4_addr; }}")));
        }
        self.elements_of(table, id)?;
        self.statement_end()
    }

    fn elements_of(&mut self, table: usize, id: usize) -> Parsed<()> {
        let at = self.span();
        let (key, map, interval) = {
            let set = self.set_mut(table, id, at)?;
            (set.key.clone(), set.map, set.interval)
        };
        if key.is_empty() {
            return Err(Oops::new(at, "elements before the type").hint("`type` first"));
        }
        let elements = self.elements(table, id, &key, map)?;
        if !interval
            && let Some((_, at)) =
                elements.iter().find(|(e, _)| e.key.iter().any(|r| r.first != r.last))
        {
            let oops = Oops::new(*at, "a range in a set of single values");
            return Err(oops.hint("`flags interval;` in the set"));
        }
        let draft = self.drafts.get_mut(table).ok_or_else(|| Oops::new(at, "no such table"))?;
        if let Some(note) = draft.sets.get_mut(id) {
            note.places.extend(elements.iter().map(|(_, at)| *at));
        }
        if let Some(Set { members: Members::Fixed(list), .. }) = draft.table.sets.get_mut(id) {
            list.extend(elements.into_iter().map(|(e, _)| e));
        }
        Ok(())
    }

    /// A set or map that stands in a rule, from its brace on.
    pub fn anonymous(&mut self, table: usize, key: &[Kind], map: bool) -> Parsed<SetId> {
        let at = self.span();
        let set = Set {
            name: None,
            key: key.to_vec(),
            map,
            interval: false,
            members: Members::Fixed(Vec::new()),
            comment: None,
        };
        let draft = self.drafts.get_mut(table).ok_or_else(|| Oops::new(at, "no such table"))?;
        let id = draft.push_set(set, at, true);
        let elements = self.elements(table, id, key, map)?;
        if elements.is_empty() {
            return Err(Oops::new(at, "an empty set in a rule"));
        }
        let draft = self.drafts.get_mut(table).ok_or_else(|| Oops::new(at, "no such table"))?;
        if let Some(note) = draft.sets.get_mut(id) {
            note.auto_merge = !map;
            note.places = elements.iter().map(|(_, at)| *at).collect();
        }
        if let Some(set) = draft.table.sets.get_mut(id) {
            set.interval = elements.iter().any(|(e, _)| e.key.iter().any(|r| r.first != r.last));
            set.members = Members::Fixed(elements.into_iter().map(|(e, _)| e).collect());
        }
        Ok(SetId(id))
    }

    /// `{ ... }`: elements, where a definition may put braces within braces.
    fn elements(
        &mut self,
        table: usize,
        id: usize,
        key: &[Kind],
        map: bool,
    ) -> Parsed<Vec<(Element, Span)>> {
        let mut list = Vec::new();
        self.expect("{", "before the elements")?;
        let mut open = 1_usize;
        loop {
            self.skip_newlines();
            if self.eat("{") {
                open = open.saturating_add(1);
                if open > MAX_NESTING {
                    let message = format!("braces more than {MAX_NESTING} deep");
                    return Err(Oops::new(self.before(), message));
                }
                continue;
            }
            if !self.is("}") {
                let at = self.span();
                self.elements = self.elements.saturating_add(1);
                if self.elements > MAX_ELEMENTS {
                    let message = format!("more than {MAX_ELEMENTS} elements");
                    return Err(Oops::new(at, message));
                }
                let element = self.element(table, id, key, map)?;
                list.push((element, at));
                self.skip_newlines();
            }
            while self.eat("}") {
                open = open.saturating_sub(1);
                if open == 0 {
                    return Ok(list);
                }
                self.skip_newlines();
            }
            if !self.eat(",") {
                return Err(self.expected("`,` or `}`"));
            }
        }
    }

    fn element(&mut self, table: usize, id: usize, key: &[Kind], map: bool) -> Parsed<Element> {
        if self.is("*") {
            let oops = Oops::new(self.span(), "`*` for all other values is not supported");
            return Err(oops.hint("a rule behind the one that looks up"));
        }
        let mut parts = Vec::with_capacity(key.len());
        for (index, &kind) in key.iter().enumerate() {
            if index > 0 {
                self.expect(".", "and the next part of the key")?;
            }
            parts.push(self.range(kind)?);
        }
        if self.is(".") {
            let oops = Oops::new(self.span(), format!("the key has {} parts here", key.len()));
            return Err(oops);
        }
        let mut comment = self.element_options()?;
        let mut verdict = None;
        if map {
            self.expect(":", "and a verdict")?;
            verdict = Some(self.verdict(table, super::draft::From::Set(id))?);
            comment = self.element_options()?.or(comment);
        } else if self.is(":") {
            let oops = Oops::new(self.span(), "a set's elements have no values");
            return Err(oops.hint("`vmap { KEY : VERDICT }`"));
        }
        Ok(Element { key: parts, verdict, comment })
    }

    fn element_options(&mut self) -> Parsed<Option<String>> {
        if self.eat_word("comment") {
            return self.comment();
        }
        if let Tok::Word(word) = self.peek()
            && let Some((_, hint)) = REFUSED
                .iter()
                .chain(&[("expires", "leave it out: elements do not expire")])
                .find(|r| r.0 == &**word)
        {
            let oops = Oops::new(self.span(), format!("`{word}` is not supported in an element"));
            return Err(oops.hint(*hint));
        }
        Ok(None)
    }
}

fn within_key(key: Vec<Kind>, at: Span) -> Parsed<Vec<Kind>> {
    if key.len() > MAX_KEY {
        return Err(Oops::new(at, format!("more than {MAX_KEY} parts in a key")));
    }
    Ok(key)
}
