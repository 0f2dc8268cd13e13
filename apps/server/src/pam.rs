//! Logins by PAM. Each runs in a process of its own, which the runner of programs starts as root and may kill: the program
//! `adit pam-login SERVICE FILE`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use adit_engine::{Identity, auth};
use adit_linux::pam::{self, PamError};
use adit_pki::{GroupName, user_name};
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use adit_runtime::programs::{self, Call, ExitStatus, Program, ScratchFile, Setup};
use zeroize::Zeroizing;

use super::authorizer::{NO_PASSWORD, RegistryAuthorizer, join_groups};
use super::login::{Outcome, shown};
use super::settings::{Login, Settings};
use super::single_sign_on::obstacle;

/// The hidden verb of the process.
const VERB: &str = "pam-login";
/// The exit code if PAM refuses the user.
const REFUSED: u8 = 3;
/// The exit code if PAM cannot decide.
const FAILED: u8 = 4;
/// How long a login may take, also while it waits for others.
const LIMIT: Duration = Duration::from_secs(60);
/// The maximum length of a password, in bytes.
const MAX_PASSWORD: usize = 512;

/// The text for a client if PAM cannot decide.
const UNDECIDED: &str = "the password cannot be checked at the moment: try again later";

/// The path of this program at the start.
static PATH: OnceLock<String> = OnceLock::new();

/// The result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Accepted,
    Refused,
    /// PAM cannot decide, for this reason.
    Failed(String),
}

/// Performs one login if this process was started for it.
pub fn main(arguments: &[OsString]) -> Option<ExitCode> {
    let [_, verb, service, file] = arguments else { return None };
    (verb == VERB).then(|| match login(service, file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "PAM: {error}");
            ExitCode::from(if matches!(error, PamError::Refused(_)) { REFUSED } else { FAILED })
        }
    })
}

fn login(service: &OsString, file: &OsString) -> Result<(), PamError> {
    let failed = |why: &str| PamError::Failed(why.to_owned());
    let service = service.to_str().ok_or_else(|| failed("the service is not text"))?;
    let text =
        fs::read(file).map(Zeroizing::new).map_err(|error| PamError::Failed(error.to_string()))?;
    let text = std::str::from_utf8(&text).map_err(|_| failed("the file is not text"))?;
    // The password may contain newlines.
    let mut lines = text.splitn(3, '\n');
    let (Some(user), Some(host), Some(password)) = (lines.next(), lines.next(), lines.next())
    else {
        return Err(failed("the file is incomplete"));
    };
    pam::authenticate(service, user, password, host)
}

/// Returns what the runner of programs may run, if users log in by PAM.
pub(super) fn setup(paths: &Paths, settings: &Settings) -> Result<Option<Setup>, Fault> {
    if !settings.login.uses_pam() {
        return Ok(None);
    }
    check_build(settings.login, pam::SUPPORTED)?;
    Ok(Some(Setup {
        programs: [program(&settings.pam_service)?].into(),
        temporary: paths.run.clone(),
        ..Setup::default()
    }))
}

/// Refuses a login by PAM in a build that cannot load PAM.
fn check_build(login: Login, loads_pam: bool) -> Result<(), Fault> {
    if loads_pam {
        return Ok(());
    }
    Err(Fault::operator(format!(
        "login = \"{}\": this build of adit is static and cannot load PAM; install one that is not, or let users log \
         in with passwords of their own (login = \"certificate+password\")",
        login.name()
    )))
}

/// Returns this program with the arguments for a login. The path is that of the start, because the file may be replaced by
/// a newer version later.
fn program(service: &str) -> Result<Program, Fault> {
    let path = match PATH.get() {
        Some(path) => path,
        None => {
            let own = std::env::current_exe().map_err(|error| {
                Fault::environment(format!("cannot find this program: {error}"))
            })?;
            let path = own.to_str().map(ToOwned::to_owned);
            let path = path.ok_or_else(|| Fault::environment("the program's path is not text"))?;
            PATH.get_or_init(|| path)
        }
    };
    Ok(Program { path: path.clone(), args: vec![VERB.to_owned(), service.to_owned()] })
}

