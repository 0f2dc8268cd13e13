use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::filter::{CaptureBatch, FilterReport, RuleFiles};
use super::mesh::{
    MeshAdminRequest, MeshAdmins, MeshApp, MeshDescription, MeshDirectory, MeshInvitation,
    MeshJoiner, MeshPath, MeshPolicy, MeshPong, MeshProfile, MeshReport, MeshSigned, MeshToken,
};
use super::postgres::PostgresReport;
use super::tinc::TincReport;
use super::tinc_guest::TincNet;

/// A request, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Query the status. Answered with [`Response::Status`].
    Status,
    /// End the sessions with a common name, serial number or peer id. Answered with [`Response::Done`].
    Kick {
        /// The common name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The serial number of the certificate in lower-case hex.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        serial: Option<String>,
        /// The peer id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<u32>,
    },
    /// Read certificates, registry and rules again. Answered with [`Response::Reloaded`] by a server.
    Reload,
    /// Read the changed registry and the data that depends on it again, but not the filter's rules. The current rules
    /// may not be those in the configured file, and the file may be half edited.
    #[serde(rename = "reload.clients")]
    ReloadClients,
    /// Notify the peers and exit.
    Stop,
    /// Exit, and leave the sessions to the next process, which the service manager starts. Answered with
    /// [`Response::Done`] and the number of sessions, or with the reason why the sessions have to end.
    HandOver {
        /// The version of the state that the next process reads.
        version: u32,
        /// The settings that the sessions depend on, as the next process reads them.
        settings: String,
    },
    /// Query the filter's rules with their counters. Answered with [`Response::Filter`].
    #[serde(rename = "filter.show")]
    FilterShow {
        /// Whether to list single connections.
        #[serde(default)]
        flows: bool,
        /// Whether to return only what identifies the filter, without rules and counters.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        brief: bool,
    },
    /// Replace all rules. If the new rules are invalid, the old ones remain in force.
    #[serde(rename = "filter.reload")]
    FilterReload {
        /// The rules. With `None`, the process itself reads its rule file again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        files: Option<RuleFiles>,
    },
    /// End the connections of a client, of an address or network, or all connections. Answered with [`Response::Done`].
    #[serde(rename = "filter.flush")]
    FilterFlush {
        /// The name of a client. The client need not be connected.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<String>,
        /// An address, or a network with its length.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    },
    /// Add elements to a set of the current rules, or delete them, either all or none. Answered with
    /// [`Response::Done`].
    #[serde(rename = "filter.element")]
    FilterElement {
        /// Whether to delete the elements.
        #[serde(default)]
        delete: bool,
        /// `[FAMILY TABLE] SET ELEMENT, ...`, as nftables writes them.
        text: String,
    },
    /// Query the packets of `log group` rules since the last request. The first request begins a capture, which ends
    /// after some seconds without a request. Answered with [`Response::Capture`].
    #[serde(rename = "filter.capture")]
    FilterCapture {
        /// The id in the last response; `None` in the first request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// Whether this is the last request.
        #[serde(default)]
        end: bool,
    },
    /// Invites nodes to the mesh. Answered with [`Response::MeshToken`].
    #[serde(rename = "mesh.invite")]
    MeshInvite(MeshInvitation),
    /// Makes an OpenVPN app a leaf of this node. Answered with [`Response::MeshProfile`].
    #[serde(rename = "mesh.invite-app")]
    MeshInviteApp(MeshApp),
    /// Changes a node's description in the mesh. Answered with [`Response::MeshSigned`].
    #[serde(rename = "mesh.set")]
    MeshSet {
        /// The node's name, or the beginning of its key's hash.
        name: String,
        /// The changes to the description.
        description: MeshDescription,
    },
    /// Removes a node from the mesh permanently. Answered with [`Response::MeshSigned`].
    #[serde(rename = "mesh.remove")]
    MeshRemove {
        /// The node's name, or the beginning of its key's hash.
        name: String,
        /// Whether the nodes that it invited are removed as well.
        #[serde(default)]
        with_invited: bool,
    },
    /// Admits or refuses a waiting node. Answered with [`Response::MeshJoiner`].
    #[serde(rename = "mesh.approve")]
    MeshApprove {
        /// The node's name, or the beginning of its key's hash.
        name: String,
        /// Whether to refuse it.
        #[serde(default)]
        refuse: bool,
    },
    /// Sends a ping to a node, or fetches its answer. Answered with [`Response::MeshPong`].
    #[serde(rename = "mesh.ping")]
    MeshPing {
        /// The node's name, or the beginning of its key's hash.
        name: String,
        /// The number of the ping whose answer to fetch; `None` to send a new one.
        #[serde(default)]
        ping: Option<u64>,
    },
    /// Connects to a node, and explains the paths to it. Answered with [`Response::MeshPath`].
    #[serde(rename = "mesh.path")]
    MeshPath {
        /// The node's name, or the beginning of its key's hash.
        name: String,
    },
    /// Returns the keys that may change the mesh. Answered with [`Response::MeshAdmins`].
    #[serde(rename = "mesh.admins")]
    MeshAdmins,
    /// Changes the rights in the mesh. Answered with [`Response::MeshSigned`].
    #[serde(rename = "mesh.admin")]
    MeshAdmin(MeshAdminRequest),
    /// Returns the policy of the mesh. Answered with [`Response::MeshPolicy`].
    #[serde(rename = "mesh.policy")]
    MeshPolicy,
    /// Returns the node's directory, and compares its entries with those that it showed before. Answered with [`Response::MeshDirectory`].
    #[serde(rename = "mesh.directory")]
    MeshDirectory,
    /// Makes a text the policy of the mesh. Answered with [`Response::MeshSigned`].
    #[serde(rename = "mesh.set-policy")]
    MeshSetPolicy {
        /// Rules; with an empty text, there is no policy.
        text: String,
    },
    /// Announces exactly these networks in a tinc net, in addition to the configured subnets of its node, until no such request has come
    /// for 30 seconds. Answered with [`Response::TincNet`].
    #[serde(rename = "tinc.announce")]
    TincAnnounce {
        /// The networks.
        networks: Vec<IpNet>,
    },
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The tag is outside, because with an inner tag serde buffers the content and cannot read the numeric keys of the
// histograms.
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// The state of the process.
    Status(Box<StatusReport>),
    /// The state of the filter.
    Filter(Box<FilterReport>),
    /// Captured packets.
    Capture(Box<CaptureBatch>),
    /// The request was carried out.
    Done {
        /// The number of affected sessions, connections or elements.
        count: usize,
    },
    /// The result of reading files again.
    Reloaded(Box<ReloadReport>),
    /// The token of an invitation.
    MeshToken(MeshToken),
    /// The profile of an OpenVPN app.
    MeshProfile(Box<MeshProfile>),
    /// The node that was approved or refused.
    MeshJoiner(MeshJoiner),
    /// A ping.
    MeshPong(Box<MeshPong>),
    /// The paths to a node.
    MeshPath(Box<MeshPath>),
    /// The policy of a mesh.
    MeshPolicy(MeshPolicy),
    /// The node's directory database, if it has one.
    MeshDirectory(Option<Box<MeshDirectory>>),
    /// The keys that may change the mesh.
    MeshAdmins(Box<MeshAdmins>),
    /// A change was signed.
    MeshSigned(MeshSigned),
    /// The state of a tinc net.
    TincNet(TincNet),
    /// The request failed.
    Error {
        /// The reason, in one sentence.
        message: String,
    },
}

