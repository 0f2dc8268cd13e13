//! The conversation with a management client, without its socket: bytes in, bytes out, and [`Action`]s for the program.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

mod commands;
mod request;
#[cfg(test)]
mod tests;
mod tunnel_commands;

use std::collections::VecDeque;
use std::sync::Arc;

use adit_crypto::constant_time_eq;
use adit_openvpn::config::AuthRetry;
use adit_runtime::say;
use zeroize::Zeroizing;

use super::super::status::Totals;
use super::clients::{ClientKey, ClientVerdict, Clients, Extend, notification};
use super::history::{History, LogCache, State};
use super::input::{Command, Line, LineBuffer};
use super::question::{Answer, Question, Questions};
pub(super) use request::{Action, Reply, Request};

/// The version of the interface.
const VERSION: u8 = 5;

/// The maximum number of bytes that wait for a client that does not read. Beyond it, the client is disconnected.
pub(super) const MAX_OUTPUT: usize = 8 << 20;

/// With this many bytes waiting, no further command is carried out.
const PAUSE: usize = 64 << 10;

/// The maximum number of lines after a command that takes several.
const MAX_BLOCK_LINES: usize = 2048;

/// The maximum number of bytes of these lines.
const MAX_BLOCK: usize = 256 << 10;

/// The number of wrong passwords after which a client is disconnected.
const PASSWORD_TRIES: u8 = 3;

/// The kind of program that the interface belongs to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Client,
    Server,
    PointToPoint,
}

/// The settings of a [`Session`].
pub(super) struct Settings {
    pub(super) mode: Mode,
    /// The program's version, for `version` and `help`.
    pub(super) banner: &'static str,
    /// `status-version`.
    pub(super) status_version: u8,
    /// The password to ask for first.
    pub(super) password: Option<Zeroizing<String>>,
    /// `management-hold`.
    pub(super) hold: bool,
    /// `management-client-auth`.
    pub(super) client_auth: bool,
    /// `auth-retry`.
    pub(super) auth_retry: AuthRetry,
    /// The servers of the configuration: host, port, protocol.
    pub(super) remotes: Vec<(String, u16, &'static str)>,
}

/// A certificate on a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The id for `pkcs11-id`.
    pub(crate) id: String,
    /// The certificate in base64.
    pub(crate) blob: String,
}

/// A management client.
#[derive(Default)]
struct Conversation {
    authenticated: bool,
    wrong_passwords: u8,
    input: LineBuffer,
    /// Bytes that have been read, but not processed.
    unread: Vec<u8>,
    output: VecDeque<u8>,
    state: bool,
    echo: bool,
    /// The number of log lines before those that are still to be sent; `None` without `log on`.
    log_seen: Option<u64>,
    /// `bytecount`: the interval in seconds, and the time until the next notification.
    bytecount: Option<(u32, u32)>,
    /// `env-filter`.
    env_filter: u8,
    /// The version of the interface that the client knows.
    version: u8,
    /// The command that takes further lines, and these lines.
    block: Option<Block>,
    /// The request that must be answered before the next command.
    waits: Option<Request>,
    closing: bool,
    overflown: bool,
}

/// A command with the lines that follow it.
struct Block {
    command: Command,
    lines: Vec<String>,
    bytes: usize,
    too_long: bool,
}

/// The counts of what was dropped.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Clients that were disconnected because they did not read.
    pub(super) overflown: u64,
    /// Lines that were longer than allowed.
    pub(super) long_lines: u64,
    /// Clients of the server that were refused because too many waited for a verdict.
    pub(super) refused: u64,
}

/// The management interface.
pub(super) struct Session {
    settings: Settings,
    states: History,
    echoes: History,
    log: Arc<LogCache>,
    questions: Questions,
    clients: Clients,
    /// The certificates on tokens.
    identities: Vec<Identity>,
    conversation: Option<Conversation>,
    actions: VecDeque<Action>,
    /// The traffic of a client.
    totals: Totals,
    pub(super) counters: Counters,
}

impl Session {
    pub(super) fn new(settings: Settings, log: Arc<LogCache>) -> Self {
        Self {
            settings,
            states: History::default(),
            echoes: History::default(),
            log,
            questions: Questions::default(),
            clients: Clients::default(),
            identities: Vec::new(),
            conversation: None,
            actions: VecDeque::new(),
            totals: Totals::default(),
            counters: Counters::default(),
        }
    }

    /// Returns what the client does after a refused password.
    pub(super) fn current_auth_retry(&self) -> AuthRetry {
        self.settings.auth_retry
    }

