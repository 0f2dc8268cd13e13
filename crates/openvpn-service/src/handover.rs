//! Passes a running server to the next process of the service, such as a newer version of the program.
//!
//! ```text
//!   old process ──descriptors, state in a memory file──► service manager ──► new process
//! ```
//!
//! The service manager keeps the descriptors in between (`FileDescriptorStoreMax=`): the sockets, the device, a queue with
//! the sockets of streams, and a file that exists only in memory, with the sessions and their keys. The new process empties that file when it has read it,
//! because a state that is used twice would repeat packet ids.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use adit_dataplane::{SavedPeer, SavedStream};
use adit_linux::fd_store;
use adit_linux::notify::Notifier;
use adit_linux::tcp::{TcpListener, TcpStream};
use adit_linux::tun::{TunDevice, TunParts};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_openvpn::server::SavedServer;
use adit_runtime::driver::Sockets;
use adit_runtime::fault::Fault;
use adit_runtime::filter::SavedFilter;
use adit_runtime::helper::OpenedDevice;
use serde::{Deserialize, Serialize};

/// The version of a state. It changes with every change of its parts.
pub const VERSION: u32 = 3;

/// The name of the file with the state.
const STATE: &str = "adit-state";

/// The name of the queue with the sockets of streams.
const STREAMS: &str = "streams";

/// The maximum length of the state in bytes: ten times that of 10,000 sessions.
const STATE_LIMIT: u64 = 1 << 30;

/// What a service needs to pass its sessions on, and to continue those of a former process. By default it does neither.
#[derive(Debug, Default)]
pub struct Setup {
    /// The settings on which sessions depend, as text. Sessions pass only between processes with the same ones.
    pub settings: String,
    /// The store of the service manager.
    pub store: Option<Store>,
    /// The sessions of a former process.
    pub inherited: Option<Inherited>,
    /// What the server has that does not pass to another process, if it has such a thing. Then nothing passes.
    pub obstacle: Option<&'static str>,
}

impl Setup {
    /// Takes what a former process left in the service manager's store. Call it before privileges are dropped.
    pub fn from_env(settings: String) -> Self {
        let store = Store::from_env();
        let inherited = Inherited::take(&settings, store.as_ref());
        Self { settings, store, inherited, obstacle: None }
    }
}

/// The store of the service manager.
#[derive(Debug)]
pub struct Store {
    notifier: Notifier,
    /// The file for the state, which is created before privileges are dropped.
    file: File,
}

impl Store {
    fn from_env() -> Option<Self> {
        let notifier = Notifier::from_env().ok()??;
        let file = fd_store::memory_file(STATE).ok()?;
        Some(Self { notifier, file })
    }

    /// Returns whether the service manager processes messages.
    pub(super) fn answers(&self) -> bool {
        self.notifier.barrier().is_ok()
    }

    /// Passes the state and the descriptors on.
    pub(super) fn pass(&mut self, state: &State, passing: &Passing) -> Result<(), Fault> {
        self.write(state, passing)
            .map_err(|e| Fault::environment(format!("sessions: not handed over: {e}")))
    }

    fn write(&mut self, state: &State, passing: &Passing) -> io::Result<()> {
        let text = serde_json::to_vec(state).map_err(io::Error::other)?;
        self.file.write_all(&text)?;
        for (name, fd) in &passing.descriptors {
            self.notifier.store(name, fd.as_fd())?;
        }
        if !passing.streams.is_empty() {
            let streams: Vec<_> = passing.streams.iter().map(AsFd::as_fd).collect();
            self.notifier.store(STREAMS, fd_store::queue(&streams)?.as_fd())?;
        }
        // The state comes last, so that it never arrives without the others.
        self.notifier.store(STATE, self.file.as_fd())?;
        self.notifier.barrier()
    }
}

/// The descriptors that the next process needs.
#[derive(Debug)]
pub(super) struct Passing {
    pub(super) device: OpenedDevice,
    descriptors: Vec<(String, OwnedFd)>,
    /// The sockets of streams, in the order of [`State::streams`].
    streams: Vec<OwnedFd>,
}

