//! The interoperability matrix and its scenarios, on the test bed of `adit-testbed`.
//!
//! [`matrix`] declares what is combined with what within a TLS tunnel over UDP, and [`case`] runs one combination; [`modes`] declares
//! and runs the combinations of transports, devices, credentials and formats; [`many_clients`] has many clients at once; [`nftdiff`]
//! compares the filter with the kernel's nftables; [`scenario`] holds what is no combination; [`runner`] runs all of them.
#![forbid(unsafe_code)]

pub mod case;
pub mod many_clients;
pub mod matrix;
pub mod modes;
pub mod nftdiff;
pub mod pairwise;
pub mod runner;
pub mod scenario;

// Scenarios name the test bed's modules as their own.
pub use adit_testbed::{Failure, Result};
pub(crate) use adit_testbed::{
    failure, laptop, net, peer, pki, postgres, process, sandbox, skip, traffic, wait,
};
