//! Notifications to the service manager (sd_notify(3)): datagrams to `$NOTIFY_SOCKET`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The time that the service manager has to read a message or to answer.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

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

    /// Passes a descriptor to the service manager, which keeps it under this name for the next process of the service.
    /// A name has no colons and no control characters.
    pub fn store(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Without FDPOLL=0, the service manager closes a socket with a pending error.
        self.send_with(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), fd)
    }

    /// Makes the service manager close the descriptors that it keeps under this name.
    pub fn unstore(&self, name: &str) -> io::Result<()> {
        // Unlike a status, this must not get lost while the socket is full.
        let text = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        loop {
            match self.send(&text) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.socket, PollFlags::OUT)?;
                }
                sent => return sent,
            }
        }
    }

    /// Waits until the service manager has processed all earlier messages.
    ///
    /// # Errors
    /// `TimedOut`: it does not answer.
    pub fn barrier(&self) -> io::Result<()> {
        let (read, write) = crate::fd_store::pipe()?;
        self.send_with("BARRIER=1", write.as_fd())?;
        // The service manager closes the last copy of the writing end.
        drop(write);
        wait(&read, PollFlags::IN)
    }

    fn send_with(&self, text: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let descriptors = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let parts = [IoSlice::new(text.as_bytes())];
        loop {
            match rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(&self.socket, PollFlags::OUT)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send(&self, text: &str) -> io::Result<()> {
        self.socket.send(text.as_bytes()).map(drop)
    }
}

/// Receives a message as the service manager does, with its descriptors.
///
/// # Errors
/// The socket is closed, or the message is not text.
pub fn receive(socket: &UnixDatagram) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    let text = bytes.get(..received.bytes).unwrap_or_default();
    let text = String::from_utf8(text.to_vec()).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((text, descriptors))
}

fn wait(fd: &impl AsFd, flags: PollFlags) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(fd, flags)], Some(&PATIENCE)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
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
    fn descriptors_are_stored_under_their_names() {
        use std::io::{Read, Seek, Write};

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let receive = || receive(&manager).unwrap();
        let notifier = Notifier::to(path.as_os_str().as_bytes(), None).unwrap();
        let mut file = crate::fd_store::memory_file("state").unwrap();
        file.write_all(b"content").unwrap();
        notifier.store("one", file.as_fd()).unwrap();
        let (text, descriptors) = receive();
        assert_eq!(text, "FDSTORE=1\nFDNAME=one\nFDPOLL=0");
        let mut same = std::fs::File::from(descriptors.into_iter().next().unwrap());
        same.rewind().unwrap();
        let mut content = String::new();
        same.read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        notifier.unstore("one").unwrap();
        assert_eq!(receive().0, "FDSTOREREMOVE=1\nFDNAME=one");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| notifier.barrier());
            let (text, descriptors) = receive();
            assert_eq!((text.as_str(), descriptors.len()), ("BARRIER=1", 1));
            assert!(!waits.is_finished());
            drop(descriptors);
            waits.join().unwrap().unwrap();
        });
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
