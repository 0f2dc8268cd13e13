//! The section `[oidc]` of `server.toml`: the provider with which users log in in a browser.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::http::https_url;
use super::settings::checked_path;

/// The maximum number of `scopes`.
const MAX_SCOPES: usize = 16;
/// The maximum length of an identifier, a scope or the name of a claim, in bytes.
const MAX_WORD: usize = 255;
/// The maximum of `session-hours`: 30 days.
const MAX_HOURS: u16 = 720;

/// The provider with which users log in in a browser (OpenID Connect).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct OidcSettings {
    /// The URL of the provider. Its metadata is at `/.well-known/openid-configuration` below it.
    pub issuer: String,
    /// The name under which this server is registered with the provider.
    pub client_id: String,
    /// The file with the client's secret; `None` for a public client. A relative path is relative to `server.toml`.
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
    /// The scopes to request.
    #[serde(default = "default_scopes")]
    pub scopes: Vec<String>,
    /// The claim with the name of the user.
    #[serde(default = "default_user_claim")]
    pub user_claim: String,
    /// The claim with the groups of the user.
    #[serde(default = "default_groups_claim")]
    pub groups_claim: String,
    /// The group that a user must be in; `None`: every user of the provider may log in.
    #[serde(default)]
    pub required_group: Option<String>,
    /// The file with the authorities for the provider's certificate in PEM; `None` for those of this machine.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The time after which a user logs in in the browser again, in hours.
    #[serde(default = "default_hours")]
    pub session_hours: u16,
}

fn default_scopes() -> Vec<String> {
    vec!["openid".into(), "profile".into()]
}

fn default_user_claim() -> String {
    "preferred_username".into()
}

fn default_groups_claim() -> String {
    "groups".into()
}

fn default_hours() -> u16 {
    12
}

impl OidcSettings {
    /// Returns the settings of a public client, with the defaults.
    pub fn new(issuer: &str, client_id: &str) -> Self {
        Self {
            issuer: issuer.to_owned(),
            client_id: client_id.to_owned(),
            client_secret_file: None,
            scopes: default_scopes(),
            user_claim: default_user_claim(),
            groups_claim: default_groups_claim(),
            required_group: None,
            ca_file: None,
            session_hours: default_hours(),
        }
    }

    /// Checks the values. The error says what to write instead.
    pub(super) fn checked(self) -> Result<Self, String> {
        https_url(&self.issuer).map_err(|why| {
            format!("issuer: {why}; write issuer = \"https://sso.example.net/realms/staff\"")
        })?;
        if self.issuer.contains(['?', '#']) {
            return Err("issuer: it has a query or a fragment; write the part before it".into());
        }
        word("client-id", &self.client_id)?;
        word("user-claim", &self.user_claim)?;
        word("groups-claim", &self.groups_claim)?;
        self.scopes.iter().try_for_each(|scope| word("scopes", scope))?;
        if self.scopes.len() > MAX_SCOPES || !self.scopes.iter().any(|scope| scope == "openid") {
            return Err(format!(
                "scopes: up to {MAX_SCOPES}, and \"openid\" must be among them; write scopes = [\"openid\", \
                 \"profile\"]"
            ));
        }
        if let Some(group) = &self.required_group
            && !adit_engine::auth::is_group_name(group)
        {
            return Err(format!("required-group: {group:?} is not the name of a group"));
        }
        for (key, path) in
            [("client-secret-file", &self.client_secret_file), ("ca-file", &self.ca_file)]
        {
            if let Some(path) = path {
                checked_path(key, &path.to_string_lossy())?;
            }
        }
        if !(1..=MAX_HOURS).contains(&self.session_hours) {
            return Err(format!("session-hours: write a number from 1 to {MAX_HOURS}"));
        }
        Ok(self)
    }
}

/// Checks a word that is quoted in the file and sent to the provider.
fn word(key: &str, value: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\');
    if value.is_empty() || value.len() > MAX_WORD || !value.chars().all(allowed) {
        return Err(format!(
            "{key}: {value:?} is not a word of up to {MAX_WORD} letters, digits and signs"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::settings::{Login, Settings};

    fn parse(lines: &str) -> Result<Settings, String> {
        let base = "host = \"h\"\nnetwork = \"10.9.9.0/24\"\n";
        let text = format!("{base}{lines}");
        Settings::parse(&text, Path::new("server.toml")).map_err(|fault| fault.to_string())
    }

    const OIDC: &str = "[oidc]\nissuer = \"https://sso.example.net\"\nclient-id = \"adit\"\n";

    #[test]
    fn a_section_needs_an_issuer_and_a_client() {
        let settings = parse(&format!("login = \"certificate+oidc\"\n{OIDC}")).unwrap();
        assert_eq!(settings.login, Login::CertificateOidc);
        let oidc = settings.oidc.as_ref().unwrap();
        assert_eq!((oidc.user_claim.as_str(), oidc.session_hours), ("preferred_username", 12));
        // Without the login it is kept, but not used.
        assert!(parse(OIDC).unwrap().oidc.is_some());
        let alone = parse("login = \"certificate+oidc\"\n").unwrap_err();
        assert!(alone.contains("[oidc]"), "{alone}");
        let again = Settings::parse(&settings.to_toml(), Path::new("server.toml")).unwrap();
        assert_eq!(again, settings);
    }

    #[test]
    fn everything_that_is_written_reads_back() {
        let more = "client-secret-file = \"oidc.secret\"\nscopes = [\"openid\", \"email\"]\nuser-claim = \"email\"\n\
                    groups-claim = \"roles\"\nrequired-group = \"vpn\"\nca-file = \"/etc/ca.pem\"\nsession-hours = 8\n";
        let settings = parse(&format!("{OIDC}{more}")).unwrap();
        let text = settings.to_toml();
        assert_eq!(Settings::parse(&text, Path::new("x")).unwrap(), settings, "{text}");
    }

    #[test]
    fn each_mistake_is_named() {
        for (line, said) in [
            ("issuer = \"http://sso.example.net\"", "https"),
            ("issuer = \"sso.example.net\"", "https"),
            ("issuer = \"https://sso.example.net/?x=1\"", "query"),
            ("issuer = \"https://user@sso.example.net/\"", "user"),
            ("client-id = \"\"", "client-id"),
            ("client-id = \"a b\"", "client-id"),
            ("scopes = [\"profile\"]", "openid"),
            ("scopes = [\"openid\", \"a b\"]", "scopes"),
            ("user-claim = \"\"", "user-claim"),
            ("groups-claim = \"a\\nb\"", "groups-claim"),
            ("required-group = \"a b\"", "required-group"),
            ("client-secret-file = \"\"", "client-secret-file"),
            ("ca-file = 'a\"b'", "ca-file"),
            ("session-hours = 0", "1 to 720"),
            ("session-hours = 721", "1 to 720"),
            ("client-secret = \"x\"", "unknown field"),
        ] {
            let key = line.split(' ').next().unwrap();
            let others = OIDC.lines().filter(|other| !other.starts_with(&format!("{key} ")));
            let text = others.chain([line]).collect::<Vec<_>>().join("\n");
            let error = parse(&text).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
