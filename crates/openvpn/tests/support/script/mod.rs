//! Scripts of events against the engines, decoded from bytes: for the fuzzer, for the replay of its
//! corpus and for random walks.
//!
//! A script sets up a scene. Then packets are delivered, altered, repeated and lost, time passes,
//! and both ends act. After each event the engines must be at rest and within their bounds; at the
//! end a client that was not ordered to stop has a session again. In a steadfast script all events
//! are those of an attacker without keys: the one session must survive them.

// Each user of this file needs one half of it.
#![allow(dead_code, unused_imports)]

mod bytes;
mod forge;
mod pair;
#[path = "../points.rs"]
mod points;
mod sessions;
#[path = "../mod.rs"]
mod world;

pub(crate) use pair::run as pair;
pub(crate) use sessions::run as sessions;

use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The maximum number of events in one script; the rest is not read.
const MAX_EVENTS: usize = 48;
/// The maximum number of outputs of one input, with the few clients that a script may have.
const MAX_OUTPUTS: usize = 128;
/// The maximum number of packets in transit in one direction.
const MAX_UNDER_WAY: usize = 1024;
/// The number of times that an engine may be due at one moment before it rests.
const MAX_TICKS: usize = 8;
/// The steps by which time advances.
const TIMES: [Duration; 8] = [
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(30),
    Duration::from_secs(61),
];
/// The number of those that a steadfast script uses: together far less than `tran-window`.
const SHORT_TIMES: usize = 6;
