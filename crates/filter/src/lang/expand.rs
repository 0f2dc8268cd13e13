//! `include`, `define` and `$name`. The result is a stream of tokens, as if the text were in one
//! file.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use super::diagnostic::similar;
use super::lex::{Span, SyntaxError, Tok, Token, lex};
use super::{MAX_DEFINED, MAX_FILE, MAX_INCLUDE_DEPTH, MAX_INCLUDES, MAX_TOKENS};

/// Reads an included file.
pub(super) type Files<'a> = &'a mut dyn FnMut(&str) -> io::Result<String>;

/// A source text.
pub(super) struct Source {
    pub name: String,
    pub text: String,
}

pub(super) struct Expander<'a> {
    files: Files<'a>,
    pub sources: Vec<Source>,
    pub tokens: Vec<Token>,
    pub errors: Vec<SyntaxError>,
    /// The innermost block is last.
    scopes: Vec<HashMap<Rc<str>, Rc<[Token]>>>,
    /// The number of words in definitions that come from other definitions.
    defined: usize,
    bytes: usize,
    full: bool,
}

impl<'a> Expander<'a> {
    pub(super) fn new(files: Files<'a>) -> Self {
        Self {
            files,
            sources: Vec::new(),
            tokens: Vec::new(),
            errors: Vec::new(),
            scopes: vec![HashMap::new()],
            defined: 0,
            bytes: 0,
            full: false,
        }
    }

    pub(super) fn file(&mut self, name: &str, text: &str, included: Option<Span>, depth: usize) {
        let file = u16::try_from(self.sources.len()).unwrap_or(u16::MAX);
        let here = included.unwrap_or(Span { file, line: 1, column: 1, length: 1 });
        self.bytes = self.bytes.saturating_add(text.len());
        let fits = self.bytes <= MAX_FILE;
        let kept = if fits { text.to_owned() } else { String::new() };
        self.sources.push(Source { name: name.to_owned(), text: kept });
        if !fits {
            let message = format!("rule files of more than {} MiB together", MAX_FILE >> 20);
            self.errors.push(SyntaxError::new(here, message));
            return;
        }
        let (tokens, errors) = lex(text, file);
        self.errors.extend(errors);
        let mut at = 0_usize;
        let mut start = true;
        while let Some(token) = tokens.get(at) {
            at = at.saturating_add(1);
            let rest = tokens.get(at..).unwrap_or(&[]);
            match &token.tok {
                Tok::Word(word) if start && is_directive(word, rest) => {
                    let used = self.directive(word, token.at, rest, depth);
                    at = at.saturating_add(used);
                    continue;
                }
                Tok::Var(name) => self.variable(name, token.at),
                _ => self.push(token.clone()),
            }
            match &token.tok {
                Tok::Punct("{") => self.scopes.push(HashMap::new()),
                Tok::Punct("}") if self.scopes.len() > 1 => {
                    self.scopes.pop();
                }
                _ => {}
            }
            start = matches!(token.tok, Tok::Newline | Tok::Punct(";" | "{" | "}"));
            if self.full {
                return;
            }
        }
        let last = tokens.last().map_or(here, |t| Span { length: 1, ..t.at });
        self.push(Token { tok: Tok::Newline, at: last });
    }

    fn push(&mut self, token: Token) {
        if self.tokens.len() < MAX_TOKENS {
            self.tokens.push(token);
        } else {
            self.overflow(token.at, MAX_TOKENS, "with included files and definitions");
        }
    }

    /// Stops reading, because there are too many tokens.
    fn overflow(&mut self, at: Span, most: usize, of_what: &str) {
        if !self.full {
            self.full = true;
            self.errors.push(SyntaxError::new(at, format!("more than {most} words, {of_what}")));
        }
    }

