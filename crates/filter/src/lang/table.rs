//! Tables, chains, counters, and the command forms (`add rule ...`).

use std::rc::Rc;

use super::cursor::Parser;
use super::lex::{Span, SyntaxError, Tok};
use super::raw_ruleset::RawRuleset;
use super::{MAX_CHAINS, MAX_TABLES};
use crate::ruleset::{Base, Count, Family, Policy};

const COMMANDS: &[&str] = &["table", "add", "create", "insert", "flush", "define", "include"];
const IN_TABLE: &[&str] = &["chain", "set", "map", "counter", "comment"];

/// Unsupported parts of a table and their closest replacement.
const REFUSED_IN_TABLE: &[(&str, &str)] = &[
    ("flowtable", "leave it out: established flows are quick anyway"),
    ("quota", "`counter NAME` counts; `limit rate over 10 mbytes/hour drop` bounds"),
    ("limit", "the limit in the rule: `limit rate 10/second`"),
    ("synproxy", "`tcp flags syn limit rate 100/second accept`"),
    ("secmark", "leave it out: nothing looks at it"),
    ("ct", "leave it out: helpers, timeouts and expectations cannot be set"),
    ("flags", "remove the table instead of `flags dormant`; a file always replaces everything"),
];

/// Families of nftables that the filter does not support.
const FOREIGN: &[(&str, &str)] = &[
    ("arp", "`table bridge` with `arp operation request`"),
    ("netdev", "`table bridge` with `type filter hook forward priority filter`"),
];

pub(super) fn family(word: &str) -> Option<Family> {
    Some(match word {
        "ip" => Family::Ip,
        "ip6" => Family::Ip6,
        "inet" => Family::Inet,
        "bridge" => Family::Bridge,
        _ => return None,
    })
}

impl Parser {
    /// Parses the whole file.
    pub(super) fn file(&mut self) {
        loop {
            self.skip_separators();
            if matches!(self.peek(), Tok::End) {
                return;
            }
            self.statement(Self::command);
        }
    }

    fn command(&mut self) -> Result<(), SyntaxError> {
        let (word, at) = self.word("`table`, or a command like `add rule`")?;
        match &*word {
            "table" => self.table(),
            "add" | "create" => self.add(),
            "insert" => {
                let (what, at) = self.word("`rule`")?;
                match &*what {
                    "rule" => self.rule_command(true),
                    _ => Err(SyntaxError::new(at, "only rules can be inserted").hint("add ...")),
                }
            }
            "flush" | "delete" | "destroy" => self.remove(&word, at),
            "define" | "redefine" => {
                let error = SyntaxError::new(at, format!("`{word}` without a name"));
                Err(error.hint(format!("{word} NAME = VALUE")))
            }
            "undefine" => {
                Err(SyntaxError::new(at, "`undefine` without a name").hint("undefine NAME"))
            }
            "include" => Err(SyntaxError::new(at, "`include` without a file")
                .hint("include \"FILE\", in quotes")),
            "list" | "reset" | "monitor" | "describe" | "export" | "rename" | "replace" => {
                let error = SyntaxError::new(at, format!("`{word}` is no part of a rule file"));
                Err(error.hint("`adit filter show` lists; a file always replaces everything"))
            }
            "chain" | "rule" | "set" | "map" | "element" | "counter" => {
                let error = SyntaxError::new(at, format!("`{word}` outside a table"));
                Err(error.hint(format!("add {word} inet TABLE NAME, or in table inet TABLE {{ }}")))
            }
            _ => Err(Self::unknown(&word, at, "a command", COMMANDS.iter().copied())),
        }
    }

    /// Parses `flush ruleset` and similar commands, which have no effect on empty objects and are
    /// errors otherwise.
    fn remove(&mut self, verb: &str, at: Span) -> Result<(), SyntaxError> {
        let (what, _) = self.word("`ruleset` or `table`")?;
        let empty = match (&*what, verb) {
            ("ruleset", "flush") => {
                // `flush ruleset inet` flushes a family.
                if let Tok::Word(word) = self.peek() {
                    let word = word.clone();
                    if family(&word).is_none() {
                        return Err(self.expected("the end of the line"));
                    }
                    self.next();
                }
                self.drafts.iter().all(RawRuleset::is_empty)
            }
            ("table", _) => {
                let (family, name, _) = self.table_name()?;
                let found =
                    self.drafts.iter().find(|d| d.table.family == family && d.table.name == *name);
                found.is_none_or(RawRuleset::is_empty)
            }
            _ => false,
        };
        if empty {
            return self.statement_end();
        }
        let error = SyntaxError::new(at, format!("`{verb} {what}` of what this file has defined"));
        Err(error.hint("leave it out: a file always replaces everything, so start with nothing"))
    }

