//! The words of a line.

use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{AddressToken, MAX_FIELD, MAX_TEXT, MessageError, Options, Token};
use crate::name::NodeName;
use crate::subnet::Subnet;

/// Length of the longest word of an address, bytes: an IPv6 address with a scope is shorter. Edges are stored with four of them.
const MAX_ADDRESS_WORD: usize = 64;

/// A cursor over the words of a line, after the first one.
pub(super) struct Fields<'a> {
    kind: u32,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(line: &'a [u8]) -> Result<Self, MessageError> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut fields = Self { kind: 0, rest: line };
        if !line.first().is_some_and(u8::is_ascii_digit) {
            return Err(MessageError::NoNumber);
        }
        let kind = fields.next()?.and_then(parse).ok_or(MessageError::NoNumber)?;
        fields.kind = kind;
        Ok(fields)
    }

    /// Returns the number of the message.
    pub(super) fn kind(&self) -> u32 {
        self.kind
    }

    /// Returns whether there are no more words.
    pub(super) fn is_empty(&self) -> bool {
        self.rest.iter().all(u8::is_ascii_whitespace)
    }

    fn next(&mut self) -> Result<Option<&'a [u8]>, MessageError> {
        let rest = self.rest.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let (word, rest) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        self.rest = rest;
        if word.len() > MAX_FIELD {
            return Err(MessageError::TooLong(word.len()));
        }
        Ok(Some(word).filter(|word| !word.is_empty()))
    }

    fn word(&mut self) -> Result<&'a [u8], MessageError> {
        self.next()?.ok_or(MessageError::Short(self.kind))
    }

    fn invalid(&self, name: &'static str) -> MessageError {
        MessageError::Field(self.kind, name)
    }

    /// Skips the random number of a flooded message, which belongs to no field: it makes the line unique.
    pub(super) fn skip_nonce(&mut self) -> Result<(), MessageError> {
        let word = self.word()?;
        let valid = word.iter().all(u8::is_ascii_hexdigit);
        valid.then_some(()).ok_or_else(|| self.invalid("random number"))
    }

    pub(super) fn token(&mut self, name: &'static str) -> Result<Token, MessageError> {
        Token::new(self.word()?).ok_or_else(|| self.invalid(name))
    }

    pub(super) fn name(&mut self) -> Result<NodeName, MessageError> {
        parse(self.word()?).ok_or_else(|| self.invalid("name"))
    }

    pub(super) fn subnet(&mut self) -> Result<Subnet, MessageError> {
        let word = self.word()?;
        let subnet = if word.len() > MAX_TEXT { None } else { parse(word) };
        subnet.ok_or_else(|| self.invalid("subnet"))
    }

    pub(super) fn number(&mut self, name: &'static str) -> Result<i32, MessageError> {
        parse(self.word()?).ok_or_else(|| self.invalid(name))
    }

    pub(super) fn unsigned(&mut self, name: &'static str) -> Result<u32, MessageError> {
        parse(self.word()?).ok_or_else(|| self.invalid(name))
    }

    pub(super) fn options(&mut self) -> Result<Options, MessageError> {
        let text = std::str::from_utf8(self.word()?).ok();
        let bits = text.and_then(|text| u32::from_str_radix(text, 16).ok());
        bits.map(Options).ok_or_else(|| self.invalid("options"))
    }

    pub(super) fn address(&mut self) -> Result<AddressToken, MessageError> {
        let mut word = |name| {
            let token = self.token(name)?;
            let is_short = token.as_bytes().len() <= MAX_ADDRESS_WORD;
            is_short.then_some(token).ok_or_else(|| self.invalid(name))
        };
        Ok(AddressToken { host: word("address")?, port: word("port")? })
    }

    /// Returns whether one of the remaining words is this one.
    pub(super) fn any_is(&self, wanted: &[u8]) -> bool {
        self.rest.split(u8::is_ascii_whitespace).any(|word| word == wanted)
    }

    /// Reads a length, which tinc stores in 16 bits with a sign.
    pub(super) fn length(&mut self, range: RangeInclusive<usize>) -> Result<u16, MessageError> {
        let length: Option<i16> = parse(self.word()?);
        let length = length.and_then(|length| u16::try_from(length).ok());
        let valid = length.filter(|length| range.contains(&usize::from(*length)));
        valid.ok_or_else(|| self.invalid("length"))
    }
}

fn parse<T: FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
