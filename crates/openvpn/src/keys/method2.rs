//! The key method 2 message: the first message that each end sends over TLS.
//!
//! ```text
//! 0 4 | method 1 | pre-master 48 (client only) | random 32 | random 32 | options | user | password | peer info
//! ```
//!
//! Each string is preceded by a 16-bit length that counts its final NUL; an absent string has
//! length 0.

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::data::Role;

/// The maximum length of a message in bytes: the size of OpenVPN's buffer for a TLS record of this kind.
pub const MAX_MESSAGE_LEN: usize = 2048;
/// The maximum length of a string in bytes without its NUL.
const MAX_STRING_LEN: usize = 1536;

/// The random bytes of one end, for the PRF.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Randoms {
    /// The random bytes for the master secret.
    pub random1: [u8; 32],
    /// The random bytes for the key expansion.
    pub random2: [u8; 32],
}

// Implemented by hand to keep key material out of the logs.
impl fmt::Debug for Randoms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Randoms(..)")
    }
}

/// The key method 2 message of one end.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyMethod2 {
    /// The pre-master secret. Only the client sends it.
    pub pre_master: Option<Zeroizing<[u8; 48]>>,
    /// The random bytes.
    pub randoms: Randoms,
    /// The options string, `V4,...`.
    pub options: String,
    /// The user name; empty if there is none.
    pub username: String,
    /// The password; empty if there is none.
    pub password: Zeroizing<String>,
    /// Lines `NAME=VALUE`, each terminated by a newline; empty if there are none.
    pub peer_info: String,
}

/// The reason why a key method 2 message was refused or cannot be made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyMethod2Error {
    /// The message ends too early.
    #[error("the key exchange message ends in its {0}")]
    TooShort(&'static str),
    /// The first four bytes are not zero, or the method is not 2.
    #[error("the peer does not speak key method 2")]
    BadMethod,
    /// A field is longer than allowed.
    #[error("the {0} is too long")]
    TooLong(&'static str),
    /// A string lacks its final NUL.
    #[error("the {0} does not end in NUL")]
    NoNul(&'static str),
    /// A string contains a NUL or another control character.
    #[error("the {0} contains a control character")]
    ControlCharacter(&'static str),
    /// A string is not UTF-8.
    #[error("the {0} is not UTF-8")]
    NotUtf8(&'static str),
}

impl KeyMethod2 {
    /// Parses the message of the end that has the role `sender`. Missing strings at the end are
    /// read as empty (old peers send fewer); bytes after the last string are ignored.
    ///
    /// # Errors
    /// Returns an error that is the peer's fault and names the field.
    pub fn parse(message: &[u8], sender: Role) -> Result<Self, KeyMethod2Error> {
        if message.len() > MAX_MESSAGE_LEN {
            return Err(KeyMethod2Error::TooLong("key exchange message"));
        }
        let mut rest = message;
        let head: [u8; 5] = take(&mut rest, "header")?;
        // The upper half of the method byte is reserved for flags, none of which exist.
        let [0, 0, 0, 0, method] = head else { return Err(KeyMethod2Error::BadMethod) };
        if method & 0x0f != 2 {
            return Err(KeyMethod2Error::BadMethod);
        }
        let pre_master = match sender {
            Role::Client => Some(Zeroizing::new(take(&mut rest, "pre-master secret")?)),
            Role::Server => None,
        };
        let randoms = Randoms {
            random1: take(&mut rest, "random bytes")?,
            random2: take(&mut rest, "random bytes")?,
        };
        let options = take_string(&mut rest, Field::OPTIONS)?.to_owned();
        let username = take_login(&mut rest, Field::USERNAME)?.to_string();
        let password = take_login(&mut rest, Field::PASSWORD)?;
        let peer_info = take_string(&mut rest, Field::PEER_INFO)?.to_owned();
        Ok(Self { pre_master, randoms, options, username, password, peer_info })
    }

    /// Erases the pre-master secret, the random bytes and the password.
    pub fn forget_secrets(&mut self) {
        self.pre_master = None;
        self.randoms.zeroize();
        self.password.zeroize();
    }

    /// Encodes the message, to be sent as one TLS record.
    ///
    /// # Errors
    /// Fails if a string is too long or contains characters that the peer would refuse. The fault is the operator's.
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, KeyMethod2Error> {
        // Reserve the full size now, because growing the vector would leave copies of the secrets behind.
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_MESSAGE_LEN));
        out.extend_from_slice(&[0, 0, 0, 0, 2]);
        if let Some(pre_master) = &self.pre_master {
            out.extend_from_slice(pre_master.as_slice());
        }
        out.extend_from_slice(&self.randoms.random1);
        out.extend_from_slice(&self.randoms.random2);
        put_string(&mut out, Field::OPTIONS, &self.options)?;
        put_string(&mut out, Field::USERNAME, &self.username)?;
        put_string(&mut out, Field::PASSWORD, &self.password)?;
        put_string(&mut out, Field::PEER_INFO, &self.peer_info)?;
        if out.len() > MAX_MESSAGE_LEN {
            return Err(KeyMethod2Error::TooLong("key exchange message"));
        }
        Ok(out)
    }
}

// Implemented by hand because a derived implementation would print secrets.
impl fmt::Debug for KeyMethod2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyMethod2")
            .field("options", &self.options)
            .field("username", &self.username)
            .field("peer_info", &self.peer_info)
            .finish_non_exhaustive()
    }
}

