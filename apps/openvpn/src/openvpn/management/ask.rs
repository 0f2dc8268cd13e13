//! Passwords, certificates and signatures of a management client.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_engine::auth::Challenge;
use adit_openvpn::client::Credentials;
use adit_openvpn::config::{Padding, UserPass};
use adit_openvpn::tls::{KeyHolder, SignatureForm};
use adit_runtime::fault::Fault;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use zeroize::Zeroizing;

use super::super::key_files::{Ask, Terminal};
use super::question::{Answer, Question};
use super::session::Identity;
use super::{Handle, Management, READ, Waited, lock};
use crate::token_host::PinEntry;

/// The time that a management client has for a signature or a PIN. The server does not wait longer for a handshake either.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Asks the management client before the program runs.
pub(crate) struct ManagementClient<'a>(&'a mut Management);

impl Management {
    /// Returns the management client as the party that enters passwords.
    pub(crate) fn ask_there(&mut self) -> ManagementClient<'_> {
        ManagementClient(self)
    }
}

impl ManagementClient<'_> {
    fn enter(
        &mut self,
        kind: &str,
        password_only: bool,
        challenge: Option<(bool, String)>,
    ) -> Result<Credentials, Fault> {
        let kind = kind.to_owned();
        match self.0.ask(Question::Login { kind, password_only, challenge })? {
            Waited::Answer(Answer::Login { username, password }) => {
                Ok(Credentials { username, password })
            }
            Waited::Answer(_) | Waited::Signal(_) => Err(interrupted("a password")),
        }
    }
}

fn interrupted(what: &str) -> Fault {
    Fault::environment(format!("a signal ended the wait for {what} from the management interface"))
}

impl Ask for ManagementClient<'_> {
    fn can_answer(&self) -> bool {
        self.0.asks_passwords() || Terminal.can_answer()
    }

    fn key_password(&mut self) -> Result<Zeroizing<String>, Fault> {
        if !self.0.asks_passwords() {
            return Terminal.key_password();
        }
        self.enter("Private Key", true, None).map(|entered| entered.password)
    }

    fn key_refused(&mut self, reason: &str) -> Result<(), Fault> {
        if !self.0.asks_passwords() {
            return Terminal.key_refused(reason);
        }
        self.0.handle().refused("Private Key", None);
        Err(Fault::operator("Error: private key password verification failed"))
    }

    fn login(&mut self, kind: &str, username: Option<String>) -> Result<Credentials, Fault> {
        if !self.0.asks_passwords() {
            return Terminal.login(kind, username);
        }
        let entered = self.enter(kind, username.is_some(), None)?;
        Ok(Credentials { username: username.unwrap_or(entered.username), ..entered })
    }

    fn login_with_challenge(
        &mut self,
        from: &UserPass,
        challenge: &Challenge,
    ) -> Result<Credentials, Fault> {
        if !self.0.asks_passwords() {
            return Terminal.login_with_challenge(from, challenge);
        }
        // The management client puts the password and the response together.
        self.enter("Auth", false, Some((challenge.echo, challenge.text.clone())))
    }

    fn certificate(&mut self, hint: &str) -> Result<String, Fault> {
        match self.0.ask(Question::Certificate(hint.to_owned()))? {
            Waited::Answer(Answer::Certificate(lines)) => Ok(pem(&lines)),
            Waited::Answer(_) | Waited::Signal(_) => Err(interrupted("a certificate")),
        }
    }

    fn token_pin(&mut self, token: &str) -> Result<Zeroizing<String>, Fault> {
        if !self.0.asks_passwords() {
            return Terminal.token_pin(token);
        }
        self.enter(&format!("{token} token"), true, None).map(|entered| entered.password)
    }

    fn insert_token(&mut self, token: &str) -> Result<bool, Fault> {
        if !self.0.asks_passwords() {
            return Terminal.insert_token(token);
        }
        let (kind, message) = ("token-insertion-request", format!("Please insert {token} token"));
        match self.0.ask(Question::Confirm { kind, message })? {
            Waited::Answer(Answer::Confirmed(ok)) => Ok(ok),
            Waited::Answer(_) | Waited::Signal(_) => Err(interrupted("a token")),
        }
    }

    fn show_tokens(&mut self, identities: Vec<(String, String)>) {
        let identities = identities.into_iter().map(|(id, blob)| Identity { id, blob });
        self.0.handle().session().set_identities(identities.collect());
    }

    fn token_certificate(&mut self) -> Result<String, Fault> {
        if !self.0.asks_passwords() {
            return Terminal.token_certificate();
        }
        let message = "Please specify PKCS#11 id to use".into();
        match self.0.ask(Question::Text { kind: "pkcs11-id-request", message })? {
            Waited::Answer(Answer::Text(id)) => Ok(id),
            Waited::Answer(_) | Waited::Signal(_) => Err(interrupted("a certificate")),
        }
    }

    fn pin_entry(&self) -> Option<Arc<dyn PinEntry>> {
        if !self.0.asks_passwords() {
            return Terminal.pin_entry();
        }
        Some(Arc::new(ManagementPin { handle: self.0.handle() }))
    }

    fn key_holder(&mut self, padding: &[Padding]) -> Result<Arc<dyn KeyHolder>, Fault> {
        Ok(Arc::new(ManagementKey { handle: self.0.handle(), padding: padding.to_vec() }))
    }
}

