//! The subjects of measurements: VPNs, and bounds to compare them with.

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
mod mesh;
mod nebula;
mod reach;
mod revision;
mod root;
mod start;
mod tinc;
mod toolchain;
mod tunnels;
mod vpn;
mod wired;
mod wireguard;

pub use bridge::Bridging;
pub use check::check;
pub use database::Scheme;
pub use keys::{Identity, Keys};
pub(crate) use revision::git;
pub use revision::{prepare, workspace};
pub use tinc::Tinc;
pub use toolchain::{Toolchain, here};
pub use tunnels::{MemberPath, TunnelSpec, Tunnels};
pub use vpn::{Carrier, Implementation, Variant, Vpn};
pub use wired::Joint;

/// One subject of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Subject {
    /// No tunnel at all, only the veth pair.
    Bare,
    /// A tunnel without cryptography through two TUN devices: the ceiling of any VPN with this design.
    Copy,
    /// A tunnel with OpenVPN's protocol.
    Vpn(Vpn),
    /// Two TAP devices and the program that joins them, without a tunnel.
    Bridge(Bridging),
    /// Two veth pairs and the bridge that joins them, without a tunnel.
    Wired(Joint),
    /// Two or more hosts that can reach only a database.
    Database(Scheme),
    /// tinc, and adit in its place.
    Tinc(Tinc),
    /// nebula.
    Nebula,
    /// wireguard-go.
    WireguardGo,
    /// adit's mesh.
    Mesh,
}

/// Returns whether the subject with this name is adit or contains it.
pub fn has_adit(name: &str) -> bool {
    name.split('/').any(|end| end.starts_with("adit"))
}

impl Subject {
    /// adit over UDP.
    pub const ADIT: Self = Self::Vpn(Vpn::of(Implementation::Adit, Carrier::Udp, Variant::Default));
    /// `openvpn` over UDP.
    pub const OPENVPN: Self =
        Self::Vpn(Vpn::of(Implementation::Openvpn, Carrier::Udp, Variant::Default));

    /// Returns all subjects with fixed names; in addition there are `adit@REVISION`, `adit-wN` and `adit-tcp-wN`.
    pub fn named() -> impl Iterator<Item = Self> {
        let bridges = [
            Bridging::Plain,
            Bridging::PlainThreads,
            Bridging::Relay,
            Bridging::Rules,
            Bridging::ManyRules,
        ];
        let joints = [Joint::Kernel, Joint::KernelRules, Joint::Adit];
        [Self::Bare, Self::Copy]
            .into_iter()
            .chain(Vpn::named().map(Subject::Vpn))
            .chain(bridges.map(Subject::Bridge))
            .chain(joints.map(Subject::Wired))
            .chain(Scheme::all().map(Subject::Database))
            .chain(Tinc::ALL.map(Subject::Tinc))
            .chain([Self::Nebula, Self::WireguardGo, Self::Mesh])
    }

    /// Returns the git revision of adit that is measured, if the subject names one.
    pub fn revision(&self) -> Option<&str> {
        match self {
            Self::Vpn(vpn) => vpn.revision(),
            _ => None,
        }
    }

    /// Returns whether its clients can be members of one network, which reach each other directly or through the server.
    pub fn is_mesh(&self) -> bool {
        matches!(self, Self::Mesh | Self::Nebula | Self::Tinc(_))
    }

    /// Returns the scheme of a subject that passes packets through a database.
    pub fn database(&self) -> Option<Scheme> {
        match self {
            Self::Database(scheme) => Some(*scheme),
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bare => f.write_str("bare"),
            Self::Copy => f.write_str("copy"),
            Self::Vpn(vpn) => vpn.fmt(f),
            Self::Bridge(bridging) => f.write_str(bridging.name()),
            Self::Wired(joint) => f.write_str(joint.name()),
            Self::Database(scheme) => f.write_str(scheme.name()),
            Self::Tinc(version) => f.write_str(version.name()),
            Self::Nebula => f.write_str("nebula"),
            Self::WireguardGo => f.write_str("wireguard-go"),
            Self::Mesh => f.write_str("adit-mesh"),
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = || Self::named().find(|subject| subject.to_string() == text);
        let numbered = || Vpn::numbered(text).map(Subject::Vpn);
        named().or_else(numbered).ok_or_else(|| {
            let names: Vec<String> = Self::named().map(|subject| subject.to_string()).collect();
            format!(
                "no subject is called {text:?}; write {}, adit@REVISION, adit-w1 to adit-w64 (workers) or adit-tcp-w1 to adit-tcp-w64",
                names.join(", ")
            )
        })
    }
}

impl TryFrom<String> for Subject {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.to_string()
    }
}
