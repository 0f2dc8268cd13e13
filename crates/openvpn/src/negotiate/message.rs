use std::fmt;
use std::time::Duration;

/// The maximum length of a control message from a peer, in bytes (its TLS record has the same
/// bound).
pub const MAX_MESSAGE: usize = 2048;

/// A text message on the TLS channel after the key exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// `PUSH_REQUEST`.
    PushRequest,
    /// `PUSH_REPLY`, with the text after its comma, which is input for a [`super::PushAssembler`].
    PushReply(String),
    /// `PUSH_UPDATE`, with the text after its comma.
    PushUpdate(String),
    /// `AUTH_FAILED`.
    AuthFailed(AuthFailed),
    /// `AUTH_PENDING[,timeout N]`: the server first waits for the user.
    AuthPending(Option<Duration>),
    /// `INFO,...`: a text for the user.
    Info(String),
    /// `INFO_PRE,...`: a text for the user before authentication is complete.
    InfoPre(String),
    /// `CR_RESPONSE,...`: the response to a challenge, in base64.
    ChallengeResponse(String),
    /// `RESTART[,...]`.
    Restart(Restart),
    /// `HALT[,...]`: the client must end for good, with the reason.
    Halt(String),
    /// `EXIT`: the other end disconnects.
    Exit,
    /// Any other message, printable and bounded, to be logged.
    Unknown(String),
}

/// `AUTH_FAILED[,...]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthFailed {
    /// `TEMP`: try again later, with the same password.
    pub temporary: bool,
    /// `backoff N`: wait at least this long.
    pub backoff: Option<Duration>,
    /// `advance ...`: the server to try next.
    pub advance: AdvanceTo,
    /// `CRV1:...`: a dynamic challenge, whose raw form is in `reason`.
    pub challenge: bool,
    /// The text of the server.
    pub reason: String,
}

/// The server to try next.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum AdvanceTo {
    /// Not specified: the next address.
    #[default]
    Address,
    /// `no`: the same address.
    Stay,
    /// `remote`: the next `remote` line.
    Remote,
}

/// `RESTART[,FLAGS]TEXT`, with flags in brackets: `[P]`, `[N]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// `P`: keep the credentials.
    pub keep_credentials: bool,
    /// `N`: advance to the next server.
    pub next_server: bool,
    /// The text after the flags.
    pub reason: String,
}

/// The reason why a control message is dropped. The fault is the peer's and does not end the
/// session.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BadMessage {
    /// The message is longer than [`MAX_MESSAGE`].
    TooLong,
    /// The message contains a NUL or an unprintable byte.
    Unprintable,
    /// The message is empty.
    Empty,
}

impl fmt::Display for BadMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the peer sent an overlong control message",
            Self::Unprintable => "the peer sent a control message with unprintable characters",
            Self::Empty => "the peer sent an empty control message",
        })
    }
}

impl std::error::Error for BadMessage {}

impl ControlMessage {
    /// Parses the messages in one TLS record. Usually there is one, terminated by NUL; a peer may
    /// send several.
    pub fn parse_record(record: &[u8]) -> impl Iterator<Item = Result<Self, BadMessage>> + '_ {
        record.split(|byte| *byte == 0).filter(|text| !text.is_empty()).map(Self::parse)
    }

    /// Parses one message. It is NUL-terminated on the wire and, as in OpenVPN, may be followed by
    /// CR or LF.
    ///
    /// # Errors
    /// [`BadMessage`]: the caller drops and counts the message.
    pub fn parse(text: &[u8]) -> Result<Self, BadMessage> {
        if text.len() > MAX_MESSAGE {
            return Err(BadMessage::TooLong);
        }
        let text = text.strip_suffix(&[0]).unwrap_or(text);
        let end = text
            .iter()
            .rposition(|b| !matches!(b, b'\r' | b'\n'))
            .map_or(0, |i| i.saturating_add(1));
        let text = text.get(..end).unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| BadMessage::Unprintable)?;
        if text.is_empty() {
            return Err(BadMessage::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(BadMessage::Unprintable);
        }
        Ok(Self::from_text(text))
    }

    fn from_text(text: &str) -> Self {
        let (word, rest) = match text.split_once(',') {
            Some((word, rest)) => (word, Some(rest)),
            None => (text, None),
        };
        let tail = || rest.unwrap_or_default().to_owned();
        match word {
            "PUSH_REQUEST" if rest.is_none() => Self::PushRequest,
            "PUSH_REPLY" => Self::PushReply(tail()),
            "PUSH_UPDATE" => Self::PushUpdate(tail()),
            "AUTH_FAILED" => Self::AuthFailed(AuthFailed::parse(rest.unwrap_or_default())),
            "AUTH_PENDING" => Self::AuthPending(pending_timeout(rest.unwrap_or_default())),
            "INFO" => Self::Info(tail()),
            "INFO_PRE" => Self::InfoPre(tail()),
            "CR_RESPONSE" => Self::ChallengeResponse(tail()),
            "RESTART" => Self::Restart(Restart::parse(rest.unwrap_or_default())),
            "HALT" => Self::Halt(tail()),
            "EXIT" if rest.is_none() => Self::Exit,
            _ => Self::Unknown(text.to_owned()),
        }
    }

    /// Encodes the message as the bytes of one TLS record: the text and a NUL.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.to_string().into_bytes();
        bytes.push(0);
        bytes
    }
}

