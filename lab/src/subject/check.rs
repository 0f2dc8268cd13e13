//! Checks that a subject's tunnels are up on a testbed.

use std::path::Path;

use adit_testbed::failure::{Result, ensure};
use adit_testbed::traffic::ping;

use super::{Subject, Toolchain, TunnelSpec};
use crate::testbed::Testbed;

/// Starts the subject on the testbed, pings every client from the server and the server from every client, and ends it.
///
/// # Errors
/// The subject did not become ready, a ping was lost, or a process did not end; the error includes the logs.
pub fn check(
    toolchain: &Toolchain,
    testbed: &Testbed,
    subject: &Subject,
    spec: &TunnelSpec,
) -> Result<()> {
    let tunnels = toolchain.start(subject, testbed, spec)?;
    ensure(tunnels.client_inner.len() == testbed.clients.len(), || {
        format!("{subject}: {} of {} clients", tunnels.client_inner.len(), testbed.clients.len())
    })?;
    for (host, inner) in testbed.clients.iter().zip(&tunnels.client_inner) {
        let ways = [(host, tunnels.server_inner), (&testbed.server, *inner)];
        for (from, to) in ways {
            for address in std::iter::once(to.v4).chain(to.v6) {
                // On a loaded machine, a single ping may take longer than its second.
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
