//! Logins in a browser with an OpenID Connect provider, by the device flow (RFC 8628).
//!
//! ```text
//! client            server                          provider            user's browser
//!   │ ── keys ──────► │ ── device authorization ────► │
//!   │ ◄─ URL ──────── │ ◄─ URL, device code ───────── │
//!   │ ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄│┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄│┄┄┄ opens the URL ┄┄► │
//!   │                 │ ── logged in? (repeated) ───► │ ◄── logs in ───────────│
//!   │ ◄─ accepted ─── │ ◄─ ID token ───────────────── │
//! ```
//!
//! The server never sees the user's password, and needs no address that a browser can reach.

mod id_token;
mod messages;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_engine::Instant;
use adit_engine::auth::{MAX_GROUPS, is_group_name};
use adit_pki::user_name;
use adit_runtime::clock;
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use hyper::Uri;
use serde_json::Value;
use tokio::sync::Notify;
use zeroize::Zeroizing;

use super::shown;
use crate::http::{self, Answer, HttpClient, https_url};
use crate::oidc_settings::OidcSettings;
use id_token::{Claims, KeySet};
use messages::{DeviceAuthorization, Metadata, Poll, error_text};

/// The maximum number of logins that wait for a browser at the same time. Each client has at most one.
const MAX_PENDING: usize = 256;
/// The longest time that a user has in the browser. A client that waits needs little, but not nothing.
const LONGEST_LOGIN: Duration = Duration::from_secs(300);
/// The time for which the metadata and the keys of the provider are used.
const KNOWN_FOR: Duration = Duration::from_secs(3600);
/// The shortest time between two requests for the keys, however many tokens have unknown ones.
const KEYS_AGAIN: Duration = Duration::from_secs(30);
/// The number of questions in a row that may fail before a login ends.
const MAX_FAILURES: u32 = 5;
/// The shortest time between two log lines about a provider that does not answer.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// A provider with which users log in.
pub(crate) struct Provider {
    settings: OidcSettings,
    secret: Option<Zeroizing<String>>,
    http: HttpClient,
    discovery: Uri,
    metadata: tokio::sync::Mutex<Option<Known<Metadata>>>,
    keys: tokio::sync::Mutex<Option<Known<KeySet>>>,
    pending: Mutex<HashMap<String, Arc<Notify>>>,
    warned: Mutex<Option<Instant>>,
}

/// An answer of the provider, with its time.
struct Known<T> {
    at: Instant,
    value: Arc<T>,
}

impl<T> Known<T> {
    fn age(&self) -> Duration {
        clock::now().since(self.at)
    }
}

/// A login that waits for its user.
pub(crate) struct DeviceLogin {
    authorization: DeviceAuthorization,
    metadata: Arc<Metadata>,
}

/// The user who has logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SsoUser {
    /// The name, which follows the rules of a user's name.
    pub(crate) name: String,
    /// The groups, which follow the rules of a group's name.
    pub(crate) groups: Vec<String>,
}

/// The reason why a login failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SsoError {
    /// The provider does not answer, or not as expected.
    Provider(String),
    /// The user or the provider refused.
    Denied,
    /// The time is over.
    Expired,
    /// The token or the user is not valid.
    Refused(String),
    /// The same client has begun another login.
    Replaced,
    /// Too many logins wait.
    Busy,
    /// The client cannot show the URL, or the code.
    NoBrowser,
    /// The client is asked by this text, and connects again with the answer.
    Challenge(String),
}

/// The place of a login among those that wait. It is released on drop.
pub(crate) struct PendingLogin<'a> {
    provider: &'a Provider,
    client: String,
    replaced: Arc<Notify>,
}

impl PendingLogin<'_> {
    /// Waits until the same client begins another login.
    pub(crate) async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

impl Drop for PendingLogin<'_> {
    fn drop(&mut self) {
        let mut pending = self.provider.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.get(&self.client).is_some_and(|known| Arc::ptr_eq(known, &self.replaced)) {
            pending.remove(&self.client);
        }
    }
}

