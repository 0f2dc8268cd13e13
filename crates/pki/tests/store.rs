//! The store as its commands use it, checked by openssl, by adit's own TLS and by openvpn.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use adit_openvpn::tls;
use adit_pki::*;
use zeroize::Zeroizing;

const CLIENT_KEY: &str = "-----BEGIN OpenVPN tls-crypt-v2 client key-----\nAAAA\n-----END OpenVPN tls-crypt-v2 client key-----";

fn name(text: &str) -> ClientName {
    text.parse().unwrap()
}

fn remote() -> Remote {
    Remote { host: "vpn.example.org".into(), port: 1194, proto: Proto::Udp, further: Vec::new() }
}

fn now() -> SystemTime {
    SystemTime::now()
}

fn init(dir: &Path) -> Store {
    let options =
        InitOptions::new(name("adit-server"), remote(), Zeroizing::new("SERVER KEY".into()));
    Store::init(dir, &options, now()).unwrap()
}

fn new(client: &str) -> NewClient {
    NewClient::new(name(client), Zeroizing::new(CLIENT_KEY.into()))
}

fn inline(profile: &Profile, tag: &str) -> String {
    let text = profile.text();
    let start = text.find(&format!("<{tag}>\n")).unwrap() + tag.len() + 3;
    text[start..].split(&format!("</{tag}>")).next().unwrap().to_owned()
}

fn openssl(dir: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new("openssl").args(args).current_dir(dir).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(text) }
}

#[test]
fn openssl_verifies_what_is_issued_and_what_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let issued = store.add_client(&new("alice"), now()).unwrap();
    let pki = dir.path().join("pki");
    std::fs::write(pki.join("alice.crt"), inline(&issued.profile, "cert")).unwrap();
    let verify = |file: &str, purpose: &str| {
        let args =
            ["verify", "-x509_strict", "-CAfile", "ca.crt", "-CRLfile", "crl.pem", "-crl_check"];
        openssl(&pki, &[&args, &["-purpose", purpose, file][..]].concat())
    };
    verify("alice.crt", "sslclient").unwrap();
    verify("server.pem", "sslserver").unwrap();
    verify("alice.crt", "sslserver").unwrap_err();
    verify("server.pem", "sslclient").unwrap_err();
    let text =
        openssl(&pki, &["x509", "-in", "alice.crt", "-noout", "-subject", "-serial", "-text"])
            .unwrap();
    assert!(text.to_lowercase().contains(&format!("serial={}", issued.client.serial)), "{text}");
    for part in ["CN = alice", "Version: 3", "CA:FALSE", "Digital Signature", "TLS Web Client Auth"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    store.revoke_client("alice", now()).unwrap();
    assert!(verify("alice.crt", "sslclient").unwrap_err().contains("revoked"));
    verify("server.pem", "sslserver").unwrap();
}

#[test]
fn lifetimes_are_what_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let days = |client: &Client| (client.expires - client.created) / 86_400;
    assert_eq!(days(&store.add_client(&new("usual"), now()).unwrap().client), 825);
    let short = NewClient { days: Some(1), ..new("short") };
    let issued = store.add_client(&short, now()).unwrap();
    assert_eq!(days(&issued.client), 1);
    std::fs::write(dir.path().join("c"), inline(&issued.profile, "cert")).unwrap();
    let until = |at: &str| openssl(dir.path(), &["x509", "-in", "c", "-noout", "-checkend", at]);
    until("86000").unwrap();
    until("86800").unwrap_err();
    for bad in [0, 40_000] {
        let error =
            store.add_client(&NewClient { days: Some(bad), ..new("bad") }, now()).unwrap_err();
        assert!(matches!(error, PkiError::BadSetting("days", _)), "{error}");
    }
    assert!(
        store.client("bad").is_err(),
        "nothing is registered for a certificate that was not made"
    );
}

