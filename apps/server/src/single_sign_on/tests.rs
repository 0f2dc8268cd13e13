use std::fs;
use std::net::TcpListener;

use adit_runtime::authorize::Authorizer;
use adit_testbed::identity_provider::{Approval, IdentityProvider};
use serde_json::json;

use super::*;
use crate::authorizer::SessionUser;
use crate::clients::{ClientRequest, add, open_store};
use crate::oidc_settings::OidcSettings;
use crate::testing::server;
use crate::users::{self, UserRequest};

struct Setup {
    dir: tempfile::TempDir,
    there: IdentityProvider,
    paths: Paths,
    settings: Settings,
    authority: RegistryAuthorizer,
    serial: String,
}

/// A client's accepted parameters, or the texts for the log and for the client.
type Answer = Result<auth::ClientParams, (String, Option<String>)>;

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (paths, mut settings) = server(&dir);
        let there = IdentityProvider::start(TcpListener::bind("127.0.0.1:0").unwrap());
        there.change(|behaviour| behaviour.approval = Approval::Approved);
        fs::write(paths.config.join("ca.pem"), there.certificate()).unwrap();
        let mut oidc = OidcSettings::new(there.issuer(), "adit");
        oidc.ca_file = Some("ca.pem".into());
        (settings.login, settings.oidc) = (Login::CertificateOidc, Some(oidc));
        let laptop = ClientRequest {
            name: "laptop".into(),
            groups: vec!["devices".into()],
            ..ClientRequest::default()
        };
        let serial = add(&paths, &laptop).unwrap().client.serial;
        let authority = Self::authority(&paths, &settings);
        Self { dir, there, paths, settings, authority, serial }
    }

    fn authority(paths: &Paths, settings: &Settings) -> RegistryAuthorizer {
        let store = open_store(paths).unwrap();
        let authority = RegistryAuthorizer::new(store, paths, settings.login).unwrap();
        authority.sso.configure(paths, settings).unwrap();
        authority
    }

    fn identity(&self, methods: &str) -> Identity {
        Identity {
            common_name: "laptop".into(),
            serial: self.serial.clone(),
            address: Some("192.0.2.1".parse().unwrap()),
            peer_info: vec![("IV_SSO".into(), methods.into())],
            ..Identity::default()
        }
    }

    /// Returns the answer, and the text that the client got before.
    async fn ask(&self, identity: Identity) -> (Answer, Option<String>) {
        let (sender, mut receiver) = PendingSender::for_tests();
        let response = self.authority.authorize(Box::new(identity), sender).await;
        let text = match receiver.try_recv() {
            Ok((_, auth::Response::Pending { info, .. })) => info,
            _ => None,
        };
        let answer = match response {
            auth::Response::Accept(params) => Ok(params),
            auth::Response::Reject(rejection) => Err((rejection.log, rejection.peer)),
            auth::Response::Later(text) => Err((text.clone(), Some(text))),
            other => panic!("{other:?}"),
        };
        (answer, text)
    }

    async fn refused(&self, methods: &str) -> String {
        self.ask(self.identity(methods)).await.0.unwrap_err().0
    }
}

/// Returns the user name and the token that a client was given.
fn credentials(params: &auth::ClientParams) -> (String, String) {
    let option = |name: &str| {
        let mut all = params.push.iter().filter_map(|line| line.strip_prefix(name));
        all.next().unwrap_or_else(|| panic!("{name} in {:?}", params.push)).to_owned()
    };
    let name = STANDARD.decode(option("auth-token-user ")).unwrap();
    (String::from_utf8(name).unwrap(), option("auth-token "))
}