    /// Takes the settings of a configuration that was read again. The password and the hold flag stay.
    pub(super) fn reconfigure(&mut self, settings: Settings) {
        let former = std::mem::replace(&mut self.settings, settings);
        self.settings.password = former.password;
        self.settings.hold = former.hold;
    }

    // The program's side.

    /// Returns whether there is a client.
    pub(super) fn is_connected(&self) -> bool {
        self.conversation.is_some()
    }

    /// Begins a conversation.
    pub(super) fn connected(&mut self) {
        let authenticated = self.settings.password.is_none();
        self.conversation =
            Some(Conversation { authenticated, version: 1, ..Conversation::default() });
        if authenticated {
            self.welcome();
        } else {
            self.put("ENTER PASSWORD:");
        }
    }

    /// Ends the conversation, after the client has disconnected.
    pub(super) fn disconnected(&mut self) {
        self.conversation = None;
        self.actions.clear();
        self.log.set_live(false);
    }

    /// Processes bytes from the client.
    pub(super) fn input(&mut self, bytes: &[u8]) {
        if let Some(conversation) = &mut self.conversation {
            conversation.unread.extend_from_slice(bytes);
        }
        self.proceed();
    }

    /// Returns the bytes to send next.
    pub(super) fn output(&self) -> &[u8] {
        self.conversation.as_ref().map_or(&[], |conversation| conversation.output.as_slices().0)
    }

