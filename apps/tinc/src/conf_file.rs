//! A configuration file that is changed line by line, so that comments and the order of lines survive.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use adit_linux::file::replace;
use adit_runtime::fault::Fault;
use adit_tinc::config::split_line;

use crate::console::reason;

/// The suffix of a file that is being written. No node can have such a name.
const TEMPORARY: &str = ".adit.tmp";

/// A configuration file in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfFile {
    path: PathBuf,
    /// The lines, with their ends.
    lines: Vec<String>,
    /// The bytes of the file are not UTF-8: each is a character in memory, and a byte again when the file is written.
    latin1: bool,
}

impl ConfFile {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Fault> {
        let bytes = std::fs::read(path).map_err(|error| {
            let (path, reason) = (path.display(), reason(&error));
            Fault::operator(format!("Could not open configuration file {path}: {reason}"))
        })?;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => Self::new(path, &text),
            Err(error) => {
                let text: String = error.as_bytes().iter().copied().map(char::from).collect();
                Self { latin1: true, ..Self::new(path, &text) }
            }
        })
    }

    /// Creates the file from its text.
    pub(crate) fn new(path: &Path, text: &str) -> Self {
        let lines = text.split_inclusive('\n').map(str::to_owned).collect();
        Self { path: path.to_owned(), lines, latin1: false }
    }

    /// Returns the variables and their values, in the order of the lines.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        variable_lines(&self.lines).map(|(_, name, value)| (name, value))
    }

    /// Returns the first value of a variable.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.variables().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Gives a variable one value, at the place of its first line. Returns the values that were removed.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Vec<String> {
        let places = self.places(name, None);
        let line = format!("{name} = {value}\n");
        let removed = self.values_at(&places).into_iter().filter(|old| old != value).collect();
        match places.split_first() {
            None => self.append(&line),
            Some((first, rest)) => {
                if let Some(place) = self.lines.get_mut(*first) {
                    *place = line;
                }
                self.remove_at(rest);
            }
        }
        removed
    }

    /// Adds a value to a variable, unless it has this value.
    pub(crate) fn add(&mut self, name: &str, value: &str) {
        if self.places(name, Some(value)).is_empty() {
            self.append(&format!("{name} = {value}\n"));
        }
    }

    /// Removes a variable, or only one of its values. Returns the number of removed lines.
    pub(crate) fn remove(&mut self, name: &str, value: Option<&str>) -> usize {
        let places = self.places(name, value);
        self.remove_at(&places);
        places.len()
    }

    /// Turns all lines of a variable and all blocks of a kind into comments. Returns whether there was any.
    pub(crate) fn disable(&mut self, name: Option<&str>, block: &str) -> bool {
        let mut places = name.map(|name| self.places(name, None)).unwrap_or_default();
        let (begin, end) = (format!("-----BEGIN {block}-----"), format!("-----END {block}-----"));
        let mut inside = false;
        for (place, line) in self.lines.iter().enumerate() {
            let line = line.trim_end();
            inside |= line == begin;
            if inside {
                places.push(place);
            }
            inside &= line != end;
        }
        for place in &places {
            if let Some(line) = self.lines.get_mut(*place) {
                line.insert(0, '#');
            }
        }
        !places.is_empty()
    }

    /// Appends text, on a line of its own.
    pub(crate) fn append(&mut self, text: &str) {
        if let Some(last) = self.lines.last_mut()
            && !last.ends_with('\n')
        {
            last.push('\n');
        }
        self.lines.extend(text.split_inclusive('\n').map(str::to_owned));
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> String {
        self.lines.concat()
    }

    /// Returns the content of the file.
    fn bytes(&self) -> Vec<u8> {
        if !self.latin1 {
            return self.text().into_bytes();
        }
        let mut bytes = Vec::new();
        for char in self.text().chars() {
            match u8::try_from(char) {
                Ok(byte) => bytes.push(byte),
                Err(_) => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes
    }

    /// Writes the file, with the mode that it had or else `mode`. The old file remains until the new one is complete.
    pub(crate) fn write(&self, mode: u32) -> Result<(), Fault> {
        let known = std::fs::metadata(&self.path).map(|data| data.permissions().mode() & 0o7777);
        write_file(&self.path, &self.bytes(), known.unwrap_or(mode))
    }

    fn places(&self, name: &str, value: Option<&str>) -> Vec<usize> {
        let wanted = |found: &str, is: &str| {
            found.eq_ignore_ascii_case(name) && value.is_none_or(|value| value == is)
        };
        variable_lines(&self.lines)
            .filter(|(_, found, is)| wanted(found, is))
            .map(|(place, _, _)| place)
            .collect()
    }

    fn values_at(&self, places: &[usize]) -> Vec<String> {
        let lines = places.iter().filter_map(|place| self.lines.get(*place));
        lines.map(|line| split_line(line.trim()).1.to_owned()).collect()
    }

    fn remove_at(&mut self, places: &[usize]) {
        let mut place = 0;
        self.lines.retain(|_| {
            let keep = !places.contains(&place);
            place += 1;
            keep
        });
    }
}

/// Returns the lines with variables: all but comments, empty ones, and blocks.
fn variable_lines(lines: &[String]) -> impl Iterator<Item = (usize, &str, &str)> {
    let mut inside = false;
    lines.iter().enumerate().filter_map(move |(place, line)| {
        let line = line.trim();
        if inside || line.starts_with("-----BEGIN") {
            inside = !line.starts_with("-----END");
            return None;
        }
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (name, value) = split_line(line);
        Some((place, name, value))
    })
}

/// Reads the text of a configuration file. Bytes that are not UTF-8, as in old comments, become U+FFFD.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    std::fs::read(path).map(adit_tinc::config::decode)
}

/// Writes a file through a temporary one.
pub(crate) fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), Fault> {
    replace(path, content, mode, TEMPORARY).map_err(|error| cannot_write(path, &error))
}

