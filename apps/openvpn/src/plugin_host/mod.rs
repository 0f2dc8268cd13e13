//! Plugins for openvpn (`plugin`), in a process of their own.
//!
//! ```text
//!   network process: Plugins ──requests, one at a time──► plugin host: the shared objects, one thread calls them
//!                            ◄─results, later answers───  another thread watches the files of deferred answers
//! ```
//!
//! A plugin is foreign code with all rights of its process. The host is another instance of this program, started as
//! root before the network process reads a packet, and holds no keys. It changes to the configured user when openvpn
//! would. If a plugin ends the host, every call that depends on it is refused, and the program ends, as openvpn would.
//! A plugin that blocks delays only the calls of plugins, and each call has a time limit after which it is refused.

mod background;
mod calls;
mod deferred;
mod files;
mod link;
mod process;
mod protocol;
#[cfg(test)]
pub(crate) mod tests;

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use adit_linux::plugin::{self, Kind};
use adit_openvpn::config::Options;
use adit_runtime::fault::Fault;
use tokio::time::{Instant, interval_at};

use self::link::{Event, Link, Waiter};
use self::protocol::{CallRequest, OpenRequest, PluginFile, Processed, Request};
pub(crate) use self::protocol::{Outcome, Pending};

/// The program name of the plugin host.
pub(crate) const NAME: &str = "adit-plugins";

/// The number of tasks (processes and threads) that plugins add to a service's limits: the host, its second thread, and
/// a process of a plugin.
pub(crate) const TASKS: u16 = 3;

/// How long a call waits for the plugins if nothing shorter applies. It covers the calls before it in the queue.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(60);

/// How often a plugin is asked again for the answer of a deferred `client-connect`.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the plugin host if this process was started as one.
pub fn main(arguments: &[OsString]) -> Option<ExitCode> {
    let name = arguments.first().map(Path::new)?;
    (name == Path::new(NAME)).then(process::main)
}

/// Parses messages of a host in which a plugin runs, and a plugin's request for time, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<protocol::Message>(bytes) {
        let again = serde_json::to_vec(&message).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<protocol::Message>(&again).ok(), Some(message));
    }
    if let Some(Ok(pending)) = files::pending(bytes) {
        assert!(![pending.method, pending.extra].concat().chars().any(char::is_control));
    }
}

/// The plugins of the configuration. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Plugins {
    link: Arc<Link>,
}

/// A call of all plugins that want it.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    /// The arguments that a script would get.
    pub(crate) args: Vec<String>,
    /// The environment that a script would get.
    pub(crate) env: Vec<(String, String)>,
    /// The number of the session, or 0 for the tunnel itself.
    pub(crate) client: u64,
    /// The depth and the DER of the certificate, for [`Kind::TlsVerify`].
    pub(crate) certificate: Option<(u8, Vec<u8>)>,
    /// How long the final answer may take.
    pub(crate) limit: Duration,
}

// Written by hand because a derived implementation would print passwords.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("kind", &self.kind)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl Call {
    /// Creates a call for the tunnel itself.
    pub(crate) fn new(kind: Kind, args: Vec<String>, env: Vec<(String, String)>) -> Self {
        Self { kind, args, env, client: 0, certificate: None, limit: CALL_LIMIT }
    }

    fn request(self) -> Request {
        let Self { kind, args, env, client, certificate, limit: _ } = self;
        let kind = kind.number();
        Request::Call(Box::new(CallRequest { kind, args, env, client, certificate }))
    }
}

/// Refuses a plugin in a build that cannot load plugins.
fn check_build(file: &str, loads_plugins: bool) -> Result<(), Fault> {
    if loads_plugins {
        return Ok(());
    }
    let reason = plugin::PluginError::Unsupported;
    Err(Fault::operator(format!("plugin '{file}': {reason}")))
}