fn tls_pair(store: &Store, profile: &Profile, password: Option<&str>) -> Result<String, String> {
    let files = store.files();
    let read = |path: &Path| Some(tls::Pem::new("file", std::fs::read(path).unwrap()));
    let server = tls::ServerTls::new(tls::ServerTlsOptions {
        common: tls::CommonTlsOptions {
            ca: read(&files.ca),
            cert: read(&files.cert),
            key: read(&files.key),
            crl: read(&files.crl),
            verify: tls::VerifyOptions {
                remote_cert_tls: Some(tls::RemoteCertTls::Client),
                name: None,
                ..Default::default()
            },
            ..Default::default()
        },
        ..Default::default()
    })
    .unwrap();
    let pem = |tag| Some(tls::Pem::new(tag, inline(profile, tag)));
    let client = tls::ClientTls::new(tls::ClientTlsOptions {
        common: tls::CommonTlsOptions {
            ca: pem("ca"),
            cert: pem("cert"),
            key: pem("key"),
            key_password: password.map(|text| Zeroizing::new(text.to_owned())),
            verify: tls::VerifyOptions {
                remote_cert_tls: Some(tls::RemoteCertTls::Server),
                name: Some(("adit-server".into(), tls::NameType::Name)),
                ..Default::default()
            },
            ..Default::default()
        },
    })
    .map_err(|error| error.to_string())?;
    let mut client = tls::TlsSession::client(&client).unwrap();
    let mut server = tls::TlsSession::server(&server).unwrap();
    loop {
        let (up, down) = (client.pull(usize::MAX), server.pull(usize::MAX));
        if up.is_empty() && down.is_empty() {
            break;
        }
        server.feed(&up).map_err(|error| error.to_string())?;
        client.feed(&down).map_err(|error| error.to_string())?;
    }
    let peer = server.peer().unwrap();
    Ok(format!("{} {}", peer.common_name, peer.serial))
}

#[test]
fn adit_accepts_a_client_until_it_is_revoked_and_the_serial_is_the_registrys() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let (alice, bob) = (
        store.add_client(&new("alice"), now()).unwrap(),
        store.add_client(&new("bob"), now()).unwrap(),
    );
    assert_eq!(
        tls_pair(&store, &alice.profile, None).unwrap(),
        format!("alice {}", alice.client.serial)
    );
    let renewed = store.renew_client(&new("alice"), now()).unwrap();
    assert!(tls_pair(&store, &alice.profile, None).unwrap_err().contains("revoked"));
    tls_pair(&store, &renewed.profile, None).unwrap();
    store.revoke_client("alice", now()).unwrap();
    assert!(tls_pair(&store, &renewed.profile, None).unwrap_err().contains("revoked"));
    tls_pair(&store, &bob.profile, None).unwrap();
}

#[test]
fn a_password_encrypts_the_key_for_openssl_and_for_us() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let client = NewClient { password: Some(Zeroizing::new("pässword".into())), ..new("alice") };
    let issued = store.add_client(&client, now()).unwrap();
    let key = inline(&issued.profile, "key");
    assert!(key.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----\n"), "{key}");
    std::fs::write(dir.path().join("key"), &key).unwrap();
    openssl(dir.path(), &["pkey", "-in", "key", "-passin", "pass:pässword", "-noout"]).unwrap();
    openssl(dir.path(), &["pkey", "-in", "key", "-passin", "pass:wrong", "-noout"]).unwrap_err();
    tls_pair(&store, &issued.profile, Some("pässword")).unwrap();
    assert!(tls_pair(&store, &issued.profile, Some("wrong")).unwrap_err().contains("password"));
}

#[test]
fn the_registry_says_who_may_connect() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let first = store.add_client(&new("alice"), now()).unwrap().client;
    let says = |serial: &str| store.admission("alice", serial).unwrap();
    assert_eq!(says(&first.serial), CertificateStatus::Active);
    assert_eq!(says("00"), CertificateStatus::Unknown);
    assert_eq!(store.admission("bob", &first.serial).unwrap(), CertificateStatus::Unknown);
    store.set_enabled("alice", false, now()).unwrap();
    assert_eq!(says(&first.serial), CertificateStatus::Disabled);
    // A renewal does not enable a disabled client.
    let second = store.renew_client(&new("alice"), now()).unwrap().client;
    assert_eq!(says(&first.serial), CertificateStatus::Revoked);
    assert_eq!(says(&second.serial), CertificateStatus::Disabled);
    store.set_enabled("alice", true, now()).unwrap();
    assert_eq!(says(&second.serial), CertificateStatus::Active);
    assert_eq!(second.created, first.created);
    store.revoke_client("alice", now()).unwrap();
    assert_eq!(says(&second.serial), CertificateStatus::Revoked);
    assert_eq!(store.revoke_client("alice", now()).unwrap().state, ClientState::Revoked);
    assert!(matches!(store.set_enabled("alice", true, now()), Err(PkiError::Revoked(_))));
    assert!(matches!(store.renew_client(&new("alice"), now()), Err(PkiError::Revoked(_))));
    // A revoked name can be reused; its previous certificates remain revoked.
    let third = store.add_client(&new("alice"), now()).unwrap().client;
    assert_eq!(says(&third.serial), CertificateStatus::Active);
    assert_eq!(says(&second.serial), CertificateStatus::Revoked);
    assert_eq!(says(&first.serial), CertificateStatus::Revoked);
    assert_eq!(store.clients().unwrap().len(), 1);
    std::fs::write(dir.path().join("pki/clients.json"), "{").unwrap();
    assert!(store.admission("alice", &third.serial).is_err(), "unreadable admits nobody");
}

