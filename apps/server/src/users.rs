//! `adit server user ...`.

use std::collections::HashMap;
use std::time::SystemTime;

use adit_pki::{
    ClientName, ClientState, NewUser, PasswordHash, PkiError, Profile, Store, User, UserState,
    user_name,
};
use serde::Serialize;
use zeroize::Zeroizing;

use super::clients::{client_key, group_names, open_store, peers, read_again, refresh_remote};
use super::init::pki_fault;
use super::login::UsedCodes;
use super::settings::{Login, Settings};
use adit_runtime::control::PeerReport;
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;

/// A user to be added.
#[derive(Clone, Debug, Default)]
pub struct UserRequest {
    /// The name.
    pub name: String,
    /// The groups for the packet filter.
    pub groups: Vec<String>,
    /// The clients whose certificates the user may log in with; empty: those of all clients.
    pub clients: Vec<String>,
}

impl UserRequest {
    /// Creates a request for a user without groups who may log in with any certificate.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

/// A user with the current sessions, without secrets.
#[derive(Clone, Debug, Serialize)]
pub struct UserOverview {
    /// The name.
    pub name: String,
    /// Whether the user may log in.
    pub state: UserState,
    /// The time when the user was added, in seconds since 1970.
    pub created: u64,
    /// Whether the user has one-time codes.
    pub totp: bool,
    /// The number of recovery codes that were not used yet.
    pub recovery_codes: usize,
    /// The groups.
    pub groups: Vec<String>,
    /// The clients whose certificates the user may log in with; empty: those of all clients.
    pub clients: Vec<String>,
    /// The user's current sessions.
    pub sessions: Vec<PeerReport>,
}

/// The new codes of a user, which are shown once.
pub struct Enrolment {
    /// The secret in base32, for typing it into an app.
    pub secret: Zeroizing<String>,
    /// The `otpauth` URI for the QR code.
    pub uri: Zeroizing<String>,
    /// The recovery codes.
    pub recovery: Vec<Zeroizing<String>>,
}

/// Checks whether a user of this name may be added, before asking for a password.
///
/// # Errors
/// Fails if the name is not allowed or already taken.
pub fn check_new(paths: &Paths, name: &str) -> Result<(), Fault> {
    let name = user_name(name).map_err(pki_fault)?;
    match open_store(paths)?.user(name.as_str()) {
        Ok(_) => Err(pki_fault(PkiError::UserExists(name.to_string()))),
        Err(PkiError::UnknownUser(_)) => Ok(()),
        Err(error) => Err(pki_fault(error)),
    }
}

/// Adds a user.
///
/// # Errors
/// Fails if the name or password is not allowed, the name is taken, a client does not exist, or the store is not writable.
pub fn add(paths: &Paths, wanted: &UserRequest, password: &str) -> Result<User, Fault> {
    add_with(paths, wanted, PasswordHash::new(password).map_err(pki_fault)?)
}

/// Adds a user who logs in in the browser, and whom no password lets in.
///
/// # Errors
/// See [`add`].
pub fn add_without_password(paths: &Paths, wanted: &UserRequest) -> Result<User, Fault> {
    add_with(paths, wanted, PasswordHash::of_no_user().map_err(pki_fault)?)
}

fn add_with(paths: &Paths, wanted: &UserRequest, password: PasswordHash) -> Result<User, Fault> {
    let new = NewUser {
        name: user_name(&wanted.name).map_err(pki_fault)?,
        password,
        groups: group_names(&wanted.groups)?,
        clients: client_names(&wanted.clients)?,
    };
    open_store(paths)?.add_user(&new, SystemTime::now()).map_err(pki_fault)
}

fn client_names(names: &[String]) -> Result<Vec<ClientName>, Fault> {
    names.iter().map(|name| name.parse().map_err(pki_fault)).collect()
}

/// Returns a note if the server's settings do not ask for passwords.
///
/// # Errors
/// Fails if the settings cannot be read.
pub fn note_on_login(paths: &Paths) -> Result<Option<String>, Fault> {
    let login = Settings::read(&paths.settings_file())?.login;
    Ok((!login.has_users()).then(|| {
        format!(
            "the server does not ask for passwords yet: write login = \"{}\" into {}, then: {}",
            Login::CertificatePassword.name(),
            paths.settings_file().display(),
            paths.command("reload")
        )
    }))
}

/// Replaces a user's password, and ends the user's sessions. Returns their number.
///
/// # Errors
/// Fails if there is no such user, the password is not allowed, or the store is not writable.
pub fn set_password(paths: &Paths, name: &str, password: &str) -> Result<usize, Fault> {
    let password = PasswordHash::new(password).map_err(pki_fault)?;
    let now = SystemTime::now();
    let edit = |store: &Store| store.set_user_password(name, password, now);
    let (_, ended) = change(paths, name, all, edit)?;
    Ok(ended)
}

/// Gives a user a new secret for one-time codes with new recovery codes, and ends the user's sessions. Returns their number.
///
/// # Errors
/// Fails if there is no such user, or the store is not writable.
pub fn set_codes(paths: &Paths, name: &str) -> Result<(Enrolment, usize), Fault> {
    let issuer = Settings::read(&paths.settings_file())?.host;
    let edit = |store: &Store| store.set_user_codes(name, SystemTime::now());
    let ((user, codes), ended) = change(paths, name, all, edit)?;
    let enrolment = Enrolment {
        secret: codes.secret.to_base32(),
        uri: codes.secret.uri(&issuer, user.name.as_str()),
        recovery: codes.recovery,
    };
    Ok((enrolment, ended))
}

/// Lets a user log in without one-time codes, and ends the user's sessions. Returns their number.
///
/// # Errors
/// Fails if there is no such user, or the store is not writable.
pub fn remove_codes(paths: &Paths, name: &str) -> Result<usize, Fault> {
    let edit = |store: &Store| store.remove_user_codes(name, SystemTime::now());
    let (_, ended) = change(paths, name, all, edit)?;
    Ok(ended)
}

/// Forbids a user to log in, and ends the user's sessions. Returns their number.
///
/// # Errors
/// Fails if there is no such user, or the store is not writable.
pub fn disable(paths: &Paths, name: &str) -> Result<usize, Fault> {
    let (_, ended) = change(paths, name, all, |store| store.set_user_enabled(name, false))?;
    Ok(ended)
}

/// Allows a disabled user to log in.
///
/// # Errors
/// Fails if there is no such user, or the store is not writable.
pub fn enable(paths: &Paths, name: &str) -> Result<(), Fault> {
    change(paths, name, none, |store| store.set_user_enabled(name, true)).map(drop)
}

/// Puts a user into exactly these groups. A running server applies the change at once.
///
/// # Errors
/// Fails if there is no such user, a group name is not allowed, or there are too many groups.
pub fn set_groups(paths: &Paths, name: &str, groups: &[String]) -> Result<User, Fault> {
    let groups = group_names(groups)?;
    let (user, _) = change(paths, name, none, |store| store.set_user_groups(name, &groups))?;
    Ok(user)
}

/// Binds a user to the certificates of exactly these clients, or to none, and ends the user's other sessions. Returns their
/// number.
///
/// # Errors
/// Fails if there is no such user or client, or there are too many clients.
pub fn bind(paths: &Paths, name: &str, clients: &[String]) -> Result<(User, usize), Fault> {
    let bound = client_names(clients)?;
    let ends = |peer: &PeerReport| !clients.is_empty() && !clients.contains(&peer.name);
    change(paths, name, ends, |store| store.set_user_clients(name, &bound))
}

/// Removes a user, and ends the user's sessions. Returns their number.
///
/// # Errors
/// Fails if there is no such user, or the store is not writable.
pub fn delete(paths: &Paths, name: &str) -> Result<usize, Fault> {
    let ((), ended) = change(paths, name, all, |store| store.delete_user(name))?;
    Ok(ended)
}

fn all(_: &PeerReport) -> bool {
    true
}

fn none(_: &PeerReport) -> bool {
    false
}

/// Changes a user, and makes a running server end those of the user's sessions for which `ends` holds. Returns their number.
fn change<T>(
    paths: &Paths,
    name: &str,
    ends: impl Fn(&PeerReport) -> bool,
    edit: impl FnOnce(&Store) -> Result<T, PkiError>,
) -> Result<(T, usize), Fault> {
    let store = open_store(paths)?;
    let result = edit(&store).map_err(pki_fault)?;
    if super::host_state::running(paths).is_none() {
        return Ok((result, 0));
    }
    let login = Settings::read(&paths.settings_file())?.login;
    let ended = peers(paths).iter().filter(|&peer| is_of(peer, name) && ends(peer)).count();
    read_again(paths).map_err(|fault| {
        Fault::environment(format!(
            "it is registered, but the running server did not apply it: {fault}; restart it"
        ))
    })?;
    Ok((result, if login.has_users() { ended } else { 0 }))
}

fn is_of(peer: &PeerReport, name: &str) -> bool {
    peer.username.as_deref() == Some(name)
}

/// Returns every user with the current sessions.
///
/// # Errors
/// Fails if the store cannot be read.
pub fn list(paths: &Paths) -> Result<Vec<UserOverview>, Fault> {
    let users = open_store(paths)?.users().map_err(pki_fault)?;
    let used = UsedCodes::open(paths);
    let mut sessions: HashMap<String, Vec<PeerReport>> = HashMap::new();
    for peer in peers(paths) {
        if let Some(name) = peer.username.clone() {
            sessions.entry(name).or_default().push(peer);
        }
    }
    let with_sessions = |user: User| {
        let sessions = sessions.remove(user.name.as_str()).unwrap_or_default();
        overview(&user, &used, sessions)
    };
    Ok(users.into_iter().map(with_sessions).collect())
}

/// Returns one user.
///
/// # Errors
/// Fails if there is no such user.
pub fn show(paths: &Paths, name: &str) -> Result<UserOverview, Fault> {
    let user = open_store(paths)?.user(name).map_err(pki_fault)?;
    let sessions = peers(paths).into_iter().filter(|peer| is_of(peer, name)).collect();
    Ok(overview(&user, &UsedCodes::open(paths), sessions))
}

fn overview(user: &User, used: &UsedCodes, sessions: Vec<PeerReport>) -> UserOverview {
    UserOverview {
        name: user.name.to_string(),
        state: user.state,
        created: user.created,
        totp: user.totp.is_some(),
        recovery_codes: used.recovery_left(user),
        groups: user.groups.iter().map(ToString::to_string).collect(),
        clients: user.clients.iter().map(ToString::to_string).collect(),
        sessions,
    }
}

/// Returns the names of all users, without querying a running server for their sessions.
///
/// # Errors
/// Fails if the store cannot be read.
pub fn names(paths: &Paths) -> Result<Vec<(String, UserState)>, Fault> {
    let users = open_store(paths)?.users().map_err(pki_fault)?;
    Ok(users.into_iter().map(|user| (user.name.to_string(), user.state)).collect())
}

/// Makes the profile of a user who logs in without a certificate. Every call makes a new one, and all of them are valid.
///
/// # Errors
/// Fails if there is no such user, the server asks for certificates, the user is bound to some, or the store cannot be read.
pub fn profile(paths: &Paths, name: &str) -> Result<Profile, Fault> {
    let settings = Settings::read(&paths.settings_file())?;
    let mut store = open_store(paths)?;
    let login = settings.login;
    if login.uses_certificate() {
        return Err(Fault::operator(format!(
            "login = \"{}\" asks for the certificate of a client, whose profile serves all its users: {}",
            login.name(),
            paths.command("server client add NAME")
        )));
    }
    if login.uses_pam() {
        // PAM knows the users.
        refresh_remote(&mut store, &settings)?;
        let name = user_name(name).map_err(pki_fault)?;
        let key = client_key(&store)?;
        return store.user_profile(&name, &key, &login_lines(false)).map_err(pki_fault);
    }
    let user = store.user(name).map_err(pki_fault)?;
    if !user.may_use("") {
        return Err(Fault::operator(format!(
            "{name} is bound to certificates, which login = \"{}\" does not ask for; unbind the user: {}",
            login.name(),
            paths.command(&format!("server user bind {name}"))
        )));
    }
    refresh_remote(&mut store, &settings)?;
    let key = client_key(&store)?;
    let codes = login.requires_code() || user.totp.is_some();
    store.user_profile(&user.name, &key, &login_lines(codes)).map_err(pki_fault)
}

/// The lines of a profile whose user logs in in the browser. Without a front end, openvpn logs the URL and the code, so it can do
/// both; a front end says itself what it can do.
const BROWSER_LINES: [&str; 1] = ["setenv IV_SSO webauth,crtext"];

/// Returns the lines with which a profile asks for a user name, a password, and possibly a code.
fn login_lines(codes: bool) -> Vec<&'static str> {
    // The app shows the code while the user types it.
    let challenge = codes.then_some("static-challenge \"One-time code\" 1");
    std::iter::once("auth-user-pass").chain(challenge).collect()
}

