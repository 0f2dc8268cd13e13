//! Authorizes clients against the registry, and their users against the users' passwords.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use adit_engine::{Identity, auth};
use adit_pki::{Client, ClientState, GroupName, Quota, Store, User, UserState};

use super::init::pki_fault;
use super::login::{Attempt, LoggedIn, LoginError, Logins, Refusal, Users, shown};
use super::settings::Login;
use super::single_sign_on::SingleSignOn;
use super::sites::SiteRules;
use super::usage::Usage;
use adit_runtime::authorize::{Authorizer, PendingSender, ResponseFuture};
use adit_runtime::clock::unix_time;
use adit_runtime::control::LoginReport;
use adit_runtime::fault::Fault;
use adit_runtime::helper::files;
use adit_runtime::paths::Paths;

/// The reason given to a disabled client. It keeps trying, but rarely.
const DISABLED: &str = "the client is disabled";

/// The text for a client whose token is not valid. Its first word makes openvpn 2.6 drop the token and ask the user.
const ASK_AGAIN: &str = "SESSION: log in again";

/// The reason for refusing a client whose profile does not ask for a password.
pub(super) const NO_PASSWORD: &str = "no user name and password: the profile lacks auth-user-pass; make a new \
                           one with: adit server client renew";

/// The registry and the users on disk. They are read again when the files have changed.
#[derive(Clone, Debug)]
pub(super) struct RegistryAuthorizer {
    store: Store,
    clients: Arc<Mutex<CachedFile<Clients>>>,
    users: Arc<Mutex<CachedFile<HashMap<String, User>>>>,
    /// The factors that a client needs.
    login: Arc<Mutex<Login>>,
    pub(super) logins: Arc<Logins>,
    pub(super) sso: Arc<SingleSignOn>,
    /// The traffic of clients with a quota.
    pub(super) usage: Usage,
    sites: Arc<Mutex<SiteRules>>,
    pam_service: Arc<Mutex<String>>,
}

/// The content of a file.
#[derive(Debug, Default)]
struct CachedFile<T> {
    version: Option<FileVersion>,
    content: Arc<T>,
}

/// The registry.
#[derive(Debug, Default)]
struct Clients {
    /// The clients by their names, and by the names in their certificates. A name never means two clients.
    by_name: HashMap<String, Arc<Client>>,
    /// The clients with networks behind them.
    sites: Vec<Arc<Client>>,
    /// Whether a client has a quota.
    quotas: bool,
}

impl Clients {
    fn new(clients: Vec<Client>) -> Self {
        let mut this = Self::default();
        for client in clients.into_iter().map(Arc::new) {
            this.quotas |= client.terms.quota.is_some();
            if !client.terms.networks.is_empty() {
                this.sites.push(Arc::clone(&client));
            }
            for name in [&client.name, client.certificate_name()] {
                this.by_name.insert(name.to_string(), Arc::clone(&client));
            }
        }
        this
    }
}

/// The reason why a client gets no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) reason: String,
    /// Whether the client learns the reason and may try again later.
    pub(super) temporary: bool,
}

impl From<&str> for Denial {
    fn from(reason: &str) -> Self {
        Self { reason: reason.to_owned(), temporary: false }
    }
}

impl Denial {
    fn temporary(reason: String) -> Self {
        Self { reason, temporary: true }
    }
}

/// A file's inode, size and modification time. The inode alone is almost sufficient, because every change replaces the file
/// with a rename.
type FileVersion = (u64, u64, i64, i64);

/// The owner of a session: a certificate, possibly with a user.
#[derive(Clone, Debug)]
pub(super) struct SessionOwner {
    /// The name of the client.
    pub(super) name: String,
    /// The serial number of the certificate.
    pub(super) serial: String,
    /// The user, if users log in.
    pub(super) user: Option<SessionUser>,
}

/// The user of a session.
#[derive(Clone, Debug)]
pub(super) struct SessionUser {
    /// The name.
    pub(super) name: String,
    /// The revision of the user's password and codes when the session began.
    pub(super) revision: Option<u32>,
}

