//! The handle on the interface, for the parts of the program that report to it.

use std::net::IpAddr;
use std::sync::MutexGuard;

use adit_runtime::clock::unix_time;
use tokio::sync::{mpsc, oneshot};

use super::super::status::Totals;
use super::clients::{ClientKey, ClientVerdict, Extend};
use super::history::State;
use super::login::ManagementLogin;
use super::program::ServerProgram;
use super::question::{Answer, Question};
use super::session::{Action, Reply, Session};
use super::{Handle, lock, raise};
use crate::client::{COMMAND_LIMIT, ClientCommand};

impl Handle {
    pub(super) fn session(&self) -> MutexGuard<'_, Session> {
        lock(&self.0.session)
    }

    /// Carries out the actions of the session.
    pub(super) async fn perform(&self) {
        loop {
            let action = self.session().action();
            let Some(action) = action else { return };
            match action {
                Action::Signal(signal) => raise(signal),
                Action::Client(command) => self.command(command),
                Action::Ask(request) => {
                    let program = lock(&self.0.program).clone();
                    let reply = match program {
                        Some(program) => program.answer(request).await,
                        None => Reply::Unavailable,
                    };
                    self.session().reply(reply);
                }
            }
        }
    }

    /// Sends a command to the running client, if there is one.
    pub(super) fn command(&self, command: ClientCommand) {
        if let Some(commands) = &*lock(&self.0.commands)
            && commands.try_send(command).is_err()
        {
            tracing::warn!("MANAGEMENT: the client is busy: a command was dropped");
        }
    }

    /// Returns the commands to a client that is about to run. The first one
    /// is the `auth-retry` that holds by then, as the management client may
    /// have changed it before.
    pub(crate) fn commands(&self) -> mpsc::Receiver<ClientCommand> {
        let (sender, receiver) = mpsc::channel(COMMAND_LIMIT);
        let retry = self.session().current_auth_retry();
        sender.try_send(ClientCommand::AuthRetry(retry)).expect("a new channel has room");
        *lock(&self.0.commands) = Some(sender);
        receiver
    }

    /// Returns the management client as the source of a client's password.
    pub(crate) fn login(&self) -> ManagementLogin {
        ManagementLogin(self.clone())
    }

    /// Records a state.
    pub(crate) fn state(&self, state: &State) {
        self.session().state(unix_time().0, state);
        self.0.wake.notify_one();
    }

    /// Records an `echo` of the configuration or of the server.
    pub(crate) fn echo(&self, text: &str) {
        self.session().echo(unix_time().0, text);
        self.0.wake.notify_one();
    }

    /// Records the traffic of a client, once a second.
    pub(crate) fn traffic(&self, totals: Totals) {
        self.session().traffic(totals);
        self.0.wake.notify_one();
    }

    /// Handles a second of a server. Returns whether the traffic of its clients is to be reported.
    pub(crate) fn second(&self) -> bool {
        self.session().second()
    }

    /// Sends notifications.
    pub(crate) fn notify(&self, lines: impl IntoIterator<Item = String>) {
        let mut session = self.session();
        lines.into_iter().for_each(|line| session.notify(&line));
        drop(session);
        self.0.wake.notify_one();
    }

    /// Asks for a verdict on a client of the server. `None` if too many wait. The verdict may never come.
    pub(super) fn ask_about(
        &self,
        head: &str,
        key: ClientKey,
        variables: &[(String, String)],
        extend: Extend,
    ) -> Option<oneshot::Receiver<ClientVerdict>> {
        let verdict = self.session().ask_about(head, key, variables, extend);
        self.0.wake.notify_one();
        verdict
    }

    /// Sends a notification with variables. Its source is `CLIENT` or `UPDOWN`.
    pub(crate) fn tell(&self, source: &str, head: &str, variables: &[(String, String)]) {
        self.session().tell(source, head, variables);
        self.0.wake.notify_one();
    }

    /// Forgets the requests of a client of the server that has gone.
    pub(super) fn forget_client(&self, session: u64) {
        self.session().forget_client(session);
    }

    /// Reports that a password was refused; `kind` is `Auth` or `Private Key`, and `reason` the other end's text.
    pub(crate) fn refused(&self, kind: &str, reason: Option<&str>) {
        let text = match reason.filter(|reason| !reason.is_empty()) {
            Some(reason) => format!(">PASSWORD:Verification Failed: '{kind}' ['{reason}']"),
            None => format!(">PASSWORD:Verification Failed: '{kind}'"),
        };
        self.notify([text]);
    }

    /// Reports the error that ends the program.
    pub(crate) fn fatal(&self, text: &str) {
        self.notify([format!(">FATAL:{text}")]);
    }

    /// Asks the management client a question. The answer may take forever; dropping the receiver withdraws the
    /// question.
    pub(super) fn ask(&self, question: Question) -> oneshot::Receiver<Answer> {
        let answer = self.session().ask(question);
        self.0.wake.notify_one();
        answer
    }

    /// Asks a question and waits for the answer; `None` if another question of its kind replaced it.
    pub(super) async fn answer(&self, question: Question) -> Option<Answer> {
        self.ask(question).await.ok()
    }

    /// Returns whether `hold` is set.
    pub(crate) fn holds(&self) -> bool {
        self.session().holds()
    }

    /// Begins to send requests to the running server.
    pub(crate) fn attach(&self, program: ServerProgram) {
        *lock(&self.0.program) = Some(program);
    }

    /// Records the address of this end in the tunnel, for `management tunnel`.
    pub(crate) fn in_tunnel(&self, own: Option<IpAddr>) {
        *lock(&self.0.tunnel) = own;
        self.0.wake.notify_one();
    }
}
