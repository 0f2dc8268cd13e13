//! Rules and their statements.

use super::cursor::Parser;
use super::lex::{SyntaxError, Tok};
use super::raw_ruleset::{From, Jump};
use super::{MAX_PREFIX, MAX_RULES, MAX_STATEMENTS, fields};
use crate::ruleset::{
    ChainId, Count, Counter, Family, Icmpx, Kind, Limit, Log, Reject, Rule, RuleVerdict, Statement,
};

/// Words with which a statement can start, except fields.
pub(super) const STATEMENTS: &[&str] = &[
    "counter", "limit", "log", "reject", "accept", "drop", "continue", "return", "jump", "goto",
    "comment",
];

/// Unsupported statements and their closest replacement.
const REFUSED: &[(&str, &str)] = &[
    ("dnat", "addresses are never changed; route to the target, or use another tool for NAT"),
    ("snat", "addresses are never changed; route to the target, or use another tool for NAT"),
    ("masquerade", "addresses are never changed; use another tool for NAT"),
    ("redirect", "addresses are never changed; use another tool for NAT"),
    ("tproxy", "`accept` or `reject`"),
    ("queue", "`log group N` hands packets to `adit filter capture`"),
    ("quota", "`limit rate over 10 mbytes/hour drop`"),
    ("notrack", "leave it out: only rules with `ct` make packets be tracked"),
    ("dup", "`log group N` hands copies to `adit filter capture`"),
    ("fwd", "`accept`"),
    ("flow", "leave it out: established flows are quick anyway"),
    ("synproxy", "`tcp flags syn limit rate 100/second accept`"),
    ("xt", "the same in nftables' own words"),
    ("set", "a named set with its elements in the file"),
    ("add", "a named set with its elements in the file"),
    ("update", "a named set with its elements in the file"),
    ("delete", "a named set with its elements in the file"),
    ("map", "`vmap { KEY : VERDICT }`"),
    ("tcpmss", "leave it out: the MSS is adit's own business (`mssfix`)"),
    ("audit", "`log prefix \"...\"`"),
];

impl Parser {
    /// Parses a rule of a chain, up to the end of its statement.
    pub(super) fn rule(&mut self, table: usize, chain: usize) -> Result<Rule, SyntaxError> {
        let start = self.span();
        self.rules = self.rules.saturating_add(1);
        if self.rules > MAX_RULES {
            return Err(SyntaxError::new(start, format!("more than {MAX_RULES} rules")));
        }
        let mut rule = Rule { handle: 0, line: start.line, statements: Vec::new(), comment: None };
        let mut ended = false;
        while !self.at_statement_end() {
            if self.eat_word("comment") {
                rule.comment = self.comment()?;
                self.statement_end()?;
                break;
            }
            if ended {
                let error = SyntaxError::new(self.span(), "nothing is done behind a verdict");
                return Err(error.hint("the verdict as the last word of the rule"));
            }
            if rule.statements.len() >= MAX_STATEMENTS {
                let message = format!("more than {MAX_STATEMENTS} statements in a rule");
                return Err(SyntaxError::new(self.span(), message));
            }
            let statement = self.rule_statement(table, chain)?;
            ended = match &statement {
                Statement::Reject(_) => true,
                Statement::Verdict(verdict) => *verdict != RuleVerdict::Continue,
                _ => false,
            };
            rule.statements.push(statement);
        }
        if rule.statements.is_empty() {
            return Err(
                SyntaxError::new(start, "a rule without a statement").hint("tcp dport 22 accept")
            );
        }
        Ok(rule)
    }

