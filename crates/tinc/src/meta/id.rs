//! The identification: the only line of a connection that is not sealed.

use super::{MAX_LINE, MINOR};
use crate::keys::PublicKey;
use crate::name::NodeName;

/// The major version of the protocol. Nodes with another one cannot talk to each other.
pub const MAJOR: u8 = 17;

/// Who opens a connection, or answers one.
#[derive(Clone, PartialEq, Eq)]
pub enum Identity {
    /// A node.
    Node(NodeName),
    /// A node that accepts an invitation, with a key for this connection alone.
    Joining(PublicKey),
    /// A program that controls the node, with a secret.
    Control(Vec<u8>),
}

// Written by hand so that the secret of the control socket never reaches a log.
impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => write!(f, "Node({name})"),
            Self::Joining(key) => write!(f, "Joining({key})"),
            Self::Control(_) => f.write_str("Control(..)"),
        }
    }
}

/// The reason why a line is not an identification.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The line is too long.
    #[error("the identification is longer than {MAX_LINE} bytes")]
    TooLong,
    /// The line has another form.
    #[error("the connection does not begin with tinc's identification")]
    Malformed,
    /// The name is invalid.
    #[error("the identification has no valid name")]
    Name,
    /// The key of a joining node is invalid.
    #[error("the identification has no valid key")]
    Key,
}

/// An identification: `0 NAME MAJOR.MINOR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id {
    /// Who it is.
    pub identity: Identity,
    /// The major version.
    pub major: u8,
    /// The minor version; 0 for tinc 1.0, which has none.
    pub minor: u16,
}

impl Id {
    /// Returns the identification of a node that runs adit.
    pub fn of(name: NodeName) -> Self {
        Self { identity: Identity::Node(name), major: MAJOR, minor: MINOR.into() }
    }

