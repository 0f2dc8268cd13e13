//! Turns a program's output into log lines, within bounds.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

use super::protocol::Event;
use super::runner::RESERVED;

/// The maximum number of bytes of one call's output that are logged. Further ones are counted.
pub(super) const OUTPUT_LIMIT: usize = 16 * 1024;

/// The maximum length of a line in bytes.
const LINE_LIMIT: usize = 512;

/// The number of bytes read at a time.
const CHUNK: usize = 4096;

/// The pause after each chunk beyond [`OUTPUT_LIMIT`]. It slows down a program that never stops printing.
const PAUSE: Duration = Duration::from_millis(10);

/// Reads a program's output to its end, which may come after the program's own end if it has left another program
/// running.
pub(super) async fn forward(name: String, mut pipe: Receiver, log: mpsc::Sender<Event>) {
    let mut lines = Lines { name, line: Vec::new(), logged: 0, dropped: 0, log };
    let mut chunk = [0_u8; CHUNK];
    loop {
        match pipe.read(&mut chunk).await {
            Ok(0) | Err(_) => return lines.end(),
            Ok(count) => lines.add(chunk.get(..count).unwrap_or_default()),
        }
        if lines.dropped > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

struct Lines {
    /// The program's name, which precedes each line.
    name: String,
    line: Vec<u8>,
    /// The number of bytes that were logged.
    logged: usize,
    /// The number of further bytes.
    dropped: u64,
    log: mpsc::Sender<Event>,
}

impl Lines {
    fn add(&mut self, mut bytes: &[u8]) {
        let room = OUTPUT_LIMIT.saturating_sub(self.logged);
        let (taken, rest) = bytes.split_at(room.min(bytes.len()));
        self.logged = self.logged.saturating_add(taken.len());
        self.dropped = self.dropped.saturating_add(rest.len() as u64);
        bytes = taken;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            for piece in text.chunks(LINE_LIMIT) {
                self.line.extend_from_slice(piece);
                if self.line.len() >= LINE_LIMIT {
                    self.flush();
                }
            }
            if ended {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            self.say(format!("{}: {text}", self.name));
        }
    }

    fn say(&self, text: String) {
        // If the network process reads too slowly, lines are lost, but no program waits for the log.
        if self.log.capacity() > RESERVED {
            let _ = self.log.try_send(Event::Line { warning: false, text });
        }
    }

    fn end(&mut self) {
        self.flush();
        if self.dropped > 0 {
            self.say(format!(
                "{}: {} more bytes of output are not logged",
                self.name, self.dropped
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let (log, mut logged) = mpsc::channel(RESERVED + 1000);
        let mut lines = Lines { name: "up".into(), line: Vec::new(), logged: 0, dropped: 0, log };
        chunks.iter().for_each(|chunk| lines.add(chunk));
        lines.end();
        let mut texts = Vec::new();
        while let Ok(Event::Line { text, .. }) = logged.try_recv() {
            texts.push(text);
        }
        texts
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(lines(&[b"one\ntw", b"o\n\n", b"three"]), ["up: one", "up: two", "up: three"]);
        assert_eq!(lines(&[b"a\r\n", b"\xff\xfe\n"]), ["up: a", "up: \u{fffd}\u{fffd}"]);
    }

    #[test]
    fn lines_leave_room_for_the_ends_of_programs() {
        let (log, mut logged) = mpsc::channel(RESERVED + 3);
        let mut lines = Lines { name: "up".into(), line: Vec::new(), logged: 0, dropped: 0, log };
        lines.add(b"1\n2\n3\n4\n5\n");
        assert_eq!(lines.log.capacity(), RESERVED);
        assert!(logged.try_recv().is_ok());
    }

    #[test]
    fn a_long_line_and_a_long_output_are_bounded() {
        let long = lines(&[&[b'x'; LINE_LIMIT + 7]]);
        assert_eq!(long.iter().map(|line| line.len() - 4).collect::<Vec<_>>(), [LINE_LIMIT, 7]);
        let chunk = [b'y'; CHUNK];
        let endless = lines(&vec![&chunk[..]; 1000]);
        let bytes: usize = endless.iter().map(String::len).sum();
        assert!(bytes < 2 * OUTPUT_LIMIT, "{bytes}");
        assert!(endless.last().unwrap().contains("more bytes"), "{endless:?}");
    }
}
