//! Authorizes clients whose users log in in a browser.

mod challenge;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_engine::{Identity, auth};
use adit_pki::{GroupName, User, UserState};
use adit_runtime::authorize::PendingSender;
use adit_runtime::clock;
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use adit_runtime::say;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::authorizer::{RegistryAuthorizer, SessionOwner, join_groups};
use super::login::{
    DeviceLogin, Outcome, Provider, SsoError, SsoLogin, SsoLogins, SsoUser, Tokens, shown,
};
use super::settings::{Login, Settings};
use challenge::{Asking, Challenges};

/// The text for a client whose app cannot show the URL.
const NO_BROWSER: &str = "this server asks for a login in the browser, which this app does not offer: use another app, or add the \
                          line auth-user-pass to the profile";
/// The text for a client while the provider does not work.
const NO_PROVIDER: &str = "the login in the browser does not work at the moment: try again later";

/// The methods (`IV_SSO`) by which an app takes the URL while the server waits.
const METHODS: [&str; 3] = ["webauth", "openurl", "crtext"];

/// The provider, and the logins with it.
#[derive(Debug)]
pub(super) struct SingleSignOn {
    provider: Mutex<Option<Arc<Provider>>>,
    pub(super) logins: SsoLogins,
    challenges: Challenges,
}

impl SingleSignOn {
    pub(super) fn open(paths: &Paths) -> Self {
        Self {
            provider: Mutex::default(),
            logins: SsoLogins::open(paths),
            challenges: Challenges::default(),
        }
    }

    /// Takes the provider of the settings. Logins that wait continue with the former one.
    ///
    /// # Errors
    /// Fails if a file cannot be read. The former provider is kept.
    pub(super) fn configure(&self, paths: &Paths, settings: &Settings) -> Result<(), Fault> {
        let oidc = settings.oidc.as_ref().filter(|_| settings.login == Login::CertificateOidc);
        let provider = match (oidc, self.provider()) {
            (None, _) => None,
            (Some(oidc), Some(current)) if current.is_of(paths, oidc) => return Ok(()),
            (Some(oidc), _) => Some(Arc::new(Provider::open(paths, oidc)?)),
        };
        *self.provider.lock().unwrap_or_else(PoisonError::into_inner) = provider;
        Ok(())
    }

