//! What is measured: VPNs, and the bounds beside which they stand.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod adit;
mod bare;
mod bridge;
mod check;
mod copy;
pub mod database;
mod directives;
mod keys;
mod openvpn;
mod reach;
mod revision;
mod start;
mod tinc;
mod toolchain;
mod tunnels;
mod wired;
mod wireguard;

pub use bridge::Bridging;
pub use check::check;
pub use database::Scheme;
pub use keys::{Identity, Keys};
pub(crate) use revision::git;
pub use revision::{prepare, workspace};
pub use toolchain::{Toolchain, here};
pub use tunnels::{TunnelSpec, Tunnels};
pub use wired::Joint;

/// One thing to measure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Subject {
    /// No tunnel at all: the veth pair.
    Bare,
    /// A tunnel without cryptography through two TUN devices: the ceiling of any VPN of this shape.
    Copy,
    /// adit over UDP: this tree's, or that of a git revision.
    Adit(Option<String>),
    /// adit over UDP, its server with so many workers.
    AditWorkers(u16),
    /// As [`Subject::AditWorkers`], over TCP.
    AditTcpWorkers(u16),
    /// adit over TCP.
    AditTcp,
    /// adit as the server of openvpn's clients.
    AditServes,
    /// openvpn as the server of adit's clients.
    OpenvpnServes,
    /// As [`Subject::AditServes`], over TCP.
    AditServesTcp,
    /// As [`Subject::OpenvpnServes`], over TCP.
    OpenvpnServesTcp,
    /// `openvpn` over UDP.
    Openvpn,
    /// `openvpn` over TCP.
    OpenvpnTcp,
    /// adit over UDP with TAP devices.
    AditTap,
    /// `openvpn` over UDP with TAP devices.
    OpenvpnTap,
    /// Two TAP devices and what joins them: no tunnel.
    Bridge(Bridging),
    /// Two veth pairs and what joins them: no tunnel.
    Wired(Joint),
    /// adit over UDP, its server with a packet filter of a hundred rules, the last of which decides.
    AditFilter,
    /// Two or more hosts that reach only a database.
    Database(Scheme),
    /// tinc 1.0.
    Tinc,
    /// wireguard-go.
    WireguardGo,
}

/// Whether adit is, or is part of, the subject of this name.
pub fn has_adit(name: &str) -> bool {
    name.split('/').any(|end| end.starts_with("adit"))
}

impl Subject {
    /// All that have a name of their own; beside them there are `adit@REVISION`, `adit-wN` and `adit-tcp-wN`.
    pub const NAMED: [Subject; 35] = [
        Subject::Bare,
        Subject::Copy,
        Subject::Adit(None),
        Subject::AditTcp,
        Subject::AditServes,
        Subject::OpenvpnServes,
        Subject::AditServesTcp,
        Subject::OpenvpnServesTcp,
        Subject::Openvpn,
        Subject::OpenvpnTcp,
        Subject::AditTap,
        Subject::OpenvpnTap,
        Subject::AditFilter,
        Subject::Bridge(Bridging::Plain),
        Subject::Bridge(Bridging::PlainThreads),
        Subject::Bridge(Bridging::Relay),
        Subject::Bridge(Bridging::Rules),
        Subject::Bridge(Bridging::ManyRules),
        Subject::Wired(Joint::Kernel),
        Subject::Wired(Joint::KernelRules),
        Subject::Wired(Joint::Adit),
        Subject::Database(Scheme::RowNotify),
        Subject::Database(Scheme::RowNotifyAsync),
        Subject::Database(Scheme::RowNotify1400),
        Subject::Database(Scheme::RowNotify7900),
        Subject::Database(Scheme::RowTrigger),
        Subject::Database(Scheme::PacketInNotify),
        Subject::Database(Scheme::Strict),
        Subject::Database(Scheme::Strict1400),
        Subject::Database(Scheme::Relaxed),
        Subject::Database(Scheme::Relaxed1400),
        Subject::Database(Scheme::Volatile),
        Subject::Database(Scheme::Readable),
        Subject::Tinc,
        Subject::WireguardGo,
    ];

    /// The way through a database, if that is what it is.
    pub fn database(&self) -> Option<Scheme> {
        match self {
            Subject::Database(scheme) => Some(*scheme),
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Bare => f.write_str("bare"),
            Subject::Copy => f.write_str("copy"),
            Subject::Adit(None) => f.write_str("adit"),
            Subject::Adit(Some(revision)) => write!(f, "adit@{revision}"),
            Subject::AditWorkers(workers) => write!(f, "adit-w{workers}"),
            Subject::AditTcpWorkers(workers) => write!(f, "adit-tcp-w{workers}"),
            Subject::AditTcp => f.write_str("adit-tcp"),
            Subject::AditServes => f.write_str("adit/openvpn"),
            Subject::OpenvpnServes => f.write_str("openvpn/adit"),
            Subject::AditServesTcp => f.write_str("adit-tcp/openvpn-tcp"),
            Subject::OpenvpnServesTcp => f.write_str("openvpn-tcp/adit-tcp"),
            Subject::Openvpn => f.write_str("openvpn"),
            Subject::OpenvpnTcp => f.write_str("openvpn-tcp"),
            Subject::AditTap => f.write_str("adit-tap"),
            Subject::OpenvpnTap => f.write_str("openvpn-tap"),
            Subject::AditFilter => f.write_str("adit-filter"),
            Subject::Bridge(bridging) => f.write_str(bridging.name()),
            Subject::Wired(joint) => f.write_str(joint.name()),
            Subject::Database(scheme) => f.write_str(scheme.name()),
            Subject::Tinc => f.write_str("tinc"),
            Subject::WireguardGo => f.write_str("wireguard-go"),
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Subject, String> {
        let named = || Subject::NAMED.into_iter().find(|subject| subject.to_string() == text);
        let revision = || {
            let revision = text.strip_prefix("adit@").filter(|revision| !revision.is_empty())?;
            Some(Subject::Adit(Some(revision.to_owned())))
        };
        named().or_else(revision).or_else(|| workers(text)).ok_or_else(|| {
            let names = Subject::NAMED.map(|subject| subject.to_string()).join(", ");
            format!(
                "no subject is called {text:?}; write {names}, adit@REVISION, adit-w1 to adit-w64 (workers) or adit-tcp-w1 to adit-tcp-w64"
            )
        })
    }
}

/// A server with so many workers.
fn workers(text: &str) -> Option<Subject> {
    let (number, subject): (_, fn(u16) -> Subject) = match text.strip_prefix("adit-tcp-w") {
        Some(number) => (number, Subject::AditTcpWorkers),
        None => (text.strip_prefix("adit-w")?, Subject::AditWorkers),
    };
    number.parse().ok().filter(|number| (1..=64).contains(number)).map(subject)
}

impl TryFrom<String> for Subject {
    type Error = String;

    fn try_from(text: String) -> Result<Subject, String> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> String {
        subject.to_string()
    }
}