#[test]
fn groups_are_kept_over_a_renewal_and_change_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let both = vec![name("staff"), name("ops"), name("staff")];
    let added = store.add_client(&NewClient { groups: both, ..new("alice") }, now()).unwrap();
    assert_eq!(added.client.groups, [name("staff"), name("ops")]);
    let renewed = store.renew_client(&new("alice"), now()).unwrap().client;
    assert_eq!(renewed.groups, added.client.groups);
    let moved = NewClient { groups: vec![name("guests")], ..new("alice") };
    assert_eq!(store.renew_client(&moved, now()).unwrap().client.groups, [name("guests")]);
    store.set_groups("alice", &[name("staff")], now()).unwrap();
    assert_eq!(store.client("alice").unwrap().groups, [name("staff")]);
    let text = std::fs::read_to_string(dir.path().join("pki/clients.json")).unwrap();
    assert!(text.contains("\"groups\"") && text.contains("staff"), "{text}");
    assert!(store.set_groups("alice", &[], now()).unwrap().groups.is_empty());
    let many: Vec<_> = (0..17).map(|n| name(&format!("g{n}"))).collect();
    let refused = store.set_groups("alice", &many, now());
    assert!(matches!(refused, Err(PkiError::BadSetting("groups", _))));
    assert!(matches!(store.set_groups("bob", &[], now()), Err(PkiError::Unknown(_))));
    store.revoke_client("alice", now()).unwrap();
    assert!(matches!(store.set_groups("alice", &[], now()), Err(PkiError::Revoked(_))));
    // A later client of the same name does not inherit the groups.
    assert!(store.add_client(&new("alice"), now()).unwrap().client.groups.is_empty());
}

#[test]
fn mistakes_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Store::open(dir.path()), Err(PkiError::NotInitialised(_))));
    let store = init(dir.path());
    let options = InitOptions::new(name("x"), remote(), Zeroizing::default());
    let again = Store::init(dir.path(), &options, now());
    assert!(matches!(again, Err(PkiError::AlreadyInitialised(_))));
    let address4 = Some([10, 8, 0, 9].into());
    let address6 = Some("fd00::9".parse().unwrap());
    store.add_client(&NewClient { address4, address6, ..new("alice") }, now()).unwrap();
    assert!(matches!(store.add_client(&new("alice"), now()), Err(PkiError::Exists(_))));
    assert!(matches!(store.add_client(&new("adit-server"), now()), Err(PkiError::BadName(..))));
    for clash in [NewClient { address4, ..new("bob") }, NewClient { address6, ..new("bob") }] {
        assert!(matches!(store.add_client(&clash, now()), Err(PkiError::AddressTaken(..))));
    }
    // A client's own address is not a conflict, and a renewal without an address keeps it.
    store.renew_client(&NewClient { address4, ..new("alice") }, now()).unwrap();
    let renewed = store.renew_client(&new("alice"), now()).unwrap().client;
    assert_eq!((renewed.address4, renewed.address6), (address4, address6));
    store.revoke_client("alice", now()).unwrap();
    store.add_client(&NewClient { address4, ..new("bob") }, now()).unwrap();
    for unknown in
        [store.revoke_client("x", now()), store.set_enabled("x", true, now()), store.client("x")]
    {
        assert!(matches!(unknown, Err(PkiError::Unknown(_))));
    }
    for host in ["", "a b", "a\nb", "-x y", "<ca>"] {
        let remote = Remote { host: host.into(), ..remote() };
        let refused = store.clone().set_remote(remote);
        assert!(matches!(refused, Err(PkiError::BadSetting("host", _))), "{host:?}");
    }
    let refused = store.clone().set_remote(Remote { port: 0, ..remote() });
    assert!(matches!(refused, Err(PkiError::BadSetting("port", _))));
}