    /// Reads a line without its newline.
    ///
    /// # Errors
    /// Fails if the line is no identification.
    pub fn parse(line: &[u8]) -> Result<Self, IdError> {
        let line = std::str::from_utf8(line).map_err(|_| IdError::Malformed)?;
        let mut words = line.split_ascii_whitespace();
        let (Some("0"), Some(who), Some(version)) = (words.next(), words.next(), words.next())
        else {
            return Err(IdError::Malformed);
        };
        let identity = if let Some(key) = who.strip_prefix('?') {
            Identity::Joining(key.parse().map_err(|_| IdError::Key)?)
        } else if let Some(cookie) = who.strip_prefix('^') {
            Identity::Control(cookie.as_bytes().to_vec())
        } else {
            Identity::Node(who.parse().map_err(|_| IdError::Name)?)
        };
        let (major, minor) = match version.split_once('.') {
            None => (version, "0"),
            Some(parts) => parts,
        };
        let digits = |text: &str, most| {
            (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(major, 2) || !digits(minor, 3) {
            return Err(IdError::Malformed);
        }
        let major = major.parse().map_err(|_| IdError::Malformed)?;
        let minor = minor.parse().map_err(|_| IdError::Malformed)?;
        Ok(Self { identity, major, minor })
    }

    /// Appends the line with its newline.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"0 ");
        match &self.identity {
            Identity::Node(name) => out.extend_from_slice(name.as_str().as_bytes()),
            Identity::Joining(key) => out.extend_from_slice(format!("?{key}").as_bytes()),
            Identity::Control(cookie) => {
                out.push(b'^');
                out.extend_from_slice(cookie);
            }
        }
        out.extend_from_slice(format!(" {}.{}\n", self.major, self.minor).as_bytes());
    }
}

/// Collects the bytes of a line before the session begins.
#[derive(Debug, Default)]
pub struct Lines(Vec<u8>);

impl Lines {
    /// Takes bytes from the front of `input` up to a newline. Returns the line without it, or `None` when the input is used up. The bytes after
    /// the newline may belong to the session.
    ///
    /// # Errors
    /// Fails if the line is longer than any of tinc's.
    pub fn read(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, IdError> {
        let room = MAX_LINE.saturating_sub(self.0.len());
        let end = input.iter().take(room).position(|byte| *byte == b'\n');
        let (now, later) =
            input.split_at_checked(end.unwrap_or(input.len())).unwrap_or((input, &[]));
        if now.len() > room || (end.is_none() && now.len() == room) {
            return Err(IdError::TooLong);
        }
        self.0.extend_from_slice(now);
        *input = later;
        if end.is_none() {
            return Ok(None);
        }
        *input = later.get(1..).unwrap_or_default();
        Ok(Some(std::mem::take(&mut self.0)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::alice;

    fn parse(line: &str) -> Result<Id, IdError> {
        Id::parse(line.as_bytes())
    }

    /// Specification 5.2.
    #[test]
    fn an_identification_names_a_node_a_joining_node_or_a_control_program() {
        let node = |major, minor| {
            Ok(Id { identity: Identity::Node("alice".parse().unwrap()), major, minor })
        };
        assert_eq!(parse("0 alice 17.7"), node(17, 7));
        assert_eq!(parse("0 alice 17"), node(17, 0));
        assert_eq!(parse("0 alice 17.7 more words"), node(17, 7));
        assert_eq!(parse("0 alice 99.999"), node(99, 999));
        let key = alice().public();
        let joining = parse(&format!("0 ?{key} 17.1")).unwrap();
        assert_eq!(joining.identity, Identity::Joining(key));
        let control = parse("0 ^c00c1e 0").unwrap();
        assert_eq!(control.identity, Identity::Control(b"c00c1e".to_vec()));
        assert!(!format!("{control:?}").contains("c00c1e"));
        for id in [joining, control, Id::of("alice".parse().unwrap())] {
            let mut line = Vec::new();
            id.write(&mut line);
            assert_eq!(Id::parse(line.strip_suffix(b"\n").unwrap()), Ok(id));
        }
    }

    #[test]
    fn what_is_no_identification_is_refused() {
        for bad in [
            "",
            "0",
            "0 alice",
            "1 alice 17.7",
            "0 alice x",
            "0 alice 17.",
            "0 alice .7",
            "0 alice 117.7",
            "0 alice 17.1000",
            "0 alice +7.7",
            "GET / HTTP/1.1",
        ] {
            assert_eq!(parse(bad), Err(IdError::Malformed), "{bad}");
        }
        assert_eq!(parse("0 al-ice 17.7"), Err(IdError::Name));
        assert_eq!(parse("0 ?key 17.1"), Err(IdError::Key));
        assert_eq!(Id::parse(b"0 \xff 17.7"), Err(IdError::Malformed));
    }

    /// Specification 5.3.
    #[test]
    fn the_input_is_split_exactly_at_the_newline() {
        let all = b"0 bob 17.7\n\0\x41\x80record\n";
        for portion in 1..all.len() {
            let mut lines = Lines::default();
            let (mut rest, mut line) = (Vec::new(), None);
            for mut portion in all.chunks(portion) {
                if line.is_none() {
                    line = lines.read(&mut portion).unwrap();
                }
                rest.extend_from_slice(portion);
            }
            assert_eq!(line.as_deref(), Some(&b"0 bob 17.7"[..]));
            assert_eq!(rest, b"\0\x41\x80record\n");
        }
        let mut long = vec![b'x'; MAX_LINE - 1];
        long.push(b'\n');
        let mut lines = Lines::default();
        assert_eq!(lines.read(&mut &long[..]).unwrap().unwrap().len(), MAX_LINE - 1);
        assert_eq!(lines.read(&mut &[b'x'; MAX_LINE][..]), Err(IdError::TooLong));
        assert_eq!(Lines::default().read(&mut &[b'x'; 100_000][..]), Err(IdError::TooLong));
        for _ in 0..MAX_LINE - 1 {
            assert_eq!(lines.read(&mut &b"x"[..]), Ok(None));
        }
        assert_eq!(lines.read(&mut &b"x"[..]), Err(IdError::TooLong));
    }

    proptest! {
        #[test]
        fn no_line_panics(line: Vec<u8>) {
            let _ = Id::parse(&line);
            let _ = Id::parse(&[&b"0 alice "[..], &line].concat());
            let _ = Lines::default().read(&mut &line[..]);
        }
    }
}
