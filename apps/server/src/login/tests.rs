use adit_pki::{RecoveryHash, TotpSecret};

use super::*;

const NOW: u64 = 1_795_000_000;
const PASSWORD: &str = "correct horse";

struct Setup {
    _dir: tempfile::TempDir,
    logins: Arc<Logins>,
    user: User,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        paths.create().unwrap();
        let user = User {
            name: "alice".parse().unwrap(),
            created: 0,
            state: UserState::Active,
            groups: Vec::new(),
            clients: Vec::new(),
            password: PasswordHash::new(PASSWORD).unwrap(),
            totp: None,
            recovery: Vec::new(),
            revision: 0,
            changed: 0,
        };
        Self { logins: Arc::new(Logins::open(&paths).unwrap()), _dir: dir, user }
    }

    fn with_codes() -> Self {
        let mut this = Self::new();
        this.user.totp = Some(TotpSecret::generate().unwrap());
        this
    }

    fn code(&self, now: u64) -> String {
        self.user.totp.as_ref().unwrap().code_at(now)
    }

    fn verify(&self, password: &str) -> Result<(), Refusal> {
        self.logins.verify(Some(&self.user), &attempt(password), NOW).map(drop)
    }

    async fn check(&self, attempt: Attempt) -> Result<LoggedIn, LoginError> {
        let users = HashMap::from([("alice".to_owned(), self.user.clone())]);
        self.logins.check(attempt, move || Ok(Arc::new(users))).await
    }
}

fn attempt(password: &str) -> Attempt {
    Attempt {
        user: "alice".into(),
        password: Zeroizing::new(password.into()),
        client: "laptop".into(),
        address: Some("192.0.2.1".parse().unwrap()),
        code_required: false,
    }
}

/// In each case everything but one is right.
#[test]
fn each_check_of_a_login_refuses_alone() {
    let mut setup = Setup::new();
    assert_eq!(setup.verify(PASSWORD), Ok(()));
    assert_eq!(setup.verify("wrong horse"), Err(Refusal::WrongPassword));
    assert_eq!(setup.verify(""), Err(Refusal::WrongPassword));
    let unknown = setup.logins.verify(None, &attempt(PASSWORD), NOW);
    assert_eq!(unknown, Err(Refusal::NoSuchUser));
    let long = "x".repeat(10_000);
    assert_eq!(setup.verify(&long), Err(Refusal::Malformed(BadCredentials::TooLong)));
    assert_eq!(setup.verify("SCRV1:x"), Err(Refusal::Malformed(BadCredentials::BadAnswer)));

    setup.user.state = UserState::Disabled;
    assert_eq!(setup.verify(PASSWORD), Err(Refusal::Disabled));
    assert_eq!(setup.verify("wrong horse"), Err(Refusal::WrongPassword));
    setup.user.state = UserState::Active;
    setup.user.clients = vec!["phone".parse().unwrap()];
    assert_eq!(setup.verify(PASSWORD), Err(Refusal::OtherClient));
    let bare = Attempt { client: String::new(), ..attempt(PASSWORD) };
    let refused = setup.logins.verify(Some(&setup.user), &bare, NOW);
    assert_eq!(refused, Err(Refusal::NoCertificate));
    setup.user.clients.push("laptop".parse().unwrap());
    assert_eq!(setup.verify(PASSWORD), Ok(()));

    let required = Attempt { code_required: true, ..attempt(PASSWORD) };
    let refused = setup.logins.verify(Some(&setup.user), &required, NOW);
    assert_eq!(refused, Err(Refusal::CodeNotSetUp));
}

#[test]
fn a_code_comes_after_the_password_or_in_the_answer_to_a_challenge() {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let setup = Setup::with_codes();
    let answer = |password: &str, code: &str| {
        format!("SCRV1:{}:{}", STANDARD.encode(password), STANDARD.encode(code))
    };
    assert_eq!(setup.verify(PASSWORD), Err(Refusal::CodeMissing));
    assert_eq!(setup.verify(&answer(PASSWORD, "")), Err(Refusal::CodeMissing));
    assert_eq!(setup.verify(&answer(PASSWORD, "12345")), Err(Refusal::CodeWrong));
    let code = setup.code(NOW - 30);
    // With a wrong password, the code is not used up.
    assert_eq!(setup.verify(&answer("wrong horse", &code)), Err(Refusal::WrongPassword));
    assert_eq!(setup.verify(&answer(PASSWORD, &code)), Ok(()));
    assert_eq!(setup.verify(&answer(PASSWORD, &code)), Err(Refusal::CodeUsed));
    assert_eq!(setup.verify(&format!("{PASSWORD}{}", setup.code(NOW))), Ok(()));
    let far = setup.code(NOW + 600);
    if far != setup.code(NOW + 30) {
        assert_eq!(setup.verify(&format!("{PASSWORD}{far}")), Err(Refusal::CodeWrong));
    }
}

#[test]
fn a_recovery_code_replaces_a_one_time_code_once() {
    let mut setup = Setup::with_codes();
    let code = "abcd-efgh-2345-67zz";
    setup.user.recovery = vec![RecoveryHash::of(code).unwrap()];
    let field = format!("{PASSWORD}{code}");
    assert_eq!(setup.verify(&field), Ok(()));
    assert_eq!(setup.verify(&field), Err(Refusal::CodeUsed));
    let other = format!("{PASSWORD}abcd-efgh-2345-67zy");
    assert_eq!(setup.verify(&other), Err(Refusal::CodeWrong));
}

