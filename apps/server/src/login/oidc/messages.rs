//! The provider's answers: its metadata, and those of the device flow (RFC 8628).

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

use std::time::Duration;

use hyper::Uri;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::http::https_url;

/// The maximum length of the URL that a user opens. It must fit into one message to the client, together with a few words.
const MAX_URL: usize = 800;
/// The maximum length of the code that a user types.
const MAX_CODE: usize = 64;
/// The maximum length of a device code.
const MAX_DEVICE_CODE: usize = 4096;
/// The time between two questions if the provider names none.
const INTERVAL: u64 = 5;
/// The bounds of the time between two questions.
const INTERVALS: std::ops::RangeInclusive<u64> = 1..=60;
/// The time by which `slow_down` extends the interval.
const SLOW_DOWN: Duration = Duration::from_secs(5);

/// The metadata of a provider, as far as it is used.
#[derive(Clone, Debug)]
pub(super) struct Metadata {
    pub(super) device_authorization: Uri,
    pub(super) token: Uri,
    pub(super) keys: Uri,
    /// Whether the client's secret is sent in the form instead of in the head.
    pub(super) secret_in_form: bool,
}

#[derive(Deserialize)]
struct ReadMetadata {
    issuer: String,
    device_authorization_endpoint: Option<String>,
    token_endpoint: String,
    jwks_uri: String,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

impl Metadata {
    /// Reads the metadata of `issuer`.
    pub(super) fn parse(text: &[u8], issuer: &str) -> Result<Self, String> {
        let read: ReadMetadata = serde_json::from_slice(text)
            .map_err(|error| format!("its metadata cannot be read: {error}"))?;
        if read.issuer != issuer {
            return Err(format!(
                "it names itself {:?}; write that as the issuer if it is the right provider",
                shortened(&read.issuer)
            ));
        }
        let Some(device) = read.device_authorization_endpoint else {
            return Err(
                "it does not offer the device flow (device_authorization_endpoint); allow it there"
                    .into(),
            );
        };
        // Without this list, the provider takes it in the head.
        let methods = read.token_endpoint_auth_methods_supported.unwrap_or_default();
        let knows = |method: &str| methods.iter().any(|known| known == method);
        Ok(Self {
            device_authorization: https_url(&device)?,
            token: https_url(&read.token_endpoint)?,
            keys: https_url(&read.jwks_uri)?,
            secret_in_form: knows("client_secret_post") && !knows("client_secret_basic"),
        })
    }
}

/// The answer to a request for a login.
#[derive(Debug)]
pub(super) struct DeviceAuthorization {
    /// The secret name of the login.
    pub(super) device_code: Zeroizing<String>,
    /// The URL that the user opens.
    pub(super) url: String,
    /// The code that the user types there; `None` if the URL contains it.
    pub(super) code: Option<String>,
    /// The time that the user has.
    pub(super) lifetime: Duration,
    /// The time between two questions.
    pub(super) interval: Duration,
}

#[derive(Deserialize)]
struct ReadAuthorization {
    device_code: String,
    user_code: String,
    #[serde(alias = "verification_url")]
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

impl DeviceAuthorization {
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let read: ReadAuthorization = serde_json::from_slice(text)
            .map_err(|error| format!("its answer cannot be read: {error}"))?;
        let (url, code) = match read.verification_uri_complete {
            Some(url) => (url, None),
            None => (read.verification_uri, Some(read.user_code)),
        };
        if url.len() > MAX_URL || !url.chars().all(|c| c.is_ascii_graphic()) {
            return Err("the URL for the user is too long, or malformed".into());
        }
        https_url(&url)?;
        let plain = |code: &String| {
            code.len() <= MAX_CODE && code.chars().all(|c| c.is_ascii_graphic() || c == ' ')
        };
        if !code.as_ref().is_none_or(plain) {
            return Err("the code for the user is too long, or malformed".into());
        }
        if read.device_code.is_empty() || read.device_code.len() > MAX_DEVICE_CODE {
            return Err("the device code is empty or too long".into());
        }
        let interval = read.interval.unwrap_or(INTERVAL);
        Ok(Self {
            device_code: Zeroizing::new(read.device_code),
            url,
            code,
            lifetime: Duration::from_secs(read.expires_in),
            interval: Duration::from_secs(interval.clamp(*INTERVALS.start(), *INTERVALS.end())),
        })
    }
}

/// The answer to the question whether the user has logged in.
#[derive(Debug)]
pub(super) enum Poll {
    /// The user has logged in. This is the ID token.
    LoggedIn(Zeroizing<String>),
    /// Not yet.
    Pending,
    /// Not yet, and the questions come too fast.
    SlowDown,
    /// The user, or the provider, has refused.
    Denied,
    /// The time is over.
    Expired,
}

#[derive(Deserialize)]
struct ReadToken {
    id_token: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

impl Poll {
    /// Reads an answer, whose status is that of a success or of an error.
    pub(super) fn parse(success: bool, text: &[u8]) -> Result<Self, String> {
        let read: ReadToken = serde_json::from_slice(text)
            .map_err(|error| format!("its answer cannot be read: {error}"))?;
        match (success, read.error.as_deref()) {
            (true, None) => match read.id_token {
                Some(token) => Ok(Self::LoggedIn(Zeroizing::new(token))),
                None => Err("it sends no ID token; is openid among the scopes?".into()),
            },
            (_, Some("authorization_pending")) => Ok(Self::Pending),
            (_, Some("slow_down")) => Ok(Self::SlowDown),
            (_, Some("access_denied")) => Ok(Self::Denied),
            (_, Some("expired_token")) => Ok(Self::Expired),
            (_, error) => Err(refusal(error, read.error_description.as_deref())),
        }
    }