    fn rule_statement(&mut self, table: usize, chain: usize) -> Result<Statement, SyntaxError> {
        let at = self.span();
        let word = match self.peek() {
            Tok::Word(word) => word.clone(),
            Tok::Set(_) => {
                let error = SyntaxError::new(at, "raw payload and set updates are not supported");
                return Err(error.hint("a named field, like `tcp dport`, and then the set"));
            }
            Tok::Punct(",") => {
                return Err(SyntaxError::new(at, "several values need braces").hint("{ 22, 80 }"));
            }
            Tok::Number(_) | Tok::Address(_) => {
                let error =
                    SyntaxError::new(at, format!("{} belongs to no field", self.peek().named()));
                return Err(error.hint("a field before it, or braces around several: { 22, 80 }"));
            }
            _ => return Err(self.expected("a field to compare, or a statement")),
        };
        if let Some(verdict) = self.verdict_word(&word, table, From::Chain(chain))? {
            return Ok(Statement::Verdict(verdict));
        }
        match &*word {
            "counter" => return self.counter(table).map(Statement::Counter),
            "limit" => return self.limit().map(Statement::Limit),
            "log" => return self.log().map(Statement::Log),
            "reject" => return self.reject(table).map(Statement::Reject),
            _ => {}
        }
        // `redirect` is a statement; an ICMP type of that name never starts one.
        if fields::refused(&word, "").is_none()
            && let Some((_, hint)) = REFUSED.iter().find(|r| r.0 == &*word)
        {
            return Err(SyntaxError::new(at, format!("`{word}` is not supported")).hint(*hint));
        }
        self.comparison(table, at)
    }

    /// Parses the verdict of a map's element.
    pub(super) fn verdict(&mut self, table: usize, from: From) -> Result<RuleVerdict, SyntaxError> {
        let what = "accept, drop, continue, return, `jump CHAIN` or `goto CHAIN`";
        let Tok::Word(word) = self.peek() else {
            return Err(self.expected(what));
        };
        let word = word.clone();
        let at = self.span();
        match self.verdict_word(&word, table, from)? {
            Some(verdict) => Ok(verdict),
            None => {
                let known = ["accept", "drop", "continue", "return", "jump", "goto"].into_iter();
                Err(Self::unknown(&word, at, "a verdict", known))
            }
        }
    }

    fn verdict_word(
        &mut self,
        word: &str,
        table: usize,
        from: From,
    ) -> Result<Option<RuleVerdict>, SyntaxError> {
        let verdict = match word {
            "accept" => RuleVerdict::Accept,
            "drop" => RuleVerdict::Drop,
            "continue" => RuleVerdict::Continue,
            "return" => RuleVerdict::Return,
            "jump" | "goto" => {
                self.next();
                if self.is("{") {
                    let error =
                        SyntaxError::new(self.span(), "chains within a rule are not supported");
                    return Err(error.hint("chain NAME { ... } in the table, and `jump NAME`"));
                }
                let (name, at) = self.name("chain")?;
                let draft =
                    self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no table"))?;
                let to = ChainId(draft.chain(&name, at));
                draft.jumps.push(Jump { from, to, at });
                return Ok(Some(if word == "jump" {
                    RuleVerdict::Jump(to)
                } else {
                    RuleVerdict::Goto(to)
                }));
            }
            _ => return Ok(None),
        };
        self.next();
        Ok(Some(verdict))
    }

    fn counter(&mut self, table: usize) -> Result<Counter, SyntaxError> {
        self.next();
        if self.is_word("packets") {
            return self.count().map(Counter::Own);
        }
        if !self.eat_word("name") {
            return Ok(Counter::Own(Count::default()));
        }
        if self.is_word("tcp") || self.is_word("ip") || self.is("{") {
            let error = SyntaxError::new(self.span(), "a counter chosen by a map is not supported");
            return Err(error.hint("counter name \"NAME\""));
        }
        let (name, at) = self.name("counter")?;
        let draft = self.drafts.get_mut(table).ok_or_else(|| SyntaxError::new(at, "no table"))?;
        Ok(Counter::Named(draft.counter(&name, at)))
    }

