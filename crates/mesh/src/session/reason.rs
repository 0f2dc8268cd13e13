use adit_openvpn::Blame;

use super::HelloError;

/// The reason why a session ended, or did not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The handshake or the session failed.
    #[error(transparent)]
    Failed(#[from] adit_openvpn::Reason),
    /// The peer's hello is malformed.
    #[error(transparent)]
    BadHello(#[from] HelloError),
    /// The hello has no data channels, or has data channels in a joining session.
    #[error("the hello does not fit the protocol")]
    WrongHello,
    /// The peer's key is not a member's.
    #[error("the peer is not a member of this mesh")]
    NotMember,
    /// Too many of this node's own attempts are not yet established.
    #[error("too many sessions are being established")]
    TooManyAttempts,
    /// All ids for data channels are in use.
    #[error("no id for a data channel is free")]
    NoFreeId,
    /// Both nodes connected at the same time, and the other session remains.
    #[error("both nodes connected at once; the other session remains")]
    Superseded,
    /// The peer began a newer session.
    #[error("replaced by a newer session of the same peer")]
    Replaced,
    /// The peer ended the session.
    #[error("the peer ended the session")]
    Closed,
    /// No packet arrived within the keepalive timeout.
    #[error("the peer is silent")]
    Silent,
    /// No traffic passed for the idle time.
    #[error("no traffic")]
    Idle,
    /// A joining session took too long.
    #[error("joining took too long")]
    JoinTimeout,
    /// The peer is no longer a member.
    #[error("the peer was removed from the mesh")]
    Expelled,
    /// This node ended the session.
    #[error("ended by this node")]
    Requested,
    /// The link is gone.
    #[error("the link is gone")]
    LinkDown,
}

impl Reason {
    /// The party that can fix it.
    pub fn blame(&self) -> Blame {
        self.entry().0
    }

    /// The name for programs. It stays the same when the text changes.
    pub fn name(&self) -> &'static str {
        self.entry().1
    }

    fn entry(&self) -> (Blame, &'static str) {
        use Blame::{Environment, Operator, Peer};
        match self {
            Self::Failed(reason) => (reason.blame(), reason.name()),
            Self::BadHello(_) => (Peer, "bad-hello"),
            Self::WrongHello => (Peer, "wrong-hello"),
            Self::NotMember => (Peer, "not-a-member"),
            Self::TooManyAttempts => (Environment, "too-many-attempts"),
            Self::NoFreeId => (Operator, "no-free-id"),
            Self::Superseded => (Environment, "superseded"),
            Self::Replaced => (Peer, "replaced"),
            Self::Closed => (Peer, "closed"),
            Self::Silent => (Environment, "silent"),
            Self::Idle => (Environment, "idle"),
            Self::JoinTimeout => (Peer, "join-timeout"),
            Self::Expelled => (Operator, "expelled"),
            Self::Requested => (Operator, "requested"),
            Self::LinkDown => (Environment, "link-down"),
        }
    }
}
