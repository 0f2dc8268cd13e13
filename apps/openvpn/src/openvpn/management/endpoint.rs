//! The socket of the management interface.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_linux::socket_opts::peer_credentials;
use adit_openvpn::config::{Management, ManagementPlace};
use adit_openvpn_service::compat_log::address;
use adit_runtime::fault::Fault;
use adit_runtime::helper::files;
use adit_runtime::say;
use nix::unistd::{Group, User};

/// The sockets of the interface: a listener, or the connection to a program that listens.
pub(super) struct Endpoint {
    listener: Option<Listener>,
    /// The management client.
    pub(super) stream: Option<Arc<Stream>>,
    /// The unix socket to remove at the end, with its device and inode.
    path: Option<(PathBuf, (u64, u64))>,
    /// The only user and group whose processes may connect to the unix socket.
    user: Option<u32>,
    group: Option<u32>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection with a management client.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Endpoint {
    /// Opens the socket. With `management tunnel`, it is opened later ([`Self::listen_in_tunnel`]).
    pub(super) fn open(settings: &Management) -> Result<Self, Fault> {
        let (user, group) = (user(settings)?, group(settings)?);
        let mut endpoint = Self { listener: None, stream: None, path: None, user, group };
        if settings.connects {
            endpoint.stream = Some(Arc::new(connect(&settings.place)?));
            return Ok(endpoint);
        }
        endpoint.listener = match &settings.place {
            ManagementPlace::Unix(path) => {
                let listener = listen_unix(path)?;
                // The working directory may be another one at the end.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                endpoint.path = inode(&path).map(|inode| (path, inode));
                Some(listener)
            }
            ManagementPlace::Tcp(host, port) => {
                if settings.password.is_none() {
                    tracing::warn!(
                        "WARNING: Using --management on a TCP port WITHOUT passwords is STRONGLY \
                         discouraged and considered insecure"
                    );
                }
                Some(listen_tcp(resolve(host, *port)?)?)
            }
            ManagementPlace::Tunnel(_) => None,
        };
        Ok(endpoint)
    }

    /// Opens the listener of `management tunnel`, unless it is open.
    pub(super) fn listen_in_tunnel(&mut self, own: IpAddr, port: u16) -> Result<(), Fault> {
        if self.listener.is_none() && self.stream.is_none() {
            self.listener = Some(listen_tcp(SocketAddr::new(own, port))?);
        }
        Ok(())
    }

    /// Returns whether a client can connect.
    pub(super) fn listens(&self) -> bool {
        self.listener.is_some()
    }

    /// Returns the listener, to wait for connections.
    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(|listener| match listener {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        })
    }

    /// Accepts a connection; `None` if its user may not connect.
    pub(super) fn accept(&self) -> io::Result<Option<Stream>> {
        let stream = match &self.listener {
            Some(Listener::Tcp(listener)) => {
                let (stream, peer) = listener.accept()?;
                say!(1, "MANAGEMENT: Client connected from {}", address(peer));
                // Each answer is one write, and the client waits for it.
                let _ = stream.set_nodelay(true);
                Stream::Tcp(stream)
            }
            Some(Listener::Unix(listener)) => {
                let (stream, _) = listener.accept()?;
                if let Err(problem) = self.check(&stream) {
                    tracing::warn!(
                        "MANAGEMENT: unix domain socket client connection rejected -- {problem}"
                    );
                    return Ok(None);
                }
                if let Some((path, _)) = &self.path {
                    say!(1, "MANAGEMENT: Client connected from {}", path.display());
                }
                Stream::Unix(stream)
            }
            None => return Err(io::ErrorKind::NotConnected.into()),
        };
        stream.set_nonblocking()?;
        Ok(Some(stream))
    }

    fn check(&self, stream: &UnixStream) -> Result<(), String> {
        if self.user.is_none() && self.group.is_none() {
            return Ok(());
        }
        let (uid, gid) =
            peer_credentials(stream).map_err(|e| format!("its user is unknown: {e}"))?;
        let differs = |wanted: Option<u32>, found| wanted.is_some_and(|wanted| wanted != found);
        if differs(self.user, uid) {
            return Err(format!("user id {uid} is not that of --management-client-user"));
        }
        if differs(self.group, gid) {
            return Err(format!("group id {gid} is not that of --management-client-group"));
        }
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some((path, ours)) = &self.path
            && inode(path).is_some_and(|inode| inode == *ours)
        {
            // If this fails, the next start replaces the socket.
            let _ = fs::remove_file(path).or_else(|_| files::remove(path));
        }
    }
}

