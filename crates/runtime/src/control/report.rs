use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::filter::{CaptureBatch, FilterReport, RuleFiles};
use super::postgres::PostgresReport;

/// One request, one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Answered with [`Response::Status`].
    Status,
    /// End sessions by common name, serial number or peer id. Answered with [`Response::Done`].
    Kick {
        /// Common name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Serial number of the certificate, lower-case hex.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        serial: Option<String>,
        /// Peer id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<u32>,
    },
    /// Read certificates, registry and rules again. Answered with [`Response::Reloaded`] by a server.
    Reload,
    /// The registry has changed: reads it and the data that depends on it again, but not the filter's rules. The rules
    /// in force may be others than those of the configured file, which may also be half edited.
    #[serde(rename = "reload.clients")]
    ReloadClients,
    /// Notify the peers and exit.
    Stop,
    /// The filter's rules with their counters. Answered with [`Response::Filter`].
    #[serde(rename = "filter.show")]
    FilterShow {
        /// Whether to list single connections.
        #[serde(default)]
        flows: bool,
        /// Whether to return only what identifies the filter, without rules and counters.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        brief: bool,
    },
    /// Replace the rules as a whole. If the new ones are invalid, the former ones remain in force.
    #[serde(rename = "filter.reload")]
    FilterReload {
        /// The rules; `None`: those of the file that is in force, read again by the process itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        files: Option<RuleFiles>,
    },
    /// Ends connections: of a client, of an address or network, or all. Answered with [`Response::Done`].
    #[serde(rename = "filter.flush")]
    FilterFlush {
        /// The name of a client, which need not be connected.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<String>,
        /// An address, or a network with its length.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    },
    /// Adds elements to a set of the rules in force, or deletes them: all or none. Answered with [`Response::Done`].
    #[serde(rename = "filter.element")]
    FilterElement {
        /// Deletes them.
        #[serde(default)]
        delete: bool,
        /// `[FAMILY TABLE] SET ELEMENT, ...`, as nftables writes them.
        text: String,
    },
    /// Packets of `log group` rules since the last request. The first request begins a capture, which ends after some
    /// seconds without a request. Answered with [`Response::Capture`].
    #[serde(rename = "filter.capture")]
    FilterCapture {
        /// The value of the last answer; `None` at first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// The last question.
        #[serde(default)]
        end: bool,
    },
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// Tagged from outside: an inner tag makes serde buffer the content, and then the numeric keys of the
// histograms cannot be read back.
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// The state of the process.
    Status(Box<StatusReport>),
    /// The filter.
    Filter(Box<FilterReport>),
    /// Captured packets.
    Capture(Box<CaptureBatch>),
    /// Done; `count` is the number of sessions that a kick ended.
    Done {
        /// The number of sessions concerned.
        count: usize,
    },
    /// The result of reading files again.
    Reloaded(Box<ReloadReport>),
    /// Not done, and why.
    Error {
        /// One sentence.
        message: String,
    },
}

/// The settings that a reload applied, and those that need a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Settings that are in force now.
    #[serde(default)]
    pub applied: Vec<String>,
    /// Settings that require a restart.
    #[serde(default)]
    pub pending: Vec<String>,
    /// Clients whose profiles contain another host or other ports.
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
    /// Common name.
    pub name: String,
    /// The last addresses of the two devices.
    pub addresses: [String; 2],
    /// The number of times that one of them took the other's session.
    pub count: u32,
    /// When it happened last, in seconds since 1970.
    pub last: u64,
}

/// The state of a running tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Version of the program.
    pub version: String,
    /// `server`, `client`, `bridge` or `postgres`.
    pub role: String,
    /// Instance: name of the control socket.
    pub instance: String,
    /// `running`, `connecting`, ...
    pub state: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since 1970 when it started.
    pub started: u64,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// The addresses on which it listens, or its server's.
    pub endpoints: Vec<String>,
    /// The device.
    pub tun: Option<TunReport>,
    /// Sessions.
    pub peers: Vec<PeerReport>,
    /// Dropped packets by reason, since the start; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
    /// The lengths of the trains.
    pub trains: TrainReport,
    /// The number of threads that move packets.
    #[serde(default)]
    pub workers: usize,
    /// Offloads in force, by name.
    pub offloads: BTreeMap<String, bool>,
    /// The DNS servers that a client's machine uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<crate::host::DnsInUse>,
    /// Why a client's rules and routes are not those that it needs; it retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<String>,
    /// The certificate that runs out first.
    pub certificate: Option<CertificateReport>,
    /// Only of a managed server: the client certificate that expires first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<CertificateReport>,
    /// Profiles that two devices use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedProfile>,
    /// Why the process could not be queried; then all fields but role, instance and process id are empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The user that it runs as, if it could not be queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The rule file in force in a server that filters what its clients send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The filter's connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<super::FlowTotals>,
    /// The two ports, of a bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeReport>,
    /// The network in a database, of a node of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresReport>,
}

/// The state of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeReport {
    /// `relay`: all frames pass; `filter`: those that the rules accept.
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
    /// Frames received; a super-packet is one.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Super-packets among them.
    pub large: u64,
    /// Frames that were sent on the other port.
    pub forwarded: u64,
    /// Frames dropped, by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
}

/// The TUN device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunReport {
    /// Name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses with their networks.
    pub addresses: Vec<String>,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Id in the data plane.
    pub id: u32,
    /// Common name.
    pub name: String,
    /// User name, if any.
    pub username: Option<String>,
    /// Address outside.
    pub address: String,
    /// `udp` or `tcp`.
    #[serde(default)]
    pub transport: String,
    /// Addresses inside.
    pub tunnel: Vec<String>,
    /// Cipher of the data channel.
    pub cipher: String,
    /// TLS version and suite.
    pub tls: String,
    /// Program and version as the peer reports them.
    pub program: Option<String>,
    /// Seconds since 1970 when the session began.
    pub since: u64,
    /// Age of the data key in seconds.
    pub key_age_s: u64,
    /// Authentic data packets received.
    pub rx_packets: u64,
    /// Bytes of these on the wire.
    pub rx_bytes: u64,
    /// Data packets sent.
    pub tx_packets: u64,
    /// Bytes of these on the wire.
    pub tx_bytes: u64,
    /// Bits per second received, over the last few seconds.
    pub rx_bps: u64,
    /// Bits per second sent, over the last few seconds.
    pub tx_bps: u64,
    /// The largest IP packet that the outer path was found to carry in one piece, at most 1500. Absent over TCP, and if
    /// the peer does not answer probes.
    #[serde(default)]
    pub path_mtu: Option<u16>,
    /// The largest TCP segment over IPv4 that is not clamped inside the tunnel; absent if segments are not clamped.
    #[serde(default)]
    pub mss: Option<u16>,
}

/// Histograms of packets per train; the key is the lower bound of a bucket, in packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainReport {
    /// Packets per train that was sent.
    pub sent: BTreeMap<u32, u64>,
    /// Packets per train that was received.
    pub received: BTreeMap<u32, u64>,
}

/// A certificate and its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// The owner: `own`, `ca`, or the common name of a peer.
    pub whose: String,
    /// Seconds since 1970.
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
