//! Requests and responses.

use adit_interop::failure::Result;

use super::{Edge, Measured, Route, Window};
use crate::record::Latency;

/// Over one TCP connection for each route: a request of `size` bytes, a response of `size` bytes, and so on, one
/// outstanding at a time. A closed loop: a slow path is asked less often, so the times (from the first byte of the request to the last of
/// the response) say how long an answer takes, not how long a caller with a schedule would wait; that is what
/// [`super::udp_open_loop`] tells. `count` of the times is how many ended in the window; the flows' bytes are those of the responses.
///
/// # Errors
/// As [`super::tcp_bulk`].
pub fn requests(
    routes: &[Route<'_>],
    window: &Window,
    size: usize,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<(Measured, Latency)> {
    let _ = (routes, window, size, edge);
    Err("requests are not built yet".into())
}
