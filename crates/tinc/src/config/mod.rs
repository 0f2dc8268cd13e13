//! The configuration files of tinc: `tinc.conf` and its `conf.d`, and the host files in `hosts`.
//!
//! [`Entries`] reads the lines of files, in their order of precedence; [`ServerConfig`] and [`HostConfig`] give them types.

use std::fmt;

use crate::keys::KeyError;
use crate::name::{NameError, NodeName};
use crate::subnet::SubnetError;

mod host;
pub mod scripts;
mod server;
mod values;
pub mod variables;

pub use host::{Address, DEFAULT_PORT, HostConfig};
pub use server::{
    AddressFamily, BindAddress, Broadcast, DeviceType, Forwarding, Mode, Proxy, ServerConfig,
};
use variables::{Place, Support, Value, Variable};

/// The number of lines with variables that are read of one node's files.
pub const MAX_ENTRIES: usize = 16_384;

/// A line of a file, or an option of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file, for messages.
    pub file: String,
    /// The number of the line, or 0 for an option of the command line.
    pub line: usize,
    /// The variable's name, as written.
    pub name: String,
    /// The value.
    pub value: String,
}

impl Entry {
    fn error(&self, reason: Reason) -> ConfigError {
        let Self { file, line, name, .. } = self;
        ConfigError { file: file.clone(), line: *line, variable: Some(name.clone()), reason }
    }
}

/// A mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// The number of the line; 0 if the mistake is not in one.
    pub line: usize,
    /// The variable, if the mistake concerns one.
    pub variable: Option<String>,
    /// The mistake.
    pub reason: Reason,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if let Some(variable) = &self.variable {
            write!(f, ": {variable}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// The mistake in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The line has no value.
    #[error("the variable has no value")]
    NoValue,
    /// There are more lines than [`MAX_ENTRIES`].
    #[error("more than {MAX_ENTRIES} lines")]
    TooManyLines,
    /// A block has no last line.
    #[error("the block has no '-----END' line")]
    OpenBlock,
    /// The required variable is missing.
    #[error("the variable is missing: add a line '{0} = VALUE'")]
    Missing(&'static str),
    /// The value is none of those allowed.
    #[error("'{value}' is not supported: write {allowed}")]
    Value {
        /// The value found.
        value: String,
        /// The values allowed, as a phrase.
        allowed: &'static str,
    },
    /// The value is not a node's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The value is not a subnet.
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    /// The value is not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// adit refuses the variable.
    #[error("not supported: {0}")]
    Refused(&'static str),
    /// An option of the command line is not of the form `VARIABLE=VALUE`.
    #[error("write VARIABLE=VALUE or HOST.VARIABLE=VALUE")]
    Override,
    /// The line has bytes of another encoding.
    #[error("the line is not UTF-8")]
    Encoding,
}

/// A line that has no effect, or another one than it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The line.
    pub entry: Entry,
    /// What is wrong with it.
    pub reason: WarningReason,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { file, line, name, .. } = &self.entry;
        f.write_str(file)?;
        if *line > 0 {
            write!(f, ":{line}")?;
        }
        let ignored = match &self.reason {
            WarningReason::Limited { .. } => "",
            _ => "ignored: ",
        };
        write!(f, ": {name}: {ignored}{}", self.reason)
    }
}

/// What is wrong with a line that does not end the start of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WarningReason {
    /// No variable has this name.
    #[error("there is no such variable")]
    Unknown,
    /// The variable is already set by a line that takes precedence.
    #[error("the variable is already set")]
    Repeated,
    /// The variable has no effect in a host file.
    #[error("the variable belongs into tinc.conf")]
    WrongFile,
    /// The variable has no effect in adit.
    #[error("{0}")]
    NotSupported(&'static str),
    /// The value has no effect in adit.
    #[error("{0}")]
    ValueNotSupported(&'static str),
    /// The value is invalid, and the default is used, as in tinc.
    #[error(transparent)]
    Invalid(Reason),
    /// The number is out of range.
    #[error("'{value}' is out of range: {used} is used")]
    Limited {
        /// The value found.
        value: String,
        /// The number used instead.
        used: i64,
    },
}

/// Which mistakes in lines end the reading of a configuration. The others are warnings.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Mistakes {
    /// All.
    Refuse,
    /// Those with which tinc does not start.
    LikeTinc,
    /// None.
    Skip,
}

/// The lines of a node's files, in their order of precedence: options of the command line, `tinc.conf`, `conf.d`, and the node's own host file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    lines: Vec<Entry>,
    /// Lines that are no variables.
    skipped: Vec<Warning>,
}

