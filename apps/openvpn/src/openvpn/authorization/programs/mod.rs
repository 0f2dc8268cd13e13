//! The programs that the configuration runs for a server's clients, as a check.

mod client_connect;
mod password;
mod pending_file;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_engine::auth::{ClientParams, Rejection};
use adit_engine::command::Counters;
use adit_openvpn::config::{self, ClientRules, Hooks, Options};
use adit_runtime::programs::{self, Call, ExitStatus, Finished, ScratchFile};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::{
    AddressChange, ChangeKind, Check, ClientFacts, DoneFuture, ParamsFuture, Pending, Verdict,
    VerdictFuture, printable_name,
};
use crate::openvpn::environment::Environment;
use crate::openvpn::scripts::{RUNS_PROGRAMS, forbidden, runnable};
pub(crate) use client_connect::merged;
use password::{OpenPassword, PasswordKey};

/// The time that a program has whose result no client waits for. One that takes longer is killed.
const NOTIFICATION_LIMIT: Duration = Duration::from_secs(60);

/// The maximum number of programs that run at once without a client that waits for them. It leaves most of the
/// runner's places to those with one.
const MAX_NOTIFICATIONS: usize = 32;

/// The lowest `script-security` with which a password may be in a variable.
const PASSWORD_VARIABLES: u8 = 3;

/// The end of a program.
type RunFuture = Pin<Box<dyn Future<Output = Finished> + Send>>;

/// Runs a program.
type Run = dyn Fn(Call) -> RunFuture + Send + Sync;

/// The programs of `tls-verify`, `auth-user-pass-verify`, `client-connect`, `client-disconnect`, `learn-address`,
/// `client-crresponse` and `tls-crypt-v2-verify`.
#[derive(Clone)]
pub(crate) struct ClientPrograms(Arc<Inner>);

struct Inner {
    hooks: Hooks,
    /// Whether a password may be in a variable.
    password_variables: bool,
    /// The rules for what `client-connect` may write.
    rules: ClientRules,
    /// The time that a program has for which a client waits.
    patience: Duration,
    /// The password checks that a program has deferred.
    deferred: Mutex<HashMap<PasswordKey, OpenPassword>>,
    notifications: Semaphore,
    run: Box<Run>,
}

impl ClientPrograms {
    pub(super) fn new(options: &Options, rules: ClientRules, patience: Duration) -> Self {
        let run: Box<Run> = if options.script_security < RUNS_PROGRAMS {
            Box::new(|_| -> RunFuture {
                let refused = Finished { status: forbidden(), files: Vec::new() };
                Box::pin(std::future::ready(refused))
            })
        } else {
            Box::new(|call| -> RunFuture { Box::pin(programs::run(call)) })
        };
        Self::with_runner(options, rules, patience, run)
    }

    fn with_runner(
        options: &Options,
        rules: ClientRules,
        patience: Duration,
        run: Box<Run>,
    ) -> Self {
        Self(Arc::new(Inner {
            hooks: options.hooks.clone(),
            password_variables: options.script_security >= PASSWORD_VARIABLES,
            rules,
            patience,
            deferred: Mutex::default(),
            notifications: Semaphore::new(MAX_NOTIFICATIONS),
            run,
        }))
    }
}

impl Check for ClientPrograms {
    fn verify_key(&self, facts: &Arc<ClientFacts>) -> VerdictFuture {
        let inner = Arc::clone(&self.0);
        let Some(program) = inner.hooks.tls_crypt_v2_verify.clone() else { return not_mine() };
        let Some(metadata) = facts.identity.tls_crypt_v2_metadata.clone() else {
            return not_mine();
        };
        // As in openvpn, the program gets these variables and no others.
        let env = vec![
            ("script_type".to_owned(), "tls-crypt-v2-verify".to_owned()),
            ("metadata_type".to_owned(), metadata.kind.to_string()),
        ];
        let file = ScratchFile::variable("metadata_file", Some(Zeroizing::new(metadata.content)));
        let call = inner.call(&program, Vec::new(), env, vec![file]);
        Box::pin(async move {
            let finished = (inner.run)(call).await;
            with_words(
                "TLS CRYPT V2 VERIFY SCRIPT ERROR",
                judge("tls-crypt-v2-verify", &finished.status),
            )
        })
    }

    fn verify_certificate(&self, facts: &Arc<ClientFacts>, depth: usize) -> VerdictFuture {
        let inner = Arc::clone(&self.0);
        let Some(program) = inner.hooks.tls_verify.clone() else { return not_mine() };
        let Some(certificate) = facts.identity.certificates.get(depth) else { return not_mine() };
        let mut environment = facts.environment.clone();
        environment.set("script_type", "tls-verify");
        let export = inner.hooks.export_cert.as_ref().map(|_| {
            let pem = Zeroizing::new(pem(&certificate.der).into_bytes());
            ScratchFile::variable("peer_cert", Some(pem)).exported()
        });
        let args = vec![depth.to_string(), certificate.subject.clone()];
        let words = format!("VERIFY SCRIPT ERROR: depth={depth}, {}", certificate.subject);
        let files = export.into_iter().collect();
        let call = inner.call(&program, args, environment.pairs(), files);
        Box::pin(async move {
            let finished = (inner.run)(call).await;
            with_words(&words, judge("tls-verify", &finished.status))
        })
    }

