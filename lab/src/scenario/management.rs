//! Bulk traffic while a management client sends commands to the server, to measure what the commands cost.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use adit_testbed::failure::{Context, Result, ensure};

use super::polled::{self, Poller, REPLY_LIMIT};
use super::runner::Runner;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::Subject;

/// The commands, which are repeated in this order: those with which controllers and exporters poll a server.
const COMMANDS: [&str; 4] = ["status 2", "load-stats", "state", "pid"];

/// Measures the cost of commands; see [`polled::measure`].
pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(&Settings { clients: 1, ..settings.clone() })?;
    let folder = runner.toolchain().scratch()?;
    let socket = folder.path().join("management");
    let line = format!("management {} unix", socket.display());
    let run = runner.start_with(testbed, settings, subject, vec![line])?;
    let client = ManagementClient::connect(&socket);
    client
        .and_then(|client| polled::measure(&run, settings, client))
        .map_err(|failure| run.broken(&failure))
}

/// A management client, which reads the reply to a command before it sends the next.
struct ManagementClient {
    stream: BufReader<UnixStream>,
    sent: usize,
}

impl ManagementClient {
    fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).context(path.display())?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        Ok(Self { stream: BufReader::new(stream), sent: 0 })
    }
}

impl Poller for ManagementClient {
    const METRICS: [&'static str; 2] = ["commands_per_s", "cpu_us_per_command"];

    fn request(&mut self) -> Result<()> {
        let command = COMMANDS.get(self.sent % COMMANDS.len()).copied().unwrap_or("pid");
        self.sent = self.sent.wrapping_add(1);
        writeln!(self.stream.get_mut(), "{command}")?;
        let mut line = String::new();
        loop {
            line.clear();
            let count = self.stream.read_line(&mut line).context(command)?;
            ensure(count > 0, || "the management interface has ended".to_owned())?;
            let text = line.trim_end();
            ensure(!text.starts_with("ERROR:"), || format!("{command}: {text}"))?;
            if text == "END" || text.starts_with("SUCCESS:") {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Answers each command with a notification and a block or a line.
    fn answer(stream: &UnixStream) -> std::io::Result<()> {
        let mut to = stream;
        for line in BufReader::new(stream).lines() {
            to.write_all(b">BYTECOUNT_CLI:0,1,2\n")?;
            match line?.as_str() {
                "pid" | "load-stats" => to.write_all(b"SUCCESS: pid=7\n")?,
                _ => to.write_all(b"TITLE\nEND\n")?,
            }
        }
        Ok(())
    }

    #[test]
    fn every_command_is_answered_before_the_next() {
        let (near, far) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let _ = answer(&far);
        });
        let mut client = ManagementClient { stream: BufReader::new(near), sent: 0 };
        for sent in 1..=9 {
            client.request().unwrap();
            assert_eq!(client.sent, sent);
        }
        drop(client);
        server.join().unwrap();
    }
}
