use std::fmt;

use super::option::PushItem;
use crate::config::is_space;

/// The maximum length of a PUSH_REPLY that we send, in bytes including its NUL. OpenVPN uses the
/// same limit.
const MAX_BUNDLE: usize = 1024;
/// The space reserved for `,push-continuation 2` and the NUL.
const RESERVE: usize = 24;
/// The maximum number of options accepted from a server over all parts of a PUSH_REPLY.
const MAX_OPTIONS: usize = 4096;
/// The maximum number of bytes accepted from a server over all parts of a PUSH_REPLY.
const MAX_TOTAL: usize = 256 * 1024;

/// A PUSH_REPLY or PUSH_UPDATE message, lexed. Its `Display` is suitable for a log: it omits the
/// values of secret options.
#[derive(Clone, Debug)]
pub struct PushPart<T> {
    items: Vec<T>,
    length: usize,
    /// Whether the text contains a control character.
    control: bool,
}

impl<T: PushItem> PushPart<T> {
    /// Lexes the text after `PUSH_REPLY,` or `PUSH_UPDATE,`. Commas separate items, even within
    /// quotes.
    pub fn lex(text: &str) -> Self {
        let items = text.split(',').map(|item| item.trim_matches(is_space));
        Self {
            items: items.filter(|item| !item.is_empty()).map(T::lex).collect(),
            length: text.len(),
            control: text.chars().any(char::is_control),
        }
    }
}

impl<T: PushItem> fmt::Display for PushPart<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.items.iter().enumerate() {
            write!(f, "{}{item}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Assembles the parts of a PUSH_REPLY or a PUSH_UPDATE.
#[derive(Clone, Debug)]
pub struct PushAssembler<T> {
    items: Vec<T>,
    total: usize,
}

impl<T> Default for PushAssembler<T> {
    fn default() -> Self {
        Self { items: Vec::new(), total: 0 }
    }
}

/// The reason why a PUSH_REPLY is refused. The fault is the server's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The parts have more options or bytes than are accepted.
    TooMuch,
    /// A part contains a control character.
    ControlCharacter,
    /// The value of `push-continuation` is neither 1 nor 2.
    BadContinuation,
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooMuch => "the server pushes more options than are taken",
            Self::ControlCharacter => "the server pushes an option with control characters",
            Self::BadContinuation => "the server pushes a malformed push-continuation",
        })
    }
}

impl std::error::Error for PushError {}

impl<T: PushItem> PushAssembler<T> {
    /// Adds one message. Returns all items in order once the last part has arrived; the assembler
    /// is then empty again.
    ///
    /// # Errors
    /// [`PushError`]; the parts so far are discarded.
    pub fn add(&mut self, part: PushPart<T>) -> Result<Option<Vec<T>>, PushError> {
        let more = self.take(part).inspect_err(|_| *self = Self::default())?;
        if more {
            return Ok(None);
        }
        self.total = 0;
        Ok(Some(std::mem::take(&mut self.items)))
    }

    /// Adds one message, and returns whether another part follows.
    fn take(&mut self, part: PushPart<T>) -> Result<bool, PushError> {
        self.total = self.total.saturating_add(part.length);
        if self.total > MAX_TOTAL {
            return Err(PushError::TooMuch);
        }
        if part.control {
            return Err(PushError::ControlCharacter);
        }
        let mut more = false;
        for item in part.items {
            if let Some(option) = item.plain().filter(|o| o.name() == "push-continuation") {
                more = match option.args() {
                    [one] if one == "1" => false,
                    [two] if two == "2" => true,
                    _ => return Err(PushError::BadContinuation),
                };
                continue;
            }
            if self.items.len() >= MAX_OPTIONS {
                return Err(PushError::TooMuch);
            }
            self.items.push(item);
        }
        Ok(more)
    }
}

/// An option that does not fit into a PUSH_REPLY even on its own. The fault is the operator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushTooLong(pub String);

impl fmt::Display for PushTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "push: {} bytes are too long for one option (at most {})", self.0.len(), room(0))
    }
}

impl std::error::Error for PushTooLong {}

/// Bundles options into PUSH_REPLY messages of at most 1024 bytes, including the NUL. All messages
/// but the last end in `push-continuation 2`. The last one ends in `push-continuation 1`, unless it
/// is the only one.
///
/// # Errors
/// [`PushTooLong`]
pub fn build_push_reply(options: &[String]) -> Result<Vec<String>, PushTooLong> {
    bundles("PUSH_REPLY", options)
}

