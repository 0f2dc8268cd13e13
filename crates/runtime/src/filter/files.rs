//! Reads a rule file with all files that it includes, each once.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use adit_filter::ruleset::Ruleset;
use adit_filter::{Filter, lang};

use crate::control::RuleFiles;
use crate::fault::Fault;
use crate::helper::files::open;

/// The maximum number of files that a rule file may consist of.
const MAX_FILES: usize = 256;

/// Reads a rule file with its includes, and parses it.
///
/// # Errors
/// Fails if a file cannot be read. Otherwise returns all mistakes in the files, each with file, line and column.
pub fn read(path: &Path) -> Result<(RuleFiles, Ruleset), Fault> {
    let mut texts = BTreeMap::new();
    let ruleset = read_into(path, &mut texts)?;
    Ok((RuleFiles { name: path.to_string_lossy().into_owned(), texts }, ruleset))
}

/// Returns the files that a rule file consists of, as far as they can be read, even if they contain errors.
pub fn sources(path: &Path) -> Vec<PathBuf> {
    let mut texts = BTreeMap::new();
    let _ = read_into(path, &mut texts);
    texts.into_keys().map(PathBuf::from).collect()
}

fn read_into(path: &Path, texts: &mut BTreeMap<String, String>) -> Result<Ruleset, Fault> {
    let name = path.to_string_lossy().into_owned();
    let text = text_of(path)
        .map_err(|error| Fault::operator(format!("cannot read the rules in {name}: {error}")))?;
    texts.insert(name.clone(), text.clone());
    let parsed = lang::parse_hooked(&name, &text, &mut |included| {
        if texts.len() >= MAX_FILES {
            return Err(io::Error::other("too many files"));
        }
        let text = text_of(Path::new(included))?;
        texts.insert(included.to_owned(), text.clone());
        Ok(text)
    });
    parsed.map_err(|problems| Fault::operator(problems.to_string()))
}

/// Parses rules that another process has read.
///
/// # Errors
/// See [`read`].
pub fn parse(files: &RuleFiles) -> Result<Ruleset, Fault> {
    let missing = || Fault::ours(format!("the text of {} was not sent", files.name));
    let text = files.texts.get(&files.name).ok_or_else(missing)?;
    let parsed = lang::parse_hooked(&files.name, text, &mut |included| {
        files.texts.get(included).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    });
    parsed.map_err(|problems| Fault::operator(problems.to_string()))
}

/// Compiles rules for evaluation.
///
/// # Errors
/// Fails if the rules contradict themselves.
pub fn compile(name: &str, ruleset: Ruleset) -> Result<Filter, Fault> {
    let filter = Filter::compile(ruleset);
    // Reading and compiling many rules takes many times the memory of the result.
    adit_linux::memory::trim();
    filter.map_err(|error| Fault::operator(format!("{name}: {error}")))
}

fn text_of(path: &Path) -> io::Result<String> {
    let most = lang::MAX_FILE as u64;
    let file = open(path)?;
    if !file.metadata()?.is_file() {
        // Reading from a pipe might never end.
        return Err(io::Error::other("it is no plain file"));
    }
    let mut text = String::new();
    // Read one byte more than is allowed, so that the parser notices it.
    file.take(most.saturating_add(1)).read_to_string(&mut text)?;
    Ok(text)
}