#[test]
fn a_new_address_goes_into_new_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = init(dir.path());
    let remote = Remote { host: "2001:db8::1".into(), port: 443, proto: Proto::Udp6, ..remote() };
    store.set_remote(remote.clone()).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.server().remote, remote);
    let issued = store.add_client(&new("alice"), now()).unwrap();
    assert!(issued.profile.text().contains("\nproto udp6\nremote 2001:db8::1 443\n"));
    assert!(!issued.profile.text().contains("server-poll-timeout"), "there is no next one");
}

#[test]
fn a_renewed_server_certificate_fits_old_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = init(dir.path());
    let alice = store.add_client(&new("alice"), now()).unwrap();
    let before = std::fs::read(store.files().cert).unwrap();
    store.renew_server(10, now()).unwrap();
    assert_ne!(std::fs::read(store.files().cert).unwrap(), before);
    tls_pair(&store, &alice.profile, None).unwrap();
}

#[test]
fn secrets_are_readable_by_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let issued = store.add_client(&new("alice"), now()).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let pki = dir.path().join("pki");
    let profile = dir.path().join(issued.profile.file_name());
    std::fs::write(&profile, "of an earlier client, mode 0644").unwrap();
    issued.profile.save(&profile).unwrap();
    assert_eq!(std::fs::read_to_string(&profile).unwrap(), issued.profile.text());
    for secret in
        [pki.join("private/ca.key"), store.files().key, store.files().tls_crypt_v2, profile]
    {
        assert_eq!(mode(&secret), 0o600, "{}", secret.display());
    }
    assert_eq!(mode(&pki.join("private")), 0o700);
    for public in [store.files().ca, store.files().crl, store.files().clients] {
        assert_eq!(mode(&public), 0o644, "{}", public.display());
    }
    // The client's key is in the profile and nowhere else.
    let key = inline(&issued.profile, "key");
    let line = key.lines().nth(1).unwrap();
    for entry in std::fs::read_dir(&pki).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            assert!(!std::fs::read_to_string(&path).unwrap().contains(line), "{}", path.display());
        }
    }
    assert!(!format!("{issued:?} {store:?}").contains("PRIVATE KEY"));
}

#[test]
fn a_revocation_list_left_behind_is_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let alice = store.add_client(&new("alice"), now()).unwrap();
    let old = std::fs::read(store.files().crl).unwrap();
    store.revoke_client("alice", now()).unwrap();
    // The state if the process is killed between writing the registry and writing the list.
    std::fs::write(store.files().crl, &old).unwrap();
    tls_pair(&store, &alice.profile, None).unwrap();
    assert_eq!(store.admission("alice", &alice.client.serial).unwrap(), CertificateStatus::Revoked);
    store.repair(now()).unwrap();
    assert!(tls_pair(&store, &alice.profile, None).unwrap_err().contains("revoked"));
    let list = std::fs::read(store.files().crl).unwrap();
    store.repair(now()).unwrap();
    assert_eq!(
        std::fs::read(store.files().crl).unwrap(),
        list,
        "nothing to repair, nothing written"
    );
    std::fs::remove_file(store.files().crl).unwrap();
    store.set_enabled("alice", true, now()).unwrap_err();
    store.repair(now()).unwrap();
    assert!(tls_pair(&store, &alice.profile, None).unwrap_err().contains("revoked"));
}

#[test]
fn an_interrupted_set_up_is_no_set_up() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join(".pki.new/private")).unwrap();
    std::fs::write(dir.path().join(".pki.new/server.json"), "{").unwrap();
    assert!(!Store::exists(dir.path()));
    init(dir.path());
    assert!(!dir.path().join(".pki.new").exists());
}

#[test]
fn commands_at_the_same_time_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..5 {
                    store.add_client(&new(&format!("c{thread}-{n}")), now()).unwrap();
                }
                store.revoke_client(&format!("c{thread}-0"), now()).unwrap();
            });
        }
    });
    let clients = store.clients().unwrap();
    assert_eq!(clients.len(), 20);
    assert_eq!(clients.iter().filter(|client| client.state == ClientState::Revoked).count(), 4);
}

