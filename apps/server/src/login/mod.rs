//! Logins of users with passwords and one-time codes.

mod limits;
mod oidc;
mod sso_logins;
mod tokens;
mod used_codes;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use adit_pki::{BadCredentials, Credentials, PasswordHash, User, UserState};
use adit_runtime::clock;
use adit_runtime::control::LoginReport;
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::init::pki_fault;
use limits::LoginLimits;
pub(super) use oidc::{DeviceLogin, Provider, SsoError, SsoUser};
pub(super) use sso_logins::{SsoLogin, SsoLogins};
pub(super) use tokens::Tokens;
use used_codes::CodeUse;
pub(super) use used_codes::UsedCodes;

/// The maximum number of passwords that are verified at the same time. Each needs 19 MiB and a core for tens of
/// milliseconds; half of the cores stay free for packets.
const MAX_VERIFICATIONS: usize = 4;
/// The maximum number of logins that wait for their verification. The last one waits about half a minute, less than the time
/// that a handshake may take.
const MAX_WAITING: usize = 1024;

/// All users by name.
pub(super) type Users = Arc<HashMap<String, User>>;

/// How a login ended, for the limits and the counters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    Failed,
    /// It says nothing about the user.
    Withdrawn,
}

/// Verifies logins, and limits the failed ones.
#[derive(Debug)]
pub(super) struct Logins {
    used: UsedCodes,
    tokens: Tokens,
    limits: Mutex<LoginLimits>,
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// An unknown user's password is verified against this hash.
    no_user: PasswordHash,
    accepted: AtomicU64,
    failed: AtomicU64,
    paused: AtomicU64,
    busy: AtomicU64,
}

/// A login as a client sent it.
pub(super) struct Attempt {
    /// The user name.
    pub(super) user: String,
    /// The password field, which may contain a code.
    pub(super) password: Zeroizing<String>,
    /// The name in the client's certificate; empty without one.
    pub(super) client: String,
    /// The client's address.
    pub(super) address: Option<IpAddr>,
    /// Whether a one-time code is required of every user.
    pub(super) code_required: bool,
}

/// The reason why a login is refused.
#[derive(Debug)]
pub(super) enum LoginError {
    /// Too many logins failed; the client may try again after this time.
    Paused(Duration),
    /// Too many logins wait for their verification.
    Busy,
    /// The login is not valid.
    Refused(Refusal),
    /// The users cannot be read, or the verification failed. No user may log in.
    Broken(String),
}

/// The reason why a login is not valid. It is logged, and never sent to the client.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Malformed(BadCredentials),
    NoSuchUser,
    WrongPassword,
    Disabled,
    OtherClient,
    NoCertificate,
    CodeMissing,
    CodeNotSetUp,
    CodeWrong,
    CodeUsed,
    CodeNotRecorded,
    TokenInvalid,
}

/// A user who has logged in.
#[derive(Debug)]
pub(super) struct LoggedIn {
    /// The user.
    pub(super) user: User,
    /// The token with which the client connects again, if the user has codes.
    pub(super) token: Option<Zeroizing<String>>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Malformed(why) => return write!(f, "{why}"),
            Self::NoSuchUser => "no such user",
            Self::WrongPassword => "wrong password",
            Self::Disabled => "the user is disabled",
            Self::OtherClient => "the user may not use this client's certificate",
            Self::NoCertificate => {
                "the user is bound to certificates, and the server asks for none"
            }
            Self::CodeMissing => "the one-time code is missing",
            Self::CodeNotSetUp => "a one-time code is required, and the user has none set up",
            Self::CodeWrong => "wrong one-time code; are the clocks right?",
            Self::CodeUsed => "the one-time code was used before",
            Self::CodeNotRecorded => "the use of the recovery code cannot be recorded",
            Self::TokenInvalid => "the token from the last login is not valid any more",
        };
        f.write_str(text)
    }
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused(pause) => {
                let seconds = pause.as_secs().saturating_add(u64::from(pause.subsec_nanos() > 0));
                write!(f, "too many failed logins: try again in {seconds} s")
            }
            Self::Busy => f.write_str("too many logins at the same time: try again later"),
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::Broken(why) => f.write_str(why),
        }
    }
}

impl Logins {
    pub(super) fn open(paths: &Paths) -> Result<Self, Fault> {
        let cores = available_parallelism().map_or(1, usize::from);
        Ok(Self {
            used: UsedCodes::open(paths),
            tokens: Tokens::open(paths)?,
            limits: Mutex::default(),
            slots: Arc::new(Semaphore::new((cores / 2).clamp(1, MAX_VERIFICATIONS))),
            waiting: AtomicUsize::new(0),
            no_user: PasswordHash::of_no_user().map_err(pki_fault)?,
            accepted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            paused: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        })
    }

    /// Checks a login. `users` reads the current users, on a thread that may block.
    pub(super) async fn check(
        self: &Arc<Self>,
        attempt: Attempt,
        users: impl FnOnce() -> Result<Users, Fault> + Send + 'static,
    ) -> Result<LoggedIn, LoginError> {
        let (address, name) = (attempt.address, attempt.user.clone());
        self.begin(address, &name)?;
        let result = self.verify_in_turn(attempt, users).await;
        let outcome = match &result {
            Ok(_) => Outcome::Accepted,
            Err(LoginError::Refused(_)) => Outcome::Failed,
            Err(_) => Outcome::Withdrawn,
        };
        self.ended(address, &name, outcome);
        result
    }

    /// Begins an attempt under a name, unless there is a pause. It must end with [`Self::ended`].
    pub(super) fn begin(&self, address: Option<IpAddr>, name: &str) -> Result<(), LoginError> {
        self.limits().begin(clock::now(), address, name).map_err(|pause| {
            self.paused.fetch_add(1, Relaxed);
            LoginError::Paused(pause)
        })
    }

