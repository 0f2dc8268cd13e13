use std::fs;
use std::net::TcpListener;

use adit_testbed::identity_provider::{Approval, Behaviour, IdentityProvider, Mistake};
use serde_json::json;

use super::*;
use crate::testing::folders;

struct Setup {
    _dir: tempfile::TempDir,
    there: IdentityProvider,
    paths: Paths,
    provider: Provider,
}

impl Setup {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut OidcSettings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = folders(&dir);
        let there = IdentityProvider::start(TcpListener::bind("127.0.0.1:0").unwrap());
        fs::write(paths.config.join("ca.pem"), there.certificate()).unwrap();
        fs::write(paths.config.join("secret"), "s3cret value&\n").unwrap();
        let mut settings = OidcSettings::new(there.issuer(), "adit");
        settings.ca_file = Some("ca.pem".into());
        change(&mut settings);
        let provider = Provider::open(&paths, &settings).unwrap();
        Self { _dir: dir, there, paths, provider }
    }

    fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        self.there.change(change);
    }

    /// Lets the user log in, and returns the user. The questions do not wait.
    async fn user(&self) -> Result<SsoUser, SsoError> {
        self.change(|behaviour| behaviour.approval = Approval::Approved);
        let login = self.provider.begin().await?;
        match self.provider.poll(&login).await.unwrap().unwrap() {
            Poll::LoggedIn(token) => self.provider.user(&login.metadata, &token).await,
            other => panic!("{other:?}"),
        }
    }

    async fn begun(&self) -> DeviceLogin {
        self.provider.begin().await.unwrap()
    }
}

fn alice(groups: &[&str]) -> SsoUser {
    let groups = groups.iter().map(ToString::to_string).collect();
    SsoUser { name: "alice".into(), groups }
}

#[tokio::test]
async fn a_user_logs_in_after_some_questions() {
    let setup = Setup::new();
    setup.change(|behaviour| behaviour.claims = json!({ "groups": ["/staff", "ops"] }));
    let login = setup.begun().await;
    assert_eq!(login.url(), format!("{}/go?login=1", setup.there.issuer()));
    assert_eq!((login.code(), login.limit()), (None, Duration::from_secs(120)));
    let approve = async {
        while setup.there.requests("/token") < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        setup.change(|behaviour| behaviour.approval = Approval::Approved);
    };
    let (user, ()) = tokio::join!(setup.provider.wait(&login), approve);
    assert_eq!(user, Ok(alice(&["staff", "ops"])));
    // Metadata and keys are fetched once.
    assert_eq!(setup.user().await, Ok(alice(&["staff", "ops"])));
    for path in ["/.well-known/openid-configuration", "/keys"] {
        assert_eq!(setup.there.requests(path), 1, "{path}");
    }
    assert_eq!(setup.provider.check().await, Ok(1));
}