impl Passing {
    /// Duplicates the descriptors while the service has them.
    pub(super) fn of(device: &TunDevice, sockets: &Sockets) -> io::Result<Self> {
        let mut descriptors = sockets.duplicate()?;
        let (parts, queues) = device.duplicate()?;
        let named = queues.into_iter().enumerate();
        descriptors.extend(named.map(|(number, fd)| (format!("tun-{number}"), fd)));
        Ok(Self { device: parts.into(), descriptors, streams: Vec::new() })
    }

    /// Adds the sockets of the streams, in the order of [`State::streams`].
    pub(super) fn add_streams(&mut self, streams: Vec<OwnedFd>) {
        self.streams = streams;
    }
}

/// The state of a server, in the form that passes between processes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    version: u32,
    settings: String,
    device: OpenedDevice,
    pub(super) server: SavedServer,
    pub(super) peers: Vec<SavedPeer>,
    pub(super) streams: Vec<SavedStream>,
    /// The filter's connections, counters and added elements, if there is a filter.
    pub(super) filter: Option<SavedFilter>,
}

/// The parts of a [`State`] that the service has.
pub(super) struct Parts {
    pub(super) server: SavedServer,
    pub(super) peers: Vec<SavedPeer>,
    pub(super) streams: Vec<SavedStream>,
    pub(super) filter: Option<SavedFilter>,
}

impl State {
    pub(super) fn new(settings: String, device: OpenedDevice, parts: Parts) -> Self {
        let Parts { server, peers, streams, filter } = parts;
        Self { version: VERSION, settings, device, server, peers, streams, filter }
    }
}

/// The part of a state that every version has.
#[derive(Deserialize)]
struct Head {
    version: u32,
    settings: String,
}

/// The sessions, the sockets and the device of a former process.
#[derive(Debug)]
pub struct Inherited {
    state: State,
    descriptors: HashMap<String, OwnedFd>,
}

impl Inherited {
    fn take(settings: &str, store: Option<&Store>) -> Option<Self> {
        let mut descriptors: HashMap<String, OwnedFd> = fd_store::inherited().into_iter().collect();
        // Otherwise the next process would get them again, after this one was killed.
        for name in descriptors.keys() {
            let _ = store.map(|store| store.notifier.unstore(name));
        }
        let file = descriptors.remove(STATE)?;
        match read(File::from(file)).and_then(|text| parse(&text, settings)) {
            Ok(state) => Some(Self { state, descriptors }),
            Err(reason) => {
                tracing::warn!("sessions of the former process: not taken over: {reason}");
                // This process opens sockets with the same ports, which is possible once the service manager has closed its copies.
                drop(descriptors);
                if let Some(Err(error)) = store.map(|store| store.notifier.barrier()) {
                    tracing::warn!("the service manager may keep the former sockets: {error}");
                }
                None
            }
        }
    }

    /// Takes the device. It exists as long as one of its descriptors is open.
    ///
    /// # Errors
    /// The descriptors do not fit the state.
    pub(super) fn device(&mut self) -> io::Result<(TunParts, TunDevice)> {
        let parts = TunParts::from(self.state.device.clone());
        let fds = (0..).map_while(|n| self.descriptors.remove(&format!("tun-{n}"))).collect();
        Ok((parts.clone(), TunDevice::from_parts(parts, fds)?))
    }

    /// Takes the sockets of the datagram listener with this number, which must have this address.
    pub(super) fn datagrams(&mut self, id: usize, options: &UdpOptions) -> Option<Vec<UdpSocket>> {
        let mut group = Vec::new();
        while let Some(fd) = self.descriptors.remove(&format!("udp-{id}-{}", group.len())) {
            let socket = UdpSocket::from_fd(fd, options).ok()?;
            if !is_bound(socket.local_addr(), options.bind) {
                return None;
            }
            group.push(socket);
        }
        (!group.is_empty()).then_some(group)
    }

