//! The control socket: how other processes look at and steer a running one.
//!
//! A unix socket with mode 0600 under `/run/adit`; each line is one JSON [`Request`], answered by one
//! line with a [`Response`].

mod filter;
mod postgres;
mod report;
mod socket;

pub use filter::{
    CaptureBatch, CapturedPacket, FilterReport, FlowReport, FlowTotals, RuleCounter, RuleFiles,
};
pub use postgres::{LinkReport, NodeReport, PostgresReport, StreamReport};
pub use report::{
    BridgeReport, CertificateReport, Endpoints, PeerReport, PortReport, ReloadReport, Request,
    Response, SharedProfile, StatusReport, TrainReport, TunReport,
};
pub(crate) use socket::{Asked, Server, bind, exchange, is_stopped, listener_of, silent};
pub use socket::{CONNECTION_LIMIT, LINE_LIMIT, list, request};
