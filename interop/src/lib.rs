//! A test bed for VPN daemons in network namespaces, and the interoperability matrix that runs on it.
//!
//! [`world`] makes a private world (mounts, pids, network) in which everything that a run creates lives and with
//! which it ends, however the run ends. [`net`] joins namespaces by cables, [`process`] runs daemons and watches
//! their logs, [`pki`] has certificates made by OpenSSL and Easy-RSA, [`traffic`] sends and counts. [`matrix`]
//! declares what is combined with what within a TLS tunnel over UDP, and [`cell`] runs one combination; [`modes`] declares and
//! runs the combinations of transports, devices, credentials and formats; [`crowd`] has many
//! clients at once; [`laptop`] is a laptop's surroundings; [`postgres`] makes throw-away database clusters; [`scenario`] holds what is no combination.
#![forbid(unsafe_code)]

pub mod cell;
pub mod covering;
pub mod crowd;
pub mod failure;
pub mod laptop;
pub mod matrix;
pub mod modes;
pub mod net;
pub mod nftdiff;
pub mod peer;
pub mod pki;
pub mod postgres;
pub mod process;
pub mod scenario;
pub mod traffic;
pub mod world;

pub use failure::{Failure, Result};
