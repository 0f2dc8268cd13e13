//! The questions of the program that a management client answers.

use tokio::sync::oneshot;
use zeroize::Zeroizing;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// `management-hold`: may the tunnel start? The number of seconds that the program would otherwise wait.
    Hold(u64),
    /// A password, and a user name unless `password_only`.
    Login {
        /// `Auth`, `Private Key`, `HTTP Proxy` or `SOCKS Proxy`.
        kind: String,
        password_only: bool,
        /// A static challenge: whether to show the response, and the text.
        challenge: Option<(bool, String)>,
    },
    /// `management-query-remote`: which server to connect to.
    Remote { host: String, port: u16, protocol: &'static str },
    /// `management-query-proxy`: which proxy to use for the server of this number.
    Proxy { number: usize, transport: &'static str, host: String },
    /// `management-external-cert`: our certificate, by a hint.
    Certificate(String),
    /// `management-external-key`: a signature of this data in base64, with this algorithm and padding.
    Sign { data: String, algorithm: String },
    /// A text, such as the id of a certificate (`pkcs11-id-management`).
    Text { kind: &'static str, message: String },
    /// Whether something is done, such as that a token is inserted.
    Confirm { kind: &'static str, message: String },
}

/// The answer to a [`Question`].
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `hold release`.
    Released,
    /// `username` and `password`.
    Login { username: String, password: Zeroizing<String> },
    /// `remote`.
    Remote(RemoteChoice),
    /// `proxy`.
    Proxy(ProxyChoice),
    /// The lines after `certificate`.
    Certificate(Vec<String>),
    /// The lines after `pk-sig` or `rsa-sig`, joined: base64.
    Signature(String),
    /// `needstr`.
    Text(String),
    /// `needok`: whether the answer is ok.
    Confirmed(bool),
}

// Written by hand to keep passwords out of the logs.
impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Released => f.write_str("Released"),
            Self::Login { username, .. } => write!(f, "Login({username:?})"),
            Self::Remote(choice) => choice.fmt(f),
            Self::Proxy(choice) => choice.fmt(f),
            Self::Certificate(_) => f.write_str("Certificate"),
            Self::Signature(_) => f.write_str("Signature"),
            Self::Text(text) => write!(f, "Text({text:?})"),
            Self::Confirmed(ok) => write!(f, "Confirmed({ok})"),
        }
    }
}

/// The answer to [`Question::Remote`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemoteChoice {
    /// Connect to the server of the configuration.
    Accept,
    /// Connect to another one.
    Modify(String, u16),
    /// Skip this many servers.
    Skip(usize),
}

/// The answer to [`Question::Proxy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProxyChoice {
    /// Connect without a proxy.
    None,
    /// An HTTP proxy; with `hidden`, no password is sent to it in the clear.
    Http { host: String, port: u16, hidden: bool },
    /// A SOCKS proxy.
    Socks { host: String, port: u16 },
}

impl Question {
    /// Returns the notification that asks the question of a client with this version.
    pub(super) fn text(&self, version: u8) -> String {
        match self {
            Self::Hold(seconds) => format!(">HOLD:Waiting for hold release:{seconds}"),
            Self::Login { kind, password_only: true, .. } => {
                format!(">PASSWORD:Need '{kind}' password")
            }
            Self::Login { kind, challenge, .. } => {
                let challenge = challenge
                    .as_ref()
                    .map(|(echo, text)| format!(" SC:{},{text}", u8::from(*echo)));
                format!(
                    ">PASSWORD:Need '{kind}' username/password{}",
                    challenge.unwrap_or_default()
                )
            }
            Self::Remote { host, port, protocol } => format!(">REMOTE:{host},{port},{protocol}"),
            Self::Proxy { number, transport, host } => {
                format!(">PROXY:{number},{transport},{host}")
            }
            Self::Certificate(hint) => format!(">NEED-CERTIFICATE:{hint}"),
            Self::Sign { data, algorithm } => match version {
                0..=1 => format!(">RSA_SIGN:{data}"),
                2 => format!(">PK_SIGN:{data}"),
                _ => format!(">PK_SIGN:{data},{algorithm}"),
            },
            Self::Text { kind, message } => format!(">NEED-STR:Need '{kind}' string MSG:{message}"),
            Self::Confirm { kind, message } => {
                format!(">NEED-OK:Need '{kind}' confirmation MSG:{message}")
            }
        }
    }

