//! Replays `testing/fuzz/corpus/NAME/*` through `testing/fuzz/fuzz_targets/NAME.rs`, and checks that each target
//! is replayed and has seeds.

// Two targets play scripts, and each includes its own copy of the player.
#![allow(clippy::duplicate_mod)]

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

macro_rules! targets {
    ($($name:ident in $path:literal),* $(,)?) => {
        $(
            #[path = $path]
            mod $name;

            #[test]
            fn $name() {
                replay(stringify!($name), $name::run);
            }
        )*

        const TARGETS: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    auth_token in "../../fuzz/fuzz_targets/auth_token.rs",
    config in "../../fuzz/fuzz_targets/config.rs",
    control_packet in "../../fuzz/fuzz_targets/control_packet.rs",
    dns_answer in "../../fuzz/fuzz_targets/dns_answer.rs",
    dns_zone in "../../fuzz/fuzz_targets/dns_zone.rs",
    data_path in "../../fuzz/fuzz_targets/data_path.rs",
    decompress in "../../fuzz/fuzz_targets/decompress.rs",
    filter_fragment in "../../fuzz/fuzz_targets/filter_fragment.rs",
    filter_judge in "../../fuzz/fuzz_targets/filter_judge.rs",
    filter_packet in "../../fuzz/fuzz_targets/filter_packet.rs",
    filter_rules in "../../fuzz/fuzz_targets/filter_rules.rs",
    fragment in "../../fuzz/fuzz_targets/fragment.rs",
    ethernet in "../../fuzz/fuzz_targets/ethernet.rs",
    filter_track in "../../fuzz/fuzz_targets/filter_track.rs",
    helper in "../../fuzz/fuzz_targets/helper.rs",
    formats in "../../fuzz/fuzz_targets/formats.rs",
    keys in "../../fuzz/fuzz_targets/keys.rs",
    logins in "../../fuzz/fuzz_targets/logins.rs",
    management in "../../fuzz/fuzz_targets/management.rs",
    mesh_join in "../../fuzz/fuzz_targets/mesh_join.rs",
    mesh_node in "../../fuzz/fuzz_targets/mesh_node.rs",
    mesh_sync in "../../fuzz/fuzz_targets/mesh_sync.rs",
    mesh_path_finder in "../../fuzz/fuzz_targets/mesh_path_finder.rs",
    mesh_paths in "../../fuzz/fuzz_targets/mesh_paths.rs",
    mesh_roster in "../../fuzz/fuzz_targets/mesh_roster.rs",
    negotiate in "../../fuzz/fuzz_targets/negotiate.rs",
    plugin_host in "../../fuzz/fuzz_targets/plugin_host.rs",
    postgres_record in "../../fuzz/fuzz_targets/postgres_record.rs",
    postgres_rekey in "../../fuzz/fuzz_targets/postgres_rekey.rs",
    postgres_token in "../../fuzz/fuzz_targets/postgres_token.rs",
    postgres_row in "../../fuzz/fuzz_targets/postgres_row.rs",
    postgres_hint in "../../fuzz/fuzz_targets/postgres_hint.rs",
    postgres_page in "../../fuzz/fuzz_targets/postgres_page.rs",
    programs in "../../fuzz/fuzz_targets/programs.rs",
    push_filters in "../../fuzz/fuzz_targets/push_filters.rs",
    records in "../../fuzz/fuzz_targets/records.rs",
    router in "../../fuzz/fuzz_targets/router.rs",
    stream in "../../fuzz/fuzz_targets/stream.rs",
    certificates in "../../fuzz/fuzz_targets/certificates.rs",
    control_json in "../../fuzz/fuzz_targets/control_json.rs",
    proxy_answer in "../../fuzz/fuzz_targets/proxy_answer.rs",
    sessions in "../../fuzz/fuzz_targets/sessions.rs",
    single_sign_on in "../../fuzz/fuzz_targets/single_sign_on.rs",
    state_files in "../../fuzz/fuzz_targets/state_files.rs",
    point_to_point in "../../fuzz/fuzz_targets/point_to_point.rs",
    tinc_data in "../../fuzz/fuzz_targets/tinc_data.rs",
    tinc_files in "../../fuzz/fuzz_targets/tinc_files.rs",
    tinc_join in "../../fuzz/fuzz_targets/tinc_join.rs",
    tinc_message in "../../fuzz/fuzz_targets/tinc_message.rs",
    tinc_node in "../../fuzz/fuzz_targets/tinc_node.rs",
    tinc_router in "../../fuzz/fuzz_targets/tinc_router.rs",
    tinc_sptps in "../../fuzz/fuzz_targets/tinc_sptps.rs",
    token_host in "../../fuzz/fuzz_targets/token_host.rs",
    unwrap in "../../fuzz/fuzz_targets/unwrap.rs",
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(name)
}

/// Returns the names in a folder without their extensions.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

/// Targets whose seeds are scripts of many handshakes over hours of virtual time. The random walks of
/// openvpn/tests/scripts.rs vary them.
const SCRIPTS: [&str; 2] = ["sessions", "point_to_point"];

/// Runs each seed, each prefix of it, and each variant with one altered byte, which is feasible because seeds are
/// small. A script is run unchanged.
fn replay(target: &str, run: fn(&[u8])) {
    let folder = folder("corpus").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut count = 0;
    for file in files {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run(&bytes);
            if SCRIPTS.contains(&target) {
                return;
            }
            for len in 0..bytes.len() {
                run(&bytes[..len]);
            }
            for index in 0..bytes.len() {
                let mut altered = bytes.clone();
                altered[index] ^= 0x81;
                run(&altered);
            }
        }));
        assert!(outcome.is_ok(), "target {target} panicked on {} or near it", path.display());
        count += 1;
    }
    assert!(count > 0, "no seeds in {}", folder.display());
}

#[test]
fn every_target_is_replayed() {
    let known: BTreeSet<String> = TARGETS.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(names(&folder("fuzz_targets")), known, "fuzz_targets/ and the table above differ");
    assert_eq!(names(&folder("corpus")), known, "corpus/ and the table above differ");
    let manifest = fs::read_to_string(folder("Cargo.toml")).unwrap();
    for name in known {
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "testing/fuzz/Cargo.toml has no [[bin]] for {name}");
    }
}
