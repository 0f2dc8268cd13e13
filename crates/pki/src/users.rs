//! The users of a managed server, who log in with passwords and one-time codes: the file `users.json`.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::clients::unique_groups;
use crate::recovery::RECOVERY_CODES;
use crate::{
    ClientName, GroupName, PasswordHash, PkiError, RecoveryHash, Store, TotpSecret, disk, issue,
};

/// The maximum number of users of one server.
pub(crate) const MAX_USERS: usize = 65_536;
/// The maximum number of clients to which a user is bound.
const MAX_CLIENTS: usize = 64;
/// The version of the file's layout.
const VERSION: u32 = 1;

/// A user's name. It follows the rules of a client's name.
pub type UserName = ClientName;

/// Whether a user may log in.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserState {
    /// The user may log in.
    Active,
    /// The user may not log in until enabled again.
    Disabled,
}

/// A user, with everything that is necessary to verify a login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The name.
    pub name: UserName,
    /// The time when the user was added, in seconds since 1970.
    pub created: u64,
    /// Whether the user may log in.
    pub state: UserState,
    /// The groups that contain the user's sessions in packet filters (`@group:NAME`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupName>,
    /// The clients whose certificates the user may log in with; empty: those of all clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<ClientName>,
    /// The hash of the password.
    pub password: PasswordHash,
    /// The secret for one-time codes, if the user has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totp: Option<TotpSecret>,
    /// The hashes of the recovery codes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recovery: Vec<RecoveryHash>,
    /// The number of changes of the password and of the secret. A session from before the last change ends.
    #[serde(default)]
    pub revision: u32,
    /// The time of the last such change, in seconds since 1970.
    #[serde(default)]
    pub changed: u64,
}

impl User {
    fn credentials_changed(&mut self, now: SystemTime) {
        self.revision = self.revision.saturating_add(1);
        self.changed = issue::unix(now);
    }

    /// Returns whether the user may log in with this client's certificate.
    pub fn may_use(&self, client: &str) -> bool {
        self.clients.is_empty() || self.clients.iter().any(|known| known.as_str() == client)
    }
}

/// A user to be added.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// The name.
    pub name: UserName,
    /// The hash of the password.
    pub password: PasswordHash,
    /// The groups.
    pub groups: Vec<GroupName>,
    /// The clients whose certificates the user may log in with; empty: those of all clients.
    pub clients: Vec<ClientName>,
}

/// A new secret for one-time codes, with recovery codes. Only the hashes of these are kept.
pub struct NewCodes {
    /// The secret.
    pub secret: TotpSecret,
    /// The recovery codes, each of which works once.
    pub recovery: Vec<Zeroizing<String>>,
}

/// Parses a user's name.
///
/// # Errors
/// A rule for names refuses it.
pub fn user_name(name: &str) -> Result<UserName, PkiError> {
    name.parse().map_err(|error| match error {
        PkiError::BadName(name, why) => PkiError::BadUserName(name, why),
        other => other,
    })
}

/// The file `users.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UserFile {
    version: u32,
    users: Vec<User>,
}

