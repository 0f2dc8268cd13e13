//! Names of nodes, and the identifiers that datagrams carry in their place.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use adit_crypto::{Digest, hash};

/// Length of the longest name in a message, bytes. No node with a longer one could have a host file.
pub const MAX_NAME: usize = 255;

/// Length of the longest name in a configuration, bytes.
pub const MAX_CONFIGURED_NAME: usize = 128;

/// The reason why a text is not a node's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty, or has other characters than letters, digits and `_`.
    #[error("a node's name consists of letters, digits and '_'")]
    Characters,
    /// The name is too long.
    #[error("a node's name of {0} characters is too long")]
    TooLong(usize),
    /// The name is to come from an environment variable that is not set.
    #[error("the environment variable {0} is not set: set it, or write the name itself")]
    NoVariable(String),
}

/// The name of a node: letters, digits and `_`. Case matters, and names are in the order of their bytes.
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// Reads the value of `Name` in `tinc.conf`. A value such as `$HOST` names an environment variable, in whose value other
    /// characters than letters and digits become `_`. `HOST` falls back to `hostname`.
    ///
    /// # Errors
    /// Fails if the result is not a name, or is longer than [`MAX_CONFIGURED_NAME`].
    pub fn from_config(
        value: &str,
        environment: impl Fn(&str) -> Option<String>,
        hostname: &str,
    ) -> Result<Self, NameError> {
        let name = match value.strip_prefix('$') {
            None => value.to_owned(),
            Some(variable) => {
                let fallback = || (variable == "HOST").then(|| hostname.to_owned());
                let text = environment(variable).or_else(fallback);
                let text = text.ok_or_else(|| NameError::NoVariable(variable.to_owned()))?;
                text.bytes()
                    .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte) } else { '_' })
                    .collect()
            }
        };
        if name.len() > MAX_CONFIGURED_NAME {
            return Err(NameError::TooLong(name.len()));
        }
        name.parse()
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the node's identifier in datagrams.
    pub fn id(&self) -> NodeId {
        let digest = hash(Digest::Sha512, &[self.0.as_bytes()]);
        NodeId(digest.as_bytes().first_chunk().copied().unwrap_or_default())
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.len() > MAX_NAME {
            return Err(NameError::TooLong(text.len()));
        }
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if text.is_empty() || !text.bytes().all(valid) {
            return Err(NameError::Characters);
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identifier of a node in datagrams: the first bytes of SHA-512 of its name.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; Self::LEN]);

impl NodeId {
    /// Length in bytes.
    pub const LEN: usize = 6;

    /// As a destination: the receiver itself, which the sender reached directly.
    pub const DIRECT: Self = Self([0; Self::LEN]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Specification 2.1.
    #[test]
    fn names_are_letters_digits_and_underscores() {
        let long = "a".repeat(MAX_NAME);
        for good in ["a", "Alice_2", "_", "0", &long] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        for bad in ["", "a-b", "a b", "a.b", "\u{e4}", "a\n", "^cookie", "?key"] {
            assert_eq!(bad.parse::<NodeName>(), Err(NameError::Characters), "{bad:?}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        assert_eq!(long.parse::<NodeName>(), Err(NameError::TooLong(MAX_NAME + 1)));
        let name = |text: &str| text.parse::<NodeName>().unwrap();
        assert!(name("B") < name("a") && name("B") != name("b"), "bytewise");
    }

    #[test]
    fn a_configured_name_may_come_from_the_environment() {
        let environment = |name: &str| (name == "NODE").then(|| "web-1.example".to_owned());
        let read = |value: &str| NodeName::from_config(value, environment, "my-host");
        assert_eq!(read("alice").unwrap().as_str(), "alice");
        assert_eq!(read("$NODE").unwrap().as_str(), "web_1_example");
        assert_eq!(read("$HOST").unwrap().as_str(), "my_host");
        assert_eq!(read("$OTHER"), Err(NameError::NoVariable("OTHER".to_owned())));
        assert_eq!(read("web-1"), Err(NameError::Characters));
        assert_eq!(read(&"a".repeat(129)), Err(NameError::TooLong(129)));
        assert!(read(&"a".repeat(128)).is_ok());
    }

    /// Specification 2.2 and 20.1.
    #[test]
    fn the_identifiers_of_the_vectors() {
        let vectors = [
            ("alice", [0x40, 0x8b, 0x27, 0xd3, 0x09, 0x7e]),
            ("bob", [0x04, 0x16, 0xa2, 0x6b, 0xa5, 0x54]),
            ("carol", [0xec, 0xbe, 0xc1, 0x98, 0x86, 0xc1]),
        ];
        for (name, id) in vectors {
            assert_eq!(name.parse::<NodeName>().unwrap().id(), NodeId(id));
        }
    }
}
