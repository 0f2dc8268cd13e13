//! Challenges in addition to a password, and the form of their responses.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

use adit_engine::auth::{Challenge, ChallengeKind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Parses the text of AUTH_FAILED as a dynamic challenge: `CRV1:FLAGS:STATE:BASE64-USER:TEXT`. Returns `None` if it is
/// none.
pub fn parse_dynamic(text: &str) -> Option<Challenge> {
    let mut parts = text.strip_prefix("CRV1:")?.splitn(4, ':');
    let (flags, state) = (parts.next()?, parts.next()?);
    let username = STANDARD.decode(parts.next()?).ok()?;
    let username = String::from_utf8(username).ok()?;
    if username.chars().any(char::is_control) {
        return None;
    }
    let text = parts.next()?.to_owned();
    let has = |flag: &str| flags.split(',').any(|one| one == flag);
    let (echo, wants_response) = (has("E"), has("R"));
    let kind = ChallengeKind::Dynamic { state: state.to_owned(), username, wants_response };
    Some(Challenge { text, echo, kind })
}

/// Returns the password to send for a challenge, given the user's password and response. A dynamic challenge replaces
/// the password.
pub fn respond(challenge: &Challenge, password: &str, response: &str) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::new());
    match &challenge.kind {
        ChallengeKind::Static { concatenate: true } => {
            text.reserve_exact(password.len().saturating_add(response.len()));
            text.push_str(password);
            text.push_str(response);
        }
        ChallengeKind::Static { concatenate: false } => {
            // Reserve the full size now, because growing the string would leave copies behind.
            let len = password.len().saturating_add(response.len());
            text.reserve_exact(len.saturating_mul(2).saturating_add(16));
            text.push_str("SCRV1:");
            STANDARD.encode_string(password, &mut text);
            text.push(':');
            STANDARD.encode_string(response, &mut text);
        }
        ChallengeKind::Dynamic { state, .. } => {
            let len = state.len().saturating_add(response.len());
            text.reserve_exact(len.saturating_add(16));
            text.push_str("CRV1::");
            text.push_str(state);
            text.push_str("::");
            text.push_str(response);
        }
    }
    text
}

/// Parses any bytes as a challenge, for the fuzzer, and checks that its response names the same state.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let Some(challenge) = parse_dynamic(&String::from_utf8_lossy(bytes)) else { return };
    let response = respond(&challenge, "", "1");
    let ChallengeKind::Dynamic { state, username, .. } = &challenge.kind else { return };
    assert!(!state.contains(':') && !username.chars().any(char::is_control));
    assert_eq!(*response, format!("CRV1::{state}::1"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of OpenVPN's management-notes.txt.
    #[test]
    fn the_examples_of_the_documentation() {
        let text = "CRV1:R,E:Om01u7Fh4LrGBS7uh0SWmzwabUiGiW6l:Y3Ix:Please enter token PIN";
        let challenge = parse_dynamic(text).unwrap();
        assert_eq!(challenge.text, "Please enter token PIN");
        assert!(challenge.echo);
        let ChallengeKind::Dynamic { username, wants_response, .. } = &challenge.kind else {
            panic!("{challenge:?}")
        };
        assert_eq!((username.as_str(), *wants_response), ("cr1", true));
        assert_eq!(
            *respond(&challenge, "ignored", "8675309"),
            "CRV1::Om01u7Fh4LrGBS7uh0SWmzwabUiGiW6l::8675309"
        );
        let kind = ChallengeKind::Static { concatenate: false };
        let challenge = Challenge { text: "PIN".into(), echo: true, kind };
        assert_eq!(*respond(&challenge, "bar", "8675309"), "SCRV1:YmFy:ODY3NTMwOQ==");
        let kind = ChallengeKind::Static { concatenate: true };
        let challenge = Challenge { kind, ..challenge };
        assert_eq!(*respond(&challenge, "bar", "123"), "bar123");
    }

    #[test]
    fn texts_that_are_no_challenge() {
        for text in [
            "",
            "wrong password",
            "CRV1",
            "CRV1:R",
            "CRV1:R:id:Y3Ix",
            "CRV1:R:id:!:text",
            "CRV1:R:id:/w==:text",
            "CRV1:R:id:Cg==:a user name of a line break",
            "SCRV1:YmFy:ODY3NTMwOQ==",
        ] {
            assert_eq!(parse_dynamic(text), None, "{text}");
        }
        let plain = parse_dynamic("CRV1::a:Y3Ix:b:c").unwrap();
        assert_eq!((plain.text.as_str(), plain.echo), ("b:c", false));
    }
}
