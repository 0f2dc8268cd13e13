//! Splits a line into words by OpenVPN's quoting rules.

/// The reason why a line cannot be split into words.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LexError {
    UnclosedQuote(char),
    BadEscape(char),
    EndsInBackslash,
    ControlCharacter,
}

impl LexError {
    pub(super) fn problem(self) -> String {
        match self {
            Self::UnclosedQuote(quote) => format!("a {quote} is opened but not closed"),
            Self::BadEscape(c) => format!("there is a backslash before {c:?}"),
            Self::EndsInBackslash => "the line ends in a backslash".into(),
            Self::ControlCharacter => "there is a control character in the line".into(),
        }
    }

    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::UnclosedQuote(_) => "close it on the same line, or put a backslash before it",
            Self::BadEscape(_) | Self::EndsInBackslash => {
                "write two backslashes for one, or put the word between '...'"
            }
            Self::ControlCharacter => "remove it; lines end in LF or CR LF",
        }
    }
}

/// Returns whether a byte is ASCII white space that separates words, as in C's `isspace`.
pub(crate) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// Splits a line into words. Quotes, `#` and `;` are special only at the beginning of a word. A
/// backslash escapes a space, a quote or a backslash, except within single quotes.
pub(crate) fn words(line: &str) -> Result<Vec<String>, LexError> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    loop {
        while chars.next_if(|c| is_space(*c)).is_some() {}
        let Some(&first) = chars.peek() else { return Ok(words) };
        match first {
            '#' | ';' => return Ok(words),
            '"' | '\'' => {
                chars.next();
                words.push(quoted(&mut chars, first)?);
            }
            _ => words.push(bare(&mut chars)?),
        }
    }
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn quoted(chars: &mut Chars<'_>, quote: char) -> Result<String, LexError> {
    let mut word = String::new();
    while let Some(c) = chars.next() {
        match c {
            _ if c == quote => return Ok(word),
            '\\' if quote == '"' => word.push(escaped(chars)?),
            _ if c.is_control() && c != '\t' => return Err(LexError::ControlCharacter),
            _ => word.push(c),
        }
    }
    Err(LexError::UnclosedQuote(quote))
}

fn bare(chars: &mut Chars<'_>) -> Result<String, LexError> {
    let mut word = String::new();
    while let Some(c) = chars.next_if(|c| !is_space(*c)) {
        match c {
            '\\' => word.push(escaped(chars)?),
            _ if c.is_control() => return Err(LexError::ControlCharacter),
            _ => word.push(c),
        }
    }
    Ok(word)
}

fn escaped(chars: &mut Chars<'_>) -> Result<char, LexError> {
    match chars.next() {
        Some(c @ ('\\' | '"' | '\'')) => Ok(c),
        Some(c) if is_space(c) => Ok(c),
        Some(c) => Err(LexError::BadEscape(c)),
        None => Err(LexError::EndsInBackslash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(line: &str) -> Vec<String> {
        words(line).unwrap()
    }

    #[test]
    fn words_are_split_at_spaces() {
        assert_eq!(ok("  remote\tvpn.example.org  1194 "), ["remote", "vpn.example.org", "1194"]);
        assert!(ok("").is_empty());
        assert_eq!(ok("a\u{b}b\u{c}c\r"), ["a", "b", "c"]);
        // Unicode white space is part of a word.
        assert_eq!(ok("route\u{a0}10.0.0.0\u{2003}x"), ["route\u{a0}10.0.0.0\u{2003}x"]);
        assert_eq!(words("a\\\u{a0}b"), Err(LexError::BadEscape('\u{a0}')));
    }

    #[test]
    fn comments_begin_where_a_word_could() {
        assert_eq!(ok("verb 3 # three"), ["verb", "3"]);
        assert_eq!(ok("echo a#b c;d ;e"), ["echo", "a#b", "c;d"]);
        assert!(ok("; all of it").is_empty());
    }

    #[test]
    fn quotes_group_words_but_only_at_their_beginning() {
        assert_eq!(ok(r#"push "route 10.0.0.0 255.0.0.0""#), ["push", "route 10.0.0.0 255.0.0.0"]);
        assert_eq!(ok(r#"echo 'a\b "c"'"#), ["echo", r#"a\b "c""#]);
        assert_eq!(ok(r#"setenv a b"c d"e"#), ["setenv", "a", "b\"c", "d\"e"]);
        assert_eq!(ok(r#"setenv a "b c"d"#), ["setenv", "a", "b c", "d"]);
        assert_eq!(ok(r#"echo """#), ["echo", ""]);
    }

    #[test]
    fn a_backslash_takes_the_meaning_from_the_next_character() {
        assert_eq!(ok(r#"echo a\ b "q\"z" \\"#), ["echo", "a b", "q\"z", "\\"]);
        assert_eq!(words(r"ca c:\keys\ca.crt"), Err(LexError::BadEscape('k')));
        assert_eq!(words(r"verb 3\"), Err(LexError::EndsInBackslash));
        assert_eq!(words("echo \"a"), Err(LexError::UnclosedQuote('"')));
        assert_eq!(words("echo a\0b"), Err(LexError::ControlCharacter));
    }
}
