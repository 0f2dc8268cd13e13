//! Directives for user names, passwords, challenges and tokens.

use adit_engine::auth::{Challenge, ChallengeKind};

use super::*;
use crate::tls::NameField;

fn tokens(line: &str) -> TokenOptions {
    as_server(&server(&format!("{line}\n"))).tokens.expect("tokens")
}

#[test]
fn the_forms_of_a_token() {
    let seconds = |n| Some(Duration::from_secs(n));
    let plain = TokenOptions::default();
    assert_eq!(tokens("auth-gen-token"), plain);
    assert_eq!(tokens("auth-gen-token 0"), plain);
    assert_eq!(tokens("auth-gen-token 60"), TokenOptions { lifetime: seconds(60), ..plain });
    let renewed = TokenOptions { lifetime: seconds(60), renewal: seconds(10), external: false };
    assert_eq!(tokens("auth-gen-token 60 10"), renewed);
    let external = TokenOptions { external: true, ..renewed };
    assert_eq!(tokens("auth-gen-token 60 10 external-auth"), external);
    assert_eq!(tokens("auth-gen-token external-auth"), TokenOptions { external: true, ..plain });
    assert!(server_error("auth-gen-token 60 10 yes\n").problem.contains("\"yes\" is not known"));
    assert_eq!(server_error("auth-gen-token x\n").directive, "auth-gen-token");
    let options = server("auth-gen-token-secret t.key\n");
    assert!(options.warnings.iter().any(|text| text.contains("there is no auth-gen-token")));
    let options = server("auth-gen-token\nauth-gen-token-secret t.key\n");
    assert_eq!(as_server(&options).token_secret, Some(Source::File("t.key".into())));
}

#[test]
fn the_forms_of_a_static_challenge() {
    let challenge = |line: &str| {
        let options = client(&format!("auth-user-pass\n{line}\n"));
        as_client(&options).static_challenge.clone().expect("a challenge")
    };
    let kind = |concatenate| ChallengeKind::Static { concatenate };
    let pin = Challenge { text: "Your PIN".into(), echo: true, kind: kind(false) };
    assert_eq!(challenge("static-challenge \"Your PIN\" 1"), pin);
    assert_eq!(challenge("static-challenge \"Your PIN\" 1 scrv1"), pin);
    let hidden = Challenge { echo: false, kind: kind(true), ..pin };
    assert_eq!(challenge("static-challenge \"Your PIN\" 0 concat"), hidden);
    assert!(client_error("static-challenge PIN 2\n").problem.contains("from 0 to 1"));
    assert!(client_error("static-challenge PIN 1 other\n").problem.contains("not known"));
}

#[test]
fn the_fields_that_name_the_owner_of_a_certificate() {
    let fields = |line: &str| client(&format!("{line}\n")).tls.name_fields;
    let attribute = |name: &str| NameField::Attribute(name.into());
    assert_eq!(fields("x509-username-field CN"), []);
    assert_eq!(fields("x509-username-field cn"), []);
    assert_eq!(fields("x509-username-field ou"), [attribute("OU")]);
    let mails = fields("x509-username-field emailAddress ext:subjectAltName ext:issuerAltName");
    let wanted = [attribute("emailAddress"), NameField::SubjectMail, NameField::IssuerMail];
    assert_eq!(mails, wanted);
    assert_eq!(fields("x509-username-field CN serialNumber"), [attribute("CN"), NameField::Serial]);
    let error = client_error("x509-username-field ext:keyUsage\n");
    assert!(error.problem.contains("is no field"), "{error}");
}

#[test]
fn user_names_without_a_check_are_refused() {
    for name in ["username-as-common-name", "auth-user-pass-optional"] {
        let error = server_error(&format!("{name}\n"));
        assert_eq!(error.directive, name);
        assert!(error.problem.contains("management-client-auth"), "{error}");
    }
}