impl DeviceLogin {
    /// Returns the URL that the user opens.
    pub(crate) fn url(&self) -> &str {
        &self.authorization.url
    }

    /// Returns the code that the user types there, if the URL does not contain it.
    pub(crate) fn code(&self) -> Option<&str> {
        self.authorization.code.as_deref()
    }

    /// Returns the time that the user has.
    pub(crate) fn limit(&self) -> Duration {
        self.authorization.lifetime.min(LONGEST_LOGIN)
    }
}

// Written by hand because it holds a secret.
impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.settings.issuer).finish_non_exhaustive()
    }
}

impl Provider {
    /// Reads the files of the settings. Nothing is sent to the provider yet.
    pub(crate) fn open(paths: &Paths, settings: &OidcSettings) -> Result<Self, Fault> {
        let secret = read_secret(paths, settings)?;
        let roots = http::authorities(paths, settings.ca_file.as_deref(), "provider")?;
        let discovery =
            format!("{}/.well-known/openid-configuration", settings.issuer.trim_end_matches('/'));
        let discovery = https_url(&discovery).map_err(Fault::operator)?;
        Ok(Self {
            settings: settings.clone(),
            secret,
            http: HttpClient::new(roots)?,
            discovery,
            metadata: tokio::sync::Mutex::default(),
            keys: tokio::sync::Mutex::default(),
            pending: Mutex::default(),
            warned: Mutex::default(),
        })
    }

    /// Returns whether this is still the provider of the settings and their files.
    pub(crate) fn is_of(&self, paths: &Paths, settings: &OidcSettings) -> bool {
        let secret = read_secret(paths, settings);
        self.settings == *settings
            && settings.ca_file.is_none()
            && secret.is_ok_and(|secret| secret == self.secret)
    }

    /// Returns the time after which a user logs in again, in seconds.
    pub(crate) fn lifetime(&self) -> u64 {
        u64::from(self.settings.session_hours).saturating_mul(3600)
    }

    /// Fetches the metadata and the keys. Returns the number of keys.
    pub(crate) async fn check(&self) -> Result<usize, String> {
        let metadata = self.metadata().await?;
        Ok(self.keys(&metadata, false).await?.len())
    }

