//! Comparisons: fields on the left, values or sets on the right.

use super::cursor::Parser;
use super::lex::{Span, SyntaxError, Tok};
use super::raw_ruleset::Lookup;
use super::rule::STATEMENTS;
use super::value::{integer, is_bits, largest};
use super::{MAX_KEY, fields};
use crate::ruleset::{Field, Kind, Match, Range, SetId, Statement, Test};

enum Op {
    Implied,
    Equal,
    Unequal,
    Below,
    Above,
    AtMost,
    AtLeast,
    /// `!`, for bits.
    None,
}

impl Parser {
    /// Parses a field, or a concatenation of fields.
    pub(super) fn key(&mut self) -> Result<Vec<Field>, SyntaxError> {
        let mut key = Vec::new();
        loop {
            let at = self.span();
            key.push(self.field()?);
            if key.len() > MAX_KEY {
                return Err(SyntaxError::new(at, format!("more than {MAX_KEY} parts in a key")));
            }
            if !self.consume(".") {
                return Ok(key);
            }
        }
    }

    fn field(&mut self) -> Result<Field, SyntaxError> {
        let (header, at) = self.word("a field, like `ip saddr`")?;
        if let Some(field) = fields::unqualified(&header) {
            return Ok(field);
        }
        let key = match self.peek() {
            Tok::Word(key) => key.clone(),
            _ => "".into(),
        };
        if let Some(hint) = fields::refused(&header, &key) {
            let both = if fields::refused(&header, "").is_some() || key.is_empty() {
                header.to_string()
            } else {
                format!("{header} {key}")
            };
            return Err(SyntaxError::new(at, format!("`{both}` is not supported")).hint(hint));
        }
        if !fields::is_header(&header) {
            let known = STATEMENTS.iter().copied().chain(fields::starts());
            return Err(Self::unknown(&header, at, "a field or statement", known));
        }
        if key.is_empty() {
            let keys: Vec<&str> = fields::keys(&header).collect();
            let error = self.expected(&format!("a field of `{header}`"));
            return Err(error.hint(format!("one of: {}", keys.join(", "))));
        }
        let key_at = self.span();
        if &*header == "arp" && matches!(&*key, "saddr" | "daddr") {
            self.next();
            let (kind, at) = self.word("`ip` or `ether`")?;
            return fields::find("arp", &format!("{key} {kind}")).ok_or_else(|| {
                Self::unknown(&kind, at, "an address of ARP", ["ip", "ether"].into_iter())
            });
        }
        let Some(field) = fields::find(&header, &key) else {
            let keys: Vec<&str> = fields::keys(&header).collect();
            return Err(Self::unknown(
                &key,
                key_at,
                &format!("a field of `{header}`"),
                keys.into_iter(),
            ));
        };
        self.next();
        Ok(field)
    }

    pub(super) fn comparison(&mut self, table: usize, at: Span) -> Result<Statement, SyntaxError> {
        let key = self.key()?;
        if let Some(family) = self.drafts.get(table).map(|d| d.table.family) {
            for &field in &key {
                if let Some(hint) = fields::missing(family, field) {
                    let message =
                        format!("packets of this table have no `{}`", fields::text(field));
                    return Err(SyntaxError::new(at, message).hint(hint));
                }
            }
        }
        let kinds: Vec<Kind> = key.iter().map(|f| f.kind()).collect();
        if self.eat_word("vmap") {
            let map = self.lookup(table, &key, &kinds, true)?;
            return Ok(Statement::VerdictMap { key, map });
        }
        for (word, hint) in [
            ("set", "fields are compared, never changed: leave `set VALUE` out"),
            ("map", "`vmap { KEY : VERDICT }`"),
        ] {
            if self.is_word(word) {
                let error =
                    SyntaxError::new(self.span(), format!("`{word}` is not supported here"));
                return Err(error.hint(hint));
            }
        }
        let (test, negate) = match (key.as_slice(), kinds.as_slice()) {
            (&[_], &[kind]) if self.is("&") => self.masked(kind)?,
            (&[_], &[kind]) => {
                let op = self.operator();
                self.single(table, &key, kind, &op)?
            }
            _ => self.concatenated(table, &key, &kinds)?,
        };
        if self.is(",") {
            let error = SyntaxError::new(self.span(), "several values need braces");
            return Err(error.hint(format!(
                "{} {{ A, B }}",
                fields::text(key.first().copied().unwrap_or(Field::IpSaddr))
            )));
        }
        Ok(Statement::Match(Match { key, test, negate }))
    }