/// Finds `timeout N` among comma-separated keywords.
fn pending_timeout(keywords: &str) -> Option<Duration> {
    keywords
        .split(',')
        .find_map(|word| word.trim().strip_prefix("timeout "))
        .and_then(|seconds| seconds.trim().parse::<u32>().ok())
        .map(|seconds| Duration::from_secs(u64::from(seconds)))
}

impl AuthFailed {
    fn parse(text: &str) -> Self {
        // "TEMPORARILY closed" is a reason, not a keyword.
        let temporary = text
            .strip_prefix("TEMP")
            .filter(|rest| rest.is_empty() || rest.starts_with(['[', ':']));
        let Some(temporary) = temporary else {
            return Self {
                challenge: text.starts_with("CRV1:"),
                reason: text.to_owned(),
                ..Self::default()
            };
        };
        let mut failed = Self { temporary: true, ..Self::default() };
        let (keywords, reason) = match temporary.strip_prefix('[') {
            Some(flags) => flags.split_once(']').unwrap_or((flags, "")),
            None => ("", temporary),
        };
        failed.reason = reason.strip_prefix(':').unwrap_or(reason).to_owned();
        for keyword in keywords.split(',') {
            match keyword.trim().split_once(' ') {
                Some(("backoff", n)) => {
                    failed.backoff = n.parse().ok().map(|n: u32| Duration::from_secs(n.into()));
                }
                Some(("advance", "no")) => failed.advance = AdvanceTo::Stay,
                Some(("advance", "remote")) => failed.advance = AdvanceTo::Remote,
                // "advance addr" is the default; unknown keywords are reserved for later versions.
                _ => {}
            }
        }
        failed
    }
}

impl Restart {
    fn parse(text: &str) -> Self {
        let Some((flags, reason)) = text.strip_prefix('[').and_then(|inner| inner.split_once(']'))
        else {
            return Self { reason: text.to_owned(), ..Self::default() };
        };
        Self {
            keep_credentials: flags.contains('P'),
            next_server: flags.contains('N'),
            reason: reason.trim_start_matches(',').to_owned(),
        }
    }
}

impl fmt::Display for ControlMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, tail) = match self {
            Self::PushRequest => ("PUSH_REQUEST", ""),
            Self::PushReply(tail) => ("PUSH_REPLY", tail.as_str()),
            Self::PushUpdate(tail) => ("PUSH_UPDATE", tail.as_str()),
            Self::AuthFailed(failed) => return failed.fmt(f),
            Self::AuthPending(Some(timeout)) => {
                return write!(f, "AUTH_PENDING,timeout {}", timeout.as_secs());
            }
            Self::AuthPending(None) => ("AUTH_PENDING", ""),
            Self::Info(text) => ("INFO", text.as_str()),
            Self::InfoPre(text) => ("INFO_PRE", text.as_str()),
            Self::ChallengeResponse(text) => ("CR_RESPONSE", text.as_str()),
            Self::Restart(restart) => return restart.fmt(f),
            Self::Halt(reason) => ("HALT", reason.as_str()),
            Self::Exit => ("EXIT", ""),
            Self::Unknown(text) => (text.as_str(), ""),
        };
        f.write_str(word)?;
        if !tail.is_empty() {
            write!(f, ",{tail}")?;
        }
        Ok(())
    }
}