    fn password(&self, facts: &Arc<ClientFacts>, pending: &Pending) -> VerdictFuture {
        let inner = Arc::clone(&self.0);
        let Some(hook) = inner.hooks.auth_user_pass_verify.clone() else { return not_mine() };
        let (facts, pending) = (Arc::clone(facts), pending.clone());
        Box::pin(async move { inner.password(&hook, &facts, &pending).await })
    }

    fn connect(&self, facts: &Arc<ClientFacts>, params: ClientParams) -> ParamsFuture {
        let inner = Arc::clone(&self.0);
        let Some(program) = inner.hooks.client_connect.clone() else {
            return Box::pin(std::future::ready(Ok(params)));
        };
        let facts = Arc::clone(facts);
        Box::pin(async move { inner.client_connect(&program, &facts, params).await })
    }

    fn learns(&self) -> bool {
        self.0.hooks.learn_address.is_some()
    }

    fn learn(&self, facts: &Arc<ClientFacts>, change: AddressChange) -> VerdictFuture {
        let inner = Arc::clone(&self.0);
        let Some(program) = inner.hooks.learn_address.clone() else { return not_mine() };
        // As in openvpn, an address that is deleted has no client any more.
        let mut environment = match change.kind {
            ChangeKind::Delete => Environment::default(),
            ChangeKind::Add | ChangeKind::Update => facts.environment.clone(),
        };
        environment.set("script_type", "learn-address");
        let mut args = vec![change.kind.name().to_owned(), change.text()];
        if change.kind != ChangeKind::Delete {
            args.push(printable_name(&facts.identity.common_name));
        }
        let call = inner.call(&program, args, environment.pairs(), Vec::new());
        Box::pin(async move {
            if change.kind == ChangeKind::Delete {
                inner.notify("learn-address", call).await;
                return Verdict::Accept;
            }
            let finished = (inner.run)(call).await;
            judge("learn-address", &finished.status)
        })
    }

    fn disconnected(
        &self,
        facts: &Arc<ClientFacts>,
        traffic: Counters,
        duration: Duration,
    ) -> DoneFuture {
        let inner = Arc::clone(&self.0);
        let Some(program) = inner.hooks.client_disconnect.clone() else {
            return Box::pin(std::future::ready(()));
        };
        let mut environment = facts.environment.clone();
        environment.set("script_type", "client-disconnect");
        environment.traffic(traffic, duration);
        let call = inner.call(&program, Vec::new(), environment.pairs(), Vec::new());
        Box::pin(async move { inner.notify("client-disconnect", call).await })
    }

    fn challenge_response(&self, facts: &Arc<ClientFacts>, text: String) -> DoneFuture {
        let inner = Arc::clone(&self.0);
        let Some(program) = inner.hooks.client_cr_response.clone() else {
            return Box::pin(std::future::ready(()));
        };
        let facts = Arc::clone(facts);
        Box::pin(async move { inner.challenge_response(&program, &facts, text).await })
    }
}

impl Inner {
    /// Creates a call of a program that a client waits for.
    fn call(
        &self,
        program: &config::Program,
        args: Vec<String>,
        env: Vec<(String, String)>,
        files: Vec<ScratchFile>,
    ) -> Call {
        Call { program: runnable(program), args, env, files, timeout: Some(self.patience) }
    }

    /// Runs a program whose result changes nothing.
    async fn notify(&self, directive: &'static str, call: Call) {
        // The semaphore is never closed.
        let _place = self.notifications.acquire().await;
        let call = Call { timeout: Some(NOTIFICATION_LIMIT), ..call };
        let finished = (self.run)(call).await;
        if finished.status != ExitStatus::Code(0) {
            tracing::warn!("WARNING: {}", failure(directive, &finished.status));
        }
    }

    fn deferred(&self) -> MutexGuard<'_, HashMap<PasswordKey, OpenPassword>> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fuzzes the parsers of the files in which programs answer.
pub(super) fn fuzz_answers(bytes: &[u8]) {
    pending_file::fuzz(bytes);
}

/// Returns the verdict of a program by its exit status.
fn judge(directive: &str, status: &ExitStatus) -> Verdict {
    match status {
        ExitStatus::Code(0) => Verdict::Accept,
        failed => Verdict::Reject(failure(directive, failed).into()),
    }
}

/// Describes a failure for the log, in openvpn's words.
fn failure(directive: &str, status: &ExitStatus) -> String {
    format!("Failed running command (--{directive}): {status}")
}

/// Puts openvpn's words, which other programs look for, before the reason.
fn with_words(words: &str, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Reject(Rejection { log, peer }) => {
            Verdict::Reject(Rejection { log: format!("{words}: {log}"), peer })
        }
        other => other,
    }
}

fn not_mine() -> VerdictFuture {
    Box::pin(std::future::ready(Verdict::NotMine))
}

/// Returns a certificate as PEM.
fn pem(der: &[u8]) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let body = STANDARD.encode(der);
    for line in body.as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