    /// Reserves a place for a client's login, and ends the client's former one. Returns `None` if too many wait.
    pub(crate) fn enter(&self, client: &str) -> Option<PendingLogin<'_>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.len() >= MAX_PENDING && !pending.contains_key(client) {
            return None;
        }
        let replaced = Arc::new(Notify::new());
        if let Some(former) = pending.insert(client.to_owned(), Arc::clone(&replaced)) {
            former.notify_one();
        }
        Some(PendingLogin { provider: self, client: client.to_owned(), replaced })
    }

    /// Begins a login.
    pub(crate) async fn begin(&self) -> Result<DeviceLogin, SsoError> {
        let begun = async {
            let metadata = self.metadata().await?;
            let scope = self.settings.scopes.join(" ");
            let form = [("scope", scope.as_str())];
            let answer = self.post(&metadata, &metadata.device_authorization, &form).await?;
            if !answer.status.is_success() {
                let why = error_text(&answer.body);
                return Err(format!("it refuses to begin a login ({}): {why}", answer.status));
            }
            let authorization = DeviceAuthorization::parse(&answer.body)?;
            Ok(DeviceLogin { authorization, metadata })
        };
        begun.await.map_err(|why| self.failed(why))
    }

    /// Waits until the user of a login has logged in.
    pub(crate) async fn wait(&self, login: &DeviceLogin) -> Result<SsoUser, SsoError> {
        self.wait_within(login, login.limit()).await?.ok_or(SsoError::Expired)
    }

    /// Does the same for a shorter time. Returns `None` when it is over.
    pub(crate) async fn wait_within(
        &self,
        login: &DeviceLogin,
        limit: Duration,
    ) -> Result<Option<SsoUser>, SsoError> {
        let end = tokio::time::Instant::now() + limit;
        let mut interval = login.authorization.interval;
        let mut failures = 0;
        loop {
            let next = tokio::time::Instant::now() + interval;
            tokio::time::sleep_until(next.min(end)).await;
            if next >= end {
                return Ok(None);
            }
            let poll = match self.poll(login).await {
                Ok(Ok(poll)) => poll,
                Ok(Err(why)) => return Err(self.failed(why)),
                Err(why) => {
                    failures += 1;
                    if failures >= MAX_FAILURES {
                        return Err(self.failed(why));
                    }
                    interval = Poll::SlowDown.interval(interval);
                    continue;
                }
            };
            failures = 0;
            interval = poll.interval(interval);
            match poll {
                Poll::LoggedIn(token) => {
                    return self.user(&login.metadata, &token).await.map(Some);
                }
                Poll::Pending | Poll::SlowDown => {}
                Poll::Denied => return Err(SsoError::Denied),
                Poll::Expired => return Err(SsoError::Expired),
            }
        }
    }

    /// Asks whether the user has logged in. The outer error may pass.
    async fn poll(&self, login: &DeviceLogin) -> Result<Result<Poll, String>, String> {
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
            ("device_code", login.authorization.device_code.as_str()),
        ];
        let answer = self.post(&login.metadata, &login.metadata.token, &form).await?;
        if answer.status.is_server_error() {
            return Err(format!("it answers {}", answer.status));
        }
        Ok(Poll::parse(answer.status.is_success(), &answer.body))
    }

    /// Verifies a token, and returns its user.
    async fn user(&self, metadata: &Metadata, token: &str) -> Result<SsoUser, SsoError> {
        let keys = self.keys(metadata, false).await.map_err(|why| self.failed(why))?;
        let verify =
            |keys: &KeySet| keys.verify(token, &self.settings.issuer, &self.settings.client_id);
        let mut claims = verify(&keys);
        if claims.is_err() {
            // The provider may have changed its keys.
            let fresh = self.keys(metadata, true).await.map_err(|why| self.failed(why))?;
            if !Arc::ptr_eq(&keys, &fresh) {
                claims = verify(&fresh);
            }
        }
        let claims =
            claims.map_err(|why| SsoError::Refused(format!("the ID token is not valid: {why}")))?;
        user_of(&claims, &self.settings).map_err(SsoError::Refused)
    }

    /// Returns the provider's metadata. If it does not answer, the former metadata is used.
    async fn metadata(&self) -> Result<Arc<Metadata>, String> {
        let mut known = self.metadata.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.age() < KNOWN_FOR) {
            return Ok(Arc::clone(&known.value));
        }
        let fetched = self.fetch(&self.discovery).await;
        let parsed = fetched.and_then(|body| Metadata::parse(&body, &self.settings.issuer));
        remember(&mut known, parsed)
    }

    /// Returns the provider's keys; with `fresh`, those that it has now, unless they were fetched just before.
    async fn keys(&self, metadata: &Metadata, fresh: bool) -> Result<Arc<KeySet>, String> {
        let mut known = self.keys.lock().await;
        let limit = if fresh { KEYS_AGAIN } else { KNOWN_FOR };
        if let Some(known) = known.as_ref().filter(|known| known.age() < limit) {
            return Ok(Arc::clone(&known.value));
        }
        let parsed = match self.fetch(&metadata.keys).await {
            Ok(body) => {
                KeySet::parse(&body).map_err(|why| format!("its keys cannot be read: {why}"))
            }
            Err(why) => Err(why),
        };
        remember(&mut known, parsed)
    }

    async fn fetch(&self, url: &Uri) -> Result<hyper::body::Bytes, String> {
        let answer = self.http.get(url).await?;
        if answer.status.is_success() {
            Ok(answer.body)
        } else {
            Err(format!("{} answers {}", url.path(), answer.status))
        }
    }

    /// Sends a form with the client's name and secret.
    async fn post(
        &self,
        metadata: &Metadata,
        url: &Uri,
        form: &[(&str, &str)],
    ) -> Result<Answer, String> {
        let client = self.settings.client_id.as_str();
        let mut form = form.to_vec();
        form.push(("client_id", client));
        let mut basic = None;
        match &self.secret {
            Some(secret) if metadata.secret_in_form => form.push(("client_secret", secret)),
            Some(secret) => basic = Some((client, secret.as_str())),
            None => {}
        }
        self.http.post_form(url, &form, basic).await
    }

    /// Returns the error of a provider that does not work, and logs it, but not for each login.
    fn failed(&self, why: String) -> SsoError {
        let now = clock::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| now.since(at) >= WARN_AGAIN) {
            *warned = Some(now);
            tracing::warn!("single sign-on: {}: {why}", self.settings.issuer);
        }
        SsoError::Provider(why)
    }
}

