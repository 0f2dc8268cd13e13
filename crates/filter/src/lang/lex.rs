//! Converts text to tokens, each with its position.

use std::net::Ipv6Addr;
use std::rc::Rc;

use crate::ruleset::Members;

/// The position of a token or a construct in the source.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Span {
    pub file: u16,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    pub length: u32,
}

/// A mistake, its position, and its replacement.
#[derive(Clone, Debug)]
pub(super) struct SyntaxError {
    pub at: Span,
    pub message: String,
    pub hint: Option<String>,
}

impl SyntaxError {
    pub(super) fn new(at: Span, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Tok {
    /// Starts with a letter; may end in `*`.
    Word(Rc<str>),
    /// Starts with a digit: a number, an IPv4 address, `8021q`.
    Number(Rc<str>),
    /// An IPv6 or MAC address.
    Address(Rc<str>),
    Quoted(Rc<str>),
    /// `@name`
    Set(Rc<str>),
    /// `@client:name`, `@node:name`, `@group:name`
    Who(Members),
    /// `$name`
    Var(Rc<str>),
    Punct(&'static str),
    Newline,
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub tok: Tok,
    pub at: Span,
}

/// All punctuation, the longest first.
const PUNCTUATION: &[&str] = &[
    "==", "!=", "<=", ">=", "<<", ">>", "&&", "||", "{", "}", "(", ")", "[", "]", ",", ";", ".",
    "-", "/", ":", "=", "<", ">", "&", "|", "^", "!", "*", "+", "~",
];

struct Lexer<'a> {
    rest: &'a str,
    file: u16,
    line: u32,
    column: u32,
}

/// Returns all tokens of a text, and an error for each part that is not a token and was skipped.
pub(super) fn lex(text: &str, file: u16) -> (Vec<Token>, Vec<SyntaxError>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lexer = Lexer { rest: text, file, line: 1, column: 1 };
    let (mut tokens, mut errors) = (Vec::new(), Vec::new());
    while let Some(next) = lexer.next() {
        match next {
            Ok(token) => tokens.push(token),
            Err(error) => errors.push(error),
        }
    }
    (tokens, errors)
}

fn of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

impl Lexer<'_> {
    fn take(&mut self, bytes: usize) -> (Rc<str>, Span) {
        let (text, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        let length = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        let at = Span { file: self.file, line: self.line, column: self.column, length };
        self.rest = rest;
        self.column = self.column.saturating_add(length);
        (Rc::from(text), at)
    }

    fn newline(&mut self) {
        self.line = self.line.saturating_add(1);
        self.column = 1;
    }

    fn run(&self, from: usize, of: impl Fn(char) -> bool) -> usize {
        let rest = self.rest.get(from..).unwrap_or("");
        from.saturating_add(rest.find(|c| !of(c)).unwrap_or(rest.len()))
    }

    fn skip_blanks(&mut self) {
        loop {
            let blank = self.run(0, |c| matches!(c, ' ' | '\t' | '\r'));
            if blank > 0 {
                self.take(blank);
            }
            if self.rest.starts_with('#') {
                self.take(self.run(0, |c| c != '\n'));
            }
            let joined = ["\\\n", "\\\r\n"].into_iter().find(|j| self.rest.starts_with(j));
            match joined {
                Some(joined) => {
                    self.take(joined.len());
                    self.newline();
                }
                None if blank == 0 => return,
                None => {}
            }
        }
    }

    fn next(&mut self) -> Option<Result<Token, SyntaxError>> {
        self.skip_blanks();
        let first = self.rest.chars().next()?;
        if first == '\n' {
            let (_, at) = self.take(1);
            self.newline();
            return Some(Ok(Token { tok: Tok::Newline, at }));
        }
        if let Some(length) = self.address() {
            let (text, at) = self.take(length);
            return Some(Ok(Token { tok: Tok::Address(text), at }));
        }
        match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                let end = self.run(0, of_word);
                let star = self.rest.get(end..).is_some_and(|r| r.starts_with('*'));
                let (text, at) = self.take(end.saturating_add(usize::from(star)));
                Some(Ok(Token { tok: Tok::Word(text), at }))
            }
            '0'..='9' => {
                let end = self.run(0, |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
                let (text, at) = self.take(end);
                Some(Ok(Token { tok: Tok::Number(text), at }))
            }
            '"' => Some(self.quoted()),
            '@' => Some(self.at_name()),
            '$' => {
                let (text, at) = self.take(self.run(1, of_word));
                let name = text.strip_prefix('$').unwrap_or("");
                Some(Ok(Token { tok: Tok::Var(Rc::from(name)), at }))
            }
            other => Some(self.punctuation(other)),
        }
    }

    /// Returns the length of an IPv6 or MAC address that starts here.
    fn address(&self) -> Option<usize> {
        let end = self.run(0, |c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'));
        let text = self.rest.get(..end)?;
        let behind = self.rest.get(end..)?.chars().next();
        if text.bytes().filter(|&b| b == b':').count() < 2
            || behind.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            return None;
        }
        // `fd00::1.` may be followed by another part of a concatenation.
        [text, text.trim_end_matches('.')]
            .into_iter()
            .find(|t| mac(t).is_some() || t.parse::<Ipv6Addr>().is_ok())
            .map(str::len)
    }

    fn quoted(&mut self) -> Result<Token, SyntaxError> {
        let end = self.run(1, |c| c != '"' && c != '\n');
        if self.rest.get(end..).is_some_and(|r| r.starts_with('"')) {
            let (text, at) = self.take(end.saturating_add(1));
            let inner = text.get(1..end).unwrap_or("");
            // The text is printed to terminals and logs.
            if inner.chars().any(|c| c.is_control() && c != '\t') {
                return Err(SyntaxError::new(at, "a control character in a quoted text"));
            }
            return Ok(Token { tok: Tok::Quoted(Rc::from(inner)), at });
        }
        let (_, at) = self.take(end);
        Err(SyntaxError::new(at, "a quoted text that does not end on its line")
            .hint("close it with `\"`"))
    }

    fn at_name(&mut self) -> Result<Token, SyntaxError> {
        for kind in Members::KINDS {
            let start = kind.len().saturating_add("@:".len());
            let named = self.rest.strip_prefix('@').and_then(|rest| rest.strip_prefix(kind));
            if let Some(name) = named.and_then(|rest| rest.strip_prefix(':')) {
                if name.starts_with('"') {
                    let (_, mut at) = self.take(start);
                    let token = self.quoted()?;
                    at.length = at.length.saturating_add(token.at.length);
                    let Tok::Quoted(name) = token.tok else {
                        return Err(SyntaxError::new(at, "a name is missing"));
                    };
                    return who(kind, &name, at);
                }
                let end = self.run(start, |c| of_word(c) || c.is_alphanumeric() || c == '@');
                let (text, at) = self.take(end);
                return who(kind, text.get(start..).unwrap_or(""), at);
            }
        }
        let (text, at) = self.take(self.run(1, of_word));
        match text.strip_prefix('@').unwrap_or("") {
            "" => {
                Err(SyntaxError::new(at, "`@` without a set's name").hint("@name, of a set or map"))
            }
            name => Ok(Token { tok: Tok::Set(Rc::from(name)), at }),
        }
    }

    fn punctuation(&mut self, first: char) -> Result<Token, SyntaxError> {
        if let Some(sign) = PUNCTUATION.iter().find(|p| self.rest.starts_with(*p)) {
            let (_, at) = self.take(sign.len());
            return Ok(Token { tok: Tok::Punct(sign), at });
        }
        let (_, at) = self.take(first.len_utf8());
        Err(SyntaxError::new(at, format!("{first:?} means nothing in a rule file")))
    }
}

fn who(kind: &str, name: &str, at: Span) -> Result<Token, SyntaxError> {
    if name.is_empty() {
        return Err(SyntaxError::new(at, "a name is missing").hint("@client:alice or @group:staff"));
    }
    if name.chars().any(|c| c == '"' || c.is_control()) {
        return Err(SyntaxError::new(
            at,
            "a name of a client, node or group cannot have such characters",
        ));
    }
    Ok(Token { tok: Tok::Who(Members::named(kind, name.to_owned())), at })
}

/// Parses a MAC address, `00:11:22:33:44:55`.
pub(super) fn mac(text: &str) -> Option<u64> {
    let mut value = 0_u64;
    let mut groups = 0_u8;
    for group in text.split(':') {
        if !(1..=2).contains(&group.len()) || groups == 6 {
            return None;
        }
        value = value << 8 | u64::from(u8::from_str_radix(group, 16).ok()?);
        groups = groups.saturating_add(1);
    }
    (groups == 6 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')).then_some(value)
}

impl Tok {
    /// Returns the token's name in messages.
    pub(super) fn named(&self) -> String {
        match self {
            Self::Word(t) | Self::Number(t) | Self::Address(t) => format!("`{t}`"),
            Self::Quoted(t) => format!("`\"{t}\"`"),
            Self::Set(t) => format!("`@{t}`"),
            Self::Who(members) => format!("`{}`", members.label().unwrap_or_default()),
            Self::Var(t) => format!("`${t}`"),
            Self::Punct(p) => format!("`{p}`"),
            Self::Newline => "the end of the line".into(),
            Self::End => "the end of the file".into(),
        }
    }
}