impl Plugins {
    /// Starts the host and opens the plugins, if the configuration names any. Call it as root, before any thread is
    /// started. `folder` is the directory of temporary files.
    ///
    /// # Errors
    /// The host cannot be started, or a plugin cannot be used.
    pub(crate) fn start(
        options: &Options,
        env: Vec<(String, String)>,
        folder: PathBuf,
    ) -> Result<Option<Self>, Fault> {
        let process = &options.process;
        let Some(first) = process.plugins.first() else { return Ok(None) };
        check_build(&first.file, plugin::SUPPORTED)?;
        let plugins = process.plugins.iter().map(|plugin| PluginFile {
            file: plugin.file.clone(),
            args: plugin.args.clone(),
            directory: absolute(plugin.directory.as_deref()),
        });
        let request = OpenRequest {
            plugins: plugins.collect(),
            env,
            directory: absolute(process.directory.as_deref()),
            folder,
            user: process.user.clone(),
            group: process.group.clone(),
        };
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME);
        Self::start_as(command, request).map(Some)
    }

    fn start_as(command: Command, request: OpenRequest) -> Result<Self, Fault> {
        let link = Arc::new(Link::start(command)?);
        let this = Self { link };
        this.opened(this.link.call_now(Request::Open(Box::new(request)))?)?;
        Ok(this)
    }

    /// Records the result of opening plugins.
    fn opened(&self, result: Processed) -> Result<(), Fault> {
        match result {
            Processed::Opened { mask } => {
                self.link.set_mask(mask);
                Ok(())
            }
            Processed::Failed(reason) => Err(Fault::operator(reason)),
            _ => Err(Fault::ours("plugin host: unexpected answer")),
        }
    }

    /// Starts to receive answers. Call it once inside a tokio runtime, before any call.
    ///
    /// # Errors
    /// The host cannot be watched.
    pub(crate) fn watch(&self) -> Result<(), Fault> {
        Link::watch(&self.link)
    }

    /// Changes the host to the configured user, and opens the plugins that want to be opened then.
    ///
    /// # Errors
    /// The user cannot be changed, or a plugin cannot be used.
    pub(crate) async fn become_user(&self, env: Vec<(String, String)>) -> Result<(), Fault> {
        let mut waiting =
            self.link.send(Request::BecomeUser { env }).map_err(Fault::environment)?;
        match waiting.next().await {
            Event::Processed(result) => {
                waiting.answered();
                self.opened(result)
            }
            _ => Err(self.lost().await),
        }
    }

    /// Closes the plugins and opens them again, after SIGHUP.
    ///
    /// # Errors
    /// A plugin cannot be used.
    pub(crate) fn reopen(&self, env: Vec<(String, String)>) -> Result<(), Fault> {
        self.opened(self.link.call_now(Request::Reopen { env })?)
    }

    /// Returns whether a plugin wants these calls.
    pub(crate) fn wants(&self, kind: Kind) -> bool {
        self.link.mask() & kind.bit() != 0
    }

    /// Calls the plugins and waits for their final answer. `pending` gets what a plugin requests meanwhile. If the
    /// returned future is dropped, the call is forgotten.
    pub(crate) async fn call(
        &self,
        call: Call,
        pending: &mut (dyn FnMut(Pending) + Send),
    ) -> Outcome {
        if !self.wants(call.kind) {
            return Outcome::accepted();
        }
        let (kind, limit) = (call.kind, call.limit);
        match self.link.send(call.request()) {
            Ok(waiting) => self.answer_within(limit, kind, waiting, pending).await,
            Err(reason) => Outcome::refused(reason),
        }
    }

    async fn answer_within(
        &self,
        limit: Duration,
        kind: Kind,
        waiting: Waiter,
        pending: &mut (dyn FnMut(Pending) + Send),
    ) -> Outcome {
        let answer = self.answer(kind, waiting, pending);
        tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
            let (name, seconds) = (kind.name(), limit.as_secs());
            Outcome::refused(format!("PLUGIN_CALL: {name}: no answer within {seconds} s"))
        })
    }

    async fn answer(
        &self,
        kind: Kind,
        mut waiting: Waiter,
        pending: &mut (dyn FnMut(Pending) + Send),
    ) -> Outcome {
        let polled = matches!(kind, Kind::ClientConnect | Kind::ClientConnectV2);
        let mut polls = interval_at(Instant::now() + POLL_INTERVAL, POLL_INTERVAL);
        // The poll under way.
        let mut poll: Option<Waiter> = None;
        let mut deferred = false;
        loop {
            let event = tokio::select! {
                biased;
                event = waiting.next() => event,
                event = next(&mut poll), if poll.is_some() => {
                    poll.take().iter_mut().for_each(Waiter::answered);
                    match event {
                        // The answer came another way, or comes later.
                        Event::Processed(Processed::Deferred | Processed::Done) => continue,
                        event => event,
                    }
                }
                _ = polls.tick(), if deferred && polled && poll.is_none() => {
                    poll = self.link.send(Request::Poll { call: waiting.id() }).ok();
                    continue;
                }
            };
            match event {
                Event::Processed(Processed::Called(outcome)) | Event::Answer(outcome) => {
                    waiting.answered();
                    return outcome;
                }
                Event::Processed(Processed::Deferred) => deferred = true,
                Event::Pending(request) => pending(request),
                Event::Processed(_) => return Outcome::refused("plugin host: unexpected answer"),
                Event::Ended => return Outcome::refused("the plugin host has ended"),
            }
        }
    }

    /// Calls the plugins without waiting for their answer. A refusal is logged. The calls of one caller are made in order.
    pub(crate) fn notify(&self, call: Call) {
        let (kind, limit) = (call.kind, call.limit);
        if !self.wants(kind) {
            return;
        }
        match self.link.send(call.request()) {
            Ok(waiting) => {
                let plugins = self.clone();
                // The link bounds the number of calls that wait.
                tokio::spawn(async move {
                    let mut ignore = |_: Pending| {};
                    let answer = plugins.answer_within(limit, kind, waiting, &mut ignore).await;
                    if let Outcome::Refused { log, .. } = answer {
                        tracing::warn!("{log}");
                    }
                });
            }
            Err(reason) => tracing::warn!("PLUGIN_CALL: {}: {reason}", kind.name()),
        }
    }

    /// Releases the plugins' memory for a client, whose session has ended.
    pub(crate) fn end_client(&self, client: u64) {
        self.link.post(Request::EndClient { client });
    }

    /// Ends the process in an orderly way if the host ends. Call it once inside a runtime.
    pub(crate) fn end_with_host(&self) {
        let plugins = self.clone();
        tokio::spawn(async move {
            tracing::error!("{}", plugins.lost().await);
            // The run loop handles the signal, and its caller finds the fault.
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM);
        });
    }

    /// Returns when the host has ended. Cancel-safe.
    async fn lost(&self) -> Fault {
        self.link.lost().await
    }

    /// Returns the fault if the host has ended.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.link.fault()
    }

    /// Closes the plugins and waits until the host has ended.
    pub(crate) fn finish(&self) {
        self.link.finish();
    }
}

/// Returns a peer's address in the form of the argument of [`Kind::IpChange`].
pub(crate) fn address_argument(remote: SocketAddr) -> String {
    let ip = remote.ip().to_canonical();
    let family = if ip.is_ipv4() { "AF_INET" } else { "AF_INET6" };
    format!("[{family}]{ip} {}", remote.port())
}

/// Returns a directory as it is before the host changes its own.
fn absolute(directory: Option<&Path>) -> Option<PathBuf> {
    directory.and_then(|directory| std::path::absolute(directory).ok())
}

async fn next(waiter: &mut Option<Waiter>) -> Event {
    match waiter {
        Some(waiter) => waiter.next().await,
        None => std::future::pending().await,
    }
}
