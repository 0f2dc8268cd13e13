//! The management interface.

use super::*;

const PLACE: &str = "management 127.0.0.1 7505 pass.txt\n";

#[test]
fn the_interface_is_at_an_address_a_unix_socket_or_this_end_of_the_tunnel() {
    let place = |text: &str| server(text).management.unwrap().place;
    assert_eq!(place("management 127.0.0.1 7505"), ManagementPlace::Tcp("127.0.0.1".into(), 7505));
    assert_eq!(place("management /run/m unix"), ManagementPlace::Unix("/run/m".into()));
    assert_eq!(place("management tunnel 7505"), ManagementPlace::Tunnel(7505));
    let password = |text: &str| server(text).management.unwrap().password;
    assert_eq!(password(PLACE), Some(ManagementPassword::File("pass.txt".into())));
    let prompt = password("management 127.0.0.1 7505 stdin");
    assert_eq!(prompt, Some(ManagementPassword::Prompt));
}

#[test]
fn the_other_directives_need_the_interface() {
    for line in ["management-hold", "management-client-user root", "management-log-cache 7"] {
        let name = line.split(' ').next().unwrap();
        let error = server_error(line);
        assert_eq!(error.directive, name);
        assert!(error.problem.contains("no management interface"), "{error}");
    }
    let all =
        server(&format!("management-hold\n{PLACE}management-log-cache 7\nmanagement-signal\n"));
    let all = all.management.unwrap();
    assert!(all.hold && all.signal && !all.query_passwords && !all.forget_disconnect);
    let forgets = server(&format!("{PLACE}management-forget-disconnect\n"));
    assert!(forgets.management.unwrap().forget_disconnect);
    assert_eq!((all.log_cache, server(PLACE).management.unwrap().log_cache), (7, 250));
}

#[test]
fn a_client_of_the_interface_is_checked_only_at_a_unix_socket() {
    let unix = "management /run/m unix\nmanagement-client-user root\nmanagement-client-group adm";
    let checked = server(unix).management.unwrap();
    assert_eq!(checked.client_user.as_deref(), Some("root"));
    assert_eq!(checked.client_group.as_deref(), Some("adm"));
    let error = server_error(&format!("{PLACE}management-client-group adm"));
    assert_eq!(error.directive, "management-client-group");
    let own = server_error("management tunnel 7505\nmanagement-client");
    assert_eq!(own.directive, "management-client");
    assert_eq!(server_error("management 127.0.0.1 0").directive, "management");
    assert_eq!(
        server_error(&format!("{PLACE}management-log-cache 0")).directive,
        "management-log-cache"
    );
}

#[test]
fn clients_of_a_server_may_be_decided_about_by_the_management_client() {
    let decided = server(&format!("{PLACE}management-client-auth\nusername-as-common-name"));
    assert!(decided.management.unwrap().client_auth);
    let error = client_error(&format!("{PLACE}management-client-auth\n"));
    assert_eq!(error.directive, "management-client-auth");
}

/// The variables that are reported with the tunnel's state are also about certificates.
#[test]
fn certificates_are_described_for_a_management_client_that_hears_of_the_tunnel() {
    let describes = |more: &str| {
        let options = client(&format!("{PLACE}{more}"));
        options.settings(crate::wrap::WrapConfig::None).describe_certificates
    };
    assert!(!describes("") && describes("management-up-down\n"));
}

#[test]
fn a_key_may_be_with_the_management_client() {
    let base = "client\ndev tun\nremote vpn.example\nca ca\nremote-cert-tls server\nmanagement /run/m unix\n";
    let parsed = |more: &str| parse_file(&format!("{base}{more}"));
    let external = |more: &str| parsed(more).unwrap().tls.external_key.unwrap();
    let usual = external("cert c\nmanagement-external-key\nextra-certs e\n");
    assert_eq!(usual.cert, ExternalCert::Source(Source::File("c".into())));
    assert_eq!(usual.padding, [Padding::None, Padding::Pkcs1]);
    assert!(usual.extra.is_some());
    let asked = external("management-external-cert a:b\nmanagement-external-key pss\n");
    assert_eq!((asked.cert, asked.padding), (ExternalCert::Ask("a:b".into()), vec![Padding::Pss]));
    for (more, directive) in [
        ("cert c\nkey k\nmanagement-external-key\n", "management-external-key"),
        ("management-external-key\n", "management-external-key"),
        ("cert c\nmanagement-external-key x\n", "management-external-key"),
        ("cert c\nkey k\nmanagement-external-cert a\n", "management-external-cert"),
        (
            "cert c\nmanagement-external-key\nmanagement-external-cert a\n",
            "management-external-cert",
        ),
    ] {
        assert_eq!(parsed(more).unwrap_err().directive, directive, "{more}");
    }
    let server = server_error("management /run/m unix\nmanagement-external-key");
    assert_eq!(server.directive, "management-external-key");
}