    /// Takes the stream listener with this number, which must have this address.
    pub(super) fn listener(&mut self, number: usize, bind: SocketAddr) -> Option<TcpListener> {
        let fd = self.descriptors.remove(&format!("tcp-{number}"))?;
        let listener = TcpListener::from_fd(fd).ok()?;
        is_bound(listener.local_addr(), bind).then_some(listener)
    }

    /// Returns the state, and the sockets of its streams.
    pub(super) fn into_parts(mut self) -> (State, Vec<Option<TcpStream>>) {
        let queue = self.descriptors.remove(STREAMS);
        let taken = queue.map(|queue| fd_store::take_queued(&queue, fd_store::room()));
        let mut taken = taken.unwrap_or_default().into_iter();
        let mut socket = |stream: &SavedStream| {
            let socket = TcpStream::from_fd(taken.next()?).ok()?;
            // The kernel may have lost the connection meanwhile.
            (socket.peer_addr().ok()? == stream.link.remote()).then_some(socket)
        };
        let sockets = self.state.streams.iter().map(&mut socket).collect();
        (self.state, sockets)
    }
}

fn is_bound(local: SocketAddr, wanted: SocketAddr) -> bool {
    local.ip() == wanted.ip() && (local.port() == wanted.port() || wanted.port() == 0)
}

/// Reads the state, and empties the file.
fn read(mut file: File) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let taken = file
        .rewind()
        .and_then(|()| (&mut file).take(STATE_LIMIT).read_to_end(&mut text))
        // A state that cannot be emptied must not be used, because it could be used again.
        .and_then(|_| file.set_len(0));
    taken.map(|()| text).map_err(|e| e.to_string())
}

/// Parses a state, and checks that the sessions can continue with these settings.
fn parse(text: &[u8], settings: &str) -> Result<State, String> {
    if text.is_empty() {
        return Err("another process has taken them".into());
    }
    let head: Head = serde_json::from_slice(text).map_err(|_| "damaged".to_owned())?;
    check(head.version, &head.settings, settings)?;
    serde_json::from_slice(text).map_err(|e| format!("damaged: {e}"))
}

/// Checks that the sessions of a process with settings `ours` can continue in one with this version and these settings.
///
/// # Errors
/// The reason why they cannot.
pub(super) fn check(version: u32, theirs: &str, ours: &str) -> Result<(), String> {
    if version != VERSION {
        return Err(format!("version {version} of the state, but this program has {VERSION}"));
    }
    if theirs != ours {
        return Err("the settings have changed".into());
    }
    Ok(())
}

/// Parses arbitrary bytes as a state, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let _ = parse(bytes, "");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &[u8]) -> File {
        let mut file = fd_store::memory_file("test").unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn a_state_is_read_once() {
        let first = file(b"{}");
        let second = first.try_clone().unwrap();
        assert_eq!(read(first).unwrap(), b"{}");
        let text = read(second).unwrap();
        assert_eq!(parse(&text, "").unwrap_err(), "another process has taken them");
    }

    #[test]
    fn other_versions_settings_and_damaged_texts_are_refused() {
        let refused = |text: &str| parse(text.as_bytes(), "a").unwrap_err();
        assert_eq!(refused("{"), "damaged");
        let newer = r#"{"version":99,"settings":"a","more":1}"#;
        assert!(refused(newer).contains("version 99 of the state"));
        let changed = format!(r#"{{"version":{VERSION},"settings":"b"}}"#);
        assert_eq!(refused(&changed), "the settings have changed");
        let short = format!(r#"{{"version":{VERSION},"settings":"a"}}"#);
        assert!(refused(&short).starts_with("damaged: missing field"), "{}", refused(&short));
    }

    #[test]
    fn sockets_of_another_address_are_not_taken() {
        let socket = UdpSocket::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        let address = socket.local_addr();
        assert!(is_bound(address, address));
        assert!(is_bound(address, ([127, 0, 0, 1], 0).into()));
        assert!(!is_bound(address, ([127, 0, 0, 2], address.port()).into()));
        assert!(!is_bound(address, ([127, 0, 0, 1], address.port() ^ 1).into()));
    }
}
