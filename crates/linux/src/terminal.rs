//! Prompts on the controlling terminal.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

use nix::sys::termios::{self, LocalFlags, SetArg, Termios};
use zeroize::Zeroizing;

/// Longest answer in bytes. The kernel itself truncates a line at 4096.
const ANSWER: usize = 4096;

/// Asks `question` and returns the typed line without its newline.
///
/// # Errors
///
/// Fails if the process has no controlling terminal, or if the terminal is closed before an answer.
pub fn ask(question: &str) -> io::Result<String> {
    Ok(std::mem::take(&mut *answer(&mut open()?, question)?))
}

/// Asks `question` and returns the typed line without displaying it.
///
/// Echo is turned off before the question appears, so an answer that arrives immediately is not displayed either.
///
/// # Errors
///
/// As [`ask`].
pub fn ask_hidden(question: &str) -> io::Result<Zeroizing<String>> {
    let mut terminal = EchoOff::new(open()?)?;
    answer(&mut terminal.file, question)
}

fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/tty")
}

fn answer(terminal: &mut File, question: &str) -> io::Result<Zeroizing<String>> {
    terminal.write_all(question.as_bytes())?;
    // Allocated once: growing would leave copies of a secret behind.
    let mut line = Zeroizing::new(String::with_capacity(ANSWER));
    let mut bytes = Zeroizing::new([0; ANSWER]);
    let mut len = 0;
    // One byte at a time: any input after the line belongs to the next question.
    while len < ANSWER {
        match terminal.read(&mut bytes[len..=len]) {
            Ok(0) if len == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(_) if bytes[len] == b'\n' => break,
            Ok(_) => len += 1,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let text = std::str::from_utf8(&bytes[..len])
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the answer is not UTF-8"))?;
    line.push_str(text.trim_end_matches('\r'));
    Ok(line)
}

/// A terminal with echo disabled, except for the newline, until the value is dropped.
struct EchoOff {
    file: File,
    before: Termios,
}

impl EchoOff {
    fn new(file: File) -> io::Result<Self> {
        let before = termios::tcgetattr(&file)?;
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        silent.local_flags.insert(LocalFlags::ECHONL);
        termios::tcsetattr(&file, SetArg::TCSADRAIN, &silent)?;
        Ok(Self { file, before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(&self.file, SetArg::TCSADRAIN, &self.before);
    }
}
