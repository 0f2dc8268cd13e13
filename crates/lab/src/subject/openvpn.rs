//! The system's `openvpn`, over UDP and over TCP.

use std::path::Path;

use super::kit::first_line;

/// The first line of `openvpn --version`.
pub(super) fn version() -> Result<String, String> {
    first_line(Path::new("openvpn"), &["--version"], "apt install openvpn, or: scripts/lab-deps.sh")
}
