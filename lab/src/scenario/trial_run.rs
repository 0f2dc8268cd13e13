//! Established tunnels, and the routes through them.

use std::rc::Rc;

use adit_testbed::failure::Result;

use crate::measure::{Meter, Usage};
use crate::record::Measurement;
use crate::subject::Tunnels;
use crate::testbed::Testbed;
use crate::work::{Edge, Measured, Route};

/// The tunnels of one trial on its testbed.
pub(super) struct TrialRun {
    // Declared first, so that the processes end before their hosts are removed.
    pub(super) tunnels: Tunnels,
    pub(super) testbed: Rc<Testbed>,
}

/// The direction of bulk traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the clients to the server.
    Up,
    /// From the server to the clients.
    Down,
}

/// The result of a window, and its cost.
pub(super) struct MeasuredCost {
    pub(super) measured: Measured,
    pub(super) usage: Usage,
}

impl TrialRun {
    /// Returns routes for this many flows of each client, all in one direction, each through its
    /// tunnel.
    pub(super) fn routes(&self, direction: Direction, streams: u16) -> Vec<Route<'_>> {
        let clients = self.testbed.clients.iter().zip(&self.tunnels.client_inner);
        let flows = clients.enumerate().flat_map(|(number, client)| {
            (1..=streams).map(move |stream| (number + 1, stream, client))
        });
        flows
            .map(|(number, stream, (host, inner))| {
                let stream = if streams > 1 { format!(".{stream}") } else { String::new() };
                let (name, from, to, to_address) = match direction {
                    Direction::Up => {
                        ("up", host, &self.testbed.server, self.tunnels.server_inner.v4)
                    }
                    Direction::Down => ("down", &self.testbed.server, host, inner.v4),
                };
                Route { name: format!("{name} {number}{stream}"), from, to, to_address }
            })
            .collect()
    }

    /// Runs traffic and measures the cost of the daemons within its window.
    pub(super) fn measure_cost(
        &self,
        traffic: impl FnOnce(&mut dyn FnMut(Edge) -> Result<()>) -> Result<Measured>,
    ) -> Result<MeasuredCost> {
        let mut meter = Meter::start(&self.tunnels.processes(), &self.testbed)?;
        let measured =
            traffic(&mut |edge| meter.edge(edge)).map_err(|failure| self.broken(&failure))?;
        Ok(MeasuredCost { measured, usage: meter.stop()? })
    }

    /// Returns a failure with the ends of the daemons' logs.
    pub(super) fn broken(&self, failure: &adit_testbed::Failure) -> adit_testbed::Failure {
        adit_testbed::Failure(format!("{failure}\n{}", self.tunnels.logs()))
    }
}

impl MeasuredCost {
    /// Returns the gigabits of payload that arrived in the window.
    pub(super) fn gigabits(&self) -> f64 {
        self.measured.mbps() * self.measured.seconds / 1e3
    }

    /// Adds the flows and their fairness to the record, and the reason if they do not count.
    pub(super) fn put_flows(&self, measurement: &mut Measurement) {
        let Measured { flows, skew, invalid, .. } = &self.measured;
        let worst = |name: &str, so_far: fn(f64, f64) -> f64, value: f64| {
            let before = measurement.values.get(name).copied().unwrap_or(value);
            so_far(before, value)
        };
        let skew = worst("skew_percent", f64::max, skew * 100.0);
        let coverage = worst("coverage_percent", f64::min, self.measured.coverage() * 100.0);
        let jain = worst("jain", f64::min, self.measured.jain());
        measurement.set("skew_percent", skew);
        measurement.set("coverage_percent", coverage);
        measurement.set("jain", jain);
        measurement.flows.extend(flows.iter().cloned());
        measurement.invalid.extend(invalid.iter().cloned());
    }
}