impl RegistryAuthorizer {
    pub(super) fn new(store: Store, paths: &Paths, login: Login) -> Result<Self, Fault> {
        Ok(Self {
            store,
            clients: Arc::default(),
            users: Arc::default(),
            login: Arc::new(Mutex::new(login)),
            logins: Arc::new(Logins::open(paths)?),
            sso: Arc::new(SingleSignOn::open(paths)),
            usage: Usage::open(paths),
            sites: Arc::default(),
            pam_service: Arc::default(),
        })
    }

    /// Returns the name of PAM's service.
    pub(super) fn pam_service(&self) -> String {
        self.pam_service.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the name of PAM's service.
    pub(super) fn set_pam_service(&self, name: &str) {
        name.clone_into(&mut self.pam_service.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets the rules for networks behind clients.
    pub(super) fn set_sites(&self, rules: SiteRules) {
        *self.sites.lock().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Returns the factors that a client needs now.
    pub(super) fn login(&self) -> Login {
        *self.login.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the factors that a client needs.
    pub(super) fn set_login(&self, login: Login) {
        *self.login.lock().unwrap_or_else(PoisonError::into_inner) = login;
    }

    /// Returns the counters of logins, if users log in.
    pub(super) fn login_report(&self) -> Option<LoginReport> {
        self.login().has_users().then(|| self.logins.report())
    }

    /// Decides whether the owner of this certificate may have a session. `name` is the name in it, or the client's own. Returns the reason if
    /// not.
    ///
    /// # Errors
    /// Fails if the registry cannot be read. In this case no client may connect.
    pub(super) fn decide(
        &self,
        name: &str,
        serial: &str,
    ) -> Result<Result<auth::ClientParams, Denial>, Fault> {
        let clients = self.clients()?;
        let Some(client) = clients.by_name.get(name) else {
            return Ok(Err("no such client is registered".into()));
        };
        if !client.serial.eq_ignore_ascii_case(serial) {
            let former = client.former.iter().any(|old| old.serial.eq_ignore_ascii_case(serial));
            return Ok(Err(if former {
                "its certificate was replaced by a newer one".into()
            } else {
                "its certificate is not the registered one".into()
            }));
        }
        match client.state {
            ClientState::Active => {}
            ClientState::Disabled => return Ok(Err(Denial::temporary(DISABLED.into()))),
            ClientState::Revoked => return Ok(Err("the client is revoked".into())),
        }
        if let Some(reason) = self.quota_reached(client) {
            return Ok(Err(Denial::temporary(reason)));
        }
        let rules = self.sites.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let update = rules.update(client, clients.sites.iter().map(Arc::as_ref));
        let name = client.identity.is_some().then(|| client.name.to_string());
        let session = auth::SessionParams { name, username: None, rates: update.rates };
        Ok(Ok(auth::ClientParams {
            ipv4: client.address4,
            ipv6: client.address6,
            groups: groups(client),
            iroutes: update.iroutes,
            push_remove: update.push_remove,
            session: (session != auth::SessionParams::default()).then(|| Box::new(session)),
            ..auth::ClientParams::default()
        }))
    }

    /// Returns the sentence for a client that has used up its quota.
    pub(super) fn quota_reached(&self, client: &Client) -> Option<String> {
        let (quota, now) = (client.terms.quota?, unix_time().0);
        let used = self.usage.used(client.certificate_name().as_str(), quota, now);
        (used >= quota.bytes).then(|| {
            format!("the quota of {quota} is used up until {} UTC", quota.per.end_date(now))
        })
    }

    /// Returns a client by its name, from the registry as it was read last: this runs on the control thread.
    pub(super) fn known_client(&self, name: &str) -> Option<Arc<Client>> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.content.by_name.get(name).cloned()
    }

    /// Returns a client's quota, from the registry as it was read last.
    pub(super) fn known_quota(&self, name: &str) -> Option<(Arc<Client>, Quota)> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if !clients.content.quotas {
            return None;
        }
        let client = clients.content.by_name.get(name)?;
        Some((Arc::clone(client), client.terms.quota?))
    }

    /// Decides whether a session may continue. Returns the reason if not.
    ///
    /// # Errors
    /// Fails if the registry or the users cannot be read.
    pub(super) fn decide_session(&self, owner: &SessionOwner) -> Result<Result<(), String>, Fault> {
        let login = self.login();
        if login.uses_certificate()
            && let Err(denial) = self.decide(&owner.name, &owner.serial)?
        {
            return Ok(Err(denial.reason));
        }
        if !login.has_users() {
            return Ok(Ok(()));
        }
        if login == Login::CertificateOidc {
            return self.decide_single_sign_on(owner);
        }
        let certificate = if login.uses_certificate() { owner.name.as_str() } else { "" };
        let Some(session) = &owner.user else {
            return Ok(Err("the server asks for a user name and password now".into()));
        };
        let users = self.users()?;
        let Some(user) = users.get(&session.name) else {
            if login.uses_pam() {
                return Ok(Ok(()));
            }
            return Ok(Err(format!("user {}: the user was deleted", shown(&session.name))));
        };
        let reason = if user.state == UserState::Disabled {
            "the user is disabled"
        } else if session.revision.is_some_and(|revision| revision != user.revision) {
            "the user's password or codes were changed"
        } else if !user.may_use(certificate) {
            "the user may not use this client's certificate"
        } else if login.requires_code() && user.totp.is_none() {
            "a one-time code is required, and the user has none set up"
        } else {
            return Ok(Ok(()));
        };
        Ok(Err(format!("user {}: {reason}", user.name)))
    }

    /// Returns the user of a session that has just begun.
    pub(super) fn session_user(&self, name: &str) -> SessionUser {
        // The login has just read the file, so it need not be read again here on the control thread.
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let revision = users.content.get(name).map(|user| user.revision);
        SessionUser { name: name.to_owned(), revision }
    }

    /// Returns the current groups of a client and of its user, or none if it is not registered or the registry cannot be
    /// read.
    pub(super) fn groups(&self, name: &str, user: Option<&str>) -> Vec<String> {
        let Ok(clients) = self.clients() else { return Vec::new() };
        let client = clients.by_name.get(name).filter(|_| self.login().uses_certificate());
        let mut all = client.map(|client| groups(client)).unwrap_or_default();
        let Some(user) = user else { return all };
        if self.login() == Login::CertificateOidc {
            let login = self.sso.logins.get(name).filter(|login| login.user == user);
            join_groups(&mut all, login.map(|login| login.groups).unwrap_or_default());
        }
        if let Some(user) = self.users().ok().as_ref().and_then(|users| users.get(user)) {
            join_groups(&mut all, user.groups.iter().map(GroupName::as_str));
        }
        all
    }

    /// Returns the active client whose certificate expires first, and the time. Returns `None` if there is none or the
    /// registry cannot be read.
    pub(super) fn nearest_expiry(&self) -> Option<(String, u64)> {
        if !self.login().uses_certificate() {
            return None;
        }
        let clients = self.clients().ok()?;
        let all = clients.by_name.values();
        let active = all.filter(|client| client.state == ClientState::Active);
        let first = active.min_by_key(|client| client.expires)?;
        Some((first.name.to_string(), first.expires))
    }

    /// Returns the current registry.
    fn clients(&self) -> Result<Arc<Clients>, Fault> {
        current(&self.clients, &self.store.files().clients, || {
            Ok(Clients::new(self.store.clients().map_err(pki_fault)?))
        })
    }

    /// Returns the current users.
    pub(super) fn users(&self) -> Result<Users, Fault> {
        current(&self.users, &self.store.files().users, || {
            let users = self.store.users().map_err(pki_fault)?;
            Ok(users.into_iter().map(|user| (user.name.to_string(), user)).collect())
        })
    }

    /// Checks a certificate on a thread that may block. An error is the response to the client.
    async fn registered(
        &self,
        name: &str,
        serial: &str,
    ) -> Result<auth::ClientParams, auth::Response> {
        let this = self.clone();
        let (name, serial) = (name.to_owned(), serial.to_owned());
        let decided = tokio::task::spawn_blocking(move || this.decide(&name, &serial));
        Err(match decided.await {
            Ok(Ok(Ok(params))) => return Ok(params),
            Ok(Ok(Err(denial))) if denial.temporary => auth::Response::Later(denial.reason),
            Ok(Ok(Err(denial))) => auth::Response::Reject(denial.reason.into()),
            // The client is not at fault, and shall try again.
            Ok(Err(fault)) => {
                auth::Response::Later(format!("the registry cannot be read: {fault}"))
            }
            Err(error) => auth::Response::Later(format!("the registry check failed: {error}")),
        })
    }

    /// Checks the certificate, if clients have any, and then the user if users log in.
    async fn respond(self, mut identity: Identity, pending: PendingSender) -> auth::Response {
        let login = self.login();
        let mut params = auth::ClientParams::default();
        if login.uses_certificate() {
            params = match self.registered(&identity.common_name, &identity.serial).await {
                Ok(params) => params,
                Err(response) => return response,
            };
            // From here on, a renamed client has its own name.
            let session = params.session.as_ref();
            if let Some(name) = session.and_then(|session| session.name.as_ref()) {
                identity.common_name.clone_from(name);
            }
        }
        if !login.has_users() {
            return auth::Response::Accept(params);
        }
        if login == Login::CertificateOidc {
            return self.single_sign_on(identity, params, pending).await;
        }
        if login.uses_pam() {
            return self.by_pam(identity, params).await;
        }
        let (Some(user), Some(password)) = (identity.username, identity.password) else {
            return auth::Response::Reject(NO_PASSWORD.into());
        };
        let name = shown(&user);
        let attempt = Attempt {
            user,
            password,
            // Without a certificate, this is empty.
            client: identity.common_name,
            address: identity.address,
            code_required: login.requires_code(),
        };
        let reader = self.clone();
        match self.logins.check(attempt, move || reader.users()).await {
            Ok(LoggedIn { user, token }) => {
                join_groups(&mut params.groups, user.groups.iter().map(GroupName::as_str));
                params.push.extend(token.map(|token| format!("auth-token {}", *token)));
                auth::Response::Accept(params)
            }
            Err(error @ (LoginError::Paused(_) | LoginError::Busy | LoginError::Broken(_))) => {
                auth::Response::Later(error.to_string())
            }
            Err(error) => {
                let again = matches!(error, LoginError::Refused(Refusal::TokenInvalid));
                auth::Response::Reject(auth::Rejection {
                    log: format!("user {name}: {error}"),
                    peer: again.then(|| ASK_AGAIN.to_owned()),
                })
            }
        }
    }
}

/// Returns a file's current content, which `read` parses.
///
/// No lock is held while files are opened. The helper may have to open them, and its answers arrive on the control thread,
/// which also needs the content.
fn current<T>(
    cache: &Mutex<CachedFile<T>>,
    path: &Path,
    read: impl FnOnce() -> Result<T, Fault>,
) -> Result<Arc<T>, Fault> {
    let version = files::metadata(path)
        .ok()
        .map(|meta| (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()));
    {
        let cached = cache.lock().unwrap_or_else(PoisonError::into_inner);
        if version.is_some() && version == cached.version {
            return Ok(Arc::clone(&cached.content));
        }
    }
    let content = Arc::new(read()?);
    let fresh = CachedFile { version, content: Arc::clone(&content) };
    *cache.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
    Ok(content)
}

fn groups(client: &Client) -> Vec<String> {
    client.groups.iter().map(ToString::to_string).collect()
}

/// Adds a user's groups to those of the client, up to the maximum of a session.
pub(super) fn join_groups<T: AsRef<str>>(all: &mut Vec<String>, more: impl IntoIterator<Item = T>) {
    for group in more {
        let group = group.as_ref();
        if all.len() < auth::MAX_GROUPS && !all.iter().any(|known| known == group) {
            all.push(group.to_owned());
        }
    }
}

impl Authorizer for RegistryAuthorizer {
    fn authorize(&self, identity: Box<Identity>, pending: PendingSender) -> ResponseFuture {
        Box::pin(self.clone().respond(*identity, pending))
    }
}

#[cfg(test)]
mod tests {
    use super::super::clients::{
        ClientRequest, add, disable, enable, open_store, rename, renew, revoke, set,
    };
    use super::super::users::{self, UserRequest};
    use std::fs;
    use std::net::IpAddr;

    use adit_pki::ClientChange;

    use super::*;
    use crate::testing;

    /// Tests each check of the registry separately.
    #[test]
    fn only_the_current_certificate_of_an_active_client_is_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let wanted = ClientRequest {
            name: "a".into(),
            addresses: vec!["10.199.31.77".parse().unwrap()],
            ..ClientRequest::default()
        };
        let serial = add(&paths, &wanted).unwrap().client.serial;
        let store = open_store(&paths).unwrap();
        let authority = RegistryAuthorizer::new(store, &paths, Login::Certificate).unwrap();
        let decide = |name: &str, serial: &str| authority.decide(name, serial).unwrap();

        assert_eq!(
            decide("a", &serial).unwrap().ipv4.map(IpAddr::V4),
            wanted.addresses.first().copied()
        );
        let denied = |name: &str, serial: &str| decide(name, serial).map(drop).unwrap_err().reason;
        assert!(denied("b", &serial).contains("no such client"));
        assert!(denied("a", "00").contains("not the registered"));
        disable(&paths, "a").unwrap();
        assert!(denied("a", &serial).contains("disabled"));
        enable(&paths, "a").unwrap();
        decide("a", &serial).unwrap();
        let (renewed, _) =
            renew(&paths, &ClientRequest { name: "a".into(), ..ClientRequest::default() }).unwrap();
        assert!(denied("a", &serial).contains("replaced"));
        let serial = renewed.client.serial;
        assert_eq!(
            decide("a", &serial).unwrap().ipv4.map(IpAddr::V4),
            wanted.addresses.first().copied()
        );
        revoke(&paths, "a").unwrap();
        assert!(denied("a", &serial).contains("revoked"));

        fs::write(authority.store.files().clients, "{").unwrap();
        assert!(authority.decide("a", &serial).is_err());
        fs::remove_file(authority.store.files().clients).unwrap();
        assert!(authority.decide("a", &serial).is_err());
    }

    /// A renamed client is known by the name in its certificate, and its session has its own name.
    #[tokio::test]
    async fn a_renamed_client_has_its_new_name_after_its_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let wanted = ClientRequest { name: "laptop".into(), ..ClientRequest::default() };
        let serial = add(&paths, &wanted).unwrap().client.serial;
        let alice = UserRequest { clients: vec!["laptop".into()], ..UserRequest::new("alice") };
        users::add(&paths, &alice, "correct horse").unwrap();
        let store = open_store(&paths).unwrap();
        let authority = RegistryAuthorizer::new(store, &paths, Login::CertificatePassword).unwrap();
        rename(&paths, "laptop", "desk").unwrap();
        let identity = Box::new(identity(&serial, Some(("alice", "correct horse"))));
        let response = authority.authorize(identity, PendingSender::none()).await;
        let auth::Response::Accept(params) = response else { panic!("{response:?}") };
        assert_eq!(params.session.unwrap().name.as_deref(), Some("desk"));
        // Sessions from before and after the change continue.
        for name in ["laptop", "desk"] {
            let user = Some(authority.session_user("alice"));
            let owner = SessionOwner { name: name.into(), serial: serial.clone(), user };
            let decided = authority.decide_session(&owner).unwrap();
            assert_eq!(decided.is_ok(), name == "desk", "alice is bound to desk: {decided:?}");
        }
        authority.set_login(Login::Certificate);
        for name in ["laptop", "desk"] {
            authority.decide(name, &serial).unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_client_that_has_used_up_its_quota_is_refused_for_now() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let wanted = ClientRequest { name: "laptop".into(), ..ClientRequest::default() };
        let serial = add(&paths, &wanted).unwrap().client.serial;
        let quota = "5MB/day".parse().unwrap();
        let change = ClientChange { quota: Some(Some(quota)), ..ClientChange::default() };
        set(&paths, "laptop", &change).unwrap();
        let store = open_store(&paths).unwrap();
        let authority = RegistryAuthorizer::new(store, &paths, Login::Certificate).unwrap();
        let ask = || authority.authorize(Box::new(identity(&serial, None)), PendingSender::none());
        let now = unix_time().0;
        authority.usage.add("laptop", quota, 4_999_999, now);
        assert!(matches!(ask().await, auth::Response::Accept(_)));
        authority.usage.add("laptop", quota, 1, now);
        let response = ask().await;
        let auth::Response::Later(reason) = response else { panic!("{response:?}") };
        assert!(reason.contains("the quota of 5 MB a day is used up until 2"), "{reason}");
        let more = ClientChange { quota: Some(None), ..ClientChange::default() };
        set(&paths, "laptop", &more).unwrap();
        assert!(matches!(ask().await, auth::Response::Accept(_)));
    }

    fn server(dir: &tempfile::TempDir) -> Paths {
        testing::server(dir).0
    }

    fn identity(serial: &str, user: Option<(&str, &str)>) -> Identity {
        Identity {
            common_name: "laptop".into(),
            serial: serial.into(),
            username: user.map(|(name, _)| name.to_owned()),
            password: user.map(|(_, password)| password.to_owned().into()),
            address: Some("192.0.2.1".parse().unwrap()),
            ..Identity::default()
        }
    }

    /// Each refusal has one reason, and everything else is right.
    #[tokio::test]
    async fn a_user_and_a_certificate_are_both_needed_and_their_groups_add_up() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let laptop = ClientRequest {
            name: "laptop".into(),
            groups: vec!["devices".into()],
            ..ClientRequest::default()
        };
        let serial = add(&paths, &laptop).unwrap().client.serial;
        let alice = UserRequest { groups: vec!["staff".into()], ..UserRequest::new("alice") };
        users::add(&paths, &alice, "correct horse").unwrap();
        let store = open_store(&paths).unwrap();
        let login = Login::CertificatePassword;
        let authority = RegistryAuthorizer::new(store, &paths, login).unwrap();
        let ask = async |serial: &str, user| match authority
            .authorize(Box::new(identity(serial, user)), PendingSender::none())
            .await
        {
            auth::Response::Accept(params) => Ok(params.groups),
            auth::Response::Reject(reason) => Err(reason.log),
            auth::Response::Later(reason) => Err(reason),
            other => panic!("{other:?}"),
        };
        let right = Some(("alice", "correct horse"));
        assert_eq!(ask(&serial, right).await.unwrap(), ["devices", "staff"]);
        for (serial, user, why) in [
            ("00", right, "not the registered one"),
            (serial.as_str(), None, "auth-user-pass"),
            (serial.as_str(), Some(("alice", "wrong horse")), "user alice: wrong password"),
            (serial.as_str(), Some(("mallory", "correct horse")), "user mallory: no such user"),
        ] {
            let reason = ask(serial, user).await.unwrap_err();
            assert!(reason.contains(why), "{reason}");
        }
        authority.set_login(Login::CertificatePasswordCode);
        let reason = ask(&serial, right).await.unwrap_err();
        assert!(reason.contains("has none set up"), "{reason}");
        authority.set_login(Login::Certificate);
        assert_eq!(ask(&serial, None).await.unwrap(), ["devices"]);
        authority.set_login(login);
        assert_eq!(authority.groups("laptop", Some("alice")), ["devices", "staff"]);
        assert_eq!(authority.groups("laptop", Some("mallory")), ["devices"]);

        // Only a client with a token that is not valid gets a text, which makes it ask for the password.
        for (password, text) in [("SESS_ID_adit_x", Some(ASK_AGAIN)), ("wrong horse", None)] {
            let identity = Box::new(identity(&serial, Some(("alice", password))));
            let response = authority.authorize(identity, PendingSender::none()).await;
            let auth::Response::Reject(rejection) = response else { panic!("{response:?}") };
            assert_eq!(rejection.peer.as_deref(), text);
        }

        fs::write(authority.store.files().users, "{").unwrap();
        let reason = ask(&serial, right).await.unwrap_err();
        assert!(reason.contains("cannot be read"), "{reason}");
    }

    /// Without certificates, neither the registry of clients nor its groups count, even where a client has the user's name.
    #[tokio::test]
    async fn a_user_alone_logs_in_where_no_certificate_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let namesake = ClientRequest {
            name: "alice".into(),
            groups: vec!["devices".into()],
            ..ClientRequest::default()
        };
        add(&paths, &namesake).unwrap();
        let alice = UserRequest { groups: vec!["staff".into()], ..UserRequest::new("alice") };
        users::add(&paths, &alice, "correct horse").unwrap();
        let store = open_store(&paths).unwrap();
        let authority = RegistryAuthorizer::new(store, &paths, Login::Password).unwrap();
        let ask = async |user: Option<(&str, &str)>| {
            let identity = Identity { common_name: String::new(), ..identity("", user) };
            match authority.authorize(Box::new(identity), PendingSender::none()).await {
                auth::Response::Accept(params) => Ok(params.groups),
                auth::Response::Reject(reason) => Err(reason.log),
                other => panic!("{other:?}"),
            }
        };
        let right = Some(("alice", "correct horse"));
        assert_eq!(ask(right).await.unwrap(), ["staff"]);
        assert!(ask(None).await.unwrap_err().contains("auth-user-pass"));
        assert!(ask(Some(("alice", "wrong horse"))).await.unwrap_err().contains("wrong password"));
        assert!(ask(Some(("mallory", "x"))).await.unwrap_err().contains("no such user"));
        let user = Some(authority.session_user("alice"));
        let owner = SessionOwner { name: "alice".into(), serial: String::new(), user };
        assert_eq!(authority.decide_session(&owner).unwrap(), Ok(()));
        assert_eq!(authority.groups("alice", Some("alice")), ["staff"]);
        assert_eq!(authority.nearest_expiry(), None);
        authority.set_login(Login::PasswordCode);
        assert!(ask(right).await.unwrap_err().contains("has none set up"));
        // With certificates, the same session would not be allowed.
        authority.set_login(Login::CertificatePassword);
        assert!(authority.decide_session(&owner).unwrap().is_err());
        authority.set_login(Login::Password);
        users::bind(&paths, "alice", &["alice".into()]).unwrap();
        assert!(ask(right).await.unwrap_err().contains("bound to certificates"));
        assert!(authority.decide_session(&owner).unwrap().is_err());
    }