/// Changes the store as fast as possible until it is killed.
#[test]
#[ignore = "the other end of `killed_at_any_moment_no_file_is_torn`"]
fn child_that_is_killed() {
    let dir = std::env::var("ADIT_PKI_TEST_DIR").unwrap();
    let store = Store::open(Path::new(&dir)).unwrap();
    for n in 0.. {
        let name = format!("c{}-{n}", std::process::id());
        store.add_client(&new(&name), now()).unwrap();
        store.renew_client(&new(&name), now()).unwrap();
        store.revoke_client(&name, now()).unwrap();
    }
}

#[test]
fn killed_at_any_moment_no_file_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let mut seen = 0;
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_is_killed", "--exact", "--ignored"])
            .env("ADIT_PKI_TEST_DIR", dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Wait until the child makes changes, then for an arbitrary time.
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while store.clients().unwrap().len() == seen && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(700 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let clients = store.clients().unwrap();
        assert!(clients.len() > seen, "the child worked");
        seen = clients.len();
        store.repair(now()).unwrap();
        let list = openssl(&dir.path().join("pki"), &["crl", "-in", "crl.pem", "-noout", "-text"])
            .unwrap();
        let list = list.to_lowercase();
        for client in clients {
            let revoked = client
                .former
                .iter()
                .map(|old| &old.serial)
                .chain((client.state == ClientState::Revoked).then_some(&client.serial));
            for serial in revoked {
                assert!(list.contains(serial), "{serial} is revoked and not on the list");
            }
        }
    }
}

