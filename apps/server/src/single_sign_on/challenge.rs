//! Logins in a browser with apps that show nothing while the server waits, and do not announce `IV_SSO`.
//!
//! Such an app shows a dynamic challenge (`CRV1`): the first attempt to connect is refused with a text that contains the
//! URL. The user logs in, and confirms it. The next attempt brings the confirmation in place of the password, and the
//! server asks the provider.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_engine::{Identity, Instant};
use adit_runtime::clock;
use adit_runtime::random;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::login::{DeviceLogin, Provider, SsoError, SsoUser};

/// The maximum number of logins that wait for a confirmation. Each client has at most one.
const MAX_CHALLENGES: usize = 256;
/// [`Challenges::wait`]: less than the time that a handshake may take.
const CONFIRMED_WAIT: Duration = Duration::from_secs(30);
/// The maximum length of a user name in a challenge, in bytes.
const MAX_NAME: usize = 128;
/// The maximum length of a challenge, in bytes. Longer texts for clients are cut.
const MAX_CHALLENGE: usize = 1000;

/// A login that waits for its user's confirmation.
struct Challenge {
    /// The text that the confirmation repeats.
    state: String,
    provider: Arc<Provider>,
    login: Arc<DeviceLogin>,
    began: Instant,
}

impl Challenge {
    /// Returns whether its user may still log in with this provider.
    fn is_open(&self, provider: &Arc<Provider>, now: Instant) -> bool {
        Arc::ptr_eq(&self.provider, provider) && now.since(self.began) < self.login.limit()
    }

    /// Returns whether its user has enough time for a login.
    fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.began) < self.login.limit() / 2
    }

    /// Returns the text for the client; `None` if it is too long.
    fn text(&self, username: &str, again: bool) -> Option<String> {
        let url = self.login.url();
        let code = self.login.code().map(|code| format!(" with the code {code}"));
        let again = if again { "There was no login yet. " } else { "" };
        let text = format!(
            "CRV1:R,E:{}:{}:{again}Log in at {url}{} and then answer OK",
            self.state,
            STANDARD.encode(username),
            code.unwrap_or_default()
        );
        (text.len() <= MAX_CHALLENGE).then_some(text)
    }
}

/// The logins that wait for a confirmation, by client.
pub(super) struct Challenges {
    all: Mutex<HashMap<String, Challenge>>,
    /// How long an attempt waits for the provider after the confirmation.
    wait: Duration,
}

impl Default for Challenges {
    fn default() -> Self {
        Self { all: Mutex::default(), wait: CONFIRMED_WAIT }
    }
}

impl std::fmt::Debug for Challenges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Challenges").field("waiting", &self.lock().len()).finish_non_exhaustive()
    }
}

impl Challenges {
    /// Returns the user of a client that confirms a login. Otherwise, returns the challenge for the client
    /// ([`SsoError::Challenge`]).
    pub(super) async fn visit(
        &self,
        provider: &Arc<Provider>,
        identity: &Asking,
    ) -> Result<SsoUser, SsoError> {
        let username = identity.username.as_deref().ok_or(SsoError::NoBrowser)?;
        if username.len() > MAX_NAME {
            return Err(SsoError::NoBrowser);
        }
        if let Some(login) = self.confirmed(provider, identity) {
            let place = provider.enter(&identity.client).ok_or(SsoError::Busy)?;
            let user = tokio::select! {
                user = provider.wait_within(&login, self.wait) => user,
                () = place.replaced() => return Err(SsoError::Replaced),
            };
            match user {
                Ok(Some(_)) | Err(SsoError::Denied | SsoError::Expired | SsoError::Refused(_)) => {
                    self.lock().remove(&identity.client);
                }
                Ok(None) | Err(_) => {}
            }
            if let Some(user) = user? {
                return Ok(user);
            }
            return Err(self
                .again(provider, identity, username, true)
                .unwrap_or(SsoError::Expired));
        }
        if let Some(challenge) = self.again(provider, identity, username, false) {
            return Err(challenge);
        }
        let login = Arc::new(provider.begin().await?);
        let state = random::bytes().map_err(|fault| SsoError::Refused(fault.to_string()))?;
        let challenge = Challenge {
            state: format!("{:032x}", u128::from_be_bytes(state)),
            provider: Arc::clone(provider),
            login,
            began: clock::now(),
        };
        let text = challenge.text(username, false).ok_or(SsoError::NoBrowser)?;
        let mut all = self.lock();
        let now = clock::now();
        all.retain(|_, known| now.since(known.began) < known.login.limit());
        if all.len() >= MAX_CHALLENGES && !all.contains_key(&identity.client) {
            return Err(SsoError::Busy);
        }
        all.insert(identity.client.clone(), challenge);
        Err(SsoError::Challenge(text))
    }

    /// Returns the login that a client confirms.
    fn confirmed(&self, provider: &Arc<Provider>, identity: &Asking) -> Option<Arc<DeviceLogin>> {
        let state = identity.confirmed.as_deref()?;
        let all = self.lock();
        let known = all.get(&identity.client)?;
        (known.state == state && known.is_open(provider, clock::now()))
            .then(|| Arc::clone(&known.login))
    }

    /// Returns the challenge that a client has been given, if its user still has time. A client that connects again and
    /// again therefore costs the provider few requests.
    fn again(
        &self,
        provider: &Arc<Provider>,
        identity: &Asking,
        username: &str,
        waited: bool,
    ) -> Option<SsoError> {
        let all = self.lock();
        let known = all.get(&identity.client)?;
        let now = clock::now();
        let usable = known.is_open(provider, now) && (waited || known.is_fresh(now));
        usable.then(|| known.text(username, waited).map(SsoError::Challenge)).flatten()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Challenge>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of a client's identity that a challenge depends on.
pub(super) struct Asking {
    /// The name in the certificate.
    client: String,
    username: Option<String>,
    /// The state that the client repeats in place of the password.
    confirmed: Option<String>,
}

impl Asking {
    pub(super) fn new(identity: &Identity) -> Self {
        let answer = identity.password.as_ref().and_then(|text| text.strip_prefix("CRV1::"));
        Self {
            client: identity.common_name.clone(),
            username: identity.username.clone().filter(|name| !name.is_empty()),
            confirmed: answer.and_then(|text| Some(text.split_once("::")?.0.to_owned())),
        }
    }
}

#[cfg(test)]
impl Challenges {
    /// Creates challenges with another time for the provider after the confirmation.
    pub(super) fn with_wait(wait: Duration) -> Self {
        Self { wait, ..Self::default() }
    }
}