/// In each case everything but one is right.
#[tokio::test]
async fn each_check_of_a_token_refuses_alone() {
    let setup = Setup::new();
    let (issuer, now) = (setup.there.issuer().to_owned(), clock::unix_time().0);
    for claims in [
        json!({}),
        json!({ "aud": ["adit", "other"], "azp": "adit" }),
        json!({ "exp": now - 30 }),
        json!({ "nbf": now + 30 }),
    ] {
        setup.change(|behaviour| behaviour.claims = claims.clone());
        assert!(setup.user().await.is_ok(), "{claims}");
    }
    let refused = async |change: &dyn Fn(&mut Behaviour)| {
        setup.change(|behaviour| {
            *behaviour = Behaviour::default();
            change(behaviour);
        });
        match setup.user().await {
            Err(SsoError::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    for claims in [
        json!({ "iss": format!("{issuer}/other") }),
        json!({ "iss": null }),
        json!({ "aud": "other" }),
        json!({ "aud": null }),
        json!({ "aud": ["adit", "other"] }),
        json!({ "azp": "other" }),
        json!({ "exp": now - 3600 }),
        json!({ "exp": null }),
        json!({ "nbf": now + 3600 }),
        json!({ "sub": null }),
    ] {
        let why = refused(&|behaviour| behaviour.claims = claims.clone()).await;
        assert!(why.contains("the ID token is not valid"), "{claims}: {why}");
    }
    for head in [
        json!({ "alg": "none" }),
        json!({ "alg": "HS256" }),
        json!({ "alg": "RS384" }),
        json!({ "alg": "ES256" }),
        json!({ "kid": "other" }),
    ] {
        let why = refused(&|behaviour| behaviour.head = head.clone()).await;
        assert!(why.contains("the ID token is not valid"), "{head}: {why}");
    }
    let why = refused(&|behaviour| behaviour.wrong_signature = true).await;
    assert!(why.contains("the ID token is not valid"), "{why}");
    // Wrong tokens do not make the server fetch the keys each time.
    assert_eq!(setup.there.requests("/keys"), 1);
    setup.change(|behaviour| {
        *behaviour = Behaviour { head: json!({ "kid": null }), ..Behaviour::default() };
    });
    assert!(setup.user().await.is_ok(), "the name of the key may be missing");
}

/// An attacker who knows the public key cannot use it as the secret of an HMAC.
#[tokio::test]
async fn a_public_key_is_no_secret() {
    let keys = json!({ "keys": [{ "kty": "oct", "kid": "a", "k": "c2VjcmV0" }] });
    let keys = KeySet::parse(keys.to_string().as_bytes()).unwrap();
    let claims = json!({ "iss": "i", "aud": "adit", "sub": "s", "exp": u32::MAX });
    let head = jsonwebtoken::Header { kid: Some("a".into()), ..jsonwebtoken::Header::default() };
    let key = jsonwebtoken::EncodingKey::from_secret(b"secret");
    let token = jsonwebtoken::encode(&head, &claims, &key).unwrap();
    let error = keys.verify(&token, "i", "adit").unwrap_err().to_string();
    assert!(error.contains("HS256"), "{error}");
}

#[tokio::test]
async fn a_new_key_of_the_provider_is_fetched() {
    let setup = Setup::new();
    assert!(setup.user().await.is_ok());
    setup.there.rotate_key();
    assert!(matches!(setup.user().await, Err(SsoError::Refused(_))), "not so soon again");
    if let Some(known) = setup.provider.keys.lock().await.as_mut() {
        known.at = known.at - KEYS_AGAIN;
    }
    assert!(setup.user().await.is_ok());
    assert_eq!(setup.there.requests("/keys"), 2);
}

#[tokio::test]
async fn a_login_ends_without_a_user() {
    let setup = Setup::new();
    for (approval, error) in
        [(Approval::Denied, SsoError::Denied), (Approval::Expired, SsoError::Expired)]
    {
        setup.change(|behaviour| behaviour.approval = approval);
        let login = setup.begun().await;
        assert_eq!(setup.provider.wait(&login).await, Err(error));
    }
    setup.change(|behaviour| {
        behaviour.approval = Approval::Waiting;
        behaviour.lifetime = 2;
    });
    let login = setup.begun().await;
    assert_eq!(setup.provider.wait(&login).await, Err(SsoError::Expired));
    setup.change(|behaviour| behaviour.lifetime = 86_400);
    assert_eq!(setup.begun().await.limit(), LONGEST_LOGIN);
}

#[tokio::test]
async fn questions_slow_down_when_the_provider_says_so() {
    let setup = Setup::new();
    setup.change(|behaviour| {
        (behaviour.approval, behaviour.slow_down) = (Approval::Approved, 1);
    });
    let login = setup.begun().await;
    let before = std::time::Instant::now();
    assert!(setup.provider.wait(&login).await.is_ok());
    // One second, and then six.
    assert!(before.elapsed() >= Duration::from_secs(7));
    assert_eq!(setup.there.requests("/token"), 2);
}

/// A provider that misbehaves costs a bounded time and memory, and no login succeeds.
#[tokio::test]
async fn mistakes_of_the_provider_are_errors() {
    for (mistake, said) in [
        (Mistake::Redirect, "redirects"),
        (Mistake::Huge, "cannot be read"),
        (Mistake::Unavailable, "503"),
        (Mistake::Nonsense, "metadata cannot be read"),
    ] {
        let setup = Setup::new();
        setup.change(|behaviour| behaviour.mistake = Some(mistake));
        let Err(SsoError::Provider(why)) = setup.provider.begin().await else {
            panic!("{mistake:?}");
        };
        assert!(why.contains(said), "{mistake:?}: {why}");
        assert_eq!(setup.there.log().len(), 1, "{mistake:?}: {:?}", setup.there.log());
    }
    let setup = Setup::new();
    let login = setup.begun().await;
    setup.change(|behaviour| behaviour.mistake = Some(Mistake::Nonsense));
    assert!(matches!(setup.provider.wait(&login).await, Err(SsoError::Provider(_))));
    // A short absence is waited out.
    setup.change(|behaviour| behaviour.mistake = Some(Mistake::Unavailable));
    let login = {
        setup.change(|behaviour| behaviour.mistake = None);
        let login = setup.begun().await;
        setup.change(|behaviour| behaviour.mistake = Some(Mistake::Unavailable));
        login
    };
    let recover = async {
        let before = setup.there.requests("/token");
        while setup.there.requests("/token") == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        setup.change(|behaviour| {
            (behaviour.mistake, behaviour.approval) = (None, Approval::Approved);
        });
    };
    let (user, ()) = tokio::join!(setup.provider.wait(&login), recover);
    assert_eq!(user, Ok(alice(&[])));
}

#[tokio::test]
async fn a_silent_provider_is_not_waited_for() {
    let mut setup = Setup::new();
    setup.provider.http.limit = Duration::from_millis(300);
    setup.change(|behaviour| behaviour.mistake = Some(Mistake::Silence));
    let Err(SsoError::Provider(why)) = setup.provider.begin().await else { panic!("an answer") };
    assert!(why.contains("no answer"), "{why}");
}

#[tokio::test]
async fn a_provider_that_is_away_or_has_another_certificate_is_named_in_the_error() {
    let setup = Setup::new();
    let other = IdentityProvider::start(TcpListener::bind("127.0.0.1:0").unwrap());
    fs::write(setup.paths.config.join("ca.pem"), other.certificate()).unwrap();
    let provider = Provider::open(&setup.paths, &setup.provider.settings).unwrap();
    let Err(SsoError::Provider(why)) = provider.begin().await else {
        panic!("another certificate")
    };
    assert!(why.contains("certificate"), "{why}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings =
        OidcSettings { issuer: format!("https://{free}"), ..setup.provider.settings.clone() };
    let provider = Provider::open(&setup.paths, &settings).unwrap();
    let why = provider.check().await.unwrap_err();
    assert!(why.contains(&free.to_string()), "{why}");
    let settings = OidcSettings { issuer: "https://no-such-host.invalid".into(), ..settings };
    let provider = Provider::open(&setup.paths, &settings).unwrap();
    assert!(provider.check().await.unwrap_err().contains("no-such-host.invalid"));
}

#[tokio::test]
async fn the_secret_goes_where_the_provider_wants_it() {
    let file = |settings: &mut OidcSettings| settings.client_secret_file = Some("secret".into());
    let encoded = "s3cret%20value%26";
    for methods in
        [json!({}), json!({ "token_endpoint_auth_methods_supported": ["client_secret_post"] })]
    {
        let setup = Setup::with(file);
        setup.change(|behaviour| {
            (behaviour.secret, behaviour.metadata) = (Some(encoded.into()), methods.clone());
        });
        assert!(setup.user().await.is_ok(), "{methods}: {:?}", setup.there.log());
        fs::write(setup.paths.config.join("secret"), "wrong").unwrap();
        assert!(!setup.provider.is_of(&setup.paths, &setup.provider.settings));
        let provider = Provider::open(&setup.paths, &setup.provider.settings).unwrap();
        let Err(SsoError::Provider(why)) = provider.begin().await else { panic!("{methods}") };
        assert!(why.contains("invalid_client"), "{why}");
        fs::write(setup.paths.config.join("secret"), "\n").unwrap();
        let error = Provider::open(&setup.paths, &setup.provider.settings).unwrap_err();
        assert!(error.to_string().contains("first line"), "{error}");
    }
}

#[test]
fn the_claims_must_describe_a_user() {
    let settings = OidcSettings::new("https://sso.example.net", "adit");
    let of =
        |settings: &OidcSettings, claims: Value| user_of(claims.as_object().unwrap(), settings);
    let user = of(&settings, json!({ "preferred_username": "alice", "groups": "staff" }));
    assert_eq!(user.unwrap(), alice(&["staff"]));
    for (claims, why) in [
        (json!({}), "no claim preferred_username"),
        (json!({ "preferred_username": 7 }), "no claim"),
        (json!({ "preferred_username": "" }), "not allowed"),
        (json!({ "preferred_username": "a b" }), "not allowed"),
        (json!({ "preferred_username": "a\nb" }), "not allowed"),
        (json!({ "preferred_username": "../x" }), "not allowed"),
    ] {
        let error = of(&settings, claims.clone()).unwrap_err();
        assert!(error.contains(why) && !error.contains('\n'), "{claims}: {error}");
    }
    let email = OidcSettings { user_claim: "email".into(), ..settings.clone() };
    let address = |verified: Value| {
        of(&email, json!({ "email": "alice@example.net", "email_verified": verified }))
    };
    assert_eq!(address(json!(true)).unwrap().name, "alice@example.net");
    assert!(address(json!(false)).unwrap_err().contains("not verified"));

    let names = json!(["/vpn", "vpn", "a b", 7, "", "x\ny", "ops"]);
    let claims = json!({ "preferred_username": "alice", "groups": names });
    assert_eq!(of(&settings, claims.clone()).unwrap().groups, ["vpn", "ops"]);
    let needed =
        |group: &str| OidcSettings { required_group: Some(group.into()), ..settings.clone() };
    assert!(of(&needed("ops"), claims.clone()).is_ok());
    assert!(of(&needed("staff"), claims).unwrap_err().contains("not in the group staff"));
    let many: Vec<String> = (0..40).map(|n| format!("g{n}")).collect();
    let claims = json!({ "preferred_username": "alice", "groups": many });
    assert_eq!(of(&needed("g39"), claims).unwrap().groups.len(), MAX_GROUPS);
}

#[tokio::test]
async fn logins_that_wait_are_bounded_and_a_client_has_one() {
    let setup = Setup::new();
    let first = setup.provider.enter("laptop").unwrap();
    let second = setup.provider.enter("laptop").unwrap();
    first.replaced().await;
    drop(first);
    let others: Vec<PendingLogin<'_>> =
        (1..MAX_PENDING).map(|n| setup.provider.enter(&format!("c{n}")).unwrap()).collect();
    assert!(setup.provider.enter("one more").is_none());
    assert!(setup.provider.enter("laptop").is_some(), "it replaces its own");
    drop((second, others));
    assert!(setup.provider.pending.lock().unwrap().is_empty());
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let setup = Setup::new();
    fs::write(setup.paths.config.join("ca.pem"), "nothing").unwrap();
    let error = Provider::open(&setup.paths, &setup.provider.settings).unwrap_err();
    assert!(error.to_string().contains("no certificate in PEM"), "{error}");
    let settings = OidcSettings {
        client_secret_file: Some("missing".into()),
        ..setup.provider.settings.clone()
    };
    let error = Provider::open(&setup.paths, &settings).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
}
