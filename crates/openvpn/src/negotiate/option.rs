//! An option that a server pushes, lexed once.

use std::fmt;

use crate::config::{is_space, words};

/// The maximum length of an option's text in a note or an error, in characters.
const MAX_SHOWN: usize = 120;
/// The maximum length of the start of a malformed option in a note or an error, in characters.
const MAX_START: usize = 32;
/// Options whose values must not reach logs. A token is equivalent to a password, and `echo`
/// carries arbitrary data for a provider's own client programs.
const SECRET: [&str; 2] = ["auth-token", "echo"];

/// A pushed option: its name and its arguments, after quotes and escapes have been resolved.
///
/// The original text is not kept, so that filters, parsers, removals and logs all use the same
/// words.
#[derive(Clone, PartialEq, Eq)]
pub struct PushedOption {
    name: String,
    args: Vec<String>,
}

/// Text in a push message that is not an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnOption {
    /// The leading name characters of the text. The rest may be a secret.
    start: String,
    reason: &'static str,
}

impl PushedOption {
    /// Lexes one item of a push message. Only ASCII white space separates words.
    ///
    /// # Errors
    /// [`NotAnOption`] if there is no word, a quote or an escape is malformed, or the name does not
    /// consist of `[a-z0-9-]`, beginning with a letter or a digit.
    pub fn parse(text: &str) -> Result<Self, NotAnOption> {
        let refused = |reason| NotAnOption { start: start(text), reason };
        let words = words(text).map_err(|_| refused("malformed quotes or escapes"))?;
        let mut words = words.into_iter();
        let name = words.next().ok_or_else(|| refused("no name"))?;
        if name.is_empty() || name.starts_with('-') || !name.chars().all(is_name) {
            return Err(refused("a name that is not of a-z, 0-9 and -"));
        }
        Ok(Self { name, args: words.collect() })
    }

    /// Returns the option's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the option's arguments.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Returns the name and the arguments, joined by single spaces, which is the text that filters
    /// compare. White space within an argument also becomes one space.
    pub fn text(&self) -> String {
        let words = self.args.iter().flat_map(|arg| arg.split(is_space));
        words.filter(|word| !word.is_empty()).fold(self.name.clone(), |mut text, word| {
            text.push(' ');
            text.push_str(word);
            text
        })
    }

    /// Returns the option for a note or an error: bounded, and without the values of secret
    /// options.
    pub fn shown(&self) -> String {
        self.to_string().chars().take(MAX_SHOWN).collect()
    }

    /// Returns whether the option's value must not reach logs.
    pub(super) fn is_secret(&self) -> bool {
        SECRET.contains(&self.name.as_str())
    }
}

/// Writes the option without the values of secret options.
impl fmt::Display for PushedOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_secret() { write!(f, "{} ...", self.name) } else { f.write_str(&self.text()) }
    }
}

impl fmt::Debug for PushedOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PushedOption({self})")
    }
}

impl fmt::Display for NotAnOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ... ({})", self.start, self.reason)
    }
}

fn is_name(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '-')
}

fn start(text: &str) -> String {
    let text = text.trim_start_matches(|c| is_space(c) || matches!(c, '"' | '\''));
    text.chars().take_while(|c| is_name(*c)).take(MAX_START).collect()
}

/// One item between the commas of a push message.
pub trait PushItem: fmt::Display + Sized {
    /// Lexes the item.
    fn lex(text: &str) -> Self;
    /// Returns the item as a plain option, if it is one.
    fn plain(&self) -> Option<&PushedOption>;
}

/// An item of a PUSH_REPLY: an option, or other text, which is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyItem(pub Result<PushedOption, NotAnOption>);

impl PushItem for ReplyItem {
    fn lex(text: &str) -> Self {
        Self(PushedOption::parse(text))
    }

    fn plain(&self) -> Option<&PushedOption> {
        self.0.as_ref().ok()
    }
}