    /// Records that some of [`Self::output`] was sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        if let Some(conversation) = &mut self.conversation {
            conversation.output.drain(..bytes.min(conversation.output.len()));
            if conversation.output.is_empty() {
                conversation.output.shrink_to(PAUSE);
            }
        }
        self.proceed();
    }

    /// Returns whether more bytes may be read. Otherwise the client waits, as its own fault or until an answer is there.
    pub(super) fn wants_input(&self) -> bool {
        self.conversation.as_ref().is_some_and(|conversation| {
            conversation.unread.is_empty() && !conversation.closing && !conversation.overflown
        })
    }

    /// Returns whether the conversation ends once everything is sent.
    pub(super) fn is_closing(&self) -> bool {
        self.conversation.as_ref().is_none_or(|conversation| conversation.closing)
    }

    /// Returns whether the client must be disconnected because it does not read.
    pub(super) fn is_overflown(&self) -> bool {
        self.conversation.as_ref().is_some_and(|conversation| conversation.overflown)
    }

    /// Returns whether there is an action.
    pub(super) fn has_action(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns the next action.
    pub(super) fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Answers the request of [`Action::Ask`].
    pub(super) fn reply(&mut self, reply: Reply) {
        let request = self.conversation.as_mut().and_then(|talk| talk.waits.take());
        let Some(request) = request else { return };
        match (request, reply) {
            (Request::Clients, Reply::Load { clients, .. }) => {
                self.line(&format!("SUCCESS: nclients={clients}"));
            }
            (Request::Clients, _) => self.line("SUCCESS: nclients=0"),
            (_, Reply::Status(text)) => text.lines().for_each(|line| self.line(line)),
            (_, Reply::Load { clients, received, sent }) => self
                .line(&format!("SUCCESS: nclients={clients},bytesin={received},bytesout={sent}")),
            (Request::KillName(name), Reply::Killed(0) | Reply::Unavailable) => {
                self.line(&format!("ERROR: common name '{name}' not found"));
            }
            (Request::KillName(name), Reply::Killed(count)) => {
                self.line(&format!(
                    "SUCCESS: common name '{name}' found, {count} client(s) killed"
                ));
            }
            (Request::KillAddress(at), Reply::Killed(0) | Reply::Unavailable) => {
                let (ip, port) = (at.ip(), at.port());
                self.line(&format!("ERROR: client at address {ip}:{port} not found"));
            }
            (Request::KillAddress(at), Reply::Killed(count)) => {
                let (ip, port) = (at.ip(), at.port());
                self.line(&format!("SUCCESS: {count} client(s) at address {ip}:{port} killed"));
            }
            (Request::KillSession { .. }, Reply::Killed(0) | Reply::Unavailable) => {
                self.line("ERROR: client-kill command failed");
            }
            (Request::KillSession { .. }, Reply::Killed(_)) => {
                self.line("SUCCESS: client-kill command succeeded");
            }
            (Request::LoadStats, _) => self.line("SUCCESS: nclients=0,bytesin=0,bytesout=0"),
            (Request::Status(version), _) => self.own_status(version),
        }
        self.proceed();
    }

    /// Records a state.
    pub(super) fn state(&mut self, unix: u64, state: &State) {
        let line = state.line(unix);
        self.states.push(line.clone());
        if self.talk().is_some_and(|talk| talk.state) {
            say!(3, "MANAGEMENT: >STATE:{line}");
            self.line(&format!(">STATE:{line}"));
        }
    }

    /// Records an `echo` from the configuration or from the server.
    pub(super) fn echo(&mut self, unix: u64, text: &str) {
        let line = format!("{unix},{text}");
        self.echoes.push(line.clone());
        if self.talk().is_some_and(|talk| talk.echo) {
            self.line(&format!(">ECHO:{line}"));
        }
    }

    /// Sends a notification to the client, if there is one.
    pub(super) fn notify(&mut self, text: &str) {
        if self.talk().is_some() {
            self.line(text);
        }
    }

    /// Adds the log lines that have arrived to the output.
    pub(super) fn take_log(&mut self) {
        let Some(seen) = self.talk().and_then(|talk| talk.log_seen) else { return };
        let total = self.log.total();
        if total == seen {
            return;
        }
        for line in self.log.since(seen) {
            self.line(&format!(">LOG:{line}"));
        }
        if let Some(talk) = &mut self.conversation {
            talk.log_seen = Some(total);
        }
    }

    /// Handles a second of time. Returns whether `bytecount` notifications are due.
    pub(super) fn second(&mut self) -> bool {
        let talk = self.conversation.as_mut().filter(|talk| talk.authenticated);
        let Some((every, left)) = talk.and_then(|talk| talk.bytecount.as_mut()) else {
            return false;
        };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return false;
        }
        *left = *every;
        true
    }

    /// Records the traffic of a client, once a second.
    pub(super) fn traffic(&mut self, totals: Totals) {
        self.totals = totals;
        if self.second() {
            let Totals { link_read, link_written, .. } = totals;
            self.line(&format!(">BYTECOUNT:{link_read},{link_written}"));
        }
    }

    /// Asks the client a question, which waits if there is no client.
    pub(super) fn ask(&mut self, question: Question) -> tokio::sync::oneshot::Receiver<Answer> {
        if let Some(version) = self.talk().map(|talk| talk.version) {
            self.line(&question.text(version));
        } else {
            say!(1, "{}", question.waiting());
        }
        self.questions.ask(question)
    }

    /// Asks for a verdict on a client of the server. `None` if too many wait. The verdict may never come.
    pub(super) fn ask_about(
        &mut self,
        head: &str,
        key: ClientKey,
        variables: &[(String, String)],
        extend: Extend,
    ) -> Option<tokio::sync::oneshot::Receiver<ClientVerdict>> {
        let Some(verdict) = self.clients.wait(key, extend) else {
            self.counters.refused = self.counters.refused.saturating_add(1);
            return None;
        };
        let (cid, kid) = key;
        self.tell("CLIENT", &format!("{head},{cid},{kid}"), variables);
        Some(verdict)
    }

    /// Sends a notification with variables. Its source is `CLIENT` or `UPDOWN`.
    pub(super) fn tell(&mut self, source: &str, head: &str, variables: &[(String, String)]) {
        let Some(talk) = self.talk() else { return };
        let lines = notification(source, head, variables, talk.env_filter);
        lines.iter().for_each(|line| self.line(line));
    }

    /// Sets the certificates that `pkcs11-id-get` shows.
    pub(super) fn set_identities(&mut self, identities: Vec<Identity>) {
        self.identities = identities;
    }

    /// Decides about a client, as `client-auth` does. Returns whether it waited.
    #[cfg(test)]
    pub(super) fn decide(&mut self, key: ClientKey, verdict: ClientVerdict) -> bool {
        self.clients.decide(key, verdict)
    }

    /// Forgets the requests of a session that has ended.
    pub(super) fn forget_client(&mut self, session: u64) {
        self.clients.forget(session);
    }

    /// Returns whether `hold` is set.
    pub(super) fn holds(&self) -> bool {
        self.settings.hold
    }

    // The client's side.

    fn talk(&self) -> Option<&Conversation> {
        self.conversation.as_ref().filter(|talk| talk.authenticated)
    }

    /// Adds a line to the output. A control character in it would begin a line of the sender's choice.
    fn line(&mut self, text: &str) {
        let odd = |c: char| c.is_control() && c != '\t';
        if text.contains(odd) {
            self.put(&text.replace(odd, "_"));
        } else {
            self.put(text);
        }
        self.put("\r\n");
    }

    fn put(&mut self, text: &str) {
        let Some(talk) = self.conversation.as_mut().filter(|talk| !talk.overflown) else { return };
        if talk.output.len().saturating_add(text.len()) > MAX_OUTPUT {
            talk.overflown = true;
            talk.output = VecDeque::new();
            self.counters.overflown = self.counters.overflown.saturating_add(1);
            return;
        }
        talk.output.extend(text.as_bytes());
    }

    fn welcome(&mut self) {
        self.line(&format!(
            ">INFO:OpenVPN Management Interface Version {VERSION} -- type 'help' for more info"
        ));
        self.questions.texts(1).iter().for_each(|text| self.line(text));
    }

    /// Carries out commands until there is none, or one must wait.
    fn proceed(&mut self) {
        loop {
            let Some(talk) = self.conversation.as_mut() else { return };
            let busy = talk.closing || talk.overflown || talk.waits.is_some();
            if busy || talk.unread.is_empty() || talk.output.len() >= PAUSE {
                return;
            }
            let (taken, line) = talk.input.take(&talk.unread);
            talk.unread.drain(..taken.min(talk.unread.len()));
            match line {
                Some(Line::Text(line)) => self.take(&line),
                Some(Line::TooLong) => {
                    self.counters.long_lines = self.counters.long_lines.saturating_add(1);
                    let block = self.conversation.as_mut().and_then(|talk| talk.block.as_mut());
                    match block {
                        Some(block) => block.too_long = true,
                        None => self.line("ERROR: the line is too long"),
                    }
                }
                None => {}
            }
        }
    }

    fn take(&mut self, line: &str) {
        let Some(talk) = &mut self.conversation else { return };
        if !talk.authenticated {
            return self.password(line);
        }
        if let Some(block) = &mut talk.block {
            if line == "END" {
                if let Some(block) = talk.block.take() {
                    self.finish(block);
                }
            } else if block.lines.len() >= MAX_BLOCK_LINES
                || block.bytes.saturating_add(line.len()) > MAX_BLOCK
            {
                block.too_long = true;
            } else {
                block.bytes = block.bytes.saturating_add(line.len());
                block.lines.push(line.to_owned());
            }
            return;
        }
        match Command::parse(line) {
            Ok(Some(command)) => {
                say!(3, "MANAGEMENT: CMD '{}'", command.shown(line));
                if let Err(reply) = self.command(&command) {
                    self.line(&reply);
                }
            }
            Ok(None) => {}
            Err(problem) => self.line(&format!("ERROR: {problem}")),
        }
    }

    fn password(&mut self, entered: &str) {
        let Some(talk) = &mut self.conversation else { return };
        let wanted = self.settings.password.as_ref().map(|password| password.as_bytes());
        if wanted.is_none_or(|wanted| constant_time_eq(wanted, entered.as_bytes())) {
            talk.authenticated = true;
            self.line("SUCCESS: password is correct");
            return self.welcome();
        }
        talk.wrong_passwords = talk.wrong_passwords.saturating_add(1);
        let last = talk.wrong_passwords >= PASSWORD_TRIES;
        talk.closing = last;
        tracing::warn!("MANAGEMENT: wrong password");
        self.line("ERROR: bad password");
        if !last {
            self.put("ENTER PASSWORD:");
        }
    }
}

