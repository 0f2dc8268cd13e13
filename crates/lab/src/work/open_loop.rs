//! UDP by a schedule that waits for nobody.

use adit_interop::failure::Result;

use super::{Edge, Measured, Route, Sizes, Window};
use crate::record::Latency;

/// What became of datagrams that were sent by a fixed schedule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UdpMeasured {
    /// Payload that arrived in the window, by flow.
    pub measured: Measured,
    /// The rate of the schedule, all flows together, in datagrams a second.
    pub intended_pps: f64,
    /// The rate at which they really left, by the end of the window.
    pub offered_pps: f64,
    /// Of those that were to leave inside the window, how many left.
    pub sent: u64,
    /// How many of these arrived, each counted once.
    pub received: u64,
    /// How many of these had not arrived a second after the last was sent. Those that the sender's kernel refused are among them.
    pub lost: u64,
    /// How many of these the sender's kernel refused because its buffers were full.
    pub refused: u64,
    /// How many came again.
    pub duplicated: u64,
    /// How many came after one that was sent later on the same flow.
    pub reordered: u64,
    /// From the intended time of sending to the arrival, one way.
    pub latency: Latency,
    /// How late the generator itself was: from the intended time to the system call.
    pub lateness: Latency,
}

impl UdpMeasured {
    /// The lost share, 0 to 1.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn loss(&self) -> f64 {
        if self.sent > 0 { self.lost as f64 / self.sent as f64 } else { 0.0 }
    }
}

/// Sends `rate_pps` datagrams a second over all routes in turn. The schedule is fixed beforehand: a late
/// sender sends at once, and the latency counts from the intended time.
///
/// # Errors
/// No socket, by the flow's name; or what `edge` says.
pub fn udp_open_loop(
    routes: &[Route<'_>],
    window: &Window,
    rate_pps: f64,
    sizes: Sizes,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<UdpMeasured> {
    let _ = (routes, window, rate_pps, sizes, edge);
    Err("the open loop is not built yet".into())
}