impl fmt::Display for ReplyItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(option) => option.fmt(f),
            Err(refused) => refused.fmt(f),
        }
    }
}

/// An item of a PUSH_UPDATE: `option ...`, `-option`, `?option ...` or `-?option`. White space
/// after the flags has no meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `-`: options of that name are removed.
    pub remove: bool,
    /// `?`: the client may ignore the item.
    pub optional: bool,
    /// The option, or text that is not an option.
    pub option: Result<PushedOption, NotAnOption>,
}

impl PushItem for Change {
    fn lex(text: &str) -> Self {
        let (remove, rest) = flag(text, '-');
        let (optional, rest) = flag(rest, '?');
        Self { remove, optional, option: PushedOption::parse(rest) }
    }

    fn plain(&self) -> Option<&PushedOption> {
        self.option.as_ref().ok().filter(|_| !self.remove && !self.optional)
    }
}

fn flag(text: &str, flag: char) -> (bool, &str) {
    match text.strip_prefix(flag) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.remove { "-" } else { "" })?;
        f.write_str(if self.optional { "?" } else { "" })?;
        match &self.option {
            Ok(option) => option.fmt(f),
            Err(refused) => refused.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(option: &str) -> String {
        PushedOption::parse(option).map_or_else(|e| e.to_string(), |o| o.text())
    }

    #[test]
    fn spelling_makes_no_difference() {
        for spelling in [
            "route 10.0.0.0 255.0.0.0",
            r#""route" 10.0.0.0 255.0.0.0"#,
            "'route'\t10.0.0.0 \"255.0.0.0\"",
            "  route   10.0.0.0\u{b}255.0.0.0 # said",
            r#"route " 10.0.0.0" "" 255.0.0.0"#,
            r#"route "10.0.0.0 255.0.0.0""#,
        ] {
            assert_eq!(text(spelling), "route 10.0.0.0 255.0.0.0", "{spelling}");
        }
    }

    #[test]
    fn names_are_plain() {
        for text in [
            "",
            "# route",
            "Route 10.0.0.0",
            "ro\u{fc}te 10.0.0.0",
            "route\u{a0}10.0.0.0 255.0.0.0",
            "\u{2003}route 10.0.0.0",
            "route\u{85}10.0.0.0",
            r#""route 10.0.0.0""#,
            r#""route 10.0.0.0"#,
            r"ro\ute 10.0.0.0",
            r#"ro"ute" 10.0.0.0"#,
            "-route 10.0.0.0",
            "?route 10.0.0.0",
            "\"\" route",
            "route_10",
        ] {
            assert!(PushedOption::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn no_spelling_shows_a_token() {
        for text in [
            "auth-token SECRET",
            "\"auth-token\" SECRET",
            "'auth-token'\tSECRET",
            "auth-token\u{a0}SECRET",
            "\"auth-token SECRET",
            "\"auth-token SECRET\"",
            "?auth-token SECRET",
            "-auth-token SECRET",
            "AUTH-TOKEN SECRET",
            "auth\\-token SECRET",
            "echo SECRET",
        ] {
            let (reply, change) = (ReplyItem::lex(text), Change::lex(text));
            assert!(!format!("{reply} {reply:?} {change} {change:?}").contains("SECRET"), "{text}");
        }
    }

    #[test]
    fn flags_of_a_change_stand_before_the_option() {
        let lexed = |text| {
            let change = Change::lex(text);
            let option = change.option.ok().map(|option| option.text());
            (change.remove, change.optional, option)
        };
        let route = || Some("route a".to_owned());
        assert_eq!(lexed("route a"), (false, false, route()));
        assert_eq!(lexed("-route a"), (true, false, route()));
        assert_eq!(lexed("? \"route\" a"), (false, true, route()));
        assert_eq!(lexed("-?  route a"), (true, true, route()));
        assert_eq!(lexed("--route a"), (true, false, None));
        assert_eq!(lexed("?-route a"), (false, true, None));
    }
}
