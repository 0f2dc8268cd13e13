//! The files in which a program writes an answer.

use std::time::Duration;

/// The maximum length of the text for a client, as in openvpn.
const MAX_INFO: usize = 1024;

/// The longest time that a program may ask for; the configuration usually allows less.
const MAX_TIMEOUT: u64 = 24 * 60 * 60;

/// A request in `auth_pending_file`: to give a client more time, and to tell it why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingRequest {
    pub(super) timeout: Duration,
    /// The method that the client must support, as in `IV_SSO`.
    pub(super) method: String,
    /// The text for the client (INFO_PRE).
    pub(super) info: String,
}

impl PendingRequest {
    /// Parses the three lines of the file.
    pub(super) fn parse(content: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(content).map_err(|_| "it is not UTF-8")?;
        let mut lines = text.lines();
        let mut line = || lines.next().map(str::trim_end).unwrap_or_default();
        let (timeout, method, info) = (line(), line(), line());
        let seconds: u64 =
            timeout.parse().map_err(|_| "the first line must be the time in seconds")?;
        if !(1..=MAX_TIMEOUT).contains(&seconds) {
            return Err("the time must be from 1 to 86400 seconds");
        }
        if method.is_empty() {
            return Err("the second line must be the method, such as crtext");
        }
        if info.is_empty() {
            return Err("the third line must be the text for the client");
        }
        if info.len() > MAX_INFO {
            return Err("the text for the client is longer than 1024 bytes");
        }
        if info.chars().any(char::is_control) {
            return Err("the text for the client has a control character");
        }
        let (timeout, method) = (Duration::from_secs(seconds), method.to_owned());
        Ok(Self { timeout, method, info: info.to_owned() })
    }

    /// Returns whether a client supports the method, according to its peer info.
    pub(super) fn is_supported(&self, peer_info: &[(String, String)]) -> bool {
        let methods = peer_info.iter().find(|(name, _)| name == "IV_SSO").map(|(_, value)| value);
        methods.is_some_and(|methods| methods.split(',').any(|method| method == self.method))
    }
}

/// Returns the answer in `auth_control_file`: `1` accepts and `0` rejects. `None` before there is one.
pub(super) fn answer(content: &[u8]) -> Option<bool> {
    match content.first() {
        Some(b'1') => Some(true),
        Some(b'0') => Some(false),
        _ => None,
    }
}

/// Returns the text in `auth_failed_reason_file` for the client: its first line, without characters that a control
/// message cannot have.
pub(super) fn reason(content: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(content);
    let line = text.lines().next().unwrap_or_default();
    let text: String =
        line.chars().map(|c| if c.is_control() { '_' } else { c }).take(MAX_INFO).collect();
    (!text.is_empty()).then_some(text)
}

/// Parses any bytes. The texts for a client have no control characters.
pub(super) fn fuzz(bytes: &[u8]) {
    let request = PendingRequest::parse(bytes).map(|request| request.info).ok();
    for text in request.into_iter().chain(reason(bytes)) {
        assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text:?}");
    }
    assert!(answer(bytes).is_none() || bytes.starts_with(b"0") || bytes.starts_with(b"1"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_time_a_method_and_a_text() {
        let request =
            PendingRequest::parse(b"300\ncrtext\nCR_TEXT:E,R:Please enter your code!").unwrap();
        assert_eq!(request.timeout, Duration::from_secs(300));
        assert_eq!((request.method.as_str(), request.info.len()), ("crtext", 35));
        let supports = |text: &str| request.is_supported(&[("IV_SSO".into(), text.into())]);
        assert!(supports("webauth,crtext") && !supports("webauth") && !supports("crtext2"));
        assert!(!request.is_supported(&[]));
        for (content, problem) in [
            (&b""[..], "first line"),
            (b"soon\ncrtext\nx", "first line"),
            (b"0\ncrtext\nx", "from 1"),
            (b"99999999999999\ncrtext\nx", "from 1"),
            (b"10\n\nx", "second line"),
            (b"10\ncrtext\n", "third line"),
            (b"10\ncrtext\na\x01b", "control"),
            (b"10\ncrtext\n\xff", "UTF-8"),
        ] {
            let refused = PendingRequest::parse(content).unwrap_err();
            assert!(refused.contains(problem), "{content:?}: {refused}");
        }
        let long = format!("10\ncrtext\n{}", "x".repeat(MAX_INFO + 1));
        assert!(PendingRequest::parse(long.as_bytes()).is_err());
    }

    #[test]
    fn an_answer_is_the_first_character() {
        assert_eq!(
            [&b"1"[..], b"1\n", b"0", b"0 no"].map(answer).map(|a| a.unwrap()),
            [true, true, false, false]
        );
        assert_eq!([&b""[..], b"2", b"yes", b" 1"].map(answer), [None; 4]);
    }

    /// A text for a client has no control characters.
    #[test]
    fn cve_2024_5594_a_reason_is_one_printable_line() {
        assert_eq!(reason(b"locked\nmore\n").as_deref(), Some("locked"));
        assert_eq!(reason(b"a\x07b\x1b[2J").as_deref(), Some("a_b_[2J"));
        assert_eq!(reason(b""), None);
        assert_eq!(reason(&[b'x'; 5000]).map(|text| text.len()), Some(MAX_INFO));
    }
}