    fn table_name(&mut self) -> Result<(Family, Rc<str>, Span), SyntaxError> {
        let second = matches!(self.peek_second(), Tok::Word(_) | Tok::Quoted(_));
        let mut chosen = Family::Ip;
        if let Tok::Word(word) = self.peek()
            && second
        {
            let word = word.clone();
            if let Some((_, hint)) = FOREIGN.iter().find(|f| f.0 == &*word) {
                let error = SyntaxError::new(
                    self.span(),
                    format!("tables of family `{word}` are not supported"),
                );
                return Err(error.hint(*hint));
            }
            if let Some(family) = family(&word) {
                chosen = family;
                self.next();
            } else if matches!(self.peek_second(), Tok::Quoted(_)) {
                let known = ["ip", "ip6", "inet", "bridge"].into_iter();
                return Err(Self::unknown(&word, self.span(), "a family", known));
            }
        }
        let (name, at) = self.name("table")?;
        Ok((chosen, name, at))
    }

    /// Returns the draft of a table, creating it if necessary.
    fn draft(&mut self, family: Family, name: &str, at: Span) -> Result<usize, SyntaxError> {
        let found =
            self.drafts.iter().position(|d| d.table.family == family && d.table.name == name);
        if let Some(found) = found {
            return Ok(found);
        }
        if self.drafts.len() >= MAX_TABLES {
            return Err(SyntaxError::new(at, format!("more than {MAX_TABLES} tables")));
        }
        self.drafts.push(RawRuleset::new(family, name));
        Ok(self.drafts.len().saturating_sub(1))
    }

    fn draft_mut(&mut self, index: usize, at: Span) -> Result<&mut RawRuleset, SyntaxError> {
        self.drafts.get_mut(index).ok_or_else(|| SyntaxError::new(at, "no such table"))
    }

    fn table(&mut self) -> Result<(), SyntaxError> {
        let (family, name, at) = self.table_name()?;
        if matches!(self.peek(), Tok::Word(_)) {
            let known = ["ip", "ip6", "inet", "bridge"].into_iter();
            return Err(Self::unknown(&name, at, "a family", known));
        }
        let table = self.draft(family, &name, at)?;
        if self.at_statement_end() {
            return Ok(());
        }
        self.expect("{", "after the table's name")?;
        loop {
            self.skip_separators();
            if self.consume("}") {
                return self.statement_end();
            }
            if matches!(self.peek(), Tok::End) {
                return Err(SyntaxError::new(at, format!("table `{name}` is not closed")).hint("}"));
            }
            self.statement(|p| p.in_table(table));
        }
    }

    fn in_table(&mut self, table: usize) -> Result<(), SyntaxError> {
        let (word, at) = self.word("`chain`, `set`, `map` or `counter`")?;
        match &*word {
            "chain" => self.chain(table, false),
            "set" => self.set(table, false),
            "map" => self.set(table, true),
            "counter" => self.named_counter(table),
            "comment" => self.comment().map(drop),
            _ => match REFUSED_IN_TABLE.iter().find(|r| r.0 == &*word) {
                Some((_, hint)) => {
                    let error =
                        SyntaxError::new(at, format!("`{word}` is not supported in a table"));
                    Err(error.hint(*hint))
                }
                None => {
                    let known = IN_TABLE.iter().copied();
                    Err(Self::unknown(&word, at, "a part of a table", known))
                }
            },
        }
    }

    fn add(&mut self) -> Result<(), SyntaxError> {
        let (what, at) = match self.peek() {
            Tok::Word(w) => (w.clone(), self.span()),
            _ => {
                return Err(
                    self.expected("`table`, `chain`, `set`, `map`, `element`, `rule` or `counter`")
                );
            }
        };
        // `add ip t c ...` adds a rule, too.
        if family(&what).is_some() {
            return self.rule_command(false);
        }
        self.next();
        match &*what {
            "table" => self.table(),
            "rule" => self.rule_command(false),
            "chain" | "set" | "map" | "element" | "counter" => {
                let (family, name, at) = self.table_name()?;
                let table = self.draft(family, &name, at)?;
                match &*what {
                    "chain" => self.chain(table, true),
                    "set" => self.set(table, false),
                    "map" => self.set(table, true),
                    "counter" => self.named_counter(table),
                    _ => self.add_elements(table),
                }
            }
            _ => match REFUSED_IN_TABLE.iter().find(|r| r.0 == &*what) {
                Some((_, hint)) => {
                    Err(SyntaxError::new(at, format!("`add {what}` is not supported")).hint(*hint))
                }
                None => {
                    let known = ["table", "chain", "set", "map", "element", "rule", "counter"];
                    Err(Self::unknown(&what, at, "something to add", known.into_iter()))
                }
            },
        }
    }

