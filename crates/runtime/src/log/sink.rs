use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;

use tracing::Level;

use super::Target;
use crate::helper::files::{self, WriteMode};

/// The socket of the system log (syslog(3)).
const SYSLOG_SOCKET: &str = "/dev/log";

/// LOG_DAEMON, shifted as in the wire format (RFC 5424, 6.2.1).
const FACILITY_DAEMON: u8 = 3 << 3;

/// An open [`Target`].
pub(super) enum Sink {
    Stdout,
    /// Standard output, and standard error for errors.
    Split,
    Stderr,
    File(File),
    Syslog(Syslog),
}

impl Sink {
    pub(super) fn open(target: &Target) -> io::Result<Self> {
        Ok(match target {
            Target::Stdout => Self::Stdout,
            Target::Split => Self::Split,
            Target::Stderr => Self::Stderr,
            // Append even here, so that after logrotate's copytruncate writing continues at the start of the file.
            Target::File(path) => Self::File(files::write(path, WriteMode::EmptyAppend)?),
            Target::Append(path) => Self::File(files::write(path, WriteMode::Append)?),
            Target::Syslog(name) => Self::Syslog(Syslog::new(name)),
        })
    }

    /// Writes a whole line. Errors (a full disk, a closed pipe) are ignored, because they must not stop the program.
    pub(super) fn write(&mut self, line: &str) {
        let _ = match self {
            Self::Stdout | Self::Split => {
                let mut out = io::stdout().lock();
                out.write_all(line.as_bytes()).and_then(|()| out.flush())
            }
            Self::Stderr => io::stderr().lock().write_all(line.as_bytes()),
            Self::File(file) => file.write_all(line.as_bytes()),
            Self::Syslog(_) => Ok(()),
        };
    }

    /// Writes an error, in the same way.
    pub(super) fn write_error(&mut self, line: &str) {
        match self {
            Self::Split => Self::Stderr.write(line),
            _ => self.write(line),
        }
    }
}

/// A connection to the system log. It is opened when it is needed, and again after the log daemon restarts.
pub(super) struct Syslog {
    name: String,
    socket: Option<UnixDatagram>,
}

impl Syslog {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), socket: connect() }
    }

    pub(super) fn write(&mut self, level: Level, message: &str) {
        let severity = match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 5,
            _ => 7,
        };
        let line = frame(severity, &self.name, std::process::id(), message);
        for _ in 0..2 {
            if self.socket.is_none() {
                self.socket = connect();
            }
            match self.socket.as_ref().map(|socket| socket.send(line.as_bytes())) {
                Some(Err(e)) if e.kind() != io::ErrorKind::WouldBlock => self.socket = None,
                _ => return,
            }
        }
    }
}

fn connect() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(SYSLOG_SOCKET).ok()?;
    // A log daemon that hangs must not block the tunnel.
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

/// Formats a message in the local format with priority, tag and process id. The daemon adds the time.
fn frame(severity: u8, name: &str, pid: u32, message: &str) -> String {
    format!("<{}>{name}[{pid}]: {message}", FACILITY_DAEMON | severity)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_syslog_line_has_priority_tag_and_pid() {
        assert_eq!(super::frame(5, "ovpn-server", 7, "hello"), "<29>ovpn-server[7]: hello");
    }
}
