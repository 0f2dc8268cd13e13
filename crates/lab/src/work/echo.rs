//! Round trips.

use std::net::IpAddr;
use std::time::Duration;

use adit_interop::failure::Result;
use adit_interop::net::Namespace;

use super::{Edge, Route, Window};
use crate::record::Latency;

/// Probes and their echoes between two hosts, on threads of their own, until [`Echo::finish`].
#[derive(Debug)]
pub struct Echo {}

impl Echo {
    /// Starts sending `rate` small UDP datagrams a second from `from` to `address` in `to`, where each is sent back at once.
    ///
    /// # Errors
    /// No socket.
    pub fn start(from: &Namespace, to: &Namespace, address: IpAddr, rate: f64) -> Result<Echo> {
        let _ = (from, to, address, rate);
        Err("echoes are not built yet".into())
    }

    /// What counts begins or ends now.
    pub fn edge(&self, edge: Edge) {
        let _ = edge;
    }

    /// Stops, and tells how long the round trips took that were to begin between the edges (all, without edges).
    ///
    /// # Errors
    /// A socket failed on the way.
    pub fn finish(self) -> Result<Latency> {
        Err("echoes are not built yet".into())
    }
}

/// Round trips on an otherwise idle path: [`Echo`] for one window.
///
/// # Errors
/// As [`Echo`].
pub fn echo_latency(
    from: &Namespace,
    to: &Namespace,
    address: IpAddr,
    rate: f64,
    window: &Window,
) -> Result<Latency> {
    let echo = Echo::start(from, to, address, rate)?;
    std::thread::sleep(window.warmup);
    echo.edge(Edge::Begin);
    std::thread::sleep(window.length);
    echo.edge(Edge::End);
    echo.finish()
}

/// The names of those routes over which no echo came back within `limit`, with probes every 100 ms.
///
/// # Errors
/// No socket.
pub fn unreachable(routes: &[Route<'_>], limit: Duration) -> Result<Vec<String>> {
    let _ = (routes, limit);
    Err("echoes are not built yet".into())
}
