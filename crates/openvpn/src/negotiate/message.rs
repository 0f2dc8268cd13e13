use std::fmt;
use std::time::Duration;

/// Longest control message taken from a peer, in bytes (its TLS record is bounded likewise).
pub const MAX_MESSAGE: usize = 2048;

/// A text message on the TLS channel, once the keys are exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// `PUSH_REQUEST`
    PushRequest,
    /// `PUSH_REPLY`, with what stands after it and its comma: feed it to a [`super::PushAssembler`].
    PushReply(String),
    /// `PUSH_UPDATE`, likewise. We do not announce that we know it.
    PushUpdate(String),
    /// `AUTH_FAILED`
    AuthFailed(AuthFailed),
    /// `AUTH_PENDING[,timeout N]`: the server asks its user first.
    AuthPending(Option<Duration>),
    /// `INFO,...`: a text for the user.
    Info(String),
    /// `INFO_PRE,...`: the same, before the login is done.
    InfoPre(String),
    /// `CR_RESPONSE,...`: base64 of a challenge's answer.
    ChallengeResponse(String),
    /// `RESTART[,...]`
    Restart(Restart),
    /// `HALT[,...]`: end for good; the reason.
    Halt(String),
    /// `EXIT`: the other end leaves.
    Exit,
    /// Anything else, printable and bounded: worth a line in the log.
    Unknown(String),
}

/// `AUTH_FAILED[,...]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthFailed {
    /// `TEMP`: try again later, with the same password.
    pub temporary: bool,
    /// `backoff N`: wait at least this long.
    pub backoff: Option<Duration>,
    /// `advance ...`: which server next.
    pub advance: AdvanceTo,
    /// `CRV1:...`: a dynamic challenge, which we do not answer yet; the text is its raw form.
    pub challenge: bool,
    /// The server's words.
    pub reason: String,
}

/// Which server to try next.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum AdvanceTo {
    /// Not said: the next address.
    #[default]
    Address,
    /// `no`: the same address.
    Stay,
    /// `remote`: the next `remote` line.
    Remote,
}

/// `RESTART[,FLAGS]TEXT`: flags stand in brackets, `[P]`, `[N]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// `P`: keep the credentials.
    pub keep_credentials: bool,
    /// `N`: go on to the next server.
    pub next_server: bool,
    /// What stands after the flags.
    pub reason: String,
}

/// Why a control message is dropped. The peer's fault, and no reason to end the session.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BadMessage {
    /// Longer than [`MAX_MESSAGE`].
    TooLong,
    /// A NUL within, or a byte that does not print.
    Unprintable,
    /// Nothing in it.
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
    /// Parses one TLS record's worth of text: NUL-terminated on the wire, and perhaps followed by
    /// CR or LF, which stock tolerates.
    ///
    /// # Errors
    /// [`BadMessage`]: drop it and count it.
    pub fn parse(record: &[u8]) -> Result<Self, BadMessage> {
        if record.len() > MAX_MESSAGE {
            return Err(BadMessage::TooLong);
        }
        let text = record.strip_suffix(&[0]).unwrap_or(record);
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

    /// The bytes of one TLS record: the text and a NUL.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.to_string().into_bytes();
        bytes.push(0);
        bytes
    }
}

/// `timeout N` among comma-separated keywords.
fn pending_timeout(keywords: &str) -> Option<Duration> {
    keywords
        .split(',')
        .find_map(|word| word.trim().strip_prefix("timeout "))
        .and_then(|seconds| seconds.trim().parse::<u32>().ok())
        .map(|seconds| Duration::from_secs(u64::from(seconds)))
}

impl AuthFailed {
    fn parse(text: &str) -> Self {
        let Some(temporary) = text.strip_prefix("TEMP") else {
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
                // "advance addr" is the default, and unknown keywords are for later versions.
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
        } else if self.reason.is_empty() {
            Ok(())
        } else {
            write!(f, ",{}", self.reason)
        }
    }
}
