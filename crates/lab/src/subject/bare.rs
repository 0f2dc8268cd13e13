//! The cable itself.

use adit_testbed::failure::Result;
use adit_testbed::tunnel::Inner;

use super::start::no_lines;
use super::{TunnelSpec, Tunnels};
use crate::bed::Bed;

/// Nothing to start: the addresses in the tunnel are those outside.
pub(super) fn start(bed: &Bed, spec: &TunnelSpec) -> Result<Tunnels> {
    no_lines(spec, "the bare link")?;
    // Traffic goes to `v4`: where the tunnels' packets travel over IPv6, so must the traffic that stands beside them.
    let inner = |address: &dyn Fn(bool) -> std::net::IpAddr| Inner {
        v4: address(spec.outer_v6),
        v6: Some(address(true)),
    };
    let mut tunnels = Tunnels {
        server: Vec::new(),
        clients: bed.clients.iter().map(|_| Vec::new()).collect(),
        server_inner: inner(&|v6| bed.server_outer(v6)),
        client_inner: (0..bed.clients.len())
            .map(|client| inner(&|v6| bed.client_outer(client, v6)))
            .collect(),
        configs: Vec::new(),
        notes: Vec::new(),
        folder: None,
        between: None,
    };
    if let Some(mtu) = spec.inner_mtu {
        tunnels.notes.push(format!("the bare link keeps its own MTU, not {mtu}"));
    }
    Ok(tunnels)
}