    fn operator(&mut self) -> Op {
        let op = match self.peek() {
            Tok::Punct("==") => Op::Equal,
            Tok::Punct("!=") => Op::Unequal,
            Tok::Punct("<") => Op::Below,
            Tok::Punct(">") => Op::Above,
            Tok::Punct("<=") => Op::AtMost,
            Tok::Punct(">=") => Op::AtLeast,
            Tok::Punct("!") => Op::None,
            Tok::Word(word) => match &**word {
                "eq" => Op::Equal,
                "ne" => Op::Unequal,
                "lt" => Op::Below,
                "gt" => Op::Above,
                "le" => Op::AtMost,
                "ge" => Op::AtLeast,
                _ => return Op::Implied,
            },
            _ => return Op::Implied,
        };
        self.next();
        op
    }

    /// Parses the values that one field is compared with.
    fn single(
        &mut self,
        table: usize,
        key: &[Field],
        kind: Kind,
        op: &Op,
    ) -> Result<(Test, bool), SyntaxError> {
        let at = self.span();
        let negate = matches!(op, Op::Unequal);
        if matches!(op, Op::Implied | Op::Equal | Op::Unequal)
            && matches!(self.peek(), Tok::Punct("{") | Tok::Set(_) | Tok::Who { .. })
        {
            return Ok((Test::Set(self.lookup(table, key, &[kind], false)?), negate));
        }
        match op {
            Op::Below | Op::Above | Op::AtMost | Op::AtLeast => {
                return Ok((Test::Within(vec![self.ordered(kind, op)?]), false));
            }
            Op::None if !is_bits(kind) => {
                return Err(SyntaxError::new(at, "`!` is for bits").hint("!="));
            }
            _ => {}
        }
        if is_bits(kind) && !matches!(self.peek_second(), Tok::Punct("-")) {
            return self.flags(kind, op);
        }
        let iface_star = matches!(key.first(), Some(Field::IifName | Field::OifName));
        let range = self.range(kind)?;
        if iface_star && self.is("-") {
            return Err(SyntaxError::new(self.span(), "names of interfaces have no ranges")
                .hint("\"eth*\""));
        }
        Ok((Test::Within(vec![range]), negate))
    }

    fn ordered(&mut self, kind: Kind, op: &Op) -> Result<Range, SyntaxError> {
        let at = self.span();
        if matches!(kind, Kind::IfName) || is_bits(kind) {
            let error = SyntaxError::new(at, "such values have no order");
            return Err(error.hint("== or !="));
        }
        let value = self.atom(kind)?;
        let most = largest(kind);
        let range = match op {
            Op::Below => value.checked_sub(1).map(|last| Range { first: 0, last }),
            Op::Above => {
                value.checked_add(1).filter(|&v| v <= most).map(|first| Range { first, last: most })
            }
            Op::AtMost => Some(Range { first: 0, last: value }),
            _ => Some(Range { first: value, last: most }),
        };
        range.ok_or_else(|| {
            SyntaxError::new(at, "no value is beyond this one").hint("leave the rule out")
        })
    }

    /// Parses bits: `syn`, `== syn`, `! syn`, `syn / syn,ack`.
    fn flags(&mut self, kind: Kind, op: &Op) -> Result<(Test, bool), SyntaxError> {
        let at = self.span();
        let (value, count) = self.bits(kind, &[",", "|"])?;
        if self.consume("/") {
            let (mask, _) = self.bits(kind, &[",", "|"])?;
            return match op {
                Op::None => Err(SyntaxError::new(at, "`!` with a mask").hint("!=")),
                _ => Ok((Test::Masked { mask, value }, matches!(op, Op::Unequal))),
            };
        }
        match op {
            Op::Implied if value == 0 => {
                Err(SyntaxError::new(at, "no bit to look for").hint("== 0x0, for none set"))
            }
            Op::Implied => Ok((Test::AnyOf(value), false)),
            Op::None => Ok((Test::Masked { mask: value, value: 0 }, false)),
            _ if kind == Kind::CtState && count > 1 => {
                let always = if matches!(op, Op::Unequal) { "always" } else { "never" };
                let message = format!("a packet has one state: this {always} matches");
                let set =
                    if matches!(op, Op::Unequal) { "ct state != { A, B }" } else { "ct state A,B" };
                Err(SyntaxError::new(at, message).hint(set))
            }
            _ => Ok((Test::Within(vec![Range::single(value)]), matches!(op, Op::Unequal))),
        }
    }