    /// Returns the interval after this answer.
    pub(super) fn interval(&self, before: Duration) -> Duration {
        let longest = Duration::from_secs(*INTERVALS.end());
        let next =
            if matches!(self, Self::SlowDown) { before.saturating_add(SLOW_DOWN) } else { before };
        next.min(longest)
    }
}

/// Describes an error answer, for the log.
pub(super) fn error_text(text: &[u8]) -> String {
    match serde_json::from_slice::<ReadToken>(text) {
        Ok(read) => refusal(read.error.as_deref(), read.error_description.as_deref()),
        Err(_) => "without a reason".into(),
    }
}

fn refusal(error: Option<&str>, description: Option<&str>) -> String {
    let error = shortened(error.unwrap_or("without a reason"));
    match description {
        Some(description) => format!("{error} ({})", shortened(description)),
        None => error,
    }
}

/// Returns a text of the provider as the log shows it.
pub(super) fn shortened(text: &str) -> String {
    adit_runtime::log::clean(&text.chars().take(200).collect::<String>())
}

/// Parses any bytes as each of the answers, for fuzzing.
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = Metadata::parse(bytes, "https://sso.example.net");
    if let Ok(authorization) = DeviceAuthorization::parse(bytes) {
        assert!(authorization.url.len() <= MAX_URL && !authorization.interval.is_zero());
    }
    for success in [true, false] {
        let _ = Poll::parse(success, bytes);
    }
    assert!(!error_text(bytes).contains('\n'));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://sso.example.net";

    fn metadata(change: &str, to: &str) -> Result<Metadata, String> {
        let text = r#"{"issuer":"https://sso.example.net","device_authorization_endpoint":"https://sso.example.net/d",
            "token_endpoint":"https://sso.example.net/t","jwks_uri":"https://keys.example.net/k",
            "token_endpoint_auth_methods_supported":["client_secret_basic"]}"#;
        assert!(text.contains(change), "{change}");
        Metadata::parse(text.replace(change, to).as_bytes(), ISSUER)
    }