impl fmt::Display for AuthFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AUTH_FAILED")?;
        if !self.temporary {
            return match self.reason.as_str() {
                "" => Ok(()),
                reason => write!(f, ",{reason}"),
            };
        }
        f.write_str(",TEMP")?;
        let mut flags = Vec::new();
        if let Some(backoff) = self.backoff {
            flags.push(format!("backoff {}", backoff.as_secs()));
        }
        match self.advance {
            AdvanceTo::Address => {}
            AdvanceTo::Stay => flags.push("advance no".into()),
            AdvanceTo::Remote => flags.push("advance remote".into()),
        }
        if !flags.is_empty() {
            write!(f, "[{}]", flags.join(","))?;
        }
        if self.reason.is_empty() { Ok(()) } else { write!(f, ":{}", self.reason) }
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RESTART")?;
        if self.keep_credentials || self.next_server {
            let p = if self.keep_credentials { "P" } else { "" };
            let n = if self.next_server { "N" } else { "" };
            write!(f, ",[{p}{n}]{}", self.reason)
        } else if self.reason.starts_with('[') {
            // Otherwise the reason would be parsed as flags.
            write!(f, ",[]{}", self.reason)
        } else if self.reason.is_empty() {
            Ok(())
        } else {
            write!(f, ",{}", self.reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> ControlMessage {
        ControlMessage::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn messages_read_as_they_are_written() {
        let failed = AuthFailed {
            temporary: true,
            backoff: Some(Duration::from_secs(42)),
            advance: AdvanceTo::Stay,
            challenge: false,
            reason: "later".into(),
        };
        let next = Restart { next_server: true, ..Restart::default() };
        for (message, text) in [
            (ControlMessage::PushRequest, "PUSH_REQUEST"),
            (ControlMessage::PushReply("ping 10,peer-id 1".into()), "PUSH_REPLY,ping 10,peer-id 1"),
            (ControlMessage::AuthFailed(AuthFailed::default()), "AUTH_FAILED"),
            (ControlMessage::AuthFailed(failed), "AUTH_FAILED,TEMP[backoff 42,advance no]:later"),
            (ControlMessage::AuthPending(Some(Duration::from_secs(60))), "AUTH_PENDING,timeout 60"),
            (
                ControlMessage::InfoPre("WEB_AUTH::https://example.org".into()),
                "INFO_PRE,WEB_AUTH::https://example.org",
            ),
            // openvpn 2.6.14 with explicit-exit-notify 2 sends this.
            (ControlMessage::Restart(next), "RESTART,[N]"),
            (ControlMessage::Halt("no".into()), "HALT,no"),
            (ControlMessage::Exit, "EXIT"),
        ] {
            assert_eq!(parse(text), message);
            assert_eq!(message.encode(), [text.as_bytes(), &[0]].concat());
        }
    }

    #[test]
    fn a_reason_is_no_keyword() {
        let ControlMessage::AuthFailed(failed) = parse("AUTH_FAILED,TEMPORARILY closed") else {
            panic!()
        };
        assert!(!failed.temporary);
        assert_eq!(failed.reason, "TEMPORARILY closed");
        let ControlMessage::AuthFailed(failed) = parse("AUTH_FAILED,CRV1:R:x:dXNlcg==:code?")
        else {
            panic!()
        };
        assert!(failed.challenge);
    }

    #[test]
    fn restart_flags() {
        let ControlMessage::Restart(restart) = parse("RESTART,[P]maintenance") else { panic!() };
        assert!(restart.keep_credentials && !restart.next_server);
        assert_eq!(restart.reason, "maintenance");
        assert_eq!(parse("RESTART"), ControlMessage::Restart(Restart::default()));
        let bracket =
            ControlMessage::Restart(Restart { reason: "[N]".into(), ..Restart::default() });
        assert_eq!(ControlMessage::parse(&bracket.encode()), Ok(bracket));
    }

    #[test]
    fn line_ends_are_tolerated_and_nothing_else_is() {
        assert_eq!(parse("PUSH_REQUEST\r\n"), ControlMessage::PushRequest);
        assert_eq!(parse("EXIT\0"), ControlMessage::Exit);
        assert_eq!(ControlMessage::parse(b"EXIT\0EXIT\0"), Err(BadMessage::Unprintable));
        assert_eq!(ControlMessage::parse(b"INFO,a\nb"), Err(BadMessage::Unprintable));
        assert_eq!(ControlMessage::parse(b"INFO,\x1b[2J"), Err(BadMessage::Unprintable));
        assert_eq!(ControlMessage::parse(b"INFO,\xff"), Err(BadMessage::Unprintable));
        assert_eq!(ControlMessage::parse(b"\r\n"), Err(BadMessage::Empty));
        assert_eq!(ControlMessage::parse(&[b'a'; MAX_MESSAGE + 1]), Err(BadMessage::TooLong));
        let several: Vec<_> = ControlMessage::parse_record(b"INFO,a\0EXIT\0\0").collect();
        assert_eq!(several, [Ok(ControlMessage::Info("a".into())), Ok(ControlMessage::Exit)]);
    }

    proptest! {
        #[test]
        fn no_record_makes_the_parser_panic(record in proptest::collection::vec(any::<u8>(), 0..300)) {
            for message in ControlMessage::parse_record(&record).flatten() {
                let _ = message.encode();
            }
        }

        #[test]
        fn keywords_with_any_tail(word in "AUTH_FAILED|RESTART|HALT|AUTH_PENDING|PUSH_REPLY", tail in "[\\[\\],:A-Z a-z0-9]{0,40}") {
            let _ = ControlMessage::parse(format!("{word},{tail}").as_bytes()).unwrap();
        }
    }
}