/// A string of the message.
#[derive(Copy, Clone)]
struct Field {
    name: &'static str,
    lines: bool,
}

impl Field {
    const OPTIONS: Self = Self { name: "options string", lines: false };
    const USERNAME: Self = Self { name: "user name", lines: false };
    const PASSWORD: Self = Self { name: "password", lines: false };
    const PEER_INFO: Self = Self { name: "peer info", lines: true };

    fn check(self, text: &str) -> Result<(), KeyMethod2Error> {
        if text.len() > MAX_STRING_LEN {
            return Err(KeyMethod2Error::TooLong(self.name));
        }
        if text.chars().any(|c| c.is_control() && !(self.lines && c == '\n')) {
            return Err(KeyMethod2Error::ControlCharacter(self.name));
        }
        Ok(())
    }
}

fn take<const N: usize>(bytes: &mut &[u8], name: &'static str) -> Result<[u8; N], KeyMethod2Error> {
    let (value, rest) = bytes.split_first_chunk().ok_or(KeyMethod2Error::TooShort(name))?;
    *bytes = rest;
    Ok(*value)
}

/// Takes the bytes of a string without its NUL.
fn take_bytes<'a>(bytes: &mut &'a [u8], field: Field) -> Result<&'a [u8], KeyMethod2Error> {
    if bytes.is_empty() {
        return Ok(&[]);
    }
    let len = usize::from(u16::from_be_bytes(take(bytes, field.name)?));
    if len == 0 {
        return Ok(&[]);
    }
    let (string, rest) =
        bytes.split_at_checked(len).ok_or(KeyMethod2Error::TooShort(field.name))?;
    *bytes = rest;
    match string.split_last() {
        Some((0, string)) => Ok(string),
        _ => Err(KeyMethod2Error::NoNul(field.name)),
    }
}

/// Takes a user name or password. Control characters are replaced, as in OpenVPN, because a client that sends them is
/// usually not an attacker but has a token with unexpected contents.
fn take_login(bytes: &mut &[u8], field: Field) -> Result<Zeroizing<String>, KeyMethod2Error> {
    let string = take_bytes(bytes, field)?;
    // As in C, the string ends at its first NUL.
    let string = string.split(|byte| *byte == 0).next().unwrap_or_default();
    let read = Zeroizing::new(String::from_utf8_lossy(string).into_owned());
    let mut text = Zeroizing::new(String::with_capacity(read.len()));
    text.extend(read.chars().map(|c| if c.is_control() { '_' } else { c }));
    field.check(&text)?;
    Ok(text)
}

fn take_string<'a>(bytes: &mut &'a [u8], field: Field) -> Result<&'a str, KeyMethod2Error> {
    let string = take_bytes(bytes, field)?;
    let text = std::str::from_utf8(string).map_err(|_| KeyMethod2Error::NotUtf8(field.name))?;
    field.check(text)?;
    Ok(text)
}

fn put_string(out: &mut Vec<u8>, field: Field, text: &str) -> Result<(), KeyMethod2Error> {
    field.check(text)?;
    if text.is_empty() {
        out.extend_from_slice(&[0, 0]);
        return Ok(());
    }
    let len = text.len().checked_add(1).and_then(|len| u16::try_from(len).ok());
    let len = len.ok_or(KeyMethod2Error::TooLong(field.name))?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    out.push(0);
    Ok(())
}

/// Parses the bytes as either end's message, for the fuzzer, and checks that encoding the result
/// preserves its meaning.
pub(super) fn fuzz(bytes: &[u8]) {
    for sender in [Role::Client, Role::Server] {
        if let Ok(message) = KeyMethod2::parse(bytes, sender) {
            match message.encode() {
                Ok(again) => assert_eq!(KeyMethod2::parse(&again, sender), Ok(message)),
                // Up to four absent strings are encoded as empty ones of two bytes each.
                Err(error) => assert!(bytes.len() > MAX_MESSAGE_LEN.saturating_sub(8), "{error}"),
            }
        }
    }
}
