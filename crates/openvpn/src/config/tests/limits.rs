//! Limits that end a session or the program.

use adit_engine::auth::Inactive;

use super::*;
use crate::session::Limits;

#[test]
fn times_are_taken_on_every_side() {
    let seconds = Duration::from_secs;
    let more = "inactive 600 1000\nsession-timeout 86400\nping 10\nping-exit 60\n";
    let expected = Limits {
        inactive: Some(Inactive { after: seconds(600), bytes: 1000 }),
        session: Some(seconds(86_400)),
        exit_when_silent: true,
        exit_on_tls_failure: false,
    };
    let secret = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n";
    for options in [client(more), server(more), parse_file(&format!("{secret}{more}")).unwrap()] {
        assert_eq!(options.session.limits, expected);
        assert_eq!(options.session.keepalive.timeout, seconds(60));
    }
    assert!(client("tls-exit").session.limits.exit_on_tls_failure);
}

#[test]
fn the_last_word_counts_and_zero_means_never() {
    assert!(!client("ping-exit 60\nping-restart 60\n").session.limits.exit_when_silent);
    assert!(client("ping-restart 60\nping-exit 60\n").session.limits.exit_when_silent);
    let none = client("inactive 0 500\nsession-timeout 0\n").session.limits;
    assert_eq!((none.inactive, none.session), (None, None));
    let nothing = client("inactive 9 -5\n").session.limits.inactive.unwrap();
    assert_eq!(nothing.bytes, 0, "as stock has it");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let conflict = client_error("keepalive 10 60\nping-exit 60\n");
    assert_eq!(conflict.directive, "ping-exit");
    assert!(conflict.problem.contains("keepalive"), "{conflict}");
    for (line, word) in [
        ("inactive", "argument"),
        ("inactive soon", "number"),
        ("inactive 5 many", "number"),
        ("session-timeout -1", "number"),
        ("ping-exit x", "number"),
        ("tls-exit now", "no argument"),
    ] {
        let error = client_error(line);
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
    let warned = |options: Options| options.warnings.iter().any(|w| w.contains("tls-exit"));
    assert!(warned(server("tls-exit")));
    let waits = "dev tun\nifconfig 10.1.0.1 10.1.0.2\nca a\ncert b\nkey c\ntls-server\n";
    assert!(warned(parse_file(&format!("{waits}tls-exit\n")).unwrap()));
    assert!(!warned(parse_file(&format!("{waits}tls-exit\nremote 192.0.2.1\n")).unwrap()));
    let secret = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\ntls-exit\n";
    assert!(parse_file(secret).unwrap_err().problem.contains("belongs to TLS"));
}
