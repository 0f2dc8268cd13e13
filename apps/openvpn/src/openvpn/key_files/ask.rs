//! Questions to the party that enters passwords.

use std::io;
use std::sync::Arc;

use adit_engine::auth::Challenge;
use adit_openvpn::client::Credentials;
use adit_openvpn::client::challenge::respond;
use adit_openvpn::config::{Padding, UserPass};
use adit_openvpn::tls::KeyHolder;
use adit_runtime::fault::Fault;
use adit_runtime::prompts;
use zeroize::Zeroizing;

use super::credentials_asking;
use crate::token_host::PinEntry;

/// The party that enters passwords that are in no file.
pub(crate) trait Ask {
    /// Returns whether there is anyone who could answer.
    fn can_answer(&self) -> bool;

    /// Asks for the password of the private key.
    ///
    /// # Errors
    /// There is no answer.
    fn key_password(&mut self) -> Result<Zeroizing<String>, Fault>;

    /// Reports that the password of the private key is wrong.
    ///
    /// # Errors
    /// There is no second try.
    fn key_refused(&mut self, reason: &str) -> Result<(), Fault>;

    /// Asks for a password and, unless it is known, for a user name. `kind` is `Auth` or `HTTP Proxy`.
    ///
    /// # Errors
    /// There is no answer.
    fn login(&mut self, kind: &str, username: Option<String>) -> Result<Credentials, Fault>;

    /// Reads or asks for the user name and password, and asks for the answer to a static challenge. Returns the
    /// password in the form in which it is sent.
    ///
    /// # Errors
    /// There is no answer.
    fn login_with_challenge(
        &mut self,
        from: &UserPass,
        challenge: &Challenge,
    ) -> Result<Credentials, Fault>;

    /// Asks for our certificate (`management-external-cert`), as PEM.
    ///
    /// # Errors
    /// There is no answer.
    fn certificate(&mut self, hint: &str) -> Result<String, Fault> {
        let _ = hint;
        Err(no_management())
    }

    /// Asks for the PIN of a token.
    ///
    /// # Errors
    /// There is no answer.
    fn token_pin(&mut self, token: &str) -> Result<Zeroizing<String>, Fault> {
        prompt(&format!("Enter {token} token Password: "))
    }

    /// Asks to insert a token. Returns whether it should be there now.
    ///
    /// # Errors
    /// There is no answer.
    fn insert_token(&mut self, token: &str) -> Result<bool, Fault> {
        let question = format!("Please insert {token} token, and enter ok or cancel: ");
        let answer = prompts::ask(&question).map_err(|e| no_terminal(&question, &e))?;
        Ok(answer.trim() == "ok")
    }

    /// Shows the certificates on tokens: the id and base64 of each.
    fn show_tokens(&mut self, identities: Vec<(String, String)>) {
        drop(identities);
    }

    /// Asks for the id of a certificate on a token (`pkcs11-id-management`).
    ///
    /// # Errors
    /// There is no answer.
    fn token_certificate(&mut self) -> Result<String, Fault> {
        let question = "Please specify PKCS#11 id to use: ";
        prompts::ask(question).map_err(|e| no_terminal(question, &e))
    }

    /// Returns the party that enters a PIN while the program runs.
    fn pin_entry(&self) -> Option<Arc<dyn PinEntry>> {
        prompts::can_answer().then(|| Arc::new(TerminalPin) as Arc<dyn PinEntry>)
    }

    /// Returns the holder of our key (`management-external-key`).
    ///
    /// # Errors
    /// There is none.
    fn key_holder(&mut self, padding: &[Padding]) -> Result<Arc<dyn KeyHolder>, Fault> {
        let _ = padding;
        Err(no_management())
    }
}

fn no_management() -> Fault {
    Fault::operator("management-external-key: there is no management interface here: add key FILE")
}

/// The terminal, while the program runs.
#[derive(Debug)]
struct TerminalPin;

impl PinEntry for TerminalPin {
    fn pin(&self, token: &str) -> Option<Zeroizing<String>> {
        // After `daemon` there is no terminal.
        prompt(&format!("Enter {token} token Password: ")).ok()
    }
}

/// The terminal.
pub(crate) struct Terminal;

impl Ask for Terminal {
    fn can_answer(&self) -> bool {
        prompts::can_answer()
    }

    fn key_password(&mut self) -> Result<Zeroizing<String>, Fault> {
        prompt("Enter Private Key Password: ")
    }

    fn key_refused(&mut self, reason: &str) -> Result<(), Fault> {
        eprintln!("{reason}");
        Ok(())
    }

    fn login(&mut self, kind: &str, username: Option<String>) -> Result<Credentials, Fault> {
        let username = match username {
            Some(username) => username,
            None => prompt_name(&format!("Enter {kind} Username: "))?,
        };
        Ok(Credentials { username, password: prompt(&format!("Enter {kind} Password: "))? })
    }

    fn login_with_challenge(
        &mut self,
        from: &UserPass,
        challenge: &Challenge,
    ) -> Result<Credentials, Fault> {
        let Credentials { username, password } = credentials_asking(from, self)?;
        let response = ask_challenge(challenge)?;
        Ok(Credentials { username, password: respond(challenge, &password, &response) })
    }
}

/// Shows a challenge to the user and returns the response.
pub(in super::super) fn ask_challenge(challenge: &Challenge) -> Result<Zeroizing<String>, Fault> {
    // The text may be the server's. A terminal must not take parts of it for commands.
    let shown: String = challenge.text.chars().filter(|c| !c.is_control()).collect();
    let question = format!("CHALLENGE: {shown} ");
    if challenge.echo {
        let answer = prompts::ask(&question).map_err(|e| no_terminal(&question, &e))?;
        return Ok(Zeroizing::new(answer));
    }
    prompt(&question)
}

/// Asks for a secret without echo.
pub(in super::super) fn prompt(question: &str) -> Result<Zeroizing<String>, Fault> {
    prompts::ask_hidden(question).map_err(|e| no_terminal(question, &e))
}

fn prompt_name(question: &str) -> Result<String, Fault> {
    let name = prompts::ask(question).map_err(|e| no_terminal(question, &e))?;
    Ok(name.trim_end().to_owned())
}

fn no_terminal(question: &str, e: &io::Error) -> Fault {
    Fault::operator(format!(
        "'{}' cannot be asked without a terminal ({e}): put user name and password on two lines of a file and name it in \
         'auth-user-pass', or the key's password in 'askpass'",
        question.trim_end_matches(": ")
    ))
}
