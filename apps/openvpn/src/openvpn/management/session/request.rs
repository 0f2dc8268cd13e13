//! What the program does for a conversation.

use std::net::SocketAddr;

use adit_runtime::signals::Signal;

use crate::client::ClientCommand;

/// Something that the program must do for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Action {
    /// `signal`.
    Signal(Signal),
    /// A command to the running client.
    Client(ClientCommand),
    /// Something that the server must answer with [`Session::reply`](super::Session::reply).
    Ask(Request),
}

/// A request to the running server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Request {
    /// `status` in this version.
    Status(u8),
    LoadStats,
    /// `nclients`.
    Clients,
    KillName(String),
    KillAddress(SocketAddr),
    /// `client-kill`: the number of the session, and whether the client may connect again.
    KillSession {
        number: u64,
        halt: bool,
        reason: String,
    },
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Reply {
    Status(String),
    Load {
        clients: usize,
        received: u64,
        sent: u64,
    },
    /// The number of sessions that ended.
    Killed(usize),
    /// No server runs yet, or it has ended.
    Unavailable,
}