/// Bundles the changes of an update into PUSH_UPDATE messages in the same way.
///
/// # Errors
/// [`PushTooLong`]
pub fn build_push_update(changes: &[String]) -> Result<Vec<String>, PushTooLong> {
    bundles("PUSH_UPDATE", changes)
}

fn bundles(start: &str, options: &[String]) -> Result<Vec<String>, PushTooLong> {
    let mut bundles = Vec::new();
    let mut current = start.to_owned();
    for option in options {
        if option.len() > room(start.len()) {
            return Err(PushTooLong(option.clone()));
        }
        if option.len() > room(current.len()) {
            bundles.push(std::mem::replace(&mut current, start.to_owned()));
        }
        current.push(',');
        current.push_str(option);
    }
    if !bundles.is_empty() {
        for bundle in &mut bundles {
            bundle.push_str(",push-continuation 2");
        }
        current.push_str(",push-continuation 1");
    }
    bundles.push(current);
    Ok(bundles)
}

/// Returns the maximum length of an option that can be added, with its comma, to a bundle of length
/// `used`.
const fn room(used: usize) -> usize {
    MAX_BUNDLE.saturating_sub(RESERVE).saturating_sub(used).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    use super::super::option::ReplyItem;

    fn tail(message: &str) -> &str {
        message.strip_prefix("PUSH_REPLY,").unwrap_or_default()
    }

    type Assembler = PushAssembler<ReplyItem>;

    /// Returns the texts of the items.
    fn add(assembler: &mut Assembler, part: &str) -> Result<Option<Vec<String>>, PushError> {
        let items = assembler.add(PushPart::lex(part))?;
        Ok(items.map(|items| items.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn few_options_are_one_message() {
        let options = ["ping 10".to_owned(), "peer-id 1".to_owned()];
        assert_eq!(build_push_reply(&options).unwrap(), ["PUSH_REPLY,ping 10,peer-id 1"]);
        assert_eq!(build_push_reply(&[]).unwrap(), ["PUSH_REPLY"]);
        assert_eq!(add(&mut Assembler::default(), "ping 10,peer-id 1"), Ok(Some(options.to_vec())));
    }

    #[test]
    fn many_options_are_bundled() {
        let options: Vec<String> =
            (0..200).map(|n| format!("route 10.{n}.0.0 255.255.0.0")).collect();
        let messages = build_push_reply(&options).unwrap();
        assert!(messages.len() > 4);
        let mut assembler = Assembler::default();
        for (index, message) in messages.iter().enumerate() {
            assert!(message.len() < MAX_BUNDLE, "{}", message.len());
            let got = add(&mut assembler, tail(message)).unwrap();
            assert_eq!(got.is_some(), index + 1 == messages.len());
            if let Some(got) = got {
                assert_eq!(got, options);
            }
        }
        assert!(messages.last().unwrap().ends_with(",push-continuation 1"));
        assert_eq!(build_push_reply(&["a".repeat(1000)]), Err(PushTooLong("a".repeat(1000))));
    }

    #[test]
    fn what_a_server_may_send_is_bounded() {
        let mut assembler = Assembler::default();
        let part = format!("{},push-continuation 2", "verb 1,".repeat(200));
        let refused = (0..1000).find_map(|_| add(&mut assembler, &part).err());
        assert_eq!(refused, Some(PushError::TooMuch));
        // The earlier parts are discarded.
        assert_eq!(add(&mut assembler, "ping 1"), Ok(Some(vec!["ping 1".into()])));
        let part = format!("{},push-continuation 2", "a".repeat(1900));
        assert!((0..1000).any(|_| add(&mut assembler, &part) == Err(PushError::TooMuch)));
        assert_eq!(add(&mut assembler, "ping 1\nup x"), Err(PushError::ControlCharacter));
        assert_eq!(add(&mut assembler, "push-continuation 3"), Err(PushError::BadContinuation));
    }

    proptest! {
        #[test]
        fn bundles_come_back_whole(options in proptest::collection::vec("[a-z][a-z0-9 .]{0,200}[a-z]", 0..60)) {
            let messages = build_push_reply(&options).unwrap();
            let mut assembler = Assembler::default();
            let mut got = None;
            for message in &messages {
                prop_assert!(message.len() < MAX_BUNDLE);
                prop_assert!(got.is_none());
                got = assembler.add(PushPart::lex(tail(message))).unwrap();
            }
            let items: Vec<_> = options.iter().map(|option| ReplyItem::lex(option)).collect();
            prop_assert_eq!(got.unwrap_or_default(), items);
        }
    }
}
