//! Scripts of events for the engines, decoded from bytes, for the fuzzer, the replay of its corpus and random walks.
//!
//! A script first configures the ends. Its events deliver, alter, repeat and lose packets, advance
//! the time, and let both ends act. After each event, the engines must be idle and within their
//! limits. At the end, a client that was not ordered to stop must have a session again. In a
//! steadfast script, all events are actions of an attacker without keys, which the session must
//! survive.

// Each user of this file needs only a part of it.
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
/// The maximum number of events in one script. Later bytes are not read.
const MAX_EVENTS: usize = 48;
/// The maximum number of outputs of one input, with the few clients that a script may have.
const MAX_OUTPUTS: usize = 128;
/// The maximum number of packets in transit in one direction.
const MAX_UNDER_WAY: usize = 1024;
/// The number of times that an engine may be due at one moment before it must be idle.
const MAX_TICKS: usize = 8;
/// How far the time advances in one step.
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
/// The number of these steps that a steadfast script uses. Their total is far less than
/// `tran-window`.
const SHORT_TIMES: usize = 6;
