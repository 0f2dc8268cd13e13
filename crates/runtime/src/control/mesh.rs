use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::tinc_guest::MeshTinc;

/// The state of a node of a mesh.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeshReport {
    /// The mesh's name.
    pub mesh: String,
    /// The mesh's id, in hex.
    pub id: String,
    /// This node's name.
    pub node: String,
    /// The hash of this node's key, in hex.
    pub key: String,
    /// This node's addresses in the mesh.
    pub addresses: Vec<IpAddr>,
    /// The networks behind this node.
    #[serde(default)]
    pub subnets: Vec<IpNet>,
    /// This node's groups.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The addresses at which others may reach it.
    pub reachable: Vec<SocketAddr>,
    /// The TCP port at which nodes without UDP may reach it, at the same addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_port: Option<u16>,
    /// The NAT in front of it, in words.
    pub nat: String,
    /// Whether it is a relay for others.
    pub relay: bool,
    /// Whether others may reach the internet through it.
    #[serde(default)]
    pub gateway: bool,
    /// Whether OpenVPN apps may be its leaves.
    #[serde(default)]
    pub openvpn: bool,
    /// The number of OpenVPN apps that are connected to it.
    #[serde(default)]
    pub connected_apps: usize,
    /// Whether it has an admin's key.
    pub admin: bool,
    /// The gateway through which this machine reaches the internet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<String>,
    /// Forwarded control packets and records of other nodes, in bytes; data is not counted here.
    pub relayed_bytes: u64,
    /// Its directory database. Without one, its own file is its only directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<MeshDirectory>,
    /// The nodes that wait for the approval of this node's operator.
    #[serde(default)]
    pub waiting: Vec<MeshJoiner>,
    /// All other members.
    pub peers: Vec<MeshPeer>,
    /// Warnings for an operator.
    pub warnings: Vec<String>,
    /// Its UDP port.
    #[serde(default)]
    pub port: u16,
    /// Its TUN or TAP device.
    #[serde(default)]
    pub device: String,
    /// Whether the mesh carries Ethernet frames.
    #[serde(default)]
    pub ethernet: bool,
    /// Whether it forwards between the mesh and other networks.
    #[serde(default)]
    pub forwards: bool,
    /// The tinc net in which it is a guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tinc: Option<MeshTinc>,
}

/// A node's directory database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshDirectory {
    /// Its URL, without role and password.
    pub database: String,
    /// This node's role.
    pub role: String,
    /// `connected`, `reading` until everything has been read, or `not-reachable`.
    pub state: String,
    /// The number of seconds since it became reachable or unreachable.
    pub since_s: u64,
    /// The reason why it is unreachable, or refuses to append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The entries that it has shown.
    pub entries: usize,
    /// The changes of this node.
    pub changes: usize,
    /// The changes that this node has but it lacks, once that is known.
    pub lacks: Option<usize>,
    /// The changes that it cannot store, because another entry has their number, or the number of an earlier change in their chain.
    pub conflicts: usize,
    /// The entries that are not valid changes.
    pub invalid_entries: usize,
    /// Changes that this node received from it.
    pub received: u64,
    /// Changes that this node appended.
    pub appended: u64,
    /// Changes that it lacked.
    pub withheld: u64,
    /// The number of times that its entries differed from those that it had shown before.
    pub mismatches: u64,
    /// Entries that were refused because they are not valid or are out of order.
    pub invalid: u64,
    /// Appends that it refused.
    pub refused: u64,
}

