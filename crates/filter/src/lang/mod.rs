//! Rule files: a subset of nftables' language, to a [`Ruleset`] and back.
//!
//! ```text
//!   text ──lex──► tokens ──expand──► tokens ──parse──► drafts ──finish──► Ruleset
//!                 (places)  (include,         (types,            (names, jumps,
//!                            define)           values)            overlaps)
//! ```
//!
//! A construct outside the subset is refused with its place and a replacement. `docs/filter.md` is the reference. The
//! constants here are the bounds; a text beyond them is refused, never truncated.

mod command;
mod compare;
mod cursor;
mod describe;
mod diagnostic;
mod expand;
mod explain;
mod fields;
mod hooks;
mod lex;
mod names;
mod print;
mod raw_ruleset;
mod resolve;
mod rule;
mod set;
mod settings;
mod summary;
mod table;
mod value;

use std::collections::HashSet;
use std::io;

pub use command::{MAX_NAMED, SetElements, elements};
pub use describe::{DescribeError, MAX_DESCRIPTION, PacketDescription, describe};
pub use diagnostic::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS};
pub use explain::explain;
pub use hooks::ALLOW_UNHOOKED;
pub use print::{
    CounterOwner, element_text, field_text, listing, reject_text, rule_text, set_text,
    statement_text, value_text,
};
pub use settings::MAX_FLOWS;
pub use summary::Summary;

use crate::ruleset::Ruleset;
use cursor::Parser;
use expand::{Expander, Source};
use lex::SyntaxError;

/// The maximum number of bytes in a rule file with all included files.
pub const MAX_FILE: usize = 16 << 20;
/// The maximum depth of includes.
pub const MAX_INCLUDE_DEPTH: usize = 16;
/// The maximum number of files that are read for one rule set.
pub const MAX_INCLUDES: usize = 256;
/// The maximum number of tokens after the expansion of definitions.
pub const MAX_TOKENS: usize = 8_000_000;
/// The maximum number of tokens that definitions take from other definitions.
pub const MAX_DEFINED: usize = 1 << 20;
/// The maximum number of tables in a rule set.
pub const MAX_TABLES: usize = 256;
/// The maximum number of chains in a table.
pub const MAX_CHAINS: usize = 16_384;
/// The maximum number of rules in a rule set.
pub const MAX_RULES: usize = 262_144;
/// The maximum number of elements in all sets of a rule set.
pub const MAX_ELEMENTS: usize = 1_048_576;
/// The maximum number of statements in a rule.
pub const MAX_STATEMENTS: usize = 64;
/// The maximum number of fields in a concatenation.
pub const MAX_KEY: usize = 5;
/// The maximum depth of braces in a list of elements, to which definitions may expand.
pub const MAX_NESTING: usize = 16;
/// The maximum depth of jumps from a base chain.
pub const MAX_JUMPS: usize = 15;
/// The maximum number of bytes in a name.
pub const MAX_NAME: usize = 128;
/// The maximum number of bytes in a comment.
pub const MAX_COMMENT: usize = 128;
/// The maximum number of bytes in a log prefix.
pub const MAX_PREFIX: usize = 127;

/// Parses the rule file `text`, called `name` in messages; `files` reads included files, by a path relative to the
/// including file.
///
/// # Errors
///
/// All mistakes, up to [`MAX_DIAGNOSTICS`], with their replacements.
pub fn parse(
    name: &str,
    text: &str,
    files: &mut dyn FnMut(&str) -> io::Result<String>,
) -> Result<Ruleset, Diagnostics> {
    parse_as(name, text, files, false)
}

/// Parses like [`parse`], for rules that will be applied: there must be a hook, and every chain must be reachable from one, unless the file
/// defines [`ALLOW_UNHOOKED`].
///
/// # Errors
///
/// The same as [`parse`]; chains without a hook are reported only if there is no other mistake.
pub fn parse_hooked(
    name: &str,
    text: &str,
    files: &mut dyn FnMut(&str) -> io::Result<String>,
) -> Result<Ruleset, Diagnostics> {
    parse_as(name, text, files, true)
}

fn parse_as(
    name: &str,
    text: &str,
    files: &mut dyn FnMut(&str) -> io::Result<String>,
    hooked: bool,
) -> Result<Ruleset, Diagnostics> {
    let mut expander = Expander::new(files);
    expander.file(name, text, None, 0);
    let definitions = expander.definitions(settings::PREFIX);
    let Expander { sources, tokens, mut errors, .. } = expander;
    let mut parser = Parser::new(tokens);
    parser.file();
    let mut later = parser.errors;
    let unreached: Vec<SyntaxError> = parser.drafts.iter().flat_map(hooks::unreached).collect();
    let mut ruleset = resolve::finish(parser.drafts, &mut later);
    let settings = settings::read(definitions.into_iter(), &mut later);
    (ruleset.allow_unhooked, ruleset.limits) = (settings.allow_unhooked, settings.limits);
    // Errors that follow from an invalid word are not reported.
    let unread: HashSet<(u16, u32)> = errors.iter().map(|e| (e.at.file, e.at.line)).collect();
    later.retain(|e| !unread.contains(&(e.at.file, e.at.line)));
    errors.append(&mut later);
    if hooked && errors.is_empty() && !ruleset.allow_unhooked {
        errors = hooks::without_a_base(&ruleset, unreached);
    }
    if errors.is_empty() { Ok(ruleset) } else { Err(diagnostics(errors, &sources)) }
}

fn diagnostics(mut errors: Vec<SyntaxError>, sources: &[Source]) -> Diagnostics {
    errors.sort_by_key(|e| (e.at.file, e.at.line, e.at.column));
    // Each position is reported once: errors that follow from an error are not reported.
    errors.dedup_by_key(|e| (e.at.file, e.at.line, e.at.column));
    let more = errors.len().saturating_sub(MAX_DIAGNOSTICS);
    let list = errors.into_iter().take(MAX_DIAGNOSTICS).map(|e| diagnostic(e, sources)).collect();
    Diagnostics { list, more }
}

fn diagnostic(error: SyntaxError, sources: &[Source]) -> Diagnostic {
    let source = sources.get(usize::from(error.at.file));
    let index = error.at.line.saturating_sub(1) as usize;
    let line = source.and_then(|s| s.text.lines().nth(index)).unwrap_or("");
    Diagnostic {
        file: source.map_or_else(String::new, |s| s.name.clone()),
        line: error.at.line,
        column: error.at.column,
        length: error.at.length.max(1),
        message: error.message,
        hint: error.hint,
        source: line.strip_prefix('\u{feff}').unwrap_or(line).to_owned(),
    }
}

#[cfg(test)]
mod tests;