    fn rule_command(&mut self, first: bool) -> Result<(), SyntaxError> {
        let (family, name, at) = self.table_name()?;
        let table = self.draft(family, &name, at)?;
        let (name, at) = self.name("chain")?;
        for word in ["position", "handle", "index"] {
            if self.is_word(word) {
                let error =
                    SyntaxError::new(self.span(), format!("`{word}` is not supported in a file"));
                return Err(error.hint("the rules in the order in which they shall be evaluated"));
            }
        }
        let draft = self.draft_mut(table, at)?;
        let chain = draft.chain(&name, at);
        let rule = self.rule(table, chain)?;
        let draft = self.draft_mut(table, at)?;
        if first {
            draft.inserted.entry(chain).or_default().push(rule);
        } else if let Some(chain) = draft.table.chains.get_mut(chain) {
            chain.rules.push(rule);
        }
        Ok(())
    }

    /// Parses a chain's block; with `command`, for `add chain`, the block is optional and has no
    /// rules.
    fn chain(&mut self, table: usize, command: bool) -> Result<(), SyntaxError> {
        let (name, at) = self.name("chain")?;
        let draft = self.draft_mut(table, at)?;
        let chain = draft.chain(&name, at);
        if chain >= MAX_CHAINS {
            return Err(SyntaxError::new(at, format!("more than {MAX_CHAINS} chains in a table")));
        }
        draft.define(|d| d.chains.get_mut(chain), at);
        if command && self.at_statement_end() {
            return Ok(());
        }
        self.expect("{", "after the chain's name")?;
        loop {
            self.skip_separators();
            if self.consume("}") {
                return self.statement_end();
            }
            if matches!(self.peek(), Tok::End) {
                return Err(SyntaxError::new(at, format!("chain `{name}` is not closed")).hint("}"));
            }
            self.statement(|p| p.in_chain(table, chain));
        }
    }

    fn in_chain(&mut self, table: usize, chain: usize) -> Result<(), SyntaxError> {
        let at = self.span();
        if self.eat_word("type") {
            let family = self.draft_mut(table, at)?.table.family;
            let base = self.base(family)?;
            let draft = self.draft_mut(table, at)?;
            if let Some(chain) = draft.table.chains.get_mut(chain) {
                match chain.base {
                    Some(old) if old.priority != base.priority => {
                        let message = "this chain has another priority already";
                        return Err(SyntaxError::new(at, message).hint("a chain of its own"));
                    }
                    Some(_) => {}
                    None => chain.base = Some(base),
                }
            }
            return Ok(());
        }
        if self.eat_word("policy") {
            return self.policy(table, chain, at);
        }
        if self.is_word("comment") && matches!(self.peek_second(), Tok::Quoted(_)) {
            self.next();
            let comment = self.comment()?;
            if let Some(chain) = self.draft_mut(table, at)?.table.chains.get_mut(chain) {
                chain.comment = comment;
            }
            return self.statement_end();
        }
        let rule = self.rule(table, chain)?;
        if let Some(chain) = self.draft_mut(table, at)?.table.chains.get_mut(chain) {
            chain.rules.push(rule);
        }
        Ok(())
    }

    fn base(&mut self, family: Family) -> Result<Base, SyntaxError> {
        const FORM: &str = "type filter hook forward priority filter; policy drop;";
        let (kind, at) = self.word("`filter`")?;
        match &*kind {
            "filter" => {}
            "nat" | "route" => {
                let message = format!(
                    "chains of type `{kind}` are not supported: addresses are never changed"
                );
                return Err(SyntaxError::new(at, message).hint(FORM));
            }
            _ => return Err(Self::unknown(&kind, at, "a type of chain", ["filter"].into_iter())),
        }
        if !self.eat_word("hook") {
            return Err(self.expected("`hook`").hint(FORM));
        }
        let (hook, at) = self.word("`forward`")?;
        match &*hook {
            "forward" => {}
            "input" | "output" | "prerouting" | "postrouting" | "ingress" | "egress" => {
                let message =
                    format!("there is no hook `{hook}`: only what passes through is seen");
                return Err(SyntaxError::new(at, message).hint(FORM));
            }
            _ => return Err(Self::unknown(&hook, at, "a hook", ["forward"].into_iter())),
        }
        for word in ["device", "devices"] {
            if self.is_word(word) {
                let error = SyntaxError::new(self.span(), "a chain cannot be bound to a device");
                return Err(error.hint("`iifname \"eth1\"` in its rules"));
            }
        }
        if !self.eat_word("priority") {
            return Err(self.expected("`priority`").hint(FORM));
        }
        let priority = self.priority(family)?;
        self.statement_end()?;
        Ok(Base { priority, policy: Policy::Accept })
    }

