//! The parser's position in the tokens.

use std::rc::Rc;

use super::diagnostic::similar;
use super::lex::{Span, SyntaxError, Tok, Token};
use super::raw_ruleset::RawRuleset;

/// The number of errors after which parsing of a file stops.
const MAX_ERRORS: usize = 200;

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    /// The number of open braces before the current token.
    depth: usize,
    end: Token,
    pub errors: Vec<SyntaxError>,
    pub drafts: Vec<RawRuleset>,
    pub rules: usize,
    pub elements: usize,
}

impl Parser {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        let at = tokens.last().map_or(Span { line: 1, column: 1, length: 1, file: 0 }, |t| t.at);
        Self {
            tokens,
            at: 0,
            depth: 0,
            end: Token { tok: Tok::End, at },
            errors: Vec::new(),
            drafts: Vec::new(),
            rules: 0,
            elements: 0,
        }
    }

    fn token(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&self.end)
    }

    pub(super) fn peek(&self) -> &Tok {
        &self.token().tok
    }

    pub(super) fn peek_second(&self) -> &Tok {
        self.tokens.get(self.at.saturating_add(1)).map_or(&Tok::End, |t| &t.tok)
    }

    pub(super) fn span(&self) -> Span {
        self.token().at
    }

    /// Returns the position of the last token.
    pub(super) fn before(&self) -> Span {
        self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(self.end.at, |t| t.at)
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.token().clone();
        match token.tok {
            Tok::Punct("{") => self.depth = self.depth.saturating_add(1),
            Tok::Punct("}") => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.at = self.at.saturating_add(1).min(self.tokens.len());
        token
    }

    pub(super) fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Tok::Punct(p) if *p == sign)
    }

    pub(super) fn consume(&mut self, sign: &str) -> bool {
        let found = self.is(sign);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Tok::Word(w) if &**w == word)
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    /// Returns an error that reports what was expected here.
    pub(super) fn expected(&self, what: &str) -> SyntaxError {
        SyntaxError::new(self.span(), format!("expected {what}, found {}", self.peek().named()))
    }

    pub(super) fn expect(&mut self, sign: &str, why: &str) -> Result<Span, SyntaxError> {
        if self.is(sign) {
            Ok(self.next().at)
        } else {
            Err(self.expected(&format!("`{sign}` {why}")))
        }
    }

    pub(super) fn word(&mut self, what: &str) -> Result<(Rc<str>, Span), SyntaxError> {
        match self.peek() {
            Tok::Word(word) => {
                let word = word.clone();
                Ok((word, self.next().at))
            }
            _ => Err(self.expected(what)),
        }
    }

    /// Reads a name that the author of the rules chose for a table, chain, set or counter.
    pub(super) fn name(&mut self, what: &str) -> Result<(Rc<str>, Span), SyntaxError> {
        let (name, at) = match self.peek() {
            Tok::Word(name) | Tok::Quoted(name) => {
                let name = name.clone();
                (name, self.next().at)
            }
            _ => return Err(self.expected(&format!("the name of a {what}"))),
        };
        let good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        if good && name.len() <= super::MAX_NAME {
            return Ok((name, at));
        }
        let message = format!(
            "a {what}'s name starts with a letter and has letters, digits, `_`, `-` and `.`, at \
             most {} of them",
            super::MAX_NAME
        );
        Err(SyntaxError::new(at, message))
    }

    pub(super) fn quoted(&mut self, what: &str) -> Result<(Rc<str>, Span), SyntaxError> {
        match self.peek() {
            Tok::Quoted(text) => {
                let text = text.clone();
                Ok((text, self.next().at))
            }
            _ => Err(self.expected(&format!("{what} in quotes"))),
        }
    }

    /// Parses a comment's text, after the keyword.
    pub(super) fn comment(&mut self) -> Result<Option<String>, SyntaxError> {
        let (text, at) = self.quoted("a comment")?;
        if text.len() > super::MAX_COMMENT {
            let message = format!("a comment longer than {} bytes", super::MAX_COMMENT);
            return Err(SyntaxError::new(at, message));
        }
        Ok(Some(text.to_string()))
    }

    pub(super) fn number(&mut self, what: &str) -> Result<(u64, Span), SyntaxError> {
        if let Tok::Number(text) = self.peek() {
            let text = text.clone();
            if let Some(value) = super::value::integer(&text).and_then(|v| u64::try_from(v).ok()) {
                return Ok((value, self.next().at));
            }
        }
        Err(self.expected(what))
    }

    pub(super) fn skip_newlines(&mut self) {
        while matches!(self.peek(), Tok::Newline) {
            self.next();
        }
    }

    pub(super) fn skip_separators(&mut self) {
        while matches!(self.peek(), Tok::Newline | Tok::Punct(";")) {
            self.next();
        }
    }

    pub(super) fn at_statement_end(&self) -> bool {
        matches!(self.peek(), Tok::Newline | Tok::Punct(";" | "}") | Tok::End)
    }

    pub(super) fn statement_end(&mut self) -> Result<(), SyntaxError> {
        if self.at_statement_end() {
            return Ok(());
        }
        Err(self.expected("the end of the line or `;`"))
    }

    /// Runs `parse`; after an error, records it and continues after the statement that contains it.
    pub(super) fn statement(&mut self, parse: impl FnOnce(&mut Self) -> Result<(), SyntaxError>) {
        let (depth, start) = (self.depth, self.at);
        let Err(error) = parse(self) else {
            return;
        };
        self.errors.push(error);
        if self.errors.len() >= MAX_ERRORS {
            self.at = self.tokens.len();
        }
        loop {
            match self.peek() {
                Tok::End => return,
                Tok::Newline | Tok::Punct(";") if self.depth <= depth => break,
                Tok::Punct("}") if self.depth <= depth && depth > 0 => break,
                _ => {
                    self.next();
                }
            }
        }
        // In any case, no statement is read twice.
        if self.at == start {
            self.next();
        }
    }

    /// Returns the error for an unknown word, suggesting the word that was probably meant.
    pub(super) fn unknown<'a>(
        word: &str,
        at: Span,
        what: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> SyntaxError {
        let error = SyntaxError::new(at, format!("`{word}` is not {what}"));
        match similar(word, known.clone()) {
            Some(meant) => error.hint(format!("did you mean `{meant}`?")),
            None => {
                let mut all: Vec<&str> = Vec::new();
                for word in known {
                    if !all.contains(&word) {
                        all.push(word);
                    }
                }
                if all.is_empty() {
                    error
                } else {
                    error.hint(format!("one of: {}", all.join(", ")))
                }
            }
        }
    }
}