#[tokio::test]
async fn a_user_logs_in_in_the_browser_once_for_several_connections() {
    let mut setup = Setup::new();
    setup.there.change(|behaviour| behaviour.claims = json!({ "groups": ["staff"] }));
    let (answer, text) = setup.ask(setup.identity("crtext,webauth")).await;
    let params = answer.unwrap();
    assert_eq!(text.unwrap(), format!("WEB_AUTH::{}/go?login=1", setup.there.issuer()));
    assert_eq!(params.groups, ["devices", "staff"]);
    assert_eq!(params.session.as_ref().unwrap().username.as_deref(), Some("alice"));
    let hours = params.session_timeout.unwrap().as_secs();
    assert!((12 * 3600 - 60..=12 * 3600).contains(&hours), "{hours}");
    let (name, token) = credentials(&params);
    assert_eq!(name, "alice");
    assert_eq!(setup.authority.groups("laptop", Some("alice")), ["devices", "staff"]);

    // A connection check, which asks for the browser too, changes nothing for the session.
    let check = Identity { check: true, ..setup.identity("webauth") };
    assert!(setup.ask(check).await.0.is_ok());

    // With the token, the browser is not needed, not even after a restart, and the groups are those of the login.
    let again = Identity {
        username: Some(name),
        password: Some(token.into()),
        ..setup.identity("webauth")
    };
    setup.there.change(|behaviour| behaviour.approval = Approval::Denied);
    setup.authority = Setup::authority(&setup.paths, &setup.settings);
    let (answer, text) = setup.ask(again.clone()).await;
    assert_eq!((answer.unwrap().groups, text), (params.groups, None));
    assert_eq!(setup.there.requests("/device"), 2, "that of the check and the first one");

    // In each case one part differs, and the client is sent to the browser.
    let wrong = [
        Identity { username: Some("bob".into()), ..again.clone() },
        Identity { username: None, ..again.clone() },
        Identity { password: Some("SESS_ID_adit_x".to_owned().into()), ..again.clone() },
    ];
    for (n, identity) in wrong.into_iter().enumerate() {
        let (answer, text) = setup.ask(identity).await;
        assert!(answer.is_err() && text.is_some(), "{n}");
    }
    users::add(&setup.paths, &UserRequest::new("alice"), "correct horse").unwrap();
    assert!(setup.ask(again.clone()).await.0.is_ok());
    users::set_password(&setup.paths, "alice", "battery staple").unwrap();
    assert!(setup.ask(again.clone()).await.1.is_some(), "a change of the user ends the token");
    // A token of another login is not valid either, and neither is one that is too old.
    setup.there.change(|behaviour| behaviour.approval = Approval::Approved);
    let params = setup.ask(setup.identity("webauth")).await.0.unwrap();
    let fresh = Identity { password: Some(credentials(&params).1.into()), ..again };
    assert!(setup.ask(fresh.clone()).await.1.is_none());
    let login = setup.authority.sso.logins.get("laptop").unwrap();
    let record = |login: SsoLogin| setup.authority.sso.logins.record("laptop", login, 0);
    record(SsoLogin { at: login.at - 1, ..login.clone() });
    assert!(setup.ask(fresh.clone()).await.1.is_some());
    let old = SsoLogin { at: clock::unix_time().0 - 12 * 3600, ..login };
    let token = setup.authority.logins.tokens().issue(("alice", 1), "laptop", old.at);
    record(old);
    let fresh = Identity { password: Some(token), ..fresh };
    assert!(setup.ask(fresh).await.1.is_some());
}

#[tokio::test]
async fn each_refusal_has_its_reason() {
    let setup = Setup::new();
    let foreign = Identity { serial: "00".into(), ..setup.identity("webauth") };
    let reason = setup.ask(foreign).await.0.unwrap_err().0;
    assert!(reason.contains("not the registered one"), "{reason}");
    for methods in ["", "crypto", "webauth2"] {
        let (answer, text) = setup.ask(setup.identity(methods)).await;
        assert_eq!((answer.unwrap_err().1.as_deref(), text), (Some(NO_BROWSER), None));
    }
    assert_eq!(setup.there.log().len(), 0, "the provider is not asked");

    let setup = Setup::new();
    setup.there.change(|behaviour| behaviour.approval = Approval::Denied);
    assert!(setup.refused("webauth").await.contains("refused"));
    setup.there.change(|behaviour| behaviour.approval = Approval::Expired);
    assert!(setup.refused("webauth").await.contains("in time"));
    setup.there.change(|behaviour| {
        (behaviour.approval, behaviour.wrong_signature) = (Approval::Approved, true);
    });
    assert!(setup.refused("webauth").await.contains("ID token"));
    setup.there.change(|behaviour| {
        (behaviour.wrong_signature, behaviour.complete_url) = (false, false);
    });
    assert!(setup.refused("webauth,openurl").await.contains("IV_SSO"));
    let (answer, text) = setup.ask(setup.identity("crtext")).await;
    assert!(answer.is_ok() && text.unwrap().contains("with the code ABCD-EFGH"));
    // A failed login under one name makes a pause, as a wrong password does.
    setup.there.change(|behaviour| behaviour.approval = Approval::Denied);
    for _ in 0..6 {
        setup.refused("webauth").await;
    }
    let report = setup.authority.login_report().unwrap();
    assert!(report.failed >= 9 && report.accepted == 1, "{report:?}");
}

