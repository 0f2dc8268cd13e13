//! The test bed: what interoperability tests, measurements, demos and the programs' own tests run in.
//!
//! [`sandbox`] makes a sandbox (mounts, pids, network) in which everything that a run creates lives and with
//! which it ends, however the run ends. [`net`] joins namespaces by veth pairs, [`process`] runs daemons and watches
//! their logs, [`test_process`] does the same for tests that panic, [`pki`] has certificates made by OpenSSL and Easy-RSA, [`peer`] names the programs under test, [`tunnel`] knows
//! what they say, [`traffic`] and [`echo`] send and count, [`wait`] has limits that hold on a busy machine, [`skip`] names the checks that do not run. [`laptop`] is a laptop's surroundings: access networks behind NAT and a host
//! outside. [`postgres`] makes throw-away database clusters.
//!
//! The crate knows `adit-linux` and none of the crates under test, so that a defect of theirs cannot hide a failure.
#![forbid(unsafe_code)]

pub mod echo;
pub mod failure;
pub mod laptop;
pub mod net;
pub mod peer;
pub mod pki;
pub mod postgres;
pub mod process;
pub mod sandbox;
pub mod skip;
pub mod test_process;
pub mod traffic;
pub mod tunnel;
pub mod wait;

pub use failure::{Failure, Result};