/// Adds the first and the last line of PEM, if the management client sent only what is between them.
fn pem(lines: &[String]) -> String {
    let text = lines.join("\n");
    if text.contains("-----BEGIN") {
        return text;
    }
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

/// The management client, while the program runs.
struct ManagementPin {
    handle: Handle,
}

impl std::fmt::Debug for ManagementPin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ManagementPin")
    }
}

impl PinEntry for ManagementPin {
    fn pin(&self, token: &str) -> Option<Zeroizing<String>> {
        let kind = format!("{token} token");
        let question = Question::Login { kind, password_only: true, challenge: None };
        match self.handle.answer_now(question, ANSWER_LIMIT) {
            Some(Answer::Login { password, .. }) => Some(password),
            _ => None,
        }
    }
}

/// A private key that the management client has (`management-external-key`).
struct ManagementKey {
    handle: Handle,
    padding: Vec<Padding>,
}

impl std::fmt::Debug for ManagementKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ManagementKey")
    }
}

impl KeyHolder for ManagementKey {
    fn makes(&self, form: SignatureForm) -> bool {
        match form {
            SignatureForm::Ecdsa => true,
            SignatureForm::Pkcs1 => self.padding.contains(&Padding::Pkcs1),
            SignatureForm::Pss(_) => self.padding.contains(&Padding::Pss),
            SignatureForm::Raw => self.padding.contains(&Padding::None),
        }
    }

    fn sign(&self, form: SignatureForm, data: &[u8]) -> Result<Vec<u8>, String> {
        let algorithm = match form {
            SignatureForm::Ecdsa => "ECDSA".to_owned(),
            SignatureForm::Pkcs1 => "RSA_PKCS1_PADDING".to_owned(),
            SignatureForm::Raw => "RSA_NO_PADDING".to_owned(),
            SignatureForm::Pss(digest) => {
                format!("RSA_PKCS1_PSS_PADDING,hashalg={},saltlen=digest", digest.name())
            }
        };
        let question = Question::Sign { data: STANDARD.encode(data), algorithm };
        let Some(Answer::Signature(text)) = self.handle.answer_now(question, ANSWER_LIMIT) else {
            return Err("the management client made no signature".into());
        };
        STANDARD
            .decode(text)
            .map_err(|_| "the signature of the management client is not base64".into())
    }
}

impl Handle {
    /// Asks the connected client a question and waits for the answer without letting anything else run, because the TLS
    /// library cannot continue without it.
    fn answer_now(&self, question: Question, limit: Duration) -> Option<Answer> {
        let until = Instant::now() + limit;
        let mut answer = self.ask(question);
        let mut bytes = vec![0; READ];
        loop {
            if let Ok(answer) = answer.try_recv() {
                return Some(answer);
            }
            let stream = lock(&self.0.stream).clone()?;
            let wants = {
                let mut session = self.session();
                while let Ok(sent @ 1..) = stream.write(session.output()) {
                    session.sent(sent);
                }
                match (session.output().is_empty(), session.wants_input()) {
                    (true, _) => PollFlags::POLLIN,
                    (false, true) => PollFlags::POLLIN | PollFlags::POLLOUT,
                    (false, false) => PollFlags::POLLOUT,
                }
            };
            let left = until.checked_duration_since(Instant::now())?;
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut watched = [PollFd::new(stream.as_fd(), wants)];
            poll(&mut watched, left).ok()?;
            if wants.contains(PollFlags::POLLIN) {
                match stream.read(&mut bytes) {
                    Ok(0) => return None,
                    Ok(count) => self.session().input(bytes.get(..count).unwrap_or_default()),
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => return None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_pem_with_or_without_its_frame() {
        let framed = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(pem(&["AAAA".to_owned()]), framed);
        let lines: Vec<String> = framed.lines().map(str::to_owned).collect();
        assert_eq!(pem(&lines), framed.trim_end());
    }
}