#[tokio::test]
async fn a_registered_user_has_groups_and_may_be_disabled_or_bound() {
    let setup = Setup::new();
    let alice = UserRequest { groups: vec!["ops".into()], ..UserRequest::new("alice") };
    users::add(&setup.paths, &alice, "correct horse").unwrap();
    let params = setup.ask(setup.identity("openurl")).await.0.unwrap();
    assert_eq!(params.groups, ["devices", "ops"]);
    let session = SessionUser { name: "alice".into(), revision: Some(0) };
    let owner = |user: Option<SessionUser>| SessionOwner {
        name: "laptop".into(),
        serial: setup.serial.clone(),
        user,
    };
    let decide = |owner: &SessionOwner| setup.authority.decide_session(owner).unwrap();
    let alice = owner(Some(session.clone()));
    assert_eq!(decide(&alice), Ok(()));
    let other = owner(Some(SessionUser { name: "bob".into(), ..session.clone() }));
    for odd in [owner(None), other] {
        assert!(decide(&odd).unwrap_err().contains("in the browser"));
    }
    let changed = owner(Some(SessionUser { revision: Some(7), ..session }));
    assert!(decide(&changed).unwrap_err().contains("changed"));

    users::disable(&setup.paths, "alice").unwrap();
    assert!(setup.refused("openurl").await.contains("user alice: the user is disabled"));
    assert!(decide(&alice).unwrap_err().contains("disabled"));
    users::enable(&setup.paths, "alice").unwrap();
    let phone = ClientRequest { name: "phone".into(), ..ClientRequest::default() };
    add(&setup.paths, &phone).unwrap();
    users::bind(&setup.paths, "alice", &["phone".into()]).unwrap();
    assert!(setup.refused("openurl").await.contains("may not use"));
    assert!(decide(&alice).unwrap_err().contains("may not use"));
    users::delete(&setup.paths, "alice").unwrap();
    assert_eq!(decide(&alice), Ok(()), "the provider alone decides about other users");
    fs::write(open_store(&setup.paths).unwrap().files().users, "{").unwrap();
    assert!(setup.refused("openurl").await.contains("cannot be read"));
}

/// Returns the state of a challenge, and its text for the user.
fn challenge((answer, text): (Answer, Option<String>)) -> (String, String) {
    assert_eq!(text, None);
    let asked = answer.unwrap_err().1.unwrap();
    let parts: Vec<&str> = asked.splitn(5, ':').collect();
    let ["CRV1", "R,E", state, "YWxpY2U=", text] = parts.as_slice() else { panic!("{asked}") };
    ((*state).to_owned(), (*text).to_owned())
}

fn confirms(state: &str) -> Option<zeroize::Zeroizing<String>> {
    Some(format!("CRV1::{state}::OK").into())
}