    /// Parses `& mask == value`.
    fn masked(&mut self, kind: Kind) -> Result<(Test, bool), SyntaxError> {
        if kind == Kind::IfName {
            return Err(SyntaxError::new(self.span(), "a name has no bits").hint("\"eth*\""));
        }
        self.next();
        let paren = self.is("(");
        let mask = if is_bits(kind) || paren { self.bits(kind, &[])?.0 } else { self.atom(kind)? };
        let at = self.span();
        if matches!(self.peek(), Tok::Punct("|" | "&" | "^" | "<<" | ">>")) {
            let error = SyntaxError::new(at, "more than one mask");
            return Err(error.hint("FIELD & (A | B) == VALUE"));
        }
        let negate = match self.operator() {
            Op::Equal => false,
            Op::Unequal => true,
            _ => {
                return Err(SyntaxError::new(at, "expected `==` or `!=` behind the mask")
                    .hint("FIELD & MASK == VALUE"));
            }
        };
        let paren = self.is("(");
        let value = if is_bits(kind) || paren {
            self.bits(kind, &["|", ","])?.0
        } else if matches!(self.peek(), Tok::Number(t) if integer(t) == Some(0)) {
            // Every kind of value writes zero this way.
            self.next();
            0
        } else {
            self.atom(kind)?
        };
        if negate && value == 0 {
            return Ok((Test::AnyOf(mask), false));
        }
        Ok((Test::Masked { mask, value }, negate))
    }

    fn concatenated(
        &mut self,
        table: usize,
        key: &[Field],
        kinds: &[Kind],
    ) -> Result<(Test, bool), SyntaxError> {
        let at = self.span();
        let negate = match self.operator() {
            Op::Implied | Op::Equal => false,
            Op::Unequal => true,
            _ => return Err(SyntaxError::new(at, "a concatenation has no order").hint("== or !=")),
        };
        if matches!(self.peek(), Tok::Punct("{") | Tok::Set(_) | Tok::Who { .. }) {
            return Ok((Test::Set(self.lookup(table, key, kinds, false)?), negate));
        }
        // nftables reports the same.
        let error = self.expected("a set, as a concatenation is compared with sets only");
        Err(error.hint("`{ VALUE . VALUE }`, or `@NAME`"))
    }

    /// Parses a set or map: anonymous, named, or the addresses of a client, node or group.
    fn lookup(
        &mut self,
        table: usize,
        key: &[Field],
        kinds: &[Kind],
        map: bool,
    ) -> Result<SetId, SyntaxError> {
        let at = self.span();
        match self.peek().clone() {
            Tok::Punct("{") => self.anonymous(table, kinds, map),
            Tok::Set(name) => {
                self.next();
                let draft =
                    self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no table"))?;
                let set = SetId(draft.set(&name, at));
                draft.lookups.push(Lookup { set, kinds: kinds.to_vec(), map, at });
                Ok(set)
            }
            Tok::Who(members) => {
                let address = [Field::IpSaddr, Field::IpDaddr, Field::Ip6Saddr, Field::Ip6Daddr];
                let (&[field], &[kind], false) = (key, kinds, map) else {
                    let error =
                        SyntaxError::new(at, "clients, nodes and groups are sets of addresses");
                    return Err(error.hint("ip saddr @client:NAME"));
                };
                if !address.contains(&field) {
                    let message = format!(
                        "clients, nodes and groups are sets of addresses, and `{}` is none",
                        fields::text(field)
                    );
                    return Err(SyntaxError::new(at, message).hint("ip saddr @client:NAME"));
                }
                self.next();
                let draft =
                    self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no table"))?;
                Ok(SetId(draft.who(members, kind, at)))
            }
            _ => Err(self.expected(if map { "`{` or a map's name" } else { "a set" })),
        }
    }
}