/// Another member of a mesh.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeshPeer {
    /// Its name, unless another member has it.
    pub name: Option<String>,
    /// The hash of its key, in hex.
    pub key: String,
    /// Its addresses in the mesh.
    pub addresses: Vec<IpAddr>,
    /// The networks behind it.
    pub subnets: Vec<IpNet>,
    /// Its groups.
    pub groups: Vec<String>,
    /// Whether it is a relay for others.
    pub relay: bool,
    /// Whether others may reach the internet through it.
    #[serde(default)]
    pub gateway: bool,
    /// Whether OpenVPN apps may be its leaves.
    #[serde(default)]
    pub openvpn: bool,
    /// The name of the gateway through which it is reached, if it is an OpenVPN app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf_of: Option<String>,
    /// `direct`, `relay`, `leaf`, `connecting`, or `none` without a session.
    pub route: String,
    /// The address of a direct path or of an app connected to this node, or the name of the relay.
    pub via: Option<String>,
    /// Whether this node's connection to it, or to the relay, is over TCP, because UDP gets no answer.
    #[serde(default)]
    pub tcp: bool,
    /// The round trip in milliseconds, if it was measured.
    pub rtt_ms: Option<f64>,
    /// The age of the session in seconds.
    pub connected_s: Option<u64>,
    /// When its membership ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<u64>,
    /// Whether too few other members have confirmed the roster since this node was away.
    #[serde(default)]
    pub stale: bool,
    /// Whether it has no routes because of `max-age`.
    #[serde(default)]
    pub expired: bool,
    /// Its items that were dropped in the last ten minutes because it exceeded a limit.
    #[serde(default)]
    pub dropped: MeshDropped,
    /// Received from it in the current session, in bytes.
    #[serde(default)]
    pub rx_bytes: u64,
    /// Sent to it in the current session, in bytes.
    #[serde(default)]
    pub tx_bytes: u64,
    /// Received from it now, in bits per second.
    #[serde(default)]
    pub rx_bps: u64,
    /// Sent to it now, in bits per second.
    #[serde(default)]
    pub tx_bps: u64,
    /// The data channels of the session, in order.
    #[serde(default)]
    pub channels: Vec<MeshChannel>,
}

/// A node that waits for an approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshJoiner {
    /// Its future name.
    pub name: String,
    /// The hash of its key, in hex.
    pub key: String,
    /// The beginning of the hash, as the node itself shows it.
    pub fingerprint: String,
    /// The invitation that it uses: [`MeshToken::invitation`].
    pub invitation: String,
    /// How long it has waited, in seconds.
    pub waits_s: u64,
}

/// The answer to a ping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeshPong {
    /// The member.
    pub peer: MeshPeer,
    /// The number of the ping, to ask for its answer; `None` if it could not be sent yet.
    pub ping: Option<u64>,
    /// The round trip in milliseconds, once the answer has arrived.
    pub rtt_ms: Option<f64>,
    /// The path of the answer: see [`MeshPeer::route`].
    pub route: Option<String>,
    /// See [`MeshPeer::via`].
    pub via: Option<String>,
}

/// The numbers of a member's items that were dropped because it exceeded a limit.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshDropped {
    /// Records of all kinds.
    pub records: u64,
    /// Addresses at which it may be reached.
    pub endpoints: u64,
    /// Changes of the mesh.
    pub changes: u64,
}

/// A data channel to another member, and its traffic since the session began.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshChannel {
    /// Packets received and authenticated.
    pub received_packets: u64,
    /// Bytes of these on the wire (UDP payload).
    pub received_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes of these on the wire (UDP payload).
    pub sent_bytes: u64,
}

/// An invitation for nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshInvitation {
    /// The node's name, or `None` for the name that it requests.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether it waits for the approval of this node's operator.
    #[serde(default)]
    pub approve: bool,
    /// Its groups.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The networks behind it.
    #[serde(default)]
    pub subnets: Vec<IpNet>,
    /// Whether it is a relay for others.
    #[serde(default)]
    pub relay: bool,
    /// Whether others may send all their traffic through it.
    #[serde(default)]
    pub gateway: bool,
    /// The number of nodes that may join.
    pub uses: u32,
    /// How long the invitation is valid, in seconds.
    pub valid_s: u64,
}

/// An OpenVPN app that becomes a leaf of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshApp {
    /// Its name, or `None` for one that no member has.
    pub name: Option<String>,
    /// Its groups.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Whether all its traffic goes through this node.
    #[serde(default)]
    pub full_tunnel: bool,
}

/// The profile of an OpenVPN app.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshProfile {
    /// The app's name.
    pub name: String,
    /// Its addresses in the mesh.
    pub addresses: Vec<IpAddr>,
    /// The name of the gateway.
    pub gateway: String,
    /// The addresses at which it reaches the gateway.
    pub remotes: Vec<String>,
    /// When its membership ends, in seconds since 1970.
    pub not_after: u64,
    /// The profile. It has the app's private key, and is a secret.
    pub profile: String,
}

