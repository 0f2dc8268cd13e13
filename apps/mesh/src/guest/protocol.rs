//! Messages between the node and the process of its guest.

use std::path::PathBuf;

use adit_runtime::control::TincNet;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The maximum length of a message, in bytes: all subnets of an answer fit.
pub(super) const MESSAGE_LIMIT: usize = 1 << 20;

/// A message to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToGuest {
    /// The first message.
    Begin(Begin),
    /// Announces exactly these networks.
    Announce(Vec<IpNet>),
}

/// How to run and reach the daemon of tinc.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begin {
    /// The name of the net, for its device and scripts.
    pub(super) net: String,
    /// The configuration directory.
    pub(super) directory: PathBuf,
    /// adit's control socket of the daemon.
    pub(super) control: PathBuf,
    /// The debug level.
    pub(super) debug: u8,
}

/// A message from the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GuestState {
    /// The daemon does not answer yet.
    Starting,
    /// The daemon answers.
    Running(TincNet),
    /// There is no connection to the net, for this reason.
    Failed(String),
}
