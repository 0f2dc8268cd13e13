//! TCP in bulk.

use adit_interop::failure::Result;

use super::{Edge, Measured, Route, Window};

/// Sends as much as goes over one TCP connection for each route, all at once, and counts what arrived in the window.
/// A flow that breaks or carries nothing makes the trial invalid.
///
/// # Errors
/// A connection that does not come about in 10 s, by the flow's name; or what `edge` says.
pub fn tcp_bulk(
    routes: &[Route<'_>],
    window: &Window,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<Measured> {
    let _ = (routes, window, edge);
    Err("TCP in bulk is not built yet".into())
}
