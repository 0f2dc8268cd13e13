use std::fmt;
use std::io;

/// The kernel's reason for refusing a change, in terms that a caller can act on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NetErrorKind {
    /// The object exists already.
    Exists,
    /// There is no such link, address or route.
    NotFound,
    /// CAP_NET_ADMIN is missing.
    Permission,
    /// A gateway or destination is not reachable through any interface.
    Unreachable,
    /// The interface is down.
    Down,
    /// The kernel was built or configured without this address family.
    NoFamily,
    /// The kernel considers the request contradictory (a gateway that is a local address, an
    /// address with host bits, an MTU out of range).
    Invalid,
    /// Anything else.
    Other,
}

/// A failed change or query of interfaces, addresses or routes.
#[derive(Debug)]
pub struct NetError {
    /// The operation that was attempted.
    action: String,
    kind: NetErrorKind,
    source: io::Error,
}

impl NetError {
    pub(super) fn new(action: String, source: io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(libc::EEXIST) => NetErrorKind::Exists,
            Some(libc::ENODEV | libc::ESRCH | libc::ENOENT | libc::ENXIO) => NetErrorKind::NotFound,
            // The address to remove does not exist.
            Some(libc::EADDRNOTAVAIL) => NetErrorKind::NotFound,
            Some(libc::EPERM | libc::EACCES) => NetErrorKind::Permission,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => NetErrorKind::Unreachable,
            Some(libc::ENETDOWN) => NetErrorKind::Down,
            Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => NetErrorKind::NoFamily,
            Some(libc::EINVAL | libc::ERANGE) => NetErrorKind::Invalid,
            _ if source.kind() == io::ErrorKind::NotFound => NetErrorKind::NotFound,
            _ => NetErrorKind::Other,
        };
        Self { action, kind, source }
    }

    /// Creates the error that the kernel would report for an action with this error number.
    pub fn from_errno(action: impl Into<String>, errno: i32) -> Self {
        Self::new(action.into(), io::Error::from_raw_os_error(errno))
    }

    /// Returns the reason.
    pub fn kind(&self) -> NetErrorKind {
        self.kind
    }

    /// Returns the kernel's error number, if the error came from the kernel.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, source, .. } = self;
        let meaning = match self.kind {
            NetErrorKind::Exists => "it exists already",
            NetErrorKind::NotFound => "there is no such thing",
            NetErrorKind::Permission => "no right to do so (run as root or with CAP_NET_ADMIN)",
            NetErrorKind::Unreachable => "the network is unreachable",
            NetErrorKind::Down => "the interface is down",
            NetErrorKind::NoFamily => "this kernel has the address family or feature disabled",
            NetErrorKind::Invalid => "the kernel refuses the combination",
            NetErrorKind::Other => return write!(f, "{action}: {source}"),
        };
        write!(f, "{action}: {meaning} ({source})")
    }
}

impl std::error::Error for NetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<NetError> for io::Error {
    fn from(e: NetError) -> Self {
        Self::new(e.source.kind(), e)
    }
}
