//! Whether a subject's tunnels stand on a bed.

use adit_interop::failure::{Result, ensure};
use adit_interop::traffic::ping;

use super::{Kit, Subject, TunnelSpec};
use crate::bed::Bed;

/// Starts the subject on the bed and pings every client from the server and the server from every client.
///
/// # Errors
/// It did not come up, or a ping did not come back: with the logs.
pub fn check(kit: &Kit, bed: &Bed, subject: &Subject, spec: &TunnelSpec) -> Result<()> {
    let tunnels = kit.start(subject, bed, spec)?;
    ensure(tunnels.client_inner.len() == bed.clients.len(), || {
        format!("{subject}: {} of {} clients", tunnels.client_inner.len(), bed.clients.len())
    })?;
    for (host, inner) in bed.clients.iter().zip(&tunnels.client_inner) {
        let ways = [(host, tunnels.server_inner), (&bed.server, *inner)];
        for (from, to) in ways {
            for address in std::iter::once(to.v4).chain(to.v6) {
                ensure(ping(from, address, 1200, 1)? == 1, || {
                    let logs = tunnels.logs();
                    format!("{subject}: no ping from {} to {address}\n{logs}", from.name())
                })?;
            }
        }
    }
    Ok(())
}
