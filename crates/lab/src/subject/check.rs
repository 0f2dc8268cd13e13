//! Whether a subject's tunnels stand on a bed.

use std::path::Path;

use adit_testbed::failure::{Result, ensure};
use adit_testbed::traffic::ping;

use super::{Kit, Subject, TunnelSpec};
use crate::bed::Bed;

/// Starts the subject on the bed, pings every client from the server and the server from every client, and ends it.
///
/// # Errors
/// It did not come up, a ping did not come back, or a process is left: with the logs.
pub fn check(kit: &Kit, bed: &Bed, subject: &Subject, spec: &TunnelSpec) -> Result<()> {
    let tunnels = kit.start(subject, bed, spec)?;
    ensure(tunnels.client_inner.len() == bed.clients.len(), || {
        format!("{subject}: {} of {} clients", tunnels.client_inner.len(), bed.clients.len())
    })?;
    for (host, inner) in bed.clients.iter().zip(&tunnels.client_inner) {
        let ways = [(host, tunnels.server_inner), (&bed.server, *inner)];
        for (from, to) in ways {
            for address in std::iter::once(to.v4).chain(to.v6) {
                // A machine under load may take its second for one.
                let back = (0..3).map(|_| ping(from, address, 1200, 1));
                let back = back.take_while(|back| !matches!(back, Ok(1..))).count() < 3;
                ensure(back, || {
                    let logs = tunnels.logs();
                    format!("{subject}: no ping from {} to {address}\n{logs}", from.name())
                })?;
            }
        }
    }
    let pids: Vec<u32> = tunnels.processes().into_iter().flat_map(|(_, pids)| pids).collect();
    ensure(pids.is_empty() == (*subject == Subject::Bare), || format!("{subject}: {pids:?}"))?;
    drop(tunnels);
    let left = pids.iter().find(|pid| Path::new(&format!("/proc/{pid}")).exists());
    ensure(left.is_none(), || format!("{subject}: process {left:?} outlived its tunnel"))
}