/// The settings that a reload applied, and those that need a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// The settings that are in force now.
    #[serde(default)]
    pub applied: Vec<String>,
    /// The settings that require a restart.
    #[serde(default)]
    pub pending: Vec<String>,
    /// The clients whose profiles contain another host or other ports.
    #[serde(default)]
    pub outdated: Vec<String>,
    /// The lines that these profiles need.
    #[serde(default)]
    pub endpoints: Endpoints,
}

/// The `remote` lines of a profile.
pub type Endpoints = Vec<String>;

/// A profile that two devices use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedProfile {
    /// The common name.
    pub name: String,
    /// The last addresses of the two devices.
    pub addresses: [String; 2],
    /// The number of times that one of them took the other's session.
    pub count: u32,
    /// The time when this last happened, in seconds since 1970.
    pub last: u64,
}

/// The logins with user names and passwords since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoginReport {
    /// The number of successful logins.
    pub accepted: u64,
    /// The number of failed logins.
    pub failed: u64,
    /// The number of logins that were refused during a pause after failed ones.
    pub paused: u64,
    /// The number of logins that were not verified, because too many waited or the users could not be read.
    pub busy: u64,
    /// The number of addresses and names whose failures were forgotten to make room for others.
    pub limits_dropped: u64,
}

/// The state of a running tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The version of the program.
    pub version: String,
    /// `server`, `client`, `bridge`, `postgres`, `mesh` or `tinc`.
    pub role: String,
    /// The name of the instance and of its control socket.
    pub instance: String,
    /// The state: `running`, `connecting`, ...
    pub state: String,
    /// The process id.
    pub pid: u32,
    /// The start time in seconds since 1970.
    pub started: u64,
    /// The seconds since the start.
    pub uptime_s: u64,
    /// The addresses on which the instance listens, or the address of its server.
    pub endpoints: Vec<String>,
    /// The TUN device.
    pub tun: Option<TunReport>,
    /// The sessions.
    pub peers: Vec<PeerReport>,
    /// The numbers of dropped packets since the start by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
    /// The lengths of the trains.
    pub trains: TrainReport,
    /// The number of threads that move packets.
    #[serde(default)]
    pub workers: usize,
    /// The offloads by name, and whether each is in use.
    pub offloads: BTreeMap<String, bool>,
    /// The DNS servers that a client's host uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<crate::host::DnsInUse>,
    /// The reason why a client could not set up its rules and routes. It keeps trying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<String>,
    /// The certificate that expires first.
    pub certificate: Option<CertificateReport>,
    /// The client certificate that expires first; only for a managed server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<CertificateReport>,
    /// The profiles that two devices use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedProfile>,
    /// The logins of users; only for a managed server whose users log in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logins: Option<LoginReport>,
    /// The reason why the process could not be queried. In this case all fields except the role, instance and process
    /// id are empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The user that the process runs as, if it could not be queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The current rule file of a server that filters its clients' packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The filter's connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<super::FlowTotals>,
    /// The state of a bridge's two ports; only for a bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeReport>,
    /// The state of a network through a database; only for a node of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresReport>,
    /// The state of a mesh node; only for such a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<MeshReport>,
    /// The state of a node of a tinc net; only for such a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tinc: Option<Box<TincReport>>,
}