impl RegistryAuthorizer {
    /// Decides about a client whose certificate, if it needs one, has been accepted with these parameters.
    pub(super) async fn by_pam(
        self,
        identity: Identity,
        params: auth::ClientParams,
    ) -> auth::Response {
        let (Some(user), Some(password)) = (identity.username, identity.password) else {
            return auth::Response::Reject(NO_PASSWORD.into());
        };
        let name = shown(&user);
        if user_name(&user).is_err() {
            let why = format!("user {name}: the name is not allowed for users here");
            return auth::Response::Reject(why.into());
        }
        if let Err(error) = self.logins.begin(identity.address, &user) {
            return auth::Response::Later(error.to_string());
        }
        let service = self.pam_service();
        let answer = ask(&service, &user, &password, identity.address).await;
        self.logins.ended(
            identity.address,
            &user,
            match answer {
                Answer::Accepted => Outcome::Accepted,
                Answer::Refused => Outcome::Failed,
                Answer::Failed(_) => Outcome::Withdrawn,
            },
        );
        match answer {
            Answer::Accepted => {}
            Answer::Refused => {
                return auth::Response::Reject(format!("user {name}: PAM refuses the user").into());
            }
            Answer::Failed(why) => {
                tracing::warn!("user {name}: {why}");
                return auth::Response::Later(UNDECIDED.into());
            }
        }
        let client = identity.common_name;
        let admitted =
            tokio::task::spawn_blocking(move || self.with_groups(&user, &client, params));
        match admitted.await {
            Ok(Ok(params)) => auth::Response::Accept(params),
            Ok(Err(reason)) => auth::Response::Reject(format!("user {name}: {reason}").into()),
            Err(error) => {
                auth::Response::Reject(format!("the check of the user failed: {error}").into())
            }
        }
    }

    /// Adds the groups of a user who is also registered here, or returns why the user is refused. It may block.
    fn with_groups(
        &self,
        user: &str,
        client: &str,
        mut params: auth::ClientParams,
    ) -> Result<auth::ClientParams, String> {
        let users = self.users().map_err(|fault| format!("the users cannot be read: {fault}"))?;
        if let Some(user) = users.get(user) {
            if let Some(reason) = obstacle(user, client) {
                return Err(reason.into());
            }
            join_groups(&mut params.groups, user.groups.iter().map(GroupName::as_str));
        }
        Ok(params)
    }
}

/// Asks PAM about a user. No other client waits for the answer.
async fn ask(service: &str, user: &str, password: &str, address: Option<IpAddr>) -> Answer {
    if password.is_empty() || password.len() > MAX_PASSWORD || password.contains('\0') {
        return Answer::Refused;
    }
    let program = match program(service) {
        Ok(program) => program,
        Err(fault) => return Answer::Failed(fault.to_string()),
    };
    let host = address.map(|address| address.to_canonical().to_string()).unwrap_or_default();
    let mut content = Zeroizing::new(Vec::with_capacity(1024));
    for part in [user, "\n", &host, "\n", password] {
        content.extend_from_slice(part.as_bytes());
    }
    let call = Call {
        program,
        args: Vec::new(),
        env: Vec::new(),
        files: vec![ScratchFile::argument(Some(content))],
        timeout: Some(LIMIT),
    };
    match programs::run(call).await.status {
        ExitStatus::Code(0) => Answer::Accepted,
        ExitStatus::Code(REFUSED) => Answer::Refused,
        ExitStatus::Code(_) => Answer::Failed("PAM cannot decide; the log has its reason".into()),
        ExitStatus::Signal(signal) => {
            Answer::Failed(format!("a module of PAM crashed: signal {signal}"))
        }
        ExitStatus::TimedOut => {
            Answer::Failed(format!("PAM did not answer within {} s", LIMIT.as_secs()))
        }
        ExitStatus::NotStarted(why) => Answer::Failed(format!("PAM was not asked: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::server;

    #[test]
    fn only_a_server_with_pam_runs_its_own_program_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, mut settings) = server(&dir);
        assert_eq!(setup(&paths, &settings).unwrap(), None);
        for login in [Login::Pam, Login::CertificatePam] {
            settings.login = login;
            let setup = setup(&paths, &settings).unwrap().unwrap();
            let programs: Vec<&Program> = setup.programs.iter().collect();
            assert_eq!(programs.len(), 1);
            assert_eq!(programs[0].args, ["pam-login", "adit"]);
            assert!(!setup.variables.permit("LD_PRELOAD", "x"));
        }
    }

    #[test]
    fn a_static_build_refuses_pam_by_name() {
        for login in [Login::Pam, Login::CertificatePam] {
            check_build(login, true).unwrap();
            let refusal = check_build(login, false).unwrap_err().to_string();
            let name = format!("login = \"{}\"", login.name());
            assert!(refusal.starts_with(&name) && refusal.contains("static"), "{refusal}");
        }
    }

    #[test]
    fn other_command_lines_are_no_logins() {
        let of = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        for line in
            ["adit", "adit status", "adit pam-login", "adit pam-login adit", "adit run adit x"]
        {
            assert!(main(&of(line)).is_none(), "{line}");
        }
        assert!(main(&of("adit pam-login adit /nonexistent")).is_some());
    }

    #[tokio::test]
    async fn passwords_that_no_user_has_are_not_asked_about() {
        for password in ["", "a\0b", &"x".repeat(MAX_PASSWORD + 1)] {
            assert_eq!(ask("adit", "alice", password, None).await, Answer::Refused);
        }
        // Without a runner nothing is asked either.
        assert!(matches!(ask("adit", "alice", "x", None).await, Answer::Failed(_)));
    }
}
