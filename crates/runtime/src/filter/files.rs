//! Rule files, read once with all that they include.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use adit_filter::ruleset::Ruleset;
use adit_filter::{Filter, lang};

use crate::control::RuleFiles;
use crate::fault::Fault;
use crate::helper::files::open;

/// Files that one rule file may be made of.
const MAX_FILES: usize = 256;

/// Reads a rule file and what it includes, and parses it.
///
/// # Errors
/// A file cannot be read, or every mistake in them, each with file, line and column.
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
/// As [`read`].
pub fn parse(files: &RuleFiles) -> Result<Ruleset, Fault> {
    let missing = || Fault::ours(format!("the text of {} was not sent", files.name));
    let text = files.texts.get(&files.name).ok_or_else(missing)?;
    let parsed = lang::parse_hooked(&files.name, text, &mut |included| {
        files.texts.get(included).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    });
    parsed.map_err(|problems| Fault::operator(problems.to_string()))
}

/// Makes rules ready to evaluate.
///
/// # Errors
/// They contradict themselves.
pub fn compile(name: &str, ruleset: Ruleset) -> Result<Filter, Fault> {
    let filter = Filter::compile(ruleset);
    // Reading and compiling many rules takes many times what is kept of them.
    adit_linux::memory::trim();
    filter.map_err(|error| Fault::operator(format!("{name}: {error}")))
}

fn text_of(path: &Path) -> io::Result<String> {
    let most = lang::MAX_FILE as u64;
    let file = open(path)?;
    if !file.metadata()?.is_file() {
        // A pipe would be waited for without end.
        return Err(io::Error::other("it is no plain file"));
    }
    let mut text = String::new();
    // One byte more than is allowed, so that the parser sees it.
    file.take(most.saturating_add(1)).read_to_string(&mut text)?;
    Ok(text)
}
