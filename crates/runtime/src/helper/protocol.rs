//! The protocol between the two processes, with one JSON object per message.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use adit_linux::tun::{TunOffloads, TunParts};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fault::Fault;
use crate::host::{ApplyOutcome, Capture, Device, DnsInUse, HostEvent, HostPlan};

/// The maximum length of a message in bytes. A plan with 5,000 routes fits.
pub(super) const MESSAGE_LIMIT: usize = 1 << 20;

/// A request with the number that its answer repeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberedRequest {
    /// The number. The network process chooses it.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// A request of the network process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Begin. This first request is sent once, with the configuration against which the others are checked. Config
    /// files that cannot be read twice (pipes) are attached as descriptors, in the order of `piped`.
    Begin {
        /// The name of the command's [`super::DutyKind`].
        duty: String,
        /// The part of the command line on which the configuration depends.
        arguments: Value,
        /// The config files that are pipes.
        piped: Vec<PathBuf>,
    },
    /// Read the configuration again (SIGHUP).
    Reload,
    /// Open the device.
    Open(DeviceRequest),
    /// Undo the changes of killed processes, and choose the mark of the transport's sockets.
    Prepare {
        /// Whether a mark may be chosen if the configuration has none.
        may_mark: bool,
    },
    /// Query which part of the host's traffic the tunnel carries.
    Capture,
    /// Apply a plan.
    Apply(Box<HostPlan>),
    /// Apply another plan. Changes that both plans make remain.
    Change(Box<HostPlan>),
    /// Undo the plan.
    Undo,
    /// Undo the plan and close the device.
    Close,
    /// Continue with a device that a former process set up.
    TakeOver(Device, OpenedDevice),
    /// Leave the device, the plan and the command's own changes to a process that continues with them.
    Leave,
    /// Keep another server reachable outside the tunnel.
    KeepReachable(IpAddr),
    /// Open a file for reading.
    Read(PathBuf),
    /// List a directory.
    List(PathBuf),
    /// Open a file for writing. It is created if it does not exist.
    Write {
        /// The file.
        path: PathBuf,
        /// The treatment of its existing content.
        begin: WriteMode,
    },
    /// Create a new file next to this one, which [`Request::Commit`] renames to this one's name.
    Replace(PathBuf),
    /// Rename the file of [`Request::Replace`] to its final name.
    Commit(PathBuf),
    /// Remove a file.
    Remove(PathBuf),
    /// Open the control socket.
    Control(PathBuf),
    /// Create UDP sockets that share a port.
    Datagrams(SocketRequest),
    /// Create a TCP listener.
    Listen(SocketRequest),
    /// Create a TCP socket that will connect.
    Stream(SocketRequest),
    /// A request that only this command has, which its [`super::Duty`] carries out.
    Own(Value),
}

impl Request {
    /// Creates a request that only one command uses.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn own(request: &impl Serialize) -> Result<Self, Fault> {
        to_value(request).map(Self::Own)
    }
}

/// The parameters for opening a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRequest {
    /// The kind and name of the device.
    pub device: Device,
    /// Whether checksum, TCP and UDP segmentation offloads are requested.
    pub offloads: [bool; 3],
    /// The number of queues, one for each worker.
    pub queues: u16,
}

/// The treatment of a file's existing content when it is opened for writing.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// Truncate the file.
    Empty,
    /// Truncate the file, and append.
    EmptyAppend,
    /// Append to the file.
    Append,
    /// Overwrite the file in place.
    Keep,
}

/// The parameters for creating a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketRequest {
    /// The local address. For a stream that will connect, it is an unspecified address of the right family, or the
    /// operator's.
    pub bind: SocketAddr,
    /// Whether a stream is bound before it connects.
    pub bound: bool,
    /// Whether the socket is for IPv6 only.
    pub v6only: bool,
    /// The number of sockets that share the port.
    pub count: u16,
    /// `SO_MARK`.
    pub mark: Option<u32>,
    /// `SO_BINDTODEVICE`.
    pub device: Option<String>,
    /// The sizes of the receive and send buffers in bytes.
    pub buffers: (Option<usize>, Option<usize>),
    /// Whether to collect ICMP errors.
    pub icmp_errors: bool,
}

/// An answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// The request was carried out. Opened files follow as descriptors.
    Done,
    /// The device; `None` for `dev null`.
    Device(Option<OpenedDevice>),
    /// The changes of a plan.
    Applied(ApplyOutcome),
    /// The mark of the transport's sockets.
    Mark(Option<u32>),
    /// The part of the host's traffic that the tunnel carries.
    Capture(Capture),
    /// The names of the files in a directory.
    Names(Vec<String>),
    /// The answer to [`Request::Own`].
    Own(Value),
}

impl Answer {
    /// Creates the answer to a request that only one command uses.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn own(answer: &impl Serialize) -> Result<Self, Fault> {
        to_value(answer).map(Self::Own)
    }

    /// Reads the answer to a request that only one command has.
    ///
    /// # Errors
    /// Fails if it is a different answer.
    pub fn into_own<T: DeserializeOwned>(self) -> Result<T, Fault> {
        match self {
            Self::Own(value) => serde_json::from_value(value).map_err(|_| unexpected()),
            _ => Err(unexpected()),
        }
    }
}

