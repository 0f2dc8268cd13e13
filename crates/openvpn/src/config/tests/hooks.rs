//! Directives that name programs.

use super::{args, client, client_error, files, parse, parse_file, server_error};
use crate::config::options::Program;

fn program(path: &str, args: &[&str]) -> Option<Program> {
    Some(Program { path: path.into(), args: args.iter().map(|arg| (*arg).to_owned()).collect() })
}

#[test]
fn a_program_has_arguments_by_the_rules_of_a_line() {
    let options = client(
        "script-security 2\nup \"/etc/openvpn/up.sh a 'b c' d\\\\ e\"\ndown /etc/down\nroute-up 'r x'\n\
         route-pre-down \"'/a b/c' 1\"\nipchange i\ndown-pre\nup-restart\nup-delay\ntmp-dir /run/t\n",
    );
    let hooks = &options.hooks;
    assert_eq!(hooks.up, program("/etc/openvpn/up.sh", &["a", "b c", "d e"]));
    assert_eq!(hooks.down, program("/etc/down", &[]));
    assert_eq!(hooks.route_up, program("r", &["x"]));
    assert_eq!(hooks.route_pre_down, program("/a b/c", &["1"]));
    assert_eq!(hooks.ip_change, program("i", &[]));
    assert!(hooks.down_pre && hooks.up_restart && hooks.up_delay);
    assert_eq!(hooks.temporary.as_deref(), Some(std::path::Path::new("/run/t")));
    let named: Vec<_> = hooks.programs().map(|(directive, _)| directive).collect();
    assert_eq!(named, ["up", "down", "route-up", "route-pre-down", "ipchange"]);
    assert_eq!(options.script_security, 2);
    assert_eq!(client("").script_security, 1);
    assert!(client_error("script-security 4\n").problem.contains("number"));
}

#[test]
fn the_last_program_is_in_force() {
    let options = client("up /a\nup /b\n");
    assert_eq!(options.hooks.up, program("/b", &[]));
    assert!(
        options.warnings.iter().any(|w| w.contains("more than once")),
        "{:?}",
        options.warnings
    );
    let same = client("up /a\nup /a\n");
    assert!(same.warnings.is_empty(), "{:?}", same.warnings);
}

#[test]
fn a_server_has_no_single_other_end() {
    for line in ["ipchange /a\n", "up-delay\n"] {
        assert!(server_error(line).problem.contains("for clients"), "{line}");
    }
}

#[test]
fn the_name_of_the_first_config_file_is_known() {
    assert_eq!(parse_file(super::CLIENT).unwrap().config_file.as_deref(), Some("x.conf"));
    let both = files(&[("a.conf", super::CLIENT), ("b.conf", "verb 3\n")]);
    let options = parse(&args("--verb 4 --config a.conf --config b.conf"), &both).unwrap();
    assert_eq!(options.config_file.as_deref(), Some("a.conf"));
}

#[test]
fn variables_for_programs_need_no_warning() {
    let options = client("setenv PROVIDER a\nsetenv PROVIDER b\nsetenv-safe SITE c\n");
    let expected = [("PROVIDER", "b"), ("OPENVPN_SITE", "c")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!((options.environment, options.warnings), (expected.to_vec(), vec![]));
}

#[test]
fn attributes_of_certificates_are_tracked() {
    let tracked = client("x509-track CN\nx509-track +SHA256\n").hooks.tracked;
    let tracked: Vec<_> =
        tracked.iter().map(|track| (track.attribute.as_str(), track.whole_chain)).collect();
    assert_eq!(tracked, [("CN", false), ("SHA256", true)]);
}
