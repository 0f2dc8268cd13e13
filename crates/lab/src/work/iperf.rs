//! iperf3, as others measure.

use std::net::IpAddr;

use adit_interop::failure::Result;
use adit_interop::net::Namespace;

use super::{Edge, Measured, Window};

/// One TCP stream by iperf3 from `from` to `to` (with `reverse` the other way round, over a connection that `from` still
/// makes), whose server listens at `address`. The receiver's figure. Warm-up and length are rounded up to whole seconds,
/// because iperf3 knows no others; the edges come at best effort.
///
/// # Errors
/// iperf3 is not there, failed or took too long: with what it said.
pub fn iperf3(
    from: &Namespace,
    to: &Namespace,
    address: IpAddr,
    window: &Window,
    reverse: bool,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<Measured> {
    let _ = (from, to, address, window, reverse, edge);
    Err("iperf3 is not built yet".into())
}
