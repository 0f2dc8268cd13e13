use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Program;

/// The settings of the runner, from the trusted side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// The programs that may be run.
    pub programs: BTreeSet<Program>,
    /// The programs among them that keep the privileges of the start.
    pub privileged: BTreeSet<Program>,
    /// The variables that a call may set.
    pub variables: Variables,
    /// The working directory, as an absolute path; `None` for the one in which the runner was started.
    pub directory: Option<PathBuf>,
    /// The directory for scratch files.
    pub temporary: PathBuf,
    /// The directory for exported certificates (`tls-export-cert`).
    pub export: Option<PathBuf>,
    /// The user to become when privileges are dropped.
    pub user: Option<String>,
    /// The group to become then; `None` for the user's own.
    pub group: Option<String>,
    /// The root directory from then on.
    pub root: Option<PathBuf>,
}

/// The variables that a program may get. Without this list, a compromised network process could name a library in
/// `LD_PRELOAD`, which root's programs would load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variables {
    /// Variables with any value.
    pub names: BTreeSet<String>,
    /// The beginnings of the names of further variables with any value.
    pub prefixes: BTreeSet<String>,
    /// Variables whose value is configured.
    pub fixed: BTreeMap<String, String>,
}

impl Variables {
    /// Returns whether a program may get this variable.
    pub fn permit(&self, name: &str, value: &str) -> bool {
        let plain =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let known = || {
            self.names.contains(name)
                || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
        };
        plain && (self.fixed.get(name).is_some_and(|fixed| fixed == value) || known())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permitted_variables_pass() {
        let variables = Variables {
            names: ["dev".into()].into(),
            prefixes: ["X509_".into()].into(),
            fixed: [("LD_LIBRARY_PATH".into(), "/opt/lib".into())].into(),
        };
        for (name, value, permitted) in [
            ("dev", "anything", true),
            ("devx", "", false),
            ("X509_0_CN", "", true),
            ("LD_LIBRARY_PATH", "/opt/lib", true),
            ("LD_LIBRARY_PATH", "/tmp", false),
            ("LD_PRELOAD", "/tmp/x.so", false),
            ("", "", false),
            ("X509_0=a\nb", "", false),
        ] {
            assert_eq!(variables.permit(name, value), permitted, "{name}={value}");
        }
    }
}
