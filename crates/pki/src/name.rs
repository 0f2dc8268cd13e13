use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::PkiError;

/// The maximum length of a name: X.509's limit for a common name, and the longest that `openvpn` accepts.
const MAX_NAME: usize = 64;

/// A client's name: its certificate's common name, and a part of file names.
///
/// It consists of letters, digits and `. _ @ -`, begins with a letter or digit and does not contain `..`, so it is safe
/// in a path, a log line, a configuration file and a shell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClientName(String);

/// A group's name. It follows the rules of a client's name.
pub type GroupName = ClientName;

impl ClientName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClientName {
    type Err = PkiError;

    fn from_str(name: &str) -> Result<Self, PkiError> {
        let bad = |why| Err(PkiError::BadName(name.chars().take(80).collect(), why));
        let Some(first) = name.chars().next() else { return bad("it is empty") };
        if name.len() > MAX_NAME {
            return bad("it is too long");
        }
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '@' | '-')) {
            return bad("it has a character that is not allowed");
        }
        if !first.is_ascii_alphanumeric() {
            return bad("it begins with a sign");
        }
        if name.contains("..") {
            return bad("it has two dots in a row");
        }
        Ok(Self(name.to_owned()))
    }
}

impl TryFrom<String> for ClientName {
    type Error = PkiError;

    fn try_from(name: String) -> Result<Self, PkiError> {
        name.parse()
    }
}

impl From<ClientName> for String {
    fn from(name: ClientName) -> Self {
        name.0
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_names_pass() {
        for name in ["a", "alice", "alice@example.org", "phone-2", "0_x.y", &"n".repeat(64)] {
            assert_eq!(name.parse::<ClientName>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn each_rule_refuses_alone() {
        for (name, why) in [
            ("", "empty"),
            (&*"n".repeat(65), "too long"),
            ("a b", "not allowed"),
            ("a/b", "not allowed"),
            ("a\0b", "not allowed"),
            ("a\nb", "not allowed"),
            ("ä", "not allowed"),
            (".hidden", "begins"),
            ("-v", "begins"),
            ("a..b", "two dots"),
        ] {
            let error = name.parse::<ClientName>().unwrap_err().to_string();
            assert!(error.contains(why), "{name:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_name_is_one_plain_path_component(name in "\\PC{0,70}|[a-z./\\\\\0-]{0,8}") {
            if let Ok(accepted) = name.parse::<ClientName>() {
                let file = format!("{accepted}.ovpn");
                let path = std::path::Path::new(&file);
                prop_assert_eq!(path.components().count(), 1);
                prop_assert_eq!(path.file_name(), Some(path.as_os_str()));
                prop_assert!(!file.starts_with(['.', '-']) && !file.contains('\0'));
            }
        }
    }
}
