//! `adit filter`: what rule files mean.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_daemon::fault::Fault;
use adit_filter::lang::{self, Diagnostics, MAX_FILE};
use adit_filter::ruleset::{Members, Policy, Ruleset};
use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;

use crate::{Done, note, print, print_json};

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum Filter {
    /// Read a rule file and say what is wrong with it
    #[command(after_help = "Examples:
  adit filter check fw.nft
  adit filter check --json fw.nft | jq '.errors[].line'

Exit codes: 0 good, 2 errors in the file. docs/filter.md is the reference of the language.")]
    Check(Check),
}

#[derive(Debug, Args)]
pub struct Check {
    /// The rule file; - for standard input
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Print the rule set as it was understood
    #[arg(long, conflicts_with = "json")]
    print: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(verb: Filter) -> Done {
    match verb {
        Filter::Check(options) => check(&options),
    }
}

/// What `check --json` prints.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a str,
    ok: bool,
    tables: usize,
    chains: usize,
    rules: usize,
    sets: usize,
    elements: usize,
    errors: Vec<Error<'a>>,
}

#[derive(Serialize)]
struct Error<'a> {
    file: &'a str,
    line: u32,
    column: u32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<&'a str>,
}

fn check(options: &Check) -> Done {
    let name = options.file.display().to_string();
    let read = parse(&options.file)?;
    if options.json {
        let empty = Ruleset::default();
        let counts = Counts::of(read.as_ref().unwrap_or(&empty));
        let errors = match &read {
            Ok(_) => Vec::new(),
            Err(diagnostics) => errors(diagnostics),
        };
        let Counts { tables, chains, rules, sets, elements } = counts;
        let ok = read.is_ok();
        print_json(&Report { file: &name, ok, tables, chains, rules, sets, elements, errors })?;
        return Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(2) });
    }
    match read {
        Ok(ruleset) if options.print => print(&ruleset.to_string()),
        Ok(ruleset) => print(&format!("{name}: {}\n", summary(&ruleset))),
        Err(diagnostics) => {
            note(&format!("{diagnostics}\n"));
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn errors(diagnostics: &Diagnostics) -> Vec<Error<'_>> {
    let list = diagnostics.list.iter();
    list.map(|d| Error {
        file: &d.file,
        line: d.line,
        column: d.column,
        message: &d.message,
        instead: d.hint.as_deref(),
    })
    .collect()
}

/// Reads a rule file and what it includes.
///
/// # Errors
///
/// A file that cannot be read; inside, what is wrong with its text.
pub fn parse(file: &Path) -> Result<Result<Ruleset, Diagnostics>, Fault> {
    let name = file.display().to_string();
    let text = read(file).map_err(|error| Fault::operator(format!("{name}: {error}")))?;
    Ok(lang::parse(&name, &text, &mut |path| read(Path::new(path))))
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than is allowed, so that the language can say so.
    let most = MAX_FILE as u64 + 1;
    if path == Path::new("-") {
        io::stdin().lock().take(most).read_to_string(&mut text)?;
    } else {
        File::open(path)?.take(most).read_to_string(&mut text)?;
    }
    Ok(text)
}

struct Counts {
    tables: usize,
    chains: usize,
    rules: usize,
    sets: usize,
    elements: usize,
}

impl Counts {
    fn of(ruleset: &Ruleset) -> Self {
        let tables = &ruleset.tables;
        let chains = || tables.iter().flat_map(|t| &t.chains);
        let sets = || tables.iter().flat_map(|t| &t.sets);
        let elements = sets().map(|s| match &s.members {
            Members::Fixed(list) => list.len(),
            Members::Client(_) | Members::Group(_) => 0,
        });
        Self {
            tables: tables.len(),
            chains: chains().count(),
            rules: chains().map(|c| c.rules.len()).sum(),
            sets: sets().count(),
            elements: elements.sum(),
        }
    }
}

fn summary(ruleset: &Ruleset) -> String {
    let Counts { tables, chains, rules, sets, elements } = Counts::of(ruleset);
    let many = |count: usize, what: &str| {
        let s = if count == 1 { "" } else { "s" };
        format!("{count} {what}{s}")
    };
    let mut text =
        format!("{}, {}, {}", many(tables, "table"), many(chains, "chain"), many(rules, "rule"));
    if sets > 0 {
        text += &format!(", {} with {}", many(sets, "set"), many(elements, "element"));
    }
    let bases = || ruleset.tables.iter().flat_map(|t| &t.chains).filter_map(|c| c.base);
    text += match (bases().count(), bases().any(|b| b.policy == Policy::Drop)) {
        (0, _) => "; no base chain, so everything passes",
        (_, true) => "; what no rule accepts is dropped",
        (_, false) => "; what no rule drops passes",
    };
    text
}