impl Stream {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    pub(super) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(bytes),
            Self::Unix(stream) => (&*stream).read(bytes),
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            Self::Unix(stream) => (&*stream).write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Returns what identifies a file while it exists.
fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

fn user(settings: &Management) -> Result<Option<u32>, Fault> {
    let Some(name) = &settings.client_user else { return Ok(None) };
    match User::from_name(name) {
        Ok(Some(user)) => Ok(Some(user.uid.as_raw())),
        _ => Err(Fault::operator(format!("management-client-user: there is no user '{name}'"))),
    }
}

fn group(settings: &Management) -> Result<Option<u32>, Fault> {
    let Some(name) = &settings.client_group else { return Ok(None) };
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(Some(group.gid.as_raw())),
        _ => Err(Fault::operator(format!("management-client-group: there is no group '{name}'"))),
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, Fault> {
    let problem = |why: String| {
        Fault::operator(format!(
            "management {host} {port}: {why}: write an address of this machine"
        ))
    };
    let mut found = (host, port).to_socket_addrs().map_err(|e| problem(e.to_string()))?;
    found.next().ok_or_else(|| problem("the name has no address".into()))
}

fn listen_tcp(at: SocketAddr) -> Result<Listener, Fault> {
    let opened = TcpListener::bind(at).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let listener = opened.map_err(|e| {
        Fault::environment(format!(
            "MANAGEMENT: cannot listen on {}: {e}: choose another port in 'management'",
            address(at)
        ))
    })?;
    say!(1, "MANAGEMENT: TCP Socket listening on {}", address(at));
    Ok(Listener::Tcp(listener))
}

fn listen_unix(path: &Path) -> Result<Listener, Fault> {
    let shown = path.display();
    let problem = |e: io::Error| {
        Fault::environment(format!("MANAGEMENT: cannot listen on {shown}: {e}: check the path"))
    };
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path).map_err(problem)?,
        Ok(_) => {
            return Err(Fault::operator(format!(
                "management: '{shown}' exists and is no socket: choose another path, or remove it"
            )));
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(problem)?;
    // As in openvpn, management-client-user and management-client-group restrict the access.
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).map_err(problem)?;
    listener.set_nonblocking(true).map_err(problem)?;
    say!(1, "MANAGEMENT: unix domain socket listening on {shown}");
    Ok(Listener::Unix(listener))
}

fn connect(place: &ManagementPlace) -> Result<Stream, Fault> {
    let refused = |what: String, e: io::Error| {
        Fault::environment(format!(
            "MANAGEMENT: connect to {what} failed: {e}: start the program that listens there first"
        ))
    };
    let stream = match place {
        ManagementPlace::Unix(path) => {
            let name = format!("unix socket {}", path.display());
            Stream::Unix(UnixStream::connect(path).map_err(|e| refused(name, e))?)
        }
        ManagementPlace::Tcp(host, port) => {
            let at = resolve(host, *port)?;
            Stream::Tcp(TcpStream::connect(at).map_err(|e| refused(address(at), e))?)
        }
        ManagementPlace::Tunnel(_) => {
            return Err(Fault::operator(
                "management tunnel: it cannot be used by management-client",
            ));
        }
    };
    let nonblocking = stream.set_nonblocking();
    nonblocking.map_err(|e| Fault::environment(format!("MANAGEMENT: {e}")))?;
    match place {
        ManagementPlace::Unix(path) => say!(1, "MANAGEMENT: Connected to {}", path.display()),
        ManagementPlace::Tcp(host, port) => say!(1, "MANAGEMENT: Connected to {host}:{port}"),
        ManagementPlace::Tunnel(_) => {}
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(path: &Path) -> Management {
        let text = format!(
            "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\nmanagement {} unix\n",
            path.display()
        );
        struct One(String);
        impl adit_openvpn::config::Files for One {
            fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
                Ok(self.0.clone().into_bytes())
            }
        }
        let options = adit_openvpn::config::parse(&["x.conf".into()], &One(text)).unwrap();
        options.management.unwrap()
    }

    fn accepted(endpoint: &Endpoint, path: &Path) -> Option<Stream> {
        let _client = UnixStream::connect(path).unwrap();
        endpoint.accept().unwrap()
    }

    #[test]
    fn a_unix_socket_replaces_one_that_is_left_and_goes_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("management");
        drop(UnixListener::bind(&path).unwrap());
        let endpoint = Endpoint::open(&settings(&path)).unwrap();
        assert!(endpoint.listens() && accepted(&endpoint, &path).is_some());
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o777);
        drop(endpoint);
        assert!(!path.exists());
        // Another process may have its own socket there by then.
        let endpoint = Endpoint::open(&settings(&path)).unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(endpoint);
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        let refused = Endpoint::open(&settings(&path)).err().unwrap();
        assert!(refused.to_string().contains("is no socket"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
    }

    #[test]
    fn only_the_chosen_user_and_group_may_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("management");
        let mut endpoint = Endpoint::open(&settings(&path)).unwrap();
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        endpoint.user = Some(uid);
        endpoint.group = Some(gid);
        assert!(accepted(&endpoint, &path).is_some());
        endpoint.user = Some(uid + 1);
        assert!(accepted(&endpoint, &path).is_none(), "the user alone is wrong");
        endpoint.user = None;
        endpoint.group = Some(gid + 1);
        assert!(accepted(&endpoint, &path).is_none(), "the group alone is wrong");
    }

    #[test]
    fn unknown_users_and_groups_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut chosen = settings(&dir.path().join("management"));
        chosen.client_user = Some("no-such-user".into());
        let refused = Endpoint::open(&chosen).err().unwrap();
        assert!(refused.to_string().contains("there is no user 'no-such-user'"), "{refused}");
        chosen.client_user = None;
        chosen.client_group = Some("no-such-group".into());
        let refused = Endpoint::open(&chosen).err().unwrap();
        assert!(refused.to_string().contains("there is no group"), "{refused}");
    }

    #[test]
    fn a_program_that_listens_is_connected_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let mut chosen = settings(&path);
        chosen.connects = true;
        let refused = Endpoint::open(&chosen).err().unwrap();
        assert!(refused.to_string().contains("connect to unix socket"), "{refused}");
        let program = UnixListener::bind(&path).unwrap();
        let endpoint = Endpoint::open(&chosen).unwrap();
        assert!(endpoint.stream.is_some() && !endpoint.listens());
        program.accept().unwrap();
        drop(endpoint);
        assert!(path.exists(), "the socket is the program's");
    }
}