pub(crate) fn cannot_write(path: &Path, error: &io::Error) -> Fault {
    Fault::environment(format!("Could not write {}: {}", path.display(), reason(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> ConfFile {
        ConfFile::new(Path::new("tinc.conf"), text)
    }

    #[test]
    fn a_set_variable_keeps_its_place_and_the_comments() {
        let mut conf = file("Name = alice\n# who\nmode hub\n\nMODE=switch\nPort = 5");
        assert_eq!(conf.set("Mode", "router"), ["hub", "switch"]);
        assert_eq!(conf.set("Device", "x"), [] as [&str; 0]);
        assert_eq!(conf.text(), "Name = alice\n# who\nMode = router\n\nPort = 5\nDevice = x\n");
        assert_eq!(conf.set("Mode", "router"), [] as [&str; 0], "the same value is no removal");
    }

    #[test]
    fn values_are_added_once_and_removed_by_value() {
        let mut conf = file("");
        conf.add("Subnet", "10.0.0.0/8");
        conf.add("subnet", "10.0.0.0/8");
        conf.add("Subnet", "fd00::/8");
        assert_eq!(conf.variables().count(), 2);
        assert_eq!(conf.remove("Subnet", Some("10.1.0.0/16")), 0);
        assert_eq!(conf.remove("Subnet", Some("fd00::/8")), 1);
        assert_eq!(conf.text(), "Subnet = 10.0.0.0/8\n");
        assert_eq!(conf.remove("Subnet", None), 1);
        assert_eq!(conf.value("Subnet"), None);
    }

    #[test]
    fn lines_in_blocks_are_no_variables_and_old_blocks_become_comments() {
        let text = "-----BEGIN A-----\nPort = 5\n-----END A-----\nPort = 6\n-----BEGIN B-----\nx\n-----END B-----\n";
        let mut conf = file(text);
        assert_eq!(conf.value("Port"), Some("6"));
        assert!(conf.disable(Some("port"), "A"));
        assert_eq!(
            conf.text(),
            "#-----BEGIN A-----\n#Port = 5\n#-----END A-----\n#Port = 6\n-----BEGIN B-----\nx\n-----END B-----\n"
        );
        assert!(!conf.disable(Some("port"), "A"));
    }

    #[test]
    fn a_file_keeps_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, b"# B\xfcro\nA = 1\n").unwrap();
        let mut conf = ConfFile::read(&path).unwrap();
        conf.set("A", "2");
        conf.add("B", "\u{2603}");
        conf.write(0o640).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"# B\xfcro\nA = 2\nB = \xe2\x98\x83\n");
    }

    #[test]
    fn a_file_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let conf = ConfFile::new(&path, "A = 1\n");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        conf.write(0o640).unwrap();
        assert_eq!(mode(), 0o640);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        conf.write(0o640).unwrap();
        assert_eq!(mode(), 0o600);
        assert_eq!(ConfFile::read(&path).unwrap(), conf);
    }
}