    fn provider(&self) -> Option<Arc<Provider>> {
        self.provider.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RegistryAuthorizer {
    /// Decides about a client whose certificate has been accepted with these parameters.
    pub(super) async fn single_sign_on(
        self,
        identity: Identity,
        params: auth::ClientParams,
        pending: PendingSender,
    ) -> auth::Response {
        let Some(provider) = self.sso.provider() else {
            return auth::Response::Later(NO_PROVIDER.into());
        };
        let lifetime = provider.lifetime();
        let (address, client) = (identity.address, identity.common_name.clone());
        let check = identity.check;
        let methods = identity.peer_info.iter().find(|(name, _)| name == "IV_SSO");
        let methods = methods.map(|(_, value)| value.clone()).unwrap_or_default();
        let asking = Asking::new(&identity);
        let this = self.clone();
        let known = tokio::task::spawn_blocking(move || this.known_login(&identity, lifetime));
        // A token that is not valid any more leads to the browser, as no token does.
        let (login, new) = match known.await.ok().flatten() {
            Some(login) => (login, false),
            None => {
                if let Err(error) = self.logins.begin(address, &client) {
                    return auth::Response::Later(error.to_string());
                }
                let visited = if METHODS.iter().any(|method| knows(&methods, method)) {
                    visit(&provider, &client, &methods, &pending).await
                } else {
                    self.sso.challenges.visit(&provider, &asking).await
                };
                let outcome = match &visited {
                    Ok(_) => Outcome::Accepted,
                    Err(
                        SsoError::Provider(_)
                        | SsoError::Busy
                        | SsoError::Replaced
                        | SsoError::Challenge(_),
                    ) => Outcome::Withdrawn,
                    Err(_) => Outcome::Failed,
                };
                self.logins.ended(address, &client, outcome);
                let SsoUser { name, groups } = match visited {
                    Ok(user) => user,
                    Err(error) => return refusal(error),
                };
                // A connection check leaves the login, and the token, of the client's session as they are.
                (SsoLogin { user: name, groups, at: clock::unix_time().0 }, !check)
            }
        };
        let admitted = tokio::task::spawn_blocking(move || {
            self.admit(&client, (login, new), lifetime, params)
        });
        match admitted.await {
            Ok(Ok(params)) => auth::Response::Accept(params),
            Ok(Err(reason)) => auth::Response::Reject(reason.into()),
            Err(error) => {
                auth::Response::Reject(format!("the check of the user failed: {error}").into())
            }
        }
    }

    /// Returns the login of a client that sends the token from it. It may block.
    fn known_login(&self, identity: &Identity, lifetime: u64) -> Option<SsoLogin> {
        let token = identity.password.as_ref().filter(|text| Tokens::is_token(text))?;
        let (name, client) = (identity.username.as_deref()?, identity.common_name.as_str());
        let login = self.sso.logins.get(client).filter(|login| login.user == name)?;
        let revision = self.users().ok()?.get(name).map_or(0, |user| user.revision);
        let (user, now) = ((name, Some(revision)), clock::unix_time().0);
        let at = self.logins.tokens().verify_within(token, user, client, (now, lifetime))?;
        (at == login.at).then_some(login)
    }

    /// Returns the parameters of a client whose user has logged in, or the reason why the user is refused. It may block.
    fn admit(
        &self,
        client: &str,
        (login, new): (SsoLogin, bool),
        lifetime: u64,
        mut params: auth::ClientParams,
    ) -> Result<auth::ClientParams, String> {
        let users = self.users().map_err(|fault| format!("the users cannot be read: {fault}"))?;
        let name = login.user.as_str();
        let registered = users.get(name);
        if let Some(reason) = registered.and_then(|user| obstacle(user, client)) {
            return Err(format!("user {name}: {reason}"));
        }
        let now = clock::unix_time().0;
        if new {
            self.sso.logins.record(client, login.clone(), now.saturating_sub(lifetime));
        }
        join_groups(&mut params.groups, &login.groups);
        let revision = registered.map_or(0, |user| user.revision);
        if let Some(user) = registered {
            join_groups(&mut params.groups, user.groups.iter().map(GroupName::as_str));
        }
        let token = self.logins.tokens().issue((name, revision), client, login.at);
        // The name comes with the token, because the profile asks for none.
        params.push.push(format!("auth-token-user {}", STANDARD.encode(name)));
        params.push.push(format!("auth-token {}", *token));
        let left = login.at.saturating_add(lifetime).saturating_sub(now);
        params.session_timeout = Some(Duration::from_secs(left.max(1)));
        params.session.get_or_insert_default().username = Some(login.user);
        Ok(params)
    }

    /// Decides whether a session that began with a login in the browser may continue. Returns the reason if not.
    ///
    /// # Errors
    /// Fails if the users cannot be read.
    pub(super) fn decide_single_sign_on(
        &self,
        owner: &SessionOwner,
    ) -> Result<Result<(), String>, Fault> {
        let logged_in = owner.user.as_ref().filter(|user| {
            self.sso.logins.get(&owner.name).is_some_and(|login| login.user == user.name)
        });
        let Some(session) = logged_in else {
            return Ok(Err("the server asks for a login in the browser now".into()));
        };
        let users = self.users()?;
        let Some(user) = users.get(&session.name) else { return Ok(Ok(())) };
        let changed = session.revision.is_some_and(|revision| revision != user.revision);
        let changed = changed.then_some("the user's password or codes were changed");
        match obstacle(user, &owner.name).or(changed) {
            Some(reason) => Ok(Err(format!("user {}: {reason}", user.name))),
            None => Ok(Ok(())),
        }
    }
}

/// Returns why a user of the provider or of PAM who is also registered here may not log in with a client's certificate.
pub(super) fn obstacle(user: &User, client: &str) -> Option<&'static str> {
    if user.state == UserState::Disabled {
        return Some("the user is disabled");
    }
    (!user.may_use(client)).then_some("the user may not use this client's certificate")
}

/// Sends a user to the browser, and waits for the result.
async fn visit(
    provider: &Provider,
    client: &str,
    methods: &str,
    pending: &PendingSender,
) -> Result<SsoUser, SsoError> {
    let place = provider.enter(client).ok_or(SsoError::Busy)?;
    let login = provider.begin().await?;
    let text = message(methods, &login).ok_or(SsoError::NoBrowser)?;
    if !pending.send(login.limit(), Some(text)) {
        return Err(SsoError::Busy);
    }
    say!(2, "{}: waiting for a login in the browser", shown(client));
    tokio::select! {
        user = provider.wait(&login) => user,
        () = place.replaced() => Err(SsoError::Replaced),
    }
}

/// Returns whether a client has a method of authentication (`IV_SSO`).
fn knows(methods: &str, method: &str) -> bool {
    methods.split(',').any(|known| known.trim() == method)
}

/// Returns the message that makes the client's app open the URL or show it with the code, if it can.
fn message(methods: &str, login: &DeviceLogin) -> Option<String> {
    let (url, text) = (login.url(), knows(methods, "crtext"));
    match login.code() {
        None if knows(methods, "webauth") => Some(format!("WEB_AUTH::{url}")),
        None if knows(methods, "openurl") => Some(format!("OPEN_URL:{url}")),
        None if text => Some(format!("CR_TEXT:E,R:Log in at {url} and then answer OK")),
        Some(code) if text => {
            Some(format!("CR_TEXT:E,R:Log in at {url} with the code {code} and then answer OK"))
        }
        _ => None,
    }
}

/// Returns the response to a client whose login failed.
fn refusal(error: SsoError) -> auth::Response {
    let reject =
        |log: &str, peer: &str| auth::Response::Reject(auth::Rejection::with_text(log, peer));
    match error {
        SsoError::Provider(_) => auth::Response::Later(NO_PROVIDER.into()),
        SsoError::Busy => {
            auth::Response::Later("too many logins at the same time: try again later".into())
        }
        SsoError::Replaced => {
            auth::Response::Reject("the client has begun another login meanwhile".into())
        }
        SsoError::Challenge(text) => reject("asked to log in in the browser by a challenge", &text),
        SsoError::NoBrowser => reject(
            "the app cannot show the URL of the login (IV_SSO), or the code that the provider asks for",
            NO_BROWSER,
        ),
        SsoError::Denied => reject("the provider refused the login", "the login was refused"),
        SsoError::Expired => reject(
            "there was no login in the browser in time",
            "there was no login in the browser in time",
        ),
        SsoError::Refused(why) => reject(&why, "this user may not log in here"),
    }
}

#[cfg(test)]
mod tests;
