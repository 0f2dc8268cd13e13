//! The protocol between the two processes: one JSON object per message.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fault::Fault;
use crate::host::{ApplyOutcome, Capture, Device, DnsInUse, HostEvent, HostPlan};

/// Longest message in bytes: a plan with 5,000 routes fits.
pub(super) const MESSAGE_LIMIT: usize = 1 << 20;

/// A request with the number that its answer carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberedRequest {
    /// Chosen by the network process.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// Everything that the network process can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The first request, sent once: the configuration that the others are checked against. Config files that cannot be
    /// read twice (pipes) are attached as descriptors, in this order.
    Begin {
        /// The name of the command's [`super::DutyKind`].
        duty: String,
        /// The part of the command line that the configuration depends on.
        arguments: Value,
        /// Config files that are pipes.
        piped: Vec<PathBuf>,
    },
    /// Read the configuration again (SIGHUP).
    Reload,
    /// Open the device.
    Open(DeviceRequest),
    /// Undo what killed processes left, and choose the mark of the transport's sockets.
    Prepare {
        /// Whether a mark may be chosen where the configuration has none.
        may_mark: bool,
    },
    /// Asks which part of the machine's traffic the tunnel carries.
    Capture,
    /// Apply a plan.
    Apply(Box<HostPlan>),
    /// Apply another plan; changes that both plans make remain.
    Change(Box<HostPlan>),
    /// Undo the plan.
    Undo,
    /// Undo the plan and close the device.
    Close,
    /// Keep another server reachable outside the tunnel.
    KeepReachable(IpAddr),
    /// Open a file for reading.
    Read(PathBuf),
    /// List a folder.
    List(PathBuf),
    /// Open a file for writing; it is created if it does not exist.
    Write {
        /// The file.
        path: PathBuf,
        /// The treatment of its existing content.
        begin: WriteMode,
    },
    /// Create a file next to this one, which [`Request::Commit`] renames to it.
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
    /// A request of this command alone, which its [`super::Duty`] carries out.
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
    /// Truncate.
    Empty,
    /// Truncate and append.
    EmptyAppend,
    /// Append.
    Append,
    /// Overwrite in place.
    Keep,
}

/// The parameters for creating a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketRequest {
    /// Local address; of a stream that is to connect: that of any address of the right family, or the
    /// operator's.
    pub bind: SocketAddr,
    /// Whether a stream is bound before it connects.
    pub bound: bool,
    /// IPv6 only.
    pub v6only: bool,
    /// The number of sockets that share the port.
    pub count: u16,
    /// `SO_MARK`.
    pub mark: Option<u32>,
    /// `SO_BINDTODEVICE`.
    pub device: Option<String>,
    /// Buffers in bytes (receive, send).
    pub buffers: (Option<usize>, Option<usize>),
    /// Collect ICMP errors.
    pub icmp_errors: bool,
}

/// An answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// Success; opened files follow as descriptors.
    Done,
    /// The device; `None` for `dev null`.
    Device(Option<OpenedDevice>),
    /// The changes of a plan.
    Applied(ApplyOutcome),
    /// The mark of the transport's sockets.
    Mark(Option<u32>),
    /// The share of the machine's traffic that the tunnel carries.
    Capture(Capture),
    /// Names of the files in a folder.
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

    /// Reads the answer to a request of one command alone.
    ///
    /// # Errors
    /// It is another answer.
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

/// Returns the fault of an answer of the wrong kind.
fn unexpected() -> Fault {
    Fault::ours("helper: answer not understood")
}

/// A device without its descriptors, as [`adit_linux::tun::TunParts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenedDevice {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Checksums, TCP and UDP super-packets.
    pub offloads: [bool; 3],
    /// The number of flow queues of each queue.
    pub flow_queues: Vec<usize>,
}

/// The reason why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Problem {
    /// The configuration asks for no such thing.
    Refused(String),
    /// It failed.
    Fault(Fault),
    /// The kernel's error number.
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

/// Everything that the helper sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum HelperMessage {
    /// The answer to the request of this number.
    Answer {
        /// The number.
        id: u64,
        /// The outcome.
        outcome: Result<Answer, Problem>,
    },
    /// An event of the host.
    Event(HostEvent),
    /// Whose DNS servers are in use; before the answer to the request that changed it.
    Dns(DnsInUse),
    /// A line for the log.
    Line {
        /// 0 error, 1 warning, 2 everything else.
        level: u8,
        /// As [`crate::say!`] counts.
        verb: u64,
        /// The text.
        text: String,
    },
}

/// Reads a request.
///
/// # Errors
/// The error in it.
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