/// Keeps a new value. Without one, the former one is used on.
fn remember<T>(known: &mut Option<Known<T>>, fetched: Result<T, String>) -> Result<Arc<T>, String> {
    match fetched {
        Ok(value) => {
            let value = Arc::new(value);
            *known = Some(Known { at: clock::now(), value: Arc::clone(&value) });
            Ok(value)
        }
        Err(why) => known.as_ref().map(|former| Arc::clone(&former.value)).ok_or(why),
    }
}

/// Reads the secret of the client, if it has one.
fn read_secret(paths: &Paths, settings: &OidcSettings) -> Result<Option<Zeroizing<String>>, Fault> {
    settings.client_secret_file.as_deref().map(|path| http::read_secret(paths, path)).transpose()
}

/// Returns the user whom the claims of a valid token describe.
fn user_of(claims: &Claims, settings: &OidcSettings) -> Result<SsoUser, String> {
    let claim = settings.user_claim.as_str();
    let Some(name) = claims.get(claim).and_then(Value::as_str) else {
        return Err(format!("the ID token has no claim {claim} with the user's name (user-claim)"));
    };
    // Otherwise a user could choose the address of another one.
    if claim == "email"
        && claims.get("email_verified").is_some_and(|yes| *yes == Value::Bool(false))
    {
        return Err(format!("user {}: the provider has not verified the address", shown(name)));
    }
    let name = user_name(name)
        .map_err(|_| format!("user {}: the name is not allowed for users here", shown(name)))?;
    let groups = groups_of(claims, &settings.groups_claim);
    if let Some(required) = &settings.required_group
        && !groups.iter().any(|group| group == required)
    {
        return Err(format!("user {name}: the user is not in the group {required}"));
    }
    if groups.len() > MAX_GROUPS {
        tracing::warn!("user {name}: only the first {MAX_GROUPS} groups of the provider count");
    }
    let groups = groups.into_iter().take(MAX_GROUPS).map(ToOwned::to_owned).collect();
    Ok(SsoUser { name: name.to_string(), groups })
}

/// Returns the groups in a claim, without those whose names are not allowed. Some providers write them as paths.
fn groups_of<'a>(claims: &'a Claims, claim: &str) -> Vec<&'a str> {
    let one = claims.get(claim).into_iter().filter(|value| value.is_string());
    let all = claims.get(claim).and_then(Value::as_array).into_iter().flatten();
    let mut groups = Vec::new();
    for name in one.chain(all).filter_map(Value::as_str) {
        let name = name.strip_prefix('/').unwrap_or(name);
        if is_group_name(name) && !groups.contains(&name) {
            groups.push(name);
        }
    }
    groups
}

/// Parses any bytes as each message of a provider, and as a token, for fuzzing.
pub(crate) fn fuzz(bytes: &[u8]) {
    messages::fuzz(bytes);
    id_token::fuzz(bytes);
    if let Ok(claims) = serde_json::from_slice::<Claims>(bytes) {
        let settings = OidcSettings::new("https://sso.example.net", "adit");
        if let Ok(user) = user_of(&claims, &settings) {
            assert!(user_name(&user.name).is_ok() && user.groups.len() <= MAX_GROUPS);
            assert!(user.groups.iter().all(|group| is_group_name(group)));
        }
    }
}

#[cfg(test)]
mod tests;