impl Entries {
    /// Adds the lines of `tinc.conf` or of a file in `conf.d`. `file` is its name, for messages.
    ///
    /// A line is `VARIABLE = VALUE` or `VARIABLE VALUE`. Empty lines, lines that begin with `#`, and blocks from `-----BEGIN` to
    /// `-----END` are skipped. A block without an end reaches to the end of the file, with a warning.
    ///
    /// # Errors
    /// Fails if a variable has no value or is not UTF-8, or if there are too many lines.
    pub fn add_file(&mut self, file: &str, text: &str) -> Result<(), ConfigError> {
        self.add(file, text, Mistakes::LikeTinc)
    }

    /// Adds the lines of a host file. Like tinc, it skips the lines at which [`Entries::add_file`] fails, with a warning.
    pub fn add_host_file(&mut self, file: &str, text: &str) {
        let added = self.add(file, text, Mistakes::Skip);
        debug_assert!(added.is_ok(), "a mistake was not skipped: {added:?}");
    }

    fn add(&mut self, file: &str, text: &str, mistakes: Mistakes) -> Result<(), ConfigError> {
        let mut block = None;
        for (text, line) in text.lines().zip(1..) {
            let text = text.trim();
            if block.is_some() {
                if text.starts_with("-----END") {
                    block = None;
                }
                continue;
            }
            if text.starts_with("-----BEGIN") {
                block = Some((line, text.to_owned()));
                continue;
            }
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (name, value) = split_line(text);
            let entry = Entry {
                file: file.to_owned(),
                line,
                name: name.to_owned(),
                value: value.to_owned(),
            };
            let reason = if text.contains(char::REPLACEMENT_CHARACTER) {
                Reason::Encoding
            } else if value.is_empty() {
                Reason::NoValue
            } else if self.lines.len() >= MAX_ENTRIES {
                Reason::TooManyLines
            } else {
                self.lines.push(entry);
                continue;
            };
            if mistakes != Mistakes::Skip {
                return Err(entry.error(reason));
            }
            let ends = reason == Reason::TooManyLines;
            self.skipped.push(Warning { entry, reason: WarningReason::Invalid(reason) });
            // Warnings are bounded like lines.
            if ends || self.skipped.len() >= MAX_ENTRIES {
                return Ok(());
            }
        }
        if let Some((line, name)) = block {
            let entry = Entry { file: file.to_owned(), line, name, value: String::new() };
            if mistakes == Mistakes::Refuse {
                return Err(entry.error(Reason::OpenBlock));
            }
            let reason = WarningReason::Invalid(Reason::OpenBlock);
            self.skipped.push(Warning { entry, reason });
        }
        Ok(())
    }

    /// Adds an option of the command line. Add all of them before the files.
    ///
    /// # Errors
    /// Fails if there are too many lines.
    pub fn add_option(&mut self, option: &ConfigOption) -> Result<(), ConfigError> {
        let ConfigOption { name, value, .. } = option;
        let file = OPTION_FILE.to_owned();
        let entry = Entry { file, line: 0, name: name.clone(), value: value.clone() };
        if self.lines.len() >= MAX_ENTRIES {
            return Err(entry.error(Reason::TooManyLines));
        }
        self.lines.push(entry);
        Ok(())
    }

    /// Replaces the values of lines, each by any number of values, up to [`MAX_ENTRIES`] lines in all. A line for which `values` returns
    /// `None` remains.
    pub fn replace(&mut self, mut values: impl FnMut(&Entry) -> Option<Vec<String>>) {
        let replaced = self.lines.iter().flat_map(|entry| match values(entry) {
            None => vec![entry.clone()],
            Some(values) => {
                values.into_iter().map(|value| Entry { value, ..entry.clone() }).collect()
            }
        });
        self.lines = replaced.take(MAX_ENTRIES).collect();
    }