fn free_port() -> u16 {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn openvpn(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("openvpn")
        .args(args)
        .current_dir(dir)
        .output()
        .expect("the tests need stock openvpn (apt install openvpn)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts an openvpn server with the store's files and an openvpn client with `profile`; waits until one of the logs
/// contains one of `words`, and returns both logs.
fn stock(dir: &Path, store: &Store, port: u16, profile: &Path, words: &[&str]) -> String {
    let files = store.files();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let start = |args: &[&str], log: &str| {
        let log = std::fs::File::create(dir.join(log)).unwrap();
        Command::new("openvpn")
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .unwrap()
    };
    let port = port.to_string();
    let mut server = start(
        &[
            "--dev",
            "null",
            "--tls-server",
            "--dh",
            "none",
            "--proto",
            "udp",
            "--local",
            "127.0.0.1",
            "--lport",
            &port,
            "--ca",
            &path(&files.ca),
            "--cert",
            &path(&files.cert),
            "--key",
            &path(&files.key),
            "--crl-verify",
            &path(&files.crl),
            "--tls-crypt-v2",
            &path(&files.tls_crypt_v2),
            "--remote-cert-tls",
            "client",
            "--verb",
            "3",
        ],
        "server.log",
    );
    let mut client = start(&["--config", profile.to_str().unwrap()], "client.log");
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let logs = loop {
        let read = |log: &str| std::fs::read_to_string(dir.join(log)).unwrap();
        let logs = [read("server.log"), read("client.log")].concat();
        if words.iter().any(|word| logs.contains(word)) || std::time::Instant::now() > until {
            break logs;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    for child in [&mut server, &mut client] {
        let _ = child.kill();
        let _ = child.wait();
    }
    logs
}

#[test]
fn openvpn_takes_the_profile_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    openvpn(dir, &["--genkey", "tls-crypt-v2-server", "v2.key"]);
    let server_key = Zeroizing::new(std::fs::read_to_string(dir.join("v2.key")).unwrap());
    let port = free_port();
    let remote = Remote { host: "127.0.0.1".into(), port, proto: Proto::Udp4, ..remote() };
    let options = InitOptions::new(name("adit-server"), remote, server_key);
    let store = Store::init(dir, &options, now()).unwrap();
    openvpn(dir, &["--tls-crypt-v2", "v2.key", "--genkey", "tls-crypt-v2-client", "alice.v2"]);
    let client_key = Zeroizing::new(std::fs::read_to_string(dir.join("alice.v2")).unwrap());
    let issued = store.add_client(&NewClient::new(name("alice"), client_key), now()).unwrap();
    let profile = dir.join(issued.profile.file_name());
    issued.profile.save(&profile).unwrap();

    let logs = stock(dir, &store, port, &profile, &["[alice] Peer Connection Initiated"]);
    for line in [
        "VERIFY KU OK",
        "VERIFY EKU OK",
        "VERIFY X509NAME OK: CN=adit-server",
        "[alice] Peer Connection Initiated",
    ] {
        assert!(logs.contains(line), "{line}: {logs}");
    }
    assert!(!logs.contains("WARNING") && !logs.contains("DEPRECATED"), "{logs}");

    store.revoke_client("alice", now()).unwrap();
    let logs = stock(dir, &store, port, &profile, &["certificate revoked", "Initiated"]);
    assert!(logs.contains("certificate revoked") && !logs.contains("Initiated"), "{logs}");
}

fn networks(list: &[&str]) -> ClientChange {
    let networks = list.iter().map(|net| net.parse().unwrap()).collect();
    ClientChange { networks: Some(networks), ..ClientChange::default() }
}

/// Each refusal has one reason, and a change names only what it changes.
#[test]
fn the_settings_of_a_client_change_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    for client in ["a", "b"] {
        store.add_client(&new(client), now()).unwrap();
    }
    let change = |name: &str, change: &ClientChange| store.change_client(name, change, now());
    let quota: Quota = "5GB/month".parse().unwrap();
    let all = ClientChange {
        address4: Some(Some("10.9.9.9".parse().unwrap())),
        note: Some("  Ann's ".into()),
        quota: Some(Some(quota)),
        rate: Some(Some("5Mbit".parse().unwrap())),
        hidden_from: Some(vec!["@client:b".parse().unwrap()]),
        ..networks(&["192.168.1.77/24"])
    };
    let changed = change("a", &all).unwrap();
    assert_eq!(changed.terms.note.as_deref(), Some("Ann's"));
    assert_eq!(changed.terms.networks[0].to_string(), "192.168.1.0/24");
    assert_eq!(change("a", &ClientChange::default()).unwrap(), changed, "nothing is given");
    let less = ClientChange {
        address4: Some(None),
        note: Some(String::new()),
        quota: Some(None),
        ..ClientChange::default()
    };
    let less = change("a", &less).unwrap();
    assert_eq!((less.address4, &less.terms.note, less.terms.quota), (None, &None, None));
    assert!(less.terms.rate.is_some() && less.terms.networks.len() == 1);
    let renewed = store.renew_client(&new("a"), now()).unwrap().client;
    assert_eq!(renewed.terms, less.terms, "a new certificate changes nothing else");

    change("b", &networks(&["192.168.2.0/24"])).unwrap();
    let taken = change("b", &networks(&["192.168.0.0/16"])).unwrap_err();
    assert!(matches!(taken, PkiError::NetworkTaken(..)), "{taken}");
    change("a", &all).unwrap();
    let same = ClientChange { address4: all.address4, ..ClientChange::default() };
    assert!(matches!(change("b", &same), Err(PkiError::AddressTaken(..))));
    assert!(matches!(change("c", &less_note()), Err(PkiError::Unknown(_))));
    store.revoke_client("a", now()).unwrap();
    assert!(matches!(change("a", &less_note()), Err(PkiError::Revoked(_))));
    change("b", &networks(&["192.168.0.0/16"])).unwrap();
    // A client that is added again has no settings of its predecessor.
    let again = store.add_client(&new("a"), now()).unwrap().client;
    assert_eq!(again.terms, ClientTerms::default());
}

fn less_note() -> ClientChange {
    ClientChange { note: Some("x".into()), ..ClientChange::default() }
}

#[test]
fn a_renamed_client_keeps_its_certificate_and_its_users() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let first = store.add_client(&new("laptop"), now()).unwrap();
    store.add_client(&new("phone"), now()).unwrap();
    let alice = NewUser {
        name: name("alice"),
        password: PasswordHash::of_no_user().unwrap(),
        groups: Vec::new(),
        clients: vec![name("laptop")],
    };
    store.add_user(&alice, now()).unwrap();
    let rename = |from: &str, to: &str| store.rename_client(from, &name(to), now());
    assert!(matches!(rename("laptop", "phone"), Err(PkiError::Exists(_))));
    assert!(matches!(rename("laptop", "adit-server"), Err(PkiError::BadName(..))));
    assert!(matches!(rename("none", "x"), Err(PkiError::Unknown(_))));
    let desk = rename("laptop", "desk").unwrap();
    assert_eq!((desk.name.as_str(), desk.certificate_name().as_str()), ("desk", "laptop"));
    assert_eq!(store.admission("laptop", &first.client.serial).unwrap(), CertificateStatus::Active);
    let bound = store.user("alice").unwrap();
    assert!(bound.may_use("desk") && !bound.may_use("laptop"));
    // Two clients never have one name in their certificates.
    assert!(matches!(store.add_client(&new("laptop"), now()), Err(PkiError::NameReserved(..))));
    assert!(matches!(rename("phone", "laptop"), Err(PkiError::NameReserved(..))));
    let renewed = store.renew_client(&new("desk"), now()).unwrap();
    assert_eq!(renewed.client.certificate_name().as_str(), "laptop");
    std::fs::write(dir.path().join("c"), inline(&renewed.profile, "cert")).unwrap();
    let subject = openssl(dir.path(), &["x509", "-in", "c", "-noout", "-subject"]).unwrap();
    assert!(subject.contains("CN = laptop"), "{subject}");
    tls_pair(&store, &renewed.profile, None).unwrap();
    // Its first name is free for it again.
    assert_eq!(rename("desk", "laptop").unwrap().identity, None);
    store.revoke_client("laptop", now()).unwrap();
    assert!(matches!(rename("laptop", "desk"), Err(PkiError::Revoked(_))));
}

#[test]
fn of_a_deleted_client_only_the_revocation_remains() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let keep = |client: &str| NewClient { keep_profile: true, ..new(client) };
    let first = store.add_client(&keep("alice"), now()).unwrap();
    store.add_client(&new("phone"), now()).unwrap();
    let second = store.renew_client(&new("alice"), now()).unwrap();
    let hidden = ClientChange {
        hidden_from: Some(vec!["@client:alice".parse().unwrap()]),
        ..ClientChange::default()
    };
    store.change_client("phone", &hidden, now()).unwrap();
    let bob = |clients: &[&str]| NewUser {
        name: name("bob"),
        password: PasswordHash::of_no_user().unwrap(),
        groups: Vec::new(),
        clients: clients.iter().map(|client| name(client)).collect(),
    };
    store.add_user(&bob(&["alice"]), now()).unwrap();
    let refused = store.delete_client("alice", now()).unwrap_err();
    assert!(matches!(refused, PkiError::OnlyClientOf(..)), "{refused}");
    store.set_user_clients("bob", &[name("alice"), name("phone")]).unwrap();
    store.delete_client("alice", now()).unwrap();
    assert!(matches!(store.delete_client("alice", now()), Err(PkiError::Unknown(_))));

    let pki = dir.path().join("pki");
    let list = openssl(&pki, &["crl", "-in", "crl.pem", "-noout", "-text"]).unwrap();
    for issued in [&first, &second] {
        let serial = issued.client.serial.to_uppercase();
        assert!(list.contains(&serial), "{serial} is missing: {list}");
    }
    for file in ["clients.json", "users.json"] {
        let text = std::fs::read_to_string(pki.join(file)).unwrap();
        assert!(!text.contains("alice"), "{text}");
    }
    assert_eq!(std::fs::read_dir(pki.join("private/profiles")).unwrap().count(), 0);
    assert_eq!(
        store.admission("alice", &second.client.serial).unwrap(),
        CertificateStatus::Unknown
    );
    store.add_client(&new("alice"), now()).unwrap();
}

#[test]
fn a_profile_is_kept_only_on_request_and_until_it_is_of_no_use() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    store.add_client(&new("plain"), now()).unwrap();
    assert_eq!(store.kept_profile("plain").unwrap(), None);
    let keep = NewClient { keep_profile: true, ..new("kept") };
    let issued = store.add_client(&keep, now()).unwrap();
    assert_eq!(store.kept_profile("kept").unwrap().unwrap().as_str(), issued.profile.text());
    let folder = dir.path().join("pki/private/profiles");
    for entry in std::fs::read_dir(&folder).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let renewed = store.renew_client(&new("kept"), now()).unwrap();
    assert_eq!(store.kept_profile("kept").unwrap().unwrap().as_str(), renewed.profile.text());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    store.revoke_client("kept", now()).unwrap();
    assert_eq!(store.kept_profile("kept").unwrap(), None);
}
