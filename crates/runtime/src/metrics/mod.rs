//! Metrics in the OpenMetrics format, for Prometheus and programs that read its format.
//!
//! ```text
//!   scraper ──HTTP──► metrics thread ──Query──► control thread: Instance::report, measure, sample_peers
//!                       text ◄──── samples, and peers in slices of at most SLICE ◄──┘
//! ```
//!
//! A thread of its own serves HTTP and formats the text. It asks the control thread for what `adit status` shows, without
//! the peers, and then for the peers in slices, so that packets and timers have their turn between two slices. The
//! counters are those of the status report and of the data plane: a registry of live metrics would count everything a
//! second time, with a lock or an atomic operation for each event. The format is a page of code.

mod compat;
mod config;
mod process;
mod samples;
mod scrape;
mod server;
pub mod table;

pub use config::{Config, DEFAULT_PEERS, Endpoint, Names, is_metrics_socket};
pub use samples::{Durations, Samples};
pub use scrape::{AuthStats, Head, PeerSample, SLICE, direction};
pub use server::{Listener, Query, Server};
