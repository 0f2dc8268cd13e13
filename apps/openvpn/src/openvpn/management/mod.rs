//! The management interface (`management`): a front end or a controller watches and steers the program through a socket.
//!
//! ```text
//!   run loop ──states, traffic, echo──► Session ──lines──► socket ──► management client
//!      ▲                                   │                              │
//!      └── Program (status, kill), signals ┴──────────── commands ◄───────┘
//! ```
//!
//! [`session::Session`] knows no socket and no time. [`Management::serve`] moves bytes between it and one client at a
//! time; further clients wait until the first leaves, as in openvpn. It runs at the same time as the run loop, and also
//! before it, while the program waits for `hold release` or for a password. A client that does not read stalls nothing
//! but its own commands, and is disconnected when too much waits for it.

mod ask;
mod check;
mod clients;
mod endpoint;
mod gate;
mod handle;
mod help;
mod history;
mod input;
mod login;
mod program;
mod question;
mod reports;
mod session;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_engine::{Family, Target, Transport};
use adit_openvpn::config::{
    AuthRetry, DialOptions, Management as Settings, ManagementPassword, ManagementPlace, Options,
    Role,
};
use adit_runtime::clock::unix_time;
use adit_runtime::driver::watch;
use adit_runtime::fault::Fault;
use adit_runtime::signals::{Signal, Signals};
use adit_runtime::{async_runtime, log, say};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc};
use zeroize::Zeroizing;

use super::{Next, key_files};
use crate::client::ClientCommand;
pub(crate) use check::ManagementCheck;
use endpoint::{Endpoint, Stream};
use history::{LogCache, State, StateName};
use program::ServerProgram;
use question::{Answer, Question};
pub(crate) use reports::{ClientReports, ServerReports};
use session::{Counters, Mode, Session};

/// The number of bytes read at a time.
const READ: usize = 4096;

/// The time to wait after a connection could not be accepted, for lack of descriptors for example.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// The time for the last lines to a management client when the program ends.
const LAST_LINES: Duration = Duration::from_millis(200);

/// The management interface of this process. It outlives restarts of the program (SIGHUP).
pub(crate) struct Management {
    handle: Handle,
    endpoint: Endpoint,
    settings: Settings,
}

/// A handle on the interface, for the parts of the program that report to it.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Shared>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

struct Shared {
    session: Mutex<Session>,
    log: Arc<LogCache>,
    /// Wakes the task when there is something to send.
    wake: Notify,
    /// The connection with the management client.
    stream: Mutex<Option<Arc<Stream>>>,
    /// The running server.
    program: Mutex<Option<ServerProgram>>,
    /// The commands to the running client.
    commands: Mutex<Option<mpsc::Sender<ClientCommand>>>,
    /// Whether the program has held for the next attempt to connect.
    held: AtomicBool,
    /// The address of this end in the tunnel, once it is known.
    tunnel: Mutex<Option<IpAddr>>,
}

/// The outcome of waiting for an answer.
enum Waited {
    /// The answer.
    Answer(Answer),
    /// A signal came first.
    Signal(Signal),
}

impl Management {
    /// Opens the interface, before privileges are dropped.
    ///
    /// # Errors
    /// The socket cannot be opened, or the password cannot be read.
    pub(crate) fn open(options: &Options) -> Result<Option<Self>, Fault> {
        let Some(settings) = &options.management else { return Ok(None) };
        let password = match &settings.password {
            Some(ManagementPassword::File(path)) => {
                Some(key_files::first_line("management", path)?)
            }
            Some(ManagementPassword::Prompt) => {
                Some(key_files::prompt("Enter Management Password: ")?)
            }
            None => None,
        };
        let endpoint = Endpoint::open(settings)?;
        let cache = Arc::new(LogCache::new(settings.log_cache));
        let observed = Arc::clone(&cache);
        log::observe(move |level, verb, text| observed.push(unix_time().0, level, verb, text));
        let session =
            Session::new(session_settings(options, settings, password), Arc::clone(&cache));
        let handle = Handle(Arc::new(Shared {
            session: Mutex::new(session),
            log: cache,
            wake: Notify::new(),
            stream: Mutex::new(None),
            program: Mutex::new(None),
            commands: Mutex::new(None),
            held: AtomicBool::new(false),
            tunnel: Mutex::new(None),
        }));
        handle.state(&StateName::Connecting.into());
        Ok(Some(Self { handle, endpoint, settings: settings.clone() }))
    }

    /// Returns a handle on the interface.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns whether passwords are asked for here (`management-query-passwords`).
    pub(crate) fn asks_passwords(&self) -> bool {
        self.settings.query_passwords
    }

