//! The interoperability matrix and its scenarios, on the testbed of `adit-testbed`.
//!
//! [`matrix`] declares the combinations within a TLS tunnel over UDP, and [`case`] runs one of them. [`modes`] declares
//! and runs the combinations of transports, devices, credentials and formats. [`many_clients`] runs many clients at
//! once. [`nftdiff`] compares the filter with the kernel's nftables. [`scenario`] contains the tests that are not
//! combinations, and [`runner`] runs all of them.
#![forbid(unsafe_code)]

pub mod at_once;
pub mod case;
pub mod many_clients;
pub mod matrix;
pub mod modes;
pub mod nftdiff;
pub mod pairwise;
pub mod runner;
pub mod scenario;

// Scenarios refer to the testbed's types by these names.
pub use adit_testbed::{Failure, Result};
pub(crate) use adit_testbed::{
    failure, file, laptop, net, other_version, peer, pki, postgres, process, sandbox, skip,
    traffic, wait,
};