    #[test]
    fn a_session_ends_with_each_right_of_its_user() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir);
        let client = |name: &str| {
            let wanted = ClientRequest { name: name.into(), ..ClientRequest::default() };
            add(&paths, &wanted).unwrap().client.serial
        };
        let (serial, _) = (client("laptop"), client("phone"));
        users::add(&paths, &UserRequest::new("alice"), "correct horse").unwrap();
        let store = open_store(&paths).unwrap();
        let authority = RegistryAuthorizer::new(store, &paths, Login::Certificate).unwrap();
        let owner = |user: Option<SessionUser>| SessionOwner {
            name: "laptop".into(),
            serial: serial.clone(),
            user,
        };
        let decide = |owner: &SessionOwner| authority.decide_session(owner).unwrap();
        let ends = |owner: &SessionOwner, why: &str| {
            let reason = decide(owner).unwrap_err();
            assert!(reason.contains(why), "{reason}");
        };
        assert_eq!(decide(&owner(None)), Ok(()));
        authority.set_login(Login::CertificatePassword);
        ends(&owner(None), "asks for a user name");
        authority.users().unwrap();
        let alice = owner(Some(authority.session_user("alice")));
        assert_eq!(decide(&alice), Ok(()));

        users::disable(&paths, "alice").unwrap();
        ends(&alice, "disabled");
        users::enable(&paths, "alice").unwrap();
        users::bind(&paths, "alice", &["phone".into()]).unwrap();
        ends(&alice, "may not use");
        users::bind(&paths, "alice", &["laptop".into()]).unwrap();
        assert_eq!(decide(&alice), Ok(()));
        authority.set_login(Login::CertificatePasswordCode);
        ends(&alice, "has none set up");
        authority.set_login(Login::CertificatePassword);
        disable(&paths, "laptop").unwrap();
        ends(&alice, "the client is disabled");
        enable(&paths, "laptop").unwrap();
        users::set_password(&paths, "alice", "battery staple").unwrap();
        ends(&alice, "changed");
        authority.users().unwrap();
        let alice = owner(Some(authority.session_user("alice")));
        assert_eq!(decide(&alice), Ok(()));
        users::set_codes(&paths, "alice").unwrap();
        ends(&alice, "changed");
        users::delete(&paths, "alice").unwrap();
        ends(&alice, "deleted");
    }

    #[test]
    fn a_session_has_no_more_groups_than_the_filter_takes() {
        let names = |prefix: &str| (0..10).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
        let mut all = names("a");
        let more = names("b");
        join_groups(&mut all, &more);
        join_groups(&mut all, &more);
        assert_eq!(all.len(), auth::MAX_GROUPS);
        let mut all = vec!["b1".to_owned()];
        join_groups(&mut all, &more);
        assert_eq!(all.len(), 10);
    }
}
