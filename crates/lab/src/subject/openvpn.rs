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
    let own = "disable-dco\n";
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
