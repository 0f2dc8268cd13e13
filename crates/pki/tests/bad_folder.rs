//! Folders of a server that a newer version has written, or that were not restored completely.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use adit_pki::{InitOptions, NewClient, PkiError, Proto, Remote, Store};
use zeroize::Zeroizing;

const CLIENT_KEY: &str = "-----BEGIN OpenVPN tls-crypt-v2 client key-----\nAAAA\n-----END OpenVPN tls-crypt-v2 client key-----";

fn init(dir: &Path) -> Result<Store, PkiError> {
    let remote = Remote { host: "h".into(), port: 1194, proto: Proto::Udp, further: Vec::new() };
    let options =
        InitOptions::new("adit-server".parse().unwrap(), remote, Zeroizing::new("KEY".into()));
    Store::init(dir, &options, SystemTime::now())
}

fn add(store: &Store, name: &str) -> Result<(), PkiError> {
    let new = NewClient::new(name.parse().unwrap(), Zeroizing::new(CLIENT_KEY.into()));
    store.add_client(&new, SystemTime::now()).map(drop)
}

#[test]
fn files_of_a_newer_version_are_refused_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path()).unwrap();
    add(&store, "alice").unwrap();
    for (file, text) in [
        ("clients.json", r#"{"version":2,"clients":{"alice":{"serial":7}}}"#),
        ("users.json", r#"{"version":3,"users":7}"#),
    ] {
        let path = dir.path().join("pki").join(file);
        let before = fs::read(&path).ok();
        fs::write(&path, text).unwrap();
        let refused = match file {
            "users.json" => store.users().map(drop),
            _ => add(&store, "bob"),
        };
        let refused = refused.unwrap_err();
        assert!(matches!(refused, PkiError::Newer(..)), "{refused}");
        assert!(refused.to_string().contains("run that version again"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        // A damaged file is another fault.
        fs::write(&path, r#"{"version":"x"}"#).unwrap();
        let damaged =
            if file == "users.json" { store.users().map(drop) } else { add(&store, "bob") };
        assert!(matches!(damaged.unwrap_err(), PkiError::Damaged(..)));
        match before {
            Some(content) => fs::write(&path, content).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
    }
    add(&store, "bob").unwrap();
}

/// The other files of a newer version's folder may still have the known layout.
#[test]
fn a_server_of_a_newer_version_is_neither_opened_nor_set_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path()).unwrap();
    let path = dir.path().join("pki/server.json");
    let ours = fs::read_to_string(&path).unwrap();
    // With the content of this version, the number alone makes the difference.
    assert!(ours.contains("\"version\": 1,"), "{ours}");
    let newer = ours.replace("\"version\": 1,", "\"version\": 2,");
    for text in [newer.as_str(), r#"{"version":2,"name":{"server":7}}"#] {
        fs::write(&path, text).unwrap();
        let refused = Store::open(dir.path()).unwrap_err();
        assert!(matches!(refused, PkiError::Newer(_, 2, 1)), "{refused}");
        let refused = init(dir.path()).unwrap_err();
        assert!(matches!(refused, PkiError::AlreadyInitialised(_)), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    // The version before wrote no number.
    fs::write(&path, ours.replace("\"version\": 1,", "")).unwrap();
    assert_eq!(Store::open(dir.path()).unwrap().server(), store.server());
}

#[test]
fn a_folder_that_was_restored_in_part_is_neither_used_nor_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path()).unwrap();
    add(&store, "alice").unwrap();
    let file = |name: &str| dir.path().join("pki").join(name);
    let away = dir.path().join("away");
    fs::rename(file("clients.json"), &away).unwrap();
    let missing = store.clients().unwrap_err().to_string();
    assert!(missing.contains("clients.json") && missing.contains("from a backup"), "{missing}");
    assert!(add(&store, "bob").is_err());
    assert!(!file("clients.json").exists(), "an empty registry would admit no client");
    fs::rename(&away, file("clients.json")).unwrap();

    fs::rename(file("private"), &away).unwrap();
    let missing = add(&store, "bob").unwrap_err().to_string();
    assert!(missing.contains("private") && missing.contains("from a backup"), "{missing}");
    fs::rename(&away, file("private")).unwrap();

    fs::rename(file("server.json"), &away).unwrap();
    for outcome in [Store::open(dir.path()), init(dir.path())] {
        let refused = outcome.unwrap_err();
        assert!(matches!(refused, PkiError::Incomplete(_)), "{refused}");
    }
    assert!(file("private/ca.key").exists());
    fs::rename(&away, file("server.json")).unwrap();
    assert_eq!(Store::open(dir.path()).unwrap().clients().unwrap().len(), 1);
}
