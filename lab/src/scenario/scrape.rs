//! Bulk traffic while the server's metrics are scraped, to measure what the scrapes cost.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use adit_testbed::failure::{Context, Result, ensure};

use super::polled::{self, Poller, REPLY_LIMIT};
use super::runner::Runner;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::Subject;

/// Measures the cost of scrapes; see [`polled::measure`].
pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(&Settings { clients: 1, ..settings.clone() })?;
    let folder = runner.toolchain().scratch()?;
    let socket = folder.path().join("server.metrics");
    let line = format!("metrics unix:{}", socket.display());
    let run = runner.start_with(testbed, settings, subject, vec![line])?;
    polled::measure(&run, settings, Scraper(socket)).map_err(|failure| run.broken(&failure))
}

/// Scrapes the metrics behind a socket, each time over a connection of its own.
struct Scraper(PathBuf);

impl Poller for Scraper {
    const METRICS: [&'static str; 2] = ["scrapes_per_s", "cpu_us_per_scrape"];

    fn request(&mut self) -> Result<()> {
        let mut stream = UnixStream::connect(&self.0).context(self.0.display())?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: adit\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let complete = text.starts_with("HTTP/1.1 200 ") && text.contains("# EOF");
        ensure(complete, || format!("not a scrape: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn only_a_complete_response_is_a_scrape() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.metrics");
        let listener = UnixListener::bind(&path).unwrap();
        let answers = [
            "HTTP/1.1 200 OK\r\n\r\n# EOF\n",
            "HTTP/1.1 200 OK\r\n\r\nadit_",
            "HTTP/1.1 503 X\r\n\r\n# EOF\n",
        ];
        let server = thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let mut scraper = Scraper(path);
        assert_eq!(answers.map(|_| scraper.request().is_ok()), [true, false, false]);
        server.join().unwrap();
    }
}
