//! The input and the outputs of a command.

use std::io::{self, Read, Write};

use adit_runtime::fault::Fault;

/// The longest input that a command reads, bytes.
const MAX_INPUT: u64 = 64 << 20;

/// The input and the outputs of a command.
pub struct Console<'a> {
    /// The standard input.
    pub input: &'a mut dyn Read,
    /// The result.
    pub out: &'a mut dyn Write,
    /// Warnings and progress.
    pub notes: &'a mut dyn Write,
    /// Whether warnings about names and values do not stop the command.
    pub force: bool,
}

impl Console<'_> {
    /// Writes a part of the result. It is not a failure if the reader has closed the pipe.
    pub fn print(&mut self, text: &str) {
        self.print_bytes(text.as_bytes());
    }

    /// Writes a part of the result.
    pub(crate) fn print_bytes(&mut self, bytes: &[u8]) {
        let _ = self.out.write_all(bytes).and_then(|()| self.out.flush());
    }

    /// Writes a line of warning or progress.
    pub fn note(&mut self, line: &str) {
        let _ = writeln!(self.notes, "{line}");
    }

    /// Reads the whole input.
    ///
    /// # Errors
    /// Fails if the input cannot be read, or is too long.
    pub(crate) fn read(&mut self) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        let read = self.input.take(MAX_INPUT).read_to_end(&mut bytes);
        read.map_err(|error| Fault::environment(format!("Could not read input: {error}")))?;
        if bytes.len() as u64 == MAX_INPUT {
            return Err(Fault::operator("The input is too long"));
        }
        Ok(bytes)
    }

    /// Reads the whole input as text.
    ///
    /// # Errors
    /// As [`Console::read`], or if the input is not UTF-8.
    pub(crate) fn read_text(&mut self) -> Result<String, Fault> {
        String::from_utf8(self.read()?).map_err(|_| Fault::operator("The input is not UTF-8"))
    }
}

/// Describes an error as C programs do, without the number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}
