//! The veth pair itself.

use adit_testbed::failure::Result;
use adit_testbed::tunnel::InnerAddrs;

use super::start::{Processes, no_lines};
use super::{TunnelSpec, Tunnels};
use crate::testbed::Testbed;

/// Returns the outer addresses, which are also those in the tunnel, because nothing is started.
pub(super) fn start(testbed: &Testbed, spec: &TunnelSpec) -> Result<Tunnels> {
    no_lines(spec, "the bare link")?;
    // Traffic goes to `v4`. If the tunnels' packets travel over IPv6, so must the traffic that is compared with them.
    let inner = |address: &dyn Fn(bool) -> std::net::IpAddr| InnerAddrs {
        v4: address(spec.outer_v6),
        v6: Some(address(true)),
    };
    let mut processes = Processes::default();
    processes.clients = testbed.clients.iter().map(|_| Vec::new()).collect();
    let clients = 0..testbed.clients.len();
    let client_inner =
        clients.map(|client| inner(&|v6| testbed.client_outer(client, v6))).collect();
    let mut tunnels = processes.into_tunnels(inner(&|v6| testbed.server_outer(v6)), client_inner);
    if let Some(mtu) = spec.inner_mtu {
        tunnels.notes.push(format!("the bare link keeps its own MTU, not {mtu}"));
    }
    Ok(tunnels)
}
