//! `auth-user-pass-verify` and `client-crresponse`.

use std::sync::Arc;

use adit_engine::auth::Rejection;
use adit_openvpn::config::{PasswordProgram, Program};
use adit_runtime::programs::{ExitStatus, Scratch, ScratchFile};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use super::pending_file::{PendingRequest, answer, reason};
use super::{ClientFacts, Inner, Pending, Verdict, failure, printable_name};

/// The exit status of a program that answers later.
const DEFERRED: u8 = 2;

/// The files of a password check that a program has deferred, for the program of `client-crresponse`.
pub(super) struct OpenPassword {
    /// The variables with the paths of the files.
    paths: Vec<(String, String)>,
    /// The failures of the program of `client-crresponse`. If it succeeds, its answer is in the files.
    failures: mpsc::Sender<String>,
}

/// A negotiation: the number of its session, and its key.
pub(super) type PasswordKey = (u64, u8);

fn key(facts: &ClientFacts) -> PasswordKey {
    (facts.identity.session, facts.identity.key_id)
}

/// The files of one check.
struct Files {
    control: Scratch,
    reason: Scratch,
    pending: Scratch,
}

impl Files {
    const NAMES: [&'static str; 3] =
        ["auth_control_file", "auth_failed_reason_file", "auth_pending_file"];

    fn scratch() -> impl Iterator<Item = ScratchFile> {
        Self::NAMES.into_iter().map(|name| ScratchFile::variable(name, None))
    }

    /// Takes the files from the last ones of a finished program.
    fn of(mut files: Vec<Scratch>) -> Option<Self> {
        let pending = files.pop()?;
        let reason = files.pop()?;
        let control = files.pop()?;
        Some(Self { control, reason, pending })
    }

    fn paths(&self) -> Vec<(String, String)> {
        let files = [&self.control, &self.reason, &self.pending];
        let path = |file: &Scratch| file.path().display().to_string();
        Self::NAMES
            .into_iter()
            .zip(files)
            .map(|(name, file)| (name.to_owned(), path(file)))
            .collect()
    }
}

impl Inner {
    pub(super) async fn password(
        &self,
        hook: &PasswordProgram,
        facts: &Arc<ClientFacts>,
        pending: &Pending,
    ) -> Verdict {
        let identity = &facts.identity;
        let username = printable_name(identity.username.as_deref().unwrap_or_default());
        let empty = Zeroizing::default();
        let password = printable(identity.password.as_ref().unwrap_or(&empty));
        let mut environment = facts.environment.clone();
        environment.set("script_type", "user-pass-verify");
        environment.set_international("username", &username);
        let mut env = environment.pairs();
        let mut files = Vec::new();
        if hook.via_file {
            let lines = format!("{username}\n{}\n", *password);
            files.push(ScratchFile::argument(Some(Zeroizing::new(lines.into_bytes()))));
        } else if self.password_variables {
            env.push(("password".to_owned(), password.as_str().to_owned()));
        }
        files.extend(Files::scratch());
        let call = self.call(&hook.program, Vec::new(), env, files);
        let finished = (self.run)(call).await;
        let Some(files) = Files::of(finished.files) else {
            return Verdict::Reject(failure(DIRECTIVE, &finished.status).into());
        };
        match finished.status {
            ExitStatus::Code(0) => Verdict::Accept,
            ExitStatus::Code(DEFERRED) => self.wait_for_answer(files, facts, pending).await,
            failed => {
                let log = failure(DIRECTIVE, &failed);
                Verdict::Reject(Rejection { log, peer: reason(&files.reason.content()) })
            }
        }
    }

    /// Waits until a background process, or the program of `client-crresponse`, has written the answer.
    async fn wait_for_answer(
        &self,
        mut files: Files,
        facts: &Arc<ClientFacts>,
        pending: &Pending,
    ) -> Verdict {
        let key = key(facts);
        let (sender, mut failures) = mpsc::channel(1);
        let open = OpenPassword { paths: files.paths(), failures: sender };
        self.deferred().insert(key, open);
        let _closed = Closed { inner: self, key };
        let mut requested = Vec::new();
        if let Err(rejection) = request(&mut requested, files.pending.content(), facts, pending) {
            return Verdict::Reject(rejection);
        }
        loop {
            if let Some(accepted) = answer(&files.control.content()) {
                if accepted {
                    return Verdict::Accept;
                }
                let log = format!("{DIRECTIVE}: the deferred answer is no");
                return Verdict::Reject(Rejection { log, peer: reason(&files.reason.content()) });
            }
            tokio::select! {
                _ = files.control.changed() => {}
                content = files.pending.changed() => {
                    // A program may still be writing: an incomplete request is not one yet.
                    if PendingRequest::parse(&content).is_ok()
                        && let Err(rejection) = request(&mut requested, content, facts, pending)
                    {
                        return Verdict::Reject(rejection);
                    }
                }
                failure = failures.recv() => match failure {
                    Some(log) => return Verdict::Reject(log.into()),
                    // The sender is in the table until this function returns.
                    None => return Verdict::Reject(format!("{DIRECTIVE}: superseded").into()),
                },
            }
        }
    }

    pub(super) async fn challenge_response(
        &self,
        program: &Program,
        facts: &Arc<ClientFacts>,
        text: String,
    ) {
        let open = self
            .deferred()
            .get(&key(facts))
            .map(|open| (open.paths.clone(), open.failures.clone()));
        let Some((paths, failures)) = open else {
            tracing::debug!("ignored CR_RESPONSE: no deferred check of the password is open");
            return;
        };
        let mut environment = facts.environment.clone();
        environment.set("script_type", "client-crresponse");
        let mut env = environment.pairs();
        env.extend(paths);
        let file = ScratchFile::argument(Some(Zeroizing::new(text.into_bytes())));
        let finished = (self.run)(self.call(program, Vec::new(), env, vec![file])).await;
        if !matches!(finished.status, ExitStatus::Code(0 | DEFERRED)) {
            // The check may have ended meanwhile.
            let _ = failures.send(failure("client-crresponse", &finished.status)).await;
        }
    }
}

const DIRECTIVE: &str = "auth-user-pass-verify";

/// Removes the entry of a deferred check.
struct Closed<'a> {
    inner: &'a Inner,
    key: PasswordKey,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.inner.deferred().remove(&self.key);
    }
}

/// Performs a request for more time, unless it has been performed already.
fn request(
    former: &mut Vec<u8>,
    content: Vec<u8>,
    facts: &ClientFacts,
    pending: &Pending,
) -> Result<(), Rejection> {
    if content.is_empty() || *former == content {
        return Ok(());
    }
    let request = PendingRequest::parse(&content)
        .map_err(|problem| Rejection::from(format!("{DIRECTIVE}: auth_pending_file: {problem}")))?;
    if !request.is_supported(&facts.identity.peer_info) {
        let log = format!(
            "{DIRECTIVE}: the client does not support the method '{}' (IV_SSO)",
            printable_name(&request.method)
        );
        return Err(log.into());
    }
    pending.extend(request.timeout, Some(request.info));
    *former = content;
    Ok(())
}

/// Returns a password without control characters, which openvpn replaces by underscores. A line break in it would
/// forge the next line of a file.
fn printable(password: &str) -> Zeroizing<String> {
    Zeroizing::new(password.chars().map(|c| if c.is_ascii_control() { '_' } else { c }).collect())
}
