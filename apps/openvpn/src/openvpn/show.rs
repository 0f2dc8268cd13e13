//! The lists that `--show-ciphers` and similar options print, in openvpn's format, which front ends
//! parse.

use std::fmt::Write as _;

use adit_crypto::Digest;
use adit_openvpn::negotiate::DataCipher;
use adit_openvpn::tls;

/// Returns the output of a stand-alone mode; `None` for other arguments.
pub(super) fn list(mode: &str) -> Option<String> {
    Some(match mode {
        "--show-ciphers" => ciphers(),
        "--show-digests" => digests(),
        "--show-tls" => suites(),
        "--show-curves" | "--show-groups" => groups(),
        _ => return None,
    })
}

fn ciphers() -> String {
    let mut text = String::from(
        "Ciphers of the data channel, for --data-ciphers and --data-ciphers-fallback.\nWith a static key \
         (--secret) only those in CBC mode can be used.\n\n",
    );
    for name in DataCipher::names().filter(|name| !name.eq_ignore_ascii_case("none")) {
        let key =
            ["128", "192", "256"].into_iter().find(|bits| name.contains(bits)).unwrap_or("256");
        let block = if name.starts_with("CHACHA20") {
            "stream cipher".to_owned()
        } else {
            "128 bit block".to_owned()
        };
        let tls = if name.ends_with("-CBC") { "" } else { ", TLS client/server mode only" };
        let _ = writeln!(text, "{name}  ({key} bit key, {block}{tls})");
    }
    text.push('\n');
    text
}

fn digests() -> String {
    let mut text = String::from("Digests for --auth.\n\n");
    for digest in Digest::ALL {
        let _ = writeln!(text, "{} {} bit digest size", digest.name(), digest.output_len() * 8);
    }
    text.push('\n');
    text
}

fn suites() -> String {
    let (new, old) = tls::suite_names();
    let mut text = String::from(
        "TLS ciphers, in order of preference.\n\nFor TLS 1.3 (--tls-ciphersuites):\n\n",
    );
    new.iter().for_each(|name| text.extend([name.as_str(), "\n"]));
    text.push_str("\nFor TLS 1.2 (--tls-cipher):\n\n");
    old.iter().for_each(|name| text.extend([name.as_str(), "\n"]));
    text.push('\n');
    text
}

fn groups() -> String {
    let mut text = String::from("Available Elliptic curves/groups:\n");
    tls::GROUP_NAMES.iter().for_each(|name| text.extend([*name, "\n"]));
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_the_lines_that_front_ends_look_for() {
        let lines = |mode: &str| -> Vec<String> {
            list(mode).unwrap().lines().map(str::to_owned).collect()
        };
        let ciphers = lines("--show-ciphers");
        for line in [
            "AES-256-GCM  (256 bit key, 128 bit block, TLS client/server mode only)",
            "AES-128-CBC  (128 bit key, 128 bit block)",
            "CHACHA20-POLY1305  (256 bit key, stream cipher, TLS client/server mode only)",
        ] {
            assert!(ciphers.iter().any(|have| have == line), "{line}: {ciphers:?}");
        }
        assert!(!ciphers.iter().any(|line| line.starts_with("none")));
        assert!(lines("--show-digests").contains(&"SHA256 256 bit digest size".to_owned()));
        let suites = lines("--show-tls");
        assert!(suites.contains(&"TLS_AES_256_GCM_SHA384".to_owned()));
        assert!(suites.contains(&"TLS-ECDHE-RSA-WITH-AES-256-GCM-SHA384".to_owned()));
        assert_eq!(lines("--show-curves"), lines("--show-groups"));
        assert!(lines("--show-groups").contains(&"X25519".to_owned()));
        assert_eq!(list("--config"), None);
    }
}
