//! tinc 1.0 in router mode.

use std::path::Path;

use super::kit::first_line;

/// The first line of `tincd --version`.
pub(super) fn version() -> Result<String, String> {
    let line = first_line(
        Path::new("tincd"),
        &["--version"],
        "apt install tinc, or: scripts/lab-deps.sh",
    )?;
    if line.starts_with("tinc version 1.0") {
        return Ok(line);
    }
    Err(format!(
        "{line}: its files differ from those of 1.0, which the lab writes: apt install tinc=1.0*"
    ))
}
