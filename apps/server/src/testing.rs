//! Users and servers for this crate's tests.

use adit_pki::{PasswordHash, User, UserState};

use crate::init::{NewServer, init};
use crate::settings::Settings;
use adit_runtime::paths::Paths;

/// Returns a user without codes, whose password is unknown.
pub(crate) fn alice() -> User {
    User {
        name: "alice".parse().unwrap(),
        created: 0,
        state: UserState::Active,
        groups: Vec::new(),
        clients: Vec::new(),
        password: PasswordHash::of_no_user().unwrap(),
        totp: None,
        recovery: Vec::new(),
        revision: 0,
        changed: 0,
    }
}

/// Creates the folders of a server.
pub(crate) fn folders(dir: &tempfile::TempDir) -> Paths {
    let paths = Paths::new(Some(dir.path())).unwrap();
    paths.create().unwrap();
    paths
}

/// Creates a server with one port and one network.
pub(crate) fn server(dir: &tempfile::TempDir) -> (Paths, Settings) {
    let paths = Paths::new(Some(dir.path())).unwrap();
    let choices = NewServer {
        host: Some("h".into()),
        listen: vec!["udp/1194".parse().unwrap()],
        network: Some("10.199.31.0/24".parse().unwrap()),
        ..NewServer::default()
    };
    let settings = init(&paths, &choices, false).unwrap().settings;
    (paths, settings)
}
