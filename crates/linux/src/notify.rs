//! Notifications to the service manager (sd_notify(3)): datagrams to `$NOTIFY_SOCKET`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A connection to the service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Connects to the service manager; `None` if it requested no notifications. Call it before
    /// privileges are dropped.
    pub fn from_env() -> io::Result<Option<Self>> {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
        let watchdog = std::env::var("WATCHDOG_USEC").ok().and_then(|usec| usec.parse().ok());
        let for_us =
            std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let watchdog = watchdog.filter(|_| for_us).map(Duration::from_micros);
        Self::to(path.as_bytes(), watchdog).map(Some)
    }

    fn to(path: &[u8], watchdog: Option<Duration>) -> io::Result<Self> {
        let to = match path.split_first() {
            Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
            Some((b'/', _)) => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
            _ => {
                let text = "NOTIFY_SOCKET must begin with '/' or '@'";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        let socket = UnixDatagram::unbound()?;
        // Connected now, because another user may not be allowed to connect later.
        socket.connect_addr(&to)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, watchdog })
    }

    /// Reports that start-up is complete.
    pub fn ready(&self, status: &str) -> io::Result<()> {
        let pid = std::process::id();
        self.send(&format!("READY=1\nSTATUS={}\nMAINPID={pid}", one_line(status)))
    }

    /// Reports that a new configuration is being read; call [`Notifier::ready`] when it is in
    /// force.
    pub fn reloading(&self) -> io::Result<()> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = (now.tv_sec as u64).saturating_mul(1_000_000) + now.tv_nsec as u64 / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"))
    }

    /// Sets the line that `systemctl status` shows.
    pub fn status(&self, status: &str) -> io::Result<()> {
        self.send(&format!("STATUS={}", one_line(status)))
    }

    /// Reports that the service is stopping.
    pub fn stopping(&self) -> io::Result<()> {
        self.send("STOPPING=1")
    }

    /// Returns how often at least [`Notifier::alive`] must be called; `None` if there is no
    /// watchdog.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports to the watchdog that the service is not stuck.
    pub fn alive(&self) -> io::Result<()> {
        self.send("WATCHDOG=1")
    }

    fn send(&self, text: &str) -> io::Result<()> {
        self.socket.send(text.as_bytes()).map(drop)
    }
}

/// Reduces a text to one line. A status may contain text from a peer, and a further line would be a
/// command to the service manager.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 500];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    fn exercise(manager: &UnixDatagram, path: &[u8]) {
        let notifier = Notifier::to(path, None).unwrap();
        notifier.ready("all\nMAINPID=1 well").unwrap();
        let pid = std::process::id();
        assert_eq!(told(manager), format!("READY=1\nSTATUS=all MAINPID=1 well\nMAINPID={pid}"));
        notifier.status("2 clients").unwrap();
        assert_eq!(told(manager), "STATUS=2 clients");
        notifier.reloading().unwrap();
        assert!(told(manager).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        notifier.alive().unwrap();
        assert_eq!(told(manager), "WATCHDOG=1");
        notifier.stopping().unwrap();
        assert_eq!(told(manager), "STOPPING=1");
    }

    #[test]
    fn a_socket_in_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        exercise(&manager, path.as_os_str().as_bytes());
    }

    #[test]
    fn an_abstract_socket() {
        let name = format!("adit-test-notify-{}", std::process::id());
        let manager =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        exercise(&manager, format!("@{name}").as_bytes());
    }

    #[test]
    fn other_addresses_are_refused() {
        assert!(Notifier::to(b"vsock:2:1", None).is_err());
        assert!(Notifier::to(b"", None).is_err());
    }
}
