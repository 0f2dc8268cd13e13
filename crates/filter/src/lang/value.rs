//! Values: the right side of a comparison, or the elements of a set.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::cursor::Parser;
use super::diagnostic::similar;
use super::lex::{Span, SyntaxError, Tok, mac};
use super::names;
use crate::ruleset::{Kind, Range};

/// The maximum length of an interface's name in bytes, without the terminating zero.
const MAX_IFNAME: usize = 15;

/// Returns whether values are combinations of bits.
pub(super) const fn is_bits(kind: Kind) -> bool {
    matches!(kind, Kind::TcpFlags | Kind::CtState)
}

pub(super) const fn largest(kind: Kind) -> u128 {
    match kind.bits() {
        bits @ 0..=127 => (1_u128 << bits).wrapping_sub(1),
        _ => u128::MAX,
    }
}

/// Parses a number, decimal or hexadecimal.
pub(super) fn integer(text: &str) -> Option<u128> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u128::from_str_radix(hex, 16).ok()
        }
        Some(_) => None,
        None if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        None => None,
    }
}

/// Describes the form of a token that does not fit, for an error message.
fn looks_like(tok: &Tok) -> &'static str {
    match tok {
        Tok::Number(t) if t.parse::<Ipv4Addr>().is_ok() => "is an IPv4 address",
        Tok::Address(t) if mac(t).is_some() => "is a MAC address",
        Tok::Address(_) => "is an IPv6 address",
        Tok::Number(t) if integer(t).is_some() => "is a number",
        Tok::Set(_) | Tok::Who { .. } => "is a set",
        _ => "is none",
    }
}

impl Parser {
    fn mismatch(&self, kind: Kind) -> SyntaxError {
        let (tok, at) = (self.peek(), self.span());
        let takes = names::takes(kind);
        if matches!(tok, Tok::Newline | Tok::End | Tok::Punct(_)) {
            return SyntaxError::new(at, format!("expected {takes}, found {}", tok.named()));
        }
        let shape = looks_like(tok);
        let error = match tok {
            Tok::Number(t) if shape == "is a number" => {
                SyntaxError::new(at, format!("{t} is out of range: this takes {takes}"))
            }
            _ => SyntaxError::new(at, format!("this takes {takes}; {} {shape}", tok.named())),
        };
        let meant = match tok {
            Tok::Word(w) | Tok::Quoted(w) => similar(w, names::of(kind).iter().map(|n| n.0)),
            _ => None,
        };
        match meant {
            Some(meant) => error.hint(format!("did you mean `{meant}`?")),
            None => error,
        }
    }

    /// Parses a single value.
    pub(super) fn atom(&mut self, kind: Kind) -> Result<u128, SyntaxError> {
        let value = match (kind, self.peek()) {
            (Kind::Ipv4Addr, Tok::Number(t)) => {
                t.parse::<Ipv4Addr>().ok().map(|a| u128::from(u32::from(a)))
            }
            (Kind::Ipv6Addr, Tok::Address(t)) => t.parse::<Ipv6Addr>().ok().map(u128::from),
            (Kind::EtherAddr, Tok::Address(t)) => mac(t).map(u128::from),
            (Kind::Ipv4Addr | Kind::Ipv6Addr | Kind::EtherAddr | Kind::IfName, _) => None,
            (_, Tok::Word(t) | Tok::Quoted(t)) => names::value(kind, t),
            (_, Tok::Number(t)) => {
                let leading = t.len() > 1 && t.starts_with('0') && !t.starts_with("0x");
                if leading && integer(t).is_some() {
                    let error =
                        SyntaxError::new(self.span(), format!("{t} might be meant as octal"));
                    return Err(error.hint("without the leading 0, or in hex with 0x"));
                }
                integer(t).filter(|&v| v <= largest(kind)).or_else(|| names::value(kind, t))
            }
            _ => None,
        };
        let value = value.ok_or_else(|| self.mismatch(kind))?;
        self.next();
        Ok(value)
    }

    /// Parses a value, a prefix or a range, as one range.
    pub(super) fn range(&mut self, kind: Kind) -> Result<Range, SyntaxError> {
        if kind == Kind::IfName {
            return self.ifname();
        }
        if is_bits(kind) && !matches!(self.peek_second(), Tok::Punct("-")) {
            return Ok(Range::single(self.bits(kind, &["|"])?.0));
        }
        let start = self.span();
        let first = self.atom(kind)?;
        if matches!(kind, Kind::Ipv4Addr | Kind::Ipv6Addr) && self.consume("/") {
            let number = self.number("the length of a prefix");
            let (length, at) = number.map_err(|e| e.hint("10.0.0.0/8, or `& 255.0.0.255 ==`"))?;
            return prefix(first, length, kind, at);
        }
        if !self.consume("-") {
            return Ok(Range::single(first));
        }
        let last = self.atom(kind)?;
        if last < first {
            let error = SyntaxError::new(start, "a range that ends before it starts");
            return Err(error.hint("the smaller value first"));
        }
        Ok(Range { first, last })
    }

    /// Parses bits joined by one of `joints`, in parentheses or not; returns their number.
    pub(super) fn bits(
        &mut self,
        kind: Kind,
        joints: &[&str],
    ) -> Result<(u128, usize), SyntaxError> {
        let closes = self.consume("(");
        let (mut value, mut count) = (0, 0_usize);
        loop {
            value |= self.atom(kind)?;
            count = count.saturating_add(1);
            let more = matches!(self.peek(), Tok::Punct(p)
                if if closes { *p == "|" } else { joints.contains(p) });
            if !more {
                break;
            }
            self.next();
        }
        if closes {
            self.expect(")", "after the bits")?;
        }
        Ok((value, count))
    }

    fn ifname(&mut self) -> Result<Range, SyntaxError> {
        let at = self.span();
        let text = match self.peek() {
            Tok::Word(t) | Tok::Quoted(t) | Tok::Number(t) => t.clone(),
            _ => return Err(self.mismatch(Kind::IfName)),
        };
        let (name, wild) = match text.strip_suffix('*') {
            Some(name) => (name, true),
            None => (&*text, false),
        };
        let good = !name.is_empty()
            && name.len() <= MAX_IFNAME
            && name.bytes().all(|b| b.is_ascii_graphic() && !b"*/\\".contains(&b));
        if !good {
            let error = SyntaxError::new(at, format!("`{text}` is not the name of an interface"));
            return Err(error.hint("1 to 15 characters; `*` only at the end, for any ending"));
        }
        self.next();
        let mut bytes = [0_u8; 16];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        let first = u128::from_be_bytes(bytes);
        let free = u32::try_from(16_usize.saturating_sub(name.len())).unwrap_or(0);
        let fill = 1_u128.checked_shl(free.saturating_mul(8)).unwrap_or(0).wrapping_sub(1);
        Ok(if wild { Range { first, last: first | fill } } else { Range::single(first) })
    }
}

fn prefix(address: u128, length: u64, kind: Kind, at: Span) -> Result<Range, SyntaxError> {
    let bits = u64::from(kind.bits());
    let Some(host) = bits.checked_sub(length) else {
        return Err(SyntaxError::new(at, format!("a prefix has at most {bits} bits here")));
    };
    let host = u32::try_from(host).unwrap_or(0);
    let fill = 1_u128.checked_shl(host).map_or(u128::MAX, |v| v.wrapping_sub(1));
    Ok(Range { first: address & !fill, last: address | fill })
}