fn to_value(message: &impl Serialize) -> Result<Value, Fault> {
    serde_json::to_value(message)
        .map_err(|e| Fault::ours(format!("helper: a message cannot be written: {e}")))
}

/// Returns the fault for an answer of the wrong kind.
fn unexpected() -> Fault {
    Fault::ours("helper: invalid answer")
}

/// A device without its descriptors, like [`adit_linux::tun::TunParts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenedDevice {
    /// The name of the device.
    pub name: String,
    /// The index of the device.
    pub index: u32,
    /// Whether checksum, TCP and UDP segmentation offloads are in use.
    pub offloads: [bool; 3],
    /// The number of flow queues of each queue.
    pub flow_queues: Vec<usize>,
}

impl From<TunParts> for OpenedDevice {
    fn from(parts: TunParts) -> Self {
        let TunParts { name, ifindex: index, offloads, flow_queues } = parts;
        let TunOffloads { csum, tso, uso } = offloads;
        Self { name, index, offloads: [csum, tso, uso], flow_queues }
    }
}

impl From<OpenedDevice> for TunParts {
    fn from(opened: OpenedDevice) -> Self {
        let OpenedDevice { name, index: ifindex, offloads: [csum, tso, uso], flow_queues } = opened;
        Self { name, ifindex, offloads: TunOffloads { csum, tso, uso }, flow_queues }
    }
}

/// The reason why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Problem {
    /// The configuration does not permit the request.
    Refused(String),
    /// The operation failed with a fault.
    Fault(Fault),
    /// The operation failed with this error number of the kernel.
    System(i32),
}

impl Problem {
    /// Converts the error of a failed system call.
    pub fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Self::System(number),
            None => Self::Fault(Fault::environment(error.to_string())),
        }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Refused(why) => Self::ours(format!("helper: request refused: {why}")),
            Problem::Fault(fault) => fault,
            Problem::System(number) => {
                Self::environment(io::Error::from_raw_os_error(number).to_string())
            }
        }
    }
}

impl From<Problem> for io::Error {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Refused(why) => {
                Self::new(io::ErrorKind::PermissionDenied, format!("helper: refused: {why}"))
            }
            Problem::Fault(fault) => Self::other(fault.to_string()),
            Problem::System(number) => Self::from_raw_os_error(number),
        }
    }
}

/// A message from the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum HelperMessage {
    /// The answer to the request with this number.
    Answer {
        /// The number.
        id: u64,
        /// The outcome.
        outcome: Result<Answer, Problem>,
    },
    /// An event of the host.
    Event(HostEvent),
    /// The DNS servers in use. It is sent before the answer to the request that changed them.
    Dns(DnsInUse),
    /// A line for the log.
    Line {
        /// 0 for an error, 1 for a warning, 2 for any other line.
        level: u8,
        /// The level of [`crate::say!`].
        verb: u64,
        /// The text.
        text: String,
    },
}

/// Reads a request.
///
/// # Errors
/// Returns the parse error.
pub(super) fn parse(bytes: &[u8]) -> Result<NumberedRequest, String> {
    if bytes.len() > MESSAGE_LIMIT {
        return Err(format!("longer than {MESSAGE_LIMIT} bytes"));
    }
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_way_and_unknown_words_are_refused() {
        let plan =
            HostPlan { addresses: vec!["10.8.0.2/24".parse().unwrap()], ..HostPlan::default() };
        let asked = NumberedRequest { id: 7, request: Request::Apply(Box::new(plan)) };
        let bytes = serde_json::to_vec(&asked).unwrap();
        assert_eq!(parse(&bytes).unwrap(), asked);
        for text in [
            "",
            "{}",
            "[]",
            r#"{"id":1,"request":"shutdown"}"#,
            r#"{"id":1,"request":"undo","more":1}"#,
            r#"{"id":-1,"request":"undo"}"#,
            r#"{"id":1,"request":{"read":"/etc/passwd","write":"x"}}"#,
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse(&vec![b' '; MESSAGE_LIMIT + 1]).unwrap_err().contains("longer"));
    }

    #[test]
    fn a_plan_with_five_thousand_routes_fits() {
        use crate::host::{PlannedRoute, Via};
        let gateway = "fd00:1234:5678:9abc:def0:1234:5678:9abc".parse().unwrap();
        let route = |n: u32| PlannedRoute {
            net: format!("2001:db8:{:x}:{:x}::/64", n >> 16, n & 0xffff).parse().unwrap(),
            via: Via::Tunnel(Some(gateway)),
            metric: Some(n),
        };
        let routes = (0..5000).map(route).collect();
        let plan = Box::new(HostPlan { routes, ..HostPlan::default() });
        let bytes =
            serde_json::to_vec(&NumberedRequest { id: 1, request: Request::Apply(plan) }).unwrap();
        assert!(bytes.len() <= MESSAGE_LIMIT, "{}", bytes.len());
        parse(&bytes).unwrap();
    }
}