    /// Returns the line for the log while there is no answer.
    pub(super) fn waiting(&self) -> &'static str {
        match self {
            Self::Hold(_) => "Need hold release from management interface, waiting...",
            Self::Login { .. } => "Need password(s) from management interface, waiting...",
            Self::Certificate(_) => "Need certificate from management interface, waiting...",
            Self::Sign { .. } => "Need signature from management interface, waiting...",
            Self::Remote { .. } | Self::Proxy { .. } | Self::Text { .. } | Self::Confirm { .. } => {
                "Need information from management interface, waiting..."
            }
        }
    }
}

/// openvpn's names of what `needstr` and `needok` enter.
pub(super) const NEEDSTR: &str = "needstr-string";
pub(super) const NEEDOK: &str = "needok-confirmation";

/// A question that waits for its answer.
struct Pending {
    question: Question,
    answer: oneshot::Sender<Answer>,
    username: Option<String>,
    password: Option<Zeroizing<String>>,
}

/// The questions that wait for their answers: at most one of each kind.
#[derive(Default)]
pub(super) struct Questions(Vec<Pending>);

impl Questions {
    /// Adds a question, which replaces an earlier one of its kind.
    pub(super) fn ask(&mut self, question: Question) -> oneshot::Receiver<Answer> {
        let kind = std::mem::discriminant(&question);
        self.0.retain(|other| std::mem::discriminant(&other.question) != kind);
        let (answer, receiver) = oneshot::channel();
        self.0.push(Pending { question, answer, username: None, password: None });
        receiver
    }

    /// Returns the notifications of the questions that are still asked.
    pub(super) fn texts(&mut self, version: u8) -> Vec<String> {
        self.forget();
        self.0.iter().map(|pending| pending.question.text(version)).collect()
    }

    /// Returns whether the program waits for the lines after this command.
    pub(super) fn wants_lines(&mut self, command: &str) -> bool {
        self.forget();
        self.0.iter().any(|pending| takes_lines(&pending.question, command))
    }

    /// Handles the lines after `certificate`, `pk-sig` or `rsa-sig`. Returns whether the program waited for them.
    pub(super) fn take_lines(&mut self, command: &str, lines: Vec<String>) -> bool {
        self.forget();
        let answer = match command {
            "certificate" => Answer::Certificate(lines),
            _ => Answer::Signature(lines.concat()),
        };
        self.answer(|question| takes_lines(question, command), answer)
    }

    /// Returns the notification of the hold, if the program holds.
    pub(super) fn hold(&mut self) -> Option<String> {
        self.forget();
        let holds = |pending: &&Pending| matches!(pending.question, Question::Hold(_));
        self.0.iter().find(holds).map(|pending| pending.question.text(1))
    }

    /// Handles `hold release`. Returns whether the program waited for it.
    pub(super) fn release(&mut self) -> bool {
        self.forget();
        self.answer(|question| matches!(question, Question::Hold(_)), Answer::Released)
    }

    /// Handles `remote`. Returns whether the program waited for it.
    pub(super) fn choose(&mut self, choice: RemoteChoice) -> bool {
        self.forget();
        let asked = |question: &Question| matches!(question, Question::Remote { .. });
        self.answer(asked, Answer::Remote(choice))
    }

    /// Handles `proxy`. Returns whether the program waited for it.
    pub(super) fn choose_proxy(&mut self, choice: ProxyChoice) -> bool {
        self.forget();
        let asked = |question: &Question| matches!(question, Question::Proxy { .. });
        self.answer(asked, Answer::Proxy(choice))
    }

