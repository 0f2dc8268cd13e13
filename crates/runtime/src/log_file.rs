//! Log files of bounded size.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::log;

/// The maximum size of the file in bytes. When it is full, it becomes the older file, which it replaces.
const SIZE_LIMIT: u64 = 1 << 20;

/// The maximum length of the last line that is kept in bytes.
const LINE_LIMIT: usize = 1024;

/// A log file that is written to.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
    /// Bytes that could not be written since the last that could.
    lost: u64,
    last: LastLine,
}

/// The last complete line of a stream.
#[derive(Debug, Default)]
struct LastLine {
    partial: Vec<u8>,
    line: String,
}

impl LastLine {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.partial.len() < LINE_LIMIT {
                    self.partial.push(*byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&self.partial);
            if !text.trim().is_empty() {
                self.line = log::clean(text.trim());
            }
            self.partial.clear();
        }
    }
}

/// Returns the path of the older file.
fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
    options.open(path)
}

impl LogFile {
    /// Opens a log file for appending.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, SIZE_LIMIT)
    }

    fn with_limit(path: &Path, limit: u64) -> io::Result<Self> {
        let file = open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size, limit, lost: 0, last: LastLine::default() })
    }

    /// Appends bytes. If the disk is full, they are lost and counted: the program must go on.
    pub fn write(&mut self, bytes: &[u8]) {
        self.last.push(bytes);
        if self.lost > 0 {
            let note = format!("[{} bytes of this log could not be written]\n", self.lost);
            if self.append(note.as_bytes()).is_ok() {
                self.lost = 0;
            }
        }
        if self.append(bytes).is_err() {
            self.lost = self.lost.saturating_add(bytes.len() as u64);
        }
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// They cannot be written, or not all of them.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size.saturating_add(bytes.len() as u64) > self.limit {
            fs::rename(&self.path, older(&self.path))?;
            self.file = open(&self.path)?;
            self.size = 0;
        }
        self.file.write_all(bytes)?;
        self.size = self.size.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// Writes a line of the supervisor itself.
    pub fn note(&mut self, text: &str) {
        let last = std::mem::take(&mut self.last.line);
        let stamp = log::stamp(crate::clock::unix_time().0);
        self.write(format!("{stamp} supervisor: {text}\n").as_bytes());
        self.last.line = last;
    }

    /// Returns the last line that the program has written.
    pub fn last_line(&self) -> &str {
        &self.last.line
    }

    /// Forgets the last line, because the program is started again.
    pub fn forget_last(&mut self) {
        self.last = LastLine::default();
    }
}

/// Copies the last lines of a log, of both its files, to `out`. Then, if `follows` is true, copies what is appended, until an error.
///
/// # Errors
/// There is no log, or it cannot be read or copied.
pub fn print(
    path: &Path,
    lines: usize,
    follows: bool,
    out: &mut dyn Write,
    mut pause: impl FnMut(),
) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut kept = VecDeque::new();
    let mut keep = |from: &mut dyn Read| -> io::Result<()> {
        for line in BufReader::new(from).split(b'\n') {
            if kept.len() >= lines {
                kept.pop_front();
            }
            kept.push_back(line?);
        }
        Ok(())
    };
    if let Ok(mut file) = File::open(older(path)) {
        keep(&mut file)?;
    }
    keep(&mut file)?;
    let mut write = |line: &[u8]| -> io::Result<()> {
        let mut text = String::from_utf8_lossy(line).into_owned();
        log::clean_lines(&mut text);
        out.write_all(text.as_bytes())?;
        out.flush()
    };
    for mut line in kept.into_iter().take(lines) {
        line.push(b'\n');
        write(&line)?;
    }
    if !follows {
        return Ok(());
    }
    loop {
        let mut more = Vec::new();
        file.read_to_end(&mut more)?;
        if !more.is_empty() {
            write(&more)?;
            continue;
        }
        // A new file has taken its place, or it was emptied.
        if let Ok(now) = fs::metadata(path) {
            let ours = file.metadata()?;
            if (now.dev(), now.ino()) != (ours.dev(), ours.ino()) {
                file = File::open(path)?;
                continue;
            }
            if now.len() < file.stream_position()? {
                file.seek(SeekFrom::Start(0))?;
                continue;
            }
        }
        pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_becomes_the_older_one_and_the_last_line_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let mut file = LogFile::with_limit(&path, 30).unwrap();
        for line in 0..10 {
            file.write(format!("line {line}, and then ").as_bytes());
            file.write(b"the rest\n");
            assert_eq!(file.last_line(), format!("line {line}, and then the rest"));
        }
        file.note("restarted");
        assert_eq!(file.last_line(), "line 9, and then the rest");
        let sizes = [&path, &older(&path)].map(|path| fs::metadata(path).unwrap().len());
        assert!(sizes.iter().all(|size| *size > 0 && *size < 64), "{sizes:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        // It continues where it was.
        let again = LogFile::with_limit(&path, 30).unwrap();
        assert_eq!(again.size, fs::metadata(&path).unwrap().len());
    }

    #[test]
    fn bytes_that_cannot_be_written_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = LogFile::open(&dir.path().join("a.log")).unwrap();
        file.file = File::options().write(true).open("/dev/full").unwrap();
        file.write(b"twelve bytes");
        assert_eq!(file.lost, 12);
        file.file = open(&file.path).unwrap();
        file.write(b"more\n");
        assert_eq!(file.lost, 0);
        let text = fs::read_to_string(&file.path).unwrap();
        assert_eq!(text, "[12 bytes of this log could not be written]\nmore\n");
    }

    #[test]
    fn the_last_lines_come_from_both_files_and_new_ones_follow() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        assert!(print(&path, 3, false, &mut Vec::new(), || {}).is_err(), "there is no log");
        fs::write(older(&path), "1\n2\n").unwrap();
        fs::write(&path, "3\n\x1b[2J4\n").unwrap();
        let mut out = Vec::new();
        print(&path, 3, false, &mut out, || {}).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "2\n3\n\\x1b[2J4\n");

        /// Fails at the line that ends the test.
        struct Until(Vec<u8>);
        impl Write for Until {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.extend_from_slice(bytes);
                if bytes == b"end\n" {
                    Err(io::ErrorKind::BrokenPipe.into())
                } else {
                    Ok(bytes.len())
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Until(Vec::new());
        let mut turn = 0;
        let done = print(&path, 1, true, &mut out, || {
            turn += 1;
            match turn {
                1 => fs::write(&path, "x\n").unwrap(),
                2 => {
                    fs::rename(&path, older(&path)).unwrap();
                    fs::write(&path, "new\n").unwrap();
                }
                _ => {
                    let mut file = File::options().append(true).open(&path).unwrap();
                    file.write_all(b"end\n").unwrap();
                }
            }
        });
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(String::from_utf8(out.0).unwrap(), "\\x1b[2J4\nx\nnew\nend\n");
    }
}
