//! Directives for the programs that check clients.

use super::{client, client_error, parse_file, server, server_error};
use crate::config::options::{PasswordProgram, Program};

fn program(path: &str, args: &[&str]) -> Program {
    Program { path: path.into(), args: args.iter().map(|arg| (*arg).to_owned()).collect() }
}

#[test]
fn programs_of_a_server_have_their_fields() {
    let options = server(
        "tls-verify /v\ntls-export-cert /run/certs\nauth-user-pass-verify '/p -x' via-env\nclient-connect '/c 1'\n\
         client-disconnect /d\nlearn-address /l\ntls-crypt-v2-verify /k\nclient-crresponse /r\n\
         crl-verify /etc/crls dir\n",
    );
    let hooks = &options.hooks;
    assert_eq!(hooks.tls_verify, Some(program("/v", &[])));
    assert_eq!(hooks.export_cert.as_deref(), Some(std::path::Path::new("/run/certs")));
    let password = PasswordProgram { program: program("/p", &["-x"]), via_file: false };
    assert_eq!(hooks.auth_user_pass_verify, Some(password));
    assert_eq!(hooks.client_connect, Some(program("/c", &["1"])));
    assert_eq!(hooks.client_disconnect, Some(program("/d", &[])));
    assert_eq!(hooks.learn_address, Some(program("/l", &[])));
    assert_eq!(hooks.tls_crypt_v2_verify, Some(program("/k", &[])));
    assert_eq!(hooks.client_cr_response, Some(program("/r", &[])));
    assert_eq!(options.tls.crl_directory.as_deref(), Some(std::path::Path::new("/etc/crls")));
    assert_eq!(options.tls.crl, None);
    let file = server("auth-user-pass-verify /p via-file\n").hooks.auth_user_pass_verify;
    assert!(file.is_some_and(|password| password.via_file));
    assert_eq!(client("tls-verify /v\n").hooks.tls_verify, Some(program("/v", &[])));
}

#[test]
fn what_has_no_place_is_named() {
    for (text, word) in [
        ("auth-user-pass-verify /p\n", "via-file"),
        ("auth-user-pass-verify /p by-mail\n", "by-mail"),
        ("auth-user-pass-verify '' via-env\n", "no program"),
        ("client-connect\n", "COMMAND"),
    ] {
        let error = server_error(text);
        assert!(error.to_string().contains(word), "{text}: {error}");
    }
    assert_eq!(client_error("client-connect /c\n").directive, "client-connect");
    let tap = "dev tap\nca ca\ncert c\nkey k\ndh none\nserver-bridge\nlearn-address /l\n";
    assert!(parse_file(tap).is_ok());
    let peer = "dev tun\ntls-client\nremote a\nca ca\ncert c\nkey k\nifconfig 10.0.0.1 10.0.0.2\n";
    assert!(parse_file(peer).is_ok());
    let error = parse_file(&format!("{peer}tls-verify /v\n")).unwrap_err();
    assert_eq!(error.directive, "tls-verify", "{error}");
    let error = parse_file(&format!("{peer}crl-verify /crls dir\n")).unwrap_err();
    assert_eq!(error.directive, "crl-verify", "{error}");
}