    /// Returns the definitions outside all blocks whose names begin with `prefix`, with their
    /// names.
    pub(super) fn definitions(&self, prefix: &str) -> Vec<(Rc<str>, Rc<[Token]>)> {
        let outermost = self.scopes.iter().take(1).flatten();
        let named = outermost.filter(|(name, _)| name.starts_with(prefix));
        let mut all: Vec<_> =
            named.map(|(name, value)| (Rc::clone(name), Rc::clone(value))).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    fn lookup(&self, name: &str) -> Option<Rc<[Token]>> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).cloned()
    }

    fn unknown(&mut self, name: &str, at: Span) {
        let known = self.scopes.iter().flat_map(HashMap::keys).map(|k| &**k);
        let hint = match similar(name, known) {
            Some(meant) => format!("${meant}"),
            None => format!("define {name} = VALUE on a line before"),
        };
        self.errors.push(SyntaxError::new(at, format!("`${name}` is not defined")).hint(hint));
    }

    fn variable(&mut self, name: &Rc<str>, at: Span) {
        let Some(value) = self.lookup(name) else {
            self.unknown(name, at);
            return self.push(Token { tok: Tok::Var(name.clone()), at });
        };
        // The position is where the definition is used, because the author of the rules looks
        // there.
        for token in value.iter() {
            self.push(Token { tok: token.tok.clone(), at });
            if self.full {
                return;
            }
        }
    }

    /// Executes a directive; returns how many tokens it took.
    fn directive(&mut self, word: &str, at: Span, rest: &[Token], depth: usize) -> usize {
        if word == "include" {
            if let Some(Token { tok: Tok::Quoted(path), at }) = rest.first() {
                self.include(path, *at, depth);
            }
            return 1;
        }
        let Some(Token { tok: Tok::Word(name), at: name_at }) = rest.first() else {
            return 0;
        };
        if word == "undefine" {
            if !self.scopes.iter_mut().rev().any(|s| s.remove(name).is_some()) {
                self.errors.push(SyntaxError::new(*name_at, format!("`{name}` is not defined")));
            }
            return 1;
        }
        if !matches!(rest.get(1), Some(Token { tok: Tok::Punct("="), .. })) {
            let error = SyntaxError::new(at, format!("`{word} {name}` without a value"));
            self.errors.push(error.hint(format!("{word} {name} = VALUE")));
            return 1;
        }
        let (value, used) = self.value(rest.get(2..).unwrap_or(&[]));
        if value.is_empty() {
            let error = SyntaxError::new(at, format!("`{word} {name} =` without a value"));
            self.errors.push(error.hint(format!("{word} {name} = VALUE")));
        }
        let scope = self.scopes.last_mut();
        if let Some(scope) = scope
            && scope.insert(name.clone(), value).is_some()
            && word == "define"
        {
            let error = SyntaxError::new(*name_at, format!("`{name}` is defined already"));
            self.errors.push(error.hint(format!("redefine {name} = VALUE")));
        }
        used.saturating_add(2)
    }

    /// Parses a definition's value, which ends at the end of the line; inside braces it may span
    /// several lines.
    fn value(&mut self, rest: &[Token]) -> (Rc<[Token]>, usize) {
        let mut value: Vec<Token> = Vec::new();
        let mut depth = 0_usize;
        let mut used = 0_usize;
        for token in rest {
            match &token.tok {
                Tok::Newline | Tok::Punct(";") if depth == 0 => break,
                Tok::Punct("{") => depth = depth.saturating_add(1),
                Tok::Punct("}") if depth == 0 => break,
                Tok::Punct("}") => depth = depth.saturating_sub(1),
                _ => {}
            }
            used = used.saturating_add(1);
            match &token.tok {
                Tok::Var(name) => match self.lookup(name) {
                    Some(inner) => {
                        self.defined = self.defined.saturating_add(inner.len());
                        if self.defined <= MAX_DEFINED {
                            value.extend(inner.iter().cloned());
                        } else {
                            self.overflow(token.at, MAX_DEFINED, "in definitions");
                            break;
                        }
                    }
                    None => self.unknown(name, token.at),
                },
                _ => value.push(token.clone()),
            }
        }
        (Rc::from(value), used)
    }

    fn include(&mut self, path: &str, at: Span, depth: usize) {
        if path.contains(['*', '?', '[']) {
            let error = SyntaxError::new(at, "`include` takes one file, not a pattern");
            return self.errors.push(error.hint("one `include` for each file"));
        }
        if depth >= MAX_INCLUDE_DEPTH || self.sources.len() >= MAX_INCLUDES {
            let message = format!(
                "includes more than {MAX_INCLUDE_DEPTH} deep, or more than {MAX_INCLUDES} files: \
                 does a file include itself?"
            );
            return self.errors.push(SyntaxError::new(at, message));
        }
        let from = self.sources.get(usize::from(at.file)).map_or("", |s| &s.name);
        let folder = std::path::Path::new(from).parent();
        let path = folder.map_or_else(|| path.into(), |folder| folder.join(path));
        let path = path.to_string_lossy();
        match (self.files)(&path) {
            Ok(text) => self.file(&path, &text, Some(at), depth.saturating_add(1)),
            Err(error) => self.errors.push(SyntaxError::new(at, format!("{path}: {error}"))),
        }
    }
}

/// Returns whether a word is a directive. `define` may be a chain's name elsewhere, so it is a
/// directive only at the start of a statement, before its operand.
fn is_directive(word: &str, rest: &[Token]) -> bool {
    let next = rest.first().map(|t| &t.tok);
    match word {
        "include" => matches!(next, Some(Tok::Quoted(_))),
        "define" | "redefine" | "undefine" => matches!(next, Some(Tok::Word(_))),
        _ => false,
    }
}
