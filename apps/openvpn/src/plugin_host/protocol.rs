//! The messages between the network process and the plugin host.
//!
//! Each message is one JSON object on a channel. The network process sends a request only after the host has processed
//! the one before it, so at most one is under way.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The maximum size of a message in bytes.
pub(super) const MESSAGE_LIMIT: usize = 256 << 10;

/// The maximum size of the configuration that the plugins return for a client.
pub(super) const MAX_CONFIG: usize = 32 << 10;

/// A plugin that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PluginFile {
    /// The file as written. Plugins get it as their first argument.
    pub(super) file: String,
    pub(super) args: Vec<String>,
    /// The directory to which `./` refers.
    pub(super) directory: Option<PathBuf>,
}

/// A request to the host, and the number that its answers carry.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NumberedRequest {
    pub(super) id: u64,
    pub(super) request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Load and open the plugins. Only the first request may do this, while the network process is still trusted.
    Open(Box<OpenRequest>),
    /// Change to the configured user, and open the plugins that want to be opened then.
    BecomeUser {
        env: Vec<(String, String)>,
    },
    /// Close all plugins and open them again (SIGHUP).
    Reopen {
        env: Vec<(String, String)>,
    },
    Call(Box<CallRequest>),
    /// Ask the plugins again about a deferred `client-connect`.
    Poll {
        call: u64,
    },
    /// Forget a deferred call.
    Cancel {
        call: u64,
    },
    /// Release the plugins' memory for a client.
    EndClient {
        client: u64,
    },
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct OpenRequest {
    pub(super) plugins: Vec<PluginFile>,
    pub(super) env: Vec<(String, String)>,
    /// The working directory (`cd`), to which the plugins' own files may be relative.
    pub(super) directory: Option<PathBuf>,
    /// The directory of files for deferred answers (`tmp-dir`).
    pub(super) folder: PathBuf,
    pub(super) user: Option<String>,
    pub(super) group: Option<String>,
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallRequest {
    /// The number of the kind in the plugin interface.
    pub(super) kind: u8,
    /// The arguments after the plugin's path.
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    /// The number of the client, or 0.
    pub(super) client: u64,
    /// The depth and the DER of a certificate.
    pub(super) certificate: Option<(u8, Vec<u8>)>,
}

// Written by hand because a derived implementation would print passwords.
impl fmt::Debug for CallRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallRequest")
            .field("kind", &self.kind)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// A message from the host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// The host has processed a request and is free for the next one.
    Processed { id: u64, result: Processed },
    /// The final answer of a deferred call.
    Answer { id: u64, outcome: Outcome },
    /// A deferred call needs more time, or an action of the user.
    Pending { id: u64, pending: Pending },
    /// A line for the log.
    Line {
        /// 0 for an error, 1 for a warning, 2 for any other line.
        level: u8,
        /// The level of `say!`.
        verb: u64,
        text: String,
    },
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Processed {
    /// The plugins are open, and want these calls together.
    Opened { mask: u32 },
    /// A plugin cannot be used, for this reason.
    Failed(String),
    /// The final answer of a call.
    Called(Outcome),
    /// The answer of the call follows.
    Deferred,
    /// The request is done and has no result.
    Done,
}

/// The combined answer of all plugins that want a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// All plugins accept, with directives for the client's configuration.
    Accepted { config: Vec<String> },
    /// A plugin refuses, or failed.
    Refused {
        /// The reason for the log.
        log: String,
        /// The reason for the peer, if the plugin gave one.
        peer: Option<String>,
    },
}

impl Outcome {
    pub(super) fn accepted() -> Self {
        Self::Accepted { config: Vec::new() }
    }

    pub(super) fn refused(log: impl Into<String>) -> Self {
        Self::Refused { log: log.into(), peer: None }
    }
}

/// What a plugin wrote into `auth_pending_file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// The time for the whole authentication, in seconds.
    pub(crate) timeout: u32,
    /// The method that the client must support (`IV_SSO`).
    pub(crate) method: String,
    /// The text for the client, such as `WEB_AUTH::https://...`.
    pub(crate) extra: String,
}
