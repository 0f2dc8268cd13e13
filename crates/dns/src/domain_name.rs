use std::fmt;

/// A domain name of letters, digits, hyphens and underscores, without the final dot. "." is the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainName(String);

impl DomainName {
    /// Parses a name; a final dot is dropped, and letters become lower case. `None` if the text is not a name.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "." {
            return Some(Self(text.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let is_name = name.len() <= 253 && name.split('.').all(is_label);
        is_name.then(|| Self(name.to_ascii_lowercase()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the root, the parent of every name.
    pub fn is_root(&self) -> bool {
        self.0 == "."
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_labels_of_letters_digits_hyphens_and_underscores() {
        assert!(DomainName::parse("_sip.x").is_some());
        assert_eq!(DomainName::parse("VPN.Example.").unwrap().as_str(), "vpn.example");
        assert!(DomainName::parse(".").unwrap().is_root());
        for wrong in ["", "a b", "-a", "a-", "a..b", &"a".repeat(64), &"a.".repeat(128)] {
            assert_eq!(DomainName::parse(wrong), None, "{wrong}");
        }
    }
}
