//! Random walks of the engines, with scripts of events like the fuzzer's, from a seeded generator.

#[path = "support/script/mod.rs"]
mod script;

use adit_engine::Random;

/// The number of scripts in one walk with any events. Each has several handshakes.
const SCRIPTS: u32 = 300;
/// The number of scripts in one walk with only an attacker's events.
const STEADFAST_SCRIPTS: u32 = 1000;
/// The upper bound of a script's length in bytes.
const LONGEST: u32 = 200;

/// Plays random scripts, whose first bit is set to `steadfast`.
fn walk(name: &str, seed: u8, play: fn(&[u8]), steadfast: bool) {
    let mut random = Random::new([seed; 32]);
    for n in 0..if steadfast { STEADFAST_SCRIPTS } else { SCRIPTS } {
        let mut bytes = vec![0; random.below(LONGEST) as usize];
        bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        if let Some(scene) = bytes.first_mut() {
            *scene = if steadfast { *scene | 0x80 } else { *scene & 0x7f };
        }
        let outcome = std::panic::catch_unwind(|| play(&bytes));
        assert!(outcome.is_ok(), "{name}, script {n}: {}", hex(&bytes));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_server_and_its_clients_stay_within_their_bounds_and_recover() {
    walk("sessions", 1, script::sessions, false);
}

#[test]
fn a_session_lives_through_packets_of_those_who_have_no_key() {
    walk("sessions", 2, script::sessions, true);
}

#[test]
fn two_points_stay_within_their_bounds_and_recover() {
    walk("pair", 3, script::pair, false);
}

#[test]
fn a_session_of_two_points_lives_through_packets_of_those_who_have_no_key() {
    walk("pair", 4, script::pair, true);
}