/// The state of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeReport {
    /// `relay` if all frames pass, `filter` if only those pass that the rules accept.
    pub mode: String,
    /// The file that contains its rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules_file: Option<String>,
    /// The number of rules.
    #[serde(default)]
    pub rules: usize,
    /// The number of connections.
    #[serde(default)]
    pub flows: u64,
    /// The maximum number of connections.
    #[serde(default)]
    pub flows_limit: u64,
    /// The two ports.
    pub ports: Vec<PortReport>,
}

/// A port of a bridge, with the frames received on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// The interface's name.
    pub name: String,
    /// `tap` or `interface`.
    pub kind: String,
    /// Whether the interface exists.
    pub present: bool,
    /// The number of received frames. A super-packet is one frame.
    pub frames: u64,
    /// The number of bytes in these frames.
    pub bytes: u64,
    /// The number of super-packets among these frames.
    pub large: u64,
    /// The number of frames that were sent on the other port.
    pub forwarded: u64,
    /// The numbers of dropped frames by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
}

/// The TUN device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunReport {
    /// The name.
    pub name: String,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The addresses with their networks.
    pub addresses: Vec<String>,
}

/// A session with a peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// The peer id in the data plane.
    pub id: u32,
    /// The common name.
    pub name: String,
    /// The user name, if any.
    pub username: Option<String>,
    /// The address outside the tunnel.
    pub address: String,
    /// `udp` or `tcp`.
    #[serde(default)]
    pub transport: String,
    /// The addresses inside the tunnel.
    pub tunnel: Vec<String>,
    /// The cipher of the data channel.
    pub cipher: String,
    /// The TLS version and suite.
    pub tls: String,
    /// The program and version that the peer reports.
    pub program: Option<String>,
    /// The time when the session began, in seconds since 1970.
    pub since: u64,
    /// The age of the data key in seconds.
    pub key_age_s: u64,
    /// The number of authentic data packets received.
    pub rx_packets: u64,
    /// The number of bytes in these packets on the wire.
    pub rx_bytes: u64,
    /// The number of data packets sent.
    pub tx_packets: u64,
    /// The number of bytes in these packets on the wire.
    pub tx_bytes: u64,
    /// The received bits per second over the last few seconds.
    pub rx_bps: u64,
    /// The sent bits per second over the last few seconds.
    pub tx_bps: u64,
    /// The largest IP packet that the outer path carries unfragmented, at most 1500; absent over TCP, or if the peer
    /// does not answer probes.
    #[serde(default)]
    pub path_mtu: Option<u16>,
    /// The maximum TCP segment size over IPv4 inside the tunnel; absent if segments are not clamped.
    #[serde(default)]
    pub mss: Option<u16>,
}