    /// Handles `username`, `password`, `needstr` and `needok`; `what` is openvpn's name of what is entered. Returns
    /// openvpn's reply.
    pub(super) fn enter(&mut self, what: &str, kind: &str, value: &str) -> String {
        self.forget();
        let asked = self.0.iter_mut().find_map(|pending| match (&pending.question, what) {
            (Question::Login { kind, password_only, .. }, "username" | "password") => {
                let (kind, only) = (kind.clone(), *password_only);
                (what != "username" || !only).then_some((kind, only, pending))
            }
            (Question::Text { kind, .. }, NEEDSTR) | (Question::Confirm { kind, .. }, NEEDOK) => {
                Some(((*kind).to_owned(), true, pending))
            }
            _ => None,
        });
        let Some((wanted, password_only, pending)) = asked else {
            return format!("ERROR: no {what} is currently needed at this time");
        };
        if wanted != kind {
            return format!(
                "ERROR: {what} of type '{kind}' entered, but we need one of type '{wanted}'"
            );
        }
        match what {
            "username" => pending.username = Some(value.to_owned()),
            NEEDSTR => {
                let asked = |question: &Question| matches!(question, Question::Text { .. });
                self.answer(asked, Answer::Text(value.to_owned()));
                return format!("SUCCESS: '{kind}' {what} entered, but not yet verified");
            }
            NEEDOK => {
                let asked = |question: &Question| matches!(question, Question::Confirm { .. });
                self.answer(asked, Answer::Confirmed(value == "ok"));
                return format!("SUCCESS: '{kind}' {what} entered, but not yet verified");
            }
            _ => pending.password = Some(Zeroizing::new(value.to_owned())),
        }
        if pending.password.is_some() && (password_only || pending.username.is_some()) {
            let username = pending.username.take().unwrap_or_default();
            let password = pending.password.take().unwrap_or_default();
            let asked = |question: &Question| matches!(question, Question::Login { .. });
            self.answer(asked, Answer::Login { username, password });
        }
        format!("SUCCESS: '{kind}' {what} entered, but not yet verified")
    }

    fn answer(&mut self, asked: impl Fn(&Question) -> bool, answer: Answer) -> bool {
        let Some(at) = self.0.iter().position(|pending| asked(&pending.question)) else {
            return false;
        };
        self.0.swap_remove(at).answer.send(answer).is_ok()
    }

    /// Removes the questions whose answer is no longer wanted.
    fn forget(&mut self) {
        self.0.retain(|pending| !pending.answer.is_closed());
    }
}