    /// Ends an attempt.
    pub(super) fn ended(&self, address: Option<IpAddr>, name: &str, outcome: Outcome) {
        match outcome {
            Outcome::Accepted => {
                self.accepted.fetch_add(1, Relaxed);
                self.limits().succeeded(clock::now(), address, name);
            }
            Outcome::Failed => {
                self.failed.fetch_add(1, Relaxed);
            }
            Outcome::Withdrawn => {
                self.busy.fetch_add(1, Relaxed);
                self.limits().withdrawn(clock::now(), address, name);
            }
        }
    }

    /// Returns the key of the tokens.
    pub(super) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Waits for a free place, and verifies the login on a thread that may block.
    async fn verify_in_turn(
        self: &Arc<Self>,
        attempt: Attempt,
        users: impl FnOnce() -> Result<Users, Fault> + Send + 'static,
    ) -> Result<LoggedIn, LoginError> {
        let Some(waiting) = Waiting::enter(&self.waiting) else { return Err(LoginError::Busy) };
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        let slot = slot.map_err(|_| LoginError::Busy)?;
        drop(waiting);
        let this = Arc::clone(self);
        let verified = tokio::task::spawn_blocking(move || {
            // The place stays taken until the work ends, even if the client has gone meanwhile.
            let _slot = slot;
            let users = users().map_err(|fault| {
                LoginError::Broken(format!("the users cannot be read: {fault}"))
            })?;
            let now = clock::unix_time().0;
            let user = users.get(&attempt.user);
            let since = this.verify(user, &attempt, now).map_err(LoginError::Refused)?;
            let user = user.cloned().ok_or(LoginError::Refused(Refusal::NoSuchUser))?;
            let token = user.totp.is_some();
            let of_user = (user.name.as_str(), user.revision);
            let token = token.then(|| this.tokens.issue(of_user, &attempt.client, since));
            Ok(LoggedIn { user, token })
        });
        verified.await.unwrap_or_else(|error| {
            Err(LoginError::Broken(format!("the password check failed: {error}")))
        })
    }

    /// Verifies a login at `now` (seconds since 1970). Returns the time of the login, which for a token is earlier.
    fn verify(&self, user: Option<&User>, attempt: &Attempt, now: u64) -> Result<u64, Refusal> {
        if Tokens::is_token(&attempt.password) {
            let revision = user.map(|user| user.revision);
            let of_user = (attempt.user.as_str(), revision);
            let issued = self.tokens.verify(&attempt.password, of_user, &attempt.client, now);
            let (user, issued) = user.zip(issued).ok_or(Refusal::TokenInvalid)?;
            admitted(user, attempt)?;
            return Ok(issued);
        }
        self.verify_password(user, attempt, now).map(|()| now)
    }

    /// Verifies a password and a code. Each login computes one hash, whether the user exists or not, so that the time does
    /// not tell which names are known.
    fn verify_password(
        &self,
        user: Option<&User>,
        attempt: &Attempt,
        now: u64,
    ) -> Result<(), Refusal> {
        let has_codes = user.is_some_and(|user| user.totp.is_some());
        let sent = Credentials::parse(&attempt.password, has_codes).map_err(Refusal::Malformed)?;
        let hash = user.map_or(&self.no_user, |user| &user.password);
        let correct = hash.verify(&sent.password);
        let user = user.ok_or(Refusal::NoSuchUser)?;
        if !correct {
            return Err(Refusal::WrongPassword);
        }
        admitted(user, attempt)?;
        match (has_codes, &sent.code) {
            (true, Some(code)) => match self.used.redeem(user, code, now) {
                CodeUse::Accepted => Ok(()),
                CodeUse::Used => Err(Refusal::CodeUsed),
                CodeUse::Wrong => Err(Refusal::CodeWrong),
                CodeUse::NotRecorded => Err(Refusal::CodeNotRecorded),
            },
            (true, None) => Err(Refusal::CodeMissing),
            (false, _) => Ok(()),
        }
    }

    /// Returns the counters for `adit status`.
    pub(super) fn report(&self) -> LoginReport {
        LoginReport {
            accepted: self.accepted.load(Relaxed),
            failed: self.failed.load(Relaxed),
            paused: self.paused.load(Relaxed),
            busy: self.busy.load(Relaxed),
            limits_dropped: self.limits().dropped(),
        }
    }

    fn limits(&self) -> MutexGuard<'_, LoginLimits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks whether a user may log in, apart from the password and the code.
fn admitted(user: &User, attempt: &Attempt) -> Result<(), Refusal> {
    if user.state == UserState::Disabled {
        return Err(Refusal::Disabled);
    }
    if !user.may_use(&attempt.client) {
        let bare = attempt.client.is_empty();
        return Err(if bare { Refusal::NoCertificate } else { Refusal::OtherClient });
    }
    if attempt.code_required && user.totp.is_none() {
        return Err(Refusal::CodeNotSetUp);
    }
    Ok(())
}

/// A place in the queue of logins. It is released on drop.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(count: &'a AtomicUsize) -> Option<Self> {
        let enter = |count: usize| (count < MAX_WAITING).then(|| count.saturating_add(1));
        count.fetch_update(Relaxed, Relaxed, enter).ok().map(|_| Self(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Returns a user name as the log shows it.
pub(super) fn shown(user: &str) -> String {
    adit_runtime::log::clean(&user.chars().take(64).collect::<String>())
}

/// Parses any bytes as what a provider sends, for fuzzing.
#[doc(hidden)]
pub fn fuzz_single_sign_on(bytes: &[u8]) {
    oidc::fuzz(bytes);
}

#[cfg(test)]
mod tests;