    fn priority(&mut self, family: Family) -> Result<i32, SyntaxError> {
        let at = self.span();
        let named = match self.peek() {
            Tok::Word(word) => {
                let word = word.clone();
                let known = priorities(family);
                let Some(&(_, value)) = known.iter().find(|p| p.0 == &*word) else {
                    let names = known.iter().map(|p| p.0);
                    return Err(Self::unknown(&word, at, "a priority in this family", names));
                };
                self.next();
                if self.at_statement_end() {
                    return Ok(value);
                }
                Some(value)
            }
            _ => None,
        };
        let minus = self.consume("-");
        if !minus {
            let plus = self.consume("+");
            if named.is_some() && !plus {
                return Err(self.expected("`+`, `-` or the end of the line"));
            }
        }
        let (number, at) = self.number("a priority, like filter, 0 or filter + 5")?;
        let number = i32::try_from(number).ok().map(|n| if minus { n.wrapping_neg() } else { n });
        let value = number.and_then(|n| n.checked_add(named.unwrap_or(0)));
        value.ok_or_else(|| SyntaxError::new(at, "a priority has 32 bits"))
    }

    fn policy(&mut self, table: usize, chain: usize, at: Span) -> Result<(), SyntaxError> {
        let (word, word_at) = self.word("`accept` or `drop`")?;
        let policy = match &*word {
            "accept" => Policy::Accept,
            "drop" => Policy::Drop,
            _ => {
                let known = ["accept", "drop"].into_iter();
                return Err(Self::unknown(&word, word_at, "a policy", known));
            }
        };
        self.statement_end()?;
        let chain = self.draft_mut(table, at)?.table.chains.get_mut(chain);
        match chain.and_then(|c| c.base.as_mut()) {
            Some(base) => base.policy = policy,
            None => {
                let error = SyntaxError::new(at, "a policy in a chain that is no base chain");
                return Err(error.hint(format!(
                    "type filter hook forward priority filter; policy {word};  or a last rule `{word}`"
                )));
            }
        }
        Ok(())
    }

    fn named_counter(&mut self, table: usize) -> Result<(), SyntaxError> {
        let (name, at) = self.name("counter")?;
        let mut start = Count::default();
        let block = self.consume("{");
        loop {
            if block {
                self.skip_separators();
            }
            if self.is_word("packets") {
                start = self.count()?;
            } else if self.eat_word("comment") {
                self.comment()?;
            } else if if block { self.consume("}") } else { self.at_statement_end() } {
                break;
            } else {
                return Err(self.expected("`packets N bytes N` or `comment \"...\"`"));
            }
        }
        let draft = self.draft_mut(table, at)?;
        let id = draft.counter(&name, at);
        if !draft.define(|d| d.counters.get_mut(id.0), at) {
            return Err(SyntaxError::new(at, format!("counter `{name}` is defined already")));
        }
        if let Some(counter) = draft.table.counters.get_mut(id.0) {
            counter.start = start;
        }
        self.statement_end()
    }

    /// Parses `packets N bytes N`.
    pub(super) fn count(&mut self) -> Result<Count, SyntaxError> {
        self.next();
        let (packets, _) = self.number("a number of packets")?;
        if !self.eat_word("bytes") {
            return Err(self.expected("`bytes`").hint("counter packets 0 bytes 0"));
        }
        let (bytes, _) = self.number("a number of bytes")?;
        Ok(Count { packets, bytes })
    }
}

/// Returns the names of priorities that belong to the hook `forward`.
pub(super) const fn priorities(family: Family) -> &'static [(&'static str, i32)] {
    match family {
        Family::Bridge => &[("filter", -200)],
        Family::Ip | Family::Ip6 | Family::Inet => {
            &[("raw", -300), ("mangle", -150), ("filter", 0), ("security", 50)]
        }
    }
}