    /// Begins a round of the program: waits for `hold release` if the hold flag is set, and takes the settings of a
    /// configuration that was read again. Returns what follows if a signal ended the wait.
    ///
    /// # Errors
    /// The wait cannot begin.
    pub(super) fn begin(&mut self, options: &Options) -> Result<Option<Next>, Fault> {
        match &options.management {
            Some(settings) if *settings == self.settings => {}
            _ => tracing::warn!(
                "management: changes take effect when the program is started again, not by SIGHUP"
            ),
        }
        self.handle.session().reconfigure(session_settings(options, &self.settings, None));
        options.echo.iter().for_each(|text| self.handle.echo(text));
        Ok(match self.hold()? {
            None => None,
            Some(Signal::Hangup) => Some(Next::Restart),
            Some(_) => {
                say!(1, "Signal received from management interface, exiting");
                Some(Next::Exit(ExitCode::SUCCESS))
            }
        })
    }

    /// Sends the last lines and closes the interface, before the program ends.
    pub(crate) fn close(mut self) {
        if let Ok(runtime) = async_runtime() {
            runtime.block_on(self.finish());
        }
    }

    /// Waits for `hold release` if the hold flag is set. Returns a signal that ends the wait.
    ///
    /// # Errors
    /// The wait cannot begin.
    fn hold(&mut self) -> Result<Option<Signal>, Fault> {
        if !self.handle.session().holds() {
            return Ok(None);
        }
        Ok(match self.ask(Question::Hold(0))? {
            Waited::Answer(_) => None,
            Waited::Signal(signal) => Some(signal),
        })
    }

    /// Asks a question before the run loop begins, and waits for the answer.
    ///
    /// # Errors
    /// The wait cannot begin.
    fn ask(&mut self, question: Question) -> Result<Waited, Fault> {
        let handle = self.handle();
        async_runtime()?.block_on(async {
            let mut signals = Signals::new()?;
            tokio::select! {
                biased;
                signal = unignored(&mut signals) => Ok(Waited::Signal(signal)),
                answer = handle.answer(question) => match answer {
                    Some(answer) => Ok(Waited::Answer(answer)),
                    None => Err(Fault::ours("a question to the management interface was lost")),
                },
                never = self.serve() => match never {},
            }
        })
    }

    /// Serves management clients while `program` runs.
    pub(crate) async fn serve_while<T>(&mut self, program: impl Future<Output = T>) -> T {
        let ended = tokio::select! {
            biased;
            ended = program => ended,
            never = self.serve() => match never {},
        };
        *lock(&self.handle.0.program) = None;
        *lock(&self.handle.0.commands) = None;
        ended
    }

    async fn finish(&mut self) {
        let Some(stream) = &self.endpoint.stream else { return };
        let Ok(watched) = watched(stream.as_fd()) else { return };
        let last = async {
            loop {
                let bytes = {
                    let mut session = self.handle.session();
                    session.take_log();
                    session.output().to_vec()
                };
                if bytes.is_empty() {
                    return;
                }
                let Ok(mut ready) = watched.writable().await else { return };
                match stream.write(&bytes) {
                    Ok(count) => self.handle.session().sent(count),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                    Err(_) => return,
                }
            }
        };
        let _ = tokio::time::timeout(LAST_LINES, last).await;
    }

    /// Serves management clients, one at a time.
    async fn serve(&mut self) -> Infallible {
        loop {
            let stream = match self.endpoint.stream.take() {
                Some(stream) => stream,
                None => Arc::new(self.accept().await),
            };
            *lock(&self.handle.0.stream) = Some(Arc::clone(&stream));
            // A restart of the program keeps the connection.
            let fresh = !self.handle.session().is_connected();
            if fresh {
                self.handle.session().connected();
            }
            let stream = self.endpoint.stream.insert(stream);
            converse(&self.handle, stream).await;
            self.endpoint.stream = None;
            *lock(&self.handle.0.stream) = None;
            self.ended();
        }
    }