/// Feeds a conversation to a session, for the fuzzer: the first byte chooses the kind of program and whether there is a
/// password.
pub(super) fn fuzz(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let mode = match kind & 3 {
        0 => Mode::Server,
        1 => Mode::PointToPoint,
        _ => Mode::Client,
    };
    let password = (kind & 4 != 0).then(|| Zeroizing::new("secret".to_owned()));
    let remotes = vec![("vpn.example.com".to_owned(), 1194, "udp")];
    let settings = Settings {
        mode,
        banner: "adit",
        status_version: 2,
        password,
        hold: true,
        client_auth: true,
        auth_retry: AuthRetry::None,
        remotes,
    };
    let mut session = Session::new(settings, Arc::new(LogCache::new(10)));
    session.connected();
    let login = Question::Login { kind: "Auth".into(), password_only: false, challenge: None };
    let _answers = [session.ask(login), session.ask(Question::Hold(1))];
    let variables = [("common_name".to_owned(), "a".to_owned())];
    let _verdict = session.ask_about("CONNECT", (0, 0), &variables, Box::new(|_, _| true));
    // Pieces of any length, with answers between them.
    for piece in rest.chunks(usize::from(*kind).max(1)) {
        session.input(piece);
        while let Some(action) = session.action() {
            if let Action::Ask(_) = action {
                session.reply(Reply::Killed(1));
            }
        }
        session.take_log();
        assert!(session.output().len() <= MAX_OUTPUT);
        let sent = session.output().len() / 2;
        session.sent(sent);
    }
    session.disconnected();
}
