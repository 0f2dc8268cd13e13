//! The system's `openvpn`, over UDP and over TCP.

use std::path::Path;
use std::process::Command;

use adit_testbed::failure::Result;
use adit_testbed::net::Namespace;

use super::directives::{self, Carrier, End};
use super::toolchain::{Toolchain, first_line};
use super::{TunnelSpec, Tunnels};
use crate::testbed::Testbed;

/// Server and clients by the config files that adit is given too, in user space.
pub(super) fn start(
    toolchain: &Toolchain,
    carrier: Carrier,
    testbed: &Testbed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    let server = End { own: server_lines(testbed, carrier), command: &command };
    directives::start(
        toolchain,
        testbed,
        spec,
        carrier,
        [&server, &End { own: CLIENT, command: &command }],
    )
}

/// The kernel's module, where there is one, is another implementation.
pub(super) const CLIENT: &str = "disable-dco\n";

/// What the server needs beside that: it answers 100 new clients in 10 s unless configured otherwise; here all come at
/// once.
pub(super) fn server_lines(testbed: &Testbed, carrier: Carrier) -> &'static str {
    let many = testbed.clients.len() > 50 && carrier != Carrier::Tcp;
    if many { "disable-dco\nconnect-freq-initial 10000 10\n" } else { CLIENT }
}

pub(super) fn command(host: &Namespace, config: &Path) -> Command {
    let mut command = host.command("openvpn");
    command.arg("--config").arg(config);
    command
}

/// The first line of `openvpn --version`.
pub(super) fn version() -> std::result::Result<String, String> {
    first_line(Path::new("openvpn"), &["--version"], "apt install openvpn, or: scripts/lab-deps.sh")
}