/// Returns the lines that a client's profile needs for the login of its users.
pub(super) fn profile_lines(
    login: Login,
    store: &Store,
    client: &str,
) -> Result<Vec<&'static str>, Fault> {
    if login == Login::CertificateOidc {
        return Ok(BROWSER_LINES.to_vec());
    }
    if !login.asks_password() {
        return Ok(Vec::new());
    }
    if login.uses_pam() {
        return Ok(login_lines(false));
    }
    let users = store.users().map_err(pki_fault)?;
    let has_codes = |user: &User| {
        user.totp.is_some() && user.state == UserState::Active && user.may_use(client)
    };
    Ok(login_lines(login.requires_code() || users.iter().any(has_codes)))
}

/// Returns the active users without one-time codes.
pub(super) fn without_codes(store: &Store) -> Result<Vec<String>, Fault> {
    let users = store.users().map_err(pki_fault)?;
    let without = |user: &&User| user.state == UserState::Active && user.totp.is_none();
    Ok(users.iter().filter(without).map(|user| user.name.to_string()).collect())
}

/// Returns the users that are bound only to clients that do not exist any more or are revoked.
pub(super) fn stranded(store: &Store) -> Result<Vec<String>, Fault> {
    let clients = store.clients().map_err(pki_fault)?;
    let usable = |name: &ClientName| {
        clients.iter().any(|client| client.name == *name && client.state != ClientState::Revoked)
    };
    let users = store.users().map_err(pki_fault)?;
    let stranded = |user: &&User| !user.clients.is_empty() && !user.clients.iter().any(usable);
    Ok(users.iter().filter(stranded).map(|user| user.name.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::clients::{self, ClientRequest};
    use super::super::init::{NewServer, init};
    use super::*;

    fn server(dir: &tempfile::TempDir, login: Login) -> Paths {
        let paths = Paths::new(Some(&dir.path().join("vpn"))).unwrap();
        let choices = NewServer {
            host: Some("vpn.example.net".into()),
            listen: vec!["udp/1194".parse().unwrap()],
            network: Some("10.199.31.0/24".parse().unwrap()),
            ..NewServer::default()
        };
        init(&paths, &choices, false).unwrap();
        let file = paths.settings_file();
        let text = std::fs::read_to_string(&file).unwrap();
        let line = format!("login = \"{}\"", login.name());
        let mut text = text.replace("login = \"certificate\"", &line);
        if login == Login::CertificateOidc {
            text.push_str("[oidc]\nissuer = \"https://sso.example.net\"\nclient-id = \"adit\"\n");
        }
        std::fs::write(&file, text).unwrap();
        paths
    }

    fn profile(paths: &Paths, name: &str) -> String {
        let wanted = ClientRequest { name: name.into(), ..ClientRequest::default() };
        clients::add(paths, &wanted).unwrap().profile.text().to_owned()
    }

    #[test]
    fn profiles_ask_for_what_the_login_needs() {
        let password = "\nauth-user-pass\n";
        let code = "\nstatic-challenge \"One-time code\" 1\n";
        for (login, asks_password, asks_code) in [
            (Login::Certificate, false, false),
            (Login::CertificatePassword, true, false),
            (Login::CertificatePasswordCode, true, true),
            (Login::Password, true, false),
            (Login::CertificatePam, true, false),
            (Login::CertificateOidc, false, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let paths = server(&dir, login);
            let text = profile(&paths, "laptop");
            assert_eq!(text.contains(password), asks_password, "{login:?}");
            assert_eq!(text.contains(code), asks_code, "{login:?}");
            let browser = text.contains("\nsetenv IV_SSO webauth,crtext\n");
            assert_eq!(browser, login == Login::CertificateOidc, "{login:?}");
        }
    }

    #[test]
    fn the_profile_of_a_user_has_no_key_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir, Login::Password);
        add(&paths, &UserRequest::new("alice"), "correct horse").unwrap();
        let text = |name: &str| super::profile(&paths, name).map(|made| made.text().to_owned());
        let made = text("alice").unwrap();
        for part in ["<ca>", "<tls-crypt-v2>", "\nauth-user-pass\n", "remote vpn.example.net 1194"]
        {
            assert!(made.contains(part), "{part}: {made}");
        }
        for part in ["<cert>", "<key>", "PRIVATE KEY", "static-challenge"] {
            assert!(!made.contains(part), "{part}: {made}");
        }
        set_codes(&paths, "alice").unwrap();
        assert!(text("alice").unwrap().contains("static-challenge"));
        assert!(text("bob").unwrap_err().to_string().contains("user list"));
        profile(&paths, "laptop");
        bind(&paths, "alice", &["laptop".into()]).unwrap();
        assert!(text("alice").unwrap_err().to_string().contains("user bind alice"));
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir, Login::CertificatePassword);
        add(&paths, &UserRequest::new("alice"), "correct horse").unwrap();
        let error = super::profile(&paths, "alice").unwrap_err().to_string();
        assert!(error.contains("server client add"), "{error}");
    }

    #[test]
    fn a_profile_asks_for_a_code_if_a_user_of_the_client_has_codes() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir, Login::CertificatePassword);
        profile(&paths, "phone");
        add(&paths, &UserRequest::new("alice"), "correct horse").unwrap();
        let (enrolment, ended) = set_codes(&paths, "alice").unwrap();
        assert_eq!((enrolment.recovery.len(), ended), (8, 0));
        assert!(enrolment.uri.starts_with("otpauth://totp/vpn.example.net:alice?secret="));
        assert!(profile(&paths, "laptop").contains("static-challenge"));
        bind(&paths, "alice", &["phone".into()]).unwrap();
        assert!(!profile(&paths, "tablet").contains("static-challenge"));
        bind(&paths, "alice", &[]).unwrap();
        disable(&paths, "alice").unwrap();
        assert!(!profile(&paths, "watch").contains("static-challenge"));
    }

    #[test]
    fn an_overview_has_no_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir, Login::CertificatePassword);
        let wanted = UserRequest { groups: vec!["staff".into()], ..UserRequest::new("alice") };
        add(&paths, &wanted, "correct horse").unwrap();
        let (enrolment, _) = set_codes(&paths, "alice").unwrap();
        let text = serde_json::to_string(&list(&paths).unwrap()).unwrap();
        assert!(!text.contains("argon2") && !text.contains(enrolment.secret.as_str()), "{text}");
        let shown = show(&paths, "alice").unwrap();
        assert_eq!((shown.totp, shown.recovery_codes), (true, 8));
        assert_eq!(shown.groups, ["staff"]);
        assert_eq!(names(&paths).unwrap(), [("alice".to_owned(), UserState::Active)]);
        remove_codes(&paths, "alice").unwrap();
        let shown = show(&paths, "alice").unwrap();
        assert_eq!((shown.totp, shown.recovery_codes), (false, 0));
    }

    #[test]
    fn mistakes_name_their_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir, Login::Certificate);
        let alice = UserRequest::new("alice");
        add(&paths, &alice, "correct horse").unwrap();
        let text = |fault: Fault| fault.to_string();
        assert!(text(add(&paths, &alice, "correct horse").unwrap_err()).contains("user passwd"));
        assert!(text(check_new(&paths, "alice").unwrap_err()).contains("user passwd"));
        assert!(text(check_new(&paths, "a b").unwrap_err()).contains("user name"));
        check_new(&paths, "bob").unwrap();
        let short = add(&paths, &UserRequest::new("bob"), "short").unwrap_err();
        assert!(text(short).contains("fewer than 8"));
        assert!(text(disable(&paths, "bob").unwrap_err()).contains("user list"));
        let bound = UserRequest { clients: vec!["none".into()], ..UserRequest::new("bob") };
        assert!(text(add(&paths, &bound, "correct horse").unwrap_err()).contains("client list"));
        let note = note_on_login(&paths).unwrap().unwrap();
        assert!(note.contains("login = \"certificate+password\""), "{note}");
    }

    #[test]
    fn users_without_a_way_to_log_in_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let paths = server(&dir, Login::CertificatePassword);
        profile(&paths, "laptop");
        for name in ["alice", "bob"] {
            add(&paths, &UserRequest::new(name), "correct horse").unwrap();
        }
        set_codes(&paths, "bob").unwrap();
        bind(&paths, "bob", &["laptop".into()]).unwrap();
        let store = open_store(&paths).unwrap();
        assert_eq!(without_codes(&store).unwrap(), ["alice"]);
        assert!(stranded(&store).unwrap().is_empty());
        clients::revoke(&paths, "laptop").unwrap();
        assert_eq!(stranded(&store).unwrap(), ["bob"]);
    }
}
