//! The testbed of the interoperability tests, the measurements, the demos and the programs' own tests.
//!
//! [`sandbox`] creates a sandbox (mounts, pids, network) that contains everything that a run creates and ends with it,
//! however the run ends. [`net`] joins namespaces by veth pairs, and [`mod@line`] by a line that loses and reorders frames.
//! [`process`] runs daemons and watches their logs, and [`test_process`] does the same for tests that panic. [`pki`] has
//! OpenSSL and Easy-RSA create certificates. [`peer`] names the programs under test, [`tunnel`] knows their log lines.
//! [`traffic`] and [`echo`] send and count, [`pattern`] has bytes to send, [`mod@file`] writes files with a mode, [`wait`] has limits that hold on a busy machine,
//! [`skip`] reports the checks that do not run. [`laptop`] provides a laptop's surroundings: access networks behind NAT and a host outside.
//! [`postgres`] creates throw-away database clusters. [`plugin`] compiles a plugin for openvpn whose arguments say what it
//! does. [`other_version`] lets two versions of the program meet. [`identity_provider`] is a provider for logins in a browser. [`token`] creates tokens of SoftHSM.
//!
//! The crate depends on `adit-linux` and on none of the crates under test, so that a defect of theirs cannot hide a
//! failure.
#![forbid(unsafe_code)]

pub mod echo;
pub mod failure;
pub mod file;
pub mod identity_provider;
pub mod laptop;
pub mod line;
pub mod net;
pub mod other_version;
pub mod pattern;
pub mod peer;
pub mod pki;
pub mod plugin;
pub mod postgres;
pub mod process;
pub mod sandbox;
pub mod skip;
pub mod test_process;
pub mod token;
pub mod traffic;
pub mod tunnel;
pub mod wait;

pub use failure::{Failure, Result};