#[tokio::test]
async fn an_app_that_announces_nothing_is_asked_by_a_challenge() {
    let setup = Setup::new();
    let plain = Identity {
        username: Some("alice".into()),
        password: Some("x".to_owned().into()),
        ..setup.identity("")
    };
    let (state, text) = challenge(setup.ask(plain.clone()).await);
    let url = format!("{}/go?login=1", setup.there.issuer());
    assert_eq!(text, format!("Log in at {url} and then answer OK"));
    // Neither a further attempt nor a wrong answer begins another login, and neither is accepted.
    for password in [None, confirms("0"), confirms(""), Some("CRV1::".to_owned().into())] {
        let again = Identity { password, ..plain.clone() };
        assert_eq!(challenge(setup.ask(again).await), (state.clone(), text.clone()));
    }
    assert_eq!(setup.there.requests("/device"), 1);
    // The confirmation counts for its own client.
    let phone = ClientRequest { name: "phone".into(), ..ClientRequest::default() };
    let serial = add(&setup.paths, &phone).unwrap().client.serial;
    let other = Identity {
        common_name: "phone".into(),
        serial,
        password: confirms(&state),
        ..plain.clone()
    };
    assert_ne!(challenge(setup.ask(other).await).0, state);
    // It is accepted once, and the client gets a token.
    let confirmed = Identity { password: confirms(&state), ..plain.clone() };
    let params = setup.ask(confirmed.clone()).await.0.unwrap();
    assert_eq!(params.session.as_ref().unwrap().username.as_deref(), Some("alice"));
    let (name, token) = credentials(&params);
    assert_ne!(challenge(setup.ask(confirmed).await).0, state);
    let again = Identity { username: Some(name), password: Some(token.into()), ..plain.clone() };
    assert!(setup.ask(again).await.0.is_ok());
    // A refusal of the provider ends the login.
    setup.there.change(|behaviour| behaviour.approval = Approval::Denied);
    let (state, _) = challenge(setup.ask(plain.clone()).await);
    let denied = Identity { password: confirms(&state), ..plain.clone() };
    assert!(setup.ask(denied).await.0.unwrap_err().0.contains("refused"));
    assert_ne!(challenge(setup.ask(plain).await).0, state);
}

#[tokio::test]
async fn a_user_who_confirms_too_early_is_asked_again() {
    let setup = Setup::new();
    setup.there.change(|behaviour| {
        (behaviour.approval, behaviour.complete_url) = (Approval::Waiting, false);
    });
    let provider = setup.authority.sso.provider().unwrap();
    let challenges = Challenges::with_wait(Duration::from_millis(1));
    let visit = async |password: Option<zeroize::Zeroizing<String>>, username: &str| {
        let username = Some(username.to_owned());
        let identity = Identity { username, password, ..setup.identity("") };
        match challenges.visit(&provider, &Asking::new(&identity)).await {
            Err(SsoError::Challenge(text)) => Ok(text),
            Err(error) => Err(error),
            Ok(user) => panic!("{user:?}"),
        }
    };
    let first = visit(None, "alice").await.unwrap();
    assert!(first.contains("with the code ABCD-EFGH and then answer OK"), "{first}");
    let state = first.split(':').nth(2).unwrap();
    let second = visit(confirms(state), "alice").await.unwrap();
    assert_eq!(second, first.replace(":Log in", ":There was no login yet. Log in"));
    assert_eq!(setup.there.requests("/device"), 1);
    // Without a user name an app does not answer a challenge, and a long one leaves no room for the URL.
    for name in ["", &"a".repeat(129)] {
        assert_eq!(visit(None, name).await, Err(SsoError::NoBrowser));
    }
}

#[tokio::test]
async fn without_the_provider_clients_try_again_later() {
    let setup = Setup::new();
    let Setup { there, authority, paths, .. } = &setup;
    there.change(|behaviour| {
        behaviour.mistake = Some(adit_testbed::identity_provider::Mistake::Unavailable);
    });
    assert_eq!(setup.refused("webauth").await, NO_PROVIDER);
    let report = authority.login_report().unwrap();
    assert_eq!((report.failed, report.busy), (0, 1), "{report:?}");
    let without = Settings { login: Login::Certificate, ..setup.settings.clone() };
    authority.sso.configure(paths, &without).unwrap();
    assert_eq!(setup.refused("webauth").await, NO_PROVIDER);
    assert!(setup.dir.path().exists());
}

#[test]
fn a_client_gets_the_message_that_it_knows() {
    assert!(knows("openurl, webauth", "webauth") && !knows("webauth2", "webauth"));
}