// Written by hand to keep the key out of logs.
impl std::fmt::Debug for MeshProfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeshProfile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Changes to a member's description. `None` leaves a part unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshDescription {
    /// Its name.
    pub name: Option<String>,
    /// All of its groups.
    pub groups: Option<Vec<String>>,
    /// All networks behind it.
    pub subnets: Option<Vec<IpNet>>,
    /// Whether it is a relay for others.
    pub relay: Option<bool>,
    /// Whether others may send all their traffic through it.
    pub gateway: Option<bool>,
    /// Whether OpenVPN apps may be its leaves.
    #[serde(default)]
    pub openvpn: Option<bool>,
}

/// The token of an invitation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshToken {
    /// The token. It is a secret.
    pub token: String,
    /// The time after which it is worthless, in seconds since 1970.
    pub until: u64,
    /// The id of the invitation. It is not a secret.
    #[serde(default)]
    pub invitation: String,
}

// Written by hand to keep the token out of logs.
impl std::fmt::Debug for MeshToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeshToken").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A change to the rights in a mesh. This node signs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeshAdminRequest {
    /// Gives a member a right.
    Grant {
        /// The member's name, or the beginning of its key's hash.
        name: String,
        /// The right to invite within limits, or `None` for the right of an admin.
        #[serde(default)]
        inviter: Option<MeshInviter>,
    },
    /// Sets the number of admins who must approve important changes.
    Threshold {
        /// The number.
        admins: u8,
    },
    /// Approves a waiting change.
    Approve {
        /// The beginning of the change's hash.
        change: String,
    },
    /// Revokes a key that belongs to no member.
    Revoke {
        /// The beginning of the key's hash.
        key: String,
    },
    /// Replaces this node's admin key with a new one.
    Rotate,
}

/// The limits of an inviter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshInviter {
    /// The groups that its nodes may be in.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The networks within which its nodes may have subnets.
    #[serde(default)]
    pub subnets: Vec<IpNet>,
    /// Whether its nodes may be relays.
    #[serde(default)]
    pub relay: bool,
    /// Whether its nodes may be gateways.
    #[serde(default)]
    pub gateway: bool,
    /// Whether it may admit OpenVPN apps as leaves of its own node.
    #[serde(default)]
    pub openvpn: bool,
    /// The number of nodes that it may admit.
    pub count: u32,
    /// The time until which it may admit nodes, in seconds since 1970.
    #[serde(default)]
    pub until: Option<u64>,
}

/// The answer to a [`MeshAdminRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshSigned {
    /// The change's hash, in hex.
    pub change: String,
    /// Whether it takes effect only after other admins have approved it.
    pub is_waiting: bool,
}

/// The rights to change a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshAdmins {
    /// The keys of admins.
    pub admins: Vec<MeshSigner>,
    /// The number of admins who must approve important changes.
    pub threshold: u8,
    /// The keys that may invite, within limits.
    pub inviters: Vec<MeshSigner>,
    /// The changes that wait for approvals.
    pub waiting: Vec<MeshWaiting>,
    /// Warnings for an operator.
    pub warnings: Vec<String>,
}

/// A key that signs changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshSigner {
    /// The hash of the key, in hex.
    pub key: String,
    /// The name of the member to which the key belongs, if it belongs to one.
    pub name: Option<String>,
    /// Whether this node has the key.
    pub here: bool,
    /// The limits of an inviter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<MeshInviter>,
}

/// A change that waits for approvals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshWaiting {
    /// The change's hash, in hex.
    pub change: String,
    /// Its effect, in words.
    pub what: String,
    /// The hashes of the keys that approve it, in hex; the signer's is the first.
    pub approved_by: Vec<String>,
}

/// The policy of a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshPolicy {
    /// The text in force on this node; `None` if there is no policy.
    pub text: Option<String>,
    /// The SHA-256 of the mesh's policy, in hex.
    pub hash: Option<String>,
    /// The reason why the mesh's policy is not in force on this node.
    pub problem: Option<String>,
}

/// The paths to a member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeshPath {
    /// The member.
    pub peer: MeshPeer,
    /// All attempts, in words.
    pub text: String,
    /// The same for programs, or `None` before the first attempt.
    pub report: Option<serde_json::Value>,
}