    async fn accept(&mut self) -> Stream {
        loop {
            if let (ManagementPlace::Tunnel(port), false) =
                (&self.settings.place, self.endpoint.listens())
            {
                let own = *lock(&self.handle.0.tunnel);
                match own.map(|own| self.endpoint.listen_in_tunnel(own, *port)) {
                    Some(Ok(())) => {}
                    Some(Err(fault)) => {
                        tracing::warn!("{fault}");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                    None => self.handle.0.wake.notified().await,
                }
                continue;
            }
            let Some(watched) = self.endpoint.listener().and_then(|fd| watched(fd).ok()) else {
                // The connection to a program that listens has ended.
                std::future::pending::<()>().await;
                continue;
            };
            let Ok(mut ready) = watched.readable().await else { continue };
            match self.endpoint.accept() {
                Ok(Some(stream)) => return stream,
                Ok(None) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                Err(e) => {
                    tracing::warn!("MANAGEMENT: cannot accept a client: {e}");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    /// Handles the end of a conversation.
    fn ended(&mut self) {
        let (overflown, counters) = {
            let mut session = self.handle.session();
            let overflown = session.is_overflown();
            session.disconnected();
            (overflown, session.counters)
        };
        let Counters { overflown: clients, long_lines, refused } = counters;
        if overflown {
            tracing::warn!(
                "MANAGEMENT: Client disconnected: it did not read its lines ({clients} such clients so far)"
            );
        } else {
            say!(1, "MANAGEMENT: Client disconnected");
        }
        let lost = self.handle.0.log.dropped();
        if long_lines > 0 || lost > 0 || refused > 0 {
            say!(
                3,
                "MANAGEMENT: so far {long_lines} lines were too long, {lost} log lines were not delivered, and \
                 {refused} clients were refused because too many waited"
            );
        }
        if self.settings.forget_disconnect {
            self.handle.command(ClientCommand::ForgetLogin);
        }
        if self.settings.connects {
            say!(1, "MANAGEMENT: Triggering management exit");
            raise(Signal::Terminate);
        } else if self.settings.signal {
            say!(1, "MANAGEMENT: Triggering management signal");
            raise(Signal::User1);
        }
    }
}

/// Moves bytes between the session and its client until one of them ends the conversation.
async fn converse(handle: &Handle, stream: &Stream) {
    let Ok(watched) = watched(stream.as_fd()) else { return };
    let shared = &handle.0;
    let mut bytes = vec![0; READ];
    loop {
        handle.perform().await;
        let (reads, writes) = {
            let mut session = handle.session();
            session.take_log();
            while !session.output().is_empty() && !session.is_overflown() {
                match stream.write(session.output()) {
                    Ok(0) => return,
                    Ok(count) => session.sent(count),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
            let waits = !session.output().is_empty();
            if session.is_overflown() || (session.is_closing() && !waits) {
                return;
            }
            if session.has_action() {
                continue;
            }
            (session.wants_input(), waits)
        };
        tokio::select! {
            biased;
            ready = watched.writable(), if writes => {
                // The next attempt to write finds out whether this is true.
                let Ok(mut ready) = ready else { return };
                ready.clear_ready();
            }
            ready = watched.readable(), if reads => {
                let Ok(mut ready) = ready else { return };
                match stream.read(&mut bytes) {
                    Ok(0) => return,
                    Ok(count) => {
                        let read = bytes.get(..count).unwrap_or_default();
                        handle.session().input(read);
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
            () = shared.wake.notified() => {}
            () = shared.log.arrived.notified() => {}
        }
    }
}

/// Watches a socket that something else owns.
fn watched(socket: BorrowedFd<'_>) -> std::io::Result<AsyncFd<OwnedFd>> {
    watch(socket.try_clone_to_owned()?, Interest::READABLE | Interest::WRITABLE)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends a signal to this process, so that it has the effect that it has from outside.
fn raise(signal: Signal) {
    use nix::sys::signal::Signal as Number;
    let number = match signal {
        Signal::Terminate => Number::SIGTERM,
        Signal::Interrupt => Number::SIGINT,
        Signal::Hangup => Number::SIGHUP,
        Signal::User1 => Number::SIGUSR1,
        Signal::User2 => Number::SIGUSR2,
    };
    if let Err(e) = nix::sys::signal::raise(number) {
        tracing::error!("MANAGEMENT: signal not sent: {e}");
    }
}

/// Waits for a signal that ends a wait. The others are for a tunnel, and there is none yet.
async fn unignored(signals: &mut Signals) -> Signal {
    loop {
        match signals.next().await {
            Signal::User1 | Signal::User2 => {}
            signal => return signal,
        }
    }
}

fn session_settings(
    options: &Options,
    settings: &Settings,
    password: Option<Zeroizing<String>>,
) -> session::Settings {
    let (mode, dial, auth_retry) = match &options.role {
        Role::Client(client) => (Mode::Client, Some(&client.dial), client.auth_retry),
        Role::Server(_) => (Mode::Server, None, AuthRetry::None),
        Role::Peer(peer) => (Mode::PointToPoint, Some(&peer.dial), AuthRetry::None),
    };
    session::Settings {
        mode,
        banner: super::BANNER,
        status_version: options.status.as_ref().map_or(1, |status| status.version),
        password,
        hold: settings.hold,
        client_auth: settings.client_auth,
        auth_retry,
        remotes: dial.map(remotes).unwrap_or_default(),
    }
}

fn remotes(dial: &DialOptions) -> Vec<(String, u16, &'static str)> {
    let entry = |target: &Target| (target.host.clone(), target.port, protocol(target));
    dial.remotes.iter().map(entry).collect()
}

/// Returns openvpn's name of a client's transport.
fn protocol(target: &Target) -> &'static str {
    match (target.transport, target.family) {
        (Transport::Udp, Family::Any) => "udp",
        (Transport::Udp, Family::V4) => "udp4",
        (Transport::Udp, Family::V6) => "udp6",
        (Transport::Tcp, Family::Any) => "tcp-client",
        (Transport::Tcp, Family::V4) => "tcp4-client",
        (Transport::Tcp, Family::V6) => "tcp6-client",
    }
}

/// Feeds a conversation to the interface, for the fuzzer.
pub(super) fn fuzz(bytes: &[u8]) {
    session::fuzz(bytes);
}