    fn limit(&mut self) -> Result<Limit, SyntaxError> {
        const FORM: &str = "limit rate 10/second burst 5 packets";
        self.next();
        if self.is_word("name") {
            let error = SyntaxError::new(self.span(), "named limits are not supported");
            return Err(error.hint(format!("the limit in the rule: {FORM}")));
        }
        if !self.eat_word("rate") {
            return Err(self.expected("`rate`").hint(FORM));
        }
        let over = self.eat_word("over");
        let (number, at) = self.number("a rate, like 10/second")?;
        let unit = self.byte_unit()?;
        let rate = number.checked_mul(unit.unwrap_or(1)).filter(|&r| r > 0);
        let rate =
            rate.ok_or_else(|| SyntaxError::new(at, "a rate is from 1 to 2^64 - 1").hint(FORM))?;
        self.expect("/", "and second, minute, hour, day or week")?;
        let (period, at) = self.word("second, minute, hour, day or week")?;
        let Some(&(_, per)) = PERIODS.iter().find(|p| p.0 == &*period) else {
            return Err(Self::unknown(&period, at, "a period", PERIODS.iter().map(|p| p.0)));
        };
        let bytes = unit.is_some();
        let mut burst = if bytes { 0 } else { 5 };
        if self.eat_word("burst") {
            burst = self.burst(bytes)?;
        }
        Ok(Limit { over, rate, per, burst, bytes })
    }

    fn burst(&mut self, bytes: bool) -> Result<u64, SyntaxError> {
        let (number, at) = self.number("a burst, like 5 packets")?;
        let unit = if self.eat_word("packets") { None } else { Some(self.byte_unit()?) };
        let burst = match (bytes, unit) {
            (false, None) if number > 0 => Some(number),
            (true, Some(Some(unit))) => number.checked_mul(unit),
            _ => None,
        };
        let hint = if bytes { "burst 10 kbytes" } else { "burst 5 packets" };
        burst.ok_or_else(|| {
            let unit =
                if bytes { "bytes, as the rate" } else { "packets, as the rate, and at least 1" };
            SyntaxError::new(at, format!("this burst is counted in {unit}")).hint(hint)
        })
    }

    fn byte_unit(&mut self) -> Result<Option<u64>, SyntaxError> {
        let Tok::Word(word) = self.peek() else {
            return Ok(None);
        };
        let factor = match &**word {
            "bytes" => 1,
            "kbytes" => 1 << 10,
            "mbytes" => 1 << 20,
            _ => {
                let known = ["bytes", "kbytes", "mbytes", "packets"].into_iter();
                return Err(Self::unknown(&word.clone(), self.span(), "a unit", known));
            }
        };
        self.next();
        Ok(Some(factor))
    }

    fn log(&mut self) -> Result<Log, SyntaxError> {
        self.next();
        let mut log = Log::default();
        let mut snaplen_at = None;
        loop {
            let at = self.span();
            if self.eat_word("prefix") {
                let (prefix, at) = self.quoted("a prefix")?;
                if prefix.len() > MAX_PREFIX {
                    return Err(SyntaxError::new(
                        at,
                        format!("a prefix longer than {MAX_PREFIX} bytes"),
                    ));
                }
                log.prefix = prefix.to_string();
            } else if self.eat_word("group") {
                let (group, at) = self.number("a group, from 0 to 65535")?;
                let group = u16::try_from(group);
                log.group =
                    Some(group.map_err(|_| SyntaxError::new(at, "a group is from 0 to 65535"))?);
            } else if self.eat_word("snaplen") {
                let (snaplen, number_at) = self.number("a number of bytes")?;
                let snaplen = u32::try_from(snaplen);
                log.snaplen =
                    snaplen.map_err(|_| SyntaxError::new(number_at, "a snaplen has 32 bits"))?;
                snaplen_at = Some(at);
            } else if self.is_word("level") {
                let error =
                    SyntaxError::new(at, "`level` is not supported: all lines have the same");
                return Err(error.hint("log prefix \"...\""));
            } else if self.is_word("flags") {
                let error =
                    SyntaxError::new(at, "`flags` is not supported: a line says all there is");
                return Err(error.hint("log prefix \"...\", or `log group 1` for whole packets"));
            } else if self.is_word("queue-threshold") {
                let error = SyntaxError::new(at, "`queue-threshold` is not supported");
                return Err(error.hint("log group 1 snaplen 128"));
            } else {
                break;
            }
        }
        match snaplen_at {
            Some(at) if log.group.is_none() => {
                Err(SyntaxError::new(at, "`snaplen` without a group")
                    .hint("log group 1 snaplen 128"))
            }
            _ => Ok(log),
        }
    }

