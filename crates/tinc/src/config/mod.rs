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
use variables::{Place, Support, Variable};

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
}

/// A line that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The line.
    pub entry: Entry,
    /// Why it has no effect.
    pub reason: WarningReason,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { file, line, name, .. } = &self.entry;
        write!(f, "{file}:{line}: {name}: ignored: {}", self.reason)
    }
}

/// Why a line has no effect.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
}

/// The lines of a node's files, in their order of precedence: options of the command line, `tinc.conf`, `conf.d`, and the node's own host file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(Vec<Entry>);

impl Entries {
    /// Adds the lines of a file. `file` is its name, for messages.
    ///
    /// A line is `VARIABLE = VALUE` or `VARIABLE VALUE`. Empty lines, lines that begin with `#`, and blocks from `-----BEGIN` to
    /// `-----END` are skipped.
    ///
    /// # Errors
    /// Fails if a variable has no value, a block has no end, or there are too many lines.
    pub fn add_file(&mut self, file: &str, text: &str) -> Result<(), ConfigError> {
        let error = |line, variable: Option<&str>, reason| ConfigError {
            file: file.to_owned(),
            line,
            variable: variable.map(str::to_owned),
            reason,
        };
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
                block = Some(line);
                continue;
            }
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (name, value) = split_line(text);
            if value.is_empty() {
                return Err(error(line, Some(name), Reason::NoValue));
            }
            self.push(Entry {
                file: file.to_owned(),
                line,
                name: name.to_owned(),
                value: value.to_owned(),
            })
            .map_err(|reason| error(line, None, reason))?;
        }
        match block {
            Some(line) => Err(error(line, None, Reason::OpenBlock)),
            None => Ok(()),
        }
    }

    /// Adds an option of the command line. Add all of them before the files.
    ///
    /// # Errors
    /// Fails if there are too many lines.
    pub fn add_option(&mut self, option: &ConfigOption) -> Result<(), ConfigError> {
        let ConfigOption { name, value, .. } = option;
        let file = OPTION_FILE.to_owned();
        self.push(Entry { file, line: 0, name: name.clone(), value: value.clone() }).map_err(
            |reason| ConfigError { file: OPTION_FILE.to_owned(), line: 0, variable: None, reason },
        )
    }

    fn push(&mut self, entry: Entry) -> Result<(), Reason> {
        if self.0.len() >= MAX_ENTRIES {
            return Err(Reason::TooManyLines);
        }
        self.0.push(entry);
        Ok(())
    }

    /// Returns the lines.
    pub fn iter(&self) -> std::slice::Iter<'_, Entry> {
        self.0.iter()
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
        let Some(entry) = self.0.iter().find(|entry| entry.name.eq_ignore_ascii_case("Name"))
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
        mut set: impl FnMut(&'static str, &str) -> Result<(), Reason>,
    ) -> Result<Vec<Warning>, ConfigError> {
        let mut seen = Vec::new();
        let mut warnings = Vec::new();
        for entry in &self.0 {
            let mut warn = |reason| warnings.push(Warning { entry: entry.clone(), reason });
            let Some(variable) = Variable::find(&entry.name) else {
                warn(WarningReason::Unknown);
                continue;
            };
            match variable.support {
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
                    set(variable.name, &entry.value).map_err(|reason| entry.error(reason))?;
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

/// Splits a line into the variable and its value. The `=` between them may be left out.
pub fn split_line(line: &str) -> (&str, &str) {
    let end = line.find([' ', '\t', '=']).unwrap_or(line.len());
    let (name, rest) = line.split_at_checked(end).unwrap_or((line, ""));
    let rest = rest.trim_start();
    (name, rest.strip_prefix('=').unwrap_or(rest).trim())
}

#[cfg(test)]
mod tests;