/// Histograms of packets per train; the key is the lower bound of a bucket, in packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainReport {
    /// Sent trains by their number of packets.
    pub sent: BTreeMap<u32, u64>,
    /// Received trains by their number of packets.
    pub received: BTreeMap<u32, u64>,
    /// The number of packets in all sent trains.
    #[serde(default)]
    pub sent_packets: u64,
    /// The number of packets in all received trains.
    #[serde(default)]
    pub received_packets: u64,
    /// Trains that were relayed unread by their number of packets; not among those sent.
    #[serde(default)]
    pub relayed: BTreeMap<u32, u64>,
    /// The number of packets in all relayed trains.
    #[serde(default)]
    pub relayed_packets: u64,
}

/// A certificate and its expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// The owner: `own`, `ca`, or the common name of a peer.
    pub whose: String,
    /// The end of validity in seconds since 1970.
    pub not_after: u64,
    /// The number of days left; negative after expiry.
    pub days_left: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verbs_of_the_filter_have_their_names_on_the_socket() {
        let line = |request: &Request| serde_json::to_string(request).unwrap();
        let show = Request::FilterShow { flows: true, brief: false };
        assert_eq!(line(&show), r#"{"do":"filter.show","flows":true}"#);
        let files = RuleFiles {
            name: "a.nft".into(),
            texts: BTreeMap::from([("a.nft".to_owned(), "table".to_owned())]),
        };
        let reload = Request::FilterReload { files: Some(files) };
        let capture = Request::FilterCapture { id: Some(7), end: true };
        let flush = Request::FilterFlush { client: Some("alice".into()), address: None };
        let element = Request::FilterElement { delete: true, text: "s 10.0.0.1".into() };
        assert_eq!(line(&element), r#"{"do":"filter.element","delete":true,"text":"s 10.0.0.1"}"#);
        let again = Request::FilterReload { files: None };
        for request in [show, reload, flush, element, capture, again] {
            assert_eq!(serde_json::from_str::<Request>(&line(&request)).unwrap(), request);
        }
        let least = serde_json::from_str::<Request>(r#"{"do":"filter.show"}"#).unwrap();
        assert_eq!(least, Request::FilterShow { flows: false, brief: false });
    }

    #[test]
    fn a_full_report_survives_the_socket() {
        let report = StatusReport {
            drops: BTreeMap::from([("bad-tag".to_owned(), 3)]),
            trains: TrainReport {
                sent: BTreeMap::from([(33, 7)]),
                received: BTreeMap::from([(1, 2)]),
                ..TrainReport::default()
            },
            peers: vec![PeerReport { name: "bob".into(), ..PeerReport::default() }],
            certificate: Some(CertificateReport { days_left: -1, ..CertificateReport::default() }),
            ..StatusReport::default()
        };
        let response = Response::Status(Box::new(report));
        let line = serde_json::to_string(&response).unwrap();
        assert_eq!(serde_json::from_str::<Response>(&line).unwrap(), response);
    }
}