    fn reject(&mut self, table: usize) -> Result<Reject, SyntaxError> {
        self.next();
        if !self.eat_word("with") {
            return Ok(Reject::Icmpx(Icmpx::PortUnreachable));
        }
        let family = self.drafts.get(table).map(|d| d.table.family);
        let (kind, at) = self.word("`tcp reset`, `icmp`, `icmpv6` or `icmpx`")?;
        if &*kind == "tcp" {
            if self.eat_word("reset") {
                return Ok(Reject::TcpReset);
            }
            return Err(self.expected("`reset`"));
        }
        let wrong = match (&*kind, family) {
            ("icmp", Some(Family::Ip6)) => Some("reject with icmpv6 port-unreachable"),
            ("icmpv6", Some(Family::Ip)) => Some("reject with icmp port-unreachable"),
            ("icmpx", Some(Family::Ip)) => Some("reject with icmp port-unreachable"),
            ("icmpx", Some(Family::Ip6)) => Some("reject with icmpv6 port-unreachable"),
            _ => None,
        };
        if let Some(hint) = wrong {
            let message = format!("`reject with {kind}` does not fit this table's family");
            return Err(SyntaxError::new(at, message).hint(hint));
        }
        let code = match &*kind {
            "icmp" => Kind::IcmpCode,
            "icmpv6" => Kind::Icmpv6Code,
            "icmpx" => return self.icmpx(),
            "tcp-reset" | "rst" | "reset" => {
                let message = format!("`{kind}` is not a way to reject");
                return Err(SyntaxError::new(at, message).hint("did you mean `tcp reset`?"));
            }
            _ => {
                let known = ["tcp", "icmp", "icmpv6", "icmpx"].into_iter();
                return Err(Self::unknown(&kind, at, "a way to reject", known));
            }
        };
        self.eat_word("type");
        let code_value = u8::try_from(self.atom(code)?).unwrap_or(u8::MAX);
        Ok(if code == Kind::IcmpCode {
            Reject::Icmp(code_value)
        } else {
            Reject::Icmpv6(code_value)
        })
    }

    fn icmpx(&mut self) -> Result<Reject, SyntaxError> {
        self.eat_word("type");
        let at = self.span();
        let word = match self.peek() {
            Tok::Word(w) | Tok::Number(w) => w.clone(),
            _ => return Err(self.expected("a reason, like port-unreachable")),
        };
        let Some(&(_, _, reason)) = ICMPX.iter().find(|i| i.0 == &*word || i.1 == &*word) else {
            return Err(Self::unknown(&word, at, "a reason", ICMPX.iter().map(|i| i.0)));
        };
        self.next();
        Ok(Reject::Icmpx(reason))
    }
}

/// The nanoseconds of a period.
pub(super) const PERIODS: &[(&str, u64)] = &[
    ("second", 1_000_000_000),
    ("minute", 60_000_000_000),
    ("hour", 3_600_000_000_000),
    ("day", 86_400_000_000_000),
    ("week", 604_800_000_000_000),
];

/// The reasons by name and by number.
pub(super) const ICMPX: &[(&str, &str, Icmpx)] = &[
    ("no-route", "0", Icmpx::NoRoute),
    ("port-unreachable", "1", Icmpx::PortUnreachable),
    ("host-unreachable", "2", Icmpx::HostUnreachable),
    ("admin-prohibited", "3", Icmpx::AdminProhibited),
];
