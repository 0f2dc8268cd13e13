//! Questions to the operator, on the terminal. A program in the background has no terminal; it gets the answers from the
//! program that started it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_linux::terminal;
use zeroize::Zeroizing;

/// The maximum number of answers that are kept.
const ANSWER_LIMIT: usize = 16;

/// The answers by question.
pub type Answers = BTreeMap<String, String>;

#[derive(Debug, Default)]
struct Prompts {
    /// Whether answers from the terminal are kept.
    records: bool,
    answers: Answers,
}

static PROMPTS: Mutex<Prompts> = Mutex::new(Prompts { records: false, answers: BTreeMap::new() });

fn prompts() -> MutexGuard<'static, Prompts> {
    PROMPTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks a question and returns the answer, which the terminal displays.
///
/// # Errors
/// Fails if there is no answer and no terminal.
pub fn ask(question: &str) -> io::Result<String> {
    match known(question) {
        Some(answer) => Ok(answer),
        None => terminal::ask(question).inspect(|answer| keep(question, answer)),
    }
}

/// Asks a question and returns the answer, which the terminal does not display.
///
/// # Errors
/// As [`ask`].
pub fn ask_hidden(question: &str) -> io::Result<Zeroizing<String>> {
    match known(question) {
        Some(answer) => Ok(Zeroizing::new(answer)),
        None => terminal::ask_hidden(question).inspect(|answer| keep(question, answer)),
    }
}

/// Returns whether there is a terminal, or answers instead of one.
pub fn can_answer() -> bool {
    io::stdin().is_terminal() || !prompts().answers.is_empty()
}

/// Keeps the answers from now on, for [`recorded`].
pub fn record() {
    prompts().records = true;
}

/// Returns the answers since [`record`].
pub fn recorded() -> Answers {
    let mut prompts = prompts();
    prompts.records = false;
    std::mem::take(&mut prompts.answers)
}

/// Answers the questions of this process from now on.
pub fn give(answers: Answers) {
    *prompts() = Prompts { records: false, answers };
}

/// Returns the answer that was given in advance. While answers are recorded, each question is asked, because an answer that is
/// needed twice was wrong.
fn known(question: &str) -> Option<String> {
    let prompts = prompts();
    if prompts.records { None } else { prompts.answers.get(question).cloned() }
}

fn keep(question: &str, answer: &str) {
    let mut prompts = prompts();
    if prompts.records && prompts.answers.len() < ANSWER_LIMIT {
        prompts.answers.insert(question.to_owned(), answer.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_given_needs_no_terminal_and_the_last_one_is_recorded() {
        give(Answers::from([("Name: ".into(), "alice".into())]));
        assert_eq!(ask("Name: ").unwrap(), "alice");
        assert!(can_answer());
        record();
        assert_eq!(known("Name: "), None);
        keep("Password: ", "wrong");
        keep("Password: ", "right");
        assert_eq!(recorded().remove("Password: ").as_deref(), Some("right"));
        assert_eq!(recorded(), Answers::new());
    }
}
