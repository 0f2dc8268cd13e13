//! The middle host of a line: a user-space relay that runs an impairment model for each direction.

use adit_interop::failure::Result;
use adit_sim::Impairment;

use crate::record::{Latency, Measurement};

/// The relay of a [`super::Bed::line`].
#[derive(Debug)]
pub struct Relay {}

/// What one direction of a relay did so far, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelayCounters {
    /// Taken from the sender.
    pub sent: u64,
    /// Vanished by impairment.
    pub lost: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held back out of order.
    pub reordered: u64,
    /// Dropped because too many were under way.
    pub overflowed: u64,
    /// Handed to the receiver.
    pub delivered: u64,
}

impl Relay {
    /// Changes what is done to packets from now on: `[from the client, from the server]`. Those under way arrive as before.
    pub fn set_impairment(&self, impairment: [Impairment; 2]) {
        let _ = impairment;
    }

    /// What it did so far: `[from the client, from the server]`.
    ///
    /// # Errors
    /// The relay has ended, and why.
    pub fn counters(&self) -> Result<[RelayCounters; 2]> {
        Err("not built yet".into())
    }

    /// How much later than intended packets were handed over, both directions, since the start or the last
    /// [`Relay::reset`].
    #[must_use]
    pub fn lateness(&self) -> Latency {
        Latency::default()
    }

    /// Forgets the lateness so far: call it where the window begins.
    pub fn reset(&self) {}

    /// Writes `relay_jitter_ms` (the 99th percentile of the lateness), a note with its distribution and the counters, and
    /// a reason for invalidity if the relay broke.
    pub fn put(&self, measurement: &mut Measurement) {
        let _ = measurement;
    }
}