/// In each case everything but one is right.
#[tokio::test]
async fn a_token_replaces_the_login_until_a_right_of_its_user_ends() {
    let without = Setup::new();
    assert!(without.check(attempt(PASSWORD)).await.unwrap().token.is_none());
    let mut setup = Setup::with_codes();
    let now = clock::unix_time().0;
    let password = format!("{PASSWORD}{}", setup.code(now));
    let first = setup.check(attempt(&password)).await.unwrap().token.unwrap();
    // The token is renewed with the time of the login, so it does not last longer.
    let again = setup.check(attempt(&first)).await.unwrap().token.unwrap();
    assert_eq!(first, again);
    let verify = |user: &User, attempt: &Attempt| {
        setup.logins.verify(Some(user), attempt, clock::unix_time().0).map(drop)
    };
    let token = || attempt(&first);
    assert_eq!(verify(&setup.user, &token()), Ok(()));
    let disabled = User { state: UserState::Disabled, ..setup.user.clone() };
    assert_eq!(verify(&disabled, &token()), Err(Refusal::Disabled));
    let bound = User { clients: vec!["phone".parse().unwrap()], ..setup.user.clone() };
    assert_eq!(verify(&bound, &token()), Err(Refusal::OtherClient));
    let phone = Attempt { client: "phone".into(), ..token() };
    assert_eq!(verify(&setup.user, &phone), Err(Refusal::TokenInvalid));
    let changed = User { revision: 1, ..setup.user.clone() };
    assert_eq!(verify(&changed, &token()), Err(Refusal::TokenInvalid));
    let plain = User { totp: None, ..setup.user.clone() };
    let required = Attempt { code_required: true, ..token() };
    assert_eq!(verify(&plain, &required), Err(Refusal::CodeNotSetUp));
    let unknown = setup.logins.verify(None, &token(), now);
    assert_eq!(unknown, Err(Refusal::TokenInvalid));
    // Wrong tokens are failures like wrong passwords.
    setup.user.revision = 1;
    let refused = setup.check(attempt(&first)).await;
    assert!(matches!(refused, Err(LoginError::Refused(Refusal::TokenInvalid))), "{refused:?}");
    assert_eq!(setup.logins.report().failed, 1);
}

#[tokio::test]
async fn failures_are_counted_and_make_a_pause() {
    let setup = Setup::new();
    assert!(setup.check(attempt(PASSWORD)).await.is_ok());
    for _ in 0..6 {
        let refused = setup.check(attempt("wrong horse")).await;
        assert!(matches!(refused, Err(LoginError::Refused(Refusal::WrongPassword))));
    }
    // The pause of one second may be over by now on a slow machine; more failures extend it.
    let mut paused = setup.check(attempt(PASSWORD)).await;
    while paused.is_ok() {
        for _ in 0..12 {
            let _ = setup.check(attempt("wrong horse")).await;
        }
        paused = setup.check(attempt(PASSWORD)).await;
    }
    let error = paused.unwrap_err();
    assert!(matches!(error, LoginError::Paused(_)), "{error}");
    assert!(error.to_string().contains("try again in"), "{error}");
    let report = setup.logins.report();
    assert!(report.accepted >= 1 && report.failed >= 6 && report.paused >= 1, "{report:?}");
    // Another user is not affected.
    let address = Some("192.0.2.2".parse().unwrap());
    let other = Attempt { user: "bob".into(), address, ..attempt(PASSWORD) };
    let refused = setup.check(other).await;
    assert!(matches!(refused, Err(LoginError::Refused(Refusal::NoSuchUser))), "{refused:?}");
}

#[tokio::test]
async fn logins_beyond_the_queue_are_refused_and_count_as_no_failure() {
    let setup = Setup::new();
    setup.logins.waiting.store(MAX_WAITING, Relaxed);
    for _ in 0..50 {
        assert!(matches!(setup.check(attempt("wrong horse")).await, Err(LoginError::Busy)));
    }
    setup.logins.waiting.store(0, Relaxed);
    assert!(setup.check(attempt(PASSWORD)).await.is_ok());
    assert_eq!(setup.logins.waiting.load(Relaxed), 0);
    assert_eq!((setup.logins.report().busy, setup.logins.report().failed), (50, 0));
}

/// While all places are taken, a login waits, and its place in the queue is released when its client goes.
#[tokio::test]
async fn a_bounded_number_of_logins_is_verified_at_the_same_time() {
    let setup = Setup::new();
    let all = u32::try_from(setup.logins.slots.available_permits()).unwrap();
    assert!((1..=4).contains(&all));
    let taken = Arc::clone(&setup.logins.slots).acquire_many_owned(all).await.unwrap();
    let waits = tokio::time::timeout(Duration::from_millis(50), setup.check(attempt(PASSWORD)));
    assert!(waits.await.is_err());
    assert_eq!(setup.logins.waiting.load(Relaxed), 0);
    drop(taken);
    assert!(setup.check(attempt(PASSWORD)).await.is_ok());
}

#[tokio::test]
async fn without_readable_users_no_user_logs_in() {
    let setup = Setup::new();
    let check = setup.logins.check(attempt(PASSWORD), || Err(Fault::environment("no disk")));
    let error = check.await.unwrap_err();
    assert!(matches!(&error, LoginError::Broken(why) if why.contains("no disk")), "{error}");
}

#[test]
fn a_name_cannot_write_to_the_log_what_it_likes() {
    assert_eq!(shown("alice"), "alice");
    let name = shown("a\nwarning: \u{1b}[2J");
    assert!(!name.contains('\n') && !name.contains('\u{1b}'), "{name}");
    assert!(shown(&"x".repeat(5000)).len() <= 64);
}
