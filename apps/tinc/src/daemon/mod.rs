//! The daemon: a node of a net, with its device, sockets and scripts.
//!
//! ```text
//!   device ──► Router::from_device ──► Node::send_packet ──► Output::Datagram ──► UDP sockets
//!   device ◄── Router::from_node   ◄── Output::Packet    ◄── Node::datagram   ◄──
//!                                                            Node::receive    ◄──► TCP connections
//! ```
//!
//! `start` opens everything with the privileges of the start, and `Running` is the loop. `data` moves the packets on these ways. In router mode,
//! the data plane of `carrier` carries most of them past the control thread.

mod address_cache;
mod carrier;
mod clients;
mod data;
mod device;
mod dial;
pub(crate) mod duty;
mod followers;
mod guest;
mod joins;
mod listen;
pub(crate) mod load;
mod log_lines;
pub mod options;
mod plane_routes;
mod privileged;
mod reload;
mod report;
mod requests;
mod rows;
mod running;
mod scripts;
mod start;
mod streams;
pub(crate) mod system_names;
mod transits;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use adit_runtime::fault::Fault;

pub use duty::TINC;
use options::{HELP, Wanted};

/// Runs `tincd` with the words after its name.
pub fn main(words: &[OsString]) -> ExitCode {
    let options = match options::parse(words) {
        Ok(Wanted::Run(options)) => options,
        Ok(Wanted::Help) => return printed(HELP),
        Ok(Wanted::Version) => return printed(&format!("tincd version {}\n", crate::VERSION)),
        Err(fault) => return failed(&fault),
    };
    start::run(&options).unwrap_or_else(|fault| failed(&fault))
}

fn printed(text: &str) -> ExitCode {
    // It is not a failure if the reader has closed the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Reports a fault before the log has been started. tinc's exit code is always 1.
fn failed(fault: &Fault) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "tincd: {fault}");
    ExitCode::FAILURE
}