impl UserFile {
    /// Reads the file. A server that never had a user has none.
    fn read(path: &Path, open: disk::OpenFile) -> Result<Self, PkiError> {
        match disk::read(path, open) {
            Ok(content) => {
                disk::check_layout(path, &content, VERSION)?;
                Self::parse(&content).map_err(|why| PkiError::Damaged(path.to_owned(), why))
            }
            Err(PkiError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self { version: VERSION, users: Vec::new() })
            }
            Err(error) => Err(error),
        }
    }

    fn parse(content: &[u8]) -> Result<Self, String> {
        let file: Self = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        if file.version != VERSION {
            return Err(format!("layout version {}", file.version));
        }
        if file.users.len() > MAX_USERS {
            return Err(format!("more than {MAX_USERS} users"));
        }
        Ok(file)
    }

    fn write(&self, path: &Path) -> Result<(), PkiError> {
        let content = serde_json::to_vec_pretty(self).map(Zeroizing::new);
        let mut content =
            content.map_err(|error| PkiError::Damaged(path.to_owned(), error.to_string()))?;
        content.push(b'\n');
        disk::write(path, &content, 0o600)
    }

    fn find_mut(&mut self, name: &str) -> Result<&mut User, PkiError> {
        let found = self.users.iter_mut().find(|user| user.name.as_str() == name);
        found.ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> PkiError {
    PkiError::UnknownUser(name.chars().take(80).collect())
}

impl Store {
    /// Returns all users, in the order in which they were added.
    pub fn users(&self) -> Result<Vec<User>, PkiError> {
        Ok(UserFile::read(&self.files().users, self.open)?.users)
    }

    /// Returns one user.
    pub fn user(&self, name: &str) -> Result<User, PkiError> {
        let users = self.users()?;
        users.into_iter().find(|user| user.name.as_str() == name).ok_or_else(|| unknown(name))
    }

    /// Adds a user.
    pub fn add_user(&self, new: &NewUser, now: SystemTime) -> Result<User, PkiError> {
        let user = User {
            name: new.name.clone(),
            created: issue::unix(now),
            state: UserState::Active,
            groups: unique_groups(&new.groups)?,
            clients: self.known_clients(&new.clients)?,
            password: new.password.clone(),
            totp: None,
            recovery: Vec::new(),
            revision: 0,
            changed: issue::unix(now),
        };
        self.update_users(|file| {
            if file.users.iter().any(|known| known.name == user.name) {
                return Err(PkiError::UserExists(user.name.to_string()));
            }
            if file.users.len() >= MAX_USERS {
                return Err(PkiError::UsersFull(MAX_USERS));
            }
            file.users.push(user.clone());
            Ok(user)
        })
    }

    /// Replaces a user's password.
    pub fn set_user_password(
        &self,
        name: &str,
        password: PasswordHash,
        now: SystemTime,
    ) -> Result<User, PkiError> {
        self.update_user(name, |user| {
            user.password = password;
            user.credentials_changed(now);
        })
    }

    /// Gives a user a new secret for one-time codes, with recovery codes. The previous ones no longer work.
    pub fn set_user_codes(
        &self,
        name: &str,
        now: SystemTime,
    ) -> Result<(User, NewCodes), PkiError> {
        let secret = TotpSecret::generate()?;
        let (mut recovery, mut hashes) = (Vec::new(), Vec::new());
        for _ in 0..RECOVERY_CODES {
            let (code, hash) = RecoveryHash::generate()?;
            recovery.push(code);
            hashes.push(hash);
        }
        let user = self.update_user(name, |user| {
            user.totp = Some(secret.clone());
            user.recovery = hashes;
            user.credentials_changed(now);
        })?;
        Ok((user, NewCodes { secret, recovery }))
    }

    /// Lets a user log in without one-time codes.
    pub fn remove_user_codes(&self, name: &str, now: SystemTime) -> Result<User, PkiError> {
        self.update_user(name, |user| {
            user.totp = None;
            user.recovery = Vec::new();
            user.credentials_changed(now);
        })
    }

    /// Allows a user to log in, or forbids it, until the next such call.
    pub fn set_user_enabled(&self, name: &str, enabled: bool) -> Result<User, PkiError> {
        let state = if enabled { UserState::Active } else { UserState::Disabled };
        self.update_user(name, |user| user.state = state)
    }

    /// Sets a user's groups to exactly these. A name that occurs twice counts once.
    pub fn set_user_groups(&self, name: &str, groups: &[GroupName]) -> Result<User, PkiError> {
        let groups = unique_groups(groups)?;
        self.update_user(name, |user| user.groups = groups)
    }

    /// Binds a user to the certificates of exactly these clients, or to none.
    pub fn set_user_clients(&self, name: &str, clients: &[ClientName]) -> Result<User, PkiError> {
        let clients = self.known_clients(clients)?;
        self.update_user(name, |user| user.clients = clients)
    }

    /// Removes a user.
    pub fn delete_user(&self, name: &str) -> Result<(), PkiError> {
        self.update_users(|file| {
            let before = file.users.len();
            file.users.retain(|user| user.name.as_str() != name);
            if file.users.len() < before { Ok(()) } else { Err(unknown(name)) }
        })
    }

    /// Checks that the clients exist. A name that occurs twice counts once.
    fn known_clients(&self, names: &[ClientName]) -> Result<Vec<ClientName>, PkiError> {
        let mut clients: Vec<ClientName> = Vec::new();
        for name in names {
            self.client(name.as_str())?;
            if !clients.contains(name) {
                clients.push(name.clone());
            }
        }
        match clients.len() {
            0..=MAX_CLIENTS => Ok(clients),
            _ => Err(PkiError::BadSetting(
                "clients",
                format!("a user is bound to at most {MAX_CLIENTS}"),
            )),
        }
    }

    fn update_user(&self, name: &str, edit: impl FnOnce(&mut User)) -> Result<User, PkiError> {
        self.update_users(|file| {
            let user = file.find_mut(name)?;
            edit(user);
            Ok(user.clone())
        })
    }

    /// Adds a client's new name for the users who are bound to its old one. The caller holds the store's lock.
    pub(crate) fn add_bound_name(
        &self,
        old: &ClientName,
        new: &ClientName,
    ) -> Result<(), PkiError> {
        self.edit_users(|file| {
            let bound = file.users.iter_mut().filter(|user| user.clients.contains(old));
            bound.filter(|user| !user.clients.contains(new)).for_each(|user| {
                user.clients.push(new.clone());
            });
            Ok(())
        })
    }

    /// Removes a client's old name from the users who are bound to its new one.
    pub(crate) fn drop_bound_name(
        &self,
        old: &ClientName,
        new: &ClientName,
    ) -> Result<(), PkiError> {
        self.update_users(|file| {
            let bound = file.users.iter_mut().filter(|user| user.clients.contains(new));
            bound.for_each(|user| user.clients.retain(|name| name != old));
            Ok(())
        })
    }

    /// Removes a client from the users who are bound to it. The caller holds the store's lock.
    ///
    /// # Errors
    /// A user is bound to this client alone. Without it, the user could log in with all clients.
    pub(crate) fn unbind_client(&self, name: &ClientName) -> Result<(), PkiError> {
        self.edit_users(|file| {
            for user in &mut file.users {
                if user.clients.iter().all(|client| client == name) && !user.clients.is_empty() {
                    return Err(PkiError::OnlyClientOf(name.to_string(), user.name.to_string()));
                }
                user.clients.retain(|client| client != name);
            }
            Ok(())
        })
    }

    /// Applies `edit` to the file under the store's lock.
    fn update_users<T>(
        &self,
        edit: impl FnOnce(&mut UserFile) -> Result<T, PkiError>,
    ) -> Result<T, PkiError> {
        let _lock = self.lock()?;
        self.edit_users(edit)
    }

    fn edit_users<T>(
        &self,
        edit: impl FnOnce(&mut UserFile) -> Result<T, PkiError>,
    ) -> Result<T, PkiError> {
        let path = self.files().users;
        let mut file = UserFile::read(&path, self.open)?;
        let before = file.clone();
        let result = edit(&mut file)?;
        if file != before {
            file.write(&path)?;
        }
        Ok(result)
    }
}

/// Parses the bytes as `users.json` and as the password field of a client, for fuzzing.
///
/// # Panics
/// A file does not survive being written and read again, or a field exceeds its bounds.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(file) = UserFile::parse(bytes) {
        let again = serde_json::to_vec(&file).unwrap_or_default();
        assert_eq!(UserFile::parse(&again).as_ref(), Ok(&file));
    }
    let Ok(field) = std::str::from_utf8(bytes) else { return };
    let [with, without] = [true, false].map(|has_code| crate::Credentials::parse(field, has_code));
    assert_eq!(with.as_ref().err(), without.as_ref().err());
    for credentials in [with, without].into_iter().flatten() {
        let code = credentials.code.as_ref().map_or(0, |code| code.len());
        assert!(credentials.password.len() <= 192 && code <= 64);
        if let (Some(code), Ok(secret)) = (credentials.code, TotpSecret::try_from("A".repeat(32))) {
            let _ = (secret.check(&code, 1 << 31, Some(1)), RecoveryHash::of(&code));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{InitOptions, NewClient, Remote};

    fn store(dir: &tempfile::TempDir) -> Store {
        let remote = Remote {
            host: "vpn.example.net".into(),
            port: 1194,
            proto: Default::default(),
            further: Vec::new(),
        };
        let name = "adit-server".parse().unwrap();
        let options = InitOptions::new(name, remote, Zeroizing::new("key".into()));
        Store::init(dir.path(), &options, SystemTime::now()).unwrap()
    }

    fn new(name: &str) -> NewUser {
        NewUser {
            name: user_name(name).unwrap(),
            password: PasswordHash::new("correct horse").unwrap(),
            groups: Vec::new(),
            clients: Vec::new(),
        }
    }

    fn add(store: &Store, name: &str) -> User {
        store.add_user(&new(name), SystemTime::now()).unwrap()
    }

    #[test]
    fn a_user_lives_through_all_states() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        assert!(store.users().unwrap().is_empty());
        let user = add(&store, "alice");
        assert_eq!((user.state, user.revision), (UserState::Active, 0));
        assert!(matches!(
            store.add_user(&new("alice"), SystemTime::now()),
            Err(PkiError::UserExists(_))
        ));
        let other = PasswordHash::new("battery staple").unwrap();
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 33);
        let user = store.set_user_password("alice", other.clone(), later).unwrap();
        assert_eq!((user.password, user.revision, user.changed), (other, 1, 1 << 33));
        let (user, codes) = store.set_user_codes("alice", later).unwrap();
        assert_eq!((user.totp.as_ref(), user.revision), (Some(&codes.secret), 2));
        let hashes: Vec<_> = codes.recovery.iter().filter_map(|c| RecoveryHash::of(c)).collect();
        assert_eq!((hashes.len(), &hashes), (RECOVERY_CODES, &user.recovery));
        let user = store.remove_user_codes("alice", later).unwrap();
        assert_eq!((user.totp, user.recovery.len(), user.revision), (None, 0, 3));
        assert_eq!(store.set_user_enabled("alice", false).unwrap().state, UserState::Disabled);
        assert_eq!(store.set_user_enabled("alice", true).unwrap().state, UserState::Active);
        let groups: [GroupName; 3] = ["staff", "ops", "staff"].map(|name| name.parse().unwrap());
        assert_eq!(store.set_user_groups("alice", &groups).unwrap().groups, groups[..2]);
        store.delete_user("alice").unwrap();
        assert!(matches!(store.user("alice"), Err(PkiError::UnknownUser(_))));
        assert!(matches!(store.delete_user("alice"), Err(PkiError::UnknownUser(_))));
        add(&store, "alice");
    }

    #[test]
    fn a_user_is_bound_to_clients_that_exist() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let key = Zeroizing::new("client key".to_owned());
        let laptop: ClientName = "laptop".parse().unwrap();
        store.add_client(&NewClient::new(laptop.clone(), key), SystemTime::now()).unwrap();
        let user = add(&store, "alice");
        assert!(user.may_use("laptop") && user.may_use("phone"));
        let bound = store.set_user_clients("alice", &[laptop.clone(), laptop]).unwrap();
        assert_eq!(bound.clients.len(), 1);
        assert!(bound.may_use("laptop") && !bound.may_use("phone") && !bound.may_use(""));
        let unknown: [ClientName; 1] = ["phone".parse().unwrap()];
        assert!(matches!(store.set_user_clients("alice", &unknown), Err(PkiError::Unknown(_))));
    }

    #[test]
    fn the_file_is_private_and_without_passwords() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        add(&store, "alice");
        let (_, codes) = store.set_user_codes("alice", SystemTime::now()).unwrap();
        let path = store.files().users;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("correct horse"));
        assert!(codes.recovery.iter().all(|code| !text.contains(code.as_str())));
        assert!(!format!("{:?}", store.user("alice").unwrap()).contains("$argon2id"));
    }

    #[test]
    fn a_damaged_file_is_an_error_and_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let path = store.files().users;
        for bad in ["", "{", "{\"version\":2,\"users\":[]}", "{\"version\":1,\"users\":[{}]}"] {
            fs::write(&path, bad).unwrap();
            let read = store.users();
            assert!(matches!(read, Err(PkiError::Damaged(..) | PkiError::Newer(..))), "{bad}");
            assert!(store.add_user(&new("alice"), SystemTime::now()).is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), bad);
        }
    }

    #[test]
    fn names_follow_the_rules() {
        for name in ["", "a b", "a:b", "../x", "a\nb", "ä", &"n".repeat(65)] {
            let error = user_name(name).unwrap_err().to_string();
            assert!(error.starts_with("user name"), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let many: Vec<GroupName> = (0..17).map(|n| format!("g{n}").parse().unwrap()).collect();
        let greedy = NewUser { groups: many, ..new("alice") };
        assert!(store(&dir).add_user(&greedy, SystemTime::now()).is_err());
    }
}
