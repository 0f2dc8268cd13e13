//! The system's `openvpn`, over UDP and over TCP.

use std::path::Path;

use adit_interop::failure::Result;

use super::directives::{self, Carrier};
use super::kit::{Kit, first_line};
use super::{TunnelSpec, Tunnels};
use crate::bed::Bed;

/// Server and clients by the config files that adit is given too, in user space.
pub(super) fn start(kit: &Kit, carrier: Carrier, bed: &Bed, spec: &TunnelSpec) -> Result<Tunnels> {
    // The kernel's module, where there is one, is another implementation.
    let at_client = "disable-dco\n";
    // It answers 100 new clients in 10 s and no more unless it is told; here all come at once.
    let crowd = bed.clients.len() > 50 && carrier == Carrier::Udp;
    let at_server = if crowd { "disable-dco\nconnect-freq-initial 10000 10\n" } else { at_client };
    let own = [at_server, at_client];
    directives::start(kit, bed, spec, carrier, own, &|host, config| {
        let mut command = host.command("openvpn");
        command.arg("--config").arg(config);
        command
    })
}

/// The first line of `openvpn --version`.
pub(super) fn version() -> std::result::Result<String, String> {
    first_line(Path::new("openvpn"), &["--version"], "apt install openvpn, or: scripts/lab-deps.sh")
}