    /// Returns the lines with variables.
    pub fn iter(&self) -> std::slice::Iter<'_, Entry> {
        self.lines.iter()
    }

    /// Returns the node's name.
    ///
    /// # Errors
    /// Fails if the name is missing or invalid.
    pub fn name(
        &self,
        environment: impl Fn(&str) -> Option<String>,
        hostname: &str,
    ) -> Result<NodeName, ConfigError> {
        let Some(entry) = self.lines.iter().find(|entry| entry.name.eq_ignore_ascii_case("Name"))
        else {
            let (file, variable) = ("tinc.conf".to_owned(), Some("Name".to_owned()));
            return Err(ConfigError { file, line: 0, variable, reason: Reason::Missing("Name") });
        };
        let name = NodeName::from_config(&entry.value, environment, hostname);
        name.map_err(|reason| entry.error(reason.into()))
    }

    /// Calls `set` for each line whose variable has an effect. Returns warnings for the others.
    fn apply(
        &self,
        in_host_file: bool,
        mistakes: Mistakes,
        mut set: impl FnMut(&'static str, &str) -> Result<(), Reason>,
    ) -> Result<Vec<Warning>, ConfigError> {
        let mut seen = Vec::new();
        let mut warnings = self.skipped.clone();
        for entry in &self.lines {
            let mut warn = |reason| warnings.push(Warning { entry: entry.clone(), reason });
            let Some(variable) = Variable::find(&entry.name) else {
                warn(WarningReason::Unknown);
                continue;
            };
            match variable.support {
                Support::Refused(why) if mistakes == Mistakes::Skip => {
                    warn(WarningReason::Invalid(Reason::Refused(why)));
                }
                Support::Refused(why) => return Err(entry.error(Reason::Refused(why))),
                Support::Ignored(why) => warn(WarningReason::NotSupported(why)),
                Support::Yes if in_host_file && variable.place == Place::Server => {
                    warn(WarningReason::WrongFile);
                }
                Support::Yes if !variable.many && seen.contains(&variable.name) => {
                    warn(WarningReason::Repeated);
                }
                Support::Yes => {
                    seen.push(variable.name);
                    let form = match mistakes {
                        Mistakes::Refuse => Value::Text,
                        Mistakes::LikeTinc | Mistakes::Skip => variable.value,
                    };
                    match form.read(&entry.value) {
                        Err(reason) => warn(WarningReason::Invalid(reason)),
                        Ok(read) => match set(variable.name, &read.value) {
                            Ok(()) => {
                                if let Some(used) = read.limited {
                                    let value = entry.value.clone();
                                    warn(WarningReason::Limited { value, used });
                                }
                            }
                            Err(reason)
                                if form == Value::Optional || mistakes == Mistakes::Skip =>
                            {
                                warn(WarningReason::Invalid(reason));
                            }
                            Err(reason) => return Err(entry.error(reason)),
                        },
                    }
                }
            }
        }
        Ok(warnings)
    }
}

const OPTION_FILE: &str = "command line";

/// An option `-o` of the command line: `VARIABLE=VALUE`, or `HOST.VARIABLE=VALUE` for another node's host file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigOption {
    /// The node whose host file the option replaces a line of.
    pub host: Option<NodeName>,
    name: String,
    value: String,
}

impl std::str::FromStr for ConfigOption {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let error = |variable, reason| ConfigError {
            file: OPTION_FILE.to_owned(),
            line: 0,
            variable: Some(variable),
            reason,
        };
        let (name, value) = split_line(text.trim());
        if value.is_empty() {
            return Err(error(name.to_owned(), Reason::Override));
        }
        let (host, name) = match name.split_once('.') {
            None => (None, name),
            Some((host, name)) => {
                let host =
                    host.parse().map_err(|bad: NameError| error(host.to_owned(), bad.into()))?;
                (Some(host), name)
            }
        };
        Ok(Self { host, name: name.to_owned(), value: value.to_owned() })
    }
}

/// Returns the text of a configuration file. A byte that is not UTF-8 becomes U+FFFD, at which [`Entries::add_file`] fails outside of comments
/// and blocks.
pub fn decode(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Splits a line into the variable and its value. The `=` between them may be left out.
pub fn split_line(line: &str) -> (&str, &str) {
    let end = line.find([' ', '\t', '=']).unwrap_or(line.len());
    let (name, rest) = line.split_at_checked(end).unwrap_or((line, ""));
    let rest = rest.trim_start();
    (name, rest.strip_prefix('=').unwrap_or(rest).trim())
}

#[cfg(test)]
mod tests;
