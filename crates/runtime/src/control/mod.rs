//! The control socket, through which other processes inspect and control a running one.
//!
//! It is a unix socket with mode 0600 under `/run/adit`. Each line is one JSON [`Request`], and the answer is one line with a [`Response`].

mod filter;
mod mesh;
mod postgres;
mod report;
mod socket;
mod tinc;
mod tinc_guest;

pub use filter::{
    AddedElements, CaptureBatch, CapturedPacket, FilterReport, FlowReport, FlowTotals, RuleCounter,
    RuleFiles,
};
pub use mesh::{
    MeshAdminRequest, MeshAdmins, MeshApp, MeshChannel, MeshDescription, MeshDirectory,
    MeshDropped, MeshInvitation, MeshInviter, MeshJoiner, MeshPath, MeshPeer, MeshPolicy, MeshPong,
    MeshProfile, MeshReport, MeshSigned, MeshSigner, MeshToken, MeshWaiting,
};
pub use postgres::{LinkReport, NodeReport, PostgresReport, StreamReport};
pub use report::{
    BridgeReport, CertificateReport, Endpoints, LoginReport, PeerReport, PortReport, ReloadReport,
    Request, Response, SharedProfile, StatusReport, TrainReport, TunReport,
};
pub use socket::{CONNECTION_LIMIT, LINE_LIMIT, list, request};
pub use socket::{
    ControlRequest, Server, bind, exchange, is_stopped, listener_of, silent, version_mismatch,
};
pub use tinc::{TincNode, TincReport};
pub use tinc_guest::{MeshTinc, RefusedSubnet, TincNet, TincSubnet};

/// Parses a request or response line, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let again = serde_json::to_vec(&request).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<Request>(&again).ok(), Some(request));
    }
    let Ok(response) = socket::read_response(bytes) else { return };
    let line = serde_json::to_string(&response).unwrap_or_default();
    let prints = |c: char| !c.is_control();
    assert!(line.chars().all(prints), "{line}");
    // No escaped control characters, except for line feeds and tabs, may reach the terminal.
    for escape in ["\\u00", "\\r", "\\b", "\\f"] {
        let whole = line.replace("\\\\", "");
        assert!(!whole.contains(escape), "{line}");
    }
}
