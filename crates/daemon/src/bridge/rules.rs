//! The rules of a bridge, and the file that they come from.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_bridge::Policy;
use adit_filter::ruleset::Ruleset;
use adit_filter::{Filter, Firewall, Nanos, firewall, lang};
use adit_linux::clock;

use crate::fault::Fault;
use crate::plane;

/// Rules in force.
pub(super) struct Rules {
    file: PathBuf,
    firewall: Arc<Firewall>,
}

impl Rules {
    /// Reads the rules and makes them ready.
    ///
    /// # Errors
    /// The file cannot be read, or what is in it is no rule set.
    pub fn open(file: PathBuf) -> Result<Self, Fault> {
        // Found again after a change of folder.
        let file = std::path::absolute(&file).unwrap_or(file);
        let filter = read(&file)?;
        let seed = plane::random()?;
        let firewall = Firewall::new(filter, firewall::Limits::default(), seed);
        Ok(Self { file, firewall })
    }

    /// What judges frames.
    pub fn policy(&self) -> Policy {
        Policy::Filter(Arc::clone(&self.firewall))
    }

    /// What judges frames.
    pub fn firewall(&self) -> &Arc<Firewall> {
        &self.firewall
    }

    /// Where they come from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        count(self.firewall.filter().ruleset())
    }

    /// For the log.
    pub fn summary(&self) -> String {
        format!("what {} rules of {} accept passes", self.count(), self.file.display())
    }

    /// Reads the file again, and puts it in force as a whole.
    ///
    /// # Errors
    /// As [`Self::open`]; then nothing changes.
    pub fn reload(&mut self) -> Result<usize, Fault> {
        let filter = read(&self.file)?;
        let count = count(filter.ruleset());
        self.firewall.replace(filter);
        Ok(count)
    }

    /// Forgets what is over; true if there is more to do.
    pub fn sweep(&self) -> bool {
        self.firewall.sweep(Nanos(clock::boottime()))
    }
}

fn count(ruleset: &Ruleset) -> usize {
    ruleset.tables.iter().flat_map(|table| &table.chains).map(|chain| chain.rules.len()).sum()
}

fn read(path: &Path) -> Result<Filter, Fault> {
    let name = path.to_string_lossy();
    let text = text_of(path).map_err(|error| {
        Fault::operator(format!(
            "cannot read the rules in {name}: {error}; name a file with --rules"
        ))
    })?;
    let mut files = |path: &str| text_of(Path::new(path));
    let ruleset = lang::parse(&name, &text, &mut files);
    let ruleset = ruleset.map_err(|problems| Fault::operator(problems.to_string()))?;
    Filter::compile(ruleset).map_err(|error| Fault::operator(format!("{name}: {error}")))
}

fn text_of(path: &Path) -> io::Result<String> {
    let file = std::fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        // A pipe would be waited for without end.
        return Err(io::Error::other("it is no plain file"));
    }
    let mut text = String::new();
    // One byte more than is allowed, so that the parser sees it.
    file.take((lang::MAX_FILE as u64).saturating_add(1)).read_to_string(&mut text)?;
    Ok(text)
}