    #[test]
    fn metadata_is_that_of_the_issuer_over_https() {
        assert!(!metadata("x", "x").unwrap().secret_in_form);
        assert!(metadata("client_secret_basic", "client_secret_post").unwrap().secret_in_form);
        for (change, to, said) in [
            ("\"issuer\":\"https://sso", "\"issuer\":\"https://other", "names itself"),
            ("device_authorization_endpoint", "x", "device flow"),
            ("https://sso.example.net/d", "http://sso.example.net/d", "https"),
            ("https://sso.example.net/t", "file:///t", "URL"),
            ("https://keys.example.net/k", "http://keys.example.net/k", "https"),
            ("\"token_endpoint\"", "\"x\"", "token_endpoint"),
        ] {
            let error = metadata(change, to).unwrap_err();
            assert!(error.contains(said), "{change}: {error}");
        }
    }

    fn authorization(change: &str, to: &str) -> Result<DeviceAuthorization, String> {
        let text = r#"{"device_code":"d","user_code":"ABCD-EFGH","verification_uri":"https://sso.example.net/go",
            "verification_uri_complete":"https://sso.example.net/go?c=ABCD-EFGH","expires_in":600,"interval":7}"#;
        assert!(text.contains(change), "{change}");
        DeviceAuthorization::parse(text.replace(change, to).as_bytes())
    }

    #[test]
    fn a_login_has_a_url_that_fits_a_message() {
        let login = authorization("x", "x").unwrap();
        assert_eq!(login.url, "https://sso.example.net/go?c=ABCD-EFGH");
        assert_eq!((login.code, login.interval), (None, Duration::from_secs(7)));
        let login = authorization("verification_uri_complete", "other").unwrap();
        assert_eq!(login.url, "https://sso.example.net/go");
        assert_eq!(login.code.as_deref(), Some("ABCD-EFGH"));
        assert_eq!(authorization("\"interval\":7", "\"x\":7").unwrap().interval.as_secs(), 5);
        assert_eq!(
            authorization("\"interval\":7", "\"interval\":0").unwrap().interval.as_secs(),
            1
        );
        let huge = format!("\"interval\":{}", u64::MAX);
        assert_eq!(authorization("\"interval\":7", &huge).unwrap().interval.as_secs(), 60);
        let url = "https://sso.example.net/go?c=ABCD-EFGH";
        for bad in [
            "javascript:alert(1)",
            "http://sso.example.net/",
            "https://a/b c",
            "https://a/\\nb",
            &"x".repeat(900),
        ] {
            assert!(authorization(url, bad).is_err(), "{bad}");
        }
        assert!(authorization("\"d\"", "\"\"").is_err());
    }

    #[test]
    fn each_answer_to_a_question_is_known() {
        let answer = |success, text: &str| Poll::parse(success, text.as_bytes());
        assert!(matches!(answer(true, r#"{"id_token":"a"}"#), Ok(Poll::LoggedIn(_))));
        assert!(answer(true, r#"{"access_token":"a"}"#).unwrap_err().contains("openid"));
        assert!(answer(false, r#"{"id_token":"a"}"#).is_err());
        let error = |name: &str| answer(false, &format!(r#"{{"error":"{name}"}}"#));
        assert!(matches!(error("authorization_pending"), Ok(Poll::Pending)));
        assert!(matches!(error("slow_down"), Ok(Poll::SlowDown)));
        assert!(matches!(error("access_denied"), Ok(Poll::Denied)));
        assert!(matches!(error("expired_token"), Ok(Poll::Expired)));
        let other = answer(false, r#"{"error":"invalid_client","error_description":"a\nb"}"#);
        let other = other.unwrap_err();
        assert!(other.starts_with("invalid_client (a") && !other.contains('\n'), "{other}");
        assert!(answer(false, "<html>").is_err());
        let second = Duration::from_secs(1);
        assert_eq!(Poll::Pending.interval(second), second);
        assert_eq!(Poll::SlowDown.interval(second).as_secs(), 6);
        assert_eq!(Poll::SlowDown.interval(Duration::from_secs(58)).as_secs(), 60);
    }
}
