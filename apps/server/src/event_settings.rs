//! The section `[events]` of `server.toml`: the webhook that gets the events of the server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::http::{http_url, is_loopback};
use super::settings::checked_path;

/// The maximum length of `url`, in bytes.
const MAX_URL: usize = 2048;

/// The webhook that gets the events of the server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EventSettings {
    /// The URL to which each event is sent.
    pub url: String,
    /// The file with a field for the head of each request, which may contain a secret. A relative path is relative to
    /// `server.toml`.
    #[serde(default)]
    pub header_file: Option<PathBuf>,
    /// The file with the authorities for the webhook's certificate in PEM; `None` for those of this machine.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Whether an http URL may name another machine.
    #[serde(default)]
    pub plain_http: bool,
}

impl EventSettings {
    /// Returns the settings of a webhook without a secret.
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), header_file: None, ca_file: None, plain_http: false }
    }

    /// Checks the values. The error says what to write instead.
    pub(super) fn checked(self) -> Result<Self, String> {
        let write = "write url = \"https://hooks.example.net/adit\"";
        let allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\');
        if self.url.len() > MAX_URL || !self.url.chars().all(allowed) {
            return Err(format!("url: more than {MAX_URL} bytes, or not plain text; {write}"));
        }
        let url = http_url(&self.url).map_err(|why| format!("url: {why}; {write}"))?;
        if url.scheme_str() == Some("http") && !is_loopback(&url) && !self.plain_http {
            return Err(format!(
                "url: over http, anyone on the way reads the names of clients and changes events; {write}, or \
                 allow it with plain-http = true"
            ));
        }
        for (key, path) in [("header-file", &self.header_file), ("ca-file", &self.ca_file)] {
            if let Some(path) = path {
                checked_path(key, &path.to_string_lossy())?;
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::settings::Settings;

    fn parse(lines: &str) -> Result<Settings, String> {
        let text = format!("host = \"h\"\nnetwork = \"10.9.9.0/24\"\n[events]\n{lines}");
        Settings::parse(&text, Path::new("server.toml")).map_err(|fault| fault.to_string())
    }

    #[test]
    fn everything_that_is_written_reads_back() {
        for lines in [
            "url = \"https://hooks.example.net/adit?key=1\"\n",
            "url = \"http://127.0.0.1:8080/\"\n",
            "url = \"http://192.0.2.1/\"\nheader-file = \"hook.header\"\nca-file = \"ca.pem\"\nplain-http = true\n",
        ] {
            let settings = parse(lines).unwrap();
            let text = settings.to_toml();
            assert_eq!(Settings::parse(&text, Path::new("x")).unwrap(), settings, "{text}");
        }
    }

    #[test]
    fn each_mistake_is_named() {
        let url = "url = \"https://a/\"\n";
        for (lines, said) in [
            (String::new(), "url"),
            ("url = \"hooks.example.net\"".into(), "write url = \"https://"),
            ("url = \"ftp://a/\"".into(), "write url = \"https://"),
            ("url = \"https://u:p@a/\"".into(), "user name"),
            ("url = \"http://192.0.2.1/\"".into(), "plain-http = true"),
            ("url = 'https://a/\"'".into(), "plain text"),
            (format!("url = \"https://a/{}\"", "x".repeat(2048)), "2048 bytes"),
            (format!("{url}header-file = \"\""), "header-file"),
            (format!("{url}ca-file = 'a\"b'"), "ca-file"),
            (format!("{url}secret = \"x\""), "unknown field"),
        ] {
            let error = parse(&lines).unwrap_err();
            assert!(error.contains(said), "{lines}: {error}");
        }
    }
}