fn takes_lines(question: &Question, command: &str) -> bool {
    match question {
        Question::Certificate(_) => command == "certificate",
        Question::Sign { .. } => matches!(command, "pk-sig" | "rsa-sig"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(kind: &str, password_only: bool) -> Question {
        Question::Login { kind: kind.into(), password_only, challenge: None }
    }

    #[test]
    fn questions_have_openvpns_words() {
        let text = |question: Question| question.text(1);
        assert_eq!(text(Question::Hold(10)), ">HOLD:Waiting for hold release:10");
        assert_eq!(text(login("Private Key", true)), ">PASSWORD:Need 'Private Key' password");
        assert_eq!(text(login("Auth", false)), ">PASSWORD:Need 'Auth' username/password");
        let challenge = Some((true, "Please enter token PIN".into()));
        let asked = Question::Login { kind: "Auth".into(), password_only: false, challenge };
        assert_eq!(
            asked.text(1),
            ">PASSWORD:Need 'Auth' username/password SC:1,Please enter token PIN"
        );
        let remote =
            Question::Remote { host: "vpn.example.com".into(), port: 1194, protocol: "udp" };
        assert_eq!(remote.text(1), ">REMOTE:vpn.example.com,1194,udp");
    }

    #[test]
    fn a_signature_is_asked_for_as_the_version_of_the_client_knows_it() {
        let (data, algorithm) = ("AAAA".to_owned(), "ECDSA".to_owned());
        let question = Question::Sign { data, algorithm };
        let texts = [1, 2, 3].map(|version| question.text(version));
        assert_eq!(texts, [">RSA_SIGN:AAAA", ">PK_SIGN:AAAA", ">PK_SIGN:AAAA,ECDSA"]);
        let mut questions = Questions::default();
        assert!(!questions.wants_lines("pk-sig"));
        let mut answer = questions.ask(question);
        assert!(questions.wants_lines("rsa-sig") && !questions.wants_lines("certificate"));
        assert!(questions.take_lines("pk-sig", vec!["AA".into(), "BB".into()]));
        assert_eq!(answer.try_recv(), Ok(Answer::Signature("AABB".into())));
    }

    #[test]
    fn a_login_is_complete_with_both_parts_in_any_order() {
        for order in [["username", "password"], ["password", "username"]] {
            let mut questions = Questions::default();
            let mut answer = questions.ask(login("Auth", false));
            let first = questions.enter(order[0], "Auth", "x");
            assert_eq!(
                first,
                format!("SUCCESS: 'Auth' {} entered, but not yet verified", order[0])
            );
            assert!(answer.try_recv().is_err());
            questions.enter(order[1], "Auth", "x");
            let got = answer.try_recv().unwrap();
            let password = Zeroizing::new("x".to_owned());
            assert_eq!(got, Answer::Login { username: "x".into(), password });
            assert!(questions.texts(1).is_empty());
        }
    }

    #[test]
    fn an_empty_password_is_a_password() {
        let mut questions = Questions::default();
        let mut answer = questions.ask(login("Private Key", true));
        questions.enter("password", "Private Key", "");
        assert!(answer.try_recv().is_ok());
    }

    #[test]
    fn a_part_that_is_not_asked_for_is_refused_in_openvpns_words() {
        let mut questions = Questions::default();
        let reply = questions.enter("password", "Auth", "x");
        assert_eq!(reply, "ERROR: no password is currently needed at this time");
        let _answer = questions.ask(login("Private Key", true));
        let reply = questions.enter("password", "Auth", "x");
        assert_eq!(
            reply,
            "ERROR: password of type 'Auth' entered, but we need one of type 'Private Key'"
        );
        let reply = questions.enter("username", "Private Key", "x");
        assert_eq!(reply, "ERROR: no username is currently needed at this time");
    }

    #[test]
    fn texts_and_confirmations_are_asked_for_in_openvpns_words() {
        let kind = "pkcs11-id-request";
        let text = Question::Text { kind, message: "Please specify PKCS#11 id to use".into() };
        assert_eq!(
            text.text(5),
            ">NEED-STR:Need 'pkcs11-id-request' string MSG:Please specify PKCS#11 id to use"
        );
        let kind = "token-insertion-request";
        let confirm = Question::Confirm { kind, message: "Please insert office token".into() };
        assert_eq!(
            confirm.text(5),
            ">NEED-OK:Need 'token-insertion-request' confirmation MSG:Please insert office token"
        );
        let mut questions = Questions::default();
        let none = "ERROR: no needstr-string is currently needed at this time";
        assert_eq!(questions.enter(NEEDSTR, "pkcs11-id-request", "x"), none);
        let mut answers = [questions.ask(text), questions.ask(confirm)];
        assert_eq!(
            questions.enter(NEEDSTR, "x", "y"),
            "ERROR: needstr-string of type 'x' entered, but we need one of type 'pkcs11-id-request'"
        );
        assert_eq!(
            questions.enter(NEEDSTR, "pkcs11-id-request", "a/b"),
            "SUCCESS: 'pkcs11-id-request' needstr-string entered, but not yet verified"
        );
        assert_eq!(answers[0].try_recv(), Ok(Answer::Text("a/b".into())));
        assert!(answers[1].try_recv().is_err());
        assert_eq!(
            questions.enter(NEEDOK, "token-insertion-request", "cancel"),
            "SUCCESS: 'token-insertion-request' needok-confirmation entered, but not yet verified"
        );
        assert_eq!(answers[1].try_recv(), Ok(Answer::Confirmed(false)));
        let mut again = questions.ask(Question::Confirm { kind, message: String::new() });
        questions.enter(NEEDOK, kind, "ok");
        assert_eq!(again.try_recv(), Ok(Answer::Confirmed(true)));
    }

    #[test]
    fn a_question_that_is_withdrawn_cannot_be_answered() {
        let mut questions = Questions::default();
        drop(questions.ask(Question::Hold(0)));
        assert!(questions.texts(1).is_empty() && !questions.release());
        let _first = questions.ask(Question::Hold(0));
        let mut second = questions.ask(Question::Hold(1));
        assert_eq!(questions.texts(1), [">HOLD:Waiting for hold release:1"]);
        assert!(questions.release() && !questions.release());
        assert_eq!(second.try_recv(), Ok(Answer::Released));
    }
}
