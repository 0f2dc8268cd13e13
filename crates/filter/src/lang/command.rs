//! `adit filter element`: elements of a set in force, in the syntax of nftables.

use std::io;

use super::cursor::Parser;
use super::diagnostic::similar;
use super::expand::Expander;
use super::lex::{SyntaxError, Tok};
use super::print::family as family_text;
use super::set::NO_TIMEOUTS;
use super::table::family;
use super::{Diagnostics, diagnostics};
use crate::elements::fixed;
use crate::ruleset::{Element, Ruleset, Set, SetId};

/// The maximum number of elements in one command.
pub const MAX_NAMED: usize = 65_536;

/// A set, and some elements of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SetElements {
    /// The index into [`Ruleset::tables`].
    pub table: usize,
    /// The set in that table.
    pub set: SetId,
    /// The elements that the command names.
    pub elements: Vec<Element>,
}

/// Parses `[FAMILY TABLE] SET ELEMENT, ...`, with or without braces around the elements.
///
/// # Errors
///
/// There is no such set, its elements are fixed, or an element is invalid.
pub fn elements(ruleset: &Ruleset, text: &str) -> Result<SetElements, Diagnostics> {
    let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
    let mut expander = Expander::new(&mut none);
    expander.file("element", text, None, 0);
    let Expander { sources, tokens, mut errors, .. } = expander;
    let mut parser = Parser::new(tokens);
    match parser.named(ruleset) {
        Ok(named) if errors.is_empty() => return Ok(named),
        Ok(_) => {}
        Err(error) => errors.push(error),
    }
    Err(diagnostics(errors, &sources))
}

impl Parser {
    fn named(&mut self, ruleset: &Ruleset) -> Result<SetElements, SyntaxError> {
        let (table, set) = self.set_in_force(ruleset)?;
        let found = ruleset.tables.get(table).and_then(|table| table.sets.get(set.0));
        let set_of = found.ok_or_else(|| SyntaxError::new(self.before(), "no such set"))?;
        let mut elements = Vec::new();
        let braces = self.consume("{");
        loop {
            self.skip_newlines();
            let at = self.span();
            if elements.len() >= MAX_NAMED {
                return Err(SyntaxError::new(
                    at,
                    format!("more than {MAX_NAMED} elements in one command"),
                ));
            }
            let element = self.element(table, set.0, &set_of.key, false)?;
            if !set_of.interval && element.key.iter().any(|part| part.first != part.last) {
                let error = SyntaxError::new(at, "a range in a set of single values");
                return Err(error.hint("`flags interval;` in the set"));
            }
            if element.lifetime.is_some() && !set_of.timeouts {
                return Err(SyntaxError::new(at, NO_TIMEOUTS).hint("`flags timeout;` in the set"));
            }
            elements.push(element);
            self.skip_newlines();
            if !self.consume(",") {
                break;
            }
        }
        if braces {
            self.expect("}", "behind the elements")?;
            self.skip_newlines();
        }
        if !matches!(self.peek(), Tok::End) {
            return Err(self.expected("`,` or the end"));
        }
        Ok(SetElements { table, set, elements })
    }

    /// Parses `[FAMILY TABLE] SET`: a set whose elements may change.
    fn set_in_force(&mut self, ruleset: &Ruleset) -> Result<(usize, SetId), SyntaxError> {
        let (mut name, mut at) = self.name("set")?;
        let mut place = None;
        if let (Some(kind), Tok::Word(_), Tok::Word(_)) =
            (family(&name), self.peek(), self.peek_second())
        {
            let (table, _) = self.name("table")?;
            place = Some((kind, table));
            (name, at) = self.name("set")?;
        }
        let mut found: Vec<(usize, usize, &Set)> = Vec::new();
        let mut known: Vec<&str> = Vec::new();
        for (at, table) in ruleset.tables.iter().enumerate() {
            if place
                .as_ref()
                .is_some_and(|(kind, wanted)| *kind != table.family || **wanted != *table.name)
            {
                continue;
            }
            for (id, set) in table.sets.iter().enumerate() {
                let Some(own) = set.name.as_deref() else { continue };
                known.push(own);
                if *own == *name {
                    found.push((at, id, set));
                }
            }
        }
        match found.as_slice() {
            [(table, id, set)] => {
                fixed(set)
                    .map_or(Ok(()), |why| Err(SyntaxError::new(at, format!("`{name}` {why}"))))?;
                Ok((*table, SetId(*id)))
            }
            [] => {
                let error = SyntaxError::new(at, format!("there is no set `{name}`"));
                Err(match similar(&name, known.iter().copied()) {
                    Some(meant) => error.hint(format!("did you mean `{meant}`?")),
                    None => error,
                })
            }
            several => {
                let tables = several.iter().filter_map(|(at, ..)| ruleset.tables.get(*at));
                let forms: Vec<String> = tables
                    .map(|table| format!("{} {} {name}", family_text(table.family), table.name))
                    .collect();
                let error = SyntaxError::new(at, format!("several tables have a set `{name}`"));
                Err(error.hint(forms.join(", or ")))
            }
        }
    }
}
