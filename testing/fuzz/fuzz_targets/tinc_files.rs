//! Fuzzes the files of tinc that others write: configuration files, host files, keys, invitations and their URLs. What a joining node
//! takes from an invitation, it can read again.
#![cfg_attr(fuzzing, no_main)]

use adit_tinc::config::{ConfigOption, Entries, HostConfig, ServerConfig, decode};
use adit_tinc::invitation::{Accepted, Url};
use adit_tinc::keys::{PrivateKey, PublicKey};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let decoded = decode(bytes.to_vec());
    // A file that was damaged by its owner is read as far as possible.
    let (host, warnings) =
        HostConfig::read_other(Entries::default(), "hosts/alice", &decoded, |_| {});
    assert!(!host.unusable_key || host.public_key.is_none() && !warnings.is_empty());
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut entries = Entries::default();
    if entries.add_file("tinc.conf", text).is_ok() {
        let _ = entries.name(|_| Some(text.to_owned()), text);
        if let Ok((config, warnings)) = ServerConfig::read(&entries) {
            assert!(config.strict_subnets || !config.tunnel_server);
            // One more for a block without an end.
            assert!(warnings.len() <= entries.iter().count() + 1);
        }
    }
    let _ = HostConfig::read(Entries::default(), "hosts/alice", text);
    let _ = text.parse::<ConfigOption>();
    if let Ok(key) = PrivateKey::from_file(text) {
        assert_eq!(PrivateKey::from_file(&key.to_file()).unwrap().public(), key.public());
    }
    let _ = PublicKey::from_file(text);
    if let Ok(url) = text.trim().parse::<Url>() {
        assert_eq!(url.to_string().parse(), Ok(url));
    }
    if let Ok(accepted) = Accepted::read(text) {
        for (name, file) in &accepted.hosts {
            assert_ne!(*name, accepted.name);
            let mut entries = Entries::default();
            let _ = entries.add_file(name.as_str(), file);
            assert!(entries.iter().all(|entry| !entry.name.eq_ignore_ascii_case("Proxy")));
        }
    }
}
